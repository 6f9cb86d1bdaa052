/* SPDX-License-Identifier: Apache-2.0 */
/* A thread for what takes long or may sleep, so that no FUSE worker does.  It knows no job: who adds one brings the function.
 *
 * Threads: one `helper`, which runs the jobs one after the other; every function from any thread.  One lock guards the queue, a leaf;
 * no hook and no job runs under it. */
#ifndef DDPFS_FS_JOB_QUEUE_H
#define DDPFS_FS_JOB_QUEUE_H

#include <stdatomic.h>
#include <stdbool.h>

struct fs_job_queue; /* opaque */

/* The head of a job; the owner allocates it, and `run` frees it. */
struct fs_job {
	struct fs_job *next; /* the queue's */
	/* Called once: on the thread, or, when the queue ends first, with `ending` from fs_job_queue_add or _stop. */
	void (*run)(struct fs_job *job, bool ending);
};

/* Called on the thread. */
struct fs_job_queue_hooks {
	void (*begin)(void *arg); /* before the first job */
	void (*woken)(void *arg); /* after each job and each fs_job_queue_wake, and once before the thread ends */
	void *arg;
};

int fs_job_queue_new(struct fs_job_queue **ret_queue);                               /* -ENOMEM */
int fs_job_queue_start(struct fs_job_queue *queue, struct fs_job_queue_hooks hooks); /* -EAGAIN */
void fs_job_queue_stop(struct fs_job_queue *queue); /* ends jobs that wait, joins the thread; NULL is fine */
void fs_job_queue_free(struct fs_job_queue *queue); /* NULL is fine */

void fs_job_queue_add(struct fs_job_queue *queue, struct fs_job *job);

/* Has `woken` called soon. */
void fs_job_queue_wake(struct fs_job_queue *queue);

/* True once fs_job_queue_stop was called: a job that takes long looks at it now and then. */
const _Atomic bool *fs_job_queue_ending(const struct fs_job_queue *queue);

#endif
