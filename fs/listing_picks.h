/* SPDX-License-Identifier: Apache-2.0 */
/* The files whose names the toucher's next listing has, if it needs few names of a large directory.
 *
 * The toucher sets the picks, lists the directory with the mark of fs/dir.h, and clears the picks. The worker that
 * answers the listing leaves out all other files. An answer may still be made after the toucher has cleared the picks,
 * because a session that is aborted answers the toucher at once. Nobody reads that answer.
 *
 * Threads: the toucher sets and clears; any worker asks. A lock, which is a leaf. */
#ifndef DDPFS_FS_LISTING_PICKS_H
#define DDPFS_FS_LISTING_PICKS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct fs_listing_picks {
	pthread_mutex_t lock; /* guards what follows */
	const uint32_t *files;
	uint32_t n; /* 0: a listing has all names */
};

void fs_listing_picks_init(struct fs_listing_picks *picks);
void fs_listing_picks_done(struct fs_listing_picks *picks);

/* Picks files[n], n > 0, until fs_listing_picks_clear. The files ascend. They are not copied. */
void fs_listing_picks_set(struct fs_listing_picks *picks, const uint32_t *files, uint32_t n);
/* From now on a listing has all names, and no thread uses the files. */
void fs_listing_picks_clear(struct fs_listing_picks *picks);

/* Returns whether files are picked. */
bool fs_listing_picks_any(struct fs_listing_picks *picks);
/* Returns the first picked file that is not below @file, or SHARD_NONE. */
uint32_t fs_listing_picks_next(struct fs_listing_picks *picks, uint32_t file);

#endif
