/* SPDX-License-Identifier: Apache-2.0 */
/* Landing memory: one mapping, handed out in runs of 4 KiB pages.
 *
 *     |  segment 0 (8 MiB)  |  segment 1  | ...        a span never crosses a segment, so that a segment can be
 *     |##..####....#........|.............|            registered with the kernel as one fixed buffer
 *
 * First fit from the low end: what is used stays compact, and pages that were never needed are never touched.
 *
 * Threads: none of its own; the owner locks (cache.c does).  Addresses of spans are stable until cache_arena_free. */
#ifndef DDPFS_CACHE_ARENA_H
#define DDPFS_CACHE_ARENA_H

#include <stdbool.h>
#include <stdint.h>

enum {
	CACHE_PAGE = 4096,
	CACHE_SEGMENT = 8 << 20, /* bytes; the largest span */
};

struct cache_arena; /* opaque */

struct cache_span {
	uint8_t *data;    /* page-aligned */
	uint32_t bytes;   /* multiple of CACHE_PAGE */
	uint32_t segment; /* number of the segment it lies in */
};

/* bytes is rounded up to whole segments.  -EINVAL (0, or past 2^40), -ENOMEM. */
int cache_arena_new(uint64_t bytes, struct cache_arena **ret_arena);
void cache_arena_free(struct cache_arena *arena); /* NULL is fine; every span dies */

/* 1 <= bytes <= CACHE_SEGMENT.  -ENOBUFS when no run is long enough. */
int cache_arena_get(struct cache_arena *arena, uint32_t bytes, struct cache_span *ret_span);
void cache_arena_put(struct cache_arena *arena, const struct cache_span *span);

uint64_t cache_arena_used(const struct cache_arena *arena); /* bytes handed out now */
uint64_t cache_arena_size(const struct cache_arena *arena); /* bytes of the mapping */
uint32_t cache_arena_segments(const struct cache_arena *arena);
uint8_t *cache_arena_segment(const struct cache_arena *arena, uint32_t segment); /* its CACHE_SEGMENT bytes */

#endif
