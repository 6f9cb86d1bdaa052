/* SPDX-License-Identifier: Apache-2.0 */
/* Trainers made up: DataLoader workers of several ranks, reading their batches side by side, as a sequence of opens.
 * And what a test asks the recogniser that sees these opens. */
#ifndef DDPFS_TESTS_PREFETCH_LOADER_H
#define DDPFS_TESTS_PREFETCH_LOADER_H

#include <stdint.h>

#include "prefetch/sampler/recognise.h"

enum { LOADER_READERS_MAX = 256 }; /* ranks x workers */

/* splitmix64 */
uint64_t loader_random(uint64_t *state);

struct loader {
	const uint32_t *files; /* of all ranks: the files of the positions of an epoch */
	uint32_t n;
	uint32_t world, first, ranks; /* which positions are read here: p % world in [first, first + ranks) */
	uint32_t workers, batch;      /* workers 0: one reader a rank */
	uint32_t burst;               /* files a reader reads in a row, about, before another comes; 0 = 1 */
	uint32_t times;               /* opens of each file before the reader goes on to the next; 0 = 1 */
	uint64_t random;
	/* private */
	uint32_t reader;
	uint32_t batch_of[LOADER_READERS_MAX], in_batch[LOADER_READERS_MAX], opened[LOADER_READERS_MAX];
};

/* The next file that is opened, or UINT32_MAX at the end of the epoch.  Workers go on at random, each at most two
 * batches ahead of the slowest, whichever rank's: the trainers exchange gradients at each step. */
uint32_t loader_next(struct loader *loader);
void loader_rewind(struct loader *loader, const uint32_t *files);

/* Lets the recogniser work until it waits for opens.  Ends the program if that fails. */
void recognise_work(struct prefetch_recognise *recognise);
/* Returns how many samplers are recognised. */
unsigned recognised_tracks(const struct prefetch_recognise *recognise);
/* Returns the only track.  The test fails if there is none, or more than one. */
struct prefetch_recognised only_track(const struct prefetch_recognise *recognise);
/* Opens up to n files until a track is ready; the recogniser works after each 16.  Returns how many; n + 1: none is
 * ready. */
uint32_t open_until_ready(struct prefetch_recognise *recognise, const uint32_t *files, uint32_t n);
/* Returns what searching has cost. */
struct prefetch_searched searched(const struct prefetch_recognise *recognise);

#endif
