/* SPDX-License-Identifier: Apache-2.0 */
/* The server's end of the control socket (protocol: shard/base/control_client.h).
 *
 * No thread of its own: main polls its descriptors and calls fs_control_serve.  Nothing here waits for a peer: lines are
 * gathered and sent as the socket takes them, and a client that is slow or silent for too long is dropped.
 *
 * Threads: main only. */
#ifndef DDPFS_FS_CONTROL_SERVER_H
#define DDPFS_FS_CONTROL_SERVER_H

#include <poll.h>

#include "shard/base/control_client.h"
#include "fs/server.h"

enum {
	FS_CONTROL_CLIENTS_MAX = 16, /* at once; more wait in the listen queue */
	FS_CONTROL_IDLE_MS = 10000,  /* a client may be silent for this long */
	FS_CONTROL_POLLS_MAX = FS_CONTROL_CLIENTS_MAX + 1,
};

int fs_control_open(struct fs_server *server, struct fs_control **ret_control); /* -ENOMEM */
void fs_control_close(struct fs_control *control);                              /* NULL is fine */

/* Fills what to poll for; returns how many, and the time in ms after which fs_control_serve wants to be called anyway
 * (-1: never). */
size_t fs_control_polls(struct fs_control *control, struct pollfd polls[FS_CONTROL_POLLS_MAX], int *ret_timeout_ms);

/* Serves what poll found. */
void fs_control_serve(struct fs_control *control, const struct pollfd *polls, size_t n);

/* Answers one request (without newline); returns the reply with its newline, malloc'd (NULL: out of memory).  For tests. */
char *fs_control_answer(struct fs_server *server, const char *line, size_t len);

#endif
