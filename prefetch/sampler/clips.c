/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the runs of opens that end; prefetch/sampler/clips.h first. */
#include "prefetch/sampler/clips.h"

#include <stdlib.h>

#include "shard/base/list.h"

enum {
	STALE = CLIPS_RUNS - 1, /* opens of others after which a run has ended */
	NEAR = 256,             /* files: the batch of another worker, who may soon meet it, so it says nothing */
	LONG = 2048,            /* files: how far a run reaches back, or that of a whole epoch would meet all others */
	ENDED_MIN = 64,         /* files in ended runs that tell something */
	ENDED_MAX = 512,        /* of so many ended files the earlier ones count half */
};

static bool lie_within(const struct prefetch_clips_run *a, const struct prefetch_clips_run *b, uint32_t files)
{
	return a->first <= b->last + (uint64_t)files && b->first <= a->last + (uint64_t)files;
}

static void end_run(struct prefetch_clips *clips, uint32_t i)
{
	const struct prefetch_clips_run run = clips->runs[i];
	uint32_t files = run.files;
	clips->runs[i] = clips->runs[--clips->n_runs];
	for (uint32_t k = 0; k < clips->n_runs; k++) {
		if (lie_within(&run, &clips->runs[k], NEAR))
			return;
	}
	clips->ended += files;
	if (files >= CLIPS_FILES_MIN && files <= CLIPS_FILES_MAX && run.in_order * 4 >= files * 3)
		clips->in_clips += files;
	if (clips->ended >= ENDED_MAX) {
		clips->ended /= 2;
		clips->in_clips /= 2;
	}
	if (clips->ended < ENDED_MIN)
		return;
	/* Other readers may open single files beside. */
	if (clips->in_clips * 4 >= clips->ended * 3)
		clips->opened = true;
	else if (clips->in_clips * 2 < clips->ended)
		clips->opened = false;
}

void prefetch_clips_opened(struct prefetch_clips *clips, uint32_t file)
{
	struct prefetch_clips_run run = { .first = file, .last = file, .files = 1, .at = ++clips->opens };
	bool in_order = true;
	for (uint32_t i = clips->n_runs; i-- > 0;) {
		const struct prefetch_clips_run *other = &clips->runs[i];
		if (!lie_within(other, &run, CLIPS_STEP_MAX))
			continue;
		in_order &= file > other->last;
		run.first = other->first < run.first ? other->first : run.first;
		run.last = other->last > run.last ? other->last : run.last;
		run.files += other->files;
		run.in_order += other->in_order;
		clips->runs[i] = clips->runs[--clips->n_runs];
	}
	run.in_order += in_order;
	run.first = run.last - run.first > LONG ? run.last - LONG : run.first;
	/* There is room: each of the others has one of the STALE opens before. */
	clips->runs[clips->n_runs++] = run;
	for (uint32_t i = clips->n_runs; i-- > 0;) {
		if (clips->opens - clips->runs[i].at >= STALE)
			end_run(clips, i);
	}
}

bool prefetch_clips_longer(uint64_t *positions, uint32_t n)
{
	uint32_t begin = 0, in_longer = 0;
	qsort(positions, n, sizeof(*positions), base_compare_u64);
	for (uint32_t i = 1; i <= n; i++) {
		if (i < n && positions[i] - positions[i - 1] <= CLIPS_STEP_MAX)
			continue;
		in_longer += i - begin > CLIPS_LONGER ? i - begin : 0;
		begin = i;
	}
	return in_longer * 2 > n;
}
