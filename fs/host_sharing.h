/* SPDX-License-Identifier: Apache-2.0 */
/* Sharing by mounts of one dataset on one host (the ranks of a node): memory then holds the dataset once, and
 * not once for each rank.
 *
 * A mount alone reads past the host's page cache. It keeps what it read in its own pages, where a trainer's read
 * needs no server. But two mounts cannot use each other's pages. So servers that find each other may share: they read
 * the shards through the host's page cache, and keep no more than a window in pages of their own (prefetch_share).
 * They do so if the whole dataset fits into the memory that they were given together and that the host has left. A
 * read that misses their own pages then costs a copy and a checksum, but no disk.
 *
 * Servers of one user find each other by their control sockets (shard/base/control_client.h). When a server comes,
 * all others hear of it. A server may connect to no socket (fs/supervise/confine.h), so a process beside it,
 * `ddpfs-greeter`, tells them and it. Sharing lasts until the mount ends.
 *
 * Threads: fs_host_sharing_met from any; fs_host_sharing_greet has no state. */
#ifndef DDPFS_FS_HOST_SHARING_H
#define DDPFS_FS_HOST_SHARING_H

#include <stdint.h>

struct fs_server;

struct fs_host_sharing; /* opaque */

int fs_host_sharing_new(struct fs_server *server, struct fs_host_sharing **ret_share); /* -ENOMEM */
void fs_host_sharing_free(struct fs_host_sharing *share);                              /* NULL is fine */

/* Takes in that @servers servers of this dataset are on this host, this one among them; begins to share if the
 * dataset fits. */
void fs_host_sharing_met(struct fs_host_sharing *share, uint32_t servers);

/* The greeter, in its own process. It finds this user's servers and the one at @control_path, and asks each for its
 * claim on memory. Then it tells each how many servers show its dataset, and what the other mounts in use claim
 * (fs/budget.h). It waits for one server at most BASE_CONTROL_TIMEOUT_MS. */
void fs_host_sharing_greet(const char *control_path);

/* Returns the bytes that the pages of one of @servers mounts may take: a small part of the dataset, however many
 * mounts there are. 0: the dataset does not fit, so nothing is shared. Pure; for tests, too. */
uint64_t fs_host_sharing_bytes(uint64_t dataset_bytes, uint64_t memory_bytes, uint64_t free_bytes, uint32_t servers);

#endif
