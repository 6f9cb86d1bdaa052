/* SPDX-License-Identifier: Apache-2.0 */
/* Whole permutations of a list and their inverse, made in slices.  One takes 8 bytes an item.
 *
 * Threads: any, one at a time for each object.  A complete permutation is immutable, and any thread may read it. */
#ifndef DDPFS_PREFETCH_SAMPLER_PERM_H
#define DDPFS_PREFETCH_SAMPLER_PERM_H

#include <stdbool.h>
#include <stdint.h>

#include "prefetch/sampler/parts.h"
#include "prefetch/sampler/shuffle.h"

struct prefetch_perm {
	_Atomic unsigned refs;
	uint32_t n;
	uint32_t done; /* items made in this phase */
	unsigned phase;
	struct prefetch_shuffle shuffle;
	uint32_t left;              /* shuffles to do after the current one */
	struct prefetch_rng rng;    /* once complete: as the shuffle leaves it */
	uint64_t discard;           /* words to draw before it begins; TORCH only */
	struct parts deal;          /* world 0: not dealt in parts */
	struct prefetch_perm *from; /* it begins with this one's order; NULL: with the list's */
	uint32_t *at, *inverse;     /* n entries each */
};

/* Makes a permutation of n by torch, with one reference, that prefetch_perm_step has to complete.  It begins at `mt`
 * after `discard` more words.  Returns 0 or -ENOMEM. */
int prefetch_perm_new(uint32_t n, const struct shard_mt19937 *mt, uint64_t discard, struct prefetch_perm **ret_perm);

/* Makes a permutation by this shuffle, and by those before it that count.  Returns as above. */
int prefetch_perm_new_shuffled(uint32_t n, const struct prefetch_shuffle *shuffle, struct prefetch_perm **ret_perm);

/* Makes the permutation of the shuffle that comes after that of `last`, which is complete.  Returns as above. */
int prefetch_perm_new_next(
        struct prefetch_perm *last, const struct prefetch_shuffle *shuffle, struct prefetch_perm **ret_perm);

/* Deals a permutation that is not begun yet in contiguous parts.  deal->world: 2 .. n. */
void prefetch_perm_deal(struct prefetch_perm *perm, const struct parts *deal);

/* Returns the item at a position of a complete permutation, before it was dealt in parts. */
uint32_t prefetch_perm_undealt(const struct prefetch_perm *perm, uint32_t position);

/* Does the work of about `max` items.  Returns true while there is more to do. */
bool prefetch_perm_step(struct prefetch_perm *perm, uint32_t max);

/* Tells that the caller has filled in `at` and `inverse`, so the permutation is complete.  Until then `done` is the
 * caller's. */
void prefetch_perm_made(struct prefetch_perm *perm);

/* Makes a permutation that prefetch_parts_step has to complete.  Returns 0 or -ENOMEM. */
int prefetch_parts_perm(const struct parts *parts, struct prefetch_perm **ret_perm);

/* Works out the positions of the next `max` files at most.  Returns true while there are more. */
bool prefetch_parts_step(const struct parts *parts, struct prefetch_perm *perm, uint32_t max);

struct prefetch_perm *prefetch_perm_get(struct prefetch_perm *perm); /* another reference */
void prefetch_perm_put(struct prefetch_perm *perm);                  /* NULL is fine */

#endif
