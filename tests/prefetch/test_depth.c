/* SPDX-License-Identifier: Apache-2.0 */
/* The depth finder against made-up devices, and the histogram against sorted values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "prefetch/depth.h"
#include "prefetch/latency_histogram.h"

/* A device of `latency_ns` a read that serves at most `limit` bytes per second: feeds `n` reads of `bytes`. */
static void run_device(struct prefetch_depth *depth, uint64_t latency_ns, uint64_t limit, uint64_t bytes, uint32_t n)
{
	uint64_t now = 1;
	for (uint32_t i = 0; i < n; i++) {
		uint64_t by_latency = latency_ns / depth->depth;
		uint64_t by_rate = bytes * 1000000000 / limit;
		uint64_t queue = by_rate * (i < PREFETCH_DEPTH_START ? i + 1 : depth->depth);
		now += by_latency > by_rate ? by_latency : by_rate;
		prefetch_depth_feed(depth, now, latency_ns > queue ? latency_ns : queue, bytes, true);
	}
}

static void depth_grows_until_the_device_is_full(void **state)
{
	struct prefetch_depth depth;
	(void)state;
	/* 20 ms away, 1 GB/s: 110 KB reads need 182 in flight. */
	prefetch_depth_init(&depth, 0, false);
	run_device(&depth, 20000000, 1000000000, 110000, 100000);
	assert_in_range(depth.settled, 150, PREFETCH_DEPTH_MAX);
	assert_in_range(prefetch_depth_rate(&depth), 900000000, 1010000000);
	/* A disk that is full with 8. */
	prefetch_depth_init(&depth, 0, false);
	run_device(&depth, 100000, 500000000, 110000, 1000000);
	assert_in_range(depth.settled, PREFETCH_DEPTH_MIN, 24);
	assert_in_range(prefetch_depth_rate(&depth), 490000000, 510000000);
}

static void a_store_far_away_is_filled_at_once(void **state)
{
	struct prefetch_depth depth;
	(void)state;
	/* 20 ms, 1 GB/s, full with 182: each 20 ms four times as many, and no trial of a disk that is full with less
	 * than one. */
	prefetch_depth_init(&depth, 0, true);
	run_device(&depth, 20000000, 1000000000, 110000, PREFETCH_DEPTH_START);
	assert_int_equal(depth.depth, 4 * PREFETCH_DEPTH_START);
	run_device(&depth, 20000000, 1000000000, 110000, 4 * PREFETCH_DEPTH_START);
	assert_int_equal(depth.depth, 16 * PREFETCH_DEPTH_START);
	prefetch_depth_init(&depth, 0, false);
	run_device(&depth, 100000, 1000000000, 110000, PREFETCH_DEPTH_START);
	assert_in_range(depth.depth, PREFETCH_DEPTH_START, PREFETCH_DEPTH_START + 6);
}

/* Of 4 KiB, 20 ms away: 320 reads of a local dataset would be 1.3 MB in flight. A store gets no more than 320. */
static void small_reads_may_be_more(void **state)
{
	struct prefetch_depth depth;
	(void)state;
	prefetch_depth_init(&depth, 0, false);
	run_device(&depth, 20000000, 1000000000, 4096, 10000);
	assert_in_range(depth.depth, PREFETCH_DEPTH_MAX + 1, PREFETCH_DEPTH_SMALL_MAX);
	prefetch_depth_init(&depth, 0, true);
	run_device(&depth, 20000000, 1000000000, 4096, 10000);
	assert_in_range(depth.depth, PREFETCH_DEPTH_START, PREFETCH_DEPTH_MAX);
	/* When reads get larger, the depth is taken back. */
	prefetch_depth_init(&depth, 0, false);
	run_device(&depth, 20000000, 1000000000, 4096, 10000);
	run_device(&depth, 20000000, 10000000000, 1 << 20, 10000);
	assert_in_range(depth.settled, PREFETCH_DEPTH_START, PREFETCH_DEPTH_MAX);
}

/* A disk that is full with 4 reads of 4 KiB gets as many as it serves in 2 ms: then several come back at a time.  Large
 * reads, a slow disk and a store have no more than before. */
static void small_reads_come_back_several_at_a_time(void **state)
{
	struct prefetch_depth depth;
	(void)state;
	prefetch_depth_init(&depth, 0, false);
	run_device(&depth, 80000, 200000000, 4096, 1000000);
	assert_in_range(depth.settled, 96, 98);
	prefetch_depth_init(&depth, 0, false);
	run_device(&depth, 10000, 2000000000, 4096, 1000000);
	assert_int_equal(depth.settled, 128);
	prefetch_depth_init(&depth, 0, false);
	run_device(&depth, 100000, 5000000000, 110000, 1000000);
	assert_in_range(depth.settled, PREFETCH_DEPTH_MIN, 24);
	prefetch_depth_init(&depth, 0, false);
	run_device(&depth, 8000000, 1000000, 4096, 100000);
	assert_in_range(depth.settled, PREFETCH_DEPTH_MIN, PREFETCH_DEPTH_START);
	prefetch_depth_init(&depth, 0, true);
	run_device(&depth, 80000, 200000000, 4096, 1000000);
	assert_in_range(depth.settled, PREFETCH_DEPTH_MIN, 24);
}

