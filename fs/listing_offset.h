/* SPDX-License-Identifier: Apache-2.0 */
/* Offsets in a listing: they say from where the next entry is taken.
 *
 *     0          "."
 *     1          ".."
 *     2 + i      the i-th common file (flat), the i-th fixed name (.ddpfs/, .ddpfs/epoch/)
 *     FIRST + x  flat: turn << MEMBER_BITS | file of the sample;  tree: place among the directory's files
 *     SECOND + d tree: subdirectory d
 *
 * Threads: any; pure functions. */
#ifndef DDPFS_FS_LISTING_OFFSET_H
#define DDPFS_FS_LISTING_OFFSET_H

#include <fcntl.h>
#include <stdint.h>

#include "shard/format.h"

#define FS_OFFSET_FIRST (UINT64_C(1) << 48)
#define FS_OFFSET_SECOND (UINT64_C(2) << 48)
enum {
	FS_OFFSET_FIXED = 2,
	FS_OFFSET_MEMBER_BITS = 11,
};
_Static_assert(SHARD_SAMPLE_FILES_MAX < 1 << FS_OFFSET_MEMBER_BITS, "a sample's files fit an offset");

/* open(2) flag of a marked listing: the kernel passes it to OPENDIR, and nobody else sets it on a directory. */
#define FS_DIR_MARK O_DSYNC

/* Returns where a turn of a flat listing begins: the lister's lseek on its own descriptor. */
static inline uint64_t fs_offset_turn(uint64_t turn)
{
	return FS_OFFSET_FIRST + (turn << FS_OFFSET_MEMBER_BITS);
}

#endif
