/* SPDX-License-Identifier: Apache-2.0 */
/* `mkshard verify`: checks every checksum, at the speed of the device; mkshard.h and shards.h first.
 *
 * It reads each shard once from front to back, and sums the files in the order of their offsets.  It reads a file
 * singly if the file overlaps another one (another program made the index), or if it lies behind a place that cannot
 * be read. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "shard/base/bits.h"
#include "shard/base/cleanup.h"
#include "shard/base/clock.h"
#include "shard/base/units.h"
#include "shard/block_sum.h"
#include "shard/quarantine.h"
#include "shard/remote/store.h"
#include "tools/common/cli.h"
#include "tools/common/json.h"
#include "tools/mkshard/mkshard.h"
#include "tools/mkshard/reader.h"
#include "tools/mkshard/shards.h"
#include "tools/mkshard/sum.h"
#include "tools/common/progress.h"

enum { BAD_LISTED_MAX = 100000, RECORDS_SHOWN_MAX = 3, HINT = 8 };

struct verify_args {
	const char *dataset;
	const char *index_file; /* the index, if it does not lie there; else NULL */
	bool json;
	uint64_t jobs, timeout_s;
	bool quarantine;
	const char *list; /* path of the quarantine list; NULL: in the dataset */
};

static int take_quarantine(void *at, char *arg, struct base_err *err)
{
	struct verify_args *args = at;
	(void)err;
	args->quarantine = true;
	args->list = arg;
	return 0;
}

struct bad {
	uint32_t file;  /* SHARD_NONE: the whole shard, or the index */
	uint32_t shard; /* SHARD_NONE: the index */
	uint64_t offset;
	bool unchecked; /* files of a shard that this process could not read (mkshard_reader_is_ours) */
	char text[256];
};

struct verify {
	const struct shard_index *index;
	struct shard_files by_shard;
	pthread_mutex_t lock;
	struct bad *bad;      /* guarded by lock */
	uint64_t n_bad;       /* all that were found; `bad` keeps at most BAD_LISTED_MAX */
	uint64_t n_bad_files; /* those that belong to one file */
	bool index_bad;
	uint64_t n_kept;
	uint64_t *bad_samples; /* guarded by lock: a bit per sample; NULL: no --quarantine */
	bool cannot_list;      /* guarded by lock: something else than a sample is bad, so no list can be right */
	uint32_t unchecked;    /* guarded by lock: shards that were not checked */
	uint32_t n_checked;    /* guarded by lock: shards whose check ended */
	struct base_err stop;  /* guarded by lock: why the store cannot be read */
	uint32_t stop_shard;   /* guarded by lock */
	uint64_t timeout_s;
};

/* Call with the lock held. */
static void quarantine(struct verify *verify, uint32_t file)
{
	struct shard_place place = { .sample = SHARD_NONE };
	if (!verify->bad_samples)
		return;
	if (file == SHARD_NONE || shard_index_place(verify->index, file, &place) < 0 || place.sample == SHARD_NONE)
		verify->cannot_list = true;
	else
		bit_set(verify->bad_samples, place.sample);
}

static void note_as(
        struct verify *verify, uint32_t file, uint32_t shard, uint64_t offset, bool unchecked, const char *text)
{
	lock_for_scope(&verify->lock);
	verify->n_bad++;
	verify->unchecked += unchecked;
	verify->n_bad_files += file != SHARD_NONE;
	verify->index_bad |= shard == SHARD_NONE;
	if (file != SHARD_NONE || shard == SHARD_NONE)
		quarantine(verify, file);
	struct bad *grown = NULL;
	if (verify->n_kept < BAD_LISTED_MAX)
		grown = realloc(verify->bad, (verify->n_kept + 1) * sizeof(*grown));
	if (grown) {
		verify->bad = grown;
		struct bad *bad = &grown[verify->n_kept++];
		*bad = (struct bad){ .file = file, .shard = shard, .offset = offset, .unchecked = unchecked };
		snprintf(bad->text, sizeof(bad->text), "%s", text);
	}
}

static void note(struct verify *verify, uint32_t file, uint32_t shard, uint64_t offset, const char *text)
{
	note_as(verify, file, shard, offset, false, text);
}

