/* SPDX-License-Identifier: Apache-2.0 */
/* Reads of the threads that ask; prefetch/engine.h first.
 *
 * A reader with an order of its own waits for each file.  If the thread that asks reads the file, two switches of
 * threads fewer lie on his way: to the engine thread, and back.
 *
 * Such a read takes landing memory, is verified and delivered as others are.  So others join it, and find its block
 * afterwards.  What does not succeed at once is the engine's: a shard that is not open, no memory, an error, a short
 * read, wrong bytes. */
#include "prefetch/engine.h"

#include <errno.h>
#include <unistd.h>

static void count(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

bool prefetch_caller_may_read(const struct prefetch *p)
{
	return p->callers_read && atomic_load_explicit(&p->figures.room, memory_order_relaxed);
}

/* Returns the bytes that came, or -errno. */
static int read_bytes(struct prefetch *p, struct prefetch_read *read, _Atomic bool *reading)
{
	const struct prefetch_object *object = prefetch_shards_object(p->files, read->entry);
	uint64_t mask = object->align - 1;
	read->start = read->offset & ~mask;
	read->want = (uint32_t)(read->offset + read->len - read->start);
	read->span = (uint32_t)((read->want + mask) & ~mask);
	int rc = cache_area_new(p->cache, read->span, true, &read->area);
	if (rc < 0)
		return rc;
	count(&p->counters.reads, 1);
	count(&p->counters.caller_reads, 1);
	atomic_store(reading, true);
	ssize_t got = pread(object->fd, read->area->span.data, read->span, (off_t)read->start);
	int res = got < 0 ? -errno : (int)got;
	atomic_store(reading, false);
	if (p->hook.result)
		res = p->hook.result(p->hook.arg, read->shard, read->start, read->area->span.data, res);
	if (res > 0)
		count(&p->counters.read_bytes, (uint64_t)res);
	/* Another try is the engine's.  It is the last one after an error of the disk. */
	if (res < 0 && res != -EAGAIN && res != -EINTR && res != -EINVAL) {
		read->failed = true;
		count(&p->counters.io_errors, 1);
	}
	return res;
}

static void leave_to_engine(struct prefetch *p, struct prefetch_read *read)
{
	if (read->area)
		cache_area_put(p->cache, read->area);
	read->area = NULL;
	prefetch_lock_for_scope(p);
	read->caller = false;
	read->state = PREFETCH_READ_QUEUED;
	TAILQ_INSERT_TAIL(&p->locked.urgent, read, link);
	prefetch_engine_step(p, PREFETCH_WORK);
}

void prefetch_caller_read(struct prefetch *p, struct prefetch_read *read, _Atomic bool *reading)
{
	int res = prefetch_shards_find(p->files, read->shard, &read->entry);
	bool open = res == 0;
	if (open)
		res = read_bytes(p, read, reading);
	if (open)
		prefetch_shards_release(p->files, read->entry);
	read->entry = UINT32_MAX;
	if (open && res >= 0 && (uint32_t)res >= read->want) {
		{
			prefetch_lock_for_scope(p);
			read->state = PREFETCH_READ_DELIVERY;
		}
		prefetch_deliver_read(p, read, false);
	} else {
		leave_to_engine(p, read);
	}
	/* Not before: while it is counted, the engine is not idle. */
	atomic_fetch_sub(&p->figures.callers, 1);
}
