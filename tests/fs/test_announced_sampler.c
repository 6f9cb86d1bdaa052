/* SPDX-License-Identifier: Apache-2.0 */
/* The search for the sampler that draws what is announced: how much it takes, and when it begins again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "fs/announced_sampler.h"
#include "shard/torch_rng.h"
#include "tests/shard/synth.h"

enum { N = 1 << 14, WORLD = 8, OPENS = 64 };
#define STEP_NS UINT64_C(20000000)

static struct shard_index *index_of_n;
static struct fs_announced_sampler *sampler;
static uint32_t perm[N];

static int set_up(void **state)
{
	const struct synth synth = { .classes = 16, .per_class = N / 16, .bytes = 1 };
	(void)state;
	index_of_n = synth_open(&synth);
	const struct prefetch_recognise_options options = { .index = index_of_n };
	return fs_announced_sampler_new(&options, &sampler);
}

static int tear_down(void **state)
{
	(void)state;
	fs_announced_sampler_free(sampler);
	synth_close(index_of_n);
	return 0;
}

static bool has_track(void)
{
	struct prefetch_recognise *recognise = fs_announced_sampler_recognise(sampler);
	struct prefetch_recognised track;
	return recognise && prefetch_recognise_get(recognise, 0, &track) == 0 && track.ready;
}

/* Opens what a rank draws in an epoch. */
static void open_epoch(uint64_t seed, uint64_t now_ns)
{
	shard_torch_randperm(N, seed, perm);
	for (uint32_t turn = 0; turn < N / WORLD; turn++) {
		fs_announced_sampler_opened(sampler, &perm[turn * WORLD], 1, now_ns);
		for (int rc = 1; turn % OPENS == 0 && rc == 1;) {
			rc = fs_announced_sampler_step(sampler, STEP_NS);
			fs_announced_sampler_judge(sampler, has_track(), now_ns);
		}
	}
}

static uint64_t search_ns(void)
{
	return fs_announced_sampler_search_ns(sampler);
}

static void a_search_in_vain_ends_and_begins_again_much_later(void **state)
{
	const uint64_t unknown = UINT32_C(4000000000); /* seeds up to a million are tried */
	uint64_t epoch = 0, now_ns = 1;
	(void)state;
	do
		open_epoch(unknown + epoch++ * 12345, now_ns);
	while (fs_announced_sampler_recognise(sampler) && epoch < 100);
	assert_null(fs_announced_sampler_recognise(sampler));
	uint64_t spent_ns = search_ns();
	assert_in_range(spent_ns, FS_ANNOUNCED_SEARCH_NS, FS_ANNOUNCED_SEARCH_NS + 10 * STEP_NS);
	open_epoch(7, now_ns + FS_ANNOUNCED_REST_NS - 1);
	assert_null(fs_announced_sampler_recognise(sampler));
	assert_int_equal(search_ns(), spent_ns);
	open_epoch(7, now_ns + FS_ANNOUNCED_REST_NS);
	assert_true(has_track());
	assert_true(search_ns() > spent_ns);
}

static void what_is_useful_keeps_its_recogniser(void **state)
{
	(void)state;
	for (uint64_t epoch = 0; epoch < 3; epoch++) {
		open_epoch(7 + epoch, 1);
		assert_true(has_track());
	}
	assert_true(search_ns() < FS_ANNOUNCED_SEARCH_NS);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_search_in_vain_ends_and_begins_again_much_later),
		TEST(what_is_useful_keeps_its_recogniser),
	};
	return cmocka_run_group_tests_name("fs/announced_sampler", tests, NULL, NULL);
}
