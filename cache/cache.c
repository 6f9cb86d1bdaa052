/* SPDX-License-Identifier: Apache-2.0 */
/* Verified blocks in landing memory: a hash table and a list of what nobody holds; cache/cache.h first. */
#include "cache/cache.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "shard/base/cleanup.h"

enum { BUCKETS_PER_MIB = 16 }; /* a block is about 64 KiB; small ones make chains of a few */

struct cache {
	pthread_mutex_t lock; /* guards all fields below, and those of areas and buffers */
	struct cache_arena *arena;
	struct cache_buffer *oldest, *newest; /* the list of buffers that nobody holds */
	struct cache_area *free_areas;
	struct cache_buffer *free_buffers;
	uint32_t bucket_mask;
	struct cache_buffer **buckets;
};

int cache_new(uint64_t memory_bytes, struct cache **ret_cache)
{
	struct cache *cache = calloc(1, sizeof(*cache));
	if (!cache)
		return -ENOMEM;
	int rc = cache_arena_new(memory_bytes, &cache->arena);
	if (rc < 0) {
		free(cache);
		return rc;
	}
	uint64_t want = (cache_arena_size(cache->arena) >> 20) * BUCKETS_PER_MIB;
	uint32_t n = 1024;
	while (n < want && n < 1U << 24)
		n *= 2;
	cache->bucket_mask = n - 1;
	cache->buckets = calloc(n, sizeof(struct cache_buffer *));
	if (!cache->buckets) {
		cache_arena_free(cache->arena);
		free(cache);
		return -ENOMEM;
	}
	pthread_mutex_init(&cache->lock, NULL);
	*ret_cache = cache;
	return 0;
}

static struct cache_buffer **bucket_of(struct cache *cache, uint64_t key)
{
	uint64_t h = key * UINT64_C(0x9e3779b97f4a7c15);
	return &cache->buckets[(h >> 32) & cache->bucket_mask];
}

static void hash_remove(struct cache *cache, struct cache_buffer *buffer)
{
	struct cache_buffer **link = bucket_of(cache, buffer->key);
	while (*link != buffer)
		link = &(*link)->hash_next;
	*link = buffer->hash_next;
}

static void idle_remove(struct cache *cache, struct cache_buffer *buffer)
{
	*(buffer->older ? &buffer->older->newer : &cache->oldest) = buffer->newer;
	*(buffer->newer ? &buffer->newer->older : &cache->newest) = buffer->older;
	buffer->older = buffer->newer = NULL;
}

static void idle_append(struct cache *cache, struct cache_buffer *buffer)
{
	buffer->older = cache->newest;
	buffer->newer = NULL;
	*(cache->newest ? &cache->newest->newer : &cache->oldest) = buffer;
	cache->newest = buffer;
}

static void area_unref(struct cache *cache, struct cache_area *area)
{
	assert(area->refs > 0);
	if (--area->refs)
		return;
	cache_arena_put(cache->arena, &area->span);
	area->next_free = cache->free_areas;
	cache->free_areas = area;
}

/* Frees a buffer that nobody holds and that is in no list. */
static void buffer_kill(struct cache *cache, struct cache_buffer *buffer)
{
	if (!buffer->dropped)
		hash_remove(cache, buffer);
	area_unref(cache, buffer->area);
	buffer->hash_next = cache->free_buffers;
	cache->free_buffers = buffer;
}

static void evict_oldest(struct cache *cache)
{
	struct cache_buffer *buffer = cache->oldest;
	idle_remove(cache, buffer);
	buffer_kill(cache, buffer);
}

void cache_free(struct cache *cache)
{
	if (!cache)
		return;
	while (cache->oldest)
		evict_oldest(cache);
	assert(cache_arena_used(cache->arena) == 0);
	while (cache->free_areas) {
		struct cache_area *area = cache->free_areas;
		cache->free_areas = area->next_free;
		free(area);
	}
	while (cache->free_buffers) {
		struct cache_buffer *buffer = cache->free_buffers;
		cache->free_buffers = buffer->hash_next;
		free(buffer);
	}
	cache_arena_free(cache->arena);
	pthread_mutex_destroy(&cache->lock);
	free(cache->buckets);
	free(cache);
}

