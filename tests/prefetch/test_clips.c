/* SPDX-License-Identifier: Apache-2.0 */
/* Clips: a trainer opens neighbouring files together, as the frames of a video, and the clips in random order.  No
 * sampler is recognised, though most files follow one another.  Sorted readers are no clips. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "prefetch/sampler/clips.h"
#include "prefetch/sampler/recognise.h"
#include "tests/prefetch/loader.h"
#include "tests/shard/synth.h"

enum { CLASSES = 40, N = 12000, READERS_MAX = 4, STEP = 16 };

static struct shard_index *dataset, *small;
static uint32_t order[N];

static struct prefetch_recognise *new_recognise(struct shard_index *index)
{
	struct prefetch_recognise *r;
	struct prefetch_recognise_options options = {
		.index = index, .seed_max = 30, .shuffle_max = 1, .popular_words = 1
	};
	assert_int_equal(prefetch_recognise_new(&options, &r), 0);
	return r;
}

static uint32_t below(uint64_t *random, uint32_t n)
{
	return (uint32_t)(loader_random(random) % n);
}

/* Clips of `files` files, `step` apart, anywhere in the dataset; `readers` read one each, side by side. */
struct trainer {
	uint32_t files, step, readers;
	uint32_t n;   /* files of the dataset; 0: N */
	bool aligned; /* a clip begins at a multiple of its length */
	uint64_t random;
	uint32_t at[READERS_MAX], left[READERS_MAX]; /* of the clips being read */
};

static uint32_t next_of_clips(struct trainer *t)
{
	uint32_t reader = below(&t->random, t->readers), length = t->files * t->step, n = t->n ? t->n : N;
	if (t->left[reader] == 0) {
		t->at[reader] = t->aligned ? below(&t->random, n / length) * length : below(&t->random, n - length);
		t->left[reader] = t->files;
	}
	uint32_t file = t->at[reader];
	t->at[reader] += t->step;
	t->left[reader]--;
	return file;
}

/* Opens n files.  Returns how many of them were opened while a sampler was recognised. */
static uint32_t open_all(struct prefetch_recognise *r, const uint32_t *files, uint32_t n)
{
	uint32_t known = 0;
	for (uint32_t i = 0; i < n; i += STEP) {
		prefetch_recognise_opened(r, &files[i], n - i < STEP ? n - i : STEP);
		recognise_work(r);
		known += recognised_tracks(r) > 0 ? STEP : 0;
	}
	return known;
}

static void make_clips(struct trainer *t, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		order[i] = next_of_clips(t);
}

static void clips_in_random_order_are_no_sorted_reader(void **state)
{
	static const struct trainer trainers[] = {
		{ .files = 4, .step = 1, .readers = 1, .aligned = true },
		{ .files = 8, .step = 1, .readers = 1 },
		{ .files = 8, .step = 8, .readers = 2 },
		{ .files = 16, .step = 1, .readers = 1, .aligned = true },
		{ .files = 16, .step = 1, .readers = 1 },
		{ .files = 16, .step = 1, .readers = 4 },
		{ .files = 16, .step = 4, .readers = 4 },
		{ .files = 32, .step = 1, .readers = 2, .aligned = true },
		{ .files = 32, .step = 1, .readers = 4 },
	};
	(void)state;
	for (size_t i = 0; i < sizeof(trainers) / sizeof(trainers[0]); i++) {
		struct trainer t = trainers[i];
		struct prefetch_recognise *r = new_recognise(dataset);
		make_clips(&t, N);
		uint32_t known = open_all(r, order, N);
		/* The first few clips may look like a sorted reader. */
		if (recognised_tracks(r) > 0 || known > 512)
			fail_msg("%u files a clip, %u apart, %u readers: a sampler was recognised during %u opens",
			        t.files, t.step, t.readers, known);
		prefetch_recognise_free(r);
	}
}

