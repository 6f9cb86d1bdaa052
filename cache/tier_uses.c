/* SPDX-License-Identifier: Apache-2.0 */
/* The next uses of a host; cache/tier_uses.h first. */
#include "cache/tier_uses.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "cache/cache.h"
#include "shard/base/bits.h"
#include "shard/base/cleanup.h"
#include "shard/base/clock.h"

enum {
	AHEAD = CACHE_TIER_FAR / CACHE_TIER_EPOCH, /* epochs that are looked at */
	EPOCHS = AHEAD + 2,                        /* of two epochs that are read at the same time */
	SAMPLES = 1024,                            /* that are looked up in an order at once */
};
#define RANKS_NS UINT64_C(5000000000) /* between two looks at the other ranks of the host */

static_assert((int)CACHE_USE_PARTS == (int)CACHE_TIER_EPOCH, "a part of an epoch is a unit of time");

struct cache_tier_uses {
	struct cache_tier *tier;
	const struct shard_index *index;
	struct shard_view *view; /* NULL: the order is told */
	bool by_tables;          /* the order is told, or its inverse costs much */
	uint32_t ahead;          /* epochs that are looked at, at most AHEAD */
	bool groups;
	uint64_t redeal; /* epochs for which groups keep their samples; 0: always */

	pthread_mutex_t lock; /* guards all below */
	uint64_t latest;      /* epoch */
	uint64_t reached;     /* told: this process reads this part of it, as a time: cache_tier_block.now */
	struct shard_epoch *epochs[EPOCHS];
	struct {
		uint64_t epoch;
		uint32_t n_ranks;              /* for which it was made */
		struct cache_use_table *table; /* NULL: none is told */
	} tables[EPOCHS];
	uint32_t world;   /* of a view it is constant, and read without the lock */
	uint64_t *ranks;  /* a bit for each rank of this host; NULL: no order is told */
	uint32_t n_ranks; /* that were here at the latest look */
	bool joined;      /* this process has a rank */
	bool all;         /* all ranks are on this host */
	uint64_t ranks_ns;
};

/* Returns the words of `ranks`: bits_new(world). */
static uint32_t rank_words(const struct cache_tier_uses *uses)
{
	return uses->world / 64 + 1;
}

/* Looks which ranks are on this host, now and then.  Those that were there stay: a job of which ranks end does not read
 * less. */
static void look_at_ranks(struct cache_tier_uses *uses)
{
	uint64_t now_ns = base_now_ns();
	uint32_t n = 0;
	if (uses->ranks_ns && now_ns - uses->ranks_ns < RANKS_NS)
		return;
	uses->ranks_ns = now_ns;
	cache_tier_ranks(uses->tier, uses->world, uses->ranks);
	for (uint32_t i = 0; i < rank_words(uses); i++)
		n += (uint32_t)__builtin_popcountll(uses->ranks[i]);
	uses->n_ranks = n;
	uses->all = n >= uses->world;
}

/* Returns an epoch, or NULL. */
static struct shard_epoch *epoch_of(struct cache_tier_uses *uses, uint64_t number)
{
	struct shard_epoch **at = &uses->epochs[number % EPOCHS];
	if (*at && shard_epoch_number(*at) == number)
		return *at;
	shard_epoch_put(*at);
	*at = NULL;
	return shard_view_epoch(uses->view, number, at) == 0 ? *at : NULL;
}

/* Returns the table of an epoch, or NULL. */
static const struct cache_use_table *table_of(const struct cache_tier_uses *uses, uint64_t number)
{
	return uses->tables[number % EPOCHS].epoch == number ? uses->tables[number % EPOCHS].table : NULL;
}

static bool told_in(const struct cache_tier_uses *uses, uint64_t number, uint32_t sample, uint32_t *ret_at)
{
	const struct cache_use_table *table = table_of(uses, number);
	uint32_t part = table ? cache_use_table_get(table, sample) : 0;
	if (part)
		*ret_at = (uint32_t)(number * CACHE_TIER_EPOCH + part);
	return part > 0;
}

