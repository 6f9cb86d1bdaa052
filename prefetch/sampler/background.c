/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that tries all seeds at idle priority; prefetch/sampler/recognise_private.h first.
 *
 * It runs when nobody else wants the processor, and no longer than the recogniser grants.  A thread without privileges
 * cannot return from SCHED_IDLE (sched(7)), so it is a thread of its own.  It may not run for seconds, so it holds no
 * lock, and only prefetch_background_done() waits for it.  `state` says who owns the seeds and what was found:
 *
 *      recogniser: IDLE --begin--> BUSY --thread--> FOUND, NONE --recogniser--> IDLE
 *
 * The recogniser may begin the next run at once, with lists that came meanwhile or that come last. */
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
	free(b->more);
}

static int make_room(struct background *b)
{
	if (!b->more)
		b->more = calloc(TRACED_MAX, sizeof(*b->more));
	if (!b->more)
		return -ENOMEM;
	if (b->seeds)
		return 0;
	struct seeds *seeds = calloc(1, sizeof(*seeds));
	int rc = seeds ? prefetch_seeds_init(seeds) : -ENOMEM;
	if (rc < 0) {
		if (seeds)
			prefetch_seeds_done(seeds);
		free(seeds);
		return rc;
	}
	b->seeds = seeds;
	return 0;
}

/* Begins a run over these targets and over `more`, of which those that come last wait for a run without targets.
 * n_traced: of the targets behind n_targets, which only shuffles try; a run that begins anew has them from before. */
static void start(struct prefetch_recognise *r, const struct target *targets, uint32_t n_targets, uint32_t n_traced)
{
	struct background *b = &r->background;
	uint32_t left = 0;
	/* The targets may be those of b->seeds: each is assigned to itself then. */
	prefetch_seeds_begin(r, SEEDS_FAR, targets, n_targets, &b->place, b->seeds);
	prefetch_seeds_add_traced(b->seeds, targets + n_targets, n_traced);
	for (uint32_t i = 0; i < b->n_more; i++) {
		if (n_targets > 0 && b->more[i].last) {
			b->more[left++] = b->more[i];
			continue;
		}
		prefetch_seeds_add_traced(b->seeds, &b->more[i], 1);
		if (b->n_traced < TRACED_MAX)
			b->traced[b->n_traced++] = b->more[i].list;
	}
	b->n_more = left;
	b->anew = false;
	b->place = (struct seeds_place){ 0 };
	atomic_store(&b->given_up, false);
	atomic_store(&b->state, BACKGROUND_BUSY);
	if (b->has_thread)
		sem_post(&b->work);
}

static bool was_traced(const struct background *b, const struct prefetch_list *list)
{
	for (uint32_t i = 0; i < b->n_traced; i++) {
		if (b->traced[i] == list)
			return true;
	}
	return b->n_traced == TRACED_MAX; /* a pass tries no more lists */
}

int prefetch_background_begin(struct prefetch_recognise *r, bool whole)
{
	struct background *b = &r->background;
	const struct seeds *likely = &r->likely.seeds;
	bool busy = atomic_load(&b->state) != BACKGROUND_IDLE;
	/* The targets of a run that was given up before are of an older ring. */
	bool goes_on = busy && (b->anew || !atomic_load(&b->given_up));
	int rc = make_room(b);
	if (rc < 0)
		return rc;
	if (whole && !busy)
		b->n_traced = 0;
	b->n_more = 0;
	for (uint32_t i = likely->n_targets; i < likely->n_traced; i++) {
		if (was_traced(b, likely->targets[i].list))
			continue;
		b->anew |= goes_on && !likely->targets[i].last;
		b->more[b->n_more++] = likely->targets[i];
	}
	if (b->anew)
		atomic_store(&b->given_up, true);
	if (busy || (!whole && b->n_more == 0))
		return 0;
	start(r, likely->targets, whole ? likely->n_targets : 0, 0);
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
	bool wanted = !atomic_load(&b->given_up) || b->anew;
	if (!wanted || b->anew) /* begins there next time */
		b->place = prefetch_seeds_place(b->seeds);
	atomic_store(&b->state, BACKGROUND_IDLE);
	if (state != BACKGROUND_FOUND || !wanted) {
		const struct seeds *had = b->seeds;
		if (b->anew)
			start(r, had->targets, had->n_targets, had->n_traced - had->n_targets);
		else if (wanted && b->n_more > 0) /* in vain: the lists that come last are next */
			start(r, had->targets, 0, 0);
		return 1;
	}
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
	b->n_more = b->n_traced = 0;
	b->anew = false;
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
