/* SPDX-License-Identifier: Apache-2.0 */
/* JSON text written as it comes, for lists too long to be held as objects.  (What is read, or small, goes through jansson.)
 *
 * Threads: no shared state but the stream. */
#ifndef DDPFS_TOOLS_COMMON_JSON_H
#define DDPFS_TOOLS_COMMON_JSON_H

#include <stddef.h>
#include <stdio.h>

/* Writes bytes as a JSON string, quotes included.  What is not UTF-8 becomes \udc80..\udcff, as Python's os.fsdecode has
 * it, so that no name is lost.  Errors stay with the stream (ferror). */
void json_put_string(FILE *out, const char *bytes, size_t len);

#endif
