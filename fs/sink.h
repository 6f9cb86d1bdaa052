/* SPDX-License-Identifier: Apache-2.0 */
/* The page-cache sink: the engine's files go into the kernel before the trainer opens them.
 *
 *     announce   the lister lists the server's own mount at the window's offset (flat) or looks names up (tree): the
 *                kernel then has inodes and names
 *     store      FUSE_NOTIFY_STORE: a file's bytes into its page cache
 *     drop       FUSE_NOTIFY_PRUNE if the kernel has it (inode, names and pages), else INVAL_INODE (pages)
 *
 * The watcher reports what the trainer opens, and that moves the streams. A sample that was opened counts as in the
 * kernel's memory from then on, stored or not, because its reader reads it. If it does not, and a READ comes later, the
 * sample counts as lost.
 *
 * Order of calls: fs_sink_new, prefetch_new with fs_sink_base, fs_sink_start, then fs_sink_follow and fs_sink_own;
 * fs_sink_stop, prefetch_free, fs_sink_free.
 *
 * Threads: operations of struct prefetch_sink as prefetch/sink.h says. Functions below: main, if they do not say
 * otherwise.
 *
 * Lock order: the watcher's lock, then the sink's, then the engine's (fs/README.md). The sink's lock guards the table
 * of streams. No operation of struct prefetch_sink takes it. */
#ifndef DDPFS_FS_SINK_H
#define DDPFS_FS_SINK_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "prefetch/sink.h"
#include "prefetch/stream.h"

struct fs_server;
struct fs_view;

struct fs_sink;        /* opaque */
struct fs_sink_stream; /* opaque: a stream of the engine */

/* Makes the sink, without streams and without its thread. Returns 0; -ENOMEM. */
int fs_sink_new(struct fs_server *server, struct fs_sink **ret_sink);
void fs_sink_free(struct fs_sink *sink); /* after fs_sink_stop; NULL is fine */

/* Returns the sink as the engine knows it; valid until fs_sink_free. */
struct prefetch_sink *fs_sink_base(struct fs_sink *sink);

/* Starts the lister, and a stream for every view. The workers must run, the watcher must not run yet.
 * Returns 0; -ENOMEM, -EAGAIN, errors of prefetch_stream_new. */
int fs_sink_start(struct fs_sink *sink);

/* Ends the streams and the lister; NULL is fine. The watcher must have stopped, the session must still be answered. */
void fs_sink_stop(struct fs_sink *sink);

/* Tells the view's own stream that somebody set the epoch. Any thread.
 *
 * A listing that moves to the next epoch does not call this: the trainer's opens move the stream, and somebody else's
 * `ls` must not. */
void fs_sink_epoch(struct fs_sink *sink, struct fs_view *view, uint64_t epoch);

/* From hold to release the lister does not make the mount busy, so that the mount can be unmounted. */
void fs_sink_hold(struct fs_sink *sink);
void fs_sink_release(struct fs_sink *sink);

/* Makes the lister let the file system go, because the mount was unmounted: fs_server.gone is set. Does not wait. */
void fs_sink_gone(struct fs_sink *sink);

/* Makes a stream for what a trainer of the view was recognised to read.
 * @options: its view is an order that is given (shard/view.h), of tree names.
 * Returns 0; -ENOMEM, -ENODATA; -E2BIG: there are 448 such streams; -EAGAIN: before fs_sink_start or after
 * fs_sink_stop; errors of prefetch_stream_new. One thread calls this function and the next six. */
int fs_sink_follow(struct fs_sink *sink, struct fs_view *view, const struct prefetch_stream_options *options,
        struct fs_sink_stream **ret_stream);
/* Ends such a stream. */
void fs_sink_unfollow(struct fs_sink *sink, struct fs_sink_stream *stream);
/* Records that the trainer used @turn; the uses are gathered until fs_sink_flush. `past` is as in prefetch/stream.h. */
void fs_sink_used(struct fs_sink_stream *stream, uint64_t epoch, uint64_t turn, bool past);
/* Hands the gathered uses to the engine. */
void fs_sink_flush(struct fs_sink_stream *stream);
void fs_sink_refresh(struct fs_sink_stream *stream); /* the order knows one more epoch */
/* The shuffle buffer holds about so many turns: prefetch_stream_buffer(). */
void fs_sink_buffer(struct fs_sink_stream *stream, uint64_t turns);
/* Says whether the tier knows the order of the stream: prefetch_stream_tell_uses(). */
void fs_sink_tell_uses(struct fs_sink_stream *stream, bool tells);
/* Starts or ends the view's stream of its own order, if it is not so already. One thread at a time for each view.
 * Returns 0, also if nothing is dealt to the rank; -ENOMEM, -E2BIG. */
int fs_sink_own(struct fs_sink *sink, struct fs_view *view, bool wanted);

/* Returns whether the view's own order is read ahead; a flat view begins with it when a reader comes. Any thread. */
bool fs_sink_own_followed(struct fs_sink *sink, const struct fs_view *view);

/* What the watcher's listener hears (fs/watch.h): a file of a view was opened; a batch of opens is complete. */
void fs_sink_opened(struct fs_sink *sink, struct fs_view *view, uint32_t file, uint64_t epoch, uint64_t turn);
void fs_sink_drained(struct fs_sink *sink);

/* Sums up a view's streams: its own and the recognised ones. @view: NULL: those of all views. Zeros if there is none.
 * What streams fetched that have ended counts, too. Any thread. */
void fs_sink_stats(struct fs_sink *sink, const struct fs_view *view, struct prefetch_stream_stats *ret_stats);

#endif
