/* SPDX-License-Identifier: Apache-2.0 */
/* A tier of gigabytes in memory, for simulations: of each block's bytes only the first eight are kept. */
#ifndef DDPFS_TESTS_CACHE_TIER_SIMULATED_H
#define DDPFS_TESTS_CACHE_TIER_SIMULATED_H

#include <stdint.h>

#include "cache/tier.h"
#include "shard/index.h"

/* Bytes of a block; files of the largest dataset. */
enum { LEN = 256 << 10, N = 1 << 16 };
#define LARGE ((uint64_t)4 << 30) /* a tier with as many segments as one can have; a quarter of N blocks */

/* Fixtures (cmocka) of a test: blocks are simulated (base_io), in a tier that is empty. */
int tier_simulated_set_up(void **state);
int tier_simulated_tear_down(void **state);

/* Opens the tier.  size: up to LARGE.  Fails the test if something goes wrong. */
struct cache_tier *tier_simulated_opened(const uint8_t *identity, uint64_t size);

/* Returns a block, and writes its bytes.  number: below N; bytes: LEN, of which only such blocks were written. */
struct cache_tier_block tier_simulated_block(uint32_t number, uint32_t now, uint32_t next, uint8_t *bytes);

/* Opens the index of n files of LEN bytes in 16 directories; synth_close() closes it. */
struct shard_index *tier_simulated_dataset(uint32_t n);

#endif
