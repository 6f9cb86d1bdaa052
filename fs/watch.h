/* SPDX-License-Identifier: Apache-2.0 */
/* The watcher: sees what trainers open, by inotify on the mount's own directories.
 *
 * A read that the page cache serves never reaches this process (no OPEN, no READ), so only inotify shows it. The
 * watcher asks for one kind of event (IN_OPEN): with two, the kernel's queue of 16,384 would overflow twice as fast.
 * It drains events in batches, every few milliseconds and before a listing. An overflow costs precision, never
 * correctness.
 *
 * Watched in each view: the root of layout=flat, or every directory of the tree that holds files. Not watched: .ddpfs/.
 * Of several ranks, those with a reader are watched, from its coming on: a watch holds more than 1 KiB of the kernel's
 * memory, and a user has only so many.
 *
 * Threads: one `watcher`, which adds the watches and drains. The FUSE workers answer its lookups, so it runs only
 * while they run. fs_watch_drain from any thread.
 *
 * Lock order: the watcher's lock, then the sink's, then the engine's; or the watcher's, then a leaf (fs/README.md). */
#ifndef DDPFS_FS_WATCH_H
#define DDPFS_FS_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/hit_counting.h"

struct fs_server;
struct fs_view;
struct fs_watch;

enum {
	FS_WATCH_BATCH_MS = 3, /* pause between drains; the queue holds 100 ms of 160,000 opens a second */
};

/* Makes the watcher on the supervisor's inotify descriptor; no thread yet. Returns 0; -ENOMEM, -errno of eventfd(2). */
int fs_watch_new(struct fs_server *server, struct fs_watch **ret_watch);
/* Starts the thread. The workers must run. Returns 0; -EAGAIN: no thread. */
int fs_watch_start(struct fs_watch *watch);
/* Joins the thread; NULL is fine. The session must still be answered. */
void fs_watch_stop(struct fs_watch *watch);
/* Frees the watcher after fs_watch_stop; NULL is fine. */
void fs_watch_free(struct fs_watch *watch);

/* Waits until the mount has answered a stat and, with one rank, the first watches are set (all of them in datasets of
 * some thousand directories).
 * Returns 0; -ECANCELED: the watcher was stopped; -errno of the stat. */
int fs_watch_wait_ready(struct fs_watch *watch);
/* Waits until the first watches of a rank with a reader are set, or the watcher is stopped. */
void fs_watch_wait_view(struct fs_watch *watch, const struct fs_view *view);
/* Returns whether fs_watch_wait_ready and fs_watch_wait_view would return at once. @view: NULL: no rank is meant. Any
 * thread. */
bool fs_watch_is_ready(struct fs_watch *watch, const struct fs_view *view);

/* Has the directories of a view watched soon, because it has a reader. Any thread. */
void fs_watch_begin(struct fs_watch *watch, const struct fs_view *view);
/* Tells that the mount was unmounted (fs_server.gone), so that the thread closes its copy of it. */
void fs_watch_gone(struct fs_watch *watch);

/* Takes in the events that the kernel has queued so far. `watch` may be NULL. Any thread. */
void fs_watch_drain(struct fs_watch *watch);

/* Records that a READ of @file reached the server. Any thread, before the READ is answered.
 * @first: the READ is of the file's beginning. @bytes: of the file that it asks for.
 * @now_ns: CLOCK_MONOTONIC. */
void fs_watch_read(struct fs_watch *watch, uint32_t file, bool first, uint32_t bytes, uint64_t now_ns);

/* Drains, then tells how many opens there were and how many of them missed (fs/hit_counting.h), in one view, or in all
 * (@view: NULL). Any thread. */
void fs_watch_count(struct fs_watch *watch, const struct fs_view *view, struct fs_hit_counting_count *ret_count);

/* Returns how many directories are watched now; 0 if @watch is NULL. */
uint64_t fs_watch_dirs(struct fs_watch *watch);

/* Who hears of each open, in the order of the events; {0}: nobody.
 *
 * A flat name of this rank tells its own epoch and turn; `file` is then SHARD_NONE. Otherwise `turn` is that of the
 * file in the current epoch, or UINT64_MAX if it has none there (another rank's file, a common file).
 *
 * The callbacks run with the watcher's lock held: they must be short and must not open anything. */
struct fs_watch_listener {
	void (*opened)(void *arg, struct fs_view *view, uint32_t file, uint64_t epoch, uint64_t turn);
	void (*drained)(void *arg); /* after the last one of a batch, under the same rules; may be NULL */
	void *arg;
};
/* Sets the listener. Any thread: a drain in progress ends first, so the old listener is not called afterwards. */
void fs_watch_listen(struct fs_watch *watch, struct fs_watch_listener listener);

#endif
