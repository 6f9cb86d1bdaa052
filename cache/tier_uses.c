/* SPDX-License-Identifier: Apache-2.0 */
/* The next uses of a host; cache/tier_uses.h first. */
#include "cache/tier_uses.h"

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
	TORCH_BYTES = 32 << 20,                    /* of permutations */
};
#define RANKS_NS UINT64_C(5000000000) /* between two looks at the other ranks of the host */

struct cache_tier_uses {
	struct cache_tier *tier;
	struct shard_view *view;
	uint32_t world;
	uint32_t ahead; /* epochs that are looked at, at most AHEAD */
	bool groups;
	uint64_t redeal; /* epochs for which groups keep their samples; 0: always */

	pthread_mutex_t lock; /* guards all below */
	uint64_t latest;      /* epoch */
	struct shard_epoch *epochs[EPOCHS];
	uint64_t *ranks; /* a bit for each rank of this host */
	bool joined;     /* this process has a rank */
	bool all;        /* all ranks are on this host */
	uint64_t ranks_ns;
};

/* Looks which ranks are on this host, now and then.  Those that were there stay: a job of which ranks end does not read
 * less. */
static void look_at_ranks(struct cache_tier_uses *uses)
{
	uint64_t now_ns = base_now_ns(), n = 0;
	if (uses->ranks_ns && now_ns - uses->ranks_ns < RANKS_NS)
		return;
	uses->ranks_ns = now_ns;
	cache_tier_ranks(uses->tier, uses->world, uses->ranks);
	for (uint32_t i = 0; i < uses->world / 64 + 1; i++)
		n += (uint64_t)__builtin_popcountll(uses->ranks[i]);
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

/* Finds when this host uses a sample in an epoch, in the unit of cache_tier_block.now.  Returns false: it does not. */
static bool used_in(struct cache_tier_uses *uses, uint64_t number, uint32_t sample, uint32_t slot, uint32_t *ret_at)
{
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
 * which lasts so long.  0: the host uses the sample in all epochs. */
static uint32_t next_use(struct cache_tier_uses *uses, uint64_t epoch, uint32_t sample, uint32_t slot)
{
	uint64_t far = epoch + 1 + AHEAD;
	uint32_t at;
	for (uint32_t i = 1; i <= uses->ahead; i++) {
		if (!used_in(uses, epoch + i, sample, slot, &at))
			continue;
		if (uses->groups && i == 1 && !uses->redeal)
			return 0;
		if (uses->groups && i == 1)
			used_in(uses, deal_end(uses, epoch + 1), sample, slot, &at);
		return at;
	}
	if (uses->redeal && deal_end(uses, epoch + 1) >= far)
		far = deal_end(uses, epoch + 1) + 1;
	return (uint32_t)(far * CACHE_TIER_EPOCH);
}

bool cache_tier_uses_of(struct cache_tier_uses *uses, uint64_t epoch, struct cache_tier_block *block)
{
	struct shard_place place;
	uint32_t slot;
	const struct shard_index *index = shard_view_index(uses->view);
	block->now = block->next = 0;
	if (shard_index_place(index, cache_key_file(block->key), &place) < 0 || place.sample == SHARD_NONE ||
	        shard_index_sample_slot(index, place.sample, &slot) < 0)
		return true;
	lock_for_scope(&uses->lock);
	if (!uses->joined)
		return true;
	look_at_ranks(uses);
	if (epoch == UINT64_MAX)
		epoch = uses->latest;
	uses->latest = epoch;
	if (uses->all || epoch >= CACHE_TIER_EPOCHS_MAX)
		return true;
	uint32_t now = (uint32_t)(epoch * CACHE_TIER_EPOCH + 1);
	bool used = used_in(uses, epoch, place.sample, slot, &now);
	block->next = next_use(uses, epoch, place.sample, slot);
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

/* Returns how many epochs may be looked at; 0: nothing is told. */
static uint32_t epochs_ahead(const struct cache_tier_fill *fill, const struct shard_view *view)
{
	const struct shard_view_options *o = shard_view_options_get(view);
	uint64_t bytes = shard_view_samples(view) * sizeof(uint64_t);
	if (o->world < 2 || fill->room_bytes >= shard_index_info(shard_view_index(view))->content_bytes)
		return 0;
	if (o->order != SHARD_ORDER_TORCH)
		return AHEAD;
	uint64_t n = TORCH_BYTES / bytes;
	return n < 3 ? 0 : n - 2 < AHEAD ? (uint32_t)n - 2 : AHEAD;
}

int cache_tier_uses_new(struct cache_tier *tier, struct shard_view *view, struct cache_tier_uses **ret_uses)
{
	const struct shard_view_options *o = shard_view_options_get(view);
	struct cache_tier_fill fill;
	int rc = cache_tier_fill_get(tier, &fill);
	uint32_t ahead = rc == 0 ? epochs_ahead(&fill, view) : 0;
	if (rc < 0 || !ahead)
		return rc < 0 ? rc : -EOPNOTSUPP;
	struct cache_tier_uses *uses = calloc(1, sizeof(*uses));
	if (!uses)
		return -ENOMEM;
	*uses = (struct cache_tier_uses){ .tier = tier,
		.view = view,
		.world = o->world,
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

void cache_tier_uses_free(struct cache_tier_uses *uses)
{
	if (!uses)
		return;
	for (uint32_t i = 0; i < EPOCHS; i++)
		shard_epoch_put(uses->epochs[i]);
	pthread_mutex_destroy(&uses->lock);
	free(uses->ranks);
	free(uses);
}
