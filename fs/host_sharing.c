/* SPDX-License-Identifier: Apache-2.0 */
/* When mounts of one dataset share the host's page cache, and the greeter; fs/host_sharing.h first. */
#include "fs/host_sharing.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "fs/budget.h"
#include "fs/directory_names.h"
#include "fs/server.h"
#include "shard/base/control_client.h"
#include "fs/host_memory.h"
#include "fs/supervise/mount.h"
#include "shard/base/cleanup.h"
#include "shard/base/cleanup_json.h"

enum {
	SINK_MIN = 16 << 20, /* with less, read-ahead would wait for its own drops */
	SINK_MAX = 64 << 20, /* a tenth of a second of one reader */
	SINK_PART = 16,      /* divisor: a sixteenth of the dataset, for all mounts together */
};

struct fs_host_sharing {
	struct fs_server *server;
	uint64_t free_bytes; /* what host and cgroup left free when this server came */
};

int fs_host_sharing_new(struct fs_server *server, struct fs_host_sharing **ret_share)
{
	struct fs_host_sharing *share = calloc(1, sizeof(*share));
	if (!share)
		return -ENOMEM;
	share->server = server;
	share->free_bytes = fs_memory_free("", 0);
	*ret_share = share;
	return 0;
}

void fs_host_sharing_free(struct fs_host_sharing *share)
{
	free(share);
}

uint64_t fs_host_sharing_bytes(uint64_t dataset_bytes, uint64_t memory_bytes, uint64_t free_bytes, uint32_t servers)
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

void fs_host_sharing_met(struct fs_host_sharing *share, uint32_t servers)
{
	const struct fs_server *server = share->server;
	if (servers < 2)
		return;
	uint64_t bytes =
	        fs_host_sharing_bytes(shard_bytes(server), fs_budget_bytes(server->budget), share->free_bytes, servers);
	if (!bytes)
		return;
	fs_directory_names_end(server->names); /* each of the mounts would keep all of them */
	prefetch_share(server->prefetch, bytes);
}

/* Returns whether both show the same files. A copy of the dataset elsewhere has pages of its own. */
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

static bool fill_claim(const json_t *info, struct fs_memory_claim *ret_claim)
{
	json_int_t want;
	int fixed, active;
	json_t *memory = json_object_get(info, "memory");
	if (json_unpack(memory, "{s:I, s:b, s:b}", "want", &want, "fixed", &fixed, "active", &active) < 0 || want < 0)
		return false; /* an older program */
	*ret_claim = (struct fs_memory_claim){ .want_bytes = (uint64_t)want, .fixed = fixed };
	return active;
}

static json_t *claims_of_others(json_t *const *infos, size_t n, size_t self)
{
	json_t *list = json_array();
	for (size_t i = 0; i < n && json_array_size(list) < FS_BUDGET_CLAIMS_MAX - 1; i++) {
		struct fs_memory_claim claim;
		if (i != self && fill_claim(infos[i], &claim))
			json_array_append_new(
			        list, json_pack("[I, b]", (json_int_t)claim.want_bytes, (int)claim.fixed));
	}
	return list;
}

static size_t count_same(json_t *const *infos, size_t n, size_t self)
{
	size_t same = 0;
	for (size_t i = 0; i < n; i++)
		same += i == self || same_dataset(infos[self], infos[i]);
	return same;
}

/* Counts the mounts that are no server's: nothing must be left for them. */
static uint32_t count_dead(json_t *const *infos, size_t n)
{
	uint64_t devs[FS_MOUNTS_COUNTED_MAX];
	uint32_t known = 0;
	for (size_t i = 0; i < n && known < FS_MOUNTS_COUNTED_MAX; i++)
		devs[known++] = (uint64_t)json_integer_value(json_object_get(infos[i], "dev"));
	return fs_mounts_count_dead(devs, known);
}

/* Tells one server. A server that does not answer does not share. dead: mounts without a server. */
static void tell(const char *control_path, json_t *const *infos, size_t n, size_t self, uint32_t dead)
{
	char *reply = NULL;
	cleanup_json json_t *request =
	        json_pack("{s:s, s:I, s:I, s:o}", "cmd", "neighbour", "servers", (json_int_t)count_same(infos, n, self),
	                "mounts", (json_int_t)(n + dead), "claims", claims_of_others(infos, n, self));
	cleanup_free char *line = request ? json_dumps(request, JSON_COMPACT) : NULL;
	if (line && base_control_request(control_path, line, BASE_CONTROL_TIMEOUT_MS, NULL, &reply) == 0)
		free(reply);
}

static json_int_t pid_of(const json_t *info)
{
	return json_integer_value(json_object_get(info, "pid"));
}

/* Tells all servers. `infos` has room for n + 1, because the socket of `control=` may lie where base_control_list
 * finds none. */
static void tell_all(const char *control_path, const struct base_control_peer *peers, json_t **infos, size_t n)
{
	cleanup_free char *info = NULL;
	if (base_control_request(control_path, "{\"cmd\":\"info\"}", BASE_CONTROL_TIMEOUT_MS, NULL, &info) < 0)
		return;
	cleanup_json json_t *ours = json_loads(info, 0, NULL);
	bool listed = false;
	for (size_t i = 0; i < n; i++) {
		infos[i] = json_loads(peers[i].info, 0, NULL);
		listed |= pid_of(infos[i]) == pid_of(ours);
	}
	size_t all = n;
	if (!listed)
		infos[all++] = json_incref(ours);
	uint32_t dead = count_dead(infos, all);
	for (size_t i = 0; i < all; i++)
		tell(i < n ? peers[i].socket : control_path, infos, all, i, dead);
	for (size_t i = 0; i < all; i++)
		json_decref(infos[i]);
}

void fs_host_sharing_greet(const char *control_path)
{
	struct base_control_peer *peers = NULL;
	size_t n = 0;
	if (base_control_list(&peers, &n) < 0)
		return;
	cleanup_free json_t **infos = calloc(n + 1, sizeof(json_t *));
	if (infos)
		tell_all(control_path, peers, infos, n);
	base_control_peers_free(peers, n);
}
