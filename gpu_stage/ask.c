/* SPDX-License-Identifier: Apache-2.0 */
/* Demands for samples that read-ahead has not brought; ask.h first. */
#include "gpu_stage/ask.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct stage_ask {
	struct prefetch_demand demand; /* first: an answer is cast back to its ask */
	struct stage_asks *asks;
	struct stage_entry *entry;
	uint32_t block; /* of the entry */
	uint32_t len;   /* bytes of that block */
	struct stage_ask *next;
};

void stage_asks_init(struct stage_asks *asks, struct prefetch *prefetch, struct stage_store *store)
{
	*asks = (struct stage_asks){ .prefetch = prefetch, .store = store };
	pthread_mutex_init(&asks->lock, NULL);
	pthread_cond_init(&asks->cv, NULL);
}

static void answer(struct prefetch_demand *demand, int rc, const uint8_t *data, uint32_t len)
{
	struct stage_ask *ask = (struct stage_ask *)demand;
	struct stage_asks *asks = ask->asks;
	if (rc == 0 && len != ask->len)
		rc = -ESTALE; /* the index changes */
	uint8_t *to = rc == 0 ? stage_store_claim(asks->store, ask->entry, ask->block) : NULL;
	if (to) {
		memcpy(to, data, len);
		stage_store_wrote(asks->store, ask->entry, len);
	}
	if (rc < 0)
		stage_store_discard(asks->store, ask->entry);
	pthread_mutex_lock(&asks->lock);
	if (rc < 0 && asks->rc == 0) {
		asks->rc = rc;
		asks->file = demand->file;
		asks->block = demand->block;
	}
	if (--asks->pending == 0)
		pthread_cond_signal(&asks->cv);
	pthread_mutex_unlock(&asks->lock); /* the owner may free the ask from here on */
}

static void ask_block(struct stage_asks *asks, struct stage_ask *ask)
{
	pthread_mutex_lock(&asks->lock);
	asks->pending++;
	pthread_mutex_unlock(&asks->lock);
	ask->next = asks->first;
	asks->first = ask;
	prefetch_demand(asks->prefetch, &ask->demand);
}

int stage_asks_add(struct stage_asks *asks, struct stage_entry *entry)
{
	if (asks->n_entries == asks->room) {
		uint32_t room = asks->room ? asks->room * 2 : 64;
		struct stage_entry **bigger = realloc(asks->entries, room * sizeof(struct stage_entry *));
		if (!bigger)
			return -ENOMEM;
		asks->entries = bigger;
		asks->room = room;
	}
	for (uint32_t p = 0; p < entry->n_parts; p++) {
		const struct stage_part *part = &entry->parts[p];
		uint32_t end = p + 1 < entry->n_parts ? entry->parts[p + 1].first_block : entry->n_blocks;
		for (uint32_t b = part->first_block; b < end; b++) {
			if (stage_store_claimed(asks->store, entry, b))
				continue;
			struct stage_ask *ask = calloc(1, sizeof(*ask));
			if (!ask && p == 0 && b == 0)
				return -ENOMEM;
			if (!ask)
				break; /* the next round demands the missing blocks */
			ask->demand.file = part->file;
			ask->demand.block = b - part->first_block;
			ask->demand.direct = asks->again;
			ask->demand.done = answer;
			ask->asks = asks;
			ask->entry = entry;
			ask->block = b;
			ask->len = stage_part_block_len(part, ask->demand.block);
			ask_block(asks, ask);
		}
	}
	asks->entries[asks->n_entries++] = entry;
	asks->bytes += (uint64_t)entry->pages * 4096;
	return 0;
}

int stage_asks_wait(struct stage_asks *asks, uint32_t *ret_file, uint32_t *ret_block)
{
	pthread_mutex_lock(&asks->lock);
	while (asks->pending)
		pthread_cond_wait(&asks->cv, &asks->lock);
	int rc = asks->rc;
	if (rc < 0) {
		*ret_file = asks->file;
		*ret_block = asks->block;
		asks->rc = 0; /* returned: the owner may go on without that sample */
	}
	pthread_mutex_unlock(&asks->lock);
	while (asks->first) {
		struct stage_ask *ask = asks->first;
		asks->first = ask->next;
		free(ask);
	}
	return rc;
}

void stage_asks_unpin(struct stage_asks *asks)
{
	stage_store_unpin(asks->store, asks->entries, asks->n_entries);
	asks->n_entries = 0;
	asks->bytes = 0;
}

void stage_asks_done(struct stage_asks *asks)
{
	uint32_t file, block;
	stage_asks_wait(asks, &file, &block);
	stage_asks_unpin(asks);
	free(asks->entries);
	pthread_cond_destroy(&asks->cv);
	pthread_mutex_destroy(&asks->lock);
}
