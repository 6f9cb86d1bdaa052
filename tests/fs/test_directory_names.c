/* SPDX-License-Identifier: Apache-2.0 */
/* Directories whose names the kernel has: listed once, as far as they fit, until a name is forgotten. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fs/directory_names.h"
#include "fs/listing_offset.h"
#include "fs/server.h"
#include "shard/base/bits.h"
#include "tests/fs/dataset.h"

enum { FILES = 40, DIRS = 4, NAMES = FILES / DIRS * FS_FILE_OVERHEAD_BYTES };

/* What a server leaves to its successor. */
static struct fs_handover_names kept;

/* Makes the names of a successor of the last ones. */
static struct fs_directory_names *succeed(const struct shard_index *index, uint64_t most_bytes)
{
	struct fs_directory_names *names;
	assert_int_equal(fs_directory_names_new(index, most_bytes, &kept, &names), 0);
	return names;
}

/* Makes the names of a new mount. */
static struct fs_directory_names *make(const struct shard_index *index, uint64_t most_bytes)
{
	const struct shard_info *info = shard_index_info(index);
	free(kept.known);
	free(kept.old);
	kept.known = bits_new(info->n_dirs);
	kept.old = bits_new(info->n_files);
	assert_true(kept.known && kept.old);
	return succeed(index, most_bytes);
}

static uint32_t dir_of(const struct shard_index *index, uint32_t file)
{
	struct shard_file f;
	assert_int_equal(shard_index_file(index, file, &f), 0);
	return f.dir;
}

static bool has_all(const void *user, uint32_t file)
{
	(void)user;
	(void)file;
	return true;
}

static bool has_none(const void *user, uint32_t file)
{
	(void)user;
	(void)file;
	return false;
}

/* A look-up for an order that has all files, or only this one. */
static bool looked_up(struct fs_directory_names *names, uint32_t file, bool many)
{
	return fs_directory_names_looked_up(names, file, many ? has_all : has_none, NULL);
}

/* Lists the rest of the directory that is being listed. */
static void list(struct fs_directory_names *names)
{
	uint32_t dir, n;
	uint64_t offset;
	assert_true(fs_directory_names_next(names, &dir, &offset, &n));
	fs_directory_names_listed(names, dir, FS_OFFSET_FIRST + n);
	assert_false(fs_directory_names_next(names, &dir, &offset, &n));
}

/* What the lister does for the name of a file. Returns whether a directory was listed. */
static bool need(struct fs_directory_names *names, uint32_t file, bool many)
{
	if (fs_directory_names_known(names, file) || !looked_up(names, file, many))
		return false;
	list(names);
	return true;
}

static uint32_t other_directory(const struct shard_index *index)
{
	uint32_t other = 0;
	while (dir_of(index, other) == dir_of(index, 0))
		other++;
	return other;
}

static void a_directory_is_listed_once(void **state)
{
	(void)state;
	struct shard_index *index = dataset_open_n(FILES, DIRS);
	struct fs_directory_names *names;
	unsigned listed = 0;
	names = make(index, (uint64_t)DIRS * NAMES);
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
	uint32_t dir, n, other = other_directory(index);
	uint64_t offset;
	names = make(index, (uint64_t)DIRS * NAMES);
	assert_true(looked_up(names, 0, true));
	assert_false(looked_up(names, other, true)); /* one after the other */
	assert_true(fs_directory_names_next(names, &dir, &offset, &n));
	assert_int_equal(dir, dir_of(index, 0));
	assert_int_equal(n, FILES / DIRS);
	fs_directory_names_listed(names, dir, FS_OFFSET_FIRST + 1);
	assert_true(fs_directory_names_next(names, &dir, &offset, &n));
	assert_int_equal(offset, FS_OFFSET_FIRST + 1);
	assert_false(fs_directory_names_known(names, 0));
	assert_true(fs_directory_names_dropped(names, 0)); /* its name stays */
	assert_false(fs_directory_names_dropped(names, other));
	fs_directory_names_free(names);
	shard_index_close(index);
}

