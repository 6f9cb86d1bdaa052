/* SPDX-License-Identifier: Apache-2.0 */
/* What limits a mount of a store, from two readings of its counters. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "fs/store_limit.h"

#define S UINT64_C(1000000000)

static const struct fs_store_reading before = { .at_ns = 7 * S,
	.waited_ns = 3 * S,
	.requests = 1000,
	.throttled = 50,
	.bytes = 10000000,
	.thread_ns = { S, S, S },
	.host_busy = 100,
	.host_all = 1000,
	.tier_ns = S,
	.tier_threads = 2 };

/* Five seconds later: readers waited for a second, 100 MB came by 1,000 requests, and everything was half busy. */
static struct fs_store_reading later(void)
{
	return (struct fs_store_reading){ .at_ns = before.at_ns + 5 * S,
		.waited_ns = before.waited_ns + S,
		.requests = before.requests + 1000,
		.throttled = before.throttled,
		.bytes = before.bytes + 100000000,
		.thread_ns = { S + 2 * S, S + 2 * S, S + 2 * S },
		.host_busy = 100 + 500,
		.host_all = 1000 + 1000,
		.tier_ns = S + 5 * S,
		.tier_threads = 2 };
}

enum { BEST = 40000000 }; /* twice the rate of later() */

static void test_a_reader_that_waits_for_nothing_else_waits_for_answers(void **state)
{
	struct fs_store_reading now = later();
	(void)state;
	assert_int_equal(fs_store_limit_rate(&before, &now), 20000000);
	assert_int_equal(fs_store_limit_of(&before, &now, BEST), FS_STORE_LIMIT_LATENCY);
}

static void test_each_limit_is_told(void **state)
{
	struct fs_store_reading now = later();
	(void)state;
	now.tier_ns = before.tier_ns + 9 * S; /* of two threads */
	assert_int_equal(fs_store_limit_of(&before, &now, BEST), FS_STORE_LIMIT_TIER_DISK);
	assert_int_equal(fs_store_limit_of(&before, &now, 22000000), FS_STORE_LIMIT_LINK);
	for (int i = 0; i < FS_STORE_LIMIT_THREADS; i++) {
		struct fs_store_reading busy = now;
		busy.thread_ns[i] = before.thread_ns[i] + 43 * S / 10;
		assert_int_equal(fs_store_limit_of(&before, &busy, 22000000), FS_STORE_LIMIT_PROCESSOR);
	}
	now.host_busy = before.host_busy + 850;
	assert_int_equal(fs_store_limit_of(&before, &now, 22000000), FS_STORE_LIMIT_PROCESSOR);
	now.throttled = before.throttled + 20;
	assert_int_equal(fs_store_limit_of(&before, &now, 22000000), FS_STORE_LIMIT_REQUESTS);
	now.waited_ns = before.waited_ns + S / 21;
	assert_int_equal(fs_store_limit_of(&before, &now, 22000000), FS_STORE_LIMIT_NOTHING);
	now.away_ns = 2 * S;
	assert_int_equal(fs_store_limit_of(&before, &now, 22000000), FS_STORE_LIMIT_AWAY);
}

static void test_a_refusal_in_many_requests_is_no_limit(void **state)
{
	struct fs_store_reading now = later();
	(void)state;
	now.throttled = before.throttled + 9; /* of 1,000 */
	assert_int_equal(fs_store_limit_of(&before, &now, BEST), FS_STORE_LIMIT_LATENCY);
}

static void test_what_is_not_known_limits_nothing(void **state)
{
	struct fs_store_reading now = later();
	(void)state;
	now.tier_threads = 0;
	now.host_busy = now.host_all = 0;
	assert_int_equal(fs_store_limit_of(&before, &now, 0), FS_STORE_LIMIT_LATENCY);
	assert_int_equal(fs_store_limit_of(&before, &before, BEST), FS_STORE_LIMIT_UNKNOWN);
	assert_null(fs_store_limit_says(FS_STORE_LIMIT_UNKNOWN));
}

static void test_each_limit_has_a_sentence_of_its_own(void **state)
{
	(void)state;
	for (int i = FS_STORE_LIMIT_AWAY; i <= FS_STORE_LIMIT_LATENCY; i++)
		for (int k = FS_STORE_LIMIT_AWAY; k < i; k++)
			assert_string_not_equal(fs_store_limit_says((enum fs_store_limit)i),
			        fs_store_limit_says((enum fs_store_limit)k));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_reader_that_waits_for_nothing_else_waits_for_answers),
		cmocka_unit_test(test_each_limit_is_told),
		cmocka_unit_test(test_a_refusal_in_many_requests_is_no_limit),
		cmocka_unit_test(test_what_is_not_known_limits_nothing),
		cmocka_unit_test(test_each_limit_has_a_sentence_of_its_own),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
