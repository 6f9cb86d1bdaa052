/* SPDX-License-Identifier: Apache-2.0 */
/* Tries seeds, the hypotheses that cost processor time; prefetch/sampler/recognise_private.h first: it says when which
 * thread tries them.
 *
 * A hypothesis must pass three tests.  The first counts how many of its first outputs are in the ring, in about a
 * microsecond (prefetch/sampler/torch.h).  The second computes its exact prefix and the part that fits best
 * (prefetch/sampler/fit.h).  The third is the bound on the score. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "prefetch/sampler/recognise_private.h"

/* Manual seeds that people use.  Many words of their default generators are tried, because models draw from them
 * first. */
static const uint32_t popular[] = { 0, 1, 2, 3, 7, 10, 42, 100, 123, 1234, 1337, 2023, 2024, 2025, 2026, 3407 };
enum {
	POPULAR = sizeof(popular) / sizeof(popular[0]),
	NEAR_WORDS = 1 << 17, /* words that are tried behind the last seed of a RandomSampler */
	NEAR_OUTPUTS = 128,   /* outputs that the filter checks of likely seeds */
	MANUAL_DRAWS = 8,     /* seeds drawn after a manual seed that are tried */
	FAR_SEEDS = 1000,     /* seeds that are tried for large worlds */
	FAR_PREFIX = 16384,   /* outputs that are computed for these */
	FAR_SURPRISE = 9,     /* nats: one wrong seed in 8,000 */
	FEW_FILES = 4096,     /* of a short list: its permutations are computed whole, for FEW_SEEDS seeds */
	FEW_HASTY = 1024,     /* the same at a look that another one follows soon */
	FEW_SEEDS = 1000,
	FEW_OPENS = 48,         /* that a rank of it makes at least */
	FEW_RING = 128,         /* opens: with more of them the filter finds it, too */
	WORLD_LEAST = 8,        /* worlds up to this one are tried, however few files the list has */
	ALL_SEEDS = 8,          /* nats for 2^32 permutations instead of 2.2e6 */
	MORE_SHUFFLES = 2,      /* nats for four more libraries */
	MORE_PARTS = 6,         /* nats for all numbers and kinds of contiguous parts */
	DEAL_NATS = 4,          /* for each factor of e in their number */
	DEAL_MAX = 64,          /* ranks with contiguous parts of a permutation */
	FIRST_SEEDS = 1024,     /* of each family: those of all families come before larger ones */
	SHUFFLE_FIRST = 64,     /* seeds of other libraries that are tried at each look */
	SHUFFLE_OPENS = 96,     /* opens of a look at which FIRST_SEEDS of them are tried */
	SHUFFLE_EPOCHS = 20,    /* of these a share that is tried behind each popular seed */
	SHUFFLE_WORK = 1 << 27, /* seeds x files that are tried at once */
	NEXT_WORK = 1 << 30,    /* the same for the seeds up to LIKELY_SEEDS */
	DALI_WORK = 1 << 20,    /* epochs x files of DALI's shuffles */
	SHORTER_NATS = 20,      /* one shuffle in 10^8 is taken for one of a shorter list */
	FRONT_NATS = 9,         /* of a permutation's beginning, before the parts are looked at */
	TRACE_STEP = 4,         /* of a trace's steps, for one output of a filter */
	SEED_STEPS = 400,       /* that seeding a generator takes as long as */
	EXACT_STEPS = 1 << 15,  /* the same of an exact comparison */
};

static const uint64_t DEFAULT_SEED = 67280421310721;
enum { DALI_SEED = 524287, DALI_EPOCHS = 8 /* so many first epochs are tried */ };

int prefetch_workbench_init(struct workbench *bench)
{
	bench->perm = calloc(FAR_OUTPUTS, sizeof(*bench->perm));
	bench->table = calloc((size_t)2 * FAR_OUTPUTS, sizeof(*bench->table));
	return bench->perm && bench->table ? 0 : -ENOMEM;
}

void prefetch_workbench_done(struct workbench *bench)
{
	free(bench->perm);
	free(bench->table);
}

int prefetch_seeds_init(struct seeds *seeds)
{
	seeds->targets = calloc(TARGETS_MAX + 1, sizeof(*seeds->targets));
	int rc = prefetch_workbench_init(&seeds->bench);
	return seeds->targets ? rc : -ENOMEM;
}

void prefetch_seeds_done(struct seeds *seeds)
{
	for (unsigned i = 0; i <= TARGETS_MAX; i++)
		prefetch_trace_free(seeds->traces[i]);
	free(seeds->targets);
	prefetch_workbench_done(&seeds->bench);
}

/* ---- which seeds are tried ---- */

static void add_family(struct seeds *seeds, struct family family)
{
	if (seeds->n_families < FAMILIES_MAX && family.from < family.to)
		seeds->families[seeds->n_families++] = family;
}

/* A RandomSampler goes on behind the word that it drew last. */
static void add_words(struct seeds *seeds, uint64_t manual, uint64_t word)
{
	add_family(seeds, (struct family){ .sampler = PREFETCH_SAMPLER_RANDOM,
	                          .deep = true,
	                          .manual = manual,
	                          .from = (uint32_t)word + 1,
	                          .to = (uint32_t)word + 1 + NEAR_WORDS,
	                          .outputs = NEAR_OUTPUTS });
}

static uint32_t likely_seeds(const struct prefetch_recognise *r)
{
	return r->options.seed_max < LIKELY_SEEDS ? r->options.seed_max + 1 : LIKELY_SEEDS;
}

/* Seeds and words behind those of the tracks. */
static void plan_near(const struct prefetch_recognise *r, struct seeds *s)
{
	for (unsigned i = 0; i < r->n_tracks; i++) {
		const struct source *source = &r->tracks[i]->source;
		if (source->sampler == PREFETCH_SAMPLER_DISTRIBUTED && source->seed >= likely_seeds(r))
			add_family(s, (struct family){ .sampler = PREFETCH_SAMPLER_DISTRIBUTED,
			                      .from = source->seed < 64 ? 0 : source->seed - 64,
			                      .to = source->seed < UINT32_MAX - 1024 ? source->seed + 1024 : UINT32_MAX,
			                      .outputs = PREFETCH_FILTER_WORDS });
		if (source->sampler == PREFETCH_SAMPLER_RANDOM)
			add_words(s, source->name, source->word);
	}
	if (r->options.seen_word > 0)
		add_words(s, r->options.seen_manual, r->options.seen_word);
}

