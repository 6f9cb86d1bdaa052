/* SPDX-License-Identifier: Apache-2.0 */
/* Traces opened files through a shuffle; prefetch/sampler/shuffle_trace.h first: it has the idea. */
#include "prefetch/sampler/shuffle_trace.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shard/base/bits.h"

enum {
	TOUCHED_MAX = 8192, /* cells that got an opened file: 512 files move about ln(n) times each */
	SMALL = 8,          /* a small gap is a mean gap / SMALL at most, so a mean gap of fewer steps tells nothing */
	TEST_FILES = 16,    /* a mean gap has about so many steps at least, if enough files were opened */
	TESTED_MIN = 64,    /* opened files that are tested at least, if there are so many */
	QUIET = 48,         /* words that are looked at together; a block has a multiple of these */
};

/* The weight of a gap of x mean gaps, in nats: ln of its probability under a right seed over that under a wrong one.  A
 * wrong seed has gaps as e^-x.  A right one has four in five small ones, and else gaps of ten mean gaps, which are
 * other readers' opens and other ranks' parts.  In most cases one long gap makes a seed wrong for the quick test, and
 * three for the other one. */
static const float SMALL_NATS = 1.86F, LONG_NATS = -3.91F, LONG_NATS_EACH = 0.9F;
static const struct limits {
	float wrong, right; /* nats */
} limits[PREFETCH_TRACE_TESTS] = {
	[PREFETCH_TRACE_PATIENT] = { -7, 20 },
	[PREFETCH_TRACE_QUICK] = { -2, 20 },
	/* Of right seeds and of wrong ones e^-5 are taken for the other.  A wrong one takes 5 / (ln 2 - 1/2) gaps. */
	[PREFETCH_TRACE_SHARED] = { -5, 5 },
};
/* The same for a shared test: half as many become final. */
static const float SHARED_NATS = -0.693F, SHARED_NATS_EACH = 0.5F;

struct prefetch_trace {
	uint32_t room, n, n_opened, n_tested;
	uint32_t cells[PREFETCH_TRACE_OPENED_MAX];
	/* One bit for each cell: it holds one of the first n_tested opened files; between calls those of `cells` are
	 * set.  Bits up to the next power of two are there, too, and 0. */
	uint64_t *bits;
	uint16_t *ids; /* a cell each: number of the opened file + 1; all 0 between calls */
	uint32_t touched[TOUCHED_MAX], n_touched;
	float per_step; /* mean gaps */
	float nats;     /* so far */
	enum prefetch_trace_test test;
	uint32_t last; /* step of the last opened file that became final */
	struct prefetch_rng rng;
	uint32_t words[SHARD_MT19937_WORDS], next; /* of rng, made a block at a time */
	struct prefetch_seeded *seeded;
};

int prefetch_trace_new(uint32_t n, struct prefetch_seeded *seeded, struct prefetch_trace **ret_trace)
{
	struct prefetch_trace *t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	t->room = n;
	t->seeded = seeded;
	t->bits = calloc((size_t)n / 32 + 2, sizeof(*t->bits)); /* a number is below 2 n */
	t->ids = calloc(n, sizeof(*t->ids));
	if (!t->bits || !t->ids) {
		prefetch_trace_free(t);
		return -ENOMEM;
	}
	*ret_trace = t;
	return 0;
}

void prefetch_trace_free(struct prefetch_trace *t)
{
	if (!t)
		return;
	free(t->bits);
	free(t->ids);
	free(t);
}

uint32_t prefetch_trace_room(const struct prefetch_trace *t)
{
	return t->room;
}

