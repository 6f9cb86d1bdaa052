/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger against brute force: Belady's choice, the budget, several streams, jumps. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cache/ledger.h"
#include "shard/base/bits.h"
#include "shard/build.h"

enum { PAGE = 4096 };

/* An index of n samples, of one page each, or of 1 to `pages` in turn.  No shard is ever read. */
struct dataset {
	char dir[64];
	struct shard_index *index;
};

static void dataset_sized(struct dataset *d, uint32_t n, uint32_t pages)
{
	struct shard_builder *b;
	char path[128];
	snprintf(d->dir, sizeof(d->dir), "/tmp/ddpfs-ledger-XXXXXX");
	assert_non_null(mkdtemp(d->dir));
	assert_int_equal(shard_builder_new(&b), 0);
	assert_int_equal(shard_builder_add_shard(b, "s.bare", SHARD_BARE, (uint64_t)n * pages * PAGE, 0, NULL), 0);
	for (uint32_t i = 0; i < n; i++) {
		snprintf(path, sizeof(path), "f%06u", i);
		assert_int_equal(shard_builder_add_file(b,
		                         &(struct shard_build_file){ .path = path,
		                                 .offset = (uint64_t)i * pages * PAGE,
		                                 .length = (uint64_t)(1 + i % pages) * PAGE,
		                                 .mode = 0644 },
		                         NULL),
		        0);
	}
	snprintf(path, sizeof(path), "%s/" SHARD_INDEX_NAME, d->dir);
	assert_int_equal(shard_builder_finish(b, path, true, 1, NULL), 0);
	shard_builder_free(b);
	assert_int_equal(shard_index_open(d->dir, NULL, &d->index), 0);
}

static void dataset_new(struct dataset *d, uint32_t n)
{
	dataset_sized(d, n, 1);
}

static void dataset_free(struct dataset *d)
{
	char path[128];
	shard_index_close(d->index);
	snprintf(path, sizeof(path), "%s/" SHARD_INDEX_NAME, d->dir);
	unlink(path);
	rmdir(d->dir);
}

static struct shard_view *view_new(struct dataset *d, uint32_t rank, uint32_t world, uint64_t seed)
{
	struct shard_view *view;
	struct shard_view_options options = { .order = SHARD_ORDER_FULL, .seed = seed, .rank = rank, .world = world };
	assert_int_equal(shard_view_new(d->index, &options, NULL, &view), 0);
	return view;
}

static uint32_t sample_of(struct shard_view *view, uint32_t rank, uint64_t epoch, uint64_t turn)
{
	struct shard_epoch *e;
	uint32_t sample;
	assert_int_equal(shard_view_epoch(view, epoch, &e), 0);
	assert_int_equal(shard_epoch_turn(e, rank, turn, &sample, NULL), 0);
	shard_epoch_put(e);
	return sample;
}

/* Fetches of Belady's algorithm for the whole sequence, by looking at all of it. */
static uint64_t belady(const uint32_t *sequence, uint64_t len, uint32_t n, uint32_t room)
{
	bool *in = calloc(n, sizeof(bool));
	uint64_t fetches = 0;
	uint32_t held = 0;
	for (uint64_t t = 0; t < len; t++) {
		if (in[sequence[t]])
			continue;
		fetches++;
		if (held == room) {
			uint64_t farthest = 0;
			uint32_t victim = 0;
			for (uint32_t s = 0; s < n; s++) {
				if (!in[s])
					continue;
				uint64_t next = t + 1;
				while (next < len && sequence[next] != s)
					next++;
				if (next >= farthest) {
					farthest = next;
					victim = s;
				}
			}
			in[victim] = false;
			held--;
		}
		in[sequence[t]] = true;
		held++;
	}
	free(in);
	return fetches;
}

static int fetch(struct cache_ledger *ledger, struct cache_timeline *tl, uint64_t seq, uint32_t sample)
{
	uint64_t bytes;
	assert_int_equal(cache_ledger_cost(ledger, sample, &bytes), 0);
	return cache_ledger_fetch(ledger, tl, seq, sample, bytes);
}

static void arrived(struct cache_ledger *ledger, struct cache_timeline *tl, uint64_t seq, uint32_t sample, bool ok)
{
	uint64_t bytes;
	assert_int_equal(cache_ledger_cost(ledger, sample, &bytes), 0);
	cache_ledger_arrived(ledger, tl, seq, sample, bytes, ok);
}

/* One turn: fetched if absent, then used.  Returns 1 when it was fetched. */
static uint64_t take_turn(struct cache_ledger *ledger, struct cache_timeline *tl, uint64_t seq)
{
	struct cache_victim dropped[64];
	uint32_t sample;
	uint64_t fetched = 0;
	assert_int_equal(cache_timeline_sample(tl, seq, &sample), 0);
	if (!cache_ledger_resident(ledger, sample)) {
		assert_int_equal(fetch(ledger, tl, seq, sample), 0);
		arrived(ledger, tl, seq, sample, true);
		fetched = 1;
	}
	cache_ledger_use(ledger, tl, seq, true);
	assert_int_equal(cache_timeline_advance(tl), 0);
	size_t n = cache_ledger_drops(ledger, dropped, 64);
	cache_ledger_dropped(ledger, dropped, n);
	struct cache_ledger_stats st;
	cache_ledger_stats_get(ledger, &st);
	assert_true(st.resident_bytes + st.coming_bytes <= st.budget_bytes);
	return fetched;
}

