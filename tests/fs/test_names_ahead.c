/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the next turns: each is made once, before its turn counts as announced, and with others of its directory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "fs/names_ahead.h"
#include "shard/format.h"

enum { FILES = 20000, TURNS = FILES };

/* An order over files that lie PER_DIR in a directory. */
struct order {
	uint32_t per_dir;
	uint32_t each;   /* files of a turn */
	uint32_t stride; /* turn t is the sample t * stride, modulo their number */
	uint32_t made[FILES];
	bool known[FILES]; /* the kernel has the name already */
	uint32_t listed, looked_up, lists, lone;
	uint32_t least; /* names of the shortest list */
	bool cannot_list, ends;
};

static struct order order;
static struct fs_names_ahead ahead;

static uint64_t turns_of(const struct order *o)
{
	return FILES / o->each;
}

/* The first file of a turn. */
static uint32_t file_of(const struct order *o, uint64_t turn)
{
	return (uint32_t)(turn * o->stride % turns_of(o)) * o->each;
}

static uint32_t files(void *user, uint64_t turn, uint32_t ret_files[SHARD_SAMPLE_FILES_MAX])
{
	const struct order *o = user;
	for (uint32_t i = 0; i < o->each; i++)
		ret_files[i] = file_of(o, turn) + i;
	return o->each;
}

static uint32_t dir(void *user, uint32_t id)
{
	return id / ((struct order *)user)->per_dir;
}

static bool list(void *user, uint32_t directory, const uint32_t *files, uint32_t n)
{
	struct order *o = user;
	if (o->cannot_list || o->ends)
		return false;
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(dir(o, files[i]), directory);
		assert_true(i == 0 || files[i] > files[i - 1]);
		o->made[files[i]]++;
	}
	o->listed += n;
	o->lists++;
	o->least = o->least == 0 || n < o->least ? n : o->least;
	return true;
}

static bool look_up(void *user, uint32_t id)
{
	struct order *o = user;
	if (o->ends)
		return false;
	o->made[id]++;
	o->looked_up += !o->known[id];
	return !o->known[id];
}

static void look_up_lone(void *user, uint32_t id)
{
	struct order *o = user;
	o->lone++;
	look_up(o, id);
}

static void begin(uint32_t per_dir, uint32_t stride)
{
	memset(&order, 0, sizeof(order));
	memset(&ahead, 0, sizeof(ahead));
	ahead.most = FS_NAMES_AHEAD_MAX;
	order.per_dir = per_dir;
	order.each = 1;
	order.stride = stride;
}

/* Asks for turns [from, to) in pieces, and checks that their names are made. */
static void ask(uint64_t epoch, uint64_t from, uint64_t to, uint32_t piece)
{
	static const struct fs_names_ahead_ops ops = {
		.files = files, .dir = dir, .list = list, .look_up = look_up, .look_up_lone = look_up_lone
	};
	for (uint64_t turn = from; turn < to; turn += piece) {
		uint32_t n = to - turn < piece ? (uint32_t)(to - turn) : piece;
		fs_names_ahead_asked(&ahead, &ops, &order, epoch, turns_of(&order), turn, n);
		for (uint64_t t = turn; t < turn + n; t++)
			assert_true(order.ends || order.made[file_of(&order, t) + order.each - 1]);
	}
}

static void each_name_is_made_once(void **state)
{
	const uint32_t per_dir[] = { 2000, 200, 20, 1 }, pieces[] = { 16, 77, 512, TURNS };
	(void)state;
	for (unsigned d = 0; d < 4; d++) {
		for (unsigned p = 0; p < 4; p++) {
			begin(per_dir[d], 7919);
			ask(3, 0, TURNS, pieces[p]);
			for (uint32_t f = 0; f < FILES; f++)
				assert_int_equal(order.made[f], 1);
			assert_int_equal(order.listed + order.looked_up, FILES);
			assert_true(order.lists == 0 || order.least >= FS_NAMES_AHEAD_RUN - 1);
		}
	}
}

/* Of many files a turn, fewer turns are taken at once. */
static void all_files_of_a_turn_are_made_once(void **state)
{
	const uint32_t each[] = { 2, 5, 1000, SHARD_SAMPLE_FILES_MAX }, pieces[] = { 16, 77, 512, TURNS };
	(void)state;
	for (unsigned e = 0; e < 4; e++) {
		for (unsigned p = 0; p < 4; p++) {
			begin(2000, 7919);
			order.each = each[e];
			uint32_t n = (uint32_t)turns_of(&order) * each[e];
			ask(3, 0, turns_of(&order), pieces[p]);
			for (uint32_t f = 0; f < n; f++)
				assert_int_equal(order.made[f], 1);
			assert_int_equal(order.listed + order.looked_up, n);
			assert_true(order.looked_up < n / 2);
		}
	}
}

static void a_few_directories_are_listed_and_many_are_not(void **state)
{
	(void)state;
	begin(2000, 7919); /* 10 directories */
	ask(0, 0, TURNS, 64);
	assert_true(order.looked_up <= 5 * FS_NAMES_AHEAD_FIRST + order.lists);
	assert_true(order.listed / order.lists > 100);
	begin(2, 7919); /* 10,000 */
	ask(0, 0, TURNS, 64);
	assert_int_equal(order.listed, 0);
	assert_in_range(order.lone, TURNS / 2, TURNS);
}

