/* SPDX-License-Identifier: Apache-2.0 */
/* Makes lists of one rank's part, for trainers that share out the files before they shuffle: each rank shuffles its own
 * part.  prefetch/sampler/recognise_private.h first.
 *
 * If one rank reads, the opens say which part it is, because all of them are in it.  If several ranks read through one
 * mount, their opens lie all over the list.  Ranks with the same seed (DLIO) open the same places of their parts:
 *
 *      list     |   x  x     x     |   x  x     x     |   x  x           |
 *                rank 0             rank 1             rank 2
 *
 * If they do so in one division of the list, its part with most opens is tried.  Otherwise, ranks may have seeds of
 * their own, and the same is tried with 2, 4 and 8 parts.  When one rank is found, the parts of the others are known.
 * A rank whose opens are unexpected has begun another order, so its part is tried again. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "prefetch/sampler/recognise_private.h"

enum {
	RANKS_MAX = 64,
	FILES_MIN = RING, /* of a part: in a shorter one many opens lie for other reasons */
	HOST_RANKS = 8,   /* ranks that each have a part, through one mount */
	HOST_LOOK = 128,  /* opens: before, one reader of the list is more likely */
	RANK_OPENS = 48,  /* of the rank that is tried, at least */
};
static const enum parts_kind KINDS[] = { PARTS_SPREAD, PARTS_UP }; /* one is tried if they are the same */
static const double SAME_LEAST = 0.4;    /* of 1: ranks that are not at the same turn share fewer places */
static const double SAME_AS_BEST = 0.93; /* 8 parts of 4 ranks have 6/7 of the sameness of 4 */

