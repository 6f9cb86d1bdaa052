/* SPDX-License-Identifier: Apache-2.0 */
/* Reads many files or ranges at the same time, for packing and verifying.  It is apart from the engine.  It uses
 * io_uring, or pread threads where io_uring is forbidden or unknown.
 *
 * A range that is in the page cache is copied from there.  Otherwise it is read with O_DIRECT where the file system
 * takes it.  A dataset is read once here, so its pages would only displace others.  Also, a virtual machine may need
 * several microseconds to provide each new page.
 *
 * Threads: only the thread that made an object may use it. */
#ifndef DDPFS_PREFETCH_BULK_H
#define DDPFS_PREFETCH_BULK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct prefetch_bulk; /* opaque */

enum {
	PREFETCH_BULK_DEPTH_MAX = 1024, /* files in flight, each an open descriptor */
	PREFETCH_BULK_ALIGN = 4096,     /* bytes; a file that needs more for O_DIRECT is read through the page cache */
	PREFETCH_BULK_THREADS = 1 << 0, /* flag: do not use io_uring */
};

/* One range of one file, to be read into the caller's buffer.  The caller zeroes the object and fills the first
 * part. */
struct prefetch_bulk_file {
	int dirfd;        /* AT_FDCWD or a directory; path is relative to it */
	const char *path; /* valid until the file is reaped */
	uint64_t offset;  /* first byte to read */
	uint8_t *buf;     /* room for `room` bytes */
	uint64_t want;    /* bytes to read; offset + want <= expect_size */
	/* Bytes of buf, >= want.  Those behind `want` may be overwritten: direct reads into buf need that.  Without
	 * them, ranges of up to 256 KiB go through a buffer of the bulk object. */
	uint64_t room;
	/* As seen in the scan.  If one of them differs before or after the read, the file has changed: -ESTALE. */
	uint64_t expect_size;
	int64_t expect_mtime_ns;
	uint64_t expect_ino;
	void *user; /* the caller's */
	/* The result: 0, -ESTALE (the file has changed), or an error of open(2), statx(2) or read(2). */
	int rc;
};

/* Makes a bulk object.  depth: files in flight, 1 .. PREFETCH_BULK_DEPTH_MAX.  flags: 0 or PREFETCH_BULK_THREADS.
 * Returns 0, -EINVAL (depth is out of range), -ENOMEM or -EAGAIN (no thread can be started). */
int prefetch_bulk_new(uint32_t depth, unsigned flags, struct prefetch_bulk **ret_bulk);
/* Waits for files in flight, and frees the object.  NULL is fine. */
void prefetch_bulk_free(struct prefetch_bulk *bulk);

/* Queues a file.  The caller keeps the object at its address until it is reaped.
 * Returns 0, or -EAGAIN: `depth` files are in flight. */
int prefetch_bulk_submit(struct prefetch_bulk *bulk, struct prefetch_bulk_file *file);

/* Gives a file that is done.  With `wait` it waits for one.
 * Returns 1 and the file; 0 when nothing is in flight or, without `wait`, nothing is done; or an error of the ring. */
int prefetch_bulk_reap(struct prefetch_bulk *bulk, bool wait, struct prefetch_bulk_file **ret_file);

/* Reads [offset, offset + len) of a large file from front to back, at the speed of the device.  Calls chunk with each
 * piece, in order; the next piece is read meanwhile.  data is valid during the call only.  chunk returns 0 to go on.
 * Returns 0, what chunk returned, -ENODATA (the file ends before), -EINVAL (it is no regular file) or another -errno.
 * *ret_offset: where it stopped; ret_offset may be NULL.  Any thread. */
int prefetch_bulk_stream(const char *path, uint64_t offset, uint64_t len,
        int (*chunk)(void *arg, uint64_t offset, const uint8_t *data, size_t len), void *arg, uint64_t *ret_offset);

#endif
