/* SPDX-License-Identifier: Apache-2.0 */
/* Where the opens of a track may lie: near the farthest position, or in its shuffle buffer.
 * prefetch/sampler/track_private.h first. */
#include "prefetch/sampler/track_private.h"

enum {
	SLACK_MIN = 4096,      /* positions: 16 workers x prefetch 2 x batch 128 */
	SLACK_RANK = 512,      /* for each rank of the world */
	START_MIN = 2048,      /* positions ahead, and at an epoch's beginning, besides the ranks' */
	FEW_WORLD = 5,         /* few_turns(): the rank reads at most one in so many positions */
	TINY = 1024,           /* positions: a few batches of a few workers */
	SUPPORT_MIN = 3,       /* it is not loose if so many of them were opened */
	SLACK_RANK_MAX = 8192, /* turns; SLACK_RANK is the least */
};

/* Returns how many turns of an epoch a buffer may have taken in before it gives the first one away. */
static uint64_t buffer_room(const struct track *t)
{
	return t->source.buffer + t->source.buffer / 8 + BUFFER_SPARE;
}

/* Returns the farthest turn that a buffer may have taken in. */
static uint64_t front(const struct track *t)
{
	uint64_t turns = prefetch_track_turns_opened(t), taken = t->opened + t->source.buffer;
	return turns > taken ? turns : taken;
}

uint64_t prefetch_track_buffer_end(const struct track *t)
{
	uint64_t end = front(t) - t->source.buffer + buffer_room(t), turns = prefetch_sequence_turns(t->now);
	return end < turns ? end : turns;
}

bool prefetch_track_is_taken_in(const struct track *t)
{
	return is_buffered(t) && front(t) >= prefetch_sequence_turns(t->now);
}

uint64_t prefetch_track_slack_rank(const struct track *t)
{
	uint64_t slack = 2 * ((uint64_t)t->pace.workers + 1) * t->pace.batch;
	return slack < SLACK_RANK ? SLACK_RANK : slack < SLACK_RANK_MAX ? slack : SLACK_RANK_MAX;
}

/* Limits a slack to half of the permutation, because in a short one half of a second job's files would else be near.
 * Without a shuffle, and in a tiny list, the whole counts: there workers at the other end are the same reader's. */
static uint64_t at_most(const struct track *t, uint64_t slack)
{
	bool whole = t->source.sampler == PREFETCH_SAMPLER_SORTED || t->size <= TINY;
	uint64_t most = whole ? t->size : t->size / 2;
	return slack < most ? slack : most;
}

uint64_t prefetch_track_behind(const struct track *t)
{
	uint64_t slack = t->size / 16;
	uint64_t least = SLACK_MIN + prefetch_track_slack_rank(t) * ranks(t);
	return at_most(t, slack > least ? slack : least);
}

uint64_t prefetch_track_ahead(const struct track *t)
{
	return at_most(t, START_MIN + prefetch_track_slack_rank(t) * ranks(t));
}

/* Whether an epoch is so short that the workers take all of it at once.  Then its opens lie anywhere in it, and only
 * their rank tells them from others. */
static bool few_turns(const struct track *t)
{
	return t->size <= TINY && t->part.world >= FEW_WORLD * t->part.ranks;
}

uint64_t prefetch_track_start(const struct track *t)
{
	uint64_t start = START_MIN + prefetch_track_slack_rank(t) * ranks(t);
	if (is_buffered(t))
		start = (buffer_room(t) + TRIAL_MAX) * t->part.world / t->part.ranks;
	uint64_t most = few_turns(t) ? t->size : t->size / 2;
	return start < most ? start : most;
}

uint64_t prefetch_track_turns_opened(const struct track *t)
{
	const struct prefetch_part *part = &t->part;
	uint64_t residue = t->high % part->world, rest = residue > part->first ? residue - part->first : 0;
	return t->high / part->world * part->ranks + (rest < part->ranks ? rest : part->ranks);
}

bool prefetch_source_same(const struct source *a, const struct source *b)
{
	return a->sampler == b->sampler && a->seed == b->seed && a->skip == b->skip && a->before == b->before &&
	       a->goes_on == b->goes_on && a->in_place == b->in_place && a->deal == b->deal &&
	       a->deal_kind == b->deal_kind && (a->buffer > 0) == (b->buffer > 0);
}

bool prefetch_track_supported(const struct track *t, uint64_t position, bool ahead_of_it, uint32_t least)
{
	uint64_t turn = turn_of(t, position), stride = t->part.stride;
	uint32_t turns = 0, reader = 0;
	for (uint64_t k = 1; k <= SUPPORT; k++) {
		uint64_t back = k * stride, near = t->size, own = t->size;
		if (ahead_of_it || k <= turn)
			near = position_of(t, ahead_of_it ? turn + k : turn - k);
		if (ahead_of_it || back <= position)
			own = ahead_of_it ? position + back : position - back;
		turns += near < t->size && bit_get(t->used, near);
		reader += own < t->size && bit_get(t->used, own);
	}
	return turns >= least || reader >= least;
}

bool prefetch_track_joins(const struct track *t, uint64_t position, bool ahead_of_it)
{
	return prefetch_track_supported(t, position, ahead_of_it, SUPPORT_MIN);
}

bool prefetch_track_is_near(const struct track *t, uint64_t position)
{
	return position + prefetch_track_behind(t) >= t->high && position < t->high + prefetch_track_ahead(t);
}
