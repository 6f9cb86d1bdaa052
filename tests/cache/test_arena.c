/* SPDX-License-Identifier: Apache-2.0 */
/* Landing memory: spans never overlap, come back whole, and pages that are not needed are not touched. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cache/arena.h"

static void sizes_are_whole_segments(void **state)
{
	struct cache_arena *arena;
	(void)state;
	assert_int_equal(cache_arena_new(0, &arena), -EINVAL);
	assert_int_equal(cache_arena_new(UINT64_MAX, &arena), -EINVAL);
	assert_int_equal(cache_arena_new(1, &arena), 0);
	assert_int_equal(cache_arena_size(arena), CACHE_SEGMENT);
	assert_int_equal(cache_arena_segments(arena), 1);
	cache_arena_free(arena);
	cache_arena_free(NULL);
}

static void a_full_arena_says_so_and_recovers(void **state)
{
	struct cache_arena *arena;
	struct cache_span big, small;
	(void)state;
	assert_int_equal(cache_arena_new(CACHE_SEGMENT, &arena), 0);
	assert_int_equal(cache_arena_get(arena, CACHE_SEGMENT, &big), 0);
	assert_int_equal(cache_arena_get(arena, 1, &small), -ENOBUFS);
	cache_arena_put(arena, &big);
	assert_int_equal(cache_arena_get(arena, 1, &small), 0);
	assert_int_equal(small.bytes, CACHE_PAGE);
	assert_int_equal(cache_arena_get(arena, CACHE_SEGMENT, &big), -ENOBUFS);
	assert_int_equal(cache_arena_get(arena, CACHE_SEGMENT - CACHE_PAGE, &big), 0);
	assert_int_equal(cache_arena_used(arena), CACHE_SEGMENT);
	cache_arena_put(arena, &big);
	cache_arena_put(arena, &small);
	assert_int_equal(cache_arena_used(arena), 0);
	cache_arena_free(arena);
}

static uint32_t next_random(uint32_t *x)
{
	*x = *x * 1664525 + 1013904223;
	return *x >> 8;
}

static void spans_never_overlap(void **state)
{
	enum { HELD = 200, STEPS = 20000 };
	struct cache_arena *arena;
	struct cache_span spans[HELD];
	bool held[HELD] = { false };
	uint64_t used = 0;
	uint32_t x = 1, refused = 0;
	(void)state;
	assert_int_equal(cache_arena_new(2 * CACHE_SEGMENT, &arena), 0);
	for (uint32_t step = 0; step < STEPS; step++) {
		uint32_t i = next_random(&x) % HELD;
		if (held[i]) {
			/* What was written is still there: nobody else got a part of it. */
			for (uint32_t at = 0; at < spans[i].bytes; at += CACHE_PAGE)
				assert_int_equal(spans[i].data[at], (uint8_t)i);
			cache_arena_put(arena, &spans[i]);
			used -= spans[i].bytes;
			held[i] = false;
			continue;
		}
		uint32_t bytes = 1 + next_random(&x) % (step % 3 ? 100000 : 1200000);
		if (cache_arena_get(arena, bytes, &spans[i]) < 0) {
			refused++;
			continue;
		}
		assert_true(spans[i].bytes >= bytes && spans[i].bytes < bytes + CACHE_PAGE);
		uint8_t *segment = cache_arena_segment(arena, spans[i].segment);
		assert_true(spans[i].data >= segment && spans[i].data + spans[i].bytes <= segment + CACHE_SEGMENT);
		for (uint32_t at = 0; at < spans[i].bytes; at += CACHE_PAGE)
			spans[i].data[at] = (uint8_t)i;
		used += spans[i].bytes;
		held[i] = true;
		assert_int_equal(cache_arena_used(arena), used);
	}
	assert_true(refused > 0);
	for (uint32_t i = 0; i < HELD; i++) {
		if (held[i])
			cache_arena_put(arena, &spans[i]);
	}
	assert_int_equal(cache_arena_used(arena), 0);
	cache_arena_free(arena);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes_are_whole_segments),
		cmocka_unit_test(a_full_arena_says_so_and_recovers),
		cmocka_unit_test(spans_never_overlap),
	};
	return cmocka_run_group_tests_name("cache/arena", tests, NULL, NULL);
}