static void eviction_is_belady_s(void **state)
{
	static const uint32_t counts[] = { 8, 13, 40, 101 };
	enum { EPOCHS = 5, AHEAD = 2 };
	(void)state;
	for (unsigned c = 0; c < 4; c++) {
		uint32_t n = counts[c];
		struct dataset d;
		dataset_new(&d, n);
		uint32_t *sequence = calloc((uint64_t)n * (EPOCHS + AHEAD), sizeof(uint32_t));
		for (uint64_t seed = 0; seed < 3; seed++) {
			struct shard_view *view = view_new(&d, 0, 1, seed);
			for (uint64_t i = 0; i < (uint64_t)n * (EPOCHS + AHEAD); i++)
				sequence[i] = sample_of(view, 0, i / n, i % n);
			for (uint32_t room = 4; room <= n; room += 1 + n / 7) {
				struct cache_ledger *ledger;
				struct cache_timeline tl;
				uint64_t fetches = 0;
				assert_int_equal(cache_ledger_new(d.index, (uint64_t)room * PAGE, 0, 0, &ledger), 0);
				assert_int_equal(cache_timeline_init(&tl, view, 0, 0), 0);
				assert_int_equal(cache_ledger_add(ledger, &tl), 0);
				for (uint64_t seq = 0; seq < (uint64_t)n * EPOCHS; seq++)
					fetches += take_turn(ledger, &tl, seq);
				/* The future after the last counted turn makes no difference to what came before. */
				assert_int_equal(fetches, belady(sequence, (uint64_t)n * EPOCHS, n, room));
				cache_ledger_remove(ledger, &tl);
				cache_timeline_done(&tl);
				cache_ledger_free(ledger);
			}
			shard_view_free(view);
		}
		free(sequence);
		dataset_free(&d);
	}
}

static void fetching_never_drops_what_is_used_sooner(void **state)
{
	struct dataset d;
	struct cache_ledger *ledger;
	struct cache_timeline tl;
	uint32_t sample;
	(void)state;
	dataset_new(&d, 100);
	struct shard_view *view = view_new(&d, 0, 1, 1);
	assert_int_equal(cache_ledger_new(d.index, 10 * PAGE, 0, 0, &ledger), 0);
	assert_int_equal(cache_timeline_init(&tl, view, 0, 0), 0);
	assert_int_equal(cache_ledger_add(ledger, &tl), 0);
	for (uint64_t seq = 5; seq < 15; seq++) {
		assert_int_equal(cache_timeline_sample(&tl, seq, &sample), 0);
		assert_int_equal(fetch(ledger, &tl, seq, sample), 0);
		assert_int_equal(fetch(ledger, &tl, seq, sample), -EEXIST);
		arrived(ledger, &tl, seq, sample, true);
	}
	assert_int_equal(cache_timeline_sample(&tl, 15, &sample), 0);
	assert_int_equal(fetch(ledger, &tl, 15, sample), -ENOSPC);
	assert_int_equal(cache_timeline_sample(&tl, 4, &sample), 0);
	assert_int_equal(fetch(ledger, &tl, 4, sample), 0); /* in the place of 14 */
	arrived(ledger, &tl, 4, sample, false);
	assert_int_equal(cache_timeline_sample(&tl, 14, &sample), 0);
	assert_false(cache_ledger_has(ledger, sample));
	assert_int_equal(cache_timeline_sample(&tl, 13, &sample), 0);
	assert_true(cache_ledger_has(ledger, sample));
	cache_ledger_remove(ledger, &tl);
	cache_timeline_done(&tl);
	cache_ledger_free(ledger);
	shard_view_free(view);
	dataset_free(&d);
}

static void a_drop_can_be_taken_back(void **state)
{
	struct dataset d;
	struct cache_ledger *ledger;
	struct cache_timeline tl;
	struct cache_victim dropped[8];
	uint32_t first;
	(void)state;
	dataset_new(&d, 50);
	struct shard_view *view = view_new(&d, 0, 1, 2);
	assert_int_equal(cache_ledger_new(d.index, 8 * PAGE, 2 * PAGE, 0, &ledger), 0);
	assert_int_equal(cache_timeline_init(&tl, view, 0, 0), 0);
	assert_int_equal(cache_ledger_add(ledger, &tl), 0);
	for (uint64_t seq = 0; seq < 8; seq++)
		take_turn(ledger, &tl, seq);
	cache_ledger_set_budget(ledger, 7 * PAGE);
	cache_ledger_trim(ledger);
	struct cache_ledger_stats st;
	cache_ledger_stats_get(ledger, &st);
	assert_int_equal(st.resident, 7);
	for (first = 0; first < 50; first++) {
		uint64_t next = cache_timeline_next(&tl, first);
		if (cache_ledger_resident(ledger, first) || next < 50)
			continue;
		/* Used, not resident: this is the one that waits to be dropped. It is wanted now: no fetch, no drop. */
		cache_ledger_set_budget(ledger, 8 * PAGE);
		assert_int_equal(fetch(ledger, &tl, next, first), -EEXIST);
		assert_true(cache_ledger_resident(ledger, first));
		break;
	}
	assert_true(first < 50);
	assert_int_equal(cache_ledger_drops(ledger, dropped, 8), 0);
	cache_ledger_remove(ledger, &tl);
	cache_timeline_done(&tl);
	cache_ledger_free(ledger);
	shard_view_free(view);
	dataset_free(&d);
}

