/* The search: the files of the ring against all hypotheses, likely ones first, a slice at a time.
 *
 * A hypothesis passes three sieves: the count of its first outputs that are in the ring (prefetch/recognise_torch.h),
 * about a microsecond; its exact prefix and the part of it that fits best (prefetch/recognise_fit.h); the bound. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "prefetch/recognise_private.h"

/* Sizes of the ring at which it is looked at.  All seeds are tried at those marked. */
static const struct {
	uint32_t ring;
	bool all;
} levels[] = { { 48, false }, { 64, false }, { 96, true }, { 128, false }, { 192, false }, { 256, false },
	{ 384, false }, { RING, true } };
enum { LEVELS = sizeof(levels) / sizeof(levels[0]) };

/* Manual seeds that people use, whose default generator is looked at farther on: models draw from it first. */
static const uint32_t popular[] = { 0, 1, 2, 3, 7, 10, 42, 100, 123, 1234, 1337, 2023, 2024, 2025, 2026, 3407 };
enum {
	POPULAR = sizeof(popular) / sizeof(popular[0]),
	NEAR_WORDS = 1 << 17, /* looked at behind the last seed of a RandomSampler */
	NEAR_OUTPUTS = 128,
	MANUAL_DRAWS = 8,
	FAR_SEEDS = 1000,
	FAR_PREFIX = 16384,
	FAR_SURPRISE = 9, /* nats: one wrong seed in 8,000 */
	FEW_FILES = 4096, /* of a list that few seeds are tried on exactly */
	FEW_SEEDS = 1000,
	FEW_OPENS = 48,  /* that a rank makes of it at least */
	WORLD_LEAST = 8, /* looked at, however few files */
	FIRST_LOOK = 96, /* opens: what the filter tells best by */
	FIRST_SLACK = 128,
	ALL_SEEDS = 8, /* nats: 2^32 permutations instead of 2.2e6 */
};

static const uint64_t DEFAULT_SEED = 67280421310721;

int prefetch_search_init(struct search *search)
{
	search->targets = calloc(LISTS_MAX + 1, sizeof(*search->targets));
	search->perm = calloc(FAR_OUTPUTS, sizeof(*search->perm));
	search->table = calloc((size_t)2 * FAR_OUTPUTS, sizeof(*search->table));
	return search->targets && search->perm && search->table ? 0 : -ENOMEM;
}

void prefetch_search_done(struct search *search)
{
	free(search->targets);
	free(search->perm);
	free(search->table);
}

static unsigned level_of(uint32_t ring)
{
	unsigned level = 0;
	while (level < LEVELS && levels[level].ring <= ring)
		level++;
	return level;
}

bool prefetch_search_due(const struct prefetch_recognise *r)
{
	for (unsigned i = 0; i < r->n_tracks; i++) {
		if (!r->tracks[i]->now)
			return false; /* it may explain the ring */
	}
	bool more = r->n_ring >= levels[0].ring && r->n_ring > r->looked;
	return more && (r->pressing || level_of(r->n_ring) > level_of(r->looked));
}

static uint32_t slot_of(const struct target *target, uint32_t index)
{
	uint32_t slot = index * UINT32_C(0x9e3779b9) >> 21; /* 11 bits: RING * 4 slots */
	while (target->slots[slot] != 0 && target->slots[slot] != index + 1)
		slot = (slot + 1) % (RING * 4);
	return slot;
}
_Static_assert(RING * 4 == 1 << 11, "slot_of makes 11 bits");

static void add_index(struct target *target, uint32_t index)
{
	uint32_t slot = slot_of(target, index);
	if (target->slots[slot] != 0)
		return;
	target->slots[slot] = index + 1;
	target->numbers[slot] = (uint16_t)target->n_seen;
	target->indices[target->n_seen++] = index;
}

static void add_target(struct prefetch_recognise *r, struct prefetch_list *list)
{
	struct target *target = &r->search.targets[r->search.n_targets];
	target->list = list;
	target->n = prefetch_list_size(list);
	target->n_seen = 0;
	memset(target->slots, 0, sizeof(target->slots));
	for (uint32_t i = 0; i < r->search.n_ring; i++) {
		uint32_t index;
		if (prefetch_list_find(list, r->ring[i], &index) == 0)
			add_index(target, index);
	}
	if (target->n_seen < PREFETCH_FIT_HITS_MIN || target->n < 2 * PREFETCH_FIT_HITS_MIN)
		return;
	prefetch_torch_filter_init(&target->filter, target->n, target->indices, target->n_seen);
	r->search.n_targets++;
}

