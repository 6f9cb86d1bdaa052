/* SPDX-License-Identifier: Apache-2.0 */
/* A mount as the place to open: what it shows of itself below .ddpfs/ says which dataset it is of, and in what order.
 *
 * Read like any file: this folder knows nothing of the mount's server.
 *
 * Threads: pure functions of the file system. */
#ifndef DDPFS_GPU_STAGE_MOUNTED_H
#define DDPFS_GPU_STAGE_MOUNTED_H

#include <stdbool.h>
#include <stdint.h>

#include "shard/base/err.h"

struct stage_mounted {
	char *dataset; /* owned */
	char *state; /* owned: order, deal, tail, seed, subdir, and the epoch and start that were recorded as trained */
	char *control; /* owned: its control socket; NULL: it does not say */
	uint32_t rank, world;
};

/* Is this the root of a mount? */
bool stage_mounted_is(const char *path);

/* Done with it: stage_mounted_done.  -EUCLEAN (no mount of a known version), -EFBIG, -ENOMEM, errors of reading. */
int stage_mounted_read(const char *path, struct base_err *err, struct stage_mounted *ret_mounted);
void stage_mounted_done(struct stage_mounted *mounted);

#endif