static void two_ranks_share_one_residency(void **state)
{
	enum { N = 60, EPOCHS = 4 };
	struct dataset d;
	struct cache_ledger *ledger;
	struct cache_timeline tl[2];
	struct shard_view *view[2];
	uint64_t fetches = 0;
	(void)state;
	dataset_new(&d, N);
	assert_int_equal(cache_ledger_new(d.index, N * PAGE, 0, 0, &ledger), 0);
	for (uint32_t r = 0; r < 2; r++) {
		view[r] = view_new(&d, r, 2, 9);
		assert_int_equal(cache_timeline_init(&tl[r], view[r], r, 0), 0);
		assert_int_equal(cache_ledger_add(ledger, &tl[r]), 0);
	}
	for (uint64_t seq = 0; seq < N / 2 * EPOCHS; seq++) {
		for (uint32_t r = 0; r < 2; r++)
			fetches += take_turn(ledger, &tl[r], seq);
	}
	assert_int_equal(fetches, N); /* the dataset once, not once a rank or an epoch */
	for (uint32_t r = 0; r < 2; r++) {
		cache_ledger_remove(ledger, &tl[r]);
		cache_timeline_done(&tl[r]);
		shard_view_free(view[r]);
	}
	struct cache_ledger_stats st;
	cache_ledger_stats_get(ledger, &st);
	assert_int_equal(st.resident, N); /* nobody wants them any more, but somebody may come */
	cache_ledger_free(ledger);
	dataset_free(&d);
}

/* How often an order was asked where it has a sample. */
static uint64_t looks;

int __real_shard_epoch_find_stored(const struct shard_epoch *epoch, uint32_t sample, uint32_t slot, uint64_t *ret_step,
        uint32_t *ret_rank, uint64_t *ret_turn);
int __wrap_shard_epoch_find_stored(const struct shard_epoch *epoch, uint32_t sample, uint32_t slot, uint64_t *ret_step,
        uint32_t *ret_rank, uint64_t *ret_turn);
int __wrap_shard_epoch_find_stored(const struct shard_epoch *epoch, uint32_t sample, uint32_t slot, uint64_t *ret_step,
        uint32_t *ret_rank, uint64_t *ret_turn)
{
	looks++;
	return __real_shard_epoch_find_stored(epoch, sample, slot, ret_step, ret_rank, ret_turn);
}

static void ranks_of_a_view_share_a_look_at_its_order(void **state)
{
	enum { N = 400, WORLD = 8, EPOCHS = 3, USES = N * EPOCHS };
	struct dataset d;
	struct cache_ledger *ledger;
	struct cache_timeline tl[WORLD];
	uint64_t fetches = 0;
	(void)state;
	dataset_new(&d, N);
	struct shard_view *view = view_new(&d, 0, WORLD, 9);
	assert_int_equal(cache_ledger_new(d.index, N * PAGE, 0, 0, &ledger), 0);
	for (uint32_t r = 0; r < WORLD; r++) {
		assert_int_equal(cache_timeline_init(&tl[r], view, r, 0), 0);
		assert_int_equal(cache_ledger_add(ledger, &tl[r]), 0);
	}
	looks = 0;
	for (uint64_t seq = 0; seq < N / WORLD * EPOCHS; seq++) {
		for (uint32_t r = 0; r < WORLD; r++)
			fetches += take_turn(ledger, &tl[r], seq);
	}
	assert_int_equal(fetches, N);
	/* Each use, and each arrival, looks at three epochs. */
	assert_true(looks <= (USES + N) * (CACHE_EPOCHS + 1));
	looks = 0;
	for (uint32_t r = 0; r < WORLD; r++) {
		cache_ledger_remove(ledger, &tl[r]);
		assert_int_equal(cache_ledger_add(ledger, &tl[r]), 0);
	}
	/* One rank after the other goes and comes: three epochs for each next use; a third of the samples has one. */
	assert_true(looks <= 3 * N * (CACHE_EPOCHS + 1));
	for (uint32_t r = 0; r < WORLD; r++) {
		cache_ledger_remove(ledger, &tl[r]);
		cache_timeline_done(&tl[r]);
	}
	cache_ledger_free(ledger);
	shard_view_free(view);
	dataset_free(&d);
}

/* Each resident sample has one kept bit in the timeline, at its next use there. */
static void check_kept(struct cache_ledger *ledger, struct cache_timeline *tl, uint32_t n)
{
	uint64_t kept = 0, want = 0;
	for (uint32_t sample = 0; sample < n; sample++) {
		uint64_t turn, seq = cache_timeline_next(tl, sample);
		if (!cache_ledger_resident(ledger, sample) || seq == CACHE_NEVER)
			continue;
		const struct cache_timeline_epoch *ep = cache_timeline_epoch_of(tl, seq, &turn);
		assert_true(bit_get(ep->kept, turn));
		want++;
	}
	for (unsigned i = 0; i < CACHE_EPOCHS; i++)
		kept += bits_count(tl->epochs[i].kept, tl->epochs[i].turns);
	assert_int_equal(kept, want);
}

/* An order of one epoch that draws samples, some of them several times. */
enum { DRAWN = 40 };

static uint32_t drawn(uint64_t turn)
{
	return (uint32_t)(turn * turn % 61);
}

static int drawn_get(void *user, uint64_t number, void **ret_epoch, uint64_t *ret_turns)
{
	if (number > 0)
		return -ENODATA;
	*ret_epoch = user;
	*ret_turns = DRAWN;
	return 0;
}

static void drawn_put(void *epoch)
{
	(void)epoch;
}

static int drawn_turn(void *epoch, uint64_t turn, uint32_t *ret_sample)
{
	(void)epoch;
	*ret_sample = drawn(turn);
	return 0;
}

static int drawn_find_from(void *epoch, uint32_t sample, uint64_t from, uint64_t *ret_turn)
{
	(void)epoch;
	for (*ret_turn = from; *ret_turn < DRAWN; ++*ret_turn)
		if (drawn(*ret_turn) == sample)
			return 0;
	return -ENOENT;
}

static int drawn_find(void *epoch, uint32_t sample, uint64_t *ret_turn)
{
	return drawn_find_from(epoch, sample, 0, ret_turn);
}

