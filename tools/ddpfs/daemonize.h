/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the supervisor and server of a mount, in the foreground or in the background.
 *
 * Threads: call from the main thread of a process without other threads. */
#ifndef DDPFS_TOOLS_DDPFS_DAEMONIZE_H
#define DDPFS_TOOLS_DDPFS_DAEMONIZE_H

#include <stdint.h>
#include <sys/types.h>

#include "shard/base/err.h"
#include "tools/ddpfs/mount_options.h"

/* Serves in this process until somebody unmounts, or until a signal stops it.  Logs on stderr, or to log=FILE.
 *
 * Returns 0, or -errno with a sentence. */
int serve_front(const struct options *options, struct base_err *err);

struct serve_background {
	const struct options *options; /* its paths are absolute */
	/* A pidfd of the process whose end ends the mount, or -1.  With one, the server ignores all signals except
	 * SIGKILL: a launcher signals every process of a job, and a trainer that then writes its checkpoint still
	 * needs its files. */
	int owner_pidfd;
	bool keep_stderr; /* log on stderr instead of to syslog */
	bool quiet;       /* a terminal does not show that the mount takes long to answer */
	/* Of this process in its job.  If there are several, lines name the rank until the mount answers. */
	uint32_t task_rank, task_world;
};

/* Starts the server in a process with its own session (not on a mountpoint of autofs: there it stays in the process
 * group of the automounter).  Its standard input and output are /dev/null, and it keeps no
 * other descriptor of the caller.
 *
 * Returns 0 when the mount has answered, with the process id.  Returns -errno with the server's sentence if it
 * failed, also if it died without a report; -EINTR if SIGINT, SIGTERM or SIGHUP came first (the server has then
 * ended). */
int serve_background(const struct serve_background *how, struct base_err *err, pid_t *ret_pid);

#endif
