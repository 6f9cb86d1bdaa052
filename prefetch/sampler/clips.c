/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the runs of opens that end; prefetch/sampler/clips.h first. */
#include "prefetch/sampler/clips.h"

#include <assert.h>
#include <math.h>

enum {
	STALE = CLIPS_RUNS - 1, /* opens of others after which a run has ended */
	QUIET = 24,             /* ... after which it seems to have ended */
	NEAR = 256,             /* files: the batch of another worker, who may soon meet it, so it says nothing */
	LONG = 2048,            /* files: how far a run reaches back, or that of a whole epoch would meet all others */
	ENDED_MIN = 64,         /* files in ended runs that tell something */
	ENDED_MAX = 512,        /* of so many ended files the earlier ones count half */
};
/* The nats of 1 in 100, and of 1 in 10,000. */
static const double CHANCE_NATS = 4.6, CHANCE_ENDED_NATS = 9.2;

static bool is_clip(const struct prefetch_clips_run *run)
{
	return run->files >= CLIPS_FILES_MIN && run->files <= CLIPS_FILES_MAX && run->in_order * 4 >= run->files * 3;
}

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
	if (is_clip(&run))
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

/* Adds a file to the runs that it joins, which become one, the last of `runs`.  There is room for one more. */
static struct prefetch_clips_run *join(struct prefetch_clips_run *runs, uint32_t *n_runs, uint32_t file)
{
	struct prefetch_clips_run run = { .first = file, .last = file, .files = 1 };
	bool in_order = true;
	for (uint32_t i = *n_runs; i-- > 0;) {
		const struct prefetch_clips_run *other = &runs[i];
		if (!lie_within(other, &run, CLIPS_STEP_MAX))
			continue;
		in_order &= file > other->last;
		run.first = other->first < run.first ? other->first : run.first;
		run.last = other->last > run.last ? other->last : run.last;
		run.files += other->files;
		run.in_order += other->in_order;
		runs[i] = runs[--*n_runs];
	}
	run.in_order += in_order;
	runs[*n_runs] = run;
	return &runs[(*n_runs)++];
}

void prefetch_clips_opened(struct prefetch_clips *clips, uint32_t file)
{
	/* There is room: each of the others has one of the STALE opens before. */
	struct prefetch_clips_run *run = join(clips->runs, &clips->n_runs, file);
	run->at = ++clips->opens;
	run->first = run->last - run->first > LONG ? run->last - LONG : run->first;
	for (uint32_t i = clips->n_runs; i-- > 0;) {
		if (clips->opens - clips->runs[i].at >= STALE)
			end_run(clips, i);
	}
}

/* What runs the opens make, however long ago. */
struct counted {
	uint32_t clips;  /* runs that look like clips */
	uint32_t longer; /* files in longer runs */
	bool ended;      /* one that looks like a clip had no file in the latest QUIET opens */
};

static struct counted count_runs(const uint32_t *files, uint32_t n, uint32_t most)
{
	struct prefetch_clips_run runs[CLIPS_OPENS_MAX];
	struct counted counted = { 0 };
	uint32_t n_runs = 0;
	assert(n <= CLIPS_OPENS_MAX);
	for (uint32_t i = 0; i < n; i++)
		join(runs, &n_runs, files[i])->at = i;
	for (uint32_t i = 0; i < n_runs; i++) {
		counted.clips += is_clip(&runs[i]);
		counted.ended |= is_clip(&runs[i]) && n - runs[i].at > QUIET;
		counted.longer += runs[i].files > most ? runs[i].files : 0;
	}
	return counted;
}

bool prefetch_clips_short(const uint32_t *files, uint32_t n)
{
	return count_runs(files, n, CLIPS_LONGER).longer * 2 <= n;
}

bool prefetch_clips_by_chance(const uint32_t *files, uint32_t n, const uint32_t *inside, uint32_t n_inside,
        const struct prefetch_clips_window *window)
{
	const uint32_t k = count_runs(files, n, CLIPS_FILES_MAX).clips;
	const struct counted counted = count_runs(inside, n_inside, CLIPS_FILES_MAX);
	const uint32_t m = counted.clips;
	if (k < 2 || m == 0 || counted.longer * 2 > n_inside)
		return false;
	const double begins = window->begins > m ? log(window->begins / m) : 0;
	double nats = (m - 1) * log(window->times) + begins;
	for (uint32_t i = 0; i < m && i < k; i++)
		nats -= log((double)(k - i) / (i + 1));
	return nats < (counted.ended && begins == 0 ? CHANCE_ENDED_NATS : CHANCE_NATS);
}
