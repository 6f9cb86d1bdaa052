/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the common files of a dataset; fs/common_files.h first. */
#include "fs/common_files.h"

#include <errno.h>
#include <stdlib.h>

static int add(struct fs_common_files *common, uint32_t *capacity, uint32_t file)
{
	if (common->n == *capacity) {
		uint32_t more = *capacity < 16 ? 16 : (*capacity > UINT32_MAX / 2 ? UINT32_MAX : *capacity * 2);
		uint32_t *files = realloc(common->files, (size_t)more * sizeof(*files));
		if (!files)
			return -ENOMEM;
		common->files = files;
		*capacity = more;
	}
	common->files[common->n++] = file;
	return 0;
}

static int scan(struct fs_common_files *common, const struct shard_index *index, uint32_t n_files)
{
	uint32_t capacity = 0;
	for (uint32_t id = 0; id < n_files; id++) {
		struct shard_file file;
		int rc = shard_index_file(index, id, &file);
		if (rc == 0 && file.common)
			rc = add(common, &capacity, id);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* Counts the common files with ids below that of sample s; for s = n_samples, all of them. */
static int before(const struct shard_index *index, uint32_t s, uint32_t *ret_file, uint32_t *ret_n)
{
	const struct shard_info *info = shard_index_info(index);
	uint32_t file = info->n_files;
	if (s < info->n_samples) {
		int rc = shard_index_sample_first(index, s, &file);
		if (rc < 0)
			return rc;
	}
	if (file < s)
		return -EUCLEAN;
	*ret_file = file;
	*ret_n = file - s;
	return 0;
}

static int bisect(struct fs_common_files *common, const struct shard_index *index)
{
	const struct shard_info *info = shard_index_info(index);
	uint32_t capacity = 0;
	uint32_t s = 0; /* common files below sample s are found */
	uint32_t file;
	uint32_t n;

	for (;;) {
		int rc = before(index, s, &file, &n);
		if (rc < 0)
			return rc;
		for (uint32_t id = file - (n - common->n); n > common->n; id++) {
			rc = add(common, &capacity, id);
			if (rc < 0)
				return rc;
		}
		/* Find the next sample that has more common files before it. */
		uint32_t low = s;
		uint32_t high = info->n_samples;
		rc = before(index, high, &file, &n);
		if (rc < 0 || n == common->n)
			return rc;
		if (n < common->n)
			return -EUCLEAN;
		while (high - low > 1) {
			uint32_t mid = low + (high - low) / 2;
			rc = before(index, mid, &file, &n);
			if (rc < 0)
				return rc;
			if (n > common->n)
				high = mid;
			else
				low = mid;
		}
		if (high == s)
			return -EUCLEAN;
		s = high;
	}
}

int fs_common_files_init(struct fs_common_files *common, const struct shard_index *index)
{
	const struct shard_info *info = shard_index_info(index);
	*common = (struct fs_common_files){ 0 };
	int rc = info->grouped ? scan(common, index, info->n_files) : bisect(common, index);
	if (rc < 0)
		fs_common_files_done(common);
	return rc;
}

void fs_common_files_done(struct fs_common_files *common)
{
	free(common->files);
	*common = (struct fs_common_files){ 0 };
}
