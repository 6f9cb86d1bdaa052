/* SPDX-License-Identifier: Apache-2.0 */
/* The histories of mounts (fs/recorder.h) for `ddpfs report`: asked of a live mount, or read from a log file.
 *
 * A log file may be damaged, cut or of another version. Values are found by the names of their fields; a field that is
 * missing is all zeros.
 *
 * Threads: one caller. */
#ifndef DDPFS_TOOLS_DDPFS_MOUNT_HISTORIES_H
#define DDPFS_TOOLS_DDPFS_MOUNT_HISTORIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard/base/err.h"

enum mount_history_field {
	RUN_AT, /* seconds since the mount was made */
	RUN_EPOCH,
	RUN_OPENS,
	RUN_MISSES,
	RUN_READ,     /* bytes from the shards */
	RUN_TIER,     /* bytes from the tier */
	RUN_WAITED,   /* seconds, readers side by side each for itself */
	RUN_RESIDENT, /* bytes */
	RUN_MEMORY,   /* bytes: the budget */
	RUN_DEPTH,
	RUN_INFLIGHT,
	RUN_LOST,
	RUN_ERRORS,
	RUN_RESTARTS,
	RUN_FIELDS
};

enum {
	RUNS_MAX = 1024,
	RUN_READINGS_MAX = 1 << 18, /* the lines of a busy month are some 12,000 */
};

/* One mount, from its beginning. */
struct mount_history {
	char *mountpoint, *dataset; /* owned */
	uint64_t pid;               /* of the supervisor */
	double began_s;             /* since 1970, UTC */
	uint32_t rank, world;       /* with view_all: no rank's */
	uint32_t ranks;             /* of how many ranks it is, from `rank` on */
	bool view_all;
	uint64_t files, content_bytes;  /* of the dataset */
	double (*readings)[RUN_FIELDS]; /* `n` of them, at least one; RUN_AT ascends; owned */
	size_t n, room;
};

struct mount_histories {
	struct mount_history *runs;
	size_t n;
};

/* Frees what is in `runs`. */
void mount_histories_done(struct mount_histories *runs);

/* Adds the run of a live mount. `target` is one of ask_find. Returns 0, or with a sentence: the errors of ask_find and
 * base_control_request, -EPROTO: the answer has not the right form; -ENOMEM. */
int mount_histories_ask(struct mount_histories *runs, const char *target, struct base_err *err);

/* Adds the runs of a log file: of each mountpoint and rank the one that began last, and those that were there together
 * with it. *ret_bad: how many lines were left
 * out because they are damaged. Returns 0, or with a sentence: -ENODATA: it has no history, or a damaged one only;
 * -E2BIG: too many runs or readings; -ENOMEM; another -errno of reading. */
int mount_histories_read(struct mount_histories *runs, const char *path, size_t *ret_bad, struct base_err *err);

#endif
