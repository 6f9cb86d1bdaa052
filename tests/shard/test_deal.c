/* SPDX-License-Identifier: Apache-2.0 */
/* Dealing positions to ranks: a partition for every world and tail, and exactly once across changes of the world. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "shard/deal.h"
#include "shard/order.h"

static const enum shard_tail tails[] = { SHARD_TAIL_PAD, SHARD_TAIL_DROP, SHARD_TAIL_SHORT };

static struct shard_deal deal_of(enum shard_deal_mode mode, uint64_t n, uint32_t world, enum shard_tail tail)
{
	return (struct shard_deal){ .n = n, .world = world, .mode = mode, .tail = tail, .block_items = 8 };
}

/* Every rank's turns: positions consumed are counted, steps are as documented, the inverse finds the first
 * occurrence. */
static void take_all(const struct shard_deal *deal, unsigned *counts)
{
	uint64_t total = 0;

	assert_int_equal(shard_deal_check(deal), 0);
	for (uint32_t rank = 0; rank < deal->world; rank++) {
		uint64_t turns = shard_deal_turns(deal, rank);

		total += turns;
		for (uint64_t k = 0; k < turns; k++) {
			uint64_t step;
			uint64_t position = shard_deal_position(deal, rank, k, &step);

			assert_true(position < deal->n);
			assert_int_equal(step, deal->start + k * deal->world + rank);
			assert_int_equal(shard_deal_step_position(deal, step), position);
			if (step < deal->n)
				assert_int_equal(shard_deal_step(deal, position), step);
			counts[position]++;
		}
	}
	assert_int_equal(shard_deal_end(deal), deal->start + total);
}

/* What each tail promises for m positions and W ranks. */
static void check_tail(const struct shard_deal *deal, const unsigned *counts)
{
	uint64_t m = deal->n - deal->start;
	uint64_t rest = m % deal->world;
	uint64_t sum = 0;

	for (uint64_t p = 0; p < deal->n; p++)
		sum += counts[p];
	for (uint32_t rank = 0; rank < deal->world; rank++) {
		uint64_t turns = shard_deal_turns(deal, rank);

		assert_int_equal(turns, m / deal->world + (deal->tail == SHARD_TAIL_PAD            ? rest > 0
		                                                  : deal->tail == SHARD_TAIL_SHORT ? rank < rest
		                                                                                   : 0));
	}
	switch (deal->tail) {
	case SHARD_TAIL_SHORT:
		assert_int_equal(sum, m);
		break;
	case SHARD_TAIL_DROP:
		assert_int_equal(sum, m - rest);
		break;
	case SHARD_TAIL_PAD:
		assert_int_equal(sum, rest > 0 ? m + deal->world - rest : m);
		break;
	}
	for (uint64_t step = deal->start; step < deal->n; step++) {
		uint64_t times = 1;

		if (deal->tail == SHARD_TAIL_DROP) {
			times = step < deal->n - rest;
		} else if (deal->tail == SHARD_TAIL_PAD && m > 0) {
			uint64_t padding = sum - m; /* the first ones again, over and over */

			times += padding / m + (step - deal->start < padding % m);
		}
		if (step < shard_deal_end(deal))
			assert_int_equal(counts[shard_deal_step_position(deal, step)], times);
	}
}

static void ranks_partition_the_epoch(void **state)
{
	unsigned counts[400];
	(void)state;

	for (uint64_t n = 0; n < 400; n += n < 70 ? 1 : 23) {
		for (uint32_t world = 1; world <= 16; world++) {
			for (unsigned t = 0; t < 3; t++) {
				for (int mode = SHARD_DEAL_STRIDE; mode <= SHARD_DEAL_BLOCK; mode++) {
					struct shard_deal deal =
					        deal_of((enum shard_deal_mode)mode, n, world, tails[t]);

					memset(counts, 0, sizeof(counts));
					deal.block_items = 1 + n % 11;
					take_all(&deal, counts);
					check_tail(&deal, counts);
				}
			}
		}
	}
}

