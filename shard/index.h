/* SPDX-License-Identifier: Apache-2.0 */
/* The index of a dataset, opened: look-ups by path, by id and by storage slot.
 *
 * The file is mapped read-only, so all processes of a host share its pages.  Opening verifies only the header and the
 * L1 sums.  Every other 64 KiB piece is verified before its first use.  Every accessor checks bounds on what it reads,
 * so no content of an index can make it read outside the mapping.
 *
 * Errors that every accessor may return: -EBADMSG: the checksum of a piece differs; -EUCLEAN: an impossible value;
 * -ESTALE: the file was changed; -ENOMEM: no memory for a part of the sums.  Do not use the outputs
 * after a failure.
 *
 * The mapping shows what is in the file now.  So a caller first reads records, then calls shard_index_check, and only
 * then uses the result.  Once that returns -ESTALE, every accessor does.
 *
 * Threads: any thread may call any function on an open index at any time, except shard_index_close, which must be the
 * last call.  Strings point into the mapping, are valid until close, and are NOT NUL-terminated. */
#ifndef DDPFS_SHARD_INDEX_H
#define DDPFS_SHARD_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard/base/err.h"
#include "shard/format.h"

struct shard_index;  /* opaque */
struct remote_store; /* shard/remote/store.h */

/* Facts about the whole dataset, copied at open. */
struct shard_info {
	uint32_t version; /* of the format */
	uint32_t n_files;
	uint32_t n_samples;
	uint32_t n_dirs; /* at least 1: the root */
	uint32_t n_shards;
	uint64_t content_bytes; /* of all files */
	uint64_t index_bytes;   /* size of the index file */
	uint64_t pack_seed;     /* 0 if not shuffled */
	bool shuffled;          /* storage slots were shuffled at pack time */
	bool grouped;           /* some sample has several files */
	uint8_t identity[16];   /* of the dataset: FORMAT.md, section 4 */
};

struct shard_file {
	uint64_t offset;   /* of the content in its shard, bytes */
	uint64_t length;   /* bytes */
	uint64_t xxh3;     /* XXH3-64 of the content */
	int64_t mtime_s;   /* since 1970 */
	const char *name;  /* last path component */
	uint32_t name_len; /* bytes, 1 .. SHARD_NAME_MAX */
	uint32_t mode;     /* permission bits */
	uint32_t shard;    /* shard number */
	uint32_t dir;      /* directory id */
	uint32_t sample;   /* sample id; SHARD_NONE for a common file */
	uint32_t slot;     /* storage slot of the sample; SHARD_NONE for a common file */
	bool common;       /* every rank sees it; it is never dealt */
};

/* A file without its name: enough to read it and to find its turn. */
struct shard_place {
	uint64_t offset; /* of the content in its shard, bytes */
	uint64_t length; /* bytes */
	uint64_t xxh3;   /* XXH3-64 of the content */
	uint32_t shard;  /* shard number */
	uint32_t sample; /* sample id; SHARD_NONE for a common file */
};

struct shard_dir {
	const char *name; /* empty for the root */
	uint32_t name_len;
	uint32_t parent;  /* SHARD_NONE for the root */
	uint32_t end_dir; /* the subtree is directories [id, end_dir); first child: id + 1; next sibling: end_dir */
	uint32_t first_file;
	uint32_t n_files;  /* its own files are [first_file, first_file + n_files) */
	uint32_t end_file; /* the files of the subtree are [first_file, end_file) */
	uint32_t n_dirs;   /* direct subdirectories */
	uint32_t mode;     /* permission bits */
	int64_t mtime_s;   /* since 1970 */
};

struct shard_shard {
	const char *path;  /* relative to the directory of the dataset, or absolute */
	uint32_t path_len; /* bytes, 1 .. SHARD_PATH_MAX */
	uint32_t n_files;  /* stored in it */
	uint64_t size_bytes;
	int64_t mtime_ns; /* of an adopted shard; 0 = do not compare */
	enum shard_container container;
};

/* The end of a message about a damaged index.  It names the copy first, because a new index gets its checksums from the
 * bytes that are in the shards now, damaged or not. */
#define SHARD_INDEX_ADVICE                                                                                             \
	"restore index.ddpfs from a copy, or make it anew with 'mkshard index' and the --group and --common of "       \
	"the first time; damage in the shards can then no longer be found"

/* Returns what to do about a damaged piece of an open index: SHARD_INDEX_ADVICE; or, if the file is this host's copy of
 * an index in a store, that it can be removed.  A static string.  Any thread. */
