/* SPDX-License-Identifier: Apache-2.0 */
/* A track: one recognised sampler, followed through its epochs; prefetch/sampler/track_private.h first.
 *
 * All places are positions of the permutation.  An open is expected if it belongs to the ranks of the track, was not
 * opened in this epoch, and lies near the farthest position opened.
 *
 * An expected open is *loose* if nothing just before it was opened.  It begins a batch, or it is a second job's,
 * whose files lie anywhere in this permutation.  A loose open that no other one follows soon goes to the ring, where
 * the second job is found.  Ahead of the farthest position it is told to nobody before others have followed it: who
 * reads ahead would else believe that the reader is there, and drop what lies between. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "prefetch/sampler/track_private.h"

enum {
	GROW = 24,         /* so many opens outside of the part bring a refit */
	LATE_TURNS = 256,  /* of a rank, in which its first opens of an epoch lie */
	LOOSE_OPENS = 128, /* a loose open must be followed within so many opens */
	CALM = 64,         /* expected opens that end a trial */
	CALM_BUFFER = 16,  /* so many times more where a buffer takes in the next epoch */
};

/* Finds the track whose next epoch this is: the source was expected of it, or it is on this list and silent since the
 * ring began. */
static struct track *predecessor(
        struct prefetch_recognise *r, const struct source *source, const struct prefetch_list *list, uint64_t size)
{
	for (unsigned i = 0; i < r->n_tracks && !r->restoring; i++) {
		struct track *t = r->tracks[i];
		if (t->list == list && t->size == size && t->has_next && prefetch_source_same(&t->next_source, source))
			return t;
	}
	for (unsigned i = 0; i < r->n_tracks && !r->restoring; i++) {
		struct track *t = r->tracks[i];
		if (t->list == list && t->size == size && t->last_open <= r->ring_since + TRIAL_MAX)
			return t;
	}
	return NULL;
}

/* Drops a track, to make room for another one on this list: the one whose last open is oldest.  A rank's own part has
 * one reader, so a track on the same part goes first. */
static void drop_one(struct prefetch_recognise *r, const struct prefetch_list *list)
{
	struct prefetch_list_part part;
	bool is_part = list && prefetch_list_part(list, &part);
	unsigned oldest = 0;
	for (unsigned i = 1; i < r->n_tracks; i++) {
		const struct track *one = r->tracks[i], *other = r->tracks[oldest];
		bool same = is_part && one->list == list, other_same = is_part && other->list == list;
		if (same > other_same || (same == other_same && one->last_open < other->last_open))
			oldest = i;
	}
	prefetch_track_free(r->tracks[oldest]);
	r->n_tracks--;
	for (unsigned i = oldest; i < r->n_tracks; i++)
		r->tracks[i] = r->tracks[i + 1];
}

/* Whether a generator is seeded anew for each epoch: with the next seed, or again with another one. */
static bool is_seeded_anew(const struct source *source, const struct source *last)
{
	return source->sampler == PREFETCH_SAMPLER_GENERATOR && last->sampler == PREFETCH_SAMPLER_GENERATOR &&
	       source->skip == last->skip && source->seed != last->seed &&
	       (source->seed == (uint32_t)(last->seed + 1) || !prefetch_source_goes_on(last));
}

static void inherit(struct track *t, const struct track *old)
{
	t->id = old->id;
	t->generation = old->generation + 1;
	t->epoch = old->epoch + 1;
	t->opens = old->opens;
	t->repeated = old->repeated;
	t->confirmed = old->has_next && prefetch_source_same(&old->next_source, &t->source);
	if (t->source.sampler == PREFETCH_SAMPLER_RANDOM && old->source.sampler == PREFETCH_SAMPLER_RANDOM &&
	        t->source.name == old->source.name && t->source.word > old->source.word) {
		t->source.step = t->source.word - old->source.word;
		t->source.learned = true;
	}
	if (is_seeded_anew(&t->source, &old->source)) {
		t->source.step = PREFETCH_RESEED_MAX;
		t->source.learned = true;
	}
	if (prefetch_source_same(&t->source, &old->source) && shuffled(&t->source))
		t->repeated++;
}

static bool active(const struct prefetch_recognise *r, const struct track *t)
{
	return t->now && t->last_open > r->ring_since + TRIAL_MAX;
}

