/* SPDX-License-Identifier: Apache-2.0 */
/* A mounted dataset: the server that answers the kernel for one mount.  Its supervisor (fs/supervise/supervisor.h) runs it and is what
 * programs use.
 *
 * fs_server_new parses nothing: options come as a struct (tools/ddpfs parses text).  The door of fs/. */
#ifndef DDPFS_FS_FS_H
#define DDPFS_FS_FS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "shard/base/err.h"
#include "shard/view.h"

enum fs_layout { FS_LAYOUT_FLAT, FS_LAYOUT_TREE };
enum fs_advance { FS_ADVANCE_AUTO, FS_ADVANCE_OFF };

enum { FS_TIMEOUT_S = 60 }; /* fs_options.timeout_s where nothing else is said */
enum { FS_THREADS_MAX = 64 /* FUSE workers: more only contend on one device queue */ };

struct fs_options {
	const char *dataset;    /* directory that holds index.ddpfs */
	const char *mountpoint; /* existing directory */
	enum fs_layout layout;
	bool view_all; /* view=all: every file; rank/world then 0/1 */
	struct shard_view_options view;
	bool fill_class; /* layout=tree,view=rank: show one file of another rank in a class that would be empty */
	enum fs_advance advance;
	uint64_t memory_bytes; /* 0: it follows the host (fs/budget.h) */
	bool allow_other;
	bool noexec;           /* no program of the dataset can be started */
	bool set_uid, set_gid; /* else files belong to the mounting user */
	uid_t uid;
	gid_t gid;
	mode_t umask;         /* bits removed from modes */
	uint32_t threads;     /* FUSE workers, at most FS_THREADS_MAX; 0 = default */
	bool gives_up_stderr; /* the caller's stderr is let go once the mount answers: threads with a
	                                     descriptor table of their own must not keep it open */
	bool debug;           /* libfuse's trace on stderr */
	uint32_t
	        scan_threads; /* look for the seed of an unseeded RandomSampler (prefetch/sampler/seed_scan.h); 0: none do */
	uint32_t timeout_s;       /* how long a successor that fails before it serves is tried again; 0: not at all */
	uint32_t watchdog_s;      /* a server that hangs for so long is replaced; 0: never */
	const char *control_path; /* NULL = default place (shard/base/control_client.h) */
};

struct fs_channel;
struct fs_supervise;

/* The server of a mount: opens the dataset, mounts (a successor takes the mount over), and serves until unmounted or told to stop.
 * options: struct fs_options.  channel outlives the call.  `ready(ready_arg)` is called once, from the helper thread, after the mount
 * has answered a stat of its root.  Returns 0; -errno with a sentence that says what failed and what to do; -ESTALE: a
 * successor found another dataset.  Main thread of a process of its own. */
int fs_serve(const void *options, const struct fs_channel *channel, void (*ready)(void *arg), void *ready_arg,
        struct base_err *err);

/* Fills in what a supervisor of this mount needs of the options (fs/supervise/supervisor.h): all but the members that say who is
 * told and how it restarts.  options outlives it. */
void fs_supervise_options(const struct fs_options *options, struct fs_supervise *ret_supervise);

#endif
