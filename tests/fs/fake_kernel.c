/* SPDX-License-Identifier: Apache-2.0 */
/* Replies and notifications without a session; tests/fs/fake_kernel.h first. */
#include "tests/fs/fake_kernel.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "shard/base/cleanup.h"

struct fake_notified fake_notified;

fuse_req_t fake_request_begin(struct fake_request *request, struct fs_server *server)
{
	*request = (struct fake_request){ .server = server };
	pthread_mutex_init(&request->lock, NULL);
	pthread_cond_init(&request->cv, NULL);
	return (fuse_req_t)request;
}

bool fake_request_answered(struct fake_request *request)
{
	lock_for_scope(&request->lock);
	return request->replies > 0;
}

int fake_request_wait(struct fake_request *request)
{
	lock_for_scope(&request->lock);
	while (!request->replies)
		pthread_cond_wait(&request->cv, &request->lock);
	return request->error;
}

void fake_request_end(struct fake_request *request)
{
	assert_int_equal(request->replies, 1);
	free(request->bytes);
	pthread_cond_destroy(&request->cv);
	pthread_mutex_destroy(&request->lock);
}

static int answer(fuse_req_t req, int error, const char *bytes, size_t len, const struct fuse_file_info *opened)
{
	struct fake_request *request = (struct fake_request *)req;
	lock_for_scope(&request->lock);
	if (request->replies++ == 0) {
		request->error = error;
		request->len = len;
		request->bytes = len ? malloc(len) : NULL;
		if (request->bytes)
			memcpy(request->bytes, bytes, len);
		if (opened)
			request->opened = *opened;
	}
	pthread_cond_signal(&request->cv);
	return 0;
}

void *fuse_req_userdata(fuse_req_t req)
{
	return ((struct fake_request *)req)->server;
}

const struct fuse_ctx *fuse_req_ctx(fuse_req_t req)
{
	return &((struct fake_request *)req)->context;
}

int fuse_reply_err(fuse_req_t req, int err)
{
	return answer(req, err, NULL, 0, NULL);
}

int fuse_reply_buf(fuse_req_t req, const char *buf, size_t size)
{
	return answer(req, 0, buf, size, NULL);
}

int fuse_reply_open(fuse_req_t req, const struct fuse_file_info *fi)
{
	return answer(req, 0, NULL, 0, fi);
}

int fuse_lowlevel_notify_store(
        struct fuse_session *se, fuse_ino_t ino, off_t offset, struct fuse_bufvec *bufv, enum fuse_buf_copy_flags flags)
{
	(void)se;
	(void)flags;
	if (!fake_notified.store)
		return -ENOENT;
	return fake_notified.store(fake_notified.arg, ino, offset, bufv->buf[0].mem, bufv->buf[0].size);
}

int fuse_lowlevel_notify_inval_inode(struct fuse_session *se, fuse_ino_t ino, off_t off, off_t len)
{
	(void)se;
	return fake_notified.inval ? fake_notified.inval(fake_notified.arg, ino, off, len) : -ENOENT;
}
