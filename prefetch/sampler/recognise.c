/* SPDX-License-Identifier: Apache-2.0 */
/* The recogniser: takes in opens, keeps the ring, shares its time among tracks, look and seeds; recognise.h first. */
#include "prefetch/sampler/recognise.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "prefetch/sampler/recognise_private.h"

enum {
	AGAIN_MIN = 4,        /* a new pass begins if so many of 64 opens are of files seen in this pass */
	AGAIN_STEEP = 8,      /* an epoch begins if they are so many times as dense as before in the pass */
	AGAIN_MAX = 56,       /* ... or if there are so many of them */
	LEFT_OVER = 8 * RING, /* opens that were all explained: what the ring has is older than their epochs */
	LATEST_SHARE = 16,    /* a file counts once within this share of all files */
	PATIENCE_MIN = RING,
	PATIENCE_MAX = 1 << 16,
	OPENS_ENDED_NS = 1000000000, /* opens have ended if none came for this time */
	RESERVE = 4,                 /* a share of a burst for likely seeds */
	TOGETHER_MAX = 8,            /* files of a sample that are opened together */
	FILL_MAX_NS = 1000000000,    /* a pause between two steps fills the budget for this time at most */
};

int prefetch_recognise_new(const struct prefetch_recognise_options *options, struct prefetch_recognise **ret_recognise)
{
	if (options->n_given > PREFETCH_GIVEN_MAX || options->scan_threads > PREFETCH_SEED_SCAN_THREADS_MAX)
		return -EINVAL;
	struct prefetch_recognise *r = calloc(1, sizeof(*r));
	if (!r)
		return -ENOMEM;
	r->options = *options;
	r->options.given = NULL;
	r->unseeded.scanned = options->scanned;
	r->unseeded.scanned.running = false;
	r->patience = PATIENCE_MIN;
	r->n_files = shard_index_info(options->index)->n_files;
	if (r->options.seed_max == 0)
		r->options.seed_max = PREFETCH_SEED_MAX_DEFAULT;
	if (r->options.shuffle_max == 0)
		r->options.shuffle_max = r->options.seed_max;
	if (r->options.popular_words == 0)
		r->options.popular_words = PREFETCH_POPULAR_WORDS_DEFAULT;
	if (options->own) {
		r->own = *options->own;
		r->options.own = &r->own;
	}
	r->budget.left_ns = (int64_t)options->search_burst_ns;
	int rc = prefetch_search_init(&r->search);
	if (rc == 0)
		rc = prefetch_seeds_init(&r->likely.seeds);
	if (rc == 0)
		rc = prefetch_background_init(r);
	r->seen = calloc((size_t)r->n_files / 64 + 1, sizeof(*r->seen));
	if (!r->seen)
		rc = -ENOMEM;
	for (unsigned i = 0; rc == 0 && i < options->n_given; i++) {
		rc = prefetch_list_new_given(&options->given[i], &r->lists[r->n_lists]);
		if (rc == 0)
			r->n_lists++;
	}
	if (rc < 0) {
		prefetch_recognise_free(r);
		return rc;
	}
	*ret_recognise = r;
	return 0;
}

void prefetch_recognise_free(struct prefetch_recognise *r)
{
	if (!r)
		return;
	prefetch_background_done(r);
	prefetch_unseeded_end(r);
	prefetch_search_done(&r->search);
	prefetch_seeds_done(&r->likely.seeds);
	for (unsigned i = 0; i < r->n_tracks; i++)
		prefetch_track_free(r->tracks[i]);
	for (unsigned i = 0; i < r->n_lists; i++)
		prefetch_list_put(r->lists[i]);
	for (unsigned i = 0; i < r->n_shuffled; i++)
		prefetch_list_put(r->shuffled[i]);
	for (unsigned i = 0; i < r->n_part_lists; i++)
		prefetch_list_put(r->part_lists[i]);
	prefetch_filters_done(&r->filters);
	free(r->seen);
	free(r);
}

static uint64_t cpu_ns(const struct prefetch_recognise *r)
{
	return r->options.cpu_ns ? r->options.cpu_ns(r->options.user) : base_thread_cpu_ns();
}

