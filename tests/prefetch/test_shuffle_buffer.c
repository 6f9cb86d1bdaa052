/* SPDX-License-Identifier: Apache-2.0 */
/* Shuffle buffers behind sorted lists: recognised after few opens, and followed from epoch to epoch.
 * The buffers are simulated; trainers/README.md says what they stand for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "prefetch/sampler/recognise.h"
#include "shard/base/sanitized.h"
#include "shard/torch_rng.h"
#include "tests/prefetch/loader.h"
#include "tests/prefetch/orders.h"
#include "tests/shard/synth.h"

enum { CLASSES = 20, PER_CLASS = 500, N = CLASSES * PER_CLASS, EPOCHS = 3, OPENS_MAX = 96 };

static struct shard_index *dataset;
static uint32_t list[N], order[N];

static struct prefetch_recognise *new_recognise(void)
{
	struct prefetch_recognise *r;
	struct prefetch_recognise_options options = { .index = dataset, .seed_max = 100, .popular_words = 1 };
	assert_int_equal(prefetch_recognise_new(&options, &r), 0);
	return r;
}

/* tf.data.Dataset.shuffle(size), and webdataset's shuffle(size, initial): that one takes in two files for each that it
 * gives away, until it has `size`, and gives away the first when it has `initial`. */
static void buffered(const uint32_t *from, uint32_t n, uint32_t size, uint32_t initial, uint64_t *random, uint32_t *to)
{
	uint32_t *held = malloc((size + 2) * sizeof(*held)), n_held = 0, next = 0;
	for (uint32_t k = 0; k < n;) {
		for (uint32_t i = 0; i < (n_held < size ? 2 : 1) && next < n; i++)
			held[n_held++] = from[next++];
		if (n_held < initial && next < n)
			continue;
		uint32_t i = (uint32_t)(loader_random(random) % n_held);
		to[k++] = held[i];
		held[i] = held[--n_held];
	}
	free(held);
}

static void open_rest(struct prefetch_recognise *r, const uint32_t *files, uint32_t from, uint32_t n)
{
	for (uint32_t i = from; i < n; i++) {
		prefetch_recognise_opened(r, &files[i], 1);
		if (i % 16 == 15)
			recognise_work(r);
	}
	recognise_work(r);
}

static const struct {
	uint32_t size, initial, world, rank;
} buffers[] = {
	{ 16, 16, 1, 0 },
	{ 100, 100, 1, 0 },
	{ 1000, 1000, 1, 0 },
	{ N / 8, N / 8, 1, 0 },
	{ 1000, 100, 1, 0 },
	{ 64, 64, 4, 2 },
	{ 300, 300, 4, 0 },
};
enum { BUFFERS = sizeof(buffers) / sizeof(buffers[0]) };

static void buffers_are_recognised_and_followed(void **state)
{
	uint64_t random = 3;
	(void)state;
	for (unsigned i = 0; i < BUFFERS; i++) {
		struct prefetch_recognise *r = new_recognise();
		struct prefetch_recognised track;
		uint32_t n = 0, size = buffers[i].size;
		for (uint32_t file = buffers[i].rank; file < N; file += buffers[i].world)
			list[n++] = file;
		for (uint32_t epoch = 0; epoch < EPOCHS; epoch++) {
			buffered(list, n, size, buffers[i].initial, &random, order);
			uint32_t opens = epoch == 0 ? open_until_ready(r, order, 512) : 0;
			if (opens > OPENS_MAX)
				fail_msg("buffer %u: %u opens", i, opens);
			open_rest(r, order, opens, n);
			track = only_track(r);
			assert_int_equal(track.sampler, PREFETCH_SAMPLER_SORTED);
			assert_int_equal(track.epoch, epoch);
			assert_int_equal(track.world, buffers[i].world);
			assert_int_equal(track.first, buffers[i].rank);
			if (track.buffer + size / 16 < size || track.buffer > size + size / 16 + 32)
				fail_msg("buffer %u: %u files of %u", i, track.buffer, size);
		}
		if (track.opens + EPOCHS * 2 < EPOCHS * n)
			fail_msg("buffer %u: %u opens of %u", i, (unsigned)track.opens, EPOCHS * n);
		prefetch_recognise_free(r);
	}
}

/* The search does one slice while the trainer opens so many files.  So a large buffer, which has to wait for the likely
 * seeds, is found when the trainer is far from the beginning. */
