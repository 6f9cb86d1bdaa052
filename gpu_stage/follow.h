/* SPDX-License-Identifier: Apache-2.0 */
/* A mount's cursor follows a stage that was opened from it: what the consumers are done with is told to the mount's control
 * socket, so that `.ddpfs/state`, `ddpfs top` and its listings are where the training is.
 *
 *     batches out:   | place | place | place | cursor        told: where the oldest batch that is out begins, or the cursor
 *                      released -> gone
 *
 * Telling is a courtesy: a mount that is gone, does not answer or refuses is counted and disturbs nobody.
 *
 * Threads: all functions but _new and _free from any thread; none waits.  A thread `stage-mount` talks to the mount, the newest
 * place only, at most every FOLLOW_PAUSE_MS. */
#ifndef DDPFS_GPU_STAGE_FOLLOW_H
#define DDPFS_GPU_STAGE_FOLLOW_H

#include <stdbool.h>
#include <stdint.h>

enum {
	STAGE_FOLLOW_PAUSE_MS = 20, /* between two messages */
	STAGE_FOLLOW_TIMEOUT_S = 2, /* for a question and its answer */
};

struct stage_follow; /* opaque */

/* Where a batch begins: global steps of an epoch, from its beginning.  Part of the batch; follow.c's. */
struct stage_place {
	uint64_t epoch, steps;
	bool out;
	struct stage_place *older, *newer;
};

/* socket: the mount's control socket.  -ENOMEM, -EAGAIN. */
int stage_follow_new(const char *socket, struct stage_follow **ret_follow);
/* Tells the last place, then ends.  NULL is fine, here and below. */
void stage_follow_free(struct stage_follow *follow);

/* A batch that begins at place->epoch and ->steps is handed out; the next one begins at `steps`. */
void stage_follow_out(struct stage_follow *follow, struct stage_place *place, uint64_t steps);
/* It is released.  Nothing for one that is not out. */
void stage_follow_back(struct stage_follow *follow, struct stage_place *place);
/* The next batch begins there. */
void stage_follow_move(struct stage_follow *follow, uint64_t epoch, uint64_t steps);
/* The batches that are out are of another run through the order: they no longer count. */
void stage_follow_forget(struct stage_follow *follow);

/* Messages that the mount took, and that it did not. */
void stage_follow_stats(struct stage_follow *follow, uint64_t *ret_told, uint64_t *ret_untold);

#endif
