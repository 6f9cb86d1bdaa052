/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of the engine: its start and end, demands, hints and statistics; prefetch/prefetch.h first. */
#include "prefetch/prefetch.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "prefetch/engine.h"
#include "shard/base/units.h"

enum {
	LANDING_MIN = CACHE_SEGMENT,
	LANDING_MAX = 64 << 20, /* bytes; enough for what is not delivered yet at 1 GB/s and 60 ms */
};

uint64_t prefetch_landing_bytes(uint64_t memory_bytes)
{
	uint64_t landing = memory_bytes / 4;
	if (landing < LANDING_MIN)
		return LANDING_MIN;
	return landing > LANDING_MAX ? LANDING_MAX : landing;
}

static void free_all(struct prefetch *p)
{
	prefetch_schedule_done(p);
	prefetch_blocks_done(p);
	prefetch_io_free(p->io); /* before the cache, whose memory it has pinned */
	cache_free(p->cache);
	pthread_cond_destroy(&p->locked.streams_cv);
	pthread_cond_destroy(&p->lister.cv);
	pthread_cond_destroy(&p->locked.started_cv);
	pthread_cond_destroy(&p->delivery.landed_cv);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

static void stop_engine(struct prefetch *p)
{
	{
		prefetch_lock_for_scope(p);
		struct prefetch_read *read;
		p->locked.stopping = true;
		TAILQ_FOREACH(read, &p->locked.regains, link)
		{
			read->urgent = true; /* a demand that joins it must not look for it in `regains` */
		}
		TAILQ_CONCAT(&p->locked.urgent, &p->locked.regains, link); /* they are cancelled */
		prefetch_engine_step(p, PREFETCH_WORK);
	}
	prefetch_io_cancel(p->io);
	pthread_join(p->engine_thread, NULL);
}

static int start_engine(struct prefetch *p)
{
	int rc = -pthread_create(&p->engine_thread, NULL, prefetch_engine_run, p);
	if (rc < 0)
		return rc;
	{
		prefetch_lock_for_scope(p);
		while (!p->locked.started)
			pthread_cond_wait(&p->locked.started_cv, &p->lock);
		rc = p->locked.started < 0 ? p->locked.started : 0;
	}
	if (rc < 0)
		pthread_join(p->engine_thread, NULL);
	return rc;
}

static int start_threads(struct prefetch *p)
{
	int rc = start_engine(p);
	if (rc < 0)
		return rc;
	rc = -pthread_create(&p->deliver_thread, NULL, prefetch_deliver_run, p);
	if (rc < 0) {
		stop_engine(p);
		return rc;
	}
	rc = p->sink ? -pthread_create(&p->lister_thread, NULL, prefetch_lister_run, p) : 0;
	if (rc < 0) {
		stop_engine(p);
		pthread_join(p->deliver_thread, NULL);
	}
	return rc;
}

int prefetch_new(const struct prefetch_options *options, struct base_err *err, struct prefetch **ret_prefetch)
{
	if (options->memory_bytes < PREFETCH_MEMORY_MIN)
		return base_err_set(
		        err, -EINVAL, "memory budget too small: give at least %u MiB", PREFETCH_MEMORY_MIN >> 20);
	struct prefetch *p = calloc(1, sizeof(*p));
	if (!p)
		return base_err_set(err, -ENOMEM, "out of memory");
	p->options = *options;
	if (options->hook)
		p->hook = *options->hook;
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->delivery.landed_cv, NULL);
	pthread_cond_init(&p->locked.started_cv, NULL);
	TAILQ_INIT(&p->locked.urgent);
	TAILQ_INIT(&p->locked.regains);
	TAILQ_INIT(&p->delivery.landed);
	TAILQ_INIT(&p->reading.delayed);
	TAILQ_INIT(&p->locked.free_reads);
	STAILQ_INIT(&p->locked.free_blocks);
	STAILQ_INIT(&p->locked.arrived);
	STAILQ_INIT(&p->schedule.free_items);
	TAILQ_INIT(&p->locked.streams);
	TAILQ_INIT(&p->reading.parked);
	pthread_cond_init(&p->locked.streams_cv, NULL);
	pthread_cond_init(&p->lister.cv, NULL);

	p->sink = options->sink;
	p->http = shard_index_store(options->index) && !options->source;
	p->store = options->source ? options->source->store : p->http;
	p->callers_read = !options->source && !p->http && !options->tier && !p->hook.delay_ns;
	atomic_init(&p->look_regains, UINT32_MAX);
	prefetch_readahead_init(p, prefetch_landing_bytes(options->memory_bytes));
	int rc = cache_new(prefetch_landing_bytes(options->memory_bytes), &p->cache);
	if (rc == 0)
		rc = prefetch_schedule_init(p);
	if (rc < 0) {
		base_err_set(err, rc, "cannot get landing memory: %s", base_err_str(rc));
		free_all(p);
		return rc;
	}
	p->source = options->source;
	if (p->http) {
		rc = prefetch_source_remote(options->index, &p->source);
		if (rc < 0)
			base_err_set(err, rc, "out of memory");
	} else if (!p->source) {
		rc = prefetch_source_local(options->index, options->io, err, &p->source);
	}
	if (rc == 0 && (rc = start_threads(p)) < 0)
		base_err_set(err, rc, "cannot set up reading: %s", base_err_str(rc));
	if (rc == 0) {
		*ret_prefetch = p;
		return 0;
	}
	if (p->source && !options->source)
		p->source->ops->free(p->source);
	free_all(p);
	return rc;
}

