/* SPDX-License-Identifier: Apache-2.0 */
/* The search: compares the ring with all orders that cost little to try, slice by slice, and then begins the seeds;
 * prefetch/sampler/recognise_private.h first. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shard/base/list.h"

#include "prefetch/sampler/recognise_private.h"

/* The ring has a look when it reaches one of these sizes.  all: all seeds follow.  rolling: also if the ring began in
 * the middle of an epoch. */
static const struct {
	uint32_t ring;
	bool all, rolling;
} levels[] = { { 48, false, false }, { 96, true, true }, { 128, false, false }, { 192, false, false },
	{ 256, false, false }, { 384, false, false }, { RING, true, true } };
enum {
	LEVELS = sizeof(levels) / sizeof(levels[0]),
	FIRST_LOOK = 96,       /* opens: with so many the filter works best */
	FIRST_SLACK = 128,     /* a first look at so many or more takes only FIRST_LOOK */
	TAIL_SHARE = 16,       /* opens between two looks at the tail, as a share of the opens that bring a new ring */
	TAIL_NEAR = 3,         /* one of so many looks at the tail tries all likely seeds */
	RANK_NATS = 4,         /* for each factor of e in the readers that a fit needs or leaves out: simple fits win */
	PARTS_FILES_MIN = 200, /* of a part: a shorter one is a worker's batch */
};

int prefetch_search_init(struct search *search)
{
	search->targets = calloc(TARGETS_MAX + 1, sizeof(*search->targets));
	int rc = prefetch_workbench_init(&search->bench);
	return search->targets ? rc : -ENOMEM;
}

void prefetch_search_done(struct search *search)
{
	free(search->targets);
	prefetch_workbench_done(&search->bench);
}

/* Returns whether there is a level above `looked` and up to `ring`.  *ret_all: one of these has `all`. */
static bool passes_level(const struct prefetch_recognise *r, uint32_t looked, uint32_t ring, bool *ret_all)
{
	bool passes = false;
	*ret_all = false;
	for (unsigned i = 0; i < LEVELS; i++) {
		if (levels[i].ring <= looked || levels[i].ring > ring || (r->rolling && !levels[i].rolling))
			continue;
		passes = true;
		*ret_all |= levels[i].all && !r->rolling;
	}
	return passes;
}

bool prefetch_search_due(const struct prefetch_recognise *r)
{
	bool all;
	for (unsigned i = 0; i < r->n_tracks; i++) {
		if (!r->tracks[i]->now)
			return false; /* it may explain the ring */
	}
	bool more = r->n_ring >= levels[0].ring && r->n_ring > r->looked;
	return more && (r->pressing || passes_level(r, r->looked, r->n_ring, &all));
}

static void add_index(struct target *target, uint32_t index)
{
	uint32_t entry = prefetch_target_entry(target, index);
	if (target->entries[entry] != 0)
		return;
	target->entries[entry] = index + 1;
	target->numbers[entry] = (uint16_t)target->n_seen;
	target->indices[target->n_seen++] = index;
}

/* Makes a target of the list, with these opens.  Returns false: too few of them are of its files. */
static bool make_target(const uint32_t *files, uint32_t n, struct prefetch_list *list, struct target *target)
{
	target->list = list;
	target->n = prefetch_list_size(list);
	target->n_seen = 0;
	target->last = false;
	memset(target->entries, 0, sizeof(target->entries));
	for (uint32_t i = 0; i < n; i++) {
		uint32_t index;
		if (prefetch_list_find(list, files[i], &index) == 0)
			add_index(target, index);
	}
	if (target->n_seen < PREFETCH_FIT_HITS_MIN || target->n < 2 * PREFETCH_FIT_HITS_MIN)
		return false;
	prefetch_torch_filter_init(&target->filter, target->n, target->indices, target->n_seen);
	return true;
}

static void add_target(struct prefetch_recognise *r, struct prefetch_list *list)
{
	struct search *s = &r->search;
	s->n_targets += make_target(s->files, s->n_ring, list, &s->targets[s->n_targets]);
}

int prefetch_search_accept(struct prefetch_recognise *r, const struct match *match)
{
	struct prefetch_part part;
	uint64_t inside[RING];
	uint32_t n_inside = 0;
	bool torch = match->source.sampler >= PREFETCH_SAMPLER_DISTRIBUTED && !prefetch_source_foreign(&match->source);
	prefetch_search_end(r);
	r->unexplained = 0;
	prefetch_unseeded_found(r, match->list);
	prefetch_lists_found(r, match->list);
	/* Only opens in the window: other readers' files lie all over the permutation. */
	for (uint32_t i = 0; i < match->n; i++) {
		if (match->positions[i] >= match->fit.low && match->positions[i] < match->fit.high)
			inside[n_inside++] = match->positions[i];
	}
	/* If no stride fits, take the fit's world: a single rank cannot be workers side by side. */
	if (!prefetch_part(inside, n_inside, &part) && match->fit.ranks == 1) {
		part.world = part.stride = match->fit.world;
		part.first = match->fit.first;
	}
	const struct shard_mt19937 *mt = torch ? &match->mt : NULL;
	return prefetch_track_new(r, &match->source, match->list, mt, &match->fit, &part);
}

