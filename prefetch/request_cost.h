/* SPDX-License-Identifier: Apache-2.0 */
/* What a request to a store costs, in bytes that it could have sent instead.
 *
 * A store far away answers D requests at the same time, each after its latency L, and sends R bytes a second.  One
 * more request takes L / D of the time, in which L / D * R bytes come.  A gap between two samples that is shorter
 * costs less than a second request: it is read, too.
 *
 *     20 ms, 40 MB/s, 16 in flight: 50 KB          20 ms, 73 MB/s, 320 in flight: 4.6 KB
 *
 * Threads: one owner. */
#ifndef DDPFS_PREFETCH_REQUEST_COST_H
#define DDPFS_PREFETCH_REQUEST_COST_H

#include <stdint.h>

enum {
	PREFETCH_COST_MIN = 2 << 10,    /* bytes: a tar header and padding are never worth a request */
	PREFETCH_COST_FIRST = 16 << 10, /* bytes, while nothing is measured */
	PREFETCH_COST_MAX = 64 << 10,   /* bytes */
};

struct prefetch_request_cost {
	uint64_t since_ns; /* start of the interval; 0: none */
	uint64_t bytes;    /* that came in the interval */
	double rate;       /* bytes per ns: the highest of the latest intervals; 0: not measured */
};

/* Takes in a read of `bytes` bytes that came back at now_ns. */
void prefetch_request_cost_feed(struct prefetch_request_cost *cost, uint64_t now_ns, uint64_t bytes);

/* Returns the bytes that a request costs.  first_byte_ns: the latency of the store; 0: not known.  depth: requests that
 * may be in flight, at least 1. */
uint32_t prefetch_request_cost_bytes(const struct prefetch_request_cost *cost, uint64_t first_byte_ns, uint32_t depth);

#endif
