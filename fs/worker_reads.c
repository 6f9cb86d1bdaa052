/* SPDX-License-Identifier: Apache-2.0 */
/* A count of the workers that may be reading; fs/worker_reads.h first. */
#include "fs/worker_reads.h"

#include <stddef.h>

#include "fs/server.h"

static _Thread_local struct fs_worker *own;

void fs_worker_reads_init(struct fs_worker *worker)
{
	own = worker;
}

_Atomic bool *fs_worker_reads_begin(struct fs_server *server)
{
	if (!own)
		return NULL;
	if (atomic_fetch_add(&server->workers_reading, 1) < server->workers_read_max)
		return &own->reading;
	atomic_fetch_sub(&server->workers_reading, 1);
	return NULL;
}

void fs_worker_reads_end(struct fs_server *server, const _Atomic bool *reading)
{
	if (reading)
		atomic_fetch_sub(&server->workers_reading, 1);
}
