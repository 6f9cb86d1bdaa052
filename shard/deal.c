/* SPDX-License-Identifier: Apache-2.0 */
/* The deal of positions to ranks, by stride or by block, and its inverse; shard/deal.h first. */
#include "shard/deal.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "shard/permute.h"
#include "shard/base/units.h"

static const char *const deal_names[] = {
	[SHARD_DEAL_AUTO] = "auto",
	[SHARD_DEAL_STRIDE] = "stride",
	[SHARD_DEAL_BLOCK] = "block",
};
static const char *const tail_names[] = {
	[SHARD_TAIL_PAD] = "pad",
	[SHARD_TAIL_DROP] = "drop",
	[SHARD_TAIL_SHORT] = "short",
};

int shard_deal_mode_parse(const char *text, enum shard_deal_mode *ret_mode)
{
	int i = base_find_name(deal_names, sizeof(deal_names) / sizeof(deal_names[0]), text);
	if (i >= 0)
		*ret_mode = (enum shard_deal_mode)i;
	return i < 0 ? i : 0;
}

const char *shard_deal_mode_name(enum shard_deal_mode mode)
{
	return deal_names[mode];
}

int shard_tail_parse(const char *text, enum shard_tail *ret_tail)
{
	int i = base_find_name(tail_names, sizeof(tail_names) / sizeof(tail_names[0]), text);
	if (i >= 0)
		*ret_tail = (enum shard_tail)i;
	return i < 0 ? i : 0;
}

const char *shard_tail_name(enum shard_tail tail)
{
	return tail_names[tail];
}

static bool world_ok(uint32_t world)
{
	return world >= 1 && world <= SHARD_WORLD_MAX;
}

int shard_deal_check(const struct shard_deal *deal)
{
	uint64_t sum = 0;

	if (!world_ok(deal->world) || deal->n > SHARD_PERMUTE_MAX || deal->start > deal->n)
		return -EINVAL;
	if (deal->mode == SHARD_DEAL_STRIDE)
		return 0;
	if (deal->mode != SHARD_DEAL_BLOCK || deal->block_items == 0 || deal->groups > 1 ||
	        deal->n_past > SHARD_DEAL_SEGMENTS_MAX)
		return -EINVAL;
	for (uint32_t i = 0; i < deal->n_past; i++) {
		const struct shard_deal_segment *segment = &deal->past[i];

		if (!world_ok(segment->world) || segment->steps == 0 || segment->steps > deal->n - sum)
			return -EINVAL;
		sum += segment->steps;
	}
	return sum == deal->start ? 0 : -EINVAL;
}

uint64_t shard_deal_turns(const struct shard_deal *deal, uint32_t rank)
{
	uint64_t m = deal->n - deal->start;
	uint64_t whole = m / deal->world;
	uint64_t rest = m % deal->world;

	assert(rank < deal->world);
	switch (deal->tail) {
	case SHARD_TAIL_PAD:
		return whole + (rest > 0);
	case SHARD_TAIL_SHORT:
		return whole + (shard_deal_lane(deal, rank) < rest);
	case SHARD_TAIL_DROP:
		break;
	}
	return whole;
}

uint64_t shard_deal_rounds(const struct shard_deal *deal)
{
	uint64_t m = deal->n - deal->start;

	return m / deal->world + (deal->tail != SHARD_TAIL_DROP && m % deal->world > 0);
}

/* How ranks follow the groups: see deal.h. */
struct lanes {
	uint32_t classes; /* D: ranks of one class read the same groups */
	uint32_t ranks;   /* L: of a class */
	uint32_t shift;   /* start mod D: the class that the first lane of a round belongs to */
};

static struct lanes lanes_make(const struct shard_deal *deal)
{
	uint64_t a = deal->groups > 1 ? deal->groups : 1;
	uint64_t b = deal->world;

	while (b > 0) { /* Euclid; ends with the greatest common divisor, at most world */
		uint64_t rest = a % b;

		a = b;
		b = rest;
	}
	return (struct lanes){ (uint32_t)a, deal->world / (uint32_t)a, (uint32_t)(deal->start % a) };
}

uint32_t shard_deal_lane(const struct shard_deal *deal, uint32_t rank)
{
	struct lanes l = lanes_make(deal);

	return rank % l.ranks * l.classes + (rank / l.ranks + l.classes - l.shift) % l.classes;
}

uint32_t shard_deal_rank(const struct shard_deal *deal, uint64_t step)
{
	struct lanes l = lanes_make(deal);
	uint32_t lane = (uint32_t)((step - deal->start) % deal->world);

	assert(step >= deal->start);
	return (lane % l.classes + l.shift) % l.classes * l.ranks + lane / l.classes;
}

