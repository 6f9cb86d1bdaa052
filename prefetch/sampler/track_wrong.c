/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out that a track is wrong, and drops it or makes another one of it.  prefetch/sampler/track_private.h first. */
#include <stdlib.h>

#include "prefetch/sampler/track_private.h"
#include "shard/base/list.h"

enum {
	WRONG_OPENS = 64,     /* a track is not judged before so many opens */
	WRONG_SHARE = 16,     /* wrong: fewer than one in so many opens of the list's files was expected */
	WRONG_STRETCHES = 16, /* equal pieces of the list */
	APART_MIN = 256,      /* positions between two readers with a part each; two workers' batches are closer */
	APART_MAX = 1024,     /* in a long list */
};

/* Whether the opens are not those of a shuffle buffer: most lie elsewhere, it would hold half of the list, or the
 * farthest does not move on with each open.  A buffer of B files has not opened one of the latest k that it took in
 * with probability exp(-k^2 / 2B). */
static bool is_no_buffer(const struct track *t)
{
	uint64_t turns = prefetch_track_turns_opened(t), end = prefetch_sequence_turns(t->now);
	uint64_t taken = t->opened + t->held, late = taken > turns ? taken - turns : 0;
	if ((t->missed >= WRONG_LATEST && t->fitted * 2 < t->missed) || t->held > end / 2)
		return true;
	return taken < end && late > BUFFER_SPARE && late * late > UINT64_C(144) * t->held;
}

bool prefetch_track_is_wrong(const struct prefetch_recognise *r, const struct track *t)
{
	uint64_t positions[RING];
	uint32_t indices[WRONG_LATEST];
	uint32_t n = t->n_recent < WRONG_LATEST ? (uint32_t)t->n_recent : WRONG_LATEST, stretches = 0;
	struct prefetch_part part;
	if (t->unverified && t->missed >= VERIFIED_OPENS && t->fitted * 2 < t->missed)
		return true;
	if (is_buffered(t))
		return is_no_buffer(t);
	if (t->missed >= WRONG_LATEST && t->fitted * WRONG_SHARE < t->missed)
		return t->source.sampler <= PREFETCH_SAMPLER_SORTED;
	/* Only opens since the track was made count.  Else track and search could alternate without any new open. */
	if (n < WRONG_OPENS || r->opens < t->made_at + WRONG_OPENS)
		return false;
	if (t->source.sampler != PREFETCH_SAMPLER_SORTED && t->source.sampler != PREFETCH_SAMPLER_OWN)
		return false;
	for (uint32_t i = 0; i < n; i++) {
		positions[i] = t->recent[(t->n_recent - n + i) % RING];
		stretches |= UINT32_C(1) << (positions[i] * WRONG_STRETCHES / t->size);
	}
	prefetch_part(positions, n, &part);
	if (part.joined * 5 < n && __builtin_popcount(stretches) * 4 > WRONG_STRETCHES * 3)
		return true;
	if (t->source.sampler != PREFETCH_SAMPLER_SORTED || t->perm)
		return false;
	for (uint32_t i = 0; i < n; i++)
		indices[i] = (uint32_t)positions[i];
	if (t->part.world == 1 && prefetch_search_in_parts((uint32_t)t->size, indices, n))
		return true;
	uint64_t apart = t->size / 8 < APART_MAX ? t->size / 8 : APART_MAX;
	if (apart < APART_MIN)
		return false;
	qsort(positions, n, sizeof(*positions), base_compare_u64);
	for (uint32_t i = n / 8; i < n - n / 8; i++) {
		if (i > 0 && positions[i] - positions[i - 1] > apart)
			return true;
	}
	return false;
}

/* Takes the track out of the list of tracks. */
static void take_out(struct prefetch_recognise *r, const struct track *t)
{
	unsigned at = 0;
	while (r->tracks[at] != t)
		at++;
	for (r->n_tracks--; at < r->n_tracks; at++)
		r->tracks[at] = r->tracks[at + 1];
}

