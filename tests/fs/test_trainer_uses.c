/* SPDX-License-Identifier: Apache-2.0 */
/* What a tier is told by a recognised order: when it is told, when no more, and what a host of several fetches then. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "cache/cache.h"
#include "cache/tier_uses.h"
#include "fs/trainer_uses.h"
#include "shard/torch_rng.h"
#include "tests/cache/tier_dir.h"
#include "tests/cache/tier_simulated.h"
#include "tests/shard/synth.h"

enum {
	WORLD = 8,
	SEED = 7,
	OPENS = 64,         /* between two looks of the recogniser */
	STEP_NS = 20000000, /* of a look */
};

/* A mount of all files, through which ranks of a job read; without `uses`, nothing is told. */
struct host {
	const struct shard_index *index;
	struct cache_tier *tier;
	struct cache_tier_uses *uses;
	struct prefetch_recognise *recognise;
	struct fs_trainer_uses *tu;
	uint32_t n, perm[N]; /* files; the order of the latest epoch */
};

static struct host *host_new(const struct shard_index *index, uint64_t tier_bytes, bool tells)
{
	const struct prefetch_recognise_options options = { .index = index };
	struct host *host = calloc(1, sizeof(*host));
	assert_non_null(host);
	host->index = index;
	host->n = shard_index_info(index)->n_files;
	host->tier = tier_simulated_opened(shard_index_info(index)->identity, tier_bytes);
	assert_int_equal(prefetch_recognise_new(&options, &host->recognise), 0);
	if (tells) {
		assert_int_equal(cache_tier_uses_new_told(host->tier, index, &host->uses), 0);
		assert_int_equal(fs_trainer_uses_new(index, NULL, host->uses, &host->tu), 0);
	}
	return host;
}

static void host_free(struct host *host)
{
	fs_trainer_uses_free(host->tu);
	prefetch_recognise_free(host->recognise);
	cache_tier_uses_free(host->uses);
	cache_tier_close(host->tier);
	free(host);
}

/* What the recognise thread does between opens. */
static void look(struct host *host)
{
	while (prefetch_recognise_step(host->recognise, STEP_NS) == 1)
		;
	while (host->tu && fs_trainer_uses_step(host->tu, host->recognise, STEP_NS) == 1)
		;
}

/* Reads a file as the engine does.  Returns whether the tier had it. */
static bool read_file(struct host *host, uint32_t file, uint64_t epoch)
{
	static uint8_t want[LEN], bytes[LEN];
	struct cache_tier_block block = tier_simulated_block(file, 0, 0, want);
	if (host->uses)
		cache_tier_uses_of(host->uses, epoch, &block);
	bool hit = cache_tier_get(host->tier, &block, bytes) == 0;
	if ((!hit || block.next) && !cache_tier_full(host->tier, &block))
		cache_tier_put(host->tier, &block, want);
	return hit;
}

/* Reads `turns` of what a DistributedSampler deals to ranks in an epoch.  Returns the share that the tier did not
 * have. */
static double read_turns(
        struct host *host, uint64_t seed, uint64_t epoch, uint32_t rank, uint32_t ranks, uint32_t turns)
{
	uint32_t opens = 0, missed = 0;
	shard_torch_randperm(host->n, seed + epoch, host->perm);
	for (uint32_t turn = 0; turn < turns; turn++) {
		for (uint32_t i = rank; i < rank + ranks; i++) {
			uint32_t file = host->perm[turn * WORLD + i];
			missed += !read_file(host, file, epoch);
			prefetch_recognise_opened(host->recognise, &file, 1);
			if (++opens % OPENS == 0)
				look(host);
		}
	}
	look(host);
	return (double)missed / opens;
}

/* Returns the next use of a file that is read in epoch 0, in epochs; 32 also if none is known; 0: it is not told. */
static uint32_t next_epoch(struct host *host, uint32_t file)
{
	static uint8_t want[LEN];
	struct cache_tier_block block = tier_simulated_block(file, 0, 0, want);
	cache_tier_uses_of(host->uses, 0, &block);
	return block.next ? (block.next - 1) / CACHE_TIER_EPOCH : 0;
}

/* Returns the first epoch from 1 on in which one of two ranks reads a file. */
static uint32_t wanted_epoch(struct host *host, uint32_t file, uint32_t one, uint32_t other)
{
	for (uint32_t epoch = 1;; epoch++) {
		shard_torch_randperm(host->n, SEED + epoch, host->perm);
		for (uint32_t i = 0; i < host->n; i++)
			if (host->perm[i] == file && (i % WORLD == one || i % WORLD == other))
				return epoch;
	}
}

static void expect_uses(struct host *host, uint32_t rank, uint32_t one, uint32_t other)
{
	uint32_t files[50];
	shard_torch_randperm(host->n, SEED, host->perm);
	for (uint32_t i = 0; i < 50; i++)
		files[i] = host->perm[i * WORLD + rank];
	for (uint32_t i = 0; i < 50; i++) {
		uint32_t wanted = wanted_epoch(host, files[i], one, other);
		assert_int_equal(next_epoch(host, files[i]), wanted <= 32 ? wanted : 32);
	}
}

