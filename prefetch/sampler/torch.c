/* SPDX-License-Identifier: Apache-2.0 */
/* torch's random numbers, many seeds side by side, and its permutations; prefetch/sampler/torch.h first. */
#include "prefetch/sampler/torch.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "shard/base/bits.h"

enum { MT_SHIFT = 397 };

/* Generators side by side.  The compiler uses the vector instructions of its target. */
typedef uint32_t vector __attribute__((vector_size(32), aligned(4), may_alias));
enum { VECTORS = PREFETCH_LANES * sizeof(uint32_t) / sizeof(vector) };

/* Returns x % d.  magic: 2^32 / d, rounded down; so the product is the quotient, or one less.  Numbers of 32 bits, side
 * by side, become vector instructions. */
static inline uint32_t fast_mod(uint32_t x, uint32_t magic, uint32_t d)
{
	uint32_t rest = x - (uint32_t)((uint64_t)x * magic >> 32) * d;
	return rest - d < rest ? rest - d : rest;
}

void prefetch_torch_filter_init(
        struct prefetch_torch_filter *filter, uint32_t n, const uint32_t *indices, uint32_t n_indices)
{
	*filter = (struct prefetch_torch_filter){ .n = n, .seen = n_indices };
	filter->outputs = n - 1 < PREFETCH_FILTER_WORDS ? n - 1 : PREFETCH_FILTER_WORDS;
	for (uint32_t i = 0; i < n_indices; i++)
		bit_set(filter->bits, indices[i] % PREFETCH_SEEN_BITS);
	for (uint32_t i = 0; i < filter->outputs; i++)
		filter->magic[i] = (uint32_t)((UINT64_C(1) << 32) / (n - i));
}

#define TWIST(high, low, far)                                                                                          \
	((far) ^ ((((high)&UINT32_C(0x80000000)) | ((low)&UINT32_C(0x7fffffff))) >> 1) ^                               \
	        ((-((low)&1)) & UINT32_C(0x9908b0df)))

static inline __attribute__((always_inline)) void make_words(
        const uint32_t seeds[PREFETCH_LANES], uint32_t n, struct prefetch_torch_words *ret_words)
{
	vector(*s)[VECTORS] = (vector(*)[VECTORS])ret_words->words, last[VECTORS];
	uint32_t need = n + MT_SHIFT < SHARD_MT19937_WORDS ? n + MT_SHIFT : SHARD_MT19937_WORDS;
	memcpy(last, seeds, sizeof(last));
	memcpy(s[0], seeds, sizeof(last));
	for (uint32_t i = 1; i < need; i++) {
		for (unsigned v = 0; v < VECTORS; v++)
			last[v] = UINT32_C(1812433253) * (last[v] ^ last[v] >> 30) + i;
		for (unsigned v = 0; v < VECTORS && (i <= n || i >= MT_SHIFT); v++)
			s[i][v] = last[v];
	}
	if (n == SHARD_MT19937_WORDS)
		n--; /* the last word needs the new first word, and no caller needs the last word */
	for (uint32_t i = 0; i < n && i < SHARD_MT19937_WORDS - MT_SHIFT; i++) {
		for (unsigned v = 0; v < VECTORS; v++)
			s[i][v] = TWIST(s[i][v], s[i + 1][v], s[i + MT_SHIFT][v]);
	}
	for (uint32_t i = SHARD_MT19937_WORDS - MT_SHIFT; i < n; i++) {
		for (unsigned v = 0; v < VECTORS; v++)
			s[i][v] = TWIST(s[i][v], s[i + 1][v], s[i + MT_SHIFT - SHARD_MT19937_WORDS][v]);
	}
	for (uint32_t i = 0; i < n; i++) {
		for (unsigned v = 0; v < VECTORS; v++) {
			vector y = s[i][v];
			y ^= y >> 11;
			y ^= y << 7 & UINT32_C(0x9d2c5680);
			y ^= y << 15 & UINT32_C(0xefc60000);
			s[i][v] = y ^ y >> 18;
		}
	}
}

static inline __attribute__((always_inline)) void count(const struct prefetch_torch_filter *filter,
        const struct prefetch_torch_words *words, uint32_t skip, uint32_t outputs, uint32_t ret_hits[PREFETCH_LANES])
{
	uint32_t hits[PREFETCH_LANES] = { 0 }, bits[PREFETCH_LANES];
	for (uint32_t i = 0; i < outputs; i++) {
		const uint32_t *word = words->words[i + skip];
		uint32_t magic = filter->magic[i], d = filter->n - i;
		for (unsigned lane = 0; lane < PREFETCH_LANES; lane++)
			bits[lane] = (i + fast_mod(word[lane], magic, d)) % PREFETCH_SEEN_BITS;
		for (unsigned lane = 0; lane < PREFETCH_LANES; lane++)
			hits[lane] += (uint32_t)(filter->bits[bits[lane] / 64] >> (bits[lane] % 64)) & 1;
	}
	memcpy(ret_hits, hits, sizeof(hits));
}