static void a_listing_that_fails_or_that_nobody_needs_gives_way(void **state)
{
	enum { MANY = 20000 }; /* look-ups elsewhere */
	(void)state;
	struct shard_index *index = dataset_open_n(FILES, DIRS);
	struct fs_directory_names *names;
	uint32_t dir, n, other = other_directory(index), end = 0;
	uint64_t offset;
	names = make(index, (uint64_t)DIRS * NAMES);
	assert_true(looked_up(names, 0, true));
	fs_directory_names_failed(names, dir_of(index, 0));
	assert_int_equal(fs_directory_names_reserve(names, 0), 0);
	assert_false(looked_up(names, 0, true)); /* not again */
	assert_true(looked_up(names, other, true));
	for (uint32_t i = 0; i < MANY; i++) {
		end = FILES - 1;
		if (looked_up(names, end, true))
			break;
	}
	assert_true(fs_directory_names_next(names, &dir, &offset, &n));
	assert_int_equal(dir, dir_of(index, end));
	fs_directory_names_free(names);
	shard_index_close(index);
}

static void a_directory_of_which_little_is_needed_is_not_listed(void **state)
{
	(void)state;
	enum { MANY = 400 }; /* 100 a directory, a tenth of them 10 */
	struct shard_index *index = dataset_open_n(MANY, DIRS);
	struct fs_directory_names *names;
	unsigned looked_up = 1;
	names = make(index, (uint64_t)MANY * FS_FILE_OVERHEAD_BYTES);
	for (uint32_t file = 0; !need(names, file, false); file++) {
		looked_up += dir_of(index, file) == dir_of(index, 0);
		assert_true(file < MANY);
	}
	assert_in_range(looked_up, 5, 10);
	fs_directory_names_free(names);
	shard_index_close(index);
}

static bool is_beside_file_0(const void *index, uint32_t file)
{
	return dir_of(index, file) == dir_of(index, 0);
}

/* What counts is how much of the directory an order has, not how many files. */
static void each_directory_is_judged_by_itself(void **state)
{
	enum { MANY = 400 }; /* 100 a directory */
	(void)state;
	struct shard_index *index = dataset_open_n(MANY, DIRS);
	struct fs_directory_names *names;
	uint32_t other = other_directory(index);
	names = make(index, (uint64_t)MANY * FS_FILE_OVERHEAD_BYTES);
	assert_false(fs_directory_names_looked_up(names, other, is_beside_file_0, index));
	assert_false(fs_directory_names_looked_up(names, other + 1, is_beside_file_0, index));
	assert_true(fs_directory_names_looked_up(names, 0, is_beside_file_0, index));
	fs_directory_names_free(names);
	shard_index_close(index);
}

static bool is_of_a_rank(const void *world, uint32_t file)
{
	return file % *(const uint32_t *)world == 0;
}

/* Each 16th file is not a tenth, each 8th is. */
static void a_part_with_a_stride_is_judged_right(void **state)
{
	enum { MANY = 4096 };
	const uint32_t worlds[] = { 16, 8 };
	(void)state;
	struct shard_index *index = dataset_open_n(MANY, 1);
	for (uint32_t i = 0; i < 2; i++) {
		struct fs_directory_names *names;
		names = make(index, (uint64_t)MANY * FS_FILE_OVERHEAD_BYTES);
		assert_int_equal(fs_directory_names_looked_up(names, 0, is_of_a_rank, &worlds[i]), i == 1);
		fs_directory_names_free(names);
	}
	shard_index_close(index);
}

static void a_small_directory_is_not_listed(void **state)
{
	(void)state;
	struct shard_index *index = dataset_open_n(FILES, FILES / 4);
	struct fs_directory_names *names;
	names = make(index, UINT32_MAX);
	for (uint32_t file = 0; file < FILES; file++)
		assert_false(looked_up(names, file, true));
	fs_directory_names_free(names);
	shard_index_close(index);
}

