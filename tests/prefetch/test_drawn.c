/* SPDX-License-Identifier: Apache-2.0 */
/* Drawn indices and opened files: the list that fits both, and none where there is none. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "prefetch/sampler/drawn.h"
#include "shard/torch_rng.h"
#include "tests/shard/synth.h"

enum { CLASSES = 20, PER_CLASS = 500, N = CLASSES * PER_CLASS, FLIGHT = 192 /* drawn, and not opened yet */ };

static const char *const two_suffixes[] = { ".jpg", ".json" };

struct trainer {
	struct shard_index *index;
	struct prefetch_list *list; /* the true one */
	uint32_t size;
	uint64_t drawn[N];
	uint32_t opened[8 * N];
	size_t n_drawn, n_opened;
};

static struct trainer *begin(const struct synth *synth, enum prefetch_list_sort sort, enum prefetch_filter_kind filter)
{
	struct trainer *t = calloc(1, sizeof(*t));
	struct prefetch_filters filters;
	assert_non_null(t);
	t->index = synth_open(synth);
	assert_int_equal(prefetch_filters_init(&filters, t->index, NULL, ".jpg"), 0);
	while (prefetch_filters_step(&filters, 1000) > 0)
		;
	assert_int_equal(prefetch_list_new(&filters, 0, sort, filter, &t->list), 0);
	prefetch_filters_done(&filters);
	t->size = prefetch_list_size(t->list);
	return t;
}

static void end(struct trainer *t)
{
	prefetch_list_put(t->list);
	synth_close(t->index);
	free(t);
}

static int find(const struct trainer *t, uint32_t size, struct prefetch_list **ret_list)
{
	return prefetch_drawn_list(&(struct prefetch_drawn){ .index = t->index,
	                                   .opened = t->opened,
	                                   .n_opened = t->n_opened,
	                                   .indices = t->drawn,
	                                   .n_indices = t->n_drawn,
	                                   .size = size },
	        ret_list);
}

/* Rank 0 of `world` draws `draws` indices of a permutation; all ranks open what they draw, but the latest. */
static void draw(struct trainer *t, uint64_t seed, uint32_t draws, uint32_t world)
{
	static uint32_t order[N];
	assert_true(t->size <= N && draws * world <= t->size);
	shard_torch_randperm(t->size, seed, order);
	for (uint32_t i = 0; i < draws; i++)
		t->drawn[t->n_drawn++] = order[i * world];
	for (uint32_t i = 0; i + FLIGHT * world < draws * world; i++)
		assert_int_equal(prefetch_list_at(t->list, order[i], &t->opened[t->n_opened++]), 0);
}

static void check_found(const struct trainer *t)
{
	struct prefetch_list *list;
	assert_int_equal(find(t, t->size, &list), 0);
	for (uint32_t i = 0; i < t->size; i++) {
		uint32_t is, expected;
		assert_int_equal(prefetch_list_at(list, i, &is), 0);
		assert_int_equal(prefetch_list_at(t->list, i, &expected), 0);
		assert_int_equal(is, expected);
	}
	prefetch_list_put(list);
}

/* 24 opened files are enough, whatever the list and however many ranks open files of it. */
static void each_list_is_found(void **state)
{
	static const enum prefetch_list_sort sorts[] = { PREFETCH_SORT_WALK, PREFETCH_SORT_ID, PREFETCH_SORT_PATH,
		PREFETCH_SORT_NAME };
	static const enum prefetch_filter_kind filters[] = { PREFETCH_FILTER_IMAGES, PREFETCH_FILTER_SUFFIX,
		PREFETCH_FILTER_ALL };
	struct synth synth = { .classes = CLASSES,
		.per_class = PER_CLASS,
		.bytes = 1,
		.scattered = true,
		.suffixes = two_suffixes,
		.n_suffixes = 2 };
	(void)state;
	for (unsigned s = 0; s < 4; s++) {
		for (unsigned f = 0; f < 3; f++) {
			for (uint32_t world = 1; world <= 8; world *= 8) {
				struct trainer *t = begin(&synth, sorts[s], filters[f]);
				draw(t, 7 + s, FLIGHT + 32, world);
				check_found(t);
				end(t);
			}
		}
	}
}

