/* SPDX-License-Identifier: Apache-2.0 */
/* A line to the host's syslog, without waiting for it.
 *
 * syslog(3) waits as long as the daemon does not read, and keeps a socket open; this makes one a line, and a line that cannot be
 * taken at once is lost.
 *
 * Threads: any. */
#ifndef DDPFS_SHARD_BASE_SYSLOG_H
#define DDPFS_SHARD_BASE_SYSLOG_H

#define BASE_SYSLOG_PATH "/dev/log"

enum { BASE_SYSLOG_BYTES_MAX = 4096 }; /* of what is sent; longer lines are cut */

/* `priority` as syslog(3) has it; the line goes out as LOG_DAEMON, named `name` and by our pid.  -ENOENT, -ECONNREFUSED: nobody
 * listens at `path`; -EAGAIN: it does not read; other -errno. */
int base_syslog(const char *path, const char *name, int priority, const char *line);

#endif