static void a_trainer_may_be_faster_than_the_search(void **state)
{
	static const uint32_t sizes[] = { N / 40, N / 20, N / 9 }, speeds[] = { 1, 4 };
	uint64_t random = 21;
	(void)state;
	for (uint32_t i = 0; i < N; i++)
		list[i] = i;
	for (unsigned i = 0; i < 3 * 2; i++) {
		struct prefetch_recognise *r = new_recognise();
		uint32_t size = sizes[i / 2], speed = speeds[i % 2], found = N;
		struct prefetch_recognised track;
		for (uint32_t epoch = 0; epoch < 2; epoch++) {
			buffered(list, N, size, size, &random, order);
			for (uint32_t k = 0; k < N; k++) {
				prefetch_recognise_opened(r, &order[k], 1);
				if (k % speed == 0)
					prefetch_recognise_step(r, 0);
				if (found == N && recognised_tracks(r) > 0)
					found = k;
			}
			if (recognised_tracks(r) != 1)
				fail_msg("buffer of %u, %u opens a slice: epoch %u is lost", size, speed, epoch);
			track = only_track(r);
			assert_int_equal(track.epoch, epoch);
		}
		if (found > N / 8)
			fail_msg("buffer of %u, %u opens a slice: recognised after %u opens", size, speed, found);
		if (track.opens + 2 * 2 < 2 * N || track.buffer + size / 16 < size ||
		        track.buffer > size + size / 16 + 32 || searched(r).wrong > 0)
			fail_msg("buffer of %u, %u opens a slice: %u opens, a buffer of %u, %u wrong", size, speed,
			        (unsigned)track.opens, track.buffer, searched(r).wrong);
		prefetch_recognise_free(r);
	}
}

/* repeat().shuffle(SIZE): the buffer is never empty, so where two epochs meet it holds files of both. */
static void a_repeated_dataset_is_followed(void **state)
{
	static uint32_t repeated[EPOCHS * N], opened[EPOCHS * N];
	uint64_t random = 31;
	(void)state;
	for (unsigned i = 0; i < BUFFERS; i++) {
		struct prefetch_recognise *r = new_recognise();
		uint32_t n = 0, size = buffers[i].size, lost = 0;
		for (uint32_t epoch = 0; epoch < EPOCHS; epoch++) {
			for (uint32_t file = buffers[i].rank; file < N; file += buffers[i].world)
				repeated[n++] = file;
		}
		buffered(repeated, n, size, buffers[i].initial, &random, opened);
		for (uint32_t k = 0; k < n; k++) {
			prefetch_recognise_opened(r, &opened[k], 1);
			if (k % 16 == 15)
				recognise_work(r);
			lost += k >= OPENS_MAX && recognised_tracks(r) != 1;
		}
		recognise_work(r);
		struct prefetch_recognised track = only_track(r);
		if (lost > 0 || track.epoch + 1 != EPOCHS || track.opens + EPOCHS * 8 < n || searched(r).wrong > 0)
			fail_msg("buffer %u: lost for %u opens, epoch %u, %u opens of %u, %u wrong", i, lost,
			        (unsigned)track.epoch, (unsigned)track.opens, n, searched(r).wrong);
		prefetch_recognise_free(r);
	}
}

/* A second reader of the list, a little ahead, makes the buffer look larger, but for no longer than it reads. */
static void a_buffer_that_looked_too_large_shrinks_again(void **state)
{
	enum { SIZE = 500, AHEAD = 600, OTHERS = 1500 };
	struct prefetch_recognised track;
	struct prefetch_recognise *r = new_recognise();
	uint64_t random = 17;
	uint32_t grown = 0;
	(void)state;
	for (uint32_t i = 0; i < N; i++)
		list[i] = i;
	for (uint32_t epoch = 0; epoch < 4; epoch++) {
		buffered(list, N, SIZE, SIZE, &random, order);
		for (uint32_t k = 0; k < N; k++) {
			uint32_t ahead = k + AHEAD + (uint32_t)(loader_random(&random) % OTHERS);
			if (epoch == 0 && k > N - 4000 && k % 4 == 0 && ahead < N)
				prefetch_recognise_opened(r, &ahead, 1);
			prefetch_recognise_opened(r, &order[k], 1);
			if (k % 16 == 15)
				recognise_work(r);
		}
		track = only_track(r);
		assert_int_equal(track.epoch, epoch);
		grown = epoch == 0 ? track.buffer : grown;
	}
	assert_true(grown > 2 * SIZE);
	assert_true(track.buffer >= SIZE - SIZE / 16 && track.buffer <= SIZE + SIZE / 8 + 32);
	prefetch_recognise_free(r);
}

