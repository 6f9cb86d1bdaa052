/* SPDX-License-Identifier: Apache-2.0 */
/* The bare container, for tiny samples, where tar headers would cost too much: contents back to back (no alignment:
 * neighbours are read together, in aligned pieces, anyway), then a footer from which the index can be rebuilt.
 *
 *   contents ... | zeros up to a multiple of 8 | footer: one record a file or directory | trailer, 64 bytes
 *
 * FORMAT.md has the layout.  The parser takes bytes, never a descriptor.
 * Threads: one writer or reader, one thread. */
#ifndef DDPFS_SHARD_BARE_H
#define DDPFS_SHARD_BARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard/base/err.h"
#include "shard/format.h"

#define SHARD_BARE_MAGIC "DDPFSBAR"
enum { SHARD_BARE_VERSION = 1, SHARD_BARE_TRAILER = 64, SHARD_BARE_GROUP_MAX = 4095 };

/* The last 64 bytes of a bare shard. */
struct shard_bare_trailer_rec {
	char magic[8];
	uint32_t version;
	uint32_t compat;        /* SHARD_COMPAT_* of the index this shard was packed with */
	uint64_t footer_offset; /* multiple of 8 */
	uint64_t footer_bytes;  /* up to the trailer */
	uint64_t footer_sum;    /* XXH3-64 */
	uint32_t n_entries;
	uint32_t n_shards; /* of the dataset; 0 = not said */
	uint64_t pack_seed;
	uint64_t trailer_sum; /* XXH3-64 of the 56 bytes before */
};
_Static_assert(sizeof(struct shard_bare_trailer_rec) == SHARD_BARE_TRAILER, "bare trailer");

enum {
	SHARD_BARE_COMMON = 1 << 16,
	SHARD_BARE_DIRECTORY = 1 << 17,
	SHARD_BARE_GROUPED = 1 << 18,
};

/* A record of the footer.  Behind it: the path and a NUL; when GROUPED the group's key and a NUL; zeros up to a multiple
 * of 8; for files over SHARD_BLOCK their block sums. */
struct shard_bare_rec {
	uint32_t record_bytes; /* of all that; multiple of 8 */
	uint32_t mode_flags;   /* bits 0-11: permission bits; SHARD_BARE_*; the rest zero */
	uint64_t offset;       /* of the content in the shard; ascending; 0 for directories */
	uint64_t length;
	uint64_t xxh3;
	int64_t mtime_s;
	uint16_t path_len;
	uint16_t group_len;
	uint32_t reserved; /* zero */
};
_Static_assert(sizeof(struct shard_bare_rec) == 48, "bare record");

/* One file or declared directory, as written and as read.  When read, pointers lead into the footer's bytes. */
struct shard_bare_entry {
	const char *path;           /* NUL-terminated; as read: checked by the rules of shard_path_check */
	const char *group;          /* NULL: a sample of its own */
	const uint64_t *block_sums; /* one per SHARD_BLOCK when length > SHARD_BLOCK, else NULL */
	uint64_t offset;
	uint64_t length;
	uint64_t xxh3;
	int64_t mtime_s;
	uint32_t mode;
	bool common;
	bool directory;
};

/* What every bare shard says of the dataset that it was packed for. */
struct shard_bare_dataset {
	uint32_t n_shards; /* 0: not said */
	bool shuffled;
	uint64_t pack_seed; /* 0 unless shuffled */
};

struct shard_bare_writer;                                         /* opaque */
int shard_bare_writer_new(struct shard_bare_writer **ret_writer); /* -ENOMEM */
void shard_bare_writer_free(struct shard_bare_writer *writer);    /* NULL is fine */

/* Adds the record of content that stands (or will stand) at entry->offset.  Files come in ascending offset.
 * -EINVAL (path or group too long, order), -ENOMEM. */
int shard_bare_writer_add(struct shard_bare_writer *writer, const struct shard_bare_entry *entry);

/* The bytes to append at payload_end, the end of the last content: padding, footer, trailer.  They belong to the writer,
 * which is spent.  -EINVAL when a content reaches past payload_end, -ENOMEM. */
int shard_bare_writer_finish(struct shard_bare_writer *writer, uint64_t payload_end,
        const struct shard_bare_dataset *dataset, const uint8_t **ret_bytes, size_t *ret_len);

/* What the trailer says. */
struct shard_bare_info {
	uint64_t footer_offset;
	uint64_t footer_bytes;
	uint64_t footer_sum;
	uint32_t n_entries;
	struct shard_bare_dataset dataset;
};

/* Reads the last SHARD_BARE_TRAILER bytes of a shard of shard_bytes bytes.
 * -EUCLEAN (not a bare shard, truncated), -EBADMSG, -EPROTONOSUPPORT, with a sentence. */
int shard_bare_trailer(
        const uint8_t *trailer, uint64_t shard_bytes, struct base_err *err, struct shard_bare_info *ret_info);

struct shard_bare_reader {
	const uint8_t *bytes;
	size_t len;
	size_t at;
	uint64_t left;        /* entries */
	uint64_t content_end; /* of the last file */
	uint64_t payload_end;
};

/* Verifies the footer's sum.  `bytes` are footer_bytes from footer_offset on, 8-aligned, and outlive the entries.
 * -EBADMSG, -EINVAL (misaligned, wrong length). */
int shard_bare_reader_init(struct shard_bare_reader *reader, const struct shard_bare_info *info, const uint8_t *bytes,
        size_t len, struct base_err *err);

/* Returns 1 and the next entry, 0 at the end, -EUCLEAN with a sentence. */
int shard_bare_reader_next(struct shard_bare_reader *reader, struct base_err *err, struct shard_bare_entry *ret_entry);

#endif
