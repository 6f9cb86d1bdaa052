/* SPDX-License-Identifier: Apache-2.0 */
/* The index on disk, `index.ddpfs`, format version 1.  FORMAT.md is the specification; this header is the same in C.
 *
 * The index is one little-endian file, mapped read-only.  Page 0 is the header.  The sections follow in the order of
 * enum shard_section.  Each begins at the next multiple of 4096 bytes; the gaps are zero.  XXH3-64 sums cover every
 * byte:
 *
 *   header (its own sum) -> L1 sums (one per 64 KiB of L0) -> L0 sums (one per 64 KiB of the sections before) -> data
 *
 * A reader verifies the header and L1 at open, and a part of L0 or a 64 KiB piece before its first use.  So opening is
 * O(1).
 *
 * Words: a file is a record, an inode.  A sample is what is dealt to ranks: one file, or a group of files that belong
 * together.  A slot is the place of a sample in storage order.  A common file is seen by every rank and belongs to no
 * sample.
 *
 * File ids are in the order of ImageFolder: directories in pre-order, the children of one by the bytes of their names
 * (for UTF-8 that is code point order).  The own files of a directory come before its subdirectories.  So the files of
 * a directory are one range of ids, and so are those of a subtree; the same holds for directories.  Sample ids are in
 * the order of their first files.
 *
 * Threads: pure functions of their arguments. */
#ifndef DDPFS_SHARD_FORMAT_H
#define DDPFS_SHARD_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the index is mapped as it is: ddpfs needs a little-endian machine"
#endif

#define SHARD_INDEX_NAME "index.ddpfs"
#define SHARD_MAGIC "DDPFSIDX"

enum {
	SHARD_VERSION = 1,
	SHARD_PAGE = 4096,
	SHARD_SUM_BLOCK = 65536,       /* bytes of index covered by one L0 sum */
	SHARD_BLOCK = 1 << 20,         /* bytes of a file covered by one entry of SHARD_SEC_BLOCK_SUMS */
	SHARD_NAME_MAX = 255,          /* bytes of one path component (NAME_MAX) */
	SHARD_PATH_MAX = 4095,         /* bytes of a whole path */
	SHARD_DEPTH_MAX = 255,         /* directories above a file */
	SHARD_SAMPLE_FILES_MAX = 1024, /* files of one sample */
};
#define SHARD_NONE UINT32_MAX                          /* "no sample", "no slot", "no parent" */
#define SHARD_FILES_MAX (UINT32_MAX - 1)               /* files or directories: ids have 32 bits */
#define SHARD_SHARDS_MAX (1U << 24)                    /* shards: 24 bits in a file record */
#define SHARD_FILE_BYTES_MAX ((UINT64_C(1) << 48) - 1) /* length or offset: 48 bits in a file record */

/* A reader ignores compat bits that it does not know, and refuses incompat bits that it does not know. */
enum { SHARD_COMPAT_SHUFFLED = 1 << 0 }; /* slots were shuffled at pack time: neighbours are unrelated */
enum {
	SHARD_INCOMPAT_GROUPED = 1 << 0, /* some sample has more than one file: SAMPLE_FIRST + MEMBERS are present */
};

enum shard_section {
	SHARD_SEC_FILES,        /* struct shard_file_rec[n_files] */
	SHARD_SEC_DIRS,         /* struct shard_dir_rec[n_dirs]; dir 0 is the root */
	SHARD_SEC_SHARDS,       /* struct shard_shard_rec[n_shards] */
	SHARD_SEC_NAMES,        /* bytes; names of files, directories and shards, not terminated */
	SHARD_SEC_FILE_TABLE,   /* uint32_t[file_buckets]: file id or SHARD_NONE; see shard_hash_* below */
	SHARD_SEC_FILE_TAGS,    /* uint8_t[file_buckets]: 0 = empty bucket, else 8 bits of the hash */
	SHARD_SEC_DIR_TABLE,    /* uint32_t[dir_buckets]; the root is not in it */
	SHARD_SEC_DIR_TAGS,     /* uint8_t[dir_buckets] */
	SHARD_SEC_SAMPLE_FILE,  /* uint32_t[n_samples]: the sample's first file; absent (0 bytes) if GROUPED, or if
	                          sample i is file i + (n_files - n_samples) for all i */
	SHARD_SEC_SAMPLE_FIRST, /* uint32_t[n_samples + 1]: range in MEMBERS; only if GROUPED */
	SHARD_SEC_MEMBERS,      /* uint32_t[]: file ids of each sample, ascending; only if GROUPED */
	SHARD_SEC_SLOTS,        /* uint32_t[n_samples]: slot -> sample; absent if slot i is sample i for all i */
	SHARD_SEC_BIG,          /* struct shard_big_rec[], ascending file: files over SHARD_BLOCK bytes */
	SHARD_SEC_BLOCK_SUMS,   /* uint64_t[]: XXH3-64 of each SHARD_BLOCK bytes of the files in BIG */
	SHARD_SEC_L0,           /* uint64_t[]: XXH3-64 of each 64 KiB of the file from byte 4096 to the start of L0 */
	SHARD_SEC_L1,           /* uint64_t[]: XXH3-64 of each 64 KiB from the start of L0 to the start of L1 */
	SHARD_SEC_COUNT
};

