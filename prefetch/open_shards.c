/* SPDX-License-Identifier: Apache-2.0 */
/* The table of open shards: hashed by shard, with a list of unused entries; prefetch/open_shards.h first. */
#include "prefetch/open_shards.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/queue.h>
#include <sys/resource.h>

#include "shard/base/cleanup.h"
#include "shard/format.h"

enum { BUCKETS = 1024 };

/* An entry of the table. */
struct entry {
	struct prefetch_object object;
	uint32_t shard;
	uint32_t users;
	bool open;
	bool stale;              /* the shard has changed: it is closed when nobody uses it */
	TAILQ_ENTRY(entry) link; /* in `free` or `idle` */
	LIST_ENTRY(entry) bucket;
};

struct prefetch_shards {
	struct prefetch_source *source;
	struct prefetch_io_backend *io;
	bool buffered;            /* read through the page cache, also if the source uses O_DIRECT */
	TAILQ_HEAD(, entry) free; /* not open */
	/* Guards what follows, and `users` and `stale` of the entries.  Only the engine thread opens and closes. */
	pthread_mutex_t lock;
	TAILQ_HEAD(, entry) idle; /* open, without users; stale ones first, then the one unused longest */
	LIST_HEAD(, entry) buckets[BUCKETS];
	uint32_t n_entries;
	struct entry entries[];
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
	struct prefetch_shards *files = calloc(1, sizeof(*files) + max * sizeof(struct entry));
	if (!files)
		return -ENOMEM;
	files->source = source;
	files->io = io;
	files->n_entries = max;
	pthread_mutex_init(&files->lock, NULL);
	TAILQ_INIT(&files->free);
	TAILQ_INIT(&files->idle);
	for (uint32_t i = 0; i < max; i++)
		TAILQ_INSERT_TAIL(&files->free, &files->entries[i], link);
	*ret_files = files;
	return 0;
}

static uint32_t number_of(const struct prefetch_shards *files, const struct entry *entry)
{
	return (uint32_t)(entry - files->entries);
}

/* Closes the first unused shard, or, with `stale`, does so if it is stale.  Returns whether there was one. */
static bool close_first(struct prefetch_shards *files, bool stale)
{
	struct entry *entry;
	{
		lock_for_scope(&files->lock);
		entry = TAILQ_FIRST(&files->idle);
		if (!entry || (stale && !entry->stale))
			return false;
		TAILQ_REMOVE(&files->idle, entry, link);
		LIST_REMOVE(entry, bucket);
	}
	prefetch_io_set_file(files->io, number_of(files, entry), -1);
	files->source->ops->close(files->source, &entry->object);
	entry->open = entry->stale = false;
	TAILQ_INSERT_HEAD(&files->free, entry, link);
	return true;
}

void prefetch_shards_free(struct prefetch_shards *files)
{
	if (!files)
		return;
	while (close_first(files, false))
		;
	pthread_mutex_destroy(&files->lock);
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
	for (uint32_t i = 0; i < files->n_entries; i++) {
		if (files->entries[i].open)
			prefetch_shards_leave_direct(&files->entries[i].object);
	}
}

static int open_entry(struct prefetch_shards *files, uint32_t shard, uint32_t *ret_entry)
{
	if (TAILQ_EMPTY(&files->free) && !close_first(files, false))
		return -EBUSY;
	struct entry *entry = TAILQ_FIRST(&files->free);
	int rc;
	do {
		rc = files->source->ops->open(files->source, shard, &entry->object);
	} while ((rc == -EMFILE || rc == -ENFILE) && close_first(files, false));
	if (rc < 0)
		return rc;
	if (files->buffered)
		prefetch_shards_leave_direct(&entry->object);
	TAILQ_REMOVE(&files->free, entry, link);
	entry->shard = shard;
	entry->open = true;
	prefetch_io_set_file(files->io, number_of(files, entry), entry->object.fd);
	lock_for_scope(&files->lock);
	entry->users = 1;
	LIST_INSERT_HEAD(&files->buckets[shard % BUCKETS], entry, bucket);
	*ret_entry = number_of(files, entry);
	return 0;
}

int prefetch_shards_find(struct prefetch_shards *files, uint32_t shard, uint32_t *ret_entry)
{
	struct entry *entry;
	lock_for_scope(&files->lock);
	LIST_FOREACH(entry, &files->buckets[shard % BUCKETS], bucket)
	{
		if (entry->shard == shard && !entry->stale)
			break;
	}
	if (!entry)
		return -ENOENT;
	if (entry->users++ == 0)
		TAILQ_REMOVE(&files->idle, entry, link);
	*ret_entry = number_of(files, entry);
	return 0;
}

int prefetch_shards_get(struct prefetch_shards *files, uint32_t shard, uint32_t *ret_entry)
{
	int rc = prefetch_shards_find(files, shard, ret_entry);
	return rc == -ENOENT ? open_entry(files, shard, ret_entry) : rc;
}

void prefetch_shards_release(struct prefetch_shards *files, uint32_t number)
{
	struct entry *entry = &files->entries[number];
	lock_for_scope(&files->lock);
	assert(entry->users > 0);
	if (--entry->users)
		return;
	if (entry->stale)
		TAILQ_INSERT_HEAD(&files->idle, entry, link);
	else
		TAILQ_INSERT_TAIL(&files->idle, entry, link);
}

void prefetch_shards_put(struct prefetch_shards *files, uint32_t number)
{
	prefetch_shards_release(files, number);
	while (close_first(files, true))
		;
}

struct prefetch_object *prefetch_shards_object(struct prefetch_shards *files, uint32_t number)
{
	return &files->entries[number].object;
}

int prefetch_shards_check(struct prefetch_shards *files, uint32_t number, bool wrong)
{
	struct entry *entry = &files->entries[number];
	int rc = files->source->ops->check(files->source, entry->shard, &entry->object, wrong);
	lock_for_scope(&files->lock);
	entry->stale |= rc < 0;
	return rc;
}
