/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that hang, for tests of what is to happen then: DDPFS_TEST_HANG=WHERE[:SERVERS].
 *
 *     main     after a directory was listed            store    where the page cache is given bytes
 *     worker   at each GETXATTR                        drop     where it is told to drop some
 *     engine   at each read of a shard that is done
 *
 * The first SERVERS servers of a mount do so (1 when not given); their successors are well.  Nothing but a kill ends it.
 *
 * Threads: any. */
#ifndef DDPFS_FS_HANG_H
#define DDPFS_FS_HANG_H

#include "fs/server.h"

int fs_hang_take(struct fs_server *server, struct base_err *err); /* -EINVAL */

_Noreturn void fs_hang_for_ever(void);

static inline void fs_hang_here(const struct fs_server *server, enum fs_hang where)
{
	if (server->test_hang == where)
		fs_hang_for_ever();
}

#endif
