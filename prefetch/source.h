/* SPDX-License-Identifier: Apache-2.0 */
/* Where shard bytes come from.
 *
 * A source opens shards as *objects*, each with a descriptor, which the engine reads through io_uring or pread threads.
 *
 * Threads: the engine thread only. */
#ifndef DDPFS_PREFETCH_SOURCE_H
#define DDPFS_PREFETCH_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "shard/base/err.h"
#include "shard/index.h"

enum prefetch_io { PREFETCH_IO_AUTO, PREFETCH_IO_DIRECT, PREFETCH_IO_BUFFERED };

enum { PREFETCH_ALIGN_MAX = 65536 }; /* a device that wants more is read buffered */

struct prefetch_object {
	int fd;         /* -1 once closed */
	uint32_t align; /* of offset and length of a read, a power of two; 1 when any will do */
	bool direct;    /* the page cache is bypassed */
	void *data;     /* the source's own */
};

struct prefetch_source;

struct prefetch_source_ops {
	/* Opens shard number `shard` and checks that it is the one the index describes. -ESTALE when it is no regular
	 * file or its size (or, for adopted shards, its mtime) differs, -ENOENT, -EACCES, -EMFILE, -EIO, ... */
	int (*open)(struct prefetch_source *source, uint32_t shard, struct prefetch_object *ret_object);
	void (*close)(struct prefetch_source *source, struct prefetch_object *object);

	/* Asked when bytes were wrong or missing: -ESTALE when the shard changed under us, else 0.  Bytes that are
	 * right need no such look: their sums prove them, whatever became of the file's times. */
	int (*check)(struct prefetch_source *source, uint32_t shard, const struct prefetch_object *object);

	void (*free)(struct prefetch_source *source);
};

struct prefetch_source {
	const struct prefetch_source_ops *ops;
};

/* Shards as local files, relative to the index's dataset directory.  -ENOENT, -EACCES, -ENOTDIR (dataset directory),
 * -ENOMEM. */
int prefetch_source_local(const struct shard_index *index, enum prefetch_io io, struct base_err *err,
        struct prefetch_source **ret_source);

#endif
