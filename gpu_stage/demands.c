/* SPDX-License-Identifier: Apache-2.0 */
/* Demands for samples that read-ahead has not brought; demands.h first. */
#include "gpu_stage/demands.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shard/base/cleanup.h"

struct stage_demand {
	struct prefetch_demand demand; /* first: an answer is cast back to its ask */
	struct stage_demands *demands;
	struct stage_entry *entry;
	uint32_t block; /* of the entry */
	uint32_t len;   /* bytes of that block */
	struct stage_demand *next;
};

void stage_demands_init(struct stage_demands *demands, struct prefetch *prefetch, struct stage_samples *samples)
{
	*demands = (struct stage_demands){ .prefetch = prefetch, .samples = samples };
	pthread_mutex_init(&demands->lock, NULL);
	pthread_cond_init(&demands->cv, NULL);
}

static void answer(struct prefetch_demand *demand, int rc, const uint8_t *data, uint32_t len)
{
	struct stage_demand *ask = (struct stage_demand *)demand;
	struct stage_demands *demands = ask->demands;
	if (rc == 0 && len != ask->len)
		rc = -ESTALE; /* the index changes */
	uint8_t *to = rc == 0 ? stage_samples_claim(demands->samples, ask->entry, ask->block) : NULL;
	if (to) {
		memcpy(to, data, len);
		stage_samples_wrote(demands->samples, ask->entry, len);
	}
	if (rc < 0)
		stage_samples_discard(demands->samples, ask->entry);
	lock_for_scope(&demands->lock); /* the owner may free the ask from the end of this scope on */
	if (rc < 0 && demands->rc == 0) {
		demands->rc = rc;
		demands->file = demand->file;
		demands->block = demand->block;
	}
	if (--demands->pending == 0)
		pthread_cond_signal(&demands->cv);
}

static void ask_block(struct stage_demands *demands, struct stage_demand *ask)
{
	{
		lock_for_scope(&demands->lock);
		demands->pending++;
	}
	ask->next = demands->first;
	demands->first = ask;
	prefetch_demand(demands->prefetch, &ask->demand);
}

int stage_demands_add(struct stage_demands *demands, struct stage_entry *entry)
{
	if (demands->n_entries == demands->room) {
		uint32_t room = demands->room ? demands->room * 2 : 64;
		struct stage_entry **bigger = realloc(demands->entries, room * sizeof(struct stage_entry *));
		if (!bigger)
			return -ENOMEM;
		demands->entries = bigger;
		demands->room = room;
	}
	for (uint32_t p = 0; p < entry->n_parts; p++) {
		const struct stage_part *part = &entry->parts[p];
		uint32_t end = p + 1 < entry->n_parts ? entry->parts[p + 1].first_block : entry->n_blocks;
		for (uint32_t b = part->first_block; b < end; b++) {
			if (stage_samples_claimed(demands->samples, entry, b))
				continue;
			struct stage_demand *ask = calloc(1, sizeof(*ask));
			if (!ask && p == 0 && b == 0)
				return -ENOMEM;
			if (!ask)
				break; /* the next round demands the missing blocks */
			ask->demand.file = part->file;
			ask->demand.block = b - part->first_block;
			ask->demand.direct = demands->again;
			ask->demand.done = answer;
			ask->demands = demands;
			ask->entry = entry;
			ask->block = b;
			ask->len = stage_part_block_len(part, ask->demand.block);
			ask_block(demands, ask);
		}
	}
	demands->entries[demands->n_entries++] = entry;
	demands->bytes += (uint64_t)entry->pages * 4096;
	return 0;
}

int stage_demands_wait(struct stage_demands *demands, uint32_t *ret_file, uint32_t *ret_block)
{
	int rc;
	{
		lock_for_scope(&demands->lock);
		while (demands->pending)
			pthread_cond_wait(&demands->cv, &demands->lock);
		rc = demands->rc;
		if (rc < 0) {
			*ret_file = demands->file;
			*ret_block = demands->block;
			demands->rc = 0; /* returned: the owner may go on without that sample */
		}
	}
	while (demands->first) {
		struct stage_demand *ask = demands->first;
		demands->first = ask->next;
		free(ask);
	}
	return rc;
}

void stage_demands_unpin(struct stage_demands *demands)
{
	stage_samples_unpin(demands->samples, demands->entries, demands->n_entries);
	demands->n_entries = 0;
	demands->bytes = 0;
}

void stage_demands_done(struct stage_demands *demands)
{
	uint32_t file, block;
	stage_demands_wait(demands, &file, &block);
	stage_demands_unpin(demands);
	free(demands->entries);
	pthread_cond_destroy(&demands->cv);
	pthread_mutex_destroy(&demands->lock);
}