static void a_stream_that_comes_keeps_its_next_uses(void **state)
{
	enum { N = 203, WORLD = 8 };
	struct dataset d;
	struct cache_ledger *ledger;
	struct cache_timeline first, later;
	(void)state;
	dataset_new(&d, N);
	struct shard_view *all = view_new(&d, 0, 1, 5), *view = view_new(&d, 0, WORLD, 9); /* tail=pad */
	const struct shard_view_given order = { .user = &d,
		.get = drawn_get,
		.put = drawn_put,
		.turn = drawn_turn,
		.find = drawn_find,
		.find_from = drawn_find_from };
	struct shard_view *given;
	assert_int_equal(shard_view_new_given(d.index, &order, &given), 0);
	/* Samples that are resident: few, about as many as a rank has turns in three epochs, and all. */
	for (uint64_t n = 1; n <= N; n += n < 70 ? 23 : 133) {
		assert_int_equal(cache_ledger_new(d.index, N * PAGE, 0, 0, &ledger), 0);
		assert_int_equal(cache_timeline_init(&first, all, 0, 0), 0);
		assert_int_equal(cache_ledger_add(ledger, &first), 0);
		for (uint64_t seq = 0; seq < n; seq++)
			take_turn(ledger, &first, seq);
		for (uint32_t r = 0; r <= WORLD; r++) {
			bool own = r < WORLD;
			assert_int_equal(cache_timeline_init(&later, own ? view : given, own ? r : 0, 0), 0);
			if (own)
				assert_int_equal(cache_timeline_jump(&later, 3, 5 * r % 25, r == 6), 0);
			else
				bit_set(later.epochs[0].used, 0);
			assert_int_equal(cache_ledger_add(ledger, &later), 0);
			check_kept(ledger, &later, N);
			cache_ledger_remove(ledger, &later);
			cache_timeline_done(&later);
		}
		cache_ledger_remove(ledger, &first);
		cache_timeline_done(&first);
		struct cache_ledger_stats st;
		cache_ledger_set_budget(ledger, 0);
		cache_ledger_trim(ledger);
		cache_ledger_stats_get(ledger, &st);
		assert_int_equal(st.resident, 0); /* what no stream uses any more was listed */
		assert_int_equal(st.evicted, n);
		cache_ledger_free(ledger);
	}
	shard_view_free(given);
	shard_view_free(view);
	shard_view_free(all);
	dataset_free(&d);
}

/* A rank of several has a sample again in some epoch, not always in one that the ledger looks at. */
static void what_fits_stays_whatever_comes_next(void **state)
{
	enum { N = 90, EPOCHS = 12 };
	struct dataset d;
	struct cache_ledger *ledger;
	struct cache_timeline tl;
	uint64_t fetches = 0;
	(void)state;
	dataset_new(&d, N);
	struct shard_view *view = view_new(&d, 1, 3, 9);
	assert_int_equal(cache_ledger_new(d.index, N * PAGE, 0, 0, &ledger), 0);
	assert_int_equal(cache_timeline_init(&tl, view, 1, 0), 0);
	assert_int_equal(cache_ledger_add(ledger, &tl), 0);
	for (uint64_t seq = 0; seq < N / 3 * EPOCHS; seq++)
		fetches += take_turn(ledger, &tl, seq);
	assert_true(fetches <= N);
	struct cache_ledger_stats st;
	cache_ledger_stats_get(ledger, &st);
	assert_int_equal(st.resident, fetches);
	assert_int_equal(st.dropped, 0);
	cache_ledger_remove(ledger, &tl);
	cache_timeline_done(&tl);
	cache_ledger_free(ledger);
	shard_view_free(view);
	dataset_free(&d);
}

static void what_has_no_known_use_goes_first(void **state)
{
	enum { N = 90, ROOM = 40, EPOCHS = 12 };
	struct dataset d;
	struct cache_ledger *ledger;
	struct cache_timeline tl;
	struct cache_victim dropped[64];
	uint64_t with_use = 0, without = 0;
	(void)state;
	dataset_new(&d, N);
	struct shard_view *view = view_new(&d, 0, 2, 5);
	assert_int_equal(cache_ledger_new(d.index, ROOM * PAGE, 0, 0, &ledger), 0);
	assert_int_equal(cache_timeline_init(&tl, view, 0, 0), 0);
	assert_int_equal(cache_ledger_add(ledger, &tl), 0);
	for (uint64_t seq = 0; seq < N / 2 * EPOCHS; seq++) {
		uint32_t sample;
		bool idle = false;
		assert_int_equal(cache_timeline_sample(&tl, seq, &sample), 0);
		if (!cache_ledger_resident(ledger, sample)) {
			assert_int_equal(fetch(ledger, &tl, seq, sample), 0);
			arrived(ledger, &tl, seq, sample, true);
		}
		size_t n = cache_ledger_drops(ledger, dropped, 64);
		assert_true(n <= 1);
		for (uint32_t s = 0; s < N; s++)
			idle |= cache_ledger_resident(ledger, s) && cache_timeline_next(&tl, s) == CACHE_NEVER;
		if (n && cache_timeline_next(&tl, dropped[0].id) != CACHE_NEVER) {
			assert_false(idle);
			with_use++;
		} else {
			without += n;
		}
		cache_ledger_dropped(ledger, dropped, n);
		cache_ledger_use(ledger, &tl, seq, true);
		assert_int_equal(cache_timeline_advance(&tl), 0);
	}
	assert_true(with_use > 0 && without > 0);
	cache_ledger_remove(ledger, &tl);
	cache_timeline_done(&tl);
	cache_ledger_free(ledger);
	shard_view_free(view);
	dataset_free(&d);
}

