/* SPDX-License-Identifier: Apache-2.0 */
/* Bits in 64-bit words.  The caller checks that each index is below the number of bits.
 *
 * Threads: one thread writes.  Others may read a bit at the same time; they see its old or its new value. */
#ifndef DDPFS_SHARD_BASE_BITS_H
#define DDPFS_SHARD_BASE_BITS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* Returns a map of `bits` zero bits (bits / 64 + 1 words), to be freed with free(), or NULL.  The pages of a large one
 * cost no memory until they are written. */
static inline uint64_t *bits_new(uint64_t bits)
{
	return calloc(bits / 64 + 1, sizeof(uint64_t));
}

static inline bool bit_get(const uint64_t *map, uint64_t bit)
{
	return __atomic_load_n(&map[bit / 64], __ATOMIC_RELAXED) >> (bit % 64) & 1;
}

/* Returns whether the bit was clear. */
static inline bool bit_set(uint64_t *map, uint64_t bit)
{
	uint64_t word = map[bit / 64], mask = UINT64_C(1) << (bit % 64);
	__atomic_store_n(&map[bit / 64], word | mask, __ATOMIC_RELAXED);
	return !(word & mask);
}

static inline void bit_clear(uint64_t *map, uint64_t bit)
{
	__atomic_store_n(&map[bit / 64], map[bit / 64] & ~(UINT64_C(1) << (bit % 64)), __ATOMIC_RELAXED);
}

/* The rest is for the writer, or under its lock. */

/* Returns the highest set bit at or below `from`, or UINT64_MAX when there is none. */
static inline uint64_t bits_last(const uint64_t *map, uint64_t from)
{
	uint64_t word = from / 64;
	uint64_t bits = map[word] & (UINT64_MAX >> (63 - from % 64));
	while (!bits && word)
		bits = map[--word];
	return bits ? word * 64 + 63 - (uint64_t)__builtin_clzll(bits) : UINT64_MAX;
}

/* Returns the lowest clear bit of the first `bits`, or `bits` when all are set. */
static inline uint64_t bits_first_clear(const uint64_t *map, uint64_t bits)
{
	for (uint64_t word = 0; word * 64 < bits; word++) {
		uint64_t bit = ~map[word] ? word * 64 + (uint64_t)__builtin_ctzll(~map[word]) : bits;
		if (~map[word])
			return bit < bits ? bit : bits;
	}
	return bits;
}

/* Returns how many of the first `bits` are set; those behind them in the last word must be clear. */
static inline uint64_t bits_count(const uint64_t *map, uint64_t bits)
{
	uint64_t n = 0;
	for (uint64_t word = 0; word * 64 < bits; word++)
		n += (uint64_t)__builtin_popcountll(map[word]);
	return n;
}

#endif
