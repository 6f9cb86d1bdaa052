/* SPDX-License-Identifier: Apache-2.0 */
/* A source: where the bytes of shards come from.
 *
 * A source opens each shard as an *object* with a file descriptor.  The engine reads that with io_uring or pread
 * threads.
 *
 * Threads: only the engine thread calls open, close and check.  The thread in prefetch_new or prefetch_free calls the
 * rest. */
#ifndef DDPFS_PREFETCH_SOURCE_H
#define DDPFS_PREFETCH_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "shard/base/err.h"
#include "shard/index.h"

/* How local files are read.  AUTO and DIRECT: with O_DIRECT where the file system takes it.  BUFFERED: through the
 * page cache. */
enum prefetch_io { PREFETCH_IO_AUTO, PREFETCH_IO_DIRECT, PREFETCH_IO_BUFFERED };

enum { PREFETCH_ALIGN_MAX = 65536 }; /* bytes; a device that needs more is read through the page cache */

struct prefetch_object {
	int fd;                       /* -1 once closed, and for an object of a store */
	uint32_t align;               /* offset and length of a read are multiples of it; a power of two; 1: any */
	bool direct;                  /* reads use O_DIRECT */
	struct remote_object *remote; /* of a store; NULL: a local file.  Errors of its reads are final */
	void *data;                   /* private to the source */
};

struct prefetch_source;
struct remote_object; /* shard/remote/client.h */

struct prefetch_source_ops {
	/* Opens shard number `shard` and checks that it is the one that the index describes.
	 * Returns 0, an error of open(2) (-ENOENT, -EACCES, -EMFILE, ...) or of the index, or
	 * -ESTALE: it is no regular file, or its size differs, or the index has its mtime and that differs. */
	int (*open)(struct prefetch_source *source, uint32_t shard, struct prefetch_object *ret_object);
	/* Closes an object; no read of it is in flight. */
	void (*close)(struct prefetch_source *source, struct prefetch_object *object);

	/* Checks again whether an open shard is the one that the index describes.  The engine calls it when bytes are
	 * wrong or missing.  Right bytes need no check, because their checksums prove them.
	 * wrong: bytes are wrong, so any change since the source was made counts, also that of a ctime.  Otherwise a
	 * read was only short: chmod and link(2) change the ctime, too, and the bytes are still to be verified.
	 * Returns 0, -ESTALE (the shard has changed), or an error of statx(2) or of the index. */
	int (*check)(struct prefetch_source *source, uint32_t shard, const struct prefetch_object *object, bool wrong);

	/* Frees the source; all objects are closed. */
	void (*free)(struct prefetch_source *source);
};

struct prefetch_source {
	const struct prefetch_source_ops *ops;
	bool store; /* requests cost much, and may take long: reads are planned as for a store */
};

/* Makes a source of objects, for an index whose dataset is in a store (shard_index_store).  index: not owned, outlives
 * the source.  Shards are opened without a request; the first answer tells whether their size is that of the index.
 * Returns 0 or -ENOMEM. */
int prefetch_source_remote(const struct shard_index *index, struct prefetch_source **ret_source);

/* Makes a source of local files.  The paths of shards are relative to the dataset's directory.  index: not owned,
 * outlives the source.
 * Returns 0, -ENOMEM or an error of opening the dataset's directory (-ENOENT, -EACCES, -ENOTDIR, ...); err says it in a
 * sentence. */
int prefetch_source_local(const struct shard_index *index, enum prefetch_io io, struct base_err *err,
        struct prefetch_source **ret_source);

#endif
