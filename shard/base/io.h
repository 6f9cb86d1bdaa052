/* SPDX-License-Identifier: Apache-2.0 */
/* Blocking file I/O that finishes what it starts, through a table of function pointers so that tests can make any
 * call fail, be short or be late.
 *
 * Threads: any; the table is set once, before threads start (tests only). */
#ifndef DDPFS_SHARD_BASE_IO_H
#define DDPFS_SHARD_BASE_IO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The system calls the shard layer makes on data files.  Each has its libc counterpart's contract (-1 and errno). */
struct base_io {
	ssize_t (*pread)(int fd, void *buf, size_t len, off_t offset);
	ssize_t (*pwrite)(int fd, const void *buf, size_t len, off_t offset);
	int (*fsync)(int fd);
	int (*rename)(const char *from, const char *to);
};

extern const struct base_io base_io_libc; /* the real calls */
extern const struct base_io *base_io;     /* the table in use; &base_io_libc unless a test replaced it */

/* Reads exactly len bytes at offset; EINTR and short reads are continued.
 * Returns 0, -ENODATA when the file ends first, or -errno of pread. */
int base_pread_full(int fd, void *buf, size_t len, uint64_t offset);

/* Writes exactly len bytes at offset.  Returns 0 or -errno of pwrite (-ENOSPC, -EDQUOT, -EIO, ...). */
int base_pwrite_full(int fd, const void *buf, size_t len, uint64_t offset);

/* Opens the directory that holds `path` and fsyncs it, so that a rename in it is durable.  Returns 0 or -errno. */
int base_fsync_parent(const char *path);

/* Reads a whole small file.  *ret_buf is malloc'd, NUL-terminated behind the data, owned by the caller.
 * Returns 0, -EFBIG when larger than max_bytes, or -errno. */
int base_read_file(const char *path, size_t max_bytes, char **ret_buf, size_t *ret_len);

/* A new file beside `path` that is to be renamed over it, open to write: NAME.tmp-, 16 hexadecimal digits.  Its flock(2) lock says
 * that its writer lives; those that killed writers of `path` left are removed.  mode as for open(2).  *ret_tmp is malloc'd;
 * both are the caller's.  Returns 0 or -errno. */
int base_temp_open(const char *path, unsigned mode, char **ret_tmp, int *ret_fd);

/* Writes beside `path`, fsyncs, renames over it, fsyncs the directory.  mode as for open(2).  Returns 0 or -errno;
 * on failure the old file is untouched and the temporary one is gone. */
int base_write_file_atomic(const char *path, const void *buf, size_t len, unsigned mode);

#endif