/* Finds when this host uses a sample in an epoch, in the unit of cache_tier_block.now.  Returns false: it does not. */
static bool used_in(struct cache_tier_uses *uses, uint64_t number, uint32_t sample, uint32_t slot, uint32_t *ret_at)
{
	if (uses->by_tables)
		return told_in(uses, number, sample, ret_at);
	const struct shard_epoch *epoch = epoch_of(uses, number);
	uint64_t step;
	uint32_t rank;
	if (!epoch || shard_epoch_find_stored(epoch, sample, slot, &step, &rank, NULL) < 0 || rank >= uses->world ||
	        !bit_get(uses->ranks, rank))
		return false;
	const struct shard_deal *deal = shard_epoch_deal(epoch);
	uint64_t part = step < deal->n ? step * CACHE_TIER_EPOCH / deal->n : CACHE_TIER_EPOCH - 1;
	*ret_at = (uint32_t)(number * CACHE_TIER_EPOCH + part + 1);
	return true;
}

/* Returns the last epoch of the deal that `epoch` belongs to, for groups that keep their samples. */
static uint64_t deal_end(const struct cache_tier_uses *uses, uint64_t epoch)
{
	return (epoch / uses->redeal + 1) * uses->redeal - 1;
}

/* Finds the next use behind `epoch`.  A group uses its samples in each epoch until the next deal: that is one use,
 * which lasts so long.  *ret_at: 0: the host uses the sample in all epochs.  Returns false, and a use far ahead, if no
 * epoch that is looked at has one. */
static bool next_use(struct cache_tier_uses *uses, uint64_t epoch, uint32_t sample, uint32_t slot, uint32_t *ret_at)
{
	uint64_t far = epoch + 1 + AHEAD;
	uint32_t at;
	for (uint32_t i = 1; i <= uses->ahead; i++) {
		if (!used_in(uses, epoch + i, sample, slot, &at))
			continue;
		if (uses->groups && i == 1 && !uses->redeal)
			at = 0;
		else if (uses->groups && i == 1)
			used_in(uses, deal_end(uses, epoch + 1), sample, slot, &at);
		*ret_at = at;
		return true;
	}
	if (uses->redeal && deal_end(uses, epoch + 1) >= far)
		far = deal_end(uses, epoch + 1) + 1;
	*ret_at = (uint32_t)(far * CACHE_TIER_EPOCH);
	return false;
}

/* Returns the epoch for which a sample of the told order is fetched: CACHE_TIER_USES_LATEST. */
static uint64_t epoch_now(const struct cache_tier_uses *uses, uint32_t sample)
{
	uint64_t epoch = uses->latest;
	uint32_t at;
	bool comes = told_in(uses, epoch, sample, &at) && at >= uses->reached;
	return !comes && told_in(uses, epoch + 1, sample, &at) ? epoch + 1 : epoch;
}

bool cache_tier_uses_of(struct cache_tier_uses *uses, uint64_t epoch, struct cache_tier_block *block)
{
	struct shard_place place;
	uint32_t slot;
	block->now = block->next = 0;
	if (shard_index_place(uses->index, cache_key_file(block->key), &place) < 0 || place.sample == SHARD_NONE ||
	        shard_index_sample_slot(uses->index, place.sample, &slot) < 0)
		return true;
	lock_for_scope(&uses->lock);
	if (!uses->joined)
		return true;
	look_at_ranks(uses);
	if (epoch == CACHE_TIER_USES_LATEST)
		epoch = uses->view ? uses->latest : epoch_now(uses, place.sample);
	if (uses->all || epoch >= CACHE_TIER_EPOCHS_MAX)
		return true;
	if (uses->view)
		uses->latest = epoch;
	uint32_t now = (uint32_t)(epoch * CACHE_TIER_EPOCH + 1), next;
	bool used = used_in(uses, epoch, place.sample, slot, &now);
	bool again = next_use(uses, epoch, place.sample, slot, &next);
	/* There is no table yet, or a demand is for what this order does not have. */
	if (uses->by_tables && !used && !again)
		return true;
	block->next = next;
	block->now = block->next ? now : 0;
	return used;
}

