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
	TAILQ_HEAD(, entry) idle; /* open, without users; the one unused longest first */
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

/* Closes the shard of an entry that is open, unused and in no list. */
static void close_entry(struct prefetch_shards *files, struct entry *entry)
{
	prefetch_io_set_file(files->io, number_of(files, entry), -1);
	files->source->ops->close(files->source, &entry->object);
	LIST_REMOVE(entry, bucket);
	entry->open = entry->stale = false;
	TAILQ_INSERT_HEAD(&files->free, entry, link);
}

static bool close_oldest(struct prefetch_shards *files)
{
	struct entry *entry = TAILQ_FIRST(&files->idle);
	if (!entry)
		return false;
	TAILQ_REMOVE(&files->idle, entry, link);
	close_entry(files, entry);
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
	for (uint32_t i = 0; i < files->n_entries; i++) {
		if (files->entries[i].open)
			prefetch_shards_leave_direct(&files->entries[i].object);
	}
}

static int open_entry(struct prefetch_shards *files, uint32_t shard, struct entry **ret_entry)
{
	if (TAILQ_EMPTY(&files->free) && !close_oldest(files))
		return -EBUSY;
	struct entry *entry = TAILQ_FIRST(&files->free);
	int rc;
	do {
		rc = files->source->ops->open(files->source, shard, &entry->object);
	} while ((rc == -EMFILE || rc == -ENFILE) && close_oldest(files));
	if (rc < 0)
		return rc;
	if (files->buffered)
		prefetch_shards_leave_direct(&entry->object);
	TAILQ_REMOVE(&files->free, entry, link);
	entry->shard = shard;
	entry->open = true;
	entry->users = 0;
	LIST_INSERT_HEAD(&files->buckets[shard % BUCKETS], entry, bucket);
	prefetch_io_set_file(files->io, number_of(files, entry), entry->object.fd);
	*ret_entry = entry;
	return 0;
}

int prefetch_shards_get(struct prefetch_shards *files, uint32_t shard, uint32_t *ret_entry)
{
	struct entry *entry;
	LIST_FOREACH(entry, &files->buckets[shard % BUCKETS], bucket)
	{
		if (entry->shard == shard && !entry->stale)
			break;
	}
	if (entry && !entry->users)
		TAILQ_REMOVE(&files->idle, entry, link);
	if (!entry) {
		int rc = open_entry(files, shard, &entry);
		if (rc < 0)
			return rc;
	}
	entry->users++;
	*ret_entry = number_of(files, entry);
	return 0;
}

void prefetch_shards_put(struct prefetch_shards *files, uint32_t number)
{
	struct entry *entry = &files->entries[number];
	assert(entry->open && entry->users > 0);
	if (--entry->users)
		return;
	if (entry->stale)
		close_entry(files, entry);
	else
		TAILQ_INSERT_TAIL(&files->idle, entry, link);
}

struct prefetch_object *prefetch_shards_object(struct prefetch_shards *files, uint32_t number)
{
	return &files->entries[number].object;
}

int prefetch_shards_check(struct prefetch_shards *files, uint32_t number, bool wrong)
{
	struct entry *entry = &files->entries[number];
	int rc = files->source->ops->check(files->source, entry->shard, &entry->object, wrong);
	if (rc < 0)
		entry->stale = true;
	return rc;
}
