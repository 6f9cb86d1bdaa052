/* SPDX-License-Identifier: Apache-2.0 */
/* Requests on the lists of epochs, which the helper answers; fs/epoch_list_reply.h first. */
#include "fs/epoch_list_reply.h"

#include <errno.h>
#include <stdlib.h>

#include "fs/epoch_list.h"
#include "fs/errors.h"
#include "fs/job_queue.h"
#include "fs/node.h"
#include "shard/base/cleanup.h"

struct list_job {
	struct fs_job job;
	fuse_req_t req;
	struct fs_epoch_list_request request;
};

static void reply_list_attr(struct fs_server *server, const struct list_job *job, uint64_t bytes)
{
	struct fuse_entry_param e = { .ino = fs_ino(job->request.node) };
	int rc = fs_node_attr(server, job->request.node, &e.attr, &e.attr_timeout);
	if (rc < 0) {
		fuse_reply_err(job->req, -fs_errno(rc));
		return;
	}
	e.attr.st_size = (off_t)bytes;
	e.attr.st_blocks = (blkcnt_t)((bytes + 511) / 512);
	e.entry_timeout = FS_FOREVER;
	if (job->request.op == FS_EPOCH_LIST_LOOKUP)
		fuse_reply_entry(job->req, &e);
	else
		fuse_reply_attr(job->req, &e.attr, e.attr_timeout);
}

static void do_list(struct fs_server *server, const struct list_job *job)
{
	struct fs_view *view = fs_server_view(server, job->request.node);
	uint64_t bytes;
	int rc;
	if (!view) {
		fuse_reply_err(job->req, ESTALE);
		return;
	}
	if (job->request.op != FS_EPOCH_LIST_READ) {
		rc = fs_epoch_list_size(
		        server->lists, view, job->request.node.id, fs_job_queue_ending(server->jobs), &bytes);
		rc = fs_index_check(server, rc);
		if (rc == 0)
			reply_list_attr(server, job, bytes);
		else
			fuse_reply_err(job->req, -fs_errno(rc));
		return;
	}
	size_t size = job->request.size > FS_READ_MAX ? FS_READ_MAX : job->request.size;
	size_t len = 0;
	cleanup_free char *buf = malloc(size + 1);
	rc = !buf ? -ENOMEM : job->request.off < 0 ? -EINVAL : 0;
	if (rc == 0)
		rc = fs_epoch_list_read(server->lists, view, job->request.node.id,
		        job->request.node.kind == FS_EPOCH_LIST0 ? '\0' : '\n', fs_job_queue_ending(server->jobs),
		        (uint64_t)job->request.off, buf, size, &len);
	rc = fs_index_check(server, rc);
	if (rc < 0)
		fuse_reply_err(job->req, -fs_errno(rc));
	else
		fuse_reply_buf(job->req, buf, len);
}

static void run(struct fs_job *job, bool ending)
{
	struct list_job *list = (struct list_job *)job;
	if (ending)
		fuse_reply_err(list->req, EIO);
	else
		do_list(fs_server_of(list->req), list);
	free(list);
}

void fs_epoch_list_reply(fuse_req_t req, const struct fs_epoch_list_request *request)
{
	struct list_job *list = malloc(sizeof(*list));
	if (!list) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	*list = (struct list_job){ .job = { .run = run }, .req = req, .request = *request };
	fs_job_queue_add(fs_server_of(req)->jobs, &list->job);
}
