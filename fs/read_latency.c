/* SPDX-License-Identifier: Apache-2.0 */
/* How long READs waited, a histogram for each epoch; fs/read_latency.h first. */
#include "fs/read_latency.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "prefetch/latency_histogram.h"
#include "shard/base/cleanup.h"

struct slot {
	bool used;
	uint64_t epoch;
	uint64_t latest; /* value of `adds` at its latest wait */
	uint64_t n;
	uint64_t sum_ns;
	struct prefetch_hist hist;
};

struct fs_read_latency {
	pthread_mutex_t lock; /* guards what follows */
	uint64_t adds;
	struct slot slots[FS_READ_LATENCY_EPOCHS];
};

int fs_read_latency_new(struct fs_read_latency **ret_latency)
{
	struct fs_read_latency *latency = calloc(1, sizeof(*latency));
	if (!latency)
		return -ENOMEM;
	pthread_mutex_init(&latency->lock, NULL);
	*ret_latency = latency;
	return 0;
}

void fs_read_latency_free(struct fs_read_latency *latency)
{
	if (!latency)
		return;
	pthread_mutex_destroy(&latency->lock);
	free(latency);
}

static struct slot *find(struct fs_read_latency *latency, uint64_t epoch)
{
	for (size_t i = 0; i < FS_READ_LATENCY_EPOCHS; i++)
		if (latency->slots[i].used && latency->slots[i].epoch == epoch)
			return &latency->slots[i];
	return NULL;
}

static struct slot *make(struct fs_read_latency *latency, uint64_t epoch)
{
	struct slot *slot = &latency->slots[0];
	for (size_t i = 1; i < FS_READ_LATENCY_EPOCHS && slot->used; i++)
		if (!latency->slots[i].used || latency->slots[i].latest < slot->latest)
			slot = &latency->slots[i];
	memset(slot, 0, sizeof(*slot));
	slot->used = true;
	slot->epoch = epoch;
	return slot;
}

void fs_read_latency_add(struct fs_read_latency *latency, uint64_t epoch, uint64_t wait_ns)
{
	lock_for_scope(&latency->lock);
	struct slot *slot = find(latency, epoch);
	if (!slot)
		slot = make(latency, epoch);
	slot->latest = ++latency->adds;
	slot->n++;
	slot->sum_ns += wait_ns;
	prefetch_hist_add(&slot->hist, wait_ns);
}

static struct fs_read_latency_epoch tell(const struct slot *slot)
{
	return (struct fs_read_latency_epoch){
		.epoch = slot->epoch,
		.n = slot->n,
		.sum_ns = slot->sum_ns,
		.p50_ns = prefetch_hist_quantile(&slot->hist, 500),
		.p99_ns = prefetch_hist_quantile(&slot->hist, 990),
		.max_ns = prefetch_hist_max(&slot->hist),
	};
}

void fs_read_latency_get(struct fs_read_latency *latency, uint64_t epoch, struct fs_read_latency_epoch *ret_epoch)
{
	lock_for_scope(&latency->lock);
	const struct slot *slot = find(latency, epoch);
	*ret_epoch = slot ? tell(slot) : (struct fs_read_latency_epoch){ .epoch = epoch };
}

size_t fs_read_latency_all(
        struct fs_read_latency *latency, struct fs_read_latency_epoch ret_epochs[FS_READ_LATENCY_EPOCHS])
{
	size_t n = 0;
	lock_for_scope(&latency->lock);
	for (size_t i = 0; i < FS_READ_LATENCY_EPOCHS; i++) {
		if (!latency->slots[i].used)
			continue;
		size_t at = n++;
		for (; at > 0 && ret_epochs[at - 1].epoch > latency->slots[i].epoch; at--)
			ret_epochs[at] = ret_epochs[at - 1];
		ret_epochs[at] = tell(&latency->slots[i]);
	}
	return n;
}
