/* SPDX-License-Identifier: Apache-2.0 */
/* The timeline of an order that is given: epochs become known one after the other. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cache/timeline.h"
#include "tests/shard/synth.h"

enum { TURNS = 10 };

static struct shard_index *dataset; /* 20 samples */
static uint64_t known;              /* epochs below it are */
static unsigned epochs_held;

/* Epoch e reads every second sample, from e % 2 on, backwards. */
static int get(void *user, uint64_t number, void **ret_epoch, uint64_t *ret_turns)
{
	static uint64_t numbers[64];
	(void)user;
	if (number >= known)
		return -ENODATA;
	numbers[number] = number;
	*ret_epoch = &numbers[number];
	*ret_turns = TURNS;
	epochs_held++;
	return 0;
}

static void put(void *epoch)
{
	(void)epoch;
	epochs_held--;
}

static int turn(void *epoch, uint64_t at, uint32_t *ret_sample)
{
	*ret_sample = (uint32_t)(2 * (TURNS - 1 - at) + *(uint64_t *)epoch % 2);
	return 0;
}

static int find(void *epoch, uint32_t sample, uint64_t *ret_turn)
{
	if (sample % 2 != *(uint64_t *)epoch % 2)
		return -ENOENT;
	*ret_turn = TURNS - 1 - sample / 2;
	return 0;
}

static struct shard_view *given(void)
{
	static const struct shard_view_given order = { .get = get, .put = put, .turn = turn, .find = find };
	struct shard_view *view;
	assert_int_equal(shard_view_new_given(dataset, &order, &view), 0);
	assert_true(shard_view_is_given(view));
	return view;
}

static void use(struct cache_timeline *tl, uint64_t seq)
{
	uint64_t at;
	struct cache_timeline_epoch *ep = cache_timeline_epoch_of(tl, seq, &at);
	ep->used[at / 64] |= UINT64_C(1) << at % 64;
}

static void the_cursor_stays_while_no_epoch_follows(void **state)
{
	struct cache_timeline tl;
	struct shard_view *view = given();
	uint32_t sample;
	(void)state;
	known = 1;
	assert_int_equal(cache_timeline_init(&tl, view, 0, 0), 0);
	assert_int_equal(cache_timeline_advance(&tl), 0);
	assert_int_equal(cache_timeline_end(&tl), TURNS);
	for (uint64_t seq = 0; seq < TURNS; seq++) {
		use(&tl, seq);
		assert_int_equal(cache_timeline_advance(&tl), seq + 1 < TURNS ? 0 : -EAGAIN);
	}
	assert_int_equal(tl.cursor, TURNS - 1);
	assert_int_equal(cache_timeline_next(&tl, 1), CACHE_NEVER);
	assert_false(cache_timeline_refresh(&tl));

	known = 2;
	assert_true(cache_timeline_refresh(&tl));
	assert_int_equal(cache_timeline_end(&tl), 2 * TURNS);
	assert_int_equal(cache_timeline_next(&tl, 1), 2 * TURNS - 1);
	assert_int_equal(cache_timeline_advance(&tl), 0);
	assert_int_equal(tl.cursor, TURNS);
	assert_int_equal(tl.epochs[0].number, 1);
	assert_int_equal(cache_timeline_sample(&tl, TURNS, &sample), 0);
	assert_int_equal(sample, 2 * TURNS - 1);

	known = 4;
	assert_true(cache_timeline_refresh(&tl));
	assert_int_equal(cache_timeline_end(&tl), 4 * TURNS);
	cache_timeline_done(&tl);
	assert_int_equal(epochs_held, 0);
	shard_view_free(view);
}

static void it_jumps_only_to_what_is_known(void **state)
{
	struct cache_timeline tl;
	struct shard_view *view = given();
	(void)state;
	known = 2;
	assert_int_equal(cache_timeline_init(&tl, view, 0, 0), 0);
	assert_int_equal(cache_timeline_jump(&tl, 5, 3, false), -ENODATA);
	assert_int_equal(tl.epochs[0].number, 0);
	assert_int_equal(cache_timeline_jump(&tl, 1, 3, false), 0);
	assert_int_equal(tl.epochs[0].number, 1);
	assert_int_equal(tl.cursor - tl.epochs[0].first, 3);
	cache_timeline_done(&tl);
	assert_int_equal(epochs_held, 0);
	shard_view_free(view);
}

/* An order that draws samples several times, in one epoch that gets longer. */
static uint32_t drawn[1000];
static uint64_t n_drawn;

