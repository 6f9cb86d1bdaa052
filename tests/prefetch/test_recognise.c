/* SPDX-License-Identifier: Apache-2.0 */
/* Recognition of samplers: every hypothesis, with workers side by side, over epochs, beside other traffic; and nothing
 * where there is nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "prefetch/sampler/recognise.h"
#include "shard/base/sanitized.h"
#include "shard/order.h"
#include "shard/torch_rng.h"
#include "tests/prefetch/loader.h"
#include "tests/prefetch/orders.h"
#include "tests/shard/synth.h"

enum { LIKELY = 10000, SMALL = 10000 };
enum { CLASSES = 100, PER_CLASS = 1000, N = CLASSES * PER_CLASS, VAL = 10 * PER_CLASS };

static struct shard_index *dataset; /* train/: N files, ids 0 .. N - 1; val/: VAL files behind */
static uint32_t *order;             /* N; files of positions */
static uint32_t *after;             /* the epoch after it */
static uint32_t *scratch;

static void randperm(uint32_t n, uint64_t seed, uint32_t base, uint32_t *perm)
{
	shard_torch_randperm(n, seed, perm);
	for (uint32_t i = 0; i < n; i++)
		perm[i] += base;
}

static void skipped_randperm(struct shard_mt19937 *mt, uint32_t n, uint32_t *perm)
{
	for (uint32_t i = 0; i < n; i++)
		perm[i] = i;
	for (uint32_t i = 0; i + 1 < n; i++) {
		uint32_t j = i + shard_mt19937_next32(mt) % (n - i);
		uint32_t kept = perm[i];
		perm[i] = perm[j];
		perm[j] = kept;
	}
}

/* DDPFS_RECOGNISE_LONG=1: all seeds, worlds and schedules; minutes instead of seconds. */
static bool long_run(void)
{
	const char *value = getenv("DDPFS_RECOGNISE_LONG");
	return value && strcmp(value, "0") != 0;
}

static struct prefetch_recognise *new_recognise(uint32_t seed_max)
{
	struct prefetch_recognise *r;
	struct prefetch_recognise_options options = { .index = dataset, .seed_max = seed_max, .shuffle_max = 1000 };
	if (!long_run()) {
		options.seed_max = seed_max ? seed_max : 12000;
		options.shuffle_max = 100;
		options.popular_words = 8192;
	}
	assert_int_equal(prefetch_recognise_new(&options, &r), 0);
	return r;
}

/* Feeds opens, working after each 16; returns how many were fed until a track was ready (at most `max`). */
static uint32_t feed(struct prefetch_recognise *r, struct loader *loader, uint32_t max)
{
	for (uint32_t i = 1; i <= max; i++) {
		struct prefetch_recognised track;
		uint32_t file = loader_next(loader);
		assert_int_not_equal(file, UINT32_MAX);
		prefetch_recognise_opened(r, &file, 1);
		if (i % 16 != 0)
			continue;
		recognise_work(r);
		if (prefetch_recognise_get(r, 0, &track) == 0 && track.ready)
			return i;
	}
	return UINT32_MAX;
}

static struct loader loader_of(
        const uint32_t *files, uint32_t n, uint32_t world, uint32_t first, uint32_t ranks, uint32_t workers)
{
	struct loader loader = {
		.n = n, .world = world, .first = first, .ranks = ranks, .workers = workers, .batch = 32
	};
	loader.random = world * 1000 + first * 10 + workers;
	loader_rewind(&loader, files);
	return loader;
}

/* The sequence is exactly the part of `files` that the loader reads. */
static void assert_predicts(
        struct prefetch_recognise *r, uint32_t id, unsigned ahead, const struct loader *l, const uint32_t *files)
{
	struct prefetch_sequence *sequence;
	assert_int_equal(prefetch_recognise_sequence(r, id, ahead, &sequence), 0);
	uint64_t turns = prefetch_sequence_turns(sequence);
	assert_int_equal(turns, (l->n + l->world - 1) / l->world * l->ranks);
	for (uint64_t t = 0; t < turns; t++) {
		uint64_t position = t / l->ranks * l->world + l->first + t % l->ranks, found;
		uint32_t file;
		assert_int_equal(prefetch_sequence_file(sequence, t, &file), 0);
		if (file != files[position % l->n])
			fail_msg("turn %lu is file %u, not %u", (unsigned long)t, file, files[position % l->n]);
		assert_int_equal(prefetch_sequence_find(sequence, file, &found), 0);
		if (position < l->n && found != t)
			fail_msg("file %u has turn %lu, not %lu", file, (unsigned long)found, (unsigned long)t);
	}
	prefetch_sequence_put(sequence);
}

static void distributed_sampler(
        uint32_t seed, uint32_t world, uint32_t rank, uint32_t ranks, uint32_t workers, uint32_t within)
{
	struct prefetch_recognise *r = new_recognise(long_run() || seed < LIKELY ? 0 : seed + 1000);
	randperm(N, seed, 0, order);
	struct loader loader = loader_of(order, N, world, rank, ranks, workers);
	uint32_t opens = feed(r, &loader, 512);
	if (opens > within)
		fail_msg("seed %u, rank %u+%u of %u, %u workers: %u opens", seed, rank, ranks, world, workers, opens);
	uint32_t share = N / world * ranks - opens, more = share < 1024 ? share : 1024;
	for (uint32_t i = 0; i < more; i++) {
		uint32_t file = loader_next(&loader);
		prefetch_recognise_opened(r, &file, 1);
		if (i % 16 == 0)
			recognise_work(r);
	}
	recognise_work(r);
	struct prefetch_recognised track = only_track(r);
	assert_int_equal(track.sampler, PREFETCH_SAMPLER_DISTRIBUTED);
	assert_int_equal(track.seed, seed);
	bool whole = ranks == world;
	if (track.world != (whole ? 1 : world) || track.first != (whole ? 0 : rank) ||
	        track.ranks != (whole ? 1 : ranks))
		fail_msg("seed %u, rank %u+%u of %u, %u workers: taken for %u+%u of %u", seed, rank, ranks, world,
		        workers, track.first, track.ranks, track.world);
	assert_in_range(track.opens, (more + opens) * 98 / 100, more + opens);
	assert_in_range(track.turn, track.opens, track.turns);
	if (whole)
		loader.world = loader.ranks = 1, loader.first = 0;
	assert_predicts(r, track.id, 0, &loader, order);
	randperm(N, seed + 1, 0, after);
	assert_predicts(r, track.id, 1, &loader, after);
	prefetch_recognise_free(r);
}

static void distributed_sampler_is_recognised_within_three_batches(void **state)
{
	static const uint32_t seeds[] = { 0, 17, 4711, 9999 }, worlds[] = { 1, 2, 3, 8, 16 };
	(void)state;
	for (unsigned s = 0; s < 4; s++) {
		for (unsigned w = 0; w < 5; w++) {
			for (uint32_t workers = 0; workers <= 4; workers += 2)
				if (long_run() || (s + w) % 4 == workers / 2 % 4)
					distributed_sampler(
					        seeds[s], worlds[w], (seeds[s] + 1) % worlds[w], 1, workers, 96);
		}
	}
}

static void large_worlds_are_recognised(void **state)
{
	(void)state;
	distributed_sampler(3, 64, 63, 1, 2, 96);
	distributed_sampler(3, 48, 17, 1, 4, 96);
	distributed_sampler(7, 256, 200, 1, 2, 512);
}

static void large_seeds_are_recognised(void **state)
{
	(void)state;
	distributed_sampler(65536, 32, 31, 1, 2, 96);
	if (!long_run())
		return;
	distributed_sampler(999999, 2, 1, 1, 2, 96);
	distributed_sampler(123456, 8, 5, 1, 2, 96);
}

static void ranks_through_one_mount_are_recognised(void **state)
{
	(void)state;
	distributed_sampler(5, 8, 0, 8, 2, 96);
	distributed_sampler(6, 2, 0, 2, 4, 96);
	distributed_sampler(7, 16, 8, 8, 2, 192);
	distributed_sampler(8, 32, 0, 8, 2, 192);
	distributed_sampler(9, 8, 4, 4, 2, 96);
}

static uint32_t pick(uint64_t *random, const uint32_t *values, uint32_t n)
{
	return values[loader_random(random) % n];
}

enum { HOST_RANKS = 8, HOST_READERS = 2 * HOST_RANKS, HOST_EARLY = 6, HOST_OPENS = 24 };

/* 8 ranks with 2 workers each.  They begin one after the other, and wait after their first 6 files. */
static void staggered(const struct shard_index *few, uint32_t n, uint64_t id)
{
	struct prefetch_recognise_options options = { .index = few, .seed_max = 300, .popular_words = 1 };
	struct prefetch_recognise *r;
	struct prefetch_recognised track = { 0 };
	uint64_t random = id;
	uint32_t readers[HOST_READERS] = { 0 }, early[HOST_READERS] = { 0 },
	         seed = (uint32_t)(loader_random(&random) % 250);
	uint32_t every = 1 + (uint32_t)(loader_random(&random) % 20), span = 1 + (uint32_t)(loader_random(&random) % 6);
	bool in_order = loader_random(&random) % 2;
	assert_int_equal(prefetch_recognise_new(&options, &r), 0);
	randperm(n, seed, 0, order);
	for (uint32_t i = 0; i < HOST_READERS; i++) {
		uint32_t k = in_order ? i : (uint32_t)(loader_random(&random) % (i + 1));
		readers[i] = readers[k];
		readers[k] = i;
	}
	/* `span` of them at a time. */
	for (uint32_t fed = 0, first = 0; fed < HOST_READERS * HOST_EARLY;) {
		uint32_t i = first + (uint32_t)(loader_random(&random) % span);
		if (i >= HOST_READERS || early[i] == HOST_EARLY)
			i = first;
		uint32_t turn = readers[i] % 2 * 32 + early[i]++;
		prefetch_recognise_opened(r, &order[turn * HOST_RANKS + readers[i] / 2], 1);
		if (++fed % every == 0)
			recognise_work(r);
		while (first < HOST_READERS && early[first] == HOST_EARLY)
			first++;
	}
	recognise_work(r);
	if (prefetch_recognise_get(r, 0, &track) < 0 || track.seed != seed || track.world != 1)
		fail_msg("id %lu: seed %lu, ranks %u+%u of %u", id, track.seed, track.first, track.ranks, track.world);
	assert_int_equal(recognised_tracks(r), 1);
	prefetch_recognise_free(r);
}

static void ranks_that_begin_one_after_the_other_are_all_found(void **state)
{
	static const uint32_t sizes[] = { 3000, SMALL };
	(void)state;
	for (unsigned s = 0; s < 2; s++) {
		struct shard_index *few =
		        synth_open(&(struct synth){ .classes = 20, .per_class = sizes[s] / 20, .bytes = 1 });
		for (uint64_t id = 1; id <= (long_run() ? 2000 : 50); id++)
			staggered(few, sizes[s], id);
		synth_close(few);
	}
}

/* All ranks of a host in step, in bursts of whatever size: those that are not there at first are soon.  In long bursts
 * 512 opens are of a few ranks, so nothing is asked before each has made HOST_OPENS. */
static void host(const struct shard_index *small, uint64_t id)
{
	static const uint32_t worlds[] = { 2, 4, 8, 8, 16 }, workers[] = { 0, 2, 2, 4 }, batches[] = { 8, 16, 32, 32 };
	static const uint32_t bursts[] = { 1, 4, 16, 40, 100 }, steps[] = { 1, 16, 100 };
	struct prefetch_recognise_options options = { .index = small, .seed_max = 300, .popular_words = 1 };
	struct prefetch_recognise *r;
	struct prefetch_recognised track;
	uint64_t random = id, fed = 0;
	uint32_t world = pick(&random, worlds, 5), every = pick(&random, steps, 3), file, opens[16] = { 0 }, there = 0;
	struct loader loader = loader_of(order, SMALL, world, 0, world, pick(&random, workers, 4));
	loader.batch = pick(&random, batches, 4);
	loader.burst = pick(&random, bursts, 5);
	loader.random = loader_random(&random);
	assert_int_equal(prefetch_recognise_new(&options, &r), 0);
	for (uint32_t epoch = 0; epoch < 2; epoch++) {
		randperm(SMALL, 40 + epoch, 0, order);
		for (uint32_t i = 0; i < SMALL; i++)
			scratch[order[i]] = i % world;
		loader_rewind(&loader, order);
		while ((file = loader_next(&loader)) != UINT32_MAX) {
			there += ++opens[scratch[file]] == HOST_OPENS;
			prefetch_recognise_opened(r, &file, 1);
			if (++fed % every == 0)
				recognise_work(r);
			if (fed >= 512 && there == world &&
			        (prefetch_recognise_get(r, 0, &track) < 0 || track.world != 1))
				fail_msg("host %lu: not all of %u ranks after %lu opens", id, world, fed);
		}
	}
	recognise_work(r);
	track = only_track(r);
	if (track.seed != 41 || track.pace.stride != world || track.repeated || track.opens < fed * 99 / 100)
		fail_msg("host %lu: seed %lu, %u ranks of %u, %lu of %lu opens", id, track.seed, track.pace.stride,
		        world, track.opens, fed);
	prefetch_recognise_free(r);
}