static uint64_t elapsed_ns(const struct prefetch_recognise *r)
{
	return r->options.elapsed_ns ? r->options.elapsed_ns(r->options.user) : base_now_ns();
}

/* ---- the budget ---- */

static bool bounded(const struct prefetch_recognise *r)
{
	return r->options.search_burst_ns > 0;
}

/* What an open counts for.  A trainer opens all files of a sample together, and its sampler orders samples.  So a
 * sample of several files counts once, and the file of it that comes first stands for it.  All else counts by file, and
 * so do samples of many files, such as the pictures of a video: of these a trainer may take some. */
static uint64_t opened_unit(const struct prefetch_recognise *r, uint32_t file)
{
	const uint64_t of_sample = UINT64_C(1) << 32;
	struct shard_place place;
	uint32_t files[TOGETHER_MAX], n;
	if (!shard_index_info(r->options.index)->grouped || shard_index_place(r->options.index, file, &place) < 0 ||
	        place.sample == SHARD_NONE ||
	        shard_index_sample_files(r->options.index, place.sample, files, TOGETHER_MAX, &n) < 0)
		return file;
	return of_sample | place.sample;
}

/* Whether a reader opened the file, or another one of its sample, a moment ago.  Readers look at a header first, or try
 * again, and others open files in between.  If there are few files, only the latest few count, because the next epoch
 * may open a file again so soon. */
static bool opened_just_now(const struct prefetch_recognise *r, uint64_t unit)
{
	const struct shard_info *info = shard_index_info(r->options.index);
	uint64_t units = info->grouped ? info->n_samples : info->n_files;
	uint64_t most = units / LATEST_SHARE < LATEST ? units / LATEST_SHARE + 1 : LATEST;
	uint64_t n = r->n_latest < most ? r->n_latest : most;
	for (uint64_t i = 1; i <= n; i++) {
		if (r->latest[(r->n_latest - i) % LATEST] == unit)
			return true;
	}
	return false;
}

static bool expected(struct prefetch_recognise *r, uint32_t file, bool loosely)
{
	struct track *best = NULL;
	enum track_fit best_fit = TRACK_NOT;
	uint64_t position, best_position = 0;
	for (unsigned i = 0; i < r->n_tracks; i++) {
		enum track_fit fit = prefetch_track_fit(r->tracks[i], file, &position);
		if (fit <= best_fit)
			continue;
		best = r->tracks[i];
		best_fit = fit;
		best_position = position;
	}
	if (best_fit < (loosely ? TRACK_LOOSE : TRACK_LATE))
		return false;
	prefetch_track_open(r, best, file, best_position, best_fit);
	return true;
}

static bool explained(struct prefetch_recognise *r, uint32_t file)
{
	if (expected(r, file, true))
		return true;
	for (unsigned i = 0; i < r->n_tracks; i++) {
		if (prefetch_track_unexpected(r, r->tracks[i], file))
			return true;
	}
	return false;
}

static void ring_clear(struct prefetch_recognise *r)
{
	r->n_ring = r->looked = 0;
	if (r->search.running)
		r->likely.due = r->likely.far_due = false; /* their targets are half made */
	r->search.running = false;
}

/* Whether a look at the whole ring is done, and its seeds are not waiting: the next look would replace them. */
static bool is_looked_at(const struct prefetch_recognise *r)
{
	return r->n_ring == RING && r->looked == RING && !r->search.running && !r->likely.due;
}

/* Begins a pass: the new ring has the latest unexplained opens, `keep` at most, and those that will come. */
static void begin_pass(struct prefetch_recognise *r, uint32_t keep)
{
	uint64_t first = r->n_recent > keep ? r->n_recent - keep : 0;
	memset(r->seen, 0, ((size_t)r->n_files / 64 + 1) * sizeof(*r->seen));
	r->again = r->pass_repeats = r->pass_opens = 0;
	ring_clear(r);
	prefetch_search_end(r);
	prefetch_unseeded_end(r);
	r->unseeded.looked = false;
	r->rolling = false;
	r->overflow = 0;
	r->ring_since = r->opens;
	for (uint64_t i = first; i < r->n_recent; i++) {
		uint32_t file = r->recent[i % TAIL];
		r->ring[r->n_ring++] = file;
		bit_set(r->seen, file);
	}
}

