/* SPDX-License-Identifier: Apache-2.0 */
/* When a host uses a file again, by the order of its ranks: what a tier is told with each block (cache/tier.h).
 *
 * The order of each epoch can be computed, and which rank reads a sample in it.  So the next epoch in which a rank of
 * this host reads it is found by the inverse of the order, epoch after epoch, in a microsecond or two.  Ranks of the
 * host find each other by locks in the tier (cache_tier_join).
 *
 * The tier is not told next uses in three cases: the ranks of this host read all samples in each epoch; they keep one
 * group for ever; or the tier has room for the whole dataset.  Then it keeps what it has.
 *
 * Memory: up to 32 MiB for order=torch, else some KiB and a bit for each rank of the world.
 * Threads: any thread may call cache_tier_uses_of and _add.  One mutex guards everything. */
#ifndef DDPFS_CACHE_TIER_USES_H
#define DDPFS_CACHE_TIER_USES_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/tier.h"
#include "shard/view.h"

struct cache_tier_uses; /* opaque */

/* Makes it for a view.  Until the first cache_tier_uses_add, nothing is told.
 * tier, view: not owned, outlive it.  The view computes its order: it is no given one.
 * Returns 0; -EOPNOTSUPP: nothing is told for this view; -ENOMEM; an error of a system call. */
int cache_tier_uses_new(struct cache_tier *tier, struct shard_view *view, struct cache_tier_uses **ret_uses);
/* Says that this process reads for a rank of the view, and tells it to the other ranks of the host.  A rank may be
 * added again.  Returns 0 or an error of fcntl(2). */
int cache_tier_uses_add(struct cache_tier_uses *uses, uint32_t rank);
/* NULL is fine. */
void cache_tier_uses_free(struct cache_tier_uses *uses);

/* Fills block->now and block->next of a block that is read for a use in `epoch`; UINT64_MAX: in the latest epoch that
 * was asked for.  block->key says which file.  Sets both to 0 if nothing is told.
 * Returns false if it is known that no rank of this host uses the file in the epoch. */
bool cache_tier_uses_of(struct cache_tier_uses *uses, uint64_t epoch, struct cache_tier_block *block);

#endif