static void all_ranks_of_a_host_are_found_soon(void **state)
{
	struct shard_index *small = synth_open(&(struct synth){ .classes = 20, .per_class = SMALL / 20, .bytes = 1 });
	(void)state;
	for (uint64_t id = 1; id <= (long_run() ? 1000 : 40); id++)
		host(small, id);
	host(small, 384); /* batches lie where contiguous parts of the permutation would begin */
	synth_close(small);
}

static void many_workers_are_not_taken_for_ranks(void **state)
{
	(void)state;
	distributed_sampler(21, 1, 0, 1, 16, 256);
	distributed_sampler(22, 2, 1, 1, 16, 256);
	distributed_sampler(23, 4, 2, 1, 8, 192);
}

struct schedule {
	uint32_t world, first, ranks, workers, batch, burst, seed, every, times;
};

static struct schedule any_schedule(uint64_t *random)
{
	static const uint32_t worlds[] = { 1, 1, 2, 2, 3, 4, 8, 16 }, workers[] = { 0, 2, 3, 4, 4, 6, 8 };
	static const uint32_t batches[] = { 16, 32, 32, 64, 128 }, bursts[] = { 1, 4, 16, 40, 100, 300 };
	static const uint32_t steps[] = { 16, 1, 100, 400 };
	struct schedule s = { .world = pick(random, worlds, 8), .workers = pick(random, workers, 7), .times = 1 };
	bool all = loader_random(random) % 3 == 0;
	s.ranks = all ? s.world : 1;
	s.first = all ? 0 : (uint32_t)(loader_random(random) % s.world);
	s.batch = pick(random, batches, 5);
	s.burst = pick(random, bursts, 6);
	s.every = pick(random, steps, 4);
	s.seed = (uint32_t)(loader_random(random) % 250);
	/* An epoch is more than what the workers are ahead. */
	while ((s.workers ? s.workers : 1) * s.batch * 2 * s.world > SMALL / 2 && s.batch > 8)
		s.batch /= 2;
	return s;
}

/* Two epochs and a half.  One track, never another, which says no wrong word and explains what is opened. */
static void one_schedule(const struct shard_index *small, const struct schedule *s, uint64_t id, uint64_t *random)
{
	struct prefetch_recognise_options options = { .index = small, .seed_max = 300, .popular_words = 1 };
	struct prefetch_recognise *r;
	struct prefetch_recognised track;
	uint64_t fed = 0, files;
	uint32_t file;
	assert_int_equal(prefetch_recognise_new(&options, &r), 0);
	struct loader loader = {
		.n = SMALL,
		.world = s->world,
		.first = s->first,
		.ranks = s->ranks,
		.workers = s->workers,
		.batch = s->batch,
		.burst = s->burst,
		.times = s->times,
		.random = loader_random(random),
	};
	for (uint32_t epoch = 0; epoch < 3; epoch++) {
		uint32_t left = epoch == 2 ? SMALL / s->world * s->ranks / 2 * s->times : UINT32_MAX;
		randperm(SMALL, s->seed + epoch, 0, order);
		loader_rewind(&loader, order);
		while (left-- > 0 && (file = loader_next(&loader)) != UINT32_MAX) {
			prefetch_recognise_opened(r, &file, 1);
			if (++fed % s->every == 0)
				recognise_work(r);
			if (recognised_tracks(r) > 1)
				fail_msg("schedule %lu: a second track after %lu opens", id, fed);
		}
	}
	recognise_work(r);
	track = only_track(r);
	bool whole = s->ranks == s->world;
	if (track.seed != s->seed + 2 || track.epoch != 2 || track.repeated)
		fail_msg("schedule %lu: seed %lu, epoch %lu, repeated %u", id, track.seed, track.epoch, track.repeated);
	if (track.world != (whole ? 1 : s->world) || track.ranks != (whole ? 1 : s->ranks) || track.first != s->first)
		fail_msg("schedule %lu: %u+%u of %u", id, track.first, track.ranks, track.world);
	char text[512], batch[32];
	prefetch_recognise_describe(&track, text, sizeof(text));
	snprintf(batch, sizeof(batch), "batch about %u", s->batch);
	if (strstr(text, "workers") || (strstr(text, "batch") && !strstr(text, batch)))
		fail_msg("schedule %lu: batches of %u, %u workers: %s", id, s->batch, s->workers, text);
	files = fed / s->times + s->ranks * (s->workers ? s->workers : 1); /* each reader is at one */
	if (track.opens + 400 * s->times < files * 98 / 100 || track.opens > files)
		fail_msg("schedule %lu: %lu of %lu opens", id, track.opens, files);
	prefetch_recognise_free(r);
}

static void any_schedule_of_workers_is_followed(void **state)
{
	struct shard_index *small =
	        synth_open(&(struct synth){ .classes = 20, .val_classes = 2, .per_class = SMALL / 20, .bytes = 1 });
	(void)state;
	for (uint64_t id = 1; id <= (long_run() ? 1000 : 41); id++) {
		/* 85: looked at but every 400 opens. */
		if (id == 41 && !long_run())
			id = 85;
		uint64_t random = id * 1000003;
		struct schedule s = any_schedule(&random);
		one_schedule(small, &s, id, &random);
	}
	/* 140: batches lie where contiguous parts would begin; 197, 806: workers in turn, as one with batches twice as
	 * large; 200: some readers begin in the middle of a batch. */
	static const uint64_t more[] = { 140, 197, 200, 806 };
	for (unsigned i = 0; i < 4; i++) {
		uint64_t random = more[i] * 1000003;
		struct schedule s = any_schedule(&random);
		one_schedule(small, &s, more[i], &random);
	}
	synth_close(small);
}

/* A look at the header first, a retry: side by side with other readers' opens, the same file comes again. */
static void files_opened_several_times_in_a_row_count_once(void **state)
{
	struct shard_index *small =
	        synth_open(&(struct synth){ .classes = 20, .val_classes = 2, .per_class = SMALL / 20, .bytes = 1 });
	(void)state;
	for (uint64_t id = 1; id <= (long_run() ? 1000 : 21); id++) {
		/* 68: some readers begin in the middle of a batch. */
		if (id == 21 && !long_run())
			id = 68;
		uint64_t random = id * 1000003;
		struct schedule s = any_schedule(&random);
		s.times = 2 + id % 2;
		one_schedule(small, &s, id, &random);
	}
	synth_close(small);
}

/* timm's RepeatAugSampler: each file of a permutation of seed + epoch three times, dealt one by one, a third of the
 * set an epoch. */
static void repeat_aug(const struct shard_index *few, uint32_t n, uint32_t world, uint32_t ranks)
{
	struct prefetch_recognise_options options = { .index = few, .seed_max = 300, .popular_words = 1 };
	struct prefetch_recognise *r;
	uint32_t file, fed = 0;
	assert_int_equal(prefetch_recognise_new(&options, &r), 0);
	struct loader loader = loader_of(order, n / 256 * 256, world, 0, ranks, 2);
	loader.batch = 16;
	for (uint32_t epoch = 0; epoch < 4; epoch++) {
		randperm(n, epoch, 0, order);
		for (uint32_t i = n; i-- > 0;)
			order[i] = order[i / 3];
		loader_rewind(&loader, order);
		while ((file = loader_next(&loader)) != UINT32_MAX) {
			prefetch_recognise_opened(r, &file, 1);
			if (++fed % 16 == 0)
				recognise_work(r);
		}
		recognise_work(r);
		struct prefetch_recognised track = only_track(r);
		if (track.seed != epoch || track.epoch != epoch || track.repeated || track.world != 1 ||
		        track.confirmed != (epoch > 0))
			fail_msg("%u files, %u ranks of %u: seed %lu, epoch %lu, repeated %u, %u+%u of %u", n, ranks,
			        world, track.seed, track.epoch, track.repeated, track.first, track.ranks, track.world);
	}
	prefetch_recognise_free(r);
}

static void repeated_augmentation_is_followed(void **state)
{
	(void)state;
	for (uint32_t n = 1400; n <= SMALL; n += SMALL - 1400) {
		struct shard_index *few = synth_open(&(struct synth){ .classes = 20, .per_class = n / 20, .bytes = 1 });
		repeat_aug(few, n, 2, 2);
		repeat_aug(few, n, 2, 1);
		repeat_aug(few, n, 4, 1);
		synth_close(few);
	}
}

/* A rank's whole epoch is a few batches, and nearly all that it does not open is not its own. */
static void ranks_of_few_files(const struct shard_index *few, uint32_t n, uint32_t world, uint32_t seed, uint32_t rank)
{
	struct prefetch_recognise *r;
	struct prefetch_recognised track;
	struct prefetch_recognise_options options = { .index = few, .seed_max = 1000, .popular_words = 1 };
	struct loader loader = loader_of(order, n, world, rank, 1, 2);
	assert_int_equal(prefetch_recognise_new(&options, &r), 0);
	for (uint32_t epoch = 0; epoch < 3; epoch++) {
		uint32_t file;
		randperm(n, seed + epoch, 0, order);
		loader_rewind(&loader, order);
		for (uint32_t i = 0; (file = loader_next(&loader)) != UINT32_MAX; i++) {
			prefetch_recognise_opened(r, &file, 1);
			if (i % 16 == 15)
				recognise_work(r);
			if (recognised_tracks(r) > 1)
				fail_msg("%u files, seed %u, rank %u of %u: a second track", n, seed, rank, world);
		}
		recognise_work(r);
		if (prefetch_recognise_get(r, 0, &track) < 0 || track.epoch != epoch || track.seed != seed + epoch ||
		        track.world != world || track.first != rank || track.ranks != 1)
			fail_msg("%u files, seed %u, rank %u of %u, epoch %u: not told", n, seed, rank, world, epoch);
		assert_int_equal(track.repeated, 0);
		assert_int_equal(track.confirmed, epoch > 0);
		assert_predicts(r, track.id, 0, &loader, order);
	}
	prefetch_recognise_free(r);
}

static void ranks_of_few_files_are_recognised_in_their_first_epoch(void **state)
{
	/* 50 opens of an epoch, or some more. */
	static const struct {
		uint32_t files, world;
	} sets[] = { { 250, 5 }, { 400, 8 }, { 550, 11 }, { 600, 11 }, { 900, 11 }, { 1000, 20 }, { 4000, 11 } };
	(void)state;
	for (unsigned s = 0; s < sizeof(sets) / sizeof(sets[0]); s++) {
		struct shard_index *few =
		        synth_open(&(struct synth){ .classes = 10, .per_class = sets[s].files / 10, .bytes = 1 });
		for (uint32_t seed = 0; seed < (long_run() ? 9 : 1); seed++) {
			for (uint32_t rank = 0; rank < sets[s].world; rank++)
				ranks_of_few_files(few, sets[s].files, sets[s].world, seed * 101, rank);
		}
		synth_close(few);
	}
}

/* Whole batches dealt to the ranks, as Accelerate does: what is not read is seen once the workers have left it
 * behind. */
static void batches_dealt_whole_are_recognised(void **state)
{
	struct prefetch_recognise *r = new_recognise(0);
	struct prefetch_recognised track;
	(void)state;
	randperm(N, 11, 0, order);
	for (uint32_t i = 0, fed = 0; i < N / 2; i++) {
		if (i / 32 % 4 != 2)
			continue;
		prefetch_recognise_opened(r, &order[i], 1);
		if (++fed % 16 == 0)
			recognise_work(r);
	}
	track = only_track(r);
	assert_int_equal(track.seed, 11);
	assert_int_equal(track.world, 128);
	assert_int_equal(track.first, 64);
	assert_int_equal(track.ranks, 32);
	prefetch_recognise_free(r);
}

/* Runs the loader to the end of its epoch. */
static void run_out(struct prefetch_recognise *r, struct loader *loader)
{
	uint32_t file;
	while ((file = loader_next(loader)) != UINT32_MAX)
		prefetch_recognise_opened(r, &file, 1);
	recognise_work(r);
}

static void feed_some(struct prefetch_recognise *r, struct loader *loader, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t file = loader_next(loader);
		prefetch_recognise_opened(r, &file, 1);
		if (i % 16 == 15)
			recognise_work(r);
	}
}

static void next_epochs_are_confirmed_by_their_first_opens(void **state)
{
	struct prefetch_recognise *r = new_recognise(0);
	(void)state;
	randperm(N, 100, 0, order);
	struct loader loader = loader_of(order, N, 4, 1, 1, 2);
	assert_in_range(feed(r, &loader, 512), 1, 96);
	for (uint32_t epoch = 1; epoch < 4; epoch++) {
		run_out(r, &loader);
		randperm(N, 100 + epoch, 0, order);
		loader_rewind(&loader, order);
		feed_some(r, &loader, 24);
		struct prefetch_recognised track = only_track(r);
		assert_int_equal(track.epoch, epoch);
		assert_int_equal(track.seed, 100 + epoch);
		assert_true(track.confirmed);
		assert_int_equal(track.repeated, 0);
		assert_predicts(r, track.id, 0, &loader, order);
	}
	prefetch_recognise_free(r);
}