void prefetch_trace_set(struct prefetch_trace *t, uint32_t n, const uint32_t *cells, uint32_t n_opened)
{
	assert(n >= 2 && n <= t->room && n_opened > 0 && n_opened <= PREFETCH_TRACE_OPENED_MAX);
	for (uint32_t i = 0; i < t->n_tested; i++)
		bit_clear(t->bits, t->cells[i]);
	uint32_t most = n / TEST_FILES > TESTED_MIN ? n / TEST_FILES : TESTED_MIN;
	t->n = n;
	t->n_opened = n_opened;
	t->n_tested = n_opened < most ? n_opened : most;
	t->per_step = (float)t->n_tested / (float)n;
	memcpy(t->cells, cells, n_opened * sizeof(*cells));
	for (uint32_t i = 0; i < t->n_tested; i++)
		bit_set(t->bits, cells[i]);
}

/* An opened file has become final at this step.  False: the seed is decided. */
static bool decide(struct prefetch_trace *t, uint32_t step)
{
	float gap = (float)(step - t->last) * t->per_step;
	t->last = step;
	if (t->test == PREFETCH_TRACE_SHARED)
		t->nats += SHARED_NATS + gap * SHARED_NATS_EACH;
	else
		t->nats += gap * SMALL <= 1 ? SMALL_NATS : LONG_NATS + gap * LONG_NATS_EACH;
	return t->nats > limits[t->test].wrong && t->nats < limits[t->test].right;
}

/* Cell `top` is final from this step on, and `from` is the cell whose file it gets.  False: the seed is decided. */
static bool move(struct prefetch_trace *t, uint32_t top, uint32_t from, uint32_t step)
{
	bool moved = bit_get(t->bits, top), final = bit_get(t->bits, from);
	if (moved && !final) {
		if (t->n_touched == TOUCHED_MAX)
			return false;
		t->touched[t->n_touched++] = from;
		bit_set(t->bits, from);
	} else if (final && !moved && from != top) {
		bit_clear(t->bits, from);
	}
	return !final || decide(t, step);
}

/* Makes the next words of MT19937.  Loops of this form become vector instructions; shard_mt19937_next32() makes one
 * word at a time. */
static inline __attribute__((always_inline)) void make_words(struct prefetch_trace *t)
{
	enum { N = SHARD_MT19937_WORDS, SHIFT = 397 };
	uint32_t *s = t->rng.mt.state, *words = t->words;
	for (uint32_t i = 0; i < N - SHIFT; i++) {
		uint32_t y = (s[i] & UINT32_C(0x80000000)) | (s[i + 1] & UINT32_C(0x7fffffff));
		s[i] = s[i + SHIFT] ^ y >> 1 ^ (-(y & 1) & UINT32_C(0x9908b0df));
	}
	for (uint32_t i = N - SHIFT; i < N - 1; i++) {
		uint32_t y = (s[i] & UINT32_C(0x80000000)) | (s[i + 1] & UINT32_C(0x7fffffff));
		s[i] = s[i + SHIFT - N] ^ y >> 1 ^ (-(y & 1) & UINT32_C(0x9908b0df));
	}
	uint32_t last = (s[N - 1] & UINT32_C(0x80000000)) | (s[0] & UINT32_C(0x7fffffff));
	s[N - 1] = s[SHIFT - 1] ^ last >> 1 ^ (-(last & 1) & UINT32_C(0x9908b0df));
	for (uint32_t i = 0; i < N; i++) {
		uint32_t y = s[i];
		y ^= y >> 11;
		y ^= y << 7 & UINT32_C(0x9d2c5680);
		y ^= y << 15 & UINT32_C(0xefc60000);
		words[i] = y ^ y >> 18;
	}
}

static inline __attribute__((always_inline)) void next_block(struct prefetch_trace *t, bool pcg)
{
	if (pcg)
		prefetch_rng_words(&t->rng, t->words, SHARD_MT19937_WORDS);
	else
		make_words(t);
	t->next = 0;
}

static inline __attribute__((always_inline)) uint32_t word(struct prefetch_trace *t, bool pcg)
{
	if (t->next == SHARD_MT19937_WORDS)
		next_block(t, pcg);
	return t->words[t->next++];
}

