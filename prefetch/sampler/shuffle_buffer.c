/* SPDX-License-Identifier: Apache-2.0 */
/* A sorted list behind a shuffle buffer (tf.data, WebDataset): the reader fills a buffer with the first files of the
 * list, opens any of them, and puts the next file of the list in its place.
 * prefetch/sampler/recognise_private.h first.
 *
 *   list    o o . o o o . o . o . . o . | . . . . . . . . .
 *           opened, or in the buffer    front: files opened + size of the buffer
 *
 * So all opens lie before the front.  A buffer is found if they do, and the front is an eighth of the list at most.
 * Readers who shuffle a short list of their own look the same at first, if that list is the beginning of this one: a
 * directory, or one rank's contiguous part.  If the opens lie all over such a shorter list, it is taken for theirs, and
 * nothing is found here.  Where a rank's part may end at the front, all likely seeds are tried before, unless a later
 * look shows that the front moves on: the first 96 opens of a part would come closer to its end in all but e^-12 of
 * cases.  The trainer goes on meanwhile, so what the first opens showed is kept (struct likely).  A track finds out
 * later whether the front moves (track.c). */
#include <math.h>
#include <string.h>

#include "prefetch/sampler/recognise_private.h"

enum {
	WORLD_MAX = 64,
};
/* The front is in this part of the list at most.  CLEAR: it is no rank's part. */
enum share { CLEAR, EIGHTH, ANYWHERE, SHARES };
static const uint32_t shares[SHARES] = { [CLEAR] = 64, [EIGHTH] = 8, [ANYWHERE] = 1 };
/* Opens that lie all over a list come so close to its ends in all but e^-12 of cases. */
static const double CONFINED_NATS = 12;

static bool has_most(const struct search *s, const struct target *target)
{
	return target->n_seen * 8 >= s->n_ring * 7;
}

static bool has_nearly_all(const struct search *s, const struct target *target)
{
	return target->n_seen * 32 >= s->n_ring * 31;
}

/* Whether the opens lie all over the list of the target. */
static bool lie_all_over(const struct target *target)
{
	uint32_t low = target->n, high = 0;
	for (uint32_t i = 0; i < target->n_seen; i++) {
		low = target->indices[i] < low ? target->indices[i] : low;
		high = target->indices[i] > high ? target->indices[i] : high;
	}
	return target->n_seen * log((double)target->n / (high - low + 1)) < CONFINED_NATS;
}

static bool fits(const struct search *s, const struct target *target, struct prefetch_fit *ret_fit)
{
	uint64_t positions[RING];
	for (uint32_t i = 0; i < target->n_seen; i++)
		positions[i] = target->indices[i];
	struct prefetch_fit_input input = {
		.positions = positions,
		.n = target->n_seen,
		.size = target->n,
		.seen = target->n_seen,
		.world_max = WORLD_MAX,
		.least = PREFETCH_FIT_SURE,
	};
	return has_most(s, target) && prefetch_fit(&input, ret_fit) && ret_fit->hits * 8 >= target->n_seen * 7;
}

static bool is_within(const struct target *target, const struct prefetch_fit *fit, uint32_t share)
{
	return (uint64_t)(fit->cells - fit->hits) * share * fit->world <= (uint64_t)target->n * fit->ranks;
}

/* Finds for each share the list whose beginning, up to this share of it, has all opens of the look. */
static void find(const struct prefetch_recognise *r, struct buffer_match ret_found[SHARES])
{
	const struct search *s = &r->search;
	const struct source source = { .sampler = PREFETCH_SAMPLER_SORTED, .buffer = 1 };
	struct prefetch_fit fit;
	unsigned rank, best_rank[SHARES] = { 0 };
	uint32_t file;
	memset(ret_found, 0, SHARES * sizeof(*ret_found));
	for (uint32_t i = 0; i < s->n_targets; i++) {
		const struct target *target = &s->targets[i];
		struct prefetch_list_part part;
		if (!target->list || prefetch_list_part(target->list, &part))
			continue; /* a rank's part: it is read by a stride, or looks like a list of its own */
		if (has_nearly_all(s, target) && lie_all_over(target)) {
			memset(ret_found, 0, SHARES * sizeof(*ret_found));
			return;
		}
		if (!fits(s, target, &fit) || prefetch_recognise_refused(r, &source, target->list) ||
		        prefetch_list_at(target->list, target->indices[0], &file) < 0)
			continue;
		rank = prefetch_search_plausible(r, target, file, 0);
		for (unsigned k = 0; k < SHARES; k++) {
			const struct prefetch_list *best = ret_found[k].list;
			if (!is_within(target, &fit, shares[k]) || (best && rank < best_rank[k]) ||
			        (best && rank == best_rank[k] && target->n >= prefetch_list_size(best)))
				continue;
			best_rank[k] = rank;
			ret_found[k] =
			        (struct buffer_match){ .list = target->list, .fit = fit, .opens = target->n_seen };
		}
	}
}

int prefetch_shuffle_buffer_accept(struct prefetch_recognise *r, const struct buffer_match *match)
{
	const struct prefetch_fit fit = match->fit;
	struct prefetch_list *list = match->list;
	struct source source = { .sampler = PREFETCH_SAMPLER_SORTED, .buffer = fit.cells - fit.hits + 1 };
	struct prefetch_part part = {
		.world = fit.world, .first = fit.first, .ranks = fit.ranks, .stride = fit.world / fit.ranks
	};
	prefetch_search_end(r);
	r->unexplained = 0;
	prefetch_unseeded_found(r, list);
	int rc = prefetch_track_new(r, &source, list, NULL, &fit, &part);
	return rc < 0 ? rc : 1;
}

int prefetch_shuffle_buffer_try(struct prefetch_recognise *r)
{
	const struct buffer_match *kept = &r->likely.buffer;
	struct buffer_match found[SHARES];
	find(r, found);
	r->search.buffer = found[EIGHTH];
	if (r->search.tail)
		return 0;
	if (found[CLEAR].list)
		return prefetch_shuffle_buffer_accept(r, &found[CLEAR]);
	if (kept->list && found[ANYWHERE].list == kept->list && found[ANYWHERE].fit.high / 9 * 8 > kept->fit.high)
		return prefetch_shuffle_buffer_accept(r, kept);
	if (r->search.all && !kept->list)
		r->likely.buffer = found[EIGHTH];
	return 0;
}