/* How many families of torch's samplers are tried; the later ones cost more. */
enum { TORCH_QUICK = 2, TORCH_HASTY = 3, TORCH_FAMILIES = 5 };

static void add_torch(const struct prefetch_recognise *r, struct seeds *s, uint32_t from, uint32_t to, unsigned n)
{
	const struct family families[TORCH_FAMILIES] = {
		{ .sampler = PREFETCH_SAMPLER_DISTRIBUTED, .outputs = NEAR_OUTPUTS },
		{ .sampler = PREFETCH_SAMPLER_GENERATOR, .skip = 2, .outputs = NEAR_OUTPUTS },
		{ .sampler = PREFETCH_SAMPLER_RANDOM, .draws = MANUAL_DRAWS, .outputs = NEAR_OUTPUTS },
		/* Of a loader whose first workers begin late the first NEAR_OUTPUTS are missing. */
		{ .sampler = PREFETCH_SAMPLER_DISTRIBUTED, .outputs = PREFETCH_FILTER_WORDS },
		{ .sampler = PREFETCH_SAMPLER_GENERATOR, .skip = 2, .outputs = PREFETCH_FILTER_WORDS },
	};
	for (unsigned i = 0; i < n; i++) {
		struct family family = families[i];
		family.from = from;
		family.to = to < likely_seeds(r) ? to : likely_seeds(r);
		add_family(s, family);
	}
}

/* A torch.Generator() that nobody seeded has always the same seed (c10::default_rng_seed_val).  A loader draws 2 words
 * from it first, a sampler alone none. */
static void plan_default_generator(const struct prefetch_recognise *r, struct seeds *s)
{
	(void)r;
	for (uint32_t skip = 0; skip <= 2; skip += 2)
		add_family(s, (struct family){ .sampler = PREFETCH_SAMPLER_GENERATOR,
		                      .from = (uint32_t)DEFAULT_SEED,
		                      .to = (uint32_t)DEFAULT_SEED + 1,
		                      .skip = skip,
		                      .outputs = NEAR_OUTPUTS });
}

static void plan_first_torch(const struct prefetch_recognise *r, struct seeds *s)
{
	add_torch(r, s, 0, FIRST_SEEDS, r->search.hasty ? TORCH_HASTY : TORCH_FAMILIES);
}

static void plan_more_torch(const struct prefetch_recognise *r, struct seeds *s)
{
	add_torch(r, s, FIRST_SEEDS, LIKELY_SEEDS, r->search.hasty ? TORCH_QUICK : TORCH_FAMILIES);
}

static void plan_few(const struct prefetch_recognise *r, struct seeds *s)
{
	uint32_t most = r->search.hasty ? FEW_HASTY : FEW_FILES;
	bool few = false;
	for (uint32_t i = 0; i < s->n_targets; i++)
		few |= s->targets[i].n <= most;
	if (few && !r->rolling && !r->search.tail && r->search.n_ring <= FEW_RING)
		add_family(s, (struct family){ .sampler = PREFETCH_SAMPLER_DISTRIBUTED,
		                      .to = likely_seeds(r) < FEW_SEEDS ? likely_seeds(r) : FEW_SEEDS,
		                      .outputs = FEW_FILES });
}

static void plan_all(const struct prefetch_recognise *r, struct seeds *s)
{
	if (r->options.seed_max >= likely_seeds(r))
		add_family(s, (struct family){ .sampler = PREFETCH_SAMPLER_DISTRIBUTED,
		                      .from = likely_seeds(r),
		                      .to = r->options.seed_max + 1,
		                      .outputs = PREFETCH_FILTER_WORDS });
}

static void plan_worlds(const struct prefetch_recognise *r, struct seeds *s)
{
	add_family(s, (struct family){ .sampler = PREFETCH_SAMPLER_DISTRIBUTED,
	                      .to = likely_seeds(r) < FAR_SEEDS ? likely_seeds(r) : FAR_SEEDS,
	                      .outputs = FAR_PREFIX });
}

static void plan_popular(const struct prefetch_recognise *r, struct seeds *s)
{
	for (unsigned i = 0; i < POPULAR; i++)
		add_family(s, (struct family){ .sampler = PREFETCH_SAMPLER_RANDOM,
		                      .deep = true,
		                      .manual = popular[i],
		                      .from = 2 * MANUAL_DRAWS,
		                      .to = r->options.popular_words,
		                      .outputs = NEAR_OUTPUTS });
}

/* Other libraries' shuffles, and torch's in contiguous parts, which the filter does not see. */
static const enum prefetch_sampler shuffles[] = { PREFETCH_SAMPLER_NUMPY, PREFETCH_SAMPLER_PYTHON,
	PREFETCH_SAMPLER_NUMPY_RNG, PREFETCH_SAMPLER_DISTRIBUTED };
enum { SHUFFLES = sizeof(shuffles) / sizeof(shuffles[0]) };

/* Tries seeds [from, to) of each family like this one. */
static void add_each(struct seeds *s, uint32_t from, uint32_t to, struct family family)
{
	family.from = from;
	family.to = to;
	family.traced = true;
	for (unsigned i = 0; i < SHUFFLES; i++) {
		family.sampler = shuffles[i];
		add_family(s, family);
	}
}

/* Other libraries' seeds below `end` end here, because no larger ones than shuffle_max are tried. */
static uint32_t shuffles_end(const struct prefetch_recognise *r, uint32_t end)
{
	return end <= r->options.shuffle_max ? end : r->options.shuffle_max + 1;
}

/* How many seeds of other libraries are tried with so much work.  A seed costs about 4 x files / opens steps. */
static uint32_t seeds_for(const struct prefetch_recognise *r, uint64_t work, uint32_t least, uint32_t most)
{
	uint64_t n = work / ((uint64_t)r->n_files + 1);
	return shuffles_end(r, n < least ? least : n < most ? (uint32_t)n : most);
}

