/* SPDX-License-Identifier: Apache-2.0 */
/* Percentiles of the last latencies; shard/remote/latency.h first. */
#include "shard/remote/latency.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

void remote_latency_add(struct remote_latency *latency, uint64_t value_ns)
{
	latency->values[latency->at] = value_ns;
	latency->at = (latency->at + 1) % REMOTE_LATENCY_VALUES;
	latency->n += latency->n < REMOTE_LATENCY_VALUES;
	uint32_t enough = latency->n < 4 * REMOTE_LATENCY_FRESH ? REMOTE_LATENCY_FRESH / 4 : REMOTE_LATENCY_FRESH;
	if (++latency->fresh < enough)
		return;
	uint64_t sorted[REMOTE_LATENCY_VALUES];
	memcpy(sorted, latency->values, latency->n * sizeof(sorted[0]));
	qsort(sorted, latency->n, sizeof(sorted[0]), compare);
	latency->p50_ns = sorted[latency->n / 2];
	latency->p90_ns = sorted[latency->n * 9 / 10];
	latency->p99_ns = sorted[latency->n * 99 / 100];
	latency->fresh = 0;
}
