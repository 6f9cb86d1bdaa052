/* SPDX-License-Identifier: Apache-2.0 */
/* torch's permutations: tries many seeds a microsecond.
 *
 * A permutation is named by (seed, skip): torch.randperm(n, generator=g) after g.manual_seed(seed) and `skip` 32-bit
 * draws.  DistributedSampler's is (seed + epoch, 0).
 *
 * The filter.  Output i of randperm is cell j = i + word[i] % (n - i) of the array.  The cell still holds j unless an
 * earlier step has swapped it away, which happened with probability i / n (never in output 0).  So the test whether
 * output i is among the opened files needs the word, a division and one bit, but no array.  The few wrong answers only
 * make the filter less sharp, because the outputs of a seed that passes are computed exactly.
 *
 * Threads: any, one at a time for each object. */
#ifndef DDPFS_PREFETCH_SAMPLER_TORCH_H
#define DDPFS_PREFETCH_SAMPLER_TORCH_H

#include <stdbool.h>
#include <stdint.h>

#include "shard/torch_rng.h"

enum {
	PREFETCH_LANES = 32,         /* seeds side by side: so many that multiplications overlap */
	PREFETCH_FILTER_WORDS = 620, /* outputs that a filter checks, at most: a block less the skip */
	PREFETCH_SKIP_MAX = 4,       /* words that a filter may skip */
	PREFETCH_SEEN_BITS = 1 << 16 /* of the set of seen indices: 8 KiB, so it stays in the L1 cache */
};

/* The indices of the opened files, for one list of n files. */
struct prefetch_torch_filter {
	uint32_t n;
	uint32_t seen;                          /* how many indices are in the set */
	uint32_t outputs;                       /* entries of `magic`: the smaller of PREFETCH_FILTER_WORDS and n - 1 */
	uint64_t bits[PREFETCH_SEEN_BITS / 64]; /* bit index % PREFETCH_SEEN_BITS */
	uint32_t magic[PREFETCH_FILTER_WORDS];  /* entry i: 2^32 / (n - i) */
};

/* Makes the filter of these indices. */
void prefetch_torch_filter_init(
        struct prefetch_torch_filter *filter, uint32_t n, const uint32_t *indices, uint32_t n_indices);

/* Words of PREFETCH_LANES generators, side by side. */
struct prefetch_torch_words {
	uint32_t words[SHARD_MT19937_WORDS + 1][PREFETCH_LANES];
};

/* Computes the first n words of the generators with these seeds.  n <= SHARD_MT19937_WORDS; of that many the last one
 * is not computed. */
void prefetch_torch_words(const uint32_t seeds[PREFETCH_LANES], uint32_t n, struct prefetch_torch_words *ret_words);

/* Counts, for each lane, how many of the outputs [0, outputs) seem to be in the set, after `skip` words.
 * outputs <= filter->outputs, skip <= PREFETCH_SKIP_MAX. */
void prefetch_torch_count(const struct prefetch_torch_filter *filter, const struct prefetch_torch_words *words,
        uint32_t skip, uint32_t outputs, uint32_t ret_hits[PREFETCH_LANES]);

/* Returns the least number of hits among `outputs` that a wrong seed reaches with probability 1e-4 at most.
 * UINT32_MAX: no number of hits would say anything. */
uint32_t prefetch_torch_threshold(const struct prefetch_torch_filter *filter, uint32_t outputs);

/* Seeds a generator and draws `skip` words, so that (seed, skip) begins at its next word. */
void prefetch_torch_seek(struct shard_mt19937 *mt, uint32_t seed, uint64_t skip);

/* Computes the first k outputs of a permutation of n exactly.  perm has room for k <= n, table for 2 * k rounded up
 * to a power of two (at least 16).  All entries of `table` are 0 before and after. */
void prefetch_torch_prefix(struct shard_mt19937 mt, uint32_t n, uint32_t k, uint32_t *perm, uint64_t *table);

#endif
