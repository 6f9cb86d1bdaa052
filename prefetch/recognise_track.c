/* A track: one recognised sampler, followed through its epochs.
 *
 * All in positions of the permutation.  An open is expected when it belongs to the ranks of the track, was not opened in
 * this epoch, and lies near the farthest position opened.  Opens of files of the list that are not expected are a
 * *trial*: when three quarters of them, and at least TRIAL_SURE, lie at the beginning of the permutation that is
 * expected next, or of this one again, then an epoch has begun.  A trial that shows neither leaves it to a search. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "prefetch/recognise_private.h"

enum {
	SLACK_MIN = 4096, /* positions: 16 workers x prefetch 2 x batch 128 */
	SLACK_RANK = 512, /* for each rank of the world */
	START_MIN = 2048,
	TRIAL_SURE = 16, /* at a chance of 1/8 each, 16 of 21 come by chance with 7e-11 */
	TRIAL_MAX = 32,
	SUPPORT = 16,
	CALM = 64, /* expected opens that end a trial */
	REFIT_FIRST = 64,
	REFIT_EVERY = 4096,
	REFIT_WORLD_MAX = 256,
};

/* Late workers. */
static uint64_t behind(const struct track *t)
{
	uint64_t slack = t->size / 16;
	uint64_t least = SLACK_MIN + (uint64_t)SLACK_RANK * t->part.world;
	slack = slack > least ? slack : least;
	return slack < t->size / 2 ? slack : t->size / 2;
}

/* Early ones. */
static uint64_t ahead(const struct track *t)
{
	uint64_t slack = START_MIN + (uint64_t)SLACK_RANK * t->part.world;
	return slack < t->size / 2 ? slack : t->size / 2;
}

/* Where a new epoch's first opens lie: at most an eighth of the positions, so that chance is one in eight. */
static uint64_t start(const struct track *t)
{
	uint64_t start = START_MIN + (uint64_t)SLACK_RANK * t->part.world;
	return start < t->size / 8 ? start : t->size / 8;
}

static bool in_part(const struct track *t, uint64_t position)
{
	uint64_t residue = position % t->part.world;
	return residue >= t->part.first && residue - t->part.first < t->part.ranks;
}

static bool same(const struct source *a, const struct source *b)
{
	return a->sampler == b->sampler && a->seed == b->seed && a->skip == b->skip;
}

static bool shuffled(const struct source *source)
{
	return source->sampler >= PREFETCH_SAMPLER_DISTRIBUTED;
}