static void note_record(void *arg, uint32_t file, int rc)
{
	char text[128];
	snprintf(text, sizeof(text), "its record in the index is damaged: %s", base_err_str(rc));
	note(arg, file, SHARD_NONE, 0, text);
}

/* One pass over a shard. */
struct pass {
	struct verify *verify;
	struct mkshard_reader *reader;
	uint32_t shard;
	const struct shard_extent *extents;
	uint64_t n, at;      /* extents[at] is the current file */
	bool started;        /* `sum` has begun with the current file */
	uint64_t *blocks;    /* block sums of the current file */
	uint64_t n_blocks;   /* capacity of `blocks` */
	struct file_sum sum; /* of the current file */
};

/* Counts the bytes of a file that are right. */
static int count_good(void *arg, uint64_t offset, const uint8_t *data, size_t len)
{
	uint64_t *good = arg;
	(void)data;
	*good = offset + len;
	return 0;
}

/* Reads and checks one file.  Returns 0, or why the shard cannot be read any more (mkshard_reader_failed), or
 * -ENOMEM. */
static int verify_alone(
        struct verify *verify, uint32_t shard, const struct shard_extent *extent, struct mkshard_reader *reader)
{
	cleanup_free uint8_t *buf = malloc(SHARD_BLOCK);
	struct base_err err = { 0 }, why;
	uint64_t good = 0;
	if (!buf)
		return -ENOMEM;
	int rc = mkshard_read_file(verify->index, extent->file, reader, buf, count_good, &good, &err);
	if (mkshard_reader_failed(reader, &why))
		return why.code;
	if (rc == 0)
		return 0;
	if (rc == -EBADMSG)
		base_err_set(&err, rc, "checksum mismatch");
	else if (rc != -EUCLEAN && rc != -ESTALE) /* these concern the index */
		base_err_set(&err, rc, "cannot be read: %s", base_err_str(rc));
	note(verify, extent->file, shard, extent->offset + good, err.text);
	return 0;
}

/* A sum is wrong.  The bytes of an object may have changed on the way, so its file is read once more. */
static int mismatch(struct pass *pass, const struct shard_extent *extent, uint64_t offset)
{
	if (mkshard_reader_is_remote(pass->reader))
		return verify_alone(pass->verify, pass->shard, extent, pass->reader);
	note(pass->verify, extent->file, pass->shard, offset, "checksum mismatch");
	return 0;
}

