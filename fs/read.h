/* SPDX-License-Identifier: Apache-2.0 */
/* READs of files: from the engine's verified blocks to the reader, without a thread that waits.
 *
 * A READ becomes one demand a block it touches (one for files up to 1 MiB, at most two else); the request handle is kept
 * with them and answered from the callback that brings the last block.  Failures are queued for the helper, which logs
 * them: nothing is logged here.
 *
 * Threads: fs_read from FUSE workers; replies leave from the engine's deliver thread.  The pool has its own lock. */
#ifndef DDPFS_FS_READ_H
#define DDPFS_FS_READ_H

#include "fs/server.h"

enum { FS_READ_POOL = 256 }; /* requests made at mount: more than the kernel keeps in flight with 2 workers a core */

/* -ENOMEM. */
int fs_reads_new(struct fs_server *server, struct fs_reads **ret_reads);
void fs_reads_free(struct fs_reads *reads); /* after prefetch_free: nothing is in flight */

/* Answers a READ of a file, now or later.  direct: its reader has it open with O_DIRECT. */
void fs_read(fuse_req_t req, uint32_t file, size_t size, off_t off, bool direct);

#endif
