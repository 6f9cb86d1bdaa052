/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's files in one epoch, numbered as whoever lists the mount finds them: what samplers over a rank's part are held
 * against (fs/sampler_streams.h).
 *
 * Memory: 4 bytes a file, in a flat view 8.
 * Threads: constant once made. */
#ifndef DDPFS_FS_RANK_FILES_H
#define DDPFS_FS_RANK_FILES_H

#include "fs/server.h"
#include "prefetch/sampler/list.h"

enum { FS_RANK_FILES_LISTS = 2 };

struct fs_rank_files; /* opaque */

/* Of the view's current epoch.  -ENODATA when nothing is dealt to this rank, or more than 2^24 turns; -ENOMEM, index errors. */
int fs_rank_files_new(const struct fs_server *server, struct fs_view *view, struct fs_rank_files **ret_part);
void fs_rank_files_free(struct fs_rank_files *part); /* NULL is fine */

uint64_t fs_rank_files_epoch(const struct fs_rank_files *part);
bool fs_rank_files_has(const struct fs_rank_files *part, uint32_t file);
/* Flat: the file of a turn.  -ERANGE. */
int fs_rank_files_file(const struct fs_rank_files *part, uint64_t turn, uint32_t *ret_file);

/* Its lists: in a flat view by turn; in a tree as ImageFolder walks it, all files and, where there are others, the images alone.
 * The part outlives what is made of them.  Returns how many. */
unsigned fs_rank_files_lists(struct fs_rank_files *part, struct prefetch_list_given lists[FS_RANK_FILES_LISTS]);

#endif