int prefetch_part_lists_make(struct prefetch_recognise *r, struct prefetch_list *whole,
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

int prefetch_part_lists_get(struct prefetch_recognise *r, struct prefetch_list *whole,
        const struct prefetch_list_part *part, struct prefetch_list **ret_list)
{
	int rc = prefetch_part_lists_make(r, whole, part, ret_list);
	for (uint32_t i = 0; rc == 0 && i < SINGLE_PARTS_MAX; i++) {
		if (r->single_parts[i] == *ret_list)
			return 0;
	}
	if (rc == 0)
		r->single_parts[r->n_single_parts++ % SINGLE_PARTS_MAX] = *ret_list;
	return rc;
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

static struct prefetch_list_part part_of(const struct parts *parts, uint32_t rank)
{
	uint32_t start = prefetch_parts_start(parts, rank);
	return (struct prefetch_list_part){
		.start = start, .stride = 1, .n = prefetch_parts_start(parts, rank + 1) - start
	};
}

/* Adds a rank's part to the lists of this look. */
static int add_rank(struct prefetch_recognise *r, const struct target *whole, const struct parts *parts, uint32_t rank,
        struct rank_lists *ret_lists)
{
	struct prefetch_list_part part = part_of(parts, rank);
	struct prefetch_list *list;
	if (part.n < FILES_MIN || ret_lists->n == HOST_RANKS_TRIED)
		return 0;
	int rc = prefetch_part_lists_make(r, whole->list, &part, &list);
	if (rc == 0)
		ret_lists->lists[ret_lists->n++] = list;
	return rc == -ENOMEM ? rc : 0;
}

/* Whether a track follows this part of the list. */
static bool is_followed(
        const struct prefetch_recognise *r, const struct target *whole, const struct parts *parts, uint32_t rank)
{
	struct prefetch_list_part want = part_of(parts, rank), part;
	for (unsigned i = 0; i < r->n_tracks; i++) {
		const struct prefetch_list *list = r->tracks[i]->list;
		if (list && prefetch_list_whole(list) == whole->list && prefetch_list_part(list, &part) &&
		        part.start == want.start && part.stride == 1 && part.n == want.n)
			return true;
	}
	return false;
}

/* Finds the parts of the list of which a track follows one.  Returns false if there are none. */
static bool followed_parts(const struct prefetch_recognise *r, const struct target *whole, struct parts *ret_parts)
{
	for (uint32_t world = 2; world <= HOST_RANKS; world++) {
		for (unsigned kind = PARTS_UP; kind < PARTS_KINDS; kind++) {
			struct parts parts = { .n = whole->n, .world = world, .kind = kind };
			for (uint32_t rank = 0; rank < world; rank++) {
				if (!is_followed(r, whole, &parts, rank))
					continue;
				*ret_parts = parts;
				return true;
			}
		}
	}
	return false;
}

static void count_opens(const struct target *whole, const struct parts *parts, uint32_t ret_opens[HOST_RANKS])
{
	memset(ret_opens, 0, HOST_RANKS * sizeof(*ret_opens));
	for (uint32_t i = 0; i < whole->n_seen; i++) {
		uint32_t rank = 0;
		while (rank + 1 < parts->world && prefetch_parts_start(parts, rank + 1) <= whole->indices[i])
			rank++;
		ret_opens[rank]++;
	}
}

static uint32_t rank_with_most(const struct target *whole, const struct parts *parts)
{
	uint32_t opens[HOST_RANKS], most = 0;
	count_opens(whole, parts, opens);
	for (uint32_t rank = 1; rank < parts->world; rank++)
		most = opens[rank] > opens[most] ? rank : most;
	return most;
}

/* Returns how many of n draws from `places` places would meet a place that was drawn before, at random. */
static double repeats_by_chance(uint32_t n, uint32_t places)
{
	double unmet = places;
	for (uint32_t i = 0; i < n; i++)
		unmet -= unmet / places;
	return n - (places - unmet);
}

/* Returns to what degree the opens lie at the same places of all parts: 0, as by chance, to 1, each place in each. */
static double sameness(const struct target *whole, const struct parts *parts)
{
	uint32_t places[RING], n = whole->n_seen, repeats = 0;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t rank = 0;
		while (rank + 1 < parts->world && prefetch_parts_start(parts, rank + 1) <= whole->indices[i])
			rank++;
		places[i] = whole->indices[i] - prefetch_parts_start(parts, rank);
	}
	qsort(places, n, sizeof(*places), compare_indices);
	for (uint32_t i = 1; i < n; i++)
		repeats += places[i] == places[i - 1];
	double chance = repeats_by_chance(n, whole->n / parts->world), most = n - (double)n / parts->world;
	return most > chance ? (repeats - chance) / (most - chance) : 0;
}

/* Finds the largest number of parts in which the opens lie at the same places: the halves of 4 such parts are the same,
 * too.  Returns false if there are none. */
static bool same_parts(const struct target *whole, struct parts *ret_parts)
{
	double best = 0;
	for (uint32_t world = 2; world <= HOST_RANKS && whole->n_seen >= world * RANK_OPENS; world++) {
		for (unsigned k = 0; k < (whole->n % world ? 2 : 1); k++) {
			struct parts parts = { .n = whole->n, .world = world, .kind = KINDS[k] };
			double same = sameness(whole, &parts);
			if (same < SAME_LEAST || same < best * SAME_AS_BEST)
				continue;
			best = same > best ? same : best;
			*ret_parts = parts;
		}
	}
	return best > 0;
}

int prefetch_part_lists_of_ranks(struct prefetch_recognise *r, const struct target *whole, struct rank_lists *ret_lists)
{
	bool full = r->n_tracks == PREFETCH_TRACKS_MAX; /* another one would end one of these */
	uint32_t opens[HOST_RANKS];
	struct parts parts;
	int rc = 0;
	if (followed_parts(r, whole, &parts)) {
		count_opens(whole, &parts, opens);
		for (uint32_t rank = 0; rank < parts.world && rc == 0; rank++) {
			/* A rank that is followed may have begun another order. */
			bool followed = is_followed(r, whole, &parts, rank);
			if (followed ? opens[rank] >= RANK_OPENS : !full)
				rc = add_rank(r, whole, &parts, rank, ret_lists);
		}
		return rc;
	}
	if (full)
		return 0;
	if (same_parts(whole, &parts))
		return add_rank(r, whole, &parts, rank_with_most(whole, &parts), ret_lists);
	ret_lists->unsure = true;
	for (uint32_t world = 2; world <= HOST_RANKS && r->search.n_ring >= HOST_LOOK; world *= 2) {
		for (unsigned k = 0; k < (whole->n % world ? 2 : 1) && rc == 0; k++) {
			parts = (struct parts){ .n = whole->n, .world = world, .kind = KINDS[k] };
			if (whole->n_seen >= world * RANK_OPENS)
				rc = add_rank(r, whole, &parts, rank_with_most(whole, &parts), ret_lists);
		}
	}
	return rc;
}

int prefetch_part_lists_add(struct prefetch_recognise *r, const struct target *target)
{
	int rc = add_stride(r, target);
	return rc < 0 ? rc : add_contiguous(r, target);
}
