/* SPDX-License-Identifier: Apache-2.0 */
/* The table of open shards: hashed by shard, with a list of unused entries; prefetch/open_shards.h first. */
#include "prefetch/open_shards.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/queue.h>
#include <sys/resource.h>

#include "shard/format.h"

enum { BUCKETS = 1024 };

/* An entry of the table. */
struct slot {
	struct prefetch_object object;
	uint32_t shard;
	uint32_t users;
	bool open;
	bool stale;             /* the shard has changed: it is closed when nobody uses it */
	TAILQ_ENTRY(slot) link; /* in `free` or `idle` */
	LIST_ENTRY(slot) bucket;
};

struct prefetch_shards {
	struct prefetch_source *source;
	struct prefetch_io_backend *io;
	bool buffered;           /* read through the page cache, also if the source uses O_DIRECT */
	TAILQ_HEAD(, slot) free; /* not open */
	TAILQ_HEAD(, slot) idle; /* open, without users; the one unused longest first */
	LIST_HEAD(, slot) buckets[BUCKETS];
	uint32_t n_slots;
	struct slot slots[];
};

uint32_t prefetch_shards_limit(void)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur / 4 >= PREFETCH_SHARDS_MAX)
		return PREFETCH_SHARDS_MAX;
	return limit.rlim_cur / 4 < 4 ? 4 : (uint32_t)(limit.rlim_cur / 4);
}

int prefetch_shards_new(struct prefetch_source *source, struct prefetch_io_backend *io, uint32_t max,
        struct prefetch_shards **ret_files)
{
	struct prefetch_shards *files = calloc(1, sizeof(*files) + max * sizeof(struct slot));
	if (!files)
		return -ENOMEM;
	files->source = source;
	files->io = io;
	files->n_slots = max;
	TAILQ_INIT(&files->free);
	TAILQ_INIT(&files->idle);
	for (uint32_t i = 0; i < max; i++)
		TAILQ_INSERT_TAIL(&files->free, &files->slots[i], link);
	*ret_files = files;
	return 0;
}

static uint32_t number_of(const struct prefetch_shards *files, const struct slot *slot)
{
	return (uint32_t)(slot - files->slots);
}

/* Closes the shard of an entry that is open, unused and in no list. */
static void close_slot(struct prefetch_shards *files, struct slot *slot)
{
	prefetch_io_set_file(files->io, number_of(files, slot), -1);
	files->source->ops->close(files->source, &slot->object);
	LIST_REMOVE(slot, bucket);
	slot->open = slot->stale = false;
	TAILQ_INSERT_HEAD(&files->free, slot, link);
}

static bool close_oldest(struct prefetch_shards *files)
{
	struct slot *slot = TAILQ_FIRST(&files->idle);
	if (!slot)
		return false;
	TAILQ_REMOVE(&files->idle, slot, link);
	close_slot(files, slot);
	return true;
}

void prefetch_shards_free(struct prefetch_shards *files)
{
	if (!files)
		return;
	while (close_oldest(files))
		;
	free(files);
}

bool prefetch_shards_leave_direct(struct prefetch_object *object)
{
	if (!object->direct)
		return false;
	int flags = fcntl(object->fd, F_GETFL);
	if (flags < 0 || fcntl(object->fd, F_SETFL, flags & ~O_DIRECT) < 0)
		return false;
	object->direct = false;
	/* The kernel must not read ahead: the next bytes of the file are not read next. */
	posix_fadvise(object->fd, 0, 0, POSIX_FADV_RANDOM);
	return true;
}

void prefetch_shards_buffer(struct prefetch_shards *files)
{
	files->buffered = true;
	for (uint32_t i = 0; i < files->n_slots; i++) {
		if (files->slots[i].open)
			prefetch_shards_leave_direct(&files->slots[i].object);
	}
}

static int open_slot(struct prefetch_shards *files, uint32_t shard, struct slot **ret_slot)
{
	if (TAILQ_EMPTY(&files->free) && !close_oldest(files))
		return -EBUSY;
	struct slot *slot = TAILQ_FIRST(&files->free);
	int rc;
	do {
		rc = files->source->ops->open(files->source, shard, &slot->object);
	} while ((rc == -EMFILE || rc == -ENFILE) && close_oldest(files));
	if (rc < 0)
		return rc;
	if (files->buffered)
		prefetch_shards_leave_direct(&slot->object);
	TAILQ_REMOVE(&files->free, slot, link);
	slot->shard = shard;
	slot->open = true;
	slot->users = 0;
	LIST_INSERT_HEAD(&files->buckets[shard % BUCKETS], slot, bucket);
	prefetch_io_set_file(files->io, number_of(files, slot), slot->object.fd);
	*ret_slot = slot;
	return 0;
}

int prefetch_shards_get(struct prefetch_shards *files, uint32_t shard, uint32_t *ret_slot)
{
	struct slot *slot;
	LIST_FOREACH(slot, &files->buckets[shard % BUCKETS], bucket)
	{
		if (slot->shard == shard && !slot->stale)
			break;
	}
	if (slot && !slot->users)
		TAILQ_REMOVE(&files->idle, slot, link);
	if (!slot) {
		int rc = open_slot(files, shard, &slot);
		if (rc < 0)
			return rc;
	}
	slot->users++;
	*ret_slot = number_of(files, slot);
	return 0;
}

void prefetch_shards_put(struct prefetch_shards *files, uint32_t number)
{
	struct slot *slot = &files->slots[number];
	assert(slot->open && slot->users > 0);
	if (--slot->users)
		return;
	if (slot->stale)
		close_slot(files, slot);
	else
		TAILQ_INSERT_TAIL(&files->idle, slot, link);
}

struct prefetch_object *prefetch_shards_object(struct prefetch_shards *files, uint32_t number)
{
	return &files->slots[number].object;
}

int prefetch_shards_check(struct prefetch_shards *files, uint32_t number, bool wrong)
{
	struct slot *slot = &files->slots[number];
	int rc = files->source->ops->check(files->source, slot->shard, &slot->object, wrong);
	if (rc < 0)
		slot->stale = true;
	return rc;
}
