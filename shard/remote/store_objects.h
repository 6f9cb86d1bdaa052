/* SPDX-License-Identifier: Apache-2.0 */
/* Whole objects of a store: read, write, list and remove them.  Each call blocks until the store has answered, and
 * tries again as remote_store_ask does.  Writing, listing and removing need S3.
 *
 * Paths are relative to the dataset.  Errors: those of remote_store_refusal and remote_fetch, with a sentence;
 * -EROFS: the store is a plain HTTP server; -ENOMEM.
 *
 * Threads: any. */
#ifndef DDPFS_SHARD_REMOTE_STORE_OBJECTS_H
#define DDPFS_SHARD_REMOTE_STORE_OBJECTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard/base/err.h"
#include "shard/remote/store.h"

enum {
	REMOTE_PART_BYTES =
	        16 << 20,     /* of a multipart upload; larger if the object has over 9,000 parts of this size */
	REMOTE_PARTS = 4,     /* of one object, at the same time */
	REMOTE_ETAG_MAX = 80, /* with the NUL; S3's has at most 38: the digits of a MD5, '-', the number of parts */
};

/* An ETag here has no quotes.  "": the store tells none, or one that is too long. */

/* Reads a small object into memory, NUL-terminated; the caller frees it.  -EFBIG: it has over max_bytes. */
int remote_object_read(struct remote_store *store, const char *path, size_t max_bytes, struct base_err *err,
        char **ret_data, size_t *ret_len);

/* Tells the size and the ETag of an object. */
int remote_object_stat(struct remote_store *store, const char *path, struct base_err *err, uint64_t *ret_bytes,
        char ret_etag[REMOTE_ETAG_MAX]);
/* Tells the size of an object. */
int remote_object_size(struct remote_store *store, const char *path, struct base_err *err, uint64_t *ret_bytes);

/* Writes an object of `size_bytes` bytes of a file, from its begin.  A large one goes in parts, REMOTE_PARTS at the
 * same time; the object appears when all have come.  If it fails, its parts are removed.  ret_etag: NULL, or for the
 * ETag of the object that was written. */
int remote_object_write(struct remote_store *store, const char *path, int fd, uint64_t size_bytes, struct base_err *err,
        char ret_etag[REMOTE_ETAG_MAX]);

/* Removes an object.  One that is not there is no error. */
int remote_object_remove(struct remote_store *store, const char *path, struct base_err *err);

/* Lists the objects whose path begins with `prefix`, in the order of their bytes.  Calls found with each; path and
 * etag are valid during the call.  found returns 0 to go on; another value ends the list and is returned. */
int remote_object_list(struct remote_store *store, const char *prefix,
        int (*found)(void *arg, const char *path, uint64_t bytes, const char *etag), void *arg, struct base_err *err);

/* Removes the parts that killed uploads have left, of the objects whose path begins with `prefix` and is wanted. */
int remote_object_abort_uploads(
        struct remote_store *store, const char *prefix, bool (*wanted)(const char *path), struct base_err *err);

#endif
