/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of a mount.  `collect` in the .c is the table: a new statistic is a line there.
 *
 * Counters go on over the death of a server (fs/supervise/handover_memory.h); quantiles, rates and the waits of an epoch begin anew.
 *
 * Threads: any. */
#ifndef DDPFS_FS_STATS_H
#define DDPFS_FS_STATS_H

#include "fs/server.h"

int fs_stats_new(struct fs_server *server, struct fs_stats **ret_stats); /* -ENOMEM */
void fs_stats_free(struct fs_stats *stats);                              /* NULL is fine */

/* Leaves the counters to the server that comes after this one.  Whoever looks at them does so, too: what was shown never
 * falls.  What was counted since is lost with a server that is killed. */
void fs_stats_keep(struct fs_server *server);

/* The object of stats.json, and the options as the control socket's "info" tells them, as JSON text without newline;
 * malloc'd.  NULL: out of memory. */
char *fs_stats_json(struct fs_server *server, struct fs_view *view);
char *fs_info_json(struct fs_server *server, struct fs_view *view);

/* The texts of stats.json, metrics and state, in buf[size].  Return their length. */
size_t fs_stats_text(struct fs_server *server, struct fs_view *view, char *buf, size_t size);
size_t fs_metrics_text(struct fs_server *server, struct fs_view *view, char *buf, size_t size);
size_t fs_state_text(struct fs_server *server, struct fs_view *view, char *buf, size_t size);

#endif
