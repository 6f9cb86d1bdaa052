/* SPDX-License-Identifier: Apache-2.0 */
/* Which opens missed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "fs/hit_counting.h"

static const uint64_t MS = 1000000, START = UINT64_C(1000000000000);

static struct fs_hit_counting *fresh(void)
{
	struct fs_hit_counting *opens;
	assert_int_equal(fs_hit_counting_new(FS_HIT_COUNTING_PAIR_MS, &opens), 0);
	return opens;
}

static struct fs_hit_counting_key turn(uint64_t epoch, uint64_t turn)
{
	return (struct fs_hit_counting_key){ .place = fs_hit_counting_turns(0, epoch), .id = turn };
}

static bool reads(struct fs_hit_counting *opens, struct fs_hit_counting_key key, bool first, uint64_t ms)
{
	return fs_hit_counting_pair(
	        opens, &key, 1, &(struct fs_hit_counting_read){ .first = first, .ns = START + ms * MS });
}

static void opened(struct fs_hit_counting *opens, struct fs_hit_counting_key key, uint64_t ms)
{
	fs_hit_counting_opened(opens, key, 0, START + ms * MS);
}

static void assert_count(struct fs_hit_counting *opens, uint64_t hits, uint64_t misses)
{
	struct fs_hit_counting_count count;
	fs_hit_counting_count(opens, FS_HIT_COUNTING_ALL, &count);
	assert_int_equal(count.hits, hits);
	assert_int_equal(count.misses, misses);
	assert_int_equal(count.opens, hits + misses);
}

static void test_a_read_makes_its_open_a_miss(void **state)
{
	struct fs_hit_counting *opens = fresh();
	(void)state;
	opened(opens, turn(0, 1), 10);
	opened(opens, turn(0, 2), 10);
	opened(opens, turn(1, 1), 10);
	assert_true(reads(opens, turn(0, 1), true, 9)); /* came while its event was waiting */
	assert_count(opens, 2, 1);
	fs_hit_counting_free(opens);
}

static void open_of(struct fs_hit_counting *opens, struct fs_hit_counting_key key, uint64_t bytes, uint64_t ms)
{
	fs_hit_counting_opened(opens, key, bytes, START + ms * MS);
}

static bool read_of(struct fs_hit_counting *opens, struct fs_hit_counting_key key, uint64_t at, uint32_t bytes,
        uint64_t length, uint64_t ms)
{
	const struct fs_hit_counting_read read = {
		.bytes = bytes, .first = at == 0, .ns = START + ms * MS, .length = length
	};
	return fs_hit_counting_pair(opens, &key, 1, &read);
}

static void assert_bytes(struct fs_hit_counting *opens, uint64_t bytes, uint64_t cached_bytes)
{
	struct fs_hit_counting_count count;
	fs_hit_counting_count(opens, 0, &count);
	assert_int_equal(count.bytes, bytes);
	assert_int_equal(count.cached_bytes, cached_bytes);
	fs_hit_counting_count(opens, FS_HIT_COUNTING_ALL, &count);
	assert_int_equal(count.bytes, bytes);
	assert_int_equal(count.cached_bytes, cached_bytes);
}

static void test_bytes_that_no_read_asks_for_were_cached(void **state)
{
	struct fs_hit_counting *opens = fresh();
	struct fs_hit_counting_key a = { fs_hit_counting_files(0), 1 }, b = { fs_hit_counting_files(0), 2 };
	(void)state;
	open_of(opens, a, 1000, 10);
	open_of(opens, b, 500, 10);
	assert_true(read_of(opens, a, 0, 300, 1000, 11));
	assert_true(read_of(opens, a, 300, 300, 1000, 12));
	assert_true(read_of(opens, b, 0, 500, 500, 12));
	assert_bytes(opens, 1500, 400);
	assert_true(read_of(opens, b, 0, 500, 500, 13)); /* again, of the same open */
	assert_bytes(opens, 1500, 400);
	open_of(opens, a, 1000, 5000);
	assert_bytes(opens, 2500, 1400);
	assert_true(read_of(opens, a, 0, 1000, 1000, 5001));
	assert_bytes(opens, 2500, 1400); /* what was shown stays */
	open_of(opens, b, 600, 9000);
	assert_bytes(opens, 3100, 1400); /* ... and a later one is taken for it */
	open_of(opens, b, 600, 12000);
	assert_bytes(opens, 3700, 1600);
	fs_hit_counting_free(opens);
}

