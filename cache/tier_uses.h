/* SPDX-License-Identifier: Apache-2.0 */
/* When a host uses a file again, by the order of its ranks: what a tier is told with each block (cache/tier.h).
 *
 * The order of each epoch can be computed, and which rank reads a sample in it.  So the next epoch in which a rank of
 * this host reads it is found by the inverse of the order, epoch after epoch, in a microsecond or two.  Ranks of the
 * host find each other by locks in the tier (cache_tier_join).
 *
 * The tier is not told next uses if the ranks of this host read all samples in each epoch, if they keep one group for
 * ever, or if the tier has room for the whole dataset.  It is not told them either before the first rank is added, or
 * while there are no tables.  Then it keeps what it has.
 *
 * A trainer may have an order of its own.  Whoever knows it tells the uses of each epoch by a table:
 *
 *     cache_tier_uses_new_told                 the order is not known: nothing is told to the tier
 *     cache_tier_uses_follow                   an order, and which of its ranks are read here
 *       cache_tier_uses_reach(epoch, turn)     ... how far they are
 *       cache_tier_uses_tell(epoch, table)     ... as many epochs ahead as cache_tier_uses_ahead says
 *     cache_tier_uses_leave                    the order is lost: nothing is told to the tier
 *
 * The inverse of order=torch takes 8 bytes a sample.  So the caller makes tables of it, too, in the background
 * (cache_tier_uses_work), and holds one epoch of it at a time.
 *
 * Memory: up to CACHE_TIER_TABLES_BYTES for complete tables.  While one more is made: that table, and of order=torch an
 * epoch.  Else some KiB and a bit for each rank of the world.
 * Threads: any thread may call cache_tier_uses_of, _add, _lacks and _epochs.  One thread at a time calls _work, and one
 * the functions of told orders.  One mutex guards everything; tables are made without it. */
#ifndef DDPFS_CACHE_TIER_USES_H
#define DDPFS_CACHE_TIER_USES_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/tier.h"
#include "cache/use_table.h"
#include "shard/view.h"

#define CACHE_TIER_TABLES_BYTES ((uint64_t)64 << 20) /* of complete tables */

struct cache_tier_uses; /* opaque */

/* Makes it for a view.  Until the first cache_tier_uses_add, nothing is told.
 * tier, view: not owned, outlive it.  The view computes its order: it is no given one.
 * Returns 0; -EOPNOTSUPP: nothing is told for this view; -E2BIG: tables of order=torch would take more than
 * CACHE_TIER_TABLES_BYTES; -ENOMEM; an error of a system call. */
int cache_tier_uses_new(struct cache_tier *tier, struct shard_view *view, struct cache_tier_uses **ret_uses);
/* Says that this process reads for a rank of the view, and tells it to the other ranks of the host.  A rank may be
 * added again.  Returns 0 or an error of fcntl(2). */
int cache_tier_uses_add(struct cache_tier_uses *uses, uint32_t rank);
/* Tells whether tables of the view's order are missing.  Any thread. */
bool cache_tier_uses_lacks(struct cache_tier_uses *uses);
/* Of a view.  Makes tables that are missing, the nearest epochs first, for about max_ns; at least one.  One thread at a
 * time.
 * Returns 0; -ENOMEM and errors of the index: it made none; the next call tries again. */
int cache_tier_uses_work(struct cache_tier_uses *uses, uint64_t max_ns);

/* Makes it for a dataset whose order is told.  tier, index: not owned, outlive it.
 * Returns 0; -EOPNOTSUPP: the tier has room for the whole dataset; -E2BIG: tables of so many samples would take more
 * than CACHE_TIER_TABLES_BYTES; -ENOMEM; an error of a system call. */
int cache_tier_uses_new_told(
        struct cache_tier *tier, const struct shard_index *index, struct cache_tier_uses **ret_uses);

/* An order that a trainer has. */
struct cache_tier_told {
	uint64_t order;    /* names it; mounts of a host that tell the same one count its epochs alike */
	uint32_t world;    /* ranks that share the samples of an epoch */
	uint32_t first, n; /* this process reads for the ranks first .. first + n - 1 */
};
/* Says that tables of this order follow, and forgets those of another one.
 * Returns 0; -ERANGE: the world has too many ranks for a tier, or does not have these; -ENOMEM; an error of fcntl(2).
 * After an error, nothing is told. */
int cache_tier_uses_follow(struct cache_tier_uses *uses, const struct cache_tier_told *told);
/* Says how far this process reads the followed order: it has used `turn` of the `turns` of its ranks in an epoch.
 * A larger `turn` counts as the last one. */
void cache_tier_uses_reach(struct cache_tier_uses *uses, uint64_t epoch, uint64_t turn, uint64_t turns);
/* Copies which ranks of the followed order are read on this host: bits_new(world) bits.  Returns how many they are;
 * 0: no order is followed, and ret_ranks is as it was. */
uint32_t cache_tier_uses_ranks(struct cache_tier_uses *uses, uint64_t *ret_ranks);
/* Tells when the ranks of this host use each sample in an epoch.  It owns the table from then on, and frees those of
 * epochs that are too far from it. */
void cache_tier_uses_tell(struct cache_tier_uses *uses, uint64_t epoch, struct cache_use_table *table);
/* Returns how many epochs behind the present one tables are kept for. */
uint32_t cache_tier_uses_ahead(const struct cache_tier_uses *uses);
/* Returns for how many epochs the tier is told what this host uses, the present one included; 0: for none, and it keeps
 * what it has.  Any thread. */
uint32_t cache_tier_uses_epochs(struct cache_tier_uses *uses);
/* Says that nobody knows the order any more.  The tier then keeps what it has. */
void cache_tier_uses_leave(struct cache_tier_uses *uses);

/* NULL is fine. */
void cache_tier_uses_free(struct cache_tier_uses *uses);

/* Of a view: the latest epoch that was asked for.  Of a told order: the epoch that is read now; if its table has the
 * file not, or in an earlier part than the one that is read now, the next one if that has it.  So what is fetched ahead
 * over the end of an epoch is fetched for the next one, also by who knows the order of the files but not its epochs. */
#define CACHE_TIER_USES_LATEST UINT64_MAX
#define CACHE_TIER_USES_NONE (UINT64_MAX - 1) /* of another order than the one that is told */

/* Fills block->now and block->next of a block that is read for a use in `epoch`, or one of the two values above.
 * block->key says which file.  Sets both to 0 if nothing is told.
 * Returns false if it is known that no rank of this host uses the file in the epoch. */
bool cache_tier_uses_of(struct cache_tier_uses *uses, uint64_t epoch, struct cache_tier_block *block);

#endif