/* The opens of an earlier epoch stand before those of this one. */
static void a_new_epoch_is_found(void **state)
{
	struct synth synth = { .classes = CLASSES, .per_class = PER_CLASS, .bytes = 1, .shuffled = true };
	struct trainer *t = begin(&synth, PREFETCH_SORT_PATH, PREFETCH_FILTER_ALL);
	(void)state;
	draw(t, 1, N, 1);
	assert_int_equal(t->n_opened, N - FLIGHT);
	t->n_drawn = 0;
	draw(t, 2, FLIGHT + 400, 1);
	check_found(t);
	end(t);
}

static void count(void *user)
{
	++*(unsigned *)user;
}

/* Each list costs time of the mount's main thread, a list by name a second for a million files. */
static void equal_lists_are_made_once(void **state)
{
	struct synth synth = { .classes = CLASSES, .per_class = PER_CLASS, .bytes = 1, .shuffled = true };
	struct trainer *t = begin(&synth, PREFETCH_SORT_NAME, PREFETCH_FILTER_ALL);
	struct prefetch_list *list;
	unsigned lists = 0;
	(void)state;
	draw(t, 5, FLIGHT + 32, 1);
	struct prefetch_drawn drawn = { .index = t->index,
		.opened = t->opened,
		.n_opened = t->n_opened,
		.indices = t->drawn,
		.n_indices = t->n_drawn,
		.size = t->size,
		.beat = count,
		.user = &lists };
	assert_int_equal(prefetch_drawn_list(&drawn, &list), 0);
	assert_in_range(lists, 1, 4 + 4); /* of train/, and the walks of the root */
	prefetch_list_put(list);
	end(t);
}

static void draws_that_are_not_opened_fit_nothing(void **state)
{
	struct synth synth = { .classes = CLASSES, .per_class = PER_CLASS, .bytes = 1, .shuffled = true };
	struct trainer *t = begin(&synth, PREFETCH_SORT_PATH, PREFETCH_FILTER_ALL);
	static uint32_t other[N];
	struct prefetch_list *list;
	(void)state;
	for (uint64_t seed = 0; seed < 200; seed++) {
		uint32_t draws = FLIGHT + 25 + (uint32_t)(seed * 37) % 3000;
		t->n_drawn = t->n_opened = 0;
		draw(t, seed, draws, 1);
		shard_torch_randperm(N, 1000 + seed, other);
		for (uint32_t i = 0; i < draws; i++)
			t->drawn[i] = other[i];
		assert_int_equal(find(t, N, &list), -EAGAIN);
	}
	end(t);
}

/* The same index again and again is no evidence. */
static void repeated_draws_count_once(void **state)
{
	struct synth synth = { .classes = CLASSES, .per_class = PER_CLASS, .bytes = 1, .shuffled = true };
	struct trainer *t = begin(&synth, PREFETCH_SORT_PATH, PREFETCH_FILTER_ALL);
	struct prefetch_list *list;
	(void)state;
	draw(t, 3, FLIGHT + 1000, 1);
	for (size_t i = 0; i < t->n_drawn; i++)
		t->drawn[i] = t->drawn[i % 20];
	assert_int_equal(find(t, N, &list), -EAGAIN);
	end(t);
}

static void a_size_that_no_list_has(void **state)
{
	struct synth synth = { .classes = CLASSES, .per_class = PER_CLASS, .bytes = 1, .shuffled = true };
	struct trainer *t = begin(&synth, PREFETCH_SORT_PATH, PREFETCH_FILTER_ALL);
	struct prefetch_list *list;
	(void)state;
	draw(t, 3, FLIGHT + 10, 1);
	assert_int_equal(find(t, N, &list), -EAGAIN); /* too few opens to say anything */
	t->n_drawn = t->n_opened = 0;
	assert_int_equal(find(t, N, &list), -EAGAIN);
	draw(t, 3, FLIGHT + 100, 1);
	assert_int_equal(find(t, N + 1, &list), -ENOENT);
	end(t);
}