void cache_limit(struct cache *cache, uint64_t bytes)
{
	lock_for_scope(&cache->lock);
	cache_arena_limit(cache->arena, bytes);
}

uint64_t cache_landing(struct cache *cache)
{
	lock_for_scope(&cache->lock);
	return cache_arena_open(cache->arena);
}

/* Returns false if what is held takes all of landing memory. */
static bool make_room(struct cache *cache, bool may_grow)
{
	if (!cache->oldest)
		return may_grow && cache_arena_grow(cache->arena);
	evict_oldest(cache);
	return true;
}

int cache_area_new(struct cache *cache, uint32_t bytes, bool may_grow, struct cache_area **ret_area)
{
	lock_for_scope(&cache->lock);
	struct cache_area *area = cache->free_areas;
	if (area)
		cache->free_areas = area->next_free;
	else
		area = malloc(sizeof(*area));
	if (!area)
		return -ENOMEM;
	int rc;
	while ((rc = cache_arena_get(cache->arena, bytes, &area->span)) == -ENOBUFS && make_room(cache, may_grow))
		;
	if (rc < 0) {
		area->next_free = cache->free_areas;
		cache->free_areas = area;
	} else {
		area->refs = 1;
		*ret_area = area;
	}
	return rc;
}

void cache_area_put(struct cache *cache, struct cache_area *area)
{
	lock_for_scope(&cache->lock);
	area_unref(cache, area);
}

int cache_insert(struct cache *cache, uint64_t key, struct cache_area *area, uint32_t offset, uint32_t len,
        struct cache_buffer **ret_buffer)
{
	assert(offset <= area->span.bytes && len <= area->span.bytes - offset);
	lock_for_scope(&cache->lock);
	struct cache_buffer *buffer = cache->free_buffers;
	if (buffer)
		cache->free_buffers = buffer->hash_next;
	else
		buffer = malloc(sizeof(*buffer));
	if (buffer) {
		struct cache_buffer **bucket = bucket_of(cache, key);
		*buffer = (struct cache_buffer){
			.key = key,
			.data = area->span.data + offset,
			.len = len,
			.refs = 1,
			.area = area,
			.hash_next = *bucket,
		};
		*bucket = buffer;
		area->refs++;
		*ret_buffer = buffer;
	}
	return buffer ? 0 : -ENOMEM;
}

struct cache_buffer *cache_find(struct cache *cache, uint64_t key)
{
	lock_for_scope(&cache->lock);
	struct cache_buffer *buffer = *bucket_of(cache, key);
	while (buffer && buffer->key != key)
		buffer = buffer->hash_next;
	if (buffer && buffer->refs++ == 0)
		idle_remove(cache, buffer);
	return buffer;
}

static void put_locked(struct cache *cache, struct cache_buffer *buffer)
{
	assert(buffer->refs > 0);
	if (--buffer->refs)
		return;
	if (buffer->dropped) {
		buffer_kill(cache, buffer);
		return;
	}
	idle_append(cache, buffer);
}

void cache_put(struct cache *cache, struct cache_buffer *buffer)
{
	lock_for_scope(&cache->lock);
	put_locked(cache, buffer);
}

void cache_drop(struct cache *cache, struct cache_buffer *buffer)
{
	lock_for_scope(&cache->lock);
	if (!buffer->dropped) {
		hash_remove(cache, buffer);
		buffer->dropped = 1;
	}
	put_locked(cache, buffer);
}

uint64_t cache_used(struct cache *cache)
{
	lock_for_scope(&cache->lock);
	return cache_arena_used(cache->arena);
}

const struct cache_arena *cache_arena_of(const struct cache *cache)
{
	return cache->arena;
}