static void add_family(struct search *search, struct family family)
{
	if (search->n_families < FAMILIES_MAX && family.from < family.to)
		search->families[search->n_families++] = family;
}

/* A RandomSampler goes on behind a word of a generator that it drew from. */
static void add_words(struct search *search, uint64_t manual, uint64_t word)
{
	add_family(search, (struct family){ .sampler = PREFETCH_SAMPLER_RANDOM,
	                           .deep = true,
	                           .manual = manual,
	                           .from = (uint32_t)word + 1,
	                           .to = (uint32_t)word + 1 + NEAR_WORDS,
	                           .outputs = NEAR_OUTPUTS });
}

static bool has_few_files(const struct search *s)
{
	bool few = false;
	for (uint32_t i = 0; i < s->n_targets; i++)
		few |= s->targets[i].n <= FEW_FILES;
	return few;
}

static void plan(struct prefetch_recognise *r, bool all)
{
	struct search *s = &r->search;
	uint32_t likely = r->options.seed_max < LIKELY_SEEDS ? r->options.seed_max + 1 : LIKELY_SEEDS;
	s->n_families = 0;
	for (unsigned i = 0; i < r->n_tracks; i++) {
		const struct source *source = &r->tracks[i]->source;
		if (source->sampler == PREFETCH_SAMPLER_DISTRIBUTED && source->seed >= likely)
			add_family(s, (struct family){ .sampler = PREFETCH_SAMPLER_DISTRIBUTED,
			                      .from = source->seed < 64 ? 0 : source->seed - 64,
			                      .to = source->seed < UINT32_MAX - 1024 ? source->seed + 1024 : UINT32_MAX,
			                      .outputs = PREFETCH_FILTER_WORDS });
		if (source->sampler == PREFETCH_SAMPLER_RANDOM)
			add_words(s, source->name, source->word);
	}
	if (r->options.seen_word > 0)
		add_words(s, r->options.seen_manual, r->options.seen_word);
	add_family(
	        s, (struct family){ .sampler = PREFETCH_SAMPLER_DISTRIBUTED, .to = likely, .outputs = NEAR_OUTPUTS });
	add_family(
	        s, (struct family){
	                   .sampler = PREFETCH_SAMPLER_DISTRIBUTED, .to = likely, .outputs = PREFETCH_FILTER_WORDS });
	add_family(
	        s, (struct family){
	                   .sampler = PREFETCH_SAMPLER_GENERATOR, .to = likely, .skip = 2, .outputs = NEAR_OUTPUTS });
	/* torch.Generator() that nobody seeded has always the same (c10::default_rng_seed_val); alone, or drawn from by a loader. */
	for (uint32_t skip = 0; skip <= 2; skip += 2)
		add_family(s, (struct family){ .sampler = PREFETCH_SAMPLER_GENERATOR,
		                      .from = (uint32_t)DEFAULT_SEED,
		                      .to = (uint32_t)DEFAULT_SEED + 1,
		                      .skip = skip,
		                      .outputs = NEAR_OUTPUTS });
	add_family(s, (struct family){ .sampler = PREFETCH_SAMPLER_RANDOM,
	                      .to = likely,
	                      .draws = MANUAL_DRAWS,
	                      .outputs = NEAR_OUTPUTS });
	if (has_few_files(s))
		add_family(s, (struct family){ .sampler = PREFETCH_SAMPLER_DISTRIBUTED,
		                      .to = likely < FEW_SEEDS ? likely : FEW_SEEDS,
		                      .outputs = FEW_FILES });
	if (!all)
		return;
	if (r->options.seed_max >= likely)
		add_family(s, (struct family){ .sampler = PREFETCH_SAMPLER_DISTRIBUTED,
		                      .from = likely,
		                      .to = r->options.seed_max + 1,
		                      .outputs = PREFETCH_FILTER_WORDS });
	add_family(s, (struct family){ .sampler = PREFETCH_SAMPLER_DISTRIBUTED,
	                      .to = likely < FAR_SEEDS ? likely : FAR_SEEDS,
	                      .outputs = FAR_PREFIX });
	for (unsigned i = 0; i < POPULAR; i++)
		add_family(s, (struct family){ .sampler = PREFETCH_SAMPLER_RANDOM,
		                      .deep = true,
		                      .manual = popular[i],
		                      .from = 2 * MANUAL_DRAWS,
		                      .to = r->options.popular_words,
		                      .outputs = NEAR_OUTPUTS });
}

