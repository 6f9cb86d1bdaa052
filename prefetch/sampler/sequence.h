/* SPDX-License-Identifier: Apache-2.0 */
/* A sequence: the files that a recognised trainer reads in one epoch, turn -> file and back.
 *
 *   file <-- list --> index <-- permutation --> position <-- world, ranks --> turn
 *
 * Position p holds the index perm[p], or p without a shuffle.  The ranks that are seen here read the positions p with
 * p % world in [first, first + ranks).  Turn t is the t-th of these, so several ranks are merged round-robin.  If world
 * does not divide n, the last positions repeat the first ones (tail=pad).  With drop_last the trainer makes at most one
 * turn less than that.
 *
 * Threads: immutable and with a reference count; any thread may read. */
#ifndef DDPFS_PREFETCH_SAMPLER_SEQUENCE_H
#define DDPFS_PREFETCH_SAMPLER_SEQUENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "prefetch/sampler/file_list.h"
#include "prefetch/sampler/perm.h"

struct prefetch_sequence; /* opaque */

/* ddpfs's own order, by callbacks. */
struct prefetch_own_order {
	void *user; /* outlives the sequences */
	/* position (below `size`) -> file of `epoch`, and back (-ENOENT: the epoch does not have it). */
	int (*at)(void *user, uint64_t epoch, uint64_t position, uint32_t *ret_file);
	int (*find)(void *user, uint64_t epoch, uint32_t file, uint64_t *ret_position);
	uint64_t size;
	bool several; /* samples may have several files; then at() returns the first */
};

struct prefetch_sequence_options {
	struct prefetch_list *list;           /* a reference is taken; NULL with `own` */
	struct prefetch_perm *perm;           /* complete; a reference is taken; NULL = not shuffled */
	const struct prefetch_own_order *own; /* copied; else NULL */
	uint64_t own_epoch;
	uint32_t world, first, ranks; /* ranks >= 1, first + ranks <= world */
	uint64_t number;              /* epochs since recognition; only for the caller */
};

/* Makes a sequence, with one reference.  Returns 0; -EINVAL: no list and no own order, an empty one, or a wrong part;
 * -ENOMEM. */
int prefetch_sequence_new(const struct prefetch_sequence_options *options, struct prefetch_sequence **ret_sequence);
struct prefetch_sequence *prefetch_sequence_get(struct prefetch_sequence *sequence); /* another reference */
void prefetch_sequence_put(struct prefetch_sequence *sequence);                      /* NULL is fine */

const struct prefetch_sequence_options *prefetch_sequence_options_get(const struct prefetch_sequence *sequence);
uint64_t prefetch_sequence_turns(const struct prefetch_sequence *sequence); /* how many */

/* Gets the file of a turn.  Returns 0; -ERANGE: there is no such turn; errors of the list or the own order. */
int prefetch_sequence_file(const struct prefetch_sequence *sequence, uint64_t turn, uint32_t *ret_file);
/* Gets the first turn of a file.  Returns 0; -ENOENT: another rank reads it, or it is not in the list; errors as
 * above. */
int prefetch_sequence_find(const struct prefetch_sequence *sequence, uint32_t file, uint64_t *ret_turn);
/* Gets the position of a file in the permutation, also if another rank reads it.  Returns 0; -ENOENT: it is not in the
 * list; errors as above. */
int prefetch_sequence_position(const struct prefetch_sequence *sequence, uint32_t file, uint64_t *ret_position);

#endif
