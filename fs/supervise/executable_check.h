/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that no untrusted user can replace a program (SECURITY.md).
 *
 * A server may ask its supervisor to run any program (`ddpfs restart`), and an intruder may control that server.  So
 * the check walks the path from the root, one component a step.  It opens each component relative to the descriptor
 * of the directory before it and follows no link: the target of a link starts the walk again.
 *
 * Trusted users are root, our own user, and the owner of the program that runs now.  The check demands:
 * - a trusted user owns the program and every directory on the way, also on the way to a link;
 * - others may not write to them, except to a sticky directory;
 * - if they lie on a FUSE file system, a trusted user has mounted it, because its server can report false owners.
 *
 * Threads: any; no shared state. */
#ifndef DDPFS_FS_SUPERVISE_EXECUTABLE_CHECK_H
#define DDPFS_FS_SUPERVISE_EXECUTABLE_CHECK_H

#include <limits.h>
#include <stdint.h>

#include "shard/base/err.h"

enum { FS_EXECUTABLE_LINKS_MAX = 40 }; /* links and ".." components; each restarts the walk; as in path_resolution(7) */

/* Checks `program` (an absolute path) and stores its path without links and dots.  It sends no request to the file
 * system `mount_dev` (st_dev), whose server may not answer.
 *
 * Returns 0, or with a sentence: -EINVAL if no such program can be run; -EPERM if an untrusted user can replace it,
 * or if it lies in `mount_dev`. */
int fs_executable_check(const char *program, uint64_t mount_dev, struct base_err *err, char ret_path[PATH_MAX]);

#endif
