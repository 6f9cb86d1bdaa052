/* SPDX-License-Identifier: Apache-2.0 */
/* Traces: where a shuffle puts the opened files, and whether a seed can be the right one.
 *
 * Most libraries shuffle backwards, so the first files of an epoch are final last (prefetch/sampler/shuffle.h).  A
 * whole shuffle of 10^5 files takes half a millisecond, too long for each of 10^4 seeds.  But a wrong seed shows soon:
 *
 *   After step i, cell i is final.  A reader's opens lie together: at the beginning, or where a rank's part begins.
 *   So under the right seed most steps make no opened file final, and then nearly every step does.  Under a wrong
 *   seed, each step makes one final with the probability opens / files.
 *
 * prefetch_trace_try() counts the steps from one opened file that becomes final to the next, and compares both
 * explanations (a sequential probability ratio test).  A wrong seed ends after about three gaps, which is 3 x files /
 * opens steps: 3,000 of 10^5 with 96 opens.  The test needs one bit for each file, because files that were not opened
 * are all alike.  One open in ten may be another reader's.
 *
 *   A quick test gives up a seed after one gap, in most cases, which are 1,400 steps.  Then a single open of another
 *   reader that becomes final early hides the right seed, so seeds are tried quickly first, and then again.
 *
 *   Of a list with few files for each open only the first opens are tested, one for 16 files, but 64 at least.  If the
 *   gaps were smaller, right and wrong seeds would look alike.
 *
 *   A shared test finds two jobs side by side.  Half of the opens are the other job's, and become final anywhere.  So
 *   under the right seed one becomes final half as often as under a wrong one.  That takes about 26 gaps to see.
 *
 * Threads: any, one at a time for each object. */
#ifndef DDPFS_PREFETCH_SAMPLER_SHUFFLE_TRACE_H
#define DDPFS_PREFETCH_SAMPLER_SHUFFLE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "prefetch/sampler/shuffle.h"

struct prefetch_trace; /* opaque */

enum { PREFETCH_TRACE_OPENED_MAX = 512 };

/* Makes a trace for lists of `n` files at most.  It takes about 2 bytes a file.  seeded: outlives the trace; traces of
 * the same thread share it; NULL if no seed is tried.  Returns 0 or -ENOMEM. */
int prefetch_trace_new(uint32_t n, struct prefetch_seeded *seeded, struct prefetch_trace **ret_trace);
void prefetch_trace_free(struct prefetch_trace *trace); /* NULL is fine */
uint32_t prefetch_trace_room(const struct prefetch_trace *trace);

/* Sets the list and the opened files.  cells: distinct, below n, of each opened file; n_opened: 1 ..
 * PREFETCH_TRACE_OPENED_MAX.  n: 2 .. the trace's room. */
void prefetch_trace_set(struct prefetch_trace *trace, uint32_t n, const uint32_t *cells, uint32_t n_opened);

enum prefetch_trace_test { PREFETCH_TRACE_PATIENT, PREFETCH_TRACE_QUICK, PREFETCH_TRACE_SHARED, PREFETCH_TRACE_TESTS };

/* Whether the list is so short that no seed is tested: prefetch_trace_try() returns true for each.  No list of 512
 * files or more is. */
bool prefetch_trace_is_short(const struct prefetch_trace *trace);

/* Returns whether this seed can be the right one.  kind: TORCH, NUMPY, NUMPY_RNG or PYTHON (which does for SAMPLE).
 * A shared test does not find TORCH and SAMPLE, whose first files are final first.  Adds the steps that it did to
 * *steps. */
bool prefetch_trace_try(struct prefetch_trace *trace, enum prefetch_shuffle_kind kind, uint64_t seed,
        enum prefetch_trace_test test, uint64_t *steps);

/* Does the whole shuffle.  Writes the position of each opened file, in the order of `cells`. */
void prefetch_trace_positions(
        struct prefetch_trace *trace, struct prefetch_rng *rng, enum prefetch_shuffle_kind kind, uint64_t *positions);

#endif
