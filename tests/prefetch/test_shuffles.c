/* SPDX-License-Identifier: Apache-2.0 */
/* Other libraries' shuffles: the same numbers, recognised after few opens, and followed from epoch to epoch.
 * test_recognise_libraries.py compares them with the libraries themselves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "prefetch/sampler/perm.h"
#include "prefetch/sampler/recognise.h"
#include "prefetch/sampler/shuffle.h"
#include "prefetch/sampler/shuffle_trace.h"
#include "shard/base/sanitized.h"
#include "tests/prefetch/loader.h"
#include "tests/prefetch/orders.h"
#include "tests/shard/synth.h"

enum { CLASSES = 20, PER_CLASS = 500, N = CLASSES * PER_CLASS, OPENS_MAX = 96 };

/* Under a sanitizer, where a seed takes five times as long, a test tries one case of so many.  Each way of dealing is
 * among them.  The build without one tries all. */
#define EACH(n) (BASE_SANITIZED ? (n) : 1)

static struct shard_index *dataset;
static uint32_t order[N], dealt[N];

/* ---- the numbers ---- */

struct golden {
	enum prefetch_shuffle_kind kind;
	uint64_t seed;
	uint32_t at[6]; /* of 1,000 items: 0, 1, 2, 499, 998, 999 */
};

/* Printed by numpy 2.4.6, Python 3.11 and libstdc++ 12. */
static const struct golden goldens[] = {
	{ PREFETCH_SHUFFLE_NUMPY, 42, { 521, 737, 740, 882, 435, 102 } },
	{ PREFETCH_SHUFFLE_NUMPY_RNG, 42, { 978, 933, 859, 406, 973, 648 } },
	{ PREFETCH_SHUFFLE_PYTHON, 42, { 776, 507, 895, 442, 114, 654 } },
	{ PREFETCH_SHUFFLE_SAMPLE, 42, { 654, 114, 25, 927, 507, 776 } },
	{ PREFETCH_SHUFFLE_STD, 524287, { 30, 812, 788, 92, 335, 189 } },
	{ PREFETCH_SHUFFLE_STD64, 4295491583, { 119, 696, 907, 360, 292, 615 } },
};

static void shuffles_are_those_of_the_libraries(void **state)
{
	static const uint32_t places[] = { 0, 1, 2, 499, 998, 999 };
	uint32_t at[1000];
	(void)state;
	for (unsigned g = 0; g < sizeof(goldens) / sizeof(goldens[0]); g++) {
		order_of_seed(goldens[g].kind, goldens[g].seed, 1000, at);
		for (unsigned i = 0; i < 6; i++) {
			if (at[places[i]] != goldens[g].at[i])
				fail_msg("kind %u: item %u is %u", goldens[g].kind, places[i], at[places[i]]);
		}
	}
}

static struct prefetch_perm *made(struct prefetch_perm *perm, uint32_t slice)
{
	while (prefetch_perm_step(perm, slice))
		;
	return perm;
}

static void assert_same(const struct prefetch_perm *perm, const uint32_t *at)
{
	for (uint32_t i = 0; i < perm->n; i++) {
		assert_int_equal(perm->at[i], at[i]);
		assert_int_equal(perm->inverse[at[i]], i);
	}
}

/* In slices of any size, from the first shuffle on, or from the one before. */
static void permutations_in_slices_are_whole_ones(void **state)
{
	enum { ITEMS = 1001 };
	static uint32_t at[ITEMS];
	(void)state;
	for (unsigned i = 0; i < 4 * 7 * 2; i++) {
		struct prefetch_shuffle shuffle = {
			.kind = i % 7, .seed = 5, .goes_on = i / 7 % 2, .in_place = i / 14 % 2
		};
		struct prefetch_perm *perm, *next;
		uint32_t slice = i < 28 ? 64 : 1001;
		shuffle.step = shuffle.goes_on ? 0 : 1;
		shuffle.before = shuffle.goes_on || shuffle.in_place ? 2 : 0;
		shuffle.seed += shuffle.before * shuffle.step;
		assert_int_equal(prefetch_perm_new_shuffled(ITEMS, &shuffle, &perm), 0);
		order_of_shuffle(&shuffle, ITEMS, at);
		assert_same(made(perm, slice), at);
		shuffle.before += shuffle.before > 0;
		shuffle.seed += shuffle.step;
		assert_int_equal(prefetch_perm_new_next(perm, &shuffle, &next), 0);
		prefetch_perm_put(perm);
		order_of_shuffle(&shuffle, ITEMS, at);
		assert_same(made(next, slice), at);
		prefetch_perm_put(next);
	}
}

/* ---- traces ---- */

static void a_trace_puts_files_where_the_shuffle_puts_them(void **state)
{
	struct prefetch_trace *trace;
	uint32_t cells[100];
	uint64_t positions[100], random = 1;
	(void)state;
	assert_int_equal(prefetch_trace_new(N, NULL, &trace), 0);
	for (unsigned kind = 0; kind <= PREFETCH_SHUFFLE_STD64; kind++) {
		struct prefetch_rng rng;
		order_of_seed(kind, 3, N, order);
		for (uint32_t i = 0; i < 100; i++)
			cells[i] = order[i * 100 + loader_random(&random) % 100];
		prefetch_trace_set(trace, N, cells, 100);
		prefetch_rng_seed(&rng, kind, 3);
		prefetch_trace_positions(trace, &rng, kind, positions);
		for (uint32_t i = 0; i < 100; i++)
			assert_int_equal(order[positions[i]], cells[i]);
	}
	prefetch_trace_free(trace);
}

/* Few wrong seeds pass, soon; the right one does, also if one open in ten is another reader's, unless it is tried
 * quickly. */
