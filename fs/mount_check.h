/* SPDX-License-Identifier: Apache-2.0 */
/* Checks a new mount and warns in the log: of fewer samples than ranks, of ranks that fetch the same chunks from a
 * store, of shards that are missing or have another size than the index says.
 *
 * Threads: the helper, once. */
#ifndef DDPFS_FS_MOUNT_CHECK_H
#define DDPFS_FS_MOUNT_CHECK_H

struct fs_server;

/* Checks the mount; opens at most 256 shards, but reads none. */
void fs_mount_check(const struct fs_server *server);

#endif
