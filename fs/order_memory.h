/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of announced orders: order blocks (FS_ORDER_BLOCK entries, each a sample id) in the handover memory, with
 * reference counts. They are called blocks here.
 *
 * A block belongs to a list (fs/announced_list.h). Each part of the list holds one reference, and what the engine reads
 * of it holds others. When the last one is given back, the kernel gets the memory back.
 *
 * Threads: any. `lock` is a leaf. The entries of a block have one writer, before anybody else knows of them. */
#ifndef DDPFS_FS_ORDER_MEMORY_H
#define DDPFS_FS_ORDER_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/supervise/handover_memory.h"

enum { FS_ORDER_BLOCK = FS_HANDOVER_BLOCK_ENTRIES };

struct fs_order_memory; /* opaque */

/* Makes it. @handover: outlives it. All blocks count as nobody's until fs_order_memory_claim. Returns 0; -ENOMEM. */
int fs_order_memory_new(struct fs_handover *handover, struct fs_order_memory **ret_memory);
void fs_order_memory_free(struct fs_order_memory *memory); /* NULL is fine */

/* Limits the bytes in use: blocks, and what fs_order_memory_book has booked. Above it there are no more blocks. */
void fs_order_memory_limit(struct fs_order_memory *memory, uint64_t limit_bytes);
/* Returns whether so many more bytes stay within the limit. */
bool fs_order_memory_fits(struct fs_order_memory *memory, uint64_t bytes);
/* Returns the bytes in use. */
uint64_t fs_order_memory_bytes(struct fs_order_memory *memory);
/* Books bytes beside the blocks, whatever the limit is; negative: gives them back. */
void fs_order_memory_book(struct fs_order_memory *memory, int64_t bytes);

/* Takes a free block for list @id, as its block @number, with one reference. Returns 0; -ENOSPC: none is free, or the
 * limit is reached. */
int fs_order_memory_take(struct fs_order_memory *memory, uint32_t id, uint32_t number, uint32_t *ret_block);
/* Finds a block that a predecessor left for list @id, as its block @number, and takes a reference. Parts of a list may
 * claim the same block. It counts even above the limit. Returns 0; -ENOENT. */
int fs_order_memory_claim(struct fs_order_memory *memory, uint32_t id, uint32_t number, uint32_t *ret_block);
/* Frees the blocks that a predecessor left and nobody has claimed. */
void fs_order_memory_sweep(struct fs_order_memory *memory);

/* Take, and give back, a reference. */
void fs_order_memory_get(struct fs_order_memory *memory, uint32_t block);
void fs_order_memory_put(struct fs_order_memory *memory, uint32_t block);

/* Returns the entries of a block. */
uint32_t *fs_order_memory_entries(struct fs_order_memory *memory, uint32_t block);

/* Returns where the records of lists are (fs/supervise/handover_memory.h). */
struct fs_handover_announced *fs_order_memory_records(struct fs_order_memory *memory);

#endif
