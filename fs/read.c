/* SPDX-License-Identifier: Apache-2.0 */
/* READs of files, answered from the engine's callback; fs/read.h first. */
#include "fs/read.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/lookup_readahead.h"
#include "fs/errors.h"
#include "fs/log_queue.h"
#include "fs/read_latency.h"
#include "fs/watch.h"
#include "fs/worker_reads.h"
#include "shard/base/cleanup.h"

enum { DEMANDS_MAX = FS_READ_MAX / SHARD_BLOCK + 1 };

struct read_request;

struct read_demand {
	struct prefetch_demand demand; /* first member: the callback gets its address */
	struct read_request *request;
	uint32_t skip; /* bytes of the block before the READ's range */
	uint32_t take; /* bytes of the block in the READ's range */
	uint32_t at;   /* where these bytes go in the reply */
};

struct read_request {
	fuse_req_t req;
	struct fs_reads *reads;
	uint8_t *buf; /* the reply, if it spans blocks; else NULL */
	uint64_t asked_ns;
	uint32_t size;         /* bytes of the reply */
	uint32_t n;            /* number of demands */
	_Atomic uint32_t left; /* demands without a callback so far */
	_Atomic int rc;        /* the first error, or 0 */
	struct read_request *next_free;
	bool pooled;
	struct read_demand demands[DEMANDS_MAX];
};

struct fs_reads {
	struct fs_server *server;
	pthread_mutex_t lock;
	struct read_request *free; /* guarded by lock */
	struct read_request pool[FS_READ_POOL];
};

int fs_reads_new(struct fs_server *server, struct fs_reads **ret_reads)
{
	struct fs_reads *reads = calloc(1, sizeof(*reads));
	if (!reads)
		return -ENOMEM;
	reads->server = server;
	pthread_mutex_init(&reads->lock, NULL);
	for (size_t i = 0; i < FS_READ_POOL; i++) {
		reads->pool[i].pooled = true;
		reads->pool[i].reads = reads;
		reads->pool[i].next_free = reads->free;
		reads->free = &reads->pool[i];
	}
	*ret_reads = reads;
	return 0;
}

void fs_reads_free(struct fs_reads *reads)
{
	if (!reads)
		return;
	pthread_mutex_destroy(&reads->lock);
	free(reads);
}

/* The number of synchronous readers is limited only by the host's processes, so a burst beyond the pool allocates. */
static struct read_request *request_get(struct fs_reads *reads)
{
	struct read_request *request;
	{
		lock_for_scope(&reads->lock);
		request = reads->free;
		if (request)
			reads->free = request->next_free;
	}
	if (!request) {
		request = calloc(1, sizeof(*request));
		if (request)
			request->reads = reads;
	}
	return request;
}

static void request_put(struct read_request *request)
{
	struct fs_reads *reads = request->reads;
	free(request->buf);
	request->buf = NULL;
	if (!request->pooled) {
		free(request);
		return;
	}
	lock_for_scope(&reads->lock);
	request->next_free = reads->free;
	reads->free = request;
}

static void count_wait(struct fs_server *server, uint64_t asked_ns)
{
	uint64_t wait_ns = base_now_ns() - asked_ns;
	/* A file is one inode in all ranks, so a READ tells no rank. */
	uint64_t epoch = atomic_load_explicit(&server->lowest_epoch, memory_order_relaxed);
	fs_count(&server->counters.replies, 1);
	fs_count(&server->counters.waited_ns, wait_ns);
	fs_read_latency_add(server->read_latency, epoch, wait_ns);
}

static void reply(struct read_request *request, const uint8_t *data)
{
	struct fs_server *server = request->reads->server;
	int rc = atomic_load(&request->rc);
	count_wait(server,
	        request->asked_ns); /* before the reply, because its reader may look at the statistics at once */
	if (rc < 0) {
		fs_count(&server->counters.errors, 1);
		fuse_reply_err(request->req, -fs_read_errno(rc));
	} else {
		fs_count(&server->counters.read_reply_bytes, request->size);
		fuse_reply_buf(request->req, (const char *)data, request->size);
	}
	request_put(request);
}

