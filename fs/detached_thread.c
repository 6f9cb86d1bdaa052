/* SPDX-License-Identifier: Apache-2.0 */
/* Threads with a descriptor table of their own, which use the server's own mount; fs/detached_thread.h first. */
#include "fs/detached_thread.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "fs/server.h"
#include "fs/supervise/mount.h"
#include "shard/base/cleanup.h"

struct fs_detached {
	const struct fs_server *server;
	pthread_t thread;
	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t changed;
	fs_detached_fn *fn; /* what to run; NULL: nothing, or it is done */
	void *arg;
	bool ready; /* the thread has its copy of the mount, if it can have one */
	bool stop;
	pthread_mutex_t busy; /* held while something runs; taken before `lock` */
	/* The thread's own. */
	struct fs_detached_root root;
	bool has_root;
};

int fs_detached_open(int dirfd, const char *path, int flags)
{
	return (int)syscall(SYS_openat, dirfd, path, flags | O_CLOEXEC);
}

void fs_detached_close(const int *fd)
{
	if (*fd >= 0)
		syscall(SYS_close, *fd);
}

void fs_detached_detach(const struct fs_server *server, bool keep_others)
{
	/* If a sandbox forbids it, everything works as before, except the case at the top of the header. */
	if (unshare(CLONE_FILES) < 0)
		return;
	if (keep_others) {
		fs_detached_close(&(int){ server->fuse_fd });
		fs_detached_close(&(int){ server->channel->channel });
	} else {
		close_range(3, UINT_MAX, 0);
	}
	/* `ddpfs mount` may have been started with a pipe as stderr. Whoever waits for that pipe to end would also
	 * wait for this copy. Opened for reading, because a confined server opens nothing for writing. */
	cleanup_detached_fd int null =
	        server->options.gives_up_stderr ? fs_detached_open(AT_FDCWD, "/dev/null", O_RDONLY) : -1;
	if (null >= 0)
		syscall(SYS_dup3, null, STDERR_FILENO, 0);
}

int fs_detached_root_open(const struct fs_server *server, struct fs_detached_root *ret_root)
{
	const char *mountpoint = server->options.mountpoint;
	struct statx st;
	int len = snprintf(ret_root->buf, sizeof(ret_root->buf), "%s/", mountpoint);
	if (len < 0 || (size_t)len >= sizeof(ret_root->buf))
		return -ENAMETOOLONG;
	int fd = (int)syscall(SYS_open_tree, AT_FDCWD, mountpoint, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
	if (fd < 0) {
		ret_root->fd = AT_FDCWD;
		ret_root->at = ret_root->buf;
		return fs_mount_leads_to(mountpoint, server->dev) ? 0 : -ESTALE;
	}
	/* The kernel answers this without the server. */
	if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &st) < 0 ||
	        makedev(st.stx_dev_major, st.stx_dev_minor) != server->dev) {
		fs_detached_close(&fd);
		return -ESTALE;
	}
	ret_root->fd = fd;
	ret_root->at = "";
	return 0;
}

void fs_detached_root_close(const struct fs_detached_root *root)
{
	fs_detached_close(&root->fd); /* AT_FDCWD is below 0 */
}

static void get_root(struct fs_detached *detached)
{
	if (!detached->has_root && !detached->server->gone)
		detached->has_root = fs_detached_root_open(detached->server, &detached->root) == 0;
}

/* A path that is kept instead of a copy might lead elsewhere later; and who keeps a copy must hear of the unmount. */
static bool may_keep_root(const struct fs_detached *detached)
{
	const struct fs_server *server = detached->server;
	return detached->root.fd >= 0 && server->mounts_fd >= 0 && !server->gone;
}

static void put_root(struct fs_detached *detached)
{
	if (detached->has_root)
		fs_detached_root_close(&detached->root);
	detached->has_root = false;
}

static void *detached_main(void *arg)
{
	struct fs_detached *detached = arg;
	pthread_setname_np(pthread_self(), "toucher");
	fs_detached_detach(detached->server, false);
	get_root(detached);
	pthread_mutex_lock(&detached->lock);
	detached->ready = true;
	pthread_cond_broadcast(&detached->changed);
	while (!detached->stop) {
		fs_detached_fn *fn = detached->fn;
		bool put = detached->has_root && !may_keep_root(detached);
		if (!fn && !put) {
			pthread_cond_wait(&detached->changed, &detached->lock);
			continue;
		}
		/* Without the lock: after an unmount the last copy ends the session, which waits for notifications. */
		pthread_mutex_unlock(&detached->lock);
		if (put)
			put_root(detached);
		if (fn)
			get_root(detached);
		if (fn && detached->has_root)
			fn(detached->arg, &detached->root);
		pthread_mutex_lock(&detached->lock);
		if (fn)
			detached->fn = NULL;
		pthread_cond_broadcast(&detached->changed);
	}
	pthread_mutex_unlock(&detached->lock);
	put_root(detached);
	return NULL;
}

int fs_detached_new(const struct fs_server *server, struct fs_detached **ret_detached)
{
	struct fs_detached *detached = calloc(1, sizeof(*detached));
	if (!detached)
		return -ENOMEM;
	detached->server = server;
	pthread_mutex_init(&detached->lock, NULL);
	pthread_mutex_init(&detached->busy, NULL);
	pthread_cond_init(&detached->changed, NULL);
	int rc = -pthread_create(&detached->thread, NULL, detached_main, detached);
	if (rc < 0) {
		pthread_cond_destroy(&detached->changed);
		pthread_mutex_destroy(&detached->busy);
		pthread_mutex_destroy(&detached->lock);
		free(detached);
		return rc;
	}
	lock_for_scope(&detached->lock);
	while (!detached->ready)
		pthread_cond_wait(&detached->changed, &detached->lock);
	*ret_detached = detached;
	return 0;
}

void fs_detached_free(struct fs_detached *detached)
{
	if (!detached)
		return;
	{
		lock_for_scope(&detached->lock);
		detached->stop = true;
		pthread_cond_broadcast(&detached->changed);
	}
	pthread_join(detached->thread, NULL);
	pthread_cond_destroy(&detached->changed);
	pthread_mutex_destroy(&detached->busy);
	pthread_mutex_destroy(&detached->lock);
	free(detached);
}

void fs_detached_run(struct fs_detached *detached, fs_detached_fn *fn, void *arg)
{
	lock_for_scope(&detached->busy);
	lock_for_scope(&detached->lock);
	detached->fn = fn;
	detached->arg = arg;
	pthread_cond_broadcast(&detached->changed);
	while (detached->fn)
		pthread_cond_wait(&detached->changed, &detached->lock);
}

void fs_detached_let_go(struct fs_detached *detached)
{
	lock_for_scope(&detached->lock);
	pthread_cond_broadcast(&detached->changed);
}

void fs_detached_hold(struct fs_detached *detached)
{
	pthread_mutex_lock(&detached->busy);
}

void fs_detached_release(struct fs_detached *detached)
{
	pthread_mutex_unlock(&detached->busy);
}
