/* SPDX-License-Identifier: Apache-2.0 */
/* A track: one recognised sampler, followed through its epochs; prefetch/sampler/recognise_private.h first.
 *
 * All places are positions of the permutation.  An open is expected if it belongs to the ranks of the track, was not
 * opened in this epoch, and lies near the farthest position opened.
 *
 * An expected open is *loose* if nothing just before it was opened.  It begins a batch, or it is a second job's,
 * whose files lie anywhere in this permutation.  A loose open that no other one follows soon goes to the ring, where
 * the second job is found.  Ahead of the farthest position it is told to nobody before others have followed it: who
 * reads ahead would else believe that the reader is there, and drop what lies between.
 *
 * Unexpected opens of the list's files are a *trial*.  It shows that an epoch has begun if three quarters of it lie
 * at the beginning of the next permutation, or of this one.  These must be at least TRIAL_SURE opens, and more than
 * by chance.  If a trial shows neither, a search has to find out. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shard/base/list.h"

#include "prefetch/sampler/recognise_private.h"

enum {
	SLACK_MIN = 4096,      /* positions: 16 workers x prefetch 2 x batch 128 */
	SLACK_RANK = 512,      /* for each rank of the world */
	START_MIN = 2048,      /* positions ahead, and at an epoch's beginning, besides the ranks' */
	FEW_WORLD = 5,         /* few_turns(): the rank reads at most one in so many positions */
	TINY = 1024,           /* positions: a few batches of a few workers */
	TRIAL_SURE = 16,       /* opens of a trial that are evidence, at least */
	TRIAL_ORDER = 24,      /* opens of a trial in a list without shuffle */
	GROW = 24,             /* so many opens outside of the part bring a refit */
	SETTLED = 1 << 16,     /* positions of a check, all of them behind every worker */
	JOIN_MAX = 1 << 16,    /* positions to compare two parts */
	SETTLED_PERIODS = 8,   /* of a pattern, at least */
	SUPPORT = 16,          /* turns before (or behind) an open that are checked */
	SUPPORT_MIN = 3,       /* it is not loose if so many of them were opened */
	LATE_TURNS = 256,      /* of a rank, in which its first opens of an epoch lie */
	LOOSE_OPENS = 128,     /* a loose open must be followed within so many opens */
	CALM = 64,             /* expected opens that end a trial */
	CALM_BUFFER = 16,      /* so many times more where a buffer takes in the next epoch */
	BATCH_STARTS_MIN = 4,  /* batches that were seen to begin, for a refit to say their size */
	BATCH_SURE = 10,       /* the same of all refits: by chance one time in 1,000 */
	REFIT_FIRST = 64,      /* opens before the first refit; each next one waits for twice as many */
	REFIT_EVERY = 4096,    /* ... but no longer than this */
	SLACK_RANK_MAX = 8192, /* turns; SLACK_RANK is the least */
	WRONG_OPENS = 64,      /* a track is not judged before so many opens */
	BUFFER_SPARE = 64,     /* files that a shuffle buffer may hold beyond those that it was seen to hold */
	BUFFER_LOOK = 64,      /* opens between two looks at its front */
	VERIFIED_OPENS = 16,   /* expected opens that confirm a restored track */
	WRONG_LATEST = 128,    /* opens by which a track is judged */
	WRONG_SHARE = 16,      /* wrong: fewer than one in so many opens of the list's files was expected */
	WRONG_STRETCHES = 16,  /* equal pieces of the list */
	APART_MIN = 256,       /* positions between two readers with a part each; two workers' batches are closer */
	APART_MAX = 1024,      /* in a long list */
};
static const double TRIAL_NATS = 23; /* 1e-10 */

/* Whether the list is read through a shuffle buffer (shuffle_buffer.c). */
static bool is_buffered(const struct track *t)
{
	return t->source.buffer > 0;
}

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

/* Returns the turn before which a buffer's next open lies.  A pause of the watch leaves out opens, so what lies a
 * little beyond the front fits, too. */
static uint64_t buffer_end(const struct track *t)
{
	uint64_t end = front(t) - t->source.buffer + buffer_room(t), turns = prefetch_sequence_turns(t->now);
	return end < turns ? end : turns;
}

