/* SPDX-License-Identifier: Apache-2.0 */
/* How long READs waited, by the epoch that was current when they were answered. Only the latest few epochs are kept.
 *
 * Reads that the page cache serves do not wait and are not seen here. Compare `n` with the opens of the epoch to
 * learn how many reads waited.
 *
 * Threads: any; one lock, a leaf. */
#ifndef DDPFS_FS_READ_LATENCY_H
#define DDPFS_FS_READ_LATENCY_H

#include <stddef.h>
#include <stdint.h>

enum { FS_READ_LATENCY_EPOCHS = 4 }; /* epochs that are kept: the current one and those before it */

struct fs_read_latency; /* opaque */

struct fs_read_latency_epoch {
	uint64_t epoch;
	uint64_t n; /* READs answered */
	uint64_t
	        /* sum of all latency; readers wait side by side, so it can grow by more than a second a second */
	        sum_ns;
	uint64_t p50_ns;
	uint64_t p99_ns;
	uint64_t max_ns;
};

int fs_read_latency_new(struct fs_read_latency **ret_latency); /* -ENOMEM */
void fs_read_latency_free(struct fs_read_latency *latency);    /* NULL is fine */

/* Records that a READ was answered @wait_ns after it came. The epoch whose latest READ is the oldest makes room for a
 * new epoch. */
void fs_read_latency_add(struct fs_read_latency *latency, uint64_t epoch, uint64_t wait_ns);

/* Tells the latency of one epoch; zeros if it is not kept. */
void fs_read_latency_get(struct fs_read_latency *latency, uint64_t epoch, struct fs_read_latency_epoch *ret_epoch);

/* Tells all epochs that are kept, by ascending number. Returns how many, at most FS_READ_LATENCY_EPOCHS. */
size_t fs_read_latency_all(
        struct fs_read_latency *latency, struct fs_read_latency_epoch ret_epochs[FS_READ_LATENCY_EPOCHS]);

#endif
