/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of announced orders; fs/order_memory.h first. */
#include "fs/order_memory.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "shard/base/cleanup.h"
enum { BLOCK_BYTES = FS_ORDER_BLOCK * sizeof(uint32_t) };

struct fs_order_memory {
	struct fs_handover *handover;
	struct fs_handover_announced *announced;
	uint32_t n_blocks;

	pthread_mutex_t lock; /* guards what follows, and the owners */
	uint32_t *refs;       /* of each block */
	uint32_t next;        /* where the search for a free block begins */
	uint64_t n_used;      /* blocks with references */
	uint64_t booked_bytes, limit_bytes;
};

int fs_order_memory_new(struct fs_handover *handover, struct fs_order_memory **ret_memory)
{
	struct fs_order_memory *memory = calloc(1, sizeof(*memory));
	if (!memory)
		return -ENOMEM;
	memory->handover = handover;
	memory->announced = fs_handover_announced(handover);
	memory->n_blocks = fs_handover_blocks(handover);
	memory->limit_bytes = UINT64_MAX;
	memory->refs = calloc((size_t)memory->n_blocks + 1, sizeof(*memory->refs));
	if (!memory->refs) {
		free(memory);
		return -ENOMEM;
	}
	pthread_mutex_init(&memory->lock, NULL);
	*ret_memory = memory;
	return 0;
}

void fs_order_memory_free(struct fs_order_memory *memory)
{
	if (!memory)
		return;
	pthread_mutex_destroy(&memory->lock);
	free(memory->refs);
	free(memory);
}

void fs_order_memory_limit(struct fs_order_memory *memory, uint64_t limit_bytes)
{
	lock_for_scope(&memory->lock);
	memory->limit_bytes = limit_bytes;
}

/* Under the lock. */
static uint64_t bytes_used(const struct fs_order_memory *memory)
{
	return memory->n_used * BLOCK_BYTES + memory->booked_bytes;
}

uint64_t fs_order_memory_bytes(struct fs_order_memory *memory)
{
	lock_for_scope(&memory->lock);
	return bytes_used(memory);
}

bool fs_order_memory_fits(struct fs_order_memory *memory, uint64_t bytes)
{
	lock_for_scope(&memory->lock);
	uint64_t used = bytes_used(memory);
	return used <= memory->limit_bytes && bytes <= memory->limit_bytes - used;
}

void fs_order_memory_book(struct fs_order_memory *memory, int64_t bytes)
{
	lock_for_scope(&memory->lock);
	memory->booked_bytes += (uint64_t)bytes;
}

static uint64_t owner(uint32_t id, uint32_t number)
{
	return (uint64_t)id << 32 | number;
}

int fs_order_memory_take(struct fs_order_memory *memory, uint32_t id, uint32_t number, uint32_t *ret_block)
{
	lock_for_scope(&memory->lock);
	for (uint32_t i = 0; i < memory->n_blocks; i++) {
		uint32_t block = (memory->next + i) % memory->n_blocks;
		if (bytes_used(memory) + BLOCK_BYTES > memory->limit_bytes)
			break;
		if (memory->refs[block] > 0 || memory->announced->owners[block] != 0)
			continue;
		memory->refs[block] = 1;
		memory->announced->owners[block] = owner(id, number);
		memory->next = block + 1;
		memory->n_used++;
		*ret_block = block;
		return 0;
	}
	return -ENOSPC;
}

int fs_order_memory_claim(struct fs_order_memory *memory, uint32_t id, uint32_t number, uint32_t *ret_block)
{
	lock_for_scope(&memory->lock);
	for (uint32_t block = 0; block < memory->n_blocks; block++) {
		if (memory->announced->owners[block] != owner(id, number))
			continue;
		memory->n_used += memory->refs[block]++ == 0;
		*ret_block = block;
		return 0;
	}
	return -ENOENT;
}

/* Nobody takes a block that has an owner. */
static bool is_left(struct fs_order_memory *memory, uint32_t block)
{
	lock_for_scope(&memory->lock);
	return memory->refs[block] == 0 && memory->announced->owners[block] != 0;
}

void fs_order_memory_sweep(struct fs_order_memory *memory)
{
	for (uint32_t block = 0; block < memory->n_blocks; block++) {
		if (!is_left(memory, block))
			continue;
		fs_handover_release_block(memory->handover, block);
		lock_for_scope(&memory->lock);
		memory->announced->owners[block] = 0;
	}
}

void fs_order_memory_get(struct fs_order_memory *memory, uint32_t block)
{
	lock_for_scope(&memory->lock);
	assert(memory->refs[block] > 0);
	memory->refs[block]++;
}

/* Returns whether it was the last reference. */
static bool drop_reference(struct fs_order_memory *memory, uint32_t block)
{
	lock_for_scope(&memory->lock);
	assert(memory->refs[block] > 0);
	return --memory->refs[block] == 0;
}

void fs_order_memory_put(struct fs_order_memory *memory, uint32_t block)
{
	if (!drop_reference(memory, block))
		return;
	fs_handover_release_block(memory->handover, block);
	lock_for_scope(&memory->lock);
	memory->announced->owners[block] = 0;
	memory->n_used--;
}

uint32_t *fs_order_memory_entries(struct fs_order_memory *memory, uint32_t block)
{
	return fs_handover_block(memory->handover, block);
}

struct fs_handover_announced *fs_order_memory_records(struct fs_order_memory *memory)
{
	return memory->announced;
}
