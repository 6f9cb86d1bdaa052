/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of fs/ share: the server, its counters, and what its parts ask of it. Only fs/ includes this header.
 *
 * Threads
 *
 *     main      fs/server_life.c: the supervisor's messages, the control socket, the end.
 *     fuse-N    read requests from /dev/fuse and answer them; at most half of them wait for a disk (fs/worker_reads.h).
 *     watcher   fs/watch.c.
 *     recognise fs/sampler_streams.h, one for each view with a reader.
 *     helper    fs/job_queue.h: what takes long or may sleep (the lists of epochs, log lines).
 *     engine's  prefetch/: call back with blocks; replies of READs leave from there.
 *
 * Shared mutable state: the views, the counters (atomics), the job queue, the watcher's tables, and the snapshots of
 * fs/stats_files.h. Each part has its own lock. Everything else is immutable once the session runs. */
#ifndef DDPFS_FS_SERVER_H
#define DDPFS_FS_SERVER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#include "cache/tier.h"
#include "cache/tier_uses.h"
#include "fs/common_files.h"
#include "fs/counters.h"
#include "fs/fs.h"
#include "fs/ino.h"
#include "fs/listing_picks.h"
#include "fs/supervise/channel.h"
#include "fs/view.h"
#include "prefetch/prefetch.h"
#include "shard/base/clock.h"
#include "shard/index.h"

struct fs_budget;
struct fs_watch;
struct fs_job_queue;
struct fs_log_queue;
struct fs_lists;
struct fs_control;
struct fs_guests;
struct fs_stats;
struct fs_stats_files;
struct fs_recorder;
struct fs_directory_names;
struct fs_store_limits;
struct fs_reads;
struct fs_host_sharing;
struct fs_sampler_streams;
struct fs_sink;
struct fs_read_latency;
struct fs_listing_ahead;
struct fs_lookup_readahead;
struct fs_heartbeat;

/* Where a thread hangs, for tests (fs/hang_injection.h). */
enum fs_hang {
	FS_HANG_NOWHERE,
	FS_HANG_MAIN,
	FS_HANG_WORKER,
	FS_HANG_ENGINE,
	FS_HANG_STORE,
	FS_HANG_DROP,
};

struct fs_worker {
	pthread_t thread;
	struct fs_server *server;
	uint32_t number;
	_Atomic pid_t tid;
	_Atomic uint64_t busy_ns; /* CLOCK_MONOTONIC time at which its request came; 0: it has none */
	_Atomic bool reading;     /* it waits for the disk (fs/worker_reads.h) */
	_Atomic bool done;
};

struct fs_server {
	struct fs_options options; /* the server owns the strings */
	const struct fs_channel *channel;
	struct fs_handover *handover;
	struct fs_heartbeat *heartbeat;
	bool successor;
	struct shard_index *index;
	const struct shard_info *info;
	struct timespec index_mtime; /* of index.ddpfs: mtime of nodes that have none of their own */
	struct fs_common_files common;
	struct cache_tier *tier;            /* NULL: none */
	struct cache_tier_uses *tier_uses;  /* NULL: the tier is not told when blocks are used again */
	struct fs_tier_tables *tier_tables; /* main's: the thread that makes tables for it; NULL: none */
	bool tier_off_told;                 /* main's: the log says that it is off */
	int tier_failed;                    /* errno: the tier of the options cannot be opened; 0: no such error */
	struct prefetch *prefetch;
	struct fs_budget *budget;
	uint64_t test_delay_ns; /* added to every read of a shard; 0 except in tests */
	enum fs_hang test_hang;
	uint64_t started_ns; /* CLOCK_MONOTONIC */
	uid_t uid;
	gid_t gid;

	struct fs_view *views[FS_VIEWS_MAX];
	uint32_t n_views;
	/* Of the views with a reader, or of all if none has one. Written with epochs_lock held. */
	_Atomic uint64_t lowest_epoch, highest_epoch;
	pthread_mutex_t epochs_lock; /* held while they are found */
	pthread_mutex_t ranks_lock;  /* fs/ranks.h: held while a rank begins */
	bool ranks_may_begin;        /* between the start of the threads and their end; under ranks_lock */
	bool ranks_failure_told;     /* the log says that a rank could not begin; under ranks_lock */

	/* The session. */
	struct fuse_session *session;
	int fuse_fd;                   /* the session owns it once there is one */
	uint64_t dev;                  /* st_dev of the mount */
	bool fusermount;               /* mounted through the set-uid program fusermount3 */
	struct fs_channel_mount mount; /* what a successor gets */
	struct fs_worker workers[FS_THREADS_MAX];
	uint32_t n_workers;
	uint32_t workers_read_max; /* workers that may read at a time */
	_Atomic uint32_t workers_reading;