static void block_done(struct prefetch_demand *demand, int rc, const uint8_t *data, uint32_t len)
{
	struct read_demand *part = (struct read_demand *)demand;
	struct read_request *request = part->request;
	if (rc == 0 && (uint64_t)part->skip + part->take > len)
		rc = -EUCLEAN; /* impossible: the engine delivers whole blocks with the lengths of the index */
	if (rc < 0) {
		int none = 0;
		atomic_compare_exchange_strong(&request->rc, &none, rc);
		if (rc != -ECANCELED)
			fs_log_queue_read_failed(request->reads->server->log, demand->file, demand->block, rc);
	} else if (request->buf) {
		memcpy(request->buf + part->at, data + part->skip, part->take);
	}
	if (atomic_fetch_sub(&request->left, 1) != 1)
		return;
	const uint8_t *bytes = request->buf;
	if (!bytes && rc == 0)
		bytes = data + part->skip;
	reply(request, bytes);
}

void fs_read(fuse_req_t req, uint32_t file, size_t size, off_t off, bool direct)
{
	struct fs_server *server = fs_server_of(req);
	struct shard_place rec;
	int rc = off < 0 ? -EINVAL : shard_index_place(server->index, file, &rec);
	rc = fs_index_check(server, rc);
	if (rc < 0) {
		fs_count(&server->counters.errors, 1);
		fuse_reply_err(req, -fs_errno(rc));
		return;
	}
	uint64_t begin = (uint64_t)off;
	if (begin >= rec.length || size == 0) {
		fuse_reply_buf(req, NULL, 0);
		return;
	}
	if (size > FS_READ_MAX)
		size = FS_READ_MAX;
	uint64_t end = rec.length - begin < size ? rec.length : begin + size;
	fs_count(&server->counters.reads, 1);
	uint64_t now_ns = base_now_ns();
	fs_watch_read(server->watch, file, begin == 0, (uint32_t)(end - begin), now_ns);
	if (begin == 0)
		fs_lookup_readahead_read(server->lookup_readahead, file);

	struct read_request *request = request_get(server->reads);
	uint32_t first = (uint32_t)(begin / SHARD_BLOCK);
	uint32_t n = (uint32_t)((end - 1) / SHARD_BLOCK) - first + 1;
	assert(n <= DEMANDS_MAX);
	if (request && n > 1) {
		request->buf = malloc(end - begin);
		if (!request->buf) {
			request_put(request);
			request = NULL;
		}
	}
	if (!request) {
		fs_count(&server->counters.errors, 1);
		fuse_reply_err(req, ENOMEM);
		return;
	}
	fs_count(&server->counters.asked, 1);
	request->req = req;
	request->asked_ns = now_ns;
	request->size = (uint32_t)(end - begin);
	request->n = n;
	atomic_store(&request->left, n);
	atomic_store(&request->rc, 0);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t block_begin = (uint64_t)(first + i) * SHARD_BLOCK;
		uint64_t from = begin > block_begin ? begin : block_begin;
		uint64_t to = end < block_begin + SHARD_BLOCK ? end : block_begin + SHARD_BLOCK;
		request->demands[i] = (struct read_demand){
			.demand = { .file = file,
			        .block = first + i,
			        .take = (uint32_t)(to - from),
			        .direct = direct,
			        .done = block_done },
			.request = request,
			.skip = (uint32_t)(from - block_begin),
			.take = (uint32_t)(to - from),
			.at = (uint32_t)(from - begin),
		};
	}
	/* The blocks of a large file are read ahead of its reader, so the engine has them. */
	_Atomic bool *reading = rec.length <= SHARD_BLOCK ? fs_worker_reads_begin(server) : NULL;
	request->demands[0].demand.reading = reading;
	/* The last demand may free the request at once, so nothing after the loop uses it. */
	for (uint32_t i = 0; i < n; i++)
		prefetch_demand(server->prefetch, &request->demands[i].demand);
	fs_worker_reads_end(server, reading);
}
