/* SPDX-License-Identifier: Apache-2.0 */
/* A server without a session, for tests of one file of fs/: index, view, watcher and what these need. A test adds
 * the part that it is about. The watcher's thread does not run, and the watcher counts as ready. */
#ifndef DDPFS_TESTS_FS_FAKE_SERVER_H
#define DDPFS_TESTS_FS_FAKE_SERVER_H

#include "fs/server.h"
#include "fs/supervise/handover_memory.h"

struct fake_server {
	struct fs_server server; /* first member */
	struct fs_channel channel;
	struct fs_handover_head *head;
	int handover_fd;
};

enum { FAKE_UID = 12, FAKE_GID = 34 };

/* Makes a server of an index, which the caller closes after fake_server_free.
 * @inotify_fd: what the watcher reads and closes never; -1: it sees no opens. */
struct fake_server *fake_server_new(struct shard_index *index, enum fs_layout layout, int inotify_fd);
/* Makes one that shows @n ranks of @world, from rank @first on, as directories. */
struct fake_server *fake_server_new_ranks(
        struct shard_index *index, enum fs_layout layout, uint32_t first, uint32_t n, uint32_t world);
void fake_server_free(struct fake_server *fake);

/* Adds what reads ahead: budget, sink and engine, for `memory=512M`. @mountpoint: a directory; not copied. Then the
 * test calls fs_sink_start. */
void fake_server_add_engine(struct fake_server *fake, const char *mountpoint);
/* Ends these. Call it before fake_server_free. */
void fake_server_end_engine(struct fake_server *fake);

#endif
