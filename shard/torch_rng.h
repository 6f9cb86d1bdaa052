/* SPDX-License-Identifier: Apache-2.0 */
/* PyTorch's CPU random permutation, bit for bit: torch.randperm(n, generator=Generator().manual_seed(seed)).
 *
 * Checked against torch 2.13 (tests/shard/test_torch_parity.py).  The engine is MT19937, seeded with the low 32 bits of
 * the seed.  Two algorithms, by n (ATen's randperm_cpu):
 *   n < 214,748,364   forward Fisher-Yates: for i in [0, n-1): swap(r[i], r[i + next32() % (n - i)]).
 *                     The first k outputs are final after k steps.
 *   larger            "inside-out": for i in [0, n): z = next64() % (i + 1); r[i] = r[z]; r[z] = i.
 *                     Any output may change until the last step.
 *
 * Threads: pure functions; a generator belongs to its caller. */
#ifndef DDPFS_SHARD_TORCH_RNG_H
#define DDPFS_SHARD_TORCH_RNG_H

#include <stdint.h>

enum { SHARD_MT19937_WORDS = 624 };
#define SHARD_TORCH_INSIDE_OUT (UINT32_MAX / 20) /* from this n on: inside-out */

struct shard_mt19937 {
	uint32_t state[SHARD_MT19937_WORDS];
	uint32_t next; /* index of the next word; SHARD_MT19937_WORDS = twist first */
};

void shard_mt19937_seed(struct shard_mt19937 *mt, uint64_t seed); /* the low 32 bits count, as in torch */
uint32_t shard_mt19937_next32(struct shard_mt19937 *mt);
uint64_t shard_mt19937_next64(struct shard_mt19937 *mt); /* first word high */

/* Writes the whole permutation; perm has room for n entries. */
void shard_torch_randperm(uint32_t n, uint64_t seed, uint32_t *perm);

/* Writes its first k entries (k <= n) in O(k) time and memory; O(n) time for n >= SHARD_TORCH_INSIDE_OUT.
 * -EINVAL (k > n), -ENOMEM. */
int shard_torch_randperm_prefix(uint32_t n, uint64_t seed, uint32_t k, uint32_t *ret_perm);

#endif