static int drawn_get(void *user, uint64_t number, void **ret_epoch, uint64_t *ret_turns)
{
	(void)user;
	if (number > 0)
		return -ENODATA;
	*ret_epoch = drawn;
	*ret_turns = n_drawn;
	epochs_held++;
	return 0;
}

static int drawn_turn(void *epoch, uint64_t at, uint32_t *ret_sample)
{
	*ret_sample = ((uint32_t *)epoch)[at];
	return 0;
}

static int drawn_find_from(void *epoch, uint32_t sample, uint64_t from, uint64_t *ret_turn)
{
	for (uint64_t at = from; at < n_drawn; at++) {
		if (((uint32_t *)epoch)[at] == sample) {
			*ret_turn = at;
			return 0;
		}
	}
	return -ENOENT;
}

static int drawn_find(void *epoch, uint32_t sample, uint64_t *ret_turn)
{
	return drawn_find_from(epoch, sample, 0, ret_turn);
}

static struct shard_view *given_drawn(uint64_t n)
{
	static const struct shard_view_given order = {
		.get = drawn_get, .put = put, .turn = drawn_turn, .find = drawn_find, .find_from = drawn_find_from
	};
	struct shard_view *view;
	for (uint32_t i = 0; i < sizeof(drawn) / sizeof(drawn[0]); i++)
		drawn[i] = i * i % 7;
	n_drawn = n;
	assert_int_equal(shard_view_new_given(dataset, &order, &view), 0);
	return view;
}

static void a_sample_comes_again_in_an_epoch_that_repeats_it(void **state)
{
	struct cache_timeline tl;
	struct shard_view *view = given_drawn(14); /* 0 1 4 2 2 4 1, twice */
	(void)state;
	assert_int_equal(cache_timeline_init(&tl, view, 0, 0), 0);
	assert_int_equal(cache_timeline_next(&tl, 1), 1);
	use(&tl, 1);
	assert_int_equal(cache_timeline_next(&tl, 1), 6);
	use(&tl, 0);
	assert_int_equal(cache_timeline_advance(&tl), 0);
	assert_int_equal(tl.cursor, 2);
	assert_int_equal(cache_timeline_next(&tl, 0), 7);
	use(&tl, 6);
	use(&tl, 8);
	assert_int_equal(cache_timeline_next(&tl, 1), 13);
	use(&tl, 13);
	assert_int_equal(cache_timeline_next(&tl, 1), CACHE_NEVER);
	cache_timeline_done(&tl);
	assert_int_equal(epochs_held, 0);
	shard_view_free(view);
}

static void the_last_epoch_gets_longer(void **state)
{
	struct cache_timeline tl;
	struct shard_view *view = given_drawn(3);
	uint32_t sample;
	(void)state;
	assert_int_equal(cache_timeline_init(&tl, view, 0, 0), 0);
	for (uint64_t seq = 0; seq < 3; seq++)
		use(&tl, seq);
	assert_int_equal(cache_timeline_advance(&tl), -EAGAIN);
	assert_false(cache_timeline_grow(&tl));
	for (n_drawn = 4; n_drawn <= 1000; n_drawn += n_drawn % 5 + 1) {
		assert_true(cache_timeline_grow(&tl));
		assert_false(cache_timeline_grow(&tl));
		assert_int_equal(cache_timeline_end(&tl), n_drawn);
		assert_int_equal(cache_timeline_advance(&tl), 0);
		for (uint64_t seq = tl.cursor; seq < n_drawn; seq++) {
			assert_false(cache_timeline_used(&tl, seq));
			assert_int_equal(cache_timeline_sample(&tl, seq, &sample), 0);
			assert_int_equal(sample, drawn[seq]);
			use(&tl, seq);
		}
		cache_timeline_advance(&tl);
		assert_int_equal(tl.cursor, n_drawn - 1);
	}
	cache_timeline_done(&tl);
	assert_int_equal(epochs_held, 0);
	shard_view_free(view);
}

static void check_uses(struct cache_timeline *tl)
{
	for (uint64_t seq = tl->epochs[0].first; seq < cache_timeline_end(tl); seq++) {
		uint32_t sample;
		assert_int_equal(cache_timeline_sample(tl, seq, &sample), 0);
		assert_int_equal(cache_timeline_next_from(tl, sample, seq), cache_timeline_next(tl, sample));
	}
	/* What was long ago, and what never comes, says nothing. */
	for (uint32_t sample = 0; sample < 2 * TURNS; sample++) {
		assert_int_equal(cache_timeline_next_from(tl, sample, CACHE_NEVER), cache_timeline_next(tl, sample));
		if (tl->epochs[0].first > 0)
			assert_int_equal(cache_timeline_next_from(tl, sample, tl->epochs[0].first - 1),
			        cache_timeline_next(tl, sample));
	}
}

