/* SPDX-License-Identifier: Apache-2.0 */
/* The sum of contents in the index (shard/FORMAT.md): XXH3-64 of a whole file, and of each block of a large one.
 * tools/mkshard/sum.c works it out piece by piece.
 *
 * Threads: any; pure. */
#ifndef DDPFS_SHARD_BLOCK_SUM_H
#define DDPFS_SHARD_BLOCK_SUM_H

#include <stddef.h>
#include <stdint.h>
#include <xxhash.h>

static inline uint64_t shard_block_sum(const void *data, size_t len)
{
	return XXH3_64bits(data, len);
}

#endif
