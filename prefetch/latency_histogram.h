/* SPDX-License-Identifier: Apache-2.0 */
/* A histogram of durations: log-linear, 16 buckets per power of two (6% wide), of fixed size, without locks.
 *
 * Threads: any thread may call all functions.  A result may miss values that are added at the same time. */
#ifndef DDPFS_PREFETCH_LATENCY_HISTOGRAM_H
#define DDPFS_PREFETCH_LATENCY_HISTOGRAM_H

#include <stdatomic.h>
#include <stdint.h>

enum { PREFETCH_HIST_BUCKETS = 16 * 61 };

struct prefetch_hist {
	_Atomic uint64_t counts[PREFETCH_HIST_BUCKETS];
	_Atomic uint64_t max; /* the largest value */
};

/* Adds a value, in ns. */
void prefetch_hist_add(struct prefetch_hist *hist, uint64_t value);

/* Returns the value below which `permille` of the values lie: the upper edge of its bucket, at most the maximum.
 * Returns 0 when there are no values. */
uint64_t prefetch_hist_quantile(const struct prefetch_hist *hist, unsigned permille);
/* Returns the largest value; 0 when there are none. */
uint64_t prefetch_hist_max(const struct prefetch_hist *hist);

#endif
