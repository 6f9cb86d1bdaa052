/* SPDX-License-Identifier: Apache-2.0 */
/* Samples of two files each: their shuffles are recognised, whichever files of a sample the trainer opens. */
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

/* File `kind` of sample s has the id FILES * s + kind. */
enum { CLASSES = 20, FILES = 2, N = 6000, SEED_MAX = 3000, OPENS_MAX = 96 };

static const char *const pictures[FILES] = { ".cls", ".jpg" }, *const arrays[FILES] = { ".json", ".npy" };
static struct shard_index *index_of_pictures, *index_of_arrays, *one_directory;
static uint32_t order[FILES * N];

/* Which files of a sample the trainer opens, in this order. */
struct way {
	const char *name;
	uint32_t n, kinds[FILES];
};
static const struct way ways[] = {
	{ "the first file, then the second", 2, { 0, 1 } },
	{ "the second file, then the first", 2, { 1, 0 } },
	{ "the first file", 1, { 0 } },
	{ "the second file", 1, { 1 } },
};
enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

static const enum prefetch_shuffle_kind shuffles[] = { PREFETCH_SHUFFLE_NUMPY, PREFETCH_SHUFFLE_NUMPY_RNG,
	PREFETCH_SHUFFLE_PYTHON, PREFETCH_SHUFFLE_TORCH };
enum { SHUFFLES = sizeof(shuffles) / sizeof(shuffles[0]) };

/* A trainer that opens files of samples, and the recogniser that sees it. */
struct trainer {
	struct prefetch_recognise *r;
	const struct way *way;
	struct loader loader;
	uint8_t opened[N]; /* files of each sample, in this epoch */
	uint32_t samples;  /* begun, in this epoch */
	uint32_t found;    /* of these when a sampler was recognised; 0: none is */
};

static void new_trainer(const struct shard_index *index, const struct way *way, uint32_t world, uint32_t workers,
        uint32_t seed_max, struct trainer *t)
{
	struct prefetch_recognise_options options = { .index = index, .seed_max = seed_max, .popular_words = 1 };
	memset(t, 0, sizeof(*t));
	t->way = way;
	t->loader = (struct loader){
		.n = N, .world = world, .first = world / 2, .ranks = 1, .workers = workers, .batch = 16, .times = way->n
	};
	assert_int_equal(prefetch_recognise_new(&options, &t->r), 0);
}

static void begin_epoch(struct trainer *t)
{
	memset(t->opened, 0, sizeof(t->opened));
	t->samples = 0;
	loader_rewind(&t->loader, order);
}

/* Opens files until `samples` are begun, or to the end of the epoch. */
static void open_some(struct trainer *t, uint32_t samples)
{
	struct prefetch_recognised track;
	uint32_t sample;
	while (t->samples < samples && (sample = loader_next(&t->loader)) != UINT32_MAX) {
		uint8_t nth = t->opened[sample]++;
		uint32_t file = FILES * sample + t->way->kinds[nth];
		t->samples += nth == 0;
		prefetch_recognise_opened(t->r, &file, 1);
		if (t->samples % 16 == 0)
			recognise_work(t->r);
		if (t->found == 0 && prefetch_recognise_get(t->r, 0, &track) == 0 && track.ready)
			t->found = t->samples;
	}
	recognise_work(t->r);
}

/* Counts the turns of this epoch (ahead 0) or the next one that are not of the samples in `order`. */
static uint32_t missed(const struct trainer *t, uint32_t id, unsigned ahead)
{
	struct prefetch_sequence *sequence;
	uint32_t misses = 0, turns = N / t->loader.world, file;
	assert_int_equal(prefetch_recognise_sequence(t->r, id, ahead, &sequence), 0);
	assert_int_equal(prefetch_sequence_turns(sequence), turns);
	for (uint32_t turn = 0; turn < turns; turn++)
		misses += prefetch_sequence_file(sequence, turn, &file) < 0 ||
		          file / FILES != order[turn * t->loader.world + t->loader.first];
	prefetch_sequence_put(sequence);
	return misses;
}