/* The seeds of other libraries that are tried with torch's below FIRST_SEEDS end here, ... */
static uint32_t first_shuffles(const struct prefetch_recognise *r)
{
	return seeds_for(r, SHUFFLE_WORK, SHUFFLE_FIRST, FIRST_SEEDS);
}

/* ... and here those that the recogniser's thread tries.  Of long lists more are likely: plan_likely_shuffles(). */
static uint32_t next_shuffles(const struct prefetch_recognise *r)
{
	return seeds_for(r, NEXT_WORK, FIRST_SEEDS, LIKELY_SEEDS);
}

/* Whether the opens may be the beginning of an epoch.  Only there do they lie together. */
static bool may_begin(const struct prefetch_recognise *r)
{
	return !r->rolling || r->search.tail;
}

/* Seeds [from, to), and behind each popular one that is not below `to` so many. */
static void add_popular(const struct prefetch_recognise *r, struct seeds *s, uint32_t from, uint32_t to,
        uint32_t epochs, struct family family)
{
	add_each(s, from, to, family);
	for (unsigned i = 0; i < POPULAR; i++) {
		if (popular[i] >= to && popular[i] <= r->options.shuffle_max)
			add_each(s, popular[i], popular[i] + epochs, family);
	}
}

static void plan_first_shuffles(const struct prefetch_recognise *r, struct seeds *s)
{
	if (may_begin(r))
		add_popular(r, s, 0, shuffles_end(r, SHUFFLE_FIRST), 1, (struct family){ .quick = r->search.hasty });
}

/* Quickly where all seeds follow: plan_likely_shuffles(). */
static void plan_shuffles(const struct prefetch_recognise *r, struct seeds *s)
{
	uint32_t end = first_shuffles(r);
	if (may_begin(r) && r->search.n_ring >= SHUFFLE_OPENS)
		add_popular(r, s, SHUFFLE_FIRST, end, end / SHUFFLE_EPOCHS, (struct family){ .quick = r->likely.far });
}

/* Two jobs side by side, of which no other family finds the first.  The other one is found when its opens are left.
 * torch's shuffles are found by the filter, however many others' opens there are. */
static void add_shared(const struct prefetch_recognise *r, struct seeds *s, uint32_t from, uint32_t to)
{
	for (unsigned i = 0; i < SHUFFLES && may_begin(r) && r->search.n_ring >= SHUFFLE_OPENS; i++) {
		if (shuffles[i] != PREFETCH_SAMPLER_DISTRIBUTED)
			add_family(s, (struct family){ .sampler = shuffles[i],
			                      .from = from,
			                      .to = shuffles_end(r, to),
			                      .traced = true,
			                      .shared = true });
	}
}

static void plan_shared(const struct prefetch_recognise *r, struct seeds *s)
{
	add_shared(r, s, 0, SHUFFLE_FIRST);
	for (unsigned i = 0; i < POPULAR; i++) {
		if (popular[i] >= SHUFFLE_FIRST)
			add_shared(r, s, popular[i], popular[i] + 1);
	}
}

static void plan_more_shared(const struct prefetch_recognise *r, struct seeds *s)
{
	add_shared(r, s, SHUFFLE_FIRST, LIKELY_SEEDS);
}

/* These are whole shuffles, so they wait for as many opens as most seeds of other libraries do. */
static void plan_dali(const struct prefetch_recognise *r, struct seeds *s)
{
	if (!may_begin(r) || r->search.n_ring < SHUFFLE_OPENS)
		return;
	add_family(s, (struct family){ .sampler = PREFETCH_SAMPLER_DALI, .to = 1, .traced = true });
	add_family(
	        s, (struct family){
	                   .sampler = PREFETCH_SAMPLER_DALI_EPOCH, .from = 1, .to = DALI_EPOCHS + 1, .traced = true });
}

static void plan_near_shuffles(const struct prefetch_recognise *r, struct seeds *s)
{
	for (unsigned i = 0; i < r->n_tracks; i++) {
		const struct source *source = &r->tracks[i]->source;
		if (prefetch_source_foreign(source) && source->sampler < PREFETCH_SAMPLER_DALI &&
		        source->seed >= SHUFFLE_FIRST && source->seed < UINT32_MAX / 2)
			add_family(s, (struct family){ .sampler = source->sampler,
			                      .from = (uint32_t)source->seed - 16,
			                      .to = (uint32_t)source->seed + 64,
			                      .traced = true });
	}
}

/* Quickly, which finds most right seeds in two fifths of the time. */
static void plan_next_shuffles(const struct prefetch_recognise *r, struct seeds *s)
{
	if (r->likely.far)
		add_each(s, first_shuffles(r), next_shuffles(r), (struct family){ .quick = true, .spare = true });
}

/* Of long lists those seeds below LIKELY_SEEDS that were too many for the recogniser's thread.  Then all of these that
 * were tried quickly, or not at all because the budget was spent. */
static void plan_likely_shuffles(const struct prefetch_recognise *r, struct seeds *s)
{
	uint32_t next = next_shuffles(r), end = shuffles_end(r, LIKELY_SEEDS);
	if (r->rolling)
		return;
	add_each(s, next, end, (struct family){ .quick = true });
	add_each(s, SHUFFLE_FIRST, next, (struct family){ 0 });
	add_each(s, next, end, (struct family){ .again = true });
}

static void plan_all_shuffles(const struct prefetch_recognise *r, struct seeds *s)
{
	if (r->rolling)
		return;
	add_each(s, LIKELY_SEEDS, r->options.shuffle_max + 1, (struct family){ .quick = true });
	add_each(s, LIKELY_SEEDS, r->options.shuffle_max + 1, (struct family){ .again = true });
}

