/* SPDX-License-Identifier: Apache-2.0 */
/* A fetch: blocks of a sample and of its small neighbours -> sorted -> merged into reads -> submitted;
 * prefetch/engine.h first.
 *
 *   shard:  ..|aaaa|hdr|bbbb|hdr|cccc|hdr|dddd|hdr|eeee|..
 *                   ^-------------------^      ^
 *                   b is next in the order;    e is not wanted soon:
 *                   a, c, d are wanted soon    the read ends before it
 *
 * For small samples, requests cost a device more than bytes.  So a fetch also takes samples that lie beside them
 * and are used within the window.  Samples of prefetch_small_bytes() bytes and more are read alone.  They reach the
 * bandwidth of the device, and samples far ahead in the order would delay the next ones.  A sample of several files
 * is read alone, too, if these do not lie side by side.
 *
 * From a store, one read takes a whole chunk of order=chunk.  Gaps inside a read may have as many bytes as a request
 * costs (request_cost.h), or a sixty-fourth of the read.  The fetch starts when there is room for all of the read,
 * because the rest would need a request of its own.  In orders without chunks, if the mean sample has
 * PREFETCH_SMALL_BYTES or more, a read has 1 MiB at most, and takes neighbours only from the next turns, as many as
 * there are requests in flight.  Other neighbours would delay what is used sooner.
 *
 * The warm-up (warm_up.c) is in storage order.  Its fetch takes all that fits one read, of any size. */
#include "prefetch/engine.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "shard/base/bits.h"

enum {
	MERGE_BYTES = 128 << 10, /* the largest read of merged samples */
	GAP_BYTES = 2048,        /* the largest gap inside a read: a tar header and padding */
	NEIGHBOURS_MAX = 128,    /* samples on each side */
	/* Files that are in memory already are gaps in a read of the warm-up.  They may be so large a part of it: */
	WARM_UP_GAPS_PART = 32,
	WARM_UP_GAP_BYTES = 64 << 10, /* ... from a store, each may be so large: a request costs more */
	WARM_UP_READS = 8, /* a fetch of the warm-up has about so many short reads at most: demands wait behind them */
	GAPS_PART = 64,    /* gaps may be so large a part of a store's read */
};

static struct prefetch_item *item_new(
        struct prefetch *p, struct prefetch_stream *stream, uint64_t seq, uint32_t sample, uint64_t cost)
{
	struct prefetch_item *item = STAILQ_FIRST(&p->schedule.free_items);
	if (item)
		STAILQ_REMOVE_HEAD(&p->schedule.free_items, link);
	else
		item = malloc(sizeof(*item));
	if (!item)
		return NULL;
	*item = (struct prefetch_item){
		.stream = stream, .seq = seq, .sample = sample, .cost = cost, .names = stream->names
	};
	stream->items++;
	return item;
}

/* Appends the blocks of a file to p->schedule.wants.  Returns 0, -EFBIG (more than a fetch can hold) or an error of the
 * index. */
static int want_file(struct prefetch *p, uint32_t file, struct prefetch_item *item, uint32_t *n)
{
	struct shard_place f;
	int rc = shard_index_place(p->options.index, file, &f);
	uint32_t blocks = rc == 0 ? shard_blocks(f.length) : 0;
	if (blocks > PREFETCH_WANTS_MAX - *n)
		return -EFBIG;
	for (uint32_t b = 0; rc == 0 && b < blocks; b++) {
		struct prefetch_want *w = &p->schedule.wants[*n];
		*w = (struct prefetch_want){ .key = cache_block_key(file, b), .shard = f.shard, .item = item };
		rc = shard_index_block(p->options.index, file, b, &w->offset, &w->len, &w->xxh3);
		if (rc == 0)
			++*n;
	}
	return rc;
}

