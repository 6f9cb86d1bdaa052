/* SPDX-License-Identifier: Apache-2.0 */
/* Requests on `.ddpfs/epoch/N.list` and `N.list0`: the size of a list is known only after going through the epoch once, so the helper
 * answers (fs/job_queue.h).  Threads: any. */
#ifndef DDPFS_FS_EPOCH_LIST_REPLY_H
#define DDPFS_FS_EPOCH_LIST_REPLY_H

#include "fs/server.h"

struct fs_epoch_list_request {
	enum fs_epoch_list_op { FS_EPOCH_LIST_LOOKUP, FS_EPOCH_LIST_GETATTR, FS_EPOCH_LIST_READ } op;
	struct fs_node node; /* a list */
	size_t size;         /* READ: bytes wanted */
	off_t off;           /* READ: from where */
};

/* Answers req when its turn comes: an entry, attributes, or bytes; EIO when the server ends first. */
void fs_epoch_list_reply(fuse_req_t req, const struct fs_epoch_list_request *request);

#endif
