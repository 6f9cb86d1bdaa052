/* SPDX-License-Identifier: Apache-2.0 */
/* A keyed pseudo-random permutation of [0, n), and its inverse, in O(1) time and memory.
 *
 * It is an alternating Feistel network on a rectangle (Black and Rogaway, "Ciphers with Arbitrary Finite Domains",
 * CT-RSA 2002): i = x * cols + y with rows = ceil(sqrt(n)) and cols = ceil(n / rows).  A round adds a keyed hash of one
 * coordinate to the other, modulo its range.  If the result is not below n, the network is applied again.  The
 * rectangle exceeds [0, n) by less than one row, so this costs at most 1 + 1/sqrt(n) evaluations on average.  (A
 * network over the next even power of two costs up to 4.)
 *
 *      y:  0 . . . . cols-1
 *   x 0    . . . . . .          round 0: x += H(y, key 0) mod rows
 *     .    . . . . . .          round 1: y += H(x, key 1) mod cols
 *     rows-1 . . n-1 # #        ...      (#: not below n: apply it again)
 *
 * Up to SHARD_PERMUTE_SHUFFLED items are shuffled in an array on the stack, because such a small network reaches some
 * permutations more often than others.  (Measured: from 33 items on, neighbours are as in true random permutations.)
 *
 * It is not a cipher: it protects no secret.
 * Threads: pure functions; any thread. */
#ifndef DDPFS_SHARD_PERMUTE_H
#define DDPFS_SHARD_PERMUTE_H

#include <stdint.h>

enum { SHARD_PERMUTE_ROUNDS = 8, SHARD_PERMUTE_SHUFFLED = 32 };
#define SHARD_PERMUTE_MAX (UINT64_C(1) << 62) /* largest n: rows * cols and sums of coordinates fit 64 bits */

struct shard_permute {
	uint64_t n;    /* the domain is [0, n); 0 is allowed: no value may be asked for */
	uint64_t rows; /* ceil(sqrt(n)) */
	uint64_t cols; /* ceil(n / rows) */
};

/* Returns the geometry for n <= SHARD_PERMUTE_MAX. */
struct shard_permute shard_permute_make(uint64_t n);

/* Return the value (< n) of i (< n), and the i of a value.  `keys` are random words.  `tweak` selects one of 2^64
 * independent permutations with the same keys. */
uint64_t shard_permute_at(
        const struct shard_permute *p, const uint64_t keys[SHARD_PERMUTE_ROUNDS], uint64_t tweak, uint64_t i);
uint64_t shard_permute_inverse(
        const struct shard_permute *p, const uint64_t keys[SHARD_PERMUTE_ROUNDS], uint64_t tweak, uint64_t value);

/* Mixes 64 bits: a bijection with full avalanche.  It turns counters into tweaks. */
static inline uint64_t shard_mix64(uint64_t v)
{
	v ^= v >> 32;
	v *= UINT64_C(0xd6e8feb86659fd93);
	v ^= v >> 32;
	v *= UINT64_C(0xd6e8feb86659fd93);
	return v ^ v >> 32;
}

#endif
