/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of the server that use the server's own mount.
 *
 * A system call on the mount waits for an answer that only this process gives, and not even SIGKILL ends that wait.
 * If something kills the process (the OOM killer, say), such a thread waits on. The descriptor table that all threads
 * share then stays open. So the supervisor's socket does not end, and a /dev/fuse without a supervisor is never
 * closed.
 *
 * Such a thread therefore has a descriptor table of its own, without these two descriptors. When the other threads
 * die, the supervisor hears of it and starts a successor. The successor's answers free the last thread, too. Without
 * a supervisor the kernel ends the session.
 *
 * Threads: each thread calls fs_detached_detach for itself, first; fs_detached_run from one thread at a time. */
#ifndef DDPFS_FS_DETACHED_THREAD_H
#define DDPFS_FS_DETACHED_THREAD_H

#include <limits.h>
#include <stdbool.h>

struct fs_server;

/* Takes this thread out of the shared descriptor table, and closes /dev/fuse and the supervisor's socket in its own
 * copy. What the thread opens later is its own.
 * @keep_others: the copies of all other descriptors stay open; if false, only 0, 1 and 2 do. */
void fs_detached_detach(const struct fs_server *server, bool keep_others);

/* openat(2) with O_CLOEXEC, and close(2) of its result, for a detached thread. They call the kernel directly, because
 * TSan knows only one descriptor table a process. -1 and errno. */
int fs_detached_open(int dirfd, const char *path, int flags);
void fs_detached_close(const int *fd); /* below 0 is fine */
#define cleanup_detached_fd __attribute__((cleanup(fs_detached_close)))

/* The root of the server's own mount, for a detached thread.
 *
 * A path walk to the mountpoint makes umount(2) of it fail with EBUSY, if umount(2) comes before the walk has ended. An
 * open descriptor does, too. So the thread looks names up through a copy of the mount that is attached nowhere
 * (open_tree(2)). To make the copy is such a walk, too, so a thread makes it once, before the mount is ready.
 * The copy keeps the file system alive after an unmount. So its thread closes it when fs_server.gone is set. */
struct fs_detached_root {
	int fd;         /* of the copy; AT_FDCWD: there is no copy, names go through the mountpoint */
	const char *at; /* what stands before a name that is given with `fd`: "" or "<mountpoint>/" */
	char buf[PATH_MAX];
};

/* Opens the copy. Without CAP_SYS_ADMIN there is none (fd: AT_FDCWD), which is no error. Makes the mount busy for
 * some microseconds.
 * Returns 0; -ESTALE: another file system is at the mountpoint; -ENAMETOOLONG. */
int fs_detached_root_open(const struct fs_server *server, struct fs_detached_root *ret_root);
/* Closes the copy, if there is one. */
void fs_detached_root_close(const struct fs_detached_root *root);

typedef void fs_detached_fn(void *arg, const struct fs_detached_root *root);
struct fs_detached; /* opaque: a detached thread, `toucher`, that runs what it is given */

/* Starts the thread, and waits until it has its copy of the mount. The thread keeps the copy for its whole life, or
 * until fs_detached_let_go. Returns 0; -ENOMEM, -EAGAIN. */
int fs_detached_new(const struct fs_server *server, struct fs_detached **ret_detached);
/* Ends the thread; NULL is fine. The session must still be answered. */
void fs_detached_free(struct fs_detached *detached);

/* Runs fn(arg, root) in the thread and waits until it returns. Runs nothing if the mountpoint leads elsewhere. */
void fs_detached_run(struct fs_detached *detached, fs_detached_fn *fn, void *arg);

/* Makes the thread close its copy as soon as nothing runs, because the mount was unmounted (fs_server.gone). Does not
 * wait. Main. */
void fs_detached_let_go(struct fs_detached *detached);

/* From hold to release the thread does not make the mount busy, so an unmount finds the mount busy only if others use
 * it. Not from a FUSE worker: what the thread runs must be answered to end. */
void fs_detached_hold(struct fs_detached *detached);
void fs_detached_release(struct fs_detached *detached);

#endif
