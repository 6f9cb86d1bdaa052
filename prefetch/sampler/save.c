/* SPDX-License-Identifier: Apache-2.0 */
/* Saves tracks in a few bytes, and follows them again in another process; prefetch/sampler/recognise.h first. */
#include <errno.h>
#include <string.h>

#include "prefetch/sampler/recognise_private.h"

unsigned prefetch_recognise_save(
        const struct prefetch_recognise *r, struct prefetch_saved_track saved[PREFETCH_TRACKS_MAX])
{
	unsigned n = 0;
	for (unsigned i = 0; i < r->n_tracks; i++) {
		const struct track *t = r->tracks[i];
		uint32_t sort = 0, filter = 0;
		if (!t->now || t->unverified || (t->list && !prefetch_list_kind(t->list, &sort, &filter)))
			continue;
		struct prefetch_saved_track *s = &saved[n++];
		memset(s, 0, sizeof(*s));
		s->sampler = t->source.sampler;
		s->seed = t->source.seed;
		s->skip = t->source.skip;
		s->name = t->source.name;
		s->word = t->source.word;
		s->step = t->source.step;
		s->learned = t->source.learned;
		s->before = t->source.before;
		s->goes_on = t->source.goes_on;
		s->in_place = t->source.in_place;
		s->deal = t->source.deal;
		s->deal_kind = t->source.deal_kind;
		s->repeated = t->repeated;
		s->dir = t->list ? prefetch_list_dir(t->list) : SHARD_NONE;
		struct prefetch_list_part part = { 0 };
		if (t->list && prefetch_list_part(t->list, &part)) {
			s->part_start = part.start;
			s->part_stride = part.stride;
			s->part_n = part.n;
		}
		s->sort = sort;
		s->filter = filter;
		s->world = t->part.world;
		s->first = t->part.first;
		s->ranks = t->part.ranks;
		s->stride = t->part.stride;
		s->workers = t->pace.workers;
		s->batch = t->pace.batch;
		s->buffer = t->source.buffer;
		s->size = t->size;
		s->high = t->high;
		s->epoch = t->epoch;
		memcpy(s->suffix, r->filters.suffix, sizeof(r->filters.suffix));
	}
	return n;
}

static int make_filters(struct prefetch_recognise *r, const char suffix[32])
{
	char text[32];
	int rc = 0;
	memcpy(text, suffix, sizeof(text));
	text[sizeof(text) - 1] = '\0';
	if (!r->filters_begun)
		rc = prefetch_filters_init(&r->filters, r->options.index, r->options.shown, text);
	r->filters_begun = r->filters_begun || rc == 0;
	while (rc == 0 && !r->filters_made) {
		rc = prefetch_filters_step(&r->filters, SLICE_FILES);
		r->filters_made = rc == 0;
		rc = rc == 1 ? 0 : rc;
	}
	return rc;
}

/* Finds or makes the whole list of a saved track.  -EINVAL: this dataset has no such list. */
static int whole_list_of(
        struct prefetch_recognise *r, const struct prefetch_saved_track *s, struct prefetch_list **ret_list)
{
	struct prefetch_list *list;
	if (s->dir >= shard_index_info(r->options.index)->n_dirs || s->sort >= PREFETCH_SORT_GIVEN ||
	        s->filter >= PREFETCH_FILTER_KINDS || r->n_lists == LISTS_MAX)
		return -EINVAL;
	int rc = make_filters(r, s->suffix);
	if (rc == 0)
		rc = prefetch_list_new(&r->filters, s->dir, s->sort, s->filter, &list);
	if (rc < 0)
		return rc == -ENOENT ? -EINVAL : rc;
	for (uint32_t i = 0; i < r->n_lists; i++) {
		if (!prefetch_list_equal(list, r->lists[i]))
			continue;
		prefetch_list_put(list);
		*ret_list = r->lists[i];
		return 0;
	}
	r->lists[r->n_lists++] = list;
	*ret_list = list;
	return 0;
}

static int list_of(struct prefetch_recognise *r, const struct prefetch_saved_track *s, struct prefetch_list **ret_list)
{
	struct prefetch_list_part part = { .start = s->part_start, .stride = s->part_stride, .n = s->part_n };
	struct prefetch_list *whole;
	int rc = whole_list_of(r, s, &whole);
	if (rc == 0 && part.n > 0)
		rc = prefetch_part_lists_get(r, whole, &part, ret_list);
	else if (rc == 0)
		*ret_list = whole;
	return rc == -ENOSPC ? -EINVAL : rc;
}