/* DistributedSampler's own words: `indices += (indices * ceil(padding / len))[:padding]`. */
static void padding_may_be_longer_than_the_epoch(void **state)
{
	struct shard_deal deal = deal_of(SHARD_DEAL_STRIDE, 3, 16, SHARD_TAIL_PAD);
	(void)state;

	for (uint32_t rank = 0; rank < 16; rank++) {
		assert_int_equal(shard_deal_turns(&deal, rank), 1);
		assert_int_equal(shard_deal_position(&deal, rank, 0, NULL), rank % 3);
	}
}

static void stride_does_not_depend_on_the_world(void **state)
{
	(void)state;
	for (uint32_t world = 1; world <= 16; world++) {
		struct shard_deal deal = deal_of(SHARD_DEAL_STRIDE, 1000, world, SHARD_TAIL_SHORT);

		for (uint64_t step = 0; step < 1000; step++)
			assert_int_equal(shard_deal_step_position(&deal, step), step);
	}
}

static void blocks_are_whole(void **state)
{
	enum { N = 1003, WORLD = 5, BLOCK = 16 };
	struct shard_deal deal = deal_of(SHARD_DEAL_BLOCK, N, WORLD, SHARD_TAIL_SHORT);
	uint64_t rounds = N / BLOCK / WORLD;
	(void)state;

	deal.block_items = BLOCK;
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		for (uint64_t k = 0; k < rounds * BLOCK; k++)
			assert_int_equal(shard_deal_position(&deal, rank, k, NULL),
			        (k / BLOCK * WORLD + rank) * BLOCK + k % BLOCK);
	}
}

/* Runs a job through segments of (world, steps), the last one to the end of the epoch; every position exactly once. */
static void check_chain(enum shard_deal_mode mode, uint64_t n, uint64_t block_items, unsigned count,
        const struct shard_deal_segment *segments)
{
	uint8_t *seen = calloc(n + 1, 1);
	struct shard_deal deal = { .n = n, .mode = mode, .tail = SHARD_TAIL_SHORT, .block_items = block_items };

	for (unsigned s = 0; s < count; s++) {
		uint64_t end = deal.start + segments[s].steps;

		deal.world = segments[s].world;
		if (s + 1 == count || end > n)
			end = n;
		assert_int_equal(shard_deal_check(&deal), 0);
		for (uint64_t p = 0; p < n; p++) /* what was consumed is known to be */
			assert_int_equal(shard_deal_step(&deal, p) == UINT64_MAX, seen[p]);
		for (uint64_t step = deal.start; step < end; step++) {
			uint64_t position = shard_deal_step_position(&deal, step);

			assert_true(position < n);
			assert_int_equal(seen[position], 0);
			assert_int_equal(shard_deal_step(&deal, position), step);
			seen[position] = 1;
		}
		if (s + 1 < count && end > deal.start && mode == SHARD_DEAL_BLOCK) {
			struct shard_deal_segment *last = deal.n_past > 0 ? &deal.past[deal.n_past - 1] : NULL;

			if (last && last->world == deal.world)
				last->steps += end - deal.start;
			else
				deal.past[deal.n_past++] =
				        (struct shard_deal_segment){ .world = deal.world, .steps = end - deal.start };
		}
		deal.start = end;
	}
	for (uint64_t p = 0; p < n; p++)
		assert_int_equal(seen[p], 1);
	free(seen);
}

static void resumes_exactly_once_for_all_pairs_of_worlds(void **state)
{
	static const uint64_t stops[] = { 0, 1, 7, 16, 100, 257, 480, 511, 600, 607, 611, 613 };
	enum { N = 613 };
	(void)state;

	for (uint32_t a = 1; a <= 16; a++) {
		for (uint32_t b = 1; b <= 16; b++) {
			for (unsigned g = 0; g < sizeof(stops) / sizeof(stops[0]); g++) {
				struct shard_deal_segment segments[2] = { { a, stops[g] }, { b, 0 } };

				check_chain(SHARD_DEAL_STRIDE, N, 1, 2, segments);
				check_chain(SHARD_DEAL_BLOCK, N, 8, 2, segments);
				check_chain(SHARD_DEAL_BLOCK, N, 50, 2, segments);
			}
		}
	}
}