uint64_t shard_deal_end(const struct shard_deal *deal)
{
	uint64_t m = deal->n - deal->start;

	if (deal->tail != SHARD_TAIL_SHORT)
		m = shard_deal_turns(deal, 0) * deal->world;
	return deal->start + m;
}

/* The deal of [0, m) in blocks to one world: four stretches, each a bijection.
 *
 *      positions  [0, first)            one block of first_items for each rank: the rest of an earlier world's blocks
 *                 [first, small)        whole blocks, `world` of them a round
 *                 [small, single)       one block of small_items for each rank
 *                 [single, m)           fewer than `world`, one by one
 * A stretch has as many steps as positions.  Except in the last stretch, that number is a multiple of `world`. */
struct block_deal {
	uint64_t m;
	uint64_t world;
	uint64_t block_items;
	uint64_t first;
	uint64_t first_items;
	uint64_t small;
	uint64_t small_items;
	uint64_t single;
};

/* `head`: positions before the first border between blocks.  The borders shift by head % world. */
static struct block_deal block_deal_make(uint64_t m, uint32_t world, uint64_t block_items, uint64_t head)
{
	struct block_deal b = { .m = m, .world = world, .block_items = block_items };

	b.first_items = head / world;
	b.first = b.first_items * world;
	b.small = b.first + (m - b.first) / block_items / world * world * block_items;
	b.small_items = (m - b.small) / world;
	b.single = b.small + b.small_items * world;
	return b;
}

/* Returns the position (< m) of a step (< m).  Step s belongs to rank s % world. */
static uint64_t block_deal_at(const struct block_deal *b, uint64_t step)
{
	uint64_t rank = step % b->world;
	uint64_t turn = step / b->world;

	if (step < b->first)
		return rank * b->first_items + turn;
	if (step < b->small) {
		turn -= b->first_items;
		return b->first + (turn / b->block_items * b->world + rank) * b->block_items + turn % b->block_items;
	}
	if (step < b->single)
		return b->small + rank * b->small_items + (turn - b->small / b->world);
	return step;
}

static uint64_t block_deal_step(const struct block_deal *b, uint64_t position)
{
	uint64_t rank;
	uint64_t turn;

	if (position < b->first) {
		rank = position / b->first_items;
		turn = position % b->first_items;
	} else if (position < b->small) {
		uint64_t block = (position - b->first) / b->block_items;

		rank = block % b->world;
		turn = b->first_items + block / b->world * b->block_items + (position - b->first) % b->block_items;
	} else if (position < b->single) {
		rank = (position - b->small) / b->small_items;
		turn = b->small / b->world + (position - b->small) % b->small_items;
	} else {
		return position;
	}
	return turn * b->world + rank;
}

/* The round that is under way after `steps` steps: `world` blocks of `items` positions, from position `from` on.  In
 * the first `ahead` blocks taken + 1 positions are consumed, in the others `taken`.  All positions before the round are
 * consumed, and none after it.  In the last stretch a block is one position. */
struct open_round {
	uint64_t from;
	uint64_t items;
	uint64_t taken;
	uint64_t ahead;
	uint64_t left_ahead; /* positions left in each of the first `ahead` blocks */
	uint64_t left;       /* positions left in each other block */
	uint64_t left_all;   /* positions left in the whole round */
	uint64_t behind;     /* first position after the round */
};

static struct open_round open_round_make(const struct block_deal *b, uint64_t steps)
{
	struct open_round o = { .ahead = steps % b->world };
	uint64_t turn = steps / b->world;

	if (steps < b->first) {
		o.items = b->first_items;
		o.taken = turn;
	} else if (steps < b->small) {
		turn -= b->first_items;
		o.items = b->block_items;
		o.from = b->first + turn / o.items * b->world * o.items;
		o.taken = turn % o.items;
	} else if (steps < b->single) {
		o.items = b->small_items;
		o.from = b->small;
		o.taken = turn - b->small / b->world;
	} else {
		o.from = o.behind = steps; /* all positions before are consumed, none after */
		return o;
	}
	o.left = o.items - o.taken;
	o.left_ahead = o.left - 1;
	o.left_all = o.ahead * o.left_ahead + (b->world - o.ahead) * o.left;
	o.behind = o.from + b->world * o.items;
	return o;
}

/* Returns the i-th position, ascending, that is not consumed after `steps` steps. */
static uint64_t remaining_at(const struct block_deal *b, uint64_t steps, uint64_t i)
{
	struct open_round o = open_round_make(b, steps);
	uint64_t block;

	if (i >= o.left_all)
		return o.behind + (i - o.left_all);
	if (i < o.ahead * o.left_ahead) {
		block = i / o.left_ahead;
		return o.from + block * o.items + o.taken + 1 + i % o.left_ahead;
	}
	i -= o.ahead * o.left_ahead;
	block = o.ahead + i / o.left;
	return o.from + block * o.items + o.taken + i % o.left;
}

