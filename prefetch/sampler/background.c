/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that tries all seeds at idle priority; prefetch/sampler/recognise_private.h first.
 *
 * It runs when nobody else wants the processor, and no longer than the recogniser grants.  A thread without privileges
 * cannot return from SCHED_IDLE (sched(7)), so it is a thread of its own.  It may not run for seconds, so it holds no
 * lock, and only prefetch_background_done() waits for it.  `state` says who owns the seeds and what was found:
 *
 *      recogniser: IDLE --begin--> BUSY --thread--> FOUND, NONE --recogniser--> IDLE */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>

#include "prefetch/sampler/recognise_private.h"

static void *run(void *arg)
{
	struct background *b = arg;
	struct sched_param none = { 0 };
	pthread_setname_np(pthread_self(), "seed-search");
	sched_setscheduler(0, SCHED_IDLE, &none);
	for (;;) {
		while (sem_wait(&b->work) < 0)
			;
		if (atomic_load(&b->stop))
			return NULL;
		while (atomic_load(&b->state) == BACKGROUND_BUSY && !atomic_load(&b->stop)) {
			if (atomic_load(&b->given_up)) {
				atomic_store(&b->state, BACKGROUND_NONE);
				break;
			}
			if (atomic_load(&b->granted_ns) <= 0)
				break; /* wait for more time */
			uint64_t start = base_thread_cpu_ns();
			enum seeds_result result = prefetch_seeds_step(b->seeds);
			uint64_t took = base_thread_cpu_ns() - start;
			atomic_fetch_sub(&b->granted_ns, (int64_t)took);
			atomic_fetch_add(&b->cpu_ns, took);
			atomic_store(&b->tried, b->seeds->tried);
			if (result != SEEDS_MORE)
				atomic_store(&b->state, result == SEEDS_FOUND ? BACKGROUND_FOUND : BACKGROUND_NONE);
		}
	}
}

int prefetch_background_init(struct prefetch_recognise *r)
{
	struct background *b = &r->background;
	if (!r->options.search_thread)
		return 0;
	sem_init(&b->work, 0, 0);
	int rc = -pthread_create(&b->thread, NULL, run, b);
	b->has_thread = rc == 0;
	if (rc < 0)
		sem_destroy(&b->work);
	return rc;
}

void prefetch_background_done(struct prefetch_recognise *r)
{
	struct background *b = &r->background;
	if (b->has_thread) {
		atomic_store(&b->stop, true);
		sem_post(&b->work);
		pthread_join(b->thread, NULL);
		sem_destroy(&b->work);
	}
	if (b->seeds)
		prefetch_seeds_done(b->seeds);
	free(b->seeds);
}

int prefetch_background_begin(struct prefetch_recognise *r)
{
	struct background *b = &r->background;
	const struct seeds *likely = &r->likely.seeds;
	if (atomic_load(&b->state) != BACKGROUND_IDLE)
		return 0;
	if (!b->seeds) {
		struct seeds *seeds = calloc(1, sizeof(*seeds));
		int rc = seeds ? prefetch_seeds_init(seeds) : -ENOMEM;
		if (rc < 0) {
			if (seeds)
				prefetch_seeds_done(seeds);
			free(seeds);
			return rc;
		}
		b->seeds = seeds;
	}
	prefetch_seeds_begin(r, SEEDS_FAR, likely->targets, likely->n_targets, &b->place, b->seeds);
	b->place = (struct seeds_place){ 0 };
	atomic_store(&b->given_up, false);
	atomic_store(&b->state, BACKGROUND_BUSY);
	if (b->has_thread)
		sem_post(&b->work);
	return 0;
}

static void step_here(struct background *b)
{
	if (atomic_load(&b->given_up)) {
		atomic_store(&b->state, BACKGROUND_NONE);
		return;
	}
	enum seeds_result result = prefetch_seeds_step(b->seeds);
	atomic_store(&b->tried, b->seeds->tried);
	if (result != SEEDS_MORE)
		atomic_store(&b->state, result == SEEDS_FOUND ? BACKGROUND_FOUND : BACKGROUND_NONE);
}

int prefetch_background_step(struct prefetch_recognise *r)
{
	struct background *b = &r->background;
	enum background_state state = atomic_load(&b->state);
	if (state == BACKGROUND_BUSY && !b->has_thread) {
		step_here(b);
		return 1;
	}
	if (state == BACKGROUND_IDLE || state == BACKGROUND_BUSY)
		return 0;
	bool wanted = !atomic_load(&b->given_up);
	if (!wanted)
		b->place = prefetch_seeds_place(b->seeds);
	atomic_store(&b->state, BACKGROUND_IDLE);
	if (state != BACKGROUND_FOUND || !wanted)
		return 1;
	int rc = prefetch_search_accept(r, &b->seeds->match);
	return rc < 0 ? rc : 1;
}

void prefetch_background_grant(struct prefetch_recognise *r, int64_t ns)
{
	struct background *b = &r->background;
	atomic_fetch_add(&b->granted_ns, ns);
	sem_post(&b->work);
}

void prefetch_background_give_up(struct prefetch_recognise *r)
{
	struct background *b = &r->background;
	if (atomic_load(&b->state) == BACKGROUND_IDLE)
		return;
	atomic_store(&b->given_up, true);
	if (b->has_thread)
		sem_post(&b->work);
}

bool prefetch_background_busy(const struct prefetch_recognise *r)
{
	return atomic_load(&r->background.state) != BACKGROUND_IDLE;
}