static void stop_lister(struct prefetch *p)
{
	{
		prefetch_lock_for_scope(p);
		p->lister.stop = true;
		pthread_cond_signal(&p->lister.cv);
	}
	pthread_join(p->lister_thread, NULL);
}

void prefetch_free(struct prefetch *p)
{
	if (!p)
		return;
	assert(TAILQ_EMPTY(&p->locked.streams));
	stop_engine(p);
	pthread_join(p->deliver_thread, NULL);
	if (p->sink)
		stop_lister(p);
	p->source->ops->free(p->source);
	free_all(p);
}

/* The engine thread is STARVED, or POKED, before it asks the cache for memory.  So if it found none because this buffer
 * was held, the state says so here. */
void prefetch_put(struct prefetch *p, struct cache_buffer *buffer)
{
	cache_put(p->cache, buffer);
	enum prefetch_engine_state state = atomic_load(&p->locked.state);
	if (state != PREFETCH_STARVED && state != PREFETCH_ASLEEP_STARVED)
		return;
	prefetch_lock_for_scope(p);
	prefetch_engine_step(p, PREFETCH_MEMORY);
}

/* A reader waits for this read from now on, so it goes before others.  Under lock. */
static void hurry(struct prefetch *p, struct prefetch_read *read)
{
	if (read->urgent)
		return;
	read->urgent = true;
	if (read->state == PREFETCH_READ_QUEUED) {
		read->ahead = false;
		TAILQ_REMOVE(&p->locked.regains, read, link);
		TAILQ_INSERT_TAIL(&p->locked.urgent, read, link);
		prefetch_engine_step(p, PREFETCH_WORK);
	}
	if (read->state == PREFETCH_READ_INFLIGHT)
		prefetch_engine_step(p, PREFETCH_MEMORY); /* it may be parked, and may have more memory now */
	if (read->state != PREFETCH_READ_LANDED)
		return;
	TAILQ_REMOVE(&p->delivery.landed, read, link);
	TAILQ_INSERT_HEAD(&p->delivery.landed, read, link);
	/* The deliver thread may block in the sink.  So the engine thread must look at `landed` before it sleeps. */
	prefetch_engine_step(p, PREFETCH_NEWS);
}

/* Makes a read of one block, which is in the table then.  demand: as in prefetch_queue_block.  Returns 0, -ECANCELED or
 * -ENOMEM.  Under lock. */
