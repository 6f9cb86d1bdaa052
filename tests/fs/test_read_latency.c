/* SPDX-License-Identifier: Apache-2.0 */
/* Waits of READs by epoch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fs/read_latency.h"

static struct fs_read_latency *fresh(void)
{
	struct fs_read_latency *latency;
	assert_int_equal(fs_read_latency_new(&latency), 0);
	return latency;
}

static void test_an_epoch_without_waits_is_zeros(void **state)
{
	struct fs_read_latency_epoch one, all[FS_READ_LATENCY_EPOCHS];
	struct fs_read_latency *latency = fresh();
	(void)state;
	fs_read_latency_get(latency, 7, &one);
	assert_int_equal(one.epoch, 7);
	assert_int_equal(one.n + one.sum_ns + one.p50_ns + one.p99_ns + one.max_ns, 0);
	assert_int_equal(fs_read_latency_all(latency, all), 0);
	fs_read_latency_free(latency);
}

static void test_epochs_do_not_mix(void **state)
{
	struct fs_read_latency_epoch one, all[FS_READ_LATENCY_EPOCHS];
	struct fs_read_latency *latency = fresh();
	(void)state;
	for (uint64_t i = 1; i <= 1000; i++) {
		fs_read_latency_add(latency, 5, i * 1000);
		fs_read_latency_add(latency, 4, 10);
	}
	fs_read_latency_get(latency, 5, &one);
	assert_int_equal(one.n, 1000);
	assert_int_equal(one.sum_ns, 500500000);
	assert_int_equal(one.max_ns, 1000000);
	/* Buckets are 6% wide and tell their upper edge. */
	assert_in_range(one.p50_ns, 500000, 535000);
	assert_in_range(one.p99_ns, 990000, 1000000);
	fs_read_latency_get(latency, 4, &one);
	assert_int_equal(one.n, 1000);
	assert_int_equal(one.max_ns, 10);
	assert_int_equal(fs_read_latency_all(latency, all), 2);
	assert_int_equal(all[0].epoch, 4);
	assert_int_equal(all[1].epoch, 5);
	fs_read_latency_free(latency);
}

static void test_the_latest_epochs_stay(void **state)
{
	struct fs_read_latency_epoch one, all[FS_READ_LATENCY_EPOCHS];
	struct fs_read_latency *latency = fresh();
	(void)state;
	for (uint64_t epoch = 100; epoch > 0; epoch--) { /* set back by hand each time */
		fs_read_latency_add(latency, epoch, epoch);
		fs_read_latency_add(latency, 1000, 1);
	}
	assert_int_equal(fs_read_latency_all(latency, all), FS_READ_LATENCY_EPOCHS);
	for (size_t i = 0; i + 1 < FS_READ_LATENCY_EPOCHS; i++) {
		assert_int_equal(all[i].epoch, i + 1);
		assert_int_equal(all[i].max_ns, i + 1);
		assert_int_equal(all[i].n, 1);
	}
	assert_int_equal(all[FS_READ_LATENCY_EPOCHS - 1].epoch, 1000);
	assert_int_equal(all[FS_READ_LATENCY_EPOCHS - 1].n, 100);
	fs_read_latency_get(latency, 50, &one);
	assert_int_equal(one.n, 0);
	fs_read_latency_free(latency);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_an_epoch_without_waits_is_zeros),
		cmocka_unit_test(test_epochs_do_not_mix),
		cmocka_unit_test(test_the_latest_epochs_stay),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