bool prefetch_track_divide(struct prefetch_recognise *r, struct track *t)
{
	struct parts parts;
	if (t->source.sampler != PREFETCH_SAMPLER_SORTED || t->perm || is_buffered(t) ||
	        !prefetch_begun_parts(t->used, (uint32_t)t->size, &parts))
		return false;
	struct source source = { .sampler = PREFETCH_SAMPLER_SORTED, .seed = parts.world, .skip = parts.kind };
	struct prefetch_part all = { .world = 1, .ranks = 1, .stride = parts.world };
	struct prefetch_fit fit = { .world = 1, .ranks = 1, .score = t->score };
	if (prefetch_recognise_refused(r, &source, t->list))
		return false;
	take_out(r, t);
	r->restoring = true; /* it continues this track, and no other; so it comes last */
	int rc = prefetch_track_new(r, &source, t->list, NULL, &fit, &all);
	r->restoring = false;
	if (rc < 0) {
		r->tracks[r->n_tracks++] = t;
		return false;
	}
	struct track *made = r->tracks[r->n_tracks - 1];
	for (uint32_t i = 0; i < t->size; i++) {
		if (!bit_get(t->used, i))
			continue;
		uint64_t position = prefetch_parts_place(&parts, i);
		bit_set(made->used, position);
		made->high = position >= made->high ? position + 1 : made->high;
	}
	made->began = made->high;
	made->opens = t->opens;
	made->epoch = t->epoch;
	made->after = t->after;
	r->wrong++;
	prefetch_track_free(t);
	return true;
}

void prefetch_track_drop(struct prefetch_recognise *r, struct track *t)
{
	uint32_t files[WRONG_LATEST], n = 0;
	uint64_t n_recent = t->n_recent < WRONG_LATEST ? t->n_recent : WRONG_LATEST;
	for (uint64_t i = 0; i < n_recent; i++) {
		uint64_t position = t->recent[(t->n_recent - n_recent + i) % RING];
		uint32_t index = (uint32_t)position;
		int rc;
		if (t->source.sampler == PREFETCH_SAMPLER_OWN)
			rc = r->own.at(r->own.user, t->source.seed, position, &files[n]);
		else
			rc = prefetch_list_at(t->list, t->perm ? t->perm->at[position] : index, &files[n]);
		n += rc == 0;
	}
	take_out(r, t);
	r->refused[r->wrong++ % REFUSED_MAX] = (struct refused){
		.list = t->list,
		.sampler = t->source.sampler,
		.seed = t->source.seed,
		.buffered = is_buffered(t),
		.opens = r->opens,
	};
	prefetch_track_free(t);
	prefetch_recognise_collect_anew(r, files, n);
}

/* Whether the track's latest opens lie where more turns were opened than a clip has. */
static bool reads_on(const struct track *t)
{
	uint64_t n = t->n_recent < RING ? t->n_recent : RING, turns = prefetch_track_turns_opened(t), longer = 0;
	for (uint64_t i = 0; i < n; i++) {
		uint64_t position = t->recent[i], turn = in_part(t, position) ? turn_of(t, position) : 0, used = 0;
		uint64_t from = turn > CLIPS_LONGER ? turn - CLIPS_LONGER : 0, to = turn + CLIPS_LONGER;
		for (uint64_t k = from; k <= to && k < turns; k++)
			used += bit_get(t->used, position_of(t, k));
		longer += used > CLIPS_LONGER;
	}
	return longer * 2 > n;
}

bool prefetch_track_drop_clips(struct prefetch_recognise *r)
{
	for (unsigned i = 0; i < r->n_tracks; i++) {
		struct track *t = r->tracks[i];
		if (!shuffled(&t->source) && !is_buffered(t) && !reads_on(t)) {
			prefetch_track_drop(r, t);
			return true;
		}
	}
	return false;
}