/* Room for several samples: after 0 each of them is fetched, and nothing that is used sooner goes. */
static void what_is_reserved_is_fetched(void **state)
{
	enum { N = 64 };
	struct dataset d;
	struct cache_ledger *ledger;
	struct cache_timeline tl;
	struct cache_victim dropped[N];
	uint32_t sample;
	(void)state;
	dataset_new(&d, N);
	struct shard_view *view = view_new(&d, 0, 1, 6);
	assert_int_equal(cache_ledger_new(d.index, 10 * PAGE, PAGE, 0, &ledger), 0);
	assert_int_equal(cache_timeline_init(&tl, view, 0, 0), 0);
	assert_int_equal(cache_ledger_add(ledger, &tl), 0);
	for (uint64_t seq = 0; seq < 10; seq++)
		take_turn(ledger, &tl, seq);
	assert_int_equal(cache_ledger_reserve(ledger, &tl, 10, 20 * PAGE), -ENOSPC);
	while (cache_ledger_drops(ledger, dropped, N) > 0)
		cache_ledger_dropped(ledger, dropped, N);
	int rc = cache_ledger_reserve(ledger, &tl, 10, 8 * PAGE);
	while (rc == -EAGAIN) {
		size_t n = cache_ledger_drops(ledger, dropped, N);
		assert_true(n > 0);
		cache_ledger_dropped(ledger, dropped, n);
		rc = cache_ledger_reserve(ledger, &tl, 10, 8 * PAGE);
	}
	assert_int_equal(rc, 0);
	for (uint64_t seq = 10; seq < 18; seq++) {
		assert_int_equal(cache_timeline_sample(&tl, seq, &sample), 0);
		assert_int_equal(fetch(ledger, &tl, seq, sample), 0);
	}
	cache_ledger_remove(ledger, &tl);
	cache_timeline_done(&tl);
	cache_ledger_free(ledger);
	shard_view_free(view);
	dataset_free(&d);
}

/* Blocks of files that are no samples here: a large file, a common file. */
static void blocks_are_booked_and_go_by_age(void **state)
{
	enum { MIB = 1 << 20 };
	struct dataset d;
	struct cache_ledger *ledger;
	struct cache_ledger_stats st;
	struct cache_victim dropped[16];
	(void)state;
	dataset_new(&d, 10);
	assert_int_equal(cache_ledger_new(d.index, 4 * MIB, 0, 0, &ledger), 0);
	for (uint32_t block = 0; block < 10; block++) {
		for (unsigned quarter = 0; quarter < 4; quarter++)
			cache_ledger_block(ledger, 7, block, MIB / 4 - 100);
		cache_ledger_trim(ledger);
		cache_ledger_stats_get(ledger, &st);
		assert_int_equal(st.resident_bytes, (block < 4 ? block + 1 : 4) * MIB);
	}
	assert_int_equal(cache_ledger_held(ledger), 10 * MIB);
	assert_int_equal(cache_ledger_drops(ledger, dropped, 16), 6);
	for (uint32_t i = 0; i < 6; i++) {
		assert_int_equal(dropped[i].id, 7);
		assert_int_equal(dropped[i].block, i);
	}
	assert_true(cache_ledger_dropping(ledger));
	cache_ledger_dropped(ledger, dropped, 6);
	assert_false(cache_ledger_dropping(ledger));
	assert_int_equal(cache_ledger_held(ledger), 4 * MIB);
	cache_ledger_block(ledger, 8, 0, 0); /* nothing is kept of it */
	assert_int_equal(cache_ledger_held(ledger), 4 * MIB);
	cache_ledger_free(ledger);
	dataset_free(&d);
}

static void evicted_counts_samples_and_blocks_apart(void **state)
{
	struct dataset d;
	struct cache_ledger *ledger;
	struct cache_ledger_stats st;
	(void)state;
	dataset_new(&d, 10);
	assert_int_equal(cache_ledger_new(d.index, 4 * PAGE, 0, 0, &ledger), 0);
	for (uint32_t i = 0; i < 10; i++) {
		cache_ledger_block(ledger, 7, i, PAGE);
		cache_ledger_trim(ledger);
	}
	cache_ledger_stats_get(ledger, &st);
	assert_int_equal(st.evicted, 0);
	assert_int_equal(st.evicted_blocks, 6);
	for (uint32_t sample = 0; sample < 10; sample++) {
		cache_ledger_asked(ledger, sample);
		cache_ledger_trim(ledger);
	}
	cache_ledger_stats_get(ledger, &st);
	assert_int_equal(st.evicted, 6);
	assert_int_equal(st.evicted_blocks, 10);
	cache_ledger_free(ledger);
	dataset_free(&d);
}

