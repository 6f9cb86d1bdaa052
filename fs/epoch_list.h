/* SPDX-License-Identifier: Apache-2.0 */
/* The text of `.ddpfs/epoch/N.list` and `N.list0`: the paths of a rank's epoch in order, each ended by a newline or,
 * because a path may hold newlines, by a NUL.
 *
 * To find the size, this code goes through the epoch once. It remembers a byte offset for every FS_EPOCH_LIST_STEP
 * turns. Then it makes any range from the nearest offset before it. FS_LISTS_KEPT lists are kept, and one for each
 * further rank of the mount: ranks read theirs at the same time.
 *
 * Threads: one user at a time (the helper). */
#ifndef DDPFS_FS_EPOCH_LIST_H
#define DDPFS_FS_EPOCH_LIST_H

#include "fs/view.h"

enum {
	FS_EPOCH_LIST_STEP = 256, /* turns between two remembered offsets of 8 bytes */
	FS_LISTS_KEPT = 4,
};

struct fs_lists; /* opaque */

/* @n_views: of the mount, from 1. Returns 0; -ENOMEM. */
int fs_lists_new(const struct shard_index *index, uint32_t n_views, struct fs_lists **ret_lists);
/* Frees the lists; NULL is fine. */
void fs_lists_free(struct fs_lists *lists);

/* Finds the bytes of either list of @epoch: O(turns) the first time. @cancel: checked now and then; may be NULL.
 * Returns 0; -ECANCELED: *cancel was set; -ENOMEM, index errors. */
int fs_epoch_list_size(
        struct fs_lists *lists, struct fs_view *view, uint64_t epoch, const _Atomic bool *cancel, uint64_t *ret_bytes);

/* Writes bytes [off, off + size) of the list into @buf, with @end after each path. *ret_len is less than @size at the
 * end of the list.
 * Returns what fs_epoch_list_size returns. */
int fs_epoch_list_read(struct fs_lists *lists, struct fs_view *view, uint64_t epoch, char end,
        const _Atomic bool *cancel, uint64_t off, char *buf, size_t size, size_t *ret_len);

#endif
