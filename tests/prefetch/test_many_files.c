/* SPDX-License-Identifier: Apache-2.0 */
/* Shuffles of other libraries over 100,000 files: recognised after at most 96 opens, and followed.  test_shuffles.c has
 * more ways of dealing, over 10,000 files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "prefetch/sampler/recognise.h"
#include "shard/base/sanitized.h"
#include "tests/prefetch/loader.h"
#include "tests/prefetch/orders.h"
#include "tests/shard/synth.h"

enum { CLASSES = 100, N = 100000, OPENS_MAX = 96, DALI_SEED = 524287 };

static struct shard_index *dataset;
static uint32_t order[N], opens[N];

static struct prefetch_recognise *new_recognise(void)
{
	struct prefetch_recognise *r;
	struct prefetch_recognise_options options = { .index = dataset, .seed_max = 3000, .popular_words = 1 };
	assert_int_equal(prefetch_recognise_new(&options, &r), 0);
	return r;
}

/* No time passes, on slow machines too: a search ends early when nothing is opened for a while. */
static uint64_t no_time_passes(void *user)
{
	(void)user;
	return 1;
}

/* As on a mount: a thread tries all seeds, and nobody waits for it.  Here the budget is more than is spent. */
static struct prefetch_recognise *new_recognise_with_thread(void)
{
	struct prefetch_recognise *r;
	struct prefetch_recognise_options options = { .index = dataset,
		.popular_words = 1,
		.search_burst_ns = UINT64_C(100000000000),
		.search_permille = 50,
		.search_thread = true,
		.elapsed_ns = no_time_passes };
	assert_int_equal(prefetch_recognise_new(&options, &r), 0);
	return r;
}

static void open_files(struct prefetch_recognise *r, const uint32_t *files, uint32_t n)
{
	for (uint32_t k = 0; k < n; k++) {
		prefetch_recognise_opened(r, &files[k], 1);
		if (k % 16 == 15)
			recognise_work(r);
	}
	recognise_work(r);
}

/* Opens 96 files, after which the sampler must be known, and then the rest. */
static void assert_followed(
        struct prefetch_recognise *r, const uint32_t *files, uint32_t n, enum prefetch_sampler sampler)
{
	struct prefetch_recognised track;
	open_files(r, files, OPENS_MAX);
	if (prefetch_recognise_get(r, 0, &track) < 0)
		fail_msg("sampler %u: nothing is recognised", sampler);
	assert_int_equal(track.sampler, sampler);
	open_files(r, files + OPENS_MAX, n - OPENS_MAX);
	assert_int_equal(prefetch_recognise_get(r, 0, &track), 0);
	assert_int_equal(recognised_tracks(r), 1);
	assert_true(track.opens >= n - n / 100);
}

static void dali_is_recognised(void **state)
{
	static const struct prefetch_shuffle ways[] = {
		{ .kind = PREFETCH_SHUFFLE_STD, .seed = DALI_SEED },
		{ .kind = PREFETCH_SHUFFLE_STD64, .seed = DALI_SEED + (UINT64_C(1) << 32), .step = UINT64_C(1) << 32 },
	};
	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct prefetch_recognise *r = new_recognise();
		order_of_shuffle(&ways[i], N, order);
		assert_followed(r, order, N, sampler_of(ways[i].kind));
		prefetch_recognise_free(r);
	}
}

/* [rank::world] or a contiguous part, shuffled by itself. */
static void a_ranks_own_part_is_recognised(void **state)
{
	static const enum prefetch_shuffle_kind shuffles[] = { PREFETCH_SHUFFLE_NUMPY, PREFETCH_SHUFFLE_PYTHON,
		PREFETCH_SHUFFLE_NUMPY_RNG, PREFETCH_SHUFFLE_TORCH };
	enum { SHUFFLES = BASE_SANITIZED ? 1 : sizeof(shuffles) / sizeof(shuffles[0]), WORLD = 8, PART = N / WORLD };
	(void)state;
	for (unsigned i = 0; i < 2 * SHUFFLES; i++) {
		struct prefetch_recognise *r = new_recognise();
		uint32_t rank = 3, seed = i % 3 == 2 ? 900 : 123;
		order_of_seed(shuffles[i / 2], seed, PART, order);
		for (uint32_t k = 0; k < PART; k++)
			opens[k] = i % 2 ? order[k] * WORLD + rank : rank * PART + order[k];
		assert_followed(r, opens, PART, sampler_of(shuffles[i / 2]));
		prefetch_recognise_free(r);
	}
}

/* DLIO: the files are sorted by base name over all directories, and shuffled as a whole.  The other lists are tried in
 * vain first, and the thread is busy with them then. */
static void a_list_by_name_is_recognised(void **state)
{
	static const uint32_t seeds[] = { 123, 5000, 9999 };
	enum { SEEDS = sizeof(seeds) / sizeof(seeds[0]), EACH = BASE_SANITIZED ? FAMILIES : 1 };
	(void)state;
	for (unsigned i = 0; i < FAMILIES * SEEDS; i += EACH) {
		struct prefetch_recognise *r = new_recognise_with_thread();
		struct prefetch_recognised track;
		unsigned f = i % FAMILIES;
		order_of_seed(families[f], seeds[i / FAMILIES], N, order);
		for (uint32_t k = 0; k < N; k++)
			opens[k] = order[k] % CLASSES * (N / CLASSES) + order[k] / CLASSES;
		assert_followed(r, opens, N, sampler_of(families[f]));
		assert_int_equal(prefetch_recognise_get(r, 0, &track), 0);
		assert_int_equal(track.seed, seeds[i / FAMILIES]);
		assert_non_null(strstr(track.list, "sorted by name over all directories"));
		prefetch_recognise_free(r);
	}
}

