/* SPDX-License-Identifier: Apache-2.0 */
/* The bare container: a shard for tiny samples, where tar headers would need too much room.
 *
 * Contents stand back to back, then a footer from which the index can be rebuilt.  Contents are not aligned, because
 * neighbours are read together in aligned extents.
 *
 *   contents ... | zeros up to a multiple of 8 | footer: one record a file or directory | trailer, 64 bytes
 *
 * FORMAT.md has the layout.  The parser takes bytes, never a descriptor.
 * Threads: any; only one thread at a time may use a writer or a reader. */
#ifndef DDPFS_SHARD_BARE_H
#define DDPFS_SHARD_BARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard/base/err.h"
#include "shard/format.h"

#define SHARD_BARE_MAGIC "DDPFSBAR"
/* TRAILER: bytes of the trailer.  GROUP_MAX: bytes of a group's key. */
enum { SHARD_BARE_VERSION = 1, SHARD_BARE_TRAILER = 64, SHARD_BARE_GROUP_MAX = 4095 };

/* The last 64 bytes of a bare shard. */
struct shard_bare_trailer_rec {
	char magic[8];
	uint32_t version;       /* SHARD_BARE_VERSION */
	uint32_t compat;        /* SHARD_COMPAT_* of the index this shard was packed with */
	uint64_t footer_offset; /* of the records in the shard; multiple of 8 */
	uint64_t footer_bytes;  /* of the records, which end where the trailer begins */
	uint64_t footer_sum;    /* XXH3-64 of the records */
	uint32_t n_entries;     /* records */
	uint32_t n_shards;      /* of the dataset; 0 = unknown */
	uint64_t pack_seed;     /* 0 if slots were not shuffled */
	uint64_t trailer_sum;   /* XXH3-64 of the 56 bytes before */
};
_Static_assert(sizeof(struct shard_bare_trailer_rec) == SHARD_BARE_TRAILER, "bare trailer");

/* Flags of a record. */
enum {
	SHARD_BARE_COMMON = 1 << 16,    /* a common file */
	SHARD_BARE_DIRECTORY = 1 << 17, /* a directory, not a file */
	SHARD_BARE_GROUPED = 1 << 18,   /* a group's key follows the path */
};

/* A record of the footer.  After it come: the path and a NUL; if GROUPED, the key of the group and a NUL; zeros up to a
 * multiple of 8; the block sums of a file over SHARD_BLOCK. */
struct shard_bare_rec {
	uint32_t record_bytes; /* of the record and all that comes after it; multiple of 8 */
	uint32_t mode_flags;   /* bits 0-11: permission bits; SHARD_BARE_*; the rest zero */
	uint64_t offset;       /* of the content in the shard; ascending; 0 for directories */
	uint64_t length;       /* of the content, bytes; 0 for directories */
	uint64_t xxh3;         /* XXH3-64 of the content; 0 for directories */
	int64_t mtime_s;       /* since 1970 */
	uint16_t path_len;     /* bytes, without the NUL */
	uint16_t group_len;    /* bytes, without the NUL */
	uint32_t reserved;     /* zero */
};
_Static_assert(sizeof(struct shard_bare_rec) == 48, "bare record");

/* One file or declared directory, for writing and as read.  As read, its pointers point into the bytes of the
 * footer. */
struct shard_bare_entry {
	const char *path;           /* NUL-terminated; as read: checked by shard_path_check; "" is the root directory */
	const char *group;          /* the key of its sample; NULL: a sample of its own */
	const uint64_t *block_sums; /* one per SHARD_BLOCK if length > SHARD_BLOCK, else NULL */
	uint64_t offset;            /* of the content in the shard, bytes */
	uint64_t length;            /* bytes */
	uint64_t xxh3;              /* XXH3-64 of the content */
	int64_t mtime_s;            /* since 1970 */
	uint32_t mode;              /* permission bits */
	bool common;                /* a common file */
	bool directory;             /* a directory: offset, length and xxh3 are not used */
};

/* What every bare shard stores about its dataset. */
struct shard_bare_dataset {
	uint32_t n_shards;  /* 0: unknown */
	bool shuffled;      /* storage slots were shuffled */
	uint64_t pack_seed; /* 0 if not shuffled */
};

struct shard_bare_writer;                                         /* opaque: collects the footer of one shard */
int shard_bare_writer_new(struct shard_bare_writer **ret_writer); /* 0 or -ENOMEM */
void shard_bare_writer_free(struct shard_bare_writer *writer);    /* NULL is allowed */

/* Adds the record of a file whose content is at entry->offset, or of a directory.  Add files in ascending offset.
 * Returns 0; -EINVAL: path or group is too long, a number is out of range, block sums are missing, files are not in
 * order, or the writer has finished; -ENOMEM. */
int shard_bare_writer_add(struct shard_bare_writer *writer, const struct shard_bare_entry *entry);

/* Returns the bytes to append at payload_end, the end of the last content: padding, footer, trailer.  They are valid
 * until the writer is freed.  After this call the writer accepts no more calls.
 * Returns 0; -EINVAL: a content ends after payload_end, or the writer has finished before; -ENOMEM. */
int shard_bare_writer_finish(struct shard_bare_writer *writer, uint64_t payload_end,
        const struct shard_bare_dataset *dataset, const uint8_t **ret_bytes, size_t *ret_len);

/* What a trailer says; see struct shard_bare_trailer_rec. */
struct shard_bare_info {
	uint64_t footer_offset;
	uint64_t footer_bytes;
	uint64_t footer_sum;
	uint32_t n_entries;
	struct shard_bare_dataset dataset;
};

/* Parses the last SHARD_BARE_TRAILER bytes of a shard that has shard_bytes bytes.
 * Returns 0, or an error with a sentence; -EUCLEAN: not a bare shard, or truncated; -EBADMSG: its sum differs;
 * -EPROTONOSUPPORT: unknown version. */
int shard_bare_trailer(
        const uint8_t *trailer, uint64_t shard_bytes, struct base_err *err, struct shard_bare_info *ret_info);

/* The state of reading a footer.  Only bare.c uses its fields. */
struct shard_bare_reader {
	const uint8_t *bytes; /* the records */
	size_t len;           /* bytes of them */
	size_t at;            /* where the next record begins */
	uint64_t left;        /* entries not read yet */
	uint64_t content_end; /* end of the last file read, in the shard */
	uint64_t payload_end; /* end of all contents: the footer's offset */
};

/* Begins to read a footer and verifies its sum.  `bytes` are the info->footer_bytes bytes from info->footer_offset on.
 * They are 8-aligned and outlive the entries.
 * Returns 0; -EBADMSG: the sum differs; -EINVAL: bytes are misaligned, or len is wrong. */
int shard_bare_reader_init(struct shard_bare_reader *reader, const struct shard_bare_info *info, const uint8_t *bytes,
        size_t len, struct base_err *err);

/* Reads the next entry.  Returns 1 and the entry; 0 at the end; -EUCLEAN or an error of shard_path_check, with a
 * sentence. */
int shard_bare_reader_next(struct shard_bare_reader *reader, struct base_err *err, struct shard_bare_entry *ret_entry);

#endif
