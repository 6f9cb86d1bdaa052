/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that tells a mount how far the stage is; mount_progress.h first. */
#include "gpu_stage/mount_progress.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shard/base/control_client.h"
#include "shard/base/cleanup.h"
#include "shard/base/clock.h"

struct stage_progress {
	char control[BASE_CONTROL_PATH_MAX]; /* the mount's control socket */
	char rank[32];                       /* what a request says of the rank: "", or ",\"rank\":3" */
	pthread_t thread;
	pthread_mutex_t lock; /* guards all below */
	pthread_cond_t cv;
	struct stage_place *oldest, *newest; /* batches that are not released, in order */
	uint64_t epoch, steps;               /* of the cursor */
	uint64_t tell_epoch, tell_steps;     /* the place to tell */
	bool fresh;                          /* the thread has not sent it */
	bool ending;
	uint64_t told, untold; /* messages the mount took, and did not */
};

/* ---- the thread ---- */

/* Sends one place.  Returns whether the mount took it. */
static bool tell(const struct stage_progress *f, uint64_t epoch, uint64_t steps)
{
	char line[128];
	cleanup_free char *reply = NULL;
	snprintf(line, sizeof(line), "{\"cmd\":\"consumed\",\"epoch\":%" PRIu64 ",\"steps\":%" PRIu64 "%s}", epoch,
	        steps, f->rank);
	return base_control_request(f->control, line, STAGE_PROGRESS_TIMEOUT_S * 1000, NULL, &reply) == 0;
}

static void *follow_thread(void *arg)
{
	struct stage_progress *f = arg;
	pthread_mutex_lock(&f->lock);
	for (;;) {
		while (!f->fresh && !f->ending)
			pthread_cond_wait(&f->cv, &f->lock);
		if (!f->fresh)
			break;
		uint64_t epoch = f->tell_epoch, steps = f->tell_steps;
		f->fresh = false;
		pthread_mutex_unlock(&f->lock);
		bool taken = tell(f, epoch, steps);
		pthread_mutex_lock(&f->lock);
		f->told += taken;
		f->untold += !taken;
		struct timespec until = base_until(STAGE_PROGRESS_PAUSE_MS * UINT64_C(1000000));
		while (!f->ending && pthread_cond_timedwait(&f->cv, &f->lock, &until) != ETIMEDOUT)
			;
	}
	pthread_mutex_unlock(&f->lock);
	return NULL;
}

/* ---- what consumers do with batches ---- */

int stage_progress_new(const char *socket, const uint32_t *rank, struct stage_progress **ret_follow)
{
	struct stage_progress *f = calloc(1, sizeof(*f));
	if (!f)
		return -ENOMEM;
	snprintf(f->control, sizeof(f->control), "%s", socket);
	if (rank)
		snprintf(f->rank, sizeof(f->rank), ",\"rank\":%" PRIu32, *rank);
	pthread_mutex_init(&f->lock, NULL);
	base_cond_init(&f->cv);
	int rc = -pthread_create(&f->thread, NULL, follow_thread, f);
	if (rc < 0) {
		pthread_cond_destroy(&f->cv);
		pthread_mutex_destroy(&f->lock);
		free(f);
		return rc;
	}
	pthread_setname_np(f->thread, "stage-mount");
	*ret_follow = f;
	return 0;
}

void stage_progress_free(struct stage_progress *f)
{
	if (!f)
		return;
	{
		lock_for_scope(&f->lock);
		f->ending = true;
		pthread_cond_signal(&f->cv);
	}
	pthread_join(f->thread, NULL);
	pthread_cond_destroy(&f->cv);
	pthread_mutex_destroy(&f->lock);
	free(f);
}

/* Under the lock. */
static void unlink_place(struct stage_progress *f, struct stage_place *p)
{
	*(p->older ? &p->older->newer : &f->oldest) = p->newer;
	*(p->newer ? &p->newer->older : &f->newest) = p->older;
	p->out = false;
}

/* Under the lock. */
static void news(struct stage_progress *f)
{
	f->tell_epoch = f->oldest ? f->oldest->epoch : f->epoch;
	f->tell_steps = f->oldest ? f->oldest->steps : f->steps;
	f->fresh = true;
	pthread_cond_signal(&f->cv);
}

void stage_progress_out(struct stage_progress *f, struct stage_place *place, uint64_t steps)
{
	if (!f)
		return;
	lock_for_scope(&f->lock);
	place->older = f->newest;
	place->newer = NULL;
	*(f->newest ? &f->newest->newer : &f->oldest) = place;
	f->newest = place;
	place->out = true;
	f->epoch = place->epoch;
	f->steps = steps;
}

void stage_progress_back(struct stage_progress *f, struct stage_place *place)
{
	if (!f)
		return;
	lock_for_scope(&f->lock);
	if (place->out) {
		bool first = place == f->oldest;
		unlink_place(f, place);
		if (first)
			news(f);
	}
}

void stage_progress_move(struct stage_progress *f, uint64_t epoch, uint64_t steps)
{
	if (!f)
		return;
	lock_for_scope(&f->lock);
	f->epoch = epoch;
	f->steps = steps;
	news(f);
}

void stage_progress_forget(struct stage_progress *f)
{
	if (!f)
		return;
	lock_for_scope(&f->lock);
	while (f->oldest)
		unlink_place(f, f->oldest);
}

void stage_progress_stats(struct stage_progress *f, uint64_t *ret_told, uint64_t *ret_untold)
{
	*ret_told = *ret_untold = 0;
	if (!f)
		return;
	lock_for_scope(&f->lock);
	*ret_told = f->told;
	*ret_untold = f->untold;
}