/* The first clips may lie close together, before it shows that they end. */
static void few_clips_seldom_look_like_a_sorted_reader(void **state)
{
	enum { TRAINERS = 40, OPENS = 256 };
	static const uint32_t lengths[] = { 8, 16, 32 }, readers[] = { 1, 2, 4 };
	(void)state;
	for (unsigned i = 0; i < 9; i++) {
		uint32_t wrong = 0;
		for (uint64_t k = 0; k < TRAINERS; k++) {
			struct trainer t = { .files = lengths[i / 3],
				.step = 1,
				.readers = readers[i % 3],
				.aligned = k % 2 == 0,
				.random = k * 9 + i,
				.n = 3000 };
			struct prefetch_recognise *r = new_recognise(small);
			make_clips(&t, OPENS);
			wrong += open_all(r, order, OPENS) > 0;
			prefetch_recognise_free(r);
		}
		if (wrong > TRAINERS / 5)
			fail_msg("%u files a clip, %u readers: a sampler was recognised for %u of %u trainers",
			        lengths[i / 3], readers[i % 3], wrong, TRAINERS);
	}
}

static void assert_all_sorted(const struct prefetch_recognise *r)
{
	struct prefetch_recognised track;
	assert_true(recognised_tracks(r) > 0);
	for (unsigned i = 0; prefetch_recognise_get(r, i, &track) == 0; i++)
		assert_int_equal(track.sampler, PREFETCH_SAMPLER_SORTED);
}

static void a_sorted_reader_beside_clips_is_recognised(void **state)
{
	enum { OPENS = 4096 };
	struct trainer t = { .files = 16, .step = 1, .readers = 2, .aligned = true };
	struct prefetch_recognise *r = new_recognise(dataset);
	(void)state;
	make_clips(&t, OPENS);
	open_all(r, order, OPENS);
	assert_int_equal(recognised_tracks(r), 0);
	for (uint32_t i = 0; i < OPENS; i++)
		order[i] = i % 2 == 0 ? i / 2 : next_of_clips(&t);
	assert_true(open_all(r, order, OPENS) >= OPENS - 1024);
	assert_all_sorted(r);
	prefetch_recognise_free(r);
}

static void a_sorted_reader_after_clips_is_recognised(void **state)
{
	enum { OPENS = 4096, AFTER = 512 };
	struct trainer t = { .files = 16, .step = 1, .readers = 1, .aligned = true };
	struct prefetch_recognise *r = new_recognise(dataset);
	(void)state;
	make_clips(&t, OPENS);
	open_all(r, order, OPENS);
	prefetch_recognise_pause(r);
	for (uint32_t i = 0; i < AFTER; i++)
		order[i] = i;
	assert_true(open_all(r, order, AFTER) >= AFTER - CLIPS_LONGER * 3 / 2);
	assert_all_sorted(r);
	prefetch_recognise_free(r);
}

/* As Accelerate deals batches: a host with one rank of four reads every fourth batch, without shuffle. */
static void a_ranks_batches_are_no_clips(void **state)
{
	enum { FILES = 3000, BATCH = 32, WORLD = 4, OPENS = FILES / BATCH / WORLD * BATCH };
	(void)state;
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		struct prefetch_recognise *r = new_recognise(small);
		for (uint32_t i = 0; i < OPENS; i++)
			order[i] = (i / BATCH * WORLD + rank) * BATCH + i % BATCH;
		assert_in_range(open_all(r, order, OPENS), OPENS - 256, OPENS);
		assert_all_sorted(r);
		prefetch_recognise_free(r);
	}
}

static void ranks_in_parts_after_clips_are_recognised(void **state)
{
	enum { OPENS = 4096, RANKS = 8 };
	struct trainer t = { .files = 16, .step = 1, .readers = 2, .aligned = true };
	struct prefetch_recognise *r = new_recognise(dataset);
	(void)state;
	make_clips(&t, OPENS);
	open_all(r, order, OPENS);
	for (uint32_t i = 0; i < OPENS; i++)
		order[i] = i % RANKS * (N / RANKS) + i / RANKS;
	assert_in_range(open_all(r, order, OPENS), OPENS - 1024, OPENS);
	assert_all_sorted(r);
	prefetch_recognise_free(r);
}

