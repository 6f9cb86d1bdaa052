/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory a mount uses, and when that changes; fs/budget.h first. */
#include "fs/budget.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/directory_names.h"
#include "fs/server.h"
#include "shard/base/cleanup.h"
#include "shard/base/control_client.h"
#include "fs/supervise/mount.h"
#include "shard/base/log.h"
#include "shard/base/units.h"

enum {
	WINDOW_BYTES = 96 << 20, /* what the engine needs besides the dataset: landing memory, drops that wait */
	STEP = 16,               /* a change of less than a sixteenth is ignored */
};

enum why { WHY_GIVEN, WHY_MOST, WHY_WANT, WHY_SHARE, WHY_LEAST };

struct fs_budget {
	struct fs_server *server;
	uint64_t most_bytes;
	uint64_t progress; /* value at the last check */
	uint64_t used_ns;  /* CLOCK_MONOTONIC time at which `progress` changed last */
	uint64_t next_ns;
	uint32_t sockets; /* control sockets at the last check */
	uint32_t servers; /* mounts of this dataset, with this one */
	uint32_t known;   /* mounts that answered the greeter */
	/* Under lock: */
	pthread_mutex_t lock;
	struct fs_memory_claim claims[FS_BUDGET_CLAIMS_MAX]; /* this mount's first */
	size_t n_claims;
	bool active;
	enum why why;
	uint64_t bytes;
	uint64_t free_bytes; /* what host and cgroup left */
	uint64_t told_bytes; /* what the engine was told last; 0: nothing yet */
};

/* sharers: mounts that together hold the dataset once. */
static uint64_t want_bytes(const struct fs_server *server, uint32_t sharers)
{
	const struct shard_info *info = server->info;
	uint64_t bytes = info->content_bytes + (uint64_t)info->n_files * FS_FILE_OVERHEAD_BYTES;
	bytes = (bytes + bytes / STEP) / sharers + WINDOW_BYTES;
	return bytes < FS_MEMORY_CLAIM_MAX ? bytes : FS_MEMORY_CLAIM_MAX;
}

static uint64_t local_ranks(void)
{
	const char *text = getenv("LOCAL_WORLD_SIZE");
	uint64_t ranks;
	return text && base_parse_u64(text, FS_BUDGET_CLAIMS_MAX, &ranks) == 0 ? ranks : 0;
}

/* Some mounts report no claim; they are assumed to want what this mount wants. These are mounts of other users, which
 * only /proc/mounts shows, and ranks that torchrun has started and that do not mount yet. */
static void add_unknown(struct fs_budget *budget)
{
	uint32_t mounts = fs_mounts_count();
	uint64_t others = mounts > budget->known ? mounts - budget->known : 0;
	uint64_t ranks = local_ranks();
	size_t n = budget->n_claims + others;
	if (n < ranks)
		n = ranks;
	for (; budget->n_claims < n && budget->n_claims < FS_BUDGET_CLAIMS_MAX; budget->n_claims++)
		budget->claims[budget->n_claims] = budget->claims[0];
}

/* Finds the budget. Under the lock. */
static void work_out(struct fs_budget *budget, uint64_t own_bytes)
{
	budget->free_bytes = fs_memory_free("", own_bytes);
	uint64_t bytes = fs_memory_share(budget->free_bytes / 2, budget->claims, budget->n_claims);
	enum why why = bytes == budget->claims[0].want_bytes ? WHY_WANT : WHY_SHARE;
	if (budget->claims[0].fixed)
		why = WHY_GIVEN;
	if (!budget->claims[0].fixed && bytes < FS_MEMORY_MIN) {
		bytes = FS_MEMORY_MIN;
		why = WHY_LEAST;
	}
	if (bytes > budget->most_bytes) {
		bytes = budget->most_bytes;
		why = WHY_MOST;
	}
	uint64_t change = bytes > budget->bytes ? bytes - budget->bytes : budget->bytes - bytes;
	if (change > budget->bytes / STEP || (why == WHY_WANT && change > 0))
		budget->bytes = bytes;
	budget->why = why;
}

int fs_budget_new(struct fs_server *server, struct fs_budget **ret_budget)
{
	struct fs_budget *budget = calloc(1, sizeof(*budget));
	if (!budget)
		return -ENOMEM;
	pthread_mutex_init(&budget->lock, NULL);
	budget->server = server;
	budget->most_bytes = fs_memory_most("");
	budget->sockets = base_control_count();
	budget->known = budget->sockets; /* until the greeter reports */
	budget->used_ns = base_now_ns();
	budget->active = true;
	budget->servers = 1;
	bool fixed = server->options.memory_bytes != 0;
	uint64_t want = fixed ? server->options.memory_bytes : want_bytes(server, 1);
	if (want > FS_MEMORY_CLAIM_MAX)
		want = FS_MEMORY_CLAIM_MAX;
	budget->claims[0] = (struct fs_memory_claim){ .want_bytes = want, .fixed = fixed };
	budget->n_claims = 1;
	add_unknown(budget);
	work_out(budget, 0);
	/* A successor begins with what the first server began with, and keeps it until the first check. */
	if (server->successor && !fixed)
		budget->bytes = server->mount.memory_bytes;
	server->mount.memory_bytes = budget->bytes;
	if (fixed && budget->why == WHY_MOST) {
		char wanted[16], used[16];
		log_warning("memory: %s is more than this host or cgroup has: %s are used",
		        base_format_size(server->options.memory_bytes, wanted), base_format_size(budget->bytes, used));
	}
	*ret_budget = budget;
	return 0;
}

