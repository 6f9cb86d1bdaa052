/* SPDX-License-Identifier: Apache-2.0 */
/* The checksums of one file, fed piece by piece: XXH3-64 of the whole, and of each SHARD_BLOCK when it is larger. */
#ifndef DDPFS_TOOLS_MKSHARD_SUM_H
#define DDPFS_TOOLS_MKSHARD_SUM_H

#include <stddef.h>
#include <stdint.h>

#define XXH_STATIC_LINKING_ONLY /* states as members */
#include <xxhash.h>

struct file_sum {
	XXH3_state_t whole, block;
	uint64_t length;     /* of the file */
	uint64_t fed;        /* bytes so far */
	uint64_t *ret_block; /* where the next block's sum goes; room for all of them (not used up to SHARD_BLOCK) */
};

/* `blocks`: room for one sum per SHARD_BLOCK of a file larger than that; may be NULL for others. */
void file_sum_start(struct file_sum *sum, uint64_t length, uint64_t *blocks);
void file_sum_feed(struct file_sum *sum, const uint8_t *data, size_t len);
uint64_t file_sum_end(struct file_sum *sum);

#endif