static int accept(struct prefetch_recognise *r, const struct target *target, const struct source *source,
        const struct shard_mt19937 *mt, const struct prefetch_fit *fit, const uint64_t *positions, uint32_t n)
{
	struct prefetch_list *list = target ? target->list : NULL;
	struct prefetch_part part;
	uint64_t inside[RING];
	uint32_t n_inside = 0;
	r->search.running = false;
	prefetch_unseeded_found(r, list); /* the target may be gone with it */
	/* Strangers' files lie all over the permutation. */
	for (uint32_t i = 0; i < n; i++) {
		if (positions[i] >= fit->low && positions[i] < fit->high)
			inside[n_inside++] = positions[i];
	}
	/* Without an order, the residues: one of them cannot be workers side by side. */
	if (!prefetch_part(inside, n_inside, &part) && fit->ranks == 1) {
		part.world = part.stride = fit->world;
		part.first = fit->first;
	}
	return prefetch_track_new(r, source, list, mt, fit, &part);
}

/* How well the prefix in search.perm explains the target's files.  False when it does not. */
static bool fit_prefix(const struct prefetch_recognise *r, const struct target *target, uint32_t outputs,
        uint64_t positions[RING], uint32_t *ret_n, struct prefetch_fit *ret_fit)
{
	uint64_t where[RING];
	uint32_t n = 0;
	memset(where, 0xff, sizeof(where));
	for (uint32_t i = 0; i < outputs; i++) {
		uint32_t slot = slot_of(target, r->search.perm[i]);
		if (target->slots[slot] != 0)
			where[target->numbers[slot]] = i;
	}
	for (uint32_t i = 0; i < target->n_seen; i++) {
		if (where[i] != UINT64_MAX)
			positions[n++] = where[i];
	}
	const uint32_t few = WORLD_LEAST * FEW_OPENS;
	struct prefetch_fit_input input = {
		.positions = positions,
		.n = n,
		.size = target->n,
		.seen = target->n_seen,
		.world_max = outputs > EXACT_OUTPUTS ? 1024
		             : outputs < target->n   ? outputs / 64
		             : outputs < few         ? WORLD_LEAST
		                                     : outputs / FEW_OPENS,
	};
	*ret_n = n;
	/* Where the filter was passed by, most seeds end here. */
	if (outputs > EXACT_OUTPUTS &&
	        prefetch_fit_surprise(n, outputs, (double)target->n_seen / target->n) < FAR_SURPRISE)
		return false;
	return prefetch_fit(&input, ret_fit) && ret_fit->score >= PREFETCH_FIT_SURE;
}

static int verify_in(struct prefetch_recognise *r, const struct target *targets, uint32_t n_targets,
        const struct target *target, const struct source *source, const struct shard_mt19937 *mt, uint32_t outputs)
{
	uint64_t best_positions[RING], positions[RING];
	const struct target *best = target;
	struct prefetch_fit best_fit, fit;
	uint32_t best_n, n;
	if (outputs > target->n)
		outputs = target->n;
	if (target->n >= SHARD_TORCH_INSIDE_OUT)
		return 0;
	prefetch_torch_prefix(*mt, target->n, outputs, r->search.perm, r->search.table);
	if (!fit_prefix(r, target, outputs, best_positions, &best_n, &best_fit) ||
	        (source->sampler == PREFETCH_SAMPLER_UNSEEDED && best_fit.score < PREFETCH_FIT_SURE + ALL_SEEDS))
		return 0;
	for (uint32_t i = 0; i < n_targets; i++) {
		const struct target *other = &targets[i];
		if (other == target || other->n != target->n || !fit_prefix(r, other, outputs, positions, &n, &fit) ||
		        fit.score <= best_fit.score)
			continue;
		best = other;
		best_fit = fit;
		best_n = n;
		memcpy(best_positions, positions, sizeof(positions));
	}
	int rc = accept(r, best, source, mt, &best_fit, best_positions, best_n);
	return rc < 0 ? rc : 1;
}

