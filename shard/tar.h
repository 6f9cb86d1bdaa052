/* SPDX-License-Identifier: Apache-2.0 */
/* The tar container: writes ustar and pax headers, and parses tar files strictly, to use them in place as shards.
 *
 * The parser takes bytes, never a descriptor, so a fuzzer needs no file.  The caller gives it header blocks.  The
 * parser says where the content is and where the next header begins.
 * It reads: ustar; pax (path, size, mtime, linkpath; global ones too); GNU 'L'/'K' long names; old v7; octal and
 * base-256 numbers.  It refuses sparse files.  Its arithmetic is checked for overflow.  It reads pax headers up to
 * SHARD_TAR_PAX_MAX bytes, and paths up to SHARD_PATH_MAX.
 * Threads: any; only one thread at a time may use a parser.  The other functions are pure. */
#ifndef DDPFS_SHARD_TAR_H
#define DDPFS_SHARD_TAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard/base/err.h"
#include "shard/format.h"

enum {
	SHARD_TAR_BLOCK = 512,
	SHARD_TAR_END = 2 * SHARD_TAR_BLOCK, /* bytes of the mark that ends an archive: zeros */
	SHARD_TAR_PAX_MAX = 1 << 20,         /* bytes of one pax header or long name; a larger one is refused */
	SHARD_TAR_HEADER_MAX = 3 * 512 + 2 * SHARD_PATH_MAX, /* bound for what shard_tar_header writes */
};

/* A member to write. */
struct shard_tar_meta {
	const char *path; /* at most SHARD_PATH_MAX bytes */
	uint64_t length;  /* of the content, bytes */
	int64_t mtime_s;  /* since 1970 */
	uint32_t mode;    /* permission bits */
	bool directory;   /* a directory member; its length is 0 */
};

/* Returns the bytes of the header of a member: 512 if ustar can hold it, more if it needs a pax header in front. */
size_t shard_tar_header_size(const struct shard_tar_meta *meta);

/* Writes the header into buf of shard_tar_header_size bytes.  Owners are 0 and have no names, so the bytes depend on
 * `meta` only. */
void shard_tar_header(const struct shard_tar_meta *meta, uint8_t *buf);

/* Returns the number of zero bytes after content of `length` bytes, up to the next multiple of 512. */
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

/* A member as parsed.  Its strings are valid until the next call of the parser. */
struct shard_tar_member {
	const char *path; /* as in the archive (directories mostly end in '/'), NUL-terminated; not checked for safety:
	                     call shard_path_check */
	const char *link; /* the target of a link, else "" */
	enum shard_tar_type type;
	uint64_t header_offset;  /* in the archive, of the first header block of this member, its pax header included */
	uint64_t content_offset; /* in the archive */
	uint64_t length;         /* of the content, bytes */
	int64_t mtime_s;         /* since 1970 */
	uint32_t mode;           /* permission bits */
};

struct shard_tar_parser;                                        /* opaque */
int shard_tar_parser_new(struct shard_tar_parser **ret_parser); /* 0 or -ENOMEM */
void shard_tar_parser_free(struct shard_tar_parser *parser);    /* NULL is allowed */

/* Parses the next member from len bytes that begin at archive offset `offset`: 0 in the first call, then *ret_next.
 * at_eof: the archive ends after these bytes.
 * Returns 1: *ret_member is filled, and *ret_next is the offset of the next header.  The caller compares
 *            content_offset + length with the size of the archive (with at_eof the parser does).  The caller stops if
 *            *ret_next is not below that size, because the padding of the last member may be missing;
 *         2: more bytes are needed, at least *ret_need bytes from *ret_next on (for a pax or long-name record);
 *         0: the archive ends at *ret_next: two zero blocks, or with at_eof the end of the file where a header would
 *            begin;
 *         an error with a sentence that names the byte offset; -EUCLEAN: damaged or not tar; -EBADMSG: the checksum of
 *            a header differs; -ENAMETOOLONG: path or link too long; -EOPNOTSUPP: a sparse or multi-volume member. */
int shard_tar_parse(struct shard_tar_parser *parser, const uint8_t *bytes, size_t len, uint64_t offset, bool at_eof,
        struct base_err *err, struct shard_tar_member *ret_member, uint64_t *ret_next, size_t *ret_need);

/* Sets the sentence for an archive that ends at byte `end` of a file of `size` bytes, if what follows is not only
 * zeros: mostly another archive, which tar(1) leaves out, too.  Returns -EUCLEAN. */
int shard_tar_more_error(uint64_t end, uint64_t size, struct base_err *err);

#endif
