/* SPDX-License-Identifier: Apache-2.0 */
/* A list in contiguous parts, one for each rank, read side by side; prefetch/sampler/parts.h first.
 * The ranks' positions are interleaved, as if they were dealt one by one.  So the other files need not know of parts.
 *
 *      list      0 1 2 3 4 | 5 6 7 8 9        two parts of five files
 *      position  0 2 4 6 8 | 1 3 5 7 9
 *
 * If the parts are not equally long, the files beyond the length of the shortest part come last. */
#include "prefetch/sampler/parts.h"

#include <assert.h>

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
	case PARTS_SPREAD:
		return (uint32_t)((uint64_t)parts->n * r / parts->world);
	case PARTS_EVEN:
	case PARTS_KINDS:
		break;
	}
	return r * whole + (r < rest ? r : rest);
}

/* Returns the rank whose part holds `index`: the last one that begins at `index` or before.  No loop, because the
 * search for a sampler asks this for each open and each way to make parts. */
static uint32_t rank_of(const struct parts *parts, uint32_t index)
{
	uint32_t whole = parts->n / parts->world, rest = parts->n % parts->world;
	uint32_t longer = rest * (whole + 1); /* PARTS_EVEN: where the parts of whole + 1 files end */
	assert(index < parts->n);
	switch (parts->kind) {
	case PARTS_UP:
		return at_most(index / (whole + (rest > 0)), parts->world - 1);
	case PARTS_DOWN:
		return whole ? at_most(index / whole, parts->world - 1) : parts->world - 1;
	case PARTS_SPREAD:
		/* n * r / world <= index, rounded down, is r < (index + 1) * world / n. */
		return (uint32_t)((((uint64_t)index + 1) * parts->world - 1) / parts->n);
	case PARTS_EVEN:
	case PARTS_KINDS:
		break;
	}
	return index < longer ? index / (whole + 1) : rest + (index - longer) / whole;
}

uint32_t prefetch_parts_shortest(const struct parts *parts)
{
	/* PARTS_UP: the last part is the shortest; PARTS_SPREAD: the first one. */
	return parts->kind == PARTS_SPREAD ? start_of(parts, 1)
	                                   : start_of(parts, parts->world) - start_of(parts, parts->world - 1);
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

uint64_t prefetch_parts_place(const struct parts *parts, uint32_t index)
{
	uint32_t shortest = prefetch_parts_shortest(parts);
	uint64_t position;
	/* Each part up to this one has `shortest` files that do not come last. */
	if (!prefetch_parts_position(parts, index, &position))
		position = (uint64_t)shortest * parts->world + index - ((uint64_t)rank_of(parts, index) + 1) * shortest;
	return position;
}
