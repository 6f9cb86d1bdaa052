/* SPDX-License-Identifier: Apache-2.0 */
/* Picked files, found by bisection; fs/listing_picks.h first. */
#include "fs/listing_picks.h"

#include "shard/base/cleanup.h"
#include "shard/format.h"

void fs_listing_picks_init(struct fs_listing_picks *picks)
{
	*picks = (struct fs_listing_picks){ 0 };
	pthread_mutex_init(&picks->lock, NULL);
}

void fs_listing_picks_done(struct fs_listing_picks *picks)
{
	pthread_mutex_destroy(&picks->lock);
}

void fs_listing_picks_set(struct fs_listing_picks *picks, const uint32_t *files, uint32_t n)
{
	lock_for_scope(&picks->lock);
	picks->files = files;
	picks->n = n;
}

void fs_listing_picks_clear(struct fs_listing_picks *picks)
{
	fs_listing_picks_set(picks, NULL, 0);
}

bool fs_listing_picks_any(struct fs_listing_picks *picks)
{
	lock_for_scope(&picks->lock);
	return picks->n > 0;
}

uint32_t fs_listing_picks_next(struct fs_listing_picks *picks, uint32_t file)
{
	lock_for_scope(&picks->lock);
	uint32_t low = 0, high = picks->n;
	while (low < high) {
		uint32_t mid = low + (high - low) / 2;
		if (picks->files[mid] < file)
			low = mid + 1;
		else
			high = mid;
	}
	return low < picks->n ? picks->files[low] : SHARD_NONE;
}
