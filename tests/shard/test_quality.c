/* SPDX-License-Identifier: Apache-2.0 */
/* The statistics see what they should, and the orders of shard/order.h are as good as is claimed. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "shard/order.h"
#include "shard/quality.h"

/* 1,000 classes, packed in order of their names (slot / PER_CLASS is the class). */
enum { CLASSES = 1000, PER_CLASS = 640, N = CLASSES * PER_CLASS, BATCH = 256, EPOCHS = 3 };

static struct shard_quality_result *measure_sequences(
        void (*fill)(const void *arg, uint64_t epoch, uint32_t *slots), const void *arg, uint32_t n)
{
	struct shard_quality_options options = { .n_slots = n, .n_classes = CLASSES, .batch = BATCH };
	struct shard_quality_result *result = malloc(sizeof(*result));
	struct shard_quality *quality;
	uint32_t *slots = malloc(n * sizeof(*slots));
	uint32_t *classes = malloc(n * sizeof(*classes));

	assert_int_equal(shard_quality_new(&options, &quality), 0);
	for (uint64_t epoch = 0; epoch < EPOCHS; epoch++) {
		fill(arg, epoch, slots);
		for (uint32_t i = 0; i < n; i++)
			classes[i] = slots[i] / (n / CLASSES);
		shard_quality_add(quality, slots, classes, n);
	}
	shard_quality_get(quality, result);
	shard_quality_free(quality);
	free(slots);
	free(classes);
	return result;
}

static void fill_random(const void *arg, uint64_t epoch, uint32_t *slots)
{
	shard_quality_shuffle(epoch, *(const uint32_t *)arg, slots);
}

static void fill_order(const void *arg, uint64_t epoch, uint32_t *slots)
{
	struct shard_order_params params = *(const struct shard_order_params *)arg;
	struct shard_order order;

	params.epoch = epoch;
	assert_int_equal(shard_order_init(&order, &params), 0);
	for (uint64_t i = 0; i < params.n; i++)
		slots[i] = (uint32_t)shard_order_at(&order, i);
	shard_order_done(&order);
}

static struct shard_quality_result *measure_order(const struct shard_order_params *params)
{
	return measure_sequences(fill_order, params, (uint32_t)params->n);
}

static struct shard_quality_result *measure_random(uint32_t n)
{
	return measure_sequences(fill_random, &n, n);
}

/* Distinct classes in 256 of n equally large classes: CLASSES * (1 - C(n - PER_CLASS, 256) / C(n, 256)). */
static double expected_distinct(void)
{
	double none = 1;

	for (unsigned i = 0; i < BATCH; i++)
		none *= (double)(N - PER_CLASS - i) / (N - i);
	return CLASSES * (1 - none);
}

static void random_permutations_are_as_theory_says(void **state)
{
	struct shard_quality_result *r = measure_random(N);
	(void)state;

	assert_int_equal(r->epochs, EPOCHS);
	assert_int_equal(r->batches, N / BATCH * EPOCHS);
	assert_true(fabs(r->distinct_mean - expected_distinct()) < 0.5);
	assert_true(r->distinct_min < r->distinct_mean && r->distinct_mean < r->distinct_max);
	assert_true(fabs(r->class_lag[0]) < 0.005);
	assert_true(fabs(r->slot_lag[0]) < 0.005);
	assert_true(fabs(r->position_chi - 1) < 0.1);
	for (unsigned b = 0; b < SHARD_QUALITY_BINS; b++)
		assert_true(fabs(r->slot_by_part[b] - 0.5) < 0.02);
	free(r);
}

static void full_is_as_good_as_random(void **state)
{
	struct shard_order_params params = { .mode = SHARD_ORDER_FULL, .n = N, .seed = 7 };
	struct shard_quality_result *r = measure_order(&params);
	(void)state;

	assert_true(fabs(r->distinct_mean - expected_distinct()) < 0.5);
	assert_true(fabs(r->position_chi - 1) < 0.1);
	for (unsigned l = 0; l < SHARD_QUALITY_LAGS; l++) {
		assert_true(fabs(r->class_lag[l]) < 0.005);
		assert_true(fabs(r->slot_lag[l]) < 0.005);
	}
	free(r);
}

