/* SPDX-License-Identifier: Apache-2.0 */
/* The history of a mount: bounded, thinned out, and made of memory with any content. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fs/history.h"

static struct fs_history_memory history;

static int clear(void **state)
{
	(void)state;
	memset(&history, 0, sizeof(history));
	fs_history_check(&history, 1);
	return 0;
}

/* A reading at `at_ms` in which all values but the time are `value`. */
static struct fs_history_reading reading(uint64_t at_ms, uint64_t value)
{
	struct fs_history_reading made;
	for (int i = 0; i < FS_HISTORY_FIELDS; i++)
		made.values[i] = value;
	made.values[0] = at_ms;
	return made;
}

static void add(uint64_t at_ms, uint64_t value)
{
	const struct fs_history_reading one = reading(at_ms, value);
	fs_history_add(&history, &one);
}

static uint64_t at(uint64_t i)
{
	return history.readings[i].values[0];
}

/* As main does it: sleeps until a reading is due. */
static void run_until(uint64_t end_ms)
{
	for (uint64_t now = 1; now <= end_ms; now += fs_history_due_ms(&history, now))
		if (fs_history_due_ms(&history, now) == 0)
			add(now, now);
}

static void test_every_field_has_its_own_name(void **state)
{
	(void)state;
	assert_string_equal(fs_history_names[0], "at_ms");
	for (int i = 0; i < FS_HISTORY_FIELDS; i++)
		for (int k = 0; k < i; k++)
			assert_string_not_equal(fs_history_names[i], fs_history_names[k]);
}

static void test_a_month_fits_and_covers_the_month(void **state)
{
	(void)state;
	const uint64_t month_ms = UINT64_C(30) * 86400 * 1000;
	run_until(month_ms);
	assert_in_range(history.n, FS_HISTORY_READINGS_MAX / 2, FS_HISTORY_READINGS_MAX);
	assert_int_equal(at(0), 1);
	assert_true(at(history.n - 1) + history.interval_ms > month_ms);
	for (uint64_t i = 1; i < history.n; i++)
		assert_in_range(at(i) - at(i - 1), 1, history.interval_ms);
	assert_true(history.interval_ms <= 2 * month_ms / (FS_HISTORY_READINGS_MAX / 2));
}

static void test_an_hour_has_a_reading_every_two_seconds(void **state)
{
	(void)state;
	run_until(3600 * 1000);
	assert_int_equal(history.interval_ms, 2000);
}

static void test_while_nothing_changes_the_last_reading_moves(void **state)
{
	(void)state;
	add(1000, 7);
	for (uint64_t s = 2; s < 100000; s++)
		add(s * 1000, 7);
	assert_int_equal(history.n, 2);
	assert_int_equal(at(0), 1000);
	assert_int_equal(at(1), 99999 * UINT64_C(1000));
	add(100000 * UINT64_C(1000), 8);
	assert_int_equal(history.n, 3);
	assert_int_equal(history.interval_ms, FS_HISTORY_INTERVAL_MS);
}

static void test_time_never_goes_back(void **state)
{
	(void)state;
	add(5000, 1);
	add(5000, 2);
	add(4000, 3);
	assert_int_equal(history.n, 1);
	assert_int_equal(history.readings[0].values[1], 1);
}

static void test_readings_after_a_time(void **state)
{
	(void)state;
	assert_int_equal(fs_history_after(&history, 0), 0);
	for (uint64_t i = 1; i <= 100; i++)
		add(i * 10, i);
	assert_int_equal(fs_history_after(&history, 0), 0);
	for (uint64_t i = 1; i <= 100; i++) {
		assert_int_equal(fs_history_after(&history, i * 10), i);
		assert_int_equal(fs_history_after(&history, i * 10 - 1), i - 1);
	}
	assert_int_equal(fs_history_after(&history, UINT64_MAX), 100);
}

/* A server may be killed while it thins out. */
static void test_a_killed_servers_readings_are_kept_in_order(void **state)
{
	(void)state;
	for (uint64_t i = 0; i < FS_HISTORY_READINGS_MAX; i++)
		add(1 + i * 1000, i);
	for (uint64_t i = 0; i < 100; i++)
		history.readings[i] = history.readings[2 * i];
	fs_history_check(&history, 1 + FS_HISTORY_READINGS_MAX * UINT64_C(1000));
	assert_int_equal(history.n, FS_HISTORY_READINGS_MAX - 99);
	for (uint64_t i = 1; i < history.n; i++)
		assert_true(at(i) > at(i - 1));
}

static void test_any_content_becomes_usable(void **state)
{
	(void)state;
	srand(28);
	for (int round = 0; round < 200; round++) {
		uint8_t *bytes = (uint8_t *)&history;
		for (size_t i = 0; i < sizeof(history); i += 1 + (size_t)rand() % 64)
			bytes[i] = (uint8_t)rand();
		history.n = round % 2 ? history.n : (uint64_t)rand() % (FS_HISTORY_READINGS_MAX + 2);
		fs_history_check(&history, 1000000);
		assert_true(history.n <= FS_HISTORY_READINGS_MAX);
		assert_true(history.logged_ms <= 1000000);
		for (uint64_t i = 1; i < history.n; i++)
			assert_true(at(i) > at(i - 1));
		assert_true(history.n == 0 || (at(0) > 0 && at(history.n - 1) <= 1000000));
		assert_true(fs_history_due_ms(&history, 1000000) <= 1000000);
		add(1000001, 3);
		assert_int_equal(at(history.n - 1), 1000001);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_every_field_has_its_own_name, clear),
		cmocka_unit_test_setup(test_a_month_fits_and_covers_the_month, clear),
		cmocka_unit_test_setup(test_an_hour_has_a_reading_every_two_seconds, clear),
		cmocka_unit_test_setup(test_while_nothing_changes_the_last_reading_moves, clear),
		cmocka_unit_test_setup(test_time_never_goes_back, clear),
		cmocka_unit_test_setup(test_readings_after_a_time, clear),
		cmocka_unit_test_setup(test_a_killed_servers_readings_are_kept_in_order, clear),
		cmocka_unit_test_setup(test_any_content_becomes_usable, clear),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