/* Of so many files the recogniser's thread tries not all likely seeds.  The rest comes with all seeds, before torch's
 * 990,000 larger ones. */
static void the_last_likely_seeds_come_before_far_ones(void **state)
{
	enum { MANY = 250000, SEED = 9999, SEEDS_MAX = 500000, EACH = BASE_SANITIZED ? FAMILIES : 1 };
	struct shard_index *many =
	        synth_open(&(struct synth){ .classes = CLASSES, .per_class = MANY / CLASSES, .bytes = 1 });
	uint32_t *at = malloc(MANY * sizeof(*at));
	(void)state;
	assert_non_null(at);
	for (unsigned f = 0; f < FAMILIES; f += EACH) {
		struct prefetch_recognise *r;
		struct prefetch_recognise_options options = { .index = many, .popular_words = 1 };
		struct prefetch_recognised track = { 0 };
		struct prefetch_searched searched;
		assert_int_equal(prefetch_recognise_new(&options, &r), 0);
		order_of_seed(families[f], SEED, MANY, at);
		open_files(r, at, OPENS_MAX);
		prefetch_recognise_searched(r, &searched);
		prefetch_recognise_get(r, 0, &track);
		if (track.seed != SEED || track.sampler != sampler_of(families[f]) || searched.seeds > SEEDS_MAX)
			fail_msg("family %u: seed %llu after %llu seeds", f, (unsigned long long)track.seed,
			        (unsigned long long)searched.seeds);
		prefetch_recognise_free(r);
	}
	free(at);
	synth_close(many);
}

/* random.sample(list, k) of a third of the list or more draws what a sample of the whole list draws first
 * (test_recognise_libraries.py compares with Python itself).  Each epoch ends early. */
static void a_sample_of_half_the_list_is_followed(void **state)
{
	enum { HALF = N / 2, EPOCHS = 3 };
	struct prefetch_recognise *r = new_recognise();
	struct prefetch_recognised track;
	(void)state;
	for (uint32_t epoch = 0; epoch < EPOCHS; epoch++) {
		order_of_seed(PREFETCH_SHUFFLE_SAMPLE, 42 + epoch, N, order);
		open_files(r, order, HALF);
	}
	assert_int_equal(recognised_tracks(r), 1);
	assert_int_equal(prefetch_recognise_get(r, 0, &track), 0);
	assert_int_equal(track.sampler, PREFETCH_SAMPLER_PYTHON_SAMPLE);
	assert_int_equal(track.seed, 42 + EPOCHS - 1);
	assert_true(track.opens + EPOCHS * HALF / 100 >= EPOCHS * HALF);
	prefetch_recognise_free(r);
}

/* DALI's readers of all shards on one mount: each begins with its own, and goes on with the next one. */
static void dalis_shards_are_read_through_one_mount(void **state)
{
	enum { EPOCHS = 2 };
	uint64_t random = 3;
	(void)state;
	order_of_seed(PREFETCH_SHUFFLE_STD, DALI_SEED, N, order);
	for (uint32_t world = 2; world <= 4; world *= 2) {
		struct prefetch_recognise *r = new_recognise();
		uint32_t shard = N / world, next[4] = { 0 }, n = EPOCHS * N;
		uint64_t followed = 0;
		for (uint32_t k = 0; k < n; k++) {
			uint32_t rank = (uint32_t)(loader_random(&random) % world);
			while (next[rank] == EPOCHS * shard)
				rank = (rank + 1) % world;
			prefetch_recognise_opened(r, &order[(rank * shard + next[rank]++) % N], 1);
			if (k % 16 == 15)
				recognise_work(r);
		}
		for (unsigned t = 0; t < recognised_tracks(r); t++) {
			struct prefetch_recognised track;
			assert_int_equal(prefetch_recognise_get(r, t, &track), 0);
			assert_int_equal(track.sampler, PREFETCH_SAMPLER_DALI);
			followed += track.opens;
		}
		if (followed < n - n / 100)
			fail_msg("%u shards: %u opens of %u", world, (unsigned)followed, n);
		prefetch_recognise_free(r);
	}
}

static int setup(void **state)
{
	(void)state;
	dataset = synth_open(&(struct synth){ .classes = CLASSES, .per_class = N / CLASSES, .bytes = 1 });
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	synth_close(dataset);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(dali_is_recognised),
		cmocka_unit_test(a_ranks_own_part_is_recognised),
		cmocka_unit_test(a_list_by_name_is_recognised),
		cmocka_unit_test(the_last_likely_seeds_come_before_far_ones),
		cmocka_unit_test(a_sample_of_half_the_list_is_followed),
		cmocka_unit_test(dalis_shards_are_read_through_one_mount),
	};
	cmocka_set_test_filter(getenv("DDPFS_TEST")); /* a pattern, or NULL */
	return cmocka_run_group_tests(tests, setup, teardown);
}
