/* SPDX-License-Identifier: Apache-2.0 */
/* The statistics of a mount. `collect` in fs/stats.c is the table: a new statistic is a line there.
 *
 * Counters go on when a server dies (fs/supervise/handover_memory.h). Quantiles, rates and the waits of an epoch
 * begin anew.
 *
 * Threads: any. */
#ifndef DDPFS_FS_STATS_H
#define DDPFS_FS_STATS_H

#include <stddef.h>

struct fs_server;
struct fs_view;
struct fs_stats;

/* Makes the statistics; a successor takes over what earlier servers counted. Returns 0; -ENOMEM. */
int fs_stats_new(struct fs_server *server, struct fs_stats **ret_stats);
void fs_stats_free(struct fs_stats *stats); /* NULL is fine */

/* Leaves the counters to the next server. Every function that shows them does so, too, so that what was shown never
 * falls. What a killed server counted since its last call is lost. */
void fs_stats_keep(struct fs_server *server);

struct fs_history_reading;
/* Writes the statistics of the whole mount that fs_history_names names into a reading, but not its time. With view=all
 * a recognised sampler says how far the trainer is. */
void fs_stats_reading(struct fs_server *server, struct fs_history_reading *ret_reading);

/* Returns the object of stats.json (fs_stats_json), or the options as "info" of the control socket tells them
 * (fs_info_json). @view: NULL: of all ranks together (fs_server_progress). JSON text without newline, malloc'd; NULL:
 * out of memory. */
char *fs_stats_json(struct fs_server *server, struct fs_view *view);
char *fs_info_json(struct fs_server *server, struct fs_view *view);

/* Write the text of stats.json, metrics or state into buf[size]. Return its length in bytes. */
size_t fs_stats_text(struct fs_server *server, struct fs_view *view, char *buf, size_t size);
size_t fs_metrics_text(struct fs_server *server, struct fs_view *view, char *buf, size_t size);
size_t fs_state_text(struct fs_server *server, struct fs_view *view, char *buf, size_t size);

#endif
