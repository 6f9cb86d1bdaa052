/* SPDX-License-Identifier: Apache-2.0 */
/* The turns of three epochs in one line, with a few bits for each; cache/timeline.h first. */
#include "cache/timeline.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shard/base/bits.h"

static void slot_done(struct cache_slot *slot)
{
	shard_epoch_put(slot->epoch);
	free(slot->used);
	free(slot->ahead);
	free(slot->kept);
	*slot = (struct cache_slot){ 0 };
}

static int slot_init(struct cache_slot *slot, struct cache_timeline *tl, uint64_t number, uint64_t first)
{
	struct shard_epoch *epoch;
	int rc = shard_view_epoch(tl->view, number, &epoch);
	if (rc < 0)
		return rc;
	struct cache_slot made = { .epoch = epoch, .number = number, .first = first };
	made.turns = shard_epoch_turns(epoch, tl->rank);
	made.used = bits_new(made.turns);
	made.ahead = bits_new(made.turns);
	made.kept = bits_new(made.turns);
	made.words = made.turns / 64 + 1;
	if (!made.used || !made.ahead || !made.kept) {
		slot_done(&made);
		return -ENOMEM;
	}
	*slot = made;
	return 0;
}

static int fill_slots(struct cache_timeline *tl, uint64_t epoch, uint64_t first)
{
	for (unsigned i = 0; i < CACHE_EPOCHS; i++) {
		int rc = slot_init(&tl->slots[i], tl, tl->repeat ? epoch : epoch + i, first);
		if (rc < 0)
			return rc;
		first += tl->slots[i].turns;
	}
	return 0;
}

static int make(struct cache_timeline *tl, uint64_t epoch, uint64_t first)
{
	const struct shard_view_options *options = shard_view_options_get(tl->view);
	tl->exact = !shard_view_is_given(tl->view) && options->on_bad != SHARD_ON_BAD_SUBSTITUTE;
	tl->notes = calloc(CACHE_NOTES, sizeof(*tl->notes));
	int rc = tl->notes ? fill_slots(tl, epoch, first) : -ENOMEM;
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
		if (tl->slots[i].epoch)
			slot_done(&tl->slots[i]);
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
	if (shard_view_is_given(tl->view) && turn >= made.slots[0].turns) {
		cache_timeline_done(&made);
		return -ENODATA;
	}
	for (uint64_t t = 0; t < turn && t < made.slots[0].turns; t++)
		bit_set(made.slots[0].used, t);
	made.cursor = first + turn;
	cache_timeline_done(tl);
	*tl = made;
	return cache_timeline_advance(tl);
}

uint64_t cache_timeline_end(const struct cache_timeline *tl)
{
	const struct cache_slot *last = &tl->slots[CACHE_EPOCHS - 1];
	return last->first + last->turns;
}

uint64_t cache_timeline_seq(const struct cache_timeline *tl, uint64_t epoch, uint64_t turn)
{
	uint64_t found = CACHE_NEVER;
	for (unsigned i = 0; i < CACHE_EPOCHS; i++) {
		const struct cache_slot *slot = &tl->slots[i];
		if (slot->number != epoch || turn >= slot->turns)
			continue;
		if (!bit_get(slot->used, turn))
			return slot->first + turn;
		if (found == CACHE_NEVER)
			found = slot->first + turn;
	}
	return found;
}

struct cache_slot *cache_timeline_slot(struct cache_timeline *tl, uint64_t seq, uint64_t *ret_turn)
{
	for (unsigned i = 0; i < CACHE_EPOCHS; i++) {
		struct cache_slot *slot = &tl->slots[i];
		if (seq >= slot->first && seq - slot->first < slot->turns) {
			*ret_turn = seq - slot->first;
			return slot;
		}
	}
	assert(!"seq lies in a slot");
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
	const struct cache_slot *slot = cache_timeline_slot(tl, seq, &turn);
	int rc = shard_epoch_turn(slot->epoch, tl->rank, turn, ret_sample, NULL);
	if (rc == 0)
		take_note(tl, seq, *ret_sample);
	return rc;
}