static void what_does_not_fit_is_not_listed(void **state)
{
	(void)state;
	struct shard_index *index = dataset_open_n(FILES, DIRS);
	struct fs_directory_names *names;
	unsigned listed = 0;
	names = make(index, 2 * NAMES + 1);
	for (uint32_t file = 0; file < FILES; file++)
		listed += need(names, file, true);
	assert_int_equal(listed, 2);
	fs_directory_names_end(names);
	for (uint32_t file = 0; file < FILES; file++)
		assert_false(fs_directory_names_known(names, file) || need(names, file, true));
	assert_int_equal(fs_directory_names_reserve(names, 0), 0);
	fs_directory_names_free(names);
	shard_index_close(index);
}

static void a_forgotten_name_makes_its_directory_be_listed_again(void **state)
{
	(void)state;
	struct shard_index *index = dataset_open_n(FILES, DIRS);
	struct fs_directory_names *names;
	names = make(index, NAMES);
	assert_true(need(names, 0, true));
	fs_directory_names_forget(names, 0);
	fs_directory_names_forget(names, 0);
	assert_false(fs_directory_names_known(names, 0));
	assert_true(need(names, 0, true));
	assert_false(need(names, other_directory(index), true)); /* its room was given back once */
	fs_directory_names_free(names);
	shard_index_close(index);
}

/* A drop takes the attributes with the pages. A listing of the directory brings those of all files. */
static void dropped_files_get_their_attributes_by_one_listing(void **state)
{
	enum { MANY = 400 };
	(void)state;
	struct shard_index *index = dataset_open_n(MANY, DIRS);
	struct fs_directory_names *names;
	unsigned listed = 0, looked_up = 0;
	names = make(index, (uint64_t)MANY * FS_FILE_OVERHEAD_BYTES);
	for (uint32_t file = 0; file < MANY; file++)
		need(names, file, true);
	uint64_t before = fs_directory_names_reserve(names, 1 << 20);
	for (uint32_t file = 0; file < MANY; file++) {
		assert_true(fs_directory_names_dropped(names, file));
		assert_false(fs_directory_names_known(names, file));
	}
	for (uint32_t file = 0; file < MANY; file++) {
		looked_up += !fs_directory_names_known(names, file);
		listed += need(names, file, true);
		assert_true(fs_directory_names_known(names, file));
	}
	assert_int_equal(listed, DIRS);
	assert_int_equal(looked_up, DIRS);
	assert_int_equal(fs_directory_names_reserve(names, 1 << 20), before);
	/* A few are looked up. */
	assert_true(fs_directory_names_dropped(names, 0));
	assert_true(fs_directory_names_dropped(names, 4));
	assert_false(need(names, 0, true) || need(names, 4, true));
	assert_true(fs_directory_names_known(names, 0) && fs_directory_names_known(names, 4));
	fs_directory_names_free(names);
	shard_index_close(index);
}

/* The kernel keeps its names over the end of a server. */
static void a_successor_knows_what_its_predecessor_listed(void **state)
{
	enum { MANY = 400 };
	(void)state;
	struct shard_index *index = dataset_open_n(MANY, DIRS);
	uint64_t all = (uint64_t)MANY * FS_FILE_OVERHEAD_BYTES;
	struct fs_directory_names *names = make(index, all);
	uint32_t other = other_directory(index);
	assert_true(need(names, 0, true));
	for (uint32_t file = 0; file < 15; file++)
		assert_true(fs_directory_names_dropped(names, file));
	assert_true(looked_up(names, other, true)); /* not to its end */
	uint64_t before = fs_directory_names_bytes(names);
	fs_directory_names_free(names);
	names = succeed(index, all);
	assert_int_equal(fs_directory_names_bytes(names), before / 2);
	assert_true(fs_directory_names_known(names, 15));
	assert_false(fs_directory_names_known(names, 14)); /* it has no attributes */
	assert_false(fs_directory_names_known(names, other));
	assert_true(fs_directory_names_dropped(names, 15)); /* its name stays */
	assert_true(need(names, 0, true));                  /* 15 of 100 need attributes */
	assert_true(fs_directory_names_known(names, 14));
	assert_int_equal(fs_directory_names_bytes(names), before / 2);
	fs_directory_names_end(names);
	fs_directory_names_free(names);
	names = succeed(index, all);
	assert_int_equal(fs_directory_names_bytes(names), 0);
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
	page = page > 4096 ? page : 4096;
	names = make(index, all);
	assert_int_equal(fs_directory_names_reserve(names, all), 0); /* none is listed */
	for (uint32_t file = 0; file < FILES; file++)
		need(names, file, true);
	for (uint64_t memory = 0; memory < all * 8 / 5; memory += all / 10)
		assert_in_range(fs_directory_names_reserve(names, memory), memory / 2, memory / 8 * 5);
	for (uint64_t resident = 0; resident < FILES; resident += 5) {
		uint64_t memory = all + resident * page;
		uint64_t left = memory - fs_directory_names_reserve(names, memory);
		if (all * 8 / 5 < memory)
			assert_in_range(left, resident * (page + FS_FILE_OVERHEAD_BYTES) - resident,
			        resident * (page + FS_FILE_OVERHEAD_BYTES) + FILES);
	}
	assert_int_equal(fs_directory_names_reserve(names, all + FILES * page), 0); /* all are in memory */
	fs_directory_names_free(names);
	shard_index_close(index);
}

