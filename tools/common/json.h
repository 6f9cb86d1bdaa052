/* SPDX-License-Identifier: Apache-2.0 */
/* Writes JSON strings to a stream, for lists that are too long to hold as objects.  For other JSON use jansson.
 *
 * Threads: any; one thread for each stream. */
#ifndef DDPFS_TOOLS_COMMON_JSON_H
#define DDPFS_TOOLS_COMMON_JSON_H

#include <stddef.h>
#include <stdio.h>

/* Writes bytes as a JSON string with quotes.  A byte that is not UTF-8 becomes \udc80 to \udcff, as in Python's
 * os.fsdecode, so that every name stays distinct.  Errors stay in the stream (ferror). */
void json_put_string(FILE *out, const char *bytes, size_t len);

#endif