static void assert_recognised(
        const struct shard_index *index, unsigned family, const struct way *way, uint32_t world, uint32_t workers)
{
	static const uint32_t seeds[] = { 0, 42, 1344, 2500 };
	uint32_t seed = seeds[(family + world + workers) % 4];
	struct prefetch_recognised track = { 0 };
	static struct trainer t;
	char text[256] = "nothing";
	new_trainer(index, way, world, workers, SEED_MAX, &t);
	for (uint32_t epoch = 0; epoch < 2; epoch++) {
		order_of_seed(shuffles[family], seed + epoch, N, order);
		begin_epoch(&t);
		open_some(&t, UINT32_MAX);
		if (prefetch_recognise_get(t.r, 0, &track) == 0)
			prefetch_recognise_describe(&track, text, sizeof(text));
		if (t.found == 0 || t.found > OPENS_MAX || recognised_tracks(t.r) != 1 ||
		        track.sampler != sampler_of(shuffles[family]) || track.seed != seed + epoch ||
		        track.epoch != epoch || missed(&t, track.id, 0) > 0 ||
		        track.opens < (epoch + 1) * (uint64_t)N / world * 97 / 100)
			fail_msg("%s, seed %u, 1 of %u, %u workers: %u tracks after %u samples, %s of %s, %lu opens",
			        way->name, seed + epoch, world, workers, recognised_tracks(t.r), t.found, text,
			        track.list, (unsigned long)track.opens);
	}
	order_of_seed(shuffles[family], seed + 2, N, order);
	assert_int_equal(missed(&t, track.id, 1), 0);
	prefetch_recognise_free(t.r);
}

static void shuffles_of_samples_are_recognised_whichever_files_are_opened(void **state)
{
	static const uint32_t worlds[] = { 1, 4 }, workers[] = { 0, 4 };
	const struct shard_index *indexes[] = { index_of_pictures, index_of_arrays, one_directory };
	(void)state;
	for (unsigned i = 0; i < 3 * SHUFFLES * WAYS * 4; i += BASE_SANITIZED ? 7 : 1) {
		const struct way *way = &ways[i / SHUFFLES % WAYS];
		unsigned kind = i / SHUFFLES / WAYS;
		assert_recognised(indexes[kind % 3], i % SHUFFLES, way, worlds[kind / 3 % 2], workers[kind / 6]);
	}
}

/* A trainer may also shuffle all files: those of a sample lie apart. */
static void a_shuffle_of_all_files_is_recognised(void **state)
{
	(void)state;
	for (unsigned family = 0; family < SHUFFLES; family++) {
		struct prefetch_recognise_options options = {
			.index = index_of_pictures, .seed_max = 100, .popular_words = 1
		};
		struct prefetch_recognised track = { 0 };
		struct prefetch_recognise *r;
		uint32_t found = 0;
		assert_int_equal(prefetch_recognise_new(&options, &r), 0);
		order_of_seed(shuffles[family], 42, FILES * N, order);
		for (uint32_t i = 0; i < FILES * N; i++) {
			prefetch_recognise_opened(r, &order[i], 1);
			if (i % 16 == 15)
				recognise_work(r);
			if (found == 0 && recognised_tracks(r) > 0)
				found = i;
		}
		assert_in_range(found, 1, OPENS_MAX + OPENS_MAX / 16);
		assert_int_equal(recognised_tracks(r), 1);
		assert_int_equal(prefetch_recognise_get(r, 0, &track), 0);
		assert_int_equal(track.sampler, sampler_of(shuffles[family]));
		assert_int_equal(track.turns, FILES * N);
		assert_in_range(track.opens, FILES * N - 50, FILES * N);
		prefetch_recognise_free(r);
	}
}

