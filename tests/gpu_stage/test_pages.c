/* Runs of pages: never overlapping, joined when given back, found as long as one is long enough. */
#include <setjmp.h>
#include <stdarg.h>
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

/* Against a byte map: random gets and puts never overlap, and a get fails only when no run is long enough. */
static void random_use_matches_a_map(void **state)
{
	enum { N = 3000, LIVE = 200 };
	static uint8_t map[N];
	uint32_t first[LIVE] = { 0 }, len[LIVE] = { 0 };
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
			uint32_t run = 0;
			for (uint32_t i = 0; i < N; i++) {
				run = map[i] ? 0 : run + 1;
				assert_true(run < want);
			}
			continue;
		}
		assert_true(got + want <= N);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(full_and_empty_again),
		cmocka_unit_test(random_use_matches_a_map),
	};
	return cmocka_run_group_tests_name("pages", tests, NULL, NULL);
}
