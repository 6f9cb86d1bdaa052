/* SPDX-License-Identifier: Apache-2.0 */
/* Announcements of guests: users who read the mount and cannot reach its control socket. These are other users of a
 * mount with allow_other, and containers that see only the mount. They ask by ioctl(2) on the mount's root (protocol:
 * shard/base/control_client.h). The kernel lets only those ask who may open that directory.
 *
 *     fuse-N --> queue (bounded; for each user, too) --> main: fs_control_answer_guest --> the answer to the ioctl
 *
 * Main answers the users in turn. After each 2 ms of that it looks at everything else, and guests wait for as long.
 * After a request that takes long (of a dataset with millions of files) they wait nine times as long, at most 30 s, or
 * as long as it took, if that was more. What they may announce is bounded in fs/follow_request.c.
 *
 * Threads: `lock` is a leaf; it guards the queue. */
#ifndef DDPFS_FS_GUEST_ANNOUNCEMENTS_H
#define DDPFS_FS_GUEST_ANNOUNCEMENTS_H

#include <poll.h>
#include <stddef.h>

#include "fs/server.h"

struct fs_guests; /* opaque */

enum {
	FS_GUEST_QUEUE = 64,     /* requests that wait, of BASE_ANNOUNCE_BYTES each */
	FS_GUEST_QUEUE_USER = 8, /* ... of one user */
};

/* Makes it. Returns 0; -ENOMEM, or errors of eventfd(2). */
int fs_guests_new(struct fs_server *server, struct fs_guests **ret_guests);
void fs_guests_free(struct fs_guests *guests); /* after fs_guests_end; NULL is fine */

/* Takes a request, which is answered later: with EAGAIN if too many wait, or the server ends. @bytes: copied.
 * @len: BASE_ANNOUNCE_BYTES at most. fuse-N. */
void fs_guests_take(struct fs_guests *guests, fuse_req_t req, uint64_t ino, const void *bytes, size_t len);

/* Fills in what to poll for. Returns milliseconds after which fs_guests_serve must be called anyway; -1: never.
 * Main. */
int fs_guests_poll(struct fs_guests *guests, struct pollfd *ret_poll);
/* Answers requests; after 2 ms it begins no other one. Main. */
void fs_guests_serve(struct fs_guests *guests);
/* Answers all requests with EAGAIN, also those that come later. NULL is fine. Main. */
void fs_guests_end(struct fs_guests *guests);

#endif
