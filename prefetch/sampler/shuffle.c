/* SPDX-License-Identifier: Apache-2.0 */
/* Generators and shuffles as numpy, Python and libstdc++ have them; prefetch/sampler/shuffle.h first. */
#include "prefetch/sampler/shuffle.h"

#include <string.h>

enum { STD_PAIRS_MAX = 65535 /* cells: up to here std::shuffle draws the places of two cells at once */ };

/* ---- MT19937 ---- */

enum { ARRAY_FIRST = 19650218 };
#define ARRAY_MIX(word, last, multiplier) ((word) ^ ((last) ^ (last) >> 30) * (multiplier))

/* init_by_array of the reference code with one word, as random.seed(int) of Python calls it. */
static void seed_by_array(struct shard_mt19937 *mt, uint32_t key)
{
	const uint32_t n = SHARD_MT19937_WORDS;
	uint32_t *s = mt->state;
	shard_mt19937_seed(mt, ARRAY_FIRST);
	for (uint32_t k = 0, i = 1; k < n; k++) {
		s[i] = ARRAY_MIX(s[i], s[i - 1], UINT32_C(1664525)) + key;
		if (++i == n) {
			s[0] = s[n - 1];
			i = 1;
		}
	}
	/* The first loop has done n steps, so it ended at entry 2. */
	for (uint32_t k = 0, i = 2; k < n - 1; k++) {
		s[i] = ARRAY_MIX(s[i], s[i - 1], UINT32_C(1566083941)) - i;
		if (++i == n) {
			s[0] = s[n - 1];
			i = 1;
		}
	}
	s[0] = UINT32_C(0x80000000);
	mt->next = n;
}

/* ---- MT19937-64 ---- */

enum { MT64_WORDS = PREFETCH_MT64_WORDS, MT64_SHIFT = 156 };

static void mt64_seed(struct prefetch_mt64 *mt, uint64_t seed)
{
	mt->state[0] = seed;
	for (uint32_t i = 1; i < MT64_WORDS; i++) {
		uint64_t last = mt->state[i - 1];
		mt->state[i] = UINT64_C(6364136223846793005) * (last ^ last >> 62) + i;
	}
	mt->next = MT64_WORDS;
}

static void mt64_next_state(struct prefetch_mt64 *mt)
{
	uint64_t *s = mt->state;
	for (uint32_t i = 0; i < MT64_WORDS; i++) {
		uint64_t low = s[(i + 1) % MT64_WORDS], mixed = (s[i] & ~UINT64_C(0x7fffffff)) | (low & 0x7fffffff);
		s[i] = s[(i + MT64_SHIFT) % MT64_WORDS] ^ mixed >> 1 ^ (low & 1 ? UINT64_C(0xb5026f5aa96619e9) : 0);
	}
	mt->next = 0;
}

static uint64_t mt64_next(struct prefetch_mt64 *mt)
{
	if (mt->next == MT64_WORDS)
		mt64_next_state(mt);
	uint64_t y = mt->state[mt->next++];
	y ^= y >> 29 & UINT64_C(0x5555555555555555);
	y ^= y << 17 & UINT64_C(0x71d67fffeda60000);
	y ^= y << 37 & UINT64_C(0xfff7eee000000000);
	return y ^ y >> 43;
}

/* ---- PCG64 ---- */

static const unsigned __int128 pcg_multiplier =
        (unsigned __int128)UINT64_C(2549297995355413924) << 64 | UINT64_C(4865540595714422341);

static void pcg_step(struct prefetch_pcg64 *pcg)
{
	pcg->state = pcg->state * pcg_multiplier + pcg->step;
}

static inline uint64_t pcg_output(unsigned __int128 state)
{
	uint64_t mixed = (uint64_t)(state >> 64) ^ (uint64_t)state;
	unsigned by = (unsigned)(state >> 122);
	return mixed >> by | mixed << (-by & 63);
}