/* Whether a buffer takes in no more of this epoch.  A repeated dataset then fills it with the next one. */
static bool is_taken_in(const struct track *t)
{
	return is_buffered(t) && front(t) >= prefetch_sequence_turns(t->now);
}

/* Returns how many turns the workers of one rank may be apart: two batches each. */
static uint64_t slack_rank(const struct track *t)
{
	uint64_t slack = 2 * ((uint64_t)t->pace.workers + 1) * t->pace.batch;
	return slack < SLACK_RANK ? SLACK_RANK : slack < SLACK_RANK_MAX ? slack : SLACK_RANK_MAX;
}

/* Returns how many ranks are mixed: the stride if it is greater than the world. */
static uint64_t ranks(const struct track *t)
{
	return t->part.stride > t->part.world ? t->part.stride : t->part.world;
}

/* Limits a slack to half of the permutation, because in a short one half of a second job's files would else be near.
 * Without a shuffle, and in a tiny list, the whole counts: there workers at the other end are the same reader's. */
static uint64_t at_most(const struct track *t, uint64_t slack)
{
	bool whole = t->source.sampler == PREFETCH_SAMPLER_SORTED || t->size <= TINY;
	uint64_t most = whole ? t->size : t->size / 2;
	return slack < most ? slack : most;
}

/* Returns how far behind the farthest position late workers may be. */
static uint64_t behind(const struct track *t)
{
	uint64_t slack = t->size / 16;
	uint64_t least = SLACK_MIN + slack_rank(t) * ranks(t);
	return at_most(t, slack > least ? slack : least);
}

/* Returns how far ahead of it early workers may be. */
static uint64_t ahead(const struct track *t)
{
	return at_most(t, START_MIN + slack_rank(t) * ranks(t));
}

/* Whether an epoch is so short that the workers take all of it at once.  Then its opens lie anywhere in it, and only
 * their rank tells them from others. */
static bool few_turns(const struct track *t)
{
	return t->size <= TINY && t->part.world >= FEW_WORLD * t->part.ranks;
}

/* Returns the position below which a new epoch's first opens lie. */
static uint64_t start(const struct track *t)
{
	uint64_t start = START_MIN + slack_rank(t) * ranks(t);
	if (is_buffered(t))
		start = (buffer_room(t) + TRIAL_MAX) * t->part.world / t->part.ranks;
	uint64_t most = few_turns(t) ? t->size : t->size / 2;
	return start < most ? start : most;
}

static bool in_part(const struct track *t, uint64_t position)
{
	uint64_t residue = position % t->part.world;
	return residue >= t->part.first && residue - t->part.first < t->part.ranks;
}

/* Position -> turn of the part, and back. */
static uint64_t turn_of(const struct track *t, uint64_t position)
{
	return position / t->part.world * t->part.ranks + position % t->part.world - t->part.first;
}

static uint64_t position_of(const struct track *t, uint64_t turn)
{
	return turn / t->part.ranks * t->part.world + t->part.first + turn % t->part.ranks;
}

uint64_t prefetch_track_turns_opened(const struct track *t)
{
	const struct prefetch_part *part = &t->part;
	uint64_t residue = t->high % part->world, rest = residue > part->first ? residue - part->first : 0;
	return t->high / part->world * part->ranks + (rest < part->ranks ? rest : part->ranks);
}

static bool same(const struct source *a, const struct source *b)
{
	return a->sampler == b->sampler && a->seed == b->seed && a->skip == b->skip && a->before == b->before &&
	       a->goes_on == b->goes_on && a->in_place == b->in_place && a->deal == b->deal &&
	       a->deal_kind == b->deal_kind && (a->buffer > 0) == (b->buffer > 0);
}

static bool shuffled(const struct source *source)
{
	return source->sampler >= PREFETCH_SAMPLER_DISTRIBUTED;
}

/* Whether the list is sorted and read in contiguous parts (parts.c). */
static bool in_parts(const struct track *t)
{
	return t->source.sampler == PREFETCH_SAMPLER_SORTED && t->source.seed > 0;
}

