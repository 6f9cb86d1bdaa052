/* SPDX-License-Identifier: Apache-2.0 */
/* The turns of three epochs in one line, with a few bits for each; cache/timeline.h first. */
#include "cache/timeline.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shard/base/bits.h"

static void epoch_done(struct cache_timeline_epoch *ep)
{
	shard_epoch_put(ep->epoch);
	free(ep->used);
	free(ep->ahead);
	free(ep->kept);
	*ep = (struct cache_timeline_epoch){ 0 };
}

static int epoch_init(struct cache_timeline_epoch *ep, struct cache_timeline *tl, uint64_t number, uint64_t first)
{
	struct shard_epoch *epoch;
	int rc = shard_view_epoch(tl->view, number, &epoch);
	if (rc < 0)
		return rc;
	struct cache_timeline_epoch made = { .epoch = epoch, .number = number, .first = first };
	made.turns = shard_epoch_turns(epoch, tl->rank);
	made.used = bits_new(made.turns);
	made.ahead = bits_new(made.turns);
	made.kept = bits_new(made.turns);
	made.words = made.turns / 64 + 1;
	if (!made.used || !made.ahead || !made.kept) {
		epoch_done(&made);
		return -ENOMEM;
	}
	*ep = made;
	return 0;
}

static int fill_epochs(struct cache_timeline *tl, uint64_t epoch, uint64_t first)
{
	for (unsigned i = 0; i < CACHE_EPOCHS; i++) {
		int rc = epoch_init(&tl->epochs[i], tl, tl->repeat ? epoch : epoch + i, first);
		if (rc < 0)
			return rc;
		first += tl->epochs[i].turns;
	}
	return 0;
}

static int make(struct cache_timeline *tl, uint64_t epoch, uint64_t first)
{
	const struct shard_view_options *options = shard_view_options_get(tl->view);
	tl->exact = !shard_view_is_given(tl->view) && options->on_bad != SHARD_ON_BAD_SUBSTITUTE;
	tl->notes = calloc(CACHE_NOTES, sizeof(*tl->notes));
	int rc = tl->notes ? fill_epochs(tl, epoch, first) : -ENOMEM;
	if (rc < 0)
		cache_timeline_done(tl);
	return rc;
}

int cache_timeline_init(struct cache_timeline *tl, struct shard_view *view, uint32_t rank, uint64_t epoch)
{
	*tl = (struct cache_timeline){ .view = view, .rank = rank, .hole = CACHE_NEVER };
	return make(tl, epoch, 0);
}

void cache_timeline_done(struct cache_timeline *tl)
{
	for (unsigned i = 0; i < CACHE_EPOCHS; i++) {
		if (tl->epochs[i].epoch)
			epoch_done(&tl->epochs[i]);
	}
	free(tl->notes);
	tl->notes = NULL;
}

int cache_timeline_jump(struct cache_timeline *tl, uint64_t epoch, uint64_t turn, bool repeat)
{
	struct cache_timeline made = {
		.view = tl->view, .rank = tl->rank, .repeat = repeat, .hole = CACHE_NEVER, .away = tl->away
	};
	uint64_t first = cache_timeline_end(tl);
	int rc = make(&made, epoch, first);
	if (rc < 0)
		return rc;
	if (shard_view_is_given(tl->view) && turn >= made.epochs[0].turns) {
		cache_timeline_done(&made);
		return -ENODATA;
	}
	for (uint64_t t = 0; t < turn && t < made.epochs[0].turns; t++)
		bit_set(made.epochs[0].used, t);
	made.cursor = first + turn;
	cache_timeline_done(tl);
	*tl = made;
	return cache_timeline_advance(tl);
}

uint64_t cache_timeline_end(const struct cache_timeline *tl)
{
	const struct cache_timeline_epoch *last = &tl->epochs[CACHE_EPOCHS - 1];
	return last->first + last->turns;
}

