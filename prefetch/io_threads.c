/* SPDX-License-Identifier: Apache-2.0 */
/* Reads by pread threads, for hosts without io_uring; prefetch/io_backend.h first. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "prefetch/io_backend.h"
#include "shard/base/cleanup.h"
#include "shard/base/clock.h"

enum { THREADS_MAX = 32 }; /* reads at once; enough for an NVMe disk, few enough for any host */

struct threads_io {
	struct prefetch_io_backend base;
	pthread_mutex_t lock;      /* guards all fields below */
	pthread_cond_t waiting_cv; /* waiting is not empty, or stop */
	pthread_cond_t done_cv;    /* done is not empty, or woken */
	struct prefetch_op *waiting, **waiting_tail;
	struct prefetch_op *done, **done_tail;
	bool woken;
	bool stop;
	unsigned idle;   /* readers that wait for work */
	unsigned queued; /* operations in waiting */
	unsigned n_threads;
	pthread_t threads[THREADS_MAX];
};

static struct threads_io *threads_of(struct prefetch_io_backend *io)
{
	return (struct threads_io *)io;
}

static int do_read(const struct prefetch_op *op)
{
	ssize_t got = pread(op->object->fd, op->data, op->len, (off_t)op->offset);
	return got < 0 ? -errno : (int)got;
}

static void *reader(void *arg)
{
	struct threads_io *t = arg;
	pthread_setname_np(pthread_self(), "pread");
	pthread_mutex_lock(&t->lock);
	for (;;) {
		while (!t->waiting && !t->stop) {
			t->idle++;
			pthread_cond_wait(&t->waiting_cv, &t->lock);
			t->idle--;
		}
		struct prefetch_op *op = t->waiting;
		if (!op)
			break;
		t->waiting = op->next;
		t->queued--;
		if (!t->waiting)
			t->waiting_tail = &t->waiting;
		pthread_mutex_unlock(&t->lock);
		op->res = do_read(op);
		pthread_mutex_lock(&t->lock);
		op->next = NULL;
		*t->done_tail = op;
		t->done_tail = &op->next;
		pthread_cond_signal(&t->done_cv);
	}
	pthread_mutex_unlock(&t->lock);
	return NULL;
}

static void threads_submit(struct prefetch_io_backend *io, struct prefetch_op *op)
{
	struct threads_io *t = threads_of(io);
	lock_for_scope(&t->lock);
	op->next = NULL;
	*t->waiting_tail = op;
	t->waiting_tail = &op->next;
	if (++t->queued > t->idle && t->n_threads < THREADS_MAX &&
	        pthread_create(&t->threads[t->n_threads], NULL, reader, t) == 0)
		t->n_threads++; /* if no thread can be added, those that run serve the queue */
	pthread_cond_signal(&t->waiting_cv);
}

static void threads_wait(struct prefetch_io_backend *io, int64_t timeout_ns, struct prefetch_op **ret_done)
{
	struct threads_io *t = threads_of(io);
	struct timespec until = base_until(timeout_ns > 0 ? (uint64_t)timeout_ns : 0);
	lock_for_scope(&t->lock);
	while (!t->done && !t->woken && timeout_ns != 0) {
		if (timeout_ns < 0)
			pthread_cond_wait(&t->done_cv, &t->lock);
		else if (pthread_cond_timedwait(&t->done_cv, &t->lock, &until) == ETIMEDOUT)
			break;
	}
	t->woken = false;
	*ret_done = t->done;
	t->done = NULL;
	t->done_tail = &t->done;
}

static void threads_wake(struct prefetch_io_backend *io)
{
	struct threads_io *t = threads_of(io);
	lock_for_scope(&t->lock);
	t->woken = true;
	pthread_cond_signal(&t->done_cv);
}

static void threads_set_file(struct prefetch_io_backend *io, uint32_t entry, int fd)
{
	(void)io;
	(void)entry;
	(void)fd;
}

static void threads_free(struct prefetch_io_backend *io)
{
	struct threads_io *t = threads_of(io);
	{
		lock_for_scope(&t->lock);
		t->stop = true;
		pthread_cond_broadcast(&t->waiting_cv);
	}
	for (unsigned i = 0; i < t->n_threads; i++)
		pthread_join(t->threads[i], NULL);
	pthread_cond_destroy(&t->waiting_cv);
	pthread_cond_destroy(&t->done_cv);
	pthread_mutex_destroy(&t->lock);
	free(t);
}

static const struct prefetch_io_ops threads_ops = {
	.submit = threads_submit,
	.wait = threads_wait,
	.wake = threads_wake,
	.set_file = threads_set_file,
	.free = threads_free,
};

int prefetch_io_threads(struct prefetch_io_backend **ret_io)
{
	struct threads_io *t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->waiting_cv, NULL);
	base_cond_init(&t->done_cv);
	t->base = (struct prefetch_io_backend){ .ops = &threads_ops, .uring = false };
	t->waiting_tail = &t->waiting;
	t->done_tail = &t->done;
	/* One reader must exist, or submitted operations would never end. */
	int rc = pthread_create(&t->threads[0], NULL, reader, t);
	if (rc) {
		threads_free(&t->base);
		return -rc;
	}
	t->n_threads = 1;
	*ret_io = &t->base;
	return 0;
}