static void a_trace_keeps_the_right_seed(void **state)
{
	enum { OPENED = 96, SEEDS = 300 };
	struct prefetch_trace *trace;
	uint32_t cells[OPENED], passed = 0;
	uint32_t passed_quickly = 0;
	uint64_t steps = 0, quick_steps = 0, ignored = 0, random = 7;
	static struct prefetch_seeded seeded;
	(void)state;
	assert_int_equal(prefetch_trace_new(N, &seeded, &trace), 0);
	for (unsigned kind = 0; kind <= PREFETCH_SHUFFLE_PYTHON; kind++) {
		for (uint64_t seed = 0; seed < SEEDS; seed++) {
			uint32_t first = seed % 3 == 0 ? 0 : seed % 3 * N / 4;
			order_of_seed(kind, seed, N, order);
			for (uint32_t i = 0; i < OPENED; i++) {
				uint32_t far = N / 2 + (uint32_t)(loader_random(&random) % (N / 4 - 200)) + 100;
				cells[i] = order[seed % 2 && i % 10 == 9 ? far : first + i];
				for (uint32_t k = 0; k < i; k++)
					cells[i] = cells[k] == cells[i] ? order[far = far + 1] : cells[i];
			}
			prefetch_trace_set(trace, N, cells, OPENED);
			if (!prefetch_trace_try(trace, kind, seed, PREFETCH_TRACE_PATIENT, &ignored) ||
			        (seed % 2 == 0 &&
			                !prefetch_trace_try(trace, kind, seed, PREFETCH_TRACE_QUICK, &ignored)))
				fail_msg("kind %u, seed %lu is lost", kind, (unsigned long)seed);
			uint64_t before = steps;
			passed += prefetch_trace_try(trace, kind, seed + SEEDS, PREFETCH_TRACE_PATIENT, &steps);
			assert_true(steps - before <= N);
			passed_quickly +=
			        prefetch_trace_try(trace, kind, seed + SEEDS, PREFETCH_TRACE_QUICK, &quick_steps);
		}
	}
	assert_true(passed <= 4);
	assert_true(passed_quickly <= 4);
	assert_true(quick_steps * 2 < steps);
	prefetch_trace_free(trace);
}

/* Of a list of few files for each open the first opens are tested, so that a wrong seed shows there, too. */
static void a_trace_tells_seeds_of_short_lists_apart(void **state)
{
	static const uint32_t sizes[] = { 512, 1000, 3000 };
	enum { SEEDS = 100 };
	struct prefetch_trace *trace;
	static struct prefetch_seeded seeded;
	uint64_t steps = 0;
	(void)state;
	assert_int_equal(prefetch_trace_new(N, &seeded, &trace), 0);
	for (unsigned i = 0; i < 3 * (PREFETCH_SHUFFLE_PYTHON + 1); i++) {
		enum prefetch_shuffle_kind kind = i / 3;
		uint32_t n = sizes[i % 3], opened = n / 2 < 512 ? n / 2 : 512, passed = 0;
		for (uint64_t seed = 0; seed < SEEDS; seed++) {
			order_of_seed(kind, seed, n, order);
			prefetch_trace_set(trace, n, order, opened);
			if (!prefetch_trace_try(trace, kind, seed, PREFETCH_TRACE_PATIENT, &steps) ||
			        !prefetch_trace_try(trace, kind, seed, PREFETCH_TRACE_QUICK, &steps))
				fail_msg("kind %u, %u files: seed %lu is lost", kind, n, (unsigned long)seed);
			passed += prefetch_trace_try(trace, kind, seed + SEEDS, PREFETCH_TRACE_PATIENT, &steps);
		}
		if (passed > SEEDS / 20)
			fail_msg("kind %u, %u files: %u wrong seeds pass", kind, n, passed);
	}
	prefetch_trace_free(trace);
}

/* ---- recognition ---- */

/* DDPFS_RANDOM_SEED=1 and so on make other random numbers. */
static uint64_t random_seed(uint64_t usual)
{
	const char *given = getenv("DDPFS_RANDOM_SEED");
	return given ? strtoull(given, NULL, 10) : usual;
}

static struct prefetch_recognise *new_recognise(uint32_t seed_max)
{
	struct prefetch_recognise *r;
	struct prefetch_recognise_options options = { .index = dataset, .seed_max = seed_max, .popular_words = 1 };
	assert_int_equal(prefetch_recognise_new(&options, &r), 0);
	return r;
}

/* How a rank gets its files of a permutation. */
enum deal { ALL, STRIDE, PARTS, PARTS_ALL, DEALS };

static uint32_t deal_out(enum deal deal, const uint32_t *from, uint32_t n, uint32_t world, uint32_t rank, uint32_t *to)
{
	uint32_t part = n / world, kept = 0;
	for (uint32_t i = 0; i < n; i++) {
		bool mine = deal == ALL || deal == PARTS_ALL || (deal == STRIDE ? i % world == rank : i / part == rank);
		if (mine)
			to[kept++] = deal == PARTS_ALL ? from[i % world * part + i / world] : from[i];
	}
	return kept;
}

static uint32_t missed(struct prefetch_recognise *r, uint32_t id, unsigned ahead, const uint32_t *files, uint32_t n)
{
	struct prefetch_sequence *sequence;
	uint32_t misses = 0;
	uint64_t turn;
	assert_int_equal(prefetch_recognise_sequence(r, id, ahead, &sequence), 0);
	for (uint32_t i = 0; i < n; i++)
		misses += prefetch_sequence_find(sequence, files[i], &turn) < 0 || turn != i;
	prefetch_sequence_put(sequence);
	return misses;
}

/* Fails unless the shuffle is found in the first opens of a rank, and its epoch and the next one are expected. */
static void assert_found_as_dealt(unsigned f, enum deal deal, uint32_t seed, uint32_t seed_max)
{
	uint32_t world = deal == ALL ? 1 : deal == PARTS_ALL ? 4 : 8;
	struct prefetch_recognise *r = new_recognise(seed_max);
	char text[256];
	order_of_seed(families[f], seed, N, order);
	uint32_t n = deal_out(deal, order, N, world, 3 % world, dealt);
	uint32_t opens = open_until_ready(r, dealt, 512);
	if (opens > OPENS_MAX)
		fail_msg("family %u, seed %u, deal %u: %u opens", f, seed, deal, opens);
	struct prefetch_recognised track = only_track(r);
	prefetch_recognise_describe(&track, text, sizeof(text));
	if (track.sampler != sampler_of(families[f]) || track.seed != seed)
		fail_msg("family %u, seed %u, deal %u: %s", f, seed, deal, text);
	for (uint32_t k = opens; k < 1000; k++)
		prefetch_recognise_opened(r, &dealt[k], 1);
	recognise_work(r);
	track = only_track(r);
	prefetch_recognise_describe(&track, text, sizeof(text));
	if (missed(r, track.id, 0, dealt, n) > 0)
		fail_msg("family %u, seed %u, deal %u is %s", f, seed, deal, text);
	order_of_seed(families[f], seed + 1, N, order);
	deal_out(deal, order, N, world, 3 % world, dealt);
	assert_int_equal(missed(r, track.id, 1, dealt, n), 0);
	prefetch_recognise_free(r);
}

static void each_family_is_recognised_however_it_is_dealt(void **state)
{
	static const uint32_t seeds[] = { 0, 42, 1337 + 7, 2500 };
	(void)state;
	for (unsigned i = 0; i < FAMILIES * DEALS * 4; i += EACH(7))
		assert_found_as_dealt(i % FAMILIES, i / FAMILIES % DEALS, seeds[i / FAMILIES / DEALS], 3000);
}