uint64_t cache_timeline_seq(const struct cache_timeline *tl, uint64_t epoch, uint64_t turn)
{
	uint64_t found = CACHE_NEVER;
	for (unsigned i = 0; i < CACHE_EPOCHS; i++) {
		const struct cache_timeline_epoch *ep = &tl->epochs[i];
		if (ep->number != epoch || turn >= ep->turns)
			continue;
		if (!bit_get(ep->used, turn))
			return ep->first + turn;
		if (found == CACHE_NEVER)
			found = ep->first + turn;
	}
	return found;
}

struct cache_timeline_epoch *cache_timeline_epoch_of(struct cache_timeline *tl, uint64_t seq, uint64_t *ret_turn)
{
	for (unsigned i = 0; i < CACHE_EPOCHS; i++) {
		struct cache_timeline_epoch *ep = &tl->epochs[i];
		if (seq >= ep->first && seq - ep->first < ep->turns) {
			*ret_turn = seq - ep->first;
			return ep;
		}
	}
	assert(!"seq lies in an epoch");
	abort();
}

static uint32_t note_lap(uint64_t seq)
{
	return (uint32_t)(seq / CACHE_NOTES) + 1;
}

struct cache_note *cache_timeline_note(struct cache_timeline *tl, uint64_t seq)
{
	struct cache_note *note = &tl->notes[seq % CACHE_NOTES];
	return note->lap == note_lap(seq) ? note : NULL;
}

/* Eviction works out turns that are far away.  Their notes must not replace those of near turns. */
static void take_note(struct cache_timeline *tl, uint64_t seq, uint32_t sample)
{
	if (seq - tl->cursor < CACHE_NOTES && !cache_timeline_note(tl, seq))
		tl->notes[seq % CACHE_NOTES] = (struct cache_note){ .lap = note_lap(seq), .sample = sample };
}

int cache_timeline_sample(struct cache_timeline *tl, uint64_t seq, uint32_t *ret_sample)
{
	const struct cache_note *note = cache_timeline_note(tl, seq);
	if (note) {
		*ret_sample = note->sample;
		return 0;
	}
	uint64_t turn;
	const struct cache_timeline_epoch *ep = cache_timeline_epoch_of(tl, seq, &turn);
	int rc = shard_epoch_turn(ep->epoch, tl->rank, turn, ret_sample, NULL);
	if (rc == 0)
		take_note(tl, seq, *ret_sample);
	return rc;
}

/* Finds the rank and the turn of a sample in an epoch.  found: may be NULL. */
static bool find(const struct cache_timeline *tl, const struct cache_timeline_epoch *ep, uint32_t sample,
        uint32_t stored, struct cache_found *found, uint32_t *ret_rank, uint64_t *ret_turn)
{
	for (uint32_t i = 0; found && i < found->n; i++) {
		if (found->places[i].view != tl->view || found->places[i].number != ep->number)
			continue;
		*ret_rank = found->places[i].rank;
		*ret_turn = found->places[i].turn;
		return *ret_rank != UINT32_MAX;
	}
	*ret_rank = UINT32_MAX;
	*ret_turn = 0;
	int rc = shard_epoch_find_stored(ep->epoch, sample, stored, NULL, ret_rank, ret_turn);
	if (found && found->n < CACHE_FOUND_MAX && !shard_view_is_given(tl->view)) {
		found->places[found->n].view = tl->view;
		found->places[found->n].number = ep->number;
		found->places[found->n].turn = *ret_turn;
		found->places[found->n++].rank = *ret_rank;
	}
	return rc == 0;
}

/* Finds the first unused turn of a sample in an epoch, from the cursor on.  Returns false when there is none. */
static bool next_turn(const struct cache_timeline *tl, const struct cache_timeline_epoch *ep, uint32_t sample,
        uint32_t stored, struct cache_found *found, uint64_t *ret)
{
	uint64_t from = tl->cursor > ep->first ? tl->cursor - ep->first : 0;
	uint32_t rank;
	int rc = shard_epoch_find_from(ep->epoch, sample, from, ret);
	if (rc == -EOPNOTSUPP)
		return find(tl, ep, sample, stored, found, &rank, ret) && rank == tl->rank && *ret < ep->turns &&
		       !bit_get(ep->used, *ret);
	while (rc == 0 && *ret < ep->turns && bit_get(ep->used, *ret))
		rc = shard_epoch_find_from(ep->epoch, sample, *ret + 1, ret);
	return rc == 0 && *ret < ep->turns;
}