/* Every family of hypotheses with seeds, in the order in which they are tried. */
static const struct {
	enum seeds_cost cost;
	void (*plan)(const struct prefetch_recognise *r, struct seeds *s);
} plans[] = {
	{ SEEDS_FIRST, plan_near_shuffles },
	{ SEEDS_FIRST, plan_first_shuffles },
	{ SEEDS_LIKELY, plan_near },
	{ SEEDS_LIKELY, plan_default_generator },
	{ SEEDS_LIKELY, plan_first_torch },
	{ SEEDS_LIKELY, plan_near_shuffles },
	{ SEEDS_LIKELY, plan_first_shuffles },
	{ SEEDS_LIKELY, plan_shuffles },
	{ SEEDS_LIKELY, plan_dali },
	{ SEEDS_LIKELY, plan_more_torch },
	{ SEEDS_LIKELY, plan_next_shuffles },
	{ SEEDS_LIKELY, plan_few },
	{ SEEDS_LIKELY, plan_shared },
	{ SEEDS_FAR, plan_likely_shuffles },
	{ SEEDS_FAR, plan_all },
	{ SEEDS_FAR, plan_worlds },
	{ SEEDS_FAR, plan_popular },
	{ SEEDS_FAR, plan_more_shared },
	{ SEEDS_FAR, plan_all_shuffles },
};

/* The last run was given up at `place`.  Begins there; what was tried then comes last. */
static void turn_to(struct seeds *s, const struct seeds_place *place)
{
	struct family turned[FAMILIES_MAX];
	uint32_t n = 0;
	if (place->family >= s->n_families || s->n_families == FAMILIES_MAX)
		return;
	struct family cut = s->families[place->family];
	if (place->at <= cut.from || place->at >= cut.to)
		return;
	for (uint32_t i = 0; i < s->n_families; i++)
		turned[n++] = s->families[(place->family + i) % s->n_families];
	turned[0].from = (uint32_t)place->at;
	cut.to = (uint32_t)place->at;
	turned[n++] = cut;
	memcpy(s->families, turned, n * sizeof(turned[0]));
	s->n_families = n;
	s->turned = place->family;
}

/* Whether the opens lie in more than half of the list's stretches, as the beginning of a permutation does.  A reader
 * that goes through the list in another way leaves most of it for later. */
static bool lies_all_over(const struct target *target)
{
	enum { STRETCHES = 16, OPENS = 48 };
	uint32_t stretches = 0;
	for (uint32_t i = 0; i < target->n_seen; i++)
		stretches |= UINT32_C(1) << ((uint64_t)target->indices[i] * STRETCHES / target->n);
	return target->n_seen < OPENS || __builtin_popcount(stretches) > STRETCHES / 2;
}

/* Whether `other`, which is shorter, has nearly all opens of the target.  Of a shuffle of the target's list many would
 * be other files. */
static bool has_shorter(const struct target *target, const struct target *other)
{
	uint32_t seen = other->n_seen < target->n_seen ? other->n_seen : target->n_seen;
	return other->n < target->n && seen * 16 >= target->n_seen * 15 &&
	       prefetch_fit_surprise(seen, target->n_seen, (double)other->n / target->n) >= SHORTER_NATS;
}

/* Whether the opens do not tell the two lists apart. */
static bool is_same(const struct target *target, const struct target *other)
{
	return other->n == target->n && other->n_seen == target->n_seen &&
	       memcmp(other->indices, target->indices, target->n_seen * sizeof(*target->indices)) == 0;
}

/* Whether seeds are tried on the list of target i. */
static bool may_be_shuffled(const struct target *targets, uint32_t n_targets, uint32_t i)
{
	for (uint32_t k = 0; k < n_targets; k++) {
		if (has_shorter(&targets[i], &targets[k]) || (k < i && is_same(&targets[i], &targets[k])))
			return false;
	}
	return lies_all_over(&targets[i]);
}

void prefetch_seeds_begin(const struct prefetch_recognise *r, enum seeds_cost cost, const struct target *targets,
        uint32_t n_targets, const struct seeds_place *place, struct seeds *s)
{
	s->n_targets = 0;
	for (uint32_t i = 0; i < n_targets; i++) {
		if (may_be_shuffled(targets, n_targets, i))
			s->targets[s->n_targets++] = targets[i];
	}
	s->n_traced = s->n_targets;
	s->n_families = s->family = s->turned = 0;
	s->far_target = 0;
	for (unsigned i = 0; i < sizeof(plans) / sizeof(plans[0]); i++) {
		if (plans[i].cost == cost)
			plans[i].plan(r, s);
	}
	s->n_planned = s->n_families;
	if (place)
		turn_to(s, place);
	s->at = s->n_families > 0 ? s->families[0].from : 0;
}

void prefetch_seeds_add_traced(struct seeds *s, const struct target *targets, uint32_t n_targets)
{
	for (uint32_t i = 0; i < n_targets && s->n_traced < TARGETS_MAX; i++) {
		if (lies_all_over(&targets[i]))
			s->targets[s->n_traced++] = targets[i];
	}
}

void prefetch_seeds_repeat(struct seeds *s)
{
	s->n_targets = s->n_traced = s->family = 0;
	s->at = s->n_families > 0 ? s->families[0].from : 0;
}

bool prefetch_seeds_spare(const struct seeds *s)
{
	return s->family < s->n_families && s->families[s->family].spare;
}

struct seeds_place prefetch_seeds_place(const struct seeds *s)
{
	if (s->n_planned == 0)
		return (struct seeds_place){ 0 };
	return (struct seeds_place){ .family = (s->turned + s->family) % s->n_planned, .at = s->at };
}

/* ---- exactly ---- */

/* Gets what is fitted: the positions of the target's files that lie below `outputs`.  ret_match gets them. */
static struct prefetch_fit_input fit_input(
        const struct target *target, const uint64_t where[RING], uint32_t outputs, struct match *ret_match)
{
	const uint32_t few = WORLD_LEAST * FEW_OPENS;
	uint32_t n = 0;
	for (uint32_t i = 0; i < target->n_seen; i++) {
		if (where[i] < outputs)
			ret_match->positions[n++] = where[i];
	}
	ret_match->n = n;
	return (struct prefetch_fit_input){
		.positions = ret_match->positions,
		.n = n,
		.size = target->n,
		.seen = target->n_seen,
		.world_max = outputs > EXACT_OUTPUTS ? 1024
		             : outputs < target->n   ? outputs / 64
		             : outputs < few         ? WORLD_LEAST
		                                     : outputs / FEW_OPENS,
	};
}

