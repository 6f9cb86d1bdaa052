/* SPDX-License-Identifier: Apache-2.0 */
/* Dealing the positions of an epoch to ranks: who gets which, in what sequence, and what happens at the tail.
 *
 * The positions [0, n) of an order are dealt to `world` ranks.  A *turn* k of rank r is its k-th sample; its global step
 * is g = start + k * world + r.
 *
 * deal=stride   g is the position.
 * deal=block    rank r takes whole blocks of block_items positions: block t * world + r in round t.  What does not fill
 *               a round is dealt in `world` equal smaller blocks, and what is left of that, less than one a rank, one
 *               by one.  So ranks on separate hosts touch disjoint chunks, and g -> position is still a bijection.
 *
 *      positions  |-b0--|-b1--|-b2--|-b3--|-b4--|-b5--|---------|-|     world 2, B = block_items
 *      rank       0     1     0     1     0     1     0 0 0 1 1 1 0
 *                 round 0     round 1     round 2     smaller     one by one
 *
 * A job that stopped after `start` global steps resumes with any other world.  For stride that is all there is to know.
 * For block the worlds that came before matter: `past` lists (world, steps) segments.  After each, the positions not
 * yet consumed, in ascending order, become the positions [0, m) that the next one deals; what is left of the blocks that
 * were under way is dealt first, one smaller block a rank, so that all others stay whole.  A last segment with the
 * present world is simply continued.  Either way every position comes exactly once.
 *
 * tail: pad   every rank gets ceil(m / W) turns; steps past the end repeat from the front of the remaining ones (as
 *             torch's DistributedSampler does, also when the padding is longer than m);
 *       drop  floor(m / W), as DistributedSampler's drop_last;
 *       short rank r gets as many as there are: ranks may differ by one.
 * (m = n - start.)
 *
 * Pure, O(number of segments), no memory; a struct is the caller's and read only; any thread. */
#ifndef DDPFS_SHARD_DEAL_H
#define DDPFS_SHARD_DEAL_H

#include <stdbool.h>
#include <stdint.h>

enum shard_deal_mode { SHARD_DEAL_AUTO, SHARD_DEAL_STRIDE, SHARD_DEAL_BLOCK };
enum shard_tail { SHARD_TAIL_PAD, SHARD_TAIL_DROP, SHARD_TAIL_SHORT };
enum {
	SHARD_DEAL_SEGMENTS_MAX = 16, /* changes of the world within one epoch that deal=block can follow */
	SHARD_WORLD_MAX = 1 << 20,
};

int shard_deal_mode_parse(const char *text, enum shard_deal_mode *ret_mode); /* "auto" "stride" "block" */
const char *shard_deal_mode_name(enum shard_deal_mode mode);
int shard_tail_parse(const char *text, enum shard_tail *ret_tail); /* "pad" "drop" "short" */
const char *shard_tail_name(enum shard_tail tail);

struct shard_deal_segment {
	uint32_t world; /* ranks of that part of the epoch */
	uint64_t steps; /* global steps consumed in it */
};

struct shard_deal {
	uint64_t n;     /* positions of the epoch, at most 2^62 */
	uint64_t start; /* steps consumed before (sum over past segments) */
	uint32_t world;
	enum shard_deal_mode mode; /* STRIDE or BLOCK */
	enum shard_tail tail;
	uint64_t block_items; /* BLOCK: positions of a block, >= 1 */
	uint32_t n_past;      /* BLOCK: past segments, at most SHARD_DEAL_SEGMENTS_MAX */
	struct shard_deal_segment past[SHARD_DEAL_SEGMENTS_MAX];
};

/* Checks the fields.  -EINVAL: no mode, world 0 or over the limit, start > n, BLOCK with block_items 0 or with segments
 * that do not add up to start (a segment's world as `world`, its steps at least 1). */
int shard_deal_check(const struct shard_deal *deal);

/* Turns of rank in this epoch (its listing's length in samples).  rank < world. */
uint64_t shard_deal_turns(const struct shard_deal *deal, uint32_t rank);

/* The step behind the last one that is dealt: start + all ranks' turns.  With pad it may exceed n. */
uint64_t shard_deal_end(const struct shard_deal *deal);

/* The k-th sample of rank: the position in the order (< n; repeated ones for padding).  *ret_step (may be NULL) is its
 * global step start + k * world + rank, unique even where padding repeats a position; it is what file names carry.
 * k < shard_deal_turns. */
uint64_t shard_deal_position(const struct shard_deal *deal, uint32_t rank, uint64_t k, uint64_t *ret_step);

/* Inverse: the step (first occurrence) at which a position comes, or UINT64_MAX when it was consumed before `start`.
 * A step >= start belongs to rank (step - start) % world, turn (step - start) / world; with tail=drop the turn may lie
 * beyond shard_deal_turns (the sample is dropped this epoch). */
uint64_t shard_deal_step(const struct shard_deal *deal, uint64_t position);

/* The position of a step in [start, shard_deal_end), padding included. */
uint64_t shard_deal_step_position(const struct shard_deal *deal, uint64_t step);

#endif