/* Finds the track that reads this permutation, or read it in its last epoch. */
static struct track *twin(struct prefetch_recognise *r, const struct source *source, const struct prefetch_list *list)
{
	for (unsigned i = 0; i < r->n_tracks; i++) {
		struct track *t = r->tracks[i];
		if (t->list == list && shuffled(source) && t->now &&
		        (prefetch_source_same(&t->source, source) ||
		                (t->epoch > 0 && prefetch_source_same(&t->before_source, source) && active(r, t))))
			return t;
	}
	return NULL;
}

/* The search has found a permutation that a track follows.  If most opens are of used positions, its trainer reads the
 * permutation again.  Else the track did not expect opens of its own trainer, and takes them in. */
static int found_again(struct prefetch_recognise *r, struct track *t, const struct source *source)
{
	static const struct prefetch_part all = { .world = 1, .ranks = 1, .stride = 1 };
	uint32_t used = 0, hits = 0;
	uint64_t position;
	int rc = 0;
	for (uint32_t i = 0; i < r->n_ring && prefetch_source_same(&t->source, source); i++) {
		if (prefetch_sequence_position(t->now, r->ring[i], &position) < 0)
			continue;
		hits++;
		used += bit_get(t->used, position);
	}
	if (hits > 0 && used * 4 >= hits * 3) {
		rc = prefetch_track_enter_again(r, t);
	} else if (hits > 0) {
		for (uint32_t i = 0; i < r->n_ring; i++) {
			if (prefetch_sequence_position(t->now, r->ring[i], &position) == 0)
				bit_set(t->used, position);
		}
		t->last_open = r->opens;
		rc = t->part.world > 1 ? prefetch_track_set_part(r, t, &all) : 0;
	}
	if (rc == 0)
		prefetch_recognise_forget(r);
	return rc;
}

int prefetch_track_new(struct prefetch_recognise *r, const struct source *source, struct prefetch_list *list,
        const struct shard_mt19937 *mt, const struct prefetch_fit *fit, const struct prefetch_part *part)
{
	struct track *t = twin(r, source, list);
	if (t)
		return found_again(r, t, source);
	t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	t->source = *source;
	t->list = list ? prefetch_list_get(list) : NULL;
	t->size = list ? prefetch_list_size(list) : r->own.size;
	t->part = *part;
	t->high = t->began = fit->low;
	t->window = shuffled(source) && !r->restoring ? fit->high : 0;
	t->last_open = t->made_at = r->opens;
	t->refit_at = REFIT_FIRST;
	t->score = fit->score;
	t->after = r->n_ring;
	t->pace = (struct prefetch_pace){ .stride = 1, .workers = 1 };
	/* A loader draws its workers' seed from its own generator before each permutation. */
	if (source->sampler == PREFETCH_SAMPLER_GENERATOR && !source->learned)
		t->source.step = 2 * ((uint64_t)t->size - 1) + source->skip;
	t->used = calloc(t->size / 64 + 1, sizeof(*t->used));
	int rc = t->used ? 0 : -ENOMEM;
	if (rc == 0)
		rc = prefetch_track_first_perm(t, mt);
	if (rc < 0) {
		prefetch_track_free(t);
		return rc;
	}
	struct track *old = predecessor(r, source, list, t->size);
	if (old) {
		inherit(t, old);
		for (unsigned i = 0; i < r->n_tracks; i++) {
			if (r->tracks[i] == old)
				r->tracks[i] = t;
		}
		prefetch_track_free(old);
		return 0;
	}
	if (r->n_tracks == PREFETCH_TRACKS_MAX)
		drop_one(r, list);
	t->id = r->next_id++;
	r->tracks[r->n_tracks++] = t;
	return 0;
}

/* Files that the buffer has held for long are fewer than those that were opened. */
static void resume_buffer(struct track *t)
{
	uint64_t turns = prefetch_track_turns_opened(t), held = t->source.buffer;
	for (uint64_t turn = 0; turn + 3 * held < turns; turn++)
		bit_set(t->used, position_of(t, turn));
	t->opened = turns > held ? turns - held : 0;
	t->held = (uint32_t)held;
}

/* It is unknown which turns near the farthest one were opened.  So these still may be. */
void prefetch_track_resume(struct track *t, const struct prefetch_saved_track *saved)
{
	t->pace = (struct prefetch_pace){ .stride = 1, .workers = saved->workers, .batch = saved->batch };
	t->epoch = saved->epoch;
	t->repeated = saved->repeated;
	t->high = saved->high;
	t->unverified = true;
	if (is_buffered(t)) {
		resume_buffer(t);
		return;
	}
	uint64_t slack = prefetch_track_slack_rank(t) * ranks(t), end = t->high > slack ? t->high - slack : 0;
	for (uint64_t position = 0; position < end; position++)
		bit_set(t->used, position);
	t->began = end;
}

