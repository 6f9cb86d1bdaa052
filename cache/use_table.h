/* SPDX-License-Identifier: Apache-2.0 */
/* When a host uses each sample in one epoch: half a byte a sample, for orders whose inverse costs much memory.
 *
 * Threads: one, until the table is complete.  Then it is constant, and any thread may read it. */
#ifndef DDPFS_CACHE_USE_TABLE_H
#define DDPFS_CACHE_USE_TABLE_H

#include <stdint.h>

enum { CACHE_USE_PARTS = 8 }; /* equal parts of an epoch */

struct cache_use_table {
	uint32_t n;      /* samples */
	uint8_t parts[]; /* of two samples each: 0: it is not used, else the part of the epoch + 1 */
};

/* Makes a table in which no sample is used.  n: samples of the dataset.  free(3) frees it.  NULL: no memory. */
struct cache_use_table *cache_use_table_new(uint32_t n);
/* Returns the bytes of such a table. */
uint64_t cache_use_table_bytes(uint32_t n);
/* Notes that a sample is used at `turn` of `turns`, of all ranks.  Of several uses, the first turn counts.
 * sample: below n; turn: below turns. */
void cache_use_table_set(struct cache_use_table *table, uint32_t sample, uint64_t turn, uint64_t turns);
/* Returns the part of the epoch in which a sample is used, + 1; 0: it is not used, or there is no such sample. */
uint32_t cache_use_table_get(const struct cache_use_table *table, uint32_t sample);

#endif
