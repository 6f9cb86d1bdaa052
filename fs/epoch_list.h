/* SPDX-License-Identifier: Apache-2.0 */
/* The text of `.ddpfs/epoch/N.list` and `N.list0`: the paths of a rank's epoch in order, each ended by a newline or, since
 * paths may hold newlines, by a NUL.
 *
 * Its size is found by going through the epoch once, which also leaves a byte offset for every FS_EPOCH_LIST_STEP turns; then any
 * range is generated from the nearest one.  Some lists are kept.
 *
 * Threads: one user at a time (the helper). */
#ifndef DDPFS_FS_EPOCH_LIST_H
#define DDPFS_FS_EPOCH_LIST_H

#include "fs/view.h"

enum {
	FS_EPOCH_LIST_STEP = 256, /* turns between remembered offsets: 8 bytes for each */
	FS_LISTS_KEPT = 4,
};

struct fs_lists; /* opaque */

int fs_lists_new(const struct shard_index *index, struct fs_lists **ret_lists); /* -ENOMEM */
void fs_lists_free(struct fs_lists *lists);

/* Bytes of either list of `epoch`.  O(turns) the first time.  `cancel` (may be NULL) is looked at now and then: -ECANCELED
 * when it is set. */
int fs_epoch_list_size(
        struct fs_lists *lists, struct fs_view *view, uint64_t epoch, const _Atomic bool *cancel, uint64_t *ret_bytes);

/* Writes bytes [off, off + size) of it, with `end` after each path; *ret_len is less at the end. */
int fs_epoch_list_read(struct fs_lists *lists, struct fs_view *view, uint64_t epoch, char end,
        const _Atomic bool *cancel, uint64_t off, char *buf, size_t size, size_t *ret_len);

#endif
