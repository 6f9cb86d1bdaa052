/* SPDX-License-Identifier: Apache-2.0 */
/* Work by shard: lists the files of each shard in their stored order, and runs one job per shard on several threads.
 *
 * Threads: after shard_files_init any thread may read the lists. */
#ifndef DDPFS_TOOLS_MKSHARD_SHARDS_H
#define DDPFS_TOOLS_MKSHARD_SHARDS_H

#include <stdbool.h>
#include <stdint.h>

#include "shard/base/err.h"
#include "shard/index.h"

struct shard_files {
	uint32_t *files; /* file ids; shard s has files[first[s] .. first[s + 1]), not sorted by offset */
	uint64_t *first;
	uint32_t n_shards;
	uint64_t bytes; /* of the chosen files */
	uint64_t n;     /* the chosen files */
};

/* Groups the files of an index by shard.  `chosen` has a bit per file (shard/base/bits.h); NULL means all.  It passes a
 * record that it cannot read to `bad` (may be NULL) and leaves it out.  Returns 0 or -ENOMEM. */
int shard_files_init(struct shard_files *by_shard, const struct shard_index *index, const uint64_t *chosen,
        void (*bad)(void *arg, uint32_t file, int rc), void *arg);
void shard_files_done(struct shard_files *by_shard);

/* One file and its place in a shard. */
struct shard_extent {
	uint64_t offset;
	uint64_t length;
	uint32_t file;
};
/* Lists the files of one shard in the order of their offsets.  *ret_extents is malloc'd.  Returns 0, -ENOMEM, or the
 * error of a record. */
int shard_files_extents(const struct shard_files *by_shard, const struct shard_index *index, uint32_t shard,
        struct shard_extent **ret_extents, uint64_t *ret_n);

/* Returns the number of threads: `given` (at most MKSHARD_JOBS_MAX), or if that is 0, the processors on which this
 * process may run, from 1 to 16. */
uint32_t mkshard_jobs(uint64_t given);

/* Calls work(arg, shard) once for each shard from 0 to n_shards - 1, on `jobs` threads with the caller as one of
 * them.  If a call returns non-zero, no further call starts, and the function returns that value; otherwise it
 * returns 0. */
int shard_run(
        uint32_t n_shards, uint32_t jobs, const char *thread_name, int (*work)(void *arg, uint32_t shard), void *arg);

#endif
