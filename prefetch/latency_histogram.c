/* SPDX-License-Identifier: Apache-2.0 */
/* A histogram with 16 buckets per power of two; prefetch/latency_histogram.h first. */
#include "prefetch/latency_histogram.h"

/* Returns the bucket of a value.  Each value below 16 has its own; for larger ones the top five bits select it. */
static unsigned bucket_of(uint64_t value)
{
	if (value < 16)
		return (unsigned)value;
	unsigned shift = 63 - 4 - (unsigned)__builtin_clzll(value);
	return (shift + 1) * 16 + (unsigned)((value >> shift) & 15);
}

/* Returns the largest value of a bucket. */
static uint64_t upper_edge(unsigned bucket)
{
	if (bucket < 16)
		return bucket;
	unsigned shift = bucket / 16 - 1;
	return ((UINT64_C(16) + bucket % 16) << shift) + ((UINT64_C(1) << shift) - 1);
}

void prefetch_hist_add(struct prefetch_hist *hist, uint64_t value)
{
	atomic_fetch_add_explicit(&hist->counts[bucket_of(value)], 1, memory_order_relaxed);
	uint64_t max = atomic_load_explicit(&hist->max, memory_order_relaxed);
	while (value > max && !atomic_compare_exchange_weak_explicit(
	                              &hist->max, &max, value, memory_order_relaxed, memory_order_relaxed))
		;
}

uint64_t prefetch_hist_max(const struct prefetch_hist *hist)
{
	return atomic_load_explicit(&hist->max, memory_order_relaxed);
}

uint64_t prefetch_hist_quantile(const struct prefetch_hist *hist, unsigned permille)
{
	uint64_t total = 0, seen = 0;
	for (unsigned i = 0; i < PREFETCH_HIST_BUCKETS; i++)
		total += atomic_load_explicit(&hist->counts[i], memory_order_relaxed);
	if (!total)
		return 0;
	uint64_t rank = total / 1000 * permille + total % 1000 * permille / 1000;
	if (rank >= total)
		rank = total - 1;
	uint64_t max = prefetch_hist_max(hist);
	for (unsigned i = 0; i < PREFETCH_HIST_BUCKETS; i++) {
		seen += atomic_load_explicit(&hist->counts[i], memory_order_relaxed);
		if (seen > rank)
			return upper_edge(i) < max ? upper_edge(i) : max;
	}
	return max;
}