static int read_of_block(struct prefetch *p, uint64_t key, const struct shard_place *file, uint64_t offset,
        uint32_t len, uint64_t xxh3, struct prefetch_demand *demand, struct prefetch_read **ret_read)
{
	if (p->locked.stopping)
		return -ECANCELED;
	struct prefetch_read *read = prefetch_read_new(p);
	struct prefetch_block *block = read ? prefetch_block_new(p, key) : NULL;
	if (!block) {
		if (read)
			prefetch_read_free(p, read);
		return -ENOMEM;
	}
	block->read = read;
	block->offset = offset;
	block->len = len;
	block->xxh3 = xxh3;
	block->waiters = demand;
	block->asked = !demand || !demand->direct; /* it stays in landing memory, and is not stored */
	STAILQ_INSERT_TAIL(&read->blocks, block, link);
	read->shard = file->shard;
	read->sample = file->sample;
	read->offset = offset;
	read->len = len;
	read->state = PREFETCH_READ_QUEUED;
	*ret_read = read;
	return 0;
}

/* Makes a read of one block for the calling thread, which calls prefetch_caller_read then.  Under lock. */
static int read_of_caller(struct prefetch *p, uint64_t key, const struct shard_place *file, uint64_t offset,
        uint32_t len, uint64_t xxh3, struct prefetch_demand *demand, struct prefetch_read **ret_read)
{
	int rc = read_of_block(p, key, file, offset, len, xxh3, demand, ret_read);
	if (rc < 0)
		return rc;
	(*ret_read)->urgent = (*ret_read)->caller = true;
	(*ret_read)->state = PREFETCH_READ_INFLIGHT;
	atomic_fetch_add(&p->figures.callers, 1);
	return 0;
}

int prefetch_queue_block(struct prefetch *p, uint64_t key, const struct shard_place *file, uint64_t offset,
        uint32_t len, uint64_t xxh3, struct prefetch_demand *demand)
{
	struct prefetch_read *read;
	int rc = read_of_block(p, key, file, offset, len, xxh3, demand, &read);
	if (rc < 0)
		return rc;
	read->urgent = true;
	TAILQ_INSERT_TAIL(&p->locked.urgent, read, link);
	prefetch_engine_step(p, PREFETCH_WORK);
	return 0;
}

/* Tells the schedule of a demand.  read: what brings the block; NULL: it is in memory.  Under lock. */
static void tell_of_demand(struct prefetch *p, const struct prefetch_demand *demand, const struct prefetch_read *read)
{
	const struct prefetch_event event = { .kind = read ? PREFETCH_EVENT_MISS : PREFETCH_EVENT_BROUGHT,
		.turn = demand->file,
		.epoch = demand->block,
		.bytes = demand->take };
	if (read && !read->caller && read->state <= PREFETCH_READ_INFLIGHT)
		prefetch_schedule_event_later(p, &event);
	else
		prefetch_schedule_event_soon(p, &event);
}

/* Finds the block in memory or in the table, or queues a read.  *ret_there: it was found.  *ret_read: the caller reads
 * this.
 * Returns 1 and the buffer when it is in memory, 0 when done is called later, or -errno. */
static int find_or_queue(struct prefetch *p, struct prefetch_demand *demand, const struct shard_place *file,
        uint64_t offset, uint32_t len, uint64_t xxh3, struct cache_buffer **ret_buffer, bool *ret_there,
        struct prefetch_read **ret_read)
{
	uint64_t key = cache_block_key(demand->file, demand->block);
	int rc = 0;
	prefetch_lock_for_scope(p);
	struct cache_buffer *buffer = cache_find(p->cache, key);
	struct prefetch_block *block = buffer ? NULL : prefetch_block_find(p, key);
	*ret_there = buffer || block;
	if (buffer) {
		rc = 1;
	} else if (block) {
		demand->next = block->waiters;
		block->waiters = demand;
		block->asked |= !demand->direct;
		if (block->item)
			block->item->waited = true;
		hurry(p, block->read);
		atomic_fetch_add_explicit(&p->counters.joined, 1, memory_order_relaxed);
	} else if (demand->reading && prefetch_caller_may_read(p)) {
		rc = read_of_caller(p, key, file, offset, len, xxh3, demand, ret_read);
	} else {
		rc = prefetch_queue_block(p, key, file, offset, len, xxh3, demand);
	}
	if (!buffer && rc == 0)
		atomic_fetch_add_explicit(&p->counters.misses, demand->block == 0, memory_order_relaxed);
	/* The schedule knows already of a block that is fetched for the sink. */
	if (p->sink && rc >= 0 && !demand->direct && !(block && block->item))
		tell_of_demand(p, demand, buffer ? NULL : prefetch_block_find(p, key)->read);
	if (buffer)
		*ret_buffer = buffer;
	return rc;
}