static void a_jump_to_another_seed_is_followed(void **state)
{
	struct prefetch_recognise *r = new_recognise(0);
	(void)state;
	randperm(N, 100, 0, order);
	struct loader loader = loader_of(order, N, 4, 1, 1, 2);
	feed_some(r, &loader, 5000); /* leaves in the middle of the epoch */
	randperm(N, 777, 0, order);
	loader_rewind(&loader, order);
	feed_some(r, &loader, 200);
	struct prefetch_recognised track = only_track(r);
	assert_int_equal(track.seed, 777);
	assert_int_equal(track.epoch, 1);
	assert_false(track.confirmed);
	assert_predicts(r, track.id, 0, &loader, order);
	prefetch_recognise_free(r);
}

static void the_same_permutation_twice_is_said(void **state)
{
	struct prefetch_recognise *r = new_recognise(0);
	(void)state;
	randperm(N, 0, 0, order);
	struct loader loader = loader_of(order, N, 2, 1, 1, 2);
	feed_some(r, &loader, 512);
	for (uint32_t epoch = 1; epoch < 3; epoch++) {
		run_out(r, &loader);
		loader_rewind(&loader, order);
		feed_some(r, &loader, 64);
		struct prefetch_recognised track = only_track(r);
		assert_int_equal(track.epoch, epoch);
		assert_int_equal(track.seed, 0);
		assert_int_equal(track.repeated, epoch);
		assert_predicts(r, track.id, 1, &loader, order);
	}
	prefetch_recognise_free(r);
}

static void sorted_readers_are_recognised(void **state)
{
	(void)state;
	for (uint32_t world = 1; world <= 4; world++) {
		struct prefetch_recognise *r = new_recognise(0);
		for (uint32_t i = 0; i < N; i++)
			order[i] = i;
		struct loader loader = loader_of(order, N, world, world - 1, 1, 2);
		assert_in_range(feed(r, &loader, 512), 1, 96);
		feed_some(r, &loader, 1000);
		struct prefetch_recognised track = only_track(r);
		assert_int_equal(track.sampler, PREFETCH_SAMPLER_SORTED);
		assert_int_equal(track.world, world);
		assert_int_equal(track.first, world - 1);
		assert_predicts(r, track.id, 0, &loader, order);
		run_out(r, &loader);
		loader_rewind(&loader, order);
		feed_some(r, &loader, 64);
		track = only_track(r);
		assert_int_equal(track.epoch, 1);
		assert_int_equal(track.repeated, 0);
		prefetch_recognise_free(r);
	}
}

/* The seed that a RandomSampler draws as draw number `draw` (64 bits each) after manual_seed(manual). */
static uint64_t drawn(uint32_t manual, uint32_t draw)
{
	struct shard_mt19937 mt;
	uint64_t seed = 0;
	shard_mt19937_seed(&mt, manual);
	for (uint32_t i = 0; i <= draw; i++)
		seed = shard_mt19937_next64(&mt);
	return seed;
}

static void random_sampler(uint32_t manual, uint32_t first_draw, uint32_t draws)
{
	struct prefetch_recognise *r = new_recognise(0);
	randperm(N, drawn(manual, first_draw), 0, order);
	struct loader loader = loader_of(order, N, 1, 0, 1, 2);
	assert_in_range(feed(r, &loader, 512), 1, 96);
	for (uint32_t epoch = 1; epoch < 4; epoch++) {
		struct prefetch_recognised track = only_track(r);
		assert_int_equal(track.sampler, PREFETCH_SAMPLER_RANDOM);
		assert_int_equal(track.seed, manual);
		assert_int_equal(track.world, 1);
		run_out(r, &loader);
		randperm(N, drawn(manual, first_draw + epoch * draws), 0, order);
		loader_rewind(&loader, order);
		feed_some(r, &loader, 128);
		track = only_track(r);
		assert_int_equal(track.epoch, epoch);
		assert_int_equal(track.confirmed, draws == 2 || epoch > 1);
		assert_predicts(r, track.id, 0, &loader, order);
	}
	prefetch_recognise_free(r);
}

static void random_sampler_is_followed_through_the_default_generator(void **state)
{
	(void)state;
	random_sampler(0, 1, 2);
	random_sampler(42, 1, 3);
	random_sampler(4242, 0, 1);
	if (!long_run())
		return;
	random_sampler(7, 0, 5000); /* dropout on the CPU */
	random_sampler(1234, 3000, 2);
}

static void generator_of_its_own(uint64_t seed)
{
	for (uint32_t base = 0; base <= 2; base += 2) {
		struct prefetch_recognise *r = new_recognise(0);
		struct shard_mt19937 mt;
		shard_mt19937_seed(&mt, (uint32_t)seed);
		for (uint32_t epoch = 0; epoch < 4; epoch++) {
			for (uint32_t i = 0; i < base; i++)
				shard_mt19937_next32(&mt);
			skipped_randperm(&mt, N, order);
			skipped_randperm(&mt, N, scratch); /* drawn when the sampler is exhausted */
			struct loader loader = loader_of(order, N, 1, 0, 1, 2);
			feed_some(r, &loader, 128);
			struct prefetch_recognised track = only_track(r);
			assert_int_equal(track.epoch, epoch);
			/* A small seed at word 0 may as well be a DistributedSampler's. */
			bool known = base == 2 || seed > UINT32_MAX;
			assert_int_equal(track.confirmed, epoch > 1 || (known && epoch == 1));
			if (epoch > 0)
				assert_int_equal(track.sampler, PREFETCH_SAMPLER_GENERATOR);
			assert_predicts(r, track.id, 0, &loader, order);
			run_out(r, &loader);
		}
		prefetch_recognise_free(r);
	}
}

static void a_generator_of_its_own_is_followed(void **state)
{
	(void)state;
	generator_of_its_own(5);
	generator_of_its_own(67280421310721); /* torch.Generator().initial_seed() */
}

/* Seeds away from where a scan begins, and a seed behind the 10,000 that are tried first: it should take a moment, but
 * under a sanitizer each seed takes a hundred times as long. */
enum {
	FAR = BASE_SANITIZED ? 200000 : 5000000,
	SOON = BASE_SANITIZED ? 20000 : 500000,
	UNLIKELY = BASE_SANITIZED ? 10500 : 25000,
};

/* One that scans for the seeds from `first` on. */
static struct prefetch_recognise *new_scanning(uint32_t first)
{
	struct prefetch_recognise *r;
	struct prefetch_recognise_options options = {
		.index = dataset, .seed_max = 100, .popular_words = 1, .scan_threads = 2, .scan_first = first
	};
	assert_int_equal(prefetch_recognise_new(&options, &r), 0);
	return r;
}

static struct prefetch_scanned scanned(const struct prefetch_recognise *r)
{
	struct prefetch_scanned now;
	prefetch_recognise_scanned(r, &now);
	return now;
}

static void wait_for_scan(struct prefetch_recognise *r)
{
	while (scanned(r).running) {
		recognise_work(r);
		usleep(1000);
	}
	recognise_work(r);
}

/* The opens of one epoch: the scan begins with the first hundred, and ends when the trainer is far ahead. */
static void scan_epoch(struct prefetch_recognise *r, struct loader *loader, uint32_t epoch)
{
	enum { FIRST = 640, AHEAD = 20000, OPENS = FIRST + AHEAD };
	uint32_t file;
	feed_some(r, loader, FIRST);
	for (uint32_t i = 0; i < AHEAD; i++) {
		file = loader_next(loader);
		prefetch_recognise_opened(r, &file, 1);
		if (i % 16 == 0 && i < 2048)
			recognise_work(r);
	}
	wait_for_scan(r);
	struct prefetch_recognised track = only_track(r);
	assert_true(track.ready);
	assert_int_equal(track.sampler, PREFETCH_SAMPLER_UNSEEDED);
	assert_int_equal(track.epoch, epoch);
	assert_in_range(track.turn, OPENS - loader->workers * loader->batch, OPENS + loader->workers * loader->batch);
	uint64_t explained = track.opens;
	for (uint32_t i = 0; i < 5000; i++) {
		file = loader_next(loader);
		prefetch_recognise_opened(r, &file, 1);
	}
	/* Of many workers some are in the middle of batches that are not told from strangers. */
	assert_in_range(only_track(r).opens, explained + 5000 - (loader->workers > 2 ? 128 : 0), explained + 5000);
}

static void an_unseeded_sampler_is_found_among_all_seeds(void **state)
{
	const uint32_t first = 3000000000;
	struct prefetch_recognise *r = new_scanning(first);
	char text[256];
	(void)state;
	for (uint32_t epoch = 0; epoch < 3; epoch++) {
		uint32_t seed = first + (epoch == 1 ? FAR : SOON) + epoch * 12345;
		uint32_t workers = epoch == 2 ? 24 : epoch + 1;
		randperm(N, seed, 0, order);
		struct loader loader = loader_of(order, N, 1, 0, 1, workers);
		scan_epoch(r, &loader, epoch);
		struct prefetch_recognised track = only_track(r);
		assert_int_equal(track.seed, seed);
		assert_int_equal(track.repeated, 0);
		assert_predicts(r, track.id, 0, &loader, order);
		assert_non_null(strstr(prefetch_recognise_describe(&track, text, sizeof(text)), "without a seed"));
		/* The next one cannot be known. */
		struct prefetch_sequence *next;
		assert_int_equal(prefetch_recognise_sequence(r, track.id, 1, &next), -ENOENT);
		assert_int_equal(scanned(r).begun, epoch + 1);
		assert_int_equal(scanned(r).found, epoch + 1);
		run_out(r, &loader);
	}
	prefetch_recognise_free(r);
}

/* What the trainer opened while the seeds were tried is its own, however often the ring was filled with it anew. */
static void nothing_is_left_over_when_a_seed_is_found(void **state)
{
	const uint32_t first = 1000000000;
	(void)state;
	for (uint32_t opens = 640; opens <= 20480; opens *= 32) {
		struct prefetch_recognise *r = new_scanning(first);
		randperm(N, first + FAR, 0, order);
		struct loader loader = loader_of(order, N, 1, 0, 1, 2);
		feed_some(r, &loader, opens);
		wait_for_scan(r);
		assert_int_equal(only_track(r).seed, first + FAR);
		assert_int_equal(scanned(r).begun, 1);
		feed_some(r, &loader, 2000);
		assert_int_equal(scanned(r).begun, 1);
		assert_in_range(only_track(r).opens, opens + 1990, opens + 2000);
		prefetch_recognise_free(r);
	}
}

/* Accelerate's: a generator seeded at random, once. */
static void a_generator_with_any_seed_is_followed_once_it_is_found(void **state)
{
	const uint32_t seed = 2345678901;
	struct prefetch_recognise *r = new_scanning(seed - SOON);
	struct shard_mt19937 mt;
	(void)state;
	shard_mt19937_seed(&mt, seed);
	for (uint32_t epoch = 0; epoch < 3; epoch++) {
		skipped_randperm(&mt, N, order);
		struct loader loader = loader_of(order, N, 1, 0, 1, 2);
		feed_some(r, &loader, 640);
		wait_for_scan(r);
		struct prefetch_recognised track = only_track(r);
		assert_int_equal(track.sampler, epoch == 0 ? PREFETCH_SAMPLER_UNSEEDED : PREFETCH_SAMPLER_GENERATOR);
		assert_int_equal(track.epoch, epoch);
		assert_predicts(r, track.id, 0, &loader, order);
		run_out(r, &loader);
	}
	assert_int_equal(scanned(r).begun, 1);
	prefetch_recognise_free(r);
}

/* A scan is of use for an epoch's beginning alone: it ends with it, and is not begun for what is recognised anyway.
 * Beside it others
 * are recognised as ever. */
static void a_scan_ends_with_its_epoch(void **state)
{
	struct prefetch_recognise *r = new_scanning(0);
	uint64_t random = 5;
	(void)state;
	randperm(N, 77, 0, order);
	struct loader loader = loader_of(order, N, 1, 0, 1, 2);
	feed_some(r, &loader, 2000);
	assert_int_equal(only_track(r).seed, 77);
	assert_int_equal(scanned(r).begun, 0);
	run_out(r, &loader);
	prefetch_recognise_free(r);

	r = new_scanning(0);
	for (uint32_t i = 0; i < VAL; i++)
		scratch[i] = N + i;
	shuffle_by_nobody(&random, VAL, scratch);
	uint64_t tried = 0;
	for (unsigned epoch = 0; epoch < 2; epoch++) {
		struct loader val = loader_of(scratch, VAL, 1, 0, 1, 0);
		feed_some(r, &val, 640);
		assert_true(scanned(r).running);
		assert_int_equal(scanned(r).begun, epoch + 1);
		prefetch_recognise_pause(r); /* not an end: it goes on */
		assert_true(scanned(r).running);
		run_out(r, &val);
		assert_true(scanned(r).tried >= tried);
		tried = scanned(r).tried;
	}
	/* Then training begins, which is recognised as soon as without. */
	assert_true(scanned(r).running);
	prefetch_recognise_pause(r);
	loader_rewind(&loader, order);
	assert_in_range(feed(r, &loader, 512), 1, 96);
	assert_int_equal(only_track(r).seed, 77);
	assert_int_equal(scanned(r).found, 0);
	prefetch_recognise_free(r); /* in the middle of one */
}

