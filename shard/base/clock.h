/* SPDX-License-Identifier: Apache-2.0 */
/* The monotonic clock, which setting the time does not change, and the processor time of a thread.
 *
 * Threads: any; async-signal-safe. */
#ifndef DDPFS_SHARD_BASE_CLOCK_H
#define DDPFS_SHARD_BASE_CLOCK_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

/* Returns CLOCK_MONOTONIC in nanoseconds. */
static inline uint64_t base_now_ns(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

/* Returns the processor time of this thread in nanoseconds. */
static inline uint64_t base_thread_cpu_ns(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

/* Returns CLOCK_MONOTONIC in milliseconds. */
static inline int64_t base_now_ms(void)
{
	return (int64_t)(base_now_ns() / 1000000);
}

/* Makes a condition whose pthread_cond_timedwait takes times of this clock: those of base_until. */
static inline void base_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t attr;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &attr);
	pthread_condattr_destroy(&attr);
}

/* Returns the time `ns` from now. */
static inline struct timespec base_until(uint64_t ns)
{
	uint64_t end = base_now_ns() + ns;
	return (struct timespec){ .tv_sec = (time_t)(end / 1000000000), .tv_nsec = (long)(end % 1000000000) };
}

#endif
