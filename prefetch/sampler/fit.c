/* SPDX-License-Identifier: Apache-2.0 */
/* Scores parts of a permutation, and finds stride and pace; prefetch/sampler/fit.h first: it has the bound. */
#include "prefetch/sampler/fit.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
	BATCH_MAX = 4096,
	CHAINS_MAX = 128, /* compared with each turn: more readers look like fewer */
	FEW_FILES = 512,  /* up to here the exact probability is used */
};

struct hit {
	uint64_t position;
	bool late; /* in the second half of the opens */
};

static int compare_hits(const void *a, const void *b)
{
	const struct hit *x = a, *y = b;
	return (x->position > y->position) - (x->position < y->position);
}

struct part {
	uint32_t world, first, ranks;
};

enum { PART_STRIDE_MAX = PREFETCH_FIT_WORLD_MAX, RESIDUE_SHARE = 8 };

/* residue: of a position, modulo the world. */
static bool in_part(const struct part *part, uint32_t residue)
{
	return residue >= part->first && residue - part->first < part->ranks;
}

/* Positions of the part below `end`. */
static uint64_t cells_below(const struct part *part, uint64_t end)
{
	uint64_t residue = end % part->world;
	uint64_t rest = residue > part->first ? residue - part->first : 0;
	return end / part->world * part->ranks + (rest < part->ranks ? rest : part->ranks);
}

double prefetch_fit_surprise(double a, double s, double q)
{
	double d = a / s;
	if (d <= q)
		return 0;
	double kl = a * log(d / q);
	if (d < 1)
		kl += (s - a) * log((1 - d) / (1 - q));
	return kl > 0 ? kl : 0;
}

static double ln_choose(double n, double k)
{
	int sign;
	return lgamma_r(n + 1, &sign) - lgamma_r(k + 1, &sign) - lgamma_r(n - k + 1, &sign);
}

/* The same for `seen` distinct files of n: the hypergeometric tail, whose terms fall at least as fast as its first two.
 * For few files it gives a much higher score than Chernoff's bound; for many files nearly the same. */
static double surprise_of(double a, double s, double seen, double n)
{
	if (n > FEW_FILES)
		return prefetch_fit_surprise(a, s, seen / n);
	double neither = n - s - seen + a; /* cells outside the part that were not opened */
	double next = (s - a) * (seen - a) / ((a + 1) * (neither + 1));
	if (neither < 0 || a * n <= s * seen || next >= 1)
		return 0;
	double ln = ln_choose(s, a) + ln_choose(n - s, seen - a) - ln_choose(n, seen) - log1p(-next);
	return ln < 0 ? -ln : 0;
}

/* Returns what prefetch_fit_surprise() does not exceed, because ln x <= x - 1.  Most windows end here. */
static double at_most(double a, double s, const struct prefetch_fit_input *in)
{
	return a * (a * (double)in->size / (s * in->seen) - 1);
}

/* Finds the best window of a part.  It may leave out a share of the hits at either end, where late or early workers and
 * other readers open files. */
static void try_part(const struct prefetch_fit_input *in, const struct hit *hits, const uint32_t *residues,
        const struct part *part, struct prefetch_fit *best)
{
	static const unsigned char cut[][2] = { { 0, 0 }, { 0, 10 }, { 0, 25 }, { 0, 50 }, { 10, 10 }, { 25, 25 } };
	uint64_t inside[PREFETCH_FIT_MAX];
	uint32_t n = 0;
	double charge = log(part->world) * 1.5 + (in->anywhere ? log((double)in->size) : 0);
	for (uint32_t i = 0; i < in->n; i++) {
		if (in_part(part, residues[i]))
			inside[n++] = hits[i].position;
	}
	for (unsigned c = 0; c < (in->anywhere ? 6 : 4); c++) {
		uint32_t from = n * cut[c][0] / 100, to = n - n * cut[c][1] / 100;
		if (to - from < PREFETCH_FIT_HITS_MIN)
			continue;
		uint64_t low = in->anywhere ? inside[from] : 0, high = inside[to - 1] + 1;
		uint64_t cells = cells_below(part, high) - cells_below(part, low);
		if (in->size > FEW_FILES && at_most(to - from, (double)cells, in) - charge <= best->score)
			continue;
		double score = surprise_of(to - from, (double)cells, in->seen, (double)in->size) - charge;
		if (score <= best->score)
			continue;
		*best = (struct prefetch_fit){
			.world = part->world,
			.first = part->first,
			.ranks = part->ranks,
			.low = low,
			.high = high,
			.hits = to - from,
			.cells = (uint32_t)cells,
			.score = score,
		};
	}
}