/* All that is tried in vain is counted, however short the epochs: there is an end. */
static void scans_in_vain_have_an_end(void **state)
{
	struct prefetch_recognise *r;
	uint64_t random = 7;
	struct prefetch_recognise_options options = { .index = dataset,
		.seed_max = 100,
		.popular_words = 1,
		.scan_threads = 2,
		.scanned = { .tried = UINT64_C(3) << 32, .cpu_ns = 5, .begun = 4 } };
	(void)state;
	for (unsigned more = 0; more < 2; more++) {
		assert_int_equal(prefetch_recognise_new(&options, &r), 0);
		for (uint32_t i = 0; i < VAL; i++)
			scratch[i] = N + i;
		shuffle_by_nobody(&random, VAL, scratch);
		struct loader val = loader_of(scratch, VAL, 1, 0, 1, 0);
		feed_some(r, &val, 1000);
		assert_int_equal(scanned(r).running, more);
		assert_int_equal(scanned(r).begun, 4 + more);
		assert_true(scanned(r).cpu_ns >= 5);
		prefetch_recognise_free(r);
		options.scanned.tried -= 1;
	}
}

/* Two trainers shuffle the same files: each is found, and followed from where it is, not from where the other one has
 * been. */
static void two_unseeded_jobs_are_both_followed(void **state)
{
	const uint32_t first = 4000000000;
	(void)state;
	for (uint32_t share = 2; share <= 8; share *= 2) {
		struct prefetch_recognise *r = new_scanning(first);
		randperm(N, first + 2 * SOON, 0, order);
		randperm(N, first + 3 * SOON, 0, after);
		struct loader one = loader_of(order, N, 1, 0, 1, 2), two = loader_of(after, N, 1, 0, 1, 2);
		uint32_t file, of_one = 0;
		for (uint32_t i = 0; i < 30000; i++) {
			of_one += i % share == 0;
			file = loader_next(i % share == 0 ? &one : &two);
			prefetch_recognise_opened(r, &file, 1);
			if (i < 1024 && i % 16 == 0)
				recognise_work(r);
		}
		wait_for_scan(r);
		struct prefetch_recognised track;
		assert_in_range(recognised_tracks(r), 1, 2);
		assert_int_equal(prefetch_recognise_get(r, 0, &track), 0);
		uint32_t opens = track.seed == first + 2 * SOON ? of_one : 30000 - of_one;
		assert_in_range(track.turn, opens - 200, opens + 200);
		prefetch_recognise_free(r);
	}
}

/* A minute or so: no seed of 2^32 makes this order, and after the third time nobody looks any more. */
static void no_seed_is_found_where_there_is_none(void **state)
{
	if (!long_run()) {
		printf("skipped: all 2^32 seeds three times, minutes of processor time: set DDPFS_RECOGNISE_LONG=1\n");
		skip();
	}
	struct prefetch_recognise *r = new_scanning(0);
	uint64_t random = 6;
	(void)state;
	for (uint32_t i = 0; i < N; i++)
		order[i] = i;
	for (uint32_t epoch = 0; epoch < 4; epoch++) {
		shuffle_by_nobody(&random, N, order);
		struct loader loader = loader_of(order, N, 1, 0, 1, 2);
		feed_some(r, &loader, 640);
		wait_for_scan(r);
		assert_int_equal(scanned(r).begun, epoch < 3 ? epoch + 1 : 3);
		assert_int_equal(scanned(r).found, 0);
		assert_int_equal(recognised_tracks(r), 0);
		run_out(r, &loader);
	}
	prefetch_recognise_free(r);
}

static void validation_and_a_second_job_do_not_disturb(void **state)
{
	struct prefetch_recognise *r = new_recognise(0);
	struct prefetch_recognised track;
	unsigned seen = 0;
	(void)state;
	for (uint32_t i = 0; i < VAL; i++)
		scratch[i] = N + i;
	randperm(N, 31, 0, order);
	randperm(N, 77, 0, after);
	struct loader one = loader_of(order, N, 2, 0, 1, 2), two = loader_of(after, N, 1, 0, 1, 4);
	struct loader val = loader_of(scratch, VAL, 1, 0, 1, 2);
	for (uint32_t i = 0; i < 1500; i++) {
		uint32_t file = loader_next(i % 3 == 0 ? &one : i % 3 == 1 ? &two : &val);
		prefetch_recognise_opened(r, &file, 1);
		if (i % 16 == 0)
			recognise_work(r);
	}
	recognise_work(r);
	assert_int_equal(recognised_tracks(r), 3);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(prefetch_recognise_get(r, i, &track), 0);
		if (track.sampler == PREFETCH_SAMPLER_SORTED) {
			assert_predicts(r, track.id, 0, &val, scratch);
			seen |= 1;
		} else if (track.seed == 31) {
			assert_predicts(r, track.id, 0, &one, order);
			seen |= 2;
		} else if (track.seed == 77) {
			assert_predicts(r, track.id, 0, &two, after);
			seen |= 4;
		}
	}
	assert_int_equal(seen, 7);
	prefetch_recognise_free(r);
}

/* A DistributedSampler over train/, then all of val/ in order, as often as it likes, whenever they are looked at. */
static void train_and_validation(uint64_t id)
{
	static const uint32_t trains[] = { 1500, 4000, 9000 }, vals[] = { 150, 300, 1000 }, worlds[] = { 1, 2, 4 };
	static const uint32_t bursts[] = { 1, 4, 16, 48 }, steps[] = { 1, 16, 64, 200 }, workers[] = { 0, 2, 4 };
	uint64_t random = id, fed = 0, explained = 0;
	uint32_t n = pick(&random, trains, 3), n_val = pick(&random, vals, 3), file;
	uint32_t world = pick(&random, worlds, 3), every = pick(&random, steps, 4);
	/* synth has as many files in each class. */
	uint32_t per_class = n_val / 10;
	n = n / per_class * per_class;
	struct shard_index *split = synth_open(
	        &(struct synth){ .classes = n / per_class, .val_classes = 10, .per_class = per_class, .bytes = 1 });
	struct prefetch_recognise_options options = { .index = split, .seed_max = 300, .popular_words = 1 };
	struct prefetch_recognise *r;
	struct prefetch_recognised track;
	assert_int_equal(prefetch_recognise_new(&options, &r), 0);
	struct loader train = loader_of(order, n, world, world - 1, 1, pick(&random, workers, 3));
	struct loader val = loader_of(after, n_val, 1, 0, 1, train.workers);
	train.burst = val.burst = pick(&random, bursts, 4);
	train.random = loader_random(&random), val.random = loader_random(&random);
	for (uint32_t i = 0; i < n_val; i++)
		after[i] = n + i;
	for (uint32_t epoch = 0; epoch < 3; epoch++) {
		randperm(n, 17 + epoch, 0, order);
		loader_rewind(&train, order);
		loader_rewind(&val, after);
		for (unsigned v = 0; v < 2; v++) {
			while ((file = loader_next(v ? &val : &train)) != UINT32_MAX) {
				prefetch_recognise_opened(r, &file, 1);
				if (++fed % every == 0)
					recognise_work(r);
			}
		}
	}
	recognise_work(r);
	for (unsigned i = 0; prefetch_recognise_get(r, i, &track) == 0; i++) {
		explained += track.opens;
		if (i > 1 || track.repeated || track.epoch != 2 || !strstr(track.list, i ? "val/" : "train/") ||
		        track.sampler != (i ? PREFETCH_SAMPLER_SORTED : PREFETCH_SAMPLER_DISTRIBUTED))
			fail_msg("split %lu, %u + %u files: track %u is sampler %d over %s, epoch %lu", id, n, n_val, i,
			        track.sampler, track.list, track.epoch);
	}
	assert_int_equal(recognised_tracks(r), 2);
	assert_in_range(explained, fed * 8 / 10, fed);
	prefetch_recognise_free(r);
	synth_close(split);
}

static void validation_between_is_not_taken_for_the_whole_dataset(void **state)
{
	(void)state;
	for (uint64_t id = 1; id <= (long_run() ? 1000 : 36); id++)
		train_and_validation(id);
}

/* Few files: nearly all of them lie near where the other job is in its own permutation. */
static void two_jobs(const struct shard_index *few, uint32_t n, uint64_t id)
{
	struct prefetch_recognise_options options = { .index = few, .seed_max = 300, .popular_words = 1 };
	struct prefetch_recognise *r;
	static const uint32_t bursts[] = { 1, 4, 16 }, steps[] = { 1, 16, 64, 200 };
	uint64_t random = id, fed = 0, explained = 0;
	uint32_t head = (uint32_t)(loader_random(&random) % 4 * 40), every = pick(&random, steps, 4), run = 0;
	bool second = false, ended[2] = { false, false };
	randperm(n, 100, 0, order);
	randperm(n, 200, 0, after);
	struct loader jobs[2] = { loader_of(order, n, 2, 0, 1, 2), loader_of(after, n, 2, 1, 1, 2) };
	jobs[0].burst = jobs[1].burst = pick(&random, bursts, 3);
	jobs[0].random += id, jobs[1].random += id;
	assert_int_equal(prefetch_recognise_new(&options, &r), 0);
	while (!ended[0] || !ended[1]) {
		if (run == 0) {
			second = fed >= head && loader_random(&random) % 2;
			run = 1 + (uint32_t)(loader_random(&random) % 8);
		}
		run--;
		if (ended[second])
			second = !second;
		uint32_t file = loader_next(&jobs[second]);
		if (file == UINT32_MAX) {
			ended[second] = true;
			continue;
		}
		prefetch_recognise_opened(r, &file, 1);
		if (++fed % every == 0)
			recognise_work(r);
	}
	recognise_work(r);
	assert_int_equal(recognised_tracks(r), 2);
	for (unsigned i = 0; i < 2; i++) {
		struct prefetch_recognised track;
		assert_int_equal(prefetch_recognise_get(r, i, &track), 0);
		explained += track.opens;
		if (track.world != 2 || track.ranks != 1 || track.seed != (track.first + 1) * 100 || track.repeated)
			fail_msg("jobs %lu: seed %lu, %u+%u of %u", id, track.seed, track.first, track.ranks,
			        track.world);
	}
	assert_in_range(explained, fed * 9 / 10, fed);
	prefetch_recognise_free(r);
}

static void two_jobs_on_few_files_are_told_apart(void **state)
{
	static const uint32_t sizes[] = { 1000, 3000, 10000 };
	(void)state;
	for (unsigned s = 0; s < 3; s++) {
		struct shard_index *few =
		        synth_open(&(struct synth){ .classes = 20, .per_class = sizes[s] / 20, .bytes = 1 });
		for (uint64_t id = 1; id <= (long_run() ? 200 : 8); id++)
			two_jobs(few, sizes[s], id);
		synth_close(few);
	}
}

/* A rank's part: every second file of train/, backwards. */
static int given_at(void *user, uint32_t i, uint32_t *ret_file)
{
	(void)user;
	*ret_file = N - 2 - 2 * i;
	return 0;
}

static int given_find(void *user, uint32_t file, uint32_t *ret_index)
{
	(void)user;
	if (file >= N || file % 2 != 0)
		return -ENOENT;
	*ret_index = (N - 2 - file) / 2;
	return 0;
}

static void shards_twice(uint32_t n, uint32_t seed, uint32_t rank)
{
	struct prefetch_list_given given = { .name = "this rank's view", .n = n, .at = given_at, .find = given_find };
	struct prefetch_recognise_options options = {
		.index = dataset, .given = &given, .n_given = 1, .seed_max = 9999, .popular_words = 1
	};
	struct prefetch_recognise *r;
	assert_int_equal(prefetch_recognise_new(&options, &r), 0);
	shard_torch_randperm(n, seed, order);
	for (uint32_t i = 0; i < n; i++)
		given_at(NULL, order[i], &order[i]);
	struct loader loader = loader_of(order, n, 2, rank, 1, 2);
	if (feed(r, &loader, n / 2 < 96 ? n / 2 : 96) == UINT32_MAX) {
		assert_true(n < 192); /* the epoch is over before all that was needed */
		prefetch_recognise_pause(r);
		recognise_work(r);
	}
	struct prefetch_recognised track = only_track(r);
	assert_true(track.ready && track.shards_twice);
	assert_int_equal(track.seed, seed);
	assert_int_equal(track.first, rank);
	assert_string_equal(track.list, "this rank's view");
	if (n > 1000) {
		feed_some(r, &loader, 200);
		assert_predicts(r, only_track(r).id, 0, &loader, order);
	}
	prefetch_recognise_free(r);
}

static void a_distributed_sampler_over_a_ranks_part_shards_twice(void **state)
{
	(void)state;
	shards_twice(N / 2, 3, 1);
	for (uint32_t seed = 0; seed < 8; seed++) {
		shards_twice(100, seed, seed % 2);
		shards_twice(110, seed, seed % 2);
		shards_twice(120, seed, seed % 2);
		shards_twice(300, seed, seed % 2);
	}
}

enum { OWN_EPOCHS = 16 };
static struct shard_order own_orders[OWN_EPOCHS];
static uint32_t own_files; /* of a sample */

static int own_at(void *user, uint64_t epoch, uint64_t position, uint32_t *ret_file)
{
	(void)user;
	*ret_file = (uint32_t)shard_order_at(&own_orders[epoch % OWN_EPOCHS], position) * own_files;
	return 0;
}

