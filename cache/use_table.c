/* SPDX-License-Identifier: Apache-2.0 */
/* A table of uses; cache/use_table.h first. */
#include "cache/use_table.h"

#include <assert.h>
#include <stdlib.h>

static_assert(CACHE_USE_PARTS < 16, "a part fits half a byte");

uint64_t cache_use_table_bytes(uint32_t n)
{
	return sizeof(struct cache_use_table) + ((uint64_t)n + 1) / 2;
}

struct cache_use_table *cache_use_table_new(uint32_t n)
{
	struct cache_use_table *table = calloc(1, cache_use_table_bytes(n));
	if (table)
		table->n = n;
	return table;
}

void cache_use_table_set(struct cache_use_table *table, uint32_t sample, uint64_t turn, uint64_t turns)
{
	assert(sample < table->n && turn < turns);
	uint32_t before = cache_use_table_get(table, sample), part = (uint32_t)(turn * CACHE_USE_PARTS / turns + 1);
	if (before == 0 || part < before)
		table->parts[sample / 2] ^= (uint8_t)((before ^ part) << sample % 2 * 4);
}

uint32_t cache_use_table_get(const struct cache_use_table *table, uint32_t sample)
{
	return sample < table->n ? table->parts[sample / 2] >> sample % 2 * 4 & 15 : 0;
}
