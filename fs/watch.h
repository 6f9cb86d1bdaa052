/* The watcher: what trainers open, seen by inotify on the mount's own directories.
 *
 * A read that the page cache serves never reaches this process (no OPEN, no READ), so inotify is the only witness.
 * One kind of event is asked for (IN_OPEN): with two the kernel's queue of 16,384 overflows twice as fast.  Events are drained
 * in batches, every few milliseconds and before a listing; an overflow costs precision, never correctness.
 *
 * Watched: the root of layout=flat, or every directory of the tree that holds files.  Not watched: .ddpfs/ (but
 * for the marks of a rest).
 *
 * With watch=rest (layout=flat) the root is not watched while nothing would come of it: when all that is left of this epoch and
 * the next one is in memory (prefetch/stream.h: whole) and FS_WATCH_QUIET opens in a row missed nothing.  An open then costs its
 * opener what it costs on any other file system, and is not counted; marks on a few files (fs/rest.h) tell of progress.  The
 * watch comes back, and what is opened from then on counts, before a listing of the root is begun, when the epoch is set by
 * hand, when something is dropped, and when more READs came than chance makes.
 *
 * Threads: one `watcher`, which adds the watches (its lookups are answered by the FUSE workers, so it must not run before
 * them nor outlive them) and drains.  fs_watch_drain from any thread; `lock` is taken before a view's lock. */
#ifndef DDPFS_FS_WATCH_H
#define DDPFS_FS_WATCH_H

#include "fs/opens.h"
#include "fs/server.h"

enum {
	FS_WATCH_BATCH_MS = 3, /* pause between drains: 16,384 events at 160,000 files/s are 100 ms */
	FS_WATCH_SLACK = 4096, /* turns that a loader's workers may be apart */
	FS_WATCH_QUIET = 64,  /* opens of which none was read from the server, or all of an epoch: the watch may rest */
	FS_WATCH_CHANCE = 16, /* READs that a rest outlasts, besides one of 64 turns: pages taken back by chance */
	FS_WATCH_WAKE_MS = 2000,
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

/* Drains, then tells how many opens there were and how many of them missed (fs/opens.h). */
void fs_watch_count(struct fs_watch *watch, struct fs_opens_count *ret_count);

/* Does the watch rest?  Any thread. */
bool fs_watch_rests(const struct fs_watch *watch);

/* Has the watch back soon.  watch may be NULL.  Any thread. */
void fs_watch_wake(struct fs_watch *watch);

/* Has it back, unless the server is ending or that takes over FS_WATCH_WAKE_MS (what is above the mount stands still: then the
 * marks go on telling of progress).  Not from a FUSE worker: it must be answered for that. */
void fs_watch_wake_wait(struct fs_watch *watch);

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
