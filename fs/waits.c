#include "fs/waits.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "prefetch/hist.h"

struct slot {
	bool used;
	uint64_t epoch;
	uint64_t latest; /* the `adds` of its latest wait */
	uint64_t n;
	uint64_t sum_ns;
	struct prefetch_hist hist;
};

struct fs_waits {
	pthread_mutex_t lock; /* guards what follows */
	uint64_t adds;
	struct slot slots[FS_WAITS_EPOCHS];
};

int fs_waits_new(struct fs_waits **ret_waits)
{
	struct fs_waits *waits = calloc(1, sizeof(*waits));
	if (!waits)
		return -ENOMEM;
	pthread_mutex_init(&waits->lock, NULL);
	*ret_waits = waits;
	return 0;
}

void fs_waits_free(struct fs_waits *waits)
{
	if (!waits)
		return;
	pthread_mutex_destroy(&waits->lock);
	free(waits);
}

static struct slot *find(struct fs_waits *waits, uint64_t epoch)
{
	for (size_t i = 0; i < FS_WAITS_EPOCHS; i++)
		if (waits->slots[i].used && waits->slots[i].epoch == epoch)
			return &waits->slots[i];
	return NULL;
}

static struct slot *make(struct fs_waits *waits, uint64_t epoch)
{
	struct slot *slot = &waits->slots[0];
	for (size_t i = 1; i < FS_WAITS_EPOCHS && slot->used; i++)
		if (!waits->slots[i].used || waits->slots[i].latest < slot->latest)
			slot = &waits->slots[i];
	memset(slot, 0, sizeof(*slot));
	slot->used = true;
	slot->epoch = epoch;
	return slot;
}

void fs_waits_add(struct fs_waits *waits, uint64_t epoch, uint64_t wait_ns)
{
	pthread_mutex_lock(&waits->lock);
	struct slot *slot = find(waits, epoch);
	if (!slot)
		slot = make(waits, epoch);
	slot->latest = ++waits->adds;
	slot->n++;
	slot->sum_ns += wait_ns;
	prefetch_hist_add(&slot->hist, wait_ns);
	pthread_mutex_unlock(&waits->lock);
}

static struct fs_waits_epoch tell(const struct slot *slot)
{
	return (struct fs_waits_epoch){
		.epoch = slot->epoch,
		.n = slot->n,
		.sum_ns = slot->sum_ns,
		.p50_ns = prefetch_hist_quantile(&slot->hist, 500),
		.p99_ns = prefetch_hist_quantile(&slot->hist, 990),
		.max_ns = prefetch_hist_max(&slot->hist),
	};
}

void fs_waits_get(struct fs_waits *waits, uint64_t epoch, struct fs_waits_epoch *ret_epoch)
{
	pthread_mutex_lock(&waits->lock);
	const struct slot *slot = find(waits, epoch);
	*ret_epoch = slot ? tell(slot) : (struct fs_waits_epoch){ .epoch = epoch };
	pthread_mutex_unlock(&waits->lock);
}

size_t fs_waits_all(struct fs_waits *waits, struct fs_waits_epoch ret_epochs[FS_WAITS_EPOCHS])
{
	size_t n = 0;
	pthread_mutex_lock(&waits->lock);
	for (size_t i = 0; i < FS_WAITS_EPOCHS; i++) {
		if (!waits->slots[i].used)
			continue;
		size_t at = n++;
		for (; at > 0 && ret_epochs[at - 1].epoch > waits->slots[i].epoch; at--)
			ret_epochs[at] = ret_epochs[at - 1];
		ret_epochs[at] = tell(&waits->slots[i]);
	}
	pthread_mutex_unlock(&waits->lock);
	return n;
}