/* Names the order of a job: the ranks of one job have the same, and a job that goes on, too. */
static uint64_t order_of(const struct shard_view *view)
{
	const struct shard_view_options *o = shard_view_options_get(view);
	const struct shard_info *info = shard_index_info(shard_view_index(view));
	const uint64_t numbers[] = { XXH3_64bits(info->identity, CACHE_TIER_IDENTITY),
		XXH3_64bits(o->subdir, strlen(o->subdir)), o->order, o->deal, o->tail, o->seed, o->world,
		o->chunk_items, o->pool_chunks, o->groups, o->redeal, o->on_bad, shard_view_n_bad(view) };
	return XXH3_64bits(numbers, sizeof(numbers));
}

/* Returns how many epochs ahead there is memory for tables, besides those of the present and the last one. */
static uint32_t tables_ahead(uint32_t n_samples)
{
	uint64_t n = CACHE_TIER_TABLES_BYTES / cache_use_table_bytes(n_samples);
	return n < 3 ? 0 : n - 2 < AHEAD ? (uint32_t)n - 2 : AHEAD;
}

int cache_tier_uses_new(struct cache_tier *tier, struct shard_view *view, struct cache_tier_uses **ret_uses)
{
	const struct shard_view_options *o = shard_view_options_get(view);
	const struct shard_info *info = shard_index_info(shard_view_index(view));
	bool by_tables = o->order == SHARD_ORDER_TORCH;
	struct cache_tier_fill fill;
	int rc = cache_tier_fill_get(tier, &fill);
	uint32_t ahead = by_tables ? tables_ahead(info->n_samples) : AHEAD;
	if (rc < 0 || o->world < 2 || fill.room_bytes >= info->content_bytes)
		return rc < 0 ? rc : -EOPNOTSUPP;
	if (!ahead)
		return -E2BIG;
	struct cache_tier_uses *uses = calloc(1, sizeof(*uses));
	if (!uses)
		return -ENOMEM;
	*uses = (struct cache_tier_uses){ .tier = tier,
		.index = shard_view_index(view),
		.view = view,
		.by_tables = by_tables,
		.world = o->world,
		.latest = o->epoch,
		.ahead = ahead,
		.groups = o->groups > 1,
		.redeal = o->redeal };
	pthread_mutex_init(&uses->lock, NULL);
	uses->ranks = bits_new(o->world);
	if (!uses->ranks) {
		cache_tier_uses_free(uses);
		return -ENOMEM;
	}
	*ret_uses = uses;
	return 0;
}

int cache_tier_uses_new_told(
        struct cache_tier *tier, const struct shard_index *index, struct cache_tier_uses **ret_uses)
{
	const struct shard_info *info = shard_index_info(index);
	struct cache_tier_fill fill;
	int rc = cache_tier_fill_get(tier, &fill);
	uint32_t ahead = tables_ahead(info->n_samples);
	if (rc < 0 || fill.room_bytes >= info->content_bytes)
		return rc < 0 ? rc : -EOPNOTSUPP;
	if (!ahead)
		return -E2BIG;
	struct cache_tier_uses *uses = calloc(1, sizeof(*uses));
	if (!uses)
		return -ENOMEM;
	*uses = (struct cache_tier_uses){ .tier = tier, .index = index, .by_tables = true, .ahead = ahead };
	pthread_mutex_init(&uses->lock, NULL);
	*ret_uses = uses;
	return 0;
}

int cache_tier_uses_add(struct cache_tier_uses *uses, uint32_t rank)
{
	lock_for_scope(&uses->lock);
	int rc = cache_tier_join(uses->tier, order_of(uses->view), rank);
	if (rc < 0)
		return rc;
	bit_set(uses->ranks, rank);
	uses->joined = true;
	uses->ranks_ns = 0; /* look at once whether all ranks are here now */
	return 0;
}

/* ---- told orders ---- */

