/* SPDX-License-Identifier: Apache-2.0 */
/* The engine thread: it starts reads, retries them and hands them to delivery; prefetch/engine.h first. */
#include "prefetch/engine.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
	ALONE_BYTES = 256 << 10, /* the largest read that the engine thread delivers itself */
	STORE_WAIT_NS = 500000,  /* a store that takes longer is stuck: that of a block takes 50 to 400 us */
	SLICE_NS = 100000,       /* the shortest slice of the scheduler */
	/* After events of demands, more are likely.  They are taken in together, so that the engine thread leaves the
	 * processor to the threads that answer.  1 GB/s brings 2 MB meanwhile. */
	DEMANDS_NS = 2000000,
};

static void count(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

void prefetch_lock(struct prefetch *p)
{
	pthread_mutex_lock(&p->lock);
}

void prefetch_unlock(struct prefetch *p)
{
	bool wake = p->locked.wake_due;
	p->locked.wake_due = false;
	pthread_mutex_unlock(&p->lock);
	if (wake) {
		count(&p->counters.wake_ups, 1);
		prefetch_io_wake(p->io);
	}
}

void prefetch_engine_step(struct prefetch *p, enum prefetch_engine_step step)
{
	enum { AW = PREFETCH_AWAKE, PO, ST, AS, AS_ST, NEVER };
	static const uint8_t next[][NEVER] = {
		/* from AWAKE, POKED, STARVED, ASLEEP, ASLEEP_STARVED */
		[PREFETCH_NEWS] = { PO, PO, PO, PO, PO },
		[PREFETCH_LATER] = { PO, PO, PO, AS, AS_ST },
		[PREFETCH_WORK] = { AW, PO, AW, AW, AW },
		[PREFETCH_MEMORY] = { AW, PO, PO, AS, PO },
		[PREFETCH_ROUND] = { AW, AW, ST, NEVER, NEVER },
		[PREFETCH_ASKS] = { ST, PO, ST, NEVER, NEVER },
		[PREFETCH_SERVED] = { AW, PO, AW, NEVER, NEVER },
		[PREFETCH_SLEEPS] = { AS, NEVER, AS_ST, NEVER, NEVER },
		[PREFETCH_WOKEN] = { AW, PO, NEVER, AW, ST },
	};
	int to = next[step][p->locked.state];
	assert(to != NEVER);
	p->locked.wake_due |= p->locked.state >= PREFETCH_ASLEEP && to < PREFETCH_ASLEEP && step != PREFETCH_WOKEN;
	p->locked.state = (enum prefetch_engine_state)to;
}

/* Returns true when a single reader waits for a small read and there is no other work.  Then the engine thread
 * delivers it, because waking the deliver thread would take longer.  Under lock. */
static bool alone(const struct prefetch *p, const struct prefetch_read *read)
{
	const struct prefetch_block *block = STAILQ_FIRST(&read->blocks);
	return read->urgent && !read->ahead && !p->reading.inflight && p->delivery.idle &&
	       TAILQ_EMPTY(&p->delivery.landed) && TAILQ_EMPTY(&p->locked.urgent) && read->len <= ALONE_BYTES &&
	       block && !block->item && !STAILQ_NEXT(block, link);
}

/* Counts a failed read once, even if it is tried again.  Returns false when it was counted before. */
static bool count_failed(struct prefetch *p, struct prefetch_read *read)
{
	if (read->failed)
		return false;
	read->failed = true;
	count(&p->counters.io_errors, 1);
	return true;
}

void prefetch_engine_free_area(struct prefetch *p, struct prefetch_read *read)
{
	if (!read->area)
		return;
	uint32_t bytes = read->area->span.bytes;
	cache_area_put(p->cache, read->area);
	if (read->ahead)
		atomic_fetch_sub(&p->reading.ahead_landing, bytes); /* after the put: at 0, landing memory may grow */
	read->area = NULL;
}

void prefetch_engine_land(struct prefetch *p, struct prefetch_read *read, int rc)
{
	if (read->entry != UINT32_MAX)
		prefetch_shards_put(p->files, read->entry);
	read->entry = UINT32_MAX;
	if (rc < 0)
		prefetch_engine_free_area(p, read);
	read->rc = rc;
	prefetch_lock(p);
	if (alone(p, read)) {
		read->state = PREFETCH_READ_DELIVERY;
		prefetch_unlock(p);
		prefetch_deliver_read(p, read, false);
		return;
	}
	read->state = PREFETCH_READ_LANDED;
	if (read->urgent)
		TAILQ_INSERT_HEAD(&p->delivery.landed, read, link);
	else
		TAILQ_INSERT_TAIL(&p->delivery.landed, read, link);
	pthread_cond_signal(&p->delivery.landed_cv);
	prefetch_unlock(p);
}

/* Returns how many of the bytes that came are kept: whole units of the alignment, because the next read begins
 * there. */
static uint32_t kept(const struct prefetch *p, const struct prefetch_read *read)
{
	return read->got & ~(prefetch_shards_object(p->files, read->entry)->align - 1);
}

static void submit(struct prefetch *p, struct prefetch_read *read)
{
	struct prefetch_object *object = prefetch_shards_object(p->files, read->entry);
	uint32_t got = kept(p, read);
	read->got = got;
	read->op = (struct prefetch_op){
		.object = object,
		.entry = read->entry,
		.segment = read->area->span.segment,
		.data = read->area->span.data + got,
		.len = read->span - got,
		.offset = read->start + got,
		.shard = read->shard,
		.blocks = &read->blocks,
		.gap_bytes = read->gap_bytes,
		.unused_bytes = read->between,
		.urgent = read->urgent,
	};
	read->submitted_ns = base_now_ns();
	count(&p->counters.reads, 1);
	p->reading.inflight++;
	p->reading.inflight_ahead += read->ahead;
	if (read->warm_up)
		prefetch_warm_up_submitted(p);
	prefetch_io_submit(p->io, &read->op);
}

int prefetch_engine_start(struct prefetch *p, struct prefetch_read *read)
{
	int rc = 0;
	if (read->entry == UINT32_MAX)
		rc = prefetch_shards_get(p->files, read->shard, &read->entry);
	if (rc == -EBUSY)
		return -EAGAIN;
	if (rc < 0) {
		count_failed(p, read); /* the shard is missing, or was replaced */
		prefetch_engine_land(p, read, rc);
		return 0;
	}
	const struct prefetch_object *object = prefetch_shards_object(p->files, read->entry);
	atomic_store_explicit(&p->figures.direct, object->direct, memory_order_relaxed);
	uint64_t mask = object->align - 1;
	read->start = read->offset & ~mask;
	read->want = (uint32_t)(read->offset + read->len - read->start);
	read->span = (uint32_t)((read->want + mask) & ~mask);
	/* A scheduled read that no reader waits for waits for others rather than take memory from the sink for good. */
	bool may_grow = !read->ahead || read->urgent || !atomic_load(&p->reading.ahead_landing);
	rc = cache_area_new(p->cache, read->span, may_grow, &read->area);
	if (rc == -ENOBUFS) {
		prefetch_shards_put(p->files, read->entry);
		read->entry = UINT32_MAX;
		return -EAGAIN;
	}
	if (rc < 0) {
		prefetch_engine_land(p, read, rc);
		return 0;
	}
	if (read->ahead)
		atomic_fetch_add(&p->reading.ahead_landing, read->area->span.bytes);
	submit(p, read);
	return 0;
}

/* Some file systems accept O_DIRECT at open and refuse it at read (alignment, encryption, compression).  Turns it
 * off; returns false when it was off. */
static bool leave_direct(struct prefetch *p, struct prefetch_read *read)
{
	if (!prefetch_shards_leave_direct(prefetch_shards_object(p->files, read->entry)))
		return false;
	atomic_store_explicit(&p->figures.direct, false, memory_order_relaxed);
	return true;
}

/* Returns true when the read must be tried again. */
static bool retry_error(struct prefetch *p, struct prefetch_read *read, int rc)
{
	if (prefetch_shards_object(p->files, read->entry)->remote)
		return false; /* the backend has tried for long */
	if (rc == -EAGAIN || rc == -EINTR)
		return ++read->tries < PREFETCH_TRIES_MAX;
	if (rc == -EINVAL)
		return leave_direct(p, read);
	return count_failed(p, read); /* one more try helps after a failover of a path, or a reset of a transport */
}

/* Takes the result of a read: reads the rest, tries again, or lands it. */
static void finish(struct prefetch *p, struct prefetch_read *read)
{
	int res = read->op.res;
	if (p->hook.result)
		res = p->hook.result(p->hook.arg, read->shard, read->op.offset, read->op.data, res);
	if (res < 0) {
		if (retry_error(p, read, res)) {
			submit(p, read);
			return;
		}
		count_failed(p, read);
		prefetch_engine_land(p, read, res == -EAGAIN || res == -EINTR ? -EIO : res);
		return;
	}
	count(&p->counters.read_bytes, (uint64_t)res > read->op.tier_bytes ? (uint64_t)res - read->op.tier_bytes : 0);
	uint32_t before = read->got;
	read->got += (uint32_t)res;
	if (read->got >= read->want) {
		if (read->again && prefetch_shards_check(p->files, read->entry, true) == -ESTALE)
			read->changed = true;
		count(&p->counters.wasted_bytes, read->op.unused_bytes);
		prefetch_engine_land(p, read, 0);
	} else if (prefetch_shards_check(p->files, read->entry, res == 0) == -ESTALE || res == 0) {
		/* The shard is shorter than the index says. */
		count_failed(p, read);
		prefetch_engine_land(p, read, -ESTALE);
	} else if (++read->tries < PREFETCH_TRIES_MAX || kept(p, read) - before >= CACHE_PAGE) {
		submit(p, read);
	} else {
		count_failed(p, read);
		prefetch_engine_land(p, read, -EIO);
	}
}

/* Inserts a finished read into `delayed`, which is sorted by due_ns. */
static void delay(struct prefetch *p, struct prefetch_read *read)
{
	struct prefetch_read *after = TAILQ_LAST(&p->reading.delayed, prefetch_read_list);
	while (after && after->due_ns > read->due_ns)
		after = TAILQ_PREV(after, prefetch_read_list, link);
	if (after)
		TAILQ_INSERT_AFTER(&p->reading.delayed, after, read, link);
	else
		TAILQ_INSERT_HEAD(&p->reading.delayed, read, link);
}

/* Returns the bytes that a read which came back took from the source, and not from a tier. */
static uint64_t from_source(const struct prefetch_read *read)
{
	return read->op.res > 0 && (uint32_t)read->op.res > read->op.tier_bytes
	               ? (uint32_t)read->op.res - read->op.tier_bytes
	               : 0;
}

/* A read has come back from the source. */
static void came_back(struct prefetch *p, struct prefetch_read *read)
{
	if (read->warm_up) {
		prefetch_warm_up_came_back(p, read); /* long reads tell nothing about the depth */
	} else if (read->ahead) {
		uint64_t bytes = from_source(read);
		uint64_t now = base_now_ns();
		p->reading.from_tier = bytes || !read->op.tier_bytes ? 0 : p->reading.from_tier + 1;
		if (bytes || !read->op.tier_bytes) /* a tier tells nothing about the source */
			prefetch_depth_feed(
			        &p->reading.depth, now, now - read->submitted_ns, bytes, p->reading.device_full);
		if (p->store)
			prefetch_request_cost_feed(&p->reading.cost, now, bytes);
	}
	p->reading.inflight--;
	p->reading.inflight_ahead -= read->ahead;
	atomic_store_explicit(&p->figures.inflight, p->reading.inflight, memory_order_relaxed);
	finish(p, read);
}

static void reap(struct prefetch *p, struct prefetch_op *done)
{
	while (done) {
		struct prefetch_read *read = (struct prefetch_read *)done;
		done = done->next;
		uint64_t ns = p->hook.delay_ns
		                      ? p->hook.delay_ns(p->hook.arg, read->shard, read->op.offset, read->op.len)
		                      : 0;
		if (ns) {
			read->due_ns = read->submitted_ns + ns;
			delay(p, read);
			continue;
		}
		came_back(p, read);
	}
}

/* Takes the delayed reads that are due.  Returns ns until the next one, or -1 when there is none. */
static int64_t reap_delayed(struct prefetch *p)
{
	struct prefetch_read *read;
	while ((read = TAILQ_FIRST(&p->reading.delayed))) {
		uint64_t now = base_now_ns();
		if (read->due_ns > now)
			return (int64_t)(read->due_ns - now);
		TAILQ_REMOVE(&p->reading.delayed, read, link);
		came_back(p, read);
	}
	return -1;
}

/* Returns the urgent read to start next, or NULL.  *ret_held: there are some, but they wait for room in the sink.
 * Under lock. */
static struct prefetch_read *next_urgent(struct prefetch *p, bool *ret_held)
{
	struct prefetch_read *read = TAILQ_FIRST(&p->locked.urgent);
	*ret_held = false;
	if (!read || p->locked.stopping || prefetch_schedule_room_ns(p) == 0)
		return read;
	TAILQ_FOREACH(read, &p->locked.urgent, link)
	{
		if (prefetch_schedule_cannot_wait(p, read))
			return read;
	}
	*ret_held = true;
	return NULL;
}

/* Starts the reads in `urgent`.  Returns true when it has started all of them. */
static bool start_urgent(struct prefetch *p)
{
	while (p->reading.inflight < PREFETCH_OPS_MAX) {
		struct prefetch_read *read;
		bool held, stopping;
		{
			prefetch_lock_for_scope(p);
			read = next_urgent(p, &held);
			if (read) {
				TAILQ_REMOVE(&p->locked.urgent, read, link);
				read->state = PREFETCH_READ_INFLIGHT;
			}
			prefetch_engine_step(p, read || held ? PREFETCH_ASKS : PREFETCH_SERVED);
			stopping = p->locked.stopping;
		}
		if (!read)
			return !held;
		int rc = 0;
		if (stopping)
			prefetch_engine_land(p, read, -ECANCELED);
		else
			rc = prefetch_engine_start(p, read);
		if (rc == 0)
			continue;
		prefetch_lock_for_scope(p);
		read->state = PREFETCH_READ_QUEUED;
		TAILQ_INSERT_HEAD(&p->locked.urgent, read, link);
		return false;
	}
	return false;
}

/* Delivers urgent reads while the deliver thread is stuck in a store.  A store can wait for the answer to a READ,
 * because the kernel holds the page locks of all that the READ asks for.  So that answer must not wait for the store.
 * The deliver thread stores the other blocks later.  Returns ns until it must look again, or -1: never. */
static int64_t deliver_past_store(struct prefetch *p)
{
	int64_t again_ns = -1;
	struct prefetch_read *read;
	prefetch_lock(p);
	while ((read = TAILQ_FIRST(&p->delivery.landed)) && read->urgent) {
		uint64_t since_ns = atomic_load(&p->delivery.storing_ns);
		uint64_t waited_ns = since_ns ? base_now_ns() - since_ns : 0;
		again_ns = waited_ns < STORE_WAIT_NS ? (int64_t)(STORE_WAIT_NS - waited_ns) : -1;
		if (again_ns >= 0)
			break;
		TAILQ_REMOVE(&p->delivery.landed, read, link);
		read->state = PREFETCH_READ_DELIVERY;
		prefetch_unlock(p);
		prefetch_deliver_read(p, read, false);
		prefetch_lock(p);
	}
	prefetch_unlock(p);
	return again_ns;
}

/* Returns the shorter of two timeouts; < 0: no limit. */
static int64_t sooner(int64_t a_ns, int64_t b_ns)
{
	return a_ns < 0 || (b_ns >= 0 && b_ns < a_ns) ? b_ns : a_ns;
}

/* Returns ns until events of demands that come meanwhile are taken in together, or -1: each wakes the engine. */
static int64_t until_events(const struct prefetch *p)
{
	uint64_t since_ns = base_now_ns() - p->schedule.demanded_ns;
	return since_ns < DEMANDS_NS ? (int64_t)(DEMANDS_NS - since_ns) : -1;
}

/* Decides under lock whether the engine thread sleeps.  So a thread that queues work after this wakes it. */
static bool prepare_sleep(struct prefetch *p, bool drained, bool resting, bool soon, bool *ret_exit)
{
	prefetch_lock_for_scope(p);
	bool work = drained ? !TAILQ_EMPTY(&p->locked.urgent)
	                    : p->locked.state == PREFETCH_AWAKE && p->reading.inflight < PREFETCH_OPS_MAX;
	*ret_exit = p->locked.stopping && TAILQ_EMPTY(&p->locked.urgent) && TAILQ_EMPTY(&p->reading.parked) &&
	            !p->reading.inflight;
	if (work || *ret_exit || p->locked.state == PREFETCH_POKED)
		return false;
	p->locked.resting = resting;
	p->locked.soon = soon;
	prefetch_engine_step(p, PREFETCH_SLEEPS);
	return true;
}

/* Puts the tier in front of the backend, if there is one (rc 0), and makes the table of shards. */
static int engine_start_io(struct prefetch *p, int rc, uint32_t limit)
{
	if (rc < 0)
		return rc;
	p->io = p->origin;
	if (p->options.tier)
		rc = prefetch_io_tier(p->options.index, p->options.tier, p->options.tier_uses, p->origin, &p->io);
	if (rc == 0 && p->options.tier)
		prefetch_io_tier_wait_for(p->io, p->options.timeout_ns);
	if (rc == 0)
		rc = prefetch_shards_new(p->source, p->io, limit, &p->files);
	if (rc < 0) {
		prefetch_io_free(p->io);
		p->io = NULL;
	}
	return rc;
}

static int engine_init(struct prefetch *p)
{
	int rc = -ENOSYS;
	uint32_t limit = prefetch_shards_limit();
	if (p->http) {
		rc = prefetch_io_http(shard_index_store(p->options.index), p->options.timeout_ns, &p->origin);
		return engine_start_io(p, rc, limit);
	}
	if (!p->options.threads)
		rc = prefetch_io_uring(limit, cache_arena_of(p->cache), &p->origin);
	if (rc < 0) /* forbidden by seccomp, unknown to the kernel, or no memory to lock: threads always work */
		rc = prefetch_io_threads(&p->origin);
	return engine_start_io(p, rc, limit);
}

/* Asks for the shortest time slices.  The engine thread wakes often and runs for microseconds, while a device waits
 * for it.  With a short slice it runs at once when it is woken (kernel/sched/fair.c, PREEMPT_SHORT, since Linux
 * 6.12).  The thread that woke it goes on after that.  Its share of the processor stays the same.  Older kernels
 * ignore the slice. */
static void take_short_slices(void)
{
	struct {
		uint32_t size, policy; /* the first version of struct sched_attr, which some libcs lack */
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime_ns, deadline_ns, period_ns;
	} attr = { .size = sizeof(attr) };
	if (syscall(SYS_sched_getattr, 0, &attr, sizeof(attr), 0) < 0 || attr.policy != SCHED_OTHER)
		return;
	attr.runtime_ns = SLICE_NS;
	syscall(SYS_sched_setattr, 0, &attr, 0);
}

/* Leaves figures of the reads in flight, before the engine waits for them. */
static void show_reading(struct prefetch *p)
{
	struct prefetch_reading *r = &p->reading;
	struct prefetch_figures *f = &p->figures;
	uint64_t now = base_now_ns();
	if (r->device_full)
		atomic_fetch_add_explicit(&f->full_ns, now - r->full_at_ns, memory_order_relaxed);
	r->device_full = r->inflight_ahead >= r->depth.depth;
	r->full_at_ns = now;
	atomic_store_explicit(&f->inflight, r->inflight, memory_order_relaxed);
	atomic_store_explicit(&f->depth, r->depth.settled, memory_order_relaxed);
	atomic_store_explicit(&f->rate, prefetch_depth_rate(&r->depth), memory_order_relaxed);
	atomic_store_explicit(&f->depth_full, r->depth.full, memory_order_relaxed);
	atomic_store_explicit(&f->depth_most, prefetch_depth_is_most(&r->depth), memory_order_relaxed);
}

void *prefetch_engine_run(void *arg)
{
	struct prefetch *p = arg;
	pthread_setname_np(pthread_self(), "engine");
	p->figures.tid = gettid();
	take_short_slices();
	int rc = engine_init(p);
	{
		prefetch_lock_for_scope(p);
		p->locked.started = rc < 0 ? rc : 1;
		pthread_cond_signal(&p->locked.started_cv);
	}
	if (rc < 0)
		return NULL;

	for (bool leave = false; !leave;) {
		atomic_store_explicit(&p->figures.busy_ns, base_now_ns(), memory_order_relaxed);
		prefetch_schedule_news(p);
		int64_t timeout = reap_delayed(p);
		bool drained = start_urgent(p);
		if (drained)
			prefetch_schedule_fill(p);
		int64_t room_ns = prefetch_schedule_room_ns(p);
		timeout = sooner(timeout, room_ns > 0 ? room_ns : -1);
		atomic_store_explicit(&p->figures.room, room_ns == 0, memory_order_relaxed);
		int64_t soon_ns = until_events(p);
		timeout = sooner(timeout, soon_ns);
		int64_t rest_ns = prefetch_warm_up_wait_ns(p);
		timeout = sooner(timeout, rest_ns);
		timeout = sooner(timeout, deliver_past_store(p));
		struct prefetch_op *done = NULL;
		show_reading(p); /* first: prefetch_idle looks at the reads of a thread that sleeps */
		bool sleep = prepare_sleep(p, drained, rest_ns >= 0, soon_ns > 0, &leave);
		if (leave)
			break;
		atomic_store_explicit(&p->figures.busy_ns, 0, memory_order_relaxed);
		prefetch_io_wait(p->io, sleep ? timeout : 0, &done);
		atomic_store_explicit(&p->figures.busy_ns, base_now_ns(), memory_order_relaxed);
		if (sleep) {
			prefetch_lock_for_scope(p);
			prefetch_engine_step(p, PREFETCH_WOKEN);
		}
		reap(p, done);
	}
	prefetch_shards_free(p->files);
	prefetch_lock_for_scope(p);
	p->delivery.stop = true;
	pthread_cond_signal(&p->delivery.landed_cv);
	return NULL;
}