/* Whether something was recognised, or may be: then track.c catches up with what `seen` has. */
static bool needs_seen(const struct prefetch_recognise *r)
{
	bool made = true;
	for (unsigned i = 0; i < r->n_tracks; i++)
		made = made && r->tracks[i]->now;
	return !made || r->unseeded.scan || (r->likely.running && !r->likely.tail) || prefetch_background_busy(r);
}

/* Begins a new ring.  While seeds are tried, and until their track is made, the pass goes on. */
static void begin_ring(struct prefetch_recognise *r)
{
	if (!needs_seen(r)) {
		begin_pass(r, RECENT);
		return;
	}
	ring_clear(r);
	r->overflow = 0;
	r->ring_since = r->opens;
	r->rolling = false;
}

/* Whether there is time for opens in the middle of an epoch.  To look there is rarely of use, so it leaves the reserve
 * (a quarter of the budget) to the first looks of the next epoch: otherwise an order that nobody knows would end the
 * search for all later ones.  While the thread tries all seeds, no more than the reserve is ever left. */
static bool may_look(const struct prefetch_recognise *r)
{
	return !bounded(r) || r->budget.left_ns >= (int64_t)r->options.search_burst_ns / RESERVE;
}

/* Forgets what the ring has if tracks have explained all of many opens since: it is left over from their epochs, and no
 * epoch begins with it. */
static void forget_left_over(struct prefetch_recognise *r)
{
	bool searches = r->search.running || prefetch_search_due(r) || r->likely.due;
	if (r->n_ring > 0 && r->opens - r->collected_at > LEFT_OVER && !searches) {
		r->n_recent = 0;
		begin_ring(r);
	}
	r->collected_at = r->opens;
}

/* Whether so many of the latest opens are of files seen in this pass that an epoch has begun.  A sampler that draws
 * files at random opens more and more files again.  Then earlier opens of the pass were of such files, too, and no
 * epoch has begun. */
static bool begins_epoch(const struct prefetch_recognise *r)
{
	uint64_t now = (uint64_t)__builtin_popcountll(r->again), earlier = r->pass_repeats - now;
	uint64_t span = 64 - (uint64_t)__builtin_clzll(r->again); /* opens since the first of these */
	uint64_t least = AGAIN_MIN + AGAIN_STEEP * span * earlier / (r->pass_opens + 1);
	return now >= (least < AGAIN_MAX ? least : AGAIN_MAX);
}

static void collect(struct prefetch_recognise *r, uint32_t file)
{
	forget_left_over(r);
	bool seen = bit_get(r->seen, file);
	r->recent[r->n_recent++ % TAIL] = file;
	r->tail.since++;
	r->again = r->again << 1 | seen;
	r->pass_repeats += seen;
	r->pass_opens++;
	/* Two jobs also open the same files.  So a ring that is due for a look stays until the look is done.  If the
	 * look waits for the budget, the new pass begins all the same. */
	bool waits = r->rolling && !may_look(r) && !prefetch_background_busy(r);
	bool looked = waits || (!r->search.running && !prefetch_search_due(r));
	if (__builtin_popcountll(r->again) >= AGAIN_MIN && r->n_recent >= RECENT && looked) {
		bool epoch = begins_epoch(r);
		begin_pass(r, 64 - (uint32_t)__builtin_clzll(r->again)); /* from the first of these on */
		r->rolling = !epoch;
		if (epoch)
			r->patience = PATIENCE_MIN;
		return;
	}
	if (seen)
		return;
	bit_set(r->seen, file);
	if (r->n_ring == 0)
		r->ring_since = r->opens;
	if (r->n_ring < RING) {
		r->ring[r->n_ring++] = file;
		return;
	}
	/* No hypothesis fits.  Look again from time to time, more and more rarely, with the likely hypotheses. */
	if (++r->overflow >= r->patience && is_looked_at(r)) {
		begin_ring(r);
		r->rolling = true;
		r->patience = r->patience < PATIENCE_MAX ? r->patience * 2 : PATIENCE_MAX;
	}
}

