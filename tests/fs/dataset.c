/* SPDX-License-Identifier: Apache-2.0 */
/* Writes an index without shards; tests/fs/dataset.h first. */
#include "tests/fs/dataset.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "shard/build.h"

static uint64_t length_of(const struct dataset_file *file)
{
	return file->length ? file->length : 1;
}

struct shard_index *dataset_open(const struct dataset_file *files, uint32_t n)
{
	char dir[] = "/tmp/ddpfs-test-fs.XXXXXX";
	char path[64];
	struct shard_builder *builder;
	struct shard_index *index;
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/%s", dir, SHARD_INDEX_NAME);
	assert_int_equal(shard_builder_new(&builder), 0);
	uint64_t size = 0, at = 0;
	for (uint32_t i = 0; i < n; i++)
		size += length_of(&files[i]);
	assert_int_equal(shard_builder_add_shard(builder, "s.bin", SHARD_BARE, size, 0, NULL), 0);
	for (uint32_t i = 0; i < n; i++) {
		struct shard_build_file file = { .path = files[i].path,
			.offset = at,
			.length = length_of(&files[i]),
			.mode = 0644,
			.common = files[i].common,
			.group = files[i].group };
		assert_int_equal(shard_builder_add_file(builder, &file, NULL), 0);
		at += file.length;
	}
	assert_int_equal(shard_builder_finish(builder, path, false, 0, NULL), 0);
	shard_builder_free(builder);
	assert_int_equal(shard_index_open(dir, NULL, &index), 0);
	unlink(path);
	rmdir(dir);
	return index;
}

struct shard_index *dataset_open_sized(uint32_t n, uint32_t n_dirs, uint64_t length)
{
	struct dataset_file *files = calloc(n, sizeof(*files));
	assert_non_null(files);
	for (uint32_t i = 0; i < n; i++) {
		char *path;
		assert_true(asprintf(&path, "d%u/f%u", i % n_dirs, i) > 0);
		files[i].path = path;
		files[i].length = length;
	}
	struct shard_index *index = dataset_open(files, n);
	for (uint32_t i = 0; i < n; i++)
		free((void *)(uintptr_t)files[i].path);
	free(files);
	return index;
}

struct shard_index *dataset_open_n(uint32_t n, uint32_t n_dirs)
{
	return dataset_open_sized(n, n_dirs, 1);
}