struct prefetch_shuffle prefetch_source_shuffle(const struct source *source)
{
	static const enum prefetch_shuffle_kind kinds[] = {
		[PREFETCH_SAMPLER_NUMPY] = PREFETCH_SHUFFLE_NUMPY,
		[PREFETCH_SAMPLER_NUMPY_RNG] = PREFETCH_SHUFFLE_NUMPY_RNG,
		[PREFETCH_SAMPLER_PYTHON] = PREFETCH_SHUFFLE_PYTHON,
		[PREFETCH_SAMPLER_PYTHON_SAMPLE] = PREFETCH_SHUFFLE_SAMPLE,
		[PREFETCH_SAMPLER_DALI] = PREFETCH_SHUFFLE_STD,
		[PREFETCH_SAMPLER_DALI_EPOCH] = PREFETCH_SHUFFLE_STD64,
	};
	return (struct prefetch_shuffle){
		.kind = prefetch_source_foreign(source) ? kinds[source->sampler] : PREFETCH_SHUFFLE_TORCH,
		.seed = source->seed,
		.step = source->step,
		.before = source->before,
		.goes_on = source->goes_on,
		.in_place = source->in_place,
	};
}

/* Deals a new permutation as the source says. */
static void deal(const struct track *t, struct prefetch_perm *perm)
{
	if (t->source.deal > 1)
		prefetch_perm_deal(perm, &(struct parts){ .world = t->source.deal, .kind = t->source.deal_kind });
}

/* Makes the permutation of a new track.  mt: where it begins, or NULL. */
static int first_perm(struct track *t, const struct shard_mt19937 *mt)
{
	struct prefetch_shuffle shuffle = prefetch_source_shuffle(&t->source);
	uint32_t n = (uint32_t)t->size;
	int rc = 0;
	if (prefetch_source_foreign(&t->source))
		rc = prefetch_perm_new_shuffled(n, &shuffle, &t->perm);
	else if (mt)
		rc = prefetch_perm_new(n, mt, 0, &t->perm);
	else if (in_parts(t))
		rc = prefetch_parts_perm(&(struct parts){ .n = n }, &t->perm);
	if (rc == 0 && t->perm)
		deal(t, t->perm);
	return rc;
}

/* Returns the source that is expected in the epoch after `source`. */
static struct source successor(const struct source *source)
{
	struct source next = *source;
	switch (source->sampler) {
	case PREFETCH_SAMPLER_SORTED:
	case PREFETCH_SAMPLER_UNSEEDED:
		break;
	case PREFETCH_SAMPLER_OWN:
	case PREFETCH_SAMPLER_DISTRIBUTED:
		next.seed += (uint32_t)source->step;
		next.name = next.seed;
		break;
	case PREFETCH_SAMPLER_GENERATOR:
		if (prefetch_source_goes_on(source)) {
			next.skip += source->step;
			break;
		}
		next.seed = (uint32_t)(next.seed + source->step);
		next.name += source->step;
		break;
	case PREFETCH_SAMPLER_RANDOM: {
		struct shard_mt19937 mt;
		next.word += source->step;
		prefetch_torch_seek(&mt, (uint32_t)source->name, next.word);
		next.seed = shard_mt19937_next32(&mt);
		break;
	}
	case PREFETCH_SAMPLER_NUMPY:
	case PREFETCH_SAMPLER_NUMPY_RNG:
	case PREFETCH_SAMPLER_PYTHON:
	case PREFETCH_SAMPLER_PYTHON_SAMPLE:
	case PREFETCH_SAMPLER_DALI:
	case PREFETCH_SAMPLER_DALI_EPOCH:
		next.seed += next.goes_on ? 0 : next.step;
		next.name = next.seed;
		next.before += next.goes_on || next.in_place;
		break;
	}
	return next;
}

/* Tells whether the generator of each epoch is seeded anew, and its shuffle begins with the list. */
static bool is_seeded_by_epoch(const struct source *source)
{
	if (prefetch_source_foreign(source))
		return !source->goes_on && !source->in_place;
	return source->sampler == PREFETCH_SAMPLER_DISTRIBUTED ||
	       (source->sampler == PREFETCH_SAMPLER_GENERATOR && !prefetch_source_goes_on(source));
}