void prefetch_search_end(struct prefetch_recognise *r)
{
	r->search.running = false;
	r->likely.running = r->likely.due = false;
	r->likely.buffer.list = NULL;
	prefetch_background_give_up(r);
}

/* Whether most opens follow the one before of some reader.  An order that may begin anywhere needs this evidence,
 * because files that lie close together can also be a shuffled subset of the list. */
static bool follow_on(const uint64_t *positions, uint32_t n, struct prefetch_part *ret_part)
{
	uint32_t inside = 0;
	if (!prefetch_part(positions, n, ret_part))
		return false;
	for (uint32_t i = 0; i < n; i++) {
		uint64_t residue = positions[i] % ret_part->world;
		inside += residue >= ret_part->first && residue - ret_part->first < ret_part->ranks;
	}
	return ret_part->joined * 10 >= inside * 7;
}

static bool fits_in_order(const struct prefetch_fit_input *input, struct prefetch_fit *ret_fit)
{
	struct prefetch_part part;
	return follow_on(input->positions, input->n, &part) && prefetch_fit_part(input, &part, ret_fit) &&
	       ret_fit->score >= PREFETCH_FIT_SURE;
}

/* Gets where a fit lies in a list of `size` files, in `world` parts.  A short list is one of many. */
static struct prefetch_clips_window clips_window(
        const struct prefetch_recognise *r, const struct prefetch_fit *fit, double size, uint32_t world)
{
	double lists = r->n_files / size;
	return (struct prefetch_clips_window){
		.times = size / (double)(fit->high - fit->low),
		.begins = fit->low / world <= CLIPS_STEP_MAX ? size / world / CLIPS_STEP_MAX / lists : 1,
	};
}

_Static_assert((int)RING <= (int)CLIPS_OPENS_MAX, "the files of a look");

/* Some clips lie together by chance, as a sorted reader's files do.  A sorted reader beside them shows longer runs.
 * inside: the files in the window of a fit; places: their positions in the list, or in its parts. */
static bool may_be_clips(const struct prefetch_recognise *r, const uint32_t *inside, const uint32_t *places, uint32_t n,
        const struct prefetch_clips_window *window)
{
	const struct search *s = &r->search;
	if (r->n_files < CLIPS_DATASET_MIN)
		return false;
	return r->clips.opened ? prefetch_clips_short(places, n)
	                       : prefetch_clips_by_chance(s->files, s->n_ring, inside, n, window);
}

/* Whether what fits a list, or a list in parts, may be clips. */
static bool may_be_clips_of(const struct prefetch_recognise *r, const struct target *target, const struct parts *parts,
        const struct prefetch_fit *fit)
{
	const struct prefetch_clips_window window = clips_window(r, fit, target->n, parts ? parts->world : 1);
	uint32_t inside[RING], places[RING], n = 0;
	for (uint32_t i = 0; i < target->n_seen; i++) {
		uint64_t position = target->indices[i];
		if (parts && !prefetch_parts_position(parts, target->indices[i], &position))
			continue;
		places[n] = (uint32_t)position;
		if (position >= fit->low && position < fit->high &&
		        prefetch_list_at(target->list, target->indices[i], &inside[n]) == 0)
			n++;
	}
	return may_be_clips(r, inside, places, n, &window);
}

/* Whether what fits ddpfs's own order may be clips. */
static bool may_be_clips_of_own(const struct prefetch_recognise *r, uint64_t epoch, const struct prefetch_fit *fit)
{
	const struct prefetch_own_order *own = r->options.own;
	const struct prefetch_clips_window window = clips_window(r, fit, (double)own->size, 1);
	uint32_t inside[RING], places[RING], n = 0;
	for (uint32_t i = 0; i < r->search.n_ring; i++) {
		uint64_t position;
		if (own->find(own->user, epoch, r->search.files[i], &position) < 0 || position < fit->low ||
		        position >= fit->high)
			continue;
		inside[n] = r->search.files[i];
		places[n++] = (uint32_t)position;
	}
	return may_be_clips(r, inside, places, n, &window);
}

unsigned prefetch_search_plausible(
        const struct prefetch_recognise *r, const struct target *target, uint32_t a_file, uint64_t low)
{
	struct shard_file file;
	struct shard_dir dir;
	uint32_t id = prefetch_list_dir(target->list);
	if (low > RING)
		return 0;
	if (id == SHARD_NONE || shard_index_file(r->options.index, a_file, &file) < 0 ||
	        shard_index_dir(r->options.index, file.dir, &dir) < 0)
		return 1;
	return id == (dir.parent == SHARD_NONE ? file.dir : dir.parent) ? 3 : id == file.dir ? 2 : 1;
}

