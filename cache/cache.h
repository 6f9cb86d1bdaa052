/* SPDX-License-Identifier: Apache-2.0 */
/* Verified blocks in this process's memory.
 *
 * A *block* is SHARD_BLOCK bytes of a file, or the whole file when it is not larger.  It is the unit that is read,
 * verified, delivered and evicted.  Its key is cache_block_key(file, block).
 *
 *     area     a span of landing memory that one read filled; reference-counted
 *     buffer   one verified block: a slice of an area, found by key; reference-counted
 *
 * A buffer that nobody holds can be found until its memory is needed.  The one that was unused longest goes first.
 * What sinks hold (the kernel's page cache, the arena of libddpfs_stage) is not here: cache/ledger.h lists it.
 *
 * Threads: any thread may call every function but cache_new and cache_free.  One mutex guards everything.  It is never
 * held across a callback or I/O. */
#ifndef DDPFS_CACHE_CACHE_H
#define DDPFS_CACHE_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cache/arena.h"

/* Returns the key of block number `block` of file number `file`. */
static inline uint64_t cache_block_key(uint32_t file, uint32_t block)
{
	return (uint64_t)file << 32 | block;
}

/* Returns the number of the file, and of the block, of a key. */
static inline uint32_t cache_key_file(uint64_t key)
{
	return (uint32_t)(key >> 32);
}
static inline uint32_t cache_key_block(uint64_t key)
{
	return (uint32_t)key;
}

struct cache; /* opaque */

struct cache_area {
	struct cache_span span; /* constant while the area is held */
	/* Private to cache.c: */
	uint32_t refs; /* one of the caller of cache_area_new, one of each buffer in the area */
	struct cache_area *next_free;
};

struct cache_buffer {
	uint64_t key;
	const uint8_t *data; /* `len` bytes, which do not change while the buffer is held */
	uint32_t len;        /* bytes */
	/* Private to cache.c: */
	uint32_t refs;
	struct cache_area *area;
	struct cache_buffer *hash_next;     /* in its bucket, or in the list of free buffers */
	struct cache_buffer *older, *newer; /* in the list of buffers that nobody holds */
	int dropped;                        /* 1: cannot be found; freed with its last reference */
};

/* Makes a cache with `memory_bytes` bytes of landing memory (1 .. 2^40), rounded up to whole segments of CACHE_SEGMENT.
 * Returns 0, -EINVAL (memory_bytes is out of range) or -ENOMEM. */
int cache_new(uint64_t memory_bytes, struct cache **ret_cache);
/* Frees the cache; nobody may hold an area or a buffer.  NULL is fine. */
void cache_free(struct cache *cache);

/* Limits landing memory to about `bytes` bytes (cache_arena_limit).  Buffers that nobody holds are evicted to stay
 * within it.  If what is held leaves no room, cache_area_new may grow it by a segment.  At first all of it is used. */
void cache_limit(struct cache *cache, uint64_t bytes);
/* Returns the bytes that landing memory may take now: its limit, as it has grown. */
uint64_t cache_landing(struct cache *cache);

/* Gives the caller an area of at least `bytes` bytes (1 .. CACHE_SEGMENT) for a read; the caller holds it.  Evicts
 * buffers that nobody holds when there is no room.  may_grow: then landing memory may grow beyond its limit.
 * Returns 0, -ENOBUFS (what is held leaves no room: try again after a put) or -ENOMEM. */
int cache_area_new(struct cache *cache, uint32_t bytes, bool may_grow, struct cache_area **ret_area);
/* Releases an area.  Its memory is free when its buffers are gone too. */
void cache_area_put(struct cache *cache, struct cache_area *area);

/* Makes bytes [offset, offset + len) of the area a buffer that cache_find finds by `key`.  No buffer may have that
 * key yet.  The caller holds the buffer.
 * Returns 0 or -ENOMEM. */
int cache_insert(struct cache *cache, uint64_t key, struct cache_area *area, uint32_t offset, uint32_t len,
        struct cache_buffer **ret_buffer);

/* Returns the buffer of a key, which the caller then holds, or NULL. */
struct cache_buffer *cache_find(struct cache *cache, uint64_t key);
/* Releases a buffer.  It can still be found. */
void cache_put(struct cache *cache, struct cache_buffer *buffer);

/* Releases a buffer that nobody needs any more because a sink has the bytes.  cache_find does not find it from now
 * on. */
void cache_drop(struct cache *cache, struct cache_buffer *buffer);

/* Returns the bytes of landing memory in use, with those of buffers that nobody holds. */
uint64_t cache_used(struct cache *cache);

/* Returns the arena, so that the kernel can register its segments.  Its address and segments are constant. */
const struct cache_arena *cache_arena_of(const struct cache *cache);

#endif
