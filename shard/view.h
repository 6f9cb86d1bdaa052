/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's view of a dataset: which samples the rank gets, in which sequence, in every epoch.
 *
 * fs/ shows a view as a directory, gpu_stage/ iterates over one.  A view is a pure function of the dataset and the
 * options.  So two processes with equal dataset and options agree without messages.
 *
 * Memory: constant, with two exceptions.
 *   order=torch                         8 bytes a sample for each epoch object
 *   order=chunk or none with a subdir   4 bytes a sample of the subtree, once, if they are not stored in one stretch
 *
 * Threads: any thread may call every function.  Views and epochs do not change after creation.  One mutex guards the
 * cache of the last SHARD_VIEW_EPOCHS_CACHED epochs (shard_view_share: more).  An epoch is built outside the mutex;
 * other threads that ask for the same epoch wait until it is built. */
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
	SHARD_VIEW_EPOCHS_CACHED = 4, /* the current, the next and the previous epoch, and one that somebody lists */
	SHARD_VIEW_EPOCHS_SHARED = 8, /* those of ranks that are two epochs apart, and two that somebody lists */
	SHARD_VIEW_BLOCKS_MIN = 16,   /* deal=block: whole blocks that a rank should get at least */
	SHARD_VIEW_ID_SIZE = 33,      /* bytes: 32 hex digits and a NUL */
};

struct shard_view_options {
	enum shard_order_mode order; /* AUTO is allowed */
	/* AUTO is block if world > 1, order=chunk, and every rank gets at least SHARD_VIEW_BLOCKS_MIN pools (a block is
	 * a pool); else stride.  An explicit block with too few pools gets smaller pools, unless pool_bytes or
	 * pool_chunks is given.  The world of the epoch's first segment decides their size, so a resume state keeps
	 * `pool_chunks`. */
	enum shard_deal_mode deal;
	enum shard_tail tail;
	uint64_t seed;
	uint64_t epoch;  /* `start` and `past` belong to this epoch; all other epochs start at 0 */
	uint64_t start;  /* global steps consumed in `epoch`, at most n */
	uint32_t n_past; /* deal=block: entries of `past`, at most SHARD_DEAL_SEGMENTS_MAX */
	struct shard_deal_segment past[SHARD_DEAL_SEGMENTS_MAX]; /* see shard/deal.h; their steps add up to start */
	uint32_t rank;                                           /* below world */
	uint32_t world;                                          /* 1 .. SHARD_WORLD_MAX; 1 with view=all */
	const char *subdir;   /* NULL or "": the whole dataset; else only samples of this subtree are dealt */
	uint64_t chunk_bytes; /* 0 = default; ignored if chunk_items is given */
	uint64_t pool_bytes;  /* 0 = default; ignored if pool_chunks is given */
	/* A resume state carries these two, so the order stays the same when defaults or sizes change. */
	uint64_t chunk_items; /* samples of a chunk; 0 = from chunk_bytes */
	uint64_t pool_chunks; /* chunks of a pool; 0 = from pool_bytes */
	/* The order deals the samples to `groups` groups, which keep them for `redeal` epochs: shard/order.h.  2 .. n;
	 * 0 or 1: no groups.  Only for full and chunk; the deal is then stride. */
	uint64_t groups;
	uint64_t redeal;          /* 0: groups keep their samples in all epochs */
	enum shard_on_bad on_bad; /* what the order does with samples that are known to be bad: shard/quarantine.h */
	const struct shard_quarantine *quarantine; /* needed by skip and substitute; not owned; outlives the view */
};
#define SHARD_VIEW_OPTIONS_DEFAULT ((struct shard_view_options){ .world = 1 })

struct shard_view;  /* opaque; keeps the index pointer, which it does not own and which must outlive it */
struct shard_epoch; /* opaque; counted references */

/* Makes a view.  Copies everything in `options` except the quarantine list.
 * Returns 0; -EINVAL: rank, world, start or past is out of range, on_bad has no list, there are no samples to deal,
 * start needs `past`, because the deal is block or deal=auto may have been block, groups are more than the samples, the
 * order or the deal has no groups, or redeal has no groups; -ENOENT or -ENOTDIR: subdir; -ENOENT:
 * a bad sample has no stand-in; -E2BIG: n_past too large; -ENOMEM; errors of the index.  Any thread. */