/* As cache_timeline_next_below, in the epochs from epochs[i] on. */
static uint64_t next_in(struct cache_timeline *tl, unsigned i, uint32_t sample, uint32_t stored, uint64_t limit,
        struct cache_found *found)
{
	for (; i < CACHE_EPOCHS && tl->epochs[i].first < limit; i++) {
		const struct cache_timeline_epoch *ep = &tl->epochs[i];
		uint64_t turn;
		if (tl->cursor >= ep->first + ep->turns || !next_turn(tl, ep, sample, stored, found, &turn))
			continue;
		if (ep->first + turn >= limit)
			return CACHE_NEVER;
		if (tl->exact)
			take_note(tl, ep->first + turn, sample);
		return ep->first + turn;
	}
	return CACHE_NEVER;
}

uint64_t cache_timeline_next(struct cache_timeline *tl, uint32_t sample)
{
	return next_in(tl, 0, sample, SHARD_NONE, CACHE_NEVER, NULL);
}

uint64_t cache_timeline_next_shared(struct cache_timeline *tl, uint32_t sample, uint64_t seq, struct cache_found *found)
{
	const struct cache_timeline_epoch *ep = &tl->epochs[0];
	uint64_t turn = seq - ep->first; /* a seq before epochs[0] wraps, and lies beyond all turns */
	/* With tail=pad the last turn may show a sample for the second time. */
	if (!tl->exact || turn >= ep->turns || turn + 1 == ep->turns)
		return next_in(tl, 0, sample, SHARD_NONE, CACHE_NEVER, found);
	return bit_get(ep->used, turn) ? next_in(tl, 1, sample, SHARD_NONE, CACHE_NEVER, found) : seq;
}

uint64_t cache_timeline_next_from(struct cache_timeline *tl, uint32_t sample, uint64_t seq)
{
	return cache_timeline_next_shared(tl, sample, seq, NULL);
}

uint64_t cache_timeline_next_below(struct cache_timeline *tl, uint32_t sample, uint32_t stored, uint64_t limit)
{
	return next_in(tl, 0, sample, stored, limit, NULL);
}

static int retire_first(struct cache_timeline *tl)
{
	const struct cache_timeline_epoch *last = &tl->epochs[CACHE_EPOCHS - 1];
	struct cache_timeline_epoch next;
	int rc = epoch_init(&next, tl, tl->repeat ? last->number : last->number + 1, last->first + last->turns);
	if (rc < 0)
		return rc;
	epoch_done(&tl->epochs[0]);
	for (unsigned i = 1; i < CACHE_EPOCHS; i++)
		tl->epochs[i - 1] = tl->epochs[i];
	tl->epochs[CACHE_EPOCHS - 1] = next;
	return 0;
}

/* Makes room for `turns` turns in the maps of an epoch.  Returns false when there is no memory. */
static bool lengthen(struct cache_timeline_epoch *ep, uint64_t turns)
{
	uint64_t **const maps[] = { &ep->used, &ep->ahead, &ep->kept };
	uint64_t words = ep->words;
	if (turns / 64 + 1 <= words)
		return true;
	while (turns / 64 + 1 > words)
		words *= 2;
	for (unsigned i = 0; i < sizeof(maps) / sizeof(maps[0]); i++) {
		uint64_t *longer = realloc(*maps[i], words * sizeof(*longer));
		if (!longer)
			return false;
		memset(longer + ep->words, 0, (words - ep->words) * sizeof(*longer));
		*maps[i] = longer;
	}
	ep->words = words;
	return true;
}