/* Appends the blocks of all files of a sample.  After an error it has appended none. */
static int want_sample(struct prefetch *p, uint32_t sample, struct prefetch_item *item, uint32_t *n)
{
	uint32_t files[SHARD_SAMPLE_FILES_MAX], n_files = 0, from = *n;
	int rc = shard_index_sample_files(p->options.index, sample, files, SHARD_SAMPLE_FILES_MAX, &n_files);
	for (uint32_t i = 0; rc == 0 && i < n_files; i++)
		rc = want_file(p, files[i], item, n);
	if (rc < 0)
		*n = from;
	return rc;
}

/* What a fetch collects before it starts reads: blocks in p->schedule.wants[0 .. n), and their items.  An item has no
 * blocks if its files are empty. */
struct fetch {
	uint32_t n;
	uint32_t gap_bytes;     /* the largest gap inside a read */
	uint32_t request_bytes; /* what another read costs, in bytes */
	struct prefetch_item_list items;
};

/* Books a sample as coming and appends its blocks. */
static int take(struct prefetch *p, struct prefetch_stream *stream, uint64_t seq, uint32_t sample, struct fetch *fetch)
{
	uint64_t cost = 0, turn;
	struct cache_timeline_epoch *ep = cache_timeline_epoch_of(&stream->tl, seq, &turn);
	bool was_ahead = bit_get(ep->ahead, turn);
	uint32_t there;
	int rc = cache_ledger_turn(p->ledger, &stream->tl, seq, &there, &cost);
	if (rc == 0 && there != sample)
		return -ENOENT; /* a bad sample, which on_bad=substitute replaces by another one */
	if (rc == 0 && cost > stream->window / 2)
		return -EFBIG; /* too large for the window: it is read by the block, on demand */
	if (rc == 0)
		rc = cache_ledger_fetch(p->ledger, &stream->tl, seq, sample, cost);
	if (rc < 0)
		return rc;
	p->schedule.cost_bytes += cost;
	p->schedule.n_cost++;
	struct prefetch_item *item = item_new(p, stream, seq, sample, cost);
	rc = item ? want_sample(p, sample, item, &fetch->n) : -ENOMEM;
	if (was_ahead) /* it was dropped before its use */
		prefetch_tracking_wasted(p, cost);
	else
		stream->ahead_bytes += cost;
	if (!was_ahead && seq < stream->high)
		stream->lag_bytes += cost;
	if (seq >= stream->taken)
		stream->taken = seq + 1;
	if (rc == 0) {
		item->pending = 1; /* until publish() has counted its blocks */
		STAILQ_INSERT_TAIL(&fetch->items, item, link);
		atomic_store_explicit(&stream->stat_fetched, stream->stat_fetched + 1, memory_order_relaxed);
		return 0;
	}
	cache_ledger_arrived(p->ledger, &stream->tl, seq, sample, cost, false);
	if (item) {
		stream->items--;
		STAILQ_INSERT_HEAD(&p->schedule.free_items, item, link);
	}
	return rc;
}

