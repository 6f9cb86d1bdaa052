/* SPDX-License-Identifier: Apache-2.0 */
/* Makes permutations in slices; prefetch/sampler/perm.h first. */
#include "prefetch/sampler/perm.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { PERM_FILL, PERM_SHUFFLE, PERM_DEAL, PERM_INVERT, PERM_MADE };

static int perm_new(uint32_t n, struct prefetch_perm **ret_perm)
{
	struct prefetch_perm *perm = calloc(1, sizeof(*perm));
	if (!perm)
		return -ENOMEM;
	atomic_init(&perm->refs, 1);
	perm->n = n;
	perm->at = malloc((size_t)n * sizeof(*perm->at));
	perm->inverse = malloc((size_t)n * sizeof(*perm->inverse));
	if (!perm->at || !perm->inverse) {
		prefetch_perm_put(perm);
		return -ENOMEM;
	}
	*ret_perm = perm;
	return 0;
}

int prefetch_perm_new(uint32_t n, const struct shard_mt19937 *mt, uint64_t words, struct prefetch_perm **ret_perm)
{
	int rc = perm_new(n, ret_perm);
	if (rc < 0)
		return rc;
	(*ret_perm)->rng.mt = *mt;
	(*ret_perm)->discard = words;
	return 0;
}

/* Returns the seed of the shuffle after which `left` more are done. */
static uint64_t seed_of(const struct prefetch_shuffle *shuffle, uint32_t left)
{
	return shuffle->goes_on ? shuffle->seed : shuffle->seed - left * shuffle->step;
}

int prefetch_perm_new_shuffled(uint32_t n, const struct prefetch_shuffle *shuffle, struct prefetch_perm **ret_perm)
{
	struct prefetch_perm *perm;
	int rc = perm_new(n, &perm);
	if (rc < 0)
		return rc;
	perm->shuffle = *shuffle;
	perm->left = shuffle->goes_on || shuffle->in_place ? shuffle->before : 0;
	prefetch_rng_seed(&perm->rng, shuffle->kind, seed_of(shuffle, perm->left));
	*ret_perm = perm;
	return 0;
}

int prefetch_perm_new_next(
        struct prefetch_perm *last, const struct prefetch_shuffle *shuffle, struct prefetch_perm **ret_perm)
{
	struct prefetch_perm *perm;
	int rc = perm_new(last->n, &perm);
	if (rc < 0)
		return rc;
	perm->shuffle = *shuffle;
	if (shuffle->goes_on)
		perm->rng = last->rng;
	else
		prefetch_rng_seed(&perm->rng, shuffle->kind, shuffle->seed);
	if (shuffle->in_place)
		perm->from = prefetch_perm_get(last);
	perm->deal = last->deal;
	*ret_perm = perm;
	return 0;
}

void prefetch_perm_deal(struct prefetch_perm *perm, const struct parts *deal)
{
	perm->deal = *deal;
	perm->deal.n = perm->n;
}

uint32_t prefetch_perm_undealt(const struct prefetch_perm *perm, uint32_t position)
{
	return perm->at[perm->deal.world > 1 ? prefetch_parts_place(&perm->deal, position) : position];
}

int prefetch_parts_perm(const struct parts *parts, struct prefetch_perm **ret_perm)
{
	struct shard_mt19937 none = { .next = 0 };
	return prefetch_perm_new(parts->n, &none, 0, ret_perm);
}

bool prefetch_parts_step(const struct parts *parts, struct prefetch_perm *perm, uint32_t max)
{
	uint32_t end = parts->n - perm->done < max ? parts->n : perm->done + max;
	for (uint32_t index = perm->done; index < end; index++) {
		uint64_t position = prefetch_parts_place(parts, index);
		perm->at[position] = index;
		perm->inverse[index] = (uint32_t)position;
	}
	perm->done = end;
	if (end < parts->n)
		return true;
	prefetch_perm_made(perm);
	return false;
}

void prefetch_perm_made(struct prefetch_perm *perm)
{
	perm->phase = PERM_MADE;
	perm->done = 0;
}

static void fill(struct prefetch_perm *perm, uint32_t end)
{
	for (uint32_t i = perm->done; i < end; i++)
		perm->at[i] = perm->from ? prefetch_perm_undealt(perm->from, i) : i;
	if (end < perm->n)
		return;
	prefetch_perm_put(perm->from);
	perm->from = NULL;
}

/* Does some steps of a shuffle.  Behind the last one it begins the next shuffle, or the next phase. */
static void shuffle(struct prefetch_perm *perm, uint32_t max)
{
	enum prefetch_shuffle_kind kind = perm->shuffle.kind;
	if (perm->done + 1 < perm->n)
		perm->done = prefetch_shuffle_steps(&perm->rng, kind, perm->n, perm->done, max, perm->at, true);
	if (perm->done + 1 < perm->n)
		return;
	prefetch_shuffle_end(&perm->rng, kind, perm->n, perm->at, true);
	perm->done = 0;
	if (perm->left == 0) {
		perm->phase = perm->deal.world > 1 ? PERM_DEAL : PERM_INVERT;
		return;
	}
	perm->left--;
	if (!perm->shuffle.goes_on)
		prefetch_rng_seed(&perm->rng, kind, seed_of(&perm->shuffle, perm->left));
	perm->phase = perm->shuffle.in_place ? PERM_SHUFFLE : PERM_FILL;
}

/* The dealt permutation comes into `inverse` first, which has no content yet. */
static void deal(struct prefetch_perm *perm, uint32_t end)
{
	for (uint32_t i = perm->done; i < end; i++)
		perm->inverse[prefetch_parts_place(&perm->deal, i)] = perm->at[i];
	if (end < perm->n)
		return;
	uint32_t *dealt = perm->inverse;
	perm->inverse = perm->at;
	perm->at = dealt;
}

bool prefetch_perm_step(struct prefetch_perm *perm, uint32_t max)
{
	if (perm->discard > 0) {
		uint64_t words = perm->discard < max ? perm->discard : max;
		for (uint64_t i = 0; i < words; i++)
			shard_mt19937_next32(&perm->rng.mt);
		perm->discard -= words;
		return true;
	}
	uint32_t end = perm->n - perm->done < max ? perm->n : perm->done + max;
	switch (perm->phase) {
	case PERM_FILL:
		fill(perm, end);
		break;
	case PERM_SHUFFLE:
		shuffle(perm, max);
		return true;
	case PERM_DEAL:
		deal(perm, end);
		break;
	case PERM_INVERT:
		for (uint32_t i = perm->done; i < end; i++)
			perm->inverse[perm->at[i]] = i;
		break;
	default:
		return false;
	}
	perm->done = end;
	if (end == perm->n) {
		perm->done = 0;
		perm->phase++;
	}
	return perm->phase < PERM_MADE;
}

struct prefetch_perm *prefetch_perm_get(struct prefetch_perm *perm)
{
	atomic_fetch_add(&perm->refs, 1);
	return perm;
}

void prefetch_perm_put(struct prefetch_perm *perm)
{
	while (perm && atomic_fetch_sub(&perm->refs, 1) == 1) {
		struct prefetch_perm *from = perm->from;
		free(perm->at);
		free(perm->inverse);
		free(perm);
		perm = from;
	}
}
