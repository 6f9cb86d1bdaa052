/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays that grow, and orders of numbers for qsort(3).
 *
 * Threads: any; an array belongs to its caller. */
#ifndef DDPFS_SHARD_BASE_LIST_H
#define DDPFS_SHARD_BASE_LIST_H

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

/* Makes room for one more entry.  list: the address of the pointer to the array, which free() releases.  n: entries in
 * use.  *room: entries allocated; both begin with 0.  entry_bytes: of one entry.
 * Returns 0, or -ENOMEM: then nothing has changed. */
static inline int base_grow(void *list, size_t n, size_t *room, size_t entry_bytes)
{
	if (n < *room)
		return 0;
	size_t more = *room ? *room * 2 : 64;
	void *grown = reallocarray(*(void **)list, more, entry_bytes);
	if (!grown)
		return -ENOMEM;
	*(void **)list = grown;
	*room = more;
	return 0;
}

/* For qsort(3) and bsearch(3): ascending numbers. */
static inline int base_compare_u32(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return (x > y) - (x < y);
}

static inline int base_compare_u64(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

#endif
