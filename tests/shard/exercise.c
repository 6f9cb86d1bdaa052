/* SPDX-License-Identifier: Apache-2.0 */
/* Calls every accessor of an index; tests/shard/exercise.h first. */
#include "tests/shard/exercise.h"

#include <assert.h>
#include <string.h>

#include "shard/view.h"

enum { IDS_MAX = 300 };

static uint64_t read_name(const char *name, uint32_t len)
{
	uint64_t sum = len;
	for (uint32_t i = 0; i < len; i++)
		sum = sum * 31 + (uint8_t)name[i];
	return sum;
}

static uint64_t exercise_files(const struct shard_index *index)
{
	uint64_t sum = 0;
	for (uint32_t id = 0; id < IDS_MAX; id++) {
		struct shard_file f;
		char path[SHARD_PATH_MAX + 1];
		uint32_t found, length;
		uint64_t offset, xxh3;
		int n = shard_index_file_path(index, id, path, sizeof path);
		if (n >= 0) {
			enum shard_kind kind;
			assert(strlen(path) == (size_t)n);
			sum += (uint64_t)shard_index_find_path(index, path, &kind, &found);
		}
		if (shard_index_file(index, id, &f) < 0)
			continue;
		sum += read_name(f.name, f.name_len);
		assert(!memchr(f.name, '/', f.name_len));
		sum += (uint64_t)shard_index_find_file(index, f.dir, f.name, f.name_len, &found);
		sum += (uint64_t)shard_index_find_dir(index, f.dir, f.name, f.name_len, &found);
		uint32_t blocks = shard_blocks(f.length);
		for (uint32_t block = 0; block < blocks && block < 4; block++)
			if (shard_index_block(index, id, block, &offset, &length, &xxh3) == 0)
				sum += offset + length + xxh3;
		if (blocks > 0 && shard_index_block(index, id, blocks - 1, &offset, &length, &xxh3) == 0)
			sum += xxh3;
	}
	return sum;
}

static uint64_t exercise_dirs(const struct shard_index *index)
{
	uint64_t sum = 0;
	for (uint32_t id = 0; id < IDS_MAX; id++) {
		struct shard_dir d;
		char path[SHARD_PATH_MAX + 1];
		uint32_t first, end;
		sum += (uint64_t)shard_index_dir_path(index, id, path, sizeof path);
		if (shard_index_dir_samples(index, id, &first, &end) == 0) {
			assert(first <= end && end <= shard_index_info(index)->n_samples);
			sum += end - first;
		}
		if (shard_index_dir(index, id, &d) < 0)
			continue;
		sum += read_name(d.name, d.name_len);
		assert(d.end_dir > id && d.end_file <= shard_index_info(index)->n_files);
	}
	return sum;
}

/* Each rule of on_bad, with every other sample listed. */
static uint64_t exercise_quarantine(const struct shard_index *index)
{
	static const enum shard_on_bad rules[] = { SHARD_ON_BAD_SKIP, SHARD_ON_BAD_SUBSTITUTE };
	uint64_t sum = 0;
	uint32_t ids[IDS_MAX / 2];
	struct shard_quarantine *list;
	for (uint32_t i = 0; i < IDS_MAX / 2; i++)
		ids[i] = 2 * i;
	if (shard_quarantine_new(ids, IDS_MAX / 2, &list) < 0)
		return 0;
	for (unsigned i = 0; i < 2; i++) {
		struct shard_view_options options = SHARD_VIEW_OPTIONS_DEFAULT;
		struct shard_view *view;
		options.order = SHARD_ORDER_FULL;
		options.on_bad = rules[i];
		options.quarantine = list;
		if (shard_view_new(index, &options, NULL, &view) < 0)
			continue;
		for (uint32_t id = 0; id < IDS_MAX && id < shard_index_info(index)->n_files; id++) {
			uint32_t file;
			if (shard_view_instead_file(view, id, &file) == 0) {
				assert(file < shard_index_info(index)->n_files);
				sum += file;
			}
		}
		shard_view_free(view);
	}
	shard_quarantine_free(list);
	return sum;
}

uint64_t exercise_index(const struct shard_index *index)
{
	uint64_t sum = exercise_files(index) + exercise_dirs(index) + exercise_quarantine(index);
	for (uint32_t id = 0; id < IDS_MAX; id++) {
		uint32_t files[64], n, other;
		struct shard_shard s;
		if (shard_index_sample_files(index, id, files, 64, &n) == 0)
			for (uint32_t i = 0; i < n; i++) {
				assert(files[i] < shard_index_info(index)->n_files);
				sum += files[i];
			}
		sum += (uint64_t)shard_index_sample_first(index, id, &other);
		sum += (uint64_t)shard_index_sample_slot(index, id, &other);
		sum += (uint64_t)shard_index_slot_sample(index, id, &other);
		if (shard_index_shard(index, id, &s) == 0)
			sum += read_name(s.path, s.path_len);
	}
	return sum;
}
