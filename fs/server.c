/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of a server ask of it; fs/server.h first. */
#include "fs/server.h"

#include <errno.h>
#include <unistd.h>

int fs_server_node(const struct fs_server *server, uint64_t ino, struct fs_node *ret_node)
{
	struct fs_node node;
	bool ranks = server->options.n_ranks > 0;
	int rc = fs_ino_node(ino, &node);
	if (rc < 0)
		return rc;
	if (node.kind == FS_ROOT && !node.id && ranks) {
		if (node.view != 0)
			return -ESTALE;
		node.kind = FS_RANKS;
	} else if (node.kind == FS_ROOT && node.id && !ranks) {
		return -ESTALE;
	}
	*ret_node = node;
	return 0;
}

void fs_server_progress(const struct fs_server *server, struct fs_view *view, struct fs_view_progress *ret_progress)
{
	struct fs_view_progress all, one;
	fs_view_progress(view ? view : server->views[0], &all);
	for (uint32_t i = 1; !view && i < server->n_views; i++) {
		fs_view_progress(server->views[i], &one);
		all.epoch = one.epoch < all.epoch ? one.epoch : all.epoch;
		all.turns += one.turns;
		all.n_opened += one.n_opened;
		all.next_turn += one.next_turn;
		all.automatic &= one.automatic;
	}
	*ret_progress = all;
}

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
	fuse_ino_t ino = fs_ino(fs_server_root(server, view->number));
	/* A negative offset drops attributes only. -ENOENT: the kernel does not have the inode, and so no old
	 * attributes. */
	fuse_lowlevel_notify_inval_inode(server->session, ino, -1, 0);
}
