/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of ours that use our own mount.
 *
 * A system call on the mount waits for an answer that only this process gives, and not even SIGKILL ends that wait.  If the
 * process is killed (by the OOM killer, say), its last thread waits on: whatever stands in the descriptor table that all threads
 * share stays open, the supervisor's socket does not end, and a /dev/fuse without a supervisor is never closed.  A thread that
 * touches the mount therefore has a descriptor table of its own, without these two: the others die, the supervisor hears of it and
 * starts a successor, whose answers free the last thread, too; without a supervisor the kernel ends the session.
 *
 * Threads: fs_detached_detach by the thread itself, first; fs_detached_run from one thread at a time. */
#ifndef DDPFS_FS_DETACHED_THREAD_H
#define DDPFS_FS_DETACHED_THREAD_H

#include <limits.h>

#include "fs/server.h"

/* Takes this thread out of the shared descriptor table and closes /dev/fuse and the supervisor's socket in its copy.
 * keep_others: the copies of all other descriptors stay; else they are closed but for 0, 1 and 2.  What the thread opens
 * later is its own. */
void fs_detached_detach(const struct fs_server *server, bool keep_others);

/* openat(2) with O_CLOEXEC, and the close(2) of what it gave, for a detached thread: TSan, which thinks of one table a process, does
 * not see them. -1 and errno. */
int fs_detached_open(int dirfd, const char *path, int flags);
void fs_detached_close(const int *fd); /* below 0 is fine */
#define cleanup_touch __attribute__((cleanup(fs_detached_close)))

/* The root of our own mount, for a detached thread that uses the mount.
 *
 * A path walk that waits for an answer, and a descriptor, pin the mount that they went through: umount(2) of that mount
 * fails with EBUSY.  So names are looked up through a copy of the mount that is attached nowhere (open_tree(2)).  The copy
 * keeps the file system alive after an unmount: a thread holds it for milliseconds, or asks fs_detached_mounted in between. */
struct fs_detached_root {
	int fd;         /* of the copy; AT_FDCWD: there is none, and names go through the mountpoint */
	const char *at; /* what stands before a name that is given together with `fd`; "" or "<mountpoint>/" */
	char buf[PATH_MAX];
};

/* Without CAP_SYS_ADMIN there is no copy (fd: AT_FDCWD), which is no error.
 * -ESTALE: another file system lies at the mountpoint; -ENAMETOOLONG. */
int fs_detached_root_open(const struct fs_server *server, struct fs_detached_root *ret_root);
void fs_detached_root_close(const struct fs_detached_root *root);

/* False: the mount was unmounted, or something is mounted over it. */
bool fs_detached_mounted(const struct fs_server *server);

struct fs_detached; /* opaque: a detached thread, `toucher`, that runs what it is given */

int fs_detached_new(const struct fs_server *server, struct fs_detached **ret_touch); /* -ENOMEM, -EAGAIN */
void fs_detached_free(struct fs_detached *touch); /* NULL is fine; the session must still be answered */

/* Runs fn(arg) in the thread and waits for its end. */
void fs_detached_run(struct fs_detached *touch, void (*fn)(void *arg), void *arg);

/* Between these nothing of ours has the mount open: an unmount then finds it busy only when it is.  Not from a FUSE worker:
 * what runs must be answered to end. */
void fs_detached_hold(struct fs_detached *touch);
void fs_detached_release(struct fs_detached *touch);

#endif
