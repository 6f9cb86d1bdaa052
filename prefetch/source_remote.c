/* SPDX-License-Identifier: Apache-2.0 */
/* Shards as objects of a store; prefetch/source.h first, then shard/remote/client.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "prefetch/source.h"
#include "shard/remote/client.h"

struct remote_source {
	struct prefetch_source base;
	const struct shard_index *index;
};

static int remote_open(struct prefetch_source *source, uint32_t shard, struct prefetch_object *ret_object)
{
	const struct shard_index *index = ((struct remote_source *)source)->index;
	struct shard_shard s;
	char path[SHARD_PATH_MAX + 1];
	struct remote_object *object;
	int rc = shard_index_shard(index, shard, &s);
	if (rc < 0)
		return rc;
	if (s.path_len > SHARD_PATH_MAX || memchr(s.path, 0, s.path_len) || s.path[0] == '/')
		return -EUCLEAN;
	memcpy(path, s.path, s.path_len);
	path[s.path_len] = 0;
	rc = remote_object_new(shard_index_store(index), path, s.size_bytes, &object);
	if (rc == 0)
		*ret_object = (struct prefetch_object){ .fd = -1, .align = 1, .remote = object };
	return rc;
}

static void remote_close(struct prefetch_source *source, struct prefetch_object *object)
{
	(void)source;
	remote_object_free(object->remote);
	object->remote = NULL;
}

/* The client compares each answer with the first one, so a replaced object is -ESTALE at its next read. */
static int remote_check(
        struct prefetch_source *source, uint32_t shard, const struct prefetch_object *object, bool wrong)
{
	(void)source;
	(void)shard;
	(void)object;
	(void)wrong;
	return 0;
}

static void remote_free(struct prefetch_source *source)
{
	free(source);
}

static const struct prefetch_source_ops remote_ops = {
	.open = remote_open,
	.close = remote_close,
	.check = remote_check,
	.free = remote_free,
};

int prefetch_source_remote(const struct shard_index *index, struct prefetch_source **ret_source)
{
	struct remote_source *made = calloc(1, sizeof(*made));
	if (!made)
		return -ENOMEM;
	made->base = (struct prefetch_source){ .ops = &remote_ops, .store = true };
	made->index = index;
	*ret_source = &made->base;
	return 0;
}
