/* SPDX-License-Identifier: Apache-2.0 */
/* Deals the positions of an epoch to ranks: which rank gets which positions, in which sequence, and what the tail is.
 *
 * The positions [0, n) of an order are dealt to `world` ranks.  Turn k of rank r is its k-th sample.  The global step
 * of that turn is g = start + k * world + r (with groups: + lane(r)).
 *
 * deal=stride   The position is g.
 * deal=block    Rank r takes whole blocks of block_items positions: block t * world + r in round t.  The positions
 *               after the last whole round are dealt in `world` equal smaller blocks.  The remaining positions, fewer
 *               than `world`, are dealt one by one.  So ranks on separate hosts read disjoint chunks, and g -> position
 *               is still a bijection.
 *
 *      positions  |-b0--|-b1--|-b2--|-b3--|-b4--|-b5--|---------|-|     world 2, B = block_items
 *      rank       0     1     0     1     0     1     0 0 0 1 1 1 0
 *                 round 0     round 1     round 2     smaller     one by one
 *
 * A job that stopped after `start` global steps may resume with another world.  Every position comes exactly once. With
 * stride, `start` is enough.  With block, the earlier worlds matter too: `past` lists segments (world, steps). After
 * each segment the positions that are not consumed, in ascending order, become the positions [0, m) of the next. The
 * rest of the blocks that were under way is dealt first, one smaller block for each rank, so all other blocks stay
 * whole. If the last segment has the present world, the deal continues it.
 *
 * tail, with m = n - start and W = world:
 *       pad   every rank gets ceil(m / W) turns.  Steps past the end repeat the remaining positions from the front, as
 *             torch's DistributedSampler does, also if the padding is longer than m.
 *       drop  every rank gets floor(m / W) turns, as with drop_last of DistributedSampler.
 *       short nothing is repeated or dropped: ranks may differ by one turn.
 *
 * groups (deal=stride): position p belongs to group p % groups (shard/order.h).  Groups change which rank takes which
 * step of a round, never which position a step has.  Let D = gcd(world, groups) and L = world / D.  Rank r reads groups
 * with group % D = r / L only.  So if groups divide world, L neighbouring ranks, those of a host, read one group.  The
 * rank's *lane* is its place in each round: (r % L) * D + (r / L - start) mod D.  If D is 1, the lane is the rank.
 * Steps past the end repeat the first remaining positions of the same group, if it has some.
 *
 *      positions  0 1 2 3 4 5 6 7 8 9 ...        groups 2, world 4: D = 2, L = 2
 *      group      0 1 0 1 0 1 0 1 0 1 ...
 *      rank       0 2 1 3 0 2 1 3 0 2 ...        ranks 0 and 1 read group 0, ranks 2 and 3 read group 1
 *
 * All functions are pure, need no memory and cost O(number of segments).  The caller owns the struct.
 * Threads: any. */
#ifndef DDPFS_SHARD_DEAL_H
#define DDPFS_SHARD_DEAL_H

#include <stdbool.h>
#include <stdint.h>

enum shard_deal_mode { SHARD_DEAL_AUTO, SHARD_DEAL_STRIDE, SHARD_DEAL_BLOCK };
enum shard_tail { SHARD_TAIL_PAD, SHARD_TAIL_DROP, SHARD_TAIL_SHORT };
enum {
	SHARD_DEAL_SEGMENTS_MAX = 16, /* changes of the world within one epoch that deal=block can follow */
	SHARD_WORLD_MAX = 1 << 20,    /* ranks */
};

/* Parses "auto", "stride" or "block".  Returns 0; -EINVAL: other text. */
int shard_deal_mode_parse(const char *text, enum shard_deal_mode *ret_mode);
const char *shard_deal_mode_name(enum shard_deal_mode mode);
/* Parses "pad", "drop" or "short".  Returns 0; -EINVAL: other text. */
int shard_tail_parse(const char *text, enum shard_tail *ret_tail);
const char *shard_tail_name(enum shard_tail tail);

struct shard_deal_segment {
	uint32_t world; /* ranks of this part of the epoch */
	uint64_t steps; /* global steps consumed in it, at least 1 */
};

struct shard_deal {
	uint64_t n;                /* positions of the epoch, at most 2^62 */
	uint64_t start;            /* steps consumed before, at most n; BLOCK: the sum over past segments */
	uint32_t world;            /* ranks, 1 .. SHARD_WORLD_MAX */
	enum shard_deal_mode mode; /* STRIDE or BLOCK */
	enum shard_tail tail;
	uint64_t block_items; /* BLOCK: positions of a block, >= 1 */
	uint32_t n_past;      /* BLOCK: entries of `past`, at most SHARD_DEAL_SEGMENTS_MAX */
	struct shard_deal_segment past[SHARD_DEAL_SEGMENTS_MAX];
	uint64_t groups; /* STRIDE: groups of the order; 0 or 1: none */
};

/* Checks every field.
 * Returns 0; -EINVAL: mode is AUTO, n is over SHARD_PERMUTE_MAX, a world is out of range, start > n, or for BLOCK:
 * block_items is 0, there are groups, a segment has no steps, or the segments do not add up to start.
 * All functions below need a deal that passed this check. */
int shard_deal_check(const struct shard_deal *deal);

/* Returns the number of turns of a rank in this epoch: the length of its listing in samples.  rank < world. */
uint64_t shard_deal_turns(const struct shard_deal *deal, uint32_t rank);

/* Returns the step after the last step that is dealt: start + the turns of all ranks.  With pad it may exceed n. */
uint64_t shard_deal_end(const struct shard_deal *deal);

/* Returns the number of turns of the rank that has most. */
uint64_t shard_deal_rounds(const struct shard_deal *deal);

/* Return the lane (< world) of a rank, and the rank that takes a step >= start.  The turn of the step is
 * (step - start) / world. */
uint32_t shard_deal_lane(const struct shard_deal *deal, uint32_t rank);
uint32_t shard_deal_rank(const struct shard_deal *deal, uint64_t step);

/* Returns the position (< n) of turn k of a rank.  Padding repeats positions.  *ret_step (may be NULL) is the global
 * step start + k * world + lane of the rank.  Steps are unique even if padding repeats a position; file names carry
 * them. k < shard_deal_turns. */
uint64_t shard_deal_position(const struct shard_deal *deal, uint32_t rank, uint64_t k, uint64_t *ret_step);

/* Returns the first step at which a position (< n) comes, or UINT64_MAX if it was consumed before `start`.
 * The step belongs to rank shard_deal_rank and turn (step - start) / world.  With tail=drop that turn may not
 * exist (turn >= shard_deal_turns): the position is dropped in this epoch. */
uint64_t shard_deal_step(const struct shard_deal *deal, uint64_t position);

/* Returns the position of a step in [start, shard_deal_end), padding included. */
uint64_t shard_deal_step_position(const struct shard_deal *deal, uint64_t step);

#endif
