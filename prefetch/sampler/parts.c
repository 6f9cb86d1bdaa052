/* SPDX-License-Identifier: Apache-2.0 */
/* A list in contiguous parts, one a rank, read side by side; prefetch/sampler/recognise_private.h first.
 * The ranks' positions are interleaved, as if they were dealt one by one.  So the other files need not know of parts.
 *
 *      list      0 1 2 3 4 | 5 6 7 8 9        two parts of five files
 *      position  0 2 4 6 8 | 1 3 5 7 9
 *
 * If the parts are not equally long, the files beyond the length of the shortest part come last. */
#include <errno.h>
#include <stdlib.h>

#include "prefetch/sampler/recognise_private.h"

static uint32_t at_most(uint64_t value, uint32_t most)
{
	return value < most ? (uint32_t)value : most;
}

/* Returns the index in the list at which the part of rank `r` begins.  r = world: the end of the last part. */
static uint32_t start_of(const struct parts *parts, uint32_t r)
{
	uint32_t whole = parts->n / parts->world, rest = parts->n % parts->world;
	switch (parts->kind) {
	case PARTS_UP:
		return at_most((uint64_t)r * (whole + (rest > 0)), parts->n);
	case PARTS_DOWN:
		return r * whole;
	case PARTS_EVEN:
		break;
	}
	return r * whole + (r < rest ? r : rest);
}

static uint32_t rank_of(const struct parts *parts, uint32_t index)
{
	uint32_t low = 0, high = parts->world; /* the first rank that begins behind `index` is at most `high` */
	while (low + 1 < high) {
		uint32_t mid = low + (high - low) / 2;
		if (start_of(parts, mid) <= index)
			low = mid;
		else
			high = mid;
	}
	return low;
}

uint32_t prefetch_parts_shortest(const struct parts *parts)
{
	return start_of(parts, parts->world) - start_of(parts, parts->world - 1);
}

uint32_t prefetch_parts_start(const struct parts *parts, uint32_t rank)
{
	return start_of(parts, rank);
}

bool prefetch_parts_position(const struct parts *parts, uint32_t index, uint64_t *ret_position)
{
	uint32_t rank = rank_of(parts, index), at = index - start_of(parts, rank);
	if (at >= prefetch_parts_shortest(parts))
		return false;
	*ret_position = (uint64_t)at * parts->world + rank;
	return true;
}

int prefetch_parts_perm(const struct parts *parts, struct prefetch_perm **ret_perm)
{
	struct shard_mt19937 none = { .next = 0 };
	return prefetch_perm_new(parts->n, &none, 0, ret_perm);
}

bool prefetch_parts_step(const struct parts *parts, struct prefetch_perm *perm, uint32_t max)
{
	uint32_t shortest = prefetch_parts_shortest(parts);
	uint32_t end = parts->n - perm->done < max ? parts->n : perm->done + max;
	for (uint32_t index = perm->done; index < end; index++) {
		uint64_t position;
		/* Each part up to this one has `shortest` files that do not come last. */
		if (!prefetch_parts_position(parts, index, &position))
			position = (uint64_t)shortest * parts->world + index -
			           ((uint64_t)rank_of(parts, index) + 1) * shortest;
		perm->at[position] = index;
		perm->inverse[index] = (uint32_t)position;
	}
	perm->done = end;
	if (end < parts->n)
		return true;
	prefetch_perm_made(perm);
	return false;
}
