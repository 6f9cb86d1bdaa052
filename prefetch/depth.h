/* SPDX-License-Identifier: Apache-2.0 */
/* The depth: how many scheduled reads are in flight.  It is found by measuring, and grows while that brings bandwidth.
 *
 * At first each read that comes back allows three more, until a read takes more than twice as long as the shortest
 * one.  So the depth grows fourfold in the time of one read, as a store far away needs.  (With a local disk the
 * second read is slower already.)  After that, trials with a larger or smaller depth decide.  With a store, a larger
 * one that does not help is tried a second time soon.  Small reads of a local dataset are at least as many as come back
 * in 2 ms, or 128 if that is fewer.
 *
 * Only intervals in which as many reads were in flight as the depth allows count, because others do not measure the
 * device.
 *
 * Threads: one owner. */
#ifndef DDPFS_PREFETCH_DEPTH_H
#define DDPFS_PREFETCH_DEPTH_H

#include <stdbool.h>
#include <stdint.h>

/* The maximum suffices for reads of 110 KB that take 20 ms each at 1.75 GB/s.  With more, the scheduler of a disk
 * behind the delay lets some reads wait for longer than the window lasts (448: 1.2 times the time).  Of smaller reads
 * as many bytes may be in flight, in at most PREFETCH_DEPTH_SMALL_MAX of them. */
enum {
	PREFETCH_DEPTH_MIN = 4,
	PREFETCH_DEPTH_START = 16,
	PREFETCH_DEPTH_MAX = 320,
	PREFETCH_DEPTH_SMALL_MAX = 2048,
	PREFETCH_DEPTH_BYTES = 34 << 20,
};

struct prefetch_depth {
	uint32_t depth;      /* reads, now */
	uint32_t settled;    /* the best depth known */
	double settled_rate; /* bytes per ns at that depth; 0: not measured */
	bool up;             /* the next trial is with a larger depth */
	bool failed;         /* ... and is made once more, because the latest one did not raise the rate */
	bool full;           /* the latest trial with a larger depth did not raise the rate */
	uint32_t hold;       /* intervals until the next trial */
	uint64_t least_ns;   /* the shortest read at the start; 0: none */
	bool starting;       /* no trials yet: reads do not get slower */
	uint64_t since_ns;   /* start of the interval; 0: none */
	uint64_t bytes;      /* read in the interval */
	uint32_t reads;      /* ... in so many reads */
	bool store;          /* what is read lies in a store */
	double gain;         /* a trial with a larger depth must raise the rate so many times */
	uint64_t mean_bytes; /* of a read, lately; 0: none came back */
	uint32_t least;      /* the smallest depth of a trial: reads */
	uint32_t most_reads; /* the largest depth, for small reads */
};

/* Starts measuring at PREFETCH_DEPTH_START, or, if fixed > 0, with that depth for ever.  store: what is read lies in a
 * store, where a demand shares the link with the reads in flight.  So a larger depth must gain more, and the maximum of
 * small reads is that of others. */
void prefetch_depth_init(struct prefetch_depth *depth, uint32_t fixed, bool store);

/* Takes in a read of `bytes` bytes that came back at now_ns and took took_ns.  busy: as many reads as the depth
 * allows were in flight until then. */
void prefetch_depth_feed(struct prefetch_depth *depth, uint64_t now_ns, uint64_t took_ns, uint64_t bytes, bool busy);

/* Returns the bytes per second at the settled depth; 0: not measured. */
uint64_t prefetch_depth_rate(const struct prefetch_depth *depth);

/* Returns whether no larger depth is allowed. */
bool prefetch_depth_is_most(const struct prefetch_depth *depth);

#endif
