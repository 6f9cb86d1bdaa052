/* SPDX-License-Identifier: Apache-2.0 */
/* Gives this process a mount namespace of its own.  Other processes do not see its mounts, and it ends with its last
 * process.
 *
 * Threads: call while the process has one thread (unshare(2)). */
#ifndef DDPFS_TOOLS_DDPFS_NAMESPACE_H
#define DDPFS_TOOLS_DDPFS_NAMESPACE_H

#include <stdbool.h>

#include "shard/base/err.h"

/* Enters a new mount namespace: directly with CAP_SYS_ADMIN, else inside a new user namespace, in which user and
 * group ids stay the same.  Later mounts of the host still appear (automounted home directories); own mounts do not
 * leave.
 *
 * *ret_user: a user namespace was necessary.  Returns 0, or -errno of unshare(2) or mount(2) with a sentence that
 * says what to do: -EPERM if the system forbids it, -ENOSPC for a limit, ... */
int namespace_enter(struct base_err *err, bool *ret_user);

#endif
