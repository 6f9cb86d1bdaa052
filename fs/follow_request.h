/* SPDX-License-Identifier: Apache-2.0 */
/* The control request "follow": checks what a client announces, and hands it to fs/announced_orders.h. The protocol is
 * in shard/base/control_client.h.
 *
 * Everything that a client sends is checked. The server reads the client's memory once, with pread(2), into its own
 * memory. So later changes by the client have no effect. Only files of tmpfs are read, because a read of another file
 * may let the server wait.
 *
 * Guests (fs/guest_announcements.h) have lists and tables of their own: the server puts "UID " before their names. No
 * name that a client gives has a space. One user may have FS_GUEST_LISTS_USER lists, and half of the memory of orders;
 * all guests FS_GUEST_LISTS lists, and three quarters. So one guest cannot take everything from the others, nor all
 * guests from those who use the control socket.
 *
 * Threads: main. Main needs some tenths of a second for a large announcement, and a second or more to number 10^7 files
 * for the first time. Meanwhile it tells the watchdog that it is alive (fs/heartbeat.h). */
#ifndef DDPFS_FS_FOLLOW_REQUEST_H
#define DDPFS_FS_FOLLOW_REQUEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct fs_server;
struct fs_view;

/* Where the entries come from, and for whom. */
struct fs_follow_input {
	int fd;           /* a descriptor that came with the request; the caller closes it; -1: none */
	bool guest;       /* the entries are in `data`, if there are any */
	uid_t uid;        /* of the guest */
	const char *data; /* size bytes */
	size_t size;
};

/* Answers the request. Returns the reply. */
json_t *fs_follow_request(
        struct fs_server *server, struct fs_view *view, json_t *request, const struct fs_follow_input *input);

#endif
