/* SPDX-License-Identifier: Apache-2.0 */
/* Work done shard by shard: the files of each shard in the order in which they lie there, and threads that take one
 * shard after the other. */
#ifndef DDPFS_TOOLS_MKSHARD_SHARDS_H
#define DDPFS_TOOLS_MKSHARD_SHARDS_H

#include <stdbool.h>
#include <stdint.h>

#include "shard/base/err.h"
#include "shard/index.h"

struct shard_files {
	uint32_t *files; /* ids; shard s has files[first[s] .. first[s + 1]), unsorted until shard_files_sort */
	uint64_t *first;
	uint32_t n_shards;
	uint64_t bytes; /* of the chosen files */
	uint64_t n;
};

/* Sorts the files of an index by shard.  `chosen`: a bit per file, or NULL for all.  A record that cannot be read is
 * given to `bad` and left out.  -ENOMEM. */
int shard_files_init(struct shard_files *by_shard, const struct shard_index *index, const uint8_t *chosen,
        void (*bad)(void *arg, uint32_t file, int rc), void *arg);
void shard_files_done(struct shard_files *by_shard);

/* One file with its place; what a worker sorts by. */
struct shard_extent {
	uint64_t offset;
	uint64_t length;
	uint32_t file;
};
/* The files of one shard in the order of their offsets.  *ret_extents is malloc'd.  -ENOMEM. */
int shard_files_extents(const struct shard_files *by_shard, const struct shard_index *index, uint32_t shard,
        struct shard_extent **ret_extents, uint64_t *ret_n);

/* Calls work(arg, shard) for 0..n_shards-1 from `jobs` threads, each shard once, until one call returns non-zero;
 * returns the first such value. */
int shard_run(
        uint32_t n_shards, uint32_t jobs, const char *thread_name, int (*work)(void *arg, uint32_t shard), void *arg);

#endif
