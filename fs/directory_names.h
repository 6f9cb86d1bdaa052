/* SPDX-License-Identifier: Apache-2.0 */
/* Which directories' names the kernel has, because the server's own thread has listed them with attributes.
 *
 * A look-up of one name costs the server and the kernel five times as much as the same name in such a listing. So where
 * many files of a directory are read, the whole directory is listed, in pieces between look-ups (fs/sink.c). Its names
 * then stay: when a file is dropped, only its pages go, and its attributes are not valid any more. So a later epoch
 * needs the attributes again, and gets them in the same way. If the kernel forgets a name, it refuses to store that
 * file. Then the directory is listed again.
 *
 * When it is worth it: at once if the order has a tenth of the directory's files, as far as a look at some of them
 * tells; else when a tenth were looked up one by one. Then no more is lost than the listing costs, whatever comes (the
 * ski-rental rule). A directory of few names is never listed.
 *
 * What the kernel has outlasts the server. So the bits of directories and files lie in the handover memory, and the
 * names count for a successor, too. A wrong bit costs a look-up by the reader. Names of a directory that was not listed
 * to its end are not known to a successor.
 *
 * Limits: a directory is listed only if the names of all listed directories together take at most `most_bytes`
 * (FS_FILE_OVERHEAD_BYTES a name). The names of other directories are looked up one by one.
 *
 * Threads: any; a lock, which is a leaf. */
#ifndef DDPFS_FS_DIRECTORY_NAMES_H
#define DDPFS_FS_DIRECTORY_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/supervise/handover_memory.h"
#include "shard/index.h"

struct fs_directory_names; /* opaque */

/* Makes it. @index: not owned; outlives it. @kept: bits that a predecessor left, or zeros; they outlive it, too.
 * Returns 0; -ENOMEM. */
int fs_directory_names_new(const struct shard_index *index, uint64_t most_bytes, const struct fs_handover_names *kept,
        struct fs_directory_names **ret_names);
void fs_directory_names_free(struct fs_directory_names *names); /* NULL is fine */

/* Returns how much of a budget of @memory_bytes names may take. Pages are read again where they are needed again, but
 * each use of a file needs its name. So names may have the greater part. But the engine keeps its landing memory, and
 * of the rest a half or what a window needs. Of 16 MiB nothing is left for names, of 64 MiB 24 MiB. */
uint64_t fs_directory_names_most(uint64_t memory_bytes);

/* Returns whether the kernel has the name of @file, with valid attributes, from a listing of its directory. */
bool fs_directory_names_known(struct fs_directory_names *names, uint32_t file);

/* @file is dropped. Returns whether only its pages should go: its directory is listed, or being listed. */
bool fs_directory_names_dropped(struct fs_directory_names *names, uint32_t file);

/* @file, which was not known, was looked up, and the server was asked. @has: returns whether the order has a file; it
 * gets @user, and is called for some files of the same directory, without the lock. Returns true if no directory was
 * being listed, and this one is now. */
bool fs_directory_names_looked_up(struct fs_directory_names *names, uint32_t file,
        bool (*has)(const void *user, uint32_t file), const void *user);

/* Returns whether there is a directory to list, or to go on with. *@ret_dir: the directory; *@ret_offset: the offset of
 * its listing at which to go on, 0 at first; *@ret_names: how many names it has. */
bool fs_directory_names_next(
        struct fs_directory_names *names, uint32_t *ret_dir, uint64_t *ret_offset, uint32_t *ret_names);

/* @dir, which fs_directory_names_next gave, was listed up to @offset (fs/listing_offset.h). */
void fs_directory_names_listed(struct fs_directory_names *names, uint32_t dir, uint64_t offset);
/* @dir cannot be listed, and will not be tried again. */
void fs_directory_names_failed(struct fs_directory_names *names, uint32_t dir);

/* The kernel has got the name of @file with valid attributes: by a look-up, or by a listing of picked files
 * (fs/listing_picks.h). */
void fs_directory_names_came(struct fs_directory_names *names, uint32_t file);

/* Returns how many of @memory_bytes, which are for pages and names, the names take that nothing else counts. A file in
 * memory counts its own name, so these are the names of the other files. It is assumed that each file is as likely in
 * memory. */
uint64_t fs_directory_names_reserve(struct fs_directory_names *names, uint64_t memory_bytes);

/* Returns how many bytes the names of all listed directories take, FS_FILE_OVERHEAD_BYTES each. */
uint64_t fs_directory_names_bytes(struct fs_directory_names *names);

/* The kernel has forgotten the name of @file, and probably others of its directory. */
void fs_directory_names_forget(struct fs_directory_names *names, uint32_t file);

/* No directory counts as listed any more, and none will be listed. */
void fs_directory_names_end(struct fs_directory_names *names);

#endif