static uint64_t pcg_next64(struct prefetch_pcg64 *pcg)
{
	pcg_step(pcg);
	return pcg_output(pcg->state);
}

static inline uint32_t pcg_next32(struct prefetch_pcg64 *pcg)
{
	if (pcg->kept) {
		pcg->kept = false;
		return pcg->half;
	}
	uint64_t next = pcg_next64(pcg);
	pcg->kept = true;
	pcg->half = (uint32_t)(next >> 32);
	return (uint32_t)next;
}

/* numpy's SeedSequence (bit_generator.pyx): a pool of four words, mixed. */
struct pool {
	uint32_t words[4];
	uint32_t constant;
};

static uint32_t pool_hash(struct pool *pool, uint32_t value, uint32_t multiplier)
{
	value ^= pool->constant;
	pool->constant *= multiplier;
	value *= pool->constant;
	return value ^ value >> 16;
}

static void pool_init(struct pool *pool, uint32_t seed)
{
	const uint32_t multiplier = UINT32_C(0x931e8875);
	pool->constant = UINT32_C(0x43b0d7e5);
	for (unsigned i = 0; i < 4; i++)
		pool->words[i] = pool_hash(pool, i == 0 ? seed : 0, multiplier);
	for (unsigned from = 0; from < 4; from++) {
		for (unsigned to = 0; to < 4; to++) {
			if (from == to)
				continue;
			uint32_t mixed = pool->words[to] * UINT32_C(0xca01f9dd) -
			                 pool_hash(pool, pool->words[from], multiplier) * UINT32_C(0x4973f715);
			pool->words[to] = mixed ^ mixed >> 16;
		}
	}
}

static void pcg_seed(struct prefetch_pcg64 *pcg, uint32_t seed)
{
	struct pool pool;
	uint32_t state[8];
	uint64_t words[4];
	pool_init(&pool, seed);
	pool.constant = UINT32_C(0x8b51f9dd);
	for (unsigned i = 0; i < 8; i++)
		state[i] = pool_hash(&pool, pool.words[i % 4], UINT32_C(0x58f38ded));
	for (unsigned i = 0; i < 4; i++)
		words[i] = (uint64_t)state[2 * i + 1] << 32 | state[2 * i];
	pcg->step = ((unsigned __int128)words[2] << 64 | words[3]) << 1 | 1;
	pcg->state = pcg->step; /* one step from 0 */
	pcg->state += (unsigned __int128)words[0] << 64 | words[1];
	pcg_step(pcg);
	pcg->kept = false;
	pcg->half = 0;
}

void prefetch_rng_seed(struct prefetch_rng *rng, enum prefetch_shuffle_kind kind, uint64_t seed)
{
	switch (kind) {
	case PREFETCH_SHUFFLE_TORCH:
	case PREFETCH_SHUFFLE_NUMPY:
	case PREFETCH_SHUFFLE_STD:
		shard_mt19937_seed(&rng->mt, seed);
		break;
	case PREFETCH_SHUFFLE_STD64:
		mt64_seed(&rng->mt64, seed);
		break;
	case PREFETCH_SHUFFLE_NUMPY_RNG:
		pcg_seed(&rng->pcg, (uint32_t)seed);
		break;
	case PREFETCH_SHUFFLE_PYTHON:
	case PREFETCH_SHUFFLE_SAMPLE:
		seed_by_array(&rng->mt, (uint32_t)seed);
		break;
	}
}

/* ---- many seeds of MT19937 ---- */

/* Each word of a state is made from the word before it, which takes some ten cycles.  So many generators are made side
 * by side: loops over them become vector instructions, whose waits overlap.  `last` is apart from the columns, so that
 * it stays in registers. */
enum { LANES = PREFETCH_SEEDS };
typedef uint32_t columns[SHARD_MT19937_WORDS][LANES];

