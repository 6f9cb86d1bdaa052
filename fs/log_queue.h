/* SPDX-License-Identifier: Apache-2.0 */
/* Lines for the log that may not be written where they arise: reads that failed, and sentences for the user.
 *
 * A file has one line, as far as the last FS_LOG_QUEUE_TOLD_MAX are remembered.  At most FS_LOG_QUEUE_LINES_PER_S lines of failed reads
 * are written a second; the rest is counted.  When the index is stale there is one sentence for all files.
 *
 * Threads: every function from any, but fs_log_queue_write: the helper (fs/job_queue.h).  One lock, a leaf but for the queue's. */
#ifndef DDPFS_FS_LOG_QUEUE_H
#define DDPFS_FS_LOG_QUEUE_H

#include "fs/job_queue.h"
#include "shard/index.h"

enum {
	FS_LOG_QUEUE_ERRORS_MAX = 256, /* failures that wait for their line; more are counted only */
	FS_LOG_QUEUE_LINES_PER_S = 10,
	FS_LOG_QUEUE_TOLD_MAX = 1024, /* failed files that are remembered, so that each has one line */
};

struct fs_log_queue; /* opaque */

/* queue: its thread is woken for each line. -ENOMEM. */
int fs_log_queue_new(const struct shard_index *index, struct fs_job_queue *queue, struct fs_log_queue **ret_log);
void fs_log_queue_free(struct fs_log_queue *log); /* NULL is fine */

/* A READ failed with rc.  Never blocks for long, never allocates. */
void fs_log_queue_read_failed(struct fs_log_queue *log, uint32_t file, uint32_t block, int rc);

/* The index is stale: the log says so, once.  Never allocates. */
void fs_log_queue_index_stale(struct fs_log_queue *log);

/* A warning, printf-like, cut to 512 bytes.  Dropped when 16 already wait. */
void fs_log_queue_note(struct fs_log_queue *log, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Writes what waits. */
void fs_log_queue_write(struct fs_log_queue *log);

#endif