/* A file.  48 bytes. */
struct shard_file_rec {
	uint64_t offset_mode; /* bits 0-47: byte offset of the content in its shard; 48-59: permission bits
	                         (07777, set-id bits are never stored); 60: common; 61-63 zero */
	uint64_t length_name; /* bits 0-47: length in bytes; 48-55: name length, 1..255;
	                         56-63: bits 32-39 of the name's offset */
	uint64_t xxh3;        /* XXH3-64 of the whole content, seed 0 */
	uint64_t mtime_shard; /* bits 0-39: modification time in s since 1970, two's complement; 40-63: shard */
	uint32_t name_lo;     /* bits 0-31 of the name's offset in NAMES */
	uint32_t dir;         /* directory id */
	uint32_t sample;      /* sample id, or SHARD_NONE for a common file */
	uint32_t slot;        /* the sample's slot, or SHARD_NONE */
};
_Static_assert(sizeof(struct shard_file_rec) == 48, "file record");

/* A directory.  48 bytes. */
struct shard_dir_rec {
	uint32_t parent;     /* directory id < own id; SHARD_NONE for the root */
	uint32_t end_dir;    /* the subtree is directories [id, end_dir) */
	uint32_t first_file; /* its own files are [first_file, first_file + n_files) */
	uint32_t n_files;
	uint32_t end_file; /* its subtree's files are [first_file, end_file) */
	uint32_t name_lo;  /* as in a file record; the root's name is empty */
	uint8_t name_hi;
	uint8_t name_len;
	uint16_t mode;   /* permission bits */
	uint32_t n_dirs; /* direct subdirectories (st_nlink = 2 + n_dirs) */
	int64_t mtime_s;
	uint64_t reserved; /* zero */
};
_Static_assert(sizeof(struct shard_dir_rec) == 48, "directory record");

enum shard_container { SHARD_TAR = 0, SHARD_BARE = 1 };

/* A shard.  64 bytes. */
struct shard_shard_rec {
	uint64_t size_bytes;
	int64_t mtime_ns;     /* of an adopted shard, to detect that it was replaced; 0 = do not compare */
	uint64_t name_off;    /* in NAMES: path relative to the dataset directory, or absolute */
	uint32_t name_len;    /* 1..SHARD_PATH_MAX */
	uint32_t n_files;     /* stored in it */
	uint8_t container;    /* enum shard_container */
	uint8_t reserved[31]; /* zero */
};
_Static_assert(sizeof(struct shard_shard_rec) == 64, "shard record");

/* A file over SHARD_BLOCK bytes.  16 bytes. */
struct shard_big_rec {
	uint32_t file;      /* file id */
	uint32_t reserved;  /* zero */
	uint64_t first_sum; /* index in BLOCK_SUMS; the file has ceil(length / SHARD_BLOCK) of them */
};
_Static_assert(sizeof(struct shard_big_rec) == 16, "big record");

/* The place of a section. */
struct shard_section_rec {
	uint64_t offset;       /* bytes; multiple of SHARD_PAGE */
	uint64_t length_bytes; /* exact, without padding */
};

/* Page 0. */
struct shard_header {
	char magic[8];
	uint32_t version;
	uint32_t header_bytes; /* SHARD_PAGE */
	uint64_t compat;
	uint64_t incompat;
	uint64_t file_bytes;    /* size of the index file */
	uint64_t content_bytes; /* sum of all file lengths */
	uint32_t n_files;
	uint32_t n_samples;
	uint32_t n_dirs; /* at least 1: the root */
	uint32_t n_shards;
	uint64_t file_buckets; /* > n_files; written as n_files + n_files / 4 + 1 */
	uint64_t dir_buckets;  /* > n_dirs; written as n_dirs + n_dirs / 4 + 1 */
	uint64_t pack_seed;    /* seed of the shuffle of slots; 0 if not shuffled */
	uint8_t identity[16];  /* XXH3-128, canonical (big-endian): names the dataset, keys the order; see FORMAT.md */
	uint64_t l1_sum;       /* XXH3-64 of L1 */
	struct shard_section_rec sections[SHARD_SEC_COUNT];
	uint8_t reserved[3720]; /* zero */
	uint64_t header_sum;    /* XXH3-64 of the 4088 bytes before; at this place in every version */
};