/* Fits these positions.  False: they do not explain the opens. */
static bool fit_where(
        const struct target *target, const uint64_t where[RING], uint32_t outputs, double sure, struct match *ret_match)
{
	struct prefetch_fit_input input = fit_input(target, where, outputs, ret_match);
	/* The filter has not seen these seeds, so most of them end here. */
	if (outputs > EXACT_OUTPUTS &&
	        prefetch_fit_surprise(input.n, outputs, (double)target->n_seen / target->n) < FAR_SURPRISE)
		return false;
	input.least = sure;
	return prefetch_fit(&input, &ret_match->fit);
}

/* Fits the prefix on the bench to the target's files.  False: it does not explain them. */
static bool fit_prefix(
        const struct workbench *bench, const struct target *target, uint32_t outputs, struct match *ret_match)
{
	uint64_t where[RING];
	memset(where, 0xff, sizeof(where));
	for (uint32_t i = 0; i < outputs; i++) {
		uint32_t entry = prefetch_target_entry(target, bench->perm[i]);
		if (target->entries[entry] != 0)
			where[target->numbers[entry]] = i;
	}
	return fit_where(target, where, outputs, PREFETCH_FIT_SURE, ret_match);
}

static bool verify(struct workbench *bench, const struct target *targets, uint32_t n_targets,
        const struct target *target, const struct source *source, const struct shard_mt19937 *mt, uint32_t outputs,
        struct match *ret_match)
{
	struct match other;
	if (outputs > target->n)
		outputs = target->n;
	if (target->n >= SHARD_TORCH_INSIDE_OUT)
		return false;
	prefetch_torch_prefix(*mt, target->n, outputs, bench->perm, bench->table);
	if (!fit_prefix(bench, target, outputs, ret_match) ||
	        (source->sampler == PREFETCH_SAMPLER_UNSEEDED && ret_match->fit.score < PREFETCH_FIT_SURE + ALL_SEEDS))
		return false;
	ret_match->list = target->list;
	for (uint32_t i = 0; i < n_targets; i++) {
		if (&targets[i] == target || targets[i].n != target->n ||
		        !fit_prefix(bench, &targets[i], outputs, &other) || other.fit.score <= ret_match->fit.score)
			continue;
		other.list = targets[i].list;
		*ret_match = other;
	}
	ret_match->source = *source;
	ret_match->mt = *mt;
	return true;
}

bool prefetch_seeds_verify(struct workbench *bench, const struct target *targets, uint32_t n_targets,
        const struct target *target, const struct source *source, const struct shard_mt19937 *mt,
        struct match *ret_match)
{
	return verify(bench, targets, n_targets, target, source, mt, EXACT_OUTPUTS, ret_match);
}

/* ---- other libraries ---- */

static int compare_where(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;
	return (*x > *y) - (*x < *y);
}

/* Whether half, three quarters, or all of the positions lie at the beginning more densely than by chance. */
static bool lie_in_front(const struct target *target, const uint64_t where[RING])
{
	uint64_t sorted[RING];
	uint32_t n = target->n_seen;
	memcpy(sorted, where, n * sizeof(*where));
	qsort(sorted, n, sizeof(*sorted), compare_where);
	for (uint32_t quarters = 2; quarters <= 4; quarters++) {
		uint32_t a = n * quarters / 4;
		if (prefetch_fit_surprise(a, (double)sorted[a - 1] + 1, (double)n / target->n) >= FRONT_NATS)
			return true;
	}
	return false;
}

/* Interleaves positions as if the permutation was dealt in these parts.  False: more than a quarter of them does
 * not lie near the beginnings of parts. */
static bool interleave(
        const struct target *target, const uint64_t where[RING], const struct parts *parts, uint64_t ret_where[RING])
{
	uint32_t shortest = prefetch_parts_shortest(parts), far = 0;
	uint32_t most = shortest / 4 < EXACT_OUTPUTS ? shortest / 4 : EXACT_OUTPUTS;
	for (uint32_t i = 0; i < target->n_seen; i++) {
		ret_where[i] = prefetch_parts_place(parts, (uint32_t)where[i]);
		far += ret_where[i] / parts->world >= most;
		if (far * 4 > target->n_seen)
			return false;
	}
	return true;
}

/* Fits the positions to readers of these contiguous parts, with a score of `least` or more.  A reader who goes
 * backwards seems to be near the beginning of some part, too, so the opens must follow one another.  Workers side by
 * side seem to have a part each if a part is about as long as a batch of all ranks.  But each goes on by a stride, and
 * a reader of a part reads all of it. */
static bool fit_deal(const struct target *target, const uint64_t where[RING], const struct parts *parts, double least,
        struct match *ret_match)
{
	uint64_t dealt[RING] = { 0 };
	struct prefetch_part part;
	if (!interleave(target, where, parts, dealt))
		return false;
	struct prefetch_fit_input input =
	        fit_input(target, dealt, target->n < EXACT_OUTPUTS ? target->n : EXACT_OUTPUTS, ret_match);
	/* No other world may fit better than these two, which takes long to see.  So it comes last. */
	input.only = parts->world;
	input.least = least;
	if (!prefetch_fit(&input, &ret_match->fit))
		return false;
	input.only = 0;
	if (!prefetch_fit(&input, &ret_match->fit) || ret_match->fit.hits * 4 < target->n_seen * 3 ||
	        (ret_match->fit.world != 1 && ret_match->fit.world != parts->world) ||
	        !prefetch_part(ret_match->positions, ret_match->n, &part))
		return false;
	bool several = ret_match->fit.world == 1 || ret_match->fit.ranks > 1;
	if (several && part.stride > parts->world)
		return false;
	ret_match->source.deal = parts->world;
	ret_match->source.deal_kind = parts->kind;
	return true;
}

/* Tries all contiguous parts.  The fewest that explain most opens best win, with a score above `floor`. */
static bool fit_parts(const struct target *target, const uint64_t where[RING], double floor, struct match *ret_match)
{
	double best = 0;
	for (uint32_t world = 2; world <= DEAL_MAX && world * 2 * PREFETCH_FIT_HITS_MIN <= target->n; world++) {
		for (unsigned kind = PARTS_UP; kind < PARTS_KINDS; kind++) {
			struct parts parts = { .n = target->n, .world = world, .kind = kind };
			struct match one;
			double price = DEAL_NATS * log(world), least = best + price > floor ? best + price : floor;
			if ((kind != PARTS_UP && target->n % world == 0) ||
			        !fit_deal(target, where, &parts, least, &one) || one.fit.score <= least)
				continue;
			*ret_match = one;
			best = one.fit.score - price;
		}
	}
	return best > 0;
}