static void resumes_exactly_once_along_chains(void **state)
{
	uint64_t random = 1;
	(void)state;

	for (unsigned trial = 0; trial < 3000; trial++) {
		struct shard_deal_segment segments[SHARD_DEAL_SEGMENTS_MAX + 1];
		unsigned count = 3 + trial % (SHARD_DEAL_SEGMENTS_MAX - 1);
		uint64_t n;
		uint64_t block;

		for (unsigned s = 0; s < count; s++) {
			random = shard_mix64(random + s + trial);
			segments[s] = (struct shard_deal_segment){ 1 + random % 16, random / 16 % 60 };
			if (s + 1 == count)
				segments[s].steps = 0;
		}
		n = 100 + random / 1024 % 400;
		block = 1 + random / 2048 % 20;
		check_chain(SHARD_DEAL_BLOCK, n, block, count, segments);
		check_chain(SHARD_DEAL_STRIDE, n, block, count, segments);
	}
}

/* A resumed rank finds in [start, n) what it would have found: same world, same samples, nothing reshuffled. */
static void same_world_goes_on_as_if_nothing_happened(void **state)
{
	(void)state;
	for (int mode = SHARD_DEAL_STRIDE; mode <= SHARD_DEAL_BLOCK; mode++) {
		struct shard_deal whole = deal_of((enum shard_deal_mode)mode, 500, 4, SHARD_TAIL_PAD);
		struct shard_deal rest = whole;

		rest.start = 120;
		if (mode == SHARD_DEAL_BLOCK) {
			rest.n_past = 1;
			rest.past[0] = (struct shard_deal_segment){ 4, 120 };
		}
		for (uint32_t rank = 0; rank < 4; rank++) {
			assert_int_equal(shard_deal_turns(&rest, rank), shard_deal_turns(&whole, rank) - 30);
			for (uint64_t k = 0; k < shard_deal_turns(&rest, rank); k++)
				assert_int_equal(shard_deal_position(&rest, rank, k, NULL),
				        shard_deal_position(&whole, rank, k + 30, NULL));
		}
	}
}

static void tails_hold_after_a_resume(void **state)
{
	unsigned counts[200];
	(void)state;

	for (uint32_t world = 1; world <= 16; world++) {
		for (uint64_t start = 0; start <= 150; start++) {
			for (unsigned t = 0; t < 3; t++) {
				for (int mode = SHARD_DEAL_STRIDE; mode <= SHARD_DEAL_BLOCK; mode++) {
					struct shard_deal deal =
					        deal_of((enum shard_deal_mode)mode, 150, world, tails[t]);

					deal.start = start;
					if (mode == SHARD_DEAL_BLOCK && start > 0) {
						deal.n_past = 1;
						deal.past[0] = (struct shard_deal_segment){ 3, start };
					}
					memset(counts, 0, sizeof(counts));
					take_all(&deal, counts);
					check_tail(&deal, counts);
				}
			}
		}
	}
}

static void huge_worlds_and_epochs(void **state)
{
	static const uint32_t worlds[] = { 4096, 100000, SHARD_WORLD_MAX };
	(void)state;

	for (unsigned w = 0; w < 3; w++) {
		for (int mode = SHARD_DEAL_STRIDE; mode <= SHARD_DEAL_BLOCK; mode++) {
			struct shard_deal deal =
			        deal_of((enum shard_deal_mode)mode, 10000000019, worlds[w], SHARD_TAIL_PAD);

			deal.block_items = 65536;
			deal.start = 5000000000;
			if (mode == SHARD_DEAL_BLOCK) {
				deal.n_past = 2;
				deal.past[0] = (struct shard_deal_segment){ 1000, 1000000007 };
				deal.past[1] = (struct shard_deal_segment){ 77, 3999999993 };
			}
			assert_int_equal(shard_deal_check(&deal), 0);
			for (uint64_t i = 0; i < 20000; i++) {
				uint64_t step = deal.start + i * (deal.n - deal.start) / 20000;
				uint64_t position = shard_deal_step_position(&deal, step);

				assert_true(position < deal.n);
				assert_int_equal(shard_deal_step(&deal, position), step);
			}
		}
	}
}

