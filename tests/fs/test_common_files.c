/* SPDX-License-Identifier: Apache-2.0 */
/* Common files are found by bisection; a scan says which there are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/fs/dataset.h"
#include "fs/common_files.h"

static void compare(const struct shard_index *index)
{
	struct fs_common_files common;
	const struct shard_info *info = shard_index_info(index);
	uint32_t n = 0;
	assert_int_equal(fs_common_files_init(&common, index), 0);
	for (uint32_t id = 0; id < info->n_files; id++) {
		struct shard_file file;
		assert_int_equal(shard_index_file(index, id, &file), 0);
		if (!file.common)
			continue;
		assert_true(n < common.n);
		assert_int_equal(common.files[n++], id);
	}
	assert_int_equal(n, common.n);
	fs_common_files_done(&common);
}

static void random_sets(void **state)
{
	(void)state;
	srandom(1);
	for (int round = 0; round < 300; round++) {
		uint32_t n = 1 + (uint32_t)(random() % 60);
		int part = round % 6; /* how many of 5 are common */
		bool grouped = round % 7 == 0;
		struct dataset_file files[60] = { 0 };
		char paths[60][32];
		for (uint32_t i = 0; i < n; i++) {
			snprintf(paths[i], sizeof(paths[i]), random() % 4 ? "d%ld/f%u" : "r%ld-%u", random() % 5, i);
			files[i].path = paths[i];
			files[i].common = random() % 5 < part;
			if (grouped && !files[i].common)
				files[i].group = i % 2 ? "a" : "b";
		}
		struct shard_index *index = dataset_open(files, n);
		compare(index);
		shard_index_close(index);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(random_sets) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
