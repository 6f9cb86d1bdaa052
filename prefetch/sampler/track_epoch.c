/* SPDX-License-Identifier: Apache-2.0 */
/* Where an epoch of a track ends and the next one begins; prefetch/sampler/track_private.h first.
 *
 * Unexpected opens of the list's files are a *trial*.  It shows that an epoch has begun if three quarters of it lie
 * at the beginning of the next permutation, or of this one.  These must be at least TRIAL_SURE opens, and more than
 * by chance.  If a trial shows neither, a search has to find out. */
#include <stdlib.h>
#include <string.h>

#include "prefetch/sampler/track_private.h"

enum {
	TRIAL_SURE = 16,  /* opens of a trial that are evidence, at least */
	TRIAL_ORDER = 24, /* opens of a trial in a list without shuffle */
};
static const double TRIAL_NATS = 23; /* 1e-10 */

/* Ranks with a part each do not begin an epoch at the same time, and a buffer may hold files of two: keeps what was
 * opened in this one. */
static void keep_late(struct track *t)
{
	t->late = false;
	if (!in_parts(t) && !is_buffered(t))
		return;
	if (!t->used_before)
		t->used_before = calloc(t->size / 64 + 1, sizeof(*t->used_before));
	if (!t->used_before)
		return;
	uint64_t *used = t->used;
	t->used = t->used_before;
	t->used_before = used;
	t->late = true;
}

static void begin_epoch(struct track *t)
{
	keep_late(t);
	memset(t->used, 0, (t->size / 64 + 1) * sizeof(*t->used));
	t->high = t->began = t->opened = t->held = 0;
	t->n_recent = 0;
	t->n_loose = 0;
	t->outside = 0;
	t->refit_at = REFIT_FIRST;
	t->epoch++;
	t->trial = t->trial_next = t->trial_again = 0;
	t->missed = t->fitted = 0;
	prefetch_sample_size_forget(t);
}

/* A buffer's next epoch has begun with the opens of the trial.  Others opened what the ring has of the list from
 * before: it lies anywhere, and would look like a larger buffer. */
static void forget_before_trial(struct prefetch_recognise *r, const struct track *t)
{
	uint32_t trial = r->n_ring < RING && t->trial < r->n_ring ? t->trial : r->n_ring < RING ? r->n_ring : 0;
	uint32_t kept = 0, before = r->n_ring - trial;
	uint64_t position;
	for (uint32_t i = 0; i < r->n_ring; i++) {
		uint32_t file = r->ring[i];
		if (i >= before || prefetch_sequence_position(t->now, file, &position) < 0)
			r->ring[kept++] = file;
		else
			bit_clear(r->seen, file);
	}
	r->n_ring = kept;
}

/* Other readers of the list make a buffer look larger than it is.  So the next epoch begins with the size that this one
 * has shown in the end, if most of it was read. */
static void settle_buffer(struct track *t)
{
	if (is_buffered(t) && t->held > 0 && t->opened * 2 > prefetch_sequence_turns(t->now))
		t->source.buffer = t->held;
}

static int enter_next(struct prefetch_recognise *r, struct track *t)
{
	if (is_buffered(t))
		forget_before_trial(r, t);
	settle_buffer(t);
	prefetch_sequence_put(t->now);
	prefetch_perm_put(t->perm);
	if (shuffled(&t->source) && prefetch_source_same(&t->source, &t->next_source))
		t->repeated++;
	t->before_source = t->source;
	t->now = t->then;
	t->perm = t->next;
	t->next_source.buffer = t->source.buffer;
	t->source = t->next_source;
	t->then = NULL;
	t->next = NULL;
	t->has_next = false;
	t->confirmed = true;
	begin_epoch(t);
	r->changed = true;
	return 0;
}

int prefetch_track_enter_again(struct prefetch_recognise *r, struct track *t)
{
	struct prefetch_sequence *now;
	int rc = prefetch_track_sequence(r, t, &t->source, t->perm, t->epoch + 1, &now);
	if (rc < 0)
		return rc;
	if (is_buffered(t))
		forget_before_trial(r, t);
	settle_buffer(t);
	prefetch_sequence_put(t->now);
	t->now = now;
	/* The same permutation is expected once more, and not the next seed. */
	prefetch_sequence_put(t->then);
	prefetch_perm_put(t->next);
	t->then = NULL;
	t->next = NULL;
	t->source.step = 0;
	t->repeated++;
	t->generation++;
	begin_epoch(t);
	t->next_source = t->source;
	t->next = t->perm ? prefetch_perm_get(t->perm) : NULL;
	t->has_next = true;
	r->changed = true;
	return 0;
}

