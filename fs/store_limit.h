/* SPDX-License-Identifier: Apache-2.0 */
/* What limits a mount whose dataset lies in a store, or that has a tier: the first of these that holds over the latest
 * interval.
 *
 *     away        the store does not answer
 *     nothing     readers waited less than 1% of the time
 *     requests    the store asked for fewer requests (429, 503)
 *     processor   a thread of the server ran, or waited for a processor, for 85% of the time
 *     link        after the first byte of an answer, the others came so slowly that round trips do not explain it
 *     tier disk   all threads of the tier were busy for 85% of the time, or the store was asked for nothing
 *     disk        none of these, and the dataset lies on a disk
 *     link        as many reads were in flight as the depth allows, and more of them brought no more bytes
 *     requests    as many reads were in flight as may be at all
 *     latency     none of these: readers wait for answers
 *
 * Busy processors of the host are no sign: the threads of a mount go before trainers (nice -10).  A rate is no sign
 * either: a reader that always takes its time comes at the best rate that was ever seen, too.
 *
 * Threads: main calls fs_store_limit_check; any thread may call fs_store_limit_now and the pure functions. */
#ifndef DDPFS_FS_STORE_LIMIT_H
#define DDPFS_FS_STORE_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

struct prefetch;
struct fs_counters;

enum fs_store_limit {
	FS_STORE_LIMIT_UNKNOWN, /* the first interval is not over, or the dataset lies on a disk and has no tier */
	FS_STORE_LIMIT_AWAY,
	FS_STORE_LIMIT_NOTHING,
	FS_STORE_LIMIT_THROTTLED,
	FS_STORE_LIMIT_PROCESSOR,
	FS_STORE_LIMIT_LINK,
	FS_STORE_LIMIT_TIER_DISK,
	FS_STORE_LIMIT_DISK,
	FS_STORE_LIMIT_DEPTH,
	FS_STORE_LIMIT_LATENCY,
};

enum { FS_STORE_LIMIT_THREADS = 3 }; /* engine, deliver, http */

/* Counters at one moment.  They only grow, but for away_ns, least_ns, tier_threads and what is true or false. */
struct fs_store_reading {
	uint64_t at_ns;                             /* CLOCK_MONOTONIC */
	uint64_t away_ns;                           /* for which the store has not answered; 0: it answers */
	uint64_t waited_ns;                         /* that READs waited */
	uint64_t requests, throttled;               /* sent; answered with 429 or 503 */
	uint64_t bytes;                             /* that the store sent */
	uint64_t answers;                           /* of which a byte came */
	uint64_t first_byte_ns, body_ns;            /* their times until that byte, and from it on, added */
	uint64_t least_ns;                          /* the shortest time to a first byte; 0: none came */
	uint64_t full_ns;                           /* that as many reads were in flight as the depth allows */
	bool depth_full;                            /* a larger depth brought no more bytes */
	bool depth_most;                            /* no larger depth is allowed */
	bool disk;                                  /* the dataset lies on a disk; nothing above is known of a store */
	uint64_t thread_ns[FS_STORE_LIMIT_THREADS]; /* that a thread ran, or waited for a processor */
	uint64_t tier_ns;                           /* that threads of the tier looked blocks up */
	uint64_t tier_waited;                       /* blocks that another process fetched while this one waited */
	uint32_t tier_threads;                      /* 0: there is no tier */
};

/* Returns what limited between two readings. */
enum fs_store_limit fs_store_limit_of(const struct fs_store_reading *before, const struct fs_store_reading *now);

/* Returns a sentence without a full stop, or NULL for FS_STORE_LIMIT_UNKNOWN. */
const char *fs_store_limit_says(enum fs_store_limit limit);

struct fs_store_limits; /* opaque: the readings of a mount */

/* Makes the readings of an engine and a server's counters, which outlive them.  Returns 0 or -ENOMEM. */
int fs_store_limits_new(
        struct prefetch *prefetch, const struct fs_counters *counters, struct fs_store_limits **ret_limits);
void fs_store_limits_free(struct fs_store_limits *limits); /* NULL is fine */

/* Takes a reading if one is due.  Returns the milliseconds until the next call; -1: the dataset lies on a disk, and
 * there is no tier. */
int fs_store_limit_check(struct fs_store_limits *limits);

/* Returns what limited in the latest interval, or that the store is away now. */
enum fs_store_limit fs_store_limit_now(struct fs_store_limits *limits);

#endif