static void seed_rng(struct prefetch_trace *t, enum prefetch_shuffle_kind kind, uint32_t seed)
{
	t->next = SHARD_MT19937_WORDS;
	if (kind == PREFETCH_SHUFFLE_NUMPY_RNG) {
		prefetch_rng_seed(&t->rng, kind, seed);
		return;
	}
	memcpy(t->rng.mt.state, prefetch_seeded_state(t->seeded, kind, seed), sizeof(t->rng.mt.state));
}

/* Whether one of QUIET cells holds an opened file. */
static bool any_opened(const uint64_t *bits, uint32_t first)
{
	uint64_t word = bits[first / 64] >> (first % 64);
	if (first % 64 > 64 - QUIET)
		word |= bits[first / 64 + 1] << (64 - first % 64);
	return (word & ((UINT64_C(1) << QUIET) - 1)) != 0;
}

/* How many steps the next QUIET words make.  In most cases no opened file takes part in them, and each number is small
 * enough, or too large, for all cells that they may be for.  Returns UINT32_MAX if not. */
static inline __attribute__((always_inline)) uint32_t quiet_steps(
        const struct prefetch_trace *t, bool python, unsigned drop, uint32_t mask, uint32_t top)
{
	const uint32_t *words = t->words + t->next;
	uint32_t numbers[QUIET], small = 0, large = 0, low = top - QUIET;
	uint64_t opened = 0;
	for (unsigned k = 0; k < QUIET; k++) {
		numbers[k] = python ? words[k] >> drop : words[k] & mask;
		small += numbers[k] <= low;
		large += numbers[k] > top;
	}
	for (unsigned k = 0; k < QUIET; k++)
		opened |= t->bits[numbers[k] / 64] >> (numbers[k] % 64);
	return (opened & 1) || small + large < QUIET || any_opened(t->bits, low + 1) ? UINT32_MAX : small;
}

/* Backwards with numbers whose bits are cut to a mask.  Whether a number is small enough is a coin's toss, so nothing
 * branches on it. */
static inline __attribute__((always_inline)) uint32_t backwards(
        struct prefetch_trace *t, bool pcg, bool python, uint32_t top)
{
	const uint64_t *bits = t->bits;
	while (top > 0) {
		/* All bounds down to the next power of two have the same mask. */
		uint32_t bound = python ? top + 1 : top;
		unsigned drop = (unsigned)__builtin_clz(bound);
		uint32_t mask = UINT32_MAX >> drop, least = (mask >> 1) + !python;
		/* python: the last bound, top + 1, with as many bits is (mask >> 1) + 1 */
		least = least == 0 ? 1 : least;
		while (top >= least) {
			if (t->next % QUIET == 0 && top >= least + QUIET) {
				if (t->next == SHARD_MT19937_WORDS)
					next_block(t, pcg);
				uint32_t steps = quiet_steps(t, python, drop, mask, top);
				if (steps != UINT32_MAX) {
					t->next += QUIET;
					top -= steps;
					continue;
				}
			}
			uint32_t j = python ? word(t, pcg) >> drop : word(t, pcg) & mask;
			uint32_t small = j <= top, at = small ? j : top;
			uint64_t either = (bits[at / 64] >> (at % 64)) | (bits[top / 64] >> (top % 64));
			if (either & small && !move(t, top, j, t->n - 1 - top))
				return top;
			top -= small;
		}
	}
	return 0;
}

/* Whether no opened file takes part in QUIET steps from this one on.  The quotient is exact: it has 32 bits, of 53. */
static inline __attribute__((always_inline)) bool is_quiet(const struct prefetch_trace *t, uint32_t step)
{
	const uint32_t *words = t->words + t->next;
	uint32_t cells[QUIET];
	uint64_t opened = 0;
	for (uint32_t k = 0; k < QUIET; k++) {
		uint32_t d = t->n - step - k;
		cells[k] = step + k + words[k] - (uint32_t)(int32_t)((double)words[k] / d) * d;
	}
	for (unsigned k = 0; k < QUIET; k++)
		opened |= t->bits[cells[k] / 64] >> (cells[k] % 64);
	return !(opened & 1) && !any_opened(t->bits, step);
}