static int verify(struct prefetch_recognise *r, const struct target *target, const struct source *source,
        const struct shard_mt19937 *mt, uint32_t outputs)
{
	return verify_in(r, r->search.targets, r->search.n_targets, target, source, mt, outputs);
}

int prefetch_search_verify(struct prefetch_recognise *r, const struct target *targets, uint32_t n_targets,
        const struct target *target, const struct source *source, const struct shard_mt19937 *mt)
{
	return verify_in(r, targets, n_targets, target, source, mt, EXACT_OUTPUTS);
}

/* An order that may be entered anywhere needs more than files close together, which a shuffled subset of the list has
 * too: most opens must follow on the one before in some reader. */
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

/* How likely people read this list in its order: it is entered at its beginning, and its directory is the one that holds
 * the directory of the files, as a dataset holds its classes; or it is that directory itself. */
static unsigned plausible(
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

/* One list; the best of those that fit is taken in the end. */
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
	if (fits_in_order(&input, &fit) && prefetch_list_at(target->list, (uint32_t)fit.low, &file) == 0)
		prefer_sorted(&r->search, target, &fit, plausible(r, target, file, fit.low));
}

/* The same opens are sooner evidence in a larger list, but they may be all of a smaller one, in its order: whoever seems to
 * enter the whole dataset where val/ begins reads val/. */
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
	/* But for a few strangers. */
	if (target == best || left * 8 > n || !follow_on(positions, n, &part))
		return;
	fit.low = low;
	fit.high = high;
	prefer_sorted(&r->search, target, &fit, plausible(r, target, at_low, low));
}

static int accept_sorted(struct prefetch_recognise *r)
{
	const struct target *best = r->search.sorted;
	uint64_t positions[RING];
	for (uint32_t k = 0; k < best->n_seen; k++)
		positions[k] = best->indices[k];
	return accept(r, best, &(struct source){ .sampler = PREFETCH_SAMPLER_SORTED }, NULL, &r->search.sorted_fit,
	        positions, best->n_seen);
}

/* The files of a sample share a position: the first of them that was opened counts. */
static uint32_t own_positions(const struct prefetch_recognise *r, uint64_t epoch, uint64_t positions[RING])
{
	const struct prefetch_own_order *own = r->options.own;
	uint32_t n = 0;
	for (uint32_t i = 0; i < r->search.n_ring; i++) {
		uint64_t position;
		bool again = own->find(own->user, epoch, r->ring[i], &position) < 0;
		for (uint32_t k = 0; k < n && own->several && !again; k++)
			again = positions[k] == position;
		if (!again)
			positions[n++] = position;
	}
	return n;
}

/* The first epochs, and those from the one on that the view is in. */
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
	uint64_t positions[RING];
	struct prefetch_fit fit;
	uint32_t n = own_positions(r, epoch, positions);
	struct prefetch_fit_input input = {
		.positions = positions,
		.n = n,
		.size = own->size,
		.seen = n,
		.anywhere = true,
	};
	if (!fits_in_order(&input, &fit))
		return 0;
	struct source source = { .sampler = PREFETCH_SAMPLER_OWN, .seed = (uint32_t)epoch, .name = epoch, .step = 1 };
	int rc = accept(r, NULL, &source, NULL, &fit, positions, n);
	return rc < 0 ? rc : 1;
}

/* A generator that a track's permutation was drawn from goes on: at once, after a DataLoader's base seed (2 words), or
 * after the permutation that RandomSampler draws and throws away when it is exhausted. */
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
	for (unsigned g = 0; g < 4; g++) {
		struct shard_mt19937 mt = track->perm->mt;
		struct source source = track->source;
		for (uint64_t w = 0; w < gaps[g]; w++)
			shard_mt19937_next32(&mt);
		source.sampler = PREFETCH_SAMPLER_GENERATOR;
		source.step = n - 1 + gaps[g];
		source.skip += source.step;
		source.learned = true;
		int rc = verify(r, target, &source, &mt, EXACT_OUTPUTS);
		if (rc != 0)
			return rc;
	}
	return 0;
}