/* Whoever reads all files in their order reads the samples in their order. */
static void files_in_order_are_recognised(void **state)
{
	(void)state;
	for (unsigned way = 0; way < 2; way++) {
		struct prefetch_recognised track = { 0 };
		struct trainer t;
		new_trainer(one_directory, &ways[way], 1, 0, 100, &t);
		for (uint32_t i = 0; i < N; i++)
			order[i] = i;
		begin_epoch(&t);
		open_some(&t, UINT32_MAX);
		assert_in_range(t.found, 1, OPENS_MAX);
		assert_int_equal(recognised_tracks(t.r), 1);
		assert_int_equal(prefetch_recognise_get(t.r, 0, &track), 0);
		assert_int_equal(track.sampler, PREFETCH_SAMPLER_SORTED);
		assert_int_equal(missed(&t, track.id, 0), 0);
		prefetch_recognise_free(t.r);
	}
}

/* Samples of one, two and three pictures, in turn: `7.0.png`, `7.1.png` and so on.  All pictures have one extension.
 * The trainer opens all of a sample; the order of the samples is sorted, or shuffled. */
static void recognise_several_pictures(const char *const *suffixes)
{
	enum { TURN = 6, SAMPLES = N / TURN * 3 };
	static const uint32_t first[] = { 0, 1, 3, 6 }; /* of the samples of a turn */
	struct shard_index *index = synth_open(&(struct synth){
	        .classes = 1, .per_class = N, .bytes = 1, .suffixes = suffixes, .n_suffixes = TURN, .grouped = true });
	for (unsigned family = 0; family <= SHUFFLES; family++) {
		struct prefetch_recognise_options options = { .index = index, .seed_max = 100, .popular_words = 1 };
		struct prefetch_recognised track = { 0 };
		struct prefetch_recognise *r;
		uint32_t found = 0;
		assert_int_equal(prefetch_recognise_new(&options, &r), 0);
		for (uint32_t i = 0; i < SAMPLES; i++)
			order[i] = i;
		if (family < SHUFFLES)
			order_of_seed(shuffles[family], 42, SAMPLES, order);
		for (uint32_t i = 0; i < SAMPLES; i++) {
			uint32_t turn = order[i] / 3 * TURN, nth = order[i] % 3;
			for (uint32_t file = turn + first[nth]; file < turn + first[nth + 1]; file++)
				prefetch_recognise_opened(r, &file, 1);
			if (i % 16 == 15)
				recognise_work(r);
			if (found == 0 && recognised_tracks(r) > 0)
				found = i;
		}
		if (found == 0 || found > OPENS_MAX)
			fail_msg("family %u: found after %u samples", family, found);
		assert_int_equal(recognised_tracks(r), 1);
		assert_int_equal(prefetch_recognise_get(r, 0, &track), 0);
		assert_int_equal(
		        track.sampler, family < SHUFFLES ? sampler_of(shuffles[family]) : PREFETCH_SAMPLER_SORTED);
		assert_int_equal(track.turns, SAMPLES);
		assert_in_range(track.opens, SAMPLES - 50, SAMPLES);
		prefetch_recognise_free(r);
	}
	synth_close(index);
}

static void samples_of_several_pictures_are_recognised(void **state)
{
	static const char *const suffixes[] = { ".0.png", ".0.png", ".1.png", ".0.png", ".1.png", ".2.png" };
	(void)state;
	recognise_several_pictures(suffixes);
}

/* No suffix is longer than PREFETCH_SUFFIX_MAX, so these names have only their last ones. */
static void so_are_those_with_long_names(void **state)
{
	static const char *const suffixes[] = { ".0_annotations_of_all_objects_v2.json",
		".0_annotations_of_all_objects_v2.json", ".1_camera_front_left_rectified_rgb.png",
		".0_annotations_of_all_objects_v2.json", ".1_camera_front_left_rectified_rgb.png",
		".2_camera_front_left_rectified_rgb.png" };
	(void)state;
	recognise_several_pictures(suffixes);
}

