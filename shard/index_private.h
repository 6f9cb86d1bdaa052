/* SPDX-License-Identifier: Apache-2.0 */
/* Private to index*.c: the mapping and how to read it safely.
 *
 * Rule: nothing is used where it lies.  A record is copied out (index_load), then checked, then used, so that bytes
 * which change under the mapping cannot pass a check with one value and be used with another.  What is behind the use
 * of records, and before something leaves that was made of them, is shard_index_check. */
#ifndef DDPFS_SHARD_INDEX_PRIVATE_H
#define DDPFS_SHARD_INDEX_PRIVATE_H

#include <stdatomic.h>

#include "shard/index.h"
#include "shard/index_change.h"

struct shard_index {
	struct shard_info info;
	struct shard_header header; /* a verified copy */
	const uint8_t *map;
	uint8_t *mapping; /* what `map` points to when it is a mapping of ours, else NULL */
	size_t mapping_bytes;
	char *path;    /* of the index file, for messages */
	char *dataset; /* absolute */
	uint64_t n_big;
	uint64_t n_block_sums;
	uint64_t n_members;
	uint64_t *l1; /* a verified copy */
	/* A verified copy of each part of L0, made when it is first needed: a block is never held against sums that
	 * can change with it. */
	_Atomic(uint64_t *) *l0;
	uint64_t n_l0;
	/* One bit for each verified block.  Set after the check, never cleared; two threads may check the same block at
	 * once, which costs time only. */
	_Atomic uint64_t *block_ok;
	struct index_change *change; /* NULL: the bytes are the caller's */
};

/* Takes bytes for an index and verifies header and L1; they stay the caller's and outlive the index.  `index` is zeroed
 * but for `path`; on failure shard_index_close cleans up as well.  What shard_index_open does with its mapping; tests and
 * fuzzers come in here. */
int index_attach(struct shard_index *index, const uint8_t *bytes, uint64_t len, struct base_err *err);

static inline const struct shard_section_rec *index_section(const struct shard_index *index, enum shard_section s)
{
	return &index->header.sections[s];
}

/* Verifies what covers [offset, offset + length) of a section.  -EUCLEAN when it is not inside, -EBADMSG. */
int index_touch(const struct shard_index *index, enum shard_section section, uint64_t offset, uint64_t length);

/* Copies element number i of a section of `size`-byte elements. */
int index_load(const struct shard_index *index, enum shard_section section, uint64_t i, size_t size, void *ret);

/* A name in NAMES, checked: inside, and a single path component (no '/', no NUL, not "." or ".."). */
int index_name(const struct shard_index *index, uint64_t offset, uint32_t length, const char **ret_name);

/* The record of a directory, fully checked but for its name's bytes. */
int index_dir_rec(const struct shard_index *index, uint32_t dir, struct shard_dir_rec *ret_rec);

/* Verifies block number `block` (64 KiB from byte 4096) or part number `part` of L0, whether or not done before.
 * -EBADMSG, -ENOMEM. */
int index_check_block(const struct shard_index *index, uint64_t block);
int index_check_l0(const struct shard_index *index, uint64_t part);

/* Verifies again what was verified: every block that is marked.  -EBADMSG. */
int index_check_marked(const struct shard_index *index);

#endif
