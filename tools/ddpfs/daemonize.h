/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a server: in front, or in the background with a parent that returns when the mount answers.
 *
 * Threads: call from the main thread of a process that has no others. */
#ifndef DDPFS_TOOLS_DDPFS_DAEMONIZE_H
#define DDPFS_TOOLS_DDPFS_DAEMONIZE_H

#include <sys/types.h>

#include "shard/base/err.h"
#include "tools/ddpfs/mount_options.h"

/* Serves until unmounted or told to stop by a signal.  Logs on stderr (or log=FILE).  Returns 0 or -errno. */
int serve_front(const struct options *options, struct base_err *err);

struct serve_background {
	const struct options *options; /* paths in it are absolute */
	/* A process whose end ends the mount (a pidfd), or -1.  With one, the server heeds no signal but SIGKILL: a launcher
	 * that signals every process of a job would take the files away from a trainer that still writes its checkpoint. */
	int owner_pidfd;
	bool keep_stderr; /* go on logging there instead of to syslog */
};

/* Starts the server in a process of its own session, with /dev/null as standard input and output, and no other descriptor
 * of the caller.  Returns when the mount has answered (0), or when it failed: -errno and the server's own sentence, also
 * when it died without one; -EINTR when SIGINT, SIGTERM or SIGHUP came first (the server is gone then). */
int serve_background(const struct serve_background *how, struct base_err *err, pid_t *ret_pid);

#endif