/* Whether the residues of a part occur among the earlier and among the later opens.  Workers side by side have each
 * come equally far into their batches.  Modulo the batch, that looks like the first few ranks of a world of that
 * size.  But ranks are read all the time, while those residues are read once, one after the other. */
static bool steady(const uint16_t *early, const uint16_t *late, const struct part *part)
{
	uint32_t both = 0;
	if (part->world == 1)
		return true;
	for (uint32_t r = part->first; r < part->first + part->ranks; r++)
		both += early[r] > 0 && late[r] > 0;
	return both * 4 >= part->ranks * 3;
}

/* residues: of the hits, modulo the world. */
static void get_residues(const struct hit *hits, uint32_t n, uint32_t world, uint32_t residues[PREFETCH_FIT_MAX])
{
	for (uint32_t i = 0; i < n; i++) {
		uint64_t position = hits[i].position; /* to divide 32 bits takes half as long */
		residues[i] = position <= UINT32_MAX ? (uint32_t)position % world : (uint32_t)(position % world);
	}
}

/* Tries all parts of one world. */
static void try_world(
        const struct prefetch_fit_input *in, const struct hit *hits, uint32_t world, struct prefetch_fit *best)
{
	uint16_t early[PREFETCH_FIT_WORLD_MAX], late[PREFETCH_FIT_WORLD_MAX];
	uint32_t residues[PREFETCH_FIT_MAX];
	get_residues(hits, in->n, world, residues);
	memset(early, 0, world * sizeof(*early));
	memset(late, 0, world * sizeof(*late));
	for (uint32_t i = 0; i < in->n; i++) {
		if (hits[i].late)
			late[residues[i]]++;
		else
			early[residues[i]]++;
	}
	for (uint32_t ranks = 1; ranks <= world; ranks++) {
		if (world % ranks != 0 || (ranks == world && world > 1))
			continue;
		for (uint32_t first = 0; first < world; first += ranks) {
			struct part part = { .world = world, .first = first, .ranks = ranks };
			uint32_t sum = 0;
			for (uint32_t r = first; r < first + ranks; r++)
				sum += (uint32_t)early[r] + late[r];
			if (sum < PREFETCH_FIT_HITS_MIN ||
			        surprise_of(sum, sum, in->seen, (double)in->size) <= best->score ||
			        !steady(early, late, &part))
				continue;
			try_part(in, hits, residues, &part, best);
		}
	}
}

static void sort_hits(const struct prefetch_fit_input *in, struct hit hits[PREFETCH_FIT_MAX])
{
	for (uint32_t i = 0; i < in->n; i++)
		hits[i] = (struct hit){ .position = in->positions[i], .late = i >= in->n / 2 };
	qsort(hits, in->n, sizeof(*hits), compare_hits);
}

bool prefetch_fit(const struct prefetch_fit_input *in, struct prefetch_fit *ret_fit)
{
	struct hit hits[PREFETCH_FIT_MAX];
	/* A score of `least` counts, too. */
	struct prefetch_fit best = { .score = in->least > 0 ? nextafter(in->least, 0) : 0 };
	assert(in->n <= PREFETCH_FIT_MAX && in->world_max <= PREFETCH_FIT_WORLD_MAX);
	if (in->n < PREFETCH_FIT_HITS_MIN || in->seen >= in->size)
		return false;
	sort_hits(in, hits);
	for (uint32_t world = 1; world <= in->world_max; world++) {
		if (in->only == 0 || world == 1 || world == in->only)
			try_world(in, hits, world, &best);
	}
	if (best.hits == 0)
		return false;
	*ret_fit = best;
	return true;
}