/* The trainer of a track does something else: the latest opens are its beginning. */
static void look_afresh(struct prefetch_recognise *r)
{
	r->astray = false;
	if (is_looked_at(r)) {
		begin_ring(r);
		r->patience = PATIENCE_MIN;
	}
}

/* Tracks are dropped at once, before they take in more clips. */
static void look_for_clips(struct prefetch_recognise *r, uint32_t file)
{
	bool before = r->clips.opened;
	if (r->n_files < CLIPS_DATASET_MIN)
		return;
	prefetch_clips_opened(&r->clips, file);
	if (!r->clips.opened || before)
		return;
	ring_clear(r); /* a look may have found a sorted reader */
	while (prefetch_track_drop_clips(r))
		;
}

void prefetch_recognise_opened(struct prefetch_recognise *r, const uint32_t *files, size_t n)
{
	if (n > 0 && bounded(r))
		r->budget.opened_ns = elapsed_ns(r);
	for (size_t i = 0; i < n; i++) {
		if (files[i] >= r->n_files)
			continue;
		r->opens++;
		uint64_t unit = opened_unit(r, files[i]);
		bool known = expected(r, files[i], false);
		if (!known && opened_just_now(r, unit)) {
			r->opens--;
			continue;
		}
		r->latest[r->n_latest++ % LATEST] = unit;
		look_for_clips(r, files[i]);
		known = known || explained(r, files[i]);
		if (r->changed)
			prefetch_recognise_sift(r);
		if (known) {
			r->explained++;
		} else {
			r->unexplained++;
			collect(r, files[i]);
		}
		uint32_t stranger;
		for (unsigned k = 0; k < r->n_tracks; k++) {
			while (prefetch_track_stranger(r, r->tracks[k], &stranger)) {
				r->explained -= r->explained > 0;
				collect(r, stranger);
			}
		}
		if (r->astray)
			look_afresh(r);
	}
}

void prefetch_recognise_pause(struct prefetch_recognise *r)
{
	r->n_latest = 0;
	r->pressing = true;
	if (r->n_ring < RING && r->looked < r->n_ring)
		return; /* a look at these opens is still to come */
	r->n_recent = 0;
	begin_ring(r);
}

void prefetch_recognise_rest(struct prefetch_recognise *r)
{
	prefetch_search_end(r);
	prefetch_unseeded_end(r);
}

void prefetch_recognise_go_on(struct prefetch_recognise *r)
{
	begin_pass(r, TAIL);
	r->patience = PATIENCE_MIN;
}

void prefetch_recognise_sift(struct prefetch_recognise *r)
{
	/* A track that changes while it is asked may explain opens that were kept before.  So ask again; each change
	 * takes opens from the ring, so this ends. */
	r->sifting = true;
	do {
		uint32_t kept = 0;
		r->changed = false;
		for (uint32_t i = 0; i < r->n_ring; i++) {
			if (!explained(r, r->ring[i]))
				r->ring[kept++] = r->ring[i];
			else
				bit_clear(r->seen, r->ring[i]);
		}
		bool fewer = kept < r->n_ring;
		r->n_ring = kept;
		if (!fewer)
			break;
	} while (r->changed);
	r->changed = r->astray = r->sifting = false;
	r->looked = 0;
	r->n_recent = 0;
	r->again = r->pass_repeats = r->pass_opens = 0;
	prefetch_search_end(r);
}

void prefetch_recognise_forget(struct prefetch_recognise *r)
{
	r->n_recent = 0;
	begin_pass(r, 0);
}

bool prefetch_recognise_refused(
        const struct prefetch_recognise *r, const struct source *source, const struct prefetch_list *list)
{
	for (unsigned i = 0; i < REFUSED_MAX; i++) {
		const struct refused *refused = &r->refused[i];
		if (refused->opens > 0 && refused->opens + REFUSED_OPENS > r->opens && refused->list == list &&
		        refused->sampler == source->sampler && refused->seed == source->seed &&
		        refused->buffered == (source->buffer > 0))
			return true;
	}
	return false;
}

