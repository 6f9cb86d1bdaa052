/* SPDX-License-Identifier: Apache-2.0 */
/* Bits in 64-bit words.  The caller checks that each index is below the number of bits.
 *
 * Threads: one thread writes.  Others may read a bit at the same time; they see its old or its new value. */
#ifndef DDPFS_CACHE_BITMAP_H
#define DDPFS_CACHE_BITMAP_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* Returns a map of `bits` zero bits (bits / 64 + 1 words), to be freed with free(), or NULL. */
static inline uint64_t *cache_bitmap_new(uint64_t bits)
{
	return calloc(bits / 64 + 1, sizeof(uint64_t));
}

static inline bool cache_bit(const uint64_t *map, uint64_t bit)
{
	return __atomic_load_n(&map[bit / 64], __ATOMIC_RELAXED) >> (bit % 64) & 1;
}

static inline void cache_bit_set(uint64_t *map, uint64_t bit)
{
	__atomic_store_n(&map[bit / 64], map[bit / 64] | UINT64_C(1) << (bit % 64), __ATOMIC_RELAXED);
}

static inline void cache_bit_clear(uint64_t *map, uint64_t bit)
{
	__atomic_store_n(&map[bit / 64], map[bit / 64] & ~(UINT64_C(1) << (bit % 64)), __ATOMIC_RELAXED);
}

/* Returns the highest set bit at or below `from`, or UINT64_MAX when there is none.  The writer only. */
static inline uint64_t cache_bit_last(const uint64_t *map, uint64_t from)
{
	uint64_t word = from / 64;
	uint64_t bits = map[word] & (UINT64_MAX >> (63 - from % 64));
	while (!bits && word)
		bits = map[--word];
	return bits ? word * 64 + 63 - (uint64_t)__builtin_clzll(bits) : UINT64_MAX;
}

#endif
