/* SPDX-License-Identifier: Apache-2.0 */
/* Makes orders; tests/prefetch/orders.h first. */
#include "tests/prefetch/orders.h"

#include "tests/prefetch/loader.h"

const enum prefetch_shuffle_kind families[FAMILIES] = {
	PREFETCH_SHUFFLE_NUMPY,
	PREFETCH_SHUFFLE_NUMPY_RNG,
	PREFETCH_SHUFFLE_PYTHON,
	PREFETCH_SHUFFLE_SAMPLE,
	PREFETCH_SHUFFLE_TORCH,
};

enum prefetch_sampler sampler_of(enum prefetch_shuffle_kind kind)
{
	static const enum prefetch_sampler samplers[] = {
		[PREFETCH_SHUFFLE_TORCH] = PREFETCH_SAMPLER_DISTRIBUTED,
		[PREFETCH_SHUFFLE_NUMPY] = PREFETCH_SAMPLER_NUMPY,
		[PREFETCH_SHUFFLE_NUMPY_RNG] = PREFETCH_SAMPLER_NUMPY_RNG,
		[PREFETCH_SHUFFLE_PYTHON] = PREFETCH_SAMPLER_PYTHON,
		[PREFETCH_SHUFFLE_SAMPLE] = PREFETCH_SAMPLER_PYTHON_SAMPLE,
		[PREFETCH_SHUFFLE_STD] = PREFETCH_SAMPLER_DALI,
		[PREFETCH_SHUFFLE_STD64] = PREFETCH_SAMPLER_DALI_EPOCH,
	};
	return samplers[kind];
}

void order_of_shuffle(const struct prefetch_shuffle *shuffle, uint32_t n, uint32_t *ret_order)
{
	struct prefetch_rng rng;
	for (uint32_t k = 0; k <= shuffle->before; k++) {
		if (k == 0 || !shuffle->goes_on)
			prefetch_rng_seed(&rng, shuffle->kind,
			        shuffle->goes_on ? shuffle->seed
			                         : shuffle->seed - (shuffle->before - k) * shuffle->step);
		for (uint32_t i = 0; i < n && (k == 0 || !shuffle->in_place); i++)
			ret_order[i] = i;
		prefetch_shuffle_steps(&rng, shuffle->kind, n, 0, n, ret_order, true);
		prefetch_shuffle_end(&rng, shuffle->kind, n, ret_order, true);
	}
}

void order_of_seed(enum prefetch_shuffle_kind kind, uint64_t seed, uint32_t n, uint32_t *ret_order)
{
	order_of_shuffle(&(struct prefetch_shuffle){ .kind = kind, .seed = seed }, n, ret_order);
}

void shuffle_by_nobody(uint64_t *random, uint32_t n, uint32_t *items)
{
	for (uint32_t i = n - 1; i > 0; i--) {
		uint32_t k = (uint32_t)(loader_random(random) % (i + 1)), kept = items[i];
		items[i] = items[k];
		items[k] = kept;
	}
}

void order_of_nobody(uint64_t *random, uint32_t n, uint32_t *ret_order)
{
	for (uint32_t i = 0; i < n; i++)
		ret_order[i] = i;
	shuffle_by_nobody(random, n, ret_order);
}
