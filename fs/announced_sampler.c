/* SPDX-License-Identifier: Apache-2.0 */
/* A recogniser of announced opens that ends when its search is in vain; fs/announced_sampler.h first. */
#include "fs/announced_sampler.h"

#include <errno.h>
#include <stdlib.h>

struct fs_announced_sampler {
	struct prefetch_recognise_options options;
	struct prefetch_recognise *recognise; /* NULL: it rests, or there was nothing to look at */
	uint64_t rests_until_ns;
	uint64_t useful_ns; /* search time of `recognise` when it was useful last */
	uint64_t before_ns; /* search time of earlier ones */
};

int fs_announced_sampler_new(
        const struct prefetch_recognise_options *options, struct fs_announced_sampler **ret_sampler)
{
	struct fs_announced_sampler *sampler = calloc(1, sizeof(*sampler));
	if (!sampler)
		return -ENOMEM;
	sampler->options = *options;
	*ret_sampler = sampler;
	return 0;
}

static uint64_t search_ns(const struct fs_announced_sampler *sampler)
{
	struct prefetch_searched searched = { 0 };
	if (sampler->recognise)
		prefetch_recognise_searched(sampler->recognise, &searched);
	return searched.cpu_ns;
}

void fs_announced_sampler_opened(struct fs_announced_sampler *sampler, const uint32_t *files, size_t n, uint64_t now_ns)
{
	if (n == 0 || (!sampler->recognise && now_ns < sampler->rests_until_ns))
		return;
	if (!sampler->recognise && prefetch_recognise_new(&sampler->options, &sampler->recognise) < 0)
		return;
	prefetch_recognise_opened(sampler->recognise, files, n);
}

void fs_announced_sampler_pause(struct fs_announced_sampler *sampler)
{
	if (sampler->recognise)
		prefetch_recognise_pause(sampler->recognise);
}

int fs_announced_sampler_step(struct fs_announced_sampler *sampler, uint64_t max_ns)
{
	int rc = sampler->recognise ? prefetch_recognise_step(sampler->recognise, max_ns) : 0;
	return rc < 0 ? 0 : rc;
}

void fs_announced_sampler_judge(struct fs_announced_sampler *sampler, bool useful, uint64_t now_ns)
{
	uint64_t spent_ns = search_ns(sampler);
	if (useful)
		sampler->useful_ns = spent_ns;
	if (spent_ns < sampler->useful_ns + FS_ANNOUNCED_SEARCH_NS)
		return;
	prefetch_recognise_free(sampler->recognise);
	sampler->recognise = NULL;
	sampler->before_ns += spent_ns;
	sampler->useful_ns = 0;
	sampler->rests_until_ns = now_ns + FS_ANNOUNCED_REST_NS;
}

struct prefetch_recognise *fs_announced_sampler_recognise(const struct fs_announced_sampler *sampler)
{
	return sampler->recognise;
}

uint64_t fs_announced_sampler_search_ns(const struct fs_announced_sampler *sampler)
{
	return sampler->before_ns + search_ns(sampler);
}

void fs_announced_sampler_free(struct fs_announced_sampler *sampler)
{
	if (!sampler)
		return;
	prefetch_recognise_free(sampler->recognise);
	free(sampler);
}
