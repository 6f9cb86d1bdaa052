/* Where shard bytes come from.
 *
 * A source opens shards as *objects*.  An object with a descriptor is read by the engine through io_uring (or pread
 * threads); one without is read by calling ops->pread from the pread threads, which is how a store that is no file
 * system (HTTP, S3) plugs in: open, check, pread, close are all it needs.
 *
 * Threads: open, check and close are called by the engine thread only; pread from any of its threads at once. */
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
	int fd;         /* or -1: only ops->pread reads it */
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

	/* As pread(2), but returns -errno.  NULL when every object has a descriptor. */
	ssize_t (*pread)(struct prefetch_source *source, const struct prefetch_object *object, void *buf, size_t len,
	        uint64_t offset);

	void (*free)(struct prefetch_source *source);
};

struct prefetch_source {
	const struct prefetch_source_ops *ops;
	bool descriptors; /* every object has one: io_uring can be used */
};

/* Shards as local files, relative to the index's dataset directory.  -ENOENT, -EACCES, -ENOTDIR (dataset directory),
 * -ENOMEM. */
int prefetch_source_local(const struct shard_index *index, enum prefetch_io io, struct base_err *err,
        struct prefetch_source **ret_source);

#endif