static int own_find(void *user, uint64_t epoch, uint32_t file, uint64_t *ret_position)
{
	const struct prefetch_own_order *own = user;
	if (file >= own->size * own_files)
		return -ENOENT;
	*ret_position = shard_order_position(&own_orders[epoch % OWN_EPOCHS], file / own_files);
	return 0;
}

static struct prefetch_own_order make_own(enum shard_order_mode mode, uint32_t samples, uint32_t files)
{
	own_files = files;
	for (uint32_t e = 0; e < OWN_EPOCHS; e++) {
		struct shard_order_params params = {
			.mode = mode, .n = samples, .epoch = e, .chunk_items = 50, .pool_chunks = 8
		};
		assert_int_equal(shard_order_init(&own_orders[e], &params), 0);
	}
	return (struct prefetch_own_order){ .at = own_at, .find = own_find, .size = samples, .several = files > 1 };
}

static void own_orders_are_recognised_wherever_they_are_entered(void **state)
{
	struct prefetch_own_order own = make_own(SHARD_ORDER_FULL, N, 1);
	struct prefetch_recognise_options options = { .index = dataset, .own = &own, .own_epochs = OWN_EPOCHS };
	struct prefetch_recognise *r;
	uint32_t file;
	(void)state;
	own.user = &own;
	assert_int_equal(prefetch_recognise_new(&options, &r), 0);
	for (uint32_t i = 50000; i < 50200; i++) {
		own_at(NULL, 7, i, &file);
		prefetch_recognise_opened(r, &file, 1);
		recognise_work(r);
	}
	struct prefetch_recognised track = only_track(r);
	assert_int_equal(track.sampler, PREFETCH_SAMPLER_OWN);
	assert_int_equal(track.seed, 7);
	assert_int_equal(track.turn, 50200);
	prefetch_recognise_free(r);
}

/* A trainer that goes by the list of an epoch, or by paths[rank::world] of it, all files of a sample together. */
static void own_order(
        const struct shard_index *small, enum shard_order_mode mode, uint32_t files, uint64_t *random, uint32_t epoch)
{
	static const uint32_t worlds[] = { 1, 2, 3, 4, 8 }, workers[] = { 0, 2, 4 };
	uint32_t samples = SMALL / files, world = pick(random, worlds, 5),
	         rank = (uint32_t)(loader_random(random) % world);
	struct prefetch_own_order own = make_own(mode, samples, files);
	struct prefetch_recognise_options options = {
		.index = small, .own = &own, .own_epochs = 4, .own_first = 9, .seed_max = 100, .popular_words = 1
	};
	struct prefetch_recognise *r;
	struct prefetch_recognised track = { 0 };
	uint64_t fed = 0, missed = 0;
	uint32_t file;
	own.user = &own;
	assert_int_equal(prefetch_recognise_new(&options, &r), 0);
	struct loader loader = loader_of(order, samples, world, rank, 1, pick(random, workers, 3));
	loader.random = loader_random(random);
	for (uint32_t e = epoch; e < epoch + 3; e++) {
		for (uint32_t i = 0; i < samples; i++)
			own_at(NULL, e, i, &order[i]);
		loader_rewind(&loader, order);
		while ((file = loader_next(&loader)) != UINT32_MAX) {
			for (uint32_t k = 0; k < files; k++, fed++) {
				uint32_t one = file + k;
				prefetch_recognise_opened(r, &one, 1);
			}
			if (fed % 16 < files)
				recognise_work(r);
			missed += fed > 96 * (uint64_t)files && recognised_tracks(r) == 0;
			if (recognised_tracks(r) > 1)
				fail_msg(
				        "epoch %u, rank %u of %u: a second track after %lu opens", e, rank, world, fed);
		}
	}
	recognise_work(r);
	track = only_track(r);
	if (missed || track.sampler != PREFETCH_SAMPLER_OWN || track.seed != epoch + 2 || track.epoch != 2 ||
	        track.world != world || track.first != rank || track.ranks != 1 || track.repeated)
		fail_msg("order %d from epoch %u on, rank %u of %u, %u files: %lu late, sampler %d, %lu, rank %u of %u",
		        mode, epoch, rank, world, files, missed, track.sampler, track.seed, track.first, track.world);
	assert_in_range(track.opens * files, fed * 97 / 100 - 200, fed);
	assert_predicts(r, track.id, 0, &loader, order);
	prefetch_recognise_free(r);
}

static void own_orders_of_any_rank_are_followed(void **state)
{
	static const enum shard_order_mode modes[] = { SHARD_ORDER_FULL, SHARD_ORDER_CHUNK };
	static const uint32_t epochs[] = { 0, 3, 9, 12 };
	struct shard_index *small =
	        synth_open(&(struct synth){ .classes = 20, .val_classes = 2, .per_class = SMALL / 20, .bytes = 1 });
	uint64_t random = 1;
	(void)state;
	for (uint32_t id = 0; id < (long_run() ? 400 : 24); id++)
		own_order(small, modes[id % 2], 1 + id / 2 % 2, &random, epochs[id % 4]);
	synth_close(small);
}

/* The first opens of a random order of n files, which are `base` and those behind it. */
static void nothing_in(struct prefetch_recognise *r, uint32_t n, uint32_t base, uint64_t *random)
{
	uint32_t opens = n < 600 ? n : 600;
	struct prefetch_recognised track;
	char text[512];
	for (uint32_t i = 0; i < n; i++)
		scratch[i] = base + i;
	for (uint32_t i = 0; i < opens; i++) {
		uint32_t j = i + (uint32_t)(loader_random(random) % (n - i)), kept = scratch[i];
		scratch[i] = scratch[j];
		scratch[j] = kept;
	}
	prefetch_recognise_pause(r);
	for (uint32_t i = 0; i < opens; i += 100) {
		prefetch_recognise_opened(r, scratch + i, opens - i < 100 ? opens - i : 100);
		recognise_work(r);
	}
	if (prefetch_recognise_get(r, 0, &track) == 0)
		fail_msg("%u files: taken for %s, score %g", n, prefetch_recognise_describe(&track, text, sizeof(text)),
		        track.score);
}

/* DDPFS_RANDOM_ORDERS=10000 for the long run: of each number of files so many orders, a few milliseconds each. */
static void nothing_is_recognised_in_random_orders(void **state)
{
	static const uint32_t sizes[] = { 900, SMALL, N };
	const char *orders = getenv("DDPFS_RANDOM_ORDERS"), *first = getenv("DDPFS_RANDOM_SEED");
	unsigned rounds = orders ? (unsigned)strtoul(orders, NULL, 10) : 10;
	struct prefetch_recognise *r;
	(void)state;
	for (unsigned s = 0; s < 3; s++) {
		uint64_t random = first ? strtoull(first, NULL, 10) : 1; /* for a run in pieces */
		struct shard_index *few = synth_open(
		        &(struct synth){ .classes = 20, .val_classes = 2, .per_class = sizes[s] / 20, .bytes = 1 });
		struct prefetch_own_order own = make_own(s % 2 ? SHARD_ORDER_CHUNK : SHARD_ORDER_FULL, sizes[s], 1);
		struct prefetch_recognise_options options = {
			.index = few, .own = &own, .own_epochs = OWN_EPOCHS / 2, .seed_max = 15, .popular_words = 1
		};
		own.user = &own;
		assert_int_equal(prefetch_recognise_new(&options, &r), 0);
		for (unsigned round = 0; round < rounds; round++)
			nothing_in(r, sizes[s], 0, &random);
		for (unsigned round = 0; round < rounds / 10; round++)
			nothing_in(r, sizes[s] / 20, sizes[s], &random); /* val/ */
		prefetch_recognise_free(r);
		/* Many seeds against few orders are as many chances to go wrong. */
		options.seed_max = long_run() ? 99999 : 500;
		options.shuffle_max = long_run() ? 9999 : 100;
		assert_int_equal(prefetch_recognise_new(&options, &r), 0);
		for (unsigned round = 0; round < (long_run() ? 3 : 1); round++)
			nothing_in(r, sizes[s], 0, &random);
		prefetch_recognise_free(r);
		synth_close(few);
	}
}

/* As DLIO reads: sorted by name over all directories, a contiguous part a rank, two workers each, all ranks through
 * one mount. */
enum { DLIO_DIRS = 4, DLIO_EACH = 750, DLIO_FILES = DLIO_DIRS * DLIO_EACH, DLIO_EPOCHS = 3 };

struct rank {
	struct loader loader;
	uint32_t opened;
};

/* In which order the ranks' opens come is chance; none is more than four batches ahead. */
static uint32_t any_rank(const struct rank *ranks, uint32_t n, uint32_t batch, uint64_t *random)
{
	uint32_t any = (uint32_t)(loader_random(random) % n);
	for (uint32_t i = 0; i < n; i++) {
		if (ranks[i].opened + 4 * batch < ranks[any].opened)
			any = i;
	}
	return any;
}

/* A track has it at about this turn: it would have been read ahead. */
static bool is_soon(struct prefetch_recognise *r, uint32_t file, uint64_t turn, uint64_t slack)
{
	struct prefetch_recognised track;
	struct prefetch_sequence *sequence;
	bool soon = false;
	for (unsigned i = 0; !soon && prefetch_recognise_get(r, i, &track) == 0; i++) {
		uint64_t at;
		if (!track.ready || prefetch_recognise_sequence(r, track.id, 0, &sequence) < 0)
			continue;
		soon = prefetch_sequence_find(sequence, file, &at) == 0 && at < turn + slack && turn < at + slack;
		prefetch_sequence_put(sequence);
	}
	return soon;
}

static void contiguous_parts(const struct shard_index *few, const struct synth *synth, uint64_t id)
{
	static const uint32_t worlds[] = { 2, 2, 3, 4, 8 }, batches[] = { 16, 16, 8, 32 }, steps[] = { 1, 16, 40, 40 },
	                      lates[] = { 0, 0, 0, 40 };
	struct prefetch_recognise_options options = { .index = few, .seed_max = 300, .popular_words = 1 };
	struct prefetch_recognise *r;
	struct prefetch_recognised track = { 0 };
	struct rank ranks[8];
	uint64_t random = id * 7919, fed = 0, expected = 0, of_epoch;
	uint32_t world = pick(&random, worlds, 5), batch = pick(&random, batches, 4), every = pick(&random, steps, 4);
	uint32_t late = pick(&random, lates, 4); /* the first rank is alone so long */
	char text[512];
	assert_int_equal(prefetch_recognise_new(&options, &r), 0);
	for (uint32_t i = 0; i < DLIO_FILES; i++) {
		enum shard_kind kind;
		char path[64];
		order[i] = id % 3 == 1 ? i % DLIO_DIRS * DLIO_EACH + i / DLIO_DIRS : i;
		if (!synth->scattered)
			continue;
		snprintf(path, sizeof(path), "train/class_%04u/item_%06u.bin", synth_class(synth, i), i);
		assert_int_equal(shard_index_find_path(few, path, &kind, &order[i]), 0);
	}
	uint32_t part = (DLIO_FILES + world - 1) / world;
	for (unsigned epoch = 0; epoch < DLIO_EPOCHS; epoch++) {
		of_epoch = 0;
		for (uint32_t rank = 0; rank < world; rank++) {
			uint32_t n = DLIO_FILES - rank * part < part ? DLIO_FILES - rank * part : part;
			ranks[rank] = (struct rank){ .loader = loader_of(order + rank * part, n, 1, 0, 1, 2) };
			ranks[rank].loader.batch = batch;
			ranks[rank].loader.random = loader_random(&random);
		}
		for (uint32_t left = world; left > 0;) {
			uint32_t rank = fed < late ? 0 : any_rank(ranks, left, batch, &random);
			uint32_t file = loader_next(&ranks[rank].loader);
			ranks[rank].opened++;
			if (file == UINT32_MAX) {
				ranks[rank] = ranks[--left];
				continue;
			}
			prefetch_recognise_opened(r, &file, 1);
			if (++fed % every == 0)
				recognise_work(r);
			expected += is_soon(r, file, ++of_epoch, 16 * (uint64_t)world * batch);
		}
	}
	recognise_work(r);
	if (recognised_tracks(r) != 1 || prefetch_recognise_get(r, 0, &track) < 0)
		fail_msg("id %lu, %u ranks, batch %u, every %u, late %u: %u wrong, %u tracks", id, world, batch, every,
		        late, searched(r).wrong, recognised_tracks(r));
	if (track.epoch != DLIO_EPOCHS - 1 || track.repeated || expected + 400 * DLIO_EPOCHS + late < fed)
		fail_msg("id %lu, %u ranks, batch %u, every %u, late %u: %u wrong, epoch %lu, %lu of %lu opens, %s; %s",
		        id, world, batch, every, late, searched(r).wrong, track.epoch, expected, fed,
		        prefetch_recognise_describe(&track, text, sizeof(text)), track.list);
	prefetch_recognise_free(r);
}

