/* SPDX-License-Identifier: Apache-2.0 */
/* Part of an announced list (fs/announced_list.h): some of its order blocks, and tables that find a sample in them.
 *
 * A chunk is immutable and has a reference count: the list and the engine share it. When the list grows, a longer chunk
 * takes the place of its last one, and shares the tables of full blocks with it.
 *
 * Each block has a hash table over its samples. So the next turn of a sample is found in some tens of nanoseconds a
 * block, even if the sample comes several times.
 *
 * Threads: any; the counts are atomic. */
#ifndef DDPFS_FS_ANNOUNCED_CHUNK_H
#define DDPFS_FS_ANNOUNCED_CHUNK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "fs/order_memory.h"

enum { FS_ANNOUNCED_CHUNK_BLOCKS = 16 }; /* blocks of a chunk at most: 2^20 entries */

struct fs_announced_table; /* opaque: of a block */

struct fs_announced_chunk {
	atomic_uint refs;
	struct fs_order_memory *memory;
	uint64_t number; /* chunks of the list before it */
	uint64_t n;      /* entries */
	uint32_t n_blocks;
	uint32_t blocks[FS_ANNOUNCED_CHUNK_BLOCKS]; /* a reference each */
	struct fs_announced_table *tables[FS_ANNOUNCED_CHUNK_BLOCKS];
};

/* Makes a chunk of the @n entries in @blocks. @n: 1 .. FS_ANNOUNCED_CHUNK_BLOCKS * FS_ORDER_BLOCK; all blocks but the
 * last one are full. @old: a shorter or longer version of the chunk, whose tables it shares; or NULL.
 * Returns 0, and one reference; -ENOMEM. */
int fs_announced_chunk_new(struct fs_order_memory *memory, uint64_t number, const uint32_t *blocks, uint64_t n,
        const struct fs_announced_chunk *old, struct fs_announced_chunk **ret_chunk);
/* Take, and give back, a reference. NULL is fine. */
struct fs_announced_chunk *fs_announced_chunk_get(struct fs_announced_chunk *chunk);
void fs_announced_chunk_put(struct fs_announced_chunk *chunk);

/* Returns the sample of entry @turn, below n. */
uint32_t fs_announced_chunk_sample(const struct fs_announced_chunk *chunk, uint64_t turn);
/* Finds the first entry of a sample at or behind @from. Returns false if there is none. */
bool fs_announced_chunk_find(
        const struct fs_announced_chunk *chunk, uint32_t sample, uint64_t from, uint64_t *ret_turn);

#endif