/* TORCH. */
static inline __attribute__((always_inline)) uint32_t forwards(struct prefetch_trace *t)
{
	for (uint32_t i = 0; i + 1 < t->n; i++) {
		while (t->next % QUIET == 0 && i + 1 + QUIET < t->n) {
			if (t->next == SHARD_MT19937_WORDS)
				next_block(t, false);
			if (!is_quiet(t, i))
				break;
			t->next += QUIET;
			i += QUIET;
		}
		uint32_t j = i + word(t, false) % (t->n - i);
		if ((bit_get(t->bits, i) || bit_get(t->bits, j)) && !move(t, i, j, i))
			return i;
	}
	return t->n - 1;
}

/* Does the steps until the seed is decided.  Returns how many. */
static inline __attribute__((always_inline)) uint32_t trace(struct prefetch_trace *t, enum prefetch_shuffle_kind kind)
{
	if (kind == PREFETCH_SHUFFLE_TORCH)
		return forwards(t);
	if (kind == PREFETCH_SHUFFLE_NUMPY)
		return t->n - 1 - backwards(t, false, false, t->n - 1);
	if (kind == PREFETCH_SHUFFLE_NUMPY_RNG)
		return t->n - 1 - backwards(t, true, false, t->n - 1);
	return t->n - 1 - backwards(t, false, true, t->n - 1);
}

#if defined(__x86_64__) && !defined(DDPFS_NO_AVX2) /* tests/prefetch/meson.build */
__attribute__((target("avx2"))) static uint32_t trace_avx2(struct prefetch_trace *t, enum prefetch_shuffle_kind kind)
{
	return trace(t, kind);
}
#endif

static uint32_t steps_of(struct prefetch_trace *t, enum prefetch_shuffle_kind kind)
{
#if defined(__x86_64__) && !defined(DDPFS_NO_AVX2)
	if (__builtin_cpu_supports("avx2"))
		return trace_avx2(t, kind);
#endif
	return trace(t, kind);
}

bool prefetch_trace_is_short(const struct prefetch_trace *t)
{
	return t->n < SMALL * t->n_tested;
}

bool prefetch_trace_try(struct prefetch_trace *t, enum prefetch_shuffle_kind kind, uint64_t seed,
        enum prefetch_trace_test test, uint64_t *steps)
{
	if (prefetch_trace_is_short(t) || kind > PREFETCH_SHUFFLE_PYTHON)
		return true;
	t->nats = 0;
	t->test = test;
	t->last = 0;
	t->n_touched = 0;
	seed_rng(t, kind, (uint32_t)seed);
	*steps += steps_of(t, kind);
	for (uint32_t i = 0; i < t->n_touched; i++)
		bit_clear(t->bits, t->touched[i]);
	for (uint32_t i = 0; i < t->n_tested; i++)
		bit_set(t->bits, t->cells[i]);
	return t->nats > limits[test].wrong;
}

void prefetch_trace_positions(
        struct prefetch_trace *t, struct prefetch_rng *rng, enum prefetch_shuffle_kind kind, uint64_t *positions)
{
	for (uint32_t i = 0; i < t->n_opened; i++)
		t->ids[t->cells[i]] = (uint16_t)(i + 1);
	prefetch_shuffle_steps(rng, kind, t->n, 0, t->n, t->ids, false);
	prefetch_shuffle_end(rng, kind, t->n, t->ids, false);
	for (uint32_t i = 0; i < t->n; i++) {
		if (t->ids[i] > 0)
			positions[t->ids[i] - 1] = i;
	}
	memset(t->ids, 0, t->n * sizeof(*t->ids));
}