/* How the shuffles of a trainer may follow one another. */
static void epochs_are_followed_however_they_follow(void **state)
{
	static const struct prefetch_shuffle ways[] = {
		{ .step = 1 },
		{ .goes_on = true },
		{ .goes_on = true, .in_place = true },
		{ .in_place = true },
		{ .in_place = true, .step = 1 },
	};
	enum { WAYS = sizeof(ways) / sizeof(ways[0]), EPOCHS = 4 };
	(void)state;
	for (unsigned i = 0; i < WAYS * (FAMILIES - 1); i++) {
		struct prefetch_shuffle shuffle = ways[i / (FAMILIES - 1)];
		struct prefetch_recognise *r = new_recognise(3000);
		uint64_t misses = 0;
		shuffle.kind = families[i % (FAMILIES - 1)];
		shuffle.seed = 123;
		for (uint32_t epoch = 0; epoch < EPOCHS; epoch++) {
			shuffle.before = shuffle.goes_on || shuffle.in_place ? epoch : 0;
			order_of_shuffle(&shuffle, N, order);
			for (uint32_t k = 0; k < N; k++) {
				prefetch_recognise_opened(r, &order[k], 1);
				if (k % 16 == 15)
					recognise_work(r);
			}
			recognise_work(r);
			struct prefetch_recognised track = only_track(r);
			misses += epoch > 0 ? missed(r, track.id, 0, order, N) : 0;
			shuffle.seed += shuffle.step;
			if (track.epoch != epoch || track.opens + (epoch + 1) * 100 < (epoch + 1) * N)
				fail_msg("way %u, family %u, epoch %u: epoch %lu, %lu opens", i / (FAMILIES - 1),
				        i % (FAMILIES - 1), epoch, (unsigned long)track.epoch,
				        (unsigned long)track.opens);
		}
		assert_int_equal(misses, 0);
		shuffle.before += shuffle.goes_on || shuffle.in_place;
		order_of_shuffle(&shuffle, N, order);
		assert_int_equal(missed(r, only_track(r).id, 1, order, N), 0);
		prefetch_recognise_free(r);
	}
}

/* The files are shared out before the shuffle: each rank shuffles its own part, such as DLIO's ranks do, with the same
 * seed and in place. */
static void a_ranks_own_part_is_recognised(void **state)
{
	enum { WORLD = 8, RANK = 3, PART = N / WORLD, EPOCHS = 3 };
	static uint32_t at[PART], files[PART];
	(void)state;
	for (unsigned i = 0; i < 2 * FAMILIES; i++) {
		bool stride = i % 2, in_place = families[i / 2] == PREFETCH_SHUFFLE_NUMPY;
		struct prefetch_recognise *r = new_recognise(3000);
		struct prefetch_shuffle shuffle = { .kind = families[i / 2], .seed = 123, .in_place = in_place };
		shuffle.step = in_place ? 0 : 1;
		for (uint32_t epoch = 0; epoch < EPOCHS; epoch++) {
			struct prefetch_recognised track;
			shuffle.before = in_place ? epoch : 0;
			order_of_shuffle(&shuffle, PART, at);
			for (uint32_t k = 0; k < PART; k++)
				files[k] = stride ? at[k] * WORLD + RANK : RANK * PART + at[k];
			uint32_t opens = epoch == 0 ? open_until_ready(r, files, 256) : 0;
			if (opens > OPENS_MAX)
				fail_msg("family %u, stride %u: %u opens", i / 2, stride, opens);
			for (uint32_t k = opens; k < PART; k++) {
				prefetch_recognise_opened(r, &files[k], 1);
				if (k % 16 == 15)
					recognise_work(r);
			}
			recognise_work(r);
			track = only_track(r);
			assert_int_equal(track.sampler, sampler_of(families[i / 2]));
			assert_true(strstr(track.list, stride ? ", every 8. from 3 on" : ", 3750 to 4999"));
			assert_int_equal(missed(r, track.id, 0, files, PART), 0);
			shuffle.seed += shuffle.step;
		}
		struct prefetch_saved_track saved[PREFETCH_TRACKS_MAX];
		struct prefetch_recognise *later = new_recognise(100);
		assert_int_equal(prefetch_recognise_save(r, saved), 1);
		assert_int_equal(prefetch_recognise_restore(later, saved, 1), 0);
		recognise_work(later);
		assert_int_equal(missed(later, only_track(later).id, 0, files, PART), 0);
		prefetch_recognise_free(later);
		prefetch_recognise_free(r);
	}
}

/* Two workers side by side, each with every second batch. */
static uint32_t turn_of_two_workers(uint32_t k, uint32_t n)
{
	enum { BATCH = 32 };
	uint32_t at = k % (2 * BATCH), first = k - at;
	return first + 2 * BATCH > n ? k : first + at % 2 * BATCH + at / 2;
}

/* A part may be rounded up or down.  Python's sample of a file less or more is nearly the same at first.  So the sample
 * is followed, and the length of the part is found while it is. */
static void a_sample_of_a_part_has_its_length(void **state)
{
	static const struct {
		uint32_t first, n;
	} parts[] = { { 0, 3333 }, { 0, 3334 }, { 1428, 1428 }, { 1428, 1429 }, { 0, 526 }, { 0, 527 }, { 0, 714 } };
	static const uint32_t seeds[] = { 0, 5, 42 };
	enum { PARTS_TRIED = sizeof(parts) / sizeof(parts[0]), EPOCHS = 2 };
	unsigned n_seeds = getenv("DDPFS_RECOGNISE_LONG") ? 40 : sizeof(seeds) / sizeof(seeds[0]);
	(void)state;
	for (unsigned i = 0; i < PARTS_TRIED * n_seeds; i += EACH(2)) {
		uint32_t n = parts[i % PARTS_TRIED].n, first = parts[i % PARTS_TRIED].first;
		uint32_t at = i / PARTS_TRIED, seed = n_seeds == 40 ? at * 9 : seeds[at];
		bool workers = i % 2;
		struct prefetch_recognise *r = new_recognise(400);
		struct prefetch_recognised track = { 0 };
		char text[256];
		for (uint32_t epoch = 0; epoch < EPOCHS; epoch++) {
			order_of_seed(PREFETCH_SHUFFLE_SAMPLE, seed + epoch, n, order);
			for (uint32_t k = 0; k < n; k++) {
				uint32_t turn = workers ? turn_of_two_workers(k, n) : k;
				prefetch_recognise_opened(r, &(uint32_t){ first + order[turn] }, 1);
				if (k % 16 == 15)
					recognise_work(r);
			}
			recognise_work(r);
			track = only_track(r);
			if (track.turns != n || track.generation > epoch + 3) {
				prefetch_recognise_describe(&track, text, sizeof(text));
				fail_msg("case %u, %u files from %u on, seed %u: %s of %u files, generation %u", i, n,
				        first, seed, text, (unsigned)track.turns, track.generation);
			}
			for (uint32_t k = 0; k < n; k++)
				dealt[k] = first + order[k];
			assert_int_equal(missed(r, track.id, 0, dealt, n), 0);
		}
		if (track.opens + EPOCHS * 32 < EPOCHS * n)
			fail_msg("case %u, %u files from %u on, seed %u: %u opens", i, n, first, seed,
			        (unsigned)track.opens);
		prefetch_recognise_free(r);
	}
}

