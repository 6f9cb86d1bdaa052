/* SPDX-License-Identifier: Apache-2.0 */
/* Shuffles of several libraries, bit for bit, in slices.
 *
 *   TORCH      torch.randperm of a seeded generator (shard/torch_rng.h)
 *   NUMPY      numpy's RandomState(seed) and numpy.random.seed(): shuffle and permutation, of lists and of arrays
 *   NUMPY_RNG  numpy's default_rng(seed), which is PCG64: shuffle and permutation; Hugging Face Dataset.shuffle(seed)
 *   PYTHON     random.Random(seed).shuffle
 *   SAMPLE     random.Random(seed).sample of the whole list: the same order backwards
 *   STD        std::shuffle of libstdc++ with std::mt19937: DALI's readers.file(random_shuffle)
 *   STD64      the same with std::mt19937_64: DALI's shuffle_after_epoch
 *
 * TORCH goes forward: step i swaps cell i with a later one, and then cell i is final.  NUMPY, NUMPY_RNG and PYTHON go
 * backwards from the last cell, so the first cells are final last.  With STD and STD64 no cell is final before the
 * last step.
 *
 * Threads: any, one at a time for each object. */
#ifndef DDPFS_PREFETCH_SAMPLER_SHUFFLE_H
#define DDPFS_PREFETCH_SAMPLER_SHUFFLE_H

#include <stdbool.h>
#include <stdint.h>

#include "shard/torch_rng.h"

enum prefetch_shuffle_kind {
	PREFETCH_SHUFFLE_TORCH,
	PREFETCH_SHUFFLE_NUMPY,
	PREFETCH_SHUFFLE_NUMPY_RNG,
	PREFETCH_SHUFFLE_PYTHON,
	PREFETCH_SHUFFLE_SAMPLE,
	PREFETCH_SHUFFLE_STD,
	PREFETCH_SHUFFLE_STD64,
};

enum {
	PREFETCH_MT64_WORDS = 312,
	PREFETCH_SEEDS = 32, /* seeded side by side: so many that multiplications overlap */
};

/* A generator of random numbers. */
struct prefetch_rng {
	struct shard_mt19937 mt; /* of all kinds but NUMPY_RNG and STD64 */
	struct prefetch_mt64 {
		uint64_t state[PREFETCH_MT64_WORDS];
		uint32_t next; /* as in struct shard_mt19937 */
	} mt64;
	struct prefetch_pcg64 {
		unsigned __int128 state, step;
		uint32_t half; /* the upper half of the last number, if `kept` */
		bool kept;
	} pcg;
};

/* Seeds a generator as the library does.  Only the fields of the kind are set.  The low 32 bits of the seed count, with
 * STD64 all of them. */
void prefetch_rng_seed(struct prefetch_rng *rng, enum prefetch_shuffle_kind kind, uint64_t seed);

/* Generators of MT19937 that are seeded side by side, because seeds are tried one after the other.  All 0: none. */
struct prefetch_seeded {
	bool by_array;                                         /* as Python seeds */
	uint32_t first, n;                                     /* seeds [first, first + n) */
	uint32_t columns[SHARD_MT19937_WORDS][PREFETCH_SEEDS]; /* where the states are made, word by word */
	uint32_t states[PREFETCH_SEEDS][SHARD_MT19937_WORDS];
};

/* Returns the state that prefetch_rng_seed() makes.  It is valid until the next call.  kind: any but NUMPY_RNG and
 * STD64. */
const uint32_t *prefetch_seeded_state(struct prefetch_seeded *seeded, enum prefetch_shuffle_kind kind, uint32_t seed);

/* One of a trainer's shuffles. */
struct prefetch_shuffle {
	enum prefetch_shuffle_kind kind;
	uint64_t seed;   /* of this shuffle; goes_on: of the first one */
	uint64_t step;   /* from the seed of one shuffle to the next one's */
	uint32_t before; /* goes_on or in_place: how many shuffles came before this one */
	bool goes_on;    /* the generator goes on from one shuffle to the next; else it is seeded anew */
	bool in_place;   /* each shuffle begins with the order that the one before has left */
};

/* Draws `n` words of a generator of the kind NUMPY_RNG that keeps no half of a number.  n: a multiple of 4. */
void prefetch_rng_words(struct prefetch_rng *rng, uint32_t *words, uint32_t n);

/* Does the steps from `done` on, of the n - 1 of a shuffle, and stops soon after `max` of them.  `cells` has n entries
 * of 4 bytes (`wide`) or 2 bytes.  Returns how many steps are done.  Call prefetch_shuffle_end() after the last
 * one. */
uint32_t prefetch_shuffle_steps(struct prefetch_rng *rng, enum prefetch_shuffle_kind kind, uint32_t n, uint32_t done,
        uint32_t max, void *cells, bool wide);

/* Ends a shuffle.  With SAMPLE it reverses the cells, and draws one more number. */
void prefetch_shuffle_end(
        struct prefetch_rng *rng, enum prefetch_shuffle_kind kind, uint32_t n, void *cells, bool wide);

#endif
