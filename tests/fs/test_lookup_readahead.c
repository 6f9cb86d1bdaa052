/* SPDX-License-Identifier: Apache-2.0 */
/* Whether who looks a file up reads it next. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fs/lookup_readahead.h"

static struct fs_lookup_readahead *fresh(void)
{
	struct fs_lookup_readahead *lookups;
	assert_int_equal(fs_lookup_readahead_new(&lookups), 0);
	return lookups;
}

/* `n` files from `file` on, each read by `readers` side by side: that many are looked up before the first is read. */
static void read_files(struct fs_lookup_readahead *lookups, uint32_t file, uint32_t n, uint32_t readers)
{
	for (uint32_t i = 0; i < n + readers; i++) {
		if (i < n)
			fs_lookup_readahead_looked_up(lookups, file + i);
		if (i >= readers)
			fs_lookup_readahead_read(lookups, file + i - readers);
	}
}

static void test_files_that_are_read_are_guessed(void **state)
{
	(void)state;
	for (uint32_t readers = 0; readers <= 32; readers += 8) {
		struct fs_lookup_readahead *lookups = fresh();
		assert_false(fs_lookup_readahead_is_read(lookups));
		read_files(lookups, 0, FS_LOOKUP_READAHEAD_KEPT + FS_LOOKUP_READAHEAD_ENOUGH - 1, readers);
		assert_false(fs_lookup_readahead_is_read(lookups));
		read_files(lookups, 1000, 1, 0);
		assert_true(fs_lookup_readahead_is_read(lookups));
		read_files(lookups, 2000, 10000, readers);
		assert_true(fs_lookup_readahead_is_read(lookups));
		fs_lookup_readahead_free(lookups);
	}
}

static void test_a_listing_that_stats_ends_it(void **state)
{
	struct fs_lookup_readahead *lookups = fresh();
	uint32_t vain = 0;
	(void)state;
	read_files(lookups, 0, 1000, 0);
	for (; fs_lookup_readahead_is_read(lookups); vain++)
		fs_lookup_readahead_looked_up(lookups, 5000 + vain);
	assert_true(vain <= FS_LOOKUP_READAHEAD_KEPT + FS_LOOKUP_READAHEAD_JUDGED - FS_LOOKUP_READAHEAD_ENOUGH + 1);
	read_files(lookups, 20000, FS_LOOKUP_READAHEAD_KEPT + FS_LOOKUP_READAHEAD_JUDGED, 0);
	assert_true(fs_lookup_readahead_is_read(lookups)); /* the trainer goes on */
	fs_lookup_readahead_free(lookups);
}

static void test_a_trainer_beside_a_listing_is_not_guessed(void **state)
{
	struct fs_lookup_readahead *lookups = fresh();
	(void)state;
	for (uint32_t i = 0; i < 10000; i++) {
		read_files(lookups, i, 1, 0);
		fs_lookup_readahead_looked_up(lookups, 100000 + i);
		assert_false(fs_lookup_readahead_is_read(lookups));
	}
	/* What is read of files that nobody has looked up lately says nothing. */
	for (uint32_t i = 0; i < 10000; i++)
		fs_lookup_readahead_read(lookups, 500000 + i);
	assert_false(fs_lookup_readahead_is_read(lookups));
	fs_lookup_readahead_free(lookups);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_files_that_are_read_are_guessed),
		cmocka_unit_test(test_a_listing_that_stats_ends_it),
		cmocka_unit_test(test_a_trainer_beside_a_listing_is_not_guessed),
	};
	return cmocka_run_group_tests_name("fs/lookups", tests, NULL, NULL);
}
