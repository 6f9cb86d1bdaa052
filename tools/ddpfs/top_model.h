/* SPDX-License-Identifier: Apache-2.0 */
/* The model of `ddpfs top`: which mounts there are, their counters, and the rates at which these grow.
 *
 * A thread of its own searches for mounts, because a server that does not answer delays the search by
 * BASE_CONTROL_SURVEY_MS.  The caller's thread reads the counters of all mounts at once, with a short limit.
 *
 * Threads: one caller. */
#ifndef DDPFS_TOOLS_DDPFS_TOP_MODEL_H
#define DDPFS_TOOLS_DDPFS_TOP_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "shard/base/control_client.h"
#include "shard/base/err.h"

enum watched_state {
	WATCHED_LIVE,
	WATCHED_SILENT, /* its server does not answer in time */
	WATCHED_GONE,   /* unmounted, or its server died; only mounts that the user named stay in the list then */
};

/* One reading of the counters; the names are those of stats.json. */
struct watched_counts {
	uint64_t at_ns; /* CLOCK_MONOTONIC */
	uint64_t uptime_s;
	uint64_t epoch, position, turns; /* if a sampler was recognised, its values */
	uint64_t opens, misses;
	uint64_t cached_bytes, delivered_bytes, read_bytes, wasted_bytes, waited_ns;
	uint64_t wait_p50_ns, wait_p99_ns, wait_max_ns; /* in this epoch */
	uint64_t window_bytes, window_limit_bytes;
	uint64_t resident_bytes, memory_bytes, device_rate;
	uint64_t depth, inflight;
	uint64_t tier_bytes, tier_used_bytes, tier_room_bytes; /* without a tier 0 */
	/* Without a store 0: */
	uint64_t store_requests, store_retries, store_throttled, store_hedged;
	uint64_t store_first_byte_p50_ns, store_first_byte_p99_ns;
};

/* What grew per second between the latest two readings. */
struct watched_rates {
	double seconds;   /* between the two */
	bool known;       /* there were two readings */
	double opens;     /* files */
	double misses;    /* files */
	double cached;    /* bytes */
	double delivered; /* bytes */
	double read;      /* bytes */
	double wasted;    /* bytes */
	double tier;      /* bytes */
	double waited;    /* seconds; above 1 if several readers wait at once */
	/* Requests to the store: */
	double requests, retries, throttled, hedged;
};

/* A counter, for loops over all of them. */
struct watched_counter {
	size_t at;            /* offset in struct watched_counts */
	const char *key;      /* in stats.json */
	const char *shown;    /* in --json; NULL: not there */
	bool is_max;          /* the total is the largest one; otherwise the sum */
	size_t rate_at;       /* offset in struct watched_rates; 0: has no rate */
	double rate_unit;     /* the rate counts these */
	const char *rate_key; /* of the rate, in --json; NULL: not there */
};
enum { WATCHED_COUNTERS = 28 };
extern const struct watched_counter watched_counters[WATCHED_COUNTERS];

struct watched_mount {
	const char *target; /* as the user named it; NULL: the search found it */
	char *mountpoint;   /* its present place; owned; NULL: its server has never answered */
	char socket[BASE_CONTROL_PATH_MAX];
	pid_t pid;
	uint32_t rank, world;
	uint32_t ranks; /* how many the mount shows, from `rank` on; 0: it is one view */
	bool view_all;
	enum watched_state state;
	bool counted; /* `counts` is valid; false if not WATCHED_LIVE */
	struct watched_counts counts;
	struct watched_rates rates;
	char *misuse; /* how the trainer uses the mount wrongly, and what to do; owned; NULL: nothing was noticed */
	char *read_ahead_note; /* why files are not read ahead, and what to do; owned; NULL: they are */
};

struct watched {
	struct watched_mount *mounts; /* in the order of `targets`; without targets by mountpoint, rank, pid */
	size_t n;                     /* elements of `mounts` */
	/* Used by top_model.c only: */
	char **targets;
	size_t n_targets;
	struct watched_search *search; /* the search that runs; NULL: none */
	uint64_t searched_ns;          /* CLOCK_MONOTONIC of the latest search */
};

/* Begins to watch `n_targets` mounts, or all mounts of the host if it is 0.  Each target is one of ask_find; the
 * array must outlive the result.  A server may be silent.
 *
 * Returns 0, or with a sentence: the errors of ask_find for a target that does not exist, -ENOMEM.  watched_close
 * frees the result; it does not wait for a search that runs. */
int watched_open(char **targets, size_t n_targets, struct base_err *err, struct watched *ret_watched);
void watched_close(struct watched *watched);

/* Reads the counters of all mounts within timeout_ms in all, and adds and removes mounts that have come or ended.
 * Returns 0 or -ENOMEM. */
int watched_read(struct watched *watched, unsigned timeout_ms);

/* Adds up all live mounts: sums, but the longest of the waits and the lowest epoch.  *ret_same_epoch: all are in one
 * epoch. */
void watched_total(const struct watched *watched, struct watched_counts *ret_counts, struct watched_rates *ret_rates,
        bool *ret_same_epoch);

/* Returns the share of the opened files that the page cache served, 0 to 1; negative if none was opened. */
double watched_hit_rate(const struct watched_rates *rates);

#endif
