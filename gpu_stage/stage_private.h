/* SPDX-License-Identifier: Apache-2.0 */
/* A stage's inside.
 *
 *   consumer threads          deliver thread                lister thread
 *   ----------------          --------------                -------------
 *   next: pin what is ready   sink store: copy verified     sink drop: the ledger
 *         wait, or ask        bytes into their entry        lets go of samples
 *         hand out            (the one copy of a byte)
 *
 * Lock order: turn, lock; then those of store.c, ask.c, follow.c and the engine, each by itself.  `turn` is held while a batch is put
 * together, so that one thread at a time collects memory: two that each held half of what they need would wait for ever. */
#ifndef DDPFS_GPU_STAGE_STAGE_PRIVATE_H
#define DDPFS_GPU_STAGE_STAGE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "gpu_stage/clock.h"
#include "gpu_stage/ask.h"
#include "gpu_stage/backend.h"
#include "gpu_stage/follow.h"
#include "gpu_stage/stage.h"
#include "gpu_stage/store.h"
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
	bool ready;     /* it is the backend's, to be given back */
	struct stage_store *store;
	struct prefetch *prefetch;
	uint32_t keep_pages; /* samples of more are not kept: the ledger does not count them */
	uint64_t window_bytes;
	uint32_t rank, world;
	bool on_bad_given; /* on_bad is the caller's own word */
	struct ddpfs_stage_options
	        words;                 /* order, deal, tail, subdir (own copies), seed: what a state must agree with */
	char *quarantine;              /* the list that the caller named, "": none; NULL: the one beside the index */
	enum shard_on_bad on_bad;      /* what the caller wants of samples that are found to be bad */
	struct shard_quarantine *list; /* of those that are known to be; NULL: none was needed, or there is none */
	uint32_t *found;               /* n_found samples that were found to be bad; under turn */
	uint32_t n_found;
	void (*bad)(void *arg, const struct ddpfs_stage_error *error);
	void *bad_arg;
	struct stage_follow *follow;    /* opened from a mount, for its rank: else NULL */
	struct shard_state mount_state; /* ... as it was then */
	pthread_mutex_t turn;
	pthread_mutex_t lock;
	/* Written under turn and lock, read under either: */
	struct shard_view *view;
	struct prefetch_stream *stream;
	struct shard_epoch *epoch;
	uint64_t cursor; /* turns of it handed out */
	uint64_t turns;  /* of it */
	bool following;  /* the view's steps are the mount's */
	/* Any thread: */
	_Atomic uint32_t batches_out; /* not released */
	_Atomic uint32_t
	        batches_held; /* that have memory: being put together, out, and released ones that a GPU still reads */
	_Atomic uint64_t n_batches, n_samples, n_bytes, n_ready, n_waited, n_asked, n_left_out, n_replaced, n_changed,
	        wait_ns, wait_memory_ns;
};

/* A batch and what it holds. */
struct stage_batch {
	struct ddpfs_batch public; /* first */
	struct ddpfs_stage *stage;
	struct ddpfs_item *items;
	struct stage_upload *upload; /* the backend's */
	struct stage_place place;    /* where it begins, for a mount that follows */
	uint32_t n_entries;
	struct stage_entry *entries[];
};

/* options.c: a view of the stage's dataset by options (size checked), with a state applied.  *list: the quarantine list, owned by the
 * caller, read here when it is needed and NULL; it outlives the view. */
int stage_options_check(const struct ddpfs_stage_options *given, struct base_err *err, struct ddpfs_stage_options *ret);
int stage_options_view(const struct shard_index *index, const struct ddpfs_stage_options *options, struct base_err *err,
        struct shard_quarantine **list, struct shard_view **ret_view);
uint64_t stage_options_memory(const struct ddpfs_stage_options *options);

/* stage.c: from this view's first turn on. On failure the stage is unchanged and the view the caller's. */
int stage_bind(struct ddpfs_stage *stage, struct shard_view *view, uint64_t epoch, struct base_err *err);

/* stage.c: global steps of an epoch once each rank has had `turns` turns. */
uint64_t stage_steps(const struct shard_epoch *epoch, uint64_t turns);

int stage_error(struct ddpfs_stage_error *error, const struct base_err *err);

#endif
