/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's side of a session: requests whose answers a test reads, and the notifications that the server sends.
 * These functions stand in place of libfuse's in a program that links this file.
 *
 * Threads: any; one waits for one request. */
#ifndef DDPFS_TESTS_FS_FAKE_KERNEL_H
#define DDPFS_TESTS_FS_FAKE_KERNEL_H

#include <pthread.h>

#include "fs/server.h"

struct fake_request {
	struct fs_server *server;
	struct fuse_ctx context;
	pthread_mutex_t lock;
	pthread_cond_t cv;
	/* Guarded by lock. */
	unsigned replies;
	int error; /* errno of the answer, 0: none */
	uint8_t *bytes;
	size_t len;
	struct fuse_file_info opened;
};

/* Begins a request; the result is what the server's functions take. */
fuse_req_t fake_request_begin(struct fake_request *request, struct fs_server *server);
/* Returns whether it was answered. */
bool fake_request_answered(struct fake_request *request);
/* Waits for the answer and returns its errno. */
int fake_request_wait(struct fake_request *request);
/* Checks that there was exactly one answer, and frees its bytes. */
void fake_request_end(struct fake_request *request);

/* Who hears of notifications; set it before the server sends one. NULL: they are refused with -ENOENT. */
struct fake_notified {
	int (*store)(void *arg, uint64_t ino, off_t offset, const uint8_t *data, size_t len);
	int (*inval)(void *arg, uint64_t ino, off_t offset, off_t len);
	void *arg;
};
extern struct fake_notified fake_notified;

#endif
