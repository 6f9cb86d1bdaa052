/* SPDX-License-Identifier: Apache-2.0 */
/* What ran when in an epoch, as a picture: an SVG that a browser shows, a row each for copies, computing and sums.
 *
 *     copy        | 0 | 1 | 2 |        time goes right; batches alternate in shade; pointing at a bar tells its batch and times
 *     compute       | 0   | 1   |
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
	TIMELINE_BATCHES_MAX = 256, /* of the epoch's beginning: what a person looks at */
	TIMELINE_BARS = 5,          /* of a batch: copy; forward and backward; two sums; update */
};

struct timeline_bar {
	enum timeline_row row;
	uint32_t batch;
	double begin_s, end_s; /* from the epoch's begin on */
};

struct timeline {
	struct timeline_bar bars[TIMELINE_BATCHES_MAX * TIMELINE_BARS]; /* by batch; of a row, by time */
	uint32_t n;
};

struct timeline_idle {
	double total_s; /* from the epoch's begin to its last bar */
	double data_s;  /* of that computing stood still, and the batch had not been copied yet */
	double other_s; /* ... and it had: the host had not queued more */
};

/* The bars of a batch: all of its, after those of the batch before. */
void timeline_add(struct timeline *t, enum timeline_row row, uint32_t batch, double begin_s, double end_s);

void timeline_idle(const struct timeline *t, struct timeline_idle *ret_idle);

/* `title`: a line of text without < and &.  False: not all of it was written. */
bool timeline_write(const struct timeline *t, const char *title, FILE *file);

#endif
