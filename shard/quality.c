/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of how random an order is; shard/quality.h first. */
#include "shard/quality.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "shard/permute.h"

const uint32_t shard_quality_lags[SHARD_QUALITY_LAGS] = { 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256 };

enum { CELL_EXPECTED_MIN = 5 }; /* samples expected in a cell: the usual rule for chi-square */

/* A mean over epochs.  An epoch may have no value. */
struct mean {
	double sum;
	uint64_t count; /* epochs with a value */
};

/* The sums of what was added.  The fields without a comment are as in struct shard_quality_result. */
struct shard_quality {
	struct shard_quality_options options;
	uint32_t *seen;        /* class -> number of the last batch that had it; 0: none; owned */
	uint32_t batch_number; /* of the current batch, from 1 on */
	uint64_t epochs;
	uint64_t batches;
	double distinct_sum;     /* of distinct classes, over all batches */
	double distinct_squares; /* of their squares */
	uint32_t distinct_min;
	uint32_t distinct_max;
	struct mean distinct_part[SHARD_QUALITY_BINS];
	uint64_t distinct_counts[SHARD_QUALITY_BATCH_MAX + 1];
	struct mean class_lag[SHARD_QUALITY_LAGS];
	struct mean slot_lag[SHARD_QUALITY_LAGS];
	struct mean position_chi;
	struct mean slot_part[SHARD_QUALITY_BINS];
	uint32_t *group_before;  /* sample -> group of the epoch before; NULL without groups; owned */
	uint8_t *group_seen;     /* sample -> a bit for each of the first SHARD_QUALITY_GROUPS groups; owned */
	uint32_t *group_classes; /* group * n_classes + class -> samples; NULL: too many cells; owned */
	uint64_t group_epochs;
	struct mean group_kept; /* over samples */
	struct mean group_chi;
};

static bool make_groups(struct shard_quality *q)
{
	uint64_t cells = (uint64_t)q->options.n_groups * q->options.n_classes;

	q->group_before = calloc(q->options.n_slots, sizeof(*q->group_before));
	q->group_seen = calloc(q->options.n_slots, sizeof(*q->group_seen));
	/* With more cells no class has enough samples in each group, unless most classes are tiny. */
	if (cells <= q->options.n_slots)
		q->group_classes = calloc(cells, sizeof(*q->group_classes));
	return q->group_before && q->group_seen && (q->group_classes || cells > q->options.n_slots);
}

int shard_quality_new(const struct shard_quality_options *options, struct shard_quality **ret_quality)
{
	struct shard_quality *q;

	if (options->n_slots == 0 || options->n_classes == 0 || options->batch == 0 ||
	        options->batch > SHARD_QUALITY_BATCH_MAX || options->n_groups > options->n_slots)
		return -EINVAL;
	q = calloc(1, sizeof(*q));
	if (!q)
		return -ENOMEM;
	q->options = *options;
	q->seen = calloc(options->n_classes, sizeof(*q->seen));
	if (!q->seen || (options->n_groups > 1 && !make_groups(q))) {
		shard_quality_free(q);
		return -ENOMEM;
	}
	q->distinct_min = UINT32_MAX;
	*ret_quality = q;
	return 0;
}

void shard_quality_free(struct shard_quality *q)
{
	if (!q)
		return;
	free(q->seen);
	free(q->group_before);
	free(q->group_seen);
	free(q->group_classes);
	free(q);
}

static void mean_add(struct mean *mean, double value)
{
	if (isnan(value))
		return;
	mean->sum += value;
	mean->count++;
}

static double mean_get(const struct mean *mean)
{
	return mean->count > 0 ? mean->sum / (double)mean->count : NAN;
}

/* Returns the part (below SHARD_QUALITY_BINS) to which position i of n belongs. */
static unsigned part_of(uint64_t i, uint64_t n)
{
	return (unsigned)((unsigned __int128)i * SHARD_QUALITY_BINS / n);
}

static void add_distinct(struct shard_quality *q, const uint32_t *classes, uint64_t n)
{
	uint32_t batch = q->options.batch;

	for (uint64_t first = 0; n - first >= batch; first += batch) {
		uint32_t distinct = 0;

		if (++q->batch_number == 0) { /* the number wrapped: clear the table */
			memset(q->seen, 0, q->options.n_classes * sizeof(*q->seen));
			q->batch_number = 1;
		}
		for (uint32_t i = 0; i < batch; i++) {
			uint32_t class = classes[first + i];

			assert(class < q->options.n_classes);
			distinct += q->seen[class] != q->batch_number;
			q->seen[class] = q->batch_number;
		}
		q->batches++;
		q->distinct_sum += distinct;
		q->distinct_squares += (double)distinct * distinct;
		q->distinct_min = distinct < q->distinct_min ? distinct : q->distinct_min;
		q->distinct_max = distinct > q->distinct_max ? distinct : q->distinct_max;
		q->distinct_counts[distinct]++;
		mean_add(&q->distinct_part[part_of(first, n)], distinct);
	}
}