const char *shard_index_advice(const struct shard_index *index);

/* Opens DATASET/index.ddpfs.  `dataset` is the directory, or the index file itself.  Or it is the name of a dataset in
 * a store (shard/remote/location.h); then a copy of the index is fetched to this host if there is none, which needs
 * connections and writes a file.
 * Returns 0 or an error with a sentence in err: -ENOENT: no index there, or an unfinished packing; -EACCES: no
 * permission; -EPROTONOSUPPORT: unknown format version or feature; -EUCLEAN: not an index, or truncated; -EBADMSG:
 * damaged header or L1; -ENOMEM; errors of stat(2), open(2) and mmap(2), of remote_store_open and remote_index_open. */
int shard_index_open(const char *dataset, struct base_err *err, struct shard_index **ret_index);

/* Opens index_file, a file of this host, as the index of the shards in `dataset`: a directory, or the name of a place
 * in a store.  Paths of shards are relative to `dataset`.  It sends no request to the store: shard_index_check_shards
 * does.  index_file NULL: shard_index_open.
 * Returns 0 or an error with a sentence in err: those of shard_index_open; -EINVAL: index_file is a URL or "";
 * -ENOTDIR: `dataset` is a file. */
int shard_index_open_with(
        const char *dataset, const char *index_file, struct base_err *err, struct shard_index **ret_index);

/* Does the same for a caller who knows the dataset's identity, and refuses another one.  If its store has no address,
 * or takes no connection for a second, and this host has a copy of the index, it opens the copy.  An identity is a hash
 * over names, sizes and checksums, so the copy is right if that is. */
int shard_index_open_again(
        const char *dataset, const char *index_file, struct base_err *err, struct shard_index **ret_index);
/* Checks that an index of shard_index_open_with belongs to the shards.  It looks at some shards, up to the first one
 * that is there and has the size of the index (and its mtime, if the index has one).  Asks the store at least once.
 * Returns 0, also if the index lies with its shards; -ESTALE with a sentence: no shard that was looked at is right;
 * -ENOMEM; errors of an accessor, and of remote_object_size, with a sentence.  Any thread. */
int shard_index_check_shards(const struct shard_index *index, struct base_err *err);
/* Closes an index.  NULL is allowed. */
void shard_index_close(struct shard_index *index);

/* Checks that the file has not changed since it was opened, so that what was read of it up to now is right.
 * Call it after reading records and names, before their result leaves the process: an answer, bytes that a sum of the
 * index verified, a batch.  One call is enough for many records.  Cost: one system call, 0.4 us; if the ctime is new,
 * it verifies all verified pieces again.
 * Returns 0; -ESTALE: somebody wrote into the file, and every accessor returns -ESTALE from now on (shard_index_explain
 * has the sentence); another error of statx(2), which says nothing about the next call.
 * Threads: any that has the descriptors of the process; the one of fs/detached_thread.h does not. */
int shard_index_check(const struct shard_index *index);

/* Says whether some thread is in shard_index_check now.  On a network file system that may wait for its server.
 * Any thread. */
bool shard_index_is_looked_at(const struct shard_index *index);

/* Does what shard_index_check does, with a sentence in err. */
int shard_index_check_err(const struct shard_index *index, struct base_err *err);

/* Returns 0, or -ESTALE with a sentence if a change was found: the file, what changed, the next step.  Makes no system
 * call.  Any thread. */
int shard_index_explain(const struct shard_index *index, struct base_err *err);

/* Handles a SIGBUS at an address, for a signal handler.
 * Returns true if the address is in an open index that somebody truncated: the index is stale from now on, zeros
 * replace its pages, and the handler must return.  Returns false if the address is not in an index, or if the file
 * is unchanged, so the disk fails.  Async-signal-safe.  Without such a handler, SIGBUS ends the process. */
bool shard_index_fault(const void *address);

const struct shard_info *shard_index_info(const struct shard_index *index);
/* Returns the absolute path of the directory of the dataset, or its name in a store, without '/' at its end. */
const char *shard_index_dataset(const struct shard_index *index);
/* Returns the store in which the dataset lies, or NULL: it is on a disk.  Valid until close. */
struct remote_store *shard_index_store(const struct shard_index *index);
/* Returns the absolute path of the index file if it was named apart from the dataset, or NULL.  Valid until close. */
const char *shard_index_separate(const struct shard_index *index);
/* Returns the path of the index file, or of its copy on this host, quoted for messages. */
const char *shard_index_path(const struct shard_index *index);

