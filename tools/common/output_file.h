/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the file that a command's option names (--output FILE), where a shell's `> FILE` would write it.
 *
 * Threads: any. */
#ifndef DDPFS_TOOLS_COMMON_OUTPUT_FILE_H
#define DDPFS_TOOLS_COMMON_OUTPUT_FILE_H

#include <stddef.h>

#include "shard/base/err.h"

/* Writes `len` bytes to `path`, and follows symbolic links, also those that lead to no file yet.
 *
 * A regular file is replaced in one step by a new one with its mode, less the umask (base_write_file_atomic): an error
 * leaves the earlier one. A new file has mode 0644. A device, a FIFO or an open descriptor (/dev/stdout) stays what it
 * is, and gets the bytes.
 *
 * Returns 0, or with a sentence: -EISDIR: a directory; errors of base_write_file_atomic, open(2) and write(2). */
int output_file_write(const char *path, const void *buf, size_t len, struct base_err *err);

#endif
