/* SPDX-License-Identifier: Apache-2.0 */
/* Tries seeds, the hypotheses that cost processor time; prefetch/sampler/recognise_private.h first: it says when which
 * thread tries them.
 *
 * A hypothesis must pass three tests.  The first counts how many of its first outputs are in the ring, in about a
 * microsecond (prefetch/sampler/torch.h).  The second computes its exact prefix and the part that fits best
 * (prefetch/sampler/fit.h).  The third is the bound on the score. */
#include <assert.h>
#include <errno.h>
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
	FEW_SEEDS = 1000,
	FEW_OPENS = 48,  /* that a rank of it makes at least */
	FEW_RING = 128,  /* opens: with more of them the filter finds it, too */
	WORLD_LEAST = 8, /* worlds up to this one are tried, however few files the list has */
	ALL_SEEDS = 8,   /* nats for 2^32 permutations instead of 2.2e6 */
};

static const uint64_t DEFAULT_SEED = 67280421310721;

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
	seeds->targets = calloc(LISTS_MAX + 1, sizeof(*seeds->targets));
	int rc = prefetch_workbench_init(&seeds->bench);
	return seeds->targets ? rc : -ENOMEM;
}

void prefetch_seeds_done(struct seeds *seeds)
{
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

static void plan_distributed(const struct prefetch_recognise *r, struct seeds *s)
{
	for (unsigned i = 0; i < 2; i++)
		add_family(s, (struct family){ .sampler = PREFETCH_SAMPLER_DISTRIBUTED,
		                      .to = likely_seeds(r),
		                      .outputs = i == 0 ? NEAR_OUTPUTS : PREFETCH_FILTER_WORDS });
}

static void plan_generators(const struct prefetch_recognise *r, struct seeds *s)
{
	add_family(s, (struct family){ .sampler = PREFETCH_SAMPLER_GENERATOR,
	                      .to = likely_seeds(r),
	                      .skip = 2,
	                      .outputs = NEAR_OUTPUTS });
	/* A torch.Generator() that nobody seeded has always the same seed (c10::default_rng_seed_val).  A loader
	 * draws 2 words from it first, a sampler alone none. */
	for (uint32_t skip = 0; skip <= 2; skip += 2)
		add_family(s, (struct family){ .sampler = PREFETCH_SAMPLER_GENERATOR,
		                      .from = (uint32_t)DEFAULT_SEED,
		                      .to = (uint32_t)DEFAULT_SEED + 1,
		                      .skip = skip,
		                      .outputs = NEAR_OUTPUTS });
}

static void plan_random(const struct prefetch_recognise *r, struct seeds *s)
{
	add_family(s, (struct family){ .sampler = PREFETCH_SAMPLER_RANDOM,
	                      .to = likely_seeds(r),
	                      .draws = MANUAL_DRAWS,
	                      .outputs = NEAR_OUTPUTS });
}

static void plan_few(const struct prefetch_recognise *r, struct seeds *s)
{
	bool few = false;
	for (uint32_t i = 0; i < s->n_targets; i++)
		few |= s->targets[i].n <= FEW_FILES;
	if (few && !r->rolling && r->search.n_ring <= FEW_RING)
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

/* Every family of hypotheses with seeds, in the order in which they are tried. */
static const struct {
	enum seeds_cost cost;
	void (*plan)(const struct prefetch_recognise *r, struct seeds *s);
} plans[] = {
	{ SEEDS_LIKELY, plan_near },
	{ SEEDS_LIKELY, plan_distributed },
	{ SEEDS_LIKELY, plan_generators },
	{ SEEDS_LIKELY, plan_random },
	{ SEEDS_LIKELY, plan_few },
	{ SEEDS_FAR, plan_all },
	{ SEEDS_FAR, plan_worlds },
	{ SEEDS_FAR, plan_popular },
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

void prefetch_seeds_begin(const struct prefetch_recognise *r, enum seeds_cost cost, const struct target *targets,
        uint32_t n_targets, const struct seeds_place *place, struct seeds *s)
{
	s->n_targets = 0;
	for (uint32_t i = 0; i < n_targets; i++) {
		if (lies_all_over(&targets[i]))
			s->targets[s->n_targets++] = targets[i];
	}
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

struct seeds_place prefetch_seeds_place(const struct seeds *s)
{
	if (s->n_planned == 0)
		return (struct seeds_place){ 0 };
	return (struct seeds_place){ .family = (s->turned + s->family) % s->n_planned, .at = s->at };
}

/* ---- exactly ---- */

/* Fits the prefix on the bench to the target's files.  False: it does not explain them. */
static bool fit_prefix(
        const struct workbench *bench, const struct target *target, uint32_t outputs, struct match *ret_match)
{
	uint64_t where[RING];
	uint32_t n = 0;
	memset(where, 0xff, sizeof(where));
	for (uint32_t i = 0; i < outputs; i++) {
		uint32_t slot = prefetch_target_slot(target, bench->perm[i]);
		if (target->slots[slot] != 0)
			where[target->numbers[slot]] = i;
	}
	for (uint32_t i = 0; i < target->n_seen; i++) {
		if (where[i] != UINT64_MAX)
			ret_match->positions[n++] = where[i];
	}
	const uint32_t few = WORLD_LEAST * FEW_OPENS;
	struct prefetch_fit_input input = {
		.positions = ret_match->positions,
		.n = n,
		.size = target->n,
		.seen = target->n_seen,
		.world_max = outputs > EXACT_OUTPUTS ? 1024
		             : outputs < target->n   ? outputs / 64
		             : outputs < few         ? WORLD_LEAST
		                                     : outputs / FEW_OPENS,
	};
	ret_match->n = n;
	/* The filter has not seen these seeds, so most of them end here. */
	if (outputs > EXACT_OUTPUTS &&
	        prefetch_fit_surprise(n, outputs, (double)target->n_seen / target->n) < FAR_SURPRISE)
		return false;
	return prefetch_fit(&input, &ret_match->fit) && ret_match->fit.score >= PREFETCH_FIT_SURE;
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
	for (uint32_t i = 0; i < s->n_targets; i++) {
		struct target *target = &s->targets[i];
		uint32_t outputs = family->outputs < target->filter.outputs ? family->outputs : target->filter.outputs;
		target->threshold = prefetch_torch_threshold(&target->filter, outputs);
	}
}

enum seeds_result prefetch_seeds_step(struct seeds *s)
{
	if (s->family >= s->n_families || s->n_targets == 0)
		return SEEDS_NONE;
	const struct family *family = &s->families[s->family];
	bool far = family->outputs > PREFETCH_FILTER_WORDS, found;
	if (s->at == family->from)
		begin_family(s);
	/* A slice is SLICE_WORK outputs, over all lists and seeds, in every family. */
	uint64_t budget = SLICE_WORK / ((uint64_t)s->n_targets * (far ? 1 : PREFETCH_LANES * family->outputs));
	if (family->draws > 0)
		budget /= family->draws;
	do {
		found = far ? step_far(s, family) : step_lanes(s, family);
	} while (!found && !far && budget-- > 1 && s->at < family->to);
	if (found)
		return SEEDS_FOUND;
	if (s->at >= family->to) {
		if (++s->family == s->n_families)
			return SEEDS_NONE;
		s->at = s->families[s->family].from;
	}
	return SEEDS_MORE;
}
