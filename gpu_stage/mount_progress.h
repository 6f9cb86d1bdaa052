/* SPDX-License-Identifier: Apache-2.0 */
/* Tells a mount how far the stage is that was opened from it, so that `.ddpfs/state`, `ddpfs top` and its listings say
 * where the training is.
 *
 *     batches out:   | place | place | place | cursor
 *                      oldest
 *
 * The mount is told the place of the oldest batch that is not released, or the cursor if all are.  Only the newest news
 * is sent.  A mount that is gone, does not answer or refuses is counted, and nothing else happens.
 *
 * Threads: any thread calls the functions except _new and _free; none of them waits.  A thread `stage-mount` talks to
 * the mount, at most every STAGE_PROGRESS_PAUSE_MS. */
#ifndef DDPFS_GPU_STAGE_MOUNT_PROGRESS_H
#define DDPFS_GPU_STAGE_MOUNT_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

enum {
	STAGE_PROGRESS_PAUSE_MS = 20, /* pause after a message */
	STAGE_PROGRESS_TIMEOUT_S = 2, /* time for a message and its answer */
};

struct stage_progress; /* opaque */

/* Where a batch begins: global steps of an epoch, from its beginning.  Part of the batch; mount_progress.c fills `out`
 * and the links, and its lock guards them. */
struct stage_place {
	uint64_t epoch, steps;
	bool out; /* in the list of batches that are not released */
	struct stage_place *older, *newer;
};

/* Starts the thread.  socket: path of the mount's control socket; copied.  rank: the rank of this stage, if the mount
 * shows several; else NULL.  Returns 0, or -ENOMEM, -EAGAIN (no
 * thread). */
int stage_progress_new(const char *socket, const uint32_t *rank, struct stage_progress **ret_follow);
/* Tells the last place, then ends the thread.  NULL: does nothing, here and below. */
void stage_progress_free(struct stage_progress *follow);

/* A batch is handed out that begins at place->epoch and ->steps; the next one begins at `steps`. */
void stage_progress_out(struct stage_progress *follow, struct stage_place *place, uint64_t steps);
/* The batch is released.  Does nothing if it is not in the list. */
void stage_progress_back(struct stage_progress *follow, struct stage_place *place);
/* The next batch begins at `steps` of `epoch`. */
void stage_progress_move(struct stage_progress *follow, uint64_t epoch, uint64_t steps);
/* The batches that are not released are of another run through the order: they do not count from now on. */
void stage_progress_forget(struct stage_progress *follow);

/* Gives the messages that the mount took, and those that it did not take.  Both 0 for NULL. */
void stage_progress_stats(struct stage_progress *follow, uint64_t *ret_told, uint64_t *ret_untold);

#endif