/* Returns the size of the smallest block of residues that holds [low, high] and divides `world`. */
static uint32_t block_of(uint32_t world, uint32_t low, uint32_t high)
{
	uint32_t size = high - low + 1;
	while (world % size != 0 || low / size != high / size)
		size++;
	return size;
}

/* Finds the sparsest part with all residues that are frequent.  Other readers' files have any residue, but each
 * rarely. */
static void sparsest_part(const uint64_t *positions, uint32_t n, uint32_t stride, struct prefetch_part *part)
{
	uint16_t count[PART_STRIDE_MAX] = { 0 }, most = 0;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t residue = (uint32_t)(positions[i] % stride);
		if (++count[residue] > most)
			most = count[residue];
	}
	part->world = part->ranks = 1;
	part->first = 0;
	for (uint32_t world = 2; world <= stride; world++) {
		uint32_t low = world, high = 0;
		if (stride % world != 0)
			continue;
		for (uint32_t r = 0; r < stride; r++) {
			if (count[r] * RESIDUE_SHARE < most || count[r] == 0)
				continue;
			low = r % world < low ? r % world : low;
			high = r % world > high ? r % world : high;
		}
		uint32_t ranks = block_of(world, low, high);
		if ((uint64_t)ranks * part->world < (uint64_t)part->ranks * world) {
			part->world = world;
			part->ranks = ranks;
			part->first = low / ranks * ranks;
		}
	}
}

bool prefetch_part(const uint64_t *positions, uint32_t n, struct prefetch_part *ret_part)
{
	uint16_t count[PART_STRIDE_MAX + 1] = { 0 };
	struct prefetch_part part = { .world = 1, .ranks = 1, .stride = 1 };
	assert(n <= PREFETCH_FIT_MAX);
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t j = 0; j < i; j++) {
			uint64_t distance = positions[i] - positions[j];
			if (distance <= PART_STRIDE_MAX)
				count[distance]++;
		}
	}
	for (uint32_t stride = 1; stride <= PART_STRIDE_MAX; stride++) {
		if (count[stride] > part.joined) {
			part.joined = count[stride];
			part.stride = stride;
		}
	}
	bool sure = n > 0 && part.joined * 2 >= n;
	if (sure) {
		sparsest_part(positions, n, part.stride, &part);
	} else {
		part.stride = 1;
		part.joined = 0;
	}
	*ret_part = part;
	return sure;
}

bool prefetch_fit_part(
        const struct prefetch_fit_input *in, const struct prefetch_part *part, struct prefetch_fit *ret_fit)
{
	struct hit hits[PREFETCH_FIT_MAX];
	struct prefetch_fit best = { .score = 0 };
	struct part one = { .world = part->world, .first = part->first, .ranks = part->ranks };
	uint32_t residues[PREFETCH_FIT_MAX];
	assert(in->n <= PREFETCH_FIT_MAX);
	if (in->n < PREFETCH_FIT_HITS_MIN || in->seen >= in->size)
		return false;
	sort_hits(in, hits);
	get_residues(hits, in->n, one.world, residues);
	try_part(in, hits, residues, &one, &best);
	if (best.score <= 0)
		return false;
	*ret_fit = best;
	return true;
}

/* Chains: turns that follow one another at a stride.  Each is a batch, or a reader without batches. */
struct chains {
	uint32_t n, joined; /* chains; turns that continue one */
	uint64_t start[PREFETCH_FIT_MAX];
	uint64_t last[PREFETCH_FIT_MAX];
	uint16_t since[PREFETCH_FIT_MAX]; /* number of the open that began it */
};

static void chain(struct chains *chains, const uint64_t *turns, uint32_t n, uint32_t stride)
{
	chains->n = chains->joined = 0;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t c = chains->n, end = c > CHAINS_MAX ? c - CHAINS_MAX : 0;
		while (c > end && chains->last[c - 1] + stride != turns[i])
			c--;
		if (c == end) {
			chains->start[chains->n] = chains->last[chains->n] = turns[i];
			chains->since[chains->n++] = (uint16_t)i;
			continue;
		}
		chains->last[c - 1] = turns[i];
		chains->joined++;
	}
}