static void prefer_sorted(struct search *s, const struct target *target, const struct prefetch_fit *fit, unsigned rank)
{
	const struct target *best = s->sorted;
	if (best && (rank < s->sorted_rank || (rank == s->sorted_rank && target->n >= best->n)))
		return;
	s->sorted = target;
	s->sorted_fit = *fit;
	s->sorted_rank = rank;
}

/* Tries one list.  Later the best of those that fit is taken. */
static void try_sorted(struct prefetch_recognise *r, uint32_t i)
{
	const struct target *target = &r->search.targets[i];
	uint64_t positions[RING];
	uint32_t file;
	struct prefetch_fit fit;
	for (uint32_t k = 0; k < target->n_seen; k++)
		positions[k] = target->indices[k];
	struct prefetch_fit_input input = {
		.positions = positions,
		.n = target->n_seen,
		.size = target->n,
		.seen = target->n_seen,
		.anywhere = true,
	};
	struct source source = { .sampler = PREFETCH_SAMPLER_SORTED };
	if (!prefetch_recognise_refused(r, &source, target->list) && fits_in_order(&input, &fit) &&
	        !may_be_clips_of(r, target, NULL, &fit) &&
	        prefetch_list_at(target->list, (uint32_t)fit.low, &file) == 0)
		prefer_sorted(&r->search, target, &fit, prefetch_search_plausible(r, target, file, fit.low));
}

/* Tries a shorter list with the opens that fit the longer one.  The same opens are stronger evidence in a longer
 * list, but they may all be of a shorter one: a reader that seems to begin in the whole dataset where val/ begins
 * reads val/. */
static void try_within_sorted(struct prefetch_recognise *r, uint32_t i)
{
	const struct target *best = r->search.sorted, *target = &r->search.targets[i];
	struct prefetch_fit fit = r->search.sorted_fit;
	uint64_t positions[RING] = { 0 }, low = UINT64_MAX, high = 0;
	uint32_t n = 0, left = 0, file, at_low = 0;
	struct prefetch_part part;
	for (uint32_t k = 0; k < best->n_seen; k++) {
		uint32_t index;
		if (best->indices[k] < r->search.sorted_fit.low || best->indices[k] >= r->search.sorted_fit.high)
			continue;
		if (prefetch_list_at(best->list, best->indices[k], &file) < 0 ||
		        prefetch_list_find(target->list, file, &index) < 0) {
			left++;
			continue;
		}
		positions[n++] = index;
		at_low = index < low ? file : at_low;
		low = index < low ? index : low;
		high = index >= high ? index + 1 : high;
	}
	/* A few opens may be other readers'. */
	struct source source = { .sampler = PREFETCH_SAMPLER_SORTED };
	if (target->n >= best->n || prefetch_recognise_refused(r, &source, target->list) || left * 8 > n ||
	        !follow_on(positions, n, &part))
		return;
	fit.low = low;
	fit.high = high;
	prefer_sorted(&r->search, target, &fit, prefetch_search_plausible(r, target, at_low, low));
}

/* Whether one sorted reader, or several close together, explain most of the opens.  Ranks in step, each in a part of
 * its own, look like one reader with a stride as long as a part; these do not count. */
static bool explains_most(const struct search *s)
{
	uint64_t positions[RING];
	struct prefetch_part part;
	uint32_t inside = 0;
	for (uint32_t k = 0; s->sorted && k < s->sorted->n_seen; k++)
		positions[k] = s->sorted->indices[k];
	if (!s->sorted || (prefetch_part(positions, s->sorted->n_seen, &part) && part.stride >= PARTS_FILES_MIN))
		return false;
	for (uint32_t k = 0; k < s->sorted->n_seen; k++)
		inside += s->sorted->indices[k] >= s->sorted_fit.low && s->sorted->indices[k] < s->sorted_fit.high;
	return inside * 4 >= s->n_ring * 3;
}

/* Whether the opens outside [low, high) lie together in a few places of the list.  After a shuffle nearly each lies
 * alone. */
static bool lies_in_places(const struct target *target, uint64_t low, uint64_t high)
{
	enum { STRETCHES = 256 };
	uint64_t seen[STRETCHES / 64] = { 0 };
	uint32_t stretches = 0, n = 0;
	for (uint32_t i = 0; i < target->n_seen; i++) {
		if (target->indices[i] >= low && target->indices[i] < high)
			continue;
		bit_set(seen, (uint64_t)target->indices[i] * STRETCHES / target->n);
		n++;
	}
	for (unsigned i = 0; i < STRETCHES / 64; i++)
		stretches += (uint32_t)__builtin_popcountll(seen[i]);
	return stretches * 2 < n;
}

/* Whether the sorted reader is alone, or other opens lie all over the list.  Else it is one of several readers, each
 * with a part of the list. */
static bool is_among_strangers(const struct search *s)
{
	uint64_t low = s->sorted_fit.low, high = s->sorted_fit.high;
	uint32_t outside = 0;
	for (uint32_t k = 0; k < s->sorted->n_seen; k++)
		outside += s->sorted->indices[k] < low || s->sorted->indices[k] >= high;
	return outside * 4 <= s->sorted->n_seen || !lies_in_places(s->sorted, low, high);
}