/* Whether the fit is of the first rank alone.  Its part is also the beginning of the whole permutation. */
static bool is_first_part(const struct match *dealt)
{
	return dealt->fit.world > 1 && dealt->fit.first == 0 && dealt->fit.ranks == 1;
}

/* Makes the fit of a first part one of the whole permutation, because its reader may read on behind the part.  If it
 * does not, its epoch ends early, which costs less. */
static void make_whole(const struct target *target, const uint64_t where[RING], struct match *match)
{
	uint32_t turns = (uint32_t)((match->fit.high - 1) / match->fit.world + 1);
	match->fit.world = match->fit.ranks = 1;
	match->fit.low = 0;
	match->fit.high = turns;
	match->n = target->n_seen;
	memcpy(match->positions, where, match->n * sizeof(*where));
}

/* A rank's own part is not shared out once more. */
static bool is_part(const struct target *target)
{
	struct prefetch_list_part part;
	return prefetch_list_part(target->list, &part);
}

/* Fits the positions to the reader of a whole permutation, of one rank's stride, or of contiguous parts. */
static bool fit_shuffle(
        const struct target *target, const uint64_t where[RING], const struct source *source, struct match *ret_match)
{
	struct match dealt = { 0 };
	struct parts parts = { .n = target->n, .world = source->deal, .kind = source->deal_kind };
	uint32_t outputs = target->n < EXACT_OUTPUTS ? target->n : EXACT_OUTPUTS;
	bool known = source->learned; /* how a track's permutations are dealt */
	bool whole = !(known && source->deal) && lie_in_front(target, where) &&
	             fit_where(target, where, outputs, PREFETCH_FIT_SURE + MORE_SHUFFLES, ret_match);
	bool deal = false;
	double floor = PREFETCH_FIT_SURE + MORE_PARTS, better = whole ? ret_match->fit.score + MORE_PARTS : 0;
	if (!known && !is_part(target))
		deal = fit_parts(target, where, better > floor ? better : floor, &dealt);
	else if (source->deal)
		deal = fit_deal(target, where, &parts, floor, &dealt);
	if (!whole && !deal)
		return false;
	if (deal)
		*ret_match = dealt;
	if (deal && !known && is_first_part(&dealt)) {
		make_whole(target, where, ret_match);
		deal = false;
	}
	ret_match->list = target->list;
	ret_match->source = *source;
	ret_match->source.deal = deal ? dealt.source.deal : 0;
	ret_match->source.deal_kind = deal ? dealt.source.deal_kind : PARTS_UP;
	return true;
}

bool prefetch_seeds_verify_shuffle(struct prefetch_trace *trace, struct prefetch_rng *rng, const struct target *target,
        const struct source *source, struct match *ret_match)
{
	uint64_t where[RING];
	prefetch_trace_positions(trace, rng, prefetch_source_shuffle(source).kind, where);
	if (!fit_shuffle(target, where, source, ret_match))
		return false;
	if (source->sampler == PREFETCH_SAMPLER_DISTRIBUTED)
		prefetch_torch_seek(&ret_match->mt, (uint32_t)source->seed, 0);
	return true;
}

/* Returns the trace of a target, or NULL if there is no memory. */
static struct prefetch_trace *trace_of(struct seeds *s, uint32_t i)
{
	struct prefetch_trace **trace = &s->traces[i];
	if (*trace && prefetch_trace_room(*trace) < s->targets[i].n) {
		prefetch_trace_free(*trace);
		*trace = NULL;
	}
	if (!*trace && prefetch_trace_new(s->targets[i].n, &s->seeded, trace) < 0)
		return NULL;
	prefetch_trace_set(*trace, s->targets[i].n, s->targets[i].indices, s->targets[i].n_seen);
	return *trace;
}

/* Compares a seed that passed with all targets of the same size, which share its permutation. */
static bool verify_traced(struct seeds *s, uint32_t passed, const struct source *source)
{
	struct prefetch_shuffle shuffle = prefetch_source_shuffle(source);
	struct prefetch_rng rng;
	struct match match;
	bool found = false;
	for (uint32_t i = 0; i < s->n_traced; i++) {
		if (s->targets[i].n != s->targets[passed].n || !s->traces[i])
			continue;
		prefetch_rng_seed(&rng, shuffle.kind, shuffle.seed);
		if (!prefetch_seeds_verify_shuffle(s->traces[i], &rng, &s->targets[i], source, &match) ||
		        (found && match.fit.score <= s->match.fit.score))
			continue;
		s->match = match;
		found = true;
	}
	return found;
}

/* Takes the latest match if it explains the opens better. */
static void keep_better(const struct match *match, struct match *best)
{
	if (!best->list || match->fit.score > best->fit.score)
		*best = *match;
}

/* DALI's shuffles have a known seed, and that of a list begins nearly as that of a list that is a little longer.  So
 * the list that explains most of the opens is taken.  With shuffle_after_epoch each epoch shuffles what the one before
 * has left, or, with checkpoints, the list. */
static bool try_dali(struct seeds *s, const struct family *family, uint64_t *steps)
{
	bool epochs = family->sampler == PREFETCH_SAMPLER_DALI_EPOCH;
	struct match best = { 0 };
	for (uint32_t i = 0; i < s->n_targets; i++) {
		const struct target *target = &s->targets[i];
		struct source source = { .sampler = family->sampler, .seed = DALI_SEED, .name = DALI_SEED };
		struct prefetch_rng rng;
		uint64_t where[RING];
		if (!s->traces[i] || (s->at > 1 && s->at * target->n > DALI_WORK))
			continue;
		s->tried++;
		*steps += target->n * UINT64_C(2);
		if (epochs) {
			source.step = UINT64_C(1) << 32;
			source.seed = source.name = DALI_SEED + s->at * source.step;
		}
		if (verify_traced(s, i, &source))
			keep_better(&s->match, &best);
		if (!epochs)
			continue;
		source.in_place = true;
		source.before = (uint32_t)s->at - 1;
		if (s->at > family->from)
			prefetch_trace_set(s->traces[i], target->n, s->dali_cells[i], target->n_seen);
		prefetch_rng_seed(&rng, PREFETCH_SHUFFLE_STD64, source.seed);
		prefetch_trace_positions(s->traces[i], &rng, PREFETCH_SHUFFLE_STD64, where);
		for (uint32_t k = 0; k < target->n_seen; k++)
			s->dali_cells[i][k] = (uint32_t)where[k];
		trace_of(s, i);
		if (fit_shuffle(target, where, &source, &s->match))
			keep_better(&s->match, &best);
	}
	s->match = best;
	return best.list != NULL;
}