/* Forgets what was told.  The caller has the lock. */
static void forget(struct cache_tier_uses *uses)
{
	for (uint32_t i = 0; i < EPOCHS; i++) {
		free(uses->tables[i].table);
		uses->tables[i].table = NULL;
	}
	if (uses->joined)
		cache_tier_leave(uses->tier);
	free(uses->ranks);
	uses->ranks = NULL;
	uses->joined = uses->all = false;
	uses->latest = uses->reached = uses->ranks_ns = 0;
	uses->n_ranks = 0;
}

int cache_tier_uses_follow(struct cache_tier_uses *uses, const struct cache_tier_told *told)
{
	int rc = 0;
	lock_for_scope(&uses->lock);
	forget(uses);
	if (told->world > CACHE_TIER_RANKS_MAX || told->first > told->world || told->n > told->world - told->first)
		return -ERANGE;
	uses->ranks = bits_new(told->world);
	if (!uses->ranks)
		return -ENOMEM;
	uses->world = told->world;
	uses->joined = true;
	for (uint32_t i = 0; rc == 0 && i < told->n; i++) {
		rc = cache_tier_join(uses->tier, told->order, told->first + i);
		bit_set(uses->ranks, told->first + i);
	}
	if (rc < 0)
		forget(uses);
	return rc;
}

void cache_tier_uses_reach(struct cache_tier_uses *uses, uint64_t epoch, uint64_t turn, uint64_t turns)
{
	uint64_t last = turn < turns ? turn : turns; /* turns that fill up the last round are more than the list has */
	lock_for_scope(&uses->lock);
	uses->latest = epoch;
	uses->reached = epoch * CACHE_TIER_EPOCH + (last > 0 ? (last - 1) * CACHE_TIER_EPOCH / turns : 0) + 1;
}

uint32_t cache_tier_uses_ranks(struct cache_tier_uses *uses, uint64_t *ret_ranks)
{
	lock_for_scope(&uses->lock);
	if (!uses->joined)
		return 0;
	look_at_ranks(uses);
	memcpy(ret_ranks, uses->ranks, rank_words(uses) * sizeof(*ret_ranks));
	return uses->n_ranks;
}

/* Takes a table that was made for the ranks of this host when they were n_ranks.  The caller has the lock. */
static void take_table(struct cache_tier_uses *uses, uint64_t epoch, struct cache_use_table *table, uint32_t n_ranks)
{
	for (uint32_t i = 0; i < EPOCHS; i++) {
		uint64_t there = uses->tables[i].epoch;
		bool kept = i != epoch % EPOCHS && there <= epoch + uses->ahead && epoch <= there + uses->ahead + 1;
		if (kept)
			continue;
		free(uses->tables[i].table);
		uses->tables[i].table = NULL;
	}
	uses->tables[epoch % EPOCHS].epoch = epoch;
	uses->tables[epoch % EPOCHS].n_ranks = n_ranks;
	uses->tables[epoch % EPOCHS].table = table;
}

void cache_tier_uses_tell(struct cache_tier_uses *uses, uint64_t epoch, struct cache_use_table *table)
{
	lock_for_scope(&uses->lock);
	take_table(uses, epoch, table, uses->n_ranks);
}

uint32_t cache_tier_uses_ahead(const struct cache_tier_uses *uses)
{
	return uses->ahead;
}

uint32_t cache_tier_uses_epochs(struct cache_tier_uses *uses)
{
	uint32_t n = 0;
	lock_for_scope(&uses->lock);
	if (!uses->joined || uses->all || (uses->groups && !uses->redeal))
		return 0;
	for (uint32_t i = 0; i < EPOCHS; i++)
		n += uses->tables[i].table && uses->tables[i].epoch >= uses->latest;
	return uses->by_tables ? n : uses->ahead + 1;
}

/* ---- tables of a view's order ---- */