/* Whether the ranks are about equally far into their parts, as ranks side by side are.  A tenth at either end does not
 * count: other readers, and ranks that began late. */
static bool in_step(const struct parts *parts, const uint64_t *positions, uint32_t n)
{
	uint32_t turns[RING];
	for (uint32_t i = 0; i < n; i++)
		turns[i] = (uint32_t)(positions[i] / parts->world);
	qsort(turns, n, sizeof(*turns), base_compare_u32);
	return turns[n - 1 - n / 10] - turns[n / 10] <= prefetch_parts_shortest(parts) / 3;
}

/* Whether most of the ranks of the fit have opens, and no single one has nearly all: a single rank is a sorted
 * reader. */
static bool has_ranks(const struct parts *parts, const struct prefetch_fit *fit, const uint64_t *positions, uint32_t n)
{
	uint32_t opens[PREFETCH_PARTS_WORLD_MAX] = { 0 }, most = 0, ranks = 0;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t *of_rank = &opens[positions[i] % parts->world];
		most = ++*of_rank > most ? *of_rank : most;
	}
	for (uint32_t rank = 0; rank < parts->world; rank++)
		ranks += opens[rank] * 16 >= most;
	/* The fit is of all ranks, or of neighbours. */
	if (fit->world != 1 && fit->world != parts->world)
		return false;
	return most * 8 <= n * 7 && (uint64_t)ranks * fit->world * 4 >= (uint64_t)parts->world * fit->ranks * 3;
}

/* Fits `seen` opened indices of the list to these parts. */
static bool fits_parts(const struct parts *parts, const uint32_t *indices, uint32_t seen, uint64_t positions[RING],
        uint32_t *ret_n, struct prefetch_fit *ret_fit)
{
	uint32_t n = 0;
	for (uint32_t k = 0; k < seen; k++)
		n += prefetch_parts_position(parts, indices[k], &positions[n]);
	struct prefetch_fit_input input = {
		.positions = positions, .n = n, .size = parts->n, .seen = seen, .anywhere = true
	};
	*ret_n = n;
	return n >= PREFETCH_FIT_HITS_MIN && in_step(parts, positions, n) && fits_in_order(&input, ret_fit) &&
	       ret_fit->hits * 8 >= n * 7 && has_ranks(parts, ret_fit, positions, n);
}

static bool may_be_parts(const struct parts *parts)
{
	return prefetch_parts_shortest(parts) >= PARTS_FILES_MIN &&
	       (parts->kind == PARTS_UP || parts->n % parts->world != 0);
}

/* A fit without the price of its ranks. */
static double parts_score(const struct parts *parts, const struct prefetch_fit *fit)
{
	return fit->score - RANK_NATS * (log(parts->world) + log(fit->world));
}

bool prefetch_search_in_parts(uint32_t n_files, const uint32_t *indices, uint32_t n)
{
	for (uint32_t world = 2; world <= PREFETCH_PARTS_WORLD_MAX; world++) {
		for (unsigned kind = PARTS_UP; kind < PARTS_KINDS; kind++) {
			struct parts parts = { .n = n_files, .world = world, .kind = kind };
			uint64_t positions[RING];
			struct prefetch_fit fit;
			uint32_t inside;
			if (may_be_parts(&parts) && fits_parts(&parts, indices, n, positions, &inside, &fit) &&
			        fit.world == 1 && parts_score(&parts, &fit) >= PREFETCH_FIT_SURE)
				return true;
		}
	}
	return false;
}

/* Tries one number of ranks, with each kind of parts.  The fewest ranks that explain the opens win. */
static void try_parts(struct prefetch_recognise *r, const struct target *target, uint32_t world)
{
	struct search *s = &r->search;
	uint64_t positions[RING];
	uint32_t n;
	for (unsigned kind = PARTS_UP; kind < PARTS_KINDS; kind++) {
		struct parts parts = { .n = target->n, .world = world, .kind = kind };
		struct prefetch_fit fit;
		if (!may_be_parts(&parts) ||
		        !fits_parts(&parts, target->indices, target->n_seen, positions, &n, &fit) ||
		        may_be_clips_of(r, target, &parts, &fit))
			continue;
		struct source source = { .sampler = PREFETCH_SAMPLER_SORTED, .seed = world };
		if (prefetch_recognise_refused(r, &source, target->list))
			continue;
		double score = parts_score(&parts, &fit);
		if (score < PREFETCH_FIT_SURE || (s->parts.world > 0 && score <= s->parts_score))
			continue;
		s->parts = parts;
		s->parts_score = score;
		s->parts_target = target;
	}
}

static int accept_parts(struct prefetch_recognise *r)
{
	struct search *s = &r->search;
	struct match *match = &s->match;
	match->list = s->parts_target->list;
	match->source =
	        (struct source){ .sampler = PREFETCH_SAMPLER_SORTED, .seed = s->parts.world, .skip = s->parts.kind };
	if (!fits_parts(&s->parts, s->parts_target->indices, s->parts_target->n_seen, match->positions, &match->n,
	            &match->fit))
		return 0;
	return prefetch_search_accept(r, match);
}

