/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks of announced lists, and their tables; fs/announced_chunk.h first. */
#include "fs/announced_chunk.h"

#include <errno.h>
#include <stdlib.h>

enum {
	BUCKET_BITS_MIN = 4,
	BUCKET_BITS_MAX = 15,
};

/* The samples of a block, found by hash: turns[starts[b]] .. turns[starts[b + 1] - 1] are the entries of bucket b, in
 * order. Immutable, with a reference count: the chunks that have the block share it. */
struct fs_announced_table {
	atomic_uint refs;
	uint32_t n; /* entries of the block that are in it */
	unsigned bits;
	uint32_t bytes; /* booked */
	uint16_t *turns;
	uint32_t starts[];
};
_Static_assert(FS_ORDER_BLOCK <= UINT16_MAX + 1, "a turn of a block fits 16 bits");

static uint32_t bucket_of(uint32_t sample, unsigned bits)
{
	return (sample * UINT32_C(0x9E3779B1)) >> (32 - bits);
}

static void table_put(struct fs_order_memory *memory, struct fs_announced_table *table)
{
	if (!table || atomic_fetch_sub(&table->refs, 1) > 1)
		return;
	fs_order_memory_book(memory, -(int64_t)table->bytes);
	free(table->turns);
	free(table);
}

/* A counting sort by bucket, which keeps the order within a bucket. */
static int table_new(
        struct fs_order_memory *memory, const uint32_t *samples, uint32_t n, struct fs_announced_table **ret_table)
{
	unsigned bits = BUCKET_BITS_MIN;
	while (bits < BUCKET_BITS_MAX && UINT32_C(1) << bits < n)
		bits++;
	size_t buckets = (size_t)1 << bits;
	size_t size = sizeof(struct fs_announced_table) + (buckets + 1) * sizeof(uint32_t);
	uint32_t bytes = (uint32_t)(size + n * sizeof(uint16_t));
	struct fs_announced_table *table = calloc(1, size);
	uint16_t *turns = malloc(n * sizeof(*turns));
	if (!table || !turns) {
		free(table);
		free(turns);
		return -ENOMEM;
	}
	fs_order_memory_book(memory, bytes);
	atomic_init(&table->refs, 1);
	table->n = n;
	table->bits = bits;
	table->bytes = bytes;
	table->turns = turns;
	uint32_t *starts = table->starts;
	for (uint32_t i = 0; i < n; i++)
		starts[bucket_of(samples[i], bits)]++;
	uint32_t end = 0;
	for (size_t b = 0; b <= buckets; b++) {
		end += starts[b];
		starts[b] = end; /* the end of bucket b; it moves to the start as entries come, from the last one on */
	}
	for (uint32_t i = n; i-- > 0;)
		turns[--starts[bucket_of(samples[i], bits)]] = (uint16_t)i;
	*ret_table = table;
	return 0;
}

/* Finds the first entry of a sample at or behind `from`. Returns n if there is none. */
static uint32_t table_find(
        const struct fs_announced_table *table, const uint32_t *samples, uint32_t sample, uint32_t from)
{
	uint32_t bucket = bucket_of(sample, table->bits);
	uint32_t low = table->starts[bucket], end = table->starts[bucket + 1], high = end;
	while (from > 0 && low < high) {
		uint32_t mid = low + (high - low) / 2;
		if (table->turns[mid] < from)
			low = mid + 1;
		else
			high = mid;
	}
	for (; low < end; low++) {
		if (samples[table->turns[low]] == sample)
			return table->turns[low];
	}
	return table->n;
}

void fs_announced_chunk_put(struct fs_announced_chunk *chunk)
{
	if (!chunk || atomic_fetch_sub(&chunk->refs, 1) > 1)
		return;
	for (uint32_t i = 0; i < chunk->n_blocks; i++) {
		table_put(chunk->memory, chunk->tables[i]);
		fs_order_memory_put(chunk->memory, chunk->blocks[i]);
	}
	free(chunk);
}

int fs_announced_chunk_new(struct fs_order_memory *memory, uint64_t number, const uint32_t *blocks, uint64_t n,
        const struct fs_announced_chunk *old, struct fs_announced_chunk **ret_chunk)
{
	struct fs_announced_chunk *chunk = calloc(1, sizeof(*chunk));
	if (!chunk)
		return -ENOMEM;
	atomic_init(&chunk->refs, 1);
	chunk->memory = memory;
	chunk->number = number;
	chunk->n = n;
	for (uint64_t at = 0; at < n; at += FS_ORDER_BLOCK) {
		uint32_t i = chunk->n_blocks, m = (uint32_t)(n - at < FS_ORDER_BLOCK ? n - at : FS_ORDER_BLOCK);
		int rc = 0;
		if (old && i < old->n_blocks && old->tables[i]->n == m) {
			chunk->tables[i] = old->tables[i];
			atomic_fetch_add(&chunk->tables[i]->refs, 1);
		} else {
			rc = table_new(memory, fs_order_memory_entries(memory, blocks[i]), m, &chunk->tables[i]);
		}
		if (rc < 0) {
			fs_announced_chunk_put(chunk);
			return rc;
		}
		fs_order_memory_get(memory, blocks[i]);
		chunk->blocks[i] = blocks[i];
		chunk->n_blocks++;
	}
	*ret_chunk = chunk;
	return 0;
}

struct fs_announced_chunk *fs_announced_chunk_get(struct fs_announced_chunk *chunk)
{
	if (chunk)
		atomic_fetch_add(&chunk->refs, 1);
	return chunk;
}

uint32_t fs_announced_chunk_sample(const struct fs_announced_chunk *chunk, uint64_t turn)
{
	return fs_order_memory_entries(chunk->memory, chunk->blocks[turn / FS_ORDER_BLOCK])[turn % FS_ORDER_BLOCK];
}

bool fs_announced_chunk_find(const struct fs_announced_chunk *chunk, uint32_t sample, uint64_t from, uint64_t *ret_turn)
{
	uint32_t start = (uint32_t)(from % FS_ORDER_BLOCK);
	for (uint64_t block = from / FS_ORDER_BLOCK; block < chunk->n_blocks; block++, start = 0) {
		const struct fs_announced_table *table = chunk->tables[block];
		const uint32_t *samples = fs_order_memory_entries(chunk->memory, chunk->blocks[block]);
		uint32_t turn = table_find(table, samples, sample, start);
		if (turn < table->n) {
			*ret_turn = block * FS_ORDER_BLOCK + turn;
			return true;
		}
	}
	return false;
}
