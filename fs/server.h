/* SPDX-License-Identifier: Apache-2.0 */
/* The server's insides, shared by the files of fs/.  Not a door: only fs/ includes this.
 *
 * Threads
 *   main      fs/serve.c: the supervisor's messages, the control socket, the end.
 *   fuse-N    read requests from /dev/fuse and answer them; none waits for I/O.
 *   watcher   fs/watch.c.
 *   helper    fs/job_queue.h: what takes long or may sleep (the lists of epochs, log lines of failed reads).
 *   engine's  prefetch/: call back with blocks; replies of READs leave from there.
 *
 * Shared mutable state: the views (their own lock), counters (atomics), the helper's queue, the watcher's tables, the
 * snapshots of the dynamic files; each with its lock beside it. Everything else is immutable once the session runs. */
#ifndef DDPFS_FS_SERVER_H
#define DDPFS_FS_SERVER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#include "fs/common_files.h"
#include "fs/fs.h"
#include "fs/ino.h"
#include "fs/supervise/channel.h"
#include "fs/view.h"
#include "prefetch/prefetch.h"
#include "shard/base/clock.h"
#include "shard/index.h"

enum {
	FS_READ_MAX = 1 << 20,  /* bytes of one READ: what the kernel asks for at most */
	FS_HIDDEN_NAME_LEN = 6, /* of ".ddpfs" */
	FS_WATCH_SLACK = 4096,  /* turns that a loader's workers may be apart */
	FS_FILE_OVERHEAD_BYTES =
	        1200 + 290, /* what a resident file costs besides its pages: slab of an inode and of a name */
};
#define FS_HIDDEN_NAME ".ddpfs"
#define FS_FOREVER 1e9 /* timeout in seconds of what can never change */

/* Events since the mount.  Relaxed atomics: each is right by itself. */
struct fs_counters {
	_Atomic uint64_t lookups;
	_Atomic uint64_t getattrs;
	_Atomic uint64_t listings;        /* OPENDIRs */
	_Atomic uint64_t entries;         /* names listed */
	_Atomic uint64_t reads;           /* READs that reached this process */
	_Atomic uint64_t unwatched_reads; /* ... for no open of a watched name: fs/hit_counting.h */
	_Atomic uint64_t read_reply_bytes;
	_Atomic uint64_t errors;    /* READs answered with an error */
	_Atomic uint64_t replies;   /* READs of files answered; against `asked` */
	_Atomic uint64_t asked;     /* READs of files given to the engine */
	_Atomic uint64_t waited_ns; /* from READs to their answers, summed */
	_Atomic uint64_t watch_overflows;
	_Atomic uint64_t fill_class; /* files of other ranks listed because of it */
};

static inline void fs_count(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static inline uint64_t fs_counted(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

struct fs_budget;
struct fs_watch;
struct fs_job_queue;
struct fs_log_queue;
struct fs_lists;
struct fs_control;
struct fs_stats;
struct fs_stats_files;
struct fs_reads;
struct fs_host_sharing;
struct fs_sampler_streams;
struct fs_sink;
struct fs_read_latency;
struct fs_listing_ahead;
struct fs_lookup_readahead;
struct fs_health;

/* fs/hang.h */
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
	_Atomic uint64_t busy_ns; /* since when it has a request; 0: it has none */
	_Atomic bool done;
};

struct fs_server {
	struct fs_options options; /* strings owned */
	const struct fs_channel *link;
	struct fs_handover *estate;
	struct fs_health *health;
	bool successor;
	struct shard_index *index;
	const struct shard_info *info;
	struct timespec index_mtime; /* of index.ddpfs: mtime of what has none of its own */
	struct fs_common_files common;
	struct prefetch *prefetch;
	struct fs_budget *budget;
	uint64_t test_delay_ns; /* of every read of a shard; 0 but in tests */
	enum fs_hang test_hang;
	uint64_t started_ns; /* CLOCK_MONOTONIC */
	uid_t uid;
	gid_t gid;

	struct fs_view *views[FS_VIEWS_MAX];
	uint32_t n_views;

	/* session */
	struct fuse_session *session;
	int fuse_fd;                   /* owned by the session once there is one */
	uint64_t dev;                  /* st_dev of the mount */
	bool fusermount;               /* mounted through the set-uid helper */
	struct fs_channel_mount mount; /* what a successor will get */
	struct fs_worker workers[FS_THREADS_MAX];
	uint32_t n_workers;

	int stop_fd;    /* eventfd: somebody wants the end */
	bool unmounted; /* by us, or nothing was left to unmount */
	bool restart;   /* main's: the supervisor may go on once a client has its answer */
	_Atomic bool stopping;
	_Atomic pid_t lister;          /* thread whose marked listings instantiate inodes (fs/dir.h); 0 = none */
	_Atomic uint64_t lister_epoch; /* the epoch that its marked listing of the root shows */

	struct fs_counters counters; /* of this server; those before it: fs/stats_files.h */
	struct fs_watch *watch;
	struct fs_job_queue *jobs;
	struct fs_log_queue *log;
	struct fs_lists *lists; /* the helper's own */
	struct fs_control *control;
	struct fs_stats *stats;
	struct fs_stats_files *stats_files;
	struct fs_listing_ahead *dir_ahead;
	struct fs_lookup_readahead *guess;
	struct fs_reads *reads;
	struct fs_host_sharing *share;
	struct fs_sink *sink;
	_Atomic(struct fs_sampler_streams *) samplers[FS_VIEWS_MAX]; /* of a view; NULL: not started */
	struct fs_read_latency *waits;
};

static inline struct fs_server *fs_server_of(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

static inline struct fs_view *fs_server_view(const struct fs_server *server, struct fs_node node)
{
	return node.view < server->n_views ? server->views[node.view] : NULL;
}

/* Has the mount end soon. Any thread; async-signal-safe. */
void fs_server_stop(struct fs_server *server);

/* Has the supervisor unmount: the server may not.  Main only.  As fs_unmount; -EPIPE: the supervisor is gone. */
int fs_server_unmount(struct fs_server *server, bool lazy);

/* The root's listing changed (a new epoch): the kernel forgets its mtime. */
void fs_server_root_changed(struct fs_server *server, struct fs_view *view);

extern const struct fuse_lowlevel_ops fs_ops; /* fs/ops.c */

#endif