/* An open of a flat name has the mean size of files. */
static void test_a_read_of_a_part_counts_that_part_of_an_open(void **state)
{
	struct fs_hit_counting *opens = fresh();
	(void)state;
	open_of(opens, turn(0, 1), 1000, 10);
	open_of(opens, turn(0, 2), 1000, 10);
	assert_true(read_of(opens, turn(0, 1), 0, 50, 50, 11));      /* all of a small file */
	assert_true(read_of(opens, turn(0, 2), 0, 4000, 16000, 11)); /* a quarter of a large one */
	assert_bytes(opens, 2000, 750);
	fs_hit_counting_free(opens);
}

static void test_each_view_counts_its_own(void **state)
{
	struct fs_hit_counting *opens = fresh();
	struct fs_hit_counting_key keys[] = { { 0, 1 }, { fs_hit_counting_files(5), 2 },
		{ fs_hit_counting_turns(5, 1), 3 } };
	static const uint64_t want[][3] = { { 0, 1, 0 }, { 5, 2, 1 }, { 7, 0, 0 } }; /* view, opens, misses */
	(void)state;
	for (size_t i = 0; i < 3; i++)
		opened(opens, keys[i], 10);
	assert_true(reads(opens, keys[2], true, 11));
	for (size_t i = 0; i < 3; i++) {
		struct fs_hit_counting_count count;
		fs_hit_counting_count(opens, (uint32_t)want[i][0], &count);
		assert_int_equal(count.opens, want[i][1]);
		assert_int_equal(count.misses, want[i][2]);
		assert_int_equal(count.hits, want[i][1] - want[i][2]);
	}
	assert_count(opens, 2, 1);
	fs_hit_counting_free(opens);
}

/* Several ranks read a common file with O_DIRECT: as many READs of its beginning as opens. */
static void test_views_that_open_the_same_file(void **state)
{
	enum { VIEWS = 8 };
	struct fs_hit_counting *opens = fresh();
	struct fs_hit_counting_key keys[VIEWS];
	struct fs_hit_counting_read read = { .file = 7, .first = true, .ns = START + 11 * MS };
	(void)state;
	for (uint32_t v = 0; v < VIEWS; v++) {
		keys[v] = (struct fs_hit_counting_key){ .place = fs_hit_counting_files(v), .id = 7 };
		opened(opens, keys[v], 10);
	}
	for (int i = 0; i < 2 * VIEWS; i++) /* each of them reads from the disk, and then again */
		assert_true(fs_hit_counting_pair(opens, keys, VIEWS, &read));
	for (uint32_t v = 0; v < VIEWS; v++) {
		struct fs_hit_counting_count count;
		fs_hit_counting_count(opens, v, &count);
		assert_int_equal(count.opens, 1);
		assert_int_equal(count.misses, 1);
		assert_int_equal(count.hits, 0);
	}
	assert_count(opens, 0, VIEWS);
	fs_hit_counting_free(opens);
}

static void test_an_open_misses_once(void **state)
{
	struct fs_hit_counting *opens = fresh();
	(void)state;
	opened(opens, turn(0, 1), 0);
	for (uint64_t i = 0; i < 100; i++)
		assert_true(reads(opens, turn(0, 1), i == 0, i * (FS_HIT_COUNTING_ON_MS - 1)));
	assert_true(reads(opens, turn(0, 1), true, 99 * (FS_HIT_COUNTING_ON_MS - 1) + 1)); /* dropped and read again */
	assert_count(opens, 0, 1);
	fs_hit_counting_free(opens);
}

