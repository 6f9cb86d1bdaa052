/* SPDX-License-Identifier: Apache-2.0 */
/* Percent-encoding of URIs (RFC 3986, section 2), in the form that Signature Version 4 demands.
 *
 * Threads: any; the functions share no state. */
#ifndef DDPFS_SHARD_REMOTE_URI_H
#define DDPFS_SHARD_REMOTE_URI_H

#include <stdbool.h>
#include <stddef.h>

/* Encodes `len` bytes: A-Z a-z 0-9 - . _ ~ stay, every other byte becomes %XX with capital digits.  With `slashes`, '/'
 * stays too, as in a path.
 * Returns a string that the caller frees, or NULL: out of memory. */
char *remote_uri_encode(const char *text, size_t len, bool slashes);

/* Decodes %XX in place; a '%' without two hexadecimal digits stays.  A NUL byte is not decoded. */
void remote_uri_decode(char *text);

#endif
