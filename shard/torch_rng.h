/* SPDX-License-Identifier: Apache-2.0 */
/* PyTorch's random permutation on the CPU, bit for bit: torch.randperm(n, generator=Generator().manual_seed(seed)).
 *
 * tests/shard/test_torch_parity.py compares it with torch 2.13.  The generator is MT19937, seeded with the low 32 bits
 * of the seed.  n decides which algorithm torch uses (randperm_cpu in ATen):
 *   n < 214,748,364   forward Fisher-Yates: for i in [0, n-1): swap(r[i], r[i + next32() % (n - i)]).
 *                     The first k outputs are final after k steps.
 *   larger            "inside-out": for i in [0, n): z = next64() % (i + 1); r[i] = r[z]; r[z] = i.
 *                     Any output may change until the last step.
 *
 * Threads: pure functions, any thread; a generator belongs to its caller. */
#ifndef DDPFS_SHARD_TORCH_RNG_H
#define DDPFS_SHARD_TORCH_RNG_H

#include <stdint.h>

enum { SHARD_MT19937_WORDS = 624 };
#define SHARD_TORCH_INSIDE_OUT (UINT32_MAX / 20) /* the smallest n of inside-out */

struct shard_mt19937 {
	uint32_t state[SHARD_MT19937_WORDS];
	uint32_t next; /* index of the next word; SHARD_MT19937_WORDS: make new words first */
};

/* Seeds a generator with the low 32 bits of seed, as torch does. */
void shard_mt19937_seed(struct shard_mt19937 *mt, uint64_t seed);
uint32_t shard_mt19937_next32(struct shard_mt19937 *mt);
/* Takes two words; the first one is the upper half. */
uint64_t shard_mt19937_next64(struct shard_mt19937 *mt);

/* Writes the whole permutation into perm, n entries.  O(n) time. */
void shard_torch_randperm(uint32_t n, uint64_t seed, uint32_t *perm);

#endif
