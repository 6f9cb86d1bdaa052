/* SPDX-License-Identifier: Apache-2.0 */
/* Whether who looks a file up reads it next.
 *
 * A trainer whose order nobody knows opens a file it has not opened before: a LOOKUP, and 50 to 100 us later, when the kernel has made
 * room for the answer, a READ.  Where nearly all the files looked up lately were read soon after, a file is read as soon as
 * it is looked up, and the device works meanwhile.  Listings that stat files (`ls -l`, `find -size`, os.path.getsize) look up
 * thousands and read none: a few dozen of those are read in vain before the guess is given up.
 *
 * LOOKUPs of files that are in memory or on their way are not told here: they need no READ.
 *
 * Threads: any; one lock, a leaf. */
#ifndef DDPFS_FS_LOOKUP_READAHEAD_H
#define DDPFS_FS_LOOKUP_READAHEAD_H

#include <stdbool.h>
#include <stdint.h>

enum {
	FS_LOOKUP_READAHEAD_KEPT =
	        64, /* files looked up that may still be read: that many readers side by side, with more nothing is guessed */
	FS_LOOKUP_READAHEAD_JUDGED = 64, /* files looked up before those, of which is known whether they were read */
	FS_LOOKUP_READAHEAD_ENOUGH = 56, /* read, of those */
};

struct fs_lookup_readahead; /* opaque */

int fs_lookup_readahead_new(struct fs_lookup_readahead **ret_guess); /* -ENOMEM */
void fs_lookup_readahead_free(struct fs_lookup_readahead *guess);    /* NULL is fine */

void fs_lookup_readahead_looked_up(struct fs_lookup_readahead *guess, uint32_t file);
void fs_lookup_readahead_read(struct fs_lookup_readahead *guess, uint32_t file); /* from its beginning */

/* A file that is looked up now will be read. */
bool fs_lookup_readahead_is_read(const struct fs_lookup_readahead *guess);

#endif
