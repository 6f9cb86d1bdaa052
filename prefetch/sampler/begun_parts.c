/* SPDX-License-Identifier: Apache-2.0 */
/* Finds contiguous parts of a sorted list by where its readers began, however far apart they are since.
 * prefetch/sampler/recognise_private.h first.
 *
 * One rank comes first and alone: it looks like a reader of the whole list.  When the others come, it may be so far
 * ahead of them that the latest opens alone do not say how many parts there are:
 *
 *      list     |xxxxxxxxxxxx                |xxxx                        |
 *                rank 0                       rank 1
 *
 * But the files that are opened already say it: in each part they reach from its beginning to where its rank is. */
#include "prefetch/sampler/recognise_private.h"

enum {
	FILES_MIN = 200, /* of a part: a shorter one is a worker's batch */
	OPENS_MIN = 16,  /* of each rank */
	SLACK = 128,     /* files that one worker of a rank is ahead of another: two batches of 64 */
};

struct begun {
	uint32_t opens, end; /* opened files of a part; behind the farthest of them */
};

static struct begun begun_of(const uint64_t *opened, uint32_t start, uint32_t end)
{
	struct begun begun = { 0 };
	for (uint32_t i = start; i < end; i++) {
		if (!bit_get(opened, i))
			continue;
		begun.opens++;
		begun.end = i + 1 - start;
	}
	return begun;
}

/* Whether each rank has begun its part at its beginning, and one of them before the part before it was read: one reader
 * of the whole list does not do that. */
static bool all_have_begun(const struct parts *parts, const uint64_t *opened)
{
	bool apart = false;
	uint32_t left = 0; /* files of the part before that are not opened */
	for (uint32_t rank = 0; rank < parts->world; rank++) {
		if (!bit_get(opened, prefetch_parts_start(parts, rank)))
			return false;
	}
	for (uint32_t rank = 0; rank < parts->world; rank++) {
		uint32_t start = prefetch_parts_start(parts, rank), end = prefetch_parts_start(parts, rank + 1);
		struct begun begun = begun_of(opened, start, end);
		if (begun.opens < OPENS_MIN || begun.end - begun.opens > SLACK)
			return false;
		apart |= rank > 0 && left > SLACK;
		left = end - start - begun.opens;
	}
	return apart;
}

bool prefetch_begun_parts(const uint64_t *opened, uint32_t n_files, struct parts *ret_parts)
{
	for (uint32_t world = 2; world <= PREFETCH_PARTS_WORLD_MAX && world * FILES_MIN <= n_files; world++) {
		for (unsigned kind = PARTS_UP; kind < PARTS_KINDS; kind++) {
			struct parts parts = { .n = n_files, .world = world, .kind = kind };
			if (prefetch_parts_shortest(&parts) < FILES_MIN || !all_have_begun(&parts, opened))
				continue;
			*ret_parts = parts;
			return true;
		}
	}
	return false;
}
