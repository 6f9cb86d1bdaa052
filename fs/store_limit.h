/* SPDX-License-Identifier: Apache-2.0 */
/* What limits a mount whose dataset lies in a store: the first of these that holds over the latest interval.
 *
 *     away        the store does not answer
 *     nothing     readers waited less than 1% of the time
 *     requests    the store asked for fewer requests (429, 503)
 *     processor   a thread of the server, or the host, was busy for 85% of the time
 *     link        bytes came with at least 90% of the best rate that was seen
 *     tier disk   all threads of the tier were busy for 85% of the time
 *     latency     none of these: readers wait for answers
 *
 * Threads: main calls fs_store_limit_check; any thread may call fs_store_limit_now and the pure functions. */
#ifndef DDPFS_FS_STORE_LIMIT_H
#define DDPFS_FS_STORE_LIMIT_H

#include <stdint.h>

struct prefetch;
struct fs_counters;

enum fs_store_limit {
	FS_STORE_LIMIT_UNKNOWN, /* the first interval is not over, or the dataset lies on a disk */
	FS_STORE_LIMIT_AWAY,
	FS_STORE_LIMIT_NOTHING,
	FS_STORE_LIMIT_REQUESTS,
	FS_STORE_LIMIT_PROCESSOR,
	FS_STORE_LIMIT_LINK,
	FS_STORE_LIMIT_TIER_DISK,
	FS_STORE_LIMIT_LATENCY,
};

enum { FS_STORE_LIMIT_THREADS = 3 }; /* engine, deliver, http */

/* Counters at one moment.  They only grow, but for away_ns and tier_threads. */
struct fs_store_reading {
	uint64_t at_ns;                             /* CLOCK_MONOTONIC */
	uint64_t away_ns;                           /* for which the store has not answered; 0: it answers */
	uint64_t waited_ns;                         /* that READs waited */
	uint64_t requests, throttled;               /* sent; answered with 429 or 503 */
	uint64_t bytes;                             /* that the store sent */
	uint64_t thread_ns[FS_STORE_LIMIT_THREADS]; /* processor time of a thread */
	uint64_t host_busy, host_all;               /* ticks of all processors; 0: not known */
	uint64_t tier_ns;                           /* that threads of the tier looked blocks up */
	uint32_t tier_threads;                      /* 0: there is no tier */
};

/* Returns the bytes per second that the store sent between two readings. */
uint64_t fs_store_limit_rate(const struct fs_store_reading *before, const struct fs_store_reading *now);

/* Returns what limited between two readings.  best_rate: bytes per second, the most that was seen. */
enum fs_store_limit fs_store_limit_of(
        const struct fs_store_reading *before, const struct fs_store_reading *now, uint64_t best_rate);

/* Returns a sentence without a full stop, or NULL for FS_STORE_LIMIT_UNKNOWN. */
const char *fs_store_limit_says(enum fs_store_limit limit);

struct fs_store_limits; /* opaque: the readings of a mount */

/* Makes the readings of an engine and a server's counters, which outlive them.  Returns 0 or -ENOMEM. */
int fs_store_limits_new(
        struct prefetch *prefetch, const struct fs_counters *counters, struct fs_store_limits **ret_limits);
void fs_store_limits_free(struct fs_store_limits *limits); /* NULL is fine */

/* Takes a reading if one is due.  Returns the milliseconds until the next call; -1: the dataset lies on a disk. */
int fs_store_limit_check(struct fs_store_limits *limits);

/* Returns what limited in the latest interval, or that the store is away now. */
enum fs_store_limit fs_store_limit_now(struct fs_store_limits *limits);

#endif
