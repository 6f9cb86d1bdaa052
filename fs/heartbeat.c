/* SPDX-License-Identifier: Apache-2.0 */
/* The beat for the watchdog; fs/heartbeat.h first. */
#include "fs/heartbeat.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/server.h"
#include "fs/stats.h"
#include "fs/supervise/thread_state.h"
#include "fs/supervise/handover_memory.h"
#include "shard/base/cleanup.h"

struct fs_heartbeat {
	struct fs_server *server;
	uint64_t next_ns;
	/* The last time that no READ waited, or one was answered, or the engine was reading. */
	uint64_t answered_ns;
	uint64_t replies;
};

int fs_heartbeat_new(struct fs_server *server, struct fs_heartbeat **ret_heartbeat)
{
	struct fs_heartbeat *heartbeat = calloc(1, sizeof(*heartbeat));
	if (!heartbeat)
		return -ENOMEM;
	heartbeat->server = server;
	heartbeat->answered_ns = base_now_ns();
	*ret_heartbeat = heartbeat;
	return 0;
}

void fs_heartbeat_free(struct fs_heartbeat *heartbeat)
{
	free(heartbeat);
}

/* busy_ns: since when the thread has been busy; 0: it waits for work. */
static bool thread_hangs(pid_t tid, uint64_t busy_ns, uint64_t now_ns, uint64_t limit_ns)
{
	return busy_ns && now_ns > busy_ns && now_ns - busy_ns > limit_ns &&
	       fs_thread_state(getpid(), tid) != 'D'; /* waits for a disk: a page of the index, an open of a shard */
}

static bool worker_hangs(const struct fs_worker *worker, uint64_t now_ns, uint64_t limit_ns)
{
	uint64_t busy_ns = atomic_load_explicit(&worker->busy_ns, memory_order_relaxed);
	/* A file system below may wait for a disk or a server in another state than 'D'. */
	return !atomic_load_explicit(&worker->reading, memory_order_relaxed) &&
	       thread_hangs(worker->tid, busy_ns, now_ns, limit_ns);
}

static bool reads_hang(struct fs_heartbeat *heartbeat, uint64_t now_ns, uint64_t limit_ns)
{
	const struct fs_server *server = heartbeat->server;
	struct prefetch_stats engine = { 0 };
	/* In this order: a READ that comes and is answered between the two loads counts as none, not as one that
	 * waits. */
	uint64_t asked = fs_counted(&server->counters.asked);
	uint64_t replies = fs_counted(&server->counters.replies);
	prefetch_stats_get(server->prefetch, &engine);
	if (replies >= asked || replies != heartbeat->replies || engine.inflight > 0)
		heartbeat->answered_ns = now_ns;
	heartbeat->replies = replies;
	return now_ns - heartbeat->answered_ns > limit_ns || thread_hangs(engine.tid, engine.busy_ns, now_ns, limit_ns);
}

int fs_heartbeat_check(struct fs_heartbeat *heartbeat)
{
	struct fs_server *server = heartbeat->server;
	uint32_t beat_ms = server->channel->beat_ms;
	uint64_t now_ns = base_now_ns();
	if (beat_ms == 0)
		return -1;
	if (now_ns < heartbeat->next_ns)
		return (int)((heartbeat->next_ns - now_ns) / 1000000) + 1;
	heartbeat->next_ns = now_ns + beat_ms * UINT64_C(1000000);
	uint64_t limit_ns = server->channel->hang_ms * UINT64_C(1000000);
	bool hangs = reads_hang(heartbeat, now_ns, limit_ns);
	for (uint32_t i = 0; i < server->n_workers && !hangs; i++)
		hangs = worker_hangs(&server->workers[i], now_ns, limit_ns);
	/* If a store does not answer, this server is not at fault, and a successor could not help. */
	if (hangs && shard_index_is_looked_at(server->index))
		hangs = false;
	if (!hangs) {
		fs_stats_keep(server);
		fs_handover_beat(server->handover);
	}
	return (int)beat_ms;
}
