/* SPDX-License-Identifier: Apache-2.0 */
/* Directories whose names the kernel has: listed once, as far as they fit, until a name is forgotten. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fs/directory_names.h"
#include "fs/server.h"
#include "tests/fs/dataset.h"

enum { FILES = 40, DIRS = 4, NAMES = FILES / DIRS * FS_FILE_OVERHEAD_BYTES };

static uint32_t dir_of(const struct shard_index *index, uint32_t file)
{
	struct shard_file f;
	assert_int_equal(shard_index_file(index, file, &f), 0);
	return f.dir;
}

/* What the lister does for the name of a file. Returns whether a directory was listed whole. */
static bool need(struct fs_directory_names *names, uint32_t file, bool many)
{
	uint32_t dir;
	uint64_t offset, n;
	if (fs_directory_names_known(names, file) || !fs_directory_names_need(names, file, many))
		return false;
	assert_true(fs_directory_names_next(names, &dir, &offset, &n));
	assert_int_equal(offset, 0);
	fs_directory_names_whole(names, dir);
	assert_false(fs_directory_names_next(names, &dir, &offset, &n));
	return true;
}

static void a_directory_is_listed_once(void **state)
{
	(void)state;
	struct shard_index *index = dataset_open_n(FILES, DIRS);
	struct fs_directory_names *names;
	unsigned listed = 0;
	assert_int_equal(fs_directory_names_new(index, (uint64_t)DIRS * NAMES, &names), 0);
	for (uint32_t file = 0; file < FILES; file++) {
		listed += need(names, file, true);
		assert_true(fs_directory_names_known(names, file));
	}
	assert_int_equal(listed, DIRS);
	fs_directory_names_free(names);
	shard_index_close(index);
}

static void a_listing_goes_on_where_it_was(void **state)
{
	(void)state;
	struct shard_index *index = dataset_open_n(FILES, DIRS);
	struct fs_directory_names *names;
	uint32_t dir, other = 0;
	uint64_t offset, n;
	assert_int_equal(fs_directory_names_new(index, (uint64_t)DIRS * NAMES, &names), 0);
	assert_true(fs_directory_names_need(names, 0, true));
	while (dir_of(index, other) == dir_of(index, 0))
		other++;
	assert_false(fs_directory_names_need(names, other, true)); /* one after the other */
	assert_true(fs_directory_names_next(names, &dir, &offset, &n));
	assert_int_equal(dir, dir_of(index, 0));
	assert_int_equal(n, FILES / DIRS);
	fs_directory_names_listed(names, dir, 7);
	assert_true(fs_directory_names_next(names, &dir, &offset, &n));
	assert_int_equal(offset, 7);
	assert_true(fs_directory_names_kept(names, 0));
	assert_false(fs_directory_names_known(names, 0));
	assert_false(fs_directory_names_kept(names, other));
	fs_directory_names_failed(names, dir);
	assert_false(fs_directory_names_kept(names, 0));
	assert_int_equal(fs_directory_names_reserve(names, 0), 0); /* its room was given back */
	assert_true(fs_directory_names_need(names, other, true));
	fs_directory_names_free(names);
	shard_index_close(index);
}

static void a_directory_of_which_little_is_needed_is_not_listed(void **state)
{
	(void)state;
	enum { MANY = 400 }; /* 100 a directory, a tenth of them 10 */
	struct shard_index *index = dataset_open_n(MANY, DIRS);
	struct fs_directory_names *names;
	unsigned looked_up = 0;
	assert_int_equal(fs_directory_names_new(index, (uint64_t)MANY * FS_FILE_OVERHEAD_BYTES, &names), 0);
	for (uint32_t file = 0; !need(names, file, false); file++) {
		looked_up += dir_of(index, file) == dir_of(index, 0);
		assert_true(file < MANY);
	}
	assert_in_range(looked_up, 5, 10);
	fs_directory_names_free(names);
	shard_index_close(index);
}

static void what_does_not_fit_is_not_listed(void **state)
{
	(void)state;
	struct shard_index *index = dataset_open_n(FILES, DIRS);
	struct fs_directory_names *names;
	unsigned listed = 0;
	assert_int_equal(fs_directory_names_new(index, 2 * NAMES + 1, &names), 0);
	for (uint32_t file = 0; file < FILES; file++)
		listed += need(names, file, true);
	assert_int_equal(listed, 2);
	fs_directory_names_free(names);
	shard_index_close(index);
}

static void a_forgotten_name_makes_its_directory_be_listed_again(void **state)
{
	(void)state;
	struct shard_index *index = dataset_open_n(FILES, DIRS);
	struct fs_directory_names *names;
	assert_int_equal(fs_directory_names_new(index, NAMES, &names), 0);
	assert_true(need(names, 0, true));
	fs_directory_names_forget(names, 0);
	fs_directory_names_forget(names, 0);
	assert_false(fs_directory_names_known(names, 0));
	assert_true(need(names, 0, true));
	uint32_t other = 0;
	while (dir_of(index, other) == dir_of(index, 0))
		other++;
	assert_false(need(names, other, true)); /* its room was given back once */
	fs_directory_names_free(names);
	shard_index_close(index);
}

/* Names of files in memory count with these: all names and the files beside them take the memory, and no more. */
static void names_take_what_their_files_do_not_count(void **state)
{
	(void)state;
	struct shard_index *index = dataset_open_n(FILES, DIRS);
	const struct shard_info *info = shard_index_info(index);
	struct fs_directory_names *names;
	uint64_t all = (uint64_t)DIRS * NAMES, page = info->content_bytes / FILES + 2048;
	assert_int_equal(fs_directory_names_new(index, all, &names), 0);
	assert_int_equal(fs_directory_names_reserve(names, all), 0); /* none is listed */
	for (uint32_t file = 0; file < FILES; file++)
		need(names, file, true);
	for (uint64_t resident = 0; resident < FILES; resident += 5) {
		uint64_t memory = all + resident * page;
		uint64_t left = memory - fs_directory_names_reserve(names, memory);
		assert_in_range(left, resident * (page + FS_FILE_OVERHEAD_BYTES) - resident,
		        resident * (page + FS_FILE_OVERHEAD_BYTES) + FILES);
	}
	assert_int_equal(fs_directory_names_reserve(names, all + FILES * page), 0); /* all are in memory */
	fs_directory_names_free(names);
	shard_index_close(index);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_directory_is_listed_once),
		cmocka_unit_test(a_listing_goes_on_where_it_was),
		cmocka_unit_test(a_directory_of_which_little_is_needed_is_not_listed),
		cmocka_unit_test(names_take_what_their_files_do_not_count),
		cmocka_unit_test(what_does_not_fit_is_not_listed),
		cmocka_unit_test(a_forgotten_name_makes_its_directory_be_listed_again),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
