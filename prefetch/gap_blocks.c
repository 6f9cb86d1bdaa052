/* SPDX-License-Identifier: Apache-2.0 */
/* Files between two others; prefetch/gap_blocks.h first. */
#include "prefetch/gap_blocks.h"

#include <stdbool.h>

#include "cache/cache.h"

/* What one walk looks for. */
struct walk {
	const struct shard_index *index;
	uint32_t shard;
	uint64_t start, end; /* the rest of the gap */
	struct prefetch_gap_block *blocks;
	uint32_t n;
};

/* Takes a file if it lies in the gap.  Returns false: the walk ends. */
static bool take_file(struct walk *w, uint32_t file)
{
	struct shard_place place;
	if (shard_index_place(w->index, file, &place) < 0 || place.shard != w->shard || place.offset >= w->end)
		return false;
	if (place.offset < w->start || place.length == 0)
		return true;
	if (place.length > SHARD_BLOCK || place.length > w->end - place.offset || w->n == PREFETCH_GAP_BLOCKS_MAX)
		return false;
	w->blocks[w->n++] = (struct prefetch_gap_block){ .key = cache_block_key(file, 0),
		.offset = place.offset,
		.xxh3 = place.xxh3,
		.len = (uint32_t)place.length };
	w->start = place.offset + place.length;
	return true;
}

/* Sorts files by their places.  They are few, and most are in order. */
static void sort_by_place(const struct shard_index *index, uint32_t *files, uint32_t n)
{
	uint64_t offsets[SHARD_SAMPLE_FILES_MAX];
	for (uint32_t i = 0; i < n; i++) {
		struct shard_place place = { 0 };
		uint32_t file = files[i], at = i;
		shard_index_place(index, file, &place); /* take_file looks at errors */
		for (; at > 0 && offsets[at - 1] > place.offset; at--) {
			offsets[at] = offsets[at - 1];
			files[at] = files[at - 1];
		}
		offsets[at] = place.offset;
		files[at] = file;
	}
}

/* Takes the files of a sample.  Returns false: the walk ends. */
static bool take_sample(struct walk *w, uint32_t sample)
{
	uint32_t files[SHARD_SAMPLE_FILES_MAX], n = 0;
	if (shard_index_sample_files(w->index, sample, files, SHARD_SAMPLE_FILES_MAX, &n) < 0)
		return false;
	sort_by_place(w->index, files, n);
	for (uint32_t i = 0; i < n; i++)
		if (!take_file(w, files[i]))
			return false;
	return true;
}

uint32_t prefetch_gap_blocks(
        const struct shard_index *index, uint32_t file, uint64_t start, uint64_t end, struct prefetch_gap_block *blocks)
{
	struct shard_place place;
	uint32_t slot, sample;
	if (end < start + PREFETCH_GAP_MIN || shard_index_place(index, file, &place) < 0 ||
	        place.sample == SHARD_NONE || shard_index_sample_slot(index, place.sample, &slot) < 0)
		return 0;
	struct walk w = { .index = index, .shard = place.shard, .start = start, .end = end, .blocks = blocks };
	/* The first sample is that of `file`: others of its files may lie in the gap.  Empty files take slots, too. */
	for (uint32_t i = 0; i <= 2 * PREFETCH_GAP_BLOCKS_MAX; i++)
		if (shard_index_slot_sample(index, slot + i, &sample) < 0 || !take_sample(&w, sample))
			break;
	return w.n;
}