/* Returns Pearson's correlation of a sequence with itself, shifted by `lag`. */
static double correlate(const uint32_t *values, uint64_t n, uint64_t lag, double mean, double variance)
{
	double sum = 0;

	if (n <= lag || variance <= 0)
		return NAN;
	for (uint64_t i = 0; i + lag < n; i++)
		sum += (values[i] - mean) * (values[i + lag] - mean);
	return sum / (double)(n - lag) / variance;
}

static void add_lags(struct mean lags[SHARD_QUALITY_LAGS], const uint32_t *values, uint64_t n)
{
	double mean = 0;
	double variance = 0;

	for (uint64_t i = 0; i < n; i++)
		mean += values[i];
	mean /= (double)n;
	for (uint64_t i = 0; i < n; i++)
		variance += (values[i] - mean) * (values[i] - mean);
	variance /= (double)n;
	for (unsigned l = 0; l < SHARD_QUALITY_LAGS; l++)
		mean_add(&lags[l], correlate(values, n, shard_quality_lags[l], mean, variance));
}

static void add_positions(struct shard_quality *q, const uint32_t *slots, uint64_t n)
{
	uint64_t cells[SHARD_QUALITY_BINS][SHARD_QUALITY_BINS] = { 0 };
	uint64_t rows[SHARD_QUALITY_BINS] = { 0 };
	uint64_t columns[SHARD_QUALITY_BINS] = { 0 };
	struct mean slot_part[SHARD_QUALITY_BINS] = { 0 };
	double chi = 0;
	double freedom = (double)(SHARD_QUALITY_BINS - 1) * (SHARD_QUALITY_BINS - 1);

	for (uint64_t i = 0; i < n; i++) {
		unsigned row = part_of(i, n);
		unsigned column = part_of(slots[i], q->options.n_slots);

		assert(slots[i] < q->options.n_slots);
		cells[row][column]++;
		rows[row]++;
		columns[column]++;
		mean_add(&slot_part[row], (slots[i] + 0.5) / q->options.n_slots);
	}
	for (unsigned b = 0; b < SHARD_QUALITY_BINS; b++)
		mean_add(&q->slot_part[b], mean_get(&slot_part[b]));
	for (unsigned r = 0; r < SHARD_QUALITY_BINS; r++) {
		for (unsigned c = 0; c < SHARD_QUALITY_BINS; c++) {
			double expected = (double)rows[r] * (double)columns[c] / (double)n;

			if (expected < CELL_EXPECTED_MIN)
				return;
			chi += ((double)cells[r][c] - expected) * ((double)cells[r][c] - expected) / expected;
		}
	}
	mean_add(&q->position_chi, chi / freedom);
}

void shard_quality_add(struct shard_quality *q, const uint32_t *slots, const uint32_t *classes, uint64_t n)
{
	q->epochs++;
	if (n == 0)
		return;
	add_distinct(q, classes, n);
	add_lags(q->class_lag, classes, n);
	add_lags(q->slot_lag, slots, n);
	add_positions(q, slots, n);
}

/* Adds chi-square of (group) x (class) over the classes with enough samples. */
static void add_group_classes(struct shard_quality *q, const uint32_t *groups, const uint32_t *classes)
{
	const struct shard_quality_options *o = &q->options;
	uint64_t total = 0;
	uint64_t n_classes = 0;
	double chi = 0;

	memset(q->group_classes, 0, sizeof(*q->group_classes) * o->n_groups * o->n_classes);
	for (uint32_t i = 0; i < o->n_slots; i++) {
		if (groups[i] >= o->n_groups)
			continue;
		q->group_classes[(uint64_t)groups[i] * o->n_classes + classes[i]]++;
		total++;
	}
	for (uint32_t c = 0; c < o->n_classes; c++) {
		double expected = 0; /* the same in each group, because their sizes differ by one sample at most */

		for (uint32_t g = 0; g < o->n_groups; g++)
			expected += q->group_classes[(uint64_t)g * o->n_classes + c];
		expected /= o->n_groups;
		if (expected < CELL_EXPECTED_MIN || expected * o->n_groups >= (double)total)
			continue;
		n_classes++;
		for (uint32_t g = 0; g < o->n_groups; g++) {
			double off = q->group_classes[(uint64_t)g * o->n_classes + c] - expected;

			/* Samples are dealt without replacement, and the groups' sizes are fixed: a class that has a
			 * large part of all samples varies less. */
			chi += off * off / expected / (1 - expected * o->n_groups / (double)total);
		}
	}
	if (n_classes > 0)
		mean_add(&q->group_chi, chi / ((double)n_classes * (o->n_groups - 1)));
}

