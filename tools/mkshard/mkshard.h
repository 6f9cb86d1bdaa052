/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of mkshard, and what several of them share.  Each subcommand is a main() of its own: it gets its
 * argv and returns the exit status (tools/common/cli.h).
 *
 * Threads: the main thread for subcommands; any for the other functions. */
#ifndef DDPFS_TOOLS_MKSHARD_MKSHARD_H
#define DDPFS_TOOLS_MKSHARD_MKSHARD_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "shard/base/err.h"
#include "shard/index.h"
#include "shard/pack.h"

struct mkshard_reader; /* reader.h */

int mkshard_pack(int argc, char **argv);
int mkshard_index(int argc, char **argv);
int mkshard_verify(int argc, char **argv);
int mkshard_info(int argc, char **argv);
int mkshard_ls(int argc, char **argv);
int mkshard_cat(int argc, char **argv);
int mkshard_extract(int argc, char **argv);
int mkshard_stats(int argc, char **argv);

enum { MKSHARD_JOBS_MAX = 256, MKSHARD_TIMEOUT_S = 300, MKSHARD_TIMEOUT_MAX_S = 86400 * 7 };

/* The option of subcommands that read shards of stores: it fills the member `timeout_s`. */
#define MKSHARD_TIMEOUT_OPTION(type)                                                                                   \
	{                                                                                                              \
		"timeout", "SECONDS", "How long to wait for a store that does not answer (default: 300)",              \
		        CLI_NUMBER(type, timeout_s, 1, MKSHARD_TIMEOUT_MAX_S)                                          \
	}

/* Returns the number of threads: `given` (at most MKSHARD_JOBS_MAX), or if that is 0, the processors on which this
 * process may run, from 1 to 16. */
uint32_t mkshard_jobs(uint64_t given);

/* Which files form a sample, and which are common: the options --sample, --group and --common of pack and index. */
struct mkshard_rules {
	struct shard_pack_rules rules;
	bool sample_given, common_given, group_given;
	bool automatic;  /* --sample=auto, the default of index */
	bool knows_auto; /* --sample takes "auto" */
};
/* The take() of these options (tools/common/cli.h); `at` is the struct mkshard_rules. */
int mkshard_take_sample(void *at, char *arg, struct base_err *err);
int mkshard_take_group(void *at, char *arg, struct base_err *err);
int mkshard_take_common(void *at, char *arg, struct base_err *err);

enum { MKSHARD_PATH_MAX = 8192 };
/* Finds a shard: its record, and its path, which is absolute or below the dataset.  path holds MKSHARD_PATH_MAX bytes.
 * Returns 0, -ENAMETOOLONG, or an error of a damaged index, with a sentence. */
int mkshard_shard_find(const struct shard_index *index, uint32_t shard, struct base_err *err,
        struct shard_shard *ret_record, char *path);

/* Opens a shard of an index that is a file, and checks its size, and its mtime if the index has one.
 * Returns 0, or with a sentence: -ESTALE if it changed since it was indexed; -errno of open(2); the error of a damaged
 * index. */
int mkshard_shard_open(const struct shard_index *index, uint32_t shard, struct base_err *err, int *ret_fd);

/* Counts neighbouring files with one key (WebDataset: the name up to the first dot).  Begins zeroed; give it the
 * paths in their order. */
struct mkshard_keys {
	const char *last; /* the key of the latest file, inside its path; NULL: none */
	size_t last_len;
	uint64_t keys;    /* seen so far */
	uint64_t several; /* those with several files */
	bool counted;     /* `several` counts `last` already */
};

/* Counts the next path, which must live until the next call.  keys->last = NULL begins a new list.  Returns true for
 * the second file of a key. */
bool mkshard_keys_see(struct mkshard_keys *keys, const char *path);

/* Whether at least half of the keys have several files. */
bool mkshard_keys_paired(const struct mkshard_keys *keys);

/* Reads a file's blocks in order from its shard, verifies each and passes it to `put`, which returns 0 to go on.  A
 * wrong block of an object is read once more, because its bytes may have changed on the way.
 * `buf` holds SHARD_BLOCK bytes; err is not NULL.  Returns 0, the first non-zero value of `put`, or with a sentence
 * that names shard and byte: -EBADMSG for a wrong checksum, -ESTALE if the index changed meanwhile, or
 * -errno of reading. */
int mkshard_read_file(const struct shard_index *index, uint32_t file, struct mkshard_reader *reader, uint8_t *buf,
        int (*put)(void *arg, uint64_t offset, const uint8_t *data, size_t len), void *arg, struct base_err *err);

#endif
