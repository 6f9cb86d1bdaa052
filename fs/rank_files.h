/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's files in one epoch, numbered as a program that lists the mount finds them. fs/sampler_streams.h compares
 * samplers over a rank's part with them.
 *
 * Memory: 4 bytes a file, in a flat view 8. Threads: any; constant once made. */
#ifndef DDPFS_FS_RANK_FILES_H
#define DDPFS_FS_RANK_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "prefetch/sampler/file_list.h"

struct shard_index;
struct fs_view;

enum { FS_RANK_FILES_LISTS = 2 };

struct fs_rank_files; /* opaque */

/* Makes the list of the view's current epoch. Returns 0; -ENODATA: this rank has no turns, or more than 2^24;
 * -ENOMEM, index errors. */
int fs_rank_files_new(const struct shard_index *index, struct fs_view *view, struct fs_rank_files **ret_part);
void fs_rank_files_free(struct fs_rank_files *part); /* NULL is fine */

/* Returns the epoch of the list. */
uint64_t fs_rank_files_epoch(const struct fs_rank_files *part);
/* Returns whether the list holds the file. */
bool fs_rank_files_has(const struct fs_rank_files *part, uint32_t file);
/* Finds the file of a turn of a flat view. Returns 0; -ERANGE: no such turn. */
int fs_rank_files_file(const struct fs_rank_files *part, uint64_t turn, uint32_t *ret_file);

/* Fills in the lists that a sampler may read: in a flat view the files by turn; in a tree all files as ImageFolder
 * walks it and, if not all are images, the images alone. @part outlives what is made of them. Returns how many lists
 * there are. */
unsigned fs_rank_files_lists(struct fs_rank_files *part, struct prefetch_list_given lists[FS_RANK_FILES_LISTS]);

#endif
