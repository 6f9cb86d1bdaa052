/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of a stage share: the stage and its locks.
 *
 *   consumer threads          deliver thread                lister thread
 *   ----------------          --------------                -------------
 *   next: pin ready entries   sink store: copy verified     sink drop: the ledger
 *         wait, or demand     bytes into their entry        lets go of samples
 *         hand out            (the one copy of a byte)
 *
 * Lock order: turn, lock; then those of arena_samples.c, demands.c, mount_progress.c and the engine, each by
 * itself.  A thread holds `turn` while it puts a batch together, so one thread at a time collects memory.  Two threads
 * that each held half of what they need would wait for ever. */
#ifndef DDPFS_GPU_STAGE_STAGE_PRIVATE_H
#define DDPFS_GPU_STAGE_STAGE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "gpu_stage/clock.h"
#include "gpu_stage/demands.h"
#include "gpu_stage/backend.h"
#include "gpu_stage/mount_progress.h"
#include "gpu_stage/stage.h"
#include "gpu_stage/arena_samples.h"
#include "prefetch/prefetch.h"
#include "prefetch/sink.h"
#include "prefetch/stream.h"
#include "shard/state.h"
#include "shard/view.h"

struct ddpfs_stage {
	struct prefetch_sink sink; /* first: the engine's callbacks lead back here */
	struct shard_index *index;
	struct stage_backend *backend;
	struct stage_space *space;
	uint8_t *base;
	uint64_t bytes; /* of the arena */
	bool ready;     /* the arena is readied: memory_free must undo it */
	struct stage_samples *samples;
	struct prefetch *prefetch;
	struct stage_growth *growth; /* NULL: the whole arena is open from the beginning */
	uint64_t landing;            /* bytes of the engine's landing memory */
	uint32_t keep_pages;         /* samples of more pages are not kept: the ledger does not count them */
	uint64_t budget_bytes;       /* of the engine, with the whole arena open */
	uint64_t window_bytes;       /* of each stream */
	uint32_t rank, world;
	bool on_bad_given; /* the caller gave on_bad */
	/* What a state must agree with: order, deal, tail, subdir (own copies), seed. */
	struct ddpfs_stage_options words;
	char *quarantine;         /* path of the list that the caller gave; "": none; NULL: the one in the dataset */
	enum shard_on_bad on_bad; /* what happens with samples that are found bad */
	struct shard_quarantine *list; /* samples known to be bad; NULL: not needed, or there is no list */
	uint32_t *found;               /* n_found samples that were found bad; under turn */
	uint32_t n_found;
	void (*bad)(void *arg, const struct ddpfs_stage_error *error);
	void *bad_arg;
	struct stage_progress
	        *follow; /* tells the mount that the stage was opened from; NULL: no mount, or another rank */
	struct shard_state mount_state; /* of the mount, as it was then */
	pthread_mutex_t turn;
	pthread_mutex_t lock;
	/* Written under turn and lock, read under either: */
	struct shard_view *view;
	struct prefetch_stream *stream;
	struct shard_epoch *epoch;
	uint64_t cursor; /* turns of the epoch handed out */
	uint64_t turns;  /* turns of the epoch for this rank */
	bool following;  /* global steps of the view mean what the mount's mean */
	/* Any thread: */
	_Atomic uint32_t batches_out; /* not released */
	/* Batches that have memory: being put together, out, and released ones that a GPU still reads. */
	_Atomic uint32_t batches_held;
	_Atomic uint64_t n_batches, n_samples, n_bytes, n_ready, n_waited, n_asked, n_left_out, n_replaced, n_changed,
	        wait_ns, wait_memory_ns;
};

/* A batch, with the entries that it holds. */
struct stage_batch {
	struct ddpfs_batch public; /* first */
	struct ddpfs_stage *stage;
	struct ddpfs_item *items;
	struct stage_upload *upload; /* the backend's; may be NULL */
	struct stage_place place;    /* where it begins, for a mount that follows */
	uint32_t n_entries;
	struct stage_entry *entries[];
};

/* options.c: checks options and fills the defaults.
 * Returns 0, or -EINVAL (size, rank, world, memory_bytes, on_bad). */
int stage_options_check(const struct ddpfs_stage_options *given, struct base_err *err, struct ddpfs_stage_options *ret);
/* options.c: makes the view that the options and their state ask for.  *list: the quarantine list, owned by the
 * caller; if it is NULL and needed, it is read here.  It outlives the view.
 * Returns 0, or -EINVAL and other errors of state.h, quarantine.h and view.h. */
int stage_options_view(const struct shard_index *index, const struct ddpfs_stage_options *options, struct base_err *err,
        struct shard_quarantine **list, struct shard_view **ret_view);
/* options.c: memory_bytes, or the default. */
uint64_t stage_options_memory(const struct ddpfs_stage_options *options);

/* stage.c: makes the stage go on with a view, from its first turn in `epoch`.  Under turn, except when the stage is
 * opened.
 * Returns 0: the stage owns the view.  Else -ENODATA (the rank has no samples), -ENOMEM, or an error of the index: the
 * stage is unchanged, and the caller owns the view. */
int stage_bind(struct ddpfs_stage *stage, struct shard_view *view, uint64_t epoch, struct base_err *err);

/* stage.c: returns the global steps of an epoch after each rank has had `turns` turns. */
uint64_t stage_steps(const struct shard_epoch *epoch, uint64_t turns);

/* stage.c: copies an error for the caller (NULL: does not).  Returns its code. */
int stage_error(struct ddpfs_stage_error *error, const struct base_err *err);

#endif