/* Four functions that read a record by its id.  Each returns 0; -EINVAL: no such id; or an accessor's error. */
int shard_index_file(const struct shard_index *index, uint32_t file, struct shard_file *ret_file);
/* Does not read the name, whose bytes are most of the cost in a large dataset. */
int shard_index_place(const struct shard_index *index, uint32_t file, struct shard_place *ret_place);
int shard_index_dir(const struct shard_index *index, uint32_t dir, struct shard_dir *ret_dir);
int shard_index_shard(const struct shard_index *index, uint32_t shard, struct shard_shard *ret_shard);

/* Make the processor load the record of a file into its caches, or the name.  The place of the name is in the record,
 * so hint the record some time earlier.  For callers that visit many files in an unrelated order.  Any id is
 * allowed. */
void shard_index_hint_record(const struct shard_index *index, uint32_t file);
void shard_index_hint_name(const struct shard_index *index, uint32_t file);

/* Find a file or a directory by its directory and its name of len bytes, in O(1) expected.
 * Return 0; -ENOENT: no such name; -EINVAL: no such directory; or an accessor's error. */
int shard_index_find_file(
        const struct shard_index *index, uint32_t dir, const char *name, size_t len, uint32_t *ret_file);
int shard_index_find_dir(
        const struct shard_index *index, uint32_t parent, const char *name, size_t len, uint32_t *ret_dir);

enum shard_kind { SHARD_KIND_FILE, SHARD_KIND_DIR };
/* Finds a file or directory by its path relative to the root.  "" and "." are the root.  Repeated and trailing slashes
 * are ignored.
 * Returns 0; -ENOENT: no such path, or it contains ".."; -ENOTDIR: a part before the last is a file; or an accessor's
 * error. */
int shard_index_find_path(
        const struct shard_index *index, const char *path, enum shard_kind *ret_kind, uint32_t *ret_id);

/* Write the path of a file or directory, relative to the root and NUL-terminated.  SHARD_PATH_MAX + 1 bytes always
 * suffice.
 * Return its length; -EINVAL: no such id; -ERANGE: buf is too small; or an accessor's error. */
int shard_index_file_path(const struct shard_index *index, uint32_t file, char *buf, size_t buf_size);
int shard_index_dir_path(const struct shard_index *index, uint32_t dir, char *buf, size_t buf_size);

/* Samples.  Return 0; -EINVAL: no such sample or slot; or an accessor's error.
 * shard_index_sample_first gives the first file of a sample.  shard_index_sample_files gives all its files, ascending:
 * `files` has room for max entries, *ret_n is at most SHARD_SAMPLE_FILES_MAX; -ERANGE: max is too small.
 * The last two map a storage slot to its sample, and back. */
int shard_index_sample_first(const struct shard_index *index, uint32_t sample, uint32_t *ret_file);
int shard_index_sample_files(
        const struct shard_index *index, uint32_t sample, uint32_t *files, uint32_t max, uint32_t *ret_n);
int shard_index_slot_sample(const struct shard_index *index, uint32_t slot, uint32_t *ret_sample);
int shard_index_sample_slot(const struct shard_index *index, uint32_t sample, uint32_t *ret_slot);

/* Finds the samples whose first file is in the subtree of `dir`: one range of sample ids [first, end).
 * Returns 0; -EINVAL: no such directory; or an accessor's error. */
int shard_index_dir_samples(const struct shard_index *index, uint32_t dir, uint32_t *ret_first, uint32_t *ret_end);

/* Returns how many blocks of SHARD_BLOCK bytes a file of `length` bytes has: 0 if it is empty, 1 up to SHARD_BLOCK. */
uint32_t shard_blocks(uint64_t length);

/* Finds a block of a file: its offset in the shard, its length in bytes and its XXH3-64 (that of the file if it has one
 * block only).
 * Returns 0; -EINVAL: no such file or block; or an accessor's error. */
int shard_index_block(const struct shard_index *index, uint32_t file_id, uint32_t block, uint64_t *ret_offset,
        uint32_t *ret_length, uint64_t *ret_xxh3);

/* Verifies every byte and every rule of FORMAT.md, in O(size).  Returns 0, or an error whose err names the first
 * violation. */
int shard_index_verify(const struct shard_index *index, struct base_err *err);

/* Removes the mapped pages from this process, to bound the resident memory of a scan.  They stay in the page cache. */
void shard_index_release_pages(const struct shard_index *index);

#endif
