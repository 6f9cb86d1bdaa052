/* SPDX-License-Identifier: Apache-2.0 */
/* Delivery: verifies blocks that landed, answers demands, stores the others; prefetch/engine.h first. */
#include "prefetch/engine.h"

#include <assert.h>
#include <errno.h>
#include <unistd.h>

#include "shard/block_sum.h"

enum {
	BATCH = 16,             /* blocks of a batch */
	BATCH_BYTES = 64 << 10, /* ... and their bytes, because a demand waits until its whole batch is verified */
};

static void count(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

void prefetch_answer(struct prefetch *p, struct prefetch_demand *list, int rc, const struct cache_buffer *buffer)
{
	while (list) {
		struct prefetch_demand *demand = list;
		list = demand->next; /* done may free it */
		prefetch_hist_add(&p->figures.waits, base_now_ns() - demand->asked_ns);
		if (rc == 0)
			count(&p->counters.delivered_bytes, buffer->len);
		demand->done(demand, rc, rc == 0 ? buffer->data : NULL, rc == 0 ? buffer->len : 0);
	}
}

/* Returns whether the checksum of a block matches. */
static bool verified(const struct prefetch_read *read, const struct prefetch_block *block)
{
	const uint8_t *data = read->area->span.data + (block->offset - read->start);
	return shard_block_sum(data, block->len) == block->xxh3;
}

/* Queues a second read of a block with wrong bytes, alone: the first time, the transfer may have been wrong.  Under
 * lock.  Returns false when this was the second read, when the engine is being freed or when there is no memory. */
static bool read_again(struct prefetch *p, struct prefetch_block *block)
{
	if (block->read->again || p->locked.stopping)
		return false;
	struct prefetch_read *again = prefetch_read_new(p);
	if (!again)
		return false;
	again->again = true;
	again->urgent = true;
	again->shard = block->read->shard;
	again->sample = block->item ? block->item->sample : block->read->sample;
	again->offset = block->offset;
	again->len = block->len;
	again->state = PREFETCH_READ_QUEUED;
	block->read = again;
	STAILQ_INSERT_TAIL(&again->blocks, block, link);
	TAILQ_INSERT_TAIL(&p->locked.urgent, again, link);
	prefetch_engine_step(p, PREFETCH_WORK);
	return true;
}

/* One block of an item is done.  stored: rc is the result of the sink's store.  Under lock.  The engine thread must
 * know at once only if a stream waits for its last items, or if the sink refused one. */
static void item_block_done(struct prefetch *p, struct prefetch_item *item, int rc, bool stored)
{
	item->failed |= rc < 0;
	item->stored |= stored && rc == 0;
	item->refused |= stored && rc == -ENOENT;
	if (--item->pending)
		return;
	STAILQ_INSERT_TAIL(&p->locked.arrived, item, link);
	if (item->stream->state == PREFETCH_STREAM_CLOSING || item->refused)
		prefetch_engine_step(p, PREFETCH_NEWS);
}

/* Stores a block.  A demand that comes meanwhile finds the buffer in the cache. */
static int store(struct prefetch *p, const struct prefetch_block *block)
{
	const struct cache_buffer *buffer = block->buffer;
	uint32_t file = cache_key_file(block->key);
	uint64_t offset = (uint64_t)cache_key_block(block->key) * SHARD_BLOCK;
	atomic_store(&p->delivery.storing_ns, base_now_ns());
	int rc = p->sink->ops->store(p->sink, file, offset, buffer->data, buffer->len);
	atomic_store(&p->delivery.storing_ns, 0);
	if (rc == 0)
		count(&p->counters.stored_bytes, buffer->len);
	return rc;
}

/* Gives the buffer of a block that landed, held, or returns why there is none.  right: its checksum matched.  stale:
 * the result of shard_index_check. */
static int take_bytes(struct prefetch *p, struct prefetch_read *read, struct prefetch_block *block, bool right,
        int stale, struct cache_buffer **ret_buffer)
{
	if (stale < 0) {
		if (block->buffer)
			cache_put(p->cache, block->buffer);
		return stale;
	}
	if (block->buffer) {
		*ret_buffer = block->buffer;
		return 0;
	}
	if (read->rc < 0)
		return read->rc;
	if (!right)
		return read->changed ? -ESTALE : -EBADMSG;
	return cache_insert(
	        p->cache, block->key, read->area, (uint32_t)(block->offset - read->start), block->len, ret_buffer);
}

/* Counts a bad block once, though each demand for it reads it again.  Under lock. */
static void count_bad(struct prefetch *p, uint64_t key)
{
	uint64_t n = p->delivery.n_bad < PREFETCH_BAD_MAX ? p->delivery.n_bad : PREFETCH_BAD_MAX;
	for (uint64_t i = 0; i < n; i++) {
		if (p->delivery.bad[i] == key)
			return;
	}
	p->delivery.bad[p->delivery.n_bad++ % PREFETCH_BAD_MAX] = key;
	count(&p->counters.bad_blocks, 1);
}

/* Blocks of a read that are handled together, so that the lock is taken once for all of them. */
struct batch {
	struct prefetch_block *blocks[BATCH];
	int rcs[BATCH];
	uint32_t n;
};

static void batch_fill(struct batch *batch, struct prefetch_block_list *from)
{
	struct prefetch_block *block;
	uint32_t bytes = 0;
	batch->n = 0;
	while ((block = STAILQ_FIRST(from)) && batch->n < BATCH && (!bytes || bytes + block->len <= BATCH_BYTES)) {
		STAILQ_REMOVE_HEAD(from, link);
		bytes += block->len;
		batch->blocks[batch->n++] = block;
	}
}

/* Releases and frees blocks that are done.  stored: the results are those of the sink's store. */
static void end_blocks(struct prefetch *p, const struct batch *batch, bool stored)
{
	for (uint32_t i = 0; i < batch->n; i++) {
		struct prefetch_block *block = batch->blocks[i];
		bool has = block->item && (stored ? batch->rcs[i] == 0 : !block->asked);
		if (block->buffer && has)
			cache_drop(p->cache, block->buffer); /* the sink has it */
		else if (block->buffer)
			cache_put(p->cache, block->buffer);
	}
	prefetch_lock_for_scope(p);
	for (uint32_t i = 0; i < batch->n; i++) {
		struct prefetch_block *block = batch->blocks[i];
		if (block->item)
			item_block_done(p, block->item, batch->rcs[i], stored);
		prefetch_block_free(p, block);
	}
}

/* Verifies blocks of a read that landed, and answers their demands.  A block leaves the table in the same step in
 * which its bytes enter the cache.  Blocks for the sink go to `rest`; the others are freed. */
static void answer_blocks(
        struct prefetch *p, struct prefetch_read *read, const struct batch *batch, struct prefetch_block_list *rest)
{
	struct batch done = { .n = 0 };
	struct prefetch_demand *waiters[BATCH];
	bool right[BATCH], moved[BATCH];
	int rcs[BATCH];
	/* Offset, length and checksum of each block were read from the index earlier, and the index may have
	 * changed. */
	int stale = shard_index_check(p->options.index);
	for (uint32_t i = 0; i < batch->n; i++) {
		const struct prefetch_block *block = batch->blocks[i];
		right[i] = !block->buffer && stale == 0 && read->rc == 0 && verified(read, block);
		if (right[i] && read->again)
			count(&p->counters.mended_blocks, 1);
	}
	{
		prefetch_lock_for_scope(p);
		for (uint32_t i = 0; i < batch->n; i++) {
			struct prefetch_block *block = batch->blocks[i];
			struct cache_buffer *buffer = NULL;
			rcs[i] = take_bytes(p, read, block, right[i], stale, &buffer);
			moved[i] = rcs[i] == -EBADMSG && read_again(p, block); /* then the other read has it */
			if (moved[i])
				continue;
			if (rcs[i] == -EBADMSG)
				count_bad(p, block->key);
			waiters[i] = block->waiters;
			block->waiters = NULL;
			prefetch_block_unhash(p, block);
			block->buffer = buffer; /* the block is out of the table, so no other thread uses it */
		}
	}
	for (uint32_t i = 0; i < batch->n; i++) {
		struct prefetch_block *block = batch->blocks[i];
		if (moved[i])
			continue;
		prefetch_answer(p, waiters[i], rcs[i], block->buffer);
		if (rcs[i] == 0 && block->item && !block->asked) {
			STAILQ_INSERT_TAIL(rest, block, link);
		} else {
			done.rcs[done.n] = rcs[i];
			done.blocks[done.n++] = block;
		}
	}
	if (done.n)
		end_blocks(p, &done, false);
}

/* Gives an answered read to the deliver thread, which stores its blocks. */
static void store_later(struct prefetch *p, struct prefetch_read *read)
{
	prefetch_lock_for_scope(p);
	read->answered = true;
	read->urgent = false;
	read->state = PREFETCH_READ_LANDED;
	TAILQ_INSERT_TAIL(&p->delivery.landed, read, link);
	pthread_cond_signal(&p->delivery.landed_cv);
}

/* A long read that nobody waits for lets those pass that readers wait for. */
static void give_way(struct prefetch *p)
{
	struct prefetch_read *read;
	prefetch_lock(p);
	while ((read = TAILQ_FIRST(&p->delivery.landed)) && read->urgent) {
		TAILQ_REMOVE(&p->delivery.landed, read, link);
		read->state = PREFETCH_READ_DELIVERY;
		prefetch_unlock(p);
		prefetch_deliver_read(p, read, false);
		prefetch_lock(p);
	}
	prefetch_unlock(p);
}

/* All demands are answered before the first store. */
void prefetch_deliver_read(struct prefetch *p, struct prefetch_read *read, bool stores)
{
	struct prefetch_block_list rest = STAILQ_HEAD_INITIALIZER(rest);
	struct prefetch_block *block;
	struct batch batch;
	if (read->answered)
		STAILQ_CONCAT(&rest, &read->blocks);
	while (!STAILQ_EMPTY(&read->blocks)) {
		batch_fill(&batch, &read->blocks);
		answer_blocks(p, read, &batch, &rest);
		if (read->warm_up && stores)
			give_way(p);
	}
	if (!stores && !STAILQ_EMPTY(&rest)) {
		STAILQ_CONCAT(&read->blocks, &rest);
		store_later(p, read);
		return;
	}
	if (p->sink && p->sink->ops->expect) {
		STAILQ_FOREACH(block, &rest, link)
		p->sink->ops->expect(p->sink, block->item->sample, cache_key_file(block->key));
	}
	while (!STAILQ_EMPTY(&rest)) {
		batch_fill(&batch, &rest);
		if (read->warm_up)
			give_way(p);
		for (uint32_t i = 0; i < batch.n; i++)
			batch.rcs[i] = store(p, batch.blocks[i]);
		end_blocks(p, &batch, true);
	}
	prefetch_engine_free_area(p, read);
	prefetch_lock_for_scope(p);
	prefetch_read_free(p, read);
	prefetch_engine_step(p, PREFETCH_MEMORY);
}

/* Waits for a read that has landed, and takes it.  Returns NULL when the thread shall end. */
static struct prefetch_read *wait_landed(struct prefetch *p)
{
	struct prefetch_read *read;
	prefetch_lock_for_scope(p);
	while (!(read = TAILQ_FIRST(&p->delivery.landed)) && !p->delivery.stop) {
		p->delivery.idle = true;
		pthread_cond_wait(&p->delivery.landed_cv, &p->lock);
		p->delivery.idle = false;
	}
	if (read) {
		TAILQ_REMOVE(&p->delivery.landed, read, link);
		read->state = PREFETCH_READ_DELIVERY;
	}
	return read;
}

void *prefetch_deliver_run(void *arg)
{
	struct prefetch *p = arg;
	struct prefetch_read *read;
	pthread_setname_np(pthread_self(), "deliver");
	p->figures.deliver_tid = gettid();
	while ((read = wait_landed(p)))
		prefetch_deliver_read(p, read, true);
	return NULL;
}
