/* SPDX-License-Identifier: Apache-2.0 */
/* The beat, in shared memory, by which this server tells its supervisor that it is well.
 *
 * Main beats, so a server that is stopped, or whose main is stuck, has no beat. Main also holds the beat back in two
 * cases. First: a FUSE worker, or the engine's thread, is busy with one thing for hang_ms. Second: READs wait for
 * hang_ms, none is answered, and nothing is read. A thread that waits for a disk does not count as hanging,
 * because a successor would wait for the same disk.
 *
 * Threads: main. */
#ifndef DDPFS_FS_HEARTBEAT_H
#define DDPFS_FS_HEARTBEAT_H

struct fs_server;

struct fs_heartbeat; /* opaque */

int fs_heartbeat_new(struct fs_server *server, struct fs_heartbeat **ret_heartbeat); /* -ENOMEM */
void fs_heartbeat_free(struct fs_heartbeat *heartbeat);                              /* NULL is fine */

/* Beats if it is time and the server is well. Returns the milliseconds until the next call; -1: never. */
int fs_heartbeat_check(struct fs_heartbeat *heartbeat);

#endif