static void what_is_cleared_is_not_taken_back(void **state)
{
	enum { N = 20 };
	struct dataset d;
	struct cache_ledger *ledger;
	struct cache_ledger_stats st;
	struct cache_timeline tl;
	struct cache_victim dropped[64];
	uint32_t sample;
	(void)state;
	dataset_new(&d, N);
	struct shard_view *view = view_new(&d, 0, 1, 6);
	assert_int_equal(cache_ledger_new(d.index, 10 * PAGE, 4 * PAGE, 0, &ledger), 0);
	assert_int_equal(cache_timeline_init(&tl, view, 0, 0), 0);
	assert_int_equal(cache_ledger_add(ledger, &tl), 0);
	for (uint64_t seq = 0; seq < 8; seq++)
		take_turn(ledger, &tl, seq);
	cache_ledger_set_budget(ledger, 7 * PAGE);
	cache_ledger_trim(ledger); /* one waits to be dropped already */
	assert_int_equal(cache_timeline_sample(&tl, 6, &sample), 0);
	assert_true(cache_ledger_resident(ledger, sample));
	cache_ledger_lose(ledger, sample);
	cache_ledger_lose(ledger, sample); /* not twice */
	assert_false(cache_ledger_has(ledger, sample));
	assert_int_equal(cache_ledger_state(ledger, sample), CACHE_LEAVING_FOR_GOOD);
	cache_ledger_clear(ledger);
	cache_ledger_stats_get(ledger, &st);
	assert_int_equal(st.resident, 0);
	for (uint64_t seq = N; seq < 2 * N; seq++) {
		assert_int_equal(cache_timeline_sample(&tl, seq, &sample), 0);
		if (cache_ledger_state(ledger, sample) == CACHE_LEAVING_FOR_GOOD)
			assert_int_equal(fetch(ledger, &tl, seq, sample), -EAGAIN);
	}
	/* None of them waits for later drops to push it out. */
	assert_int_equal(cache_ledger_drops(ledger, dropped, 3), 3);
	cache_ledger_dropped(ledger, dropped, 3);
	assert_int_equal(cache_ledger_drops(ledger, dropped, 64), 5);
	cache_ledger_dropped(ledger, dropped, 5);
	assert_int_equal(cache_ledger_held(ledger), 0);
	for (sample = 0; sample < N; sample++)
		assert_int_equal(cache_ledger_state(ledger, sample), CACHE_ABSENT);
	take_turn(ledger, &tl, 8);
	cache_ledger_remove(ledger, &tl);
	cache_timeline_done(&tl);
	cache_ledger_free(ledger);
	shard_view_free(view);
	dataset_free(&d);
}

static void what_goes_twice_is_dropped_twice(void **state)
{
	enum { N = 20 };
	struct dataset d;
	struct cache_ledger *ledger;
	struct cache_victim first[8], second[8];
	uint64_t cost;
	(void)state;
	dataset_new(&d, N);
	assert_int_equal(cache_ledger_new(d.index, 10 * PAGE, 4 * PAGE, 0, &ledger), 0);
	assert_int_equal(cache_ledger_cost(ledger, 3, &cost), 0);
	assert_false(cache_ledger_asked(ledger, 3));
	cache_ledger_lose(ledger, 3);
	assert_int_equal(cache_ledger_drops(ledger, first, 8), 1);
	/* While the sink drops it, a reader brings it back, and it is given up again. */
	assert_false(cache_ledger_asked(ledger, 3));
	cache_ledger_lose(ledger, 3);
	cache_ledger_dropped(ledger, first, 1);
	assert_int_equal(cache_ledger_held(ledger), cost);
	assert_int_equal(cache_ledger_drops(ledger, second, 8), 1);
	assert_int_equal(second[0].id, 3);
	cache_ledger_dropped(ledger, second, 1);
	assert_int_equal(cache_ledger_held(ledger), 0);
	cache_ledger_free(ledger);
	dataset_free(&d);
}

/* A sink that drops its victims one after the other, while readers and fetches go on. */
struct slow_sink {
	bool *has; /* what is in memory, by sample */
	struct cache_victim victims[16];
	size_t n, done;
};

static void sink_works(struct cache_ledger *ledger, struct slow_sink *sink)
{
	if (sink->done < sink->n) {
		sink->has[sink->victims[sink->done++].id] = false;
		return;
	}
	cache_ledger_dropped(ledger, sink->victims, sink->n);
	sink->n = cache_ledger_drops(ledger, sink->victims, 16);
	sink->done = 0;
}

static void random_step(
        struct cache_ledger *ledger, struct cache_timeline *tl, struct slow_sink *sink, uint32_t n, uint64_t *random)
{
	*random = *random * UINT64_C(6364136223846793005) + 1442695040888963407;
	uint32_t sample = (uint32_t)(*random >> 40) % n;
	uint64_t seq = cache_timeline_next(tl, sample);
	bool was_coming = cache_ledger_state(ledger, sample) == CACHE_COMING;
	switch (*random >> 60) {
	case 0:
	case 1:
	case 2:
	case 3:
		if (seq != CACHE_NEVER)
			fetch(ledger, tl, seq, sample);
		break;
	case 4:
	case 5:
	case 6:
		if (seq == CACHE_NEVER || !was_coming)
			break;
		sink->has[sample] = *random >> 59 & 1;
		arrived(ledger, tl, seq, sample, sink->has[sample]);
		break;
	case 7:
	case 8:
		if (was_coming)
			break; /* his bytes come by the fetch */
		cache_ledger_asked(ledger, sample);
		sink->has[sample] = true;
		break;
	case 9:
		cache_ledger_lose(ledger, sample);
		break;
	case 10:
		if (*random >> 54 & 63)
			cache_ledger_trim(ledger);
		else
			cache_ledger_clear(ledger);
		break;
	default:
		sink_works(ledger, sink);
		break;
	}
}

