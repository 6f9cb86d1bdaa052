/* SPDX-License-Identifier: Apache-2.0 */
/* How many reads to keep in flight: raised as long as that brings bandwidth, by measuring.
 *
 * First, while reads take no longer for being many, three more are allowed for each that comes back: the depth grows to four
 * times as many in the time of one read, which is what a store far away needs.  (A disk's queue shows in its second read.)  Then
 * by trials.
 *
 * Only intervals in which the device was kept busy at the current depth count; a schedule that has nothing to read says
 * nothing about the device.  Threads: one owner. */
#ifndef DDPFS_PREFETCH_DEPTH_H
#define DDPFS_PREFETCH_DEPTH_H

#include <stdbool.h>
#include <stdint.h>

/* At most: 110 KB each 20 ms at 1.75 GB/s.  With more the scheduler of a disk that comes behind the delay passes some over for longer
 * than the window lasts (448: 1.2 times the time). */
enum { PREFETCH_DEPTH_MIN = 4, PREFETCH_DEPTH_START = 16, PREFETCH_DEPTH_MAX = 320 };

struct prefetch_depth {
	uint32_t depth;      /* in use */
	uint32_t settled;    /* the best one known */
	double settled_rate; /* bytes per ns that it gave; 0 = not measured */
	bool up;             /* the direction of the next trial */
	uint32_t hold;       /* intervals until the next trial */
	uint64_t least_ns;   /* the shortest read so far; 0 = none */
	bool starting;       /* no trials yet: reads do not get slower */
	uint64_t since_ns;   /* start of the interval; 0 = none */
	uint64_t bytes;      /* read in it */
	uint32_t reads;
};

void prefetch_depth_init(struct prefetch_depth *depth, uint32_t fixed); /* fixed > 0: no trials */

/* `bytes` arrived at now_ns, after took_ns; busy: as many reads as `depth` were in flight until then. */
void prefetch_depth_feed(struct prefetch_depth *depth, uint64_t now_ns, uint64_t took_ns, uint64_t bytes, bool busy);

/* Bytes per second that the device gave at the settled depth; 0 = not known. */
uint64_t prefetch_depth_rate(const struct prefetch_depth *depth);

#endif