/* The trainer is far on before its part is recognised, with the right length or a file more.  When the length is known,
 * the track is where the trainer is. */
static void a_sample_recognised_late_is_followed_from_where_its_trainer_is(void **state)
{
	enum { CASES = 4, FILES = 9 * 6667, PART = FILES / 2, LATE = 20000, MORE = 1000, AROUND = 64 };
	struct shard_index *files = synth_open(&(struct synth){ .classes = 9, .per_class = FILES / 9, .bytes = 1 });
	uint32_t *at = malloc((PART + 1) * sizeof(*at)), changes = 0;
	(void)state;
	assert_non_null(at);
	for (uint32_t i = 0; i < CASES; i++) {
		struct prefetch_recognise *r;
		struct prefetch_recognise_options options = { .index = files, .seed_max = 45, .popular_words = 1 };
		uint32_t n = PART + i % 2;
		order_of_seed(PREFETCH_SHUFFLE_SAMPLE, i / 2 * 5, n, at);
		assert_int_equal(prefetch_recognise_new(&options, &r), 0);
		prefetch_recognise_opened(r, at, LATE);
		recognise_work(r);
		struct prefetch_recognised late = only_track(r);
		if (late.turns != n || late.turn + AROUND < LATE || late.turn > LATE + AROUND)
			fail_msg("case %u, %u files: turn %u of %u", i, n, (unsigned)late.turn, (unsigned)late.turns);
		changes += late.generation > 0;
		prefetch_recognise_opened(r, at + LATE, MORE);
		recognise_work(r);
		assert_int_equal(only_track(r).opens, late.opens + MORE);
		assert_int_equal(only_track(r).turn, LATE + MORE);
		prefetch_recognise_free(r);
	}
	assert_true(changes > 0);
	free(at);
	synth_close(files);
}

/* One rank shuffles the whole list sorted by name over several directories, as DLIO does: with numpy in place.  The
 * lists directory by directory are tried in vain first.  Beside these directories lies one that it does not read. */
static void a_shuffled_list_by_name_is_recognised(void **state)
{
	enum { DIRS = 5, EACH = N / DIRS, EPOCHS = 3 };
	struct shard_index *files =
	        synth_open(&(struct synth){ .classes = DIRS, .val_classes = 1, .per_class = EACH, .bytes = 1 });
	(void)state;
	for (unsigned f = 0; f < FAMILIES; f++) {
		struct prefetch_recognise *r;
		struct prefetch_recognise_options options = { .index = files, .seed_max = 300, .popular_words = 1 };
		struct prefetch_shuffle shuffle = { .kind = families[f], .seed = 123, .step = 1 };
		shuffle.in_place = shuffle.kind == PREFETCH_SHUFFLE_NUMPY;
		assert_int_equal(prefetch_recognise_new(&options, &r), 0);
		for (uint32_t epoch = 0; epoch < EPOCHS; epoch++, shuffle.seed++) {
			struct prefetch_recognised track;
			shuffle.before = shuffle.in_place ? epoch : 0;
			order_of_shuffle(&shuffle, N, order);
			for (uint32_t k = 0; k < N; k++)
				dealt[k] = order[k] % DIRS * EACH + order[k] / DIRS;
			uint32_t opens = epoch == 0 ? open_until_ready(r, dealt, 512) : 0;
			if (opens > OPENS_MAX)
				fail_msg("family %u: %u opens", f, opens);
			for (uint32_t k = opens; k < N; k++) {
				prefetch_recognise_opened(r, &dealt[k], 1);
				if (k % 16 == 15)
					recognise_work(r);
			}
			recognise_work(r);
			track = only_track(r);
			assert_int_equal(track.sampler, sampler_of(families[f]));
			assert_true(strstr(track.list, "sorted by name over all directories"));
			assert_int_equal(track.epoch, epoch);
			assert_int_equal(missed(r, track.id, 0, dealt, N), 0);
		}
		prefetch_recognise_free(r);
	}
	synth_close(files);
}

/* Seeds that are not likely are tried as well.  DDPFS_RECOGNISE_LONG=1 goes up to the largest. */
static void large_seeds_are_recognised(void **state)
{
	static const uint32_t seeds[] = { 12345, 60000, 999999 };
	unsigned n_seeds = getenv("DDPFS_RECOGNISE_LONG") ? 3 : 2;
	(void)state;
	for (unsigned i = 0; i < (FAMILIES - 1) * n_seeds; i += EACH(3)) {
		unsigned f = i % (FAMILIES - 1);
		uint32_t seed = seeds[i / (FAMILIES - 1)];
		struct prefetch_recognise *r = new_recognise(n_seeds == 3 ? 1000000 : 60000);
		order_of_seed(families[f], seed, N, order);
		uint32_t opens = open_until_ready(r, order, 512);
		struct prefetch_recognised track = only_track(r);
		if (opens > OPENS_MAX || track.sampler != sampler_of(families[f]) || track.seed != seed)
			fail_msg("family %u, seed %u: %u opens, seed %u", f, seed, opens, (unsigned)track.seed);
		assert_int_equal(missed(r, track.id, 0, order, N), 0);
		prefetch_recognise_free(r);
	}
}

/* One family by stride, and one in contiguous parts; DDPFS_RECOGNISE_LONG=1 tries all, and the largest seed, too. */
static void large_seeds_are_recognised_however_they_are_dealt(void **state)
{
	(void)state;
	if (!getenv("DDPFS_RECOGNISE_LONG")) {
		assert_found_as_dealt(0, STRIDE, 60000, 60100);
		assert_found_as_dealt(2, PARTS, 60000, 60100);
		return;
	}
	for (unsigned i = 0; i < 2 * 2 * FAMILIES; i++)
		assert_found_as_dealt(i / 4, i % 2 ? STRIDE : PARTS, i / 2 % 2 ? 999999 : 60000, 1000000);
}