/* Whether this seed is left out for a list that only shuffles try: if it is short, it is shuffled whole for each
 * seed. */
static bool costs_much(const struct prefetch_trace *trace, uint64_t seed)
{
	if (!prefetch_trace_is_short(trace) || seed < SHUFFLE_FIRST)
		return false;
	for (unsigned i = 0; i < POPULAR; i++) {
		if (popular[i] == seed)
			return false;
	}
	return true;
}

/* Whether both lists begin at the same file, and one is a little longer. */
static bool begin_alike(const struct prefetch_list *a, const struct prefetch_list *b)
{
	uint32_t n = prefetch_list_size(a), m = prefetch_list_size(b), one, other;
	uint32_t shorter = n < m ? n : m, longer = n < m ? m : n;
	return shorter < longer && shorter / 3 * 4 >= longer && prefetch_list_at(a, 0, &one) == 0 &&
	       prefetch_list_at(b, 0, &other) == 0 && one == other;
}

/* Returns how many of the first positions were opened, as many as there are opens. */
static uint32_t in_front(const struct match *match)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < match->n; i++)
		n += match->positions[i] < match->n;
	return n;
}

/* Python's sample of a list begins nearly as that of a list that is a little longer or shorter.  Takes the one that
 * explains most of the opens.  If two parts differ by one file, the opens may not tell: sample_size.c. */
static bool verify_sample(struct seeds *s, uint32_t passed, const struct source *source)
{
	if (!verify_traced(s, passed, source))
		return false;
	struct match best = s->match;
	const struct prefetch_list *list = best.list; /* it may be another target's, of the same length */
	for (uint32_t i = passed + 1; i < s->n_traced; i++) {
		if (s->traces[i] && begin_alike(s->targets[i].list, list) && verify_traced(s, i, source) &&
		        in_front(&s->match) > in_front(&best))
			best = s->match;
	}
	s->match = best;
	return true;
}

/* Whether the seed may be the right one.  A quick test lets one wrong seed in 1,000 pass, and the exact comparison that
 * follows takes as long as 100 tests; so these are tested once more. */
static bool may_be_right(struct prefetch_trace *trace, const struct family *family, enum prefetch_shuffle_kind kind,
        uint64_t seed, uint64_t *steps)
{
	if (family->shared)
		return prefetch_trace_try(trace, kind, seed, PREFETCH_TRACE_SHARED, steps);
	return (!family->quick || prefetch_trace_try(trace, kind, seed, PREFETCH_TRACE_QUICK, steps)) &&
	       prefetch_trace_try(trace, kind, seed, PREFETCH_TRACE_PATIENT, steps);
}

/* Tries one seed on all lists.  Python's sample of a whole list is its shuffle backwards. */
static bool try_traced(struct seeds *s, const struct family *family, uint64_t *steps)
{
	struct source source = { .sampler = family->sampler, .seed = s->at, .name = s->at, .step = 1 };
	enum prefetch_shuffle_kind kind = prefetch_source_shuffle(&source).kind;
	if (family->sampler >= PREFETCH_SAMPLER_DALI)
		return try_dali(s, family, steps);
	for (uint32_t i = 0; i < s->n_traced; i++) {
		if (!s->traces[i] || (i >= s->n_targets && costs_much(s->traces[i], s->at)))
			continue;
		if ((family->again || family->shared) && prefetch_trace_is_short(s->traces[i]))
			continue; /* it was shuffled whole */
		s->tried++;
		*steps += SEED_STEPS;
		if (!may_be_right(s->traces[i], family, kind, s->at, steps))
			continue;
		*steps += s->targets[i].n + EXACT_STEPS;
		if (verify_traced(s, i, &source))
			return true;
		if (family->sampler != PREFETCH_SAMPLER_PYTHON)
			continue;
		source.sampler = PREFETCH_SAMPLER_PYTHON_SAMPLE;
		if (verify_sample(s, i, &source))
			return true;
		source.sampler = PREFETCH_SAMPLER_PYTHON;
	}
	return false;
}

static bool step_traced(struct seeds *s, const struct family *family)
{
	uint64_t steps = 0;
	bool found = false;
	while (!found && steps < SLICE_WORK * TRACE_STEP && s->at < family->to) {
		found = try_traced(s, family, &steps);
		s->at += !found;
	}
	return found;
}

/* ---- many side by side ---- */

/* Compares the seeds that pass the filter with each target exactly.  True: one explains the opens; s->match has it. */
static bool sieve(struct seeds *s, const struct family *family, const uint32_t seeds[PREFETCH_LANES],
        const struct source sources[PREFETCH_LANES], uint32_t lanes)
{
	prefetch_torch_words(seeds, family->skip + family->outputs, &s->words);
	for (uint32_t i = 0; i < s->n_targets; i++) {
		struct target *target = &s->targets[i];
		uint32_t outputs = family->outputs < target->filter.outputs ? family->outputs : target->filter.outputs;
		uint32_t hits[PREFETCH_LANES];
		prefetch_torch_count(&target->filter, &s->words, family->skip, outputs, hits);
		s->tried += lanes;
		for (uint32_t lane = 0; lane < lanes; lane++) {
			if (hits[lane] < target->threshold)
				continue;
			prefetch_torch_seek(&s->exact_mt, seeds[lane], family->skip);
			if (verify(&s->bench, s->targets, s->n_targets, target, &sources[lane], &s->exact_mt,
			            EXACT_OUTPUTS, &s->match))
				return true;
		}
	}
	return false;
}

