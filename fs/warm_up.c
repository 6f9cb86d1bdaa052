/* SPDX-License-Identifier: Apache-2.0 */
/* The storage order as a given order, and what the warm-up does, in a sentence; fs/warm_up.h first. */
#include "fs/warm_up.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "fs/view.h"
#include "prefetch/prefetch.h"

struct fs_warm_up {
	const struct shard_index *index;
	const struct shard_view *shown; /* the view whose subdir and on_bad decide */
	uint32_t first, end;            /* samples of its subdir */
	struct shard_view *order;
};

static int order_get(void *user, uint64_t number, void **ret_epoch, uint64_t *ret_turns)
{
	struct fs_warm_up *warm_up = user;
	if (number != 0)
		return -ENODATA;
	*ret_epoch = warm_up;
	*ret_turns = shard_index_info(warm_up->index)->n_samples;
	return 0;
}

static void order_put(void *epoch)
{
	(void)epoch; /* it lives as long as the order */
}

/* Returns 0 if the tree shows this sample in its own place. */
static int is_shown(const struct fs_warm_up *warm_up, uint32_t sample)
{
	uint32_t instead;
	if (sample < warm_up->first || sample >= warm_up->end)
		return -ENOENT;
	int rc = shard_view_instead(warm_up->shown, sample, &instead);
	return rc == 0 && instead != sample ? -ENOENT : rc;
}

static int order_turn(void *epoch, uint64_t turn, uint32_t *ret_sample)
{
	const struct fs_warm_up *warm_up = epoch;
	uint32_t sample;
	int rc = turn < UINT32_MAX ? shard_index_slot_sample(warm_up->index, (uint32_t)turn, &sample) : -EINVAL;
	if (rc == 0)
		rc = is_shown(warm_up, sample);
	if (rc == 0)
		*ret_sample = sample;
	return rc;
}

static int order_find(void *epoch, uint32_t sample, uint64_t *ret_turn)
{
	const struct fs_warm_up *warm_up = epoch;
	uint32_t slot;
	int rc = is_shown(warm_up, sample);
	if (rc == 0)
		rc = shard_index_sample_slot(warm_up->index, sample, &slot);
	if (rc == 0)
		*ret_turn = slot;
	return rc;
}

int fs_warm_up_new(const struct shard_index *index, const struct fs_view *view, struct fs_warm_up **ret_warm_up)
{
	struct fs_warm_up *warm_up = calloc(1, sizeof(*warm_up));
	if (!warm_up)
		return -ENOMEM;
	warm_up->index = index;
	warm_up->shown = view->order;
	warm_up->first = view->sample0;
	warm_up->end = view->sample_end;
	const struct shard_view_given given = {
		.user = warm_up, .get = order_get, .put = order_put, .turn = order_turn, .find = order_find
	};
	int rc = shard_view_new_given(index, &given, &warm_up->order);
	if (rc < 0) {
		free(warm_up);
		return rc;
	}
	*ret_warm_up = warm_up;
	return 0;
}

void fs_warm_up_free(struct fs_warm_up *warm_up)
{
	if (!warm_up)
		return;
	shard_view_free(warm_up->order);
	free(warm_up);
}

struct shard_view *fs_warm_up_order(struct fs_warm_up *warm_up)
{
	return warm_up->order;
}

const char *fs_warm_up_says(struct prefetch *prefetch)
{
	static const char *const says[] = {
		[PREFETCH_WARM_UP_WATCHES] = "waits: few opens have missed, or the order is known",
		[PREFETCH_WARM_UP_READS_ON] =
		        "no order is known: the mount reads the dataset in storage order, as far as it fits",
		[PREFETCH_WARM_UP_RESTS] =
		        "no order is known: the mount rests between reads in storage order, because the device is "
		        "slow or shared",
		[PREFETCH_WARM_UP_WAITS_FOR_READERS] =
		        "no order is known: the mount reads on in storage order when opens miss again",
		[PREFETCH_WARM_UP_FULL] =
		        "no order is known: what was read in storage order fills the memory budget; the "
		        "rest is read on demand",
		[PREFETCH_WARM_UP_DONE] = "no order is known: the whole dataset was read in storage order",
	};
	struct prefetch_stats engine;
	prefetch_stats_get(prefetch, &engine);
	return says[engine.warm_up];
}
