#include "fs/share.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "fs/control.h"
#include "fs/dynamic.h"
#include "fs/memory.h"
#include "shard/base/cleanup.h"

enum {
	SINK_MIN = 16 << 20, /* below it read-ahead would wait for its own drops */
	SINK_MAX = 64 << 20, /* a tenth of a second of one reader */
	SINK_PART = 16,      /* of the dataset, all mounts together */
};

struct fs_share {
	struct fs_server *server;
	uint64_t free_bytes; /* what host and cgroup left when we came */
	pthread_t thread;
	bool started;
	_Atomic bool stopping; /* a neighbour that does not answer must not keep this mount from ending */
};

int fs_share_new(struct fs_server *server, struct fs_share **ret_share)
{
	struct fs_share *share = calloc(1, sizeof(*share));
	if (!share)
		return -ENOMEM;
	share->server = server;
	share->free_bytes = fs_memory_free("");
	*ret_share = share;
	return 0;
}

void fs_share_free(struct fs_share *share)
{
	free(share);
}

uint64_t fs_share_bytes(uint64_t dataset_bytes, uint64_t memory_bytes, uint64_t free_bytes, uint32_t servers)
{
	uint64_t together = memory_bytes > UINT64_MAX / servers ? UINT64_MAX : memory_bytes * servers;
	uint64_t room = together < free_bytes ? together : free_bytes;
	if (servers < 2 || dataset_bytes > room / 5 * 4)
		return 0;
	uint64_t bytes = dataset_bytes / SINK_PART / servers;
	if (bytes < SINK_MIN)
		return SINK_MIN;
	return bytes > SINK_MAX ? SINK_MAX : bytes;
}

static uint64_t shard_bytes(const struct fs_server *server)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < server->info->n_shards; i++) {
		struct shard_shard shard;
		if (shard_index_shard(server->index, i, &shard) == 0)
			bytes += shard.size_bytes;
	}
	return bytes;
}

void fs_share_met(struct fs_share *share, uint32_t servers)
{
	const struct fs_server *server = share->server;
	if (servers < 2)
		return;
	uint64_t bytes = fs_share_bytes(shard_bytes(server), server->memory_bytes, share->free_bytes, servers);
	if (bytes)
		prefetch_share(server->prefetch, bytes);
}

/* Does the other show the same files?  A copy of them elsewhere has pages of its own. */
static bool same_dataset(const json_t *ours, const struct fs_control_peer *peer, pid_t self)
{
	static const char *const keys[] = { "identity", "dataset" };
	bool same = peer->pid != self;
	json_t *theirs = json_loads(peer->info, 0, NULL);
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		const char *a = json_string_value(json_object_get(ours, keys[i]));
		const char *b = json_string_value(json_object_get(theirs, keys[i]));
		same = same && a && b && strcmp(a, b) == 0;
	}
	json_decref(theirs);
	return same;
}

static void greet(struct fs_share *share, const struct fs_control_peer *peers, size_t n)
{
	cleanup_free char *info = fs_info_json(share->server, share->server->views[0]);
	json_t *ours = info ? json_loads(info, 0, NULL) : NULL;
	uint32_t servers = 1;
	for (size_t i = 0; i < n; i++)
		servers += same_dataset(ours, &peers[i], share->server->link->supervisor);
	fs_share_met(share, servers);
	char request[64];
	snprintf(request, sizeof(request), "{\"cmd\":\"neighbour\",\"servers\":%u}", servers);
	for (size_t i = 0; i < n && !share->stopping; i++) {
		char *reply = NULL;
		/* One that does not answer keeps its pages to itself. */
		if (same_dataset(ours, &peers[i], share->server->link->supervisor) &&
		        fs_control_request(peers[i].socket, request, FS_CONTROL_TIMEOUT_MS, NULL, &reply) == 0)
			free(reply);
	}
	json_decref(ours);
}

static void *greeter_run(void *arg)
{
	struct fs_share *share = arg;
	struct fs_control_peer *peers = NULL;
	size_t n = 0;
	pthread_setname_np(pthread_self(), "greeter");
	fs_control_give_up(&share->stopping);
	if (fs_control_list(&peers, &n) == 0)
		greet(share, peers, n);
	fs_control_peers_free(peers, n);
	return NULL;
}

int fs_share_start(struct fs_share *share)
{
	int rc = -pthread_create(&share->thread, NULL, greeter_run, share);
	share->started = rc == 0;
	return rc;
}

void fs_share_stop(struct fs_share *share)
{
	if (!share || !share->started)
		return;
	share->stopping = true;
	pthread_join(share->thread, NULL);
	share->started = false;
}
