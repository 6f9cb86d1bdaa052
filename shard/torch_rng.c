/* SPDX-License-Identifier: Apache-2.0 */
/* MT19937 and torch's permutation; shard/torch_rng.h first. */
#include "shard/torch_rng.h"

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

void shard_torch_randperm(uint32_t n, uint64_t seed, uint32_t *perm)
{
	struct shard_mt19937 mt;

	shard_mt19937_seed(&mt, seed);
	if (n >= SHARD_TORCH_INSIDE_OUT) {
		for (uint32_t i = 0; i < n; i++) {
			uint64_t z = shard_mt19937_next64(&mt) % ((uint64_t)i + 1);
			perm[i] = i;
			perm[i] = perm[z];
			perm[z] = i;
		}
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
