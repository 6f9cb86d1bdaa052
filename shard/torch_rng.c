/* SPDX-License-Identifier: Apache-2.0 */
/* MT19937 and torch's permutation, whole or its first entries; shard/torch_rng.h first. */
#include "shard/torch_rng.h"

#include <errno.h>
#include <stdlib.h>

#include "shard/base/cleanup.h"

enum { MT_SHIFT = 397 };

void shard_mt19937_seed(struct shard_mt19937 *mt, uint64_t seed)
{
	mt->state[0] = (uint32_t)seed;
	for (uint32_t i = 1; i < SHARD_MT19937_WORDS; i++) {
		uint32_t last = mt->state[i - 1];

		mt->state[i] = UINT32_C(1812433253) * (last ^ last >> 30) + i;
	}
	mt->next = SHARD_MT19937_WORDS;
}

static uint32_t twist(uint32_t high, uint32_t low, uint32_t far)
{
	uint32_t mixed = (high & UINT32_C(0x80000000)) | (low & UINT32_C(0x7fffffff));

	return far ^ mixed >> 1 ^ (low & 1 ? UINT32_C(0x9908b0df) : 0);
}

static void next_state(struct shard_mt19937 *mt)
{
	uint32_t *s = mt->state;
	uint32_t i = 0;

	for (; i < SHARD_MT19937_WORDS - MT_SHIFT; i++)
		s[i] = twist(s[i], s[i + 1], s[i + MT_SHIFT]);
	for (; i < SHARD_MT19937_WORDS - 1; i++)
		s[i] = twist(s[i], s[i + 1], s[i + MT_SHIFT - SHARD_MT19937_WORDS]);
	s[i] = twist(s[i], s[0], s[MT_SHIFT - 1]);
	mt->next = 0;
}

uint32_t shard_mt19937_next32(struct shard_mt19937 *mt)
{
	uint32_t y;

	if (mt->next == SHARD_MT19937_WORDS)
		next_state(mt);
	y = mt->state[mt->next++];
	y ^= y >> 11;
	y ^= y << 7 & UINT32_C(0x9d2c5680);
	y ^= y << 15 & UINT32_C(0xefc60000);
	return y ^ y >> 18;
}

uint64_t shard_mt19937_next64(struct shard_mt19937 *mt)
{
	uint64_t high = shard_mt19937_next32(mt);

	return high << 32 | shard_mt19937_next32(mt);
}

/* Inside-out for the first `keep` cells only: no step reads a later cell to fill one of these. */
static void randperm_inside_out(struct shard_mt19937 *mt, uint32_t n, uint32_t keep, uint32_t *perm)
{
	for (uint32_t i = 0; i < n; i++) {
		uint64_t z = shard_mt19937_next64(mt) % ((uint64_t)i + 1);

		if (i < keep) {
			perm[i] = i;
			perm[i] = perm[z];
		}
		if (z < keep)
			perm[z] = i;
	}
}

void shard_torch_randperm(uint32_t n, uint64_t seed, uint32_t *perm)
{
	struct shard_mt19937 mt;

	shard_mt19937_seed(&mt, seed);
	if (n >= SHARD_TORCH_INSIDE_OUT) {
		randperm_inside_out(&mt, n, n, perm);
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		perm[i] = i;
	for (uint32_t i = 0; i + 1 < n; i++) {
		uint32_t j = i + shard_mt19937_next32(&mt) % (n - i);
		uint32_t kept = perm[i];

		perm[i] = perm[j];
		perm[j] = kept;
	}
}

/* The cells after the prefix that Fisher-Yates has changed: at most one for each step.  A hash table with open
 * addressing, at most half full.  Keys are cell + 1, so zeroed memory is an empty table. */
struct cell_map {
	uint64_t *slots; /* (cell + 1) << 32 | value */
	uint32_t bits;
};

static uint64_t *cell_find(const struct cell_map *map, uint32_t cell)
{
	uint64_t mask = (UINT64_C(1) << map->bits) - 1;
	uint64_t at = cell * UINT64_C(0x9e3779b97f4a7c15) >> (64 - map->bits);

	while (map->slots[at] != 0 && map->slots[at] >> 32 != (uint64_t)cell + 1)
		at = (at + 1) & mask;
	return &map->slots[at];
}

int shard_torch_randperm_prefix(uint32_t n, uint64_t seed, uint32_t k, uint32_t *ret_perm)
{
	struct shard_mt19937 mt;
	cleanup_free uint64_t *slots = NULL;
	struct cell_map map = { .bits = 4 };

	if (k > n)
		return -EINVAL;
	shard_mt19937_seed(&mt, seed);
	if (n >= SHARD_TORCH_INSIDE_OUT) {
		randperm_inside_out(&mt, n, k, ret_perm);
		return 0;
	}
	while (UINT64_C(1) << map.bits < (uint64_t)k * 2)
		map.bits++;
	map.slots = slots = calloc((size_t)1 << map.bits, sizeof(*slots));
	if (!slots)
		return -ENOMEM;
	for (uint32_t i = 0; i < k; i++)
		ret_perm[i] = i;
	for (uint32_t i = 0; i < k && i + 1 < n; i++) {
		uint32_t j = i + shard_mt19937_next32(&mt) % (n - i);
		uint32_t kept = ret_perm[i];

		if (j < k) {
			ret_perm[i] = ret_perm[j];
			ret_perm[j] = kept;
		} else {
			uint64_t *slot = cell_find(&map, j);

			ret_perm[i] = *slot ? (uint32_t)*slot : j;
			*slot = ((uint64_t)j + 1) << 32 | kept;
		}
	}
	return 0;
}