void shard_quality_add_groups(struct shard_quality *q, const uint32_t *groups, const uint32_t *classes)
{
	const struct shard_quality_options *o = &q->options;

	assert(q->group_before);
	for (uint32_t i = 0; i < o->n_slots; i++) {
		if (q->group_epochs > 0 && groups[i] < o->n_groups && q->group_before[i] < o->n_groups)
			mean_add(&q->group_kept, groups[i] == q->group_before[i]);
		if (groups[i] < o->n_groups && groups[i] < SHARD_QUALITY_GROUPS)
			q->group_seen[i] |= (uint8_t)(1 << groups[i]);
		q->group_before[i] = groups[i];
	}
	if (q->group_classes)
		add_group_classes(q, groups, classes);
	q->group_epochs++;
}

static double group_seen(const struct shard_quality *q)
{
	uint32_t counted = q->options.n_groups < SHARD_QUALITY_GROUPS ? q->options.n_groups : SHARD_QUALITY_GROUPS;
	uint64_t sum = 0;

	if (q->group_epochs == 0)
		return NAN;
	for (uint32_t i = 0; i < q->options.n_slots; i++)
		sum += (uint64_t)__builtin_popcount(q->group_seen[i]);
	return (double)sum / counted / q->options.n_slots;
}

void shard_quality_get(const struct shard_quality *q, struct shard_quality_result *r)
{
	double count = (double)q->batches;

	memset(r, 0, sizeof(*r));
	r->epochs = q->epochs;
	r->batches = q->batches;
	r->distinct_mean = q->batches > 0 ? q->distinct_sum / count : NAN;
	r->distinct_sd =
	        q->batches > 1 ? sqrt(fmax(0, q->distinct_squares / count - r->distinct_mean * r->distinct_mean)) : NAN;
	r->distinct_min = q->batches > 0 ? q->distinct_min : 0;
	r->distinct_max = q->distinct_max;
	memcpy(r->distinct_counts, q->distinct_counts, sizeof(r->distinct_counts));
	for (unsigned b = 0; b < SHARD_QUALITY_BINS; b++) {
		r->distinct_by_part[b] = mean_get(&q->distinct_part[b]);
		r->slot_by_part[b] = mean_get(&q->slot_part[b]);
	}
	for (unsigned l = 0; l < SHARD_QUALITY_LAGS; l++) {
		r->class_lag[l] = mean_get(&q->class_lag[l]);
		r->slot_lag[l] = mean_get(&q->slot_lag[l]);
	}
	r->position_chi = mean_get(&q->position_chi);
	r->group_kept = mean_get(&q->group_kept);
	r->group_seen = group_seen(q);
	r->group_chi = mean_get(&q->group_chi);
}

/* xoshiro256++ (Blackman and Vigna, 2019), seeded with a mixed counter. */
struct xoshiro {
	uint64_t s[4];
};

static uint64_t rotate(uint64_t x, unsigned k)
{
	return x << k | x >> (64 - k);
}

static uint64_t xoshiro_next(struct xoshiro *x)
{
	uint64_t result = rotate(x->s[0] + x->s[3], 23) + x->s[0];
	uint64_t t = x->s[1] << 17;

	x->s[2] ^= x->s[0];
	x->s[3] ^= x->s[1];
	x->s[1] ^= x->s[2];
	x->s[0] ^= x->s[3];
	x->s[2] ^= t;
	x->s[3] = rotate(x->s[3], 45);
	return result;
}

/* Returns a uniform number in [0, range): multiplies, and rejects words that would bias the result (Lemire, 2019). */
static uint32_t xoshiro_below(struct xoshiro *x, uint32_t range)
{
	uint64_t product = (xoshiro_next(x) >> 32) * range;

	if ((uint32_t)product < range) {
		uint32_t limit = -range % range;

		while ((uint32_t)product < limit)
			product = (xoshiro_next(x) >> 32) * range;
	}
	return (uint32_t)(product >> 32);
}

void shard_quality_shuffle(uint64_t seed, uint32_t n, uint32_t *perm)
{
	struct xoshiro x;

	for (unsigned i = 0; i < 4; i++)
		x.s[i] = shard_mix64(seed + (i + 1) * UINT64_C(0x9e3779b97f4a7c15)) | (i == 0);
	for (uint32_t i = 0; i < n; i++)
		perm[i] = i;
	for (uint32_t i = n; i > 1; i--) {
		uint32_t j = xoshiro_below(&x, i);
		uint32_t kept = perm[i - 1];

		perm[i - 1] = perm[j];
		perm[j] = kept;
	}
}
