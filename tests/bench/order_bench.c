/* SPDX-License-Identifier: Apache-2.0 */
/* Cost of the order: ns per position -> item and back, time to begin an epoch and memory, beside a shuffled array.
 *
 *   tests/bench/run order_bench [EVALUATIONS]      (default 2,000,000 a figure; the median of 5 rounds) */
#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shard/base/units.h"
#include "shard/order.h"
#include "shard/quality.h"
#include "shard/torch_rng.h"
#include "tests/bench/bar.h"

enum { ROUNDS = 5 };
static volatile uint64_t sink; /* keeps results alive */

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a;
	double y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values)
{
	qsort(values, ROUNDS, sizeof(*values), compare);
	return values[ROUNDS / 2];
}

static uint64_t heap_bytes(void)
{
	struct mallinfo2 info = mallinfo2();

	return info.uordblks + info.hblkhd;
}

/* A walk that visits positions all over [0, n), as readers of different ranks and workers would. */
static uint64_t step_of(uint64_t n)
{
	return n / 2 + n / 5 + 1;
}

static double time_at(const struct shard_order *order, uint64_t count)
{
	uint64_t n = order->params.n;
	double rounds[ROUNDS];

	for (unsigned r = 0; r < ROUNDS; r++) {
		uint64_t position = r;
		uint64_t sum = 0;
		double start = now_ns();

		for (uint64_t i = 0; i < count; i++) {
			sum += shard_order_at(order, position);
			position += step_of(n);
			position = position < n ? position : position - n;
		}
		rounds[r] = (now_ns() - start) / (double)count;
		sink = sum;
	}
	return median(rounds);
}

static double time_position(const struct shard_order *order, uint64_t count)
{
	uint64_t n = order->params.n;
	double rounds[ROUNDS];

	for (unsigned r = 0; r < ROUNDS; r++) {
		uint64_t item = r;
		uint64_t sum = 0;
		double start = now_ns();

		for (uint64_t i = 0; i < count; i++) {
			sum += shard_order_position(order, item);
			item += step_of(n);
			item = item < n ? item : item - n;
		}
		rounds[r] = (now_ns() - start) / (double)count;
		sink = sum;
	}
	return median(rounds);
}

static void bench_order(enum shard_order_mode mode, uint64_t n, uint64_t count)
{
	struct shard_order_params params = { .mode = mode, .n = n, .seed = 7, .chunk_items = 32, .pool_chunks = 2048 };
	struct shard_order order;
	double inits[ROUNDS];
	char size[16];
	uint64_t before;
	int rc = 0;

	for (unsigned r = 0; r < ROUNDS; r++) {
		double start = now_ns();

		params.epoch = r;
		rc = shard_order_init(&order, &params);
		inits[r] = now_ns() - start;
		if (rc < 0)
			break;
		shard_order_done(&order);
	}
	before = heap_bytes();
	if (rc == 0)
		rc = shard_order_init(&order, &params);
	if (rc < 0) {
		printf("%-6s %12" PRIu64 "   - (%s)\n", shard_order_mode_name(mode), n,
		        mode == SHARD_ORDER_TORCH ? "torch's permutation needs an array: n < 2^32" : "failed");
		return;
	}
	uint64_t memory = sizeof(order) + heap_bytes() - before;
	double at = time_at(&order, count);
	printf("%-6s %12" PRIu64 " %14.1f %14.1f %14.3f %14s\n", shard_order_mode_name(mode), n, at,
	        time_position(&order, count), median(inits) / 1e6, base_format_size(memory, size));
	if (mode == SHARD_ORDER_FULL)
		bar_below("order=full, an evaluation", at, 200, "ns");
	if (mode != SHARD_ORDER_TORCH && n == 10000000000)
		bar_below("memory of an order of 10^10", (double)memory / 1024, 4, "KiB");
	shard_order_done(&order);
}

/* The peer: a Fisher-Yates array (no inverse), as samplers keep it. */
static void bench_array(uint32_t n, uint64_t count)
{
	uint32_t *perm = malloc(n * sizeof(*perm));
	double inits[ROUNDS];
	double reads[ROUNDS];
	char size[16];

	if (!perm)
		return;
	for (unsigned r = 0; r < ROUNDS; r++) {
		uint64_t position = r;
		uint64_t sum = 0;
		double start = now_ns();

		shard_quality_shuffle(r, n, perm);
		inits[r] = now_ns() - start;
		start = now_ns();
		for (uint64_t i = 0; i < count; i++) {
			sum += perm[position];
			position += step_of(n);
			position = position < n ? position : position - n;
		}
		reads[r] = (now_ns() - start) / (double)count;
		sink = sum;
	}
	printf("%-6s %12" PRIu32 " %14.1f %14s %14.3f %14s\n", "array", n, median(reads), "-", median(inits) / 1e6,
	        base_format_size(n * sizeof(*perm), size));
	free(perm);
}

int main(int argc, char **argv)
{
	static const enum shard_order_mode modes[] = { SHARD_ORDER_FULL, SHARD_ORDER_CHUNK, SHARD_ORDER_TORCH,
		SHARD_ORDER_NONE };
	static const uint64_t sizes[] = { 1000000, 1280000, 10000000000 };
	uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 2000000;

	if (count == 0)
		return 2;
	printf("%-6s %12s %14s %14s %14s %14s\n", "order", "samples", "ns at", "ns position", "ms an epoch", "memory");
	for (unsigned m = 0; m < 4; m++) {
		for (unsigned s = 0; s < 3; s++)
			bench_order(modes[m], sizes[s], count);
	}
	bench_array(1000000, count);
	bench_array(1280000, count);
	return 0;
}
