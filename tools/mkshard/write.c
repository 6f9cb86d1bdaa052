/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the shards of a plan, for `mkshard pack`; pack.h and prefetch/bulk.h first.
 *
 * A worker takes a shard and fills it segment by segment.  The plan says where each byte goes.  So the worker reads
 * all files of a segment at once, in the order of their inodes, each directly to its place.  It computes the checksum
 * of a file while the file is in the CPU cache, and writes the segment in one piece.
 *
 *   segment:  | header | file content  ..pad | header | file ... (goes on in the next segment)
 *                       ^ io_uring reads here          ^ summed when the segment is complete: order matters
 *
 * Several workers work on several shards, so that one writes while others read.  Memory: one segment a worker. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "prefetch/bulk.h"
#include "shard/base/cleanup.h"
#include "shard/base/io.h"
#include "shard/bare.h"
#include "shard/base/units.h"
#include "shard/block_sum.h"
#include "shard/tar.h"
#include "tools/mkshard/interrupt.h"
#include "tools/mkshard/pack.h"
#include "tools/mkshard/upload.h"
#include "tools/mkshard/sum.h"
#include "tools/common/progress.h"

enum {
	SEGMENT_MIN = 1 << 20,
	SEGMENT_MAX = 64 << 20,
	PIECES_MAX = 32768,    /* pieces that are gathered before they are read */
	PIECE_BYTES = 4 << 20, /* a larger file is read in several pieces at once */
	READ_DEPTH = 128,
};

struct run {
	struct shard_pack_plan *plan;
	struct pack_input *input;
	const struct pack_write_options *options;
	struct pack_journal *journal;
	struct pack_shard_sums *sums;
	uint64_t segment_bytes;
	_Atomic uint32_t next_shard;
	_Atomic bool stop; /* a worker failed, so all end */
	pthread_mutex_t lock;
	struct base_err err; /* the first error; guarded by lock */
};

/* A part of a file that one read takes. */
struct piece {
	struct prefetch_bulk_file file;
	uint64_t k;       /* index in plan->stored */
	uint64_t *blocks; /* where the block sums go, of a file over SHARD_BLOCK */
	bool whole;       /* the piece is the whole file: summed when the read ends */
};

struct worker {
	struct run *run;
	struct prefetch_bulk *bulk;
	uint8_t *buf;
	struct piece *pieces;
	uint32_t n_pieces;
	/* The current shard: */
	uint32_t shard;
	struct pack_shard_sums *sums;
	int fd;
	char path[4096];
	bool failed_items;    /* this pass left out an item, so the shard must be written again */
	uint64_t k;           /* the first item that does not end before the segment */
	uint64_t block_at;    /* index of the first block sum of item k */
	struct file_sum open; /* the file that continues in the next segment */
	struct base_err err;
};

static const struct shard_pack_item *item_at(const struct run *run, uint64_t k)
{
	return &run->plan->items[run->plan->stored[k]];
}

static uint64_t blocks_of(const struct shard_pack_item *item)
{
	return item->length > SHARD_BLOCK && !item->left_out ? (item->length + SHARD_BLOCK - 1) / SHARD_BLOCK : 0;
}

/* Returns the end of an item in its shard, padding included. */
static uint64_t item_end(const struct run *run, const struct shard_pack_item *item)
{
	if (item->left_out)
		return item->offset;
	return item->offset + item->length +
	       (run->plan->options.container == SHARD_TAR ? shard_tar_padding(item->length) : 0);
}

/* Copies bytes[len] to offset `at` of the shard, as far as that lies in the segment [start, end). */
static void put(struct worker *w, uint64_t start, uint64_t end, uint64_t at, const uint8_t *bytes, size_t len)
{
	uint64_t from = at > start ? at : start, to = at + len < end ? at + len : end;
	if (from < to)
		memcpy(w->buf + (from - start), bytes + (from - at), to - from);
}

static void put_zeros(struct worker *w, uint64_t start, uint64_t end, uint64_t from, uint64_t to)
{
	from = from > start ? from : start;
	to = to < end ? to : end;
	if (from < to)
		memset(w->buf + (from - start), 0, to - from);
}