/* All hosts are alike, so one is simulated.  Returns what it fetches when the tier is full of what it keeps. */
static double of_eight_hosts(bool tells)
{
	struct shard_index *index = tier_simulated_dataset(N);
	struct host *host = host_new(index, LARGE, tells);
	enum { BEFORE = 9, MEASURED = 8 };
	double origin = 0;
	for (uint64_t e = 0; e < BEFORE + MEASURED; e++) {
		double part = read_turns(host, SEED, e, 2, 1, N / WORLD);
		print_message("a tier of 25%%, view=all, one of 8 hosts, epoch %d: %.3f\n", (int)e + 1, part);
		origin += e >= BEFORE ? part / MEASURED : 0;
	}
	print_message("mean of the last %d: %.3f\n", MEASURED, origin);
	host_free(host);
	synth_close(index);
	return origin;
}

/* The same, but an announced list has the order: files are fetched LEAD turns before they are opened, and the list does
 * not say in which epoch. */
static double of_eight_hosts_that_announce(void)
{
	enum { BEFORE = 9, MEASURED = 8, TURNS = N / WORLD, LEAD = TURNS / 8, ALL = (BEFORE + MEASURED) * TURNS };
	static uint32_t ahead[LEAD]; /* fetched, and not opened yet; a ring */
	struct shard_index *index = tier_simulated_dataset(N);
	struct host *host = host_new(index, LARGE, true);
	uint32_t missed = 0;
	for (uint32_t turn = 0; turn < ALL; turn++) {
		if (turn % TURNS == 0)
			shard_torch_randperm(N, SEED + turn / TURNS, host->perm);
		if (turn >= LEAD)
			fs_trainer_uses_opened(host->tu, &ahead[turn % LEAD], 1, 0);
		ahead[turn % LEAD] = host->perm[turn % TURNS * WORLD + 2];
		bool hit = read_file(host, ahead[turn % LEAD], CACHE_TIER_USES_LATEST);
		missed += turn >= BEFORE * TURNS && !hit;
		if (turn % OPENS == 0)
			look(host);
	}
	assert_int_equal(cache_tier_uses_epochs(host->uses), cache_tier_uses_ahead(host->uses) + 1);
	host_free(host);
	synth_close(index);
	print_message("announced, mean of the last %d epochs: %.3f\n", MEASURED, (double)missed / (MEASURED * TURNS));
	return (double)missed / (MEASURED * TURNS);
}

static void a_host_of_eight_keeps_what_its_trainer_announces(void **state)
{
	(void)state;
	assert_true(of_eight_hosts_that_announce() <= 0.45);
}

static void an_announced_order_is_told_before_another(void **state)
{
	enum { TURNS = N / 16 / WORLD };
	struct shard_index *index = tier_simulated_dataset(N / 16);
	struct host *host = host_new(index, CACHE_TIER_SIZE_MIN, true);
	(void)state;
	read_turns(host, SEED + 40, 0, 4, 2, 300);
	assert_true(fs_trainer_uses_tells(host->tu, host->recognise, 0, 0));
	shard_torch_randperm(host->n, SEED, host->perm);
	for (uint32_t turn = 0; turn < 300; turn++)
		fs_trainer_uses_opened(host->tu, &host->perm[turn * WORLD + 1], 1, 0);
	look(host);
	expect_uses(host, 1, 1, 1);
	fs_trainer_uses_opened(host->tu, NULL, 0, TURNS - 1);
	look(host);
	expect_uses(host, 1, 1, 1);
	assert_false(fs_trainer_uses_tells(host->tu, host->recognise, 0, 0));
	fs_trainer_uses_opened(host->tu, NULL, 0, 1);
	look(host);
	assert_true(fs_trainer_uses_tells(host->tu, host->recognise, 0, 0));
	host_free(host);
	synth_close(index);
}

static void a_host_of_eight_keeps_what_its_trainer_reads_next(void **state)
{
	(void)state;
	assert_true(of_eight_hosts(true) <= 0.45);
}

static void a_host_of_eight_that_is_told_nothing_fetches_three_quarters(void **state)
{
	(void)state;
	assert_true(of_eight_hosts(false) > 0.7);
}

static void next_uses_are_those_of_the_sampler(void **state)
{
	struct shard_index *index = tier_simulated_dataset(N / 16);
	struct host *host = host_new(index, CACHE_TIER_SIZE_MIN, true);
	(void)state;
	assert_int_equal(next_epoch(host, 0), 0);
	assert_int_equal(cache_tier_uses_epochs(host->uses), 0);
	read_turns(host, SEED, 0, 2, 2, 300);
	assert_int_equal(cache_tier_uses_epochs(host->uses), cache_tier_uses_ahead(host->uses) + 1);
	expect_uses(host, 3, 2, 3);
	host_free(host);
	synth_close(index);
}

