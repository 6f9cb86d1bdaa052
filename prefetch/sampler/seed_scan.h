/* SPDX-License-Identifier: Apache-2.0 */
/* The seed of a RandomSampler that nobody seeded: all 2^32 are tried.
 *
 * shuffle=True without a generator draws 64 random bits for each epoch (RandomSampler.__iter__ in
 * torch/utils/data/sampler.py), and the generator takes 32 of them (ATen/core/MT19937RNGEngine.h): whoever has seen the
 * first opens can look for the one permutation that begins with them.
 *
 * Word 0 of a generator needs 397 steps of its seeding, word 7 seven more; hundreds of seeds go side by side.  Of a seed's
 * first PREFETCH_SEED_SCAN_OUTPUTS outputs all but PREFETCH_SEED_SCAN_MISSES must be among the opens, or it is left.  What
 * is left over is for the caller to hold against the opens exactly (prefetch/sampler/fit.h).
 *
 * Cost: tests/bench/run recognise_bench tells it; 2^32 seeds are about 70 CPU seconds with AVX2.
 *
 * Threads: `threads` of its own, at the lowest priority (nice 19); the functions are the caller's, one at a time. */
#ifndef DDPFS_PREFETCH_SAMPLER_SEED_SCAN_H
#define DDPFS_PREFETCH_SAMPLER_SEED_SCAN_H

#include <stdbool.h>
#include <stdint.h>

enum {
	PREFETCH_SEED_SCAN_OUTPUTS = 8,
	PREFETCH_SEED_SCAN_MISSES = 1,
	PREFETCH_SEED_SCAN_LISTS_MAX = 32,
	PREFETCH_SEED_SCAN_SHARE =
	        8, /* opens may be an eighth of a list's files; of a smaller list too many seeds are left over */
	PREFETCH_SEED_SCAN_THREADS_MAX = 64,
};

struct prefetch_seed_scan; /* opaque */

/* The files that were opened, as one list numbers them. */
struct prefetch_seed_scan_list {
	uint32_t n;              /* files of the list, at least 2 * PREFETCH_SEED_SCAN_OUTPUTS */
	const uint32_t *indices; /* not kept */
	uint32_t n_indices;      /* at most n / PREFETCH_SEED_SCAN_SHARE */
};

/* Begins with seed `first`, and wraps.  threads: 1 .. PREFETCH_SEED_SCAN_THREADS_MAX; fewer are taken when they cannot be had.
 * -EINVAL, -ENOMEM, -EAGAIN (not one thread). */
int prefetch_seed_scan_new(const struct prefetch_seed_scan_list *lists, uint32_t n_lists, uint32_t first,
        unsigned threads, struct prefetch_seed_scan **ret_scan);
/* Waits for its threads, microseconds where they get a processor.  NULL is fine. */
void prefetch_seed_scan_free(struct prefetch_seed_scan *scan);

/* Returns 1 and a seed that the filter left over, and for which list; 0 when there is none at the moment; -ENOENT when all
 * seeds were tried and all that were left over have been handed out. */
int prefetch_seed_scan_next(struct prefetch_seed_scan *scan, uint32_t *ret_list, uint32_t *ret_seed);

uint64_t prefetch_seed_scan_tried(const struct prefetch_seed_scan *scan);  /* of 2^32 */
uint64_t prefetch_seed_scan_cpu_ns(const struct prefetch_seed_scan *scan); /* of all threads */

#endif