static int put_header(struct worker *w, uint64_t start, uint64_t end, const struct shard_pack_item *item)
{
	uint8_t small[4096];
	size_t size = shard_pack_header_size(w->run->plan, item);
	cleanup_free uint8_t *large = size > sizeof(small) ? malloc(size) : NULL;
	uint8_t *header = large ? large : small;
	if (size == 0 || item->offset <= start || item->offset - size >= end)
		return 0;
	if (size > sizeof(small) && !large)
		return -ENOMEM;
	struct shard_tar_meta meta = {
		.path = item->path,
		.length = item->length,
		.mtime_s = item->mtime_s,
		.mode = item->mode,
		.directory = item->directory,
	};
	shard_tar_header(&meta, header);
	put(w, start, end, item->offset - size, header, size);
	return 0;
}

/* Reading */

static const char *item_name(const struct run *run, const struct shard_pack_item *item, char buf[static 1024])
{
	const struct pack_source *source = &run->input->sources[item->source];
	char *full = NULL;
	if (source->blob || strcmp(source->name, "-")) {
		if (asprintf(&full, "%s%s%s", source->name, source->blob ? ": " : "/", item->path) < 0)
			full = NULL;
	}
	base_err_quote(full ? full : item->path, buf, 1024);
	free(full);
	return buf;
}

static void describe(const struct run *run, const struct shard_pack_item *item, int rc, struct base_err *err)
{
	char quoted[1024];
	if (rc == -ESTALE)
		base_err_set(err, rc, "'%s': changed since it was listed; pack when nobody writes to the source",
		        item_name(run, item, quoted));
	else
		base_err_set(err, rc, "'%s': cannot be read: %s", item_name(run, item, quoted), strerror(-rc));
}

/* Handles a file that could not be read: ends the run, or leaves the file out with --keep-going. */
static int refuse_item(struct worker *w, uint64_t k, int rc)
{
	struct shard_pack_item *item = &w->run->plan->items[w->run->plan->stored[k]];
	if (item->left_out)
		return 0;
	struct base_err err = { 0 };
	describe(w->run, item, rc, &err);
	rc = pack_input_refuse(w->run->input, &err);
	if (rc == 0)
		item->left_out = err.code;
	if (rc == 0 && !w->run->options->keep_going)
		rc = err.code;
	if (rc) {
		w->err = err;
		return rc;
	}
	w->failed_items = true;
	return 0;
}

static int take_landed(struct worker *w, struct prefetch_bulk_file *file)
{
	struct piece *piece = file->user;
	if (file->rc)
		return refuse_item(w, piece->k, file->rc);
	if (!piece->whole)
		return 0;
	uint64_t i = piece->k - w->run->plan->first[w->shard];
	if (file->want <= SHARD_BLOCK) {
		w->sums->xxh3[i] = shard_block_sum(file->buf, file->want);
		return 0;
	}
	struct file_sum sum;
	file_sum_start(&sum, file->want, piece->blocks);
	file_sum_feed(&sum, file->buf, file->want);
	w->sums->xxh3[i] = file_sum_end(&sum);
	return 0;
}

static int compare_pieces(const void *pa, const void *pb)
{
	const struct piece *a = pa, *b = pb;
	if (a->file.dirfd != b->file.dirfd)
		return a->file.dirfd < b->file.dirfd ? -1 : 1;
	if (a->file.expect_ino != b->file.expect_ino)
		return a->file.expect_ino < b->file.expect_ino ? -1 : 1;
	return a->file.offset < b->file.offset ? -1 : a->file.offset > b->file.offset;
}

/* Reads all pieces gathered so far. */
static int read_pieces(struct worker *w)
{
	int rc = 0;
	uint32_t submitted = 0, landed = 0;
	qsort(w->pieces, w->n_pieces, sizeof(*w->pieces), compare_pieces);
	while (landed < submitted || (rc == 0 && submitted < w->n_pieces)) {
		while (rc == 0 && submitted < w->n_pieces) {
			w->pieces[submitted].file.user = &w->pieces[submitted];
			if (prefetch_bulk_submit(w->bulk, &w->pieces[submitted].file))
				break;
			submitted++;
		}
		struct prefetch_bulk_file *file;
		int n = prefetch_bulk_reap(w->bulk, true, &file);
		if (n < 0)
			return base_err_set(&w->err, n, "reading: %s", strerror(-n));
		if (n == 0)
			break;
		landed++;
		if (rc == 0)
			rc = take_landed(w, file);
		if (rc == 0 && atomic_load_explicit(&w->run->stop, memory_order_relaxed))
			rc = -ECANCELED;
	}
	w->n_pieces = 0;
	return rc;
}

