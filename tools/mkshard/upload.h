/* SPDX-License-Identifier: Apache-2.0 */
/* `mkshard pack` into a store: each shard is made in a directory of this host, sent, and removed there.
 *
 *   STAGING/NAME-HASH.partial/    the journal, and the shards that are being made (publish.h)
 *   s3://BUCKET/PREFIX/shard-*    the shards that are complete
 *   s3://BUCKET/PREFIX/index.ddpfs   comes last: without it there is no dataset
 *
 * A rerun of an interrupted packing sends the shards that are missing.  With --force the old index is removed before
 * the first shard is sent.  So no index describes shards of another packing.  When the new index is there, the old
 * shards that are left are removed.
 *
 * Threads: pack_upload_shard from any; the rest from one. */
#ifndef DDPFS_TOOLS_MKSHARD_UPLOAD_H
#define DDPFS_TOOLS_MKSHARD_UPLOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "shard/base/err.h"
#include "shard/pack.h"

struct pack_upload; /* opaque */

/* Opens the store of `dataset` (s3://...), and makes the directory for the staging of this dataset: below `staging`, or
 * if that is NULL, where copies of indexes are (shard/remote/index_copy.h).
 * Returns 0, or with a sentence: -EROFS: no s3:// name; -EEXIST: there is a dataset, without `force`, and no packing
 * that was interrupted; errors of the store and of mkdir(2). */
int pack_upload_open(
        const char *dataset, const char *staging, bool force, struct base_err *err, struct pack_upload **ret_upload);
/* Frees it; NULL is allowed. */
void pack_upload_close(struct pack_upload *upload);

/* Returns the name under which the dataset is packed on this host, as `mkshard pack` takes it.  Valid until close. */
const char *pack_upload_place(const struct pack_upload *upload);
/* Returns the name of the dataset in the store, for messages. */
const char *pack_upload_name(const struct pack_upload *upload);

/* Prepares the store, when this host holds the lock of the packing: lists the shards that are there, removes parts of
 * uploads that were killed, and the index of a dataset that is replaced.  Returns 0, or -errno with a sentence. */
int pack_upload_begin(struct pack_upload *upload, struct base_err *err);

/* Returns whether the store had a shard of this name and size at pack_upload_begin.  upload: a struct pack_upload. */
bool pack_upload_has(const void *upload, const char *name, uint64_t bytes);

/* Sends the file at `path` as `name`, and removes it.  Returns 0, or -errno with a sentence; then the file stays. */
int pack_upload_shard(struct pack_upload *upload, const char *path, const char *name, struct base_err *err);

/* Sends the index at `path` of n_shards shards; from now on the dataset is there.  With `force`, shards of the replaced
 * dataset that the new one does not have are then removed; a warning names one that cannot be removed.
 * Returns 0, or -errno with a sentence. */
int pack_upload_index(struct pack_upload *upload, const char *path, uint32_t n_shards, enum shard_container container,
        struct base_err *err);

/* Removes what the packing left on this host. */
void pack_upload_finish(const struct pack_upload *upload);

#endif