void prefetch_track_free(struct track *t)
{
	if (!t)
		return;
	prefetch_sequence_put(t->now);
	prefetch_sequence_put(t->then);
	prefetch_perm_put(t->perm);
	prefetch_perm_put(t->next);
	prefetch_sample_size_forget(t);
	prefetch_list_put(t->list);
	free(t->used);
	free(t->used_before);
	free(t);
}

/* Does a slice of the work at this epoch's permutation.  Returns true while there is more to do. */
static bool step_perm(struct track *t)
{
	struct parts parts = { .n = (uint32_t)t->size, .world = t->source.seed, .kind = t->source.skip };
	return in_parts(t) ? prefetch_parts_step(&parts, t->perm, SLICE_ITEMS)
	                   : prefetch_perm_step(t->perm, SLICE_ITEMS);
}

int prefetch_track_step(struct prefetch_recognise *r, struct track *t)
{
	if (!t->now) {
		if (t->perm && step_perm(t))
			return 1;
		int rc = prefetch_track_sequence(r, t, &t->source, t->perm, t->epoch, &t->now);
		if (rc < 0)
			return rc;
		bool late = r->n_ring == RING || t->source.sampler == PREFETCH_SAMPLER_UNSEEDED;
		uint64_t n_recent = r->n_recent; /* sifting keeps `recent`, but sets its count to 0 */
		uint64_t window = t->window;
		if (is_buffered(t))
			prefetch_track_catch_up_buffer(r, t);
		prefetch_recognise_sift(r);
		t->window = 0;
		if (late && window > 0)
			prefetch_track_forget_ring_of_strangers(t, window);
		if (late && !is_buffered(t))
			prefetch_track_catch_up(r, t, n_recent);
		else if (shuffled(&t->source))
			prefetch_track_forget_strangers(t);
		return 1;
	}
	int resized = prefetch_sample_size_step(r, t);
	if (resized != 0)
		return resized;
	if (t->n_recent >= t->refit_at && prefetch_track_divide(r, t))
		return 1;
	if ((t->n_recent >= t->refit_at || t->missed >= WRONG_LATEST || t->unverified) &&
	        prefetch_track_is_wrong(r, t)) {
		if (!prefetch_track_divide(r, t))
			prefetch_track_drop(r, t);
		return 1;
	}
	if (t->missed >= WRONG_LATEST)
		t->missed = t->fitted = 0;
	if (t->n_recent >= t->refit_at || t->outside >= GROW) {
		prefetch_track_refit(r, t);
		if (r->changed)
			prefetch_recognise_sift(r);
		return 1;
	}
	if (t->then || (t->source.sampler == PREFETCH_SAMPLER_UNSEEDED && !t->has_next))
		return 0;
	if (!t->has_next) {
		int rc = prefetch_track_begin_next(t);
		if (rc < 0)
			t->has_next = false;
		return rc < 0 ? rc : 1;
	}
	if (t->next && prefetch_perm_step(t->next, SLICE_ITEMS))
		return 1;
	int rc = prefetch_track_sequence(r, t, &t->next_source, t->next, t->epoch + 1, &t->then);
	return rc < 0 ? rc : 1;
}

/* Whether the rank that reads this position has opened a file of its beginning in this epoch. */
static bool has_begun(const struct track *t, uint64_t position)
{
	uint64_t world = t->source.seed;
	for (uint64_t at = position % world, n = 0; at < t->size && n < LATE_TURNS; at += world, n++) {
		if (bit_get(t->used, at))
			return true;
	}
	return false;
}

/* Whether the open fits the epoch before, where a rank's part, or what a buffer still holds, is read to its end. */
static bool is_late(const struct track *t, uint64_t position)
{
	struct parts parts = { .n = (uint32_t)t->size, .world = (uint32_t)t->source.seed, .kind = t->source.skip };
	if (!t->late || t->n_recent > prefetch_sequence_turns(t->now) / 2 || bit_get(t->used_before, position))
		return false;
	if (is_buffered(t))
		return in_part(t, position);
	/* The files beyond the length of the shortest part come last, whichever rank reads them. */
	return position >= (uint64_t)prefetch_parts_shortest(&parts) * parts.world || !has_begun(t, position);
}

static bool fits_buffer(const struct track *t, uint64_t position)
{
	return in_part(t, position) && !bit_get(t->used, position) &&
	       turn_of(t, position) < prefetch_track_buffer_end(t);
}