/* Queues the reads for the part of a file that lies in the segment. */
static int gather(struct worker *w, uint64_t k, uint64_t start, uint64_t end, uint64_t *blocks)
{
	const struct run *run = w->run;
	const struct shard_pack_item *item = item_at(run, k);
	const struct pack_source *source = &run->input->sources[item->source];
	uint64_t from = item->offset > start ? item->offset : start;
	uint64_t to = item->offset + item->length < end ? item->offset + item->length : end;
	uint64_t limit =
	        item_end(run, item) < end ? item_end(run, item) : end; /* a read may also overwrite the padding */
	bool whole = to - from == item->length && item->length <= PIECE_BYTES;
	do {
		uint64_t len = to - from < PIECE_BYTES ? to - from : PIECE_BYTES;
		uint64_t in_file = from - item->offset;
		bool last = from + len == to;
		if (w->n_pieces == PIECES_MAX) {
			int rc = read_pieces(w);
			if (rc)
				return rc;
		}
		struct piece *piece = &w->pieces[w->n_pieces++];
		*piece = (struct piece){ .k = k, .blocks = blocks, .whole = whole };
		piece->file = (struct prefetch_bulk_file){
			.dirfd = source->blob ? AT_FDCWD : source->dirfd,
			.path = source->blob ? source->blob : item->path,
			.offset = in_file + (source->blob ? item->source_offset : 0),
			.buf = w->buf + (from - start),
			.want = len,
			.room = last ? limit - from : len,
			.expect_size = source->blob ? source->blob_size : item->length,
			.expect_mtime_ns =
			        source->blob ? source->blob_mtime_ns : base_time_ns(item->mtime_s, item->mtime_nsec),
			.expect_ino = source->blob ? source->blob_ino : item->source_ino,
		};
		from += len;
	} while (from < to);
	return 0;
}

/* Sums the files that were read in several pieces: in order, after all pieces have arrived. */
static void sum_long_items(struct worker *w, uint64_t first_k, uint64_t block_at, uint64_t start, uint64_t end)
{
	const struct run *run = w->run;
	for (uint64_t k = first_k; k < run->plan->first[w->shard + 1]; k++) {
		const struct shard_pack_item *item = item_at(run, k);
		if (item->offset >= end)
			break;
		uint64_t *blocks = w->sums->blocks + block_at;
		block_at += blocks_of(item);
		uint64_t file_end = item->offset + item->length;
		bool whole = item->offset >= start && file_end <= end && item->length <= PIECE_BYTES;
		if (whole || item->left_out || file_end <= start)
			continue;
		uint64_t from = item->offset > start ? item->offset : start, to = file_end < end ? file_end : end;
		if (from == item->offset)
			file_sum_start(&w->open, item->length, blocks);
		file_sum_feed(&w->open, w->buf + (from - start), to - from);
		if (to == file_end)
			w->sums->xxh3[k - run->plan->first[w->shard]] = file_sum_end(&w->open);
	}
}

