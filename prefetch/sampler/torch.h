/* SPDX-License-Identifier: Apache-2.0 */
/* torch's permutations as hypotheses: many seeds a microsecond, and whole ones in slices.
 *
 * A permutation is named by (seed, skip): torch.randperm(n, generator=g) after g.manual_seed(seed) and `skip` 32-bit
 * draws.  DistributedSampler: (seed + epoch, 0).
 *
 * The filter.  Output i of randperm is cell j = i + word[i] % (n - i) of the array, which still holds j unless an
 * earlier step has swapped it away: never in output 0, and with probability i / n in output i.  So "is output i among
 * the files seen" needs the word, a division and one bit, no array; the few wrong ones only blunt the filter, and what
 * passes it is computed exactly.
 *
 * Threads: none of its own. */
#ifndef DDPFS_PREFETCH_SAMPLER_TORCH_H
#define DDPFS_PREFETCH_SAMPLER_TORCH_H

#include <stdbool.h>
#include <stdint.h>

#include "shard/torch_rng.h"

enum {
	PREFETCH_LANES = 16,         /* seeds side by side */
	PREFETCH_FILTER_WORDS = 620, /* outputs a filter looks at, at most: one block of the generator, less the skip */
	PREFETCH_SKIP_MAX = 4,       /* words skipped in a filter */
	PREFETCH_SEEN_BITS = 1 << 16 /* of the set of seen indices, 8 KiB: stays in the first cache */
};

/* The indices that were seen, for one list of n files. */
struct prefetch_torch_filter {
	uint32_t n;
	uint32_t seen;    /* indices in the set */
	uint32_t outputs; /* of `magic`: the smaller of PREFETCH_FILTER_WORDS and n - 1 */
	uint64_t bits[PREFETCH_SEEN_BITS / 64];
	uint64_t magic[PREFETCH_FILTER_WORDS]; /* for % (n - i) */
};

void prefetch_torch_filter_init(
        struct prefetch_torch_filter *filter, uint32_t n, const uint32_t *indices, uint32_t n_indices);

/* Words skip .. skip + count of PREFETCH_LANES generators.  count + skip <= SHARD_MT19937_WORDS. */
struct prefetch_torch_words {
	uint32_t words[SHARD_MT19937_WORDS + 1][PREFETCH_LANES];
};
void prefetch_torch_words(const uint32_t seeds[PREFETCH_LANES], uint32_t count, struct prefetch_torch_words *ret_words);

/* How many of the outputs [0, outputs) seem to be in the set, for each lane. */
void prefetch_torch_count(const struct prefetch_torch_filter *filter, const struct prefetch_torch_words *words,
        uint32_t skip, uint32_t outputs, uint32_t ret_hits[PREFETCH_LANES]);

/* The least number of hits among `outputs` that a wrong seed reaches with probability 1e-4 at most; UINT32_MAX where no
 * number of hits would say anything. */
uint32_t prefetch_torch_threshold(const struct prefetch_torch_filter *filter, uint32_t outputs);

/* Brings a generator to where (seed, skip) begins. */
void prefetch_torch_seek(struct shard_mt19937 *mt, uint32_t seed, uint64_t skip);

/* The first k outputs, exactly: perm has room for k <= n; table for 2 * k rounded up to a power of two, entries of it
 * all zero before and after. */
void prefetch_torch_prefix(struct shard_mt19937 mt, uint32_t n, uint32_t k, uint32_t *perm, uint64_t *table);

/* A whole permutation and its inverse.  8 bytes an item. */
struct prefetch_perm {
	_Atomic unsigned refs;
	uint32_t n;
	uint32_t done; /* items made, over all phases */
	unsigned phase;
	struct shard_mt19937 mt; /* once it is made: the generator n - 1 words later */
	uint64_t discard;        /* words to throw away before it begins */
	uint32_t *at, *inverse;
};

/* mt: where the permutation begins, after `discard` more words.  Not made yet: step it.  -ENOMEM. */
int prefetch_perm_new(uint32_t n, const struct shard_mt19937 *mt, uint64_t discard, struct prefetch_perm **ret_perm);
/* Does about `max` items' work.  True while there is more. */
bool prefetch_perm_step(struct prefetch_perm *perm, uint32_t max);
/* `at` and `inverse` were filled in by somebody else: it is made. */
void prefetch_perm_made(struct prefetch_perm *perm);
struct prefetch_perm *prefetch_perm_get(struct prefetch_perm *perm);
void prefetch_perm_put(struct prefetch_perm *perm); /* NULL is fine */

#endif
