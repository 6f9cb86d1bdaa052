/* SPDX-License-Identifier: Apache-2.0 */
/* The message that a server sends when a page of its mapped index cannot be read.
 *
 * A server maps index.ddpfs.  If the disk cannot read one of its pages, the server gets SIGBUS and cannot answer any
 * request.  The handler sends the supervisor one line for the log that says why, and then the signal ends the
 * process.
 *
 * If somebody has cut the file, the server goes on: zeros take the place of the lost pages (shard_index_fault), and
 * fs_index_check refuses every reply that was made of them.
 *
 * Threads: main. */
#ifndef DDPFS_FS_SUPERVISE_SIGBUS_H
#define DDPFS_FS_SUPERVISE_SIGBUS_H

/* Installs the process's handler for SIGBUS and prepares the line, which names `index` and `mountpoint`.
 * index: path of the index, quoted for messages.
 * channel: the server's end (fs/supervise/channel.h).  Call it before there are threads that can get SIGBUS. */
void fs_sigbus_take(int channel, const char *index, const char *mountpoint);

/* Puts the earlier handler back.  Does nothing if fs_sigbus_take was not called. */
void fs_sigbus_give_back(void);

#endif
