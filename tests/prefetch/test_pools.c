/* SPDX-License-Identifier: Apache-2.0 */
/* The pools that the schedule computes are those of the order, for any world, deal, groups and resume. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "prefetch/engine.h"
#include "tests/prefetch/dataset.h"

enum { DATASETS = 4, VIEWS = 60 };

static uint64_t random_below(uint64_t *x, uint64_t n)
{
	*x = *x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (*x >> 33) % n;
}

/* The number of the pool of a place among the n items of a group, as shard/order.h says: the last two pools share the
 * rest. */
static uint64_t pool_of(uint64_t n, uint64_t chunk_items, uint64_t pool_chunks, uint64_t place)
{
	uint64_t chunk = place / chunk_items, chunks = (n + chunk_items - 1) / chunk_items;
	uint64_t pools = (chunks + pool_chunks - 1) / pool_chunks, regular = pools > 2 ? pools - 2 : 0;
	uint64_t rest = chunks - regular * pool_chunks;
	if (chunk < regular * pool_chunks)
		return chunk / pool_chunks;
	return regular + (pools > 1 && chunk >= regular * pool_chunks + rest - rest / 2);
}

/* The pool of a turn of a rank; UINT64_MAX: the turn repeats a position. */
static uint64_t pool_of_turn(
        const struct shard_view_options *o, const struct shard_deal *deal, uint32_t rank, uint64_t k)
{
	uint64_t step, position = shard_deal_position(deal, rank, k, &step);
	uint64_t groups = deal->groups > 1 ? deal->groups : 1, group = position % groups;
	if (step >= deal->n)
		return UINT64_MAX;
	return pool_of(
	        deal->n / groups + (group < deal->n % groups), o->chunk_items, o->pool_chunks, position / groups);
}

static struct shard_view_options random_options(uint64_t *x, uint64_t n)
{
	struct shard_view_options o = {
		.order = SHARD_ORDER_CHUNK,
		.deal = random_below(x, 3) ? SHARD_DEAL_STRIDE : SHARD_DEAL_BLOCK,
		.tail = (enum shard_tail)random_below(x, 3),
		.seed = random_below(x, 1000),
		.world = (uint32_t)(1 + random_below(x, 6)),
		.chunk_items = 1 + random_below(x, 12),
		.pool_chunks = 1 + random_below(x, 12),
		.start = random_below(x, 2) ? random_below(x, n) : 0,
	};
	if (o.deal == SHARD_DEAL_STRIDE && random_below(x, 2)) { /* groups divide world: a rank has one of them */
		o.groups = o.world;
		o.world *= (uint32_t)(1 + random_below(x, 3));
	}
	if (o.deal == SHARD_DEAL_BLOCK && o.start > 0) {
		o.n_past = 1;
		o.past[0] =
		        (struct shard_deal_segment){ .world = (uint32_t)(1 + random_below(x, 6)), .steps = o.start };
	}
	o.rank = (uint32_t)random_below(x, o.world);
	return o;
}

/* Compares the pool of each turn of the resumed epoch and of the one after it. */
static void check_view(const struct dataset *d, const struct shard_view_options *options)
{
	struct prefetch *p = calloc(1, sizeof(*p));
	struct prefetch_stream *s = calloc(1, sizeof(*s));
	struct base_err err = { 0 };
	struct shard_view *view;
	assert_true(p && s);
	p->store = true;
	p->options.index = d->index;
	if (shard_view_new(d->index, options, &err, &view) < 0)
		fail_msg("%s", err.text);
	const struct shard_view_options *o = shard_view_options_get(view);
	assert_int_equal(cache_timeline_init(&s->tl, view, o->rank, 0), 0);
	for (unsigned e = 0; e < 2; e++) {
		const struct cache_timeline_epoch *ep = &s->tl.epochs[e];
		const struct shard_deal *deal = shard_epoch_deal(ep->epoch);
		for (uint64_t k = 0, first = 0; k < ep->turns; k++) {
			struct prefetch_pool pool;
			uint64_t own = pool_of_turn(o, deal, o->rank, k), end = k;
			if (k > 0 && pool_of_turn(o, deal, o->rank, k - 1) != own)
				first = k;
			while (end < ep->turns && pool_of_turn(o, deal, o->rank, end) == own)
				end++;
			assert_true(prefetch_schedule_pool(p, s, ep->first + k, &pool));
			if (pool.first != ep->first + first || pool.end != ep->first + end)
				fail_msg("epoch %u, turn %" PRIu64 " of %" PRIu64 ", world %u, deal %s, groups %" PRIu64
				         ", start %" PRIu64 ": turns %" PRIu64 " to %" PRIu64 ", not %" PRIu64
				         " to %" PRIu64,
				        e, k, ep->turns, o->world, shard_deal_mode_name(o->deal), o->groups,
				        deal->start, pool.first - ep->first, pool.end - ep->first, first, end);
		}
	}
	cache_timeline_done(&s->tl);
	shard_view_free(view);
	free(s);
	free(p);
}

static void pools_are_those_of_the_order(void **state)
{
	static const uint64_t sizes[] = { 64 };
	uint64_t x = 27;
	(void)state;
	for (unsigned i = 0; i < DATASETS; i++) {
		struct dataset d;
		dataset_new(&d, (uint32_t)(100 + random_below(&x, 900)), 1, sizes, 1);
		for (unsigned v = 0; v < VIEWS; v++) {
			const struct shard_view_options options = random_options(&x, d.n_files);
			check_view(&d, &options);
		}
		dataset_free(&d);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pools_are_those_of_the_order),
	};
	return cmocka_run_group_tests_name("prefetch/pools", tests, NULL, NULL);
}