/* The inverse of remaining_at.  UINT64_MAX: `position` is consumed. */
static uint64_t remaining_index(const struct block_deal *b, uint64_t steps, uint64_t position)
{
	struct open_round o = open_round_make(b, steps);
	uint64_t block;
	uint64_t offset;

	if (position < o.from)
		return UINT64_MAX;
	if (position >= o.behind)
		return o.left_all + (position - o.behind);
	block = (position - o.from) / o.items;
	offset = (position - o.from) % o.items;
	if (block < o.ahead)
		return offset <= o.taken ? UINT64_MAX : block * o.left_ahead + (offset - o.taken - 1);
	return offset < o.taken ? UINT64_MAX : o.ahead * o.left_ahead + (block - o.ahead) * o.left + (offset - o.taken);
}

/* Returns the number of closed segments: all past ones, except a last one with the present world, which continues. */
static uint32_t closed_segments(const struct shard_deal *deal)
{
	return deal->n_past > 0 && deal->past[deal->n_past - 1].world == deal->world ? deal->n_past - 1 : deal->n_past;
}

/* Makes the deals of the closed segments, then that of the present world.  Returns how many are closed. */
static uint32_t make_deals(const struct shard_deal *deal, struct block_deal deals[SHARD_DEAL_SEGMENTS_MAX + 1])
{
	uint32_t closed = closed_segments(deal);
	uint64_t m = deal->n;
	uint64_t head = 0;

	for (uint32_t i = 0; i < closed; i++) {
		deals[i] = block_deal_make(m, deal->past[i].world, deal->block_items, head);
		head = open_round_make(&deals[i], deal->past[i].steps).left_all;
		m -= deal->past[i].steps;
	}
	deals[closed] = block_deal_make(m, deal->world, deal->block_items, head);
	return closed;
}

/* Returns the position of a step in [start, n). */
static uint64_t block_position(const struct shard_deal *deal, uint64_t step)
{
	struct block_deal deals[SHARD_DEAL_SEGMENTS_MAX + 1];
	uint32_t closed = make_deals(deal, deals);
	uint64_t at;

	for (uint32_t i = 0; i < closed; i++)
		step -= deal->past[i].steps;
	at = block_deal_at(&deals[closed], step);
	for (uint32_t i = closed; i > 0; i--)
		at = remaining_at(&deals[i - 1], deal->past[i - 1].steps, at);
	return at;
}

/* Returns the step in [0, n) of a position, or UINT64_MAX if a closed segment consumed it. */
static uint64_t block_step(const struct shard_deal *deal, uint64_t position)
{
	struct block_deal deals[SHARD_DEAL_SEGMENTS_MAX + 1];
	uint32_t closed = make_deals(deal, deals);
	uint64_t before = 0;

	for (uint32_t i = 0; i < closed; i++) {
		position = remaining_index(&deals[i], deal->past[i].steps, position);
		if (position == UINT64_MAX)
			return UINT64_MAX;
		before += deal->past[i].steps;
	}
	return before + block_deal_step(&deals[closed], position);
}

/* Returns the step that a step of the padding repeats: the remaining ones from the front, those of its group if there
 * are some. */
static uint64_t repeated_step(const struct shard_deal *deal, uint64_t step)
{
	uint64_t m = deal->n - deal->start;
	uint64_t groups = deal->groups > 1 ? deal->groups : 1;
	uint64_t first = (step - deal->start) % groups; /* of the remaining ones, the first one of this group */
	uint64_t of_group;

	if (first >= m)
		return deal->start + (step - deal->n) % m;
	of_group = (m - first + groups - 1) / groups;
	return deal->start + first + (step - deal->start) / groups % of_group * groups;
}

uint64_t shard_deal_step_position(const struct shard_deal *deal, uint64_t step)
{
	assert(step >= deal->start && step < shard_deal_end(deal));
	if (step >= deal->n)
		step = repeated_step(deal, step);
	return deal->mode == SHARD_DEAL_BLOCK ? block_position(deal, step) : step;
}

uint64_t shard_deal_position(const struct shard_deal *deal, uint32_t rank, uint64_t k, uint64_t *ret_step)
{
	uint64_t step = deal->start + k * deal->world + shard_deal_lane(deal, rank);
	uint64_t position = shard_deal_step_position(deal, step);

	if (ret_step)
		*ret_step = step;
	return position;
}

uint64_t shard_deal_step(const struct shard_deal *deal, uint64_t position)
{
	uint64_t step;

	assert(position < deal->n);
	step = deal->mode == SHARD_DEAL_BLOCK ? block_step(deal, position) : position;
	return step != UINT64_MAX && step >= deal->start ? step : UINT64_MAX;
}