void prefetch_demand(struct prefetch *p, struct prefetch_demand *demand)
{
	struct shard_place file;
	struct cache_buffer *buffer = NULL;
	struct prefetch_read *read = NULL;
	uint64_t offset = 0, xxh3 = 0;
	uint32_t len = 0;
	/* Copies, because the demand may be freed when it is answered. */
	uint32_t number = demand->file, block = demand->block;
	_Atomic bool *reading = demand->reading;
	bool there = false;
	demand->asked_ns = base_now_ns();
	demand->next = NULL;
	atomic_fetch_add_explicit(&p->counters.demands, 1, memory_order_relaxed);
	int rc = shard_index_place(p->options.index, demand->file, &file);
	if (rc == 0)
		rc = shard_index_block(p->options.index, demand->file, demand->block, &offset, &len, &xxh3);
	if (rc == 0)
		rc = find_or_queue(p, demand, &file, offset, len, xxh3, &buffer, &there, &read);
	if (rc == 1) {
		atomic_fetch_add_explicit(&p->counters.demand_hits, 1, memory_order_relaxed);
		prefetch_answer(p, demand, 0, buffer);
		prefetch_put(p, buffer);
	} else if (rc < 0) {
		int stale = shard_index_check(p->options.index);
		prefetch_answer(p, demand, stale < 0 ? stale : rc, NULL);
		return;
	} else if (read) {
		prefetch_caller_read(p, read, reading);
	}
	prefetch_readahead_demanded(p, number, &file, block, there);
}

bool prefetch_hint(struct prefetch *p, uint32_t number, bool read, _Atomic bool *reading)
{
	struct shard_place file;
	uint64_t offset = 0, xxh3 = 0, key = cache_block_key(number, 0);
	uint32_t len = 0;
	if (shard_index_place(p->options.index, number, &file) < 0 || shard_blocks(file.length) != 1 ||
	        shard_index_block(p->options.index, number, 0, &offset, &len, &xxh3) < 0)
		return false;
	struct cache_buffer *buffer;
	struct prefetch_read *own = NULL;
	bool there;
	{
		prefetch_lock_for_scope(p);
		buffer = cache_find(p->cache, key);
		there = buffer || prefetch_block_find(p, key) ||
		        (p->ledger && file.sample != SHARD_NONE && cache_ledger_has(p->ledger, file.sample));
		/* Demands go first. */
		int rc = there || !read || !TAILQ_EMPTY(&p->locked.urgent) ? -EAGAIN
		         : reading && prefetch_caller_may_read(p)
		                 ? read_of_caller(p, key, &file, offset, len, xxh3, NULL, &own)
		                 : prefetch_queue_block(p, key, &file, offset, len, xxh3, NULL);
		if (rc == 0) {
			prefetch_block_find(p, key)->asked = false; /* if a stream fetches it, it is stored */
			atomic_fetch_add_explicit(&p->counters.hinted, 1, memory_order_relaxed);
		}
	}
	if (own)
		prefetch_caller_read(p, own, reading);
	if (buffer)
		prefetch_put(p, buffer);
	return !there;
}

/* Queues a read of a block that the sink has lost, into landing memory.  It is a scheduled read, so demands go before
 * it. */