/* Half as many reads again seem to give 10% more.  On a link, demands would wait behind them. */
static void a_little_more_is_not_worth_a_full_link(void **state)
{
	struct prefetch_depth depth;
	(void)state;
	for (unsigned store = 0; store < 2; store++) {
		uint64_t now = 1;
		prefetch_depth_init(&depth, 0, store);
		for (uint32_t i = 0; i < 100000; i++) {
			double rate = 1;
			for (uint32_t d = depth.depth; d > PREFETCH_DEPTH_MIN; d = d * 2 / 3)
				rate *= 1.1;
			now += (uint64_t)(2000000 / rate);
			prefetch_depth_feed(&depth, now, i ? 100000000 : 20000000, 110000, true);
		}
		assert_int_equal(depth.settled > 2 * PREFETCH_DEPTH_START, !store);
	}
}

/* In the first trial, the machine was busy with something else. */
static void one_slow_interval_does_not_end_the_search(void **state)
{
	struct prefetch_depth depth;
	bool tried = false, over = false; /* the first trial */
	uint64_t now = 1;
	(void)state;
	prefetch_depth_init(&depth, 0, true);
	depth.starting = false;
	for (uint32_t i = 0; i < 5000; i++) {
		tried = tried || depth.depth > PREFETCH_DEPTH_START;
		over = over || (tried && depth.depth == PREFETCH_DEPTH_START);
		now += 20000000 / (tried && !over ? PREFETCH_DEPTH_START : depth.depth);
		prefetch_depth_feed(&depth, now, 20000000, 110000, true);
	}
	assert_true(over);
	assert_in_range(depth.settled, 2 * PREFETCH_DEPTH_START, PREFETCH_DEPTH_MAX);
}

/* What brings no more bytes is known only after a larger depth was tried. */
static void a_full_link_is_known_as_such(void **state)
{
	struct prefetch_depth depth;
	(void)state;
	for (int store = 0; store < 2; store++) {
		prefetch_depth_init(&depth, 0, store);
		run_device(&depth, 20000000, 100000000, 110000, PREFETCH_DEPTH_START);
		assert_false(depth.full);
		run_device(&depth, 20000000, 100000000, 110000, 100000);
		assert_true(depth.full);
		assert_false(prefetch_depth_is_most(&depth));
		/* Each read takes as long as before however many there are. */
		run_device(&depth, 20000000, UINT64_C(100000000000), 110000, 100000);
		assert_false(depth.full);
		assert_true(prefetch_depth_is_most(&depth));
	}
}

static void idle_times_say_nothing(void **state)
{
	struct prefetch_depth depth;
	(void)state;
	prefetch_depth_init(&depth, 0, false);
	for (uint64_t i = 1; i < 100000; i++)
		prefetch_depth_feed(&depth, i * 1000000, 1000000, 110000, false);
	assert_int_equal(depth.depth, PREFETCH_DEPTH_START);
	assert_int_equal(prefetch_depth_rate(&depth), 0);
}

static void a_fixed_depth_stays(void **state)
{
	struct prefetch_depth depth;
	(void)state;
	prefetch_depth_init(&depth, 7, false);
	run_device(&depth, 20000000, 1000000000, 110000, 100000);
	assert_int_equal(depth.depth, 7);
	assert_true(prefetch_depth_rate(&depth) > 0);
	prefetch_depth_init(&depth, 7, false);
	run_device(&depth, 80000, 200000000, 4096, 100000);
	assert_int_equal(depth.depth, 7);
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

static void quantiles_are_within_a_bucket(void **state)
{
	enum { N = 10000 };
	static struct prefetch_hist hist;
	static uint64_t values[N];
	uint64_t x = 88172645463325252;
	(void)state;
	assert_int_equal(prefetch_hist_quantile(&hist, 500), 0);
	for (unsigned i = 0; i < N; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		values[i] = x >> (20 + x % 40);
		prefetch_hist_add(&hist, values[i]);
	}
	qsort(values, N, sizeof(values[0]), by_value);
	assert_int_equal(prefetch_hist_max(&hist), values[N - 1]);
	for (unsigned permille = 0; permille <= 1000; permille += 50) {
		uint64_t rank = (uint64_t)N * permille / 1000;
		uint64_t exact = values[rank < N ? rank : N - 1];
		uint64_t got = prefetch_hist_quantile(&hist, permille);
		assert_true(got >= exact && got <= exact + exact / 16 + 1);
	}
}

static void the_largest_values_have_a_bucket(void **state)
{
	static struct prefetch_hist hist;
	(void)state;
	prefetch_hist_add(&hist, UINT64_MAX);
	assert_int_equal(prefetch_hist_quantile(&hist, 990), UINT64_MAX);
	prefetch_hist_add(&hist, 0);
	assert_int_equal(prefetch_hist_quantile(&hist, 0), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(depth_grows_until_the_device_is_full),
		cmocka_unit_test(a_store_far_away_is_filled_at_once),
		cmocka_unit_test(small_reads_may_be_more),
		cmocka_unit_test(small_reads_come_back_several_at_a_time),
		cmocka_unit_test(a_little_more_is_not_worth_a_full_link),
		cmocka_unit_test(one_slow_interval_does_not_end_the_search),
		cmocka_unit_test(a_full_link_is_known_as_such),
		cmocka_unit_test(idle_times_say_nothing),
		cmocka_unit_test(a_fixed_depth_stays),
		cmocka_unit_test(quantiles_are_within_a_bucket),
		cmocka_unit_test(the_largest_values_have_a_bucket),
	};
	return cmocka_run_group_tests_name("prefetch/depth", tests, NULL, NULL);
}
