/* SPDX-License-Identifier: Apache-2.0 */
/* Makes lists of one rank's part, for trainers that share out the files before they shuffle: each rank shuffles its own
 * part.  prefetch/sampler/recognise_private.h first.
 *
 * The opens say which part it is, because all of them are in it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "prefetch/sampler/recognise_private.h"

enum {
	RANKS_MAX = 64,
	FILES_MIN = RING, /* of a part: in a shorter one many opens lie for other reasons */
};

int prefetch_part_lists_get(struct prefetch_recognise *r, struct prefetch_list *whole,
        const struct prefetch_list_part *part, struct prefetch_list **ret_list)
{
	struct prefetch_list *list;
	int rc = prefetch_list_new_part(whole, part, &list);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < r->n_part_lists; i++) {
		if (!prefetch_list_equal(list, r->part_lists[i]))
			continue;
		prefetch_list_put(list);
		*ret_list = r->part_lists[i];
		return 0;
	}
	if (r->n_part_lists == PART_LISTS_MAX) {
		prefetch_list_put(list);
		return -ENOSPC;
	}
	r->part_lists[r->n_part_lists++] = list;
	*ret_list = list;
	return 0;
}

static int add(struct prefetch_recognise *r, const struct target *target, const struct prefetch_list_part *part)
{
	struct prefetch_list *list;
	if (part->n < FILES_MIN)
		return 0;
	int rc = prefetch_part_lists_get(r, target->list, part, &list);
	return rc == -ENOMEM ? rc : 0;
}

static int compare_indices(const void *a, const void *b)
{
	const uint32_t *x = a, *y = b;
	return (*x > *y) - (*x < *y);
}

/* list[rank::world]: the largest world in which seven of eight opens have the same residue. */
static int add_stride(struct prefetch_recognise *r, const struct target *target)
{
	for (uint32_t world = RANKS_MAX; world >= 2; world--) {
		uint16_t opens[RANKS_MAX] = { 0 };
		uint32_t most = 0;
		for (uint32_t i = 0; i < target->n_seen; i++)
			opens[target->indices[i] % world]++;
		for (uint32_t rank = 1; rank < world; rank++)
			most = opens[rank] > opens[most] ? rank : most;
		if (opens[most] * 8 < target->n_seen * 7)
			continue;
		struct prefetch_list_part part = {
			.start = most,
			.stride = world,
			.n = (target->n - most + world - 1) / world,
		};
		return add(r, target, &part);
	}
	return 0;
}

/* Contiguous parts that hold all opens but a sixteenth at either end, which lie all over them. */
static int add_contiguous(struct prefetch_recognise *r, const struct target *target)
{
	uint32_t sorted[RING] = { 0 }, n = target->n_seen;
	memcpy(sorted, target->indices, n * sizeof(*sorted));
	qsort(sorted, n, sizeof(*sorted), compare_indices);
	uint32_t low = sorted[n / 16], high = sorted[n - 1 - n / 16];
	for (uint32_t world = 2; world <= RANKS_MAX && world * 2 * PREFETCH_FIT_HITS_MIN <= target->n; world++) {
		for (unsigned kind = PARTS_UP; kind < PARTS_KINDS; kind++) {
			struct parts parts = { .n = target->n, .world = world, .kind = kind };
			uint32_t rank = (uint32_t)((uint64_t)(low + 1) * world / target->n);
			/* Rounding moves the borders by less than a part. */
			for (uint32_t k = rank > 0 ? rank - 1 : 0; k <= rank + 1 && k < world; k++) {
				uint32_t start = prefetch_parts_start(&parts, k);
				uint32_t end = prefetch_parts_start(&parts, k + 1);
				if (low < start || high >= end ||
				        (uint64_t)(high - low) * 4 < (uint64_t)(end - start) * 3)
					continue;
				struct prefetch_list_part part = { .start = start, .stride = 1, .n = end - start };
				int rc = add(r, target, &part);
				if (rc < 0)
					return rc;
			}
		}
	}
	return 0;
}

int prefetch_part_lists_add(struct prefetch_recognise *r, const struct target *target)
{
	int rc = add_stride(r, target);
	return rc < 0 ? rc : add_contiguous(r, target);
}
