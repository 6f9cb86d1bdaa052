/* Threads of ours that use our own mount.
 *
 * A system call on the mount waits for an answer that only this process gives, and not even SIGKILL ends that wait.  If the
 * process is killed (by the OOM killer, say), its last thread waits on: whatever stands in the descriptor table that all threads
 * share stays open, the supervisor's socket does not end, and a /dev/fuse without a supervisor is never closed.  A thread that
 * touches the mount therefore has a descriptor table of its own, without these two: the others die, the supervisor hears of it and
 * starts a successor, whose answers free the last thread, too; without a supervisor the kernel ends the session.
 *
 * Threads: fs_touch_detach by the thread itself, first; fs_touch_run from one thread at a time. */
#ifndef DDPFS_FS_TOUCH_H
#define DDPFS_FS_TOUCH_H

#include "fs/server.h"

/* Takes this thread out of the shared descriptor table and closes /dev/fuse and the supervisor's socket in its copy.  keep_others: the copies of all other
 * descriptors stay; else they are closed but for 0, 1 and 2.  What the thread opens later is its own. */
void fs_touch_detach(const struct fs_server *server, bool keep_others);

/* openat(2) with O_CLOEXEC, and the close(2) of what it gave, for a detached thread: TSan, which thinks of one table a process, does
 * not see them. -1 and errno. */
int fs_touch_open(int dirfd, const char *path, int flags);
void fs_touch_close(const int *fd); /* below 0 is fine */
#define cleanup_touch __attribute__((cleanup(fs_touch_close)))

struct fs_touch; /* opaque: a detached thread, `toucher`, that runs what it is given */

int fs_touch_new(const struct fs_server *server, struct fs_touch **ret_touch); /* -ENOMEM, -EAGAIN */
void fs_touch_free(struct fs_touch *touch); /* NULL is fine; the session must still be answered */

/* Runs fn(arg) in the thread and waits for its end. */
void fs_touch_run(struct fs_touch *touch, void (*fn)(void *arg), void *arg);

/* Between these nothing of ours has the mount open: an unmount then finds it busy only when it is.  Not from a FUSE worker:
 * what runs must be answered to end. */
void fs_touch_hold(struct fs_touch *touch);
void fs_touch_release(struct fs_touch *touch);

#endif
