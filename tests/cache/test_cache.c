/* SPDX-License-Identifier: Apache-2.0 */
/* Verified blocks: found by key, held by references, the longest unused goes first. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "cache/cache.h"

enum { MIB = 1 << 20 };

static void fill(struct cache *cache, uint64_t key, uint32_t len)
{
	struct cache_area *area;
	struct cache_buffer *buffer;
	assert_int_equal(cache_area_new(cache, len, true, &area), 0);
	memset(area->span.data, (int)key, len);
	assert_int_equal(cache_insert(cache, key, area, 0, len, &buffer), 0);
	cache_area_put(cache, area);
	cache_put(cache, buffer);
}

static bool has(struct cache *cache, uint64_t key)
{
	struct cache_buffer *buffer = cache_find(cache, key);
	if (!buffer)
		return false;
	assert_int_equal(buffer->key, key);
	assert_int_equal(buffer->data[0], (uint8_t)key);
	assert_int_equal(buffer->data[buffer->len - 1], (uint8_t)key);
	cache_put(cache, buffer);
	return true;
}

static void what_is_inserted_is_found(void **state)
{
	struct cache *cache;
	(void)state;
	assert_int_equal(cache_new(8 * MIB, &cache), 0);
	fill(cache, cache_block_key(7, 0), 1000);
	fill(cache, cache_block_key(7, 1), MIB);
	assert_true(has(cache, cache_block_key(7, 0)));
	assert_true(has(cache, cache_block_key(7, 1)));
	assert_false(has(cache, cache_block_key(8, 0)));
	cache_free(cache);
	cache_free(NULL);
}

static void the_longest_unused_goes_first(void **state)
{
	struct cache *cache;
	(void)state;
	assert_int_equal(cache_new(8 * MIB, &cache), 0);
	for (uint64_t key = 1; key <= 8; key++)
		fill(cache, key, MIB);
	assert_true(has(cache, 1)); /* now the latest */
	fill(cache, 9, MIB);
	assert_false(has(cache, 2));
	for (uint64_t key = 3; key <= 9; key++)
		assert_true(has(cache, key));
	assert_true(has(cache, 1));
	cache_free(cache);
}

static void what_is_held_stays(void **state)
{
	struct cache *cache;
	struct cache_area *area;
	struct cache_buffer *held[8];
	(void)state;
	assert_int_equal(cache_new(8 * MIB, &cache), 0);
	for (uint64_t key = 1; key <= 8; key++) {
		fill(cache, key, MIB);
		held[key - 1] = cache_find(cache, key);
	}
	assert_int_equal(cache_area_new(cache, 1, true, &area), -ENOBUFS);
	cache_put(cache, held[4]);
	assert_int_equal(cache_area_new(cache, MIB, true, &area), 0);
	assert_false(has(cache, 5));
	cache_area_put(cache, area);
	for (unsigned i = 0; i < 8; i++) {
		if (i == 4)
			continue;
		assert_int_equal(held[i]->data[17], (uint8_t)(i + 1));
		cache_put(cache, held[i]);
	}
	cache_free(cache);
}

static void a_dropped_buffer_lives_until_its_last_holder(void **state)
{
	struct cache *cache;
	struct cache_buffer *first, *second;
	(void)state;
	assert_int_equal(cache_new(8 * MIB, &cache), 0);
	fill(cache, 3, 5000);
	first = cache_find(cache, 3);
	second = cache_find(cache, 3);
	assert_ptr_equal(first, second);
	cache_drop(cache, first);
	assert_null(cache_find(cache, 3));
	assert_int_equal(second->data[4999], 3);
	fill(cache, 3, 100); /* the same key again */
	assert_true(has(cache, 3));
	cache_drop(cache, second);
	assert_true(has(cache, 3));
	assert_int_equal(cache_used(cache), CACHE_PAGE);
	cache_free(cache);
}

static void slices_keep_their_area_together(void **state)
{
	struct cache *cache;
	struct cache_area *area;
	struct cache_buffer *slices[4];
	(void)state;
	assert_int_equal(cache_new(8 * MIB, &cache), 0);
	assert_int_equal(cache_area_new(cache, 4 * CACHE_PAGE, true, &area), 0);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(cache_insert(cache, 100 + i, area, i * 3000, 3000, &slices[i]), 0);
	cache_area_put(cache, area);
	for (uint32_t i = 0; i < 3; i++)
		cache_drop(cache, slices[i]);
	assert_int_equal(cache_used(cache), 4 * CACHE_PAGE);
	cache_drop(cache, slices[3]);
	assert_int_equal(cache_used(cache), 0);
	cache_free(cache);
}

static void a_limit_is_kept_while_something_can_be_evicted(void **state)
{
	struct cache *cache;
	struct cache_area *area;
	struct cache_buffer *held[8];
	(void)state;
	assert_int_equal(cache_new(3 * CACHE_SEGMENT, &cache), 0);
	assert_int_equal(cache_landing(cache), 3 * CACHE_SEGMENT);
	cache_limit(cache, 1);
	for (uint64_t key = 1; key <= 9; key++)
		fill(cache, key, MIB);
	assert_int_equal(cache_landing(cache), CACHE_SEGMENT);
	assert_false(has(cache, 1));
	for (uint64_t key = 2; key <= 9; key++)
		held[key - 2] = cache_find(cache, key);
	assert_int_equal(cache_area_new(cache, MIB, false, &area), -ENOBUFS);
	assert_int_equal(cache_landing(cache), CACHE_SEGMENT);
	assert_int_equal(cache_area_new(cache, MIB, true, &area), 0);
	assert_int_equal(cache_landing(cache), 2 * CACHE_SEGMENT);
	cache_area_put(cache, area);
	for (unsigned i = 0; i < 8; i++)
		cache_put(cache, held[i]);
	cache_limit(cache, CACHE_SEGMENT); /* memory that was used stays in use */
	assert_int_equal(cache_landing(cache), 2 * CACHE_SEGMENT);
	cache_limit(cache, UINT64_MAX);
	assert_int_equal(cache_landing(cache), 3 * CACHE_SEGMENT);
	cache_free(cache);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_inserted_is_found),
		cmocka_unit_test(the_longest_unused_goes_first),
		cmocka_unit_test(what_is_held_stays),
		cmocka_unit_test(a_dropped_buffer_lives_until_its_last_holder),
		cmocka_unit_test(slices_keep_their_area_together),
		cmocka_unit_test(a_limit_is_kept_while_something_can_be_evicted),
	};
	return cmocka_run_group_tests_name("cache/cache", tests, NULL, NULL);
}
