/* SPDX-License-Identifier: Apache-2.0 */
/* The warm-up of a mount: the dataset in storage order, as a stream of the engine (prefetch/warm_up.c).
 *
 * Only a tree of all files has one: there a trainer's own sampler decides what comes next, and the recogniser may not
 * know it. The engine decides when the stream runs. This file gives it the order, and says what it does.
 *
 * Threads: any. The order does not change. */
#ifndef DDPFS_FS_WARM_UP_H
#define DDPFS_FS_WARM_UP_H

struct prefetch;
struct fs_view;
struct shard_index;
struct shard_view;

struct fs_warm_up; /* opaque */

/* Makes the storage order of what @view shows. Samples outside of its subdir, and samples that on_bad leaves out or
 * replaces, are not in it. Returns 0; -ENOMEM; index errors. */
int fs_warm_up_new(const struct shard_index *index, const struct fs_view *view, struct fs_warm_up **ret_warm_up);
void fs_warm_up_free(struct fs_warm_up *warm_up); /* NULL is fine; after the stream */

/* Returns the order, an order that is given (shard/view.h) with one epoch. Valid until fs_warm_up_free. */
struct shard_view *fs_warm_up_order(struct fs_warm_up *warm_up);

/* Returns what the stream does, as a sentence; NULL if the engine has no such stream. */
const char *fs_warm_up_says(struct prefetch *prefetch);

#endif
