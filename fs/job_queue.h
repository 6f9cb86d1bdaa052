/* SPDX-License-Identifier: Apache-2.0 */
/* The helper: a thread that runs jobs which take long or may sleep, so that no FUSE worker does. It knows no job: who
 * adds a job brings its function.
 *
 * Threads: one `helper` runs the jobs one after the other; every function from any thread. One lock, a leaf, guards
 * the queue. No hook and no job runs under it. */
#ifndef DDPFS_FS_JOB_QUEUE_H
#define DDPFS_FS_JOB_QUEUE_H

#include <stdatomic.h>
#include <stdbool.h>

struct fs_job_queue; /* opaque */

/* The head of a job. The owner allocates the job, and `run` frees it. */
struct fs_job {
	struct fs_job *next; /* used by the queue */
	/* Called once: on the helper; or, if the queue ends first, from fs_job_queue_add or _stop, with `ending`
	 * true. */
	void (*run)(struct fs_job *job, bool ending);
};

/* Called on the helper. */
struct fs_job_queue_hooks {
	void (*begin)(void *arg); /* before the first job */
	void (*woken)(void *arg); /* after each job and each fs_job_queue_wake, and once before the thread ends */
	void *arg;
};

int fs_job_queue_new(struct fs_job_queue **ret_queue);                               /* -ENOMEM */
int fs_job_queue_start(struct fs_job_queue *queue, struct fs_job_queue_hooks hooks); /* -EAGAIN */
/* Ends the jobs that wait, and joins the thread; NULL is fine. */
void fs_job_queue_stop(struct fs_job_queue *queue);
void fs_job_queue_free(struct fs_job_queue *queue); /* NULL is fine */

/* Adds a job at the end of the queue. The queue owns it until `run` is called. */
void fs_job_queue_add(struct fs_job_queue *queue, struct fs_job *job);

/* Makes the helper call `woken` soon. */
void fs_job_queue_wake(struct fs_job_queue *queue);

/* Returns a flag that is true once fs_job_queue_stop was called: a long job looks at it now and then. */
const _Atomic bool *fs_job_queue_ending(const struct fs_job_queue *queue);

#endif