static void test_several_opens_of_a_file(void **state)
{
	struct fs_hit_counting *opens = fresh();
	(void)state;
	opened(opens, turn(0, 1), 0);
	opened(opens, turn(0, 1), 0);
	opened(opens, turn(0, 1), 1);
	assert_true(reads(opens, turn(0, 1), true, 1));
	assert_true(reads(opens, turn(0, 1), false, 1)); /* the same one reads on */
	assert_count(opens, 2, 1);
	fs_hit_counting_free(opens);
	opens = fresh();
	opened(opens, turn(0, 1), 0);
	opened(opens, turn(0, 1), 0);
	assert_true(reads(opens, turn(0, 1), true, 1));
	assert_true(reads(opens, turn(0, 1), true, 2));
	assert_true(reads(opens, turn(0, 1), true, 3)); /* never more misses than opens */
	assert_count(opens, 0, 2);
	fs_hit_counting_free(opens);
}

static void test_the_beginning_may_be_there_and_the_rest_not(void **state)
{
	struct fs_hit_counting *opens = fresh();
	(void)state;
	opened(opens, turn(0, 1), 0);
	assert_true(reads(opens, turn(0, 1), false, 1));
	assert_count(opens, 0, 1);
	fs_hit_counting_free(opens);
}

static void test_reads_of_no_open(void **state)
{
	struct fs_hit_counting *opens = fresh();
	(void)state;
	assert_false(reads(opens, turn(0, 1), true, 0));
	opened(opens, turn(0, 1), 1000);
	assert_false(reads(opens, turn(0, 1), true, 1000 - FS_HIT_COUNTING_PAIR_MS - 1)); /* long before */
	assert_false(reads(opens, turn(0, 1), true, 1000 + FS_HIT_COUNTING_PAIR_MS + 1)); /* long after a hit */
	assert_false(reads(opens, turn(1, 1), true, 1000));
	assert_false(reads(opens, (struct fs_hit_counting_key){ .id = 1 }, true, 1000));
	assert_count(opens, 1, 0);
	fs_hit_counting_free(opens);
}

static void test_hits_of_long_ago_are_no_misses_of_now(void **state)
{
	struct fs_hit_counting *opens = fresh();
	(void)state;
	opened(opens, turn(0, 1), 0);
	opened(opens, turn(0, 1), 10000);
	assert_true(reads(opens, turn(0, 1), true, 10000));
	assert_true(reads(opens, turn(0, 1), true, 10001));
	assert_count(opens, 1, 1);
	fs_hit_counting_free(opens);
}

static void test_a_file_of_several_names(void **state)
{
	struct fs_hit_counting *opens = fresh();
	struct fs_hit_counting_key names[] = { { .id = 9 }, turn(4, 1), turn(5, 2) };
	struct fs_hit_counting_read read = { .first = true, .ns = START };
	(void)state;
	assert_false(fs_hit_counting_pair(opens, names, 3, &read));
	for (int i = 0; i < 3; i++) {
		opened(opens, names[i], 0);
		assert_true(fs_hit_counting_pair(
		        opens, names, 3, &read)); /* the one that was just opened, not one that reads on */
	}
	assert_count(opens, 0, 3);
	fs_hit_counting_free(opens);
}

static void test_what_was_shown_does_not_fall(void **state)
{
	struct fs_hit_counting *opens = fresh();
	(void)state;
	opened(opens, turn(0, 1), 0);
	opened(opens, turn(0, 2), 0);
	assert_count(opens, 2, 0); /* looked at between open and read */
	assert_true(reads(opens, turn(0, 1), true, 1));
	assert_true(reads(opens, turn(0, 2), true, 1));
	assert_count(opens, 2, 0);
	opened(opens, turn(0, 3), 2);
	assert_count(opens, 2, 1);
	for (uint64_t i = 4; i < 10; i++)
		opened(opens, turn(0, i), 2);
	assert_count(opens, 7, 2); /* and is right in the end */
	fs_hit_counting_free(opens);
}

