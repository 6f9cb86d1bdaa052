/* SPDX-License-Identifier: Apache-2.0 */
/* Private to build*.c: what a builder holds while it collects (build.c), what numbering makes of it (build_number.c),
 * and what is written (build_write.c). */
#ifndef DDPFS_SHARD_BUILD_PRIVATE_H
#define DDPFS_SHARD_BUILD_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard/base/err.h"
#include "shard/build.h"
#include "shard/format.h"

/* A growing array: one allocation, grown by half (mremap moves the big ones without copying). */
struct build_array {
	uint8_t *data;
	size_t used; /* bytes */
	size_t size; /* bytes */
};

/* Room for `bytes` more at the end; returns their place, or NULL (out of memory; the array is as before). */
void *build_array_add(struct build_array *array, size_t bytes);
void build_array_free(struct build_array *array);

/* A directory while collecting. */
struct build_dir {
	uint64_t name;   /* offset in `names` */
	uint32_t parent; /* number in order of appearance; SHARD_NONE for the root */
	uint32_t id;     /* final id, set by numbering */
	int64_t mtime_s;
	uint16_t mode;
	uint8_t name_len;
	uint8_t depth;
	bool declared; /* mode and mtime were given */
};

/* Open addressing over (hash) -> number + 1; the owner compares keys. */
struct build_table {
	uint32_t *slots; /* 0 = empty */
	uint64_t n_slots;
	uint64_t used;
};

struct build_group {
	uint64_t hash;
	uint64_t key; /* offset in group_keys, NUL-terminated there */
};

/* Uses of struct shard_file_rec's fields before the file is written: `dir` is the number of a build_dir until numbering
 * makes it an id; `sample` is a group's number, SHARD_NONE without one, until numbering makes it a sample; `slot` is
 * the number in `bigs`, SHARD_NONE when the file has none; the name lies in `names`. */
struct shard_builder {
	struct build_array files;      /* struct shard_file_rec */
	struct build_array dirs;       /* struct build_dir; number 0 is the root */
	struct build_array shards;     /* struct shard_shard_rec; name_off in `names` */
	struct build_array names;      /* bytes */
	struct build_array bigs;       /* uint64_t: first sum in `sums` */
	struct build_array sums;       /* uint64_t */
	struct build_array groups;     /* struct build_group */
	struct build_array group_keys; /* bytes */
	struct build_table dir_table;
	struct build_table group_table;
	uint32_t n_files, n_dirs, n_shards, n_groups;
	uint64_t content_bytes;
	bool finished;

	/* The directory of the file added last: most files come directory by directory. */
	char last_dir[SHARD_PATH_MAX + 1];
	size_t last_dir_len;
	uint32_t last_dir_number;
};

static inline struct shard_file_rec *build_files(const struct shard_builder *b)
{
	return (struct shard_file_rec *)(void *)b->files.data;
}

static inline struct build_dir *build_dirs(const struct shard_builder *b)
{
	return (struct build_dir *)(void *)b->dirs.data;
}

static inline struct shard_shard_rec *build_shards(const struct shard_builder *b)
{
	return (struct shard_shard_rec *)(void *)b->shards.data;
}

/* What numbering decides.  Every array is owned. */
struct build_plan {
	struct shard_dir_rec *dirs; /* by final id; name_* in builder->names */
	uint32_t *perm;             /* file id -> number in order of appearance; NULL: the same */
	uint32_t *sample_file;      /* sample -> its first file's id; NULL unless needed (see format.h) */
	uint32_t *sample_first;     /* grouped: ranges of members */
	uint32_t *members;          /* grouped: file ids */
	uint32_t *slots;            /* slot -> sample; NULL: the identity */
	uint32_t *sample_slot;      /* its inverse */
	uint32_t n_samples;
	uint32_t n_members;
	bool grouped;
};

static inline uint32_t build_file_number(const struct build_plan *plan, uint32_t id)
{
	return plan->perm ? plan->perm[id] : id;
}

int build_number(struct shard_builder *b, struct base_err *err, struct build_plan *ret_plan);
void build_plan_done(struct build_plan *plan);

int build_write(struct shard_builder *b, const struct build_plan *plan, const char *path, bool shuffled,
        uint64_t pack_seed, struct base_err *err);

/* A file's or directory's path for a message, quoted.  buf of BUILD_QUOTE bytes. */
enum { BUILD_QUOTE = 512 };
const char *build_file_quote(const struct shard_builder *b, const struct shard_file_rec *rec, char *buf);

#endif
