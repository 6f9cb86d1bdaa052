/* SPDX-License-Identifier: Apache-2.0 */
/* Demands blocks of samples from the engine by name, if read-ahead has not brought them.  They may be too large for it,
 * or it passed them over, or their bytes were discarded.
 *
 * A `struct stage_demands` belongs to one batch that is put together.  The answer of a demand copies the block into
 * the entry.
 *
 * Threads: one owner calls the functions; answers come on the engine's `deliver` thread. */
#ifndef DDPFS_GPU_STAGE_DEMANDS_H
#define DDPFS_GPU_STAGE_DEMANDS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpu_stage/arena_samples.h"
#include "prefetch/prefetch.h"

struct stage_demand;

struct stage_demands {
	struct prefetch *prefetch;
	struct stage_samples *samples;
	pthread_mutex_t lock; /* guards pending, rc, file and block */
	pthread_cond_t cv;
	uint32_t pending; /* demands without an answer */
	int rc;           /* the first failure since the last wait; 0: none */
	uint32_t file;    /* of that failure */
	uint32_t block;   /* of that file */
	/* The owner's: */
	bool again; /* demanded samples were in memory until now, so they say nothing about read-ahead */
	struct stage_demand *first;
	struct stage_entry **entries; /* pinned until stage_demands_unpin or stage_demands_done */
	uint32_t n_entries, room;     /* room: of `entries`, allocated */
	uint64_t bytes;               /* of entries, whole pages */
};

/* Both are borrowed and outlive the demands. */
void stage_demands_init(struct stage_demands *demands, struct prefetch *prefetch, struct stage_samples *samples);
/* Waits for all answers, unpins all entries and frees everything. */
void stage_demands_done(struct stage_demands *demands);
/* Unpins the entries that were demanded; no answer may be pending. */
void stage_demands_unpin(struct stage_demands *demands);

/* Demands the blocks of an entry that nobody has claimed, and takes over the caller's pin.
 * Returns 0, or -ENOMEM: the caller still has the pin. */
int stage_demands_add(struct stage_demands *demands, struct stage_entry *entry);

/* Waits for all answers.
 * Returns 0, or the reason of the first failure since the last wait (see struct prefetch_demand, and -ESTALE if a block
 * has another length than the entry).  Then *ret_file and *ret_block name the block, and its entry is discarded. */
int stage_demands_wait(struct stage_demands *demands, uint32_t *ret_file, uint32_t *ret_block);

#endif
