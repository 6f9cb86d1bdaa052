/* SPDX-License-Identifier: Apache-2.0 */
/* Readings of what a store, the processor and the tier do, and what follows from them; fs/store_limit.h first. */
#include "fs/store_limit.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "fs/counters.h"
#include "prefetch/prefetch.h"
#include "shard/base/cleanup.h"
#include "shard/base/clock.h"
#include "shard/base/log.h"
#include "shard/remote/client.h"

enum {
	INTERVAL_MS = 5000,
	WAITED_PERCENT = 1,    /* of the time: readers that wait less do not wait */
	THROTTLED_PERCENT = 1, /* of the requests */
	BUSY_PERCENT = 85,
	FULL_PERCENT = 50,   /* of the time */
	FIRST_BYTES = 14600, /* of TCP's first round trip: ten packets */
};

struct fs_store_limits {
	struct prefetch *prefetch;
	const struct fs_counters *counters;
	/* Of main: */
	struct fs_store_reading before; /* at_ns 0: none yet */
	bool away_told;                 /* the log says that the store is away */
	_Atomic int latest;             /* enum fs_store_limit; any thread reads it */
};

/* Returns whether part is at least percent of whole. */
static bool is_share(uint64_t part, uint64_t whole, unsigned percent)
{
	return whole && (double)part * 100 >= (double)whole * percent;
}

/* A counter of a successor may begin anew. */
static uint64_t since(uint64_t before, uint64_t now)
{
	return now > before ? now - before : 0;
}

/* Returns whether the bytes behind the first one of each answer came so slowly that the link, or what the store reads
 * from, must be slow: they took more time than the first bytes, and twice what TCP needs on a fast link.  TCP
 * sends FIRST_BYTES in the first round trip and doubles this in each one (RFC 6928), and a round trip takes no longer
 * than the shortest first byte. */
static bool bytes_come_slowly(const struct fs_store_reading *before, const struct fs_store_reading *now)
{
	uint64_t answers = since(before->answers, now->answers), body_ns = since(before->body_ns, now->body_ns);
	uint64_t bytes = since(before->bytes, now->bytes), sent = 0, round_trips = 0;
	answers = answers ? answers : 1; /* one that came before goes on */
	while (sent < bytes / answers)
		sent += (uint64_t)FIRST_BYTES << round_trips++;
	return body_ns && body_ns >= since(before->first_byte_ns, now->first_byte_ns) &&
	       body_ns >= 2 * answers * round_trips * now->least_ns;
}

static bool threads_are_busy(const struct fs_store_reading *before, const struct fs_store_reading *now, uint64_t ns)
{
	for (int i = 0; i < FS_STORE_LIMIT_THREADS; i++)
		if (is_share(since(before->thread_ns[i], now->thread_ns[i]), ns, BUSY_PERCENT))
			return true;
	return false;
}

/* Returns whether readers waited for the tier. */
static bool tier_is_busy(const struct fs_store_reading *before, const struct fs_store_reading *now, uint64_t ns)
{
	if (!now->tier_threads)
		return false;
	const bool asked = now->requests != before->requests || now->bytes != before->bytes ||
	                   now->tier_waited != before->tier_waited;
	return is_share(since(before->tier_ns, now->tier_ns), ns * now->tier_threads, BUSY_PERCENT) ||
	       (!now->disk && !asked);
}

/* What limits if a store does not throttle, and no thread is busy. */
static enum fs_store_limit limit_of_store(
        const struct fs_store_reading *before, const struct fs_store_reading *now, uint64_t ns)
{
	const bool full = is_share(since(before->full_ns, now->full_ns), ns, FULL_PERCENT);
	if (full && now->depth_full)
		return FS_STORE_LIMIT_LINK;
	return full && now->depth_most ? FS_STORE_LIMIT_DEPTH : FS_STORE_LIMIT_LATENCY;
}

enum fs_store_limit fs_store_limit_of(const struct fs_store_reading *before, const struct fs_store_reading *now)
{
	uint64_t ns = since(before->at_ns, now->at_ns), throttled = since(before->throttled, now->throttled);
	if (now->away_ns)
		return FS_STORE_LIMIT_AWAY;
	if (!ns)
		return FS_STORE_LIMIT_UNKNOWN;
	if (!is_share(since(before->waited_ns, now->waited_ns), ns, WAITED_PERCENT))
		return FS_STORE_LIMIT_NOTHING;
	if (throttled && is_share(throttled, since(before->requests, now->requests) + 1, THROTTLED_PERCENT))
		return FS_STORE_LIMIT_THROTTLED;
	if (threads_are_busy(before, now, ns))
		return FS_STORE_LIMIT_PROCESSOR;
	if (bytes_come_slowly(before, now))
		return FS_STORE_LIMIT_LINK;
	if (tier_is_busy(before, now, ns))
		return FS_STORE_LIMIT_TIER_DISK;
	return now->disk ? FS_STORE_LIMIT_DISK : limit_of_store(before, now, ns);
}

