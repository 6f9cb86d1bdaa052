/* SPDX-License-Identifier: Apache-2.0 */
/* Which workers read files themselves.
 *
 * A worker that reads a file for its reader saves two switches of threads. But it waits for the disk. So at most half
 * of the workers do so at a time, and the others answer everything else. The engine reads for the rest.
 *
 * Threads: FUSE workers; any other thread may not read. */
#ifndef DDPFS_FS_WORKER_READS_H
#define DDPFS_FS_WORKER_READS_H

#include <stdatomic.h>
#include <stdbool.h>

struct fs_server;
struct fs_worker;

/* Tells that the calling thread is this worker. */
void fs_worker_reads_init(struct fs_worker *worker);

/* Returns what the engine gets as prefetch_demand.reading if the calling thread may read itself; else NULL. Call
 * fs_worker_reads_end with it. */
_Atomic bool *fs_worker_reads_begin(struct fs_server *server);
void fs_worker_reads_end(struct fs_server *server, const _Atomic bool *reading);

#endif
