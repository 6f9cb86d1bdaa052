/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for a condition until a time, in nanoseconds of CLOCK_MONOTONIC.
 *
 * Threads: any. */
#ifndef DDPFS_GPU_STAGE_CLOCK_H
#define DDPFS_GPU_STAGE_CLOCK_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

#include "shard/base/clock.h"

#define STAGE_BRIEF_NS (DDPFS_STAGE_BRIEF_MS * UINT64_C(1000000))

/* Waits for a condition of base_cond_init.  until_ns: a base_now_ns; 0: no limit.  Returns 0 (woken, perhaps for
 * nothing) or ETIMEDOUT. */
static inline int stage_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t until_ns)
{
	const struct timespec until = { .tv_sec = (time_t)(until_ns / 1000000000),
		.tv_nsec = (long)(until_ns % 1000000000) };
	return until_ns ? pthread_cond_timedwait(cond, lock, &until) : pthread_cond_wait(cond, lock);
}

#endif
