/* SPDX-License-Identifier: Apache-2.0 */
/* Reads one shard, a file of this host or an object of a store, and verifies the files in it.
 *
 * An object is read ahead, by up to 8 requests of 4 MiB at the same time, as far as the caller says that it reads on
 * (mkshard_reader_ahead).
 *
 * Threads: one thread uses a reader.  Each reader of an object has a thread of its own (shard/remote/client.h). */
#ifndef DDPFS_TOOLS_MKSHARD_READER_H
#define DDPFS_TOOLS_MKSHARD_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard/base/err.h"
#include "shard/index.h"

struct mkshard_reader; /* opaque */

/* Opens a shard of an index.  Of a file it checks the size, and the mtime if the index has one; it sends no request for
 * an object.  timeout_s: how long a read waits while a store does not answer.
 * Returns 0, or with a sentence: -ESTALE: it changed since it was indexed; -errno of open(2); the error of a damaged
 * index; -ENOMEM; -EAGAIN: no thread. */
int mkshard_reader_open(const struct shard_index *index, uint32_t shard, uint64_t timeout_s, struct base_err *err,
        struct mkshard_reader **ret_reader);
/* Opens a shard that is in no index yet: the file at `path`, or if store is not NULL, the object of that path in it.
 * It sends no request.  size_bytes: of the object; not used for a file.  store: not owned, outlives the reader.
 * Returns 0, or with a sentence that has no name: -EINVAL: not a regular file; -errno of open(2); -ENAMETOOLONG;
 * -ENOMEM; -EAGAIN: no thread. */
int mkshard_reader_open_new(struct remote_store *store, const char *path, uint64_t size_bytes, uint64_t timeout_s,
        struct base_err *err, struct mkshard_reader **ret_reader);
/* Closes a reader; NULL is allowed. */
void mkshard_reader_close(struct mkshard_reader *reader);

/* Returns whether the shard is an object of a store. */
bool mkshard_reader_is_remote(const struct mkshard_reader *reader);

/* Returns the size of the shard, and the mtime that its file had when it was opened; 0 for an object. */
uint64_t mkshard_reader_size(const struct mkshard_reader *reader);
int64_t mkshard_reader_mtime_ns(const struct mkshard_reader *reader);
/* Whether the file has another size or mtime now.  Always false for an object: each read looks at its version. */
bool mkshard_reader_changed(const struct mkshard_reader *reader);

/* Returns the path of the shard, or the URL of the object; what mkshard_reader_open_new got as path.  Valid until
 * close. */
const char *mkshard_reader_name(const struct mkshard_reader *reader);

/* Returns 0, or the error after which an object is not read any more; each later read gives it again.  A file always
 * gives 0.  ret_err: the sentence; untouched if it returns 0; may be NULL. */
int mkshard_reader_failed(const struct mkshard_reader *reader, struct base_err *ret_err);

/* Says that the bytes [from, to) will be read from front to back.  For a file it is a hint to the kernel. */
void mkshard_reader_ahead(struct mkshard_reader *reader, uint64_t from, uint64_t to);

/* Reads `len` bytes at `offset`.  Returns 0, or with a sentence that has the byte and not the name of the shard:
 * -ENODATA: the shard ends before; -errno of read(2); for objects -ESTALE (it was replaced, or has another size than
 * was indexed), -ENOENT, -EACCES, -ETIMEDOUT and others of shard/remote/client.h. */
int mkshard_reader_read(
        struct mkshard_reader *reader, uint8_t *buf, uint32_t len, uint64_t offset, struct base_err *err);
/* The same, by a request of its own: what was read ahead is not used. */
int mkshard_reader_read_again(
        struct mkshard_reader *reader, uint8_t *buf, uint32_t len, uint64_t offset, struct base_err *err);

/* Reads the shard from front to back, and calls chunk with each piece, in order.  data is valid during the call only.
 * chunk returns 0 to go on.  It may read; then each read of an object is a request of its own.
 * Returns 0, what chunk returned, or an error as mkshard_reader_read.  *ret_offset: where it stopped. */
int mkshard_reader_stream(struct mkshard_reader *reader,
        int (*chunk)(void *arg, uint64_t offset, const uint8_t *data, size_t len), void *arg, struct base_err *err,
        uint64_t *ret_offset);

/* Reads a file's blocks in order from its shard, verifies each and passes it to `put`, which returns 0 to go on.  A
 * wrong block of an object is read once more, because its bytes may have changed on the way.
 * `buf` holds SHARD_BLOCK bytes; err is not NULL.  Returns 0, the first non-zero value of `put`, or with a sentence
 * that names shard and byte: -EBADMSG for a wrong checksum, -ESTALE if the index changed meanwhile, or
 * -errno of reading. */
int mkshard_read_file(const struct shard_index *index, uint32_t file, struct mkshard_reader *reader, uint8_t *buf,
        int (*put)(void *arg, uint64_t offset, const uint8_t *data, size_t len), void *arg, struct base_err *err);

/* Whether an error of a reader comes from this process or its access to the shard (permissions, limits, memory, a store
 * that does not answer), and says nothing about the shard. */
bool mkshard_reader_is_ours(int rc);
/* Whether an error of a reader concerns the whole store, so that no other shard of it can be read. */
bool mkshard_reader_is_of_store(int rc);

#endif