/* Finds the first epoch that lacks a table.  The caller has the lock. */
static bool find_lacking(struct cache_tier_uses *uses, uint64_t *ret_epoch)
{
	if (!uses->view || !uses->by_tables || !uses->joined)
		return false;
	look_at_ranks(uses);
	for (uint64_t epoch = uses->latest; !uses->all && epoch <= uses->latest + uses->ahead; epoch++) {
		if (table_of(uses, epoch) && uses->tables[epoch % EPOCHS].n_ranks == uses->n_ranks)
			continue;
		*ret_epoch = epoch;
		return true;
	}
	return false;
}

bool cache_tier_uses_lacks(struct cache_tier_uses *uses)
{
	uint64_t epoch;
	lock_for_scope(&uses->lock);
	return find_lacking(uses, &epoch);
}

/* Enters what a rank uses in an epoch. */
static int fill_table(struct cache_use_table *table, const struct shard_epoch *epoch, uint32_t rank)
{
	uint64_t turns = shard_epoch_turns(epoch, rank), steps[SAMPLES], n_steps = shard_epoch_deal(epoch)->n;
	uint32_t samples[SAMPLES], n;
	for (uint64_t turn = 0; turn < turns; turn += n) {
		n = turns - turn < SAMPLES ? (uint32_t)(turns - turn) : SAMPLES;
		int rc = shard_epoch_samples(epoch, rank, turn, n, samples, steps);
		if (rc < 0)
			return rc;
		for (uint32_t i = 0; i < n; i++) /* steps behind the last one repeat samples (tail=pad) */
			cache_use_table_set(table, samples[i], steps[i] < n_steps ? steps[i] : n_steps - 1, n_steps);
	}
	return 0;
}

/* Makes the table of an epoch for these ranks. */
static int make_table(
        struct cache_tier_uses *uses, uint64_t number, const uint64_t *ranks, struct cache_use_table **ret_table)
{
	struct cache_use_table *table = cache_use_table_new(shard_index_info(uses->index)->n_samples);
	struct shard_epoch *epoch = NULL;
	int rc = table ? shard_view_epoch_once(uses->view, number, &epoch) : -ENOMEM;
	for (uint32_t rank = 0; rc == 0 && rank < uses->world; rank++)
		if (bit_get(ranks, rank))
			rc = fill_table(table, epoch, rank);
	shard_epoch_put(epoch);
	if (rc < 0)
		free(table);
	else
		*ret_table = table;
	return rc;
}

/* Makes the next table that is missing.  Returns 1; 0: none is; -errno. */
static int make_next(struct cache_tier_uses *uses, uint64_t *ranks)
{
	struct cache_use_table *table;
	uint64_t epoch;
	uint32_t n_ranks;
	{
		lock_for_scope(&uses->lock);
		if (!find_lacking(uses, &epoch))
			return 0;
		n_ranks = uses->n_ranks;
		memcpy(ranks, uses->ranks, rank_words(uses) * sizeof(*ranks));
	}
	int rc = make_table(uses, epoch, ranks, &table);
	if (rc < 0)
		return rc;
	lock_for_scope(&uses->lock);
	take_table(uses, epoch, table, n_ranks);
	return 1;
}

int cache_tier_uses_work(struct cache_tier_uses *uses, uint64_t max_ns)
{
	uint64_t start_ns = base_now_ns();
	uint64_t *ranks = uses->view ? bits_new(uses->world) : NULL;
	int rc = ranks ? 1 : -ENOMEM;
	while (rc == 1) {
		rc = make_next(uses, ranks);
		if (base_now_ns() - start_ns >= max_ns)
			break;
	}
	free(ranks);
	return rc < 0 ? rc : 0;
}

void cache_tier_uses_leave(struct cache_tier_uses *uses)
{
	lock_for_scope(&uses->lock);
	forget(uses);
}

void cache_tier_uses_free(struct cache_tier_uses *uses)
{
	if (!uses)
		return;
	for (uint32_t i = 0; i < EPOCHS; i++)
		free(uses->tables[i].table);
	for (uint32_t i = 0; i < EPOCHS; i++)
		shard_epoch_put(uses->epochs[i]);
	pthread_mutex_destroy(&uses->lock);
	free(uses->ranks);
	free(uses);
}
