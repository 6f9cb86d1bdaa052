#include "fs/share.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "fs/control.h"
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

/* Do both show the same files?  A copy of them elsewhere has pages of its own. */
static bool same_dataset(const json_t *ours, const json_t *theirs)
{
	static const char *const keys[] = { "identity", "dataset" };
	bool same = true;
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		const char *a = json_string_value(json_object_get(ours, keys[i]));
		const char *b = json_string_value(json_object_get(theirs, keys[i]));
		same = same && a && b && strcmp(a, b) == 0;
	}
	return same;
}

static bool is_neighbour(const json_t *ours, const struct fs_control_peer *peer)
{
	json_t *theirs = json_loads(peer->info, 0, NULL);
	bool is = peer->pid != json_integer_value(json_object_get(ours, "pid")) && same_dataset(ours, theirs);
	json_decref(theirs);
	return is;
}

/* One that does not answer keeps its pages to itself. */
static void tell(const char *control_path, size_t servers)
{
	char request[64];
	char *reply = NULL;
	snprintf(request, sizeof(request), "{\"cmd\":\"neighbour\",\"servers\":%zu}", servers);
	if (fs_control_request(control_path, request, FS_CONTROL_TIMEOUT_MS, NULL, &reply) == 0)
		free(reply);
}

static void greet(const char *control_path, const json_t *ours, struct fs_control_peer *peers, size_t n)
{
	size_t others = 0;
	for (size_t i = 0; i < n; i++) {
		if (!is_neighbour(ours, &peers[i]))
			continue;
		struct fs_control_peer neighbour = peers[i];
		peers[i] = peers[others];
		peers[others++] = neighbour;
	}
	if (others > 0)
		tell(control_path, others + 1);
	for (size_t i = 0; i < others; i++)
		tell(peers[i].socket, others + 1);
}

void fs_share_greet(const char *control_path)
{
	struct fs_control_peer *peers = NULL;
	size_t n = 0;
	cleanup_free char *info = NULL;
	if (fs_control_request(control_path, "{\"cmd\":\"info\"}", FS_CONTROL_TIMEOUT_MS, NULL, &info) < 0)
		return;
	json_t *ours = json_loads(info, 0, NULL);
	if (fs_control_list(&peers, &n) == 0)
		greet(control_path, ours, peers, n);
	fs_control_peers_free(peers, n);
	json_decref(ours);
}
