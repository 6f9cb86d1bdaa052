/* SPDX-License-Identifier: Apache-2.0 */
/* A dataset's index, opened: lookups by path, by id, by slot.
 *
 * The file is mapped read-only, so all processes of a host share its pages.  Opening verifies the header and its L1
 * sums only; every other 64 KiB block is verified when first touched.  Every accessor checks bounds on what it reads
 * from the file: no content of an index can make it read outside the mapping.  A damaged block turns into
 * -EBADMSG/-EUCLEAN at the accessor that met it; the accessor fills nothing.
 *
 * The mapping follows the file: nothing that is read of it may be believed before shard_index_check has looked at the
 * file once more behind it.  After that says -ESTALE, every accessor does.
 *
 * Threads: all functions on an open index may be called from any thread at once; shard_index_open and _close are not
 * concurrent with anything on the same object.  Strings are pointers into the mapping, valid until close, NOT
 * NUL-terminated. */
#ifndef DDPFS_SHARD_INDEX_H
#define DDPFS_SHARD_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard/base/err.h"
#include "shard/format.h"

struct shard_index; /* opaque */

/* Facts of the whole dataset, copied out at open. */
struct shard_info {
	uint32_t n_files;
	uint32_t n_samples;
	uint32_t n_dirs;
	uint32_t n_shards;
	uint64_t content_bytes; /* of all files */
	uint64_t index_bytes;
	uint64_t pack_seed;
	bool shuffled; /* stored slots were shuffled at pack time */
	bool grouped;  /* some sample has several files */
	uint8_t identity[16];
};

struct shard_file {
	uint64_t offset; /* of the content in its shard, bytes */
	uint64_t length; /* bytes */
	uint64_t xxh3;
	int64_t mtime_s;
	const char *name; /* last path component */
	uint32_t name_len;
	uint32_t mode; /* permission bits */
	uint32_t shard;
	uint32_t dir;
	uint32_t sample; /* SHARD_NONE when common */
	uint32_t slot;   /* SHARD_NONE when common */
	bool common;
};

/* What is needed to read a file and to say whose turn it is. */
struct shard_place {
	uint64_t offset; /* of the content in its shard, bytes */
	uint64_t length; /* bytes */
	uint64_t xxh3;
	uint32_t shard;
	uint32_t sample; /* SHARD_NONE when common */
};

struct shard_dir {
	const char *name; /* empty for the root */
	uint32_t name_len;
	uint32_t parent;  /* SHARD_NONE for the root */
	uint32_t end_dir; /* subtree: directories [id, end_dir); the first child, if any, is id + 1 and the next
	                           sibling of a directory is its end_dir */
	uint32_t first_file;
	uint32_t n_files;  /* own files: [first_file, first_file + n_files) */
	uint32_t end_file; /* subtree's files: [first_file, end_file) */
	uint32_t n_dirs;   /* direct subdirectories */
	uint32_t mode;
	int64_t mtime_s;
};

struct shard_shard {
	const char *path; /* relative to the dataset directory, or absolute */
	uint32_t path_len;
	uint32_t n_files;
	uint64_t size_bytes;
	int64_t mtime_ns; /* 0 = do not compare */
	enum shard_container container;
};

/* What to do about a damaged index, for the end of a sentence.  The copy comes first: an index made anew takes the shards'
 * bytes as they are, for good or bad. */
#define SHARD_INDEX_ADVICE                                                                                             \
	"restore index.ddpfs from a copy, or make it anew with 'mkshard index' and the --group and --common of "       \
	"the first time; damage in the shards can then no longer be found"

/* Opens DATASET/index.ddpfs (or the index file itself).
 * Errors, each with its sentence in err: -ENOENT, -EACCES, -EPROTONOSUPPORT, -EUCLEAN, -EBADMSG, -ENOMEM. */
int shard_index_open(const char *dataset, struct base_err *err, struct shard_index **ret_index);
void shard_index_close(struct shard_index *index); /* NULL is fine */

/* Whether what was read of the index up to now is what it was opened with.  To be called behind the use of records
 * and names, before anything that was made of them leaves the process (an answer, bytes that were verified by an
 * index's sum, a hand-out): once for many of them will do.  A system call, 0.4 us; verifies again what was verified
 * when the file's ctime is new.  Any thread that has the process's descriptors (fs/detached_thread.h has one that has not).
 * -ESTALE: somebody wrote into the file, and from then on all accessors say so (shard_index_explain has the
 * sentence); or another code of statx(2), which says nothing about the next call. */
int shard_index_check(const struct shard_index *index);

/* Whether some thread is in shard_index_check now: on a network file system that may wait for the store.  Any thread. */
bool shard_index_is_looked_at(const struct shard_index *index);