static bool is_possible(const struct prefetch_recognise *r, const struct prefetch_saved_track *s)
{
	bool own = s->sampler == PREFETCH_SAMPLER_OWN, random = s->sampler == PREFETCH_SAMPLER_RANDOM;
	bool foreign = s->sampler > PREFETCH_SAMPLER_UNSEEDED;
	return s->sampler < PREFETCH_SAMPLERS && own == (s->dir == SHARD_NONE) && (!own || r->options.own) &&
	       s->world > 0 && s->world <= PREFETCH_FIT_WORLD_MAX && s->ranks > 0 && s->ranks <= s->world &&
	       s->first <= s->world - s->ranks && s->stride > 0 && s->stride <= PREFETCH_FIT_WORLD_MAX &&
	       s->high <= s->size && s->skip <= SAVED_WORDS_MAX && (!random || s->word <= SAVED_WORDS_MAX) &&
	       (foreign || (s->step <= SAVED_WORDS_MAX && s->seed <= UINT32_MAX)) && s->size > 0 &&
	       s->size <= UINT32_MAX && s->before <= SAVED_WORDS_MAX / s->size && s->deal <= s->size &&
	       s->deal_kind < PARTS_KINDS && s->buffer <= s->size && s->batch <= UINT16_MAX && s->workers <= UINT16_MAX;
}

static int restore(struct prefetch_recognise *r, const struct prefetch_saved_track *s)
{
	struct prefetch_list *list = NULL;
	int rc = is_possible(r, s) ? 0 : -EINVAL;
	if (rc == 0 && s->dir != SHARD_NONE)
		rc = list_of(r, s, &list);
	if (rc < 0)
		return rc;
	uint64_t size = list ? prefetch_list_size(list) : r->own.size;
	bool shuffled = s->sampler >= PREFETCH_SAMPLER_DISTRIBUTED;
	bool sorted = s->sampler == PREFETCH_SAMPLER_SORTED, parts = sorted && s->seed > 0;
	if (size != s->size || (s->buffer > 0 && (!sorted || parts)) || (shuffled && size >= SHARD_TORCH_INSIDE_OUT) ||
	        (parts && (s->seed < 2 || s->seed > size || s->skip >= PARTS_KINDS)) ||
	        (s->sampler == PREFETCH_SAMPLER_GENERATOR && s->step > PREFETCH_RESEED_MAX && s->step < size - 1))
		return -EINVAL;
	struct source source = {
		.sampler = s->sampler,
		.seed = s->seed,
		.skip = s->skip,
		.name = s->name,
		.word = s->word,
		.step = s->step,
		.learned = true,
		.buffer = s->buffer,
		.before = s->before,
		.goes_on = s->goes_on != 0,
		.in_place = s->in_place != 0,
		.deal = s->deal,
		.deal_kind = (enum parts_kind)s->deal_kind,
	};
	struct prefetch_part part = { .world = s->world, .first = s->first, .ranks = s->ranks, .stride = s->stride };
	struct prefetch_fit fit = { .world = s->world, .first = s->first, .ranks = s->ranks, .high = s->high };
	struct shard_mt19937 mt;
	bool torch = shuffled && !prefetch_source_foreign(&source);
	if (torch)
		prefetch_torch_seek(&mt, (uint32_t)s->seed, s->skip);
	unsigned before = r->n_tracks;
	rc = prefetch_track_new(r, &source, list, torch ? &mt : NULL, &fit, &part);
	if (rc == 0 && r->n_tracks > before) {
		r->tracks[before]->source.learned = s->learned;
		prefetch_track_resume(r->tracks[before], s);
	}
	return rc;
}

int prefetch_recognise_restore(struct prefetch_recognise *r, const struct prefetch_saved_track *saved, unsigned n)
{
	for (unsigned i = 0; i < n && i < PREFETCH_TRACKS_MAX; i++) {
		r->restoring = true;
		int rc = restore(r, &saved[i]);
		r->restoring = false;
		if (rc < 0 && rc != -EINVAL)
			return rc;
	}
	return 0;
}