/* Another reader opens a file that becomes final early, so the quick test gives up the right seed. */
static void a_seed_that_a_stranger_hides_is_tried_again(void **state)
{
	enum { SEED = 5000, EARLY = 50, AT = 20 };
	(void)state;
	for (unsigned f = 0; families[f] != PREFETCH_SHUFFLE_SAMPLE; f++) {
		struct prefetch_recognise *r = new_recognise(10000);
		order_of_seed(families[f], SEED, N, order);
		prefetch_recognise_opened(r, order, AT);
		prefetch_recognise_opened(r, &order[N - 1 - EARLY], 1);
		prefetch_recognise_opened(r, order + AT, OPENS_MAX - AT - 1);
		recognise_work(r);
		struct prefetch_recognised track = only_track(r);
		assert_int_equal(track.sampler, sampler_of(families[f]));
		assert_int_equal(track.seed, SEED);
		prefetch_recognise_free(r);
	}
}

/* Opens all files of an epoch, and lets the recogniser work. */
static void open_epoch(struct prefetch_recognise *r, struct loader *loader, const uint32_t *files)
{
	uint32_t file, n = 0;
	loader_rewind(loader, files);
	while ((file = loader_next(loader)) != UINT32_MAX) {
		prefetch_recognise_opened(r, &file, 1);
		if (++n % 16 == 0)
			recognise_work(r);
	}
	recognise_work(r);
}

/* Shuffles train/, and reads val/ in order after each epoch. */
static void train_with_validation(struct prefetch_shuffle shuffle, uint32_t n_val)
{
	enum { TRAIN = 3000, VAL_CLASSES = 10, EPOCHS = 3 };
	uint32_t per_class = n_val / VAL_CLASSES;
	struct shard_index *files = synth_open(&(struct synth){
	        .classes = TRAIN / per_class, .val_classes = VAL_CLASSES, .per_class = per_class, .bytes = 1 });
	struct prefetch_recognise_options options = { .index = files, .seed_max = 300, .popular_words = 1 };
	struct loader train = { .n = TRAIN, .world = 1, .ranks = 1, .workers = 2, .batch = 32 };
	struct loader val = train;
	struct prefetch_recognise *r;
	uint64_t first = shuffle.seed;
	val.n = n_val;
	for (uint32_t i = 0; i < n_val; i++)
		dealt[i] = TRAIN + i;
	assert_int_equal(prefetch_recognise_new(&options, &r), 0);
	for (uint32_t epoch = 0; epoch < EPOCHS; epoch++) {
		shuffle.seed = first + epoch * shuffle.step;
		shuffle.before = shuffle.goes_on || shuffle.in_place ? epoch : 0;
		order_of_shuffle(&shuffle, TRAIN, order);
		open_epoch(r, &train, order);
		open_epoch(r, &val, dealt);
	}
	assert_int_equal(recognised_tracks(r), 2);
	for (unsigned t = 0; t < 2; t++) {
		struct prefetch_recognised track;
		char text[256];
		uint32_t n = t ? n_val : TRAIN;
		assert_int_equal(prefetch_recognise_get(r, t, &track), 0);
		prefetch_recognise_describe(&track, text, sizeof(text));
		if (track.sampler != (t ? PREFETCH_SAMPLER_SORTED : sampler_of(shuffle.kind)) ||
		        !strstr(track.list, t ? "val/" : "train/") || track.epoch != EPOCHS - 1 ||
		        track.opens + EPOCHS * OPENS_MAX < EPOCHS * n ||
		        missed(r, track.id, 0, t ? dealt : order, n) > 0)
			fail_msg("kind %u, step %lu%s%s, %u files in val/: %s over %s, epoch %lu, %lu opens",
			        shuffle.kind, (unsigned long)shuffle.step, shuffle.goes_on ? ", goes on" : "",
			        shuffle.in_place ? ", in place" : "", n_val, text, track.list,
			        (unsigned long)track.epoch, (unsigned long)track.opens);
	}
	prefetch_recognise_free(r);
	synth_close(files);
}

static void validation_between_epochs_disturbs_no_shuffle(void **state)
{
	static const struct prefetch_shuffle ways[] = {
		{ .kind = PREFETCH_SHUFFLE_NUMPY, .seed = 42, .step = 1 },
		{ .kind = PREFETCH_SHUFFLE_NUMPY, .seed = 42, .goes_on = true },
		{ .kind = PREFETCH_SHUFFLE_NUMPY, .seed = 123, .in_place = true, .step = 1 },
		{ .kind = PREFETCH_SHUFFLE_NUMPY_RNG, .seed = 42, .step = 1 },
		{ .kind = PREFETCH_SHUFFLE_NUMPY_RNG, .seed = 42, .goes_on = true },
		{ .kind = PREFETCH_SHUFFLE_PYTHON, .seed = 42, .step = 1 },
		{ .kind = PREFETCH_SHUFFLE_PYTHON, .seed = 42, .goes_on = true, .in_place = true },
		{ .kind = PREFETCH_SHUFFLE_SAMPLE, .seed = 42, .step = 1 },
		{ .kind = PREFETCH_SHUFFLE_SAMPLE, .seed = 42, .goes_on = true },
		{ .kind = PREFETCH_SHUFFLE_STD, .seed = 524287 },
		{ .kind = PREFETCH_SHUFFLE_STD64, .seed = 524287 + (UINT64_C(1) << 32), .step = UINT64_C(1) << 32 },
		{ .kind = PREFETCH_SHUFFLE_STD64,
		        .seed = 524287 + (UINT64_C(1) << 32),
		        .step = UINT64_C(1) << 32,
		        .in_place = true },
	};
	(void)state;
	for (unsigned i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		train_with_validation(ways[i], 300);
		train_with_validation(ways[i], 1000);
	}
}

/* Several ranks of a host read through one mount, and each shuffles its own contiguous part. */
static void ranks_with_their_own_parts_are_recognised(void **state)
{
	static const uint32_t worlds[] = { 2, 4, 5, 8 };
	enum { EPOCHS = 2, WORLDS = sizeof(worlds) / sizeof(worlds[0]) };
	static uint32_t at[8][N];
	uint64_t random = 19;
	(void)state;
	for (unsigned i = 0; i < WORLDS * (FAMILIES - 1); i += EACH(WORLDS + 1)) {
		uint32_t world = worlds[i % WORLDS], f = i / WORLDS, part = N / world, next[8], opened = 0;
		struct prefetch_recognise *r = new_recognise(130);
		for (uint32_t epoch = 0; epoch < EPOCHS; epoch++) {
			for (uint32_t rank = 0; rank < world; rank++) {
				order_of_seed(families[f], 123 + epoch, part, at[rank]);
				next[rank] = 0;
			}
			for (uint32_t k = 0; k < part * world; k++) {
				uint32_t rank = (uint32_t)(loader_random(&random) % world);
				while (next[rank] == part)
					rank = (rank + 1) % world;
				prefetch_recognise_opened(r, &(uint32_t){ rank * part + at[rank][next[rank]++] }, 1);
				if (k % 16 == 15)
					recognise_work(r);
			}
		}
		recognise_work(r);
		for (unsigned t = 0; t < recognised_tracks(r); t++) {
			struct prefetch_recognised track;
			assert_int_equal(prefetch_recognise_get(r, t, &track), 0);
			assert_int_equal(track.sampler, sampler_of(families[f]));
			opened += (uint32_t)track.opens;
		}
		if (recognised_tracks(r) != world || opened + EPOCHS * N / 100 < EPOCHS * N)
			fail_msg("family %u, %u ranks: %u samplers, %u of %u opens", f, world, recognised_tracks(r),
			        opened, EPOCHS * N);
		prefetch_recognise_free(r);
	}
}

