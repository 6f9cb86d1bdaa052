/* SPDX-License-Identifier: Apache-2.0 */
/* Blocking file I/O that continues after short reads and writes.
 *
 * It goes through a table of function pointers, so tests can make a call fail, be short or be late.
 * Threads: any.  Only tests set the table, before they start threads. */
#ifndef DDPFS_SHARD_BASE_IO_H
#define DDPFS_SHARD_BASE_IO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The system calls on data files.  Each behaves as its counterpart in libc (-1 and errno). */
struct base_io {
	ssize_t (*pread)(int fd, void *buf, size_t len, off_t offset);
	ssize_t (*pwrite)(int fd, const void *buf, size_t len, off_t offset);
	int (*fsync)(int fd);
	int (*rename)(const char *from, const char *to);
};

extern const struct base_io base_io_libc; /* the real calls */
extern const struct base_io *base_io;     /* the table in use: &base_io_libc, or that of a test */

/* Reads exactly len bytes at offset.  Continues after EINTR and short reads.
 * Returns 0; -ENODATA: the file ends first; -EFBIG: offset is too large; an error of pread(2). */
int base_pread_full(int fd, void *buf, size_t len, uint64_t offset);

/* Writes exactly len bytes at offset.  Continues after EINTR and short writes.
 * Returns 0; -EFBIG: offset is too large; an error of pwrite(2) (-ENOSPC, -EDQUOT, -EIO, ...). */
int base_pwrite_full(int fd, const void *buf, size_t len, uint64_t offset);

/* Calls fsync(2) on the directory of `path`, so that a rename in it is durable.  A file system that has no fsync for
 * directories is not an error.  Returns 0, -ENOMEM, or an error of open(2) or fsync(2). */
int base_fsync_parent(const char *path);

/* Reads a whole small file.  *ret_buf is NUL-terminated after the data; the caller frees it.  A FIFO without a writer
 * is an empty file.
 * Returns 0; -EFBIG: the file has over max_bytes; -ENOMEM; an error of open(2) or read(2). */
int base_read_file(const char *path, size_t max_bytes, char **ret_buf, size_t *ret_len);

/* Makes a new file beside `path`, for the caller to write and to rename over `path`.  Its name is NAME.tmp- and 16 hex
 * digits.  It is locked with flock(2) as long as its descriptor is open, so others know that its writer lives.  The
 * function removes the unlocked files that killed writers of `path` left.  mode: as for open(2).
 * Returns 0, a name to free and a descriptor to close; -EBUSY: others removed each new file; -ENOMEM; errors of
 * open(2). */
int base_temp_open(const char *path, unsigned mode, char **ret_tmp, int *ret_fd);

/* Replaces the file at `path`: writes a new file beside it, calls fsync(2), renames it, calls fsync(2) on the
 * directory.  mode: as for open(2).  If writing or renaming fails, the old file is unchanged and the new one is
 * removed.  Returns 0 or -errno of the step that failed. */
int base_write_file_atomic(const char *path, const void *buf, size_t len, unsigned mode);

#endif
