/* SPDX-License-Identifier: Apache-2.0 */
/* A mount namespace of this process's own: what is mounted in it nobody else sees, and it ends with its last process.
 *
 * Threads: call while the process has one. */
#ifndef DDPFS_TOOLS_DDPFS_NAMESPACE_H
#define DDPFS_TOOLS_DDPFS_NAMESPACE_H

#include <stdbool.h>

#include "shard/base/err.h"

/* Enters a new mount namespace, as root (CAP_SYS_ADMIN) directly, else inside a new user namespace in which the user
 * stays who he is.  Mounts made on the host later still arrive (automounted home directories), none leaves.
 * *ret_user says whether a user namespace was needed.  -EPERM, -ENOSPC (limits), ... with what to do about it. */
int namespace_enter(struct base_err *err, bool *ret_user);

#endif