/* Where a rank with its own part is in its order. */
struct own_part {
	uint32_t at[N / 2], next;
};

static void begin_own_part(struct own_part *own, uint32_t part, enum prefetch_shuffle_kind kind, uint32_t seed)
{
	order_of_seed(kind, seed, part, own->at);
	own->next = 0;
}

/* Whether `n` ranks from `first` on are followed with this seed. */
static bool own_parts_are_followed(
        struct prefetch_recognise *r, uint32_t first, uint32_t n, uint32_t part, uint32_t seed)
{
	for (uint32_t rank = first; rank < first + n; rank++) {
		char range[64];
		bool found = false;
		snprintf(range, sizeof(range), ", %u to %u", rank * part, (rank + 1) * part - 1);
		for (unsigned t = 0; t < recognised_tracks(r); t++) {
			struct prefetch_recognised track;
			assert_int_equal(prefetch_recognise_get(r, t, &track), 0);
			found |= track.seed == seed && strstr(track.list, range) != NULL;
		}
		if (!found)
			return false;
	}
	return true;
}

/* Trainers of a host stop in the middle of an epoch and begin anew with another seed, all of them or one. */
static void ranks_with_their_own_parts_are_found_again_after_a_jump(void **state)
{
	static const uint32_t seeds[] = { 123, 41, 17, 60 };
	enum { JUMPS = 3, OPENS = 3 * N / 8, OPENS_AGAIN = 768 };
	static struct own_part own[4];
	uint64_t random = 23;
	(void)state;
	for (unsigned i = 0; i < 3 * (FAMILIES - 1); i += EACH(4)) {
		uint32_t world = i % 3 == 0 ? 2 : 4, part = N / world, opens;
		uint32_t first = 0, n = world; /* of the ranks that begin an order */
		struct prefetch_recognise *r = new_recognise(130);
		/* Tracks of the orders before are in the way. */
		for (uint32_t jump = 0; jump <= JUMPS; jump++) {
			bool found = false;
			for (uint32_t rank = first; rank < first + n; rank++)
				begin_own_part(&own[rank], part, families[i / 3], seeds[jump]);
			for (opens = 0; opens < OPENS && (jump == 0 || !found); opens++) {
				uint32_t rank = (uint32_t)(loader_random(&random) % world);
				if (own[rank].next == part)
					continue;
				uint32_t file = rank * part + own[rank].at[own[rank].next++];
				prefetch_recognise_opened(r, &file, 1);
				if (opens % 16 == 15)
					recognise_work(r);
				found = opens % 16 == 15 && own_parts_are_followed(r, first, n, part, seeds[jump]);
			}
			if (!found && !own_parts_are_followed(r, first, n, part, seeds[jump]))
				fail_msg("case %u: seed %u is not found", i, seeds[jump]);
			if (jump > 0 && opens > OPENS_AGAIN * world / n)
				fail_msg("case %u: seed %u is found after %u opens", i, seeds[jump], opens);
			first = i % 3 == 2 ? 3 : 0;
			n = world - first;
		}
		prefetch_recognise_free(r);
	}
}

/* DALI's readers.file: random_shuffle, and shuffle_after_epoch with and without checkpoints. */
static void dali_is_recognised_and_followed(void **state)
{
	static const struct prefetch_shuffle ways[] = {
		{ .kind = PREFETCH_SHUFFLE_STD, .seed = 524287 },
		{ .kind = PREFETCH_SHUFFLE_STD64, .seed = 524287, .step = UINT64_C(1) << 32 },
		{ .kind = PREFETCH_SHUFFLE_STD64, .seed = 524287, .step = UINT64_C(1) << 32, .in_place = true },
	};
	(void)state;
	for (unsigned i = 0; i < 3 * 3; i++) {
		struct prefetch_shuffle shuffle = ways[i / 3];
		struct prefetch_recognise *r = new_recognise(100);
		uint32_t first = i % 3; /* the first epoch that is seen */
		for (uint32_t epoch = first; epoch < first + 3; epoch++) {
			shuffle.seed = 524287 + (epoch + 1) * shuffle.step;
			shuffle.before = shuffle.in_place ? epoch : 0;
			order_of_shuffle(&shuffle, N, order);
			for (uint32_t k = 0; k < N; k++) {
				prefetch_recognise_opened(r, &order[k], 1);
				if (k % 16 == 15)
					recognise_work(r);
			}
			recognise_work(r);
		}
		struct prefetch_recognised track = only_track(r);
		assert_int_equal(missed(r, track.id, 0, order, N), 0);
		assert_true(track.opens + 3 * 100 >= 3 * N);
		prefetch_recognise_free(r);
	}
}

/* A reader of one shard goes on with the next one in its next epoch, and so around the list, which was shuffled once.
 * Its buffer (initial_fill) holds files that it has read already, so it opens them in the order of the list. */
static void a_reader_of_dali_goes_from_shard_to_shard(void **state)
{
	enum { EPOCHS = 4 };
	(void)state;
	for (uint32_t world = 2; world <= 8; world *= 2) {
		struct prefetch_recognise *r = new_recognise(100);
		uint32_t shard = N / world, n = EPOCHS * shard;
		uint64_t opened = 0;
		order_of_seed(PREFETCH_SHUFFLE_STD, 524287, N, order);
		for (uint32_t k = 0; k < n; k++) {
			prefetch_recognise_opened(r, &order[(shard + k) % N], 1);
			if (k % 16 == 15)
				recognise_work(r);
		}
		for (unsigned t = 0; t < recognised_tracks(r); t++) {
			struct prefetch_recognised track;
			assert_int_equal(prefetch_recognise_get(r, t, &track), 0);
			assert_int_equal(track.sampler, PREFETCH_SAMPLER_DALI);
			opened += track.opens;
		}
		if (opened + EPOCHS * 100 < n)
			fail_msg("%u shards: %u opens of %u", world, (unsigned)opened, n);
		prefetch_recognise_free(r);
	}
}

