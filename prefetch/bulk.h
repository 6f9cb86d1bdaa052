/* SPDX-License-Identifier: Apache-2.0 */
/* Reads many files or ranges at once, for packing and verifying: a deep queue over io_uring, pread threads where it is
 * not to be had.
 *
 * What is in the page cache is copied from there.  What is not is read with O_DIRECT where the file system takes it:
 * a dataset is read once, so its pages would only push out those that somebody needs (and a virtual machine may take
 * several microseconds to hand out each new one).
 *
 * Threads: one object, one thread (the one that made it). */
#ifndef DDPFS_PREFETCH_BULK_H
#define DDPFS_PREFETCH_BULK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct prefetch_bulk; /* opaque */

enum {
	PREFETCH_BULK_DEPTH_MAX = 1024, /* files in flight, each an open descriptor */
	PREFETCH_BULK_ALIGN = 4096,     /* suits every device's direct reads */
	PREFETCH_BULK_THREADS = 1 << 0, /* flag: no io_uring */
};

/* One range of one file to read into the caller's buffer.  A zeroed object with the first part filled in. */
struct prefetch_bulk_file {
	int dirfd;        /* AT_FDCWD or a directory; path is relative to it */
	const char *path; /* lives until the file is reaped */
	uint64_t offset;  /* first byte to read */
	uint8_t *buf;     /* room for `room` bytes */
	uint64_t want;    /* bytes to read; offset + want <= expect_size */
	uint64_t room;    /* >= want; bytes of buf behind `want` that may be scribbled over: direct reads in place need
	                     some, others go through a small buffer of this object */
	/* As seen when scanning; anything else before or after the read is -ESTALE: the file changed. */
	uint64_t expect_size;
	int64_t expect_mtime_ns;
	uint64_t expect_ino;
	void *user;
	/* Result: 0; -ESTALE; -errno of open, stat or read. */
	int rc;
};

/* depth: files in flight, at most PREFETCH_BULK_DEPTH_MAX.  -EINVAL, -ENOMEM. */
int prefetch_bulk_new(uint32_t depth, unsigned flags, struct prefetch_bulk **ret_bulk);
void prefetch_bulk_free(struct prefetch_bulk *bulk); /* waits for what is in flight; NULL is fine */

/* Queues a file; the object is the caller's and stays put until reaped.  -EAGAIN when `depth` are in flight. */
int prefetch_bulk_submit(struct prefetch_bulk *bulk, struct prefetch_bulk_file *file);

/* Waits for one completion (wait) or takes one if there is (no wait).  Returns 1 and the file, 0 when nothing is in
 * flight (or nothing is ready, without wait), or -errno of the ring itself. */
int prefetch_bulk_reap(struct prefetch_bulk *bulk, bool wait, struct prefetch_bulk_file **ret_file);

/* True when io_uring carries the reads. */
bool prefetch_bulk_uring(const struct prefetch_bulk *bulk);

/* Sequential read of [offset, offset + len) of a big file at device speed: calls chunk() with consecutive pieces, in
 * order, several reads in flight.  chunk returns 0 to go on.  Returns 0, chunk's value, -ENODATA when the file ends
 * first, or -errno; *ret_offset (may be NULL) is where it stopped.  Data is valid during the call only. */
int prefetch_bulk_stream(const char *path, uint64_t offset, uint64_t len,
        int (*chunk)(void *arg, uint64_t offset, const uint8_t *data, size_t len), void *arg, uint64_t *ret_offset);

#endif