/* Opens that others make between those of the buffer do not matter. */
static void other_readers_do_not_matter(void **state)
{
	uint64_t random = 7;
	(void)state;
	for (uint32_t i = 0; i < N; i++)
		list[i] = i;
	struct prefetch_recognise *r = new_recognise();
	for (uint32_t epoch = 0; epoch < 2; epoch++) {
		buffered(list, N, 500, 500, &random, order);
		for (uint32_t k = 0; k < N; k++) {
			if (k % 16 == 5)
				prefetch_recognise_opened(r, &(uint32_t){ (uint32_t)(loader_random(&random) % N) }, 1);
			prefetch_recognise_opened(r, &order[k], 1);
			if (k % 16 == 15)
				recognise_work(r);
		}
	}
	struct prefetch_recognised track = only_track(r);
	assert_true(track.buffer > 0 && track.opens + 2 * 300 >= 2 * N);
	prefetch_recognise_free(r);
}

static uint64_t opens_of(struct prefetch_recognise *r, enum prefetch_sampler sampler)
{
	struct prefetch_recognised track;
	for (unsigned i = 0; prefetch_recognise_get(r, i, &track) == 0; i++) {
		if (track.sampler == sampler)
			return track.opens;
	}
	return 0;
}

/* A job behind a buffer reads half of each epoch.  What it did not open of its first epoch is not kept for it when a
 * second job, whose order is known, opens it. */
static void a_second_job_keeps_its_opens(void **state)
{
	static uint32_t others[N];
	struct prefetch_recognise *r = new_recognise();
	uint64_t random = 23;
	(void)state;
	for (uint32_t i = 0; i < N; i++)
		list[i] = i;
	shard_torch_randperm(N, 5, others);
	open_rest(r, others, 0, N / 4);
	for (uint32_t epoch = 0; epoch < 2; epoch++) {
		buffered(list, N, 500, 500, &random, order);
		open_rest(r, order, 0, epoch == 0 ? N / 2 : 500);
	}
	uint64_t before = opens_of(r, PREFETCH_SAMPLER_DISTRIBUTED), buffer = opens_of(r, PREFETCH_SAMPLER_SORTED);
	assert_true(before >= N / 4 - 16 && buffer > N / 2);
	open_rest(r, others, N / 4, N / 2);
	uint64_t after = opens_of(r, PREFETCH_SAMPLER_DISTRIBUTED);
	if (after < before + N / 4 - 16)
		fail_msg("%u of %u opens are taken for the second job's", (unsigned)(after - before), N / 4);
	prefetch_recognise_free(r);
}

/* What a predecessor has left is followed. */
static void a_successor_goes_on_with_a_buffer(void **state)
{
	struct prefetch_saved_track saved[PREFETCH_TRACKS_MAX];
	struct prefetch_recognise *r = new_recognise(), *later = new_recognise();
	char text[128];
	uint64_t random = 4;
	(void)state;
	for (uint32_t i = 0; i < N; i++)
		list[i] = i;
	buffered(list, N, 1000, 1000, &random, order);
	open_rest(r, order, 0, N / 2);
	struct prefetch_recognised before = only_track(r);
	prefetch_recognise_describe(&before, text, sizeof(text));
	assert_string_equal(text, "sorted order behind a shuffle buffer of about 1000");
	assert_int_equal(prefetch_recognise_save(r, saved), 1);
	assert_int_equal(prefetch_recognise_restore(later, saved, 1), 0);
	recognise_work(later);
	open_rest(later, order, N / 2, N);
	struct prefetch_recognised track = only_track(later);
	assert_false(track.unverified);
	assert_true(track.opens >= N / 2 - 200); /* a seventh of the buffer was in it for too long */
	saved[0].seed = 2;                       /* in contiguous parts, too */
	struct prefetch_recognise *third = new_recognise();
	assert_int_equal(prefetch_recognise_restore(third, saved, 1), 0);
	assert_int_equal(recognised_tracks(third), 0);
	prefetch_recognise_free(third);
	prefetch_recognise_free(later);
	prefetch_recognise_free(r);
}