const char *fs_store_limit_says(enum fs_store_limit limit)
{
	switch (limit) {
	case FS_STORE_LIMIT_AWAY:
		return "store: it does not answer";
	case FS_STORE_LIMIT_NOTHING:
		return "nothing: readers wait less than 1% of the time";
	case FS_STORE_LIMIT_THROTTLED:
		return "requests: the store asks for fewer (429, 503)";
	case FS_STORE_LIMIT_PROCESSOR:
		return "processor: a thread of the server runs, or waits for a processor, 85% of the time";
	case FS_STORE_LIMIT_LINK:
		return "link: it, or the store, sends no more bytes a second";
	case FS_STORE_LIMIT_TIER_DISK:
		return "tier disk: readers wait for it";
	case FS_STORE_LIMIT_DISK:
		return "disk: readers wait for the file system of the dataset";
	case FS_STORE_LIMIT_DEPTH:
		return "requests: as many are in flight as may be";
	case FS_STORE_LIMIT_LATENCY:
		return "latency: readers wait for answers of the store";
	case FS_STORE_LIMIT_UNKNOWN:
		break;
	}
	return NULL;
}

/* ---- the readings of a mount ---- */

/* Returns for how long a thread has waited for a processor: the second number of the file, in ns
 * (Linux, Documentation/scheduler/sched-stats.rst); 0: not
 * known. */
static uint64_t queued_ns(pid_t tid)
{
	char path[64], line[128];
	uint64_t ran_ns, waited_ns;
	snprintf(path, sizeof(path), "/proc/self/task/%d/schedstat", (int)tid);
	cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, line, sizeof(line) - 1);
	if (n <= 0)
		return 0;
	line[n] = '\0';
	return sscanf(line, "%" SCNu64 " %" SCNu64, &ran_ns, &waited_ns) == 2 ? waited_ns : 0;
}

/* Returns false if the dataset lies on a disk, and there is no tier. */
static bool read_counters(const struct fs_store_limits *limits, struct fs_store_reading *reading)
{
	struct remote_stats store = { 0 };
	struct prefetch_stats engine;
	struct prefetch_tier_stats tier = { 0 };
	const bool remote = prefetch_remote_stats(limits->prefetch, &store);
	if (!prefetch_tier_stats(limits->prefetch, &tier) && !remote)
		return false;
	prefetch_stats_get(limits->prefetch, &engine);
	*reading = (struct fs_store_reading){
		.at_ns = base_now_ns(),
		.away_ns = store.away_ns,
		.waited_ns = fs_counted(&limits->counters->waited_ns),
		.requests = store.requests,
		.throttled = store.throttled,
		.bytes = store.bytes,
		.answers = store.answers,
		.first_byte_ns = store.first_byte_ns,
		.body_ns = store.body_ns,
		.least_ns = store.first_byte_least_ns,
		.full_ns = engine.full_ns,
		.depth_full = engine.depth_full,
		.depth_most = engine.depth_most,
		.disk = !remote,
		.thread_ns = { engine.engine_cpu_ns + queued_ns(engine.tid),
		        engine.deliver_cpu_ns + queued_ns(engine.deliver_tid),
		        store.cpu_ns + (remote ? queued_ns(store.tid) : 0) },
		.tier_ns = tier.look_up_ns,
		.tier_waited = tier.waited,
		.tier_threads = tier.threads,
	};
	return true;
}

int fs_store_limits_new(
        struct prefetch *prefetch, const struct fs_counters *counters, struct fs_store_limits **ret_limits)
{
	struct fs_store_limits *limits = calloc(1, sizeof(*limits));
	if (!limits)
		return -ENOMEM;
	limits->prefetch = prefetch;
	limits->counters = counters;
	*ret_limits = limits;
	return 0;
}

void fs_store_limits_free(struct fs_store_limits *limits)
{
	free(limits);
}

/* Says once that the store is away. */
static void tell_away(struct fs_store_limits *limits)
{
	struct remote_stats store = { 0 };
	prefetch_remote_stats(limits->prefetch, &store);
	if (store.away_ns && !limits->away_told)
		log_warning("the store has not answered for %" PRIu64 " s (%s): reads wait for it",
		        store.away_ns / 1000000000, store.error[0] ? store.error : "no reason is known");
	limits->away_told = store.away_ns > 0;
}

int fs_store_limit_check(struct fs_store_limits *limits)
{
	const struct fs_store_reading *before = &limits->before;
	uint64_t age_ms = (base_now_ns() - before->at_ns) / 1000000;
	if (before->at_ns && age_ms < INTERVAL_MS)
		return (int)(INTERVAL_MS - age_ms);
	struct fs_store_reading now;
	if (!read_counters(limits, &now))
		return -1;
	if (before->at_ns)
		atomic_store(&limits->latest, (int)fs_store_limit_of(before, &now));
	limits->before = now;
	tell_away(limits);
	return INTERVAL_MS;
}

enum fs_store_limit fs_store_limit_now(struct fs_store_limits *limits)
{
	struct remote_stats store = { 0 };
	prefetch_remote_stats(limits->prefetch, &store);
	return store.away_ns ? FS_STORE_LIMIT_AWAY : (enum fs_store_limit)atomic_load(&limits->latest);
}