/* Whether so many opens of the trial lie at the beginning of an epoch.  `places`: positions of the part where
 * unexpected opens may lie. */
static bool begins(const struct track *t, uint32_t hits, uint64_t places)
{
	double share = (double)t->part.ranks / t->part.world, first = (double)prefetch_track_start(t) * share;
	double all = (double)places * share + (double)t->size * (1 - share);
	double chance = first < all ? first / all : 1;
	return hits >= TRIAL_SURE && hits * 4 >= t->trial * 3 &&
	       prefetch_fit_surprise(hits, t->trial, chance) >= TRIAL_NATS;
}

/* Whether a list without shuffle begins again.  In a short list the beginning is too large a part to mean anything, and
 * workers side by side are soon beyond it.  But without a shuffle the opens follow one another. */
static bool begins_in_order(const struct track *t)
{
	uint64_t positions[TRIAL_MAX], low = UINT64_MAX;
	uint32_t n = 0;
	struct prefetch_part part;
	if (t->source.sampler != PREFETCH_SAMPLER_SORTED || is_buffered(t) || t->trial < TRIAL_ORDER)
		return false;
	for (uint32_t i = 0; i < t->trial; i++) {
		if (!in_part(t, t->trial_at[i]) || !bit_get(t->used, t->trial_at[i]))
			continue;
		positions[n++] = t->trial_at[i];
		low = t->trial_at[i] < low ? t->trial_at[i] : low;
	}
	return n * 4 >= t->trial * 3 && low < SUPPORT * ranks(t) && prefetch_part(positions, n, &part) &&
	       part.joined * 10 >= n * 7;
}

/* Takes an unexpected open of the list's files into the trial.  True: an epoch has begun. */
static bool unexpected(struct prefetch_recognise *r, struct track *t, uint32_t file, uint64_t position)
{
	uint64_t next;
	if (t->trial == 0)
		t->trial_next = t->trial_again = t->calm = 0;
	t->trial++;
	if (in_part(t, position) && position < prefetch_track_start(t) && bit_get(t->used, position))
		t->trial_again++;
	if (t->then && prefetch_sequence_position(t->then, file, &next) == 0 && in_part(t, next) &&
	        next < prefetch_track_start(t))
		t->trial_next++;
	t->trial_at[t->trial - 1] = position;
	if ((begins(t, t->trial_next, t->size) || (t->then && begins_in_order(t))) && enter_next(r, t) == 0)
		return true;
	/* An open where nothing was opened yet is expected.  So unexpected opens of a second job lie below `high`. */
	if (begins(t, t->trial_again, t->high) && prefetch_track_enter_again(r, t) == 0)
		return true;
	if (t->trial == TRIAL_MAX) {
		t->trial = 0;
		r->astray = true;
	}
	return false;
}

/* Whether one of many readers opened this position lately: hundreds of opens may lie between its two opens of a file.
 * In an epoch that begins again more turns lie between. */
static bool opened_just_now(const struct prefetch_recognise *r, const struct track *t, uint64_t position)
{
	if (r->opens - t->last_open >= RING)
		return false; /* its epoch is over, or its trainer rests */
	uint64_t turns = t->size / t->part.world * t->part.ranks / 4;
	uint64_t n = t->n_recent < RING ? t->n_recent : RING;
	for (uint64_t i = 1; bit_get(t->used, position) && i <= n && i <= turns; i++) {
		if (t->recent[(t->n_recent - i) % RING] == position)
			return true;
	}
	return false;
}

bool prefetch_track_unexpected(struct prefetch_recognise *r, struct track *t, uint32_t file)
{
	uint64_t position;
	if (!t->now || prefetch_sequence_position(t->now, file, &position) < 0)
		return false;
	if (r->sifting && is_buffered(t))
		return false; /* it was asked when the file was opened */
	t->missed++;
	/* Another file of a sample that was opened already. */
	if (t->source.sampler == PREFETCH_SAMPLER_OWN && r->own.several && prefetch_track_is_near(t, position) &&
	        bit_get(t->used, position))
		return true;
	if (opened_just_now(r, t, position))
		return true;
	if (prefetch_track_is_near(t, position) && !bit_get(t->used, position)) {
		t->recent[t->n_recent++ % RING] = position;
		t->outside++;
	}
	if (!unexpected(r, t, file, position))
		return false;
	enum track_fit fit = prefetch_track_fit(t, file, &position);
	if (fit != TRACK_NOT)
		prefetch_track_open(r, t, file, position, fit);
	return fit != TRACK_NOT;
}
