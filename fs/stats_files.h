/* SPDX-License-Identifier: Apache-2.0 */
/* The files of `.ddpfs/` whose content changes: stats.json, metrics, state. fs/stats.h makes their texts.
 *
 * The server sees no OPEN, so only attributes can tell the kernel of a change. Each snapshot has a new mtime and the
 * same padded size, and the kernel keeps no attributes of these files. So it drops its pages when the mtime changes.
 *
 * The padding is carriage returns after the last newline: JSON stays JSON, and a terminal does not show them. The
 * padding of metrics is empty lines.
 *
 * Threads: any; one lock, outside of the locks that making a text takes. */
#ifndef DDPFS_FS_STATS_FILES_H
#define DDPFS_FS_STATS_FILES_H

#include "fs/server.h"

enum {
	FS_STATS_BYTES = 24576,
	FS_METRICS_BYTES = 32768,
	FS_STATE_BYTES = 1024,
	FS_SNAPSHOT_MS = 20, /* a younger snapshot is shown again, so that a read in pieces sees one snapshot */
};

/* Writes a view's text into buf[size]. Returns its length in bytes, at most `size`; 0: none. */
typedef size_t fs_stats_files_text(struct fs_server *server, struct fs_view *view, char *buf, size_t size);

/* Makes the files; the three functions write their texts. Returns 0; -ENOMEM. */
int fs_stats_files_new(struct fs_server *server, fs_stats_files_text *stats, fs_stats_files_text *metrics,
        fs_stats_files_text *state, struct fs_stats_files **ret_files);
void fs_stats_files_free(struct fs_stats_files *files); /* NULL is fine */

/* Writes size and mtime of a snapshot into *attr: a fresh one if the last is too old. Returns 0. */
int fs_stats_files_attr(struct fs_server *server, struct fs_node node, struct stat *attr);
/* Answers a READ from the last snapshot. */
void fs_stats_files_read(fuse_req_t req, struct fs_node node, size_t size, off_t off);

#endif
