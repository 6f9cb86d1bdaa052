/* The files of `.ddpfs/` whose content changes: stats.json, metrics, state.
 *
 * No file of the mount is ever opened as far as we can see, so a change must show in the attributes: each snapshot has
 * a new mtime and the same padded size, and attributes are not kept; the kernel then drops its pages.  Padding is carriage
 * returns behind the last newline, so that JSON stays JSON and a terminal shows none of it; of metrics, empty lines.
 *
 * Counters go on over the death of a server (fs/handover_memory.h); quantiles, rates and the waits of an epoch begin anew.
 *
 * Threads: any.
 *
 * Lock order: the lock of the snapshots is the outermost one of the server (fs/README.md); that of the counters of earlier
 * servers is a leaf. */
#ifndef DDPFS_FS_STATS_FILES_H
#define DDPFS_FS_STATS_FILES_H

#include "fs/server.h"

enum {
	FS_STATS_BYTES = 24576,
	FS_METRICS_BYTES = 32768,
	FS_STATE_BYTES = 1024,
	FS_SNAPSHOT_MS = 20, /* a snapshot younger than this is shown again: a read in pieces sees one */
};

int fs_stats_files_new(struct fs_server *server, struct fs_stats_files **ret_dynamic); /* -ENOMEM */
void fs_stats_files_free(struct fs_stats_files *dynamic);

/* Size and mtime of a fresh snapshot. */
int fs_stats_files_attr(struct fs_server *server, struct fs_node node, struct stat *attr);
/* Answers a READ from the last snapshot. */
void fs_stats_files_read(fuse_req_t req, struct fs_node node, size_t size, off_t off);

/* Leaves the counters to the server that will come after this one.  Whoever looks at them does so, too: what was shown never
 * falls.  What was counted since is lost with a server that is killed. */
void fs_stats_files_keep(struct fs_server *server);

/* The object of stats.json, and the options as the control socket's "info" tells them, as JSON text without newline;
 * malloc'd.  NULL: out of memory. */
char *fs_stats_json(struct fs_server *server, struct fs_view *view);
char *fs_info_json(struct fs_server *server, struct fs_view *view);

#endif