int shard_view_new(const struct shard_index *index, const struct shard_view_options *options, struct base_err *err,
        struct shard_view **ret_view);
/* Frees a view.  All its epochs must have been put.  NULL is allowed. */
void shard_view_free(struct shard_view *view);
/* Makes the view cache SHARD_VIEW_EPOCHS_SHARED epochs, because several ranks are read through it.  Call it before
 * other threads know the view. */
void shard_view_share(struct shard_view *view);

/* The order of a trainer, as far as it is known: callbacks of a view that does not compute its order. */
struct shard_view_given {
	void *user; /* the callbacks' first argument; outlives the view */
	/* Returns 0, the epoch with a reference and the number of its turns; -ENODATA: the order is not known (yet). */
	int (*get)(void *user, uint64_t number, void **ret_epoch, uint64_t *ret_turns);
	/* Gives the reference back. */
	void (*put)(void *epoch);
	/* Returns 0 and the sample of a turn below the number of turns, or -errno. */
	int (*turn)(void *epoch, uint64_t turn, uint32_t *ret_sample);
	/* Returns 0 and the turn of a sample; -ENOENT: the epoch does not have it. */
	int (*find)(void *epoch, uint32_t sample, uint64_t *ret_turn);
	/* For epochs that have a sample several times, else NULL.  Returns 0 and the first turn of a sample at or
	 * behind `from`; -ENOENT: there is none. */
	int (*find_from)(void *epoch, uint32_t sample, uint64_t from, uint64_t *ret_turn);
};
/* Makes a view whose order comes from `given`, which is copied.  Its options are those of rank 0 in a world of 1.  Its
 * epochs are not cached.  An epoch whose order is not known has no turns.  The last epoch that is known may get more
 * turns: `get` then returns a longer one, with the same first turns.
 * Returns 0 or -ENOMEM.  Any thread. */
int shard_view_new_given(
        const struct shard_index *index, const struct shard_view_given *given, struct shard_view **ret_view);
/* Says whether shard_view_new_given made the view. */
bool shard_view_is_given(const struct shard_view *view);

/* Returns the options in use: AUTO is resolved, chunk_items and pool_chunks are set for order=chunk and 0 for other
 * orders, groups and redeal are 0 if there are no groups, subdir is never NULL.  Valid as long as the view. */
const struct shard_view_options *shard_view_options_get(const struct shard_view *view);
const struct shard_index *shard_view_index(const struct shard_view *view);
/* Returns n: the samples that are dealt in each epoch, of all ranks together. */
uint64_t shard_view_samples(const struct shard_view *view);
/* Returns the directory id of the subtree; 0 = the whole dataset. */
uint32_t shard_view_subdir(const struct shard_view *view);

/* Returns how many samples of the view's subtree are left out or replaced; 0 with on_bad=eio. */
uint32_t shard_view_n_bad(const struct shard_view *view);
/* Says which sample comes in the place of `sample`: itself, or its stand-in.
 * Returns 0; -ENOENT: the sample is left out. */
int shard_view_instead(const struct shard_view *view, uint32_t sample, uint32_t *ret_sample);
/* Says which file comes in the place of `file`: itself, or its counterpart in the stand-in of its sample.
 * Returns 0; -ENOENT: its sample is left out; errors of the index. */
int shard_view_instead_file(const struct shard_view *view, uint32_t file, uint32_t *ret_file);

/* Writes the identity of the view as hex: XXH3-128 over (dataset identity, subdir, order with its geometry, deal, seed,
 * epoch, start, segments, tail, world, groups, on_bad with its list).  The rank is not in it: ranks of one job have
 * equal identities. */
void shard_view_identity(const struct shard_view *view, char ret_hex[static SHARD_VIEW_ID_SIZE]);

/* Returns 0 and a reference to an epoch: its order and its deal.  The caller gives it back with shard_epoch_put.
 * Costs O(1) if the epoch is cached or the order is not torch; else O(n).  -ENOMEM; for a given view errors of `get`.
 * May wait while another thread builds the same epoch.  Any thread. */
