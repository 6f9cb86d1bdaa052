/* SPDX-License-Identifier: Apache-2.0 */
/* A program that nobody else can put another one in the place of (SECURITY.md).
 *
 * A server may ask its supervisor for any program (`ddpfs restart`), and may be an intruder's by then.  So the way to the program
 * is walked from the root, a component a step, each by a descriptor of the directory before it and never through a link: a link
 * begins the walk anew with what it says.  Every directory on the way, also to a link, and the program itself must belong to root,
 * to us, or to who owns the program that runs already, and others may not write to them (to a sticky directory they may); and
 * where they lie on a FUSE file system, whose server may make owners up, one of these must have mounted it.
 *
 * Threads: no shared state. */
#ifndef DDPFS_TOOLS_DDPFS_EXECUTABLE_CHECK_H
#define DDPFS_TOOLS_DDPFS_EXECUTABLE_CHECK_H

#include <limits.h>
#include <stdint.h>

#include "shard/base/err.h"

enum { TRUST_LINKS_MAX = 40 }; /* and "..", each of which begins anew; path_resolution(7) has as many */

/* `program` is absolute; *ret_path has neither links nor dots.  The file system `mount_dev` (st_dev), which may be one that answers
 * nobody, is not asked for anything.  -EINVAL: there is no such program; -EPERM: it is not to be trusted, or lies in `mount_dev`. */
int trust_program(const char *program, uint64_t mount_dev, struct base_err *err, char ret_path[PATH_MAX]);

#endif
