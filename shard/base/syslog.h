/* SPDX-License-Identifier: Apache-2.0 */
/* Sends a line to the syslog of the host, without waiting.
 *
 * syslog(3) waits while the daemon does not read, and keeps a socket open.  This function opens a socket for each line.
 * A line that the daemon cannot take at once is lost.
 *
 * Threads: any. */
#ifndef DDPFS_SHARD_BASE_SYSLOG_H
#define DDPFS_SHARD_BASE_SYSLOG_H

#define BASE_SYSLOG_PATH "/dev/log"

enum { BASE_SYSLOG_BYTES_MAX = 4096 }; /* bytes of a message; longer lines are cut */

/* Sends a line with facility LOG_DAEMON, `name` and the pid of this process.  path: the socket of the daemon.
 * priority: as for syslog(3).
 * Returns 0; -ENOENT, -ECONNREFUSED: nobody listens at `path`; -EAGAIN: the daemon does not read; -ENAMETOOLONG: path;
 * other errors of socket(2), connect(2) and send(2). */
int base_syslog(const char *path, const char *name, int priority, const char *line);

#endif
