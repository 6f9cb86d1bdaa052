/* SPDX-License-Identifier: Apache-2.0 */
/* Which directories' names the kernel has, because the server's own thread has listed them with attributes.
 *
 * A look-up of one name costs the server and the kernel ten times as much as the same name in such a listing. So where
 * many files of a directory will be stored, the whole directory is listed once (fs/sink.c). Its names then stay: when a
 * file is dropped, only its pages go. If the kernel forgets a name, it refuses to store that file. Then the directory
 * is listed again.
 *
 * Limits: a directory is listed only if the names of all listed directories together take at most `most_bytes`
 * (FS_FILE_OVERHEAD_BYTES a name). The names of other directories are looked up one by one.
 *
 * Threads: any; a lock, which is a leaf. */
#ifndef DDPFS_FS_DIRECTORY_NAMES_H
#define DDPFS_FS_DIRECTORY_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "shard/index.h"

struct fs_directory_names; /* opaque */

/* Makes it, with no names known. @index: not owned; outlives it. Returns 0; -ENOMEM. */
int fs_directory_names_new(const struct shard_index *index, uint64_t most_bytes, struct fs_directory_names **ret_names);
void fs_directory_names_free(struct fs_directory_names *names); /* NULL is fine */

/* Returns whether the kernel was given all names of the directory of @file, and has refused none since. */
bool fs_directory_names_known(struct fs_directory_names *names, uint32_t file);

/* Returns true if the caller should list the directory of @file, whose names count as known from now on. Returns false
 * if they are known, or if they do not fit. *@ret_dir: the directory. */
bool fs_directory_names_list(struct fs_directory_names *names, uint32_t file, uint32_t *ret_dir);

/* The kernel has forgotten the name of @file, and probably others of its directory. */
void fs_directory_names_forget(struct fs_directory_names *names, uint32_t file);

#endif
