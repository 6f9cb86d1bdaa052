/* SPDX-License-Identifier: Apache-2.0 */
/* The helper thread and its jobs; fs/job_queue.h first. */
#include "fs/job_queue.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "shard/base/cleanup.h"

struct fs_job_queue {
	pthread_t thread;
	bool started;
	struct fs_job_queue_hooks hooks;
	_Atomic bool ending;

	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t wake;
	struct fs_job *jobs;
	struct fs_job **tail;
	bool woken;
};

int fs_job_queue_new(struct fs_job_queue **ret_queue)
{
	struct fs_job_queue *queue = calloc(1, sizeof(*queue));
	if (!queue)
		return -ENOMEM;
	queue->tail = &queue->jobs;
	pthread_mutex_init(&queue->lock, NULL);
	pthread_cond_init(&queue->wake, NULL);
	*ret_queue = queue;
	return 0;
}

void fs_job_queue_free(struct fs_job_queue *queue)
{
	if (!queue)
		return;
	pthread_cond_destroy(&queue->wake);
	pthread_mutex_destroy(&queue->lock);
	free(queue);
}

void fs_job_queue_add(struct fs_job_queue *queue, struct fs_job *job)
{
	job->next = NULL;
	bool ending;
	{
		lock_for_scope(&queue->lock);
		ending = queue->ending;
		if (!ending) {
			*queue->tail = job;
			queue->tail = &job->next;
			pthread_cond_signal(&queue->wake);
		}
	}
	if (ending)
		job->run(job, true);
}

void fs_job_queue_wake(struct fs_job_queue *queue)
{
	lock_for_scope(&queue->lock);
	queue->woken = true;
	pthread_cond_signal(&queue->wake);
}

const _Atomic bool *fs_job_queue_ending(const struct fs_job_queue *queue)
{
	return &queue->ending;
}

/* Takes the first job. Under the lock. */
static struct fs_job *take(struct fs_job_queue *queue)
{
	struct fs_job *job = queue->jobs;
	if (!job)
		return NULL;
	queue->jobs = job->next;
	if (!queue->jobs)
		queue->tail = &queue->jobs;
	return job;
}

static void *helper_run(void *arg)
{
	struct fs_job_queue *queue = arg;
	pthread_setname_np(pthread_self(), "helper");
	queue->hooks.begin(queue->hooks.arg);

	pthread_mutex_lock(&queue->lock);
	while (!queue->ending) {
		struct fs_job *job = take(queue);
		if (!job && !queue->woken) {
			pthread_cond_wait(&queue->wake, &queue->lock);
			continue;
		}
		queue->woken = false;
		pthread_mutex_unlock(&queue->lock);
		if (job)
			job->run(job, false);
		queue->hooks.woken(queue->hooks.arg);
		pthread_mutex_lock(&queue->lock);
	}
	pthread_mutex_unlock(&queue->lock);
	queue->hooks.woken(queue->hooks.arg);
	return NULL;
}

int fs_job_queue_start(struct fs_job_queue *queue, struct fs_job_queue_hooks hooks)
{
	queue->hooks = hooks;
	int rc = -pthread_create(&queue->thread, NULL, helper_run, queue);
	queue->started = rc == 0;
	return rc;
}

void fs_job_queue_stop(struct fs_job_queue *queue)
{
	if (!queue)
		return;
	{
		lock_for_scope(&queue->lock);
		queue->ending = true;
		pthread_cond_signal(&queue->wake);
	}
	if (queue->started)
		pthread_join(queue->thread, NULL);
	queue->started = false;
	/* No job is queued from now on: fs_job_queue_add ends each one at once. */
	for (struct fs_job *job; (job = take(queue));)
		job->run(job, true);
}