static void mounts_of_a_host_know_each_others_ranks(void **state)
{
	struct shard_index *index = tier_simulated_dataset(N / 16);
	struct host *host = host_new(index, CACHE_TIER_SIZE_MIN, true);
	struct host *other = host_new(index, CACHE_TIER_SIZE_MIN, true);
	(void)state;
	read_turns(other, SEED, 0, 6, 1, 300);
	read_turns(host, SEED, 0, 1, 1, 300);
	expect_uses(host, 1, 1, 6);
	host_free(other);
	host_free(host);
	synth_close(index);
}

static void an_order_that_is_lost_is_told_no_more(void **state)
{
	struct shard_index *index = tier_simulated_dataset(N / 16);
	struct host *host = host_new(index, CACHE_TIER_SIZE_MIN, true);
	struct host *other = host_new(index, CACHE_TIER_SIZE_MIN, true);
	uint64_t ranks = 0;
	(void)state;
	read_turns(other, SEED, 0, 6, 1, 300);
	read_turns(host, SEED, 0, 1, 1, 300);
	cache_tier_ranks(other->tier, WORLD, &ranks);
	assert_int_equal(ranks, 1 << 1);
	assert_int_not_equal(next_epoch(host, host->perm[1]), 0);
	assert_int_equal(fs_trainer_uses_step(host->tu, NULL, STEP_NS), 0);
	assert_int_equal(next_epoch(host, host->perm[1]), 0);
	assert_int_equal(cache_tier_uses_epochs(host->uses), 0);
	ranks = 0;
	cache_tier_ranks(other->tier, WORLD, &ranks);
	assert_int_equal(ranks, 0);
	while (fs_trainer_uses_step(host->tu, host->recognise, STEP_NS)) /* it is found again */
		;
	assert_int_not_equal(next_epoch(host, host->perm[1]), 0);
	host_free(other);
	host_free(host);
	synth_close(index);
}

/* The sampler of a job that forgets set_epoch: the host reads the same files in each epoch. */
static void the_same_permutation_again_tells_nothing(void **state)
{
	struct shard_index *index = tier_simulated_dataset(N / 16);
	struct host *host = host_new(index, CACHE_TIER_SIZE_MIN, true);
	(void)state;
	read_turns(host, SEED, 0, 1, 1, N / 16 / WORLD);
	assert_int_not_equal(cache_tier_uses_epochs(host->uses), 0);
	read_turns(host, SEED, 0, 1, 1, N / 16 / WORLD);
	assert_int_equal(cache_tier_uses_epochs(host->uses), 0);
	assert_int_equal(next_epoch(host, host->perm[1]), 0);
	host_free(host);
	synth_close(index);
}

/* A trainer that begins again in the epoch in which it ended draws the same permutation once more. */
static void after_one_permutation_twice_the_next_one_is_told(void **state)
{
	struct shard_index *index = tier_simulated_dataset(N / 16);
	struct host *host = host_new(index, CACHE_TIER_SIZE_MIN, true);
	(void)state;
	read_turns(host, SEED, 0, 1, 1, N / 16 / WORLD);
	read_turns(host, SEED - 1, 1, 1, 1, N / 16 / WORLD);
	assert_int_equal(cache_tier_uses_epochs(host->uses), 0);
	for (uint64_t epoch = 2; epoch < 4; epoch++) {
		read_turns(host, SEED - 1, epoch, 1, 1, N / 16 / WORLD);
		assert_int_equal(cache_tier_uses_epochs(host->uses), cache_tier_uses_ahead(host->uses) + 1);
	}
	host_free(host);
	synth_close(index);
}

static void a_trainer_that_reads_everything_tells_nothing(void **state)
{
	struct shard_index *index = tier_simulated_dataset(N / 16);
	struct host *host = host_new(index, CACHE_TIER_SIZE_MIN, true);
	(void)state;
	read_turns(host, SEED, 0, 0, WORLD, 100);
	assert_int_equal(cache_tier_uses_epochs(host->uses), 0);
	assert_int_equal(next_epoch(host, host->perm[0]), 0);
	host_free(host);
	synth_close(index);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, tier_simulated_set_up, tier_simulated_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_host_of_eight_keeps_what_its_trainer_reads_next),
		TEST(a_host_of_eight_that_is_told_nothing_fetches_three_quarters),
		TEST(a_host_of_eight_keeps_what_its_trainer_announces),
		TEST(an_announced_order_is_told_before_another),
		TEST(next_uses_are_those_of_the_sampler),
		TEST(mounts_of_a_host_know_each_others_ranks),
		TEST(an_order_that_is_lost_is_told_no_more),
		TEST(the_same_permutation_again_tells_nothing),
		TEST(after_one_permutation_twice_the_next_one_is_told),
		TEST(a_trainer_that_reads_everything_tells_nothing),
	};
	return cmocka_run_group_tests_name("fs/trainer_uses", tests, NULL, NULL);
}
