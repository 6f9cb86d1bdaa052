/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes as people write them ("64M", "1.5G", "4096", "256KiB"; powers of 1024), names, hexadecimal digits, and times
 * as one number.
 *
 * Threads: any; pure functions. */
#ifndef DDPFS_SHARD_BASE_UNITS_H
#define DDPFS_SHARD_BASE_UNITS_H

#include <stdint.h>

/* Parses [0-9]+(.[0-9]+)?[KMGT]?(i?B)? in any case.  Returns 0; -EINVAL: other text; -ERANGE: over 2^63-1. */
int base_parse_size(const char *text, uint64_t *ret_bytes);

/* Parses an unsigned decimal number.  Returns 0; -EINVAL: other text, or text after the number; -ERANGE: over max. */
int base_parse_u64(const char *text, uint64_t max, uint64_t *ret_value);

/* Writes a size for people: "1.5 GiB", "812 B".  Returns buf. */
const char *base_format_size(uint64_t bytes, char buf[static 16]);

/* Writes n bytes as 2 * n hexadecimal digits and a NUL. */
void base_format_hex(const uint8_t *bytes, unsigned n, char *buf);

/* Returns the index of `text` in a list of n names, or -EINVAL. */
int base_find_name(const char *const *names, unsigned n, const char *text);

/* Returns the time of a file as one number, to detect changes.  Years after 2262 wrap; equal times stay equal. */
static inline int64_t base_time_ns(int64_t sec, uint32_t nsec)
{
	return (int64_t)((uint64_t)sec * 1000000000U + nsec);
}

#define BASE_KIB (UINT64_C(1) << 10)
#define BASE_MIB (UINT64_C(1) << 20)
#define BASE_GIB (UINT64_C(1) << 30)

#endif