static int start_file(struct pass *pass)
{
	const struct shard_extent *extent = &pass->extents[pass->at];
	uint64_t n = (extent->length + SHARD_BLOCK - 1) / SHARD_BLOCK;
	if (extent->length > SHARD_BLOCK && n > pass->n_blocks) {
		uint64_t *grown = realloc(pass->blocks, n * sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		pass->blocks = grown;
		pass->n_blocks = n;
	}
	file_sum_start(&pass->sum, extent->length, pass->blocks);
	pass->started = true;
	return 0;
}

/* Prefetches the record of a later file.  Records are in the order of paths, so each one is a cache miss here. */
static void hint(const struct pass *pass)
{
	if (pass->at + HINT < pass->n)
		shard_index_hint_record(pass->verify->index, pass->extents[pass->at + HINT].file);
}

/* Compares the sums of a file after its last byte.  Returns 0, or an error of mismatch(). */
static int end_file(struct pass *pass)
{
	const struct shard_extent *extent = &pass->extents[pass->at++];
	const struct shard_index *index = pass->verify->index;
	struct shard_place file;
	pass->started = false;
	hint(pass);
	int rc = shard_index_place(index, extent->file, &file);
	bool big = extent->length > SHARD_BLOCK;
	uint32_t n = rc == 0 && big ? shard_blocks(file.length) : 0;
	for (uint32_t b = 0; b < n && rc == 0; b++) {
		uint64_t offset, xxh3;
		uint32_t length;
		rc = shard_index_block(index, extent->file, b, &offset, &length, &xxh3);
		if (rc == 0 && xxh3 != pass->blocks[b])
			return mismatch(pass, extent, offset); /* the message names the first bad block */
	}
	if (rc)
		note_record(pass->verify, extent->file, rc);
	else if (file_sum_end(&pass->sum) != file.xxh3)
		return mismatch(pass, extent, extent->offset);
	return 0;
}

/* Checks a file of one block whose bytes are all in memory: the usual case.  Returns as end_file. */
static int small_file(struct pass *pass, const uint8_t *data)
{
	const struct shard_extent *extent = &pass->extents[pass->at++];
	struct shard_place file;
	hint(pass);
	int rc = shard_index_place(pass->verify->index, extent->file, &file);
	if (rc)
		note_record(pass->verify, extent->file, rc);
	else if (shard_block_sum(data, extent->length) != file.xxh3)
		return mismatch(pass, extent, extent->offset);
	return 0;
}

static int pass_by(void *arg, uint64_t offset, const uint8_t *data, size_t len)
{
	struct pass *pass = arg;
	uint64_t end = offset + len;
	int rc = 0;
	while (pass->at < pass->n && rc == 0) {
		const struct shard_extent *extent = &pass->extents[pass->at];
		uint64_t file_end = extent->offset + extent->length;
		if (!pass->started && extent->offset >= end && extent->length > 0)
			break;
		if (!pass->started && extent->offset >= offset && file_end <= end && extent->length <= SHARD_BLOCK) {
			rc = small_file(pass, data + (extent->offset - offset));
			continue;
		}
		rc = pass->started ? 0 : start_file(pass);
		if (rc)
			return rc;
		uint64_t from = extent->offset > offset ? extent->offset : offset;
		uint64_t to = file_end < end ? file_end : end;
		if (from < to)
			file_sum_feed(&pass->sum, data + (from - offset), to - from);
		if (file_end > end)
			break;
		rc = end_file(pass);
	}
	progress_add(len, 0);
	return rc;
}

/* Quarantines all files of a shard that cannot be read. */
static void quarantine_all(struct verify *verify, uint32_t shard)
{
	lock_for_scope(&verify->lock);
	for (uint64_t i = verify->by_shard.first[shard]; i < verify->by_shard.first[shard + 1]; i++)
		quarantine(verify, verify->by_shard.files[i]);
}

/* Notes an object that cannot be read any more.  The client has tried for long, so no file is tried singly.  Returns 0,
 * or what ends the run. */
static int give_up_object(struct verify *verify, uint32_t shard, const struct base_err *why)
{
	bool ours = mkshard_reader_is_ours(why->code);
	if (mkshard_reader_is_of_store(why->code)) {
		lock_for_scope(&verify->lock);
		if (!verify->stop.code) {
			verify->stop = *why;
			verify->stop_shard = shard;
		}
		return why->code;
	}
	note_as(verify, SHARD_NONE, shard, 0, ours, why->text);
	if (!ours)
		quarantine_all(verify, shard);
	return 0;
}

static int stream_shard(
        struct verify *verify, uint32_t shard, struct mkshard_reader *reader, struct shard_extent *extents, uint64_t n)
{
	struct shard_shard rec;
	struct base_err err = { 0 };
	int rc = shard_index_shard(verify->index, shard, &rec);
	if (rc)
		return rc;
	/* A file that ends behind the shard's end, or that overlaps the one before, is not part of the pass. */
	uint64_t in_order = 0, end = 0;
	for (uint64_t i = 0; i < n && rc == 0; i++) {
		if (extents[i].offset < end || extents[i].offset > rec.size_bytes ||
		        extents[i].length > rec.size_bytes - extents[i].offset) {
			rc = verify_alone(verify, shard, &extents[i], reader);
			continue;
		}
		end = extents[i].offset + extents[i].length;
		extents[in_order++] = extents[i];
	}
	struct pass pass = { .verify = verify, .reader = reader, .shard = shard, .extents = extents, .n = in_order };
	uint64_t at = 0;
	if (rc == 0)
		rc = mkshard_reader_stream(reader, pass_by, &pass, &err, &at);
	if (rc == 0)
		rc = pass_by(&pass, rec.size_bytes, (const uint8_t *)"", 0); /* empty files at the very end */
	if (mkshard_reader_failed(reader, &err)) {
		rc = give_up_object(verify, shard, &err);
	} else if (rc && rc != -ENOMEM) {
		char text[256];
		snprintf(text, sizeof(text), "cannot be read: %s", base_err_str(rc));
		note(verify, SHARD_NONE, shard, at, text);
		rc = 0;
		for (uint64_t i = pass.at; i < in_order && rc == 0; i++)
			rc = verify_alone(verify, shard, &extents[i], reader);
	}
	free(pass.blocks);
	return rc;
}

static int verify_shard(void *arg, uint32_t shard)
{
	struct verify *verify = arg;
	struct base_err err = { 0 };
	struct mkshard_reader *reader = NULL;
	cleanup_free struct shard_extent *extents = NULL;
	uint64_t n = 0;
	int rc = shard_files_extents(&verify->by_shard, verify->index, shard, &extents, &n);
	if (rc == 0 && mkshard_reader_open(verify->index, shard, verify->timeout_s, &err, &reader)) {
		note_as(verify, SHARD_NONE, shard, 0, mkshard_reader_is_ours(err.code), err.text);
		if (!mkshard_reader_is_ours(err.code))
			quarantine_all(verify, shard);
		return 0;
	}
	if (rc == 0)
		rc = stream_shard(verify, shard, reader, extents, n);
	mkshard_reader_close(reader);
	if (rc == 0)
		progress_add(0, n);
	lock_for_scope(&verify->lock);
	verify->n_checked += rc == 0;
	return rc;
}

static void *verify_index(void *arg)
{
	struct verify *verify = arg;
	struct base_err err = { 0 };
	if (shard_index_verify(verify->index, &err))
		note(verify, SHARD_NONE, SHARD_NONE, 0, err.text);
	return NULL;
}

/* Reporting */

static int compare_bad(const void *pa, const void *pb)
{
	const struct bad *a = pa, *b = pb;
	if (a->shard != b->shard)
		return a->shard + 1 < b->shard + 1 ? -1 : 1; /* + 1: SHARD_NONE, the index, sorts first */
	if (a->offset != b->offset)
		return a->offset < b->offset ? -1 : 1;
	return a->file < b->file ? -1 : a->file > b->file;
}

static const char *shard_name(const struct verify *verify, uint32_t number, char *buf, size_t size)
{
	struct shard_shard shard;
	if (number == SHARD_NONE)
		snprintf(buf, size, "%s", SHARD_INDEX_NAME);
	else if (shard_index_shard(verify->index, number, &shard))
		snprintf(buf, size, "shard %u", number);
	else
		snprintf(buf, size, "%.*s", (int)shard.path_len, shard.path);
	return buf;
}

static void print_bad(const struct verify *verify, const struct bad *bad)
{
	char path[SHARD_PATH_MAX + 1], name[SHARD_PATH_MAX + 1];
	const char *quoted_name = base_quoted(shard_name(verify, bad->shard, name, sizeof(name)));
	if (bad->file == SHARD_NONE) {
		cli_failf("'%s': %s", quoted_name, bad->text);
		return;
	}
	if (shard_index_file_path(verify->index, bad->file, path, sizeof(path)) < 0)
		snprintf(path, sizeof(path), "file %u", bad->file);
	cli_failf("'%s': %s in '%s' at byte %" PRIu64, base_quoted(path), bad->text, quoted_name, bad->offset);
}

static void print_bad_json(const struct verify *verify, const struct bad *bad)
{
	char path[SHARD_PATH_MAX + 1], name[SHARD_PATH_MAX + 1];
	printf("{\"path\": ");
	if (bad->file != SHARD_NONE && shard_index_file_path(verify->index, bad->file, path, sizeof(path)) >= 0)
		json_put_string(stdout, path, strlen(path));
	else
		printf("null");
	printf(", \"shard\": ");
	shard_name(verify, bad->shard, name, sizeof(name));
	json_put_string(stdout, name, strlen(name));
	printf(", \"offset\": %" PRIu64 ", \"error\": ", bad->offset);
	json_put_string(stdout, bad->text, strlen(bad->text));
	printf("}");
}

/* Counts the bad files; in a shard that is bad as a whole, every file is bad. */
static uint64_t bad_files(const struct verify *verify)
{
	uint64_t files = verify->n_bad_files;
	for (uint64_t i = 0; i < verify->n_kept; i++) {
		const struct bad *bad = &verify->bad[i];
		cleanup_free struct shard_extent *extents = NULL;
		uint64_t n = 0;
		if (bad->file == SHARD_NONE && bad->shard != SHARD_NONE && !bad->unchecked &&
		        shard_files_extents(&verify->by_shard, verify->index, bad->shard, &extents, &n) == 0)
			files += n;
	}
	uint32_t all = shard_index_info(verify->index)->n_files;
	return files < all ? files : all;
}

static void report(const struct verify *verify, const struct verify_args *args, double seconds)
{
	const struct shard_info *info = shard_index_info(verify->index);
	char bytes[16], rate[16];
	if (verify->n_kept)
		qsort(verify->bad, verify->n_kept, sizeof(*verify->bad), compare_bad);
	uint64_t records = 0; /* one bad byte of the index damages thousands of records, so only some are shown */
	for (uint64_t i = 0; !args->json && i < verify->n_kept; i++) {
		const struct bad *bad = &verify->bad[i];
		if (bad->file == SHARD_NONE || bad->shard != SHARD_NONE || ++records <= RECORDS_SHOWN_MAX)
			print_bad(verify, bad);
	}
	if (records > RECORDS_SHOWN_MAX)
		cli_note("... and %" PRIu64 " more files whose record is damaged", records - RECORDS_SHOWN_MAX);
	if (verify->n_bad > verify->n_kept)
		cli_note("... and %" PRIu64 " more", verify->n_bad - verify->n_kept);
	if (args->json) {
		printf("{\"files\": %u, \"bytes\": %" PRIu64
		       ", \"shards\": %u, \"seconds\": %.3f, \"ok\": %s, \"bad\": [",
		        info->n_files, verify->by_shard.bytes, info->n_shards, seconds,
		        verify->n_bad || verify->stop.code ? "false" : "true");
		for (uint64_t i = 0; i < verify->n_kept; i++) {
			printf(i ? ", " : "");
			print_bad_json(verify, &verify->bad[i]);
		}
		if (verify->stop.code) {
			struct bad stop = { .file = SHARD_NONE, .shard = verify->stop_shard };
			snprintf(stop.text, sizeof(stop.text), "%.*s", (int)sizeof(stop.text) - 1, verify->stop.text);
			printf(verify->n_kept ? ", " : "");
			print_bad_json(verify, &stop);
		}
		printf("]}\n");
		return;
	}
	base_format_size(verify->by_shard.bytes, bytes);
	base_format_size(seconds > 0 ? (uint64_t)((double)verify->by_shard.bytes / seconds) : 0, rate);
	if (verify->n_bad == 0 && !verify->stop.code)
		printf("%u files, %s in %u shards and the index: all good (%.1f s, %s/s)\n", info->n_files, bytes,
		        info->n_shards, seconds, rate);
	else if (verify->n_bad > verify->unchecked)
		cli_note("%s%" PRIu64 " of %u files are bad; restore what is named above from a copy, or pack again",
		        verify->index_bad ? "the index is bad, and " : "", bad_files(verify), info->n_files);
	if (verify->index_bad)
		cli_note("the index: %s", shard_index_advice(verify->index));
	char name[SHARD_PATH_MAX + 1];
	if (verify->stop.code)
		cli_failf("'%s': %s; %u of %u shards were not checked",
		        base_quoted(shard_name(verify, verify->stop_shard, name, sizeof(name))), verify->stop.text,
		        info->n_shards - verify->n_checked, info->n_shards);
	if (verify->unchecked)
		cli_note("%u of %u shards could not be read, and what lies in them was not checked", verify->unchecked,
		        info->n_shards);
}

/* Writes the quarantine list.  Returns an exit status. */
static int write_list(struct verify *verify, const struct verify_args *args)
{
	uint32_t n_samples = shard_index_info(verify->index)->n_samples;
	cleanup_free uint32_t *samples = NULL;
	struct shard_quarantine *list = NULL;
	struct base_err err = { 0 };
	uint64_t n = 0;
	if (verify->cannot_list)
		return cli_failf(
		        "no quarantine list: the index or a common file is damaged, which no sample can stand for; "
		        "restore it first");
	if (verify->unchecked || verify->stop.code)
		return cli_failf("no quarantine list: not every shard could be read");
	for (uint32_t i = 0; i < n_samples; i++)
		n += bit_get(verify->bad_samples, i);
	samples = malloc((n + 1) * sizeof(*samples));
	if (!samples)
		return cli_failf("out of memory");
	n = 0;
	for (uint32_t i = 0; i < n_samples; i++)
		if (bit_get(verify->bad_samples, i))
			samples[n++] = i;
	int rc = shard_quarantine_new(samples, n, &list);
	if (rc < 0)
		return cli_failf("no quarantine list: %s",
		        rc == -E2BIG ? "over a million samples are bad: copy the dataset anew" : base_err_str(rc));
	rc = shard_quarantine_write(verify->index, list, args->list, &err);
	if (rc == 0 && !args->json)
		cli_note("%" PRIu32 " samples are in the quarantine list; mounts leave them out with -o on_bad=skip%s",
		        list->n, args->list ? ",quarantine=FILE" : "");
	shard_quarantine_free(list);
	return rc < 0 ? cli_fail(&err) : CLI_DONE;
}

int mkshard_verify(int argc, char **argv)
{
	static const struct cli_line line = { "DATASET",
		"Check every byte of a dataset against its checksum.\vExits with 1 and names each bad file, its "
		"shard and byte; of files that a damaged index cannot name only the first ones.",
		.options = { { "json", NULL, "Print one JSON object", CLI_FLAG(struct verify_args, json) },
		        { "quarantine", "FILE",
		                "Write the bad samples to FILE, for mounts with on_bad=skip or substitute (default: "
		                "DATASET/" SHARD_QUARANTINE_NAME ")",
		                .may_lack = true, .kind = CLI_KIND_CALL, .take = take_quarantine },
		        { "jobs", "N", "Shards read at once (default: processors)", 'j',
		                CLI_NUMBER(struct verify_args, jobs, 1, MKSHARD_JOBS_MAX) },
		        MKSHARD_INDEX_OPTION(struct verify_args), MKSHARD_TIMEOUT_OPTION(struct verify_args) },
		.words = { { "DATASET", .at = offsetof(struct verify_args, dataset) } } };
	struct verify_args args = { .timeout_s = MKSHARD_TIMEOUT_S };
	struct base_err err = { 0 };
	struct shard_index *index = NULL;
	cli_parse(&line, argc, argv, &args);
	if (cli_index_open(args.dataset, args.index_file, &err, &index))
		return cli_fail(&err);
	struct remote_store *store = shard_index_store(index);
	if (args.quarantine && !args.list && store && !remote_store_location(store)->bucket) {
		shard_index_close(index);
		return cli_failf("%s: HTTP servers are only read; give --quarantine=FILE, and mounts quarantine=FILE",
		        base_quoted(args.dataset));
	}
	struct verify verify = { .index = index, .timeout_s = args.timeout_s };
	pthread_mutex_init(&verify.lock, NULL);
	if (args.quarantine) {
		verify.bad_samples = bits_new(shard_index_info(index)->n_samples);
		if (!verify.bad_samples)
			return cli_failf("out of memory");
	}
	uint64_t start_ns = base_now_ns();
	/* At the same time as the shards: for small files it takes as long as reading them. */
	pthread_t index_thread;
	bool beside = pthread_create(&index_thread, NULL, verify_index, &verify) == 0;
	if (!beside)
		verify_index(&verify);
	int rc = shard_files_init(&verify.by_shard, index, NULL, note_record, &verify);
	if (rc == 0) {
		uint64_t total = 0;
		for (uint32_t s = 0; s < verify.by_shard.n_shards; s++) {
			struct shard_shard shard;
			if (shard_index_shard(index, s, &shard) == 0)
				total += shard.size_bytes;
		}
		progress_start("verifying", total, shard_index_info(index)->n_files);
		rc = shard_run(verify.by_shard.n_shards, mkshard_jobs(args.jobs), "verify", verify_shard, &verify);
		progress_done();
	}
	if (beside)
		pthread_join(index_thread, NULL);
	int status = CLI_FAILED;
	if (shard_index_check_err(index, &err)) {
		cli_fail(&err); /* no result is reliable, so none is printed and no list is written */
	} else if (rc && !verify.stop.code) {
		cli_failf("'%s': %s", args.dataset, base_err_str(rc));
	} else {
		report(&verify, &args, (double)(base_now_ns() - start_ns) / 1e9);
		status = verify.n_bad || verify.stop.code ? CLI_FAILED : CLI_DONE;
		if (args.quarantine && write_list(&verify, &args) != CLI_DONE)
			status = CLI_FAILED;
	}
	shard_files_done(&verify.by_shard);
	free(verify.bad);
	free(verify.bad_samples);
	pthread_mutex_destroy(&verify.lock);
	shard_index_close(index);
	return status;
}
