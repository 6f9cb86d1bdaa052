/* SPDX-License-Identifier: Apache-2.0 */
/* The watcher: what trainers open, seen by inotify on the mount's own directories.
 *
 * A read that the page cache serves never reaches this process (no OPEN, no READ), so inotify is the only witness.
 * One kind of event is asked for (IN_OPEN): with two the kernel's queue of 16,384 overflows twice as fast.  Events are drained
 * in batches, every few milliseconds and before a listing; an overflow costs precision, never correctness.
 *
 * Watched: the root of layout=flat, or every directory of the tree that holds files.  Not watched: .ddpfs/.
 *
 * Threads: one `watcher`, which adds the watches (its lookups are answered by the FUSE workers, so it must not run before
 * them nor outlive them) and drains.  fs_watch_drain from any thread.
 *
 * Lock order: the watcher's lock, then the sink's, then the engine's; or the watcher's, then a leaf (fs/README.md). */
#ifndef DDPFS_FS_WATCH_H
#define DDPFS_FS_WATCH_H

#include "fs/hit_counting.h"
#include "fs/server.h"

enum {
	FS_WATCH_BATCH_MS = 3, /* pause between drains: 16,384 events at 160,000 files/s are 100 ms */
};

int fs_watch_new(struct fs_server *server, struct fs_watch **ret_watch); /* -ENOMEM */
int fs_watch_start(struct fs_watch *watch);
void fs_watch_stop(struct fs_watch *watch); /* joins the thread; the session must still be answered */
void fs_watch_free(struct fs_watch *watch);

/* Waits until the mount has answered a stat and the first watches stand (all of them in datasets of some thousand
 * directories).  -ECANCELED when stopped, -errno of the stat. */
int fs_watch_wait_ready(struct fs_watch *watch);
bool fs_watch_is_ready(struct fs_watch *watch);

/* Takes in what the kernel has queued so far.  watch may be NULL. */
void fs_watch_drain(struct fs_watch *watch);

/* A READ of a file reached the server; first: of its beginning.  Any thread, before the READ is answered. */
void fs_watch_read(struct fs_watch *watch, uint32_t file, bool first, uint64_t now_ns);

/* Drains, then tells how many opens there were and how many of them missed (fs/hit_counting.h). */
void fs_watch_count(struct fs_watch *watch, struct fs_hit_counting_count *ret_count);

/* Directories watched now. */
uint64_t fs_watch_dirs(struct fs_watch *watch);

/* Who hears of each open, in the order of the events; {0}: nobody.  May be called from any thread: a drain in progress ends
 * first, so that the old listener is not called afterwards.  A flat name tells its own epoch and turn, and file is SHARD_NONE;
 * otherwise turn is that of the file in the current epoch, UINT64_MAX where it has none (another rank's file, a common file).
 * The callbacks run with the watcher's lock held: they must be short and must not open anything. */
struct fs_watch_listener {
	void (*opened)(void *arg, struct fs_view *view, uint32_t file, uint64_t epoch, uint64_t turn);
	void (*drained)(void *arg); /* after the last one of a batch, under the same rules; may be NULL */
	void *arg;
};
void fs_watch_listen(struct fs_watch *watch, struct fs_watch_listener listener);

#endif