static void regain(struct prefetch *p, uint32_t number, uint32_t block)
{
	struct shard_place file;
	uint64_t offset = 0, xxh3 = 0, key = cache_block_key(number, block);
	uint32_t len = 0;
	if (shard_index_place(p->options.index, number, &file) < 0 ||
	        shard_index_block(p->options.index, number, block, &offset, &len, &xxh3) < 0)
		return;
	struct cache_buffer *buffer;
	{
		prefetch_lock_for_scope(p);
		buffer = cache_find(p->cache, key);
		struct prefetch_read *read;
		if (!buffer && !prefetch_block_find(p, key) &&
		        read_of_block(p, key, &file, offset, len, xxh3, NULL, &read) == 0) {
			STAILQ_FIRST(&read->blocks)->asked = false; /* if a stream fetches it, it is stored */
			read->ahead = true;
			TAILQ_INSERT_TAIL(&p->locked.regains, read, link);
			prefetch_engine_step(p, PREFETCH_NEWS);
			atomic_fetch_add_explicit(&p->counters.regained, 1, memory_order_relaxed);
		}
	}
	if (buffer)
		prefetch_put(p, buffer);
}

void prefetch_looked(struct prefetch *p, uint32_t number, uint64_t at, bool there)
{
	if (!there) {
		uint32_t gone = atomic_fetch_add_explicit(&p->look_gone, 1, memory_order_relaxed);
		if (gone < atomic_load_explicit(&p->look_regains, memory_order_relaxed))
			regain(p, number, (uint32_t)(at / SHARD_BLOCK));
	}
	atomic_fetch_add_explicit(&p->look_answers, 1, memory_order_relaxed);
}

uint64_t prefetch_landing(struct prefetch *p)
{
	return cache_landing(p->cache);
}

void prefetch_set_memory(struct prefetch *p, uint64_t memory_bytes)
{
	prefetch_lock_for_scope(p);
	p->locked.new_memory_bytes = memory_bytes;
	prefetch_engine_step(p, PREFETCH_NEWS);
}

void prefetch_share(struct prefetch *p, uint64_t sink_bytes)
{
	prefetch_lock_for_scope(p);
	if (!p->locked.share_bytes)
		p->locked.share_bytes = sink_bytes;
	prefetch_engine_step(p, PREFETCH_NEWS);
}

/* All work is in one of these places.  A thread that takes work from one of them puts it into the next under the same
 * lock, or the engine thread is awake meanwhile. */
bool prefetch_idle(struct prefetch *p)
{
	struct prefetch_stream *s;
	prefetch_lock_for_scope(p);
	bool idle = p->locked.state >= PREFETCH_ASLEEP && !p->locked.resting && !p->locked.soon &&
	            TAILQ_EMPTY(&p->locked.urgent) && TAILQ_EMPTY(&p->locked.regains) &&
	            TAILQ_EMPTY(&p->delivery.landed) && p->delivery.idle && p->lister.request == PREFETCH_IDLE &&
	            p->lister.look == PREFETCH_IDLE && !atomic_load(&p->figures.inflight) &&
	            !atomic_load(&p->figures.callers);
	TAILQ_FOREACH(s, &p->locked.streams, link)
	{
		idle = idle && s->state == PREFETCH_STREAM_LIVE && s->announce == PREFETCH_IDLE;
	}
	return idle;
}