static int accept_sorted(struct prefetch_recognise *r)
{
	const struct target *best = r->search.sorted;
	struct match *match = &r->search.match;
	*match = (struct match){
		.list = best->list,
		.source = { .sampler = PREFETCH_SAMPLER_SORTED },
		.fit = r->search.sorted_fit,
		.n = best->n_seen,
	};
	for (uint32_t k = 0; k < best->n_seen; k++)
		match->positions[k] = best->indices[k];
	return prefetch_search_accept(r, match);
}

/* Gets the positions of the ring's files in ddpfs's own order.  The files of a sample share one; it counts once. */
static uint32_t own_positions(const struct prefetch_recognise *r, uint64_t epoch, uint64_t positions[RING])
{
	const struct prefetch_own_order *own = r->options.own;
	uint32_t n = 0;
	for (uint32_t i = 0; i < r->search.n_ring; i++) {
		uint64_t position;
		bool again = own->find(own->user, epoch, r->search.files[i], &position) < 0;
		for (uint32_t k = 0; k < n && own->several && !again; k++)
			again = positions[k] == position;
		if (!again)
			positions[n++] = position;
	}
	return n;
}

/* How many epochs of ddpfs's own order to try: the first ones, and those from own_first on. */
static uint64_t own_epochs(const struct prefetch_recognise *r)
{
	return r->options.own ? 2 * r->options.own_epochs : 0;
}

static uint64_t own_epoch(const struct prefetch_recognise *r, uint64_t i)
{
	uint64_t n = r->options.own_epochs;
	return i < n ? i : (r->options.own_first > n ? r->options.own_first : n) + i - n;
}

static int try_own(struct prefetch_recognise *r, uint64_t epoch)
{
	const struct prefetch_own_order *own = r->options.own;
	struct match *match = &r->search.match;
	match->list = NULL;
	match->source =
	        (struct source){ .sampler = PREFETCH_SAMPLER_OWN, .seed = (uint32_t)epoch, .name = epoch, .step = 1 };
	match->n = own_positions(r, epoch, match->positions);
	struct prefetch_fit_input input = {
		.positions = match->positions,
		.n = match->n,
		.size = own->size,
		.seen = match->n,
		.anywhere = true,
	};
	if (prefetch_recognise_refused(r, &match->source, NULL) || !fits_in_order(&input, &match->fit))
		return 0;
	if (may_be_clips_of_own(r, epoch, &match->fit))
		return 0;
	int rc = prefetch_search_accept(r, match);
	return rc < 0 ? rc : 1;
}

/* Tries the permutation (source, mt) on a track's list. */
static int try_generator(struct prefetch_recognise *r, const struct target *target, const struct source *source,
        const struct shard_mt19937 *mt)
{
	struct search *s = &r->search;
	if (!prefetch_seeds_verify(&s->bench, s->targets, s->n_targets, target, source, mt, &s->match))
		return 0;
	int rc = prefetch_search_accept(r, &s->match);
	return rc < 0 ? rc : 1;
}

/* Tries whether the generator of a track's first permutation was seeded with the next seed. */
static int try_seeded_anew(struct prefetch_recognise *r, const struct track *track, const struct target *target)
{
	struct source source = track->source;
	struct shard_mt19937 mt;
	if (source.sampler != PREFETCH_SAMPLER_GENERATOR || source.skip > PREFETCH_SKIP_MAX)
		return 0;
	source.seed = (uint32_t)(source.seed + 1);
	source.name++;
	prefetch_torch_seek(&mt, (uint32_t)source.seed, source.skip);
	return try_generator(r, target, &source, &mt);
}

/* Tries whether the generator of a track's permutation goes on: at once, after a DataLoader's base seed (2 words), or
 * after the permutation that RandomSampler draws and does not use when it is exhausted.  Or each epoch has a generator
 * of its own, whose seed is the epoch's number. */
static int try_generators(struct prefetch_recognise *r, unsigned i)
{
	const struct track *track = r->tracks[i];
	const struct target *target = NULL;
	bool drawn = track->source.sampler == PREFETCH_SAMPLER_GENERATOR ||
	             track->source.sampler == PREFETCH_SAMPLER_DISTRIBUTED ||
	             track->source.sampler == PREFETCH_SAMPLER_UNSEEDED;
	for (uint32_t k = 0; k < r->search.n_targets; k++) {
		if (r->search.targets[k].list == track->list)
			target = &r->search.targets[k];
	}
	if (!drawn || !target || !track->now)
		return 0;
	const uint32_t n = target->n;
	const uint64_t gaps[] = { 0, 2, n - 1, (uint64_t)n + 1 };
	int rc = try_seeded_anew(r, track, target);
	for (unsigned g = 0; g < 4 && rc == 0; g++) {
		struct shard_mt19937 mt = track->perm->rng.mt;
		struct source source = track->source;
		for (uint64_t w = 0; w < gaps[g]; w++)
			shard_mt19937_next32(&mt);
		source.sampler = PREFETCH_SAMPLER_GENERATOR;
		source.step = n - 1 + gaps[g];
		source.skip += source.step;
		source.learned = true;
		rc = try_generator(r, target, &source, &mt);
	}
	return rc;
}

