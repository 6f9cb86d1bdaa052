/* SPDX-License-Identifier: Apache-2.0 */
/* The page-cache sink: what the engine has read ahead goes into the kernel before the trainer opens it.
 *
 *   announce   the lister thread lists its own mount at the window's offset (flat) or looks names up (tree): the kernel
 *              then has inodes and names
 *   store      FUSE_NOTIFY_STORE: a file's bytes into its page cache
 *   drop       FUSE_NOTIFY_PRUNE where the kernel has it (inode, names and pages), else INVAL_INODE (pages)
 *
 * What the trainer opens comes back from the watcher and moves the streams.
 *
 * Threads: see prefetch/sink.h; fs_sink_* below are for main, and fs_sink_epoch for any.
 *
 * Lock order: the watcher's lock, then the sink's, then the engine's (fs/README.md).  The sink's lock guards the table of
 * streams.  No operation of struct prefetch_sink takes it. */
#ifndef DDPFS_FS_SINK_H
#define DDPFS_FS_SINK_H

#include <jansson.h>

#include "fs/server.h"
#include "prefetch/sink.h"
#include "prefetch/stream.h"

struct fs_sink;        /* opaque */
struct fs_sink_stream; /* opaque: a stream of the engine */

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

/* A stream for what a trainer of the view was recognised to read: an order that is given (shard/view.h), of tree names,
 * from the beginning of `epoch`.  -ENOMEM, -ENODATA, and what prefetch_stream_new returns.  The next four: one thread. */
int fs_sink_follow(struct fs_sink *sink, struct fs_view *view, struct shard_view *order, uint64_t epoch,
        struct fs_sink_stream **ret_stream);
void fs_sink_unfollow(struct fs_sink *sink, struct fs_sink_stream *stream);
/* past: as in prefetch/stream.h.  Gathered until ... */
void fs_sink_used(struct fs_sink_stream *stream, uint64_t epoch, uint64_t turn, bool past);
void fs_sink_flush(struct fs_sink_stream *stream);
void fs_sink_refresh(struct fs_sink_stream *stream); /* the order knows an epoch more */
/* Whether the view has a stream of its own order, too. */
void fs_sink_own(struct fs_sink *sink, struct fs_view *view, bool wanted);

/* What the watcher's listener hears (fs/watch.h): a file of a view was opened; a batch of opens is complete. */
void fs_sink_opened(struct fs_sink *sink, struct fs_view *view, uint32_t file, uint64_t epoch, uint64_t turn);
void fs_sink_drained(struct fs_sink *sink);

/* Of a view's streams, its own and the followed ones (whole: of its own); zeros when there is none. */
void fs_sink_stats(struct fs_sink *sink, struct fs_view *view, struct prefetch_stream_stats *ret_stats);

#endif
