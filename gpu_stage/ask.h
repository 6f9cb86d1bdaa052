/* SPDX-License-Identifier: Apache-2.0 */
/* Asking the engine by name for what the read-ahead has not brought: too large for it, passed over, or damaged.
 *
 * Threads: one owner; answers come on the engine's `deliver` thread. */
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
	pthread_mutex_t lock; /* guards pending, rc, file */
	pthread_cond_t cv;
	uint32_t pending;
	int rc;        /* the first failure */
	uint32_t file; /* ... and whose */
	uint32_t block;
	/* The owner's: */
	bool again; /* what is asked for was in memory until now: says nothing of the read-ahead */
	struct stage_ask *first;
	struct stage_entry **entries; /* pinned here until done, or stage_asks_unpin */
	uint32_t n_entries, room;
	uint64_t bytes; /* of entries */
};

void stage_asks_init(struct stage_asks *asks, struct prefetch *prefetch, struct stage_store *store);
/* Waits for answers and unpins. */
void stage_asks_done(struct stage_asks *asks);
/* Unpins what was asked for; no answer may be pending. */
void stage_asks_unpin(struct stage_asks *asks);

/* Takes over the caller's pin and asks for the blocks that nobody writes yet.  -ENOMEM: the pin is the caller's still. */
int stage_asks_add(struct stage_asks *asks, struct stage_entry *entry);

/* Waits for all answers.  0, or why a block cannot be had (the first of them since the last wait): its entry is discarded,
 * *ret_file and *ret_block name it. */
int stage_asks_wait(struct stage_asks *asks, uint32_t *ret_file, uint32_t *ret_block);

#endif
