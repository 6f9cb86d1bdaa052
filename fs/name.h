/* SPDX-License-Identifier: Apache-2.0 */
/* Names of layout=flat: `EEEE-PPPPPPPPPP-<path>`.
 *
 * E is the epoch (at least 4 digits), P the global step (at least 10 digits; shard/deal.h). The path has '%' written
 * as %25 and '/' as %2F. So the sorted names of a rank's epoch are in its order.
 *
 * A name that would be longer than NAME_MAX is cut. It then holds what fits of the path, '~', 8 hex digits of the
 * path's XXH3-64, and the file's extension, because readers choose decoders by it. The extension is the last '.' of
 * the last component and what follows, if that is at most FS_NAME_EXT_MAX bytes.
 *
 * A common file has no prefix: its name is its encoded path.
 *
 * Threads: any; pure functions. */
#ifndef DDPFS_FS_NAME_H
#define DDPFS_FS_NAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard/format.h"

enum {
	FS_NAME_EXT_MAX = 16, /* bytes of an extension that a cut name keeps, with the dot */
};

/* Writes the path as one name component of at most @max bytes, with a NUL. @max: 32 to SHARD_NAME_MAX. Returns the
 * length. */
size_t fs_name_encode(const char *path, size_t path_len, size_t max, char ret_name[static SHARD_NAME_MAX + 1]);

/* Writes the flat name of a file, with a NUL. @epoch: at most FS_EPOCH_MAX. @step: below 10^12. Returns the length. */
size_t fs_name_flat(
        uint64_t epoch, uint64_t step, const char *path, size_t path_len, char ret_name[static SHARD_NAME_MAX + 1]);

/* Splits a flat name. Only what fs_name_flat writes is accepted (no extra leading zeros), so that a file has one name
 * for each occurrence. Returns 0; -ENOENT: any other text. */
int fs_name_parse(const char *name, uint64_t *ret_epoch, uint64_t *ret_step);

/* Undoes fs_name_encode for names that were not cut. @ret_path: len + 1 bytes.
 * Returns 0; -ENOENT: text that it never writes ('%' not followed by 25 or 2F). */
int fs_name_decode(const char *name, size_t len, char *ret_path);

/* Reads a whole text as a decimal number of at most @max, without sign and leading zeros. Returns 0; -ENOENT: it is
 * none. */
int fs_name_number(const char *text, size_t len, uint64_t max, uint64_t *ret_value);

#endif