/* A dataset may have the first or the last files of a list, or what one of several ranks takes of it. */
static void parts_of_lists_are_found(void **state)
{
	static const struct prefetch_list_part parts[] = { { 0, 1, N - 1 }, { 0, 1, N / 10 }, { N / 10, 1, N - N / 10 },
		{ N - N / 10, 1, N / 10 }, { 3, 7, N / 7 }, { 0, 16, N / 16 }, { 2 * (N / 3), 1, N / 3 } };
	static const enum prefetch_list_sort sorts[] = { PREFETCH_SORT_WALK, PREFETCH_SORT_NAME };
	struct synth synth = { .classes = CLASSES, .per_class = PER_CLASS, .bytes = 1, .scattered = true };
	(void)state;
	for (unsigned i = 0; i < sizeof(parts) / sizeof(parts[0]) * 2; i++) {
		struct trainer *t = begin(&synth, sorts[i % 2], PREFETCH_FILTER_ALL);
		struct prefetch_list *whole = t->list;
		assert_int_equal(prefetch_list_new_part(whole, &parts[i / 2], &t->list), 0);
		prefetch_list_put(whole);
		t->size = parts[i / 2].n;
		draw(t, 7 + i, FLIGHT + 40, 1);
		check_found(t);
		end(t);
	}
}

/* A dataset that leaves out one file: in front of it the list's first files are right, behind it the last ones. */
static void a_list_that_is_right_in_part_is_none(void **state)
{
	struct synth synth = { .classes = CLASSES, .per_class = PER_CLASS, .bytes = 1, .shuffled = true };
	struct trainer *t = begin(&synth, PREFETCH_SORT_PATH, PREFETCH_FILTER_ALL);
	static uint32_t order[N];
	struct prefetch_list *list;
	(void)state;
	for (uint32_t i = 0; i < 30; i++) {
		uint32_t left_out = N / 4 * (1 + i % 3), draws = FLIGHT + 60 + i * 200;
		shard_torch_randperm(N - 1, i, order);
		t->n_drawn = t->n_opened = 0;
		for (uint32_t k = 0; k < draws; k++) {
			t->drawn[t->n_drawn++] = order[k];
			if (k + FLIGHT < draws)
				assert_int_equal(prefetch_list_at(t->list, order[k] + (order[k] >= left_out),
				                         &t->opened[t->n_opened++]),
				        0);
		}
		assert_int_equal(find(t, N - 1, &list), -EAGAIN);
	}
	end(t);
}

/* Some other files of the list, as many as a part of it has. */
static void other_files_are_no_part(void **state)
{
	enum { SOME = N / 4 };
	struct synth synth = { .classes = CLASSES, .per_class = PER_CLASS, .bytes = 1, .shuffled = true };
	struct trainer *t = begin(&synth, PREFETCH_SORT_PATH, PREFETCH_FILTER_ALL);
	static uint32_t of_list[N], order[SOME];
	struct prefetch_list *list;
	(void)state;
	for (uint64_t seed = 0; seed < 50; seed++) {
		shard_torch_randperm(N, 1000 + seed, of_list);
		shard_torch_randperm(SOME, seed, order);
		t->n_drawn = t->n_opened = 0;
		for (uint32_t i = 0; i < SOME; i++) {
			t->drawn[t->n_drawn++] = order[i];
			if (i + FLIGHT < SOME)
				assert_int_equal(
				        prefetch_list_at(t->list, of_list[order[i]], &t->opened[t->n_opened++]), 0);
			if (i % 500 == 499)
				assert_int_equal(find(t, SOME, &list), -EAGAIN);
		}
	}
	end(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_list_is_found),
		cmocka_unit_test(a_new_epoch_is_found),
		cmocka_unit_test(equal_lists_are_made_once),
		cmocka_unit_test(draws_that_are_not_opened_fit_nothing),
		cmocka_unit_test(repeated_draws_count_once),
		cmocka_unit_test(a_size_that_no_list_has),
		cmocka_unit_test(parts_of_lists_are_found),
		cmocka_unit_test(a_list_that_is_right_in_part_is_none),
		cmocka_unit_test(other_files_are_no_part),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
