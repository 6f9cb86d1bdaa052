/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the control socket of a mount; fs/supervise/control_socket.h first. */
#include "fs/supervise/control_socket.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "shard/base/cleanup.h"

enum {
	BACKLOG = 256,
	NAMES_MAX = 1000, /* default names to try */
};

/* Removes the socket that a dead server left.  0: also if nothing is there; -EEXIST: a file that is no socket. */
static int remove_socket(const char *path)
{
	struct stat st;
	if (lstat(path, &st) < 0)
		return 0;
	if (!S_ISSOCK(st.st_mode))
		return -EEXIST;
	return unlink(path) < 0 && errno != ENOENT ? -errno : 0;
}

/* Connects to find out who is there.  0: nobody answers; -EADDRINUSE: a server does; -EACCES: another user's socket. */
static int probe(const struct sockaddr_un *addr)
{
	cleanup_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) == 0 || errno == EAGAIN)
		return -EADDRINUSE;
	return errno == EACCES || errno == EPERM ? -EACCES : 0;
}

/* A socket that is bound but does not listen refuses connections, as a dead server's socket does.  Programs that look
 * for servers remove such sockets.  So the socket is bound under another name, and renamed once it listens. */
static int bind_socket(const char *path, struct base_err *err, int *ret_fd)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct sockaddr_un last = { .sun_family = AF_UNIX };
	int n = snprintf(addr.sun_path, sizeof(addr.sun_path), "%s" BASE_CONTROL_NEW, path);
	if ((size_t)n >= sizeof(addr.sun_path))
		return base_err_set(err, -ENAMETOOLONG, "'%s': too long for a control socket (at most %zu bytes)", path,
		        sizeof(addr.sun_path) - sizeof(BASE_CONTROL_NEW));
	memcpy(last.sun_path, path, strlen(path) + 1); /* fits: shorter than addr.sun_path */
	int rc = probe(&last);
	if (rc < 0)
		return base_err_set(err, rc, "control socket '%s': %s", path,
		        rc == -EADDRINUSE ? "another mount answers there: choose another path with control="
		                          : strerror(-rc));
	cleanup_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return base_err_set(err, -errno, "socket: %s", strerror(errno));
	rc = remove_socket(path);
	if (rc == 0)
		rc = remove_socket(addr.sun_path);
	if (rc == 0 && (bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 || chmod(addr.sun_path, 0600) < 0 ||
	                       listen(fd, BACKLOG) < 0 || rename(addr.sun_path, path) < 0)) {
		rc = -errno;
		unlink(addr.sun_path);
	}
	if (rc < 0)
		return base_err_set(err, rc, "control socket '%s': %s", path, strerror(-rc));
	*ret_fd = steal_fd(&fd);
	return 0;
}

int fs_control_socket(const char *path, struct base_err *err, char ret_path[BASE_CONTROL_PATH_MAX], int *ret_fd)
{
	if (path && strlen(path) >= BASE_CONTROL_PATH_MAX)
		return base_err_set(err, -ENAMETOOLONG, "'%s': too long for a control socket", path);
	if (path) {
		snprintf(ret_path, BASE_CONTROL_PATH_MAX, "%s", path);
		return bind_socket(ret_path, err, ret_fd);
	}
	/* Containers that share the directory can have equal process ids, so a name can be taken: try the next. */
	int rc = -EADDRINUSE;
	for (unsigned n = 0; rc == -EADDRINUSE && n < NAMES_MAX; n++) {
		rc = base_control_default_path(n, err, ret_path);
		if (rc == 0)
			rc = bind_socket(ret_path, err, ret_fd);
	}
	return rc;
}

uint64_t fs_control_ino(const char *path)
{
	struct stat st;
	return lstat(path, &st) == 0 && S_ISSOCK(st.st_mode) ? st.st_ino : 0;
}

void fs_control_remove(const char *path, uint64_t ino)
{
	if (ino != 0 && fs_control_ino(path) == ino)
		unlink(path);
}
