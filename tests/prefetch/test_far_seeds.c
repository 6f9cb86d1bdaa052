/* SPDX-License-Identifier: Apache-2.0 */
/* Large seeds of the lists that only shuffles try: files by base name over all directories, and the parts of several
 * ranks that each shuffle their own.  test_shuffles.c has the likely seeds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "prefetch/sampler/recognise.h"
#include "shard/base/sanitized.h"
#include "tests/prefetch/loader.h"
#include "tests/prefetch/orders.h"
#include "tests/shard/synth.h"

/* SEED: of several ranks' parts the likely ones end at 1,024. */
enum { DIRS = 5, N = 10000, EACH = N / DIRS, WORLD_MAX = 8, SEED = 1500 };

static struct shard_index *dataset;

static const enum prefetch_shuffle_kind shuffles[] = { PREFETCH_SHUFFLE_NUMPY, PREFETCH_SHUFFLE_PYTHON,
	PREFETCH_SHUFFLE_NUMPY_RNG, PREFETCH_SHUFFLE_TORCH };
/* Under a sanitizer, where a seed takes five times as long: the first one. */
enum { SHUFFLES = BASE_SANITIZED ? 1 : sizeof(shuffles) / sizeof(shuffles[0]) };

static struct prefetch_recognise *new_recognise(uint32_t seed_max, bool thread)
{
	struct prefetch_recognise *r;
	struct prefetch_recognise_options options = {
		.index = dataset, .seed_max = seed_max, .popular_words = 1, .search_thread = thread
	};
	/* Only a bounded search lets its thread spend time: it gets three quarters of this at once. */
	if (thread)
		options.search_burst_ns = UINT64_C(100000000000);
	assert_int_equal(prefetch_recognise_new(&options, &r), 0);
	return r;
}

/* DLIO: files sorted by base name over all directories, shuffled as a whole. */
static void a_list_by_name_is_found_with_any_seed(void **state)
{
	enum { LARGE = 12345, OPENS = 160 };
	static uint32_t at[N];
	(void)state;
	for (unsigned f = 0; f < SHUFFLES; f++) {
		struct prefetch_recognise *r = new_recognise(LARGE + 100, false);
		struct prefetch_recognised track;
		order_of_seed(shuffles[f], LARGE, N, at);
		for (uint32_t k = 0; k < OPENS; k++) {
			prefetch_recognise_opened(r, &(uint32_t){ at[k] % DIRS * EACH + at[k] / DIRS }, 1);
			if (k % 16 == 15)
				recognise_work(r);
		}
		if (prefetch_recognise_get(r, 0, &track) < 0)
			fail_msg("kind %u: nothing is recognised", shuffles[f]);
		assert_int_equal(track.sampler, sampler_of(shuffles[f]));
		assert_int_equal(track.seed, LARGE);
		assert_non_null(strstr(track.list, "sorted by name over all directories"));
		assert_int_equal(recognised_tracks(r), 1);
		prefetch_recognise_free(r);
	}
}

/* Waits until the thread has found an order, or the test fails. */
static void wait_for_seed(struct prefetch_recognise *r, uint32_t seed)
{
	enum { WAITS = 20000, WAIT_US = 1000 };
	struct prefetch_recognised track = { 0 };
	for (uint32_t i = 0; i < WAITS && prefetch_recognise_get(r, 0, &track) < 0; i++) {
		recognise_work(r);
		usleep(WAIT_US);
	}
	assert_int_equal(track.seed, seed);
}

/* The thread is busy with the lists of the look before, when the list by name is made.  A stranger opens a file that
 * becomes final early, so the recogniser, which tries this seed quickly, gives it up. */
static void a_list_by_name_is_found_by_the_thread(void **state)
{
	enum { OPENS = 160, AT = 20, EARLY = 50 };
	static uint32_t at[N];
	struct prefetch_recognise *r = new_recognise(100000, true);
	(void)state;
	order_of_seed(PREFETCH_SHUFFLE_NUMPY, 3 * SEED, N, at);
	for (uint32_t k = 0; k < OPENS; k++) {
		uint32_t item = at[k == AT ? N - 1 - EARLY : k];
		prefetch_recognise_opened(r, &(uint32_t){ item % DIRS * EACH + item / DIRS }, 1);
		if (k % 16 == 15)
			recognise_work(r);
	}
	wait_for_seed(r, 3 * SEED);
	prefetch_recognise_free(r);
}