/* shard_index_check with a sentence. */
int shard_index_check_err(const struct shard_index *index, struct base_err *err);

/* 0, or -ESTALE and a sentence: the file, what changed, the next step. No system call. Any thread. */
int shard_index_explain(const struct shard_index *index, struct base_err *err);

/* For a handler of SIGBUS: takes a fault at an address.  True: the address was a page of an open index that somebody
 * had cut; the index is stale from now on, zeros stand in place of its pages, and the handler is to return.  False:
 * another's, or a disk that fails.  Async-signal-safe.  A process without such a handler is ended by the fault. */
bool shard_index_fault(const void *address);

const struct shard_info *shard_index_info(const struct shard_index *index);
const char *shard_index_dataset(const struct shard_index *index); /* absolute path of the dataset directory */

/* By id.  -EINVAL when out of range, -EBADMSG, -EUCLEAN. */
int shard_index_file(const struct shard_index *index, uint32_t file, struct shard_file *ret_file);
/* The same, without the name: its bytes are not touched, which is what a look at a file costs in a large dataset. */
int shard_index_place(const struct shard_index *index, uint32_t file, struct shard_place *ret_place);
int shard_index_dir(const struct shard_index *index, uint32_t dir, struct shard_dir *ret_dir);
int shard_index_shard(const struct shard_index *index, uint32_t shard, struct shard_shard *ret_shard);

/* Hints for who goes through many files in an unrelated order: the processor starts to fetch a file's record, and (a
 * moment later, when that has arrived) its name.  No effect but speed; any id is fine. */
void shard_index_hint_record(const struct shard_index *index, uint32_t file);
void shard_index_hint_name(const struct shard_index *index, uint32_t file);

/* By name, O(1) expected.  -ENOENT when there is none. */
int shard_index_find_file(
        const struct shard_index *index, uint32_t dir, const char *name, size_t len, uint32_t *ret_file);
int shard_index_find_dir(
        const struct shard_index *index, uint32_t parent, const char *name, size_t len, uint32_t *ret_dir);

enum shard_kind { SHARD_KIND_FILE, SHARD_KIND_DIR };
/* By path relative to the dataset's root ("" or "." is the root; repeated and trailing slashes are ignored; ".." is
 * -ENOENT).  -ENOTDIR when a file stands in the middle. */
int shard_index_find_path(
        const struct shard_index *index, const char *path, enum shard_kind *ret_kind, uint32_t *ret_id);

/* Writes the path of a file or directory, relative to the root, NUL-terminated.  buf_size of SHARD_PATH_MAX + 1 always
 * suffices.  Returns its length, -ERANGE, -EBADMSG, -EUCLEAN. */
int shard_index_file_path(const struct shard_index *index, uint32_t file, char *buf, size_t buf_size);
int shard_index_dir_path(const struct shard_index *index, uint32_t dir, char *buf, size_t buf_size);

/* Samples.  The files of a sample are listed together, ascending; *ret_n is at most SHARD_SAMPLE_FILES_MAX.
 * When the sample has one file only `files[0]` is written; size of `files` in entries is max. -ERANGE when too small. */
int shard_index_sample_first(const struct shard_index *index, uint32_t sample, uint32_t *ret_file);
int shard_index_sample_files(
        const struct shard_index *index, uint32_t sample, uint32_t *files, uint32_t max, uint32_t *ret_n);
int shard_index_slot_sample(const struct shard_index *index, uint32_t slot, uint32_t *ret_sample);
int shard_index_sample_slot(const struct shard_index *index, uint32_t sample, uint32_t *ret_slot);

/* Samples whose first file lies in the subtree of `dir`: always one range of sample ids [first, end). */
int shard_index_dir_samples(const struct shard_index *index, uint32_t dir, uint32_t *ret_first, uint32_t *ret_end);

/* Number of SHARD_BLOCK-sized blocks of a file of `length` bytes: 1 up to SHARD_BLOCK (0 for an empty file). */
uint32_t shard_blocks(uint64_t length);

/* Where block `block` of a file lies in its shard, how long it is and its XXH3-64 (the file's own for a one-block
 * file).  -EINVAL when block is out of range. */
int shard_index_block(const struct shard_index *index, uint32_t file_id, uint32_t block, uint64_t *ret_offset,
        uint32_t *ret_length, uint64_t *ret_xxh3);

/* Verifies every byte and every invariant of FORMAT.md (O(size)).  err names the first violation. */
int shard_index_verify(const struct shard_index *index, struct base_err *err);

/* Drops the mapped pages from this process (they stay in the page cache): bounds resident memory of scans. */
void shard_index_release_pages(const struct shard_index *index);

#endif