/* The tracks of the sorted epoch stay, of the whole list and of directories, but clips make no others. */
static void clips_after_a_sorted_epoch_are_no_sorted_reader(void **state)
{
	struct trainer t = { .files = 16, .step = 1, .readers = 2, .aligned = true };
	struct prefetch_recognise *r = new_recognise(dataset);
	struct prefetch_recognised track;
	uint32_t last = 0;
	(void)state;
	for (uint32_t i = 0; i < N; i++)
		order[i] = i;
	open_all(r, order, N);
	assert_all_sorted(r);
	for (unsigned i = 0; prefetch_recognise_get(r, i, &track) == 0; i++)
		last = track.id > last ? track.id : last;
	make_clips(&t, N);
	open_all(r, order, N);
	for (unsigned i = 0; prefetch_recognise_get(r, i, &track) == 0; i++) {
		if (track.id > last)
			fail_msg("%llu opens of clips are those of a sorted reader", (unsigned long long)track.opens);
	}
	prefetch_recognise_free(r);
}

static void sorted_readers_side_by_side_are_recognised(void **state)
{
	static const uint32_t batches[] = { 7, 32, 64 }, workers[] = { 2, 5, 16 };
	uint32_t sorted[N];
	(void)state;
	for (uint32_t i = 0; i < N; i++)
		sorted[i] = i;
	for (unsigned k = 0; k < 9; k++) {
		struct loader loader = { .n = N, .world = 1, .ranks = 1, .random = k };
		struct prefetch_recognise *r = new_recognise(dataset);
		loader.batch = batches[k / 3];
		loader.workers = workers[k % 3];
		loader_rewind(&loader, sorted);
		for (uint32_t i = 0; i < N; i++)
			order[i] = loader_next(&loader);
		uint32_t known = open_all(r, order, N);
		if (known < N - 128)
			fail_msg("batches of %u, %u workers: recognised during %u opens", loader.batch, loader.workers,
			        known);
		assert_all_sorted(r);
		prefetch_recognise_free(r);
	}
}

/* Returns during how many of the opens these counted as clips. */
static uint32_t as_clips(const uint32_t *files, uint32_t n)
{
	struct prefetch_clips clips = { .n_runs = 0 };
	uint32_t counted = 0;
	for (uint32_t i = 0; i < n; i++) {
		prefetch_clips_opened(&clips, files[i]);
		counted += clips.opened;
	}
	return counted;
}

static void random_files_are_no_clips(void **state)
{
	uint64_t random = 1;
	(void)state;
	for (uint32_t n = CLIPS_DATASET_MIN; n <= N; n *= 2) {
		for (uint32_t i = 0; i < N; i++)
			order[i] = below(&random, n);
		assert_int_equal(as_clips(order, N), 0);
	}
}

static int compare_decimals(const void *a, const void *b)
{
	char x[16], y[16];
	snprintf(x, sizeof(x), "%u.", *(const uint32_t *)a);
	snprintf(y, sizeof(y), "%u.", *(const uint32_t *)b);
	return strcmp(x, y);
}

/* Names without leading zeros: 2 comes between 1999 and 20. */
static void files_in_the_order_of_their_numbers_are_no_clips(void **state)
{
	uint32_t names[N];
	(void)state;
	for (uint32_t i = 0; i < N; i++)
		names[i] = i;
	qsort(names, N, sizeof(names[0]), compare_decimals);
	for (uint32_t id = 0; id < N; id++)
		order[names[id]] = id;
	assert_int_equal(as_clips(order, N), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(clips_in_random_order_are_no_sorted_reader),
		cmocka_unit_test(few_clips_seldom_look_like_a_sorted_reader),
		cmocka_unit_test(a_sorted_reader_beside_clips_is_recognised),
		cmocka_unit_test(a_sorted_reader_after_clips_is_recognised),
		cmocka_unit_test(a_ranks_batches_are_no_clips),
		cmocka_unit_test(ranks_in_parts_after_clips_are_recognised),
		cmocka_unit_test(clips_after_a_sorted_epoch_are_no_sorted_reader),
		cmocka_unit_test(sorted_readers_side_by_side_are_recognised),
		cmocka_unit_test(random_files_are_no_clips),
		cmocka_unit_test(files_in_the_order_of_their_numbers_are_no_clips),
	};
	small = synth_open(&(struct synth){ .classes = 10, .per_class = 300, .bytes = 1 });
	dataset = synth_open(&(struct synth){ .classes = CLASSES, .per_class = N / CLASSES, .bytes = 1 });
	cmocka_set_test_filter(getenv("DDPFS_TEST")); /* a pattern, or NULL */
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	synth_close(dataset);
	return failed;
}