/* As shard_mt19937_seed(). */
static inline __attribute__((always_inline)) void seed_columns(uint32_t seed, columns s)
{
	uint32_t last[LANES];
	for (uint32_t l = 0; l < LANES; l++)
		s[0][l] = last[l] = seed + l;
	for (uint32_t i = 1; i < SHARD_MT19937_WORDS; i++) {
		for (uint32_t l = 0; l < LANES; l++)
			s[i][l] = last[l] = UINT32_C(1812433253) * (last[l] ^ last[l] >> 30) + i;
	}
}

/* As seed_by_array().  Its first loop begins with the same words for all keys. */
static inline __attribute__((always_inline)) void seed_columns_by_array(uint32_t key, columns s)
{
	enum { N = SHARD_MT19937_WORDS };
	struct shard_mt19937 begun;
	uint32_t last[LANES];
	shard_mt19937_seed(&begun, ARRAY_FIRST);
	for (uint32_t l = 0; l < LANES; l++)
		last[l] = begun.state[0];
	for (uint32_t i = 1; i < N; i++) {
		for (uint32_t l = 0; l < LANES; l++)
			s[i][l] = last[l] = ARRAY_MIX(begun.state[i], last[l], UINT32_C(1664525)) + key + l;
	}
	for (uint32_t l = 0; l < LANES; l++)
		last[l] = ARRAY_MIX(s[1][l], last[l], UINT32_C(1664525)) + key + l;
	memcpy(s[1], last, sizeof(last));
	for (uint32_t i = 2; i < N; i++) {
		for (uint32_t l = 0; l < LANES; l++)
			s[i][l] = last[l] = ARRAY_MIX(s[i][l], last[l], UINT32_C(1566083941)) - i;
	}
	for (uint32_t l = 0; l < LANES; l++) {
		s[1][l] = ARRAY_MIX(s[1][l], last[l], UINT32_C(1566083941)) - 1;
		s[0][l] = UINT32_C(0x80000000);
	}
}

/* Copies in pieces that stay in the L1 cache. */
static inline __attribute__((always_inline)) void make_states(struct prefetch_seeded *seeded)
{
	enum { PIECE = 8 };
	if (seeded->by_array)
		seed_columns_by_array(seeded->first, seeded->columns);
	else
		seed_columns(seeded->first, seeded->columns);
	for (uint32_t i = 0; i < SHARD_MT19937_WORDS; i += PIECE) {
		for (uint32_t l = 0; l < LANES; l++) {
			for (uint32_t k = i; k < i + PIECE; k++)
				seeded->states[l][k] = seeded->columns[k][l];
		}
	}
}

#if defined(__x86_64__) && !defined(DDPFS_NO_AVX2) /* tests/prefetch/meson.build */
__attribute__((target("avx2"))) static void make_states_avx2(struct prefetch_seeded *seeded)
{
	make_states(seeded);
}
#endif

static void make_states_any(struct prefetch_seeded *seeded)
{
#if defined(__x86_64__) && !defined(DDPFS_NO_AVX2)
	if (__builtin_cpu_supports("avx2")) {
		make_states_avx2(seeded);
		return;
	}
#endif
	make_states(seeded);
}

const uint32_t *prefetch_seeded_state(struct prefetch_seeded *seeded, enum prefetch_shuffle_kind kind, uint32_t seed)
{
	bool by_array = kind == PREFETCH_SHUFFLE_PYTHON || kind == PREFETCH_SHUFFLE_SAMPLE;
	if (seeded->by_array != by_array || seed - seeded->first >= seeded->n) {
		seeded->by_array = by_array;
		seeded->first = seed;
		seeded->n = PREFETCH_SEEDS;
		make_states_any(seeded);
	}
	return seeded->states[seed - seeded->first];
}

/* ---- numbers below a bound ---- */

/* Bits of a number. */
static unsigned bits_of(uint32_t n)
{
	return n == 0 ? 0 : 32 - (unsigned)__builtin_clz(n);
}

