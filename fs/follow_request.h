/* SPDX-License-Identifier: Apache-2.0 */
/* The control request "follow": checks what a client announces, and hands it to fs/announced_orders.h. The protocol is
 * in shard/base/control_client.h.
 *
 * Nothing that comes is believed. The client's memory is read once, with pread(2), into memory of the server. So it
 * does not matter what the client does with it later. Only files of tmpfs are read, because others may let the
 * server wait.
 *
 * Threads: main. A large announcement takes main some tenths of a second; it beats meanwhile (fs/health.h). */
#ifndef DDPFS_FS_FOLLOW_REQUEST_H
#define DDPFS_FS_FOLLOW_REQUEST_H

#include <jansson.h>

#include "fs/server.h"

/* Answers the request. @fd: the descriptor that came with it, or -1; the caller closes it. Returns the reply. */
json_t *fs_follow_request(struct fs_server *server, struct fs_view *view, json_t *request, int fd);

#endif
