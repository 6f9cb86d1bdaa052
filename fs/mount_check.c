/* SPDX-License-Identifier: Apache-2.0 */
/* What a new mount is checked for; fs/mount_check.h first. */
#include "fs/mount_check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "fs/server.h"
#include "shard/base/cleanup.h"
#include "shard/base/log.h"

enum {
	SHARDS_LOOKED_AT = 256, /* a stat of each takes up to milliseconds on a slow store */
	TEXT_BYTES = 512,
	COSTLY_BYTES = 64 << 20, /* of content: what ranks fetch of a smaller dataset is soon there */
};

/* Checks whether a shard is missing, cannot be read, or has another size than the index says: a copy of the dataset
 * stopped halfway. */
static bool shard_is_wrong(const struct shard_index *index, int dir, uint32_t shard, char *text, size_t size)
{
	struct shard_shard rec;
	struct stat st;
	if (shard_index_shard(index, shard, &rec) < 0 || rec.path_len > SHARD_PATH_MAX)
		return false; /* the log says so when somebody reads it */
	char path[SHARD_PATH_MAX + 1];
	memcpy(path, rec.path, rec.path_len);
	path[rec.path_len] = '\0';
	cleanup_close int fd = openat(dir, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0 || fstat(fd, &st) < 0)
		snprintf(text, size, "'%.200s': %s", path, strerror(errno));
	else if ((uint64_t)st.st_size != rec.size_bytes)
		snprintf(text, size, "'%.200s' has %llu bytes and should have %llu", path,
		        (unsigned long long)st.st_size, (unsigned long long)rec.size_bytes);
	else
		return false;
	return true;
}

/* Warns now of what would otherwise come to light in the middle of an epoch. Of many shards, it checks some at equal
 * distances. */
static void look_at_shards(const struct fs_server *server)
{
	uint32_t n = server->info->n_shards, looked = n < SHARDS_LOOKED_AT ? n : SHARDS_LOOKED_AT, wrong = 0;
	char first[TEXT_BYTES] = "", text[TEXT_BYTES];
	cleanup_close int dir = open(shard_index_dataset(server->index), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (uint32_t i = 0; i < looked && dir >= 0; i++) {
		uint32_t shard = looked < 2 ? 0 : (uint32_t)((uint64_t)i * (n - 1) / (looked - 1));
		if (shard_is_wrong(server->index, dir, shard, text, sizeof(text)) && wrong++ == 0)
			memcpy(first, text, sizeof(first));
	}
	if (wrong)
		log_warning("%u of %u shards looked at are not as the index says, first %s; reads of their files will "
		            "fail ('mkshard verify' names all that is wrong)",
		        wrong, looked, first);
}

/* Warns if there are more ranks than samples, or nearly so. Returns whether it warned. */
static bool tell_if_few(struct fs_view *view)
{
	struct fs_view_progress progress;
	fs_view_progress(view, &progress);
	uint64_t samples = shard_view_samples(view->order);
	if (view->all)
		return false;
	if (samples == 0)
		log_warning("there is no sample to deal: every file is common, shown on every rank (`mkshard pack "
		            "--common=''` deals them)");
	else if (progress.turns == 0)
		log_warning("rank %u of %u has no sample: the order deals %llu, tail=%s: its mount holds no "
		            "more than common files; take fewer ranks, or tail=pad",
		        view->options.rank, view->options.world, (unsigned long long)samples,
		        shard_tail_name(view->options.tail));
	else if (view->options.world > samples && view->options.tail == SHARD_TAIL_PAD)
		log_warning("world=%u is more than the samples that are dealt, %llu: with tail=pad ranks "
		            "repeat samples of others; take at most %llu ranks to see each once an epoch",
		        view->options.world, (unsigned long long)samples, (unsigned long long)samples);
	else
		return false;
	return true;
}

/* Warns if ranks share the chunks of a dataset in a store. deal=auto is stride for all but large datasets, because
 * positions never change (shard/ORDER.md). With stride each rank takes some samples of every chunk, and fetches what
 * lies between them too: two ranks sent 12 times the requests and got nearly twice the bytes. A tier gives the bytes of
 * one rank to the other ranks of the host. The first rank tells it for all. */
static void tell_if_chunks_are_shared(const struct fs_server *server)
{
	const struct fs_view *view = server->views[0];
	const struct shard_view_options *o = &view->options;
	if (!shard_index_store(server->index) || server->tier || server->tier_failed || view->all || o->rank > 0 ||
	        o->world < 2 || o->order != SHARD_ORDER_CHUNK || o->deal != SHARD_DEAL_STRIDE || o->groups > 1 ||
	        server->info->content_bytes < COSTLY_BYTES)
		return;
	log_warning(
	        "order=chunk with deal=stride: each of the %u ranks takes a part of every chunk, so the store sends up "
	        "to %u times the bytes, in many requests: give all ranks of a new job groups=%u,redeal=1",
	        o->world, o->world, o->world);
}

void fs_mount_check(const struct fs_server *server)
{
	tell_if_chunks_are_shared(server);
	bool told = false;
	for (uint32_t i = 0; i < server->n_views && !told; i++)
		told = tell_if_few(server->views[i]); /* of several ranks, one is enough */
	look_at_shards(server);
}
