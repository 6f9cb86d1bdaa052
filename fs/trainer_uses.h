/* SPDX-License-Identifier: Apache-2.0 */
/* Tells the tier when the ranks of this host use each sample again, by the order of a trainer that was recognised.
 *
 *     recogniser: seed, epoch, rank, world --> permutation of each later epoch --> table --> cache/tier_uses.h
 *
 * One order is told at a time: of the recognised ones that read only a part of their list, the one with the most turns
 * in an epoch. Its tables are made in the background, one after the other, from the present epoch on. Of a sampler that
 * is not seeded anew for each epoch, only the permutations of this epoch and the next one are known
 * (prefetch_recognise_perm), so only these two have tables. While the order is lost, or the same permutation is
 * expected again, nothing is told.
 *
 * Work: for each epoch a permutation, and a look into the index for each turn of this host. Memory besides the tables:
 * a permutation (8 bytes a file) while a table is made, and a bit for each rank.
 *
 * Threads: the recognise thread of the view. Whoever makes and frees it does so before and after that thread. */
#ifndef DDPFS_FS_TRAINER_USES_H
#define DDPFS_FS_TRAINER_USES_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/tier_uses.h"
#include "prefetch/sampler/recognise.h"
#include "shard/index.h"

struct fs_trainer_uses; /* opaque */

/* uses: made by cache_tier_uses_new_told. Neither is owned. Before `uses` ends, call fs_trainer_uses_step with NULL:
 * then it is not touched any more. Returns 0 or -ENOMEM. */
int fs_trainer_uses_new(const struct shard_index *index, struct cache_tier_uses *uses, struct fs_trainer_uses **ret_tu);

/* Looks at what is recognised (NULL: nothing), and works for about `max_ns`. Returns true if there is more to do now.
 * What fails for want of memory is tried again with the next epoch. */
bool fs_trainer_uses_step(struct fs_trainer_uses *tu, struct prefetch_recognise *recognise, uint64_t max_ns);

/* Returns whether this is the order that the tier is told: struct prefetch_recognised. */
bool fs_trainer_uses_tells(const struct fs_trainer_uses *tu, uint32_t id, uint32_t generation);

/* Tells the tier nothing any more. NULL is fine. */
void fs_trainer_uses_free(struct fs_trainer_uses *tu);

#endif
