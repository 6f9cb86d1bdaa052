/* SPDX-License-Identifier: Apache-2.0 */
/* Fills a tier in storage order; prefetch/tier_fill.h first.
 *
 *   files in storage order -> blocks -> pieces (one read each) -> prefetch_io_tier -> tier, or source and tier */
#include "prefetch/tier_fill.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cache/cache.h"
#include "prefetch/engine.h"
#include "shard/base/cleanup.h"
#include "shard/block_sum.h"

enum {
	PIECES = 32,          /* reads in flight: 128 MiB, enough for 1 GB/s at 100 ms */
	PIECES_NEAR_FULL = 2, /* ... while the tier may be full soon, because the rest would be fetched in vain */
	PIECE_BYTES = 4 << 20,
	PIECE_BLOCKS = 512,
	GAP_BYTES = 64 << 10, /* between two blocks of a piece */
	TRIES_MAX = 5,        /* of a read of a local file */
};

/* Blocks of one shard that are read at once. */
struct piece {
	struct prefetch_op op; /* first, so that a pointer to it is a pointer to this */
	struct piece *next;    /* in `unused` */
	struct prefetch_block_list list;
	struct prefetch_block blocks[PIECE_BLOCKS];
	uint32_t n, bytes; /* blocks, and their bytes */
	uint32_t shard, entry;
	uint64_t start, end; /* the extent of the blocks */
	unsigned tries;
	uint8_t *data; /* PIECE_BYTES + 2 * PREFETCH_ALIGN_MAX */
};

struct fill {
	const struct prefetch_tier_fill_options *options;
	struct prefetch_source *source;
	struct prefetch_io_backend *origin, *io; /* io owns origin; NULL: there is none yet */
	struct prefetch_shards *shards;
	struct piece *pieces, *unused, *current; /* current: blocks are added to it; NULL: none */
	uint32_t in_flight;
	int rc; /* the first error */
	uint32_t rc_shard;
	struct prefetch_tier_filled done;
};

static void fail(struct fill *f, int rc, uint32_t shard)
{
	if (f->rc < 0)
		return;
	f->rc = rc;
	f->rc_shard = shard;
}

static void release(struct fill *f, struct piece *piece)
{
	if (piece->entry != UINT32_MAX)
		prefetch_shards_put(f->shards, piece->entry);
	piece->next = f->unused;
	f->unused = piece;
}

/* Submits a piece, from its beginning. */
static void submit(struct fill *f, struct piece *piece)
{
	struct prefetch_object *object = prefetch_shards_object(f->shards, piece->entry);
	uint64_t mask = object->align - 1, start = piece->start & ~mask, end = (piece->end + mask) & ~mask;
	piece->op = (struct prefetch_op){ .object = object,
		.entry = piece->entry,
		.data = piece->data,
		.len = (uint32_t)(end - start),
		.offset = start,
		.shard = piece->shard,
		.blocks = &piece->list,
		.gap_bytes = GAP_BYTES };
	piece->tries++;
	f->in_flight++;
	prefetch_io_submit(f->io, &piece->op);
}

/* Returns true if a read of a local file that failed, or was short, is tried again. */
static bool again(struct fill *f, struct piece *piece, int res)
{
	struct prefetch_object *object = prefetch_shards_object(f->shards, piece->entry);
	if (object->remote || piece->tries >= TRIES_MAX || f->rc < 0)
		return false;
	return res != -EINVAL || prefetch_shards_leave_direct(object);
}

/* Checks the blocks that have come.  The tier stores right ones only, so this one counts those that are wrong. */
static void check_blocks(struct fill *f, const struct piece *piece)
{
	for (uint32_t i = 0; i < piece->n; i++) {
		const struct prefetch_block *block = &piece->blocks[i];
		if (shard_block_sum(piece->op.data + (block->offset - piece->op.offset), block->len) == block->xxh3)
			continue;
		if (!f->done.bad_blocks++)
			f->done.bad_file = cache_key_file(block->key);
	}
}

static void came_back(struct fill *f, struct piece *piece)
{
	const struct prefetch_op *op = &piece->op;
	bool whole = op->res >= 0 && op->offset + (uint32_t)op->res >= piece->end;
	f->in_flight--;
	if (op->res > 0 && (uint32_t)op->res > op->tier_bytes)
		f->done.fetched_bytes += (uint32_t)op->res - op->tier_bytes;
	if (!whole && again(f, piece, op->res)) {
		submit(f, piece);
		return;
	}
	if (whole) {
		check_blocks(f, piece);
		f->done.read_bytes += piece->bytes;
		if (f->options->progress)
			f->options->progress(f->options->arg, piece->bytes);
	} else {
		fail(f, op->res < 0 ? op->res : -ESTALE, piece->shard);
	}
	release(f, piece);
}

