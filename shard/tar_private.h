/* SPDX-License-Identifier: Apache-2.0 */
/* Private to tar.c and tar_parse.c: the layout of a header block. */
#ifndef DDPFS_SHARD_TAR_PRIVATE_H
#define DDPFS_SHARD_TAR_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>

enum { TAR_NAME_BYTES = 100, TAR_PREFIX_BYTES = 155 };

/* A header block, as in POSIX.1-2017, pax, "ustar Interchange Format". */
struct tar_block {
	char name[TAR_NAME_BYTES];
	char mode[8];
	char uid[8];
	char gid[8];
	char size[12];
	char mtime[12];
	char chksum[8];
	char type;
	char linkname[TAR_NAME_BYTES];
	char magic[6];
	char version[2];
	char uname[32];
	char gname[32];
	char devmajor[8];
	char devminor[8];
	char prefix[TAR_PREFIX_BYTES];
	char pad[12];
};
_Static_assert(sizeof(struct tar_block) == 512, "tar header");

/* Says whether len bytes are well-formed UTF-8 (RFC 3629).  Pure. */
bool tar_is_utf8(const char *s, size_t len);

#endif
