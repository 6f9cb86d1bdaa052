/* SPDX-License-Identifier: Apache-2.0 */
/* The table of blocks on their way, and the pools of blocks and reads; prefetch/engine.h first. */
#include "prefetch/engine.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static struct prefetch_block **bucket_of(struct prefetch *p, uint64_t key)
{
	uint64_t h = key * UINT64_C(0x9e3779b97f4a7c15);
	return &p->locked.blocks[(h >> 40) % PREFETCH_BLOCK_BUCKETS];
}

struct prefetch_block *prefetch_block_find(struct prefetch *p, uint64_t key)
{
	struct prefetch_block *block = *bucket_of(p, key);
	while (block && block->key != key)
		block = block->hash_next;
	return block;
}

/* Freed blocks and reads are used again, so that after some time the read path allocates nothing. */
struct prefetch_block *prefetch_block_new(struct prefetch *p, uint64_t key)
{
	struct prefetch_block *block = STAILQ_FIRST(&p->locked.free_blocks);
	if (block)
		STAILQ_REMOVE_HEAD(&p->locked.free_blocks, link);
	else
		block = malloc(sizeof(*block));
	if (!block)
		return NULL;
	struct prefetch_block **bucket = bucket_of(p, key);
	memset(block, 0, sizeof(*block));
	block->key = key;
	block->epoch = CACHE_TIER_USES_LATEST;
	block->hash_next = *bucket;
	*bucket = block;
	return block;
}

void prefetch_block_unhash(struct prefetch *p, struct prefetch_block *block)
{
	struct prefetch_block **link = bucket_of(p, block->key);
	while (*link != block)
		link = &(*link)->hash_next;
	*link = block->hash_next;
}

void prefetch_block_free(struct prefetch *p, struct prefetch_block *block)
{
	assert(!block->waiters);
	STAILQ_INSERT_HEAD(&p->locked.free_blocks, block, link);
}

struct prefetch_read *prefetch_read_new(struct prefetch *p)
{
	struct prefetch_read *read = TAILQ_FIRST(&p->locked.free_reads);
	if (read)
		TAILQ_REMOVE(&p->locked.free_reads, read, link);
	else
		read = malloc(sizeof(*read));
	if (!read)
		return NULL;
	memset(read, 0, sizeof(*read));
	STAILQ_INIT(&read->blocks);
	read->entry = UINT32_MAX;
	return read;
}

void prefetch_read_free(struct prefetch *p, struct prefetch_read *read)
{
	assert(STAILQ_EMPTY(&read->blocks) && !read->area);
	TAILQ_INSERT_HEAD(&p->locked.free_reads, read, link);
}

void prefetch_blocks_done(struct prefetch *p)
{
	struct prefetch_read *read;
	struct prefetch_block *block;
	for (unsigned i = 0; i < PREFETCH_BLOCK_BUCKETS; i++)
		assert(!p->locked.blocks[i]);
	while ((read = TAILQ_FIRST(&p->locked.free_reads))) {
		TAILQ_REMOVE(&p->locked.free_reads, read, link);
		free(read);
	}
	while ((block = STAILQ_FIRST(&p->locked.free_blocks))) {
		STAILQ_REMOVE_HEAD(&p->locked.free_blocks, link);
		free(block);
	}
}
