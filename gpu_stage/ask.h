/* SPDX-License-Identifier: Apache-2.0 */
/* Demands blocks of samples from the engine by name, if read-ahead has not brought them.  They may be too large for it,
 * or it passed them over, or their bytes were discarded.
 *
 * A `struct stage_asks` belongs to one batch that is put together.  A demand's answer copies the block into the entry.
 *
 * Threads: one owner calls the functions; answers come on the engine's `deliver` thread. */
#ifndef DDPFS_GPU_STAGE_ASK_H
#define DDPFS_GPU_STAGE_ASK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpu_stage/store.h"
#include "prefetch/prefetch.h"

struct stage_ask;

struct stage_asks {
	struct prefetch *prefetch;
	struct stage_store *store;
	pthread_mutex_t lock; /* guards pending, rc, file and block */
	pthread_cond_t cv;
	uint32_t pending; /* demands without an answer */
	int rc;           /* the first failure since the last wait; 0: none */
	uint32_t file;    /* of that failure */
	uint32_t block;   /* of that file */
	/* The owner's: */
	bool again; /* demanded samples were in memory until now, so they say nothing about read-ahead */
	struct stage_ask *first;
	struct stage_entry **entries; /* pinned until stage_asks_unpin or stage_asks_done */
	uint32_t n_entries, room;     /* room: of `entries`, allocated */
	uint64_t bytes;               /* of entries, whole pages */
};

/* Both are borrowed and outlive the asks. */
void stage_asks_init(struct stage_asks *asks, struct prefetch *prefetch, struct stage_store *store);
/* Waits for all answers, unpins all entries and frees everything. */
void stage_asks_done(struct stage_asks *asks);
/* Unpins the entries that were demanded; no answer may be pending. */
void stage_asks_unpin(struct stage_asks *asks);

/* Demands the blocks of an entry that nobody has claimed, and takes over the caller's pin.
 * Returns 0, or -ENOMEM: the caller still has the pin. */
int stage_asks_add(struct stage_asks *asks, struct stage_entry *entry);

/* Waits for all answers.
 * Returns 0, or the reason of the first failure since the last wait (see struct prefetch_demand, and -ESTALE if a block
 * has another length than the entry).  Then *ret_file and *ret_block name the block, and its entry is discarded. */
int stage_asks_wait(struct stage_asks *asks, uint32_t *ret_file, uint32_t *ret_block);

#endif