static bool try_seeds(struct seeds *s, const struct family *family, uint32_t lanes)
{
	struct source sources[PREFETCH_LANES];
	uint32_t seeds[PREFETCH_LANES];
	for (uint32_t lane = 0; lane < PREFETCH_LANES; lane++) {
		seeds[lane] = (uint32_t)s->at + lane;
		sources[lane] = (struct source){
			.sampler = family->sampler,
			.seed = seeds[lane],
			.skip = family->skip,
			.name = seeds[lane] == (uint32_t)DEFAULT_SEED ? DEFAULT_SEED : seeds[lane],
			.step = 1,
		};
	}
	return sieve(s, family, seeds, sources, lanes);
}

/* Tries the seeds that a RandomSampler draws after manual_seed(at + lane): 64 bits, of which the second word counts. */
static bool try_manual(struct seeds *s, const struct family *family, uint32_t lanes)
{
	struct source sources[MANUAL_DRAWS][PREFETCH_LANES];
	uint32_t seeds[MANUAL_DRAWS][PREFETCH_LANES], manual[PREFETCH_LANES];
	for (uint32_t lane = 0; lane < PREFETCH_LANES; lane++)
		manual[lane] = (uint32_t)s->at + lane;
	prefetch_torch_words(manual, 2 * family->draws, &s->words);
	for (uint32_t d = 0; d < family->draws; d++) {
		for (uint32_t lane = 0; lane < PREFETCH_LANES; lane++) {
			seeds[d][lane] = s->words.words[2 * d + 1][lane];
			sources[d][lane] = (struct source){
				.sampler = PREFETCH_SAMPLER_RANDOM,
				.seed = seeds[d][lane],
				.name = manual[lane],
				.word = 2 * d + 1,
				.step = 4,
			};
		}
	}
	for (uint32_t d = 0; d < family->draws; d++) {
		if (sieve(s, family, seeds[d], sources[d], lanes))
			return true;
	}
	return false;
}

static bool try_words(struct seeds *s, const struct family *family, uint32_t lanes)
{
	struct source sources[PREFETCH_LANES];
	uint32_t seeds[PREFETCH_LANES];
	if (s->at == family->from)
		prefetch_torch_seek(&s->deep_mt, (uint32_t)family->manual, family->from);
	for (uint32_t lane = 0; lane < PREFETCH_LANES; lane++) {
		seeds[lane] = shard_mt19937_next32(&s->deep_mt);
		sources[lane] = (struct source){
			.sampler = PREFETCH_SAMPLER_RANDOM,
			.seed = seeds[lane],
			.name = family->manual,
			.word = s->at + lane,
			.step = 4,
		};
	}
	return sieve(s, family, seeds, sources, lanes);
}

/* Computes one seed exactly, where the filter sees too little.  In a large world few of the first outputs belong to a
 * rank.  Of few files a ring has opened nearly all that the rank reads. */
static bool try_far(struct seeds *s, const struct family *family, const struct target *target)
{
	struct source source = { .sampler = family->sampler, .seed = (uint32_t)s->at, .name = s->at, .step = 1 };
	if (family->outputs == FEW_FILES ? target->n > FEW_FILES : target->n < 2 * FAR_PREFIX)
		return false; /* a rank of a large world reads next to nothing of a shorter list */
	s->tried++;
	prefetch_torch_seek(&s->exact_mt, source.seed, family->skip);
	return verify(&s->bench, s->targets, s->n_targets, target, &source, &s->exact_mt, family->outputs, &s->match);
}

/* Tries one seed on one list. */
static bool step_far(struct seeds *s, const struct family *family)
{
	bool found = try_far(s, family, &s->targets[s->far_target]);
	if (!found && ++s->far_target == s->n_targets) {
		s->far_target = 0;
		s->at++;
	}
	return found;
}

static bool step_lanes(struct seeds *s, const struct family *family)
{
	uint64_t left = family->to - s->at;
	uint32_t lanes = left < PREFETCH_LANES ? (uint32_t)left : PREFETCH_LANES;
	bool found = family->deep                                 ? try_words(s, family, lanes)
	             : family->sampler == PREFETCH_SAMPLER_RANDOM ? try_manual(s, family, lanes)
	                                                          : try_seeds(s, family, lanes);
	s->at += found ? 0 : lanes;
	return found;
}

static void begin_family(struct seeds *s)
{
	const struct family *family = &s->families[s->family];
	s->at = family->from;
	for (uint32_t i = 0; family->traced && i < s->n_traced; i++)
		trace_of(s, i);
	for (uint32_t i = 0; !family->traced && i < s->n_targets; i++) {
		struct target *target = &s->targets[i];
		uint32_t outputs = family->outputs < target->filter.outputs ? family->outputs : target->filter.outputs;
		target->threshold = prefetch_torch_threshold(&target->filter, outputs);
	}
}

static enum seeds_result next_family(struct seeds *s)
{
	if (s->at < s->families[s->family].to)
		return SEEDS_MORE;
	if (++s->family == s->n_families)
		return SEEDS_NONE;
	s->at = s->families[s->family].from;
	return SEEDS_MORE;
}

enum seeds_result prefetch_seeds_skip(struct seeds *s)
{
	s->at = s->families[s->family].to;
	return next_family(s);
}

enum seeds_result prefetch_seeds_step(struct seeds *s)
{
	if (s->family >= s->n_families || s->n_traced == 0)
		return SEEDS_NONE;
	const struct family *family = &s->families[s->family];
	if (!family->traced && s->n_targets == 0)
		return prefetch_seeds_skip(s);
	bool far = family->outputs > PREFETCH_FILTER_WORDS, found;
	if (s->at == family->from)
		begin_family(s);
	if (family->traced)
		return step_traced(s, family) ? SEEDS_FOUND : next_family(s);
	/* A slice is SLICE_WORK outputs, over all lists and seeds, in every family. */
	uint64_t budget = SLICE_WORK / ((uint64_t)s->n_targets * (far ? 1 : PREFETCH_LANES * family->outputs));
	if (family->draws > 0)
		budget /= family->draws;
	do {
		found = far ? step_far(s, family) : step_lanes(s, family);
	} while (!found && !far && budget-- > 1 && s->at < family->to);
	return found ? SEEDS_FOUND : next_family(s);
}
