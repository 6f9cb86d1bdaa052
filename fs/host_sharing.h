/* SPDX-License-Identifier: Apache-2.0 */
/* Mounts of one dataset side by side on one host (the ranks of a node): what is in memory is to be there once, not once a
 * rank.
 *
 * A mount alone reads past the host's page cache and keeps what it read in its own pages, where a trainer's read needs no
 * server.  Two mounts cannot see each other's pages.  So servers that find each other agree, if the whole dataset fits into
 * the memory that they were given together and that the host has left, to read the shards through the host's page cache,
 * which they share, and to keep no more than a window in pages of their own (prefetch_share).  A read that misses these costs a copy and a
 * checksum, but no disk.
 *
 * Those of one user find each other by their control sockets (shard/base/control_client.h): who comes says so to all that are there.  A
 * server may reach no socket (fs/supervise/confine.h), so a process beside it, `ddpfs-greeter`, says so to them and to it.  It lasts until the
 * mount ends.
 *
 * Threads: fs_host_sharing_met from any; fs_host_sharing_greet: no state of its own. */
#ifndef DDPFS_FS_HOST_SHARING_H
#define DDPFS_FS_HOST_SHARING_H

#include "fs/server.h"

struct fs_host_sharing; /* opaque */

int fs_host_sharing_new(struct fs_server *server, struct fs_host_sharing **ret_share); /* -ENOMEM */
void fs_host_sharing_free(struct fs_host_sharing *share);                              /* NULL is fine */

/* There are `servers` of this dataset on this host, ourselves among them. */
void fs_host_sharing_met(struct fs_host_sharing *share, uint32_t servers);

/* The greeter: finds this user's servers, asks each for its claim on memory, and tells each how many show its dataset and what
 * the others that are in use claim (fs/budget.h); the one at `control_path` too.  One that does not answer is given up after
 * BASE_CONTROL_TIMEOUT_MS. */
void fs_host_sharing_greet(const char *control_path);

/* Bytes that the pages of a mount may take: a small part of the dataset, however many mounts there are; for tests.  0: the
 * dataset does not fit, nothing is shared. */
uint64_t fs_host_sharing_bytes(uint64_t dataset_bytes, uint64_t memory_bytes, uint64_t free_bytes, uint32_t servers);

#endif
