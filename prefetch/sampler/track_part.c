/* SPDX-License-Identifier: Apache-2.0 */
/* Which positions the ranks of a track read, and in what pace: looked at again as more is opened.
 * prefetch/sampler/track_private.h first. */
#include <errno.h>
#include <stdlib.h>

#include "prefetch/sampler/track_private.h"

enum {
	SETTLED = 1 << 16,    /* positions of a check, all of them behind every worker */
	JOIN_MAX = 1 << 16,   /* positions to compare two parts */
	SETTLED_PERIODS = 8,  /* of a pattern, at least */
	BATCH_STARTS_MIN = 4, /* batches that were seen to begin, for a refit to say their size */
	BATCH_SURE = 10,      /* the same of all refits: by chance one time in 1,000 */
	REFIT_EVERY = 4096,   /* ... but no longer than this */
	BUFFER_LOOK = 64,     /* opens between two looks at its front */
};

int prefetch_track_sequence(const struct prefetch_recognise *r, const struct track *t, const struct source *source,
        struct prefetch_perm *perm, uint64_t number, struct prefetch_sequence **ret_sequence)
{
	return prefetch_sequence_new(
	        &(struct prefetch_sequence_options){
	                .list = t->list,
	                .perm = perm,
	                .own = source->sampler == PREFETCH_SAMPLER_OWN ? &r->own : NULL,
	                .own_epoch = source->seed,
	                .world = t->part.world,
	                .first = t->part.first,
	                .ranks = t->part.ranks,
	                .number = number,
	        },
	        ret_sequence);
}

int prefetch_track_set_part(const struct prefetch_recognise *r, struct track *t, const struct prefetch_part *part)
{
	struct prefetch_part old = t->part;
	struct prefetch_sequence *now;
	t->part = *part;
	int rc = prefetch_track_sequence(r, t, &t->source, t->perm, t->epoch, &now);
	if (rc < 0) {
		t->part = old;
		return rc;
	}
	prefetch_sequence_put(t->now);
	prefetch_sequence_put(t->then);
	t->now = now;
	t->then = NULL; /* made anew from the same permutation */
	t->generation++;
	return 0;
}

static bool part_has(const struct prefetch_part *part, uint64_t position)
{
	uint64_t residue = position % part->world;
	return residue >= part->first && residue - part->first < part->ranks;
}

static bool narrower(const struct prefetch_part *a, const struct prefetch_part *b)
{
	return (uint64_t)a->ranks * b->world < (uint64_t)b->ranks * a->world;
}

/* Returns the part that holds both. */
static struct prefetch_part joined(const struct prefetch_part *a, const struct prefetch_part *b)
{
	struct prefetch_part all = { .world = 1, .ranks = 1, .stride = b->stride, .joined = b->joined };
	bool in_b = (uint64_t)a->world * b->world <= JOIN_MAX;
	for (uint32_t i = 0; i < a->world && in_b; i++) {
		for (uint32_t k = 0; k < b->world && in_b; k++) {
			uint64_t position = (uint64_t)k * a->world + i;
			in_b = !part_has(a, position) || part_has(b, position);
		}
	}
	return in_b ? *b : all;
}

/* Finds the part from `used`, behind every worker, where it is final.  There runs of read and unread positions of equal
 * length repeat.  This finds batches that are dealt whole, too. */
static bool settled_part(const struct track *t, struct prefetch_part *ret_part)
{
	uint64_t end = t->high > prefetch_track_behind(t) ? t->high - prefetch_track_behind(t) : 0;
	uint64_t at = end > t->began + SETTLED ? end - SETTLED : t->began;
	struct run {
		uint64_t read, left, first;
	} run, best = { 0 };
	uint32_t lead = 0, periods = 0, alike = 0;
	uint64_t begin = at;
	for (unsigned pass = 0; pass < 2; pass++) {
		for (at = begin; at < end && bit_get(t->used, at); at++)
			;
		for (; at < end && !bit_get(t->used, at); at++)
			;
		while (at < end) {
			uint64_t first = at;
			for (; at < end && bit_get(t->used, at); at++)
				;
			run.read = at - first;
			for (; at < end && !bit_get(t->used, at); at++)
				;
			run.left = at - first - run.read;
			run.first = first % (run.read + run.left);
			bool equal = run.read == best.read && run.left == best.left && run.first == best.first;
			if (at == end)
				break; /* cut off */
			if (pass == 1) {
				periods++;
				alike += equal;
			} else if (lead == 0) {
				best = run;
				lead = 1;
			} else {
				lead += equal ? 1 : UINT32_MAX;
			}
		}
	}
	if (periods < SETTLED_PERIODS || alike * 8 < periods * 7 || best.read + best.left > PREFETCH_FIT_WORLD_MAX)
		return false;
	/* A part does not cross the end of a period. */
	if (best.first + best.read > best.read + best.left || best.first % best.read != 0 || best.left % best.read != 0)
		return false;
	*ret_part = (struct prefetch_part){
		.world = (uint32_t)(best.read + best.left),
		.first = (uint32_t)best.first,
		.ranks = (uint32_t)best.read,
		.stride = t->part.stride,
		.joined = t->part.joined,
	};
	return true;
}

/* Workers in turn look like one with larger batches, as long as they are in turn.  So all refits must agree. */
static void judge_batch(struct track *t)
{
	if (t->pace.starts < BATCH_STARTS_MIN)
		return;
	t->batch_doubtful |= t->batch != 0 && t->batch != t->pace.batch;
	t->batch = t->pace.batch;
	/* Before that, a refit sees opens of the one before. */
	t->batch_starts = t->n_recent >= 2 * RING ? t->batch_starts + t->pace.starts : t->pace.starts;
}