static void what_is_in_memory_is_in_the_books(void **state)
{
	enum { N = 24, ROOM = 8, STEPS = 20000 };
	struct dataset d;
	struct cache_ledger *ledger;
	struct cache_timeline tl;
	bool has[N];
	(void)state;
	dataset_new(&d, N);
	struct shard_view *view = view_new(&d, 0, 1, 3);
	for (uint64_t seed = 0; seed < 20; seed++) {
		struct slow_sink sink = { .has = has };
		uint64_t random = seed, bytes = 0;
		memset(has, 0, sizeof(has));
		assert_int_equal(cache_ledger_new(d.index, ROOM * PAGE, 2 * PAGE, 0, &ledger), 0);
		assert_int_equal(cache_timeline_init(&tl, view, 0, 0), 0);
		assert_int_equal(cache_ledger_add(ledger, &tl), 0);
		for (unsigned step = 0; step < STEPS; step++) {
			random_step(ledger, &tl, &sink, N, &random);
			for (uint32_t sample = 0; sample < N; sample++)
				assert_true(!has[sample] || cache_ledger_state(ledger, sample) != CACHE_ABSENT);
		}
		cache_ledger_clear(ledger);
		do
			sink_works(ledger, &sink);
		while (sink.n);
		for (uint32_t sample = 0; sample < N; sample++) {
			assert_false(has[sample]);
			bytes += cache_ledger_state(ledger, sample) == CACHE_COMING ? PAGE : 0;
		}
		assert_int_equal(cache_ledger_held(ledger), bytes);
		cache_ledger_remove(ledger, &tl);
		cache_timeline_done(&tl);
		cache_ledger_free(ledger);
	}
	shard_view_free(view);
	dataset_free(&d);
}

static void what_is_dropped_before_its_use_leaves_a_hole(void **state)
{
	enum { N = 20, ROOM = 10 };
	struct dataset d;
	struct cache_ledger *ledger;
	struct cache_timeline tl;
	uint32_t sample;
	(void)state;
	dataset_new(&d, N);
	struct shard_view *view = view_new(&d, 0, 1, 4);
	assert_int_equal(cache_ledger_new(d.index, ROOM * PAGE, 0, 0, &ledger), 0);
	assert_int_equal(cache_timeline_init(&tl, view, 0, 0), 0);
	assert_int_equal(cache_ledger_add(ledger, &tl), 0);
	for (uint64_t seq = 0; seq < ROOM; seq++) {
		assert_int_equal(cache_timeline_sample(&tl, seq, &sample), 0);
		assert_int_equal(fetch(ledger, &tl, seq, sample), 0);
		arrived(ledger, &tl, seq, sample, seq != 3);
	}
	assert_int_equal(tl.hole, CACHE_NEVER); /* what did not come is not fetched again for the same use */
	cache_ledger_set_budget(ledger, (ROOM - 2) * PAGE);
	cache_ledger_trim(ledger); /* the last one goes: its use is the farthest */
	assert_int_equal(tl.hole, ROOM - 1);
	assert_int_equal(cache_timeline_jump(&tl, 1, 0, false), 0);
	assert_int_equal(tl.hole, CACHE_NEVER);
	cache_ledger_remove(ledger, &tl);
	cache_timeline_done(&tl);
	cache_ledger_free(ledger);
	shard_view_free(view);
	dataset_free(&d);
}

static void a_jump_keeps_the_books(void **state)
{
	enum { N = 80, ROOM = 30 };
	struct dataset d;
	struct cache_ledger *ledger;
	struct cache_timeline tl;
	(void)state;
	dataset_new(&d, N);
	struct shard_view *view = view_new(&d, 0, 1, 4);
	assert_int_equal(cache_ledger_new(d.index, ROOM * PAGE, 0, 0, &ledger), 0);
	assert_int_equal(cache_timeline_init(&tl, view, 0, 0), 0);
	assert_int_equal(cache_ledger_add(ledger, &tl), 0);
	static const struct {
		uint64_t epoch, turn;
		bool repeat;
	} jumps[] = { { 0, 0, true }, { 5, 70, false }, { 2, 0, false }, { 2, 79, true } };
	for (unsigned j = 0; j < 4; j++) {
		assert_int_equal(cache_timeline_jump(&tl, jumps[j].epoch, jumps[j].turn, jumps[j].repeat), 0);
		cache_ledger_rebuild(ledger);
		assert_int_equal(tl.epochs[1].number, jumps[j].repeat ? jumps[j].epoch : jumps[j].epoch + 1);
		for (unsigned i = 0; i < 150; i++)
			take_turn(ledger, &tl, tl.cursor);
	}
	struct cache_ledger_stats st;
	cache_ledger_stats_get(ledger, &st);
	assert_int_equal(st.resident, ROOM);
	cache_ledger_remove(ledger, &tl);
	cache_timeline_done(&tl);
	cache_ledger_free(ledger);
	shard_view_free(view);
	dataset_free(&d);
}

/* What the ledger says of a turn, noted or not, against the order and the index. */
static void check_turn(struct cache_ledger *ledger, struct cache_timeline *tl, uint64_t seq)
{
	uint64_t turn, bytes, right_bytes;
	uint32_t sample, right;
	const struct cache_timeline_epoch *ep = cache_timeline_epoch_of(tl, seq, &turn);
	assert_int_equal(shard_epoch_turn(ep->epoch, tl->rank, turn, &right, NULL), 0);
	assert_int_equal(cache_ledger_cost(ledger, right, &right_bytes), 0);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(cache_timeline_sample(tl, seq, &sample), 0);
		assert_int_equal(sample, right);
		assert_int_equal(cache_ledger_turn(ledger, tl, seq, &sample, &bytes), 0);
		assert_int_equal(sample, right);
		assert_int_equal(bytes, right_bytes);
		const struct cache_note *note = cache_timeline_note(tl, seq);
		assert_int_equal(note != NULL, seq - tl->cursor < CACHE_NOTES);
	}
}

/* Uses one of the next turns, not always the first. */
static void use_some(struct cache_ledger *ledger, struct cache_timeline *tl, uint64_t *random)
{
	*random = *random * UINT64_C(6364136223846793005) + 1442695040888963407;
	uint64_t seq = tl->cursor + (*random >> 60);
	check_turn(ledger, tl, seq);
	cache_ledger_use(ledger, tl, seq, false);
	assert_int_equal(cache_timeline_advance(tl), 0);
}