/* Which ways a trainer's next shuffle may follow from its last one. */
static const struct successor {
	bool goes_on, in_place;
	uint64_t step; /* of the seed */
} successors[] = {
	{ .goes_on = true },
	{ .goes_on = true, .in_place = true },
	{ .in_place = true },
	{ .in_place = true, .step = 1 },
};
enum { SUCCESSORS = sizeof(successors) / sizeof(successors[0]) };

/* Gets where the last shuffle has put the target's files. */
static void last_cells(const struct track *t, const struct target *target, uint32_t cells[RING])
{
	const struct prefetch_perm *perm = t->perm;
	if (perm->deal.world <= 1) {
		for (uint32_t i = 0; i < target->n_seen; i++)
			cells[i] = perm->inverse[target->indices[i]];
		return;
	}
	for (uint32_t q = 0; q < perm->n; q++) {
		uint32_t entry = prefetch_target_entry(target, prefetch_perm_undealt(perm, q));
		if (target->entries[entry] != 0)
			cells[target->numbers[entry]] = q;
	}
}

/* Tries one successor of a track whose shuffle is another library's. */
static int try_successor(struct prefetch_recognise *r, const struct track *t, const struct successor *successor)
{
	struct search *s = &r->search;
	const struct target *target = NULL;
	struct prefetch_trace *trace;
	struct source source = t->source;
	struct prefetch_rng rng;
	uint32_t cells[RING];
	for (uint32_t k = 0; k < s->n_targets; k++)
		target = s->targets[k].list == t->list ? &s->targets[k] : target;
	/* A generator that goes on from the last epoch is known only if that epoch went on, too, or was the first. */
	bool known = !successor->goes_on || t->source.goes_on || t->epoch == 0 || t->source.step == 0;
	if (!target || !t->now || !known)
		return 0;
	int rc = prefetch_trace_new(target->n, NULL, &trace);
	if (rc < 0)
		return rc;
	source.goes_on = successor->goes_on;
	source.in_place = successor->in_place;
	source.before++;
	source.learned = true;
	source.step = successor->step;
	source.seed += successor->goes_on ? 0 : source.step;
	source.name = source.seed;
	if (source.goes_on)
		rng = t->perm->rng;
	else
		prefetch_rng_seed(&rng, prefetch_source_shuffle(&source).kind, source.seed);
	if (source.in_place)
		last_cells(t, target, cells);
	prefetch_trace_set(trace, target->n, source.in_place ? cells : target->indices, target->n_seen);
	bool fits = prefetch_seeds_verify_shuffle(trace, &rng, target, &source, &s->match);
	prefetch_trace_free(trace);
	if (!fits)
		return 0;
	rc = prefetch_search_accept(r, &s->match);
	return rc < 0 ? rc : 1;
}

/* Tries how the next of the tracks' shuffles may follow. */
static int try_next(struct prefetch_recognise *r, uint64_t i)
{
	const struct track *t = r->tracks[i / SUCCESSORS];
	if (prefetch_source_foreign(&t->source))
		return try_successor(r, t, &successors[i % SUCCESSORS]);
	return i % SUCCESSORS == 0 ? try_generators(r, (unsigned)(i / SUCCESSORS)) : 0;
}

static void begin(struct search *s)
{
	s->n_targets = s->n_traced = 0;
	s->phase = SEARCH_TARGETS;
	s->at = 0;
	s->sorted = NULL;
	s->parts.world = 0;
	s->running = true;
}

int prefetch_search_begin(struct prefetch_recognise *r)
{
	struct search *s = &r->search;
	s->files = r->ring;
	s->n_ring = r->n_ring;
	s->tail = false;
	/* Opens came faster than looks.  The more opens there are, the less the beginning of a permutation stands
	 * out, so the first look takes only the first opens. */
	if (r->looked < FIRST_LOOK && r->n_ring >= FIRST_SLACK)
		s->n_ring = FIRST_LOOK;
	s->hasty = s->n_ring < FIRST_LOOK && !r->pressing;
	passes_level(r, r->looked, s->n_ring, &s->all);
	if (s->n_ring <= TAIL)
		r->tail.since = r->n_ring - s->n_ring; /* this look is one at the tail, too */
	r->looked = s->n_ring;
	r->looks++;
	r->pressing = false;
	begin(s);
	return 0;
}

bool prefetch_search_tail_due(const struct prefetch_recognise *r)
{
	for (unsigned i = 0; i < r->n_tracks; i++) {
		if (!r->tracks[i]->now)
			return false; /* it may explain these opens */
	}
	return r->n_recent > TAIL && r->tail.since >= r->patience / TAIL_SHARE && !r->search.running &&
	       !r->likely.running;
}