bool cache_timeline_grow(struct cache_timeline *tl)
{
	unsigned last = 0;
	struct shard_epoch *epoch;
	while (last + 1 < CACHE_EPOCHS && tl->epochs[last + 1].turns > 0)
		last++;
	struct cache_timeline_epoch *ep = &tl->epochs[last];
	if (tl->repeat || !shard_view_is_given(tl->view) || shard_view_epoch(tl->view, ep->number, &epoch) < 0)
		return false;
	uint64_t turns = shard_epoch_turns(epoch, tl->rank);
	if (turns <= ep->turns || !lengthen(ep, turns)) {
		shard_epoch_put(epoch);
		return false;
	}
	shard_epoch_put(ep->epoch);
	ep->epoch = epoch;
	ep->turns = turns;
	for (unsigned i = last + 1; i < CACHE_EPOCHS; i++)
		tl->epochs[i].first = ep->first + turns;
	return true;
}

bool cache_timeline_refresh(struct cache_timeline *tl)
{
	bool came = false;
	for (unsigned i = 1; i < CACHE_EPOCHS; i++) {
		const struct cache_timeline_epoch *before = &tl->epochs[i - 1];
		struct cache_timeline_epoch made, *ep = &tl->epochs[i];
		if (ep->turns > 0)
			continue;
		/* Epochs without turns lie at the end.  So only others without turns lie behind this one, and their
		 * `first` may change. */
		if (epoch_init(&made, tl, ep->number, before->first + before->turns) < 0)
			return came;
		epoch_done(ep);
		*ep = made;
		came |= made.turns > 0;
	}
	return came;
}

int cache_timeline_advance(struct cache_timeline *tl)
{
	/* With tail=drop and fewer samples than ranks, epochs have no turns for this rank.  The limit ends the loop
	 * then. */
	for (unsigned empty = 0; empty < 2 * CACHE_EPOCHS;) {
		struct cache_timeline_epoch *ep = &tl->epochs[0];
		while (tl->cursor < ep->first + ep->turns && bit_get(ep->used, tl->cursor - ep->first))
			tl->cursor++;
		if (tl->cursor < ep->first + ep->turns)
			return 0;
		/* A given view may not know yet what follows.  Then the cursor stays on the last turn that exists. */
		if (shard_view_is_given(tl->view) && tl->epochs[1].turns == 0) {
			if (ep->turns > 0)
				tl->cursor--;
			return -EAGAIN;
		}
		empty += ep->turns == 0;
		int rc = retire_first(tl);
		if (rc < 0)
			return rc;
	}
	return 0;
}

bool cache_timeline_used(struct cache_timeline *tl, uint64_t seq)
{
	uint64_t turn;
	const struct cache_timeline_epoch *ep = cache_timeline_epoch_of(tl, seq, &turn);
	return bit_get(ep->used, turn);
}

void cache_timeline_set_kept(struct cache_timeline *tl, uint64_t seq)
{
	uint64_t turn;
	struct cache_timeline_epoch *ep = cache_timeline_epoch_of(tl, seq, &turn);
	bit_set(ep->kept, turn);
	if (turn > ep->kept_top)
		ep->kept_top = turn;
}

void cache_timeline_clear_kept(struct cache_timeline *tl, uint64_t seq)
{
	uint64_t turn;
	struct cache_timeline_epoch *ep = cache_timeline_epoch_of(tl, seq, &turn);
	bit_clear(ep->kept, turn);
}

uint64_t cache_timeline_last_kept(struct cache_timeline *tl)
{
	for (unsigned i = CACHE_EPOCHS; i-- > 0;) {
		struct cache_timeline_epoch *ep = &tl->epochs[i];
		uint64_t turn = ep->turns ? bits_last(ep->kept, ep->kept_top) : UINT64_MAX;
		ep->kept_top = turn == UINT64_MAX ? 0 : turn;
		if (turn != UINT64_MAX)
			return ep->first + turn;
	}
	return CACHE_NEVER;
}