/* A trainer near the cursor, now and then out of order, to the end of an epoch and back. */
static void check_walk(struct shard_view *view, uint32_t rank)
{
	struct cache_timeline tl;
	uint64_t random = rank + 1;
	assert_int_equal(cache_timeline_init(&tl, view, rank, 0), 0);
	for (unsigned step = 0; step < 400; step++) {
		if (step % 4 == 0)
			check_uses(&tl);
		uint64_t turn;
		random = random * 6364136223846793005 + 1442695040888963407;
		uint64_t seq = tl.cursor + (random >> 33) % 4;
		if (seq >= cache_timeline_end(&tl))
			break; /* of what is known */
		/* Its last turn, first, in some epochs: what is a sample once more (tail=pad) before that itself. */
		const struct cache_timeline_epoch *ep = cache_timeline_epoch_of(&tl, seq, &turn);
		uint64_t last = ep->first + ep->turns - 1;
		use(&tl, turn == 1 && ep->number % 2 && !cache_timeline_used(&tl, last) ? last : seq);
		if (cache_timeline_advance(&tl) < 0)
			break;
		if (step == 300)
			assert_int_equal(cache_timeline_jump(&tl, tl.epochs[0].number, 2, true), 0);
	}
	assert_true(tl.epochs[0].number > 2);
	cache_timeline_done(&tl);
}

/* Every known use says as much as the search from the front, wherever the trainer stands. */
static void a_known_use_says_what_a_search_says(void **state)
{
	static const enum shard_tail tails[] = { SHARD_TAIL_PAD, SHARD_TAIL_SHORT, SHARD_TAIL_DROP };
	uint32_t bad[] = { 3, 11, 12 };
	struct shard_quarantine *list;
	struct shard_view *view;
	(void)state;
	assert_int_equal(shard_quarantine_new(bad, 3, &list), 0);
	for (int order = SHARD_ORDER_FULL; order <= SHARD_ORDER_NONE; order++) {
		for (unsigned k = 0; k < 27; k++) {
			struct shard_view_options options = { .order = (enum shard_order_mode)order,
				.tail = tails[k % 3],
				.world = 1 + k / 3 % 3,
				.on_bad = (enum shard_on_bad)(k / 9),
				.quarantine = list,
				.seed = k };
			assert_int_equal(shard_view_new(dataset, &options, NULL, &view), 0);
			for (uint32_t rank = 0; rank < options.world; rank++)
				check_walk(view, rank);
			shard_view_free(view);
		}
	}
	shard_quarantine_free(list);
	view = given();
	known = 10;
	check_walk(view, 0);
	assert_int_equal(epochs_held, 0);
	shard_view_free(view);
}

static void a_given_epoch_has_its_samples_in_pieces(void **state)
{
	struct shard_view *view = given();
	struct shard_epoch *epoch;
	uint32_t samples[TURNS], sample;
	uint64_t steps[TURNS];
	(void)state;
	known = 1;
	assert_int_equal(shard_view_epoch(view, 0, &epoch), 0);
	assert_int_equal(shard_epoch_samples(epoch, 0, 2, TURNS - 2, samples, steps), 0);
	for (uint32_t i = 0; i < TURNS - 2; i++) {
		assert_int_equal(shard_epoch_turn(epoch, 0, 2 + i, &sample, NULL), 0);
		assert_int_equal(samples[i], sample);
		assert_int_equal(steps[i], 2 + i);
	}
	assert_int_equal(shard_epoch_samples(epoch, 0, 2, TURNS - 1, samples, steps), -ERANGE);
	assert_int_equal(shard_epoch_samples(epoch, 1, 0, 1, samples, steps), -ERANGE);
	shard_epoch_put(epoch);
	shard_view_free(view);
}

static int setup(void **state)
{
	(void)state;
	dataset = synth_open(&(struct synth){ .classes = 2, .per_class = TURNS, .bytes = 1 });
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
		cmocka_unit_test(the_cursor_stays_while_no_epoch_follows),
		cmocka_unit_test(it_jumps_only_to_what_is_known),
		cmocka_unit_test(a_sample_comes_again_in_an_epoch_that_repeats_it),
		cmocka_unit_test(the_last_epoch_gets_longer),
		cmocka_unit_test(a_known_use_says_what_a_search_says),
		cmocka_unit_test(a_given_epoch_has_its_samples_in_pieces),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
