/* SPDX-License-Identifier: Apache-2.0 */
/* Builds an index file: collects directories, shards and files with their groups, then sorts, numbers and writes.
 *
 * The bytes of the index depend on what was added, not on the order of calls; only shards are numbered in the order in
 * which they are added.  Memory: 48 bytes and the name for each file while collecting.  Finishing needs 8 bytes a file
 * more, and another 8 if files are added or stored in another order than they are numbered.
 * Threads: any; only one thread at a time may use a builder. */
#ifndef DDPFS_SHARD_BUILD_H
#define DDPFS_SHARD_BUILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard/base/err.h"
#include "shard/format.h"

struct shard_builder; /* opaque */

/* A file to add. */
struct shard_build_file {
	const char *path;           /* relative, '/'-separated, NUL-terminated; copied */
	uint32_t shard;             /* number of a shard, declared before or later */
	uint64_t offset;            /* of the content in the shard, bytes */
	uint64_t length;            /* bytes */
	uint64_t xxh3;              /* XXH3-64 of the whole content */
	const uint64_t *block_sums; /* one per SHARD_BLOCK if length > SHARD_BLOCK, else NULL; copied */
	int64_t mtime_s;            /* since 1970 */
	uint32_t mode;              /* permission bits; set-id bits are not stored */
	bool common;                /* every rank sees it, it is never dealt; its group is ignored */
	const char *group; /* files with equal non-NULL group form one sample; NULL: a sample of its own; copied */
};

int shard_builder_new(struct shard_builder **ret_builder); /* 0 or -ENOMEM */
void shard_builder_free(struct shard_builder *builder);    /* NULL is allowed */

/* Declares the next shard; the first one gets number 0.  `path` is relative to the directory of the dataset, or
 * absolute; it has 1 .. SHARD_PATH_MAX bytes and is copied.  mtime_ns: of an adopted shard; 0 = do not compare it
 * later.  Returns 0; -EINVAL: path or size_bytes is out of range; -E2BIG: over SHARD_SHARDS_MAX; -ENOMEM. */
int shard_builder_add_shard(struct shard_builder *b, const char *path, enum shard_container container,
        uint64_t size_bytes, int64_t mtime_ns, struct base_err *err);

/* Declares the mode and mtime of a directory.  "" is the root.  Adding a file or directory also adds its parents, so
 * this is needed only for directories that are empty, or that differ from the defaults.  These are: mode 0755, and the
 * mtime of the newest file below, or of the newest directory below if there is no file.
 * Returns 0; errors as shard_builder_add_file. */
int shard_builder_add_dir(
        struct shard_builder *b, const char *path, uint32_t mode, int64_t mtime_s, struct base_err *err);

/* Adds a file.  A time beyond +-17,000 years becomes that limit.  shard_builder_finish finds duplicates, and files that
 * are also directories.
 * Returns 0, or an error with a sentence that names the path; -EINVAL: the path is empty or absolute, or has an empty,
 * '.' or '..' component, or a top-level '.ddpfs'; the shard number is too large; block sums are missing; -ENAMETOOLONG:
 * component over SHARD_NAME_MAX, path over SHARD_PATH_MAX, over SHARD_DEPTH_MAX directories; -EFBIG: length or offset
 * over 48 bits; -E2BIG: too many files, directories or bytes; -ENOMEM. */
int shard_builder_add_file(struct shard_builder *b, const struct shard_build_file *file, struct base_err *err);

/* Sorts, numbers, computes the identity and writes the index to `path`.  It writes a file beside `path`, fsyncs it,
 * renames it and fsyncs the directory, so a failure leaves `path` as it was.  Files that were added in the order of
 * their ids (see format.h) are not sorted again.  Storage slots are the samples by (shard, offset) of their
 * first-stored file.  After this call the builder can only be freed, also after a failure.
 * shuffled, pack_seed: whether a shuffle with that seed made the storage order.
 * Returns 0; -EEXIST: a path was added twice (err names it); -ENOTDIR: a file is also a directory; -EINVAL: a file is
 * in an undeclared shard or past its end; -E2BIG: over a limit of the format; -ENOMEM; errors of writing. */
int shard_builder_finish(
        struct shard_builder *b, const char *path, bool shuffled, uint64_t pack_seed, struct base_err *err);

/* Checks the path of a file as shard_builder_add_file does, for callers that may leave a file out.  A top-level
 * ".ddpfs" is refused, because the mount shows its own directory there.
 * Returns 0; -EINVAL or -ENAMETOOLONG with a sentence.  Pure; any thread. */
int shard_path_check(const char *path, struct base_err *err);

#endif
