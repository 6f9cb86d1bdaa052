/* SPDX-License-Identifier: Apache-2.0 */
/* Names of layout=flat: `EEEE-PPPPPPPPPP-<path>`.
 *
 * E is the epoch (at least 4 digits), P the global step (at least 10 digits; shard/deal.h), the path has '%' written as
 * %25 and '/' as %2F.  So sorting a rank's names of one epoch gives its order.  A name that would be longer than NAME_MAX
 * is cut: what fits of the path, '~', 8 hex digits of the path's XXH3-64, and the file's extension (the last '.' of its
 * last component and what follows, when that is at most FS_NAME_EXT_MAX bytes), which readers choose decoders by.
 * A common file carries no prefix: just its encoded path.
 *
 * Threads: pure functions. */
#ifndef DDPFS_FS_NAME_H
#define DDPFS_FS_NAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard/format.h"

enum {
	FS_NAME_EXT_MAX = 16, /* bytes of an extension that a cut keeps, dot included */
};

/* The path as one name component of at most max bytes (max <= SHARD_NAME_MAX, at least 32).
 * Writes NUL-terminated; returns the length. */
size_t fs_name_encode(const char *path, size_t path_len, size_t max, char ret_name[static SHARD_NAME_MAX + 1]);

/* The flat name of a file; returns its length.  epoch <= FS_EPOCH_MAX, step < 10^12. */
size_t fs_name_flat(
        uint64_t epoch, uint64_t step, const char *path, size_t path_len, char ret_name[static SHARD_NAME_MAX + 1]);

/* Splits a flat name.  Only what fs_name_flat writes is accepted (no extra leading zeros), so that a file has one name an
 * occurrence.  -ENOENT for any other text. */
int fs_name_parse(const char *name, uint64_t *ret_epoch, uint64_t *ret_step);

/* Undoes fs_name_encode for names that were not cut.  -ENOENT for text it never writes ('%' not followed by 25 or 2F, or
 * longer than the buffer).  ret_path has room for len + 1 bytes. */
int fs_name_decode(const char *name, size_t len, char *ret_path);

/* A canonical decimal number (no sign, no leading zeros) of at most max; the whole text.  -ENOENT. */
int fs_name_number(const char *text, size_t len, uint64_t max, uint64_t *ret_value);

#endif
