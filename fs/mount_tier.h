/* SPDX-License-Identifier: Apache-2.0 */
/* The tier of a mount (cache/tier.h): where it is opened, and the warning when it is off.
 *
 * The server's own descriptor holds the claims of the tier. The supervisor has no copy, so the claims of a dead server
 * end.
 *
 * The thread `tier-uses` makes the tables of order=torch: at the usual priority, and a quarter of the time at most. One
 * table of n samples takes a permutation of n, which is memory of 8 bytes a sample besides memory=.
 *
 * Threads: main, and any for fs_tier_begin. */
#ifndef DDPFS_FS_MOUNT_TIER_H
#define DDPFS_FS_MOUNT_TIER_H

struct fs_server;
struct base_err;
struct fs_view;

/* Opens the tier that the options name, if they name one. Call it after the dataset and the first view are open, and
 * before the filter of fs/supervise/confine.h. If its disk is full, read-only or fails, or another process keeps it
 * locked, the server goes on without: it logs that, and sets server->tier_failed. So does a successor for any reason.
 * Returns 0; -EINVAL: the directory lies below the mountpoint; another error of cache_tier_open. err says it in a
 * sentence. */
int fs_tier_open(struct fs_server *server, struct base_err *err);

/* Tells the tier that a rank of a mount of several ranks has a reader. Once for each rank, or more often. */
void fs_tier_begin(struct fs_server *server, const struct fs_view *view);

/* Logs once that the tier is off, and begins the thread `tier-uses` when tables of uses are missing.
 * Returns the ms until it must be called again; -1: never. */
int fs_tier_check(struct fs_server *server);

/* Ends that thread, after the table that it makes. Before server->tier_uses ends. */
void fs_tier_stop(struct fs_server *server);

#endif