int prefetch_search_begin(struct prefetch_recognise *r)
{
	struct search *s = &r->search;
	s->n_ring = r->n_ring;
	/* Opens came faster than they could be looked at: the more there are, the less a permutation's beginning stands out
	 * among them. */
	if (r->looked < FIRST_LOOK && r->n_ring >= FIRST_SLACK)
		s->n_ring = FIRST_LOOK;
	s->all = false;
	for (unsigned i = level_of(r->looked); i < level_of(s->n_ring); i++)
		s->all |= levels[i].all && !r->rolling;
	r->looked = s->n_ring;
	r->pressing = false;
	s->n_targets = 0;
	s->phase = SEARCH_TARGETS;
	s->at = 0;
	s->sorted = NULL;
	s->running = true;
	return 0;
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

/* One slice of what comes before the seeds.  Returns 1 when something was recognised. */
static int prepare(struct prefetch_recognise *r)
{
	struct search *s = &r->search;
	int rc = 0;
	switch (s->phase) {
	case SEARCH_TARGETS:
		if (s->at < r->n_lists)
			add_target(r, r->lists[s->at++]);
		else
			next_phase(s);
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
		rc = s->sorted ? accept_sorted(r) : 0;
		return rc < 0 ? rc : s->sorted ? 1 : 0;
	case SEARCH_OWN_LAST:
		if (r->options.own_last)
			return step_own(r);
		next_phase(s);
		return 0;
	case SEARCH_GENERATORS:
		if (s->at < r->n_tracks)
			return try_generators(r, (unsigned)s->at++);
		next_phase(s);
		plan(r, s->all);
		s->family = 0;
		s->at = s->families[0].from;
		s->running = s->n_targets > 0;
		return s->all ? prefetch_unseeded_begin(r) : 0;
	case SEARCH_SEEDS:
		break;
	}
	return 0;
}

/* What passes the filter is held against each target exactly. */
static int sieve(struct prefetch_recognise *r, const struct family *family, const uint32_t seeds[PREFETCH_LANES],
        const struct source sources[PREFETCH_LANES], uint32_t lanes)
{
	struct search *s = &r->search;
	prefetch_torch_words(seeds, family->skip + family->outputs, &s->words);
	for (uint32_t i = 0; i < s->n_targets; i++) {
		struct target *target = &s->targets[i];
		uint32_t outputs = family->outputs < target->filter.outputs ? family->outputs : target->filter.outputs;
		uint32_t hits[PREFETCH_LANES];
		prefetch_torch_count(&target->filter, &s->words, family->skip, outputs, hits);
		for (uint32_t lane = 0; lane < lanes; lane++) {
			if (hits[lane] < target->threshold)
				continue;
			prefetch_torch_seek(&s->exact_mt, seeds[lane], family->skip);
			int rc = verify(r, target, &sources[lane], &s->exact_mt, EXACT_OUTPUTS);
			if (rc != 0)
				return rc;
		}
	}
	return 0;
}

static int try_seeds(struct prefetch_recognise *r, const struct family *family, uint32_t lanes)
{
	struct source sources[PREFETCH_LANES];
	uint32_t seeds[PREFETCH_LANES];
	for (uint32_t lane = 0; lane < PREFETCH_LANES; lane++) {
		seeds[lane] = (uint32_t)r->search.at + lane;
		sources[lane] = (struct source){
			.sampler = family->sampler,
			.seed = seeds[lane],
			.skip = family->skip,
			.name = seeds[lane] == (uint32_t)DEFAULT_SEED ? DEFAULT_SEED : seeds[lane],
			.step = 1,
		};
	}
	return sieve(r, family, seeds, sources, lanes);
}

/* The seeds that a RandomSampler draws after manual_seed(at + lane): 64 bits each, of which the second word counts. */
static int try_manual(struct prefetch_recognise *r, const struct family *family, uint32_t lanes)
{
	struct prefetch_torch_words *drawn = &r->search.words;
	struct source sources[MANUAL_DRAWS][PREFETCH_LANES];
	uint32_t seeds[MANUAL_DRAWS][PREFETCH_LANES], manual[PREFETCH_LANES];
	for (uint32_t lane = 0; lane < PREFETCH_LANES; lane++)
		manual[lane] = (uint32_t)r->search.at + lane;
	prefetch_torch_words(manual, 2 * family->draws, drawn);
	for (uint32_t d = 0; d < family->draws; d++) {
		for (uint32_t lane = 0; lane < PREFETCH_LANES; lane++) {
			seeds[d][lane] = drawn->words[2 * d + 1][lane];
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
		int rc = sieve(r, family, seeds[d], sources[d], lanes);
		if (rc != 0)
			return rc;
	}
	return 0;
}

static int try_words(struct prefetch_recognise *r, const struct family *family, uint32_t lanes)
{
	struct source sources[PREFETCH_LANES];
	uint32_t seeds[PREFETCH_LANES];
	if (r->search.at == family->from)
		prefetch_torch_seek(&r->search.deep_mt, (uint32_t)family->manual, family->from);
	for (uint32_t lane = 0; lane < PREFETCH_LANES; lane++) {
		seeds[lane] = shard_mt19937_next32(&r->search.deep_mt);
		sources[lane] = (struct source){
			.sampler = PREFETCH_SAMPLER_RANDOM,
			.seed = seeds[lane],
			.name = family->manual,
			.word = r->search.at + lane,
			.step = 4,
		};
	}
	return sieve(r, family, seeds, sources, lanes);
}

/* A world so large that the filter sees too little of it, or so few files that what is not of a rank is nearly all that
 * is not opened: one by one, exactly. */
static int try_far(struct prefetch_recognise *r, const struct family *family, uint32_t i)
{
	struct source source = {
		.sampler = family->sampler,
		.seed = (uint32_t)r->search.at,
		.name = r->search.at,
		.step = 1,
	};
	uint32_t n = r->search.targets[i].n;
	if (family->outputs == FEW_FILES ? n > FEW_FILES : n < 2 * FAR_PREFIX)
		return 0; /* of less than that a rank of a large world has next to nothing */
	prefetch_torch_seek(&r->search.exact_mt, source.seed, family->skip);
	return verify(r, &r->search.targets[i], &source, &r->search.exact_mt, family->outputs);
}

/* One seed and list. */
static int step_far(struct prefetch_recognise *r, const struct family *family)
{
	struct search *s = &r->search;
	int rc = try_far(r, family, s->far_target);
	if (rc == 0 && ++s->far_target == s->n_targets) {
		s->far_target = 0;
		s->at++;
	}
	return rc;
}

static int step_lanes(struct prefetch_recognise *r, const struct family *family)
{
	struct search *s = &r->search;
	uint64_t left = family->to - s->at;
	uint32_t lanes = left < PREFETCH_LANES ? (uint32_t)left : PREFETCH_LANES;
	int rc = family->deep                                 ? try_words(r, family, lanes)
	         : family->sampler == PREFETCH_SAMPLER_RANDOM ? try_manual(r, family, lanes)
	                                                      : try_seeds(r, family, lanes);
	if (rc == 0)
		s->at += lanes;
	return rc;
}

static void begin_family(struct search *s)
{
	const struct family *family = &s->families[s->family];
	s->at = family->from;
	for (uint32_t i = 0; i < s->n_targets; i++) {
		struct target *target = &s->targets[i];
		uint32_t outputs = family->outputs < target->filter.outputs ? family->outputs : target->filter.outputs;
		target->threshold = prefetch_torch_threshold(&target->filter, outputs);
	}
}

int prefetch_search_step(struct prefetch_recognise *r)
{
	struct search *s = &r->search;
	if (s->phase != SEARCH_SEEDS) {
		int rc = prepare(r);
		return rc < 0 ? rc : 1;
	}
	const struct family *family = &s->families[s->family];
	bool far = family->outputs > PREFETCH_FILTER_WORDS;
	if (s->at == family->from)
		begin_family(s);
	/* A slice is so many seeds, lists and outputs, whatever the family. */
	uint64_t budget = SLICE_WORK / ((uint64_t)s->n_targets * (far ? 1 : PREFETCH_LANES * family->outputs));
	if (family->draws > 0)
		budget /= family->draws;
	int rc = 0;
	do {
		rc = far ? step_far(r, family) : step_lanes(r, family);
	} while (rc == 0 && !far && budget-- > 1 && s->at < family->to);
	if (rc != 0)
		return rc;
	if (s->at >= family->to) {
		s->family++;
		if (s->family == s->n_families)
			s->running = false;
		else
			s->at = s->families[s->family].from;
	}
	return 1;
}