int prefetch_track_perm(const struct track *t, unsigned ahead, struct prefetch_perm **ret_perm)
{
	struct source source = t->source;
	struct shard_mt19937 mt;
	if (!is_seeded_by_epoch(&source) || !t->perm)
		return -ENOENT;
	for (unsigned i = 0; i < ahead; i++)
		source = successor(&source);
	struct prefetch_shuffle shuffle = prefetch_source_shuffle(&source);
	if (prefetch_source_foreign(&source))
		return prefetch_perm_new_next(t->perm, &shuffle, ret_perm);
	prefetch_torch_seek(&mt, (uint32_t)source.seed, source.skip);
	int rc = prefetch_perm_new((uint32_t)t->size, &mt, 0, ret_perm);
	if (rc == 0)
		deal(t, *ret_perm);
	return rc;
}

static int sequence_new(const struct prefetch_recognise *r, const struct track *t, const struct source *source,
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

/* Finds the track whose next epoch this is: the source was expected of it, or it is on this list and silent since the
 * ring began. */
static struct track *predecessor(
        struct prefetch_recognise *r, const struct source *source, const struct prefetch_list *list, uint64_t size)
{
	for (unsigned i = 0; i < r->n_tracks && !r->restoring; i++) {
		struct track *t = r->tracks[i];
		if (t->list == list && t->size == size && t->has_next && same(&t->next_source, source))
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
	t->confirmed = old->has_next && same(&old->next_source, &t->source);
	if (t->source.sampler == PREFETCH_SAMPLER_RANDOM && old->source.sampler == PREFETCH_SAMPLER_RANDOM &&
	        t->source.name == old->source.name && t->source.word > old->source.word) {
		t->source.step = t->source.word - old->source.word;
		t->source.learned = true;
	}
	if (is_seeded_anew(&t->source, &old->source)) {
		t->source.step = PREFETCH_RESEED_MAX;
		t->source.learned = true;
	}
	if (same(&t->source, &old->source) && shuffled(&t->source))
		t->repeated++;
}

/* Changes which positions a track reads. */
static int set_part(const struct prefetch_recognise *r, struct track *t, const struct prefetch_part *part)
{
	struct prefetch_part old = t->part;
	struct prefetch_sequence *now;
	t->part = *part;
	int rc = sequence_new(r, t, &t->source, t->perm, t->epoch, &now);
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
		        (same(&t->source, source) || (t->epoch > 0 && same(&t->before_source, source) && active(r, t))))
			return t;
	}
	return NULL;
}

static int enter_again(struct prefetch_recognise *r, struct track *t);

/* The search has found a permutation that a track follows.  If most opens are of used positions, its trainer reads the
 * permutation again.  Else the track did not expect opens of its own trainer, and takes them in. */
