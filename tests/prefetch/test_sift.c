/* SPDX-License-Identifier: Apache-2.0 */
/* Sifting: what tracks explain leaves the ring, also if a track changes while it is asked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "prefetch/sampler/recognise_private.h"
#include "shard/torch_rng.h"
#include "tests/prefetch/loader.h"
#include "tests/shard/synth.h"

enum { N = 10000, FEW = 12 /* opens of a new epoch: 16 show that it has begun */ };

/* The track hears of each open once when it comes, and once more in the sift.  In the middle of the sift it knows that
 * an epoch has begun, and then explains the opens that were asked for before. */
static void a_track_that_changes_in_a_sift_is_asked_again(void **state)
{
	struct shard_index *dataset = synth_open(&(struct synth){ .classes = 10, .per_class = N / 10, .bytes = 1 });
	struct prefetch_recognise_options options = { .index = dataset, .seed_max = 30, .popular_words = 1 };
	struct prefetch_recognise *r;
	static uint32_t order[N];
	(void)state;
	assert_int_equal(prefetch_recognise_new(&options, &r), 0);
	shard_torch_randperm(N, 3, order);
	for (uint32_t i = 0; i < N; i++) {
		prefetch_recognise_opened(r, &order[i], 1);
		if (i % 16 == 15)
			recognise_work(r);
	}
	recognise_work(r);
	assert_int_equal(r->n_tracks, 1);
	assert_int_equal(r->n_ring, 0);
	shard_torch_randperm(N, 4, order);
	prefetch_recognise_opened(r, order, FEW);
	/* One of them was opened at the end of the last epoch, too, and counts once. */
	assert_in_range(r->n_ring, FEW - 2, FEW);
	prefetch_recognise_sift(r);
	assert_int_equal(r->tracks[0]->epoch, 1);
	assert_int_equal(r->n_ring, 0);
	prefetch_recognise_free(r);
	synth_close(dataset);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(a_track_that_changes_in_a_sift_is_asked_again) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
