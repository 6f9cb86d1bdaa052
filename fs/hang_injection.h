/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that hang, for tests: DDPFS_TEST_HANG=WHERE[:SERVERS].
 *
 *     main     after a directory was listed            store    where the page cache gets bytes
 *     worker   at each GETXATTR                        drop     where the page cache must drop some
 *     engine   at each read of a shard that is done
 *
 * The first SERVERS servers of a mount hang (1 if not given); their successors do not. Only a kill ends a hang.
 *
 * Threads: any. */
#ifndef DDPFS_FS_HANG_INJECTION_H
#define DDPFS_FS_HANG_INJECTION_H

#include "fs/server.h"

/* Reads the environment variable, and warns if this server is to hang. Returns 0; -EINVAL with a sentence. Main,
 * before there are workers. */
int fs_hang_take(struct fs_server *server, struct base_err *err);

/* Hangs this thread. */
_Noreturn void fs_hang_for_ever(void);

/* Hangs this thread if the test asks for it at this place. */
static inline void fs_hang_here(const struct fs_server *server, enum fs_hang where)
{
	if (server->test_hang == where)
		fs_hang_for_ever();
}

#endif
