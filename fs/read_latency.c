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

struct tally {
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
	struct tally tallies[FS_READ_LATENCY_EPOCHS];
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

static struct tally *find(struct fs_read_latency *latency, uint64_t epoch)
{
	for (size_t i = 0; i < FS_READ_LATENCY_EPOCHS; i++)
		if (latency->tallies[i].used && latency->tallies[i].epoch == epoch)
			return &latency->tallies[i];
	return NULL;
}

static struct tally *make(struct fs_read_latency *latency, uint64_t epoch)
{
	struct tally *tally = &latency->tallies[0];
	for (size_t i = 1; i < FS_READ_LATENCY_EPOCHS && tally->used; i++)
		if (!latency->tallies[i].used || latency->tallies[i].latest < tally->latest)
			tally = &latency->tallies[i];
	memset(tally, 0, sizeof(*tally));
	tally->used = true;
	tally->epoch = epoch;
	return tally;
}

void fs_read_latency_add(struct fs_read_latency *latency, uint64_t epoch, uint64_t wait_ns)
{
	lock_for_scope(&latency->lock);
	struct tally *tally = find(latency, epoch);
	if (!tally)
		tally = make(latency, epoch);
	tally->latest = ++latency->adds;
	tally->n++;
	tally->sum_ns += wait_ns;
	prefetch_hist_add(&tally->hist, wait_ns);
}

static struct fs_read_latency_epoch tell(const struct tally *tally)
{
	return (struct fs_read_latency_epoch){
		.epoch = tally->epoch,
		.n = tally->n,
		.sum_ns = tally->sum_ns,
		.p50_ns = prefetch_hist_quantile(&tally->hist, 500),
		.p99_ns = prefetch_hist_quantile(&tally->hist, 990),
		.max_ns = prefetch_hist_max(&tally->hist),
	};
}

void fs_read_latency_get(struct fs_read_latency *latency, uint64_t epoch, struct fs_read_latency_epoch *ret_epoch)
{
	lock_for_scope(&latency->lock);
	const struct tally *tally = find(latency, epoch);
	*ret_epoch = tally ? tell(tally) : (struct fs_read_latency_epoch){ .epoch = epoch };
}

size_t fs_read_latency_all(
        struct fs_read_latency *latency, struct fs_read_latency_epoch ret_epochs[FS_READ_LATENCY_EPOCHS])
{
	size_t n = 0;
	lock_for_scope(&latency->lock);
	for (size_t i = 0; i < FS_READ_LATENCY_EPOCHS; i++) {
		if (!latency->tallies[i].used)
			continue;
		size_t at = n++;
		for (; at > 0 && ret_epochs[at - 1].epoch > latency->tallies[i].epoch; at--)
			ret_epochs[at] = ret_epochs[at - 1];
		ret_epochs[at] = tell(&latency->tallies[i]);
	}
	return n;
}
