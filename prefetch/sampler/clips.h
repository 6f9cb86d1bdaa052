/* SPDX-License-Identifier: Apache-2.0 */
/* Clips: a trainer may open neighbouring files together, as the frames of a video, and the clips in random order.  Then
 * nearly every open follows the one before, as a sorted reader's do, but the next clip lies anywhere.
 *
 * What tells is where *runs* end.  The files of a run lie at most CLIPS_STEP_MAX apart.  Readers side by side have a
 * run each.  A sorted reader's runs go on, or meet another one: that of the worker with the next batch.  A clip's run
 * ends, and nobody opens what comes behind it.  Its files come in order, other than random ones that lie together.
 *
 * Threads: as prefetch/sampler/recognise.h. */
#ifndef DDPFS_PREFETCH_SAMPLER_CLIPS_H
#define DDPFS_PREFETCH_SAMPLER_CLIPS_H

#include <stdbool.h>
#include <stdint.h>

enum {
	CLIPS_RUNS = 64,
	CLIPS_STEP_MAX = 8,       /* files: clips of every 8th frame are usual; names may be read in order of numbers */
	CLIPS_FILES_MIN = 4,      /* of a clip */
	CLIPS_FILES_MAX = 64,     /* a longer one is worth reading ahead */
	CLIPS_LONGER = 128,       /* files in a run that are no clips: two clips may overlap */
	CLIPS_DATASET_MIN = 1024, /* files: in a smaller dataset random opens lie close together */
	CLIPS_OPENS_MAX = 512,    /* of prefetch_clips_by_chance */
};

/* Zero-initialised; the fields are clips.c's, but `opened`. */
struct prefetch_clips {
	bool opened; /* most opens of late were of clips */
	uint64_t opens;
	struct prefetch_clips_run {
		uint32_t first, last;     /* file ids */
		uint32_t files, in_order; /* in_order: those that came behind all files before */
		uint64_t at;              /* `opens` at its latest file */
	} runs[CLIPS_RUNS];
	uint32_t n_runs;
	uint32_t ended, in_clips; /* files of the runs that have ended; of these, files of clips; both fade */
};

/* Takes in an open. */
void prefetch_clips_opened(struct prefetch_clips *clips, uint32_t file);

/* Returns whether at most half of these files lie in runs of more than CLIPS_LONGER. */
bool prefetch_clips_short(const uint32_t *files, uint32_t n);

/* Where the opens that fit a sorted list lie in it. */
struct prefetch_clips_window {
	double times;  /* the list is so many times as long */
	double begins; /* at the beginning of the list: one clip of so many would begin there; else 1 */
};

/* Before enough runs have ended, a few clips that lie close together look like a sorted reader with workers.
 *
 * Suppose that all runs are clips and lie anywhere.  Of k clips, m lie in some window of that length with a probability
 * of at most C(k, m) / times^(m - 1), and the first of them at its beginning with m / begins.  Returns whether that is
 * more than 1 in 100: then the opens do not tell a sorted reader.  If one of the m seems to have ended, as a sorted
 * reader's runs seldom do, and they are not at the beginning, it must be 1 in 10,000.  A single run tells a sorted
 * reader, and so do runs longer than CLIPS_FILES_MAX.  So two workers who begin in the middle of a dataset of less than
 * 5,000 files are recognised after 192 opens in place of 48.
 *
 * files: the opens, in their order, distinct, at most CLIPS_OPENS_MAX; inside: those in the window. */
bool prefetch_clips_by_chance(const uint32_t *files, uint32_t n, const uint32_t *inside, uint32_t n_inside,
        const struct prefetch_clips_window *window);

#endif