	int mounts_fd; /* /proc/self/mountinfo: POLLPRI says that a mount came or went; -1: cannot be opened */
	_Atomic bool
	        gone; /* somebody unmounted: no copy of the mount may be kept (fs/detached_thread.h); main sets it */

	int stop_fd;    /* eventfd: somebody wants the server to end */
	bool unmounted; /* by this server, or nothing was left to unmount */
	/* Main's: until then no list is looked for (fs/follow_request.c); [1]: for guests. */
	uint64_t learn_after_ns[2];
	int control_passed; /* main's: a descriptor that came with the request that is being answered; -1: none */
	bool restart;       /* main's: tell the supervisor to restart once the client has its answer */
	_Atomic bool stopping;
	_Atomic pid_t lister;          /* thread whose marked listings make inodes (fs/dir.h); 0: none */
	_Atomic uint64_t lister_epoch; /* the epoch that its marked listing of the root shows */
	struct fs_listing_picks picks; /* the files that its marked listing of a tree's directory shows */

	struct fs_counters counters; /* of this server; fs/stats.h adds those of earlier servers */
	struct fs_watch *watch;
	struct fs_job_queue *jobs;
	struct fs_log_queue *log;
	struct fs_lists *lists; /* the helper's own */
	struct fs_control *control;
	struct fs_guests *guests;
	struct fs_stats *stats;
	struct fs_stats_files *stats_files;
	struct fs_recorder *recorder;
	struct fs_store_limits *store_limits;
	struct fs_listing_ahead *listing_ahead;
	struct fs_lookup_readahead *lookup_readahead;
	struct fs_reads *reads;
	struct fs_host_sharing *host_sharing;
	struct fs_directory_names *names; /* made and freed by the sink */
	struct fs_sink *sink;
	_Atomic(struct fs_sampler_streams *) samplers[FS_VIEWS_MAX]; /* of each view; NULL: it had no reader yet */
	struct fs_read_latency *read_latency;
};

static inline uint64_t fs_mean_file_bytes(const struct shard_info *info)
{
	return info->n_files ? info->content_bytes / info->n_files : 0;
}

_Static_assert((int)FS_RANKS_MAX <= FS_VIEWS_MAX, "each rank of a mount has a view");

static inline struct fs_server *fs_server_of(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

static inline struct fs_view *fs_server_view(const struct fs_server *server, struct fs_node node)
{
	return node.view < server->n_views ? server->views[node.view] : NULL;
}

/* Finds the node of an inode number, as fs_ino_node does, but knows what the root of this mount is. Returns 0; -ESTALE:
 * this mount never gives this number. */
int fs_server_node(const struct fs_server *server, uint64_t ino, struct fs_node *ret_node);

/* Returns the root of a view: that of the mount, or a directory of it. */
static inline struct fs_node fs_server_root(const struct fs_server *server, uint32_t view)
{
	return (struct fs_node){ .kind = FS_ROOT, .view = view, .id = server->options.n_ranks > 0 };
}

/* Tells how far the trainer is, as fs_view_progress does. @view: NULL: all ranks together, that is the sums of turns,
 * and the lowest epoch. Ranks without a reader do not count, unless none has one. Any thread. */
void fs_server_progress(const struct fs_server *server, struct fs_view *view, struct fs_view_progress *ret_progress);

/* Returns the first view with a reader, or view 0 if none has one. Any thread. */
struct fs_view *fs_server_first_reader(const struct fs_server *server);

/* Asks the server to end soon. Any thread; async-signal-safe. */
void fs_server_stop(struct fs_server *server);

/* Asks the supervisor to unmount, because a server may not do that itself (fs/supervise/confine.h).
 * @lazy: detach the mount if it is busy.
 * Returns what fs_unmount returns (fs/supervise/mount.h); -EPIPE: the supervisor is gone. Main only. */
int fs_server_unmount(struct fs_server *server, bool lazy);

/* The view has another epoch: the lowest and the highest one are found anew, and the kernel forgets the mtime of the
 * view's root, because its listing changed. Any thread. */
void fs_server_epoch_changed(struct fs_server *server, struct fs_view *view);
/* Finds the lowest and the highest epoch anew. Any thread. */
void fs_server_find_epochs(struct fs_server *server);

extern const struct fuse_lowlevel_ops fs_ops; /* fs/ops.c */

#endif