static void sorted_contiguous_parts_are_recognised(void **state)
{
	struct synth synth = { .classes = DLIO_DIRS, .per_class = DLIO_EACH, .bytes = 1 };
	struct synth scattered = synth;
	scattered.scattered = true;
	struct shard_index *few = synth_open(&synth), *other = synth_open(&scattered);
	(void)state;
	/* Directory by directory, by name where directories have the same names, by name where files are in whichever
	 * directory. */
	for (uint64_t id = 1; id <= (long_run() ? 1000 : 37); id++) {
		/* 40: the first rank looks like a reader of the whole list; then seven others come. */
		if (id == 37 && !long_run())
			id = 40;
		contiguous_parts(id % 3 == 2 ? other : few, id % 3 == 2 ? &scattered : &synth, id);
	}
	synth_close(few);
	synth_close(other);
}

/* Two ranks with a contiguous part each.  `lead` is alone for `late` opens, so far ahead that the latest opens alone
 * leave the number of parts open; then they take turns, through two epochs. */
static void one_rank_is_far_ahead(
        const struct shard_index *few, const struct synth *synth, uint32_t lead, uint32_t late)
{
	enum { RANKS = 2, PART = DLIO_FILES / RANKS, EPOCHS = 2 };
	struct prefetch_recognise_options options = { .index = few, .seed_max = 300, .popular_words = 1 };
	struct prefetch_recognise *r;
	struct prefetch_recognised track;
	struct loader loaders[RANKS];
	uint32_t fed = 0, epochs[RANKS] = { 0 };
	uint64_t opens = 0;
	assert_int_equal(prefetch_recognise_new(&options, &r), 0);
	for (uint32_t i = 0; i < DLIO_FILES; i++) {
		enum shard_kind kind;
		char path[64];
		snprintf(path, sizeof(path), "train/class_%04u/item_%06u.bin", synth_class(synth, i), i);
		assert_int_equal(shard_index_find_path(few, path, &kind, &order[i]), 0);
	}
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		loaders[rank] = loader_of(order + rank * PART, PART, 1, 0, 1, 2);
		loaders[rank].batch = 16;
	}
	while (epochs[0] < EPOCHS || epochs[1] < EPOCHS) {
		uint32_t rank = fed < late ? lead : fed % RANKS;
		rank = epochs[rank] < EPOCHS ? rank : 1 - rank;
		uint32_t file = loader_next(&loaders[rank]);
		if (file == UINT32_MAX) {
			epochs[rank]++;
			loader_rewind(&loaders[rank], order + rank * PART);
			continue;
		}
		prefetch_recognise_opened(r, &file, 1);
		if (++fed % 16 == 0)
			recognise_work(r);
		if (fed == PART &&
		        (prefetch_recognise_get(r, 0, &track) < 0 || track.parts != RANKS || track.opens + 64 < fed))
			fail_msg("lead %u, late %u: not in %u parts after %u opens, %u wrong", lead, late, RANKS, fed,
			        searched(r).wrong);
	}
	recognise_work(r);
	for (unsigned i = 0; prefetch_recognise_get(r, i, &track) == 0; i++) {
		assert_int_equal(track.sampler, PREFETCH_SAMPLER_SORTED);
		opens += track.opens;
	}
	if (opens * 10 < (uint64_t)fed * 9)
		fail_msg("lead %u, late %u: %lu of %u opens", lead, late, opens, fed);
	prefetch_recognise_free(r);
}

/* One rank still reads the end of its part when another has begun its next epoch.  The list is sorted by name over all
 * directories. */
static void ranks_out_of_step(const struct shard_index *few, uint64_t id)
{
	static const uint32_t worlds[] = { 2, 2, 3, 4 }, lags[] = { 40, 80, 160, 320 }, steps[] = { 1, 16, 40 };
	enum { EPOCHS = 4 };
	struct prefetch_recognise_options options = { .index = few, .seed_max = 300, .popular_words = 1 };
	struct prefetch_recognise *r;
	struct prefetch_recognised track;
	struct loader loaders[4];
	uint64_t random = id * 7919;
	uint32_t world = pick(&random, worlds, 4), lag = pick(&random, lags, 4), every = pick(&random, steps, 3);
	uint32_t part = DLIO_FILES / world, fed = 0, left = world, epochs[4] = { 0 }, opened[4] = { 0 };
	lag = lag < part / 4 ? lag : part / 4;
	char text[512];
	assert_int_equal(prefetch_recognise_new(&options, &r), 0);
	for (uint32_t i = 0; i < DLIO_FILES; i++)
		order[i] = i % DLIO_DIRS * DLIO_EACH + i / DLIO_DIRS;
	for (uint32_t rank = 0; rank < world; rank++) {
		loaders[rank] = loader_of(order + rank * part, part, 1, 0, 1, 2);
		loaders[rank].batch = 16;
		loaders[rank].random = loader_random(&random);
	}
	while (left > 0) {
		uint32_t rank = (uint32_t)(loader_random(&random) % world), slowest = UINT32_MAX;
		for (uint32_t i = 0; i < world; i++) {
			if (epochs[i] < EPOCHS && opened[i] < slowest)
				slowest = opened[i];
		}
		if (epochs[rank] == EPOCHS || opened[rank] > slowest + (fed < 1000 ? 32 : lag))
			continue;
		uint32_t file = loader_next(&loaders[rank]);
		if (file == UINT32_MAX) {
			left -= ++epochs[rank] == EPOCHS;
			loader_rewind(&loaders[rank], order + rank * part);
			continue;
		}
		opened[rank]++;
		prefetch_recognise_opened(r, &file, 1);
		if (++fed % every == 0)
			recognise_work(r);
	}
	recognise_work(r);
	if (recognised_tracks(r) != 1 || prefetch_recognise_get(r, 0, &track) < 0 || track.epoch != EPOCHS - 1 ||
	        track.opens + fed / 20 < fed)
		fail_msg("id %lu, %u ranks, lag %u, every %u: %u wrong, %u tracks, epoch %lu, %lu of %u opens, %s", id,
		        world, lag, every, searched(r).wrong, recognised_tracks(r), track.epoch, track.opens, fed,
		        prefetch_recognise_describe(&track, text, sizeof(text)));
	prefetch_recognise_free(r);
}

static void ranks_with_parts_may_begin_their_epochs_out_of_step(void **state)
{
	struct shard_index *few =
	        synth_open(&(struct synth){ .classes = DLIO_DIRS, .per_class = DLIO_EACH, .bytes = 1 });
	(void)state;
	for (uint64_t id = 1; id <= (long_run() ? 200 : 10); id++)
		ranks_out_of_step(few, id);
	synth_close(few);
}

static void contiguous_parts_are_recognised_when_one_rank_is_far_ahead(void **state)
{
	struct synth synth = { .classes = DLIO_DIRS, .per_class = DLIO_EACH, .bytes = 1, .scattered = true };
	struct shard_index *few = synth_open(&synth);
	(void)state;
	for (uint32_t lead = 0; lead < 2; lead++) {
		one_rank_is_far_ahead(few, &synth, lead, 500);
		one_rank_is_far_ahead(few, &synth, lead, 700);
	}
	synth_close(few);
}

/* It went through val/ in order, and goes on all over it. */
static void a_wrong_match_is_dropped_after_a_few_opens(void **state)
{
	struct prefetch_recognise *r = new_recognise(100);
	uint64_t random = 4;
	(void)state;
	for (uint32_t i = 0; i < VAL; i++)
		scratch[i] = N + i;
	struct loader val = loader_of(scratch, VAL, 1, 0, 1, 2);
	assert_in_range(feed(r, &val, 512), 1, 96);
	assert_int_equal(only_track(r).sampler, PREFETCH_SAMPLER_SORTED);
	shuffle_by_nobody(&random, VAL - 100, scratch + 100);
	for (uint32_t i = 100; i < 800; i++) {
		prefetch_recognise_opened(r, &scratch[i], 1);
		if (i % 8 == 0)
			recognise_work(r);
		if (i >= 100 + 400)
			assert_int_equal(recognised_tracks(r), 0);
	}
	assert_int_equal(searched(r).wrong, 1);
	prefetch_recognise_free(r);
}

/* Another process goes on with what was recognised, in the middle of an epoch. */
static void what_was_recognised_is_followed_by_a_successor(uint32_t world, uint32_t rank, bool shuffle)
{
	struct prefetch_recognise *r = new_recognise(0);
	struct prefetch_saved_track saved[PREFETCH_TRACKS_MAX];
	for (uint32_t i = 0; i < N; i++)
		order[i] = i;
	if (shuffle)
		randperm(N, 17, 0, order);
	struct loader loader = loader_of(order, N, world, rank, 1, 2);
	feed_some(r, &loader, 5000);
	assert_int_equal(prefetch_recognise_save(r, saved), 1);
	prefetch_recognise_free(r);
	r = new_recognise(0);
	assert_int_equal(prefetch_recognise_restore(r, saved, 1), 0);
	recognise_work(r);
	struct prefetch_recognised track = only_track(r);
	assert_true(track.ready && track.unverified);
	assert_predicts(r, track.id, 0, &loader, order);
	feed_some(r, &loader, 1000);
	track = only_track(r);
	assert_false(track.unverified);
	assert_int_equal(track.repeated, 0);
	assert_in_range(track.opens, 900, 1000);
	assert_in_range(track.turn, 5800, 6300);
	run_out(r, &loader);
	if (shuffle)
		randperm(N, 18, 0, order);
	loader_rewind(&loader, order);
	feed_some(r, &loader, 64);
	track = only_track(r);
	assert_int_equal(track.epoch, 1);
	assert_int_equal(track.repeated, 0);
	assert_predicts(r, track.id, 0, &loader, order);
	prefetch_recognise_free(r);
}

static void a_successor_goes_on_with_what_was_recognised(void **state)
{
	(void)state;
	what_was_recognised_is_followed_by_a_successor(1, 0, true);
	what_was_recognised_is_followed_by_a_successor(4, 3, true);
	what_was_recognised_is_followed_by_a_successor(2, 1, false);
}

/* What the opens do not bear out, and what cannot be. */
static void what_a_predecessor_left_is_not_believed(void **state)
{
	struct prefetch_recognise *r = new_recognise(0);
	struct prefetch_saved_track saved[PREFETCH_TRACKS_MAX], any;
	uint64_t random = 11;
	(void)state;
	randperm(N, 17, 0, order);
	struct loader loader = loader_of(order, N, 1, 0, 1, 2);
	feed_some(r, &loader, 1000);
	assert_int_equal(prefetch_recognise_save(r, saved), 1);
	prefetch_recognise_free(r);
	r = new_recognise(0);
	assert_int_equal(prefetch_recognise_restore(r, saved, 1), 0);
	randperm(N, 4711, 0, order);
	loader_rewind(&loader, order);
	feed_some(r, &loader, 200);
	assert_int_equal(only_track(r).seed, 4711);
	prefetch_recognise_free(r);
	for (unsigned i = 0; i < 2000; i++) {
		any = saved[0];
		for (unsigned k = 0; k < 1 + i % 4; k++)
			((uint8_t *)&any)[loader_random(&random) % sizeof(any)] = (uint8_t)loader_random(&random);
		if (any.skip > 100000 || any.high > 2 * N)
			continue; /* takes long, or is refused at once */
		r = new_recognise(0);
		assert_int_equal(prefetch_recognise_restore(r, &any, 1), 0);
		prefetch_recognise_free(r);
		i += long_run() ? 0 : 40;
	}
}

/* A machine where each look at the clock costs 0.1 ms, and time passes as the test says. */
struct clocks {
	uint64_t cpu_ns, elapsed_ns;
};

static uint64_t cpu_clock(void *user)
{
	struct clocks *clocks = user;
	return clocks->cpu_ns += 100000;
}

static uint64_t elapsed_clock(void *user)
{
	return ((struct clocks *)user)->elapsed_ns;
}

enum { BURST_MS = 100, BURST_NS = BURST_MS * 1000000 };

static struct prefetch_recognise *new_bounded(struct clocks *clocks, uint64_t burst_ns, bool thread)
{
	struct prefetch_recognise *r;
	struct prefetch_recognise_options options = {
		.index = dataset,
		.search_burst_ns = burst_ns,
		.search_permille = 50,
		.search_thread = thread,
		.cpu_ns = cpu_clock,
		.elapsed_ns = elapsed_clock,
		.user = clocks,
	};
	clocks->elapsed_ns = 1;
	assert_int_equal(prefetch_recognise_new(&options, &r), 0);
	return r;
}

/* Feeds opens, each `every_ns` after the one before, working after each 16 as far as the budget goes. */
static void feed_bounded(
        struct prefetch_recognise *r, struct clocks *clocks, const uint32_t *files, uint32_t n, uint64_t every_ns)
{
	for (uint32_t i = 0; i < n; i++) {
		clocks->elapsed_ns += every_ns;
		prefetch_recognise_opened(r, &files[i], 1);
		while (i % 16 == 15 && prefetch_recognise_step(r, 0) == 1)
			;
	}
}

/* Steps until a look is done and its seeds, or those of the look before, go on. */
static void step_to_seeds(struct prefetch_recognise *r)
{
	uint64_t seeds = searched(r).seeds;
	while (searched(r).seeds == seeds)
		assert_int_equal(prefetch_recognise_step(r, 0), 1);
}

/* The seeds of the first look are tried while the ring is filled, and more opens come than it holds.  The first look
 * has only what others opened, so the seeds of a later one are what counts. */
