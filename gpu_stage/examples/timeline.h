/* SPDX-License-Identifier: Apache-2.0 */
/* Draws what ran when in an epoch: an SVG that a browser shows, with a row each for copies, computing and sums.
 *
 *     copy        | 0 | 1 | 2 |        time goes right; batches alternate in shade;
 *     compute       | 0   | 1   |       pointing at a bar shows its batch and times
 *     all-reduce       |0|   |1|
 *
 * Threads: one. */
#ifndef DDPFS_GPU_STAGE_EXAMPLES_TIMELINE_H
#define DDPFS_GPU_STAGE_EXAMPLES_TIMELINE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum timeline_row { TIMELINE_COPY, TIMELINE_COMPUTE, TIMELINE_SUM, TIMELINE_ROWS };

enum {
	TIMELINE_BATCHES_MAX = 256, /* drawn batches, from the epoch's beginning on */
	TIMELINE_BARS = 5,          /* of a batch: copy; forward and backward; two sums; update */
};

struct timeline_bar {
	enum timeline_row row;
	uint32_t batch;
	double begin_s, end_s; /* seconds from the epoch's begin */
};

struct timeline {
	struct timeline_bar bars[TIMELINE_BATCHES_MAX * TIMELINE_BARS]; /* by batch; in a row, by time */
	uint32_t n;
};

struct timeline_idle {
	double total_s; /* from the epoch's begin to the end of its last bar */
	double data_s;  /* of that, computing stood still because the batch was not copied yet */
	double other_s; /* of that, computing stood still although the batch was there: the host had not queued more */
};

/* Adds a bar.  All bars of a batch come before those of the next. */
void timeline_add(struct timeline *t, enum timeline_row row, uint32_t batch, double begin_s, double end_s);

/* Computes how long computing stood still. */
void timeline_idle(const struct timeline *t, struct timeline_idle *ret_idle);

/* Writes the SVG.  title: a line of text without < and &.  Returns false if not all was written. */
bool timeline_write(const struct timeline *t, const char *title, FILE *file);

#endif
