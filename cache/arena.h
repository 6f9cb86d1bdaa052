/* SPDX-License-Identifier: Apache-2.0 */
/* Landing memory: one mapping, handed out in runs of 4 KiB pages.
 *
 *     |  segment 0 (8 MiB)  |  segment 1  | ...        a span never crosses a segment, so that a segment can be
 *     |##..####....#........|.............|            registered with the kernel as one fixed buffer
 *
 * The search for free pages begins at the low end.  So used memory stays compact, and the kernel never has to provide
 * pages that were never needed.
 *
 * The address of a span does not change until cache_arena_free.
 *
 * Threads: the arena has no lock.  The owner (cache.c) locks around each call. */
#ifndef DDPFS_CACHE_ARENA_H
#define DDPFS_CACHE_ARENA_H

#include <stdbool.h>
#include <stdint.h>

enum {
	CACHE_PAGE = 4096,       /* bytes */
	CACHE_SEGMENT = 8 << 20, /* bytes; the largest span */
};

struct cache_arena; /* opaque */

/* A run of pages that is handed out. */
struct cache_span {
	uint8_t *data;    /* page-aligned */
	uint32_t bytes;   /* multiple of CACHE_PAGE */
	uint32_t segment; /* number of the segment it lies in */
};

/* Maps an arena of `bytes` bytes (1 .. 2^40), rounded up to whole segments.
 * Returns 0, -EINVAL (bytes is 0 or larger than 2^40) or -ENOMEM. */
int cache_arena_new(uint64_t bytes, struct cache_arena **ret_arena);
/* Unmaps the arena; no span may be used after it.  NULL is fine. */
void cache_arena_free(struct cache_arena *arena);

/* Hands out a span of at least `bytes` bytes (1 .. CACHE_SEGMENT).
 * Returns 0, or -ENOBUFS: no run of free pages is long enough. */
int cache_arena_get(struct cache_arena *arena, uint32_t bytes, struct cache_span *ret_span);
/* Takes a span back. */
void cache_arena_put(struct cache_arena *arena, const struct cache_span *span);

/* Lets spans come from the first segments only: those of `bytes` bytes, at least one, and all that ever handed out a
 * span.  At first they come from all. */
void cache_arena_limit(struct cache_arena *arena, uint64_t bytes);
/* Lets spans come from one segment more.  Returns false if they come from all. */
bool cache_arena_grow(struct cache_arena *arena);
/* Returns the bytes of the segments that spans come from. */
uint64_t cache_arena_open(const struct cache_arena *arena);

/* Returns the bytes that are handed out now. */
uint64_t cache_arena_used(const struct cache_arena *arena);
/* Returns the bytes of the mapping.  Constant. */
uint64_t cache_arena_size(const struct cache_arena *arena);
/* Returns the number of segments.  Constant. */
uint32_t cache_arena_segments(const struct cache_arena *arena);
/* Returns the CACHE_SEGMENT bytes of a segment.  Constant. */
uint8_t *cache_arena_segment(const struct cache_arena *arena, uint32_t segment);

#endif
