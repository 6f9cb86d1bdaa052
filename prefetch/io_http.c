/* SPDX-License-Identifier: Apache-2.0 */
/* Reads objects of a store; prefetch/io_backend.h first, then shard/remote/client.h. */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

#include "prefetch/io_backend.h"

/* A read of the client, and the operation that it serves. */
struct http_read {
	struct remote_read read; /* first, so that a pointer to it is a pointer to this */
	struct prefetch_op *op;
	struct http_read *next; /* in `unused` */
};

struct http_io {
	struct prefetch_io_backend base;
	struct remote_client *client;
	struct http_read *unused;
	struct http_read reads[PREFETCH_OPS_MAX];
};

static struct http_io *http_of(struct prefetch_io_backend *io)
{
	return (struct http_io *)io;
}

static void http_submit(struct prefetch_io_backend *io, struct prefetch_op *op)
{
	struct http_io *http = http_of(io);
	struct http_read *read = http->unused; /* there are as many as operations in flight */
	http->unused = read->next;
	read->op = op;
	read->read = (struct remote_read){ .object = op->object->remote,
		.offset = op->offset,
		.len = op->len,
		.data = op->data,
		.waited_ns = op->waited_ns };
	remote_client_submit(http->client, &read->read);
}

static void http_wait(struct prefetch_io_backend *io, int64_t timeout_ns, struct prefetch_op **ret_done)
{
	struct http_io *http = http_of(io);
	struct prefetch_op *done = NULL, **tail = &done;
	struct remote_read *list;
	remote_client_wait(http->client, timeout_ns, &list);
	while (list) {
		struct http_read *read = (struct http_read *)list;
		list = list->next;
		read->op->res = read->read.res;
		read->op->next = NULL;
		*tail = read->op;
		tail = &read->op->next;
		read->next = http->unused;
		http->unused = read;
	}
	*ret_done = done;
}

static void http_wake(struct prefetch_io_backend *io)
{
	remote_client_wake(http_of(io)->client);
}

static void http_set_file(struct prefetch_io_backend *io, uint32_t entry, int fd)
{
	(void)io;
	(void)entry;
	(void)fd;
}

static void http_cancel(struct prefetch_io_backend *io)
{
	remote_client_cancel(http_of(io)->client);
}

static void http_free(struct prefetch_io_backend *io)
{
	remote_client_free(http_of(io)->client);
	free(io);
}

static const struct prefetch_io_ops http_ops = {
	.submit = http_submit,
	.wait = http_wait,
	.wake = http_wake,
	.set_file = http_set_file,
	.cancel = http_cancel,
	.free = http_free,
};

int prefetch_io_http(struct remote_store *store, uint64_t timeout_ns, struct prefetch_io_backend **ret_io)
{
	struct http_io *http = calloc(1, sizeof(*http));
	int rc = http ? remote_client_new(store, timeout_ns, &http->client) : -ENOMEM;
	if (rc < 0) {
		free(http);
		return rc;
	}
	http->base = (struct prefetch_io_backend){ .ops = &http_ops };
	for (size_t i = 0; i < PREFETCH_OPS_MAX; i++) {
		http->reads[i].next = http->unused;
		http->unused = &http->reads[i];
	}
	*ret_io = &http->base;
	return 0;
}

void prefetch_io_http_stats(struct prefetch_io_backend *io, struct remote_stats *ret_stats)
{
	remote_client_stats_get(http_of(io)->client, ret_stats);
}