static void a_look_is_not_lost_while_the_seeds_of_another_are_tried(void **state)
{
	enum { OTHERS = 48, RING_OPENS = 470, NEXT_RING = 640 };
	struct prefetch_recognise *r = new_recognise(0);
	(void)state;
	order_of_nobody(&(uint64_t){ 78 }, N, scratch);
	randperm(N, 4711, 0, order);
	for (uint32_t i = 0; i < N / 4; i++)
		order[i] = order[i * 4]; /* a rank's */
	prefetch_recognise_opened(r, scratch, OTHERS);
	step_to_seeds(r);
	prefetch_recognise_opened(r, order, RING_OPENS);
	step_to_seeds(r);
	prefetch_recognise_opened(r, order + RING_OPENS, NEXT_RING);
	recognise_work(r);
	assert_int_equal(only_track(r).seed, 4711);
	prefetch_recognise_free(r);
}

/* torch.Generator().manual_seed(epoch) for each epoch's loader, two workers of which begin late.  What comes after an
 * epoch is found without trying seeds, so also if there is no time for them. */
static void a_generator_that_is_seeded_for_each_epoch_is_followed(void **state)
{
	enum { LATE = 128, OPENS = 600 };
	struct prefetch_recognise *r = new_recognise(0);
	(void)state;
	for (uint32_t seed = 1; seed <= 3; seed++) {
		struct shard_mt19937 mt;
		uint64_t seeds = searched(r).seeds;
		shard_mt19937_seed(&mt, seed);
		shard_mt19937_next64(&mt); /* the loader's base seed */
		skipped_randperm(&mt, N, order);
		prefetch_recognise_opened(r, order + LATE, OPENS);
		recognise_work(r);
		struct prefetch_recognised track = only_track(r);
		assert_int_equal(track.sampler, PREFETCH_SAMPLER_GENERATOR);
		assert_int_equal(track.seed, seed);
		assert_int_equal(track.epoch, seed - 1);
		if (seed > 1)
			assert_int_equal(searched(r).seeds, seeds);
		prefetch_recognise_opened(r, order, LATE);
		prefetch_recognise_opened(r, order + LATE + OPENS, N - LATE - OPENS);
		recognise_work(r);
		assert_in_range(only_track(r).opens, seed * (N - 16), seed * N);
	}
	prefetch_recognise_free(r);
}

static void generator_order(uint32_t seed, uint32_t *perm)
{
	struct shard_mt19937 mt;
	shard_mt19937_seed(&mt, seed);
	shard_mt19937_next64(&mt); /* the loader's base seed */
	skipped_randperm(&mt, N, perm);
}

/* Works for a while: what goes on for ever fails. */
static void work_soon(struct prefetch_recognise *r)
{
	enum { STEPS_MAX = 100000 };
	int rc = 1;
	for (uint32_t i = 0; i < STEPS_MAX && rc > 0; i++)
		rc = prefetch_recognise_step(r, 0);
	assert_int_equal(rc, 0);
}

/* Once the next seed was seen, it is expected: no search is needed at the epochs that follow.  Another process expects
 * it, too. */
static void a_generator_that_was_seeded_anew_is_expected_to_be_again(void **state)
{
	enum { EPOCHS = 5, OPENS = 24 };
	struct prefetch_recognise *r = new_recognise(0);
	struct prefetch_saved_track saved[PREFETCH_TRACKS_MAX];
	(void)state;
	for (uint32_t seed = 1; seed <= EPOCHS; seed++) {
		generator_order(seed, order);
		struct loader loader = loader_of(order, N, 1, 0, 1, 2);
		uint64_t looks = searched(r).looks;
		if (seed == 3) /* not before: the generator of the first epoch may go on */
			assert_predicts(r, only_track(r).id, 1, &loader, order);
		feed_some(r, &loader, seed > 2 ? OPENS : 128);
		struct prefetch_recognised track = only_track(r);
		assert_int_equal(track.sampler, PREFETCH_SAMPLER_GENERATOR);
		assert_int_equal(track.seed, seed);
		assert_int_equal(track.epoch, seed - 1);
		if (seed > 2) {
			assert_true(track.confirmed);
			assert_int_equal(searched(r).looks, looks);
		}
		assert_predicts(r, track.id, 0, &loader, order);
		run_out(r, &loader);
		recognise_work(r);
	}
	assert_int_equal(prefetch_recognise_save(r, saved), 1);
	prefetch_recognise_free(r);
	r = new_recognise(0);
	assert_int_equal(prefetch_recognise_restore(r, saved, 1), 0);
	recognise_work(r);
	generator_order(EPOCHS + 1, order);
	struct loader loader = loader_of(order, N, 1, 0, 1, 2);
	assert_predicts(r, only_track(r).id, 1, &loader, order);
	prefetch_recognise_free(r);
}

/* torch.Generator().manual_seed(5) for each epoch's loader: the same order each time. */
static void a_generator_with_the_same_seed_for_each_epoch_is_followed(void **state)
{
	struct prefetch_recognise *r = new_recognise(0);
	(void)state;
	generator_order(5, order);
	for (uint32_t epoch = 0; epoch < 5; epoch++) {
		struct loader loader = loader_of(order, N, 1, 0, 1, 2);
		for (uint32_t i = 0; i < 64; i++)
			prefetch_recognise_opened(r, &(uint32_t){ loader_next(&loader) }, 1);
		work_soon(r);
		struct prefetch_recognised track = only_track(r);
		assert_int_equal(track.epoch, epoch);
		assert_int_equal(track.repeated, epoch);
		assert_predicts(r, track.id, 0, &loader, order);
		if (epoch > 0)
			assert_predicts(r, track.id, 1, &loader, order);
		for (uint32_t file; (file = loader_next(&loader)) != UINT32_MAX;)
			prefetch_recognise_opened(r, &file, 1);
		work_soon(r);
	}
	prefetch_recognise_free(r);
}

/* Seeds of opens in the middle of an order of nobody wait for their time.  Those of an epoch that begins do not wait
 * for them. */
static void seeds_of_a_beginning_do_not_wait_for_others(void **state)
{
	struct clocks clocks = { 0 };
	struct prefetch_recognise *r = new_bounded(&clocks, PREFETCH_SEARCH_BURST_NS, false);
	(void)state;
	order_of_nobody(&(uint64_t){ 82 }, N, scratch);
	feed_bounded(r, &clocks, scratch, N, 200000);
	prefetch_recognise_pause(r);
	randperm(VAL, 47, N, order);
	feed_bounded(r, &clocks, order, 600, 200000);
	assert_int_equal(only_track(r).seed, 47);
	prefetch_recognise_free(r);
}

/* Opens of others, left over from an epoch that is followed, are not taken for the beginning of the next. */
static void what_was_left_over_is_forgotten(void **state)
{
	enum { LEFT_OVER = 30, BEFORE = 1000, OPENS = 96 };
	struct prefetch_recognise *r = new_recognise(0);
	(void)state;
	randperm(N, 4711, 0, order);
	prefetch_recognise_opened(r, order, BEFORE);
	recognise_work(r);
	order_of_nobody(&(uint64_t){ 79 }, VAL, scratch);
	for (uint32_t i = 0; i < LEFT_OVER; i++)
		scratch[i] += N;
	prefetch_recognise_opened(r, scratch, LEFT_OVER);
	prefetch_recognise_opened(r, order + BEFORE, N - BEFORE);
	recognise_work(r);
	randperm(N, 777, 0, order);
	prefetch_recognise_opened(r, order, OPENS);
	recognise_work(r);
	struct prefetch_recognised track = only_track(r);
	assert_int_equal(track.seed, 777);
	assert_int_equal(track.epoch, 1);
	assert_in_range(track.after, OPENS - 16, OPENS);
	prefetch_recognise_free(r);
}

/* What begins after an epoch in vain is found by its own opens alone. */
static void an_epoch_after_one_in_vain_is_looked_at_alone(void **state)
{
	struct prefetch_recognise *r = new_recognise(0);
	uint32_t opens = 0;
	(void)state;
	order_of_nobody(&(uint64_t){ 80 }, N, scratch);
	prefetch_recognise_opened(r, scratch, N);
	recognise_work(r);
	randperm(N, 47, 0, order);
	for (; recognised_tracks(r) == 0 && opens < 512; opens++) {
		prefetch_recognise_opened(r, order + opens, 1);
		recognise_work(r);
	}
	assert_int_equal(only_track(r).seed, 47);
	assert_int_equal(only_track(r).after, opens);
	prefetch_recognise_free(r);
}

/* While the thread tries all seeds, and takes what time there is, looks at later opens go on. */
static void looks_go_on_while_all_seeds_are_tried(void **state)
{
	enum { MS = 1000000 };
	struct clocks clocks = { 0 };
	struct prefetch_recognise *r = new_bounded(&clocks, PREFETCH_SEARCH_BURST_NS, true);
	(void)state;
	order_of_nobody(&(uint64_t){ 81 }, N, scratch);
	feed_bounded(r, &clocks, scratch, 10000, MS);
	struct prefetch_searched before = searched(r);
	assert_true(before.running);
	feed_bounded(r, &clocks, scratch + 10000, 10000, MS);
	assert_true(searched(r).running);
	assert_true(searched(r).looks > before.looks + 2);
	prefetch_recognise_free(r);
}

/* The files that it opened last are among those of an order of nobody that follows, and nothing explains them there. */
static void a_finished_track_explains_no_opens_of_the_next_epoch(void **state)
{
	struct prefetch_recognise *r = new_recognise(0);
	(void)state;
	randperm(N, 4711, 0, order);
	prefetch_recognise_opened(r, order, 600);
	recognise_work(r);
	prefetch_recognise_opened(r, order + 600, N - 600);
	recognise_work(r);
	uint64_t unexplained = searched(r).unexplained;
	order_of_nobody(&(uint64_t){ 83 }, N, scratch);
	prefetch_recognise_opened(r, scratch, N);
	assert_in_range(searched(r).unexplained, unexplained + N - 16, unexplained + N);
	prefetch_recognise_free(r);
}

/* Looks in the middle of an order of nobody leave time for the seeds of the epoch after it. */
static void an_epoch_in_vain_leaves_time_for_the_next(void **state)
{
	struct clocks clocks = { 0 };
	struct prefetch_recognise *r = new_bounded(&clocks, PREFETCH_SEARCH_BURST_NS, false);
	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		order_of_nobody(&(uint64_t){ 77 + i }, N, scratch);
		feed_bounded(r, &clocks, scratch, N, 200000);
	}
	randperm(N, 47, 0, order);
	feed_bounded(r, &clocks, order, 600, 200000);
	assert_int_equal(only_track(r).seed, 47);
	prefetch_recognise_free(r);
}

/* A weighted sampler's, say: no epoch begins where files come again, so the search takes no more than it does of a
 * permutation that it does not know. */
static void files_that_are_drawn_again_begin_no_epoch(void **state)
{
	uint64_t took_ns[2], random = 87;
	(void)state;
	for (unsigned again = 0; again < 2; again++) {
		struct clocks clocks = { 0 };
		struct prefetch_recognise *r = new_bounded(&clocks, PREFETCH_SEARCH_BURST_NS, false);
		order_of_nobody(&(uint64_t){ 88 }, N, scratch);
		for (uint32_t i = 0; i < N && again; i++)
			scratch[i] = (uint32_t)(loader_random(&random) % N);
		feed_bounded(r, &clocks, scratch, N, 50000);
		took_ns[again] = searched(r).cpu_ns;
		assert_int_equal(recognised_tracks(r), 0);
		prefetch_recognise_free(r);
	}
	assert_in_range(took_ns[1], 1, took_ns[0] * 5 / 4); /* looks at each of them would take twice as long */
}

/* Then the latest opens are enough, and a search that was under way is forgotten. */
static void a_search_that_rested_begins_with_the_latest_opens(void **state)
{
	struct clocks clocks = { 0 };
	struct prefetch_recognise *r = new_bounded(&clocks, PREFETCH_SEARCH_BURST_NS, false);
	(void)state;
	order_of_nobody(&(uint64_t){ 86 }, N, scratch);
	feed_bounded(r, &clocks, scratch, 400, 200000);
	prefetch_recognise_rest(r);
	struct prefetch_searched before = searched(r);
	prefetch_recognise_opened(r, scratch + 400, N - 400);
	randperm(N, 47, 0, order);
	prefetch_recognise_opened(r, order, 96);
	assert_int_equal(searched(r).looks, before.looks);
	assert_int_equal(searched(r).seeds, before.seeds);
	prefetch_recognise_go_on(r);
	while (recognised_tracks(r) == 0 && clocks.elapsed_ns < UINT64_C(60000000000)) {
		clocks.elapsed_ns += 20000000;
		assert_true(prefetch_recognise_step(r, 0) >= 0);
	}
	assert_int_equal(only_track(r).seed, 47);
	assert_int_equal(only_track(r).after, 96);
	prefetch_recognise_free(r);
}