/* The pictures of videos, read in the order of their names. */
static void files_of_large_samples_count_one_by_one(void **state)
{
	enum { FRAMES = 100 };
	static char names[FRAMES][16];
	const char *suffixes[FRAMES];
	uint32_t found = 0;
	(void)state;
	for (unsigned i = 0; i < FRAMES; i++) {
		snprintf(names[i], sizeof(names[i]), ".%03u.png", i);
		suffixes[i] = names[i];
	}
	struct shard_index *index = synth_open(&(struct synth){ .classes = 1,
	        .per_class = N,
	        .bytes = 1,
	        .suffixes = suffixes,
	        .n_suffixes = FRAMES,
	        .grouped = true });
	struct prefetch_recognise_options options = { .index = index, .seed_max = 100, .popular_words = 1 };
	struct prefetch_recognised track = { 0 };
	struct prefetch_recognise *r;
	assert_int_equal(prefetch_recognise_new(&options, &r), 0);
	for (uint32_t file = 0; file < N / 2; file++) {
		prefetch_recognise_opened(r, &file, 1);
		if (file % 16 == 15)
			recognise_work(r);
		if (found == 0 && recognised_tracks(r) > 0)
			found = file;
	}
	assert_in_range(found, 1, OPENS_MAX);
	assert_int_equal(prefetch_recognise_get(r, 0, &track), 0);
	assert_int_equal(track.sampler, PREFETCH_SAMPLER_SORTED);
	assert_int_equal(track.turns, N);
	prefetch_recognise_free(r);
	synth_close(index);
}

/* DDPFS_RANDOM_ORDERS=1000: so many orders. */
static void nothing_is_recognised_in_random_orders_of_samples(void **state)
{
	const char *given = getenv("DDPFS_RANDOM_ORDERS");
	unsigned orders = given ? (unsigned)strtoul(given, NULL, 10) : BASE_SANITIZED ? 4 : 16;
	const struct shard_index *indexes[] = { index_of_pictures, index_of_arrays, one_directory };
	uint64_t random = 1;
	(void)state;
	for (unsigned i = 0; i < orders; i++) {
		struct prefetch_recognised track;
		static struct trainer t;
		char text[256];
		new_trainer(indexes[i % 3], &ways[i / 3 % WAYS], 1, i / 12 % 2 * 4, 16, &t);
		order_of_nobody(&random, N, order);
		begin_epoch(&t);
		open_some(&t, 1200);
		if (prefetch_recognise_get(t.r, 0, &track) == 0)
			fail_msg("order %u, %s: %s of %s", i, t.way->name,
			        prefetch_recognise_describe(&track, text, sizeof(text)), track.list);
		prefetch_recognise_free(t.r);
	}
}

static int setup(void **state)
{
	struct synth synth = { .classes = CLASSES, .per_class = FILES * N / CLASSES, .bytes = 1 };
	(void)state;
	synth.n_suffixes = FILES;
	synth.grouped = true;
	synth.suffixes = pictures;
	index_of_pictures = synth_open(&synth);
	synth.suffixes = arrays;
	index_of_arrays = synth_open(&synth);
	synth.classes = 1;
	synth.per_class = FILES * N;
	one_directory = synth_open(&synth);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	synth_close(index_of_pictures);
	synth_close(index_of_arrays);
	synth_close(one_directory);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(shuffles_of_samples_are_recognised_whichever_files_are_opened),
		cmocka_unit_test(a_shuffle_of_all_files_is_recognised),
		cmocka_unit_test(files_in_order_are_recognised),
		cmocka_unit_test(samples_of_several_pictures_are_recognised),
		cmocka_unit_test(so_are_those_with_long_names),
		cmocka_unit_test(files_of_large_samples_count_one_by_one),
		cmocka_unit_test(nothing_is_recognised_in_random_orders_of_samples),
	};
	cmocka_set_test_filter(getenv("DDPFS_TEST"));
	return cmocka_run_group_tests(tests, setup, teardown);
}
