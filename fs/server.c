/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of a server ask of it; fs/server.h first. */
#include "fs/server.h"

#include <errno.h>
#include <unistd.h>

#include "shard/base/cleanup.h"

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
	struct fs_view *first = view ? view : fs_server_first_reader(server);
	bool readers = fs_view_has_reader(first);
	fs_view_progress(first, &all);
	for (uint32_t i = first->number + 1; !view && i < server->n_views; i++) {
		if (readers && !fs_view_has_reader(server->views[i]))
			continue;
		fs_view_progress(server->views[i], &one);
		all.epoch = one.epoch < all.epoch ? one.epoch : all.epoch;
		all.turns += one.turns;
		all.n_opened += one.n_opened;
		all.next_turn += one.next_turn;
		all.automatic &= one.automatic;
	}
	*ret_progress = all;
}

struct fs_view *fs_server_first_reader(const struct fs_server *server)
{
	for (uint32_t i = 0; i < server->n_views; i++)
		if (fs_view_has_reader(server->views[i]))
			return server->views[i];
	return server->views[0];
}

void fs_server_find_epochs(struct fs_server *server)
{
	uint64_t lowest = UINT64_MAX, highest = 0;
	lock_for_scope(&server->epochs_lock); /* of two changes at once somebody finds the later one */
	bool readers = fs_view_has_reader(fs_server_first_reader(server));
	for (uint32_t i = 0; i < server->n_views; i++) {
		struct fs_view_progress progress;
		if (readers && !fs_view_has_reader(server->views[i]))
			continue;
		fs_view_progress(server->views[i], &progress);
		lowest = progress.epoch < lowest ? progress.epoch : lowest;
		highest = progress.epoch > highest ? progress.epoch : highest;
	}
	atomic_store_explicit(&server->lowest_epoch, lowest, memory_order_relaxed);
	atomic_store_explicit(&server->highest_epoch, highest, memory_order_relaxed);
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

void fs_server_epoch_changed(struct fs_server *server, struct fs_view *view)
{
	fs_server_find_epochs(server);
	fuse_ino_t ino = fs_ino(fs_server_root(server, view->number));
	/* A negative offset drops attributes only. -ENOENT: the kernel does not have the inode, and so no old
	 * attributes. */
	fuse_lowlevel_notify_inval_inode(server->session, ino, -1, 0);
}