static int by_place(const void *a, const void *b)
{
	const struct prefetch_want *x = a, *y = b;
	if (x->shard != y->shard)
		return x->shard < y->shard ? -1 : 1;
	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Where a small sample lies. */
struct place {
	uint32_t shard;
	uint64_t offset, end; /* from its first byte to its last, with what lies between its files */
	uint32_t blocks;      /* one for each file */
};

/* Gives the place of a sample of several files, as a WebDataset has.  Returns false for others: large ones, and those
 * whose files lie in several shards or far apart. */
static bool small_place_of_files(const struct prefetch *p, uint32_t sample, struct place *ret)
{
	uint32_t files[SHARD_SAMPLE_FILES_MAX], n = 0;
	uint64_t bytes = 0;
	if (shard_index_sample_files(p->options.index, sample, files, SHARD_SAMPLE_FILES_MAX, &n) < 0 || n == 0)
		return false;
	for (uint32_t i = 0; i < n; i++) {
		struct shard_place f;
		if (shard_index_place(p->options.index, files[i], &f) < 0 || (i > 0 && f.shard != ret->shard))
			return false;
		uint64_t end = f.offset + f.length;
		ret->shard = f.shard;
		ret->offset = i == 0 || f.offset < ret->offset ? f.offset : ret->offset;
		ret->end = i == 0 || end > ret->end ? end : ret->end;
		bytes += f.length;
	}
	ret->blocks = n;
	return bytes < prefetch_small_bytes(p->store) &&
	       ret->end - ret->offset <= bytes + (uint64_t)(n - 1) * GAP_BYTES;
}

/* Gives the place of a small sample.  Returns false for other samples. */
static bool small_place(const struct prefetch *p, uint32_t sample, struct place *ret)
{
	uint32_t file;
	struct shard_place f;
	if (shard_index_info(p->options.index)->grouped)
		return small_place_of_files(p, sample, ret);
	if (shard_index_sample_first(p->options.index, sample, &file) < 0 ||
	        shard_index_place(p->options.index, file, &f) < 0 || f.length >= prefetch_small_bytes(p->store))
		return false;
	*ret = (struct place){ .shard = f.shard, .offset = f.offset, .end = f.offset + f.length, .blocks = 1 };
	return true;
}

bool prefetch_fetch_merges(const struct prefetch *p, uint32_t sample)
{
	struct place place;
	return small_place(p, sample, &place);
}

/* Returns whether a fetch can take all blocks of another small sample. */
static bool has_room(const struct prefetch *p, const struct fetch *fetch)
{
	uint32_t most = shard_index_info(p->options.index)->grouped ? SHARD_SAMPLE_FILES_MAX : 1;
	return fetch->n + most <= PREFETCH_WANTS_MAX;
}

/* How far a read reaches. */
struct reach {
	uint32_t bytes;      /* of the read, at most */
	uint32_t gap_bytes;  /* of a gap; in a store's read, of all gaps together */
	uint32_t neighbours; /* samples on each side, at most */
	uint64_t limit;      /* their seqs are below it */
};

/* Returns whether a store's samples are so large, in an order without chunks, that neighbours used late are not worth
 * their delay. */
static bool near_only(const struct prefetch *p, struct prefetch_stream *stream)
{
	const struct shard_info *info = shard_index_info(p->options.index);
	struct prefetch_pool pool;
	return info->content_bytes / info->n_samples >= PREFETCH_SMALL_BYTES &&
	       !prefetch_schedule_pool(p, stream, stream->fetch, &pool);
}

static struct reach reach_of(struct prefetch *p, struct prefetch_stream *stream)
{
	struct remote_stats stats = { 0 };
	if (!p->store)
		return (struct reach){ .bytes = MERGE_BYTES,
			.gap_bytes = GAP_BYTES,
			.neighbours = NEIGHBOURS_MAX,
			.limit = stream->limit };
	if (p->http)
		prefetch_io_http_stats(p->origin, &stats);
	struct reach reach = {
		.bytes = p->reading.read_max,
		.gap_bytes =
		        prefetch_request_cost_bytes(&p->reading.cost, stats.first_byte_p50_ns, p->reading.depth.depth),
		.neighbours = PREFETCH_NEIGHBOURS_MAX / 2,
		.limit = prefetch_schedule_neighbours_limit(p, stream),
	};
	if (near_only(p, stream)) {
		uint64_t near = stream->fetch + p->reading.depth.depth;
		reach.bytes = SHARD_BLOCK;
		reach.limit = near < reach.limit ? near : reach.limit;
	}
	return reach;
}

/* Gives the sample in a storage slot, if the stream uses it before the seq `limit`.  For most samples the order tells
 * that it does not, and their records are not read.  A record that is needed soon is prefetched into the processor's
 * cache. */
static bool neighbour(struct prefetch *p, struct prefetch_stream *stream, uint32_t slot, uint64_t limit,
        struct prefetch_neighbour *ret)
{
	uint32_t file;
	if (slot >= shard_index_info(p->options.index)->n_samples ||
	        shard_index_slot_sample(p->options.index, slot, &ret->sample) < 0)
		return false;
	ret->seq = cache_timeline_next_below(&stream->tl, ret->sample, slot, limit);
	if (ret->seq < stream->fetch || ret->seq == CACHE_NEVER)
		return false;
	if (shard_index_sample_first(p->options.index, ret->sample, &file) == 0)
		shard_index_hint_record(p->options.index, file);
	return true;
}

/* Takes neighbours in storage, in one direction, while the stream uses them within the window and they fit. */
static void take_neighbours(struct prefetch *p, struct prefetch_stream *stream, uint32_t slot, bool up, uint32_t shard,
        const struct reach *reach, uint64_t *start, uint64_t *end, struct fetch *fetch)
{
	struct prefetch_neighbour this, next;
	slot += up ? 1 : UINT32_MAX; /* below slot 0 it is UINT32_MAX, which no sample has */
	bool wanted = neighbour(p, stream, slot, reach->limit, &next);
	for (unsigned i = 0; i < reach->neighbours && wanted; i++) {
		struct place its;
		this = next;
		slot += up ? 1 : UINT32_MAX;
		wanted = neighbour(p, stream, slot, reach->limit, &next);
		if (!has_room(p, fetch) || !small_place(p, this.sample, &its) || its.shard != shard)
			return;
		if (up ? its.offset < *end || its.offset - *end > reach->gap_bytes || its.end - *start > reach->bytes
		       : its.end > *start || *start - its.end > reach->gap_bytes || *end - its.offset > reach->bytes)
			return;
		if (take(p, stream, this.seq, this.sample, fetch) < 0)
			return;
		*start = its.offset < *start ? its.offset : *start;
		*end = its.end > *end ? its.end : *end;
	}
}

/* One read of a store that is planned. */
struct plan {
	uint32_t shard;
	uint64_t start, end; /* bytes of the shard */
	uint64_t gaps;       /* bytes of it that nobody wants, or that are in memory */
	uint32_t n;          /* neighbours */
	uint32_t blocks;     /* of them, and of the sample */
	uint64_t cost;       /* bytes of the neighbours, as the ledger counts */
};

/* Adds a neighbour to a plan.  Returns false if it does not fit. */
static bool plan_one(struct prefetch *p, struct prefetch_stream *stream, const struct prefetch_neighbour *this,
        const struct reach *reach, struct plan *plan)
{
	uint32_t sample;
	uint64_t cost;
	struct place its;
	if (!small_place(p, this->sample, &its) || its.shard != plan->shard ||
	        plan->blocks + its.blocks > PREFETCH_WANTS_MAX - SHARD_SAMPLE_FILES_MAX ||
	        cache_ledger_turn(p->ledger, &stream->tl, this->seq, &sample, &cost) < 0 || sample != this->sample)
		return false;
	bool up = its.offset >= plan->end;
	if (!up && its.end > plan->start)
		return false;
	uint64_t gap = up ? its.offset - plan->end : plan->start - its.end;
	uint64_t gaps = plan->gaps + (gap > GAP_BYTES ? gap : 0);
	uint64_t bytes = up ? its.end - plan->start : plan->end - its.offset;
	if (bytes > reach->bytes ||
	        gaps > (reach->gap_bytes > bytes / GAPS_PART ? reach->gap_bytes : bytes / GAPS_PART))
		return false;
	plan->start = up ? plan->start : its.offset;
	plan->end = up ? its.end : plan->end;
	plan->blocks += its.blocks;
	plan->gaps = gaps;
	plan->cost += cost;
	p->schedule.neighbours[plan->n++] = *this;
	return true;
}

/* Returns whether the sink must drop a sample before it can be fetched. */
static bool must_drop_first(struct prefetch *p, uint32_t sample)
{
	enum cache_state state = cache_ledger_state(p->ledger, sample);
	return state == CACHE_LEAVING_FOR_GOOD || state == CACHE_HANDED;
}

/* Plans the neighbours in one direction.  Returns false: one of them cannot be fetched yet. */
static bool plan_side(struct prefetch *p, struct prefetch_stream *stream, uint32_t slot, bool up,
        const struct reach *reach, struct plan *plan)
{
	const struct shard_info *info = shard_index_info(p->options.index);
	uint64_t mean = info->content_bytes / info->n_samples + 1;
	uint64_t pass =
	        (reach->gap_bytes > reach->bytes / GAPS_PART ? reach->gap_bytes : reach->bytes / GAPS_PART) / mean;
	uint64_t passed = 0;
	for (uint32_t i = 0; i < reach->neighbours && passed <= pass;) {
		struct prefetch_neighbour this;
		slot += up ? 1 : UINT32_MAX;
		if (slot >= info->n_samples)
			return true;
		if (!neighbour(p, stream, slot, reach->limit, &this) || cache_ledger_has(p->ledger, this.sample)) {
			passed++;
			continue;
		}
		if (!plan_one(p, stream, &this, reach, plan))
			return true;
		if (must_drop_first(p, this.sample))
			return false;
		passed = 0;
		i++;
	}
	return true;
}

/* Takes the turns from seq on that are announced and fit one read, or a few if readers brought in others between them.
 * The next fetch takes the rest. */
static void take_next_turns(struct prefetch *p, struct prefetch_stream *stream, uint64_t seq, struct fetch *fetch)
{
	const uint64_t gap_bytes = p->store ? WARM_UP_GAP_BYTES : GAP_BYTES;
	uint32_t reads = 1;
	for (; seq < stream->limit && fetch->n + SHARD_SAMPLE_FILES_MAX <= PREFETCH_WANTS_MAX && reads < WARM_UP_READS;
	        seq++) {
		const struct prefetch_want *first = &p->schedule.wants[0],
		                           *last = &p->schedule.wants[fetch->n - (fetch->n > 0)];
		uint32_t sample, n = fetch->n;
		if (fetch->n &&
		        (last->shard != first->shard || last->offset + last->len - first->offset >= SHARD_BLOCK))
			return;
		if (cache_timeline_sample(&stream->tl, seq, &sample) < 0 || cache_ledger_has(p->ledger, sample))
			continue;
		if (take(p, stream, seq, sample, fetch) < 0)
			return;
		const struct prefetch_want *next = &p->schedule.wants[n];
		reads += n > 0 && fetch->n > n && next->offset > last->offset + last->len + gap_bytes;
	}
}

/* Returns the epoch of the use for which an item is fetched, as the tier's uses count epochs. */
static uint64_t epoch_of(struct prefetch_item *item)
{
	struct prefetch_stream *stream = item->stream;
	uint64_t turn;
	if (!atomic_load_explicit(&stream->tells_uses, memory_order_relaxed))
		return CACHE_TIER_USES_NONE;
	if (stream->options.uses_epoch == CACHE_TIER_USES_LATEST)
		return CACHE_TIER_USES_LATEST;
	return stream->options.uses_epoch + cache_timeline_epoch_of(&stream->tl, item->seq, &turn)->number;
}

/* Enters a block into the table.  If it is on its way already, its item joins it; if it is in memory, it goes to
 * *from_memory.  Under lock. */
static void publish_block(struct prefetch *p, struct prefetch_want *w, struct prefetch_read **from_memory)
{
	struct cache_buffer *buffer = cache_find(p->cache, w->key);
	struct prefetch_block *block = buffer ? NULL : prefetch_block_find(p, w->key);
	if (block) {
		/* A demand asked for it; the answer brings it to where the sink would store it. */
		assert(!block->item);
		block->item = w->item;
		w->item->pending++;
		return;
	}
	if (buffer && !*from_memory)
		*from_memory = prefetch_read_new(p);
	block = buffer && !*from_memory ? NULL : prefetch_block_new(p, w->key);
	if (!block) {
		w->item->failed = true;
		if (buffer)
			cache_put(p->cache, buffer); /* no wake: this is the engine thread */
		return;
	}
	block->offset = w->offset;
	block->len = w->len;
	block->xxh3 = w->xxh3;
	block->epoch = epoch_of(w->item);
	block->item = w->item;
	w->item->pending++;
	if (buffer) {
		block->buffer = buffer;
		block->read = *from_memory;
		STAILQ_INSERT_TAIL(&block->read->blocks, block, link);
	} else {
		w->block = block;
	}
}

/* Returns whether a block can be the next one of a read.  files: bytes of gaps in that read which are files. */
static bool continues(const struct prefetch *p, const struct fetch *fetch, bool warm_up,
        const struct prefetch_read *read, uint64_t files, const struct prefetch_want *w)
{
	uint64_t end = read->offset + read->len, bytes = w->offset + w->len - read->offset;
	if (w->shard != read->shard || w->offset < end || bytes > p->reading.read_max)
		return false;
	uint64_t gap = w->offset - end, most = warm_up && p->store ? WARM_UP_GAP_BYTES : fetch->gap_bytes;
	return gap <= most || (warm_up && files + gap <= bytes / WARM_UP_GAPS_PART);
}

/* Makes reads of the blocks, which are sorted.  Under lock. */
static void merge(struct prefetch *p, const struct fetch *fetch, bool warm_up, struct prefetch_read_list *reads)
{
	struct prefetch_read *read = NULL;
	uint64_t files = 0;
	for (uint32_t i = 0; i < fetch->n; i++) {
		const struct prefetch_want *w = &p->schedule.wants[i];
		if (!w->block)
			continue;
		if (!read || !continues(p, fetch, warm_up, read, files, w)) {
			read = prefetch_read_new(p);
			if (!read) {
				w->item->failed = true;
				w->item->pending--;
				prefetch_block_unhash(p, w->block);
				prefetch_block_free(p, w->block);
				continue;
			}
			read->ahead = true;
			read->gap_bytes = fetch->request_bytes;
			read->warm_up = warm_up;
			read->state = PREFETCH_READ_INFLIGHT;
			read->shard = w->shard;
			read->offset = w->offset;
			TAILQ_INSERT_TAIL(reads, read, link);
			files = 0;
		} else {
			uint64_t gap = w->offset - (read->offset + read->len);
			read->between += (uint32_t)gap;
			files += gap > GAP_BYTES ? gap : 0;
		}
		read->len = (uint32_t)(w->offset + w->len - read->offset);
		w->block->read = read;
		STAILQ_INSERT_TAIL(&read->blocks, w->block, link);
	}
}

/* Starts parked reads until one cannot start.  urgent: only those that readers wait for.  Returns false if one could
 * not. */
static bool start_parked(struct prefetch *p, bool urgent)
{
	struct prefetch_read *read, *next;
	for (read = TAILQ_FIRST(&p->reading.parked); read; read = next) {
		next = TAILQ_NEXT(read, link);
		if (urgent && !read->urgent)
			continue;
		TAILQ_REMOVE(&p->reading.parked, read, link);
		if (prefetch_engine_start(p, read) < 0) {
			TAILQ_INSERT_HEAD(&p->reading.parked, read, link);
			return false;
		}
	}
	return true;
}

bool prefetch_fetch_parked(struct prefetch *p)
{
	return start_parked(p, true) && start_parked(p, false);
}

/* Makes the fetch visible to demands.  *reads: what is to be read for it. */
static void publish_blocks(struct prefetch *p, struct fetch *fetch, bool warm_up, struct prefetch_read_list *reads)
{
	struct prefetch_item_list ready = STAILQ_HEAD_INITIALIZER(ready);
	struct prefetch_read *from_memory = NULL;
	struct prefetch_item *item;
	prefetch_lock_for_scope(p);
	for (uint32_t i = 0; i < fetch->n; i++)
		publish_block(p, &p->schedule.wants[i], &from_memory);
	merge(p, fetch, warm_up, reads);
	while ((item = STAILQ_FIRST(&fetch->items))) {
		STAILQ_REMOVE_HEAD(&fetch->items, link);
		if (--item->pending == 0)
			STAILQ_INSERT_TAIL(&ready, item, link);
	}
	STAILQ_CONCAT(&p->locked.arrived, &ready);
	if (from_memory) {
		from_memory->state = PREFETCH_READ_LANDED;
		TAILQ_INSERT_TAIL(&p->delivery.landed, from_memory, link);
		pthread_cond_signal(&p->delivery.landed_cv);
	}
}

/* Makes the fetch visible to demands and starts its reads. */
static void publish(struct prefetch *p, struct fetch *fetch, bool warm_up)
{
	struct prefetch_read_list reads = TAILQ_HEAD_INITIALIZER(reads);
	struct prefetch_read *read;
	if (fetch->n > 1)
		qsort(p->schedule.wants, fetch->n, sizeof(p->schedule.wants[0]), by_place);
	publish_blocks(p, fetch, warm_up, &reads);
	while ((read = TAILQ_FIRST(&reads))) {
		TAILQ_REMOVE(&reads, read, link);
		if (!TAILQ_EMPTY(&p->reading.parked) || prefetch_engine_start(p, read) < 0)
			TAILQ_INSERT_TAIL(&p->reading.parked, read, link);
	}
}

/* Returns whether neighbours of a sample may be read with it.  *ret_slot: where it lies in storage. */
static bool has_neighbours(struct prefetch *p, uint32_t sample, struct plan *plan, uint32_t *ret_slot)
{
	struct place own;
	if (!small_place(p, sample, &own) || shard_index_sample_slot(p->options.index, sample, ret_slot) < 0)
		return false;
	*plan = (struct plan){ .shard = own.shard, .start = own.offset, .end = own.end, .blocks = own.blocks };
	return true;
}

/* Plans a read of a store, and makes room for it.  Returns 0, or -EAGAIN: the room or a neighbour's is not free yet. */
static int plan_read(struct prefetch *p, struct prefetch_stream *stream, uint64_t seq, uint32_t slot,
        const struct reach *reach, struct plan *plan)
{
	if (!plan_side(p, stream, slot, true, reach, plan) || !plan_side(p, stream, slot, false, reach, plan))
		return -EAGAIN;
	if (!plan->n)
		return 0;
	int rc = cache_ledger_reserve(p->ledger, &stream->tl, seq, plan->cost);
	if (rc == -ENOSPC)
		plan->n = 0; /* what is used sooner has the room: this sample alone may fit */
	return rc == -EAGAIN ? rc : 0;
}

int prefetch_fetch(struct prefetch *p, struct prefetch_stream *stream, uint64_t seq, uint32_t sample)
{
	const struct reach reach = reach_of(p, stream);
	struct fetch fetch = { .gap_bytes = reach.gap_bytes,
		.request_bytes = reach.gap_bytes,
		.items = STAILQ_HEAD_INITIALIZER(fetch.items) };
	struct plan plan = { .n = 0 };
	uint32_t slot;
	bool beside = !stream->options.warm_up && has_neighbours(p, sample, &plan, &slot);
	int rc = beside && p->store ? plan_read(p, stream, seq, slot, &reach, &plan) : 0;
	if (rc == 0)
		rc = take(p, stream, seq, sample, &fetch);
	if (rc < 0)
		return rc;
	if (stream->options.warm_up) {
		take_next_turns(p, stream, seq + 1, &fetch);
	} else if (beside && !p->store) {
		take_neighbours(p, stream, slot, true, plan.shard, &reach, &plan.start, &plan.end, &fetch);
		take_neighbours(p, stream, slot, false, plan.shard, &reach, &plan.start, &plan.end, &fetch);
	}
	for (uint32_t i = 0; i < plan.n; i++) {
		const struct prefetch_neighbour *n = &p->schedule.neighbours[i];
		if (!has_room(p, &fetch) || take(p, stream, n->seq, n->sample, &fetch) < 0)
			break;
	}
	if (plan.n) /* the plan has allowed its gaps */
		fetch.gap_bytes = reach.bytes;
	publish(p, &fetch, stream->options.warm_up);
	return 0;
}
