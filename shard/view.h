/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's view of a dataset: which samples, in what sequence, for every epoch.  What fs/ shows as a directory and
 * gpu_stage/ iterates over.  Pure: two processes with equal options and dataset agree without talking.
 *
 * Memory: constant, but for order=torch (8 bytes a sample and epoch object) and for order=chunk or none with a subdir
 * whose samples are not stored in one stretch (4 bytes a sample of the subtree, once).
 *
 * Threads: a view and its epochs are immutable after creation; epoch objects are reference-counted and the last
 * SHARD_VIEW_EPOCHS_CACHED ones are kept; all functions may be called from any thread.  One mutex guards the cache; an
 * epoch is built outside it, and those who ask for the same one meanwhile wait for it. */
#ifndef DDPFS_SHARD_VIEW_H
#define DDPFS_SHARD_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "shard/base/err.h"
#include "shard/deal.h"
#include "shard/index.h"
#include "shard/order.h"
#include "shard/quarantine.h"

enum {
	SHARD_VIEW_EPOCHS_CACHED = 4, /* this, the next, the one before, and one somebody looks at */
	SHARD_VIEW_BLOCKS_MIN = 16,   /* deal=block: whole blocks a rank should get at least */
	SHARD_VIEW_ID_SIZE = 33,      /* 32 hex digits + NUL */
};

struct shard_view_options {
	enum shard_order_mode order; /* AUTO allowed */
	/* AUTO: block when world > 1 and order=chunk and every rank gets at least SHARD_VIEW_BLOCKS_MIN pools (a block is a
	 * pool); else stride.  An explicit block with too few pools gets smaller ones unless pool_bytes says otherwise,
	 * by the world of the epoch's first segment (so `pool_items` of a state must be kept for later worlds). */
	enum shard_deal_mode deal;
	enum shard_tail tail;
	uint64_t seed;
	uint64_t epoch;  /* the epoch that `start` and `past` belong to; all others start at 0 */
	uint64_t start;  /* global steps consumed in `epoch` */
	uint32_t n_past; /* deal=block: see shard/deal.h; their steps add up to start */
	struct shard_deal_segment past[SHARD_DEAL_SEGMENTS_MAX];
	uint32_t rank;
	uint32_t world;       /* 1 with view=all */
	const char *subdir;   /* NULL or "": everything; else only samples of this subtree are dealt */
	uint64_t chunk_bytes; /* 0 = default; ignored where chunk_items is given */
	uint64_t pool_bytes;  /* 0 = default; ignored where pool_chunks is given */
	uint64_t chunk_items; /* 0 = from chunk_bytes; a resume state carries these two, so that the order stays what */
	uint64_t pool_chunks; /* 0 = from pool_bytes;  it was when defaults or sizes change */
	/* What the order does about samples that are known to be bad (shard/quarantine.h); skip and substitute need the list. */
	enum shard_on_bad on_bad;
	const struct shard_quarantine *quarantine; /* not owned; outlives the view */
};
#define SHARD_VIEW_OPTIONS_DEFAULT ((struct shard_view_options){ .world = 1 })

struct shard_view;  /* opaque; keeps the index pointer (not owned; must outlive the view) */
struct shard_epoch; /* opaque */

/* Everything in options is copied but the list.
 * -EINVAL (rank >= world, on_bad without its list, nothing left to deal, start > n, segments that do not add up, a start that
 * is ambiguous because deal=auto may have been block before, no samples under subdir), -ENOENT/-ENOTDIR (subdir; no stand-in),
 * -ENOMEM, -E2BIG, index errors. */
int shard_view_new(const struct shard_index *index, const struct shard_view_options *options, struct base_err *err,
        struct shard_view **ret_view);
void shard_view_free(struct shard_view *view); /* all epochs must have been put; NULL is fine */

/* A view whose order somebody else holds: a trainer's own, as far as it is known.  Everything in `given` is copied.
 * Its epochs are cheap, and one that is not known has no turns; the options are those of one rank of one. */
struct shard_view_given {
	void *user; /* outlives the view */
	/* The epoch, with a reference, and its turns.  -ENODATA when it is not known (yet). */
	int (*get)(void *user, uint64_t number, void **ret_epoch, uint64_t *ret_turns);
	void (*put)(void *epoch);
	int (*turn)(void *epoch, uint64_t turn, uint32_t *ret_sample);
	int (*find)(void *epoch, uint32_t sample, uint64_t *ret_turn); /* -ENOENT */
};
int shard_view_new_given(const struct shard_index *index, const struct shard_view_given *given,
        struct shard_view **ret_view); /* -ENOMEM */
