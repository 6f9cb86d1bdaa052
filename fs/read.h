/* SPDX-License-Identifier: Apache-2.0 */
/* READs of files: from the engine's verified blocks to the reader, without a thread that waits.
 *
 * A READ becomes one demand for each block of its range: one for files up to 1 MiB, otherwise at most two. The
 * request keeps its handle; the callback that brings the last block answers it. Failed READs go to the log queue
 * (fs/log_queue.h).
 *
 * Threads: fs_read from FUSE workers; replies leave from the engine's threads. The pool has its own lock. */
#ifndef DDPFS_FS_READ_H
#define DDPFS_FS_READ_H

#include "fs/server.h"

enum { FS_READ_POOL = 256 }; /* requests made at mount: more than the kernel keeps in flight with 2 workers a core */

/* Makes the pool of requests. Returns 0; -ENOMEM. */
int fs_reads_new(struct fs_server *server, struct fs_reads **ret_reads);
void fs_reads_free(struct fs_reads *reads); /* after prefetch_free, when nothing is in flight; NULL is fine */

/* Answers a READ of a file, now or later. @size: bytes. @direct: the reader has the file open with O_DIRECT. */
void fs_read(fuse_req_t req, uint32_t file, size_t size, off_t off, bool direct);

#endif
