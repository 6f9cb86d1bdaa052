/* SPDX-License-Identifier: Apache-2.0 */
/* Private to index*.c: the mapping, and how to read it safely.
 *
 * Rule: copy a record (index_load), check the copy, use the copy.  So bytes that change in the mapping cannot pass a
 * check with one value and be used with another.  shard_index_check comes after the use of records and before their
 * result leaves the process. */
#ifndef DDPFS_SHARD_INDEX_PRIVATE_H
#define DDPFS_SHARD_INDEX_PRIVATE_H

#include <stdatomic.h>

#include "shard/index.h"
#include "shard/index_change.h"

struct shard_index {
	struct shard_info info;
	struct shard_header header; /* a verified copy */
	const uint8_t *map;         /* the bytes of the index */
	uint8_t *mapping;           /* the same, if shard_index_open mapped them; else NULL */
	size_t mapping_bytes;
	char *path;                 /* of the index file, quoted for messages; owned */
	char *dataset;              /* absolute path of its directory, or its name in a store; owned */
	char *separate;             /* absolute path of an index that was named apart; else NULL; owned */
	struct remote_store *store; /* of a dataset in a store; else NULL; owned */
	uint64_t n_big;             /* entries of BIG */
	uint64_t n_block_sums;      /* entries of BLOCK_SUMS */
	uint64_t n_members;         /* entries of MEMBERS */
	uint64_t *l1;               /* a verified copy; owned */
	/* A verified copy of each part of L0 (64 KiB), made before its first use, else NULL; owned.  A piece is never
	 * compared with sums in the file, because these may change with it. */
	_Atomic(uint64_t *) *l0;
	uint64_t n_l0; /* parts */
	/* One bit for each verified 64 KiB piece, counted from byte 4096.  Set after the check, never cleared.  Two
	 * threads may check the same piece at the same time; that only costs time. */
	_Atomic uint64_t *block_ok;
	struct index_change *change; /* NULL: the bytes belong to the caller of index_attach */
};

/* Makes an index from bytes: verifies the header and L1.  The bytes stay the caller's and outlive the index.  `index`
 * is zero except for `path` and what belongs to a mapping.  shard_index_close frees it, also after a failure.
 * shard_index_open calls it with its mapping; tests and fuzzers call it with their bytes.
 * Returns 0; -EUCLEAN, -EBADMSG, -EPROTONOSUPPORT, -ENOMEM as shard_index_open. */
int index_attach(struct shard_index *index, const uint8_t *bytes, uint64_t len, struct base_err *err);

/* Opens an index file that was named apart from its dataset, and sets path, separate, dataset and store of `index`.
 * Returns 0 and a descriptor to close, or an error as shard_index_open_with. */
int index_locate_separate(
        const char *dataset, const char *index_file, struct base_err *err, struct shard_index *index, int *ret_fd);

static inline const struct shard_section_rec *index_section(const struct shard_index *index, enum shard_section s)
{
	return &index->header.sections[s];
}

/* Verifies the pieces that cover [offset, offset + length) of a section, if that was not done before.
 * Returns 0; -EUCLEAN: the range is not inside the section; -EBADMSG; -ESTALE; -ENOMEM.  Any thread. */
int index_touch(const struct shard_index *index, enum shard_section section, uint64_t offset, uint64_t length);

/* Copies element i of a section whose elements have `size` bytes.  Errors as index_touch.  Any thread. */
int index_load(const struct shard_index *index, enum shard_section section, uint64_t i, size_t size, void *ret);

/* Returns a name in NAMES, checked: inside the section, and a single path component (no '/', no NUL, not "." or "..").
 * Errors as index_touch; -EUCLEAN: not such a name.  Any thread. */
int index_name(const struct shard_index *index, uint64_t offset, uint32_t length, const char **ret_name);

/* Copies the record of a directory.  All of it is checked, except for the bytes of its name.  Errors as index_touch. */
int index_dir_rec(const struct shard_index *index, uint32_t dir, struct shard_dir_rec *ret_rec);

/* Verify piece number `block` (64 KiB each, from byte 4096 on), or part number `part` of L0, also if it was done
 * before.  Return 0; -EBADMSG: its sum differs; -ENOMEM.  Any thread. */
int index_check_block(const struct shard_index *index, uint64_t block);
int index_check_l0(const struct shard_index *index, uint64_t part);

/* Verifies every piece and every part of L0.  Returns 0; -EBADMSG, -ENOMEM with a sentence.  Any thread. */
int index_verify_sums(const struct shard_index *index, struct base_err *err);

/* Verifies every marked piece again.  Returns 0; -EBADMSG: a sum differs.  Called under the lock of `change`. */
int index_check_marked(const struct shard_index *index);

#endif
