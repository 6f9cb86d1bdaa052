/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a file as soon as it is looked up, for trainers whose order is not known.
 *
 * Such a trainer opens a file that it has not opened before: a LOOKUP, and 50 to 100 us later, when the kernel has
 * made room for the answer, a READ. If nearly all files looked up lately were read soon after, the server reads a
 * file at its LOOKUP, and the device works meanwhile. Listings that stat files (`ls -l`, `find -size`,
 * os.path.getsize) look up thousands of files and read none. Then the server reads a few dozen of them in vain before
 * it stops.
 *
 * LOOKUPs of files that are in memory or on their way are not reported here: they need no READ.
 *
 * Threads: any; one lock, a leaf. */
#ifndef DDPFS_FS_LOOKUP_READAHEAD_H
#define DDPFS_FS_LOOKUP_READAHEAD_H

#include <stdbool.h>
#include <stdint.h>

enum {
	/* latest files looked up, which may still be read: with more readers side by side nothing is read early */
	FS_LOOKUP_READAHEAD_KEPT = 64,
	FS_LOOKUP_READAHEAD_JUDGED = 64, /* files looked up before those; it is known whether each was read */
	FS_LOOKUP_READAHEAD_ENOUGH = 56, /* so many of these must have been read */
};

struct fs_lookup_readahead; /* opaque */

int fs_lookup_readahead_new(struct fs_lookup_readahead **ret_lookups); /* -ENOMEM */
void fs_lookup_readahead_free(struct fs_lookup_readahead *lookups);    /* NULL is fine */

/* Records that a file was looked up. */
void fs_lookup_readahead_looked_up(struct fs_lookup_readahead *lookups, uint32_t file);
/* Records that a file was read from its beginning. */
void fs_lookup_readahead_read(struct fs_lookup_readahead *lookups, uint32_t file);

/* Returns whether a file that is looked up now is expected to be read. */
bool fs_lookup_readahead_is_read(const struct fs_lookup_readahead *lookups);

#endif
