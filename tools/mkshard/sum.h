/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the checksums of one file, piece by piece: XXH3-64 of the whole file, and of each block if the file is
 * larger than SHARD_BLOCK.
 *
 * Threads: one object belongs to one thread. */
#ifndef DDPFS_TOOLS_MKSHARD_SUM_H
#define DDPFS_TOOLS_MKSHARD_SUM_H

#include <stddef.h>
#include <stdint.h>

#define XXH_STATIC_LINKING_ONLY /* states as members */
#include <xxhash.h>

struct file_sum {
	XXH3_state_t whole, block;
	uint64_t length;     /* bytes of the file */
	uint64_t fed;        /* bytes fed so far, at most `length` */
	uint64_t *ret_block; /* where the next block's sum goes; not used if length <= SHARD_BLOCK */
};

/* Starts a file of `length` bytes.  `blocks` has room for one sum per SHARD_BLOCK; it may be NULL if the file is not
 * larger than SHARD_BLOCK. */
void file_sum_start(struct file_sum *sum, uint64_t length, uint64_t *blocks);
/* Adds the next `len` bytes of the file; stores each block's sum when the block is complete. */
void file_sum_feed(struct file_sum *sum, const uint8_t *data, size_t len);
/* Returns the sum of the whole file, after all of it was fed. */
uint64_t file_sum_end(struct file_sum *sum);

#endif
