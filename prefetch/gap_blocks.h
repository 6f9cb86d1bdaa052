/* SPDX-License-Identifier: Apache-2.0 */
/* The files that lie between two others in a shard: what a merged read brings with the files that it is made for.
 *
 * Threads: any. */
#ifndef DDPFS_PREFETCH_GAP_BLOCKS_H
#define DDPFS_PREFETCH_GAP_BLOCKS_H

#include <stdint.h>

#include "shard/index.h"

enum {
	PREFETCH_GAP_MIN = 1024,       /* shorter gaps are not searched: padding and one tar header */
	PREFETCH_GAP_BLOCKS_MAX = 128, /* files of one gap; the rest is not found */
};

struct prefetch_gap_block {
	uint64_t key;    /* cache_block_key */
	uint64_t offset; /* in the shard */
	uint64_t xxh3;
	uint32_t len;
};

/* Finds the files of one block that lie whole in the gap [start, end) of a shard.  It walks through the storage slots
 * that follow `file`, which ends at `start`.  blocks: PREFETCH_GAP_BLOCKS_MAX of them; ascending offsets.
 * Returns how many it has found.  A damaged index gives fewer. */
uint32_t prefetch_gap_blocks(const struct shard_index *index, uint32_t file, uint64_t start, uint64_t end,
        struct prefetch_gap_block *blocks);

#endif
