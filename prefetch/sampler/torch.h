/* SPDX-License-Identifier: Apache-2.0 */
/* torch's permutations: tries many seeds a microsecond, and makes whole permutations in slices.
 *
 * A permutation is named by (seed, skip): torch.randperm(n, generator=g) after g.manual_seed(seed) and `skip` 32-bit
 * draws.  DistributedSampler's is (seed + epoch, 0).
 *
 * The filter.  Output i of randperm is cell j = i + word[i] % (n - i) of the array.  The cell still holds j unless an
 * earlier step has swapped it away, which happened with probability i / n (never in output 0).  So the test whether
 * output i is among the opened files needs the word, a division and one bit, but no array.  The few wrong answers only
 * make the filter less sharp, because the outputs of a seed that passes are computed exactly.
 *
 * Threads: any, one at a time for each object.  A complete permutation is immutable, and any thread may read it. */
#ifndef DDPFS_PREFETCH_SAMPLER_TORCH_H
#define DDPFS_PREFETCH_SAMPLER_TORCH_H

#include <stdbool.h>
#include <stdint.h>

#include "shard/torch_rng.h"

enum {
	PREFETCH_LANES = 16,         /* seeds computed side by side */
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
	uint64_t magic[PREFETCH_FILTER_WORDS];  /* entry i: for % (n - i) */
};

/* Makes the filter of these indices. */
void prefetch_torch_filter_init(
        struct prefetch_torch_filter *filter, uint32_t n, const uint32_t *indices, uint32_t n_indices);

/* Words of PREFETCH_LANES generators, side by side. */
struct prefetch_torch_words {
	uint32_t words[SHARD_MT19937_WORDS + 1][PREFETCH_LANES];
};

/* Computes the first `count` words of the generators with these seeds.  count <= SHARD_MT19937_WORDS; of that many
 * the last one is not computed. */
void prefetch_torch_words(const uint32_t seeds[PREFETCH_LANES], uint32_t count, struct prefetch_torch_words *ret_words);

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

/* A whole permutation and its inverse.  It takes 8 bytes an item. */
struct prefetch_perm {
	_Atomic unsigned refs;
	uint32_t n;
	uint32_t done;           /* items made in this phase */
	unsigned phase;          /* 0 fills `at`, 1 shuffles it, 2 makes `inverse`, 3 is complete */
	struct shard_mt19937 mt; /* once complete: the generator, n - 1 words later */
	uint64_t discard;        /* words to draw before it begins */
	uint32_t *at, *inverse;  /* n entries each */
};

/* Makes a permutation of n, with one reference, that prefetch_perm_step has to complete.  It begins at `mt` after
 * `discard` more words.  Returns 0 or -ENOMEM. */
int prefetch_perm_new(uint32_t n, const struct shard_mt19937 *mt, uint64_t discard, struct prefetch_perm **ret_perm);

/* Does the work of about `max` items.  Returns true while there is more to do. */
bool prefetch_perm_step(struct prefetch_perm *perm, uint32_t max);

/* Tells that the caller has filled in `at` and `inverse`, so the permutation is complete.  Until then `done` is the
 * caller's. */
void prefetch_perm_made(struct prefetch_perm *perm);

struct prefetch_perm *prefetch_perm_get(struct prefetch_perm *perm); /* another reference */
void prefetch_perm_put(struct prefetch_perm *perm);                  /* NULL is fine */

#endif
