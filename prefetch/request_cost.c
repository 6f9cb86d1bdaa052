/* SPDX-License-Identifier: Apache-2.0 */
/* What a request costs; prefetch/request_cost.h first. */
#include "prefetch/request_cost.h"

enum { INTERVAL_NS = 100000000 };
/* A reader may want less than the store could send.  So the rate falls slowly: by a half in 70 intervals. */
static const double FALL = 0.99;

void prefetch_request_cost_feed(struct prefetch_request_cost *cost, uint64_t now_ns, uint64_t bytes)
{
	if (!cost->since_ns) {
		cost->since_ns = now_ns;
		return;
	}
	cost->bytes += bytes;
	if (now_ns - cost->since_ns < INTERVAL_NS)
		return;
	double rate = (double)cost->bytes / (double)(now_ns - cost->since_ns);
	cost->rate = rate > cost->rate * FALL ? rate : cost->rate * FALL;
	cost->since_ns = now_ns;
	cost->bytes = 0;
}

uint32_t prefetch_request_cost_bytes(const struct prefetch_request_cost *cost, uint64_t first_byte_ns, uint32_t depth)
{
	if (!(cost->rate > 0) || !first_byte_ns)
		return PREFETCH_COST_FIRST;
	double bytes = (double)first_byte_ns * cost->rate / depth;
	if (bytes < PREFETCH_COST_MIN)
		return PREFETCH_COST_MIN;
	return bytes < PREFETCH_COST_MAX ? (uint32_t)bytes : PREFETCH_COST_MAX;
}