/* Their last pages are full: where all fit, names take nothing besides them. */
static void files_of_whole_pages_leave_no_room_unused(void **state)
{
	enum { MANY = 400, LENGTH = 8192 };
	(void)state;
	struct shard_index *index = dataset_open_sized(MANY, DIRS, LENGTH);
	struct fs_directory_names *names;
	uint64_t all = (uint64_t)MANY * FS_FILE_OVERHEAD_BYTES;
	names = make(index, all);
	for (uint32_t file = 0; file < MANY; file++)
		need(names, file, true);
	assert_int_equal(fs_directory_names_bytes(names), all);
	assert_int_equal(fs_directory_names_reserve(names, all + MANY * LENGTH), 0);
	assert_in_range(fs_directory_names_reserve(names, all + MANY * LENGTH / 2), all / 2 - MANY, all / 2 + MANY);
	fs_directory_names_free(names);
	shard_index_close(index);
}

/* The engine takes landing memory and its least, whatever it is told to leave. */
static void names_leave_the_engine_a_window(void **state)
{
	(void)state;
	for (uint64_t mib = 8; mib <= 4096; mib += mib / 8) {
		uint64_t memory = mib << 20, most = fs_directory_names_most(memory);
		uint64_t landing = prefetch_landing_bytes(memory);
		assert_true(most == 0 || most + landing + PREFETCH_MEMORY_MIN <= memory);
		assert_true(most == 0 || most + landing + (32 << 20) <= memory || most <= (memory - landing) / 2);
		if (mib >= 256)
			assert_int_equal(most, memory / 8 * 5);
	}
	assert_int_equal(fs_directory_names_most(16 << 20), 0);
	assert_int_equal(fs_directory_names_most(64 << 20), 24 << 20);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_directory_is_listed_once),
		cmocka_unit_test(a_listing_goes_on_where_it_was),
		cmocka_unit_test(a_listing_that_fails_or_that_nobody_needs_gives_way),
		cmocka_unit_test(a_directory_of_which_little_is_needed_is_not_listed),
		cmocka_unit_test(each_directory_is_judged_by_itself),
		cmocka_unit_test(a_part_with_a_stride_is_judged_right),
		cmocka_unit_test(a_small_directory_is_not_listed),
		cmocka_unit_test(what_does_not_fit_is_not_listed),
		cmocka_unit_test(a_forgotten_name_makes_its_directory_be_listed_again),
		cmocka_unit_test(dropped_files_get_their_attributes_by_one_listing),
		cmocka_unit_test(a_successor_knows_what_its_predecessor_listed),
		cmocka_unit_test(names_take_what_their_files_do_not_count),
		cmocka_unit_test(files_of_whole_pages_leave_no_room_unused),
		cmocka_unit_test(names_leave_the_engine_a_window),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	free(kept.known);
	free(kept.old);
	return failed;
}
