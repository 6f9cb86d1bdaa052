/* SPDX-License-Identifier: Apache-2.0 */
/* Landing memory as a bitmap of pages per segment; cache/arena.h first. */
#include "cache/arena.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

enum {
	PAGES = CACHE_SEGMENT / CACHE_PAGE, /* of a segment */
	WORDS = PAGES / 64,
};

struct segment {
	uint64_t used[WORDS]; /* bit set: page handed out */
	uint32_t longest;     /* upper bound of the longest free run, in pages */
};

struct cache_arena {
	uint8_t *base;
	uint64_t used_pages;
	uint32_t n_segments;
	uint32_t n_open; /* spans come from the segments before this one */
	uint32_t n_used; /* no span ever came from this segment or a later one */
	struct segment segments[];
};

int cache_arena_new(uint64_t bytes, struct cache_arena **ret_arena)
{
	if (!bytes || bytes > UINT64_C(1) << 40)
		return -EINVAL;
	uint32_t n = (uint32_t)((bytes + CACHE_SEGMENT - 1) / CACHE_SEGMENT);
	struct cache_arena *arena = calloc(1, sizeof(*arena) + n * sizeof(struct segment));
	if (!arena)
		return -ENOMEM;
	void *base = mmap(NULL, (size_t)n * CACHE_SEGMENT, PROT_READ | PROT_WRITE,
	        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base == MAP_FAILED) {
		free(arena);
		return -ENOMEM;
	}
	arena->base = base;
	arena->n_segments = arena->n_open = n;
	for (uint32_t i = 0; i < n; i++)
		arena->segments[i].longest = PAGES;
	*ret_arena = arena;
	return 0;
}

void cache_arena_free(struct cache_arena *arena)
{
	if (!arena)
		return;
	munmap(arena->base, (size_t)arena->n_segments * CACHE_SEGMENT);
	free(arena);
}

/* Returns the first page at or after `from` whose bit equals `used`, or PAGES when there is none. */
static uint32_t scan(const struct segment *segment, uint32_t from, bool used)
{
	while (from < PAGES) {
		uint64_t word = segment->used[from / 64];
		word = (used ? word : ~word) >> (from % 64);
		if (word)
			return from + (uint32_t)__builtin_ctzll(word);
		from = (from / 64 + 1) * 64;
	}
	return PAGES;
}

static void mark(struct segment *segment, uint32_t first, uint32_t pages, bool used)
{
	for (uint32_t end = first + pages; first < end;) {
		uint32_t bit = first % 64;
		uint32_t n = end - first < 64 - bit ? end - first : 64 - bit;
		uint64_t mask = (n == 64 ? ~UINT64_C(0) : (UINT64_C(1) << n) - 1) << bit;
		assert(used ? !(segment->used[first / 64] & mask) : (segment->used[first / 64] & mask) == mask);
		segment->used[first / 64] ^= mask;
		first += n;
	}
}

/* Returns the first of `pages` free pages in a row, or PAGES when there is none; then `longest` becomes exact. */
static uint32_t find_run(struct segment *segment, uint32_t pages)
{
	uint32_t longest = 0;
	for (uint32_t first = scan(segment, 0, false); first < PAGES;) {
		uint32_t end = scan(segment, first, true);
		if (end - first >= pages)
			return first;
		if (end - first > longest)
			longest = end - first;
		first = scan(segment, end, false);
	}
	segment->longest = longest;
	return PAGES;
}

int cache_arena_get(struct cache_arena *arena, uint32_t bytes, struct cache_span *ret_span)
{
	assert(bytes > 0 && bytes <= CACHE_SEGMENT);
	uint32_t pages = (bytes + CACHE_PAGE - 1) / CACHE_PAGE;
	for (uint32_t i = 0; i < arena->n_open; i++) {
		struct segment *segment = &arena->segments[i];
		if (segment->longest < pages)
			continue;
		uint32_t first = find_run(segment, pages);
		if (first == PAGES)
			continue;
		mark(segment, first, pages, true);
		arena->used_pages += pages;
		arena->n_used = i < arena->n_used ? arena->n_used : i + 1;
		ret_span->data = arena->base + (size_t)i * CACHE_SEGMENT + (size_t)first * CACHE_PAGE;
		ret_span->bytes = pages * CACHE_PAGE;
		ret_span->segment = i;
		return 0;
	}
	return -ENOBUFS;
}

void cache_arena_put(struct cache_arena *arena, const struct cache_span *span)
{
	assert(span->segment < arena->n_segments);
	struct segment *segment = &arena->segments[span->segment];
	size_t offset = (size_t)(span->data - arena->base) - (size_t)span->segment * CACHE_SEGMENT;
	uint32_t pages = span->bytes / CACHE_PAGE;
	mark(segment, (uint32_t)(offset / CACHE_PAGE), pages, false);
	arena->used_pages -= pages;
	segment->longest = PAGES; /* an upper bound: the run may have joined its neighbours */
}

void cache_arena_limit(struct cache_arena *arena, uint64_t bytes)
{
	uint64_t n = bytes ? (bytes - 1) / CACHE_SEGMENT + 1 : 1;
	n = n < arena->n_used ? arena->n_used : n;
	arena->n_open = n < arena->n_segments ? (uint32_t)n : arena->n_segments;
}

bool cache_arena_grow(struct cache_arena *arena)
{
	if (arena->n_open == arena->n_segments)
		return false;
	arena->n_open++;
	return true;
}

uint64_t cache_arena_open(const struct cache_arena *arena)
{
	return (uint64_t)arena->n_open * CACHE_SEGMENT;
}

uint64_t cache_arena_used(const struct cache_arena *arena)
{
	return arena->used_pages * CACHE_PAGE;
}

uint64_t cache_arena_size(const struct cache_arena *arena)
{
	return (uint64_t)arena->n_segments * CACHE_SEGMENT;
}

uint32_t cache_arena_segments(const struct cache_arena *arena)
{
	return arena->n_segments;
}

uint8_t *cache_arena_segment(const struct cache_arena *arena, uint32_t segment)
{
	assert(segment < arena->n_segments);
	return arena->base + (size_t)segment * CACHE_SEGMENT;
}