#define SHARD_AT(type, field, at) _Static_assert(offsetof(struct type, field) == (at), #type "." #field)
_Static_assert(sizeof(struct shard_header) == SHARD_PAGE, "the header is a page");
SHARD_AT(shard_header, version, 8);
SHARD_AT(shard_header, compat, 16);
SHARD_AT(shard_header, incompat, 24);
SHARD_AT(shard_header, file_bytes, 32);
SHARD_AT(shard_header, content_bytes, 40);
SHARD_AT(shard_header, n_files, 48);
SHARD_AT(shard_header, n_samples, 52);
SHARD_AT(shard_header, n_dirs, 56);
SHARD_AT(shard_header, n_shards, 60);
SHARD_AT(shard_header, file_buckets, 64);
SHARD_AT(shard_header, dir_buckets, 72);
SHARD_AT(shard_header, pack_seed, 80);
SHARD_AT(shard_header, identity, 88);
SHARD_AT(shard_header, l1_sum, 104);
SHARD_AT(shard_header, sections, 112);
SHARD_AT(shard_header, reserved, 368);
SHARD_AT(shard_header, header_sum, 4088);
SHARD_AT(shard_file_rec, length_name, 8);
SHARD_AT(shard_file_rec, xxh3, 16);
SHARD_AT(shard_file_rec, mtime_shard, 24);
SHARD_AT(shard_file_rec, name_lo, 32);
SHARD_AT(shard_file_rec, dir, 36);
SHARD_AT(shard_file_rec, sample, 40);
SHARD_AT(shard_file_rec, slot, 44);
SHARD_AT(shard_dir_rec, end_dir, 4);
SHARD_AT(shard_dir_rec, first_file, 8);
SHARD_AT(shard_dir_rec, n_files, 12);
SHARD_AT(shard_dir_rec, end_file, 16);
SHARD_AT(shard_dir_rec, name_lo, 20);
SHARD_AT(shard_dir_rec, name_hi, 24);
SHARD_AT(shard_dir_rec, name_len, 25);
SHARD_AT(shard_dir_rec, mode, 26);
SHARD_AT(shard_dir_rec, n_dirs, 28);
SHARD_AT(shard_dir_rec, mtime_s, 32);
SHARD_AT(shard_dir_rec, reserved, 40);
SHARD_AT(shard_shard_rec, mtime_ns, 8);
SHARD_AT(shard_shard_rec, name_off, 16);
SHARD_AT(shard_shard_rec, name_len, 24);
SHARD_AT(shard_shard_rec, n_files, 28);
SHARD_AT(shard_shard_rec, container, 32);
SHARD_AT(shard_shard_rec, reserved, 33);
SHARD_AT(shard_big_rec, first_sum, 8);
SHARD_AT(shard_section_rec, length_bytes, 8);
#undef SHARD_AT

/* The bit fields of a file record, and the 40-bit offset of a name in NAMES. */
#define SHARD_MASK48 ((UINT64_C(1) << 48) - 1)
#define SHARD_REC_COMMON (UINT64_C(1) << 60)

static inline uint64_t shard_rec_offset(const struct shard_file_rec *rec)
{
	return rec->offset_mode & SHARD_MASK48;
}

static inline uint32_t shard_rec_mode(const struct shard_file_rec *rec)
{
	return (uint32_t)(rec->offset_mode >> 48) & 0xfff;
}

static inline uint64_t shard_rec_length(const struct shard_file_rec *rec)
{
	return rec->length_name & SHARD_MASK48;
}

static inline uint32_t shard_rec_name_len(const struct shard_file_rec *rec)
{
	return (uint32_t)(rec->length_name >> 48) & 0xff;
}

static inline uint64_t shard_rec_name(const struct shard_file_rec *rec)
{
	return rec->length_name >> 56 << 32 | rec->name_lo;
}

static inline uint32_t shard_rec_shard(const struct shard_file_rec *rec)
{
	return (uint32_t)(rec->mtime_shard >> 40);
}

static inline int64_t shard_rec_mtime(const struct shard_file_rec *rec)
{
	return (int64_t)(rec->mtime_shard << 24) >> 24;
}

static inline uint64_t shard_dir_name(const struct shard_dir_rec *rec)
{
	return (uint64_t)rec->name_hi << 32 | rec->name_lo;
}

/* The hash tables map (parent directory, name) to an id: h = XXH3-64 of the name, seeded with the directory's id.  A
 * search begins at shard_hash_bucket(h, buckets) and continues with the next bucket, wrapping, until a bucket with tag
 * 0. */
static inline uint64_t shard_hash_bucket(uint64_t h, uint64_t buckets)
{
	return (uint64_t)((unsigned __int128)h * buckets >> 64);
}

static inline uint8_t shard_hash_tag(uint64_t h)
{
	return (h & 0xff) ? (uint8_t)h : 1;
}

static inline uint64_t shard_hash_buckets(uint32_t n)
{
	return (uint64_t)n + n / 4 + 1;
}

/* Returns how many units of `unit` bytes cover `bytes`. */
static inline uint64_t shard_units(uint64_t bytes, uint64_t unit)
{
	return bytes / unit + (bytes % unit != 0);
}

#endif
