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

static void a_directory_is_listed_once(void **state)
{
	(void)state;
	struct shard_index *index = dataset_open_n(FILES, DIRS);
	struct fs_directory_names *names;
	unsigned listed = 0;
	uint32_t dir;
	assert_int_equal(fs_directory_names_new(index, (uint64_t)DIRS * NAMES, &names), 0);
	for (uint32_t file = 0; file < FILES; file++) {
		if (fs_directory_names_list(names, file, &dir)) {
			assert_int_equal(dir, dir_of(index, file));
			listed++;
		}
		assert_true(fs_directory_names_known(names, file));
	}
	assert_int_equal(listed, DIRS);
	fs_directory_names_free(names);
	shard_index_close(index);
}

static void what_does_not_fit_is_not_listed(void **state)
{
	(void)state;
	struct shard_index *index = dataset_open_n(FILES, DIRS);
	struct fs_directory_names *names;
	unsigned listed = 0;
	uint32_t dir;
	assert_int_equal(fs_directory_names_new(index, 2 * NAMES + 1, &names), 0);
	for (uint32_t file = 0; file < FILES; file++)
		listed += fs_directory_names_list(names, file, &dir);
	assert_int_equal(listed, 2);
	fs_directory_names_free(names);
	shard_index_close(index);
}

static void a_forgotten_name_makes_its_directory_be_listed_again(void **state)
{
	(void)state;
	struct shard_index *index = dataset_open_n(FILES, DIRS);
	struct fs_directory_names *names;
	uint32_t dir;
	assert_int_equal(fs_directory_names_new(index, NAMES, &names), 0);
	assert_true(fs_directory_names_list(names, 0, &dir));
	fs_directory_names_forget(names, 0);
	fs_directory_names_forget(names, 0);
	assert_false(fs_directory_names_known(names, 0));
	assert_true(fs_directory_names_list(names, 0, &dir));
	uint32_t other = 0;
	while (dir_of(index, other) == dir)
		other++;
	assert_false(fs_directory_names_list(names, other, &dir)); /* its room was given back once */
	fs_directory_names_free(names);
	shard_index_close(index);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_directory_is_listed_once),
		cmocka_unit_test(what_does_not_fit_is_not_listed),
		cmocka_unit_test(a_forgotten_name_makes_its_directory_be_listed_again),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