void prefetch_recognise_collect_anew(struct prefetch_recognise *r, const uint32_t *files, uint32_t n)
{
	prefetch_recognise_forget(r);
	r->patience = PATIENCE_MIN;
	r->collected_at = r->opens;
	for (uint32_t i = 0; i < n && i < RING; i++) {
		if (bit_get(r->seen, files[i]))
			continue;
		bit_set(r->seen, files[i]);
		r->ring[r->n_ring++] = files[i];
	}
	r->unexplained += r->n_ring;
}

/* Adds to the budget what the time since the last call brings, up to a burst.  A quarter of it stays here, so that
 * likely seeds are tried at once.  While opens come, the rest goes to the thread that tries all seeds. */
static void fill_up(struct prefetch_recognise *r)
{
	struct budget *b = &r->budget;
	int64_t most = (int64_t)r->options.search_burst_ns, reserve = most / RESERVE;
	if (!bounded(r))
		return;
	uint64_t now = elapsed_ns(r), passed = b->at_ns ? now - b->at_ns : 0;
	bool open = now - b->opened_ns < OPENS_ENDED_NS;
	b->at_ns = now;
	b->left_ns += (int64_t)(passed < FILL_MAX_NS ? passed : FILL_MAX_NS) / 1000 * r->options.search_permille;
	if (r->background.has_thread && open && prefetch_background_busy(r) && b->left_ns > reserve &&
	        !r->likely.running) {
		prefetch_background_grant(r, b->left_ns - reserve);
		b->left_ns = reserve;
	}
	if (b->left_ns > most)
		b->left_ns = most;
}

static bool may_try(const struct prefetch_recognise *r, bool all)
{
	int64_t least = all ? (int64_t)r->options.search_burst_ns / RESERVE : 0;
	bool ended = all && r->budget.at_ns - r->budget.opened_ns >= OPENS_ENDED_NS;
	return !bounded(r) || (r->budget.left_ns > least && !ended);
}

/* ---- steps ---- */

/* WebDataset's buffer draws the numbers of random.sample: with a small seed it looks like a sample of the files with
 * which it was filled.  But of 96 opens some are of files that came later. */
static bool may_be_a_buffer(const struct likely *l)
{
	enum { SURE_OPENS = 96 };
	const struct match *match = &l->seeds.match;
	return l->also.list && match->source.sampler == PREFETCH_SAMPLER_PYTHON_SAMPLE &&
	       (l->opens < SURE_OPENS || match->n < l->also.opens);
}

/* Ends the run of likely seeds.  Those of the look that came meanwhile are next. */
static void next_likely(struct prefetch_recognise *r)
{
	struct likely *l = &r->likely;
	l->running = false;
	if (l->due)
		prefetch_search_seeds(r, SEEDS_LIKELY, l->far_due);
	l->due = l->far_due = false;
}

/* The likely seeds were tried in vain. */
static int give_up_likely(struct prefetch_recognise *r)
{
	struct likely *l = &r->likely;
	if (l->far && l->buffer.list)
		return prefetch_shuffle_buffer_accept(r, &l->buffer);
	int rc = l->middle ? 0 : prefetch_background_begin(r, l->far);
	bool all = l->far && !l->middle;
	l->far = false; /* all seeds have begun */
	if (rc == 0 && all)
		rc = prefetch_search_by_name(r);
	if (rc > 0)
		return rc;
	next_likely(r);
	return rc < 0 ? rc : 1;
}

/* Tries likely seeds.  What may be a shuffle buffer does not wait for all of them. */
static int step_likely(struct prefetch_recognise *r)
{
	struct likely *l = &r->likely;
	bool skip = prefetch_seeds_spare(&l->seeds) && (l->buffer.list || !may_try(r, true));
	enum seeds_result result = skip ? prefetch_seeds_skip(&l->seeds) : prefetch_seeds_step(&l->seeds);
	if (result == SEEDS_MORE)
		return 1;
	if (result == SEEDS_NONE || may_be_a_buffer(l))
		return give_up_likely(r);
	int rc = prefetch_search_accept(r, &l->seeds.match);
	return rc < 0 ? rc : 1;
}

