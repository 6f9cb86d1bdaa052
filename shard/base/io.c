/* SPDX-License-Identifier: Apache-2.0 */
/* Whole reads and writes, and the atomic replacement of a file; shard/base/io.h first. */
#include "shard/base/io.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shard/base/cleanup.h"

const struct base_io base_io_libc = {
	.pread = pread,
	.pwrite = pwrite,
	.fsync = fsync,
	.rename = rename,
};

const struct base_io *base_io = &base_io_libc;

/* Bytes of one call.  read(2) and write(2) move at most 0x7ffff000; smaller calls also let signals come through
 * sooner. */
enum { PIECE_MAX = 1 << 30 };

int base_pread_full(int fd, void *buf, size_t len, uint64_t offset)
{
	uint8_t *p = buf;
	while (len > 0) {
		if (offset > INT64_MAX - PIECE_MAX)
			return -EFBIG;
		ssize_t n = base_io->pread(fd, p, len < PIECE_MAX ? len : PIECE_MAX, (off_t)offset);
		if (n < 0) {
			if (errno == EINTR)
				continue;
			return -errno;
		}
		if (n == 0)
			return -ENODATA;
		p += n;
		len -= (size_t)n;
		offset += (uint64_t)n;
	}
	return 0;
}

int base_pwrite_full(int fd, const void *buf, size_t len, uint64_t offset)
{
	const uint8_t *p = buf;
	while (len > 0) {
		if (offset > INT64_MAX - PIECE_MAX)
			return -EFBIG;
		ssize_t n = base_io->pwrite(fd, p, len < PIECE_MAX ? len : PIECE_MAX, (off_t)offset);
		if (n < 0) {
			if (errno == EINTR)
				continue;
			return -errno;
		}
		if (n == 0) /* POSIX does not say what 0 means; a loop could be endless */
			return -EIO;
		p += n;
		len -= (size_t)n;
		offset += (uint64_t)n;
	}
	return 0;
}

/* Returns the directory of `path`, to be freed; NULL: out of memory. */
static char *parent_of(const char *path)
{
	size_t len = strlen(path);
	while (len > 1 && path[len - 1] == '/')
		len--;
	const char *slash = memrchr(path, '/', len);
	if (!slash)
		return strdup(".");
	return strndup(path, slash == path ? 1 : (size_t)(slash - path)); /* "/x": the parent is "/" */
}

int base_fsync_parent(const char *path)
{
	cleanup_free char *parent = parent_of(path);
	if (!parent)
		return -ENOMEM;
	cleanup_close int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (base_io->fsync(fd) < 0) {
		/* Some file systems have no fsync(2) for directories; then nothing more can be done for the rename. */
		if (errno != EINVAL && errno != ENOTSUP)
			return -errno;
	}
	return 0;
}

int base_read_file(const char *path, size_t max_bytes, char **ret_buf, size_t *ret_len)
{
	/* O_NONBLOCK: a FIFO without a writer must not block a mount; it reads as empty.  After open, reads may
	 * block. */
	cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0 || fcntl(fd, F_SETFL, O_RDONLY) < 0)
		return -errno;

	/* The buffer grows while reading, because fstat(2) gives a length of 0 or 4096 for files in /proc and /sys. */
	size_t size = 4096, used = 0;
	cleanup_free char *buf = NULL;
	for (;;) {
		if (!buf || used == size) {
			size_t grown = buf ? size * 2 : size;
			/* realloc(3) would leave a copy behind, and the file may hold secrets. */
			char *bigger = malloc(grown + 1);
			if (bigger && buf)
				memcpy(bigger, buf, used);
			if (buf)
				explicit_bzero(buf, used);
			if (!bigger)
				return -ENOMEM;
			free(buf);
			buf = bigger;
			size = grown;
		}
		ssize_t n = read(fd, buf + used, size - used);
		if (n < 0) {
			if (errno == EINTR)
				continue;
			return -errno;
		}
		if (n == 0)
			break;
		used += (size_t)n;
		if (used > max_bytes)
			return -EFBIG;
	}
	buf[used] = '\0';
	*ret_buf = steal_ptr(&buf);
	*ret_len = used;
	return 0;
}

/* ---- a file that replaces another one ---- */

#define TEMP_MARK ".tmp-" /* TEMP_DIGITS hex digits follow it */
enum { TEMP_DIGITS = 16, TEMP_TRIES = 16 };

static bool is_temp_of(const char *name, const char *of)
{
	size_t n = strlen(of), mark = strlen(TEMP_MARK);
	return strncmp(name, of, n) == 0 && strncmp(name + n, TEMP_MARK, mark) == 0 &&
	       strlen(name + n + mark) == TEMP_DIGITS && strspn(name + n + mark, "0123456789abcdef") == TEMP_DIGITS;
}

/* Removes the files that killed writers of `path` left.  A living writer holds the lock of its file. */
static void sweep(const char *path)
{
	const char *slash = strrchr(path, '/');
	cleanup_free char *parent = parent_of(path);
	DIR *dir = parent ? opendir(parent) : NULL;
	const struct dirent *entry;
	while (dir && (entry = readdir(dir))) {
		if (!is_temp_of(entry->d_name, slash ? slash + 1 : path))
			continue;
		cleanup_close int fd =
		        openat(dirfd(dir), entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
		if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
			unlinkat(dirfd(dir), entry->d_name, 0);
	}
	if (dir)
		closedir(dir);
}

int base_temp_open(const char *path, unsigned mode, char **ret_tmp, int *ret_fd)
{
	sweep(path);
	for (unsigned i = 0; i < TEMP_TRIES; i++) {
		uint64_t unique;
		struct stat st;
		cleanup_free char *tmp = NULL;
		if (getrandom(&unique, sizeof(unique), 0) != sizeof(unique))
			return -errno;
		if (asprintf(&tmp, "%s" TEMP_MARK "%016" PRIx64, path, unique) < 0) {
			tmp = NULL;
			return -ENOMEM;
		}
		cleanup_close int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
		if (fd < 0)
			return -errno;
		/* Another writer may have removed the file before it was locked.  If the file system has no locks, no
		 * writer can remove files. */
		bool locked = flock(fd, LOCK_EX | LOCK_NB) == 0;
		if ((!locked && errno == EWOULDBLOCK) || fstat(fd, &st) < 0 || st.st_nlink == 0)
			continue;
		*ret_tmp = steal_ptr(&tmp);
		*ret_fd = steal_fd(&fd);
		return 0;
	}
	return -EBUSY; /* other writers removed it each time */
}

int base_write_file_atomic(const char *path, const void *buf, size_t len, unsigned mode)
{
	cleanup_free char *tmp = NULL;
	cleanup_close int fd = -1;
	int r = base_temp_open(path, mode, &tmp, &fd);
	if (r < 0)
		return r;
	r = base_pwrite_full(fd, buf, len, 0);
	if (r == 0 && base_io->fsync(fd) < 0)
		r = -errno;
	if (r == 0 && base_io->rename(tmp, path) < 0)
		r = -errno;
	if (r < 0) {
		unlink(tmp);
		return r;
	}
	return base_fsync_parent(path);
}
