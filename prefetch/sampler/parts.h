/* SPDX-License-Identifier: Apache-2.0 */
/* A list, or a permutation of it, in contiguous parts, one for each rank, read side by side (parts.c).
 *
 * Threads: pure functions, any thread. */
#ifndef DDPFS_PREFETCH_SAMPLER_PARTS_H
#define DDPFS_PREFETCH_SAMPLER_PARTS_H

#include <stdbool.h>
#include <stdint.h>

enum parts_kind {
	PARTS_UP,     /* n / world files each, rounded up; the last part has the rest */
	PARTS_DOWN,   /* rounded down; no rank reads the rest */
	PARTS_EVEN,   /* the first n % world have one file more */
	PARTS_SPREAD, /* part r begins at n * r / world, rounded down */
	PARTS_KINDS
};
struct parts {
	uint32_t n, world; /* world <= n */
	enum parts_kind kind;
};

/* Returns the files of the shortest part. */
uint32_t prefetch_parts_shortest(const struct parts *parts);

/* Returns the index of the first file of a rank's part.  rank = world: the end of the last part. */
uint32_t prefetch_parts_start(const struct parts *parts, uint32_t rank);

/* Gets the position of an index.  Returns false if it has none: the ranks read as many files as the shortest part has,
 * and the index lies further back in its part. */
bool prefetch_parts_position(const struct parts *parts, uint32_t index, uint64_t *ret_position);

/* Returns the position of an index.  Those without one get the last positions, in the order of the list. */
uint64_t prefetch_parts_place(const struct parts *parts, uint32_t index);

#endif
