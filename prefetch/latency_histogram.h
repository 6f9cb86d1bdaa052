/* SPDX-License-Identifier: Apache-2.0 */
/* A histogram of durations: log-linear, 16 buckets per power of two (6% wide), fixed size, lock-free.
 * Threads: any may add and read at once; a reading is consistent to within the adds that run beside it. */
#ifndef DDPFS_PREFETCH_LATENCY_HISTOGRAM_H
#define DDPFS_PREFETCH_LATENCY_HISTOGRAM_H

#include <stdatomic.h>
#include <stdint.h>

enum { PREFETCH_HIST_BUCKETS = 16 * 61 };

struct prefetch_hist {
	_Atomic uint64_t counts[PREFETCH_HIST_BUCKETS];
	_Atomic uint64_t max;
};

void prefetch_hist_add(struct prefetch_hist *hist, uint64_t value);

/* The value below which `permille` of the added ones lie (upper edge of its bucket, at most the maximum); 0 when
 * empty. */
uint64_t prefetch_hist_quantile(const struct prefetch_hist *hist, unsigned permille);
uint64_t prefetch_hist_max(const struct prefetch_hist *hist);

#endif
