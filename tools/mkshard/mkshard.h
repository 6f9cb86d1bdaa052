/* SPDX-License-Identifier: Apache-2.0 */
/* mkshard's subcommands, and what several of them share. */
#ifndef DDPFS_TOOLS_MKSHARD_MKSHARD_H
#define DDPFS_TOOLS_MKSHARD_MKSHARD_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "shard/base/err.h"
#include "shard/index.h"

int mkshard_pack(int argc, char **argv);
int mkshard_index(int argc, char **argv);
int mkshard_verify(int argc, char **argv);
int mkshard_info(int argc, char **argv);
int mkshard_ls(int argc, char **argv);
int mkshard_cat(int argc, char **argv);
int mkshard_extract(int argc, char **argv);
int mkshard_stats(int argc, char **argv);

/* Number of threads to use when nothing is said: the processors this process may run on, at most 16. */
uint32_t mkshard_jobs_default(void);

/* Absolute path of a shard.  Returns buf, or NULL when it does not fit. */
const char *mkshard_shard_path(
        const struct shard_index *index, const struct shard_shard *shard, char *buf, size_t buf_size);

/* Opens a shard of an index and checks that it is the one that was indexed (size; mtime where recorded).
 * -ENOENT, -ESTALE, ... with a sentence. */
int mkshard_shard_open(const struct shard_index *index, uint32_t shard, struct base_err *err, int *ret_fd);

/* Whether the files of a key (WebDataset: the name up to its first dot) lie side by side, as paths pass by in their order. */
struct mkshard_keys {
	const char *last; /* the key of the latest file, a part of its path, or NULL */
	size_t last_len;
	uint64_t keys;
	uint64_t several; /* keys of several files */
	bool counted;     /* `last` among those */
};

/* True for the second file of a key.  The path lives until the next call; keys->last = NULL begins a new row. */
bool mkshard_keys_see(struct mkshard_keys *keys, const char *path);

/* Most keys, or half of them, are those of several files. */
bool mkshard_keys_paired(const struct mkshard_keys *keys);

/* Reads a file's blocks in order, verifies each and hands it on.  `buf` holds SHARD_BLOCK bytes.  put returns 0 to go
 * on.  -EBADMSG with a sentence that names shard and byte; -ESTALE: the index was written meanwhile. */
int mkshard_read_file(const struct shard_index *index, uint32_t file, int fd, uint8_t *buf,
        int (*put)(void *arg, uint64_t offset, const uint8_t *data, size_t len), void *arg, struct base_err *err);

#endif
