/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that makes pages of the arena ready and opens them for use; growth.h first. */
#include "gpu_stage/growth.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "shard/base/cleanup.h"

static const uint64_t STEP = 16 << 20;  /* bytes made ready at once: a multiple of a huge page */
static const uint64_t AHEAD = 64 << 20; /* grow so long before what is open is full */

struct stage_growth {
	uint8_t *base;
	uint64_t bytes;
	void (*opened)(void *arg, uint64_t n);
	void *arg;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wanted_cv;
	bool ending; /* guarded by lock */
	_Atomic uint64_t open, stored;
};

/* Whether what was stored needs more than is open.  A quarter is for samples that batches hold. */
static bool wanted(struct stage_growth *g)
{
	return atomic_load(&g->stored) + AHEAD > atomic_load(&g->open) / 4 * 3;
}

/* Waits until the arena shall grow.  Returns false if the stage is closed. */
static bool wait_wanted(struct stage_growth *g)
{
	lock_for_scope(&g->lock);
	while (!g->ending && !wanted(g))
		pthread_cond_wait(&g->wanted_cv, &g->lock);
	return !g->ending;
}

static void *grow(void *arg)
{
	struct stage_growth *g = arg;
	uint64_t open = atomic_load(&g->open);
	while (open < g->bytes && wait_wanted(g)) {
		uint64_t n = g->bytes - open < STEP ? g->bytes - open : STEP;
		madvise(g->base + open, n, MADV_POPULATE_WRITE); /* before Linux 5.14 the first use does it */
		open += n;
		atomic_store(&g->open, open);
		g->opened(g->arg, open);
	}
	return NULL;
}

int stage_growth_new(uint8_t *base, uint64_t bytes, uint64_t first, void (*opened)(void *arg, uint64_t n), void *arg,
        struct stage_growth **ret_growth)
{
	struct stage_growth *g = calloc(1, sizeof(*g));
	if (!g)
		return -ENOMEM;
	*g = (struct stage_growth){ .base = base, .bytes = bytes, .opened = opened, .arg = arg, .open = first };
	pthread_mutex_init(&g->lock, NULL);
	pthread_cond_init(&g->wanted_cv, NULL);
	int rc = -pthread_create(&g->thread, NULL, grow, g);
	if (rc < 0) {
		free(g);
		return rc;
	}
	pthread_setname_np(g->thread, "stage-grow");
	*ret_growth = g;
	return 0;
}

void stage_growth_end(struct stage_growth *g)
{
	if (!g)
		return;
	{
		lock_for_scope(&g->lock);
		g->ending = true;
		pthread_cond_signal(&g->wanted_cv);
	}
	pthread_join(g->thread, NULL);
}

void stage_growth_free(struct stage_growth *g)
{
	if (!g)
		return;
	pthread_cond_destroy(&g->wanted_cv);
	pthread_mutex_destroy(&g->lock);
	free(g);
}

void stage_growth_stored(struct stage_growth *g, uint64_t bytes)
{
	if (!g)
		return;
	atomic_fetch_add(&g->stored, bytes);
	if (atomic_load(&g->open) < g->bytes && wanted(g)) {
		lock_for_scope(&g->lock);
		pthread_cond_signal(&g->wanted_cv);
	}
}
