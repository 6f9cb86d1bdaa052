/* SPDX-License-Identifier: Apache-2.0 */
/* One line to the socket of the syslog daemon; shard/base/syslog.h first. */
#include "shard/base/syslog.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <syslog.h>
#include <unistd.h>

#include "shard/base/cleanup.h"

static int send_as(int type, const struct sockaddr_un *to, const char *text, size_t len)
{
	cleanup_close int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || connect(fd, (const struct sockaddr *)to, sizeof(*to)) < 0)
		return -errno;
	return send(fd, text, len, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

int base_syslog(const char *path, const char *name, int priority, const char *line)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	char text[BASE_SYSLOG_BYTES_MAX];
	if (strlen(path) >= sizeof(to.sun_path))
		return -ENAMETOOLONG;
	memcpy(to.sun_path, path, strlen(path) + 1);
	int n = snprintf(text, sizeof(text), "<%d>%s[%d]: %s", LOG_DAEMON | priority, name, (int)getpid(), line);
	if (n < 0)
		return -EINVAL;
	size_t len = (size_t)n < sizeof(text) ? (size_t)n : sizeof(text) - 1;
	int rc = send_as(SOCK_DGRAM, &to, text, len);
	/* Old daemons use a stream socket, where a NUL ends a line. */
	return rc == -EPROTOTYPE ? send_as(SOCK_STREAM, &to, text, len + 1) : rc;
}