void fs_budget_free(struct fs_budget *budget)
{
	if (!budget)
		return;
	pthread_mutex_destroy(&budget->lock);
	free(budget);
}

uint64_t fs_budget_bytes(struct fs_budget *budget)
{
	lock_for_scope(&budget->lock);
	return budget->bytes;
}

/* Returns what the names take of the budget, besides those that the engine counts. Under the lock. */
static uint64_t names_bytes(const struct fs_budget *budget)
{
	uint64_t landing = prefetch_landing(budget->server->prefetch);
	uint64_t rest = budget->bytes > landing ? budget->bytes - landing : 0;
	return fs_directory_names_reserve(budget->server->names, rest);
}

void fs_budget_apply(struct fs_budget *budget)
{
	/* Main and the lister call this. Under the lock, the latest budget is the last that the engine hears of. */
	lock_for_scope(&budget->lock);
	uint64_t left = budget->bytes - names_bytes(budget);
	left = left > PREFETCH_MEMORY_MIN ? left : PREFETCH_MEMORY_MIN;
	if (left != budget->told_bytes)
		prefetch_set_memory(budget->server->prefetch, left);
	budget->told_bytes = left;
}

/* The mount is in use while anything is opened, listed or read. */
static bool look_at_use(struct fs_budget *budget, const struct prefetch_stats *engine, uint64_t now_ns)
{
	const struct fs_counters *c = &budget->server->counters;
	uint64_t progress = engine->used + fs_counted(&c->reads) + fs_counted(&c->listings) + fs_counted(&c->lookups);
	if (progress != budget->progress)
		budget->used_ns = now_ns;
	budget->progress = progress;
	return now_ns - budget->used_ns < FS_BUDGET_IDLE_S * UINT64_C(1000000000);
}

static void log_change(struct fs_budget *budget, uint64_t before)
{
	char old[16], now[16], why[FS_BUDGET_WHY_BYTES];
	fs_budget_why(budget, why, sizeof(why));
	log_debug("memory: %s, before %s: %s", base_format_size(fs_budget_bytes(budget), now),
	        base_format_size(before, old), why);
}

int fs_budget_check(struct fs_budget *budget)
{
	struct fs_server *server = budget->server;
	uint64_t now_ns = base_now_ns();
	if (now_ns < budget->next_ns)
		return (int)((budget->next_ns - now_ns) / 1000000) + 1;
	budget->next_ns = now_ns + FS_BUDGET_CHECK_MS * UINT64_C(1000000);
	struct prefetch_stats engine = { 0 };
	prefetch_stats_get(server->prefetch, &engine);
	bool active = look_at_use(budget, &engine, now_ns);
	uint32_t sockets = base_control_count();

	bool news;
	uint64_t before, bytes;
	{
		lock_for_scope(&budget->lock);
		news = active != budget->active || sockets != budget->sockets;
		before = budget->bytes;
		budget->active = active;
		budget->sockets = sockets;
		if (engine.shared && !budget->claims[0].fixed)
			budget->claims[0].want_bytes = want_bytes(server, budget->servers);
		work_out(budget, engine.resident_bytes + names_bytes(budget));
		bytes = budget->bytes;
	}
	fs_budget_apply(budget); /* landing memory may take more now, or less */
	if (bytes != before)
		log_change(budget, before);
	if (news)
		fs_channel_say(server->channel->channel, FS_CHANNEL_GREET, 0, NULL);
	return FS_BUDGET_CHECK_MS;
}

void fs_budget_met(
        struct fs_budget *budget, uint32_t servers, uint32_t mounts, const struct fs_memory_claim *claims, size_t n)
{
	budget->known = mounts;
	budget->servers = servers;
	lock_for_scope(&budget->lock);
	budget->n_claims = n < FS_BUDGET_CLAIMS_MAX ? n + 1 : FS_BUDGET_CLAIMS_MAX;
	memcpy(budget->claims + 1, claims, (budget->n_claims - 1) * sizeof(*claims));
	add_unknown(budget);
	budget->next_ns = 0; /* main checks at once */
}

json_t *fs_budget_json(struct fs_budget *budget)
{
	lock_for_scope(&budget->lock);
	return json_pack("{s:I, s:b, s:b}", "want", (json_int_t)budget->claims[0].want_bytes, "fixed",
	        (int)budget->claims[0].fixed, "active", (int)budget->active);
}

void fs_budget_why(struct fs_budget *budget, char *buf, size_t size)
{
	char room[16];
	lock_for_scope(&budget->lock);
	base_format_size(budget->free_bytes, room);
	switch (budget->why) {
	case WHY_GIVEN:
		snprintf(buf, size, "memory= was given");
		break;
	case WHY_MOST:
		snprintf(buf, size, "all that the host or its cgroup has");
		break;
	case WHY_WANT:
		snprintf(buf, size, "all that the dataset can use");
		break;
	case WHY_SHARE:
		if (budget->n_claims == 1)
			snprintf(buf, size, "half of %s that host and cgroup leave free", room);
		else
			snprintf(buf, size, "part of half of %s that host and cgroup leave free, for %zu mounts in use",
			        room, budget->n_claims);
		break;
	case WHY_LEAST:
		snprintf(buf, size, "the least there is: host and cgroup leave %s free", room);
		break;
	}
}
