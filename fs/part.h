/* One rank's files in one epoch, numbered as whoever lists the mount finds them: what samplers over a rank's part are held
 * against (fs/recognise.h).
 *
 * Memory: 4 bytes a file, in a flat view 8.
 * Threads: constant once made. */
#ifndef DDPFS_FS_PART_H
#define DDPFS_FS_PART_H

#include "fs/server.h"
#include "prefetch/recognise_list.h"

enum { FS_PART_LISTS = 2 };

struct fs_part; /* opaque */

/* Of the view's current epoch.  -ENODATA when nothing is dealt to this rank, or more than 2^24 turns; -ENOMEM, index errors. */
int fs_part_new(const struct fs_server *server, struct fs_view *view, struct fs_part **ret_part);
void fs_part_free(struct fs_part *part); /* NULL is fine */

uint64_t fs_part_epoch(const struct fs_part *part);
bool fs_part_has(const struct fs_part *part, uint32_t file);
/* Flat: the file of a turn.  -ERANGE. */
int fs_part_file(const struct fs_part *part, uint64_t turn, uint32_t *ret_file);

/* Its lists: in a flat view by turn; in a tree as ImageFolder walks it, all files and, where there are others, the images alone.
 * The part outlives what is made of them.  Returns how many. */
unsigned fs_part_lists(struct fs_part *part, struct prefetch_list_given lists[FS_PART_LISTS]);

#endif
