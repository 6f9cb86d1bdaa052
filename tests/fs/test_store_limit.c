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

#define MS UINT64_C(1000000)

static const struct fs_store_reading before = { .at_ns = 7 * S,
	.waited_ns = 3 * S,
	.requests = 1000,
	.throttled = 50,
	.bytes = 10000000,
	.answers = 1000,
	.first_byte_ns = 200 * S,
	.body_ns = 200 * S,
	.least_ns = 100 * MS,
	.full_ns = S,
	.thread_ns = { S, S, S },
	.tier_ns = S,
	.tier_threads = 2 };

/* Five seconds later: readers waited for a second, 1,000 answers of 100 KB came after 105 ms each, in 20 ms each, and
 * everything was half busy. */
static struct fs_store_reading later(void)
{
	return (struct fs_store_reading){ .at_ns = before.at_ns + 5 * S,
		.waited_ns = before.waited_ns + S,
		.requests = before.requests + 1000,
		.throttled = before.throttled,
		.bytes = before.bytes + 100000000,
		.answers = before.answers + 1000,
		.first_byte_ns = before.first_byte_ns + 105 * S,
		.body_ns = before.body_ns + 20 * S,
		.least_ns = before.least_ns,
		.full_ns = before.full_ns + S,
		.thread_ns = { S + 2 * S, S + 2 * S, S + 2 * S },
		.tier_ns = S + 5 * S,
		.tier_threads = 2 };
}

static void is(struct fs_store_reading now, enum fs_store_limit limit)
{
	assert_int_equal(fs_store_limit_of(&before, &now), limit);
}

static void test_a_reader_that_waits_for_nothing_else_waits_for_answers(void **state)
{
	(void)state;
	is(later(), FS_STORE_LIMIT_LATENCY);
}

static void test_each_limit_is_told(void **state)
{
	struct fs_store_reading now = later();
	(void)state;
	now.full_ns = before.full_ns + 3 * S;
	is(now, FS_STORE_LIMIT_LATENCY);
	now.depth_most = true;
	is(now, FS_STORE_LIMIT_DEPTH);
	now.depth_full = true;
	is(now, FS_STORE_LIMIT_LINK);
	now.tier_ns = before.tier_ns + 9 * S; /* of two threads */
	is(now, FS_STORE_LIMIT_TIER_DISK);
	now.body_ns = before.body_ns + 1000 * S;
	is(now, FS_STORE_LIMIT_LINK);
	for (int i = 0; i < FS_STORE_LIMIT_THREADS; i++) {
		struct fs_store_reading busy = now;
		busy.thread_ns[i] = before.thread_ns[i] + 43 * S / 10;
		is(busy, FS_STORE_LIMIT_PROCESSOR);
	}
	now.throttled = before.throttled + 20;
	is(now, FS_STORE_LIMIT_THROTTLED);
	now.waited_ns = before.waited_ns + S / 21;
	is(now, FS_STORE_LIMIT_NOTHING);
	now.away_ns = 2 * S;
	is(now, FS_STORE_LIMIT_AWAY);
}

static void test_a_depth_that_is_seldom_reached_limits_nothing(void **state)
{
	struct fs_store_reading now = later();
	(void)state;
	now.depth_full = now.depth_most = true;
	is(now, FS_STORE_LIMIT_LATENCY);
}

/* TCP needs 3 round trips of 100 ms for 100 KB, whatever the link can do. */
static void test_round_trips_are_no_slow_link(void **state)
{
	struct fs_store_reading now = later();
	(void)state;
	now.body_ns = before.body_ns + 550 * S;
	is(now, FS_STORE_LIMIT_LATENCY);
	now.least_ns = 80 * MS;
	is(now, FS_STORE_LIMIT_LINK);
	now.first_byte_ns = before.first_byte_ns + 800 * S; /* answers take long to begin */
	is(now, FS_STORE_LIMIT_LATENCY);
}

static void test_an_answer_that_goes_on_comes_over_a_slow_link(void **state)
{
	struct fs_store_reading now = later();
	(void)state;
	now.requests = before.requests;
	now.answers = before.answers;
	now.first_byte_ns = before.first_byte_ns;
	now.bytes = before.bytes + 1000000;
	now.body_ns = before.body_ns + 5 * S;
	is(now, FS_STORE_LIMIT_LINK);
}

static void test_a_tier_that_has_everything_is_waited_for(void **state)
{
	struct fs_store_reading now = later(), none = before;
	(void)state;
	none.at_ns = now.at_ns;
	none.waited_ns = now.waited_ns;
	is(none, FS_STORE_LIMIT_TIER_DISK);
	none.tier_waited++; /* for what another process fetches */
	is(none, FS_STORE_LIMIT_LATENCY);
}

static void test_a_dataset_on_a_disk_waits_for_it(void **state)
{
	struct fs_store_reading now = {
		.at_ns = before.at_ns + 5 * S, .waited_ns = before.waited_ns + S, .disk = true
	};
	(void)state;
	now.tier_ns = before.tier_ns + S;
	now.tier_threads = 2;
	now.full_ns = before.full_ns + 5 * S;
	now.depth_full = true;
	is(now, FS_STORE_LIMIT_DISK);
	now.tier_ns = before.tier_ns + 9 * S;
	is(now, FS_STORE_LIMIT_TIER_DISK);
	now.waited_ns = before.waited_ns;
	is(now, FS_STORE_LIMIT_NOTHING);
}

static void test_a_refusal_in_many_requests_is_no_limit(void **state)
{
	struct fs_store_reading now = later();
	(void)state;
	now.throttled = before.throttled + 9; /* of 1,000 */
	is(now, FS_STORE_LIMIT_LATENCY);
}

static void test_what_is_not_known_limits_nothing(void **state)
{
	struct fs_store_reading now = later();
	(void)state;
	now.tier_threads = 0;
	now.least_ns = 0;
	now.body_ns = before.body_ns;
	is(now, FS_STORE_LIMIT_LATENCY);
	is(before, FS_STORE_LIMIT_UNKNOWN);
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
		cmocka_unit_test(test_a_depth_that_is_seldom_reached_limits_nothing),
		cmocka_unit_test(test_round_trips_are_no_slow_link),
		cmocka_unit_test(test_an_answer_that_goes_on_comes_over_a_slow_link),
		cmocka_unit_test(test_a_tier_that_has_everything_is_waited_for),
		cmocka_unit_test(test_a_dataset_on_a_disk_waits_for_it),
		cmocka_unit_test(test_a_refusal_in_many_requests_is_no_limit),
		cmocka_unit_test(test_what_is_not_known_limits_nothing),
		cmocka_unit_test(test_each_limit_has_a_sentence_of_its_own),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