/* Counts the starts that a batch divides.  *ret_zero: those of them that are 0, which every batch divides. */
static uint32_t divided(const uint64_t *starts, uint32_t n, uint32_t batch, uint32_t *ret_zero)
{
	uint32_t whole = 0, zero = 0;
	for (uint32_t i = 0; i < n; i++) {
		whole += starts[i] % batch == 0;
		zero += starts[i] == 0;
	}
	*ret_zero = zero;
	return whole;
}

/* Counts the starts that say this batch.  Returns 0 if most of them agree with a larger batch, too: then a few readers
 * in the middle of a batch have made this one. */
static uint32_t sure_starts(const uint64_t *starts, uint32_t n, uint32_t batch)
{
	uint32_t zero, whole = divided(starts, n, batch, &zero), zero_too;
	for (uint32_t larger = 2 * batch; larger <= BATCH_MAX; larger += batch) {
		if (divided(starts, n, larger, &zero_too) * 4 >= n * 3)
			return 0;
	}
	return whole - zero;
}

/* Returns the batch: the largest size that divides nearly all starts, because batches begin at multiples of their size.
 * The first chains do not count, because they may have begun before the window.  *ret_starts: pace.starts. */
static uint32_t batch_of(const struct chains *chains, uint32_t n, uint32_t stride, uint32_t *ret_starts)
{
	uint64_t starts[PREFETCH_FIT_MAX];
	uint32_t n_starts = 0, zero;
	for (uint32_t i = 0; i < chains->n; i++) {
		if (chains->since[i] >= n / 4)
			starts[n_starts++] = chains->start[i] / stride;
	}
	for (uint32_t batch = BATCH_MAX; n_starts >= 3 && batch > 1; batch--) {
		uint32_t whole = divided(starts, n_starts, batch, &zero);
		if (whole * 8 < n_starts * 7 || whole <= zero + 1)
			continue;
		*ret_starts = sure_starts(starts, n_starts, batch);
		return batch;
	}
	return 0;
}

/* Returns how many batches are begun and not finished: the most frequent number during the second half. */
static uint32_t active(const uint64_t *turns, uint32_t n, uint32_t stride, uint32_t batch)
{
	uint32_t count[PREFETCH_FIT_MAX + 1] = { 0 }, best = 0;
	struct chains chains;
	for (uint32_t end = n / 2; end <= n; end += n / 32 + 1) {
		uint32_t open = 0;
		chain(&chains, turns, end, stride);
		for (uint32_t c = 0; c < chains.n; c++)
			open += (chains.last[c] / stride + 1) % batch != 0;
		count[open]++;
	}
	for (uint32_t i = 0; i <= PREFETCH_FIT_MAX; i++) {
		if (count[i] >= count[best])
			best = i;
	}
	return best;
}

void prefetch_pace(const struct prefetch_part *part, const uint64_t *turns, uint32_t n, struct prefetch_pace *ret_pace)
{
	struct chains chains;
	uint64_t stride = (uint64_t)part->stride * part->ranks / part->world;
	struct prefetch_pace pace = { .stride = 1, .workers = 1 };
	assert(n <= PREFETCH_FIT_MAX);
	if (stride == 0)
		stride = 1; /* batches dealt whole */
	chain(&chains, turns, n, (uint32_t)stride);
	if (chains.n > 0 && chains.joined >= n / 2) {
		pace.stride = (uint32_t)stride;
		pace.batch = batch_of(&chains, n, pace.stride, &pace.starts);
		uint32_t open = pace.batch > 1 ? active(turns, n, pace.stride, pace.batch) : 1;
		pace.workers = (open + pace.stride - 1) / pace.stride;
		if (pace.workers == 0)
			pace.workers = 1;
	}
	*ret_pace = pace;
}