int shard_view_epoch(struct shard_view *view, uint64_t epoch, struct shard_epoch **ret_epoch);
/* Does the same, but does not cache the epoch if it is built: for who looks at it once.  Not for a given view. */
int shard_view_epoch_once(struct shard_view *view, uint64_t epoch, struct shard_epoch **ret_epoch);
/* Takes another reference; returns epoch. */
struct shard_epoch *shard_epoch_get(struct shard_epoch *epoch);
/* Gives a reference back; the last one frees the epoch.  NULL is allowed. */
void shard_epoch_put(struct shard_epoch *epoch);

uint64_t shard_epoch_number(const struct shard_epoch *epoch);
/* Returns the deal of this epoch (n, start, world, tail), for arithmetic with steps.  All zero in a given view. */
const struct shard_deal *shard_epoch_deal(const struct shard_epoch *epoch);
/* Returns the number of turns of any rank; of the view's own rank: shard_epoch_turns(e, options->rank). */
uint64_t shard_epoch_turns(const struct shard_epoch *epoch, uint32_t rank);

/* Returns 0 and the sample of turn k of `rank`.  *ret_step (may be NULL) is its global step, the P of file names.
 * -ERANGE: no such turn; errors of the index.  Any thread. */
int shard_epoch_turn(
        const struct shard_epoch *epoch, uint32_t rank, uint64_t k, uint32_t *ret_sample, uint64_t *ret_step);

/* order=chunk: finds the pool that turn k of `rank` lies in: the turns [*ret_first, *ret_end) of the rank.  Turns that
 * only repeat positions (tail=pad) are together.  O(log of the number of turns).
 * Returns 0; -ERANGE: no such turn; -EOPNOTSUPP: another order, or a given view. */
int shard_epoch_pool(
        const struct shard_epoch *epoch, uint32_t rank, uint64_t k, uint64_t *ret_first, uint64_t *ret_end);

/* Does the same as shard_epoch_turn for turns [k, k + n), faster.  ret_samples and ret_steps have n entries.
 * -ERANGE: one of the turns does not exist; errors of the index. */
int shard_epoch_samples(const struct shard_epoch *epoch, uint32_t rank, uint64_t k, uint32_t n, uint32_t *ret_samples,
        uint64_t *ret_steps);

/* Finds which rank takes a global step of an epoch, and in which turn.  It does not say whether the rank has that turn.
 * Returns 0; -ENOENT: the step was consumed before start.  Not for a given view. */
int shard_view_step_turn(
        const struct shard_view *view, uint64_t epoch, uint64_t step, uint32_t *ret_rank, uint64_t *ret_turn);

/* Returns 0 and the sample at a global step of any rank.  -ERANGE: step is outside [start, end of the deal); errors of
 * the index.  Not for a given view, which has no deal. */
int shard_epoch_step_sample(const struct shard_epoch *epoch, uint64_t step, uint32_t *ret_sample);

/* Finds where a sample comes in this epoch: its first step, the rank that takes it (shard_deal_rank) and the turn
 * (step - start) / world.  With on_bad=substitute a listed sample is where its stand-in comes; a stand-in is at its own
 * place.  Outputs may be NULL.
 * Returns 0; -ENOENT: the sample is not in the subtree, is left out, was consumed before start, or is dropped; -EINVAL:
 * no such sample; errors of the index.  Any thread. */
int shard_epoch_find(
        const struct shard_epoch *epoch, uint32_t sample, uint64_t *ret_step, uint32_t *ret_rank, uint64_t *ret_turn);
/* Finds the first turn of a sample at or behind `from`, in an epoch of a given view that has samples several times.
 * Returns 0; -ENOENT: there is none; -EOPNOTSUPP: the view has no `find_from`.  Any thread. */
int shard_epoch_find_from(const struct shard_epoch *epoch, uint32_t sample, uint64_t from, uint64_t *ret_turn);
/* Does the same as shard_epoch_find for a caller that knows the storage slot of the sample (shard_index_slot_sample),
 * without reading its record.  slot: SHARD_NONE if it is not known. */
int shard_epoch_find_stored(const struct shard_epoch *epoch, uint32_t sample, uint32_t slot, uint64_t *ret_step,
        uint32_t *ret_rank, uint64_t *ret_turn);

#endif
