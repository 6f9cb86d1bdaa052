/* SPDX-License-Identifier: Apache-2.0 */
/* The last words of a server whose mapped index vanishes under it.
 *
 * index.ddpfs is mapped, so a page that its disk cannot read is SIGBUS.  Nothing can be answered then: the supervisor
 * is told why, in one line for the log, and the signal does what it always does.
 *
 * Where somebody cut the file, the server goes on: zeros take the place of its pages (shard_index_fault), and every
 * request that was answered of them is refused (fs_index_check). */
#ifndef DDPFS_FS_SUPERVISE_SIGBUS_H
#define DDPFS_FS_SUPERVISE_SIGBUS_H

/* Takes SIGBUS of the process, for one dataset and mountpoint; `channel`: fs/link.h.  Call from main, before there are threads that
 * could meet it. */
void fs_sigbus_take(int channel, const char *dataset, const char *mountpoint);
void fs_sigbus_give_back(void); /* nothing when not taken */

#endif
