/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what is mounted in this mount namespace, and checks whether a dataset and a mountpoint can be used.
 *
 * Threads: any; no shared state. */
#ifndef DDPFS_TOOLS_DDPFS_MOUNTS_H
#define DDPFS_TOOLS_DDPFS_MOUNTS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "shard/base/err.h"

struct mounts_entry {
	char target[PATH_MAX]; /* the mountpoint */
	char source[PATH_MAX]; /* for ddpfs the dataset */
	char type[64];         /* "fuse.ddpfs" */
	bool whole;            /* the file system's root is mounted there; false: a bind mount of a directory of it */
};

/* Finds the topmost mount on exactly this absolute path.  Reads only /proc/self/mountinfo and never asks the file
 * system, so it finds hung and dead mounts too.  Returns 0; -ENOENT if there is none; -errno of opening mountinfo. */
int mounts_find(const char *path, struct mounts_entry *ret_entry);

/* Stores where this process sees the file system with this st_dev mounted, as text of base_err_quote.  If `known` is
 * one of the places, the function stores `known`, else the first place.  Returns 0; -ENOENT if it is not mounted
 * here; -errno of opening mountinfo. */
int mounts_place(uint64_t dev, const char *known, char ret_path[PATH_MAX]);

/* Stores who mounted the ddpfs file system in which this absolute path lies, as this process sees it.  Reads only
 * mountinfo, because another user may not even stat the path.  Returns 0; -ENOENT if the path lies in another file
 * system; -EACCES if mountinfo does not name the user. */
int mounts_ddpfs_owner(const char *path, uid_t *ret_uid);

bool mounts_is_ddpfs(const struct mounts_entry *entry);
/* Whether the entry is a ddpfs mount without a server.  Waits as long as a live server does not answer. */
bool mounts_is_dead(const struct mounts_entry *entry);

/* Whether the directory has no entries.  Returns true also if it cannot be read. */
bool mounts_is_empty(const char *path);

/* Whether `path` is the directory `dir` or lies below it.  Both are absolute, without links; only the texts count. */
bool mounts_lies_below(const char *path, const char *dir);

/* Makes a path absolute and removes ".", ".." and double slashes.  It keeps links and asks no file system, except for
 * the working directory.  Returns 0; -ENAMETOOLONG for PATH_MAX bytes or more; -errno of getcwd. */
int mounts_absolute(const char *path, char ret_path[PATH_MAX]);

/* Unmounts what is mounted on this absolute path, with umount2(2), or with fusermount3 if that gives EPERM.  `lazy`
 * detaches the mount even while it is in use.  Returns 0; -EBUSY if it is in use; -EPERM if fusermount3 failed for
 * any reason; other -errno of umount2. */
int mounts_remove(const char *path, bool lazy);

/* Resolves the path of a dataset.  Returns 0, or with a sentence: -ENOTDIR if it is no directory, -errno of realpath
 * (-ENOENT, -EACCES, ...). */
int mounts_check_dataset(const char *path, struct base_err *err, char ret_path[PATH_MAX]);

/* Resolves the path of a mountpoint.  With `make` it makes a missing directory, but not its parents, and then sets
 * *ret_made (may be NULL).  `dataset` is a resolved path.
 *
 * Returns 0, or with a sentence: -ENOENT, -ENOTDIR; -EBUSY if a ddpfs mount is there; -ENOTCONN if a dead one is
 * there; -EINVAL if the mount would cover `dataset`; other -errno of realpath. */
int mounts_check_target(const char *path, const char *dataset, bool make, struct base_err *err, char ret_path[PATH_MAX],
        bool *ret_made);

#endif
