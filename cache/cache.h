/* SPDX-License-Identifier: Apache-2.0 */
/* Verified blocks in this process's memory.
 *
 * A *block* is SHARD_BLOCK bytes of a file (the whole file when it is not larger): the unit that is read, verified,
 * delivered and evicted.  Its key is cache_block_key(file, block).
 *
 *     area     a span of landing memory that one read filled; reference-counted
 *     buffer   one verified block: a slice of an area, found by key; reference-counted
 *
 * A buffer nobody holds stays findable until its memory is needed: the longest unused goes first.  (What sinks keep
 * elsewhere, in the kernel's page cache or a pinned arena, is not here but in the ledger, cache/ledger.h.)
 *
 * Threads: every function may be called from any thread; one mutex, never held across a callback or I/O. */
#ifndef DDPFS_CACHE_CACHE_H
#define DDPFS_CACHE_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "cache/arena.h"

static inline uint64_t cache_block_key(uint32_t file, uint32_t block)
{
	return (uint64_t)file << 32 | block;
}

struct cache; /* opaque */

struct cache_area {
	struct cache_span span;
	/* cache.c's */
	uint32_t refs;
	struct cache_area *next_free;
};

/* data[len] is immutable while the buffer is held. */
struct cache_buffer {
	uint64_t key;
	const uint8_t *data;
	uint32_t len;
	/* cache.c's */
	uint32_t refs;
	struct cache_area *area;
	struct cache_buffer *hash_next;
	struct cache_buffer *older, *newer; /* in the list of buffers nobody holds */
	int dropped;                        /* no longer findable; dies with its last reference */
};

/* memory_bytes: landing memory, rounded up to whole segments of CACHE_SEGMENT.  -EINVAL, -ENOMEM. */
int cache_new(uint64_t memory_bytes, struct cache **ret_cache);
void cache_free(struct cache *cache); /* NULL is fine; nothing may be held any more */

/* Memory for a read of `bytes` (1 .. CACHE_SEGMENT), evicting buffers nobody holds.  The caller holds the area.
 * -ENOBUFS: everything is held (try again after a put), -ENOMEM. */
int cache_area_new(struct cache *cache, uint32_t bytes, struct cache_area **ret_area);
void cache_area_put(struct cache *cache, struct cache_area *area);

/* Makes area[offset, offset + len) findable as `key`, which must not be there yet.  The caller holds the buffer.
 * -ENOMEM. */
int cache_insert(struct cache *cache, uint64_t key, struct cache_area *area, uint32_t offset, uint32_t len,
        struct cache_buffer **ret_buffer);

/* The buffer, held by the caller, or NULL. */
struct cache_buffer *cache_find(struct cache *cache, uint64_t key);
void cache_put(struct cache *cache, struct cache_buffer *buffer);

/* As cache_put, but the buffer is wanted no more (a sink has the bytes): it is not found from now on. */
void cache_drop(struct cache *cache, struct cache_buffer *buffer);

uint64_t cache_used(struct cache *cache); /* landing bytes in use, idle buffers included */

/* The mapping, for registering with the kernel.  Constant after cache_new. */
const struct cache_arena *cache_arena_of(const struct cache *cache);

#endif
