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
	LINK_PERCENT = 90, /* of the best rate */
};

struct fs_store_limits {
	struct prefetch *prefetch;
	const struct fs_counters *counters;
	/* Of main: */
	struct fs_store_reading before; /* at_ns 0: none yet */
	uint64_t best_rate;             /* bytes per second, of all intervals */
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

uint64_t fs_store_limit_rate(const struct fs_store_reading *before, const struct fs_store_reading *now)
{
	uint64_t ns = since(before->at_ns, now->at_ns);
	return ns ? (uint64_t)((double)since(before->bytes, now->bytes) * 1e9 / (double)ns) : 0;
}

static bool processor_is_busy(const struct fs_store_reading *before, const struct fs_store_reading *now, uint64_t ns)
{
	for (int i = 0; i < FS_STORE_LIMIT_THREADS; i++)
		if (is_share(since(before->thread_ns[i], now->thread_ns[i]), ns, BUSY_PERCENT))
			return true;
	return is_share(since(before->host_busy, now->host_busy), since(before->host_all, now->host_all), BUSY_PERCENT);
}

enum fs_store_limit fs_store_limit_of(
        const struct fs_store_reading *before, const struct fs_store_reading *now, uint64_t best_rate)
{
	uint64_t ns = since(before->at_ns, now->at_ns), throttled = since(before->throttled, now->throttled);
	if (now->away_ns)
		return FS_STORE_LIMIT_AWAY;
	if (!ns)
		return FS_STORE_LIMIT_UNKNOWN;
	if (!is_share(since(before->waited_ns, now->waited_ns), ns, WAITED_PERCENT))
		return FS_STORE_LIMIT_NOTHING;
	if (throttled && is_share(throttled, since(before->requests, now->requests) + 1, THROTTLED_PERCENT))
		return FS_STORE_LIMIT_REQUESTS;
	if (processor_is_busy(before, now, ns))
		return FS_STORE_LIMIT_PROCESSOR;
	if (is_share(fs_store_limit_rate(before, now), best_rate, LINK_PERCENT))
		return FS_STORE_LIMIT_LINK;
	if (is_share(since(before->tier_ns, now->tier_ns), ns * now->tier_threads, BUSY_PERCENT))
		return FS_STORE_LIMIT_TIER_DISK;
	return FS_STORE_LIMIT_LATENCY;
}

const char *fs_store_limit_says(enum fs_store_limit limit)
{
	switch (limit) {
	case FS_STORE_LIMIT_AWAY:
		return "store: it does not answer";
	case FS_STORE_LIMIT_NOTHING:
		return "nothing: readers wait less than 1% of the time";
	case FS_STORE_LIMIT_REQUESTS:
		return "requests: the store asks for fewer (429, 503)";
	case FS_STORE_LIMIT_PROCESSOR:
		return "processor: a thread of the server or the host is busy 85% of the time";
	case FS_STORE_LIMIT_LINK:
		return "link: bytes come at 90% of the best rate or more";
	case FS_STORE_LIMIT_TIER_DISK:
		return "tier disk: all threads that read it are busy";
	case FS_STORE_LIMIT_LATENCY:
		return "latency: readers wait for answers of the store";
	case FS_STORE_LIMIT_UNKNOWN:
		break;
	}
	return NULL;
}

/* ---- the readings of a mount ---- */

/* The first line of /proc/stat: "cpu", and ticks of user, nice, system, idle, iowait, irq, softirq, steal. */
static void read_host(struct fs_store_reading *reading)
{
	char line[256];
	uint64_t ticks[8] = { 0 };
	cleanup_close int fd = open("/proc/stat", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, line, sizeof(line) - 1);
	if (n <= 0)
		return;
	line[n] = '\0';
	if (sscanf(line,
	            "cpu %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64,
	            &ticks[0], &ticks[1], &ticks[2], &ticks[3], &ticks[4], &ticks[5], &ticks[6], &ticks[7]) != 8)
		return;
	for (int i = 0; i < 8; i++) {
		reading->host_all += ticks[i];
		reading->host_busy += i == 3 || i == 4 ? 0 : ticks[i]; /* neither idle nor iowait */
	}
}

/* Returns false if the dataset lies on a disk. */
static bool read_counters(const struct fs_store_limits *limits, struct fs_store_reading *reading)
{
	struct remote_stats store;
	struct prefetch_stats engine;
	struct prefetch_tier_stats tier = { 0 };
	if (!prefetch_remote_stats(limits->prefetch, &store))
		return false;
	prefetch_stats_get(limits->prefetch, &engine);
	*reading = (struct fs_store_reading){
		.at_ns = base_now_ns(),
		.away_ns = store.away_ns,
		.waited_ns = fs_counted(&limits->counters->waited_ns),
		.requests = store.requests,
		.throttled = store.throttled,
		.bytes = store.bytes,
		.thread_ns = { engine.engine_cpu_ns, engine.deliver_cpu_ns, store.cpu_ns },
	};
	if (prefetch_tier_stats(limits->prefetch, &tier)) {
		reading->tier_ns = tier.look_up_ns;
		reading->tier_threads = tier.threads;
	}
	read_host(reading);
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
	if (before->at_ns) {
		uint64_t rate = fs_store_limit_rate(before, &now);
		limits->best_rate = rate > limits->best_rate ? rate : limits->best_rate;
		atomic_store(&limits->latest, (int)fs_store_limit_of(before, &now, limits->best_rate));
	}
	limits->before = now;
	tell_away(limits);
	return INTERVAL_MS;
}

enum fs_store_limit fs_store_limit_now(struct fs_store_limits *limits)
{
	struct remote_stats store;
	if (!prefetch_remote_stats(limits->prefetch, &store))
		return FS_STORE_LIMIT_UNKNOWN;
	return store.away_ns ? FS_STORE_LIMIT_AWAY : (enum fs_store_limit)atomic_load(&limits->latest);
}
