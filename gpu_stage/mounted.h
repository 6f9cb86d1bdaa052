/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what a mount says about itself, so that ddpfs_stage_open can take a mount for a dataset.  The files are
 * .ddpfs/stats.json and .ddpfs/state below its root.  This room knows nothing of the mount's server.
 *
 * Threads: pure functions of the file system. */
#ifndef DDPFS_GPU_STAGE_MOUNTED_H
#define DDPFS_GPU_STAGE_MOUNTED_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "shard/base/err.h"

struct stage_mounted {
	char *dataset; /* owned; absolute path, or the name of a dataset in a store */
	char *index;   /* owned; absolute path of an index that does not lie with the shards, or NULL */
	/* Owned: a state as JSON, with order, deal, tail, seed, subdir, and the epoch and start recorded as trained. */
	char *state;
	char *control; /* owned: path of its control socket; NULL: the mount does not say */
	uint32_t rank, world;
	bool several; /* `path` is the directory of a rank: the mount shows several */
};

/* Tells whether `path` is the root of a mount, or the directory of a rank in a mount of several: its extended attribute
 * user.ddpfs.view exists. */
bool stage_mounted_is(const char *path);

/* Tells whether `path` is the root of a mount of several ranks, and gives the directory of one of them. */
bool stage_mounted_ranks(const char *path, char ret_rank[PATH_MAX]);

/* Reads the two files of a mount; end with stage_mounted_done.
 * Returns 0, or -EUCLEAN (stats.json is not that of this version), -EFBIG (file over 1 MiB), -ENAMETOOLONG, -ENOMEM,
 * or an error of reading. */
int stage_mounted_read(const char *path, struct base_err *err, struct stage_mounted *ret_mounted);
/* Frees the strings and zeroes the struct. */
void stage_mounted_done(struct stage_mounted *mounted);

#endif
