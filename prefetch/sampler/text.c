/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a recognised sampler in words; prefetch/sampler/recognise.h first. */
#include <inttypes.h>
#include <stdio.h>

#include "prefetch/sampler/recognise.h"

static int say_foreign(const struct prefetch_recognised *t, char *buf, size_t size)
{
	static const char *const names[] = {
		[PREFETCH_SAMPLER_NUMPY] = "numpy shuffle",
		[PREFETCH_SAMPLER_NUMPY_RNG] = "numpy default_rng shuffle",
		[PREFETCH_SAMPLER_PYTHON] = "Python random.shuffle",
		[PREFETCH_SAMPLER_PYTHON_SAMPLE] = "Python random.sample",
	};
	const char *in_place = t->in_place ? ", in place" : "";
	if (t->sampler == PREFETCH_SAMPLER_DALI)
		return snprintf(buf, size, "DALI random_shuffle");
	if (t->sampler == PREFETCH_SAMPLER_DALI_EPOCH)
		return snprintf(buf, size, "DALI shuffle_after_epoch, epoch %" PRIu64, t->seed >> 32);
	if (t->goes_on)
		return snprintf(buf, size, "%s number %u of seed %" PRIu64 "%s", names[t->sampler], t->before + 1,
		        t->seed, in_place);
	return snprintf(buf, size, "%s, seed+epoch %" PRIu64 "%s", names[t->sampler], t->seed, in_place);
}

/* Two digits: the opens do not tell more. */
static uint32_t rounded(uint32_t n)
{
	uint32_t unit = 1;
	while (n / unit >= 100)
		unit *= 10;
	return (n + unit / 2) / unit * unit;
}

static int say_sampler(const struct prefetch_recognised *t, char *buf, size_t size)
{
	switch (t->sampler) {
	case PREFETCH_SAMPLER_OWN:
		return snprintf(buf, size, "ddpfs's own order, epoch %" PRIu64, t->seed);
	case PREFETCH_SAMPLER_SORTED:
		if (t->parts > 1)
			return snprintf(buf, size, "sorted, in %u contiguous parts", t->parts);
		if (t->buffer > 0)
			return snprintf(
			        buf, size, "sorted order behind a shuffle buffer of about %u", rounded(t->buffer));
		return snprintf(buf, size, t->world > 1 ? "torch DistributedSampler without shuffle" : "sorted");
	case PREFETCH_SAMPLER_DISTRIBUTED:
		return snprintf(buf, size, "torch DistributedSampler, seed+epoch %" PRIu64, t->seed);
	case PREFETCH_SAMPLER_GENERATOR:
		return snprintf(buf, size, "torch RandomSampler, generator with seed %" PRIu64, t->seed);
	case PREFETCH_SAMPLER_RANDOM:
		return snprintf(buf, size, "torch RandomSampler after manual_seed(%" PRIu64 ")", t->seed);
	case PREFETCH_SAMPLER_UNSEEDED:
		return snprintf(buf, size, "torch RandomSampler without a seed (this epoch's is %" PRIu64 ")", t->seed);
	case PREFETCH_SAMPLER_NUMPY:
	case PREFETCH_SAMPLER_NUMPY_RNG:
	case PREFETCH_SAMPLER_PYTHON:
	case PREFETCH_SAMPLER_PYTHON_SAMPLE:
	case PREFETCH_SAMPLER_DALI:
	case PREFETCH_SAMPLER_DALI_EPOCH:
		return say_foreign(t, buf, size);
	}
	return 0;
}

static int say_ranks(const struct prefetch_recognised *t, char *buf, size_t size)
{
	uint32_t batch = t->pace.batch;
	if (t->world == 1)
		return t->pace.stride > 1 ? snprintf(buf, size, ", all %u ranks", t->pace.stride) : 0;
	/* If whole batches are dealt to the ranks, the "ranks" of the part are the turns of a batch. */
	if (t->ranks > 1 && t->pace.stride == 1 && batch > 0 && t->ranks % batch == 0)
		return snprintf(buf, size, ", rank %u of %u by batches", t->first / t->ranks, t->world / t->ranks);
	const char *parts = t->parts > 1 && t->sampler != PREFETCH_SAMPLER_SORTED ? " in contiguous parts" : "";
	if (t->ranks == 1)
		return snprintf(buf, size, ", rank %u of %u%s", t->first, t->world, parts);
	return snprintf(buf, size, ", ranks %u-%u of %u", t->first, t->first + t->ranks - 1, t->world);
}

const char *prefetch_recognise_describe(const struct prefetch_recognised *t, char *buf, size_t size)
{
	int at = say_sampler(t, buf, size);
	at += (size_t)at < size ? say_ranks(t, buf + at, size - (size_t)at) : 0;
	/* No number is better than a wrong one.  The order of the opens shows the batches, but not how many workers
	 * read. */
	if (t->pace_sure && t->pace.batch > 1 && (size_t)at < size)
		snprintf(buf + at, size - (size_t)at, ", batch about %u", t->pace.batch);
	return buf;
}
