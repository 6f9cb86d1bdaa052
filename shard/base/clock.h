/* SPDX-License-Identifier: Apache-2.0 */
/* The monotonic clock, which setting the time does not change.
 *
 * Threads: any; async-signal-safe. */
#ifndef DDPFS_SHARD_BASE_CLOCK_H
#define DDPFS_SHARD_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Returns CLOCK_MONOTONIC in nanoseconds. */
static inline uint64_t base_now_ns(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

#endif