/* Fills buf with the shard's bytes [start, end). */
static int fill_segment(struct worker *w, uint64_t start, uint64_t end)
{
	const struct run *run = w->run;
	const struct shard_pack_plan *plan = run->plan;
	uint64_t last = plan->first[w->shard + 1], files = 0;
	size_t lead = shard_pack_lead_size(plan, w->shard);
	if (start < lead) {
		cleanup_free uint8_t *bytes = malloc(lead);
		if (!bytes)
			return base_err_set(&w->err, -ENOMEM, "out of memory");
		shard_pack_lead(plan, bytes);
		put(w, start, end, 0, bytes, lead);
	}
	uint64_t first_k = w->k, first_block = w->block_at, k = w->k, block_at = w->block_at;
	for (; k < last; k++) {
		const struct shard_pack_item *item = item_at(run, k);
		size_t header = item->left_out ? 0 : shard_pack_header_size(plan, item);
		if (item->offset - header >= end && start < end && end < plan->size_bytes[w->shard])
			break;
		int rc = item->left_out ? 0 : put_header(w, start, end, item);
		if (rc)
			return base_err_set(&w->err, rc, "out of memory");
		/* An empty file is read too, to check that it still exists and is still empty. */
		bool here = item->offset + item->length > start && item->offset < end;
		bool empty_here = item->length == 0 && item->offset >= start &&
		                  (item->offset < end || end == plan->size_bytes[w->shard]);
		if (!item->left_out && !item->directory && (here || empty_here))
			rc = gather(w, k, start, end, w->sums->blocks + block_at);
		if (rc)
			return rc;
		if (item_end(run, item) > end ||
		        (item->offset >= end && item_end(run, item) == end && end < plan->size_bytes[w->shard]))
			break; /* the item continues in the next segment */
		files += !item->directory;
		block_at += blocks_of(item);
	}
	int rc = read_pieces(w);
	if (rc)
		return rc;
	for (uint64_t i = first_k; i < last && item_at(run, i)->offset < end; i++) {
		const struct shard_pack_item *item = item_at(run, i);
		put_zeros(w, start, end, item->offset + (item->left_out ? 0 : item->length), item_end(run, item));
	}
	uint64_t content_end = plan->first[w->shard] == last ? lead : item_end(run, item_at(run, last - 1));
	put_zeros(w, start, end, content_end, plan->size_bytes[w->shard]);
	if (!w->failed_items)
		sum_long_items(w, first_k, first_block, start, end);
	w->k = k;
	w->block_at = block_at;
	progress_add(end - start, files);
	return 0;
}

/* Writing */

static int open_shard(struct worker *w)
{
	char name[32];
	snprintf(w->path, sizeof(w->path), "%s/%s", w->run->options->dir,
	        shard_pack_shard_name(w->shard, w->run->plan->options.container, name));
	int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW;
	/* O_DIRECT: nobody reads a new dataset at once, and to make its pages costs as much as to write them. */
	w->fd = open(w->path, flags | O_DIRECT, 0644);
	if (w->fd < 0 && errno == EINVAL)
		w->fd = open(w->path, flags, 0644);
	if (w->fd < 0)
		return -errno;
	/* Allocate the whole shard: it gets one extent, and a full disk shows before anything is read. */
	uint64_t size = w->run->plan->size_bytes[w->shard];
	if (size && fallocate(w->fd, 0, 0, (off_t)size) && errno != EOPNOTSUPP && errno != ENOSYS)
		return -errno;
	return 0;
}

static int write_segment(struct worker *w, uint64_t start, uint64_t end)
{
	size_t len = end - start, rounded = (len + SHARD_PAGE - 1) / SHARD_PAGE * SHARD_PAGE;
	memset(w->buf + len, 0, rounded - len); /* ftruncate cuts this off when the shard is complete */
	int rc = base_pwrite_full(w->fd, w->buf, rounded, start);
	if (rc == -EINVAL &&
	        fcntl(w->fd, F_SETFL, 0) == 0) /* this file system opens with O_DIRECT, but cannot write so */
		rc = base_pwrite_full(w->fd, w->buf, rounded, start);
	return rc;
}

static int describe_write(struct worker *w, int rc)
{
	const char *quoted = base_quoted(w->path);
	if (rc == -ENOSPC || rc == -EDQUOT)
		return base_err_set(&w->err, rc, "'%s': %s; make room and run the same command again to go on", quoted,
		        strerror(-rc));
	return base_err_set(&w->err, rc, "'%s': %s", quoted, strerror(-rc));
}