static void names_that_the_kernel_has_are_not_listed(void **state)
{
	(void)state;
	begin(2000, 7919);
	memset(order.known, true, sizeof(order.known));
	ask(0, 0, TURNS, 512);
	assert_int_equal(order.listed + order.looked_up, 0);
	begin(2000, 7919);
	memset(order.known, true, 1500); /* of the first directory, 500 files are not */
	ask(0, 0, TURNS, 512);
	assert_int_equal(order.listed + order.looked_up, FILES - 1500);
}

static void names_of_a_directory_that_cannot_be_listed_are_looked_up(void **state)
{
	(void)state;
	begin(2000, 7919);
	order.cannot_list = true;
	ask(0, 0, TURNS, 512);
	assert_int_equal(order.looked_up, FILES);
}

/* Then each call returns soon, and what was not made is asked for no more. */
static void a_server_may_end_at_any_time(void **state)
{
	(void)state;
	begin(2000, 7919);
	ask(0, 0, 3000, 512);
	uint32_t made = order.listed + order.looked_up;
	order.ends = true;
	ask(0, 3000, 20000, 512);
	assert_int_equal(order.listed + order.looked_up, made);
}

/* A reader that has just begun waits for its first names. */
static void the_first_turns_come_soon(void **state)
{
	(void)state;
	begin(2000, 7919);
	ask(0, 0, FS_NAMES_AHEAD_FIRST, FS_NAMES_AHEAD_FIRST);
	assert_int_equal(order.listed + order.looked_up, FS_NAMES_AHEAD_FIRST);
}

static void a_stream_that_moves_or_begins_again_makes_its_names_again(void **state)
{
	(void)state;
	begin(2000, 7919);
	ask(0, 0, 5000, 512);
	memset(order.made, 0, sizeof(order.made));
	ask(0, 4000, 5000, 512); /* names were lost */
	ask(0, 12000, 12100, 16);
	memset(order.made, 0, sizeof(order.made));
	ask(1, 0, 1000, 512); /* the next epoch */
}

/* The reader has overtaken the engine, which goes on behind it: what was listed there still counts. */
static void turns_may_be_left_out(void **state)
{
	(void)state;
	begin(2000, 7919);
	ask(0, 0, 5000, 512);
	uint32_t looked_up = order.looked_up;
	uint64_t until = ahead.until;
	assert_true(until > 5000);
	uint32_t lists = order.lists;
	ask(0, until - 1, 12000, 512);
	assert_int_equal(order.looked_up - looked_up, order.lists - lists);
	for (uint64_t turn = 5000; turn < 12000; turn++)
		assert_int_equal(order.made[file_of(&order, turn)], 1);
}

/* The budget is small. */
static void no_more_are_taken_than_the_owner_says(void **state)
{
	(void)state;
	begin(2000, 7919);
	ahead.most = 100;
	for (uint64_t turn = 0; turn < 5000; turn += 500) {
		ask(0, turn, turn + 500, 500);
		assert_in_range(ahead.until, turn + 500, turn + 600);
	}
}

/* Other streams began, and the budget has room for fewer names of each. */
static void what_may_be_taken_may_change(void **state)
{
	(void)state;
	begin(2000, 7919);
	ask(0, 0, 5000, 500);
	assert_int_equal(ahead.at_once, FS_NAMES_AHEAD_MAX);
	ahead.most = 100;
	uint64_t until = ahead.until, turn;
	ask(0, 5000, until, 500);
	assert_int_equal(ahead.until, until);
	for (turn = until; turn < 10000; turn += 50) {
		ask(0, turn, turn + 50, 50);
		assert_in_range(ahead.until, turn + 50, turn + 150);
	}
	ahead.most = FS_NAMES_AHEAD_MAX;
	ask(0, turn, 15000, 500);
	assert_int_equal(ahead.at_once, FS_NAMES_AHEAD_MAX);
	for (turn = 0; turn < 15000; turn++)
		assert_int_equal(order.made[file_of(&order, turn)], 1);
}

static void a_file_may_come_again(void **state)
{
	(void)state;
	begin(FILES, 0); /* all turns are file 0 */
	ask(0, 0, TURNS, 512);
	assert_int_equal(order.listed, 0);
	begin(FILES, FILES / 10); /* ten files, again and again */
	ask(0, 0, TURNS, 512);
	assert_int_equal(order.listed, order.lists * 9);
	assert_int_equal(order.looked_up, order.lists);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_name_is_made_once),
		cmocka_unit_test(all_files_of_a_turn_are_made_once),
		cmocka_unit_test(a_few_directories_are_listed_and_many_are_not),
		cmocka_unit_test(the_first_turns_come_soon),
		cmocka_unit_test(a_stream_that_moves_or_begins_again_makes_its_names_again),
		cmocka_unit_test(turns_may_be_left_out),
		cmocka_unit_test(names_that_the_kernel_has_are_not_listed),
		cmocka_unit_test(names_of_a_directory_that_cannot_be_listed_are_looked_up),
		cmocka_unit_test(a_server_may_end_at_any_time),
		cmocka_unit_test(no_more_are_taken_than_the_owner_says),
		cmocka_unit_test(what_may_be_taken_may_change),
		cmocka_unit_test(a_file_may_come_again),
	};
	return cmocka_run_group_tests_name("fs/names_ahead", tests, NULL, NULL);
}