/* A job looks at some files before its first epoch, which nobody knows. The beginning of the second one shows all the
 * same, so seeds are tried that are not tried in the middle of an epoch. */
static void files_that_come_twice_hide_no_epoch(void **state)
{
	struct prefetch_recognise *r = new_recognise(3000);
	uint64_t random = 85;
	(void)state;
	order_of_nobody(&random, N, order);
	for (uint32_t i = 0; i < N; i += 50)
		prefetch_recognise_opened(r, &i, 1);
	for (uint32_t k = 0; k < N; k++) {
		prefetch_recognise_opened(r, &order[k], 1);
		if (k % 16 == 15)
			recognise_work(r);
	}
	order_of_seed(PREFETCH_SHUFFLE_NUMPY, 2500, N, order);
	for (uint32_t k = 0; k < N / 4; k++) {
		prefetch_recognise_opened(r, &order[k], 1);
		if (k % 16 == 15)
			recognise_work(r);
	}
	assert_int_equal(only_track(r).seed, 2500);
	prefetch_recognise_free(r);
}

/* What a predecessor has left is followed, in the middle of any epoch. */
static void a_successor_goes_on_with_a_shuffle(void **state)
{
	static const struct prefetch_shuffle ways[] = { { .step = 1 }, { .goes_on = true, .in_place = true },
		{ .in_place = true, .step = 1 } };
	(void)state;
	for (unsigned i = 0; i < 3 * 2; i++) {
		struct prefetch_saved_track saved[PREFETCH_TRACKS_MAX];
		struct prefetch_shuffle shuffle = ways[i % 3];
		struct prefetch_recognise *r = new_recognise(3000), *later = new_recognise(100);
		enum deal deal = i / 3 ? PARTS : ALL;
		uint32_t n = 0;
		shuffle.kind = PREFETCH_SHUFFLE_NUMPY;
		shuffle.seed = 2000;
		for (uint32_t epoch = 0; epoch < 3; epoch++) {
			shuffle.before = shuffle.goes_on || shuffle.in_place ? epoch : 0;
			order_of_shuffle(&shuffle, N, order);
			n = deal_out(deal, order, N, 4, 2, dealt);
			for (uint32_t k = 0; k < (epoch == 2 ? n / 2 : n); k++) {
				prefetch_recognise_opened(r, &dealt[k], 1);
				if (k % 16 == 15)
					recognise_work(r);
			}
			shuffle.seed += shuffle.step;
		}
		recognise_work(r);
		assert_int_equal(missed(r, only_track(r).id, 0, dealt, n), 0);
		if (prefetch_recognise_save(r, saved) != 1)
			fail_msg("case %u is not saved", i);
		assert_int_equal(prefetch_recognise_restore(later, saved, 1), 0);
		recognise_work(later);
		for (uint32_t k = n / 2; k < n; k++)
			prefetch_recognise_opened(later, &dealt[k], 1);
		recognise_work(later);
		if (recognised_tracks(later) != 1)
			fail_msg("case %u is lost", i);
		struct prefetch_recognised track = only_track(later);
		assert_false(track.unverified);
		assert_true(track.opens >= n / 2 - 32);
		assert_int_equal(missed(later, track.id, 0, dealt, n), 0);
		prefetch_recognise_free(r);
		prefetch_recognise_free(later);
	}
}

static bool is_expected(struct prefetch_recognise *r, uint32_t file)
{
	struct prefetch_recognised track;
	struct prefetch_sequence *sequence;
	uint64_t turn;
	if (prefetch_recognise_get(r, 0, &track) < 0 || prefetch_recognise_sequence(r, track.id, 0, &sequence) < 0)
		return false;
	bool expected = prefetch_sequence_find(sequence, file, &turn) == 0;
	prefetch_sequence_put(sequence);
	return expected;
}

/* Others open files before an epoch begins.  Then the ring may have more of theirs than of the epoch's.  The beginning
 * of a whole permutation is also the first rank's part of it: it must not be taken for that. */
static void the_whole_is_not_taken_for_the_first_part(void **state)
{
	enum { CASES = 4, RECOGNISED = 512 };
	uint64_t random = 5;
	(void)state;
	for (unsigned i = 0; i < FAMILIES * CASES; i++) {
		struct prefetch_recognise *r = new_recognise(100);
		uint32_t before = 16 + i / FAMILIES * 16, misses = 0;
		for (uint32_t k = 0; k < before; k++)
			prefetch_recognise_opened(r, &(uint32_t){ (uint32_t)(loader_random(&random) % N) }, 1);
		order_of_seed(families[i % FAMILIES], 42, N, order);
		prefetch_recognise_opened(r, order, 160);
		prefetch_recognise_pause(r);
		recognise_work(r);
		for (uint32_t k = 160; k < N; k++) {
			misses += k >= RECOGNISED && !is_expected(r, order[k]);
			prefetch_recognise_opened(r, &order[k], 1);
			if (k % 16 == 15)
				recognise_work(r);
		}
		if (misses > 0)
			fail_msg("family %u, %u opens before: %u are not expected", i % FAMILIES, before, misses);
		prefetch_recognise_free(r);
	}
}

/* Others open `before` files right before an epoch.  Returns after how many opens of the epoch it is recognised. */
static uint32_t opens_behind_strangers(unsigned family, uint32_t seed, uint32_t before, uint64_t *random)
{
	struct prefetch_recognise *r = new_recognise(1000);
	char text[256];
	for (uint32_t k = 0; k < before; k++) {
		prefetch_recognise_opened(r, &(uint32_t){ (uint32_t)(loader_random(random) % N) }, 1);
		if (k % 16 == 15)
			recognise_work(r);
	}
	order_of_seed(families[family], seed, N, order);
	uint32_t opens = open_until_ready(r, order, 512);
	if (opens <= 512) {
		struct prefetch_recognised track = only_track(r);
		prefetch_recognise_describe(&track, text, sizeof(text));
		if (track.sampler != sampler_of(families[family]) || track.seed != seed ||
		        missed(r, track.id, 0, order, N) > 0 || track.turn > 512 + 64)
			fail_msg("%u opens before: %s, turn %u", before, text, (unsigned)track.turn);
	}
	prefetch_recognise_free(r);
	return opens;
}