enum track_fit prefetch_track_fit(const struct track *t, uint32_t file, uint64_t *ret_position)
{
	if (!t->now || prefetch_sequence_position(t->now, file, ret_position) < 0)
		return TRACK_NOT;
	uint64_t position = *ret_position;
	if (is_buffered(t) && fits_buffer(t, position))
		return TRACK_FITS;
	if (is_late(t, position))
		return TRACK_LATE;
	if (is_buffered(t))
		return TRACK_NOT;
	bool sure = position < t->window;
	if (!(sure || prefetch_track_is_near(t, position)) || !in_part(t, position) || bit_get(t->used, position))
		return TRACK_NOT;
	bool next = position >= t->high && position < t->high + t->part.world;
	if (sure || next || prefetch_track_joins(t, position, false))
		return TRACK_FITS;
	return t->n_loose < LOOSE_MAX ? TRACK_LOOSE : TRACK_NOT;
}

/* Says that a position was opened. */
static void tell(const struct prefetch_recognise *r, const struct track *t, uint64_t epoch, uint64_t position)
{
	if (r->options.explained)
		r->options.explained(r->options.user, t->id, t->generation, epoch, turn_of(t, position));
}

static void tell_loose_below_high(const struct prefetch_recognise *r, struct track *t)
{
	for (uint32_t i = 0; i < t->n_loose; i++) {
		if (!t->loose[i].told && t->loose[i].position < t->high) {
			t->loose[i].told = true;
			tell(r, t, t->epoch, t->loose[i].position);
		}
	}
}

/* Takes an open in the epoch before. */
static void open_late(struct prefetch_recognise *r, struct track *t, uint64_t position)
{
	bit_set(t->used_before, position);
	t->opens++;
	t->fitted++;
	t->last_open = r->opens;
	tell(r, t, t->epoch - 1, position);
}

/* Returns how many expected opens end a trial.  One rank of many may begin its next epoch while all others go on.  A
 * buffer that is filled with the next epoch gives away few files of that at first. */
static uint64_t calm_after(const struct track *t)
{
	if (prefetch_track_is_taken_in(t))
		return CALM * CALM_BUFFER;
	return CALM * (in_parts(t) ? t->source.seed : 1);
}

/* Counts what a buffer holds: what it took in, less what was opened. */
static void take_held(struct track *t)
{
	uint64_t turns = prefetch_track_turns_opened(t);
	if (turns > t->opened + t->held)
		t->held = (uint32_t)(turns - t->opened);
	if (t->held > t->source.buffer)
		t->source.buffer = t->held;
}

void prefetch_track_open(
        struct prefetch_recognise *r, struct track *t, uint32_t file, uint64_t position, enum track_fit fit)
{
	bool loose = fit == TRACK_LOOSE;
	if (fit == TRACK_LATE) {
		open_late(r, t, position);
		return;
	}
	if (loose)
		t->loose[t->n_loose++] = (struct loose){ .position = position, .at = r->opens, .file = file };
	bit_set(t->used, position);
	t->recent[t->n_recent++ % RING] = position;
	t->opens++;
	t->fitted += !loose;
	if (t->fitted >= VERIFIED_OPENS)
		t->unverified = false;
	t->last_open = r->opens;
	if (position >= t->high && !loose)
		t->high = position + 1;
	t->opened++;
	if (is_buffered(t))
		take_held(t);
	if (t->trial > 0 && ++t->calm >= calm_after(t))
		t->trial = 0;
	if (!loose)
		tell(r, t, t->epoch, position);
	tell_loose_below_high(r, t);
}

bool prefetch_track_stranger(const struct prefetch_recognise *r, struct track *t, uint32_t *ret_file)
{
	while (t->n_loose > 0 && (t->n_loose == LOOSE_MAX || t->loose[0].at + LOOSE_OPENS < r->opens)) {
		struct loose loose = t->loose[0];
		memmove(&t->loose[0], &t->loose[1], --t->n_loose * sizeof(t->loose[0]));
		/* If it began a batch, others have followed. */
		if (!in_part(t, loose.position))
			continue;
		if (loose.position + SUPPORT * ranks(t) >= t->size || prefetch_track_joins(t, loose.position, true)) {
			if (!loose.told)
				tell(r, t, t->epoch, loose.position);
			continue;
		}
		bit_clear(t->used, loose.position);
		t->opens--;
		*ret_file = loose.file;
		return true;
	}
	return false;
}
