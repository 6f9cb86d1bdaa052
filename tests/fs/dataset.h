/* SPDX-License-Identifier: Apache-2.0 */
/* An index without shards, for tests that read no contents. */
#ifndef DDPFS_TESTS_FS_DATASET_H
#define DDPFS_TESTS_FS_DATASET_H

#include <stdbool.h>
#include <stdint.h>

#include "shard/index.h"

struct dataset_file {
	const char *path;
	bool common;
	const char *group;
	uint64_t length; /* bytes; 0: one byte */
};

/* Builds and opens the index of `files` in a temporary directory, which is gone when this returns. */
struct shard_index *dataset_open(const struct dataset_file *files, uint32_t n);
/* n files d0/f0, d1/f1, ... in n_dirs directories. */
struct shard_index *dataset_open_n(uint32_t n, uint32_t n_dirs);
/* The same; each has `length` bytes. */
struct shard_index *dataset_open_sized(uint32_t n, uint32_t n_dirs, uint64_t length);

#endif
