/* SPDX-License-Identifier: Apache-2.0 */
/* The latencies of the last transfers, and their percentiles.
 *
 * Threads: one owner. */
#ifndef DDPFS_SHARD_REMOTE_LATENCY_H
#define DDPFS_SHARD_REMOTE_LATENCY_H

#include <stdint.h>

enum { REMOTE_LATENCY_VALUES = 256, REMOTE_LATENCY_FRESH = 32 };

struct remote_latency {
	uint64_t values[REMOTE_LATENCY_VALUES]; /* ns; a ring */
	uint32_t n;                             /* values that were added, at most REMOTE_LATENCY_VALUES */
	uint32_t at;                            /* where the next one goes */
	uint32_t fresh;                         /* values since the percentiles were computed */
	uint64_t p50_ns, p90_ns, p99_ns;        /* 0 until 8 values were added */
};

/* Adds a value.  After every 8 values, later after every REMOTE_LATENCY_FRESH, the percentiles are computed anew. */
void remote_latency_add(struct remote_latency *latency, uint64_t value_ns);

#endif
