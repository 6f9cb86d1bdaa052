/* SPDX-License-Identifier: Apache-2.0 */
/* What is mounted where in this mount namespace, and whether a dataset and a mountpoint can be used.
 *
 * Threads: no shared state. */
#ifndef DDPFS_TOOLS_DDPFS_MOUNTS_H
#define DDPFS_TOOLS_DDPFS_MOUNTS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "shard/base/err.h"

struct mounts_entry {
	char target[PATH_MAX];
	char source[PATH_MAX];
	char type[64]; /* "fuse.ddpfs" */
};

/* The topmost mount on exactly this absolute path.  Asks only /proc/self/mountinfo, never the file system itself, so a
 * hung or dead mount is found too.  Returns 0, -ENOENT, -errno of reading mountinfo. */
int mounts_find(const char *path, struct mounts_entry *ret_entry);

/* Who mounted the FUSE file system with this st_dev, whose server can make owners up.  -ENOENT: it is none that another user could
 * have mounted (virtiofs is none); -EACCES: it does not say; -errno of reading mountinfo. */
int mounts_fuse_owner(uint64_t dev, uid_t *ret_uid);

/* Where the file system with this st_dev is mounted as this process sees it, as text of base_err_quote: `known`,
 * when that is one of the places, else the first of them.  -ENOENT: nowhere here; -errno of reading mountinfo. */
int mounts_place(uint64_t dev, const char *known, char ret_path[PATH_MAX]);

/* Who mounted the ddpfs file system in which this absolute path lies, as this process sees it.  Asks only mountinfo:
 * another user may not even stat it.  -ENOENT: it lies in another file system; -EACCES: mountinfo does not say. */
int mounts_ddpfs_owner(const char *path, uid_t *ret_uid);

bool mounts_is_ddpfs(const struct mounts_entry *entry);
bool mounts_is_dead(
        const struct mounts_entry *entry); /* a ddpfs mount without a server; waits for one that does not answer */

/* Is there nothing in this directory?  True too when it cannot be read. */
bool mounts_is_empty(const char *path);

/* Is this absolute path, without links, the directory `dir` or something below it?  Compares the texts. */
bool mounts_lies_below(const char *path, const char *dir);

/* The absolute path without ".", ".." and double slashes, links in it kept; asks nothing but the working directory.
 * -ENAMETOOLONG, -errno of getcwd. */
int mounts_absolute(const char *path, char ret_path[PATH_MAX]);

/* Takes away what is mounted on this absolute path, by umount2(2) or fusermount3; lazy: even while it is in use.  -EBUSY,
 * -EPERM (also: fusermount3 refused, whatever its reason), ... */
int mounts_remove(const char *path, bool lazy);

/* Resolves a dataset directory.  -ENOENT, -ENOTDIR, -EACCES, ... with a sentence. */
int mounts_check_dataset(const char *path, struct base_err *err, char ret_path[PATH_MAX]);

/* Resolves a mountpoint: an existing directory (one that is missing is made when `make`, without its parents; *ret_made,
 * which may be NULL, tells) that is no ddpfs mount yet and does not cover `dataset` (a resolved path).
 * -ENOENT, -ENOTDIR, -EBUSY, -ENOTCONN (a dead mount), -EINVAL, ... with a sentence. */
int mounts_check_target(const char *path, const char *dataset, bool make, struct base_err *err, char ret_path[PATH_MAX],
        bool *ret_made);

#endif