/* A pass of another job or a tool ends, and a shuffled epoch begins without a pause. */
static void an_epoch_is_found_behind_opens_of_others(void **state)
{
	static const uint32_t befores[] = { 96, 192, 600 };
	uint64_t random = random_seed(2);
	(void)state;
	for (unsigned i = 0; i < FAMILIES * 3; i += EACH(4)) {
		unsigned f = i % FAMILIES;
		uint32_t before = befores[i / FAMILIES];
		uint32_t first = opens_behind_strangers(f, 42, before, &random);
		uint32_t likely = opens_behind_strangers(f, 700, before, &random);
		/* The tail moves on by a third; likely seeds are tried after each third look.  Files that others opened
		 * a moment ago do not count, so a look may be late by 16 opens. */
		if (first > OPENS_MAX + 32 + 16 || likely > 2 * OPENS_MAX + 3 * 16)
			fail_msg("family %u, %u opens before: %u and %u opens", f, before, first, likely);
	}
}

/* With these opens of others the track of torch's shuffle forgets all that it took in, and goes on. */
static void a_track_goes_on_that_forgets_all_opens_of_others(void **state)
{
	uint64_t random = UINT64_C(9242438576632395275);
	(void)state;
	assert_in_range(opens_behind_strangers(FAMILIES - 1, 42, 600, &random), 1, 512);
}

/* What others opened before an epoch begins lies anywhere in its permutation.  It is not taken for the trainer's place,
 * also where it lies a little ahead of the trainer.  If it were, what lies between would fill the memory. */
static void strangers_a_little_ahead_are_not_the_trainers_place(void **state)
{
	enum { FILES = 3000, OPENED = 160, BEFORE = 256, CASES = 20, AHEAD_MAX = 48 };
	struct shard_index *files = synth_open(&(struct synth){ .classes = 10, .per_class = FILES / 10, .bytes = 1 });
	uint64_t random = 9;
	(void)state;
	order_of_seed(PREFETCH_SHUFFLE_PYTHON, 42, FILES, order);
	for (unsigned i = 0; i < CASES / EACH(4); i++) {
		struct prefetch_recognise *r;
		struct prefetch_recognise_options options = { .index = files, .seed_max = 45, .popular_words = 1 };
		assert_int_equal(prefetch_recognise_new(&options, &r), 0);
		for (uint32_t k = 0; k < BEFORE; k++)
			prefetch_recognise_opened(r, &(uint32_t){ (uint32_t)(loader_random(&random) % FILES) }, 1);
		prefetch_recognise_opened(r, order, OPENED);
		prefetch_recognise_pause(r);
		recognise_work(r);
		struct prefetch_recognised track;
		if (prefetch_recognise_get(r, 0, &track) < 0)
			fail_msg("case %u is not recognised", i);
		if (track.turn < OPENED - 8 || track.turn > OPENED + AHEAD_MAX)
			fail_msg("case %u: turn %llu", i, (unsigned long long)track.turn);
		prefetch_recognise_free(r);
	}
	synth_close(files);
}

/* One of these strangers comes late, so that it is not older than the trainer's first opens. */
static void a_stranger_among_the_first_opens_is_not_the_trainers_place(void **state)
{
	enum { OPENED = 96, AT = 70, AHEAD = 400 };
	struct prefetch_recognise *r = new_recognise(100);
	(void)state;
	order_of_seed(PREFETCH_SHUFFLE_NUMPY, 42, N, order);
	prefetch_recognise_opened(r, order, AT);
	prefetch_recognise_opened(r, &order[AHEAD], 1);
	prefetch_recognise_opened(r, order + AT, OPENED - AT);
	recognise_work(r);
	assert_in_range(only_track(r).turn, OPENED - 8, OPENED);
	prefetch_recognise_free(r);
}

/* No list is shuffled in these orders; DDPFS_RANDOM_ORDERS=10000 tries so many, and DDPFS_RANDOM_SEED=1 others. */
static void nothing_is_recognised_in_orders_of_nobody(void **state)
{
	const char *orders = getenv("DDPFS_RANDOM_ORDERS");
	uint64_t random = random_seed(11); /* for a run in pieces */
	const long n_orders = orders ? atol(orders) : 40 / EACH(5);
	(void)state;
	for (long k = 0; k < n_orders; k++) {
		struct prefetch_recognise *r = new_recognise(k % 8 ? 300 : 3000);
		uint32_t world = 1 + (uint32_t)k % 3;
		order_of_nobody(&random, N, order);
		uint32_t n = deal_out(k % 2 ? PARTS : STRIDE, order, N, world, 0, dealt);
		if (open_until_ready(r, dealt, n < 512 ? n : 512) <= 512)
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
		cmocka_unit_test(shuffles_are_those_of_the_libraries),
		cmocka_unit_test(permutations_in_slices_are_whole_ones),
		cmocka_unit_test(a_trace_puts_files_where_the_shuffle_puts_them),
		cmocka_unit_test(a_trace_keeps_the_right_seed),
		cmocka_unit_test(a_trace_tells_seeds_of_short_lists_apart),
		cmocka_unit_test(each_family_is_recognised_however_it_is_dealt),
		cmocka_unit_test(epochs_are_followed_however_they_follow),
		cmocka_unit_test(a_ranks_own_part_is_recognised),
		cmocka_unit_test(a_sample_of_a_part_has_its_length),
		cmocka_unit_test(a_sample_recognised_late_is_followed_from_where_its_trainer_is),
		cmocka_unit_test(a_shuffled_list_by_name_is_recognised),
		cmocka_unit_test(large_seeds_are_recognised),
		cmocka_unit_test(large_seeds_are_recognised_however_they_are_dealt),
		cmocka_unit_test(a_seed_that_a_stranger_hides_is_tried_again),
		cmocka_unit_test(validation_between_epochs_disturbs_no_shuffle),
		cmocka_unit_test(ranks_with_their_own_parts_are_recognised),
		cmocka_unit_test(ranks_with_their_own_parts_are_found_again_after_a_jump),
		cmocka_unit_test(dali_is_recognised_and_followed),
		cmocka_unit_test(a_reader_of_dali_goes_from_shard_to_shard),
		cmocka_unit_test(files_that_come_twice_hide_no_epoch),
		cmocka_unit_test(a_successor_goes_on_with_a_shuffle),
		cmocka_unit_test(the_whole_is_not_taken_for_the_first_part),
		cmocka_unit_test(an_epoch_is_found_behind_opens_of_others),
		cmocka_unit_test(a_track_goes_on_that_forgets_all_opens_of_others),
		cmocka_unit_test(strangers_a_little_ahead_are_not_the_trainers_place),
		cmocka_unit_test(a_stranger_among_the_first_opens_is_not_the_trainers_place),
		cmocka_unit_test(nothing_is_recognised_in_orders_of_nobody),
	};
	cmocka_set_test_filter(getenv("DDPFS_TEST")); /* a pattern, or NULL */
	return cmocka_run_group_tests(tests, setup, teardown);
}
