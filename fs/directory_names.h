/* SPDX-License-Identifier: Apache-2.0 */
/* Which directories' names the kernel has, because the server's own thread has listed them with attributes.
 *
 * A look-up of one name costs the server and the kernel ten times as much as the same name in such a listing. So where
 * many files of a directory are read, the whole directory is listed, in pieces between look-ups (fs/sink.c). Its names
 * then stay: when a file is dropped, only its pages go. If the kernel forgets a name, it refuses to store that file.
 * Then the directory is listed again.
 *
 * When it is worth it: at once if the caller knows that a tenth of the names or more will be needed; else when a tenth
 * were looked up one by one. Then no more is lost than the listing costs, whatever comes (the ski-rental rule).
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
/* The same, or its directory is being listed: the name should stay. */
bool fs_directory_names_kept(struct fs_directory_names *names, uint32_t file);

/* The name of @file, which is not known, is needed. @many: so are a tenth of the names of its directory or more.
 * Returns whether its directory is the one to list from now on: none was. */
bool fs_directory_names_need(struct fs_directory_names *names, uint32_t file, bool many);

/* Returns whether there is a directory to list, or to go on with. *@ret_dir: the directory; *@ret_offset: the offset of
 * its listing at which to go on, 0 at first; *@ret_names: how many names it has. */
bool fs_directory_names_next(
        struct fs_directory_names *names, uint32_t *ret_dir, uint64_t *ret_offset, uint64_t *ret_names);

/* @dir, which fs_directory_names_next gave, was listed up to @offset. */
void fs_directory_names_listed(struct fs_directory_names *names, uint32_t dir, uint64_t offset);
/* All of @dir was listed: its names are known. */
void fs_directory_names_whole(struct fs_directory_names *names, uint32_t dir);
/* @dir cannot be listed. */
void fs_directory_names_failed(struct fs_directory_names *names, uint32_t dir);

/* Returns how many bytes of a budget of @memory_bytes the names take that nothing else counts. A file in memory counts
 * its own name, so these are the names of the other files. It is assumed that each file is as likely in memory. */
uint64_t fs_directory_names_reserve(struct fs_directory_names *names, uint64_t memory_bytes);

/* The kernel has forgotten the name of @file, and probably others of its directory. */
void fs_directory_names_forget(struct fs_directory_names *names, uint32_t file);

#endif
