/* SPDX-License-Identifier: Apache-2.0 */
/* The files that are shown on every rank and never dealt (labels, class lists).  The index does not list them, but
 * where every sample is one file their ids show as jumps between sample ids and file ids, which bisection finds.
 *
 * Threads: immutable after fs_common_files_init. */
#ifndef DDPFS_FS_COMMON_FILES_H
#define DDPFS_FS_COMMON_FILES_H

#include <stdint.h>

#include "shard/index.h"

struct fs_common_files {
	uint32_t *files; /* ascending ids */
	uint32_t n;
};

/* O(k log n) for k runs of common files; where samples have several files O(n_files).  -ENOMEM, index errors. */
int fs_common_files_init(struct fs_common_files *common, const struct shard_index *index);
void fs_common_files_done(struct fs_common_files *common);

#endif
