/* SPDX-License-Identifier: Apache-2.0 */
/* The tar container: writing ustar/pax headers, and a strict parser for adopting shards in place.
 *
 * The parser takes bytes, never a descriptor (a fuzzer needs no file): feed it the header blocks, it says where the
 * content lies and where the next header is.  ustar, pax (path, size, mtime, linkpath; global ones too), GNU 'L'/'K'
 * long names, old v7, octal and base-256 numbers; sparse files are refused.  Arithmetic is checked; nothing allocates beyond SHARD_PATH_MAX and a pax header of
 * SHARD_TAR_PAX_MAX bytes.
 * Threads: pure functions and one parser object per thread. */
#ifndef DDPFS_SHARD_TAR_H
#define DDPFS_SHARD_TAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard/base/err.h"
#include "shard/format.h"

enum {
	SHARD_TAR_BLOCK = 512,
	SHARD_TAR_PAX_MAX = 1 << 20, /* bytes of one pax header that are read; larger is refused */
	SHARD_TAR_HEADER_MAX = 3 * 512 + 2 * SHARD_PATH_MAX, /* longest header shard_tar_header writes, rounded up */
};

struct shard_tar_meta {
	const char *path;
	uint64_t length;
	int64_t mtime_s;
	uint32_t mode;
	bool directory; /* writes a directory member (length 0) */
};

/* Number of bytes of header for this member: 512 when ustar can hold it, more with a pax header in front. */
size_t shard_tar_header_size(const struct shard_tar_meta *meta);

/* Writes the header (uid/gid 0, names empty: deterministic).  buf holds shard_tar_header_size bytes. */
void shard_tar_header(const struct shard_tar_meta *meta, uint8_t *buf);

/* Zero bytes after content of `length` up to the next 512. */
static inline uint32_t shard_tar_padding(uint64_t length)
{
	return (uint32_t)(-length & (SHARD_TAR_BLOCK - 1));
}

enum shard_tar_type {
	SHARD_TAR_FILE,
	SHARD_TAR_DIR,
	SHARD_TAR_LINK,
	SHARD_TAR_SYMLINK,
	SHARD_TAR_DEVICE,
	SHARD_TAR_OTHER
};

/* A member as found.  Strings live in the parser until the next call. */
struct shard_tar_member {
	const char *path; /* as written in the archive (directories mostly end in '/'), NUL-terminated, not yet checked
	                     for safety: shard_path_check */
	const char *link; /* target of links, else "" */
	enum shard_tar_type type;
	uint64_t header_offset; /* of the first header block of this member (its pax header included) */
	uint64_t content_offset;
	uint64_t length;
	int64_t mtime_s;
	uint32_t mode;
};

struct shard_tar_parser; /* opaque */
int shard_tar_parser_new(struct shard_tar_parser **ret_parser);
void shard_tar_parser_free(struct shard_tar_parser *parser);

/* Feeds bytes that start at archive offset `offset` (the offset the parser asked for, 0 at first).
 * at_eof: the archive ends behind these bytes.
 * Returns 1: *ret_member is filled and *ret_next is the offset of the next header.  The caller holds
 *            content_offset + length against the archive's size (with at_eof the parser does it), and stops when
 *            *ret_next is not below that size: the last member's padding may be missing;
 *         2: more bytes are needed: at least *ret_need bytes starting at *ret_next (of a pax or long-name record);
 *         0: end of archive (two zero blocks, or the end of the file at a header boundary with at_eof);
 *         -EUCLEAN/-EBADMSG, -ENAMETOOLONG, -EOPNOTSUPP (sparse and multi-volume members) with a sentence that names
 *            the byte offset. */
int shard_tar_parse(struct shard_tar_parser *parser, const uint8_t *bytes, size_t len, uint64_t offset, bool at_eof,
        struct base_err *err, struct shard_tar_member *ret_member, uint64_t *ret_next, size_t *ret_need);

#endif
