/* SPDX-License-Identifier: Apache-2.0 */
/* The lists that samplers are held against leave out what on_bad=skip leaves out of every listing. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "prefetch/sampler/file_list.h"
#include "shard/view.h"
#include "tests/shard/synth.h"

static void lists_hold_what_a_tree_lists(void **state)
{
	static const struct synth synth = { .classes = 3, .per_class = 5, .bytes = 100 };
	static const enum shard_on_bad rules[] = { SHARD_ON_BAD_SKIP, SHARD_ON_BAD_SUBSTITUTE };
	struct shard_index *index = synth_open(&synth);
	uint32_t bad[] = { 0, 6, 14 };
	struct shard_quarantine *quarantine;
	struct base_err err = { 0 };
	(void)state;

	assert_int_equal(shard_quarantine_new(bad, 3, &quarantine), 0);
	for (unsigned r = 0; r < 2; r++) {
		struct shard_view_options options = {
			.order = SHARD_ORDER_FULL, .world = 1, .on_bad = rules[r], .quarantine = quarantine
		};
		bool skip = rules[r] == SHARD_ON_BAD_SKIP;
		struct prefetch_filters filters;
		struct prefetch_list *list;
		struct shard_view *view;
		uint32_t file, place, i = 0;

		if (shard_view_new(index, &options, &err, &view) < 0)
			fail_msg("%s", err.text);
		assert_int_equal(prefetch_filters_init(&filters, index, view, ".bin"), 0);
		while (prefetch_filters_step(&filters, 4) == 1)
			;
		assert_int_equal(prefetch_list_new(&filters, 0, PREFETCH_SORT_ID, PREFETCH_FILTER_SUFFIX, &list), 0);
		assert_int_equal(prefetch_list_size(list), skip ? 12 : 15);
		for (uint32_t f = 0; f < 15; f++) {
			if (skip && shard_quarantine_has(quarantine, f)) { /* one file a sample: ids are equal */
				assert_int_equal(prefetch_list_find(list, f, &place), -ENOENT);
				continue;
			}
			assert_int_equal(prefetch_list_at(list, i, &file), 0);
			assert_int_equal(file, f);
			assert_int_equal(prefetch_list_find(list, f, &place), 0);
			assert_int_equal(place, i++);
		}
		prefetch_list_put(list);
		prefetch_filters_done(&filters);
		shard_view_free(view);
	}
	shard_quarantine_free(quarantine);
	synth_close(index);
}

/* The statistics are JSON, which is UTF-8. */
static void a_suffix_of_any_bytes_is_described_in_printable_text(void **state)
{
	static const char *const suffixes[] = { ".b\xe9n" };
	static const struct synth synth = {
		.classes = 3, .per_class = 5, .bytes = 100, .suffixes = suffixes, .n_suffixes = 1
	};
	const struct shard_view_options options = { .order = SHARD_ORDER_FULL, .world = 1 };
	struct shard_index *index = synth_open(&synth);
	struct prefetch_filters filters;
	struct prefetch_list *list;
	struct shard_view *view;
	char text[256];
	(void)state;

	assert_int_equal(shard_view_new(index, &options, NULL, &view), 0);
	assert_int_equal(prefetch_filters_init(&filters, index, view, suffixes[0]), 0);
	while (prefetch_filters_step(&filters, 4) == 1)
		;
	assert_int_equal(prefetch_list_new(&filters, 0, PREFETCH_SORT_ID, PREFETCH_FILTER_SUFFIX, &list), 0);
	assert_string_equal(prefetch_list_describe(list, text, sizeof(text)),
	        ".b\\xe9n files of the whole dataset, directory by directory");
	prefetch_list_put(list);
	prefetch_filters_done(&filters);
	shard_view_free(view);
	synth_close(index);
}

/* Returns a list of one class: the filters have that class only, or all files. */
static struct prefetch_list *list_class(const struct shard_index *index, uint32_t dir, bool below)
{
	struct prefetch_filters filters;
	struct prefetch_list *list;
	uint32_t files = 0;
	assert_int_equal(prefetch_filters_init(&filters, index, NULL, ""), 0);
	if (below)
		assert_int_equal(prefetch_filters_below(&filters, dir), 0);
	do {
		files++;
	} while (prefetch_filters_step(&filters, 1) == 1);
	assert_int_equal(files, below ? 5 : 15);
	assert_int_equal(prefetch_list_new(&filters, dir, PREFETCH_SORT_PATH, PREFETCH_FILTER_ALL, &list), 0);
	prefetch_filters_done(&filters);
	return list;
}

static void the_files_of_one_directory_suffice_for_its_list(void **state)
{
	static const struct synth synth = { .classes = 3, .per_class = 5, .bytes = 100 };
	struct shard_index *index = synth_open(&synth);
	(void)state;
	for (uint32_t dir = 2; dir < 2 + synth.classes; dir++) { /* behind the root and train/ */
		struct prefetch_list *all = list_class(index, dir, false), *below = list_class(index, dir, true);
		assert_int_equal(prefetch_list_size(below), 5);
		assert_true(prefetch_list_equal(all, below));
		for (uint32_t i = 0; i < 5; i++) {
			uint32_t file, expected, place;
			assert_int_equal(prefetch_list_at(all, i, &expected), 0);
			assert_int_equal(prefetch_list_at(below, i, &file), 0);
			assert_int_equal(file, expected);
			assert_int_equal(prefetch_list_find(below, file, &place), 0);
			assert_int_equal(place, i);
		}
		prefetch_list_put(all);
		prefetch_list_put(below);
	}
	synth_close(index);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(lists_hold_what_a_tree_lists),
		cmocka_unit_test(a_suffix_of_any_bytes_is_described_in_printable_text),
		cmocka_unit_test(the_files_of_one_directory_suffice_for_its_list) };
	return cmocka_run_group_tests_name("prefetch/left_out", tests, NULL, NULL);
}
