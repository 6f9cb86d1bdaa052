/* SPDX-License-Identifier: Apache-2.0 */
/* A sequence: what a recognised trainer reads in one epoch, turn -> file and back.
 *
 *   file <-- list --> index <-- permutation --> position <-- world, ranks --> turn
 *
 * Position p holds the index perm[p], or p where there is no shuffle.  The part of the ranks that are seen here are the
 * positions p with p % world in [first, first + ranks); turn t is the t-th of them, so several ranks are merged
 * round-robin.  When world does not divide n, the last positions repeat the first (tail pad): a turn more than the trainer makes at
 * most, for drop_last.
 *
 * Threads: immutable and counted; any thread may read. */
#ifndef DDPFS_PREFETCH_SAMPLER_SEQUENCE_H
#define DDPFS_PREFETCH_SAMPLER_SEQUENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "prefetch/sampler/list.h"
#include "prefetch/sampler/torch.h"

struct prefetch_sequence; /* opaque */

/* An order that is not torch's, by callbacks: ddpfs's own. */
struct prefetch_own_order {
	void *user; /* outlives the sequences */
	/* position < size -> file of `epoch`, and back (-ENOENT). */
	int (*at)(void *user, uint64_t epoch, uint64_t position, uint32_t *ret_file);
	int (*find)(void *user, uint64_t epoch, uint32_t file, uint64_t *ret_position);
	uint64_t size;
	bool several; /* a position may be of several files, a sample's: at() gives the first */
};

struct prefetch_sequence_options {
	struct prefetch_list *list;           /* a reference is taken; NULL with `own` */
	struct prefetch_perm *perm;           /* a reference is taken; NULL = not shuffled; made to its end */
	const struct prefetch_own_order *own; /* copied; else NULL */
	uint64_t own_epoch;
	uint32_t world, first, ranks; /* ranks >= 1, first + ranks <= world */
	uint64_t number;              /* epochs since recognition; for the reader to tell them apart */
};

/* -EINVAL, -ENOMEM. */
int prefetch_sequence_new(const struct prefetch_sequence_options *options, struct prefetch_sequence **ret_sequence);
struct prefetch_sequence *prefetch_sequence_get(struct prefetch_sequence *sequence);
void prefetch_sequence_put(struct prefetch_sequence *sequence); /* NULL is fine */

const struct prefetch_sequence_options *prefetch_sequence_options_get(const struct prefetch_sequence *sequence);
uint64_t prefetch_sequence_turns(const struct prefetch_sequence *sequence);

/* -ERANGE past the turns; errors of the list. */
int prefetch_sequence_file(const struct prefetch_sequence *sequence, uint64_t turn, uint32_t *ret_file);
/* The first turn of a file.  -ENOENT when it is another rank's or not in the list. */
int prefetch_sequence_find(const struct prefetch_sequence *sequence, uint32_t file, uint64_t *ret_turn);
/* Its position in the permutation, whichever rank's.  -ENOENT. */
int prefetch_sequence_position(const struct prefetch_sequence *sequence, uint32_t file, uint64_t *ret_position);

#endif
