/* SPDX-License-Identifier: Apache-2.0 */
/* Two jobs with shuffles of numpy or Python through one mount, side by side from their first opens on.
 * test_recognise.c has two jobs of torch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "prefetch/sampler/recognise.h"
#include "tests/prefetch/loader.h"
#include "tests/prefetch/orders.h"
#include "tests/shard/synth.h"

enum { CLASSES = 20, FILES = 10000, FEW = 3000, EPOCHS = 3 };

static const enum prefetch_shuffle_kind shuffles[] = { PREFETCH_SHUFFLE_NUMPY, PREFETCH_SHUFFLE_PYTHON,
	PREFETCH_SHUFFLE_NUMPY_RNG, PREFETCH_SHUFFLE_SAMPLE };
enum { SHUFFLES = sizeof(shuffles) / sizeof(shuffles[0]) };

struct job {
	enum prefetch_shuffle_kind kind;
	uint32_t seed, epoch, n, next;
	uint32_t at[FILES];
};

static void shuffle(struct job *job)
{
	order_of_seed(job->kind, job->seed + job->epoch, job->n, job->at);
	job->next = 0;
}

/* Two jobs on the same files.  The second one begins after so many opens of the first; then it opens `pace` files for
 * each file of the first, on average. */
struct pair {
	struct job jobs[2];
	uint32_t n, begin, pace, opens;
	uint64_t random;
	struct shard_index *dataset;
	struct prefetch_recognise *r;
};

static void begin_pair(struct pair *pair, uint32_t n, enum prefetch_shuffle_kind kind, uint32_t seed, uint32_t other)
{
	pair->n = n;
	pair->opens = 0;
	pair->dataset = synth_open(&(struct synth){ .classes = CLASSES, .per_class = n / CLASSES, .bytes = 1 });
	struct prefetch_recognise_options options = { .index = pair->dataset, .seed_max = 6000, .popular_words = 1 };
	assert_int_equal(prefetch_recognise_new(&options, &pair->r), 0);
	for (unsigned j = 0; j < 2; j++) {
		struct job *job = &pair->jobs[j];
		job->kind = kind;
		job->seed = j == 0 ? seed : other;
		job->n = n;
		job->epoch = 0;
		shuffle(job);
	}
}

static void end_pair(struct pair *pair)
{
	prefetch_recognise_free(pair->r);
	synth_close(pair->dataset);
}

static void open_next(struct pair *pair)
{
	struct job *jobs = pair->jobs;
	bool second = pair->opens >= pair->begin && loader_random(&pair->random) % (1 + pair->pace) > 0;
	if (jobs[second].epoch == EPOCHS)
		second = !second;
	struct job *job = &jobs[second];
	prefetch_recognise_opened(pair->r, &job->at[job->next], 1);
	if (++pair->opens % 16 == 0)
		recognise_work(pair->r);
	if (++job->next == job->n) {
		job->epoch++;
		shuffle(job);
	}
}

/* Reads all epochs of both jobs, which must be followed, but `missed` opens of them. */
static void read_to_the_end(struct pair *pair, uint32_t missed)
{
	uint64_t followed = 0;
	struct prefetch_recognised track;
	while (pair->jobs[0].epoch < EPOCHS || pair->jobs[1].epoch < EPOCHS)
		open_next(pair);
	recognise_work(pair->r);
	for (unsigned t = 0; prefetch_recognise_get(pair->r, t, &track) == 0; t++) {
		assert_int_equal(track.repeated, 0);
		followed += track.opens;
	}
	assert_true(followed + missed >= 2 * EPOCHS * pair->n);
}

static void jobs_that_begin_together_are_told_apart(void **state)
{
	static const uint32_t begins[] = { 0, 40, 100 };
	static const uint32_t seeds[][2] = { { 5, 777 }, { 1500, 42 }, { 1500, 5000 } };
	enum { CASES = 3, OPENS_MAX = 288, MISSED_MAX = 2 * EPOCHS * FILES / 100 };
	static struct pair pair;
	(void)state;
	for (unsigned i = 0; i < SHUFFLES * CASES; i++) {
		const uint32_t *two = seeds[i % CASES];
		begin_pair(&pair, FILES, shuffles[i / CASES], two[0], two[1]);
		pair.begin = begins[(i + i / CASES) % CASES];
		pair.pace = 1;
		while (pair.opens < 512 && recognised_tracks(pair.r) < 2)
			open_next(&pair);
		if (pair.opens > OPENS_MAX + pair.begin)
			fail_msg("kind %u, seeds %u and %u, %u opens before: %u opens", shuffles[i / CASES], two[0],
			        two[1], pair.begin, pair.opens);
		read_to_the_end(&pair, MISSED_MAX);
		assert_int_equal(recognised_tracks(pair.r), 2);
		end_pair(&pair);
	}
}

/* Files that a track expects are none of the second job's that it does not.  So in the middle of an epoch these lie
 * where the epoch began, by chance, which is no epoch that begins again: set_epoch was not forgotten. */
static void a_second_job_is_no_epoch_that_begins_again(void **state)
{
	enum { BEGIN = 217, MISSED_MAX = 2 * EPOCHS * FEW / 20, CASES = 6 };
	static struct pair pair;
	(void)state;
	for (unsigned i = 0; i < CASES; i++) {
		begin_pair(&pair, FEW, PREFETCH_SHUFFLE_NUMPY_RNG, 440 + i, 3 * i);
		pair.begin = BEGIN;
		pair.pace = 2;
		pair.random = i;
		read_to_the_end(&pair, MISSED_MAX);
		end_pair(&pair);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(jobs_that_begin_together_are_told_apart),
		cmocka_unit_test(a_second_job_is_no_epoch_that_begins_again),
	};
	cmocka_set_test_filter(getenv("DDPFS_TEST")); /* a pattern, or NULL */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