bool shard_view_is_given(const struct shard_view *view);

/* AUTO resolved; chunk_items and pool_chunks filled in for order=chunk (0 otherwise); subdir never NULL. */
const struct shard_view_options *shard_view_options_get(const struct shard_view *view);
const struct shard_index *shard_view_index(const struct shard_view *view);
uint64_t shard_view_samples(const struct shard_view *view); /* n: samples that are dealt each epoch, all ranks */
uint32_t shard_view_subdir(const struct shard_view *view);  /* directory id; 0 = whole dataset */

/* on_bad: how many samples of this view's subtree are in the list, left out or replaced; 0 with eio. */
uint32_t shard_view_n_bad(const struct shard_view *view);
/* The sample that comes where `sample` would: itself, or its stand-in.  -ENOENT: it is left out. */
int shard_view_instead(const struct shard_view *view, uint32_t sample, uint32_t *ret_sample);
/* The same for a file by its name: itself, or its counterpart of the stand-in.  -ENOENT; index errors. */
int shard_view_instead_file(const struct shard_view *view, uint32_t file, uint32_t *ret_file);

/* Identity of the view: XXH3-128 over (dataset identity, subdir, order with its geometry, deal, seed, epoch, start,
 * segments, tail, world, on_bad with its list); not the rank: ranks of one job have equal identities. */
void shard_view_identity(const struct shard_view *view, char ret_hex[static SHARD_VIEW_ID_SIZE]);

/* The order and deal of one epoch, by reference: shard_epoch_put it.  Cheap but for order=torch (O(n)).  -ENOMEM. */
int shard_view_epoch(struct shard_view *view, uint64_t epoch, struct shard_epoch **ret_epoch);
struct shard_epoch *shard_epoch_get(struct shard_epoch *epoch); /* another reference; returns epoch */
void shard_epoch_put(struct shard_epoch *epoch);                /* NULL is fine */

uint64_t shard_epoch_number(const struct shard_epoch *epoch);
/* The deal of this epoch: n, start, world, tail; for step arithmetic. */
const struct shard_deal *shard_epoch_deal(const struct shard_epoch *epoch);
/* Turns of any rank; this view's own rank: shard_epoch_turns(e, options->rank). */
uint64_t shard_epoch_turns(const struct shard_epoch *epoch, uint32_t rank);

/* The k-th sample of `rank` in this epoch.  *ret_step (may be NULL): its global step, the P of file names.
 * -ERANGE when k is past the turns; index errors. */
int shard_epoch_turn(
        const struct shard_epoch *epoch, uint32_t rank, uint64_t k, uint32_t *ret_sample, uint64_t *ret_step);

/* The same of n of them, from the k-th on, quicker.  ret_samples, ret_steps: n each.  -ERANGE when any is past the turns. */
int shard_epoch_samples(const struct shard_epoch *epoch, uint32_t rank, uint64_t k, uint32_t n, uint32_t *ret_samples,
        uint64_t *ret_steps);

/* The sample at a global step, whichever rank's.  -ERANGE; index errors. */
int shard_epoch_step_sample(const struct shard_epoch *epoch, uint64_t step, uint32_t *ret_sample);

/* Where a sample comes in this epoch: its first step; that of a listed sample with on_bad=substitute is where its stand-in
 * comes, and a stand-in's is its own place.  Its rank is (step - start) % world, its turn
 * (step - start) / world.  Outputs may be NULL.  -ENOENT when the sample is not of this view's subtree, left out, was consumed
 * before start, or is dropped; -EINVAL when there is no such sample; index errors. */
int shard_epoch_find(
        const struct shard_epoch *epoch, uint32_t sample, uint64_t *ret_step, uint32_t *ret_rank, uint64_t *ret_turn);
/* The same for who knows its slot (shard_index_slot_sample): no look at its record.  slot: SHARD_NONE where it is not known. */
int shard_epoch_find_stored(const struct shard_epoch *epoch, uint32_t sample, uint32_t slot, uint64_t *ret_step,
        uint32_t *ret_rank, uint64_t *ret_turn);

#endif
