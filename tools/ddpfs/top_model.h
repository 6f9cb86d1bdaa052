/* SPDX-License-Identifier: Apache-2.0 */
/* Live mounts under observation: which there are, what their counters say, and at which rates they grow.
 *
 * Mounts are looked for by a thread of its own, because a server that has stopped holds that up for
 * BASE_CONTROL_SURVEY_MS; their counters are asked for by the caller's thread, all at once, with a short limit.
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
	WATCHED_GONE,   /* unmounted, or its server died; of mounts asked for by name only */
};

/* One reading of the counters; the names are those of stats.json. */
struct watched_counts {
	uint64_t at_ns; /* CLOCK_MONOTONIC */
	uint64_t uptime_s;
	uint64_t epoch, position, turns; /* with view=all: of the sampler that was recognised, if any */
	uint64_t opens, misses;
	uint64_t delivered_bytes, read_bytes, waited_ns;
	uint64_t wait_p50_ns, wait_p99_ns, wait_max_ns; /* of the epoch */
	uint64_t window_bytes, window_limit_bytes;
	uint64_t resident_bytes, memory_bytes, device_rate;
	uint64_t depth, inflight;
};

/* Per second, between the latest two readings. */
struct watched_rates {
	bool known;       /* there were two */
	double seconds;   /* between them */
	double opens;     /* files */
	double misses;    /* files */
	double delivered; /* bytes */
	double read;      /* bytes */
	double waited;    /* seconds: above 1 where several readers wait */
};

struct watched_mount {
	const char *target; /* as it was asked for; NULL: found */
	char *mountpoint;   /* where it is now; owned; NULL: its server has been silent from the beginning */
	char socket[BASE_CONTROL_PATH_MAX];
	pid_t pid;
	uint32_t rank, world;
	bool view_all;
	enum watched_state state;
	bool counted; /* `counts` is there; false when not live */
	struct watched_counts counts;
	struct watched_rates rates;
};

struct watched {
	struct watched_mount *mounts; /* in the order asked for, else by mountpoint, rank, pid */
	size_t n;
	/* watched.c's */
	char **targets;
	size_t n_targets;
	struct watched_search *search; /* on its way; NULL: none */
	uint64_t searched_ns;
};

/* Watches `n_targets` mounts (each what ask_find takes; the array outlives the result), or with none all of the
 * host.  Servers may be silent.  Errors of ask_find for a target that is not there; -ENOMEM. */
int watched_open(char **targets, size_t n_targets, struct base_err *err, struct watched *ret_watched);
void watched_close(struct watched *watched);

/* Asks all of them, and takes in mounts that have come and gone.  They get timeout_ms, all together.  -ENOMEM. */
int watched_read(struct watched *watched, unsigned timeout_ms);

/* All that are live, together: sums, but the longest of the waits, and the lowest epoch.  *ret_epochs: they are in the same
 * one. */
void watched_total(const struct watched *watched, struct watched_counts *ret_counts, struct watched_rates *ret_rates,
        bool *ret_same_epoch);

/* Share of the opened files that the page cache served, 0 to 1; negative when none was opened. */
double watched_hit_rate(const struct watched_rates *rates);

#endif