/* numpy's random_interval: the lowest bits, until they are small enough.  It draws nothing for n = 1. */
static inline uint32_t below_by_mask(struct prefetch_rng *rng, bool pcg, uint32_t n)
{
	uint32_t mask = (uint32_t)((UINT64_C(1) << bits_of(n - 1)) - 1), value;
	if (n == 1)
		return 0;
	do {
		value = (pcg ? pcg_next32(&rng->pcg) : shard_mt19937_next32(&rng->mt)) & mask;
	} while (value >= n);
	return value;
}

/* Python's _randbelow_with_getrandbits: the highest bits, as many as n has, until they are small enough. */
static inline uint32_t below_by_bits(struct shard_mt19937 *mt, uint32_t n)
{
	unsigned drop = 32 - bits_of(n);
	uint32_t value;
	do {
		value = shard_mt19937_next32(mt) >> drop;
	} while (value >= n);
	return value;
}

/* libstdc++'s _S_nd (Lemire: Fast random integer generation in an interval, 2019): the upper half of a product, unless
 * the lower half is too small. */
static uint32_t below_by_product(struct shard_mt19937 *mt, uint32_t n)
{
	uint64_t product = (uint64_t)shard_mt19937_next32(mt) * n;
	if ((uint32_t)product < n) {
		uint32_t least = -n % n;
		while ((uint32_t)product < least)
			product = (uint64_t)shard_mt19937_next32(mt) * n;
	}
	return (uint32_t)(product >> 32);
}

/* The same for a generator of 64 bits. */
static uint64_t below_by_product64(struct prefetch_mt64 *mt, uint64_t n)
{
	unsigned __int128 product = (unsigned __int128)mt64_next(mt) * n;
	if ((uint64_t)product < n) {
		uint64_t least = -n % n;
		while ((uint64_t)product < least)
			product = (unsigned __int128)mt64_next(mt) * n;
	}
	return (uint64_t)(product >> 64);
}

static inline __attribute__((always_inline)) uint32_t below(
        struct prefetch_rng *rng, enum prefetch_shuffle_kind kind, uint32_t n)
{
	switch (kind) {
	case PREFETCH_SHUFFLE_TORCH:
		return shard_mt19937_next32(&rng->mt) % n;
	case PREFETCH_SHUFFLE_NUMPY:
		return below_by_mask(rng, false, n);
	case PREFETCH_SHUFFLE_NUMPY_RNG:
		return below_by_mask(rng, true, n);
	case PREFETCH_SHUFFLE_PYTHON:
	case PREFETCH_SHUFFLE_SAMPLE:
		return below_by_bits(&rng->mt, n);
	case PREFETCH_SHUFFLE_STD:
		return below_by_product(&rng->mt, n);
	case PREFETCH_SHUFFLE_STD64:
		return (uint32_t)below_by_product64(&rng->mt64, n);
	}
	return 0;
}

void prefetch_rng_words(struct prefetch_rng *rng, uint32_t *words, uint32_t n)
{
	/* Two steps at once, so that the even numbers do not wait for the odd ones. */
	const unsigned __int128 multiplier = pcg_multiplier * pcg_multiplier;
	struct prefetch_pcg64 even = rng->pcg, odd;
	pcg_step(&even);
	odd = even;
	pcg_step(&odd);
	unsigned __int128 step = rng->pcg.step * (pcg_multiplier + 1);
	for (uint32_t i = 0; i < n; i += 4) {
		uint64_t one = pcg_output(even.state), two = pcg_output(odd.state);
		words[i] = (uint32_t)one;
		words[i + 1] = (uint32_t)(one >> 32);
		words[i + 2] = (uint32_t)two;
		words[i + 3] = (uint32_t)(two >> 32);
		rng->pcg.state = odd.state;
		even.state = even.state * multiplier + step;
		odd.state = odd.state * multiplier + step;
	}
}

/* ---- shuffles ---- */

