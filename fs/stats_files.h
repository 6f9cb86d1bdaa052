/* SPDX-License-Identifier: Apache-2.0 */
/* The files of `.ddpfs/` whose content changes: stats.json, metrics, state.  Their texts come from fs/stats.h.
 *
 * No file of the mount is ever opened as far as we can see, so a change must show in the attributes.  Each snapshot has a new mtime and
 * the same padded size, and the kernel keeps no attributes; so it drops its pages.  Padding is carriage returns behind the
 * last newline: JSON stays JSON, and a terminal shows none of it.  Of metrics it is empty lines.
 *
 * Threads: any; one lock, outside of the locks that making a text takes. */
#ifndef DDPFS_FS_STATS_FILES_H
#define DDPFS_FS_STATS_FILES_H

#include "fs/server.h"

enum {
	FS_STATS_BYTES = 24576,
	FS_METRICS_BYTES = 32768,
	FS_STATE_BYTES = 1024,
	FS_SNAPSHOT_MS = 20, /* a snapshot younger than this is shown again: a read in pieces sees one */
};

/* Writes a view's text into buf[size] and returns its length, at most `size`; 0: none. */
typedef size_t fs_stats_files_text(struct fs_server *server, struct fs_view *view, char *buf, size_t size);

int fs_stats_files_new(struct fs_server *server, fs_stats_files_text *stats, fs_stats_files_text *metrics,
        fs_stats_files_text *state, struct fs_stats_files **ret_files); /* -ENOMEM */
void fs_stats_files_free(struct fs_stats_files *files);                 /* NULL is fine */

/* Size and mtime of a fresh snapshot. */
int fs_stats_files_attr(struct fs_server *server, struct fs_node node, struct stat *attr);
/* Answers a READ from the last snapshot. */
void fs_stats_files_read(fuse_req_t req, struct fs_node node, size_t size, off_t off);

#endif