/* Fetching, using, eviction and jumps look at turns in any order, near and far. */
static void notes_say_what_the_order_says(void **state)
{
	/* The last turn of rank 2 is a repeated one, and three epochs of it are longer than the notes. */
	enum { N = CACHE_NOTES * 3 / 2 + 1, WORLD = 3, JUMPS = 3 };
	struct dataset d;
	(void)state;
	dataset_sized(&d, N, 5);
	struct shard_view *view = view_new(&d, 2, WORLD, 7);
	struct cache_ledger *ledger;
	struct cache_timeline tl;
	uint64_t random = 1;
	assert_int_equal(cache_ledger_new(d.index, (uint64_t)N * PAGE, 0, 100, &ledger), 0);
	assert_int_equal(cache_timeline_init(&tl, view, 2, 0), 0);
	assert_int_equal(cache_ledger_add(ledger, &tl), 0);
	uint64_t turns = tl.epochs[0].turns;
	assert_true(turns * CACHE_EPOCHS > CACHE_NOTES && turns * WORLD > N);
	for (unsigned jump = 0; jump < JUMPS; jump++) {
		for (uint64_t seq = cache_timeline_end(&tl);
		        seq-- > tl.cursor;) /* far ones first, then those in their places */
			check_turn(ledger, &tl, seq);
		for (uint32_t sample = 0; sample < N; sample += 97) {
			uint64_t seq = cache_timeline_next(&tl, sample);
			if (seq != CACHE_NEVER)
				check_turn(ledger, &tl, seq);
		}
		uint64_t end = tl.epochs[1].first + turns / 2; /* over a border */
		while (tl.cursor < end)
			use_some(ledger, &tl, &random);
		assert_int_equal(cache_timeline_jump(&tl, (jump + 1) * 5, jump * 1000, jump == 1), 0);
		cache_ledger_rebuild(ledger);
	}
	cache_ledger_remove(ledger, &tl);
	cache_timeline_done(&tl);
	cache_ledger_free(ledger);
	shard_view_free(view);
	dataset_free(&d);
}

/* Writes into the index, and makes it notice that. */
static void overwrite_index(struct dataset *d)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/" SHARD_INDEX_NAME, d->dir);
	assert_int_equal(truncate(path, 100), 0);
	assert_int_equal(shard_index_check(d->index), -ESTALE);
}

/* Somebody overwrites the dataset, and then the budget shrinks, room is wanted, or everything is cleared: what readers
 * can still read stays. */
static void nothing_goes_when_the_index_is_stale(void **state)
{
	enum { N = 256, SMALL = 16 };
	struct dataset d;
	struct cache_ledger_stats st;
	struct cache_ledger *ledger;
	struct cache_timeline tl;
	struct cache_victim victims[N];
	uint64_t cost = 0;
	(void)state;
	dataset_new(&d, N);
	struct shard_view *view = view_new(&d, 0, 1, 1);
	assert_int_equal(cache_ledger_new(d.index, (uint64_t)N * PAGE, 0, 0, &ledger), 0);
	assert_int_equal(cache_timeline_init(&tl, view, 0, 0), 0);
	assert_int_equal(cache_ledger_add(ledger, &tl), 0);
	for (uint32_t sample = 0; sample < N; sample++)
		assert_false(cache_ledger_asked(ledger, sample));
	cache_ledger_remove(ledger, &tl); /* some are listed as idle then */
	assert_int_equal(cache_ledger_add(ledger, &tl), 0);

	overwrite_index(&d);
	assert_true(cache_ledger_cost(ledger, 0, &cost) < 0);
	cache_ledger_set_budget(ledger, (uint64_t)SMALL * PAGE);
	cache_ledger_trim(ledger);
	cache_ledger_lose(ledger, 7);
	cache_ledger_clear(ledger);
	cache_ledger_stats_get(ledger, &st);
	assert_int_equal(st.resident, N);
	assert_int_equal(st.resident_bytes, (uint64_t)N * PAGE);
	assert_int_equal(cache_ledger_drops(ledger, victims, N), 0);

	cache_ledger_remove(ledger, &tl);
	cache_ledger_trim(ledger); /* no stream: all are idle */
	cache_ledger_stats_get(ledger, &st);
	assert_int_equal(st.resident, N);
	cache_timeline_done(&tl);
	cache_ledger_free(ledger);
	shard_view_free(view);
	dataset_free(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(eviction_is_belady_s),
		cmocka_unit_test(fetching_never_drops_what_is_used_sooner),
		cmocka_unit_test(a_drop_can_be_taken_back),
		cmocka_unit_test(two_ranks_share_one_residency),
		cmocka_unit_test(ranks_of_a_view_share_a_look_at_its_order),
		cmocka_unit_test(a_stream_that_comes_keeps_its_next_uses),
		cmocka_unit_test(what_fits_stays_whatever_comes_next),
		cmocka_unit_test(what_has_no_known_use_goes_first),
		cmocka_unit_test(what_is_reserved_is_fetched),
		cmocka_unit_test(blocks_are_booked_and_go_by_age),
		cmocka_unit_test(evicted_counts_samples_and_blocks_apart),
		cmocka_unit_test(what_is_cleared_is_not_taken_back),
		cmocka_unit_test(what_goes_twice_is_dropped_twice),
		cmocka_unit_test(what_is_in_memory_is_in_the_books),
		cmocka_unit_test(what_is_dropped_before_its_use_leaves_a_hole),
		cmocka_unit_test(a_jump_keeps_the_books),
		cmocka_unit_test(notes_say_what_the_order_says),
		cmocka_unit_test(nothing_goes_when_the_index_is_stale),
	};
	return cmocka_run_group_tests_name("cache/ledger", tests, NULL, NULL);
}
