/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines that wait for the helper: reads that failed, and sentences for the user. Threads that serve must not
 * write them.
 *
 * A failed file gets one line, as long as it is among the last FS_LOG_QUEUE_TOLD_MAX. At most
 * FS_LOG_QUEUE_LINES_PER_S lines of failed reads are written a second; the rest is counted. If the index is stale,
 * one sentence stands for all files.
 *
 * Threads: any; fs_log_queue_write only on the helper (fs/job_queue.h). One lock; only the job queue's is taken after
 * it. */
#ifndef DDPFS_FS_LOG_QUEUE_H
#define DDPFS_FS_LOG_QUEUE_H

#include "fs/job_queue.h"
#include "shard/index.h"

enum {
	FS_LOG_QUEUE_ERRORS_MAX = 256, /* failures that wait for their line; more are only counted */
	FS_LOG_QUEUE_LINES_PER_S = 10,
	FS_LOG_QUEUE_TOLD_MAX = 1024, /* failed files that are remembered, so that each gets one line */
};

struct fs_log_queue; /* opaque */

/* Makes the queue. @queue: its helper is woken for each line. Returns 0; -ENOMEM. */
int fs_log_queue_new(const struct shard_index *index, struct fs_job_queue *queue, struct fs_log_queue **ret_log);
void fs_log_queue_free(struct fs_log_queue *log); /* NULL is fine */

/* Records that a READ failed with @rc. Holds its lock for a short time only, and never allocates. */
void fs_log_queue_read_failed(struct fs_log_queue *log, uint32_t file, uint32_t block, int rc);

/* Makes the log say, once, that the index is stale. Never allocates. */
void fs_log_queue_index_stale(struct fs_log_queue *log);

/* Adds a warning, printf-like, cut to 512 bytes. Drops it if 16 wait already. */
void fs_log_queue_note(struct fs_log_queue *log, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Writes the lines that wait. Helper only. */
void fs_log_queue_write(struct fs_log_queue *log);

#endif
