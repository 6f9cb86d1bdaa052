/* SPDX-License-Identifier: Apache-2.0 */
/* Read-ahead within a file, block by block; prefetch/prefetch.h first.
 *
 * It serves files that are too large to be read ahead whole, and files of readers with an order of their own.  If a
 * reader demands two blocks in a row, it will probably demand the next ones.  So they are read into landing memory:
 * one block at first, then twice as many each time.  The kernel does the same with pages (mm/readahead.c).
 *
 *     block:    0    1    2    3    4    5    6    7    8    9
 *     asked:    0 -> 1
 *     read on:       |    2 -> 3 .. 4 -> 5 .. 8                */
#include "prefetch/engine.h"

#include <errno.h>

enum {
	RUN_BLOCKS_MAX = 8, /* blocks that are read ahead at a time */
	RUN_SHARE = 8,      /* a run may take this part (an eighth) of landing memory */
};

void prefetch_readahead_init(struct prefetch *p, uint64_t landing_bytes)
{
	uint64_t blocks = landing_bytes / RUN_SHARE / SHARD_BLOCK;
	p->run_max = blocks < RUN_BLOCKS_MAX ? (uint32_t)blocks : RUN_BLOCKS_MAX;
	for (uint32_t i = 0; i < PREFETCH_RUNS; i++)
		p->locked.runs[i].file = SHARD_NONE;
}

/* Gives the blocks [*ret_from, *ret_to) of the file that are read ahead now.  Under lock. */
static void advance(struct prefetch *p, uint32_t file, uint32_t block, uint32_t n_blocks, bool there,
        uint32_t *ret_from, uint32_t *ret_to)
{
	struct prefetch_run *run = NULL;
	*ret_from = *ret_to = 0;
	for (uint32_t i = 0; i < PREFETCH_RUNS && !run; i++)
		if (p->locked.runs[i].file == file)
			run = &p->locked.runs[i];
	if (run && block + 1 == run->next)
		return; /* another demand for the same block */
	if (!run)
		run = &p->locked.runs[p->locked.run_at++ % PREFETCH_RUNS];
	if (run->file != file || block != run->next) {
		*run = (struct prefetch_run){ .file = file, .next = block + 1, .upto = block + 1 };
		return;
	}
	/* A block that was read ahead is gone: landing memory has no room for so many. */
	if (block < run->upto && !there) {
		run->ahead = 0;
		run->upto = block + 1;
	}
	run->next = block + 1;
	run->ahead = run->ahead ? 2 * run->ahead : 1;
	if (run->ahead > p->run_max)
		run->ahead = p->run_max;
	uint32_t to = n_blocks - run->next < run->ahead ? n_blocks : run->next + run->ahead;
	uint32_t from = run->upto > run->next ? run->upto : run->next;
	if (from >= to)
		return;
	run->upto = to;
	*ret_from = from;
	*ret_to = to;
}

void prefetch_readahead_demanded(
        struct prefetch *p, uint32_t file, const struct shard_place *place, uint32_t block, bool there)
{
	uint32_t from, to, n_blocks = shard_blocks(place->length);
	if (n_blocks < 2 || !p->run_max)
		return;
	{
		prefetch_lock_for_scope(p);
		advance(p, file, block, n_blocks, there, &from, &to);
	}
	for (uint32_t b = from; b < to; b++) {
		uint64_t key = cache_block_key(file, b), offset, xxh3;
		uint32_t len;
		if (shard_index_block(p->options.index, file, b, &offset, &len, &xxh3) < 0)
			break;
		struct cache_buffer *buffer;
		{
			prefetch_lock_for_scope(p);
			buffer = cache_find(p->cache, key);
			if (!buffer && !prefetch_block_find(p, key))
				prefetch_queue_block(p, key, place, offset, len, xxh3, NULL);
		}
		if (buffer)
			prefetch_put(p, buffer);
	}
}
