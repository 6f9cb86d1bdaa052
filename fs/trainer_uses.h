/* SPDX-License-Identifier: Apache-2.0 */
/* Tells the tier when the ranks of this host use each sample again, by the order of a trainer that was recognised.
 *
 *     recogniser: seed, epoch, rank, world --> permutation of each later epoch --> table --> cache/tier_uses.h
 *
 * The trainer may announce what it opens. So there are two recognisers: the view's, and one of announced opens, which
 * is this file's own (fs/announced_sampler.h). One order is told at a time: of those that read only a part of their
 * list, the one with the most turns in an epoch. Announced orders come first: a few opens come before their list is
 * confirmed, and the view's recogniser may find anything in these. They count no more when others have opened as many
 * files as such an epoch has turns, and no list explained an open meanwhile.
 *
 * Tables are made in the background, one after the other, from the present epoch on. Of a sampler that is not seeded
 * anew for each epoch, only the permutations of this epoch and the next one are known (prefetch_recognise_perm), so
 * only these two have tables. While the order is lost, or the same permutation is expected again, nothing is told.
 *
 * Work: for each epoch a permutation, and a look into the index for each turn of this host. Memory besides the tables:
 * a permutation (8 bytes a file) while a table is made, and a bit for each rank.
 *
 * Threads: one: the recognise thread of the view, and before it whoever makes it. */
#ifndef DDPFS_FS_TRAINER_USES_H
#define DDPFS_FS_TRAINER_USES_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/tier_uses.h"
#include "prefetch/sampler/recognise.h"
#include "shard/index.h"

struct fs_trainer_uses; /* opaque */

/* index, shown: as in struct prefetch_recognise_options. uses: made by cache_tier_uses_new_told. None is owned.
 * Returns 0 or -ENOMEM. */
int fs_trainer_uses_new(const struct shard_index *index, const struct shard_view *shown, struct cache_tier_uses *uses,
        struct fs_trainer_uses **ret_tu);
/* Tells the tier nothing any more. NULL is fine. Call it before `uses` ends. */
void fs_trainer_uses_free(struct fs_trainer_uses *tu);

/* Takes in opens (tu NULL: does nothing): `n` files that an announced list explains, and how many others. */
void fs_trainer_uses_opened(struct fs_trainer_uses *tu, const uint32_t *files, size_t n, size_t others);
/* Says that opens have paused: prefetch_recognise_pause(). NULL is fine. */
void fs_trainer_uses_pause(struct fs_trainer_uses *tu);

/* Looks at what is recognised (recognise: the view's recogniser; NULL: it has nothing). Searches among announced opens
 * for about `max_ns`, and makes tables for as long. Returns as prefetch_recognise_step, but no error.
 * What fails for want of memory is tried again with the next epoch. */
int fs_trainer_uses_step(struct fs_trainer_uses *tu, struct prefetch_recognise *recognise, uint64_t max_ns);

/* Returns whether this order of the view's recogniser is the one that the tier is told: struct prefetch_recognised. */
bool fs_trainer_uses_tells(
        const struct fs_trainer_uses *tu, const struct prefetch_recognise *recognise, uint32_t id, uint32_t generation);
/* Returns the processor time of all searches among announced opens, in ns. NULL is fine. */
uint64_t fs_trainer_uses_search_ns(const struct fs_trainer_uses *tu);

#endif
