/* SPDX-License-Identifier: Apache-2.0 */
/* `mkshard pack` into a store: each shard is made in a directory of this host, sent, and removed there.
 *
 *   STAGING/NAME-HASH.partial/    the journal, and the shards that are being made (publish.h)
 *   STAGING/NAME-HASH.sent        name, size and ETag of each object that this packing has sent
 *   s3://BUCKET/PREFIX/shard-*    the shards that are complete
 *   s3://BUCKET/PREFIX/index.ddpfs   comes last: without it there is no dataset
 *
 * A rerun of an interrupted packing sends the shards that are missing.  An object counts as sent only if the store
 * tells the ETag that is noted: another host may have packed there meanwhile.  With --force the old index is removed
 * before the first shard is sent.  So no index describes shards of another packing.  When the new index is there, old
 * shards are removed: with --force all, else those that this host sent for a run that --restart dropped.
 *
 * Threads: pack_upload_shard and pack_upload_note from any; the rest from one. */
#ifndef DDPFS_TOOLS_MKSHARD_UPLOAD_H
#define DDPFS_TOOLS_MKSHARD_UPLOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "shard/base/err.h"
#include "shard/pack.h"
#include "shard/remote/store_objects.h"

struct pack_upload; /* opaque */

/* An object that was sent. */
struct pack_sent {
	char name[32];
	uint64_t bytes;
	char etag[REMOTE_ETAG_MAX]; /* "": the store tells none */
};

/* Opens the store of `dataset` (s3://...), and makes the directory for the staging of this dataset: below `staging`, or
 * if that is NULL, where copies of indexes are (shard/remote/index_copy.h).
 * restart: what an interrupted run left is dropped.
 * Returns 0, or with a sentence: -EROFS: no s3:// name; -EEXIST: there is a dataset, without `force`, and it is not the
 * one that an interrupted run of this host sent; errors of the store and of mkdir(2). */
int pack_upload_open(const char *dataset, const char *staging, bool force, bool restart, struct base_err *err,
        struct pack_upload **ret_upload);
/* Frees it; NULL is allowed. */
void pack_upload_close(struct pack_upload *upload);

/* Returns the name under which the dataset is packed on this host, as `mkshard pack` takes it.  Valid until close. */
const char *pack_upload_place(const struct pack_upload *upload);
/* Returns the name of the dataset in the store, for messages. */
const char *pack_upload_name(const struct pack_upload *upload);

/* Prepares the store, when this host holds the lock of the packing: lists the shards that are there, removes parts of
 * uploads that were killed, and the index of a dataset that is replaced.  Returns 0, or -errno with a sentence; -EEXIST
 * as pack_upload_open. */
int pack_upload_begin(struct pack_upload *upload, struct base_err *err);

/* Returns whether the store had a shard of this name and size at pack_upload_begin, as this packing has sent it.
 * upload: a struct pack_upload. */
bool pack_upload_has(const void *upload, const char *name, uint64_t bytes);

/* Removes the index from the store, if there is one, because the run sends shards again.  Returns 0, or -errno with a
 * sentence. */
int pack_upload_drop_index(struct pack_upload *upload, struct base_err *err);

/* Sends the file at `path` as `name`, and removes it.  Returns 0, or -errno with a sentence; then the file stays. */
int pack_upload_shard(struct pack_upload *upload, const char *path, const char *name, struct base_err *err,
        struct pack_sent *ret_sent);

/* Notes on this host that an object was sent, so that a rerun does not send it again.  Call it when the journal has the
 * shard: so a note never tells of a newer shard than the last record.  Returns 0, or -errno with a sentence. */
int pack_upload_note(struct pack_upload *upload, const struct pack_sent *sent, struct base_err *err);

/* Sends the index at `path` of n_shards shards; from now on the dataset is there.  Then removes the old shards that the
 * new dataset does not have (see above); a warning names one that cannot be removed.
 * Returns 0, or -errno with a sentence. */
int pack_upload_index(struct pack_upload *upload, const char *path, uint32_t n_shards, enum shard_container container,
        struct base_err *err);

/* Removes what the packing left on this host. */
void pack_upload_finish(struct pack_upload *upload);

#endif
