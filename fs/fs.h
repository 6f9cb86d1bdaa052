/* SPDX-License-Identifier: Apache-2.0 */
/* The door of fs/: the server that answers the kernel for one mount. Its supervisor (fs/supervise/supervisor.h) runs
 * it; programs use the supervisor.
 *
 * fs/ parses no text: options come as a struct, which tools/ddpfs fills in. */
#ifndef DDPFS_FS_FS_H
#define DDPFS_FS_FS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "shard/base/err.h"
#include "shard/view.h"

enum fs_layout { FS_LAYOUT_FLAT, FS_LAYOUT_TREE };
enum fs_advance { FS_ADVANCE_AUTO, FS_ADVANCE_OFF };

enum { FS_TIMEOUT_S = 60 }; /* default of fs_options.timeout_s */
enum { FS_RANKS_MAX = 256 /* ranks of one mount: as many as inode numbers can tell apart (fs/ino.h) */ };
enum { FS_THREADS_MAX = 64 /* FUSE workers at most: more of them only compete for one device queue */ };

struct fs_options {
	const char *dataset;    /* the directory of the shards, or its name in a store */
	const char *index_file; /* the index, from the root on, if it does not lie with the shards; else NULL */
	const char *mountpoint; /* a directory that exists */
	enum fs_layout layout;
	bool view_all; /* view=all: every file; rank and world are then 0 and 1 */
	struct shard_view_options view;
	/* Ranks that the mount shows as directories, from view.rank on; at most FS_RANKS_MAX. 0: the mount itself is
	 * the view of view.rank. */
	uint32_t n_ranks;
	bool fill_class; /* layout=tree, view=rank: a class that would be empty lists one file of another rank */
	enum fs_advance advance;
	uint64_t memory_bytes; /* the budget; 0: it follows the host (fs/budget.h) */
	bool allow_other;
	bool noexec;           /* nobody can start a program that lies in the dataset */
	bool set_uid, set_gid; /* false: files belong to the user who mounts */
	uid_t uid;
	gid_t gid;
	mode_t umask;     /* bits that are removed from modes */
	uint32_t threads; /* FUSE workers, at most FS_THREADS_MAX; 0: the default */
	/* The server lets go of the caller's stderr once the mount answers. Threads with a descriptor table of their
	 * own must then not keep it open. */
	bool gives_up_stderr;
	bool log_history;     /* readings of the history go to the log (fs/recorder.h) */
	bool debug;           /* libfuse writes its trace to stderr */
	bool loaders_watched; /* `ddpfs exec` announces what the trainer's DataLoaders draw */
	/* Threads that look for the seed of an unseeded RandomSampler (prefetch/sampler/seed_scan.h); 0: none. */
	uint32_t scan_threads;
	uint32_t timeout_s;       /* seconds in which a successor that fails to start is tried again; 0: none */
	bool timeout_set;         /* the same for reads of a store that does not answer; else their default holds */
	uint32_t watchdog_s;      /* seconds after which a server that hangs is replaced; 0: never */
	const char *tier_dir;     /* directory of a tier (cache/tier.h), from the root on; NULL: none */
	uint64_t tier_bytes;      /* its size, CACHE_TIER_SIZE_MIN .. CACHE_TIER_SIZE_MAX */
	const char *control_path; /* NULL: the default place (shard/base/control_client.h) */
};

struct fs_channel;
struct fs_supervise;

/* Opens the dataset, mounts it, and serves until the mount ends or somebody stops the server. A successor takes over
 * the mount that is there.
 *
 * @options: a struct fs_options.
 * @channel: outlives the call.
 * @ready: called at most once, with @ready_arg, from the helper thread, after the mount has answered a stat of its
 *     root.
 *
 * Returns 0, or -errno with a sentence that says what failed and what to do; -ESTALE: a successor found another
 * dataset. After an error the caller ends the process, because threads of the server may run on. Main thread of a
 * process of its own. */
int fs_serve(const void *options, const struct fs_channel *channel, void (*ready)(void *arg), void *ready_arg,
        struct base_err *err);

/* Fills in what a supervisor of this mount needs of the options (fs/supervise/supervisor.h). The caller sets ready,
 * ready_server, restart, arg, takeover and owner_pidfd afterwards. @options outlives @ret_supervise. */
void fs_supervise_options(const struct fs_options *options, struct fs_supervise *ret_supervise);

#endif
