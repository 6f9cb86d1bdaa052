/* The page-cache sink: what the engine has read ahead goes into the kernel before the trainer opens it.
 *
 *   announce   the lister thread lists its own mount at the window's offset (flat) or looks names up (tree): the kernel
 *              then has inodes and names
 *   store      FUSE_NOTIFY_STORE: a file's bytes into its page cache
 *   drop       FUSE_NOTIFY_PRUNE where the kernel has it (inode, names and pages), else INVAL_INODE (pages)
 *
 * What the trainer opens comes back from the watcher and moves the streams.
 *
 * Threads: see prefetch/sink.h; fs_sink_* below are for main, and fs_sink_epoch for any. */
#ifndef DDPFS_FS_SINK_H
#define DDPFS_FS_SINK_H

#include "fs/server.h"
#include "prefetch/sink.h"
#include "prefetch/stream.h"

struct fs_sink; /* opaque */

int fs_sink_new(struct fs_server *server, struct fs_sink **ret_sink); /* -ENOMEM */
void fs_sink_free(struct fs_sink *sink);                              /* NULL is fine; stopped */

struct prefetch_sink *fs_sink_base(struct fs_sink *sink);

/* Starts a stream for every view.  The workers must run, the watcher not yet. */
int fs_sink_start(struct fs_sink *sink);

/* Ends the streams.  The watcher must have stopped, the session must still be answered. */
void fs_sink_stop(struct fs_sink *sink);

/* Somebody set the epoch of a view by hand.  (A listing that moves on need not be told: the trainer's opens do it, and
 * somebody else's `ls` must not.) */
void fs_sink_epoch(struct fs_sink *sink, struct fs_view *view, uint64_t epoch);

/* Between these (from main) the lister has nothing of the mount open, so that it can be unmounted. */
void fs_sink_hold(struct fs_sink *sink);
void fs_sink_release(struct fs_sink *sink);

/* Of a view's stream; zeros when there is none. */
void fs_sink_stats(struct fs_sink *sink, struct fs_view *view, struct prefetch_stream_stats *ret_stats);

/* The epoch that a marked listing of the root shows (fs/dir.h): the lister's own. */
uint64_t fs_sink_announced_epoch(struct fs_sink *sink);

#endif
