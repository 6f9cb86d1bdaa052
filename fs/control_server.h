/* SPDX-License-Identifier: Apache-2.0 */
/* The server's end of the control socket (protocol: shard/base/control_client.h).
 *
 * It has no thread of its own: main polls its descriptors and calls fs_control_serve. Nothing here waits for a
 * client: bytes are gathered, and sent as the socket takes them. A client that is silent or slow for too long is
 * dropped; sooner if its place is needed.
 *
 * Threads: main only. */
#ifndef DDPFS_FS_CONTROL_SERVER_H
#define DDPFS_FS_CONTROL_SERVER_H

#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "shard/base/control_client.h"

struct fs_server;
struct fs_control;

enum {
	FS_CONTROL_CLIENTS_MAX = 16, /* at once; more wait in the listen queue */
	FS_CONTROL_IDLE_MS = 10000,  /* milliseconds that a client may be silent */
	FS_CONTROL_SILENT_MS = 100,  /* ... if all places are taken and another client waits */
	FS_CONTROL_POLLS_MAX = FS_CONTROL_CLIENTS_MAX + 1,
};

/* Makes the server's end on the supervisor's socket. Returns 0; -ENOMEM. */
int fs_control_open(struct fs_server *server, struct fs_control **ret_control);
/* Drops all clients; NULL is fine. The socket stays the supervisor's. */
void fs_control_close(struct fs_control *control);

/* Fills in what to poll for. *ret_timeout_ms: milliseconds after which fs_control_serve must be called anyway; -1:
 * never.
 * Returns how many descriptors there are. */
size_t fs_control_polls(struct fs_control *control, struct pollfd polls[FS_CONTROL_POLLS_MAX], int *ret_timeout_ms);

/* Serves what poll(2) found. */
void fs_control_serve(struct fs_control *control, const struct pollfd *polls, size_t n);

/* Answers one request line (without newline). Returns the reply with its newline, malloc'd; NULL: out of memory. For
 * tests, too. */
char *fs_control_answer(struct fs_server *server, const char *line, size_t len);

/* The same for a guest's request (fs/guest_announcements.h): `bytes` holds the line, its newline, and the data.
 * @ino: of the directory that was asked. Guests may announce, and nothing else. */
char *fs_control_answer_guest(struct fs_server *server, uid_t uid, uint64_t ino, const char *bytes, size_t len);

#endif