/* Writes the footer of a bare shard, which holds what headers hold in a tar shard. */
static int write_footer(struct worker *w)
{
	const struct run *run = w->run;
	const struct shard_pack_plan *plan = run->plan;
	struct shard_bare_writer *writer = NULL;
	const uint8_t *bytes;
	size_t len;
	uint64_t block = 0, end = plan->size_bytes[w->shard];
	int rc = shard_bare_writer_new(&writer);
	for (uint64_t k = plan->first[w->shard]; rc == 0 && k < plan->first[w->shard + 1]; k++) {
		const struct shard_pack_item *item = item_at(run, k);
		char group[16];
		snprintf(group, sizeof(group), "%u", item->sample);
		struct shard_bare_entry entry = {
			.path = item->path,
			.group = plan->rules->sample != SHARD_PACK_FILE && item->sample != SHARD_NONE ? group : NULL,
			.block_sums = blocks_of(item) ? w->sums->blocks + block : NULL,
			.offset = item->directory ? 0 : item->offset,
			.length = item->length,
			.xxh3 = w->sums->xxh3[k - plan->first[w->shard]],
			.mtime_s = item->mtime_s,
			.mode = item->mode,
			.common = item->common,
			.directory = item->directory,
		};
		block += blocks_of(item);
		if (!item->left_out)
			rc = shard_bare_writer_add(writer, &entry);
	}
	if (rc == 0)
		rc = shard_bare_writer_finish(writer, end,
		        &(struct shard_bare_dataset){ .n_shards = plan->n_shards,
		                .shuffled = plan->options.shuffle,
		                .pack_seed = plan->options.seed },
		        &bytes, &len);
	if (rc == 0 && fcntl(w->fd, F_SETFL, 0)) /* O_DIRECT off: the footer's offset is not aligned */
		rc = -errno;
	if (rc == 0)
		rc = base_pwrite_full(w->fd, bytes, len, end);
	if (rc == 0)
		w->sums->size_bytes = end + len;
	shard_bare_writer_free(writer);
	return rc;
}

/* Writes the shard once.  If it sets w->failed_items, the shard must be written again without the items left out. */
static int write_once(struct worker *w)
{
	const struct shard_pack_plan *plan = w->run->plan;
	uint64_t size = plan->size_bytes[w->shard];
	w->k = plan->first[w->shard];
	w->block_at = 0;
	w->failed_items = false;
	int rc = open_shard(w);
	if (rc)
		return describe_write(w, rc);
	uint64_t start = 0;
	do {
		uint64_t end = size - start > w->run->segment_bytes ? start + w->run->segment_bytes : size;
		rc = fill_segment(w, start, end);
		if (rc)
			return rc;
		rc = w->failed_items ? 0 : write_segment(w, start, end);
		start = end;
	} while (rc == 0 && start < size);
	if (rc == 0 && !w->failed_items && ftruncate(w->fd, (off_t)size))
		rc = -errno;
	if (rc == 0 && !w->failed_items && w->run->plan->options.container == SHARD_BARE)
		rc = write_footer(w);
	if (rc == 0 && !w->failed_items && base_io->fsync(w->fd))
		rc = -errno;
	return rc ? describe_write(w, rc) : 0;
}

static int make_sums(struct worker *w)
{
	const struct shard_pack_plan *plan = w->run->plan;
	struct pack_shard_sums *sums = w->sums;
	uint64_t n = plan->first[w->shard + 1] - plan->first[w->shard];
	free(sums->xxh3);
	free(sums->left_out);
	free(sums->blocks);
	sums->n_blocks = 0;
	for (uint64_t k = plan->first[w->shard]; k < plan->first[w->shard + 1]; k++)
		sums->n_blocks += blocks_of(item_at(w->run, k));
	sums->xxh3 = calloc(n + 1, sizeof(*sums->xxh3));
	sums->left_out = calloc(n + 1, sizeof(*sums->left_out));
	sums->blocks = calloc(sums->n_blocks + 1, sizeof(*sums->blocks));
	if (!sums->xxh3 || !sums->left_out || !sums->blocks)
		return base_err_set(&w->err, -ENOMEM, "out of memory");
	for (uint64_t k = 0; k < n; k++)
		sums->left_out[k] = item_at(w->run, plan->first[w->shard] + k)->left_out;
	sums->size_bytes = plan->size_bytes[w->shard];
	return 0;
}

static int write_shard(struct worker *w, uint32_t shard)
{
	w->path[0] = '\0'; /* the last shard is complete */
	w->shard = shard;
	w->sums = &w->run->sums[shard];
	int rc;
	do {
		w->fd = -1;
		rc = make_sums(w);
		if (rc == 0)
			rc = write_once(w);
		if (w->fd >= 0 && close(w->fd) && rc == 0)
			rc = describe_write(w, -errno);
		if (rc == 0 && w->failed_items)
			shard_pack_plan_relay(w->run->plan, shard);
	} while (rc == 0 && w->failed_items);
	struct pack_upload *upload = w->run->options->upload;
	struct pack_sent sent;
	if (rc == 0 && upload)
		rc = pack_upload_shard(upload, w->path, strrchr(w->path, '/') + 1, &w->err, &sent);
	if (rc == 0)
		rc = pack_journal_add(w->run->journal, w->run->plan, shard, w->sums, &w->err);
	if (rc == 0 && upload)
		rc = pack_upload_note(upload, &sent, &w->err);
	w->sums->complete = rc == 0;
	if (rc == 0)
		pack_interrupt_add(1);
	if (rc && w->path[0])
		unlink(w->path); /* the other shards may need its space */
	return rc;
}