/* A look at the beginning of an epoch costs little, so it does not wait for the budget; but it takes its time from the
 * budget of the seeds. */
static int step_look(struct prefetch_recognise *r)
{
	if (r->search.running)
		return prefetch_search_step(r);
	int rc = prefetch_lists_step(r);
	if (rc == 0)
		rc = prefetch_search_begin(r);
	return rc < 0 ? rc : 1;
}

static int step_search(struct prefetch_recognise *r)
{
	if (r->search.running || (prefetch_search_due(r) && (!r->rolling || may_look(r))))
		return step_look(r);
	/* Seeds of opens in the middle of an epoch wait for their time.  An epoch that begins does not wait. */
	if (r->likely.running && r->likely.middle && r->likely.due && !r->rolling && !may_look(r))
		next_likely(r);
	if (r->likely.running)
		return (r->likely.middle ? may_look(r) : may_try(r, false)) ? step_likely(r) : PREFETCH_RECOGNISE_LATER;
	if (prefetch_search_tail_due(r) && may_look(r)) {
		prefetch_search_tail_begin(r);
		return 1;
	}
	bool here = !r->background.has_thread && prefetch_background_busy(r);
	if (here && !may_try(r, true))
		return 0;
	return prefetch_background_step(r);
}

static int slice(struct prefetch_recognise *r)
{
	for (unsigned i = 0; i < r->n_tracks; i++) {
		int rc = prefetch_track_step(r, r->tracks[i]);
		if (rc != 0)
			return rc;
	}
	int rc = prefetch_unseeded_step(r);
	if (rc != 0)
		return rc;
	uint64_t start = cpu_ns(r);
	rc = step_search(r);
	uint64_t took = cpu_ns(r) - start;
	r->search_ns += took;
	if (bounded(r))
		r->budget.left_ns -= (int64_t)took;
	return rc;
}

int prefetch_recognise_step(struct prefetch_recognise *r, uint64_t max_ns)
{
	uint64_t end = cpu_ns(r) + max_ns;
	fill_up(r);
	for (;;) {
		int rc = slice(r);
		if (rc <= 0 || rc == PREFETCH_RECOGNISE_LATER || cpu_ns(r) >= end)
			return rc;
	}
}

void prefetch_recognise_searched(const struct prefetch_recognise *r, struct prefetch_searched *ret_searched)
{
	*ret_searched = (struct prefetch_searched){
		.looks = r->looks,
		.seeds = r->likely.seeds.tried + atomic_load(&r->background.tried),
		.cpu_ns = r->search_ns + atomic_load(&r->background.cpu_ns),
		.unexplained = r->unexplained,
		.opens = r->opens,
		.explained = r->explained,
		.wrong = r->wrong,
		.running = prefetch_background_busy(r),
	};
}

int prefetch_recognise_get(const struct prefetch_recognise *r, unsigned i, struct prefetch_recognised *ret_track)
{
	if (i >= r->n_tracks)
		return -ERANGE;
	const struct track *t = r->tracks[i];
	struct prefetch_recognised got = {
		.id = t->id,
		.generation = t->generation,
		.sampler = t->source.sampler,
		.seed = t->source.name,
		.word = t->source.word,
		.world = t->part.world,
		.first = t->part.first,
		.ranks = t->part.ranks,
		.before = t->source.before,
		.goes_on = t->source.goes_on,
		.in_place = t->source.in_place,
		.buffer = t->source.buffer,
		.parts = t->source.sampler == PREFETCH_SAMPLER_SORTED ? (uint32_t)t->source.seed : t->source.deal,
		.pace = t->pace,
		.pace_sure = t->pace_sure,
		.epoch = t->epoch,
		.turn = prefetch_track_turns_opened(t),
		.turns = (t->size + t->part.world - 1) / t->part.world * t->part.ranks,
		.opens = t->opens,
		.since = r->opens - t->last_open,
		.repeated = t->repeated,
		.next_same = prefetch_track_next_same(t),
		.unverified = t->unverified,
		.ready = t->now != NULL,
		.confirmed = t->confirmed,
		.score = t->score,
		.after = t->after,
	};
	if (t->list) {
		prefetch_list_describe(t->list, got.list, sizeof(got.list));
		bool given = prefetch_list_is_given(t->list);
		got.shards_twice = given && t->part.world > 1;
		got.as_given = given && t->part.world == 1 && t->source.sampler == PREFETCH_SAMPLER_SORTED &&
		               got.parts == 0 && got.buffer == 0;
	} else {
		snprintf(got.list, sizeof(got.list), "ddpfs's own order");
	}
	*ret_track = got;
	return 0;
}