/* The bar of the default geometry: sorted classes, nothing shuffled when packing, a 256 MiB pool. */
static void chunk_of_sorted_classes_is_good_enough(void **state)
{
	static const uint64_t sample_bytes[] = { 1024, 4096, 16384, 65535 };
	double random = expected_distinct();
	(void)state;

	for (unsigned s = 0; s < 4; s++) {
		struct shard_order_params params = { .mode = SHARD_ORDER_CHUNK, .n = N, .seed = 7 };
		struct shard_quality_result *r;

		shard_order_chunk_defaults(
		        N, N * sample_bytes[s], false, 0, SHARD_POOL_BYTES, &params.chunk_items, &params.pool_chunks);
		r = measure_order(&params);
		assert_true(r->distinct_mean >= 0.9 * random);
		assert_true(fabs(r->class_lag[0]) <= 0.05);
		assert_true(fabs(r->slot_lag[0]) <= 0.05);
		free(r);
	}
}

/* What the statistics are for: stored order fails all three. */
static void stored_order_is_found_out(void **state)
{
	struct shard_order_params params = { .mode = SHARD_ORDER_NONE, .n = N };
	struct shard_quality_result *r = measure_order(&params);
	(void)state;

	assert_true(r->distinct_max <= 2);
	assert_true(r->class_lag[0] > 0.99);
	assert_true(r->position_chi > 1000);
	assert_true(r->slot_by_part[0] < 0.01);
	free(r);
}

static void halves(const void *arg, uint64_t epoch, uint32_t *slots)
{
	uint32_t half = *(const uint32_t *)arg / 2;

	shard_quality_shuffle(epoch, half, slots);
	shard_quality_shuffle(epoch + 1, half, slots + half);
	for (uint32_t i = 0; i < half; i++)
		slots[half + i] += half;
}

/* A shuffle of each half by itself: batches look random, the position does not. */
static void uneven_positions_are_found_out(void **state)
{
	uint32_t n = N;
	struct shard_quality_result *r = measure_sequences(halves, &n, n);
	(void)state;

	assert_true(r->position_chi > 10);
	assert_true(r->slot_by_part[0] < 0.3 && r->slot_by_part[63] > 0.7);
	free(r);
}

/* 0 1 2 3 of four: mean 1.5, variance 1.25; lag 1: (0.75 - 0.25 + 0.75) / 3 / 1.25 */
static void correlation_by_hand(void **state)
{
	struct shard_quality_options options = { .n_slots = 4, .n_classes = 4, .batch = 4 };
	static const uint32_t ascending[4] = { 0, 1, 2, 3 };
	struct shard_quality_result *r = malloc(sizeof(*r));
	struct shard_quality *quality;
	(void)state;

	assert_int_equal(shard_quality_new(&options, &quality), 0);
	shard_quality_add(quality, ascending, ascending, 4);
	shard_quality_get(quality, r);
	assert_true(fabs(r->class_lag[0] - 1.25 / 3 / 1.25) < 1e-12);
	assert_true(fabs(r->slot_lag[2] - -2.25 / 1.25) < 1e-12); /* lag 3: the two ends */
	assert_int_equal(r->distinct_counts[4], 1);
	shard_quality_free(quality);
	free(r);
}

static void undefined_values_are_not_numbers(void **state)
{
	struct shard_quality_options options = { .n_slots = 10, .n_classes = 1, .batch = 256 };
	static const uint32_t slots[10] = { 3, 1, 2, 0, 5, 4, 7, 6, 9, 8 };
	static const uint32_t classes[10] = { 0 };
	struct shard_quality_result *r = malloc(sizeof(*r));
	struct shard_quality *quality;
	(void)state;

	assert_int_equal(shard_quality_new(&options, &quality), 0);
	shard_quality_add(quality, slots, classes, 10);
	shard_quality_add(quality, slots, classes, 0);
	shard_quality_get(quality, r);
	assert_int_equal(r->batches, 0);
	assert_true(isnan(r->distinct_mean));
	assert_true(isnan(r->class_lag[0])); /* one class has no variance */
	assert_false(isnan(r->slot_lag[0]));
	assert_true(isnan(r->slot_lag[7])); /* lag 16 of 10 samples */
	assert_true(isnan(r->position_chi));
	shard_quality_free(quality);
	free(r);
	options.batch = SHARD_QUALITY_BATCH_MAX + 1;
	assert_int_equal(shard_quality_new(&options, &quality), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_permutations_are_as_theory_says),
		cmocka_unit_test(full_is_as_good_as_random),
		cmocka_unit_test(chunk_of_sorted_classes_is_good_enough),
		cmocka_unit_test(stored_order_is_found_out),
		cmocka_unit_test(uneven_positions_are_found_out),
		cmocka_unit_test(correlation_by_hand),
		cmocka_unit_test(undefined_values_are_not_numbers),
	};

	return cmocka_run_group_tests_name("quality", tests, NULL, NULL);
}
