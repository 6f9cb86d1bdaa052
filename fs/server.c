/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of a server ask of it; fs/server.h first. */
#include "fs/server.h"

#include <errno.h>
#include <unistd.h>

void fs_server_stop(struct fs_server *server)
{
	uint64_t one = 1;
	int saved = errno;
	/* A failure needs no action: the counter is full only if the stop is on its way already. */
	ssize_t n = write(server->stop_fd, &one, sizeof(one));
	(void)n;
	errno = saved;
}

int fs_server_unmount(struct fs_server *server, bool lazy)
{
	struct fs_channel_message answer;
	bool stop = false;
	int rc = fs_channel_ask(server->channel->channel, FS_CHANNEL_UNMOUNT, lazy, NULL, -1, &stop, &answer);
	if (stop)
		fs_server_stop(server);
	return rc < 0 ? rc : answer.code;
}

void fs_server_root_changed(struct fs_server *server, struct fs_view *view)
{
	fuse_ino_t ino = fs_ino((struct fs_node){ .kind = FS_ROOT, .view = view->number });
	/* A negative offset drops attributes only. -ENOENT: the kernel does not have the inode, and so no old
	 * attributes. */
	fuse_lowlevel_notify_inval_inode(server->session, ino, -1, 0);
}