void prefetch_search_tail_begin(struct prefetch_recognise *r)
{
	struct search *s = &r->search;
	for (uint32_t i = 0; i < TAIL; i++)
		s->tail_files[i] = r->recent[(r->n_recent + i) % TAIL];
	s->files = s->tail_files;
	s->n_ring = TAIL;
	s->tail = true;
	s->hasty = s->all = false;
	r->tail.since = 0;
	r->tail.looks++;
	r->looks++;
	begin(s);
}

static void next_phase(struct search *s)
{
	s->phase++;
	s->at = 0;
}

static int step_own(struct prefetch_recognise *r)
{
	struct search *s = &r->search;
	int rc = 0;
	for (unsigned i = 0; i < SLICE_EPOCHS && rc == 0 && s->at < own_epochs(r); i++)
		rc = try_own(r, own_epoch(r, s->at++));
	if (rc == 0 && s->at >= own_epochs(r))
		next_phase(s);
	return rc;
}

void prefetch_search_seeds(struct prefetch_recognise *r, enum seeds_cost cost, bool far)
{
	struct search *s = &r->search;
	struct likely *l = &r->likely;
	l->far = far;
	prefetch_seeds_begin(r, cost, s->targets, s->n_targets, NULL, &l->seeds);
	prefetch_seeds_add_traced(&l->seeds, &s->targets[s->n_targets], s->n_traced);
	l->also = s->buffer;
	l->opens = s->n_ring;
	l->hasty = s->hasty;
	l->tail = s->tail;
	l->middle = s->tail || r->rolling;
	l->running = true;
}

/* The look's own opens may be gone, so they are taken from the seeds. */
int prefetch_search_by_name(struct prefetch_recognise *r)
{
	struct seeds *seeds = &r->likely.seeds;
	const struct target *best = NULL;
	uint32_t files[RING], n = 0;
	for (uint32_t i = 0; i < seeds->n_targets; i++) {
		const struct target *target = &seeds->targets[i];
		if (!best || target->n_seen > best->n_seen || (target->n_seen == best->n_seen && target->n < best->n))
			best = target;
	}
	if (!best || r->n_shuffled > 0) /* looks have them */
		return 0;
	int rc = prefetch_lists_shuffled(r, best->list);
	if (rc < 0 || r->n_shuffled == 0)
		return rc;
	for (uint32_t i = 0; i < best->n_seen; i++)
		n += prefetch_list_at(best->list, best->indices[i], &files[n]) == 0;
	prefetch_seeds_repeat(seeds);
	struct target *target = &r->search.targets[TARGETS_MAX]; /* the look may still need the others */
	for (uint32_t i = 0; i < r->n_shuffled; i++) {
		if (make_target(files, n, r->shuffled[i], target))
			prefetch_seeds_add_traced(seeds, target, 1);
	}
	return 1;
}

/* Ends a look: its seeds are next, or come after those of another look. */
static int end_look(struct prefetch_recognise *r)
{
	struct search *s = &r->search;
	struct likely *l = &r->likely;
	s->running = false;
	if (s->n_targets == 0)
		return 0;
	if (s->tail) {
		prefetch_search_seeds(r, r->tail.looks % TAIL_NEAR == 0 ? SEEDS_LIKELY : SEEDS_FIRST, false);
	} else if (l->running && (!l->hasty || s->hasty)) {
		l->far_due = (l->due && l->far_due) || s->all;
		l->due = true;
	} else {
		l->due = l->far_due = false;
		prefetch_search_seeds(r, SEEDS_LIKELY, s->all);
	}
	return s->all ? prefetch_unseeded_begin(r) : 0;
}

/* Lists by name cost most of all lists, so they are made only if no other list explains the opens. */
static int step_names(struct prefetch_recognise *r)
{
	struct search *s = &r->search;
	uint32_t before = r->n_lists;
	int rc = prefetch_lists_by_name(r);
	if (rc < 0)
		return rc;
	for (uint32_t i = before; i < r->n_lists; i++)
		add_target(r, r->lists[i]);
	if (rc > 0)
		return 0;
	/* The lists by name of earlier looks are targets already. */
	for (uint32_t i = s->sorted_from; i < s->n_targets; i++)
		try_sorted(r, i);
	next_phase(s);
	return 0;
}

/* Takes parts or a sorted list, whichever is simpler.  A reader by name looks like one reader in each directory, and
 * the other way round. */
static int accept_simplest(struct prefetch_recognise *r)
{
	struct search *s = &r->search;
	bool parts = s->parts.world > 0;
	if (parts && explains_most(s))
		parts = s->parts_score >= s->sorted_fit.score - RANK_NATS * log(s->sorted_fit.world);
	if (!parts && (!s->sorted || !is_among_strangers(s)))
		return 0;
	int rc = parts ? accept_parts(r) : accept_sorted(r);
	return rc < 0 ? rc : 1;
}

