/* SPDX-License-Identifier: Apache-2.0 */
/* The supervisor: the process that keeps a mount alive over the death of its server.
 *
 *     supervisor  ==fork==>  server        answers the kernel on /dev/fuse
 *         keeps: /dev/fuse, INIT, inotify, control socket, memory (fs/supervise/channel.h, fs/supervise/handover_memory.h)
 *
 * When the server dies (crash, OOM killer, kill -9) or hangs, the supervisor starts another one on the same descriptor and
 * writes FUSE_NOTIFY_RESEND: the kernel (6.9 and later) hands out again what the dead one had taken and not answered.  Inodes,
 * handles and contents are pure functions, so readers notice a pause and nothing else.  An older kernel cannot hand out
 * again: there each server gets a clone of the descriptor (FUSE_DEV_IOC_CLONE), whose end ends its requests with
 * ECONNABORTED, and the mount goes on; where not even a clone is to be had, the mount ends with its first server.
 *
 *     SERVER_NONE --start--> SERVER_STARTING --READY--> SERVER_SERVING --ENDING--> SERVER_ENDING
 *          ^                        |                         |                         |
 *          +--- bury, one outcome --+-------------------------+-------------------------+
 *
 *     outcome of a server   known by                             then
 *     OUTCOME_DONE, EXITED  its exit status                      the mount ends if it was SERVER_ENDING; else another one
 *     OUTCOME_KILLED        SIGKILL, or it is gone without word  another one: no fault of its own
 *     OUTCOME_CRASHED       its last words, a signal, a core     another one
 *     OUTCOME_FAILED        FS_CHANNEL_FAILED                       before it served: more tries for `timeout=`
 *     OUTCOME_HUNG          the watchdog, which kills it         another one
 *
 * A server fails before it serves when its dataset is away: renamed, or an automounter takes its time.  The supervisor tries
 * again with growing pauses for `timeout_s`; readers wait meanwhile.  If another dataset lies there (-ESTALE), the mount is
 * given up.
 *
 * A server that ends otherwise FS_SUPERVISOR_FAILURES_MAX times in FS_SUPERVISOR_FAILURES_S seconds, or 20 times without having served for
 * longer than that in between, is given up: the descriptor is
 * closed, and all readers get ENOTCONN.  A kill from outside (SIGKILL) is no failure of its own.
 * The supervisor's own death ends the server (PR_SET_PDEATHSIG), and with it the mount.
 *
 * It has one thread, maps neither index nor shards, never touches the mount, and allocates nothing while it waits.
 *
 * A server may do little (fs/supervise/confine.h): the supervisor unmounts for it, writes what it logs, and sends a greeter to the other mounts
 * of the dataset (fs/host_sharing.h), the first and the last in processes of their own.
 *
 * Threads: call from the main thread of a process that has no others. */
#ifndef DDPFS_FS_SUPERVISE_SUPERVISOR_H
#define DDPFS_FS_SUPERVISE_SUPERVISOR_H

#include <stdint.h>
#include <sys/types.h>

#include "shard/base/control_client.h"
#include "fs/supervise/channel.h"

enum {
	FS_SUPERVISOR_FAILURES_MAX = 5,
	FS_SUPERVISOR_FAILURES_S = 60,
	FS_SUPERVISOR_GRACE_MS = 50,   /* from a server's end to its successor's start when it cannot be reaped */
	FS_SUPERVISOR_STOP_MS = 10000, /* for a server to unmount and end before it is killed */
};

/* What a supervisor holds, for another program that becomes the supervisor (restart). */
struct fs_supervised {
	int fuse_fd, estate_fd, inotify_fd, control_fd; /* inotify_fd may be -1 */
	char control_path[BASE_CONTROL_PATH_MAX];
	struct fs_channel_mount mount;
	uint64_t started_ns;
	uint64_t first_start_ns; /* from the first server's start to its READY; 0: it is not known */
	uint32_t restarts;
};

struct fs_supervise {
	const char *mountpoint;
	const char *control_path; /* NULL: the default place (shard/base/control_client.h) */
	uint32_t watchdog_s;      /* a server that hangs for so long is replaced; 0: never */
	uint32_t timeout_s;       /* how long a successor that fails before it serves is tried again; 0: not at all */
	/* The server, in a process of its own: mounts, or takes over, and serves until the mount ends.  It calls `ready(ready_arg)` once when
	 * the mount answers.  Returns 0, or -errno with its sentence. */
	int (*serve)(const void *arg, const struct fs_channel *channel, void (*ready)(void *arg), void *ready_arg,
	        struct base_err *err);
	const void *serve_arg;
	/* Tells the other mounts of this one, in a process of its own. */
	void (*greet)(const char *control_path);
	int owner_pidfd;                      /* a process whose end ends the mount, and then signals do not; or -1 */
	const struct fs_supervised *takeover; /* NULL: a new mount */
	/* The mount answers: called in the first server (from its helper thread), then in the supervisor.  May be NULL. */
	void (*ready_server)(void *arg);
	void (*ready)(void *arg);
	/* `program` is to go on with what `held` says.  go false: only see whether it can (-errno, err says why not); true:
	 * become it; returns only when that fails.  NULL: restarting is refused. */
	int (*restart)(void *arg, const char *program, const struct fs_supervised *held, bool go, struct base_err *err);
	void *arg;
};

/* Mounts and serves until the mount ends.  Returns 0 at its proper end; -errno with the server's own sentence when it could not
 * be mounted, or why it was given up (*ret_ready: after it had answered). */
int fs_supervise(const struct fs_supervise *how, struct base_err *err, bool *ret_ready);

#endif
