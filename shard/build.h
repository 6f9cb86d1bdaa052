/* SPDX-License-Identifier: Apache-2.0 */
/* Builds an index file: collect directories, shards, files and samples; sort; write.
 *
 * Deterministic: the bytes written depend only on what was added, not on the order of calls (shards and slots are
 * numbered by the caller).  Memory: about 48 bytes and the name per file while collecting; finish adds 8 bytes a file,
 * and another 8 when files come in another order than they are numbered, or are stored in another one.
 * Threads: one builder, one thread. */
#ifndef DDPFS_SHARD_BUILD_H
#define DDPFS_SHARD_BUILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard/base/err.h"
#include "shard/format.h"

struct shard_builder; /* opaque */

struct shard_build_file {
	const char *path; /* relative, '/'-separated, NUL-terminated; copied */
	uint32_t shard;
	uint64_t offset; /* of the content in the shard */
	uint64_t length;
	uint64_t xxh3;              /* of the whole content */
	const uint64_t *block_sums; /* one per SHARD_BLOCK when length > SHARD_BLOCK, else NULL; copied */
	int64_t mtime_s;
	uint32_t mode;     /* permission bits; set-id bits are dropped */
	bool common;       /* shown on every rank, never dealt; its group is ignored */
	const char *group; /* files with equal non-NULL group form one sample; NULL: a sample of its own; copied */
};

int shard_builder_new(struct shard_builder **ret_builder); /* -ENOMEM */
void shard_builder_free(struct shard_builder *builder);    /* NULL is fine */

/* Declares the next shard: the first one is number 0.  `path` is relative to the dataset directory, or absolute;
 * 1..SHARD_PATH_MAX bytes; copied.  Files may name a shard that is declared later.  -EINVAL, -E2BIG, -ENOMEM. */
int shard_builder_add_shard(struct shard_builder *b, const char *path, enum shard_container container,
        uint64_t size_bytes, int64_t mtime_ns, struct base_err *err);

/* Declares a directory's mode and mtime; needed only for those that should differ from the default (0755, mtime of the
 * newest file below, of the newest directory where there is no file) or that hold no file.  "" is the root.  Parents come
 * into being by themselves.  Errors as for a file. */
int shard_builder_add_dir(
        struct shard_builder *b, const char *path, uint32_t mode, int64_t mtime_s, struct base_err *err);

/* Adds a file.  Refused with a sentence naming the path: empty, absolute, '.' or '..' components, component over
 * SHARD_NAME_MAX, path over SHARD_PATH_MAX, depth, a length or offset over 48 bits (-EINVAL, -ENAMETOOLONG, -EFBIG).
 * Times beyond +-17,000 years are cut to that.  Duplicates and a file that is also a directory are found at finish. */
int shard_builder_add_file(struct shard_builder *b, const struct shard_build_file *file, struct base_err *err);

/* Slots are the samples in the order of (shard, offset) of their first-stored file: storage order.
 * Sorts, numbers, computes the identity and writes the index to `path` (beside, fsync, rename, fsync directory); a
 * failure leaves `path` as it was.  Files that come in the order of their numbers (see format.h) are not sorted again.
 * The builder is spent afterwards, whatever the result: free it.
 * -EEXIST for duplicate paths (err names it), -ENOTDIR for a file that is also a directory, -EINVAL for a file in an
 * undeclared shard or past its end, -E2BIG past the format's limits, -ENOSPC, -EIO, ... */
int shard_builder_finish(
        struct shard_builder *b, const char *path, bool shuffled, uint64_t pack_seed, struct base_err *err);

/* The rules for a file's path, see shard_builder_add_file, and one more: the root's ".ddpfs" is the mount's own name.
 * Returns 0 or the error that adding it would give; for callers that decide to leave a name out. */
int shard_path_check(const char *path, struct base_err *err);

#endif