/* The list by name joins the run that tries the parts of two ranks: their other seeds are tried, too. */
static void parts_are_found_by_the_thread_that_a_list_by_name_joins(void **state)
{
	enum { OPENS = 320, WORLD = 2, PART = N / WORLD };
	static uint32_t at[PART];
	struct prefetch_recognise *r = new_recognise(100000, true);
	(void)state;
	order_of_seed(PREFETCH_SHUFFLE_NUMPY, 20 * SEED, PART, at);
	for (uint32_t k = 0; k < OPENS; k++) {
		prefetch_recognise_opened(r, &(uint32_t){ k % WORLD * PART + at[k / WORLD] }, 1);
		if (k % 16 == 15)
			recognise_work(r);
	}
	wait_for_seed(r, 20 * SEED);
	prefetch_recognise_free(r);
}

/* Returns how many ranks are followed with the right seed, after so many opens. */
static unsigned ranks_found(enum prefetch_shuffle_kind kind, uint32_t world, const uint32_t *seeds, uint32_t opens)
{
	static uint32_t at[WORLD_MAX][N / 2];
	uint32_t part = N / world, next[WORLD_MAX] = { 0 }, seed_max = 0;
	uint64_t random = 19;
	unsigned found = 0;
	for (uint32_t rank = 0; rank < world; rank++) {
		seed_max = seeds[rank] > seed_max ? seeds[rank] : seed_max;
		order_of_seed(kind, seeds[rank], part, at[rank]);
	}
	struct prefetch_recognise *r = new_recognise(seed_max + 100, false);
	for (uint32_t k = 0; k < opens; k++) {
		uint32_t rank = (uint32_t)(loader_random(&random) % world);
		prefetch_recognise_opened(r, &(uint32_t){ rank * part + at[rank][next[rank]++] }, 1);
		if (k % 16 == 15)
			recognise_work(r);
	}
	for (unsigned t = 0; t < recognised_tracks(r); t++) {
		struct prefetch_recognised track;
		unsigned rank = 0, from = 0, to = 0;
		assert_int_equal(prefetch_recognise_get(r, t, &track), 0);
		const char *range = strrchr(track.list, ',');
		if (!range || sscanf(range, ", %u to %u", &from, &to) != 2)
			fail_msg("kind %u, %u ranks: %s", kind, world, track.list);
		rank = from / part;
		assert_int_equal(track.sampler, sampler_of(kind));
		assert_int_equal(track.seed, seeds[rank]);
		assert_int_equal(to + 1 - from, part);
		found++;
	}
	prefetch_recognise_free(r);
	return found;
}

static void ranks_with_their_own_parts_are_found_with_any_seed(void **state)
{
	static const uint32_t worlds[] = { 2, 4, 8 };
	(void)state;
	for (unsigned i = 0; i < 3 * SHUFFLES; i++) {
		uint32_t world = worlds[i % 3], seeds[WORLD_MAX];
		for (uint32_t rank = 0; rank < world; rank++)
			seeds[rank] = SEED;
		unsigned found = ranks_found(shuffles[i / 3], world, seeds, 1024);
		if (found != world)
			fail_msg("kind %u, %u ranks: %u are found", shuffles[i / 3], world, found);
	}
}

/* Each rank adds its number to the seed, so nothing but the number of opens says that there are such parts. */
static void ranks_with_seeds_of_their_own_are_found(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 2 * SHUFFLES; i++) {
		uint32_t world = i % 2 ? 4 : 2, seeds[WORLD_MAX];
		for (uint32_t rank = 0; rank < world; rank++)
			seeds[rank] = SEED + rank;
		unsigned found = ranks_found(shuffles[i / 2], world, seeds, 1024);
		if (found != world)
			fail_msg("kind %u, %u ranks: %u are found", shuffles[i / 2], world, found);
	}
}

static int setup(void **state)
{
	(void)state;
	dataset = synth_open(&(struct synth){ .classes = DIRS, .per_class = EACH, .bytes = 1 });
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
		cmocka_unit_test(a_list_by_name_is_found_with_any_seed),
		cmocka_unit_test(a_list_by_name_is_found_by_the_thread),
		cmocka_unit_test(parts_are_found_by_the_thread_that_a_list_by_name_joins),
		cmocka_unit_test(ranks_with_their_own_parts_are_found_with_any_seed),
		cmocka_unit_test(ranks_with_seeds_of_their_own_are_found),
	};
	cmocka_set_test_filter(getenv("DDPFS_TEST")); /* a pattern, or NULL */
	return cmocka_run_group_tests(tests, setup, teardown);
}
