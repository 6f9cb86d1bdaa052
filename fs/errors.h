/* SPDX-License-Identifier: Apache-2.0 */
/* What readers see of our errors.  Threads: any. */
#ifndef DDPFS_FS_ERRORS_H
#define DDPFS_FS_ERRORS_H

#include "fs/server.h"

/* What a caller sees of an error of ours, and of one that met a READ's data: the one place where codes are translated.  Take
 * and return negative errno. */
int fs_errno(int rc);
int fs_read_errno(int rc);

/* Before a reply that was made of the index's records: an error where the index is not what it was (shard_index_check), else rc.  Sees to it
 * that the log says so. FUSE workers, engine's threads, helper. */
int fs_index_check(struct fs_server *server, int rc);

#endif