static void refuses_bad_fields(void **state)
{
	struct shard_deal good = deal_of(SHARD_DEAL_BLOCK, 100, 4, SHARD_TAIL_PAD);
	struct shard_deal bad;
	(void)state;

	assert_int_equal(shard_deal_check(&good), 0);
	bad = good;
	bad.world = 0;
	assert_int_equal(shard_deal_check(&bad), -EINVAL);
	bad.world = SHARD_WORLD_MAX + 1;
	assert_int_equal(shard_deal_check(&bad), -EINVAL);
	bad = good;
	bad.mode = SHARD_DEAL_AUTO;
	assert_int_equal(shard_deal_check(&bad), -EINVAL);
	bad = good;
	bad.block_items = 0;
	assert_int_equal(shard_deal_check(&bad), -EINVAL);
	bad = good;
	bad.start = 101;
	assert_int_equal(shard_deal_check(&bad), -EINVAL);
	bad.start = 10; /* no segment says which world */
	assert_int_equal(shard_deal_check(&bad), -EINVAL);
	bad.n_past = 2;
	bad.past[0] = (struct shard_deal_segment){ 3, 4 };
	bad.past[1] = (struct shard_deal_segment){ 5, 7 };
	assert_int_equal(shard_deal_check(&bad), -EINVAL);
	bad.past[1].steps = 6;
	assert_int_equal(shard_deal_check(&bad), 0);
	bad.past[1].world = 0;
	assert_int_equal(shard_deal_check(&bad), -EINVAL);
	bad.past[1] = (struct shard_deal_segment){ 5, UINT64_MAX };
	assert_int_equal(shard_deal_check(&bad), -EINVAL);
	bad.n_past = SHARD_DEAL_SEGMENTS_MAX + 1;
	assert_int_equal(shard_deal_check(&bad), -EINVAL);
}

static void names_round_trip(void **state)
{
	enum shard_deal_mode mode;
	enum shard_tail tail;
	(void)state;

	for (int m = SHARD_DEAL_AUTO; m <= SHARD_DEAL_BLOCK; m++) {
		assert_int_equal(shard_deal_mode_parse(shard_deal_mode_name((enum shard_deal_mode)m), &mode), 0);
		assert_int_equal(mode, m);
	}
	for (int t = SHARD_TAIL_PAD; t <= SHARD_TAIL_SHORT; t++) {
		assert_int_equal(shard_tail_parse(shard_tail_name((enum shard_tail)t), &tail), 0);
		assert_int_equal(tail, t);
	}
	assert_int_equal(shard_deal_mode_parse("blocks", &mode), -EINVAL);
	assert_int_equal(shard_tail_parse("", &tail), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ranks_partition_the_epoch),
		cmocka_unit_test(padding_may_be_longer_than_the_epoch),
		cmocka_unit_test(stride_does_not_depend_on_the_world),
		cmocka_unit_test(blocks_are_whole),
		cmocka_unit_test(resumes_exactly_once_for_all_pairs_of_worlds),
		cmocka_unit_test(resumes_exactly_once_along_chains),
		cmocka_unit_test(same_world_goes_on_as_if_nothing_happened),
		cmocka_unit_test(tails_hold_after_a_resume),
		cmocka_unit_test(huge_worlds_and_epochs),
		cmocka_unit_test(refuses_bad_fields),
		cmocka_unit_test(names_round_trip),
	};

	return cmocka_run_group_tests_name("deal", tests, NULL, NULL);
}