/* Finds the first unused turn of a sample in an epoch, from the cursor on.  Returns false when there is none. */
static bool next_turn(
        const struct cache_timeline *tl, const struct cache_slot *slot, uint32_t sample, uint32_t stored, uint64_t *ret)
{
	uint64_t step, from = tl->cursor > slot->first ? tl->cursor - slot->first : 0;
	uint32_t rank;
	int rc = shard_epoch_find_from(slot->epoch, sample, from, ret);
	if (rc == -EOPNOTSUPP)
		return shard_epoch_find_stored(slot->epoch, sample, stored, &step, &rank, ret) == 0 &&
		       rank == tl->rank && *ret < slot->turns && !bit_get(slot->used, *ret);
	while (rc == 0 && *ret < slot->turns && bit_get(slot->used, *ret))
		rc = shard_epoch_find_from(slot->epoch, sample, *ret + 1, ret);
	return rc == 0 && *ret < slot->turns;
}

/* As cache_timeline_next_below, in the epochs from slots[i] on. */
static uint64_t next_in(struct cache_timeline *tl, unsigned i, uint32_t sample, uint32_t stored, uint64_t limit)
{
	for (; i < CACHE_EPOCHS && tl->slots[i].first < limit; i++) {
		const struct cache_slot *slot = &tl->slots[i];
		uint64_t turn;
		if (tl->cursor >= slot->first + slot->turns || !next_turn(tl, slot, sample, stored, &turn))
			continue;
		if (slot->first + turn >= limit)
			return CACHE_NEVER;
		if (tl->exact)
			take_note(tl, slot->first + turn, sample);
		return slot->first + turn;
	}
	return CACHE_NEVER;
}

uint64_t cache_timeline_next(struct cache_timeline *tl, uint32_t sample)
{
	return next_in(tl, 0, sample, SHARD_NONE, CACHE_NEVER);
}

uint64_t cache_timeline_next_from(struct cache_timeline *tl, uint32_t sample, uint64_t seq)
{
	const struct cache_slot *slot = &tl->slots[0];
	uint64_t turn = seq - slot->first; /* a seq before slots[0] wraps, and lies beyond all turns */
	/* With tail=pad the last turn may show a sample for the second time. */
	if (!tl->exact || turn >= slot->turns || turn + 1 == slot->turns)
		return cache_timeline_next(tl, sample);
	return bit_get(slot->used, turn) ? next_in(tl, 1, sample, SHARD_NONE, CACHE_NEVER) : seq;
}

uint64_t cache_timeline_next_below(struct cache_timeline *tl, uint32_t sample, uint32_t stored, uint64_t limit)
{
	return next_in(tl, 0, sample, stored, limit);
}

static int retire_first(struct cache_timeline *tl)
{
	const struct cache_slot *last = &tl->slots[CACHE_EPOCHS - 1];
	struct cache_slot next;
	int rc = slot_init(&next, tl, tl->repeat ? last->number : last->number + 1, last->first + last->turns);
	if (rc < 0)
		return rc;
	slot_done(&tl->slots[0]);
	for (unsigned i = 1; i < CACHE_EPOCHS; i++)
		tl->slots[i - 1] = tl->slots[i];
	tl->slots[CACHE_EPOCHS - 1] = next;
	return 0;
}

/* Makes room for `turns` turns in the maps of a slot.  Returns false when there is no memory. */
static bool lengthen(struct cache_slot *slot, uint64_t turns)
{
	uint64_t **const maps[] = { &slot->used, &slot->ahead, &slot->kept };
	uint64_t words = slot->words;
	if (turns / 64 + 1 <= words)
		return true;
	while (turns / 64 + 1 > words)
		words *= 2;
	for (unsigned i = 0; i < sizeof(maps) / sizeof(maps[0]); i++) {
		uint64_t *longer = realloc(*maps[i], words * sizeof(*longer));
		if (!longer)
			return false;
		memset(longer + slot->words, 0, (words - slot->words) * sizeof(*longer));
		*maps[i] = longer;
	}
	slot->words = words;
	return true;
}