static int found_again(struct prefetch_recognise *r, struct track *t, const struct source *source)
{
	static const struct prefetch_part all = { .world = 1, .ranks = 1, .stride = 1 };
	uint32_t used = 0, hits = 0;
	uint64_t position;
	int rc = 0;
	for (uint32_t i = 0; i < r->n_ring && same(&t->source, source); i++) {
		if (prefetch_sequence_position(t->now, r->ring[i], &position) < 0)
			continue;
		hits++;
		used += bit_get(t->used, position);
	}
	if (hits > 0 && used * 4 >= hits * 3) {
		rc = enter_again(r, t);
	} else if (hits > 0) {
		for (uint32_t i = 0; i < r->n_ring; i++) {
			if (prefetch_sequence_position(t->now, r->ring[i], &position) == 0)
				bit_set(t->used, position);
		}
		t->last_open = r->opens;
		rc = t->part.world > 1 ? set_part(r, t, &all) : 0;
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
		rc = first_perm(t, mt);
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
	uint64_t slack = slack_rank(t) * ranks(t), end = t->high > slack ? t->high - slack : 0;
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

/* Whether enough of the SUPPORT turns just before it (or ahead of it), or of the same reader's turns there, were
 * opened.  One or two are not enough, because a second job's files lie anywhere, and sometimes two are close
 * together. */
static bool supported(const struct track *t, uint64_t position, bool ahead_of_it, uint32_t least)
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

static bool joins(const struct track *t, uint64_t position, bool ahead_of_it)
{
	return supported(t, position, ahead_of_it, SUPPORT_MIN);
}

bool prefetch_track_next_same(const struct track *t)
{
	return t->has_next ? same(&t->next_source, &t->source) : t->source.step == 0;
}

static int begin_next(struct track *t)
{
	t->next_source = successor(&t->source);
	t->has_next = true;
	if (!shuffled(&t->source) || same(&t->source, &t->next_source)) {
		t->next = t->perm ? prefetch_perm_get(t->perm) : NULL;
		return 0;
	}
	if (prefetch_source_foreign(&t->source)) {
		struct prefetch_shuffle shuffle = prefetch_source_shuffle(&t->next_source);
		return prefetch_perm_new_next(t->perm, &shuffle, &t->next);
	}
	struct shard_mt19937 mt = t->perm->rng.mt;
	bool goes_on = prefetch_source_goes_on(&t->source);
	if (!goes_on)
		prefetch_torch_seek(&mt, (uint32_t)t->next_source.seed, t->next_source.skip);
	int rc = prefetch_perm_new((uint32_t)t->size, &mt, goes_on ? t->source.step - (t->size - 1) : 0, &t->next);
	if (rc == 0)
		deal(t, t->next);
	return rc;
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
	uint64_t end = t->high > behind(t) ? t->high - behind(t) : 0;
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

/* Finds part and pace again, because more opens say more.  The part grows if opens outside of it follow one another,
 * which a second job's do not.  It shrinks only by positions that are behind every worker. */
static void refit(struct prefetch_recognise *r, struct track *t)
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
		set_part(r, t, &seen);
		r->changed = true;
	} else if (apart) {
		set_part(r, t, &settled);
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
		if (in_part(t, position) && bit_get(t->used, position) && supported(t, position, false, SUPPORT / 2))
			end = position + 1;
	}
	return end;
}

/* The ring has what others opened before this trainer began, too.  Those opens lie anywhere in the permutation.  Some
 * support each other, so that the farthest may be thousands of positions ahead of the trainer.  Forgets what lies
 * beyond the positions that are dense, and was opened before the trainer began.  Then only the trainer's own workers
 * are ahead.  If the farthest is farther ahead than workers can be, it forgets all that lie there. */
static void forget_strangers(struct track *t)
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
	if (t->high - end > slack_rank(t) * ranks(t))
		forget_beyond(t, end, t->n_recent);
}

/* Others' opens may have filled the ring before this trainer began.  The search found the trainer in the latest opens.
 * If fewer than twice as many opens as by chance lie beyond the dense positions and its window, these are others'.
 * Then the track forgets them.  After that, catch_up() finds the place of a trainer who has gone on. */
static void forget_ring_of_strangers(struct track *t, uint64_t window)
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

/* Takes out of the ring what a track has caught up with. */
static void forget_caught_up(struct prefetch_recognise *r)
{
	uint32_t kept = 0;
	for (uint32_t i = 0; i < r->n_ring; i++) {
		if (bit_get(r->seen, r->ring[i]))
			r->ring[kept++] = r->ring[i];
	}
	r->n_ring = kept;
}

/* Takes in what was opened before the buffer was recognised: the ring may have been filled long after its beginning. */
static void catch_up_buffer(struct prefetch_recognise *r, struct track *t)
{
	uint64_t position;
	uint32_t file;
	for (uint64_t turn = 0; turn < buffer_end(t); turn++) {
		if (prefetch_sequence_file(t->now, turn, &file) < 0 || !bit_get(r->seen, file))
			continue;
		position = position_of(t, turn);
		if (prefetch_track_fit(t, file, &position) == TRACK_FITS) {
			bit_clear(r->seen, file);
			prefetch_track_open(r, t, file, position, TRACK_FITS);
		}
	}
	forget_caught_up(r);
}

/* Finds how far the trainer is, if recognition took long.  The trainer is far ahead of what the ring could hold.
 * `seen` has what it opened, but also what others opened, who may read the same files in another order.  So the
 * trainer has come as far as most turns were opened.  Beyond that, one worker may be ahead of another.  There the
 * track takes those of the latest opens (before `n_recent`) that it would have expected, one by one. */