static void what_a_predecessor_left_of_a_buffer_is_not_believed(void **state)
{
	struct prefetch_saved_track saved[PREFETCH_TRACKS_MAX], any;
	struct prefetch_recognise *r = new_recognise();
	uint64_t random = 12;
	(void)state;
	for (uint32_t i = 0; i < N; i++)
		list[i] = i;
	buffered(list, N, 300, 300, &random, order);
	open_rest(r, order, 0, N / 2);
	assert_int_equal(prefetch_recognise_save(r, saved), 1);
	prefetch_recognise_free(r);
	/* Positions before the part, and beyond the list if one part of so many were the whole. */
	struct {
		uint32_t world, first, high;
	} parts[] = { { 4, 2, 1 }, { 4096, 0, 8192 }, { 4096, 4095, 4000 }, { 4096, 1, N } };
	for (unsigned i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		any = saved[0];
		any.world = any.stride = parts[i].world;
		any.first = parts[i].first;
		any.ranks = any.buffer = 1;
		any.high = parts[i].high;
		r = new_recognise();
		assert_int_equal(prefetch_recognise_restore(r, &any, 1), 0);
		assert_int_equal(recognised_tracks(r), 1);
		prefetch_recognise_free(r);
	}
	for (unsigned i = 0; i < 500; i++) {
		any = saved[0];
		for (unsigned k = 0; k < 1 + i % 4; k++)
			((uint8_t *)&any)[loader_random(&random) % sizeof(any)] = (uint8_t)loader_random(&random);
		if (any.skip > 100000 || any.high > 2 * N)
			continue; /* takes long, or is refused at once */
		r = new_recognise();
		assert_int_equal(prefetch_recognise_restore(r, &any, 1), 0);
		prefetch_recognise_free(r);
	}
}

/* A directory, the first files of the list, or a rank's contiguous part, each shuffled by somebody.  None of them is a
 * buffer, because the farthest file does not move on. */
static void a_shuffled_beginning_is_no_buffer(void **state)
{
	enum { CASES = 3 };
	uint64_t random = 5;
	(void)state;
	for (unsigned i = 0; i < CASES; i++) {
		struct prefetch_recognise *r = new_recognise();
		uint32_t n = i % 3 == 0 ? PER_CLASS : i % 3 == 1 ? N / 10 : N / 8;
		order_of_nobody(&random, n, order);
		open_rest(r, order, 0, n);
		struct prefetch_recognised track;
		if (prefetch_recognise_get(r, 0, &track) == 0)
			fail_msg("case %u: %u files of a buffer of %u", i, n, track.buffer);
		prefetch_recognise_free(r);
	}
}

/* DDPFS_RANDOM_ORDERS=10000 tries so many, and DDPFS_RANDOM_SEED=1 others. */
static void nothing_is_recognised_in_orders_of_nobody(void **state)
{
	const char *orders = getenv("DDPFS_RANDOM_ORDERS"), *first = getenv("DDPFS_RANDOM_SEED");
	uint64_t random = first ? strtoull(first, NULL, 10) : 11; /* for a run in pieces */
	(void)state;
	for (long k = 0; k < (orders ? atol(orders) : BASE_SANITIZED ? 8 : 40); k++) {
		struct prefetch_recognise *r = new_recognise();
		order_of_nobody(&random, N, order);
		if (open_until_ready(r, order, 512) <= 512)
			fail_msg("order %ld is recognised", k);
		prefetch_recognise_free(r);
	}
}

static int setup(void **state)
{
	(void)state;
	dataset = synth_open(&(struct synth){ .classes = CLASSES, .per_class = PER_CLASS, .bytes = 1 });
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
		cmocka_unit_test(buffers_are_recognised_and_followed),
		cmocka_unit_test(a_trainer_may_be_faster_than_the_search),
		cmocka_unit_test(a_repeated_dataset_is_followed),
		cmocka_unit_test(a_buffer_that_looked_too_large_shrinks_again),
		cmocka_unit_test(other_readers_do_not_matter),
		cmocka_unit_test(a_second_job_keeps_its_opens),
		cmocka_unit_test(a_successor_goes_on_with_a_buffer),
		cmocka_unit_test(what_a_predecessor_left_of_a_buffer_is_not_believed),
		cmocka_unit_test(a_shuffled_beginning_is_no_buffer),
		cmocka_unit_test(nothing_is_recognised_in_orders_of_nobody),
	};
	cmocka_set_test_filter(getenv("DDPFS_TEST")); /* a pattern, or NULL */
	return cmocka_run_group_tests(tests, setup, teardown);
}