bool cache_timeline_grow(struct cache_timeline *tl)
{
	unsigned last = 0;
	struct shard_epoch *epoch;
	while (last + 1 < CACHE_EPOCHS && tl->slots[last + 1].turns > 0)
		last++;
	struct cache_slot *slot = &tl->slots[last];
	if (tl->repeat || !shard_view_is_given(tl->view) || shard_view_epoch(tl->view, slot->number, &epoch) < 0)
		return false;
	uint64_t turns = shard_epoch_turns(epoch, tl->rank);
	if (turns <= slot->turns || !lengthen(slot, turns)) {
		shard_epoch_put(epoch);
		return false;
	}
	shard_epoch_put(slot->epoch);
	slot->epoch = epoch;
	slot->turns = turns;
	for (unsigned i = last + 1; i < CACHE_EPOCHS; i++)
		tl->slots[i].first = slot->first + turns;
	return true;
}

bool cache_timeline_refresh(struct cache_timeline *tl)
{
	bool came = false;
	for (unsigned i = 1; i < CACHE_EPOCHS; i++) {
		const struct cache_slot *before = &tl->slots[i - 1];
		struct cache_slot made, *slot = &tl->slots[i];
		if (slot->turns > 0)
			continue;
		/* Epochs without turns lie at the end.  So only others without turns lie behind this one, and their
		 * `first` may change. */
		if (slot_init(&made, tl, slot->number, before->first + before->turns) < 0)
			return came;
		slot_done(slot);
		*slot = made;
		came |= made.turns > 0;
	}
	return came;
}

int cache_timeline_advance(struct cache_timeline *tl)
{
	/* With tail=drop and fewer samples than ranks, epochs have no turns for this rank.  The limit ends the loop
	 * then. */
	for (unsigned empty = 0; empty < 2 * CACHE_EPOCHS;) {
		struct cache_slot *slot = &tl->slots[0];
		while (tl->cursor < slot->first + slot->turns && bit_get(slot->used, tl->cursor - slot->first))
			tl->cursor++;
		if (tl->cursor < slot->first + slot->turns)
			return 0;
		/* A given view may not know yet what follows.  Then the cursor stays on the last turn that exists. */
		if (shard_view_is_given(tl->view) && tl->slots[1].turns == 0) {
			if (slot->turns > 0)
				tl->cursor--;
			return -EAGAIN;
		}
		empty += slot->turns == 0;
		int rc = retire_first(tl);
		if (rc < 0)
			return rc;
	}
	return 0;
}

bool cache_timeline_used(struct cache_timeline *tl, uint64_t seq)
{
	uint64_t turn;
	const struct cache_slot *slot = cache_timeline_slot(tl, seq, &turn);
	return bit_get(slot->used, turn);
}

void cache_timeline_set_kept(struct cache_timeline *tl, uint64_t seq)
{
	uint64_t turn;
	struct cache_slot *slot = cache_timeline_slot(tl, seq, &turn);
	bit_set(slot->kept, turn);
	if (turn > slot->kept_top)
		slot->kept_top = turn;
}

void cache_timeline_clear_kept(struct cache_timeline *tl, uint64_t seq)
{
	uint64_t turn;
	struct cache_slot *slot = cache_timeline_slot(tl, seq, &turn);
	bit_clear(slot->kept, turn);
}

uint64_t cache_timeline_last_kept(struct cache_timeline *tl)
{
	for (unsigned i = CACHE_EPOCHS; i-- > 0;) {
		struct cache_slot *slot = &tl->slots[i];
		uint64_t turn = slot->turns ? bits_last(slot->kept, slot->kept_top) : UINT64_MAX;
		slot->kept_top = turn == UINT64_MAX ? 0 : turn;
		if (turn != UINT64_MAX)
			return slot->first + turn;
	}
	return CACHE_NEVER;
}
