/* SPDX-License-Identifier: Apache-2.0 */
/* Takes in what a track's trainer opened before the sampler was recognised, and forgets what others opened then.
 * prefetch/sampler/track_private.h first. */
#include "prefetch/sampler/track_private.h"

static bool is_loose(const struct track *t, uint64_t position)
{
	for (uint32_t i = 0; i < t->n_loose; i++) {
		if (t->loose[i].position == position)
			return true;
	}
	return false;
}

/* Forgets the opens beyond `end` that came before number `since` of `recent`. */
static void forget_beyond(struct track *t, uint64_t end, uint64_t since)
{
	uint64_t kept = 0;
	t->high = end;
	for (uint64_t i = 0; i < t->n_recent; i++) {
		uint64_t position = t->recent[i];
		if (position < end || i >= since) {
			t->recent[kept++] = position;
			if (position >= t->high && !is_loose(t, position))
				t->high = position + 1;
		} else if (bit_get(t->used, position)) {
			bit_clear(t->used, position);
			t->opens--;
		}
	}
	t->n_recent = kept;
	kept = 0;
	for (uint32_t i = 0; i < t->n_loose; i++) {
		if (bit_get(t->used, t->loose[i].position))
			t->loose[kept++] = t->loose[i];
	}
	t->n_loose = (uint32_t)kept;
}

/* Returns the position behind the last one that is opened, and before which most turns are; 0: there is none. */
static uint64_t dense_end(const struct track *t)
{
	uint64_t end = 0;
	for (uint64_t position = t->began; position < t->high; position++) {
		if (in_part(t, position) && bit_get(t->used, position) &&
		        prefetch_track_supported(t, position, false, SUPPORT / 2))
			end = position + 1;
	}
	return end;
}

void prefetch_track_forget_strangers(struct track *t)
{
	uint64_t end = t->n_recent <= RING ? dense_end(t) : 0, dense = 0, since = 0;
	if (end == 0)
		return;
	for (uint64_t i = 0; i < t->n_recent; i++)
		dense += t->recent[i] < end;
	/* Some of the dense ones are strangers', too. */
	for (uint64_t before = 0; before < dense / 4; since++)
		before += t->recent[since] < end;
	forget_beyond(t, end, since);
	if (t->high - end > prefetch_track_slack_rank(t) * ranks(t))
		forget_beyond(t, end, t->n_recent);
}

void prefetch_track_forget_ring_of_strangers(struct track *t, uint64_t window)
{
	uint64_t end = dense_end(t), beyond = 0, n = t->n_recent;
	end = end > window ? end : window;
	if (n > RING || end >= t->high)
		return;
	for (uint64_t i = 0; i < n; i++)
		beyond += t->recent[i] >= end && t->recent[i] < t->high;
	uint64_t places = (t->high - end) * t->part.ranks / t->part.world;
	if (beyond * t->size >= 2 * (uint64_t)RING * places)
		return;
	forget_beyond(t, end, n);
	t->outside = 0;
}

void prefetch_track_forget_caught_up(struct prefetch_recognise *r)
{
	uint32_t kept = 0;
	for (uint32_t i = 0; i < r->n_ring; i++) {
		if (bit_get(r->seen, r->ring[i]))
			r->ring[kept++] = r->ring[i];
	}
	r->n_ring = kept;
}

void prefetch_track_catch_up_buffer(struct prefetch_recognise *r, struct track *t)
{
	uint64_t position;
	uint32_t file;
	for (uint64_t turn = 0; turn < prefetch_track_buffer_end(t); turn++) {
		if (prefetch_sequence_file(t->now, turn, &file) < 0 || !bit_get(r->seen, file))
			continue;
		position = position_of(t, turn);
		if (prefetch_track_fit(t, file, &position) == TRACK_FITS) {
			bit_clear(r->seen, file);
			prefetch_track_open(r, t, file, position, TRACK_FITS);
		}
	}
	prefetch_track_forget_caught_up(r);
}

void prefetch_track_catch_up(struct prefetch_recognise *r, struct track *t, uint64_t n_recent)
{
	enum { LATELY = 32, MOST = LATELY * 3 / 4 };
	uint64_t position, lately = 0, begin = t->high, end = t->high;
	uint32_t file;
	for (uint64_t turn = 0; (position = position_of(t, turn)) < t->size && position < end + prefetch_track_ahead(t);
	        turn++) {
		bool opened = bit_get(t->used, position);
		if (!opened && prefetch_sequence_file(t->now, turn, &file) == 0)
			opened = bit_get(r->seen, file);
		lately = (lately << 1 | opened) & ((UINT64_C(1) << LATELY) - 1);
		if (opened && position >= end && __builtin_popcountll(lately) >= MOST)
			end = position + 1;
	}
	for (uint64_t turn = 0; (position = position_of(t, turn)) < end; turn++) {
		if (bit_get(t->used, position) || prefetch_sequence_file(t->now, turn, &file) < 0 ||
		        !bit_get(r->seen, file))
			continue;
		bit_clear(r->seen, file);
		bit_set(t->used, position);
		t->opens++;
	}
	t->high = end;
	if (end > begin)
		t->last_open = r->opens;
	for (uint64_t i = n_recent > RECENT ? n_recent - RECENT : 0; i < n_recent; i++) {
		file = r->recent[i % TAIL];
		enum track_fit fit = bit_get(r->seen, file) ? prefetch_track_fit(t, file, &position) : TRACK_NOT;
		if (fit == TRACK_NOT)
			continue;
		bit_clear(r->seen, file);
		prefetch_track_open(r, t, file, position, fit);
	}
	prefetch_track_forget_caught_up(r);
}
