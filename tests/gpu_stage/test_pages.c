/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of pages: never overlapping, joined when given back, found as long as one is long enough. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gpu_stage/pages.h"

static void full_and_empty_again(void **state)
{
	(void)state;
	struct stage_pages *p;
	uint32_t first[64];
	assert_int_equal(stage_pages_new(64, &p), 0);
	for (unsigned i = 0; i < 64; i++) {
		first[i] = stage_pages_get(p, 1);
		assert_int_not_equal(first[i], STAGE_PAGES_NONE);
	}
	assert_int_equal(stage_pages_get(p, 1), STAGE_PAGES_NONE);
	for (unsigned i = 0; i < 64; i += 2)
		stage_pages_put(p, first[i], 1);
	assert_int_equal(stage_pages_used(p), 32);
	assert_int_equal(stage_pages_get(p, 2), STAGE_PAGES_NONE);
	for (unsigned i = 1; i < 64; i += 2)
		stage_pages_put(p, first[i], 1);
	assert_int_equal(stage_pages_get(p, 64), 0);
	stage_pages_put(p, 0, 64);
	stage_pages_free(p);
}

static uint32_t longest_run(const uint8_t *map, uint32_t n)
{
	uint32_t run = 0, longest = 0;
	for (uint32_t i = 0; i < n; i++) {
		run = map[i] ? 0 : run + 1;
		longest = run > longest ? run : longest;
	}
	return longest;
}

/* Against a byte map: random gets and puts never overlap, a get fails only when no run is long enough, and takes
 * pages that were
 * never used only when no run of used ones is. */
static void random_use_matches_a_map(void **state)
{
	enum { N = 3000, LIVE = 200 };
	static uint8_t map[N];
	uint32_t first[LIVE] = { 0 }, len[LIVE] = { 0 }, touched = 0;
	struct stage_pages *p;
	(void)state;
	memset(map, 0, sizeof(map));
	srand(7);
	assert_int_equal(stage_pages_new(N, &p), 0);
	for (unsigned round = 0; round < 20000; round++) {
		unsigned k = (unsigned)rand() % LIVE;
		if (len[k]) {
			stage_pages_put(p, first[k], len[k]);
			memset(map + first[k], 0, len[k]);
			len[k] = 0;
			continue;
		}
		uint32_t want = 1 + (uint32_t)rand() % (rand() % 8 ? 12 : 300), got = stage_pages_get(p, want);
		if (got == STAGE_PAGES_NONE) {
			assert_true(longest_run(map, N) < want);
			continue;
		}
		assert_true(got + want <= N);
		if (got + want > touched) {
			assert_true(longest_run(map, touched) < want);
			touched = got + want;
		}
		assert_int_equal(stage_pages_touched(p), touched);
		for (uint32_t i = got; i < got + want; i++)
			assert_int_equal(map[i], 0);
		memset(map + got, 1, want);
		first[k] = got;
		len[k] = want;
	}
	for (unsigned k = 0; k < LIVE; k++) {
		if (len[k])
			stage_pages_put(p, first[k], len[k]);
	}
	assert_int_equal(stage_pages_used(p), 0);
	assert_int_equal(stage_pages_get(p, N), 0);
	stage_pages_free(p);
}

/* Pages that are lent are nobody else's, wherever they are, and all of them can be had. */
static void lent_pages_are_any_free_ones(void **state)
{
	enum { N = 2000, LIVE = 150 };
	static uint8_t map[N];
	uint32_t first[LIVE] = { 0 }, len[LIVE] = { 0 }, used = 0, scattered = 0;
	bool lent[LIVE] = { false };
	struct stage_pages *p;
	(void)state;
	memset(map, 0, sizeof(map));
	srand(11);
	assert_int_equal(stage_pages_new(N, &p), 0);
	for (unsigned round = 0; round < 20000; round++) {
		unsigned k = (unsigned)rand() % LIVE;
		uint32_t want = 1 + (uint32_t)rand() % (rand() % 8 ? 12 : 700), next, n;
		if (len[k]) {
			for (uint32_t run = first[k]; lent[k] && run != STAGE_PAGES_NONE; run = next) {
				n = stage_pages_lent(p, run, &next);
				memset(map + run, 0, n);
			}
			if (lent[k])
				stage_pages_give_back(p, first[k]);
			else
				stage_pages_put(p, first[k], len[k]);
			if (!lent[k])
				memset(map + first[k], 0, len[k]);
			used -= len[k];
			len[k] = 0;
		} else if ((first[k] = stage_pages_get(p, want)) != STAGE_PAGES_NONE) {
			memset(map + first[k], 1, want);
			lent[k] = false;
			len[k] = want;
			used += want;
		} else if (want <= N - used) {
			uint32_t sum = 0;
			first[k] = stage_pages_lend(p, want);
			for (uint32_t run = first[k]; run != STAGE_PAGES_NONE; run = next) {
				n = stage_pages_lent(p, run, &next);
				assert_true(n > 0 && run + n <= N);
				for (uint32_t i = run; i < run + n; i++)
					assert_int_equal(map[i], 0);
				memset(map + run, 1, n);
				sum += n;
			}
			assert_int_equal(sum, want);
			lent[k] = true;
			len[k] = want;
			used += want;
			scattered++;
		}
		assert_int_equal(stage_pages_used(p), used);
	}
	assert_true(scattered > 100);
	for (unsigned k = 0; k < LIVE; k++) {
		if (len[k] && lent[k])
			stage_pages_give_back(p, first[k]);
		else if (len[k])
			stage_pages_put(p, first[k], len[k]);
	}
	assert_int_equal(stage_pages_free_pages(p), N);
	assert_int_equal(stage_pages_get(p, N), 0);
	stage_pages_free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(full_and_empty_again),
		cmocka_unit_test(random_use_matches_a_map),
		cmocka_unit_test(lent_pages_are_any_free_ones),
	};
	return cmocka_run_group_tests_name("pages", tests, NULL, NULL);
}
