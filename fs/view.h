/* SPDX-License-Identifier: Apache-2.0 */
/* A view being served: one rank's order of the dataset, its layout, and how far its trainer is.
 *
 * The current epoch is the one that listings show.  Opens (told by the watcher) fill a bitmap over the rank's turns; a
 * listing of the view's root or of its subtree moves to the next epoch once half of the turns were opened, unless
 * advance=off or somebody set the epoch explicitly.
 *
 * Threads: all functions may be called from any thread.  `lock` guards the fields below it and is the innermost lock of
 * fs/: nothing is called with it held but pure functions of shard/. */
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

struct fs_view {
	uint32_t number; /* in inode numbers */
	const struct shard_index *index;
	struct shard_view *order;
	struct shard_view_options options; /* resolved */
	enum fs_layout layout;
	bool all;         /* every file, no rank */
	bool fill_class;  /* layout=tree, !all */
	uint32_t subdir;  /* directory whose samples are dealt; 0 = all */
	uint32_t sample0; /* dealt samples: [sample0, sample_end) */
	uint32_t sample_end;

	pthread_mutex_t lock;
	struct shard_epoch *epoch; /* current; referenced */
	uint64_t turns;            /* of this rank in it */
	uint64_t *opened;          /* bit per turn; in the estate or of its own */
	uint64_t n_opened;         /* bits set */
	uint64_t next_turn;        /* one past the highest turn opened */
	uint64_t *again;           /* turns opened again after nearly all were; NULL before */
	uint64_t n_again;          /* bits set */
	bool told_again;           /* the note about an old list was given */
	bool pinned;               /* the epoch was set by hand or advance=off */
	bool consumed;             /* a library reads this epoch: a listing must not leave it before its end */
	bool trained_set;          /* somebody recorded what was trained */
	uint64_t trained_epoch;
	uint64_t trained_steps;
	struct timespec listing_time;   /* when the current epoch became current: mtime of the root; 0 = at mount */
	struct fs_handover_view estate; /* where a successor finds all this; maps NULL: nowhere */
	uint32_t map;                   /* the one that `opened` is */
};

/* Makes the view of `options` and opens its first epoch.  Errors of shard_view_new; -ENOMEM. */
int fs_view_new(const struct shard_index *index, const struct fs_options *options, uint32_t number,
        struct base_err *err, struct fs_view **ret_view);
void fs_view_free(struct fs_view *view); /* NULL is fine */

/* From now on the view's progress stands in `estate`, which outlives the view.  resume: takes over first what a predecessor
 * left there, as far as it can be true.  -ENOMEM, index errors. */
int fs_view_keep(struct fs_view *view, const struct fs_handover_view *estate, bool resume);

/* The first turn of `epoch` that was not opened (all: the number of turns); 0 when it is not the current one. */
uint64_t fs_view_first_unopened(struct fs_view *view, uint64_t epoch);

/* Opened turns of `epoch` from `from` on: fills at most max, in order, and returns how many; *from moves behind the last.
 * None when `epoch` is not the current one. */
size_t fs_view_opened_turns(struct fs_view *view, uint64_t epoch, uint64_t *from, uint64_t *turns, size_t max);

/* The current epoch, referenced. */
struct shard_epoch *fs_view_epoch(struct fs_view *view);

/* A listing of the view's root begins: moves on when it is time.  Returns true when the epoch changed. */
bool fs_view_listing(struct fs_view *view);

/* Makes `epoch` the current one and keeps it until fs_view_set_advance(view, true).  -ERANGE, -ENOMEM, index errors. */
int fs_view_set_epoch(struct fs_view *view, uint64_t epoch);
void fs_view_set_advance(struct fs_view *view, bool automatic);

/* A turn of `epoch` was opened.  Returns true once in the life of an epoch, when the trainer is seen to go through a
 * list again that it has read before: the caller tells the user. */
bool fs_view_opened(struct fs_view *view, uint64_t epoch, uint64_t turn);

/* Opens were lost (a full queue): the turns [from, to) of `epoch` are taken as opened. */
void fs_view_opened_range(struct fs_view *view, uint64_t epoch, uint64_t from, uint64_t to);

/* This rank's turn of a sample in `epoch`.  -ENOENT when the sample is not this rank's. */
int fs_view_turn(const struct fs_view *view, const struct shard_epoch *epoch, uint32_t sample, uint64_t *ret_turn);

struct fs_view_progress {
	uint64_t epoch;
	uint64_t turns;
	uint64_t n_opened;
	uint64_t next_turn;
	bool automatic;
	struct timespec listing_time;
};
void fs_view_progress(struct fs_view *view, struct fs_view_progress *ret_progress);

/* The global steps of `epoch` trained once each rank has trained the first `turns` of its samples, or all that it has.
 * -ERANGE (no such epoch, or over a million turns more than there are samples), -ENOMEM. */
int fs_view_steps(struct fs_view *view, uint64_t epoch, uint64_t turns, uint64_t *ret_steps);

/* What the trainer has trained: global steps of `epoch`, from its beginning.  -ERANGE when the epoch has fewer. */
int fs_view_set_trained(struct fs_view *view, uint64_t epoch, uint64_t steps);
/* A library that reads the dataset by itself has had these global steps of `epoch`: they are trained, this rank's share counts
 * as opened, and `epoch` becomes the current one.  *ret_changed: it was another.
 * -ERANGE when the epoch has fewer, -EINVAL when it began after them; -ENOMEM, index errors. */
int fs_view_consumed(struct fs_view *view, uint64_t epoch, uint64_t steps, bool *ret_changed);
/* What a checkpoint should hold: what was recorded, or the start of the current epoch when that is later. */
void fs_view_trained(struct fs_view *view, uint64_t *ret_epoch, uint64_t *ret_steps);

#endif
