/* SPDX-License-Identifier: Apache-2.0 */
/* A keyed pseudo-random permutation of [0, n), and its inverse, in O(1) time and memory.
 *
 * An alternating Feistel network on a rectangle (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA
 * 2002): i = x * cols + y with rows = ceil(sqrt(n)) and cols = ceil(n / rows); a round adds a keyed hash of one
 * coordinate to the other, modulo its range.  The rectangle exceeds [0, n) by less than one row, so that walking the cycle
 * until a value falls inside costs 1 + 1/sqrt(n) evaluations at most on average (a network over the next even power
 * of two costs up to 4).
 *
 *      y:  0 . . . . cols-1
 *   x 0    . . . . . .          round 0: x += H(y, key 0) mod rows
 *     .    . . . . . .          round 1: y += H(x, key 1) mod cols
 *     rows-1 . . n-1 # #        ...      (#: outside, walk on)
 *
 * Up to SHARD_PERMUTE_SHUFFLED items are shuffled outright, in an array on the stack: such a small network would reach
 * some permutations more often than others (measured: from 33 items on, neighbours are as in true random ones).
 *
 * Not a cipher: it mixes, it keeps no secret.
 * Threads: pure functions. */
#ifndef DDPFS_SHARD_PERMUTE_H
#define DDPFS_SHARD_PERMUTE_H

#include <stdint.h>

enum { SHARD_PERMUTE_ROUNDS = 8, SHARD_PERMUTE_SHUFFLED = 32 };
#define SHARD_PERMUTE_MAX (UINT64_C(1) << 62) /* largest n: sums of two coordinates and rows * cols stay in 64 bits */

struct shard_permute {
	uint64_t n; /* domain [0, n); 0 is allowed (nothing to ask) */
	uint64_t rows;
	uint64_t cols;
};

/* n <= SHARD_PERMUTE_MAX. */
struct shard_permute shard_permute_make(uint64_t n);

/* i < n -> value < n, and back.  `keys` are SHARD_PERMUTE_ROUNDS random words; `tweak` selects one of 2^64 independent
 * permutations under the same keys. */
uint64_t shard_permute_at(
        const struct shard_permute *p, const uint64_t keys[SHARD_PERMUTE_ROUNDS], uint64_t tweak, uint64_t i);
uint64_t shard_permute_inverse(
        const struct shard_permute *p, const uint64_t keys[SHARD_PERMUTE_ROUNDS], uint64_t tweak, uint64_t value);

/* A bijective mixer of 64 bits with full avalanche; makes tweaks out of counters. */
static inline uint64_t shard_mix64(uint64_t v)
{
	v ^= v >> 32;
	v *= UINT64_C(0xd6e8feb86659fd93);
	v ^= v >> 32;
	v *= UINT64_C(0xd6e8feb86659fd93);
	return v ^ v >> 32;
}

#endif
