/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out how many files a rank's part has whose files Python's random.sample has drawn.
 * prefetch/sampler/recognise_private.h first.
 *
 * Parts of a list may be rounded up or down, so a part that begins at a file may have one file more.  With the same
 * seed, random.sample draws nearly the same files of both, because it takes the last file of what is left into the
 * place of each drawn one.  At first the samples differ only where such a place is drawn again:
 *
 *      of 33,333 files    d0 d1 ... the place of d0: file 33,332 ...
 *      of 33,334 files    d0 d1 ... the place of d0: file 33,333 ...
 *
 * k draws have about k^2 / 2n such places: 96 opens of 33,333 files mostly have none, a whole epoch has thousands.  So
 * the search cannot tell the sizes apart, and takes one of them.  While its track is followed, two rivals are made: the
 * samples of one file less and of one more.  A rival wins when more of the opened files lie at its beginning. */
#include "prefetch/sampler/recognise_private.h"

enum {
	/* The sample wins that has so many opened files more.  One more may be chance: workers side by side leave gaps
	 * at the end of what was opened, and the samples may differ there. */
	LEAD = 2,
	COMPARE_EVERY = 16,   /* opens between two comparisons, at least; and ... */
	COMPARE_SHARE = 32,   /* ... a share of the beginning, which a comparison goes through */
	COMPARE_MAX = 1 << 15 /* of the beginning: two samples of fewer than 10^8 files have differed by then */
};

void prefetch_sample_size_forget(struct track *t)
{
	for (unsigned k = 0; k < 2; k++) {
		prefetch_perm_put(t->rivals[k]);
		t->rivals[k] = NULL;
	}
	t->compare_at = 0;
}

/* Whether the track follows a sample of a part whose length may be another one. */
static bool has_rivals(const struct track *t, struct prefetch_list_part *ret_part)
{
	return t->source.sampler == PREFETCH_SAMPLER_PYTHON_SAMPLE && prefetch_list_part(t->list, ret_part) &&
	       ret_part->stride == 1 && !t->unverified;
}

/* Leaves both NULL if there is no memory: the track goes on without them. */
static void make_rivals(struct track *t, const struct prefetch_list_part *part)
{
	const struct prefetch_shuffle shuffle = prefetch_source_shuffle(&t->source);
	const uint32_t sizes[] = { part->n - 1, part->n + 1 };
	uint32_t most = prefetch_list_size(prefetch_list_whole(t->list)) - part->start;
	for (unsigned k = 0; k < 2; k++) {
		if (sizes[k] < 2 || sizes[k] > most)
			continue;
		if (prefetch_perm_new_shuffled(sizes[k], &shuffle, &t->rivals[k]) < 0) {
			prefetch_sample_size_forget(t);
			return;
		}
	}
}

/* Counts the first files of a sample that were opened, expected or not.  index: in the part. */
static uint32_t count_opened(const struct prefetch_recognise *r, const struct track *t,
        const struct prefetch_list_part *part, const struct prefetch_perm *sample, uint64_t first)
{
	uint32_t n = 0, file;
	for (uint32_t position = 0; position < first && position < sample->n; position++) {
		uint32_t index = sample->at[position];
		bool opened = index < t->size && bit_get(t->used, t->perm->inverse[index]);
		if (!opened && prefetch_list_at(prefetch_list_whole(t->list), part->start + index, &file) == 0)
			opened = bit_get(r->seen, file);
		n += opened;
	}
	return n;
}

/* Lets the track go on with a part of the rival's size.  Other rivals are made for that one.  If there is no room, the
 * track stays as it is. */
static void take_rival(struct prefetch_recognise *r, struct track *t, struct prefetch_list_part part, unsigned k)
{
	struct prefetch_list *list;
	part.n = t->rivals[k]->n;
	int rc = prefetch_part_lists_make(r, prefetch_list_whole(t->list), &part, &list);
	if (rc == 0)
		rc = prefetch_track_change_part(r, t, list, t->rivals[k]);
	prefetch_sample_size_forget(t);
	t->size_sure = rc < 0;
}

static void compare(struct prefetch_recognise *r, struct track *t, const struct prefetch_list_part *part)
{
	uint64_t first = t->high < COMPARE_MAX ? t->high : COMPARE_MAX;
	uint32_t own = count_opened(r, t, part, t->perm, first), most = 0;
	unsigned best = 0;
	for (unsigned k = 0; k < 2; k++) {
		uint32_t n = t->rivals[k] ? count_opened(r, t, part, t->rivals[k], first) : 0;
		best = n > most ? k : best;
		most = n > most ? n : most;
	}
	t->compare_at = r->opens + COMPARE_EVERY + first / COMPARE_SHARE;
	if (most >= own + LEAD)
		take_rival(r, t, *part, best);
	else
		t->size_sure = own >= most + LEAD || t->high >= COMPARE_MAX;
}

int prefetch_sample_size_step(struct prefetch_recognise *r, struct track *t)
{
	struct prefetch_list_part part;
	if (t->size_sure || !has_rivals(t, &part))
		return 0;
	if (!t->rivals[0] && !t->rivals[1]) {
		make_rivals(t, &part);
		t->size_sure = !t->rivals[0] && !t->rivals[1];
		return t->size_sure ? 0 : 1;
	}
	for (unsigned k = 0; k < 2; k++) {
		if (t->rivals[k] && prefetch_perm_step(t->rivals[k], SLICE_ITEMS))
			return 1;
	}
	if (r->opens < t->compare_at)
		return 0;
	compare(r, t, &part);
	if (t->size_sure)
		prefetch_sample_size_forget(t);
	return 1;
}