/* Tries the next list, from target `from` on, with the next number of ranks. */
static int step_parts(struct prefetch_recognise *r, uint32_t from)
{
	struct search *s = &r->search;
	const uint32_t worlds = PREFETCH_PARTS_WORLD_MAX - 1;
	if (s->at < (uint64_t)(s->n_targets - from) * worlds) {
		const struct target *target = &s->targets[from + s->at / worlds];
		if (s->at % worlds == 0 && !lies_in_places(target, 0, 0))
			s->at += worlds;
		else
			try_parts(r, target, 2 + (uint32_t)(s->at++ % worlds));
		return 0;
	}
	bool last = s->phase == SEARCH_NAMED_PARTS;
	next_phase(s);
	return last ? accept_simplest(r) : 0;
}

static bool is_target(const struct search *s, const struct prefetch_list *list)
{
	for (uint32_t i = 0; i < s->n_targets; i++) {
		if (s->targets[i].list == list)
			return true;
	}
	return false;
}

static void add_traced(struct prefetch_recognise *r, struct prefetch_list *list, bool last)
{
	struct search *s = &r->search;
	struct target *target = &s->targets[s->n_targets + s->n_traced];
	if (is_target(s, list) || s->n_traced == TRACED_MAX)
		return;
	s->n_traced += make_target(s->files, s->n_ring, list, target);
	target->last = last;
}

/* Adds targets for shuffles only: parts for several ranks of the first list that has most opens, each shuffled by
 * itself, and the lists by name that prefetch_search_by_name() has made. */
static int add_shuffled(struct prefetch_recognise *r, uint32_t whole)
{
	struct search *s = &r->search;
	struct rank_lists ranks = { .n = 0 };
	uint32_t i = 0;
	while (i < whole && s->targets[i].n_seen * 8 < s->n_ring * 7)
		i++;
	if (i == whole)
		return 0;
	int rc = prefetch_part_lists_of_ranks(r, &s->targets[i], &ranks);
	for (uint32_t k = 0; k < ranks.n; k++)
		add_traced(r, ranks.lists[k], ranks.unsure);
	for (uint32_t k = 0; k < r->n_shuffled; k++)
		add_traced(r, r->shuffled[k], false);
	return rc;
}

/* The lists of parts are for shuffles only: a reader without a shuffle is found in the whole list. */
static int step_ranks(struct prefetch_recognise *r)
{
	struct search *s = &r->search;
	uint32_t whole = s->n_targets;
	int rc = 0;
	for (uint32_t i = 0; i < whole && rc == 0 && (s->tail || !r->rolling); i++)
		rc = prefetch_part_lists_add(r, &s->targets[i]);
	for (uint32_t i = 0; i < r->n_single_parts && i < SINGLE_PARTS_MAX && s->n_targets < LISTS_MAX; i++)
		add_target(r, r->single_parts[i]);
	if (rc == 0 && !s->tail && !r->rolling)
		rc = add_shuffled(r, whole);
	next_phase(s);
	return rc;
}

/* Does one slice.  1: something was recognised; 0; -errno. */
static int look(struct prefetch_recognise *r)
{
	struct search *s = &r->search;
	int rc = 0;
	switch (s->phase) {
	case SEARCH_TARGETS:
		if (s->at < r->n_lists) {
			add_target(r, r->lists[s->at++]);
		} else {
			s->sorted_from = s->n_targets;
			next_phase(s);
			s->phase = s->tail ? SEARCH_RANKS : s->phase;
		}
		return 0;
	case SEARCH_OWN:
		if (!r->options.own_last)
			return step_own(r);
		next_phase(s);
		return 0;
	case SEARCH_SORTED:
		if (s->at < s->n_targets) {
			try_sorted(r, (uint32_t)s->at++);
			return 0;
		}
		if (s->sorted && s->at < 2 * (uint64_t)s->n_targets) {
			try_within_sorted(r, (uint32_t)(s->at++ - s->n_targets));
			return 0;
		}
		next_phase(s);
		if (!explains_most(s))
			return 0;
		rc = accept_sorted(r);
		return rc < 0 ? rc : 1;
	case SEARCH_PARTS:
		return step_parts(r, 0);
	case SEARCH_NAMES:
		return step_names(r);
	case SEARCH_NAMED_PARTS:
		return step_parts(r, s->sorted_from);
	case SEARCH_OWN_LAST:
		if (r->options.own_last)
			return step_own(r);
		next_phase(s);
		return 0;
	case SEARCH_RANKS:
		rc = step_ranks(r);
		s->phase = s->tail ? SEARCH_BUFFER : s->phase;
		return rc;
	case SEARCH_GENERATORS:
		if (s->at < (uint64_t)r->n_tracks * SUCCESSORS)
			return try_next(r, s->at++);
		next_phase(s);
		return 0;
	case SEARCH_BUFFER:
		rc = r->clips.opened ? 0 : prefetch_shuffle_buffer_try(r);
		return rc != 0 ? rc : end_look(r);
	}
	return 0;
}

int prefetch_search_step(struct prefetch_recognise *r)
{
	int rc = look(r);
	return rc < 0 ? rc : 1;
}
