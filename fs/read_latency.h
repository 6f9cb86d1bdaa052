/* SPDX-License-Identifier: Apache-2.0 */
/* How long READs waited, by the epoch that was current when they were answered: the latest few epochs.
 *
 * What the page cache serves does not wait and is not seen here; `n` beside the opens of an epoch says how many did.
 *
 * Threads: any; one lock, a leaf. */
#ifndef DDPFS_FS_READ_LATENCY_H
#define DDPFS_FS_READ_LATENCY_H

#include <stddef.h>
#include <stdint.h>

enum { FS_READ_LATENCY_EPOCHS = 4 }; /* told of: the current epoch and those before it */

struct fs_read_latency; /* opaque */

struct fs_read_latency_epoch {
	uint64_t epoch;
	uint64_t n;      /* READs answered */
	uint64_t sum_ns; /* all their waits; of readers side by side, so it may grow by more than a second a second */
	uint64_t p50_ns;
	uint64_t p99_ns;
	uint64_t max_ns;
};

int fs_read_latency_new(struct fs_read_latency **ret_waits); /* -ENOMEM */
void fs_read_latency_free(struct fs_read_latency *waits);    /* NULL is fine */

/* A READ was answered wait_ns after it came.  The epoch that was not added to for longest makes room for a new one. */
void fs_read_latency_add(struct fs_read_latency *waits, uint64_t epoch, uint64_t wait_ns);

/* Of one epoch; zeros when it has none (any more). */
void fs_read_latency_get(struct fs_read_latency *waits, uint64_t epoch, struct fs_read_latency_epoch *ret_epoch);

/* All that are known, by number, at most FS_READ_LATENCY_EPOCHS.  Returns how many. */
size_t fs_read_latency_all(
        struct fs_read_latency *waits, struct fs_read_latency_epoch ret_epochs[FS_READ_LATENCY_EPOCHS]);

#endif
