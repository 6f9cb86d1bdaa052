/* SPDX-License-Identifier: Apache-2.0 */
/* A small dataset in a temporary directory: bare shards, file id = file number, contents a pure function of both. */
#ifndef DDPFS_TESTS_PREFETCH_DATASET_H
#define DDPFS_TESTS_PREFETCH_DATASET_H

#include <stdbool.h>
#include <stdint.h>

#include "shard/index.h"

struct dataset {
	char dir[64];
	struct shard_index *index;
	uint32_t n_files;
	uint32_t n_shards;
};

/* sizes[i % n_sizes] is the length of file i; files lie in n_shards shards, in an order unrelated to their numbers. */
void dataset_new(struct dataset *d, uint32_t n_files, uint32_t n_shards, const uint64_t *sizes, uint32_t n_sizes);
void dataset_free(struct dataset *d); /* removes the directory */

uint64_t dataset_length(const struct dataset *d, uint32_t file);
bool dataset_equal(uint32_t file, uint64_t offset, const uint8_t *data, uint64_t len); /* are these its bytes? */
void dataset_shard_path(const struct dataset *d, uint32_t shard, char path[128]);

#endif