static void wait_for_one(struct fill *f)
{
	struct prefetch_op *done;
	prefetch_io_wait(f->io, -1, &done);
	while (done) {
		struct piece *piece = (struct piece *)done;
		done = done->next;
		came_back(f, piece);
	}
}

/* Returns how many pieces may be in flight. */
static uint32_t depth(struct fill *f)
{
	struct cache_tier_fill now;
	if (cache_tier_fill_get(f->options->tier, &now) < 0)
		return PIECES_NEAR_FULL;
	return now.room_bytes - now.used_bytes > 2 * (uint64_t)PIECES * PIECE_BYTES ? PIECES : PIECES_NEAR_FULL;
}

/* Starts to read the current piece. */
static void flush(struct fill *f)
{
	struct piece *piece = f->current;
	uint32_t most = depth(f);
	f->current = NULL;
	if (!piece)
		return;
	while (f->in_flight >= most)
		wait_for_one(f);
	int rc;
	while ((rc = prefetch_shards_get(f->shards, piece->shard, &piece->entry)) == -EBUSY && f->in_flight)
		wait_for_one(f);
	if (rc == 0) {
		submit(f, piece);
		return;
	}
	piece->entry = UINT32_MAX;
	fail(f, rc, piece->shard);
	release(f, piece);
}

/* Tells whether a block can be read with the current piece. */
static bool fits(const struct piece *piece, uint32_t shard, uint64_t offset, uint32_t len)
{
	return piece->shard == shard && piece->n < PIECE_BLOCKS && offset >= piece->end &&
	       offset - piece->end <= GAP_BYTES && offset + len - piece->start <= PIECE_BYTES;
}

static void add_block(struct fill *f, uint32_t shard, uint64_t key, uint64_t offset, uint32_t len, uint64_t xxh3)
{
	if (f->current && !fits(f->current, shard, offset, len))
		flush(f);
	if (f->rc < 0)
		return;
	if (!f->current) {
		while (!f->unused)
			wait_for_one(f);
		f->current = f->unused;
		f->unused = f->current->next;
		f->current->n = f->current->bytes = f->current->tries = 0;
		f->current->shard = shard;
		f->current->start = offset;
		STAILQ_INIT(&f->current->list);
	}
	struct piece *piece = f->current;
	struct prefetch_block *block = &piece->blocks[piece->n++];
	*block = (struct prefetch_block){
		.key = key, .offset = offset, .len = len, .xxh3 = xxh3, .epoch = CACHE_TIER_USES_LATEST
	};
	STAILQ_INSERT_TAIL(&piece->list, block, link);
	piece->end = offset + len;
	piece->bytes += len;
}

/* Adds the blocks of a file.  Returns 0 or an error of the index. */
static int add_file(struct fill *f, uint32_t file, const struct shard_place *place)
{
	int rc = 0;
	for (uint32_t b = 0; rc == 0 && b < shard_blocks(place->length) && !f->done.full && f->rc == 0; b++) {
		uint64_t offset, xxh3;
		uint32_t len;
		rc = shard_index_block(f->options->index, file, b, &offset, &len, &xxh3);
		if (rc < 0)
			break;
		f->done.full = cache_tier_full(f->options->tier, &(struct cache_tier_block){ .len = len });
		if (!f->done.full)
			add_block(f, place->shard, cache_block_key(file, b), offset, len, xxh3);
	}
	return rc;
}

/* Adds the files of all samples in storage order, then the common ones. */
static int add_all(struct fill *f)
{
	const struct shard_index *index = f->options->index;
	const struct shard_info *info = shard_index_info(index);
	struct shard_place place;
	int rc = 0;
	for (uint32_t slot = 0; rc == 0 && slot < info->n_samples && !f->done.full && f->rc == 0; slot++) {
		uint32_t sample, files[SHARD_SAMPLE_FILES_MAX], n = 0;
		rc = shard_index_slot_sample(index, slot, &sample);
		if (rc == 0)
			rc = shard_index_sample_files(index, sample, files, SHARD_SAMPLE_FILES_MAX, &n);
		for (uint32_t i = 0; rc == 0 && i < n; i++) {
			rc = shard_index_place(index, files[i], &place);
			if (rc == 0)
				rc = add_file(f, files[i], &place);
		}
	}
	for (uint32_t file = 0; rc == 0 && file < info->n_files && !f->done.full && f->rc == 0; file++) {
		rc = shard_index_place(index, file, &place);
		if (rc == 0 && place.sample == SHARD_NONE)
			rc = add_file(f, file, &place);
	}
	return rc;
}

