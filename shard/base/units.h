/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes as people write them: "64M", "1.5G", "4096", "256KiB"; powers of 1024.  Times as one number. */
#ifndef DDPFS_SHARD_BASE_UNITS_H
#define DDPFS_SHARD_BASE_UNITS_H

#include <stdint.h>

/* Parses [0-9]+(.[0-9]+)?[KMGT]?(i?B)? (case ignored).  Returns 0, -EINVAL for other text, -ERANGE past 2^63-1. */
int base_parse_size(const char *text, uint64_t *ret_bytes);

/* Parses an unsigned decimal number with nothing behind it.  Returns 0, -EINVAL, or -ERANGE when > max. */
int base_parse_u64(const char *text, uint64_t max, uint64_t *ret_value);

/* "1.5 GiB", "812 B".  Returns buf. */
const char *base_format_size(uint64_t bytes, char buf[static 16]);

/* A file's time in one number, for "is this still the same file?".  Years past 2262 wrap around: they stay comparable. */
static inline int64_t base_time_ns(int64_t sec, uint32_t nsec)
{
	return (int64_t)((uint64_t)sec * 1000000000U + nsec);
}

#define BASE_KIB (UINT64_C(1) << 10)
#define BASE_MIB (UINT64_C(1) << 20)
#define BASE_GIB (UINT64_C(1) << 30)

#endif
