/* Sizes as people write them: "64M", "1.5G", "4096", "256KiB"; powers of 1024. */
#ifndef DDPFS_SHARD_BASE_UNITS_H
#define DDPFS_SHARD_BASE_UNITS_H

#include <stdint.h>

/* Parses [0-9]+(.[0-9]+)?[KMGT]?(i?B)? (case ignored).  Returns 0, -EINVAL for other text, -ERANGE past 2^63-1. */
int base_parse_size(const char *text, uint64_t *ret_bytes);

/* Parses an unsigned decimal number with nothing behind it.  Returns 0, -EINVAL, or -ERANGE when > max. */
int base_parse_u64(const char *text, uint64_t max, uint64_t *ret_value);

/* "1.5 GiB", "812 B".  Returns buf. */
const char *base_format_size(uint64_t bytes, char buf[static 16]);

#define BASE_KIB (UINT64_C(1) << 10)
#define BASE_MIB (UINT64_C(1) << 20)
#define BASE_GIB (UINT64_C(1) << 30)

#endif
