/* SPDX-License-Identifier: Apache-2.0 */
/* Requests on `.ddpfs/epoch/N.list` and `N.list0`. The size of a list is known only after a pass through the epoch,
 * so the helper answers them (fs/job_queue.h). Threads: any. */
#ifndef DDPFS_FS_EPOCH_LIST_REPLY_H
#define DDPFS_FS_EPOCH_LIST_REPLY_H

#include "fs/server.h"

struct fs_epoch_list_request {
	enum fs_epoch_list_op { FS_EPOCH_LIST_LOOKUP, FS_EPOCH_LIST_GETATTR, FS_EPOCH_LIST_READ } op;
	struct fs_node node; /* the list */
	size_t size;         /* READ: bytes wanted */
	off_t off;           /* READ: byte offset */
};

/* Answers @req later, from the helper: with an entry, attributes, or bytes; with EIO if the server ends first, ENOMEM
 * at once. */
void fs_epoch_list_reply(fuse_req_t req, const struct fs_epoch_list_request *request);

#endif
