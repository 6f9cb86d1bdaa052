/* The helper thread: what takes long or may sleep, so that no FUSE worker does.
 *
 *   - requests on `.ddpfs/epoch/N.list` and `N.list0`, whose size is known only after going through the epoch once;
 *   - log lines of READs that failed: each file once, at most FS_JOB_QUEUE_LINES_PER_S a second;
 *   - the check that the mount answers, and that it is being watched; listings that come before that wait for it, so that
 *     no open is missed that follows a listing.
 *
 * Threads: one `helper`; every function from any thread.  One lock guards its queues; it is never held across a reply. */
#ifndef DDPFS_FS_JOB_QUEUE_H
#define DDPFS_FS_JOB_QUEUE_H

#include "fs/server.h"

enum {
	FS_JOB_QUEUE_ERRORS_MAX = 256, /* failures that wait for their line; more are counted only */
	FS_JOB_QUEUE_LINES_PER_S = 10,
	FS_JOB_QUEUE_TOLD_MAX = 1024, /* failed files that are remembered, so that each has one line */
};

int fs_job_queue_new(struct fs_server *server, struct fs_job_queue **ret_helper); /* -ENOMEM, -EAGAIN */

/* Starts the thread; `ready(arg)` is called from it once the mount has answered and is being watched. */
int fs_job_queue_start(struct fs_job_queue *helper, void (*ready)(void *arg), void *arg);

/* Requests still queued are answered EIO; joins the thread. */
void fs_job_queue_stop(struct fs_job_queue *helper);
void fs_job_queue_free(struct fs_job_queue *helper);

enum fs_epoch_list_op { FS_EPOCH_LIST_LOOKUP, FS_EPOCH_LIST_GETATTR, FS_EPOCH_LIST_READ };

/* Answers `req` on the list `node` when its turn comes. */
void fs_job_queue_list(struct fs_job_queue *helper, fuse_req_t req, enum fs_epoch_list_op op, struct fs_node node,
        size_t size, off_t off);

/* Answers an OPENDIR once the mount is being watched. */
void fs_job_queue_opendir(struct fs_job_queue *helper, fuse_req_t req, fuse_ino_t ino, const struct fuse_file_info *fi);

/* A READ failed.  Never blocks for long, never allocates. */
void fs_job_queue_read_failed(struct fs_job_queue *helper, uint32_t file, uint32_t block, int rc);

/* The index is stale: the log says so, once.  Never allocates. */
void fs_job_queue_index_stale(struct fs_job_queue *helper);

/* A line for the user, told by the helper; printf-like, cut to 512 bytes. Dropped when 16 already wait. */
void fs_job_queue_note(struct fs_job_queue *helper, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