static uint64_t cpu_ns(pthread_t thread)
{
	clockid_t clock;
	struct timespec t;
	if (pthread_getcpuclockid(thread, &clock) != 0 || clock_gettime(clock, &t) < 0)
		return 0;
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

void prefetch_stats_get(struct prefetch *p, struct prefetch_stats *ret_stats)
{
	const struct prefetch_counters *c = &p->counters;
	struct cache_ledger_stats ledger = { 0 };
	if (p->ledger)
		cache_ledger_stats_get(p->ledger, &ledger);
	*ret_stats = (struct prefetch_stats){
		.demands = atomic_load_explicit(&c->demands, memory_order_relaxed),
		.demand_hits = atomic_load_explicit(&c->demand_hits, memory_order_relaxed),
		.wake_ups = atomic_load_explicit(&c->wake_ups, memory_order_relaxed),
		.hinted = atomic_load_explicit(&c->hinted, memory_order_relaxed),
		.caller_reads = atomic_load_explicit(&c->caller_reads, memory_order_relaxed),
		.joined = atomic_load_explicit(&c->joined, memory_order_relaxed),
		.reads = atomic_load_explicit(&c->reads, memory_order_relaxed),
		.read_bytes = atomic_load_explicit(&c->read_bytes, memory_order_relaxed),
		.delivered_bytes = atomic_load_explicit(&c->delivered_bytes, memory_order_relaxed),
		.stored_bytes = atomic_load_explicit(&c->stored_bytes, memory_order_relaxed),
		.bad_blocks = atomic_load_explicit(&c->bad_blocks, memory_order_relaxed),
		.mended_blocks = atomic_load_explicit(&c->mended_blocks, memory_order_relaxed),
		.io_errors = atomic_load_explicit(&c->io_errors, memory_order_relaxed),
		.wait_p50_ns = prefetch_hist_quantile(&p->figures.waits, 500),
		.wait_p99_ns = prefetch_hist_quantile(&p->figures.waits, 990),
		.wait_max_ns = prefetch_hist_max(&p->figures.waits),
		.buffer_bytes = cache_used(p->cache),
		.used = atomic_load_explicit(&c->used, memory_order_relaxed),
		.wasted_bytes = atomic_load_explicit(&c->wasted_bytes, memory_order_relaxed),
		.misses = atomic_load_explicit(&c->misses, memory_order_relaxed),
		.resident_bytes = ledger.resident_bytes + ledger.coming_bytes,
		.budget_bytes = ledger.budget_bytes,
		.evicted = ledger.evicted,
		.evicted_blocks = ledger.evicted_blocks,
		.dropped = ledger.dropped,
		.lost = ledger.lost + atomic_load_explicit(&c->forgotten, memory_order_relaxed),
		.warm_ups = atomic_load_explicit(&p->warm_up.begun, memory_order_relaxed),
		.warm_up_bytes = atomic_load_explicit(&p->warm_up.bytes, memory_order_relaxed),
		.warm_up = (enum prefetch_warm_up_state)atomic_load_explicit(&p->warm_up.state, memory_order_relaxed),
		.refetches = atomic_load_explicit(&c->refetches, memory_order_relaxed),
		.regained = atomic_load_explicit(&c->regained, memory_order_relaxed),
		.device_rate = atomic_load_explicit(&p->figures.rate, memory_order_relaxed),
		.depth = atomic_load_explicit(&p->figures.depth, memory_order_relaxed),
		.full_ns = atomic_load_explicit(&p->figures.full_ns, memory_order_relaxed),
		.depth_full = atomic_load_explicit(&p->figures.depth_full, memory_order_relaxed),
		.depth_most = atomic_load_explicit(&p->figures.depth_most, memory_order_relaxed),
		.inflight = atomic_load_explicit(&p->figures.inflight, memory_order_relaxed) +
		            atomic_load_explicit(&p->figures.callers, memory_order_relaxed),
		.tid = atomic_load_explicit(&p->figures.tid, memory_order_relaxed),
		.deliver_tid = atomic_load_explicit(&p->figures.deliver_tid, memory_order_relaxed),
		.engine_cpu_ns = cpu_ns(p->engine_thread),
		.deliver_cpu_ns = cpu_ns(p->deliver_thread),
		.busy_ns = atomic_load_explicit(&p->figures.busy_ns, memory_order_relaxed),
		.uring = p->io->uring,
		.direct = atomic_load_explicit(&p->figures.direct, memory_order_relaxed),
		.shared = atomic_load_explicit(&p->schedule.shared, memory_order_relaxed),
	};
}

void prefetch_set_order_left(struct prefetch *p, bool left)
{
	if (atomic_exchange(&p->warm_up.order_left, left) == left)
		return;
	prefetch_lock_for_scope(p);
	prefetch_engine_step(p, PREFETCH_NEWS);
}

uint64_t prefetch_reads(struct prefetch *p)
{
	return atomic_load_explicit(&p->counters.reads, memory_order_relaxed);
}

bool prefetch_remote_stats(struct prefetch *p, struct remote_stats *ret_stats)
{
	if (!p->http)
		return false;
	prefetch_io_http_stats(p->origin, ret_stats);
	return true;
}

bool prefetch_tier_stats(struct prefetch *p, struct prefetch_tier_stats *ret_stats)
{
	if (!p->options.tier)
		return false;
	prefetch_io_tier_stats(p->io, ret_stats);
	return true;
}
