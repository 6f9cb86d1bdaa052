/* SPDX-License-Identifier: Apache-2.0 */
/* Whether this server is well, told to its supervisor by a beat in shared memory.
 *
 * The beat comes from main, so a server that stands still (stopped, or main is stuck) has none.  Main holds it back when a FUSE
 * worker, or the engine's thread, has been at one thing for hang_ms, or READs wait for so long without one being answered while
 * the engine reads nothing.  Who waits for a disk does not hang: a successor would wait for it just the same.
 *
 * Threads: main. */
#ifndef DDPFS_FS_HEALTH_H
#define DDPFS_FS_HEALTH_H

#include "fs/server.h"

struct fs_health; /* opaque */

int fs_health_new(struct fs_server *server, struct fs_health **ret_health); /* -ENOMEM */
void fs_health_free(struct fs_health *health);                              /* NULL is fine */

/* Beats when it is time and all is well.  Returns after how many ms it wants to be called again; -1: never. */
int fs_health_check(struct fs_health *health);

#endif
