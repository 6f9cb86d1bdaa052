/* SPDX-License-Identifier: Apache-2.0 */
/* The control request "follow": checks what a client announces, and hands it to fs/announced_orders.h. The protocol is
 * in shard/base/control_client.h.
 *
 * Everything that a client sends is checked. The server reads the client's memory once, with pread(2), into its own
 * memory. So later changes by the client have no effect. Only files of tmpfs are read, because a read of another file
 * may let the server wait.
 *
 * Threads: main. Main needs some tenths of a second for a large announcement. Meanwhile it tells the watchdog that it
 * is alive (fs/heartbeat.h). */
#ifndef DDPFS_FS_FOLLOW_REQUEST_H
#define DDPFS_FS_FOLLOW_REQUEST_H

#include <jansson.h>

struct fs_server;
struct fs_view;

/* Answers the request. @fd: the descriptor that came with it, or -1; the caller closes it. Returns the reply. */
json_t *fs_follow_request(struct fs_server *server, struct fs_view *view, json_t *request, int fd);

#endif
