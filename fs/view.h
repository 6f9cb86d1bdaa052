/* SPDX-License-Identifier: Apache-2.0 */
/* A view that is served: one rank's order of the dataset, its layout, and how far its trainer is.
 *
 * Listings show the current epoch. The watcher reports opens, which set bits in a bitmap over the rank's turns. A
 * listing of the view's root or of its subtree moves to the next epoch when half of the turns were opened. It does
 * not if advance=off, or if somebody set the epoch.
 *
 * Threads: any, for every function. `lock` guards the fields below it and is the innermost lock of fs/: with it held,
 * only pure functions of shard/ and of fs/supervise/handover_memory.h are called. */
#ifndef DDPFS_FS_VIEW_H
#define DDPFS_FS_VIEW_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "fs/fs.h"
#include "fs/supervise/handover_memory.h"
#include "shard/view.h"

/* The names of the directories of a mount of several ranks: "rank3". */
#define FS_RANK_PREFIX "rank"

struct fs_view {
	uint32_t number; /* in inode numbers */
	char place[24]; /* where its root is below the root of the mount: "", or "rank3/" in a mount of several ranks */
	const struct shard_index *index;
	struct shard_view *order;          /* the same in all views of a server; that of view 0 owns it */
	struct shard_view_options options; /* with all defaults filled in */
	enum fs_layout layout;
	bool all;                /* every file: rank 0 of 1 */
	bool fill_class;         /* only with layout=tree and !all */
	bool stays;              /* advance=off */
	_Atomic bool has_reader; /* see fs_view_begin */
	uint32_t subdir;         /* the directory whose samples are dealt; 0: all */
	uint32_t sample0;        /* dealt samples: [sample0, sample_end) */
	uint32_t sample_end;

	pthread_mutex_t lock;
	struct shard_epoch *epoch; /* the current one; referenced */
	uint64_t turns;            /* of this rank in that epoch */
	uint64_t *opened;          /* one bit for each turn; in the handover memory, or of its own */
	uint64_t n_opened;         /* bits set in `opened` */
	uint64_t next_turn;        /* one past the highest turn opened */
	uint64_t *again;           /* turns opened again after nearly all were opened; NULL: none yet */
	uint64_t n_again;          /* bits set in `again` */
	bool told_again;           /* the note about an old list was given */
	bool pinned;               /* somebody set the epoch, or advance=off */
	bool consumed;             /* a library reads this epoch: a listing must not leave it before its end */
	bool trained_set;          /* somebody recorded what was trained */
	uint64_t trained_epoch;
	uint64_t trained_steps;
	struct timespec listing_time;     /* when the current epoch became current: mtime of the root; 0: at mount */
	struct fs_handover_view handover; /* where a successor finds all this; maps NULL: nowhere */
	uint32_t map;                     /* number of the map that `opened` is */
};

/* Makes the view of @options and opens its first epoch.
 * @number: the view's number in inode numbers, below FS_VIEWS_MAX. View 0 owns the order.
 * Returns 0; -EINVAL: the epoch is above FS_EPOCH_MAX; errors of shard_view_new; -ENOMEM. */
int fs_view_new(const struct shard_index *index, const struct fs_options *options, uint32_t number,
        struct base_err *err, struct fs_view **ret_view);
/* Makes the view of the rank that is @number behind that of @first, in the same order, of a mount of several ranks.
 * @first is view 0 and outlives it.
 * Returns 0; -ENOMEM, index errors. */
int fs_view_new_rank(struct fs_view *first, uint32_t number, struct base_err *err, struct fs_view **ret_view);
void fs_view_free(struct fs_view *view); /* NULL is fine */
/* Returns how many turns the view has in any epoch at most. In a mount of one rank that is a higher bound, by which the
 * handover memory was always laid out: a successor of another version finds what was left. */
uint64_t fs_view_turns_max(const struct fs_view *view);

/* Keeps the view's progress in @handover, which outlives the view, from now on.
 * @resume: first take over what a predecessor left there, as far as it can be true.
 * Returns 0; -ENOMEM, index errors. */
int fs_view_keep(struct fs_view *view, const struct fs_handover_view *handover, bool resume);

/* Returns the first turn of @epoch that was not opened, the number of turns if all were; 0 if @epoch is not the
 * current one. */
uint64_t fs_view_first_unopened(struct fs_view *view, uint64_t epoch);

/* Writes the opened turns of @epoch, from *from on, into @turns: at most @max, in order. *from moves behind the last
 * one looked at.
 * Returns how many it wrote: 0 if @epoch is not the current one. */
