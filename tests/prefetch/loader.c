/* SPDX-License-Identifier: Apache-2.0 */
/* Trainers that open files as DataLoader workers do; tests/prefetch/loader.h first. */
#include "tests/prefetch/loader.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "prefetch/sampler/recognise_private.h"

uint64_t loader_random(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

void loader_rewind(struct loader *l, const uint32_t *files)
{
	uint32_t workers = l->workers ? l->workers : 1;
	l->files = files;
	for (uint32_t i = 0; i < l->ranks * workers; i++) {
		l->batch_of[i] = i % workers;
		l->in_batch[i] = 0;
		l->opened[i] = 0;
	}
}

/* The file a reader is at, UINT32_MAX when it has read all. */
static uint32_t file_at(const struct loader *l, uint32_t reader, uint32_t workers)
{
	uint64_t turn = (uint64_t)l->batch_of[reader] * l->batch + l->in_batch[reader];
	uint64_t position = turn * l->world + l->first + reader / workers;
	uint64_t end = ((uint64_t)l->n + l->world - 1) / l->world * l->world;
	return position < end ? l->files[position % l->n] : UINT32_MAX;
}

static bool may_go(const struct loader *l, uint32_t reader, uint32_t workers)
{
	uint32_t slowest = UINT32_MAX;
	for (uint32_t other = 0; other < l->ranks * workers; other++) {
		if (file_at(l, other, workers) != UINT32_MAX && l->batch_of[other] < slowest)
			slowest = l->batch_of[other];
	}
	return slowest == UINT32_MAX || l->batch_of[reader] < slowest + 2 * workers;
}

uint32_t loader_next(struct loader *l)
{
	uint32_t workers = l->workers ? l->workers : 1, readers = l->ranks * workers;
	uint32_t reader = l->reader;
	if (l->burst < 2 || loader_random(&l->random) % l->burst == 0)
		reader = (uint32_t)(loader_random(&l->random) % readers);
	for (uint32_t i = 0; i < readers; i++, reader = (reader + 1) % readers) {
		uint32_t file = file_at(l, reader, workers);
		if (file == UINT32_MAX || !may_go(l, reader, workers))
			continue;
		l->reader = reader;
		if (++l->opened[reader] < l->times)
			return file;
		l->opened[reader] = 0;
		if (++l->in_batch[reader] == l->batch) {
			l->in_batch[reader] = 0;
			l->batch_of[reader] += workers;
		}
		return file;
	}
	return UINT32_MAX;
}

void recognise_work(struct prefetch_recognise *recognise)
{
	int rc;
	while ((rc = prefetch_recognise_step(recognise, UINT64_C(1000000000))) > 0)
		;
	if (rc < 0) {
		fprintf(stderr, "the recogniser fails: %s\n", strerror(-rc));
		abort();
	}
}

unsigned recognised_tracks(const struct prefetch_recognise *recognise)
{
	return recognise->n_tracks;
}

struct prefetch_recognised only_track(const struct prefetch_recognise *recognise)
{
	struct prefetch_recognised track;
	assert_int_equal(recognised_tracks(recognise), 1);
	assert_int_equal(prefetch_recognise_get(recognise, 0, &track), 0);
	return track;
}

uint32_t open_until_ready(struct prefetch_recognise *recognise, const uint32_t *files, uint32_t n)
{
	struct prefetch_recognised track;
	for (uint32_t i = 0; i < n; i++) {
		prefetch_recognise_opened(recognise, &files[i], 1);
		if (i % 16 == 15)
			recognise_work(recognise);
		if (prefetch_recognise_get(recognise, 0, &track) == 0 && track.ready)
			return i + 1;
	}
	return n + 1;
}

struct prefetch_searched searched(const struct prefetch_recognise *recognise)
{
	struct prefetch_searched now;
	prefetch_recognise_searched(recognise, &now);
	return now;
}