#if defined(__x86_64__) && !defined(DDPFS_NO_AVX2) /* tests/prefetch/meson.build */
__attribute__((target("avx2"))) static void make_words_avx2(
        const uint32_t seeds[PREFETCH_LANES], uint32_t n, struct prefetch_torch_words *ret_words)
{
	make_words(seeds, n, ret_words);
}

__attribute__((target("avx2"))) static void count_avx2(const struct prefetch_torch_filter *filter,
        const struct prefetch_torch_words *words, uint32_t skip, uint32_t outputs, uint32_t ret_hits[PREFETCH_LANES])
{
	count(filter, words, skip, outputs, ret_hits);
}
#endif

void prefetch_torch_words(const uint32_t seeds[PREFETCH_LANES], uint32_t n, struct prefetch_torch_words *ret_words)
{
	assert(n <= SHARD_MT19937_WORDS);
#if defined(__x86_64__) && !defined(DDPFS_NO_AVX2)
	if (__builtin_cpu_supports("avx2")) {
		make_words_avx2(seeds, n, ret_words);
		return;
	}
#endif
	make_words(seeds, n, ret_words);
}

void prefetch_torch_count(const struct prefetch_torch_filter *filter, const struct prefetch_torch_words *words,
        uint32_t skip, uint32_t outputs, uint32_t ret_hits[PREFETCH_LANES])
{
	assert(outputs <= filter->outputs && skip <= PREFETCH_SKIP_MAX);
#if defined(__x86_64__) && !defined(DDPFS_NO_AVX2)
	if (__builtin_cpu_supports("avx2")) {
		count_avx2(filter, words, skip, outputs, ret_hits);
		return;
	}
#endif
	count(filter, words, skip, outputs, ret_hits);
}

/* Chernoff: P(Bin(k, q) >= t) <= exp(-k KL(t/k, q)). */
uint32_t prefetch_torch_threshold(const struct prefetch_torch_filter *filter, uint32_t outputs)
{
	double set = 0, k = outputs;
	for (unsigned i = 0; i < PREFETCH_SEEN_BITS / 64; i++)
		set += __builtin_popcountll(filter->bits[i]);
	double q = filter->n < PREFETCH_SEEN_BITS ? (double)filter->seen / filter->n : set / PREFETCH_SEEN_BITS;
	for (uint32_t t = 4; t < outputs; t++) {
		double d = t / k;
		if (d > q && k * (d * log(d / q) + (1 - d) * log((1 - d) / (1 - q))) > log(1e4))
			return t;
	}
	return UINT32_MAX;
}

static void discard(struct shard_mt19937 *mt, uint64_t words)
{
	while (words-- > 0)
		shard_mt19937_next32(mt);
}

void prefetch_torch_seek(struct shard_mt19937 *mt, uint32_t seed, uint64_t skip)
{
	shard_mt19937_seed(mt, seed);
	discard(mt, skip);
}

void prefetch_torch_prefix(struct shard_mt19937 mt, uint32_t n, uint32_t k, uint32_t *perm, uint64_t *table)
{
	unsigned bits = 4;
	while (UINT64_C(1) << bits < (uint64_t)k * 2)
		bits++;
	uint64_t mask = (UINT64_C(1) << bits) - 1;
	for (uint32_t i = 0; i < k; i++)
		perm[i] = i;
	for (uint32_t i = 0; i < k && i + 1 < n; i++) {
		uint32_t j = i + shard_mt19937_next32(&mt) % (n - i);
		uint32_t kept = perm[i];
		if (j < k) {
			perm[i] = perm[j];
			perm[j] = kept;
			continue;
		}
		/* An entry is (cell + 1) << 32 | value, for a cell behind the prefix that has got another value by a
		 * swap. */
		uint64_t entry = j * UINT64_C(0x9e3779b97f4a7c15) >> (64 - bits);
		while (table[entry] != 0 && table[entry] >> 32 != (uint64_t)j + 1)
			entry = (entry + 1) & mask;
		perm[i] = table[entry] ? (uint32_t)table[entry] : j;
		table[entry] = ((uint64_t)j + 1) << 32 | kept;
	}
	memset(table, 0, (mask + 1) * sizeof(*table));
}
