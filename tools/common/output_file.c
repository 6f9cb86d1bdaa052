/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a command's output to a file, a link's target, a device; output_file.h first. */
#include "tools/common/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shard/base/cleanup.h"
#include "shard/base/io.h"

enum { MODE_NEW = 0644, MODE_BITS = 0777 };

/* A device or a FIFO has no offset, so this is no base_pwrite_full. */
static int write_into(const char *path, const char *buf, size_t len)
{
	cleanup_close int fd = open(path, O_WRONLY | O_TRUNC | O_NOCTTY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	while (len > 0) {
		ssize_t n = write(fd, buf, len);
		if (n < 0 && errno != EINTR)
			return -errno;
		if (n > 0) {
			buf += n;
			len -= (size_t)n;
		}
	}
	return 0;
}

/* Finds the path of the regular file `st` without links. A link of /proc/PID/fd may lead to a file that has another
 * name by now, or none: then there is no file to replace. */
static bool find_name(const char *path, const struct stat *st, char real[PATH_MAX])
{
	struct stat found;
	return realpath(path, real) && lstat(real, &found) == 0 && found.st_dev == st->st_dev &&
	       found.st_ino == st->st_ino;
}

static int write_file(const char *path, const void *buf, size_t len)
{
	char real[PATH_MAX];
	struct stat st;
	if (stat(path, &st) == 0) {
		if (S_ISREG(st.st_mode) && find_name(path, &st, real))
			return base_write_file_atomic(real, buf, len, st.st_mode & MODE_BITS);
		return write_into(path, buf, len);
	}
	if (errno != ENOENT)
		return -errno;
	if (lstat(path, &st) < 0)
		return errno == ENOENT ? base_write_file_atomic(path, buf, len, MODE_NEW) : -errno;
	/* A link that leads to no file: the kernel finds where the new one belongs. */
	cleanup_close int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, MODE_NEW);
	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (!find_name(path, &st, real))
		return -ESTALE;
	int rc = base_write_file_atomic(real, buf, len, MODE_NEW);
	if (rc < 0 && find_name(path, &st, real)) /* still the empty file */
		unlink(real);
	return rc;
}

int output_file_write(const char *path, const void *buf, size_t len, struct base_err *err)
{
	int rc = write_file(path, buf, len);
	return rc < 0 ? base_err_set(err, rc, "'%s': %s", base_quoted(path), base_err_str(rc)) : 0;
}
