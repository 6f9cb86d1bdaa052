/* SPDX-License-Identifier: Apache-2.0 */
/* When the search for an order rests, and when it goes on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fs/search_rest.h"

enum { OPENS = FS_SEARCH_REST_OPENS, READS = FS_SEARCH_REST_FEW };

/* Opens that no announced order has. */
static enum fs_search opened(struct fs_search_rest *rest, uint64_t opens, uint64_t reads, bool may_rest)
{
	const struct fs_search_news news = { .opens = opens, .unexplained = opens, .reads = reads };
	return fs_search_rest_opened(rest, &news, may_rest);
}

static void test_rests_after_many_opens_without_reads(void **state)
{
	struct fs_search_rest rest = { 0 };
	(void)state;
	assert_int_equal(opened(&rest, 0, 0, true), FS_SEARCH_NEEDED);
	assert_int_equal(opened(&rest, OPENS - 1, 0, true), FS_SEARCH_NEEDED);
	assert_int_equal(opened(&rest, 1, 0, true), FS_SEARCH_RESTS);
	assert_int_equal(opened(&rest, 100 * OPENS, 0, true), FS_SEARCH_RESTS);
}

static void test_a_trainer_that_pauses_does_not_end_a_rest(void **state)
{
	struct fs_search_rest rest = { 0 };
	(void)state;
	assert_int_equal(opened(&rest, OPENS, 0, true), FS_SEARCH_RESTS);
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(opened(&rest, 0, 0, true), FS_SEARCH_RESTS);
}

/* Reads before the first open are those of the mount's own beginning. */
static void test_reads_that_go_on_keep_it_searching(void **state)
{
	struct fs_search_rest rest = { 0 };
	uint64_t reads = 1000;
	(void)state;
	for (unsigned i = 0; i < 100; i++) {
		assert_int_equal(opened(&rest, OPENS / 4, reads, true), FS_SEARCH_NEEDED);
		reads += READS / 4 + 1;
	}
	assert_int_equal(opened(&rest, OPENS - 1, reads, true), FS_SEARCH_NEEDED);
}

static void test_goes_on_at_the_first_misses(void **state)
{
	struct fs_search_rest rest = { 0 };
	(void)state;
	assert_int_equal(opened(&rest, OPENS, 0, true), FS_SEARCH_RESTS);
	assert_int_equal(opened(&rest, READS, READS, true), FS_SEARCH_RESTS);
	assert_int_equal(opened(&rest, 1, READS + 1, true), FS_SEARCH_NEEDED);
	assert_int_equal(opened(&rest, OPENS - 1, READS + 1, true), FS_SEARCH_NEEDED);
	assert_int_equal(opened(&rest, 1, READS + 1, true), FS_SEARCH_RESTS);
}

static void test_a_read_now_and_then_does_not_end_a_rest(void **state)
{
	struct fs_search_rest rest = { 0 };
	uint64_t reads = 0;
	(void)state;
	assert_int_equal(opened(&rest, OPENS, 0, true), FS_SEARCH_RESTS);
	for (unsigned i = 0; i < 1000; i++)
		assert_int_equal(opened(&rest, OPENS / READS, ++reads, true), FS_SEARCH_RESTS);
}

/* As soon as the other use has ended, it rests. */
static void test_does_not_rest_while_it_has_another_use(void **state)
{
	struct fs_search_rest rest = { 0 };
	(void)state;
	assert_int_equal(opened(&rest, OPENS, 0, false), FS_SEARCH_KEPT);
	assert_int_equal(opened(&rest, 1, 0, true), FS_SEARCH_RESTS);
	assert_int_equal(opened(&rest, 1, 0, false), FS_SEARCH_KEPT);
	assert_int_equal(opened(&rest, READS + 1, READS + 1, false), FS_SEARCH_NEEDED);
	assert_int_equal(opened(&rest, 1, READS + 1, true), FS_SEARCH_NEEDED);
}

/* A few opens of others, and those before the list, do not count. */
static void test_rests_while_all_that_is_opened_is_announced(void **state)
{
	struct fs_search_rest rest = { 0 };
	uint64_t reads = 0;
	(void)state;
	assert_int_equal(opened(&rest, OPENS / 2, reads += OPENS / 2, true), FS_SEARCH_NEEDED);
	struct fs_search_news news = { .opens = OPENS, .unexplained = READS };
	for (unsigned i = 0; i < 100; i++) {
		news.reads = reads += OPENS;
		assert_int_equal(fs_search_rest_opened(&rest, &news, true), FS_SEARCH_RESTS);
	}
	assert_int_equal(opened(&rest, READS + 1, reads + READS + 1, true), FS_SEARCH_NEEDED);
}

/* With a dataset in a store, opens in memory are no reason to rest, but announced ones are. */
static void test_with_a_store_it_rests_only_for_an_announced_order(void **state)
{
	struct fs_search_rest rest = { 0 };
	struct fs_search_news news = { .opens = OPENS, .unexplained = OPENS, .in_store = true };
	(void)state;
	assert_int_equal(fs_search_rest_opened(&rest, &news, true), FS_SEARCH_NEEDED);
	assert_int_equal(fs_search_rest_opened(&rest, &news, true), FS_SEARCH_NEEDED);
	news.unexplained = 0;
	assert_int_equal(fs_search_rest_opened(&rest, &news, true), FS_SEARCH_RESTS);
	news.unexplained = READS + 1;
	assert_int_equal(fs_search_rest_opened(&rest, &news, true), FS_SEARCH_NEEDED);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rests_after_many_opens_without_reads),
		cmocka_unit_test(test_a_trainer_that_pauses_does_not_end_a_rest),
		cmocka_unit_test(test_reads_that_go_on_keep_it_searching),
		cmocka_unit_test(test_goes_on_at_the_first_misses),
		cmocka_unit_test(test_a_read_now_and_then_does_not_end_a_rest),
		cmocka_unit_test(test_does_not_rest_while_it_has_another_use),
		cmocka_unit_test(test_rests_while_all_that_is_opened_is_announced),
		cmocka_unit_test(test_with_a_store_it_rests_only_for_an_announced_order),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
