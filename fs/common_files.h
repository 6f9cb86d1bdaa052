/* SPDX-License-Identifier: Apache-2.0 */
/* The files that every rank sees and that are never dealt (labels, class lists). The index has no list of them. Where
 * every sample is one file, common files show as jumps between sample ids and file ids, which a bisection finds.
 *
 * Threads: any; immutable after fs_common_files_init. */
#ifndef DDPFS_FS_COMMON_FILES_H
#define DDPFS_FS_COMMON_FILES_H

#include <stdint.h>

#include "shard/index.h"

struct fs_common_files {
	uint32_t *files; /* ascending ids */
	uint32_t n;
};

/* Finds the common files. Time O(k log n) for k runs of common files; O(n_files) if samples have several files.
 * Returns 0; -ENOMEM, index errors. fs_common_files_done frees them. */
int fs_common_files_init(struct fs_common_files *common, const struct shard_index *index);
/* Frees the list. */
void fs_common_files_done(struct fs_common_files *common);

#endif