/* A stranger's open a little ahead looks like a larger buffer.  So the size shrinks again, slowly, where the farthest
 * open stays behind the front. */
static void look_at_buffer(struct track *t)
{
	uint64_t turns = prefetch_track_turns_opened(t), taken = t->opened + t->held,
	         late = taken > turns ? taken - turns : 0;
	uint32_t less = late / 4 < t->held / 64 ? (uint32_t)late / 4 : t->held / 64;
	t->refit_at = t->n_recent + BUFFER_LOOK;
	if (late <= BUFFER_SPARE || taken >= prefetch_sequence_turns(t->now))
		return;
	t->source.buffer -= t->source.buffer == t->held ? less : 0;
	t->held -= less;
}

void prefetch_track_refit(struct prefetch_recognise *r, struct track *t)
{
	uint64_t positions[RING] = { 0 }, turns[RING];
	uint32_t n = t->n_recent < RING ? (uint32_t)t->n_recent : RING, n_turns = 0, outside = 0, follow = 0;
	struct prefetch_part seen, settled;
	t->refit_at = t->n_recent + (t->n_recent < REFIT_EVERY ? t->n_recent : REFIT_EVERY);
	if (t->refit_at < REFIT_FIRST)
		t->refit_at = REFIT_FIRST; /* it may have forgotten all opens */
	t->outside = 0;
	if (is_buffered(t)) {
		look_at_buffer(t);
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		positions[i] = t->recent[(t->n_recent - n + i) % RING];
	bool known = prefetch_part(positions, n, &seen);
	for (uint32_t i = 0; i < n; i++) {
		if (in_part(t, positions[i]))
			continue;
		bool follows = false;
		for (uint32_t k = 0; k < i && !follows; k++)
			follows = positions[k] + seen.stride == positions[i];
		outside++;
		follow += follows;
	}
	bool apart = settled_part(t, &settled) && narrower(&settled, &t->part);
	for (uint32_t i = 0; i < n && apart; i++)
		apart = part_has(&settled, positions[i]);
	if (known && outside * 16 > n && follow * 2 >= outside) {
		seen = joined(&t->part, &seen);
		prefetch_track_set_part(r, t, &seen);
		r->changed = true;
	} else if (apart) {
		prefetch_track_set_part(r, t, &settled);
	} else if (known && t->part.joined == 0 && seen.world == t->part.world && seen.first == t->part.first &&
	           seen.ranks == t->part.ranks) {
		/* With many readers few of the first opens follow one another. */
		t->part.stride = seen.stride;
		t->part.joined = seen.joined;
	}
	for (uint32_t i = 0; i < n; i++) {
		if (in_part(t, positions[i]))
			turns[n_turns++] = turn_of(t, positions[i]);
	}
	struct prefetch_pace before = t->pace;
	prefetch_pace(&t->part, turns, n_turns, &t->pace);
	bool again =
	        before.stride == t->pace.stride && before.workers == t->pace.workers && before.batch == t->pace.batch;
	judge_batch(t);
	t->pace_sure = again && t->pace.batch == t->batch && !t->batch_doubtful && t->batch_starts >= BATCH_SURE;
}

/* Takes in what was not expected and lies at the beginning of the new order. */
static void take_in_unexpected(struct prefetch_recognise *r, struct track *t)
{
	uint32_t file;
	for (uint64_t position = 0; position < t->high; position++) {
		if (!in_part(t, position) || bit_get(t->used, position) ||
		        prefetch_sequence_file(t->now, turn_of(t, position), &file) < 0 || !bit_get(r->seen, file))
			continue;
		bit_clear(r->seen, file);
		bit_set(t->used, position);
		t->opens++;
		t->opened++;
	}
	prefetch_track_forget_caught_up(r);
}

int prefetch_track_change_part(
        struct prefetch_recognise *r, struct track *t, struct prefetch_list *list, struct prefetch_perm *perm)
{
	struct track old = *t;
	uint64_t n_recent = t->n_recent < RING ? t->n_recent : RING;
	t->size = prefetch_list_size(list);
	t->list = list;
	t->perm = perm;
	t->used = calloc(t->size / 64 + 1, sizeof(*t->used));
	int rc = t->used ? prefetch_track_sequence(r, t, &t->source, perm, t->epoch, &t->now) : -ENOMEM;
	if (rc < 0) {
		free(t->used);
		*t = old;
		return rc;
	}
	prefetch_list_get(list);
	prefetch_perm_get(perm);
	for (uint64_t position = 0; position < old.size; position++) {
		if (bit_get(old.used, position) && old.perm->at[position] < t->size)
			bit_set(t->used, perm->inverse[old.perm->at[position]]);
	}
	for (uint64_t i = 0; i < n_recent; i++) {
		uint64_t *position = &t->recent[i];
		*position = old.perm->at[*position] < t->size ? perm->inverse[old.perm->at[*position]] : t->high;
	}
	/* Nobody has made the next epoch's order for a part of this length. */
	t->next = NULL;
	t->then = NULL;
	t->has_next = false;
	t->n_loose = 0;
	t->outside = t->missed = t->fitted = t->trial = 0;
	t->generation++;
	free(old.used);
	prefetch_sequence_put(old.now);
	prefetch_sequence_put(old.then);
	prefetch_perm_put(old.perm);
	prefetch_perm_put(old.next);
	prefetch_list_put(old.list);
	take_in_unexpected(r, t);
	prefetch_recognise_sift(r);
	return 0;
}