static void catch_up(struct prefetch_recognise *r, struct track *t, uint64_t n_recent)
{
	enum { LATELY = 32, MOST = LATELY * 3 / 4 };
	uint64_t position, lately = 0, begin = t->high, end = t->high;
	uint32_t file;
	for (uint64_t turn = 0; (position = position_of(t, turn)) < t->size && position < end + ahead(t); turn++) {
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
	forget_caught_up(r);
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
	forget_caught_up(r);
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
	int rc = t->used ? sequence_new(r, t, &t->source, perm, t->epoch, &t->now) : -ENOMEM;
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

/* Whether the opens are not those of a shuffle buffer: most lie elsewhere, it would hold half of the list, or the
 * farthest does not move on with each open.  A buffer of B files has not opened one of the latest k that it took in
 * with probability exp(-k^2 / 2B). */
static bool is_no_buffer(const struct track *t)
{
	uint64_t turns = prefetch_track_turns_opened(t), end = prefetch_sequence_turns(t->now);
	uint64_t taken = t->opened + t->held, late = taken > turns ? taken - turns : 0;
	if ((t->missed >= WRONG_LATEST && t->fitted * 2 < t->missed) || t->held > end / 2)
		return true;
	return taken < end && late > BUFFER_SPARE && late * late > UINT64_C(144) * t->held;
}

/* Whether a track is wrong: the list, or ddpfs's own order, is not read in its order.  Three signs show it:
 * - the opens are of other files of the list than expected
 * - several readers read in places far apart, because each has a part of the list.  If one of them was alone at first,
 *   it looked like a reader of the whole list
 * - the opens lie all over the list, and do not follow one another.
 * A restored track of any sampler is wrong by the first sign, too. */
static bool is_wrong(const struct prefetch_recognise *r, const struct track *t)
{
	uint64_t positions[RING];
	uint32_t indices[WRONG_LATEST];
	uint32_t n = t->n_recent < WRONG_LATEST ? (uint32_t)t->n_recent : WRONG_LATEST, stretches = 0;
	struct prefetch_part part;
	if (t->unverified && t->missed >= VERIFIED_OPENS && t->fitted * 2 < t->missed)
		return true;
	if (is_buffered(t))
		return is_no_buffer(t);
	if (t->missed >= WRONG_LATEST && t->fitted * WRONG_SHARE < t->missed)
		return t->source.sampler <= PREFETCH_SAMPLER_SORTED;
	/* Only opens since the track was made count.  Else track and search could alternate without any new open. */
	if (n < WRONG_OPENS || r->opens < t->made_at + WRONG_OPENS)
		return false;
	if (t->source.sampler != PREFETCH_SAMPLER_SORTED && t->source.sampler != PREFETCH_SAMPLER_OWN)
		return false;
	for (uint32_t i = 0; i < n; i++) {
		positions[i] = t->recent[(t->n_recent - n + i) % RING];
		stretches |= UINT32_C(1) << (positions[i] * WRONG_STRETCHES / t->size);
	}
	prefetch_part(positions, n, &part);
	if (part.joined * 5 < n && __builtin_popcount(stretches) * 4 > WRONG_STRETCHES * 3)
		return true;
	if (t->source.sampler != PREFETCH_SAMPLER_SORTED || t->perm)
		return false;
	for (uint32_t i = 0; i < n; i++)
		indices[i] = (uint32_t)positions[i];
	if (t->part.world == 1 && prefetch_search_in_parts((uint32_t)t->size, indices, n))
		return true;
	uint64_t apart = t->size / 8 < APART_MAX ? t->size / 8 : APART_MAX;
	if (apart < APART_MIN)
		return false;
	qsort(positions, n, sizeof(*positions), base_compare_u64);
	for (uint32_t i = n / 8; i < n - n / 8; i++) {
		if (i > 0 && positions[i] - positions[i - 1] > apart)
			return true;
	}
	return false;
}

/* Takes the track out of the list of tracks. */
static void take_out(struct prefetch_recognise *r, const struct track *t)
{
	unsigned at = 0;
	while (r->tracks[at] != t)
		at++;
	for (r->n_tracks--; at < r->n_tracks; at++)
		r->tracks[at] = r->tracks[at + 1];
}

/* Several ranks, each with a contiguous part, looked like one reader of the whole list, because one came first and
 * alone.  Makes the track of all of them, if the opened files say which parts they are.  Returns false if not. */
static bool divide(struct prefetch_recognise *r, struct track *t)
{
	struct parts parts;
	if (t->source.sampler != PREFETCH_SAMPLER_SORTED || t->perm || is_buffered(t) ||
	        !prefetch_begun_parts(t->used, (uint32_t)t->size, &parts))
		return false;
	struct source source = { .sampler = PREFETCH_SAMPLER_SORTED, .seed = parts.world, .skip = parts.kind };
	struct prefetch_part all = { .world = 1, .ranks = 1, .stride = parts.world };
	struct prefetch_fit fit = { .world = 1, .ranks = 1, .score = t->score };
	if (prefetch_recognise_refused(r, &source, t->list))
		return false;
	take_out(r, t);
	r->restoring = true; /* it continues this track, and no other; so it comes last */
	int rc = prefetch_track_new(r, &source, t->list, NULL, &fit, &all);
	r->restoring = false;
	if (rc < 0) {
		r->tracks[r->n_tracks++] = t;
		return false;
	}
	struct track *made = r->tracks[r->n_tracks - 1];
	for (uint32_t i = 0; i < t->size; i++) {
		if (!bit_get(t->used, i))
			continue;
		uint64_t position = prefetch_parts_place(&parts, i);
		bit_set(made->used, position);
		made->high = position >= made->high ? position + 1 : made->high;
	}
	made->began = made->high;
	made->opens = t->opens;
	made->epoch = t->epoch;
	made->after = t->after;
	r->wrong++;
	prefetch_track_free(t);
	return true;
}

/* Drops a wrong track.  Its latest opens go to the ring again, but no older ones, which may have been right. */
static void drop(struct prefetch_recognise *r, struct track *t)
{
	uint32_t files[WRONG_LATEST], n = 0;
	uint64_t n_recent = t->n_recent < WRONG_LATEST ? t->n_recent : WRONG_LATEST;
	for (uint64_t i = 0; i < n_recent; i++) {
		uint64_t position = t->recent[(t->n_recent - n_recent + i) % RING];
		uint32_t index = (uint32_t)position;
		int rc;
		if (t->source.sampler == PREFETCH_SAMPLER_OWN)
			rc = r->own.at(r->own.user, t->source.seed, position, &files[n]);
		else
			rc = prefetch_list_at(t->list, t->perm ? t->perm->at[position] : index, &files[n]);
		n += rc == 0;
	}
	take_out(r, t);
	r->refused[r->wrong++ % REFUSED_MAX] = (struct refused){
		.list = t->list,
		.sampler = t->source.sampler,
		.seed = t->source.seed,
		.buffered = is_buffered(t),
		.opens = r->opens,
	};
	prefetch_track_free(t);
	prefetch_recognise_collect_anew(r, files, n);
}

/* Whether the track's latest opens lie where more turns were opened than a clip has. */
static bool reads_on(const struct track *t)
{
	uint64_t n = t->n_recent < RING ? t->n_recent : RING, turns = prefetch_track_turns_opened(t), longer = 0;
	for (uint64_t i = 0; i < n; i++) {
		uint64_t position = t->recent[i], turn = in_part(t, position) ? turn_of(t, position) : 0, used = 0;
		uint64_t from = turn > CLIPS_LONGER ? turn - CLIPS_LONGER : 0, to = turn + CLIPS_LONGER;
		for (uint64_t k = from; k <= to && k < turns; k++)
			used += bit_get(t->used, position_of(t, k));
		longer += used > CLIPS_LONGER;
	}
	return longer * 2 > n;
}

bool prefetch_track_drop_clips(struct prefetch_recognise *r)
{
	for (unsigned i = 0; i < r->n_tracks; i++) {
		struct track *t = r->tracks[i];
		if (!shuffled(&t->source) && !is_buffered(t) && !reads_on(t)) {
			drop(r, t);
			return true;
		}
	}
	return false;
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
		int rc = sequence_new(r, t, &t->source, t->perm, t->epoch, &t->now);
		if (rc < 0)
			return rc;
		bool late = r->n_ring == RING || t->source.sampler == PREFETCH_SAMPLER_UNSEEDED;
		uint64_t n_recent = r->n_recent; /* sifting keeps `recent`, but sets its count to 0 */
		uint64_t window = t->window;
		if (is_buffered(t))
			catch_up_buffer(r, t);
		prefetch_recognise_sift(r);
		t->window = 0;
		if (late && window > 0)
			forget_ring_of_strangers(t, window);
		if (late && !is_buffered(t))
			catch_up(r, t, n_recent);
		else if (shuffled(&t->source))
			forget_strangers(t);
		return 1;
	}
	int resized = prefetch_sample_size_step(r, t);
	if (resized != 0)
		return resized;
	if (t->n_recent >= t->refit_at && divide(r, t))
		return 1;
	if ((t->n_recent >= t->refit_at || t->missed >= WRONG_LATEST || t->unverified) && is_wrong(r, t)) {
		if (!divide(r, t))
			drop(r, t);
		return 1;
	}
	if (t->missed >= WRONG_LATEST)
		t->missed = t->fitted = 0;
	if (t->n_recent >= t->refit_at || t->outside >= GROW) {
		refit(r, t);
		if (r->changed)
			prefetch_recognise_sift(r);
		return 1;
	}
	if (t->then || (t->source.sampler == PREFETCH_SAMPLER_UNSEEDED && !t->has_next))
		return 0;
	if (!t->has_next) {
		int rc = begin_next(t);
		if (rc < 0)
			t->has_next = false;
		return rc < 0 ? rc : 1;
	}
	if (t->next && prefetch_perm_step(t->next, SLICE_ITEMS))
		return 1;
	int rc = sequence_new(r, t, &t->next_source, t->next, t->epoch + 1, &t->then);
	return rc < 0 ? rc : 1;
}

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
	if (shuffled(&t->source) && same(&t->source, &t->next_source))
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

static int enter_again(struct prefetch_recognise *r, struct track *t)
{
	struct prefetch_sequence *now;
	int rc = sequence_new(r, t, &t->source, t->perm, t->epoch + 1, &now);
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
	double share = (double)t->part.ranks / t->part.world, first = (double)start(t) * share;
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
	if (in_part(t, position) && position < start(t) && bit_get(t->used, position))
		t->trial_again++;
	if (t->then && prefetch_sequence_position(t->then, file, &next) == 0 && in_part(t, next) && next < start(t))
		t->trial_next++;
	t->trial_at[t->trial - 1] = position;
	if ((begins(t, t->trial_next, t->size) || (t->then && begins_in_order(t))) && enter_next(r, t) == 0)
		return true;
	/* An open where nothing was opened yet is expected.  So unexpected opens of a second job lie below `high`. */
	if (begins(t, t->trial_again, t->high) && enter_again(r, t) == 0)
		return true;
	if (t->trial == TRIAL_MAX) {
		t->trial = 0;
		r->astray = true;
	}
	return false;
}

static bool is_near(const struct track *t, uint64_t position)
{
	return position + behind(t) >= t->high && position < t->high + ahead(t);
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
	return in_part(t, position) && !bit_get(t->used, position) && turn_of(t, position) < buffer_end(t);
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
	if (!(sure || is_near(t, position)) || !in_part(t, position) || bit_get(t->used, position))
		return TRACK_NOT;
	bool next = position >= t->high && position < t->high + t->part.world;
	if (sure || next || joins(t, position, false))
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
	if (is_taken_in(t))
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
		if (loose.position + SUPPORT * ranks(t) >= t->size || joins(t, loose.position, true)) {
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
	if (t->source.sampler == PREFETCH_SAMPLER_OWN && r->own.several && is_near(t, position) &&
	        bit_get(t->used, position))
		return true;
	if (opened_just_now(r, t, position))
		return true;
	if (is_near(t, position) && !bit_get(t->used, position)) {
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