int pack_check_rest(const struct shard_pack_plan *plan, struct pack_input *input, const struct pack_shard_sums *sums)
{
	const struct run run = { .input = input };
	int rc = 0;
	progress_start("checking", 0, plan->n_items);
	for (uint64_t k = 0; k < plan->n_items && rc == 0; k++) {
		progress_add(0, 1);
		const struct shard_pack_item *item = &plan->items[k];
		const struct pack_source *source = &input->sources[item->source];
		if (item->directory || item->left_out || source->blob || (sums && sums[item->shard].complete))
			continue;
		struct base_err err = { 0 };
		cleanup_close int fd = openat(source->dirfd, item->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
		if (fd >= 0)
			continue;
		describe(&run, item, -errno, &err);
		rc = pack_input_refuse(input, &err);
	}
	progress_done();
	return rc;
}

/* Workers */

static int worker_init(struct worker *w, struct run *run)
{
	*w = (struct worker){ .run = run, .fd = -1 };
	size_t size = run->segment_bytes + SHARD_PAGE;
	w->buf = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (w->buf == MAP_FAILED) {
		w->buf = NULL;
		return -ENOMEM;
	}
	madvise(w->buf, size, MADV_HUGEPAGE);
	w->pieces = malloc(PIECES_MAX * sizeof(*w->pieces));
	return w->pieces ? prefetch_bulk_new(READ_DEPTH, 0, &w->bulk) : -ENOMEM;
}

static void worker_done(struct worker *w)
{
	prefetch_bulk_free(w->bulk);
	free(w->pieces);
	if (w->buf)
		munmap(w->buf, w->run->segment_bytes + SHARD_PAGE);
}

static void *worker_thread(void *arg)
{
	struct run *run = arg;
	struct worker *w = malloc(sizeof(*w));
	int rc = w ? worker_init(w, run) : -ENOMEM;
	while (rc == 0 && !atomic_load(&run->stop)) {
		uint32_t shard = atomic_fetch_add(&run->next_shard, 1);
		if (shard >= run->plan->n_shards)
			break;
		if (!run->sums[shard].complete)
			rc = write_shard(w, shard);
	}
	if (rc) {
		lock_for_scope(&run->lock);
		if (!run->err.code && rc != -ECANCELED) {
			if (w && w->err.code)
				run->err = w->err;
			else
				base_err_set(&run->err, rc, "packing: %s", strerror(-rc));
		}
		atomic_store(&run->stop, true);
	}
	if (w)
		worker_done(w);
	free(w);
	return NULL;
}

int pack_write(struct shard_pack_plan *plan, struct pack_input *input, const struct pack_write_options *options,
        struct pack_journal *journal, struct pack_shard_sums *sums, struct base_err *err)
{
	struct run run = { .plan = plan, .input = input, .options = options, .journal = journal, .sums = sums };
	uint32_t jobs = options->jobs < plan->n_shards ? options->jobs : plan->n_shards;
	if (jobs == 0)
		jobs = 1;
	uint64_t share = options->memory_bytes / jobs / SHARD_PAGE * SHARD_PAGE;
	run.segment_bytes = share < SEGMENT_MIN ? SEGMENT_MIN : share > SEGMENT_MAX ? SEGMENT_MAX : share;
	pthread_mutex_init(&run.lock, NULL);
	pthread_t *threads = calloc(jobs, sizeof(*threads));
	uint32_t n = 0;
	while (threads && n + 1 < jobs && pthread_create(&threads[n], NULL, worker_thread, &run) == 0)
		pthread_setname_np(threads[n++], "pack");
	worker_thread(&run);
	while (n > 0)
		pthread_join(threads[--n], NULL);
	free(threads);
	pthread_mutex_destroy(&run.lock);
	if (run.err.code && err)
		*err = run.err;
	return run.err.code;
}
