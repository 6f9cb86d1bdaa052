/* SPDX-License-Identifier: Apache-2.0 */
/* The supervisor: the process that keeps a mount alive when its server ends.
 *
 *     supervisor  ==fork==>  server        answers the kernel on /dev/fuse
 *         holds: /dev/fuse, INIT, inotify, the control socket, the handover memory
 *         (fs/supervise/channel.h, fs/supervise/handover_memory.h)
 *
 * When the server dies (crash, OOM killer, kill -9) or hangs, the supervisor starts another one on the same
 * descriptor.  It also writes FUSE_NOTIFY_RESEND: the kernel (Linux 6.9 and later) resends the requests that the dead
 * server took and did not answer.  Inodes, handles and contents are pure functions, so readers notice a pause only.
 *
 * An older kernel cannot resend.  There each server gets a clone of the descriptor (FUSE_DEV_IOC_CLONE).  When the
 * clone ends, its requests fail with ECONNABORTED, and the mount goes on.  If the kernel gives no clone, the mount
 * ends with its first server.
 * A server that is killed while it stores a page can wait in the kernel for a request that it had taken itself.  Then
 * the request does not end.  So before such a mount is unmounted, the supervisor aborts its session; and it gives the
 * mount up when the server has not ended for `timeout_s`.
 *
 *     SERVER_NONE --start--> SERVER_STARTING --READY--> SERVER_SERVING --ENDING--> SERVER_ENDING
 *          ^                        |                         |                         |
 *          +--- one outcome --------+-------------------------+-------------------------+
 *
 *     outcome of a server   known by                             then
 *     OUTCOME_DONE, EXITED  its exit status                      SERVER_ENDING: the mount ends; else another one
 *     OUTCOME_KILLED        SIGKILL, or it ended without a word  another one: no fault of its own
 *     OUTCOME_CRASHED       FS_CHANNEL_CRASHED, a signal, core   another one
 *     OUTCOME_FAILED        FS_CHANNEL_FAILED                    before it served: more tries for `timeout=`
 *     OUTCOME_HUNG          the watchdog, which kills it         another one
 *
 * A server fails before it serves if its dataset is away: it was renamed, or an automounter is slow.  The supervisor
 * tries again for `timeout_s`, with growing pauses; readers wait meanwhile.  If another dataset is there (-ESTALE),
 * it gives the mount up.
 *
 * The supervisor also gives the mount up in two other cases:
 *   - servers end in another way FS_SUPERVISOR_FAILURES_MAX times in FS_SUPERVISOR_FAILURES_S seconds
 *   - more than 20 servers in a row end, none of which served for longer than FS_SUPERVISOR_FAILURES_S seconds
 * A kill from outside (SIGKILL) is no failure: it does not count in the first case, nor in the second once the server
 * has served.  To give up means: it closes the descriptor, and all readers get ENOTCONN.  When the supervisor itself
 * dies, the server dies (PR_SET_PDEATHSIG), and so the mount ends.
 *
 * The supervisor has one thread.  It maps neither index nor shards, never uses the mount, and allocates nothing while
 * it waits.
 *
 * A server has few rights (fs/supervise/confine.h).  So the supervisor does three things for it: it unmounts, writes
 * the server's lines to the log, and tells the other mounts of the dataset (fs/host_sharing.h).  The unmounter and
 * the greeter are processes of their own.
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
	FS_SUPERVISOR_GRACE_MS = 50,   /* from a server's end to its successor's start if it cannot be reaped */
	FS_SUPERVISOR_STOP_MS = 10000, /* a server that shall unmount and end is killed after this time */
};

/* What a supervisor holds, for another program that becomes the supervisor (`ddpfs restart`). */
struct fs_supervised {
	int fuse_fd, handover_fd, inotify_fd, control_fd; /* inotify_fd may be -1 */
	char control_path[BASE_CONTROL_PATH_MAX];
	uint64_t control_ino; /* of the socket at control_path */
	struct fs_channel_mount mount;
	uint64_t started_ns;     /* of the mount, CLOCK_MONOTONIC */
	uint64_t first_start_ns; /* from the first server's start to its READY; 0: unknown */
	uint32_t restarts;       /* servers before the current one */
};

struct fs_supervise {
	const char *mountpoint;
	const char *control_path; /* NULL: the default place (shard/base/control_client.h) */
	uint32_t watchdog_s;      /* a server that hangs this long is replaced; 0: never */
	uint32_t timeout_s;       /* how long to try again while successors fail before they serve; 0: not at all */
	/* The server, in a process of its own: mounts, or takes the mount over, and serves until the mount ends.  Calls
	 * `ready(ready_arg)` once when the mount answers.  Returns 0, or -errno with its sentence. */
	int (*serve)(const void *arg, const struct fs_channel *channel, void (*ready)(void *arg), void *ready_arg,
	        struct base_err *err);
	const void *serve_arg;
	/* Tells the other mounts of this one, in a process of its own. */
	void (*greet)(const char *control_path);
	int owner_pidfd;                      /* the mount ends when this process ends, and not by signals; -1: none */
	const struct fs_supervised *takeover; /* NULL: a new mount */
	/* The mount answers.  Called in the first server by its helper thread, then in the supervisor.  May be NULL. */
	void (*ready_server)(void *arg);
	void (*ready)(void *arg);
	/* `program` shall go on with what `held` says.  go false: checks whether it can.  Returns 0, or -errno and
	 * `err` says why not.  go true: becomes that program; returns only if that fails.  NULL: restarting is
	 * refused. */
	int (*restart)(void *arg, const char *program, const struct fs_supervised *held, bool go, struct base_err *err);
	void *arg; /* of ready_server, ready and restart */
};

/* Mounts (or takes a mount over) and supervises its servers until the mount ends.  *ret_ready: the mount may have
 * been used.
 * Returns 0 when the mount was unmounted; -errno with the server's sentence if it could not be mounted, or with the
 * reason why it was given up. */
int fs_supervise(const struct fs_supervise *how, struct base_err *err, bool *ret_ready);

#endif
