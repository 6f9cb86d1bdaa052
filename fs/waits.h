/* How long READs waited, by the epoch that was current when they were answered: the latest few epochs.
 *
 * What the page cache serves does not wait and is not seen here; `n` beside the opens of an epoch says how many did.
 *
 * Threads: any; one lock, a leaf. */
#ifndef DDPFS_FS_WAITS_H
#define DDPFS_FS_WAITS_H

#include <stddef.h>
#include <stdint.h>

enum { FS_WAITS_EPOCHS = 4 }; /* told of: the current epoch and those before it */

struct fs_waits; /* opaque */

struct fs_waits_epoch {
	uint64_t epoch;
	uint64_t n;      /* READs answered */
	uint64_t sum_ns; /* all their waits; of readers side by side, so it may grow by more than a second a second */
	uint64_t p50_ns;
	uint64_t p99_ns;
	uint64_t max_ns;
};

int fs_waits_new(struct fs_waits **ret_waits); /* -ENOMEM */
void fs_waits_free(struct fs_waits *waits);    /* NULL is fine */

/* A READ was answered wait_ns after it came.  The epoch that was not added to for longest makes room for a new one. */
void fs_waits_add(struct fs_waits *waits, uint64_t epoch, uint64_t wait_ns);

/* Of one epoch; zeros when it has none (any more). */
void fs_waits_get(struct fs_waits *waits, uint64_t epoch, struct fs_waits_epoch *ret_epoch);

/* All that are known, by number, at most FS_WAITS_EPOCHS.  Returns how many. */
size_t fs_waits_all(struct fs_waits *waits, struct fs_waits_epoch ret_epochs[FS_WAITS_EPOCHS]);

#endif