int prefetch_recognise_sequence(
        struct prefetch_recognise *r, uint32_t id, unsigned ahead, struct prefetch_sequence **ret_sequence)
{
	for (unsigned i = 0; i < r->n_tracks; i++) {
		const struct track *t = r->tracks[i];
		struct prefetch_sequence *sequence = ahead == 0 ? t->now : ahead == 1 ? t->then : NULL;
		if (t->id != id)
			continue;
		if (!sequence)
			return ahead == 0 || (ahead == 1 && t->has_next) ? -EAGAIN : -ENOENT;
		*ret_sequence = prefetch_sequence_get(sequence);
		return 0;
	}
	return -ENOENT;
}

int prefetch_recognise_perm(struct prefetch_recognise *r, uint32_t id, unsigned ahead, struct prefetch_perm **ret_perm)
{
	for (unsigned i = 0; i < r->n_tracks; i++) {
		const struct track *t = r->tracks[i];
		struct prefetch_sequence *sequence = ahead == 0 ? t->now : ahead == 1 ? t->then : NULL;
		if (t->id != id)
			continue;
		if (!t->now)
			return -EAGAIN;
		if (!t->perm)
			return -ENOENT;
		if (!sequence)
			return ahead == 1 && t->has_next ? -EAGAIN : prefetch_track_perm(t, ahead, ret_perm);
		*ret_perm = prefetch_perm_get(prefetch_sequence_options_get(sequence)->perm);
		return 0;
	}
	return -ENOENT;
}

size_t prefetch_recognise_used(
        const struct prefetch_recognise *r, uint32_t id, uint64_t *turn, uint64_t *turns, size_t max)
{
	const struct track *t = NULL;
	size_t n = 0;
	for (unsigned i = 0; i < r->n_tracks; i++) {
		if (r->tracks[i]->id == id)
			t = r->tracks[i];
	}
	for (; t && n < max; ++*turn) {
		uint64_t position = *turn / t->part.ranks * t->part.world + t->part.first + *turn % t->part.ranks;
		if (position >= t->high) /* beyond it are loose opens */
			break;
		if (bit_get(t->used, position))
			turns[n++] = *turn;
	}
	return n;
}

uint64_t prefetch_recognise_bytes(const struct prefetch_recognise *r)
{
	unsigned benches = r->background.seeds ? 3 : 2;
	uint64_t bytes = sizeof(*r) + (uint64_t)r->n_files / 8 +
	                 benches * (TARGETS_MAX * sizeof(struct target) +
	                                   FAR_OUTPUTS * (sizeof(uint32_t) + 2 * sizeof(uint64_t)));
	if (r->background.more)
		bytes += TRACED_MAX * sizeof(struct target);
	if (r->filters_begun)
		bytes += (uint64_t)r->n_files / 8 * PREFETCH_FILTER_KINDS;
	for (unsigned i = 0; i < r->n_lists; i++)
		bytes += prefetch_list_bytes(r->lists[i]);
	for (unsigned i = 0; i < r->n_shuffled; i++)
		bytes += prefetch_list_bytes(r->shuffled[i]);
	for (unsigned i = 0; i < r->n_tracks; i++) {
		const struct track *t = r->tracks[i];
		bytes += sizeof(*t) + t->size / 8 * (t->used_before ? 2 : 1);
		bytes += t->perm ? (uint64_t)t->perm->n * 8 : 0;
		bytes += t->next ? (uint64_t)t->next->n * 8 : 0;
		for (unsigned k = 0; k < 2; k++)
			bytes += t->rivals[k] ? (uint64_t)t->rivals[k]->n * 8 : 0;
	}
	return bytes;
}
