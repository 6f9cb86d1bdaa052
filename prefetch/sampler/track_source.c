/* SPDX-License-Identifier: Apache-2.0 */
/* Which permutation an epoch of a track has, and which one the next epoch is expected to have.
 * prefetch/sampler/track_private.h first. */
#include <errno.h>

#include "prefetch/sampler/track_private.h"

struct prefetch_shuffle prefetch_source_shuffle(const struct source *source)
{
	static const enum prefetch_shuffle_kind kinds[] = {
		[PREFETCH_SAMPLER_NUMPY] = PREFETCH_SHUFFLE_NUMPY,
		[PREFETCH_SAMPLER_NUMPY_RNG] = PREFETCH_SHUFFLE_NUMPY_RNG,
		[PREFETCH_SAMPLER_PYTHON] = PREFETCH_SHUFFLE_PYTHON,
		[PREFETCH_SAMPLER_PYTHON_SAMPLE] = PREFETCH_SHUFFLE_SAMPLE,
		[PREFETCH_SAMPLER_DALI] = PREFETCH_SHUFFLE_STD,
		[PREFETCH_SAMPLER_DALI_EPOCH] = PREFETCH_SHUFFLE_STD64,
	};
	return (struct prefetch_shuffle){
		.kind = prefetch_source_foreign(source) ? kinds[source->sampler] : PREFETCH_SHUFFLE_TORCH,
		.seed = source->seed,
		.step = source->step,
		.before = source->before,
		.goes_on = source->goes_on,
		.in_place = source->in_place,
	};
}

/* Deals a new permutation as the source says. */
static void deal(const struct track *t, struct prefetch_perm *perm)
{
	if (t->source.deal > 1)
		prefetch_perm_deal(perm, &(struct parts){ .world = t->source.deal, .kind = t->source.deal_kind });
}

int prefetch_track_first_perm(struct track *t, const struct shard_mt19937 *mt)
{
	struct prefetch_shuffle shuffle = prefetch_source_shuffle(&t->source);
	uint32_t n = (uint32_t)t->size;
	int rc = 0;
	if (prefetch_source_foreign(&t->source))
		rc = prefetch_perm_new_shuffled(n, &shuffle, &t->perm);
	else if (mt)
		rc = prefetch_perm_new(n, mt, 0, &t->perm);
	else if (in_parts(t))
		rc = prefetch_parts_perm(&(struct parts){ .n = n }, &t->perm);
	if (rc == 0 && t->perm)
		deal(t, t->perm);
	return rc;
}

/* Returns the source that is expected in the epoch after `source`. */
static struct source successor(const struct source *source)
{
	struct source next = *source;
	switch (source->sampler) {
	case PREFETCH_SAMPLER_SORTED:
	case PREFETCH_SAMPLER_UNSEEDED:
		break;
	case PREFETCH_SAMPLER_OWN:
	case PREFETCH_SAMPLER_DISTRIBUTED:
		next.seed += (uint32_t)source->step;
		next.name = next.seed;
		break;
	case PREFETCH_SAMPLER_GENERATOR:
		if (prefetch_source_goes_on(source)) {
			next.skip += source->step;
			break;
		}
		next.seed = (uint32_t)(next.seed + source->step);
		next.name += source->step;
		break;
	case PREFETCH_SAMPLER_RANDOM: {
		struct shard_mt19937 mt;
		next.word += source->step;
		prefetch_torch_seek(&mt, (uint32_t)source->name, next.word);
		next.seed = shard_mt19937_next32(&mt);
		break;
	}
	case PREFETCH_SAMPLER_NUMPY:
	case PREFETCH_SAMPLER_NUMPY_RNG:
	case PREFETCH_SAMPLER_PYTHON:
	case PREFETCH_SAMPLER_PYTHON_SAMPLE:
	case PREFETCH_SAMPLER_DALI:
	case PREFETCH_SAMPLER_DALI_EPOCH:
		next.seed += next.goes_on ? 0 : next.step;
		next.name = next.seed;
		next.before += next.goes_on || next.in_place;
		break;
	}
	return next;
}

/* Tells whether the generator of each epoch is seeded anew, and its shuffle begins with the list. */
static bool is_seeded_by_epoch(const struct source *source)
{
	if (prefetch_source_foreign(source))
		return !source->goes_on && !source->in_place;
	return source->sampler == PREFETCH_SAMPLER_DISTRIBUTED ||
	       (source->sampler == PREFETCH_SAMPLER_GENERATOR && !prefetch_source_goes_on(source));
}

int prefetch_track_perm(const struct track *t, unsigned ahead, struct prefetch_perm **ret_perm)
{
	struct source source = t->source;
	struct shard_mt19937 mt;
	if (!is_seeded_by_epoch(&source) || !t->perm)
		return -ENOENT;
	for (unsigned i = 0; i < ahead; i++)
		source = successor(&source);
	struct prefetch_shuffle shuffle = prefetch_source_shuffle(&source);
	if (prefetch_source_foreign(&source))
		return prefetch_perm_new_next(t->perm, &shuffle, ret_perm);
	prefetch_torch_seek(&mt, (uint32_t)source.seed, source.skip);
	int rc = prefetch_perm_new((uint32_t)t->size, &mt, 0, ret_perm);
	if (rc == 0)
		deal(t, *ret_perm);
	return rc;
}

bool prefetch_track_next_same(const struct track *t)
{
	return t->has_next ? prefetch_source_same(&t->next_source, &t->source) : t->source.step == 0;
}

int prefetch_track_begin_next(struct track *t)
{
	t->next_source = successor(&t->source);
	t->has_next = true;
	if (!shuffled(&t->source) || prefetch_source_same(&t->source, &t->next_source)) {
		t->next = t->perm ? prefetch_perm_get(t->perm) : NULL;
		return 0;
	}
	if (prefetch_source_foreign(&t->source)) {
		struct prefetch_shuffle shuffle = prefetch_source_shuffle(&t->next_source);
		return prefetch_perm_new_next(t->perm, &shuffle, &t->next);
	}
	struct shard_mt19937 mt = t->perm->rng.mt;
	bool goes_on = prefetch_source_goes_on(&t->source);
	if (!goes_on)
		prefetch_torch_seek(&mt, (uint32_t)t->next_source.seed, t->next_source.skip);
	int rc = prefetch_perm_new((uint32_t)t->size, &mt, goes_on ? t->source.step - (t->size - 1) : 0, &t->next);
	if (rc == 0)
		deal(t, t->next);
	return rc;
}
