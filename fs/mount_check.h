/* SPDX-License-Identifier: Apache-2.0 */
/* What a new mount is looked at for, and warned of in the log: fewer samples than ranks, shards that are missing or have another
 * size than the index says.  Threads: the helper, once. */
#ifndef DDPFS_FS_MOUNT_CHECK_H
#define DDPFS_FS_MOUNT_CHECK_H

#include "fs/server.h"

void fs_mount_check(const struct fs_server *server);

#endif
