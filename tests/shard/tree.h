/* SPDX-License-Identifier: Apache-2.0 */
/* Random datasets and a slow, obvious model of what an index must say about them. */
#ifndef DDPFS_TESTS_SHARD_TREE_H
#define DDPFS_TESTS_SHARD_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard/build.h"
#include "shard/index.h"

struct tree_file {
	char *path;
	char *group;    /* NULL: none */
	uint64_t *sums; /* NULL unless over SHARD_BLOCK */
	uint64_t offset, length, xxh3;
	int64_t mtime_s;
	uint32_t shard, mode;
	bool common;
	/* the model's answers */
	uint32_t id, sample, slot;
};

struct tree_dir {
	char *path;
	uint32_t mode;
	int64_t mtime_s;
	bool declared;
};

struct tree {
	struct tree_file *files; /* in the order in which they are added */
	uint32_t n_files;
	struct tree_dir *dirs; /* all of them, by id, the root first */
	uint32_t n_dirs;
	uint64_t shard_bytes[8];
	uint32_t n_shards;
	uint32_t n_samples;
	bool grouped;
	uint32_t *by_id; /* id -> place in files */
};

/* Knobs of a random tree. */
struct tree_options {
	uint64_t seed;
	uint32_t n_files; /* at most so many */
	bool exact;       /* just so many */
	bool groups;
	bool commons;
	bool big; /* some files over 1 MiB */
};

void tree_random(const struct tree_options *options, struct tree *ret_tree);
void tree_done(struct tree *tree);

/* A generator for tests: splitmix64. */
uint64_t tree_rand(uint64_t *state);

/* Builds the index of a tree at `path`.  order: NULL or the sequence in which files are added.  Fails the test on
 * errors. */
void tree_build(const struct tree *tree, const uint32_t *order, bool shuffled, const char *path);

/* Reads a file into memory (8-aligned); the caller frees. */
uint8_t *tree_read(const char *path, size_t *ret_len);

/* A scratch directory, removed with what is in it. */
char *tree_scratch(void);
void tree_scratch_done(char *dir);

#endif