/* Of a processor as much as is granted, however many opens come; and orders that cost little are found all the same. */
static void what_nobody_knows_is_searched_within_a_budget(void **state)
{
	struct clocks clocks = { 0 };
	struct prefetch_recognise *r = new_bounded(&clocks, BURST_NS, false);
	(void)state;
	order_of_nobody(&(uint64_t){ 8 }, N, scratch);
	feed_bounded(r, &clocks, scratch, 20000, 0);
	struct prefetch_searched burst = searched(r);
	/* Some thousands of seeds at 0.1 ms a slice; without a bound it would be millions. */
	assert_in_range(burst.seeds, 1, BURST_MS * 10 * 2048);
	assert_in_range(burst.unexplained, 20000, 20000);
	assert_int_equal(searched(r).wrong, 0);
	/* Nothing is left, and a sorted reader is found as soon as ever. */
	for (uint32_t i = 0; i < 96; i++)
		scratch[i] = N + i; /* val/ */
	prefetch_recognise_pause(r);
	feed_bounded(r, &clocks, scratch, 96, 0);
	assert_int_equal(recognised_tracks(r), 1);
	assert_int_equal(searched(r).seeds, burst.seeds);
	prefetch_recognise_free(r);
}

static void a_search_takes_a_twentieth_of_the_time_that_passes(void **state)
{
	enum { OPENS = 20000, MS = 1000000 };
	struct clocks clocks = { 0 };
	struct prefetch_recognise *r = new_bounded(&clocks, BURST_NS, false);
	(void)state;
	order_of_nobody(&(uint64_t){ 9 }, N, scratch);
	feed_bounded(r, &clocks, scratch, OPENS, MS);
	struct prefetch_searched now = searched(r);
	uint64_t granted = (uint64_t)BURST_MS * MS + (uint64_t)OPENS * MS / 20;
	assert_in_range(now.cpu_ns, granted / 2, granted + granted / 10);
	assert_true(now.running); /* all seeds are, and once the opens end, no more */
	clocks.elapsed_ns += UINT64_C(10000000000);
	for (int rc = 1; rc == 1;)
		rc = prefetch_recognise_step(r, 0);
	now = searched(r);
	for (unsigned i = 0; i < 100; i++) {
		clocks.elapsed_ns += UINT64_C(1000000000);
		assert_int_equal(prefetch_recognise_step(r, 0), 0);
	}
	assert_int_equal(searched(r).seeds, now.seeds);
	prefetch_recognise_free(r);
}

/* In the order of the list, but for what a loader of its own kind makes of it: no shuffle begins so.  At the
 * beginning of a list it would look like a shuffle buffer, so it begins in the middle of a directory. */
static void a_reader_who_goes_through_a_list_is_not_searched_for_seeds(void **state)
{
	struct prefetch_recognise *r = new_recognise(0);
	uint64_t random = 3;
	(void)state;
	for (uint32_t i = 0; i < N; i++)
		scratch[i] = (i + N / 2 + PER_CLASS / 2) % N;
	for (uint32_t i = 0; i < PER_CLASS; i += 200)
		shuffle_by_nobody(&random, 200, scratch + i);
	for (uint32_t i = 0; i < 300; i++) {
		prefetch_recognise_opened(r, &scratch[i], 1);
		recognise_work(r);
	}
	assert_int_equal(recognised_tracks(r), 0);
	assert_true(searched(r).looks > 4);
	assert_int_equal(searched(r).seeds, 0);
	prefetch_recognise_free(r);
}

/* What the thread at idle priority finds is taken in with the opens that follow. */
static void all_seeds_are_scanned_by_threads(void **state)
{
	struct prefetch_recognise *r;
	struct prefetch_recognise_options options = { .index = dataset,
		.seed_max = UNLIKELY + 500,
		.shuffle_max = 100,
		.popular_words = 1,
		.search_burst_ns = UINT64_C(100000000000),
		.search_permille = 1000,
		.search_thread = true };
	(void)state;
	assert_int_equal(prefetch_recognise_new(&options, &r), 0);
	randperm(N, UNLIKELY, 0, order);
	struct loader loader = loader_of(order, N, 1, 0, 1, 2);
	for (uint32_t opens = 0; opens < 96; opens++) {
		uint32_t file = loader_next(&loader);
		prefetch_recognise_opened(r, &file, 1);
	}
	while (recognised_tracks(r) == 0) {
		uint32_t file = loader_next(&loader);
		assert_int_not_equal(file, UINT32_MAX);
		prefetch_recognise_opened(r, &file, 1);
		recognise_work(r);
		usleep(1000);
	}
	recognise_work(r);
	assert_int_equal(only_track(r).seed, UNLIKELY);
	feed_some(r, &loader, 1000);
	assert_predicts(r, only_track(r).id, 0, &loader, order);
	prefetch_recognise_free(r);
}

/* As torchvision's has_file_allowed_extension: whatever their case. */
static void images_are_those_of_torchvision(void **state)
{
	static const char *const suffixes[] = { ".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff",
		".webp", ".JPEG", ".Jpg", ".TifF", ".jpg.txt", "jpg", "jpeg", ".peg", ".jpe", ".mjpeg", ".jp2",
		".tifff", "", ".\x0apg", "\x0ejpg", ".\xea\xb0g" };
	enum { ALL = sizeof(suffixes) / sizeof(suffixes[0]), IMAGES = 12 };
	struct shard_index *index = synth_open(
	        &(struct synth){ .classes = 2, .per_class = ALL, .bytes = 1, .suffixes = suffixes, .n_suffixes = ALL });
	struct prefetch_filters filters;
	struct prefetch_list *list;
	uint32_t place;
	(void)state;
	assert_int_equal(prefetch_filters_init(&filters, index, NULL, ".jpg"), 0);
	while (prefetch_filters_step(&filters, 4) == 1)
		;
	assert_int_equal(prefetch_list_new(&filters, 0, PREFETCH_SORT_ID, PREFETCH_FILTER_IMAGES, &list), 0);
	assert_int_equal(prefetch_list_size(list), 2 * IMAGES);
	for (uint32_t i = 0; i < 2 * ALL; i++) {
		struct shard_file file;
		char suffix[16];
		assert_int_equal(shard_index_file(index, i, &file), 0);
		assert_in_range(file.name_len, 11, 11 + sizeof(suffix) - 1);
		snprintf(suffix, sizeof(suffix), "%.*s", (int)file.name_len - 11, file.name + 11);
		bool image = false;
		for (unsigned k = 0; k < IMAGES; k++)
			image |= strcmp(suffix, suffixes[k]) == 0;
		if ((prefetch_list_find(list, i, &place) == 0) != image)
			fail_msg("%.*s", (int)file.name_len, file.name);
	}
	prefetch_list_put(list);
	prefetch_filters_done(&filters);
	synth_close(index);
}

static void it_is_said_for_people(void **state)
{
	struct prefetch_recognise *r = new_recognise(0);
	struct prefetch_recognised track;
	char text[512];
	(void)state;
	randperm(N, 17, 0, order);
	struct loader loader = loader_of(order, N, 2, 1, 1, 2);
	feed_some(r, &loader, 1000);
	track = only_track(r);
	assert_string_equal(prefetch_recognise_describe(&track, text, sizeof(text)),
	        "torch DistributedSampler, seed+epoch 17, rank 1 of 2, batch about 32");
	assert_string_equal(track.list, ".bin files of train/, as ImageFolder lists them");
	prefetch_recognise_free(r);
	r = new_recognise(0);
	loader = loader_of(order, N, 8, 0, 8, 2);
	feed_some(r, &loader, 2000);
	track = only_track(r);
	assert_string_equal(prefetch_recognise_describe(&track, text, sizeof(text)),
	        "torch DistributedSampler, seed+epoch 17, all 8 ranks, batch about 32");
	prefetch_recognise_free(r);
}

static void memory_is_bounded(void **state)
{
	struct prefetch_recognise *r = new_recognise(0);
	(void)state;
	for (uint32_t seed = 0; seed < 12; seed++) {
		randperm(N, seed * 100, 0, order);
		struct loader loader = loader_of(order, N, 2, 0, 1, 2);
		feed_some(r, &loader, 2000);
		assert_in_range(recognised_tracks(r), 1, PREFETCH_TRACKS_MAX);
		assert_in_range(
		        prefetch_recognise_bytes(r), 1, PREFETCH_TRACKS_MAX * (uint64_t)(16 * N + N / 8) + (4 << 20));
	}
	prefetch_recognise_free(r);
}

static int setup(void **state)
{
	(void)state;
	dataset = synth_open(
	        &(struct synth){ .classes = CLASSES, .val_classes = 10, .per_class = PER_CLASS, .bytes = 1 });
	order = calloc(N, sizeof(*order));
	after = calloc(N, sizeof(*after));
	scratch = calloc(N, sizeof(*scratch));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	synth_close(dataset);
	free(order);
	free(after);
	free(scratch);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(distributed_sampler_is_recognised_within_three_batches),
		cmocka_unit_test(large_worlds_are_recognised),
		cmocka_unit_test(large_seeds_are_recognised),
		cmocka_unit_test(ranks_through_one_mount_are_recognised),
		cmocka_unit_test(ranks_that_begin_one_after_the_other_are_all_found),
		cmocka_unit_test(all_ranks_of_a_host_are_found_soon),
		cmocka_unit_test(many_workers_are_not_taken_for_ranks),
		cmocka_unit_test(any_schedule_of_workers_is_followed),
		cmocka_unit_test(files_opened_several_times_in_a_row_count_once),
		cmocka_unit_test(repeated_augmentation_is_followed),
		cmocka_unit_test(ranks_of_few_files_are_recognised_in_their_first_epoch),
		cmocka_unit_test(batches_dealt_whole_are_recognised),
		cmocka_unit_test(next_epochs_are_confirmed_by_their_first_opens),
		cmocka_unit_test(a_jump_to_another_seed_is_followed),
		cmocka_unit_test(the_same_permutation_twice_is_said),
		cmocka_unit_test(sorted_readers_are_recognised),
		cmocka_unit_test(random_sampler_is_followed_through_the_default_generator),
		cmocka_unit_test(a_generator_of_its_own_is_followed),
		cmocka_unit_test(an_unseeded_sampler_is_found_among_all_seeds),
		cmocka_unit_test(nothing_is_left_over_when_a_seed_is_found),
		cmocka_unit_test(a_generator_with_any_seed_is_followed_once_it_is_found),
		cmocka_unit_test(a_scan_ends_with_its_epoch),
		cmocka_unit_test(scans_in_vain_have_an_end),
		cmocka_unit_test(two_unseeded_jobs_are_both_followed),
		cmocka_unit_test(no_seed_is_found_where_there_is_none),
		cmocka_unit_test(validation_and_a_second_job_do_not_disturb),
		cmocka_unit_test(validation_between_is_not_taken_for_the_whole_dataset),
		cmocka_unit_test(two_jobs_on_few_files_are_told_apart),
		cmocka_unit_test(a_distributed_sampler_over_a_ranks_part_shards_twice),
		cmocka_unit_test(own_orders_are_recognised_wherever_they_are_entered),
		cmocka_unit_test(own_orders_of_any_rank_are_followed),
		cmocka_unit_test(sorted_contiguous_parts_are_recognised),
		cmocka_unit_test(contiguous_parts_are_recognised_when_one_rank_is_far_ahead),
		cmocka_unit_test(ranks_with_parts_may_begin_their_epochs_out_of_step),
		cmocka_unit_test(a_successor_goes_on_with_what_was_recognised),
		cmocka_unit_test(what_a_predecessor_left_is_not_believed),
		cmocka_unit_test(a_wrong_match_is_dropped_after_a_few_opens),
		cmocka_unit_test(files_that_are_drawn_again_begin_no_epoch),
		cmocka_unit_test(a_search_that_rested_begins_with_the_latest_opens),
		cmocka_unit_test(what_nobody_knows_is_searched_within_a_budget),
		cmocka_unit_test(a_look_is_not_lost_while_the_seeds_of_another_are_tried),
		cmocka_unit_test(a_generator_that_is_seeded_for_each_epoch_is_followed),
		cmocka_unit_test(a_generator_that_was_seeded_anew_is_expected_to_be_again),
		cmocka_unit_test(a_generator_with_the_same_seed_for_each_epoch_is_followed),
		cmocka_unit_test(seeds_of_a_beginning_do_not_wait_for_others),
		cmocka_unit_test(what_was_left_over_is_forgotten),
		cmocka_unit_test(an_epoch_after_one_in_vain_is_looked_at_alone),
		cmocka_unit_test(looks_go_on_while_all_seeds_are_tried),
		cmocka_unit_test(a_finished_track_explains_no_opens_of_the_next_epoch),
		cmocka_unit_test(an_epoch_in_vain_leaves_time_for_the_next),
		cmocka_unit_test(a_search_takes_a_twentieth_of_the_time_that_passes),
		cmocka_unit_test(a_reader_who_goes_through_a_list_is_not_searched_for_seeds),
		cmocka_unit_test(all_seeds_are_scanned_by_threads),
		cmocka_unit_test(images_are_those_of_torchvision),
		cmocka_unit_test(it_is_said_for_people),
		cmocka_unit_test(memory_is_bounded),
		cmocka_unit_test(nothing_is_recognised_in_random_orders),
	};
	cmocka_set_test_filter(getenv("DDPFS_TEST")); /* a pattern, or NULL */
	return cmocka_run_group_tests(tests, setup, teardown);
}