/* What is expected after `source`. */
static struct source successor(const struct source *source)
{
	struct source next = *source;
	switch (source->sampler) {
	case PREFETCH_SAMPLER_SORTED:
		break;
	case PREFETCH_SAMPLER_OWN:
	case PREFETCH_SAMPLER_DISTRIBUTED:
		next.seed += (uint32_t)source->step;
		next.name = next.seed;
		break;
	case PREFETCH_SAMPLER_GENERATOR:
		next.skip += source->step;
		break;
	case PREFETCH_SAMPLER_RANDOM: {
		struct shard_mt19937 mt;
		next.word += source->step;
		prefetch_torch_seek(&mt, (uint32_t)source->name, next.word);
		next.seed = shard_mt19937_next32(&mt);
		break;
	}
	}
	return next;
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

/* A trainer that was known on this list and has fallen silent: this is its next epoch. */
static struct track *predecessor(struct prefetch_recognise *r, const struct prefetch_list *list, uint64_t size)
{
	for (unsigned i = 0; i < r->n_tracks; i++) {
		struct track *t = r->tracks[i];
		if (t->list == list && t->size == size && t->last_open <= r->ring_since + TRIAL_MAX)
			return t;
	}
	return NULL;
}

/* The track that has been silent longest. */
static void drop_one(struct prefetch_recognise *r)
{
	unsigned oldest = 0;
	for (unsigned i = 1; i < r->n_tracks; i++) {
		if (r->tracks[i]->last_open < r->tracks[oldest]->last_open)
			oldest = i;
	}
	prefetch_track_free(r->tracks[oldest]);
	r->n_tracks--;
	for (unsigned i = oldest; i < r->n_tracks; i++)
		r->tracks[i] = r->tracks[i + 1];
}

static void inherit(struct track *t, const struct track *old)
{
	t->id = old->id;
	t->generation = old->generation + 1;
	t->epoch = old->epoch + 1;
	t->opens = old->opens;
	t->repeated = old->repeated;
	if (t->source.sampler == PREFETCH_SAMPLER_RANDOM && old->source.sampler == PREFETCH_SAMPLER_RANDOM &&
	        t->source.name == old->source.name && t->source.word > old->source.word) {
		t->source.step = t->source.word - old->source.word;
		t->source.learned = true;
	}
	if (same(&t->source, &old->source) && shuffled(&t->source))
		t->repeated++;
}

/* The same permutation while it is still being read: by other ranks than were thought. */
static int widen(struct prefetch_recognise *r, struct track *t)
{
	struct prefetch_fit old = t->part;
	struct prefetch_sequence *now;
	t->part.world = t->part.ranks = 1;
	t->part.first = 0;
	int rc = sequence_new(r, t, &t->source, t->perm, t->epoch, &now);
	if (rc < 0) {
		t->part = old;
		return rc;
	}
	prefetch_sequence_put(t->now);
	prefetch_sequence_put(t->then);
	t->now = now;
	t->then = NULL;
	t->generation++;
	t->refit_at = t->n_recent + REFIT_FIRST;
	prefetch_recognise_sift(r);
	return 0;
}

static struct track *twin(struct prefetch_recognise *r, const struct source *source, const struct prefetch_list *list)
{
	for (unsigned i = 0; i < r->n_tracks; i++) {
		struct track *t = r->tracks[i];
		if (t->list == list && t->now && shuffled(source) && same(&t->source, source) &&
		        t->last_open > r->ring_since + TRIAL_MAX && t->part.world > 1)
			return t;
	}
	return NULL;
}

int prefetch_track_new(struct prefetch_recognise *r, const struct source *source, struct prefetch_list *list,
        const struct shard_mt19937 *mt, const struct prefetch_fit *part)
{
	struct track *t = twin(r, source, list);
	if (t)
		return widen(r, t);
	t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	t->source = *source;
	t->list = list ? prefetch_list_get(list) : NULL;
	t->size = list ? prefetch_list_size(list) : r->own.size;
	t->part = *part;
	t->high = part->low;
	t->last_open = r->opens;
	t->refit_at = REFIT_FIRST;
	t->score = part->score;
	t->after = r->n_ring;
	t->pace = (struct prefetch_pace){ .stride = 1, .workers = 1 };
	/* A loader's own generator gives the seed of its workers before each permutation. */
	if (source->sampler == PREFETCH_SAMPLER_GENERATOR && !source->learned)
		t->source.step = 2 * ((uint64_t)t->size - 1) + source->skip;
	t->used = calloc(t->size / 64 + 1, sizeof(*t->used));
	int rc = t->used ? 0 : -ENOMEM;
	if (rc == 0 && mt)
		rc = prefetch_perm_new((uint32_t)t->size, mt, 0, &t->perm);
	if (rc < 0) {
		prefetch_track_free(t);
		return rc;
	}
	struct track *old = predecessor(r, list, t->size);
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
		drop_one(r);
	t->id = r->next_id++;
	r->tracks[r->n_tracks++] = t;
	return 0;
}

void prefetch_track_free(struct track *t)
{
	if (!t)
		return;
	prefetch_sequence_put(t->now);
	prefetch_sequence_put(t->then);
	prefetch_perm_put(t->perm);
	prefetch_perm_put(t->next);
	prefetch_list_put(t->list);
	free(t->used);
	free(t);
}

static int begin_next(struct track *t)
{
	t->next_source = successor(&t->source);
	t->has_next = true;
	if (!shuffled(&t->source))
		return 0;
	if (t->source.sampler == PREFETCH_SAMPLER_GENERATOR)
		return prefetch_perm_new((uint32_t)t->size, &t->perm->mt, t->source.step - (t->size - 1), &t->next);
	struct shard_mt19937 mt;
	shard_mt19937_seed(&mt, t->next_source.seed);
	return prefetch_perm_new((uint32_t)t->size, &mt, 0, &t->next);
}

/* Looks again which ranks are read, and how: more opens tell more. */
static void refit(struct prefetch_recognise *r, struct track *t)
{
	uint64_t positions[RING], turns[RING];
	uint32_t n = t->n_recent < RING ? (uint32_t)t->n_recent : RING, n_turns = 0;
	struct prefetch_fit fit;
	t->refit_at = t->n_recent + (t->n_recent < REFIT_EVERY ? t->n_recent : REFIT_EVERY);
	for (uint32_t i = 0; i < n; i++)
		positions[i] = t->recent[(t->n_recent - n + i) % RING];
	struct prefetch_fit_input input = {
		.positions = positions,
		.n = n,
		.size = t->size,
		.chance = n < t->size / 2 ? (double)n / (double)t->size : 0.5,
		.anywhere = true,
		.world_max = t->part.world > REFIT_WORLD_MAX ? 1 : REFIT_WORLD_MAX,
	};
	if (input.world_max > 1 && prefetch_fit(&input, &fit) && fit.score >= PREFETCH_FIT_SURE &&
	        (fit.world != t->part.world || fit.first != t->part.first || fit.ranks != t->part.ranks)) {
		struct prefetch_sequence *now = NULL;
		struct prefetch_fit old = t->part;
		t->part = fit;
		if (sequence_new(r, t, &t->source, t->perm, t->epoch, &now) < 0) {
			t->part = old;
			return;
		}
		prefetch_sequence_put(t->now);
		prefetch_sequence_put(t->then);
		t->now = now;
		t->then = NULL; /* made again from the same permutation */
		t->generation++;
	}
	for (uint32_t i = 0; i < n; i++) {
		if (in_part(t, positions[i]))
			turns[n_turns++] = positions[i] / t->part.world * t->part.ranks + positions[i] % t->part.world -
			                   t->part.first;
	}
	prefetch_pace(turns, n_turns, &t->pace);
}

int prefetch_track_step(struct prefetch_recognise *r, struct track *t)
{
	if (!t->now) {
		if (t->perm && prefetch_perm_step(t->perm, SLICE_ITEMS))
			return 1;
		int rc = sequence_new(r, t, &t->source, t->perm, t->epoch, &t->now);
		if (rc < 0)
			return rc;
		prefetch_recognise_sift(r);
		return 1;
	}
	if (t->n_recent >= t->refit_at) {
		refit(r, t);
		return 1;
	}
	if (t->then)
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

static void begin_epoch(struct track *t)
{
	memset(t->used, 0, (t->size / 64 + 1) * sizeof(*t->used));
	t->high = 0;
	t->n_recent = 0;
	t->refit_at = REFIT_FIRST;
	t->epoch++;
	t->trial = t->trial_next = t->trial_again = 0;
}

static int enter_next(struct prefetch_recognise *r, struct track *t)
{
	prefetch_sequence_put(t->now);
	prefetch_perm_put(t->perm);
	if (shuffled(&t->source) && same(&t->source, &t->next_source))
		t->repeated++;
	t->now = t->then;
	t->perm = t->next;
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
	prefetch_sequence_put(t->now);
	t->now = now;
	/* The seed that was expected next is not: the same once more is. */
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

/* A file of the list that is not expected: does an epoch begin?  True when it has. */
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
	if (t->trial_next >= TRIAL_SURE && t->trial_next * 4 >= t->trial * 3)
		return enter_next(r, t) == 0;
	if (t->trial_again >= TRIAL_SURE && t->trial_again * 4 >= t->trial * 3)
		return enter_again(r, t) == 0;
	if (t->trial == TRIAL_MAX) {
		t->trial = 0;
		r->astray = true;
	}
	return false;
}

/* A second job's files fall anywhere in this permutation, some of them a little ahead, and would carry `high` away.  A
 * reader who is there has opened one of the last few turns before, too. */
static bool supported(const struct track *t, uint64_t position)
{
	uint64_t turn = position / t->part.world * t->part.ranks + position % t->part.world - t->part.first;
	for (uint64_t back = 1; back <= SUPPORT && back <= turn; back++) {
		uint64_t before = turn - back;
		if (bit_get(t->used, before / t->part.ranks * t->part.world + t->part.first + before % t->part.ranks))
			return true;
	}
	return false;
}

bool prefetch_track_open(struct prefetch_recognise *r, struct track *t, uint32_t file)
{
	uint64_t position;
	if (!t->now || prefetch_sequence_position(t->now, file, &position) < 0)
		return false;
	bool near = position + behind(t) >= t->high && position < t->high + ahead(t);
	if (!near || !in_part(t, position) || bit_get(t->used, position)) {
		if (near && !bit_get(t->used, position))
			t->recent[t->n_recent++ % RING] = position;
		if (!unexpected(r, t, file, position))
			return false;
		return prefetch_track_open(r, t, file); // NOLINT(misc-no-recursion): once, in the new epoch
	}
	bit_set(t->used, position);
	t->recent[t->n_recent++ % RING] = position;
	t->opens++;
	t->last_open = r->opens;
	if (position >= t->high && (position < t->high + t->part.world || supported(t, position)))
		t->high = position + 1;
	if (t->trial > 0 && ++t->calm == CALM)
		t->trial = 0;
	return true;
}
