/* SPDX-License-Identifier: Apache-2.0 */
/* Trainers that compute nothing read a whole epoch in the time of a few searches.  What is likely is tried first, so
 * their order is found while it helps.  Time is counted in slices of the search, and in seeds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "prefetch/sampler/recognise.h"
#include "tests/prefetch/loader.h"
#include "tests/prefetch/orders.h"
#include "tests/shard/synth.h"

enum { CLASSES = 10, FEW = 3000, N = 10000, OPENS_MAX = 96, FILES = 2 /* of a sample */ };

static const char *const suffixes[FILES] = { ".cls", ".jpg" };
static uint32_t order[N];

/* A trainer with two workers.  It opens all files of a sample, of which `files` are in the dataset. */
struct trainer {
	struct prefetch_recognise *r;
	struct loader loader;
	uint32_t files, samples;
	uint8_t opened[N]; /* files of each sample */
};

/* No time passes between opens, on slow machines too: a search ends early when nothing is opened for a while. */
static uint64_t no_time_passes(void *user)
{
	(void)user;
	return 1;
}

static struct prefetch_recognise *new_recognise(const struct shard_index *dataset)
{
	struct prefetch_recognise *r;
	/* With a budget, as on a mount, but more than is spent here. */
	struct prefetch_recognise_options options = { .index = dataset,
		.popular_words = 1,
		.search_burst_ns = UINT64_C(100000000000),
		.search_permille = 50,
		.search_thread = true,
		.elapsed_ns = no_time_passes };
	assert_int_equal(prefetch_recognise_new(&options, &r), 0);
	return r;
}

static void begin(const struct shard_index *dataset, unsigned family, uint32_t seed, uint32_t n, struct trainer *t)
{
	uint32_t files = shard_index_info(dataset)->n_files / n;
	order_of_seed(families[family], seed, n, order);
	*t = (struct trainer){
		.r = new_recognise(dataset),
		.files = files,
		.loader = { .n = n, .world = 1, .ranks = 1, .workers = 2, .batch = 32, .random = seed, .times = files },
	};
	loader_rewind(&t->loader, order);
}

static void open_samples(struct trainer *t, uint32_t samples)
{
	uint32_t end = t->samples + samples;
	while (t->samples < end) {
		uint32_t sample = loader_next(&t->loader);
		assert_int_not_equal(sample, UINT32_MAX);
		prefetch_recognise_opened(t->r, &(uint32_t){ sample * t->files + t->opened[sample] }, 1);
		t->samples += t->opened[sample]++ == 0;
	}
}

/* Whether this order is recognised, and not by the thread that tries all seeds: it may get no time. */
static bool is_found(const struct trainer *t, unsigned family, uint32_t seed)
{
	struct prefetch_recognised track;
	return prefetch_recognise_get(t->r, 0, &track) == 0 && track.sampler == sampler_of(families[family]) &&
	       track.seed == seed && !searched(t->r).running;
}

/* The search does one slice while the trainer opens so many samples. */
static void a_third_of_a_short_epoch_is_enough(void **state)
{
	static const uint32_t seeds[] = { 7, 700, 1234, 5000, 9999 };
	enum { SEEDS = sizeof(seeds) / sizeof(seeds[0]), SPEED = 1 };
	struct shard_index *single =
	        synth_open(&(struct synth){ .classes = CLASSES, .per_class = FEW / CLASSES, .bytes = 1 });
	struct shard_index *grouped = synth_open(&(struct synth){ .classes = CLASSES,
	        .per_class = FILES * FEW / CLASSES,
	        .bytes = 1,
	        .suffixes = suffixes,
	        .n_suffixes = FILES,
	        .grouped = true });
	static struct trainer t;
	(void)state;
	for (unsigned i = 0; i < 2 * FAMILIES * SEEDS; i++) {
		unsigned family = i / 2 % FAMILIES;
		uint32_t seed = seeds[i / 2 / FAMILIES];
		begin(i % 2 ? grouped : single, family, seed, FEW, &t);
		while (!is_found(&t, family, seed) && t.samples < FEW / 3) {
			open_samples(&t, SPEED);
			assert_true(prefetch_recognise_step(t.r, 0) >= 0);
		}
		if (!is_found(&t, family, seed))
			fail_msg("family %u, seed %u, %u files a sample: not found", family, seed, t.files);
		prefetch_recognise_free(t.r);
	}
	synth_close(single);
	synth_close(grouped);
}

/* Small seeds of all families come before large ones of any. */
static void small_seeds_come_first(void **state)
{
	static const uint32_t seeds[] = { 0, 42, 700, 1000 };
	/* Seeds below 1,024 of the four shuffles, those of torch's samplers of which one is tried with 8 draws, at two
	 * looks; and up to 10,000 of two of torch's samplers at the first one. */
	enum { SEEDS_MAX = 4 * 1024 + 2 * 12 * 1024 + 2 * 9000 + 4096, LARGE_MAX = 4 * 10000 + 12 * 10000 + 24 * 1024 };
	struct shard_index *dataset =
	        synth_open(&(struct synth){ .classes = CLASSES, .per_class = N / CLASSES, .bytes = 1 });
	static struct trainer t;
	(void)state;
	for (unsigned i = 0; i < FAMILIES * 5; i++) {
		unsigned family = i % FAMILIES;
		uint32_t seed = i < FAMILIES * 4 ? seeds[i / FAMILIES] : 9999;
		uint64_t most = seed < 9999 ? SEEDS_MAX : LARGE_MAX;
		begin(dataset, family, seed, N, &t);
		while (!is_found(&t, family, seed) && t.samples < OPENS_MAX) {
			open_samples(&t, 16);
			recognise_work(t.r);
		}
		if (!is_found(&t, family, seed))
			fail_msg("family %u, seed %u: not found", family, seed);
		if (searched(t.r).seeds > most)
			fail_msg("family %u, seed %u: found after %llu seeds", family, seed,
			        (unsigned long long)searched(t.r).seeds);
		prefetch_recognise_free(t.r);
	}
	synth_close(dataset);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_third_of_a_short_epoch_is_enough),
		cmocka_unit_test(small_seeds_come_first),
	};
	cmocka_set_test_filter(getenv("DDPFS_TEST")); /* a pattern, or NULL */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
