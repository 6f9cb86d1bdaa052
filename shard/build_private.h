/* SPDX-License-Identifier: Apache-2.0 */
/* Private to build*.c: what a builder holds while it collects (build.c), the plan that numbering makes
 * (build_number.c), and the writer of that plan (build_write.c).  bare.c uses struct build_array as well.
 * Threads: as shard/build.h. */
#ifndef DDPFS_SHARD_BUILD_PRIVATE_H
#define DDPFS_SHARD_BUILD_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard/base/err.h"
#include "shard/build.h"
#include "shard/format.h"

/* A growing array: one allocation that grows by half.  (realloc moves large ones by mremap, without copying.) */
struct build_array {
	uint8_t *data;
	size_t used; /* bytes */
	size_t size; /* bytes */
};

/* Makes room for `bytes` more at the end.  Returns their place, or NULL: out of memory, and the array is unchanged. */
void *build_array_add(struct build_array *array, size_t bytes);
void build_array_free(struct build_array *array);

/* A directory while the builder collects. */
struct build_dir {
	uint64_t name;   /* offset in `names` */
	uint32_t parent; /* number in order of appearance; SHARD_NONE for the root */
	uint32_t id;     /* final id, set by numbering */
	int64_t mtime_s;
	uint16_t mode;    /* permission bits */
	uint8_t name_len; /* bytes */
	uint8_t depth;    /* directories above it; the root has 0 */
	bool declared;    /* mode and mtime were given */
};

/* A hash table with open addressing: hash -> number + 1.  Its users compare the keys. */
struct build_table {
	uint32_t *cells;  /* number + 1; 0 = empty; owned */
	uint64_t n_cells; /* a power of two */
	uint64_t used;    /* cells in use, at most half of them */
};

/* A group of files that form one sample. */
struct build_group {
	uint64_t hash; /* XXH3-64 of the key */
	uint64_t key;  /* offset in group_keys, NUL-terminated there */
};

/* A builder.  Until the index is written, the fields of struct shard_file_rec hold other values: `dir` is the number of
 * a build_dir, until numbering makes it an id.  `sample` is the number of a group, or SHARD_NONE, until numbering makes
 * it a sample.  `slot` is the number in `bigs`, or SHARD_NONE for a file up to SHARD_BLOCK.  The name is in `names`. */
struct shard_builder {
	struct build_array files;      /* struct shard_file_rec */
	struct build_array dirs;       /* struct build_dir; number 0 is the root */
	struct build_array shards;     /* struct shard_shard_rec; name_off in `names` */
	struct build_array names;      /* bytes */
	struct build_array bigs;       /* uint64_t: for each file over SHARD_BLOCK its first sum in `sums` */
	struct build_array sums;       /* uint64_t: block sums */
	struct build_array groups;     /* struct build_group */
	struct build_array group_keys; /* bytes */
	struct build_table dir_table;
	struct build_table group_table;
	uint32_t n_files, n_dirs, n_shards, n_groups;
	uint64_t content_bytes; /* of all files */
	bool finished;          /* shard_builder_finish was called */

	/* The directory of the last file: most files are added directory by directory, so this saves the look-up. */
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

/* What numbering decides.  The plan owns every array. */
struct build_plan {
	struct shard_dir_rec *dirs; /* by final id; name_* in builder->names */
	uint32_t *perm;             /* file id -> number in order of appearance; NULL: the same */
	uint32_t *sample_file;      /* sample -> its first file's id; NULL if not needed (SHARD_SEC_SAMPLE_FILE) */
	uint32_t *sample_first;     /* grouped: ranges of members */
	uint32_t *members;          /* grouped: file ids */
	uint32_t *slots;            /* slot -> sample; NULL: slot i is sample i */
	uint32_t *sample_slot;      /* sample -> slot; NULL as well */
	uint32_t n_samples;
	uint32_t n_members;
	bool grouped;
};

static inline uint32_t build_file_number(const struct build_plan *plan, uint32_t id)
{
	return plan->perm ? plan->perm[id] : id;
}

/* Gives ids to directories, files, samples and slots.  Errors as shard_builder_finish.  *ret_plan is zero before the
 * call; build_plan_done frees it, also after a failure. */
int build_number(struct shard_builder *b, struct base_err *err, struct build_plan *ret_plan);
void build_plan_done(struct build_plan *plan);

/* Writes the index; arguments and errors as shard_builder_finish. */
int build_write(struct shard_builder *b, const struct build_plan *plan, const char *path, bool shuffled,
        uint64_t pack_seed, struct base_err *err);

/* Writes the path of a file, quoted for a message, into buf of BUILD_QUOTE bytes.  Returns buf. */
enum { BUILD_QUOTE = 512 };
const char *build_file_quote(const struct shard_builder *b, const struct shard_file_rec *rec, char *buf);

#endif