/* Anything in any order: nothing falls, and the sums hold. */
static void test_counts_of_chance(void **state)
{
	struct fs_hit_counting *opens = fresh();
	struct fs_hit_counting_count last = { 0 }, count;
	uint64_t n = 0;
	(void)state;
	srand(7);
	for (int i = 0; i < 200000; i++) {
		struct fs_hit_counting_key key = turn((uint64_t)rand() % 2, (uint64_t)rand() % 9000);
		uint64_t ms = (uint64_t)i / 100 + (uint64_t)rand() % 400;
		if (rand() % 3) {
			opened(opens, key, ms);
			n++;
		} else {
			reads(opens, key, rand() % 2, ms);
		}
		if (i % 10)
			continue;
		fs_hit_counting_count(opens, FS_HIT_COUNTING_ALL, &count);
		assert_int_equal(count.opens, n);
		assert_int_equal(count.hits + count.misses, n);
		assert_true(count.hits >= last.hits && count.misses >= last.misses);
		last = count;
	}
	assert_true(last.misses > 0);
	fs_hit_counting_free(opens);
}

static void test_reads_wait_for_the_drain(void **state)
{
	struct fs_hit_counting *opens = fresh();
	const struct fs_hit_counting_read *list;
	(void)state;
	assert_int_equal(fs_hit_counting_take(opens, &list), 0);
	for (uint32_t round = 0; round < 3; round++) {
		for (uint32_t i = 0; i < FS_HIT_COUNTING_READS; i++)
			assert_true(fs_hit_counting_read(opens, (struct fs_hit_counting_read){ .file = i + round }));
		assert_false(fs_hit_counting_read(opens, (struct fs_hit_counting_read){ .file = 0 }));
		assert_int_equal(fs_hit_counting_take(opens, &list), FS_HIT_COUNTING_READS);
		for (uint32_t i = 0; i < FS_HIT_COUNTING_READS; i++)
			assert_int_equal(list[i].file, i + round);
		assert_int_equal(fs_hit_counting_take(opens, &list), 0);
	}
	fs_hit_counting_free(opens);
}

/* All opens of a drain that is late keep their places, however they fall together. */
static void test_the_latest_opens_are_kept(void **state)
{
	struct fs_hit_counting *opens = fresh();
	(void)state;
	for (uint64_t i = 0; i < FS_HIT_COUNTING_KEPT; i++)
		opened(opens, turn(3, 100000 + i), i / 100);
	for (uint64_t i = 0; i < FS_HIT_COUNTING_KEPT; i++)
		assert_true(reads(opens, turn(3, 100000 + i), true, i / 100));
	assert_count(opens, 0, FS_HIT_COUNTING_KEPT);
	fs_hit_counting_free(opens);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_read_makes_its_open_a_miss),
		cmocka_unit_test(test_bytes_that_no_read_asks_for_were_cached),
		cmocka_unit_test(test_a_read_of_a_part_counts_that_part_of_an_open),
		cmocka_unit_test(test_each_view_counts_its_own),
		cmocka_unit_test(test_views_that_open_the_same_file),
		cmocka_unit_test(test_an_open_misses_once),
		cmocka_unit_test(test_several_opens_of_a_file),
		cmocka_unit_test(test_the_beginning_may_be_there_and_the_rest_not),
		cmocka_unit_test(test_reads_of_no_open),
		cmocka_unit_test(test_hits_of_long_ago_are_no_misses_of_now),
		cmocka_unit_test(test_a_file_of_several_names),
		cmocka_unit_test(test_what_was_shown_does_not_fall),
		cmocka_unit_test(test_counts_of_chance),
		cmocka_unit_test(test_reads_wait_for_the_drain),
		cmocka_unit_test(test_the_latest_opens_are_kept),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