/* Makes the backend, with the tier in front of it. */
static int start(struct fill *f, struct base_err *err)
{
	const struct prefetch_tier_fill_options *o = f->options;
	struct remote_store *store = shard_index_store(o->index);
	int rc = store ? prefetch_source_remote(o->index, &f->source)
	               : prefetch_source_local(o->index, PREFETCH_IO_AUTO, err, &f->source);
	if (rc == 0)
		rc = store ? prefetch_io_http(store, o->timeout_ns, &f->origin) : prefetch_io_threads(&f->origin);
	if (rc == 0)
		rc = prefetch_io_tier(o->index, o->tier, NULL, f->origin, &f->io);
	if (rc == 0)
		prefetch_io_tier_wait_for(f->io, o->timeout_ns);
	if (rc == 0)
		rc = prefetch_shards_new(f->source, f->io, prefetch_shards_limit(), &f->shards);
	f->pieces = rc == 0 ? calloc(PIECES, sizeof(*f->pieces)) : NULL;
	if (rc == 0 && !f->pieces)
		rc = -ENOMEM;
	for (uint32_t i = 0; rc == 0 && i < PIECES; i++) {
		struct piece *piece = &f->pieces[i];
		piece->data = aligned_alloc(PREFETCH_ALIGN_MAX, PIECE_BYTES + 2 * (size_t)PREFETCH_ALIGN_MAX);
		piece->entry = UINT32_MAX;
		piece->next = f->unused;
		f->unused = piece;
		if (!piece->data)
			rc = -ENOMEM;
	}
	return rc;
}

static void stop(struct fill *f)
{
	prefetch_shards_free(f->shards);
	prefetch_io_free(f->io ? f->io : f->origin);
	if (f->source)
		f->source->ops->free(f->source);
	for (uint32_t i = 0; f->pieces && i < PIECES; i++)
		free(f->pieces[i].data);
	free(f->pieces);
}

static int say(const struct fill *f, struct base_err *err)
{
	struct shard_shard shard;
	struct remote_stats remote = { 0 };
	char path[SHARD_PATH_MAX + 1] = "";
	if (shard_index_shard(f->options->index, f->rc_shard, &shard) == 0 && shard.path_len <= SHARD_PATH_MAX)
		memcpy(path, shard.path, shard.path_len);
	if (shard_index_store(f->options->index))
		prefetch_io_http_stats(f->origin, &remote);
	return base_err_set(err, f->rc, "cannot read shard '%s': %s", base_quoted(path),
	        remote.error[0] ? remote.error : base_err_str(f->rc));
}

int prefetch_tier_fill(
        const struct prefetch_tier_fill_options *options, struct base_err *err, struct prefetch_tier_filled *ret)
{
	struct fill f = { .options = options };
	struct prefetch_tier_stats stats;
	int rc = start(&f, err);
	if (rc < 0 && (!err || !err->text[0]))
		base_err_set(err, rc, "cannot set up reading: %s", base_err_str(rc));
	if (rc == 0) {
		rc = add_all(&f);
		if (rc < 0)
			base_err_set(err, rc, "the index is damaged: %s; %s", base_err_str(rc),
			        shard_index_advice(options->index));
		if (rc == 0 && f.rc == 0)
			flush(&f);
		if (rc < 0 || f.rc < 0)
			prefetch_io_cancel(f.io);
		while (f.in_flight)
			wait_for_one(&f);
		prefetch_io_tier_stats(f.io, &stats);
		f.done.held_bytes = stats.blocks.hit_bytes + stats.blocks.stored_bytes;
		f.done.stored_bytes = stats.blocks.stored_bytes;
		f.done.no_entry = stats.blocks.no_entry > 0;
		if (rc == 0 && f.rc < 0)
			rc = say(&f, err);
		if (rc == 0 && stats.off)
			rc = base_err_set(err, -ENODEV, "the tier is off: %s", base_err_str(-stats.off));
	}
	stop(&f);
	*ret = f.done;
	return rc;
}
