/* SPDX-License-Identifier: Apache-2.0 */
/* When the search for an order rests, and when it goes on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fs/search_rest.h"

enum { OPENS = FS_SEARCH_REST_OPENS, READS = FS_SEARCH_REST_READS };

static void test_rests_after_many_opens_without_reads(void **state)
{
	struct fs_search_rest rest = { 0 };
	(void)state;
	assert_int_equal(fs_search_rest_opened(&rest, 0, 0, true), FS_SEARCH_NEEDED);
	assert_int_equal(fs_search_rest_opened(&rest, OPENS - 1, 0, true), FS_SEARCH_NEEDED);
	assert_int_equal(fs_search_rest_opened(&rest, 1, 0, true), FS_SEARCH_RESTS);
	assert_int_equal(fs_search_rest_opened(&rest, 100 * OPENS, 0, true), FS_SEARCH_RESTS);
}

static void test_a_trainer_that_pauses_does_not_end_a_rest(void **state)
{
	struct fs_search_rest rest = { 0 };
	(void)state;
	assert_int_equal(fs_search_rest_opened(&rest, OPENS, 0, true), FS_SEARCH_RESTS);
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(fs_search_rest_opened(&rest, 0, 0, true), FS_SEARCH_RESTS);
}

/* Reads before the first open are those of the mount's own beginning. */
static void test_reads_that_go_on_keep_it_searching(void **state)
{
	struct fs_search_rest rest = { 0 };
	uint64_t reads = 1000;
	(void)state;
	for (unsigned i = 0; i < 100; i++) {
		assert_int_equal(fs_search_rest_opened(&rest, OPENS / 4, reads, true), FS_SEARCH_NEEDED);
		reads += READS / 4 + 1;
	}
	assert_int_equal(fs_search_rest_opened(&rest, OPENS - 1, reads, true), FS_SEARCH_NEEDED);
}

static void test_goes_on_at_the_first_misses(void **state)
{
	struct fs_search_rest rest = { 0 };
	(void)state;
	assert_int_equal(fs_search_rest_opened(&rest, OPENS, 0, true), FS_SEARCH_RESTS);
	assert_int_equal(fs_search_rest_opened(&rest, READS, READS, true), FS_SEARCH_RESTS);
	assert_int_equal(fs_search_rest_opened(&rest, 1, READS + 1, true), FS_SEARCH_NEEDED);
	assert_int_equal(fs_search_rest_opened(&rest, OPENS - 1, READS + 1, true), FS_SEARCH_NEEDED);
	assert_int_equal(fs_search_rest_opened(&rest, 1, READS + 1, true), FS_SEARCH_RESTS);
}

static void test_a_read_now_and_then_does_not_end_a_rest(void **state)
{
	struct fs_search_rest rest = { 0 };
	uint64_t reads = 0;
	(void)state;
	assert_int_equal(fs_search_rest_opened(&rest, OPENS, 0, true), FS_SEARCH_RESTS);
	for (unsigned i = 0; i < 1000; i++)
		assert_int_equal(fs_search_rest_opened(&rest, OPENS / READS, ++reads, true), FS_SEARCH_RESTS);
}

/* As soon as the other use has ended, it rests. */
static void test_does_not_rest_while_it_has_another_use(void **state)
{
	struct fs_search_rest rest = { 0 };
	(void)state;
	assert_int_equal(fs_search_rest_opened(&rest, OPENS, 0, false), FS_SEARCH_KEPT);
	assert_int_equal(fs_search_rest_opened(&rest, 1, 0, true), FS_SEARCH_RESTS);
	assert_int_equal(fs_search_rest_opened(&rest, 1, 0, false), FS_SEARCH_KEPT);
	assert_int_equal(fs_search_rest_opened(&rest, 1, READS + 1, false), FS_SEARCH_NEEDED);
	assert_int_equal(fs_search_rest_opened(&rest, 1, READS + 1, true), FS_SEARCH_NEEDED);
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
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