static inline void swap(void *cells, bool wide, uint32_t i, uint32_t j)
{
	if (wide) {
		uint32_t *c = cells, kept = c[i];
		c[i] = c[j];
		c[j] = kept;
	} else {
		uint16_t *c = cells, kept = c[i];
		c[i] = c[j];
		c[j] = kept;
	}
}

/* The places of cells i and i + 1, drawn at once. */
static uint64_t below_two(struct prefetch_rng *rng, enum prefetch_shuffle_kind kind, uint32_t i)
{
	uint64_t both = ((uint64_t)i + 1) * ((uint64_t)i + 2);
	return kind == PREFETCH_SHUFFLE_STD64 ? below_by_product64(&rng->mt64, both)
	                                      : below_by_product(&rng->mt, (uint32_t)both);
}

/* std::shuffle: cell i changes places with one of those up to itself.  If the numbers of the generator are large
 * enough, it draws two places at once. */
static uint32_t std_steps(struct prefetch_rng *rng, enum prefetch_shuffle_kind kind, uint32_t n, uint32_t done,
        uint32_t max, void *cells, bool wide)
{
	bool pairs = kind == PREFETCH_SHUFFLE_STD64 || n <= STD_PAIRS_MAX;
	uint32_t i = done + 1;
	if (pairs && i == 1 && n % 2 == 0) {
		swap(cells, wide, i, below(rng, kind, 2));
		i++;
	}
	while (i < n && i - 1 - done < max) {
		if (!pairs) {
			swap(cells, wide, i, below(rng, kind, i + 1));
			i++;
			continue;
		}
		uint64_t two = below_two(rng, kind, i);
		swap(cells, wide, i, (uint32_t)(two / (i + UINT64_C(2))));
		swap(cells, wide, i + 1, (uint32_t)(two % (i + UINT64_C(2))));
		i += 2;
	}
	return i - 1;
}

uint32_t prefetch_shuffle_steps(struct prefetch_rng *rng, enum prefetch_shuffle_kind kind, uint32_t n, uint32_t done,
        uint32_t max, void *cells, bool wide)
{
	uint32_t end = n - 1 - done < max ? n - 1 : done + max;
	switch (kind) {
	case PREFETCH_SHUFFLE_TORCH:
		for (uint32_t i = done; i < end; i++)
			swap(cells, wide, i, i + below(rng, PREFETCH_SHUFFLE_TORCH, n - i));
		return end;
	case PREFETCH_SHUFFLE_NUMPY:
		for (uint32_t i = n - 1 - done; i > n - 1 - end; i--)
			swap(cells, wide, i, below(rng, PREFETCH_SHUFFLE_NUMPY, i + 1));
		return end;
	case PREFETCH_SHUFFLE_NUMPY_RNG:
		for (uint32_t i = n - 1 - done; i > n - 1 - end; i--)
			swap(cells, wide, i, below(rng, PREFETCH_SHUFFLE_NUMPY_RNG, i + 1));
		return end;
	case PREFETCH_SHUFFLE_PYTHON:
	case PREFETCH_SHUFFLE_SAMPLE:
		for (uint32_t i = n - 1 - done; i > n - 1 - end; i--)
			swap(cells, wide, i, below(rng, PREFETCH_SHUFFLE_PYTHON, i + 1));
		return end;
	case PREFETCH_SHUFFLE_STD:
	case PREFETCH_SHUFFLE_STD64:
		break;
	}
	return std_steps(rng, kind, n, done, max, cells, wide);
}

void prefetch_shuffle_end(struct prefetch_rng *rng, enum prefetch_shuffle_kind kind, uint32_t n, void *cells, bool wide)
{
	if (kind != PREFETCH_SHUFFLE_SAMPLE)
		return;
	below_by_bits(&rng->mt, 1);
	for (uint32_t i = 0; i < n / 2; i++)
		swap(cells, wide, i, n - 1 - i);
}