size_t fs_view_opened_turns(struct fs_view *view, uint64_t epoch, uint64_t *from, uint64_t *turns, size_t max);

/* Returns the current epoch, referenced. */
struct shard_epoch *fs_view_epoch(struct fs_view *view);

/* Begins a listing of the view's root: moves to the next epoch when that is due. Returns whether the epoch changed. */
bool fs_view_listing(struct fs_view *view);

/* Makes @epoch the current one and keeps it until fs_view_set_advance(view, true).
 * Returns 0; -ERANGE: above FS_EPOCH_MAX; -ENOMEM, index errors. */
int fs_view_set_epoch(struct fs_view *view, uint64_t epoch);
/* Says whether listings advance the epoch (true) or leave it (false). */
void fs_view_set_advance(struct fs_view *view, bool automatic);

/* Records that the view has a reader: somebody who lists it or opens its files. The view of a mount of one rank has one
 * from its beginning. A successor finds it in the handover memory. Returns whether the view had none. */
bool fs_view_begin(struct fs_view *view);
static inline bool fs_view_has_reader(const struct fs_view *view)
{
	return atomic_load_explicit(&view->has_reader, memory_order_relaxed);
}

/* Makes everything what it is at the mount: the epoch, nothing opened, nothing trained, and one of several ranks has no
 * reader. Returns 0; -ENOMEM, index errors. */
int fs_view_reset(struct fs_view *view);

/* Records that a turn of @epoch was opened. Returns true once in the life of an epoch: when the trainer goes through
 * a list again that it has read before. The caller then tells the user. */
bool fs_view_opened(struct fs_view *view, uint64_t epoch, uint64_t turn);

/* Records that all turns [from, to) of @epoch were opened, because their events were lost (a full queue). */
void fs_view_opened_range(struct fs_view *view, uint64_t epoch, uint64_t from, uint64_t to);

/* Finds this rank's turn of a sample in @epoch. Returns 0; -ENOENT: the sample is not this rank's; index errors. */
int fs_view_turn(const struct fs_view *view, const struct shard_epoch *epoch, uint32_t sample, uint64_t *ret_turn);

/* The fields mean what they mean in struct fs_view. */
struct fs_view_progress {
	uint64_t epoch;
	uint64_t turns;
	uint64_t n_opened;
	uint64_t next_turn;
	/* listings advance the epoch: not pinned */
	bool automatic;
	struct timespec listing_time;
};
/* Tells how far the trainer is; all values are of one moment. */
void fs_view_progress(struct fs_view *view, struct fs_view_progress *ret_progress);

/* Finds how many global steps of @epoch are trained once each rank has trained the first @turns of its samples, or
 * all that it has.
 * Returns 0; -ERANGE: no such epoch, or over a million turns more than there are samples; -ENOMEM. */
int fs_view_steps(struct fs_view *view, uint64_t epoch, uint64_t turns, uint64_t *ret_steps);

/* Records what the trainer has trained: @steps global steps of @epoch, from its beginning. Returns 0; -ERANGE: no
 * such epoch, or it has fewer steps. */
int fs_view_set_trained(struct fs_view *view, uint64_t epoch, uint64_t steps);
/* Records that a library which reads the dataset by itself has had the first @steps global steps of @epoch. They are
 * trained, this rank's part of them counts as opened, and @epoch becomes the current one. *ret_changed: whether
 * another epoch was current before.
 * Returns 0; -ERANGE: the epoch has fewer steps; -EINVAL: the epoch begins after @steps; -ENOMEM, index errors. */
int fs_view_consumed(struct fs_view *view, uint64_t epoch, uint64_t steps, bool *ret_changed);
/* Tells what a checkpoint should hold: what was recorded, or the start of the current epoch if that is later. */
void fs_view_trained(struct fs_view *view, uint64_t *ret_epoch, uint64_t *ret_steps);

/* Returns whether the view deals the sample of a file: it is of the subdir, and not common. */
bool fs_view_deals(const struct fs_view *view, const struct shard_file *file);

/* For fill_class: if a directory has no file of this rank, it lists one file of another rank, because ImageFolder
 * stops at a class without a file. Finds that file: the first one that a rank shows.
 * @shows: says whether this rank shows a file; returns 1, 0 or -errno. The search ends at the first file that it
 * shows, after about `world` files.
 * Returns 0 or an error of the index or of @shows; *ret_file is SHARD_NONE if the directory needs no such file. */
int fs_view_stand_in(const struct fs_view *view, uint32_t dir,
        int (*shows)(const void *user, uint32_t id, const struct shard_file *file), const void *user,
        uint32_t *ret_file);

#endif
