/* SPDX-License-Identifier: Apache-2.0 */
/* The text of epoch lists: any range equals that part of the whole, the whole equals the turns. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/fs/dataset.h"
#include "fs/epoch_list.h"

static char *whole_text(struct fs_view *view, uint64_t number, size_t *ret_len)
{
	struct shard_epoch *epoch;
	char *text = NULL;
	size_t len = 0;
	assert_int_equal(shard_view_epoch(view->order, number, &epoch), 0);
	for (uint64_t k = 0; k < shard_epoch_turns(epoch, view->options.rank); k++) {
		char path[SHARD_PATH_MAX + 1];
		uint32_t sample;
		uint32_t file;
		assert_int_equal(shard_epoch_turn(epoch, view->options.rank, k, &sample, NULL), 0);
		assert_int_equal(shard_index_sample_first(view->index, sample, &file), 0);
		int n = shard_index_file_path(view->index, file, path, sizeof(path));
		assert_true(n > 0);
		text = realloc(text, len + (size_t)n + 1);
		memcpy(text + len, path, (size_t)n);
		text[len + (size_t)n] = '\n';
		len += (size_t)n + 1;
	}
	shard_epoch_put(epoch);
	*ret_len = len;
	return text;
}

static void ranges(void **state)
{
	(void)state;
	static const uint32_t sizes[] = { 1, 2, FS_EPOCH_LIST_STEP - 1, FS_EPOCH_LIST_STEP, FS_EPOCH_LIST_STEP + 1,
		3 * FS_EPOCH_LIST_STEP, 5000 };
	srandom(1);
	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		struct shard_index *index = dataset_open_n(sizes[s], 13);
		struct fs_options options = { .view = SHARD_VIEW_OPTIONS_DEFAULT };
		struct fs_view *view;
		struct fs_lists *lists;
		options.view.world = s % 2 ? 2 : 1;
		assert_int_equal(fs_view_new(index, &options, 0, NULL, &view), 0);
		assert_int_equal(fs_lists_new(index, 1, &lists), 0);
		for (uint64_t epoch = 0; epoch < FS_LISTS_KEPT + 3; epoch++) {
			size_t len;
			uint64_t bytes;
			char *text = whole_text(view, epoch, &len);
			assert_int_equal(fs_epoch_list_size(lists, view, epoch, NULL, &bytes), 0);
			assert_int_equal(bytes, len);
			for (int i = 0; i < 50; i++) {
				char buf[4096];
				size_t got;
				size_t off = (size_t)random() % (len + 10);
				size_t want = (size_t)random() % sizeof(buf);
				assert_int_equal(
				        fs_epoch_list_read(lists, view, epoch, '\n', NULL, off, buf, want, &got), 0);
				size_t expect = off >= len ? 0 : len - off < want ? len - off : want;
				assert_int_equal(got, expect);
				if (expect)
					assert_memory_equal(buf, text + off, expect);
				assert_int_equal(
				        fs_epoch_list_read(lists, view, epoch, '\0', NULL, off, buf, want, &got), 0);
				assert_int_equal(got, expect);
				for (size_t b = 0; b < got; b++)
					assert_int_equal(buf[b], text[off + b] == '\n' ? '\0' : text[off + b]);
			}
			free(text);
		}
		fs_lists_free(lists);
		fs_view_free(view);
		shard_index_close(index);
	}
}

static void cancelled(void **state)
{
	(void)state;
	struct shard_index *index = dataset_open_n(1000, 3);
	struct fs_options options = { .view = SHARD_VIEW_OPTIONS_DEFAULT };
	_Atomic bool cancel = true;
	struct fs_view *view;
	struct fs_lists *lists;
	uint64_t bytes = 7;
	assert_int_equal(fs_view_new(index, &options, 0, NULL, &view), 0);
	assert_int_equal(fs_lists_new(index, 1, &lists), 0);
	assert_int_equal(fs_epoch_list_size(lists, view, 0, &cancel, &bytes), -ECANCELED);
	assert_int_equal(bytes, 7);
	cancel = false;
	assert_int_equal(fs_epoch_list_size(lists, view, 0, &cancel, &bytes), 0);
	assert_true(bytes > 1000);
	fs_lists_free(lists);
	fs_view_free(view);
	shard_index_close(index);
}

/* At the beginning of an epoch each rank reads its list in pieces, and they take turns. */
static void a_list_of_each_rank_is_kept(void **state)
{
	enum { RANKS = 9 };
	(void)state;
	struct shard_index *index = dataset_open_n(1000, 3);
	struct fs_options options = { .view = SHARD_VIEW_OPTIONS_DEFAULT, .n_ranks = RANKS };
	_Atomic bool cancel = true; /* nothing is worked out again */
	struct fs_view *views[RANKS];
	struct fs_lists *lists;
	char buf[64];
	size_t len;
	options.view.world = RANKS;
	assert_int_equal(fs_view_new(index, &options, 0, NULL, &views[0]), 0);
	for (uint32_t rank = 1; rank < RANKS; rank++)
		assert_int_equal(fs_view_new_rank(views[0], rank, NULL, &views[rank]), 0);
	assert_int_equal(fs_lists_new(index, RANKS, &lists), 0);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		assert_int_equal(fs_epoch_list_read(lists, views[rank], 0, '\n', NULL, 0, buf, sizeof(buf), &len), 0);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		assert_int_equal(
		        fs_epoch_list_read(lists, views[rank], 0, '\n', &cancel, 64, buf, sizeof(buf), &len), 0);
	fs_lists_free(lists);
	for (uint32_t rank = RANKS; rank-- > 0;)
		fs_view_free(views[rank]);
	shard_index_close(index);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(ranges), cmocka_unit_test(cancelled),
		cmocka_unit_test(a_list_of_each_rank_is_kept) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
