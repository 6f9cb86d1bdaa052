/* SPDX-License-Identifier: Apache-2.0 */
/* The seed scan: finds the seed of a RandomSampler that nobody seeded, by trying all 2^32.
 *
 * shuffle=True without a generator draws 64 random bits for each epoch (RandomSampler.__iter__ in
 * torch/utils/data/sampler.py), and the generator uses 32 of them (ATen/core/MT19937RNGEngine.h).  So the scan looks
 * for the one permutation that begins with the first opens of the epoch.
 *
 * Word 0 of a generator needs 397 steps of its seeding, word 7 seven more.  The scan computes hundreds of seeds side
 * by side.  A seed passes if all but PREFETCH_SEED_SCAN_MISSES of its first PREFETCH_SEED_SCAN_OUTPUTS outputs are
 * among the opens.  The caller compares the seeds that pass with the opens exactly (prefetch/sampler/fit.h).
 *
 * Cost: 2^32 seeds take about 70 CPU seconds with AVX2 (`tests/bench/run recognise_bench seeds`).
 *
 * Threads: the scan has `threads` of its own, at the lowest priority (nice 19).  The caller calls the functions, one
 * at a time. */
#ifndef DDPFS_PREFETCH_SAMPLER_SEED_SCAN_H
#define DDPFS_PREFETCH_SAMPLER_SEED_SCAN_H

#include <stdbool.h>
#include <stdint.h>

enum {
	PREFETCH_SEED_SCAN_OUTPUTS = 8,
	PREFETCH_SEED_SCAN_MISSES = 1,
	PREFETCH_SEED_SCAN_LISTS_MAX = 32,
	PREFETCH_SEED_SCAN_SHARE = 8, /* opens are at most an eighth of a list's files: of more, too many seeds pass */
	PREFETCH_SEED_SCAN_THREADS_MAX = 64,
};

struct prefetch_seed_scan; /* opaque */

/* The opened files, as one list numbers them. */
struct prefetch_seed_scan_list {
	uint32_t n;              /* files of the list, at least 2 * PREFETCH_SEED_SCAN_OUTPUTS */
	const uint32_t *indices; /* of the opened files; not kept */
	uint32_t n_indices;      /* at most n / PREFETCH_SEED_SCAN_SHARE */
};

/* Begins a scan with seed `first`; behind 2^32 - 1 comes 0.  n_lists: 1 .. PREFETCH_SEED_SCAN_LISTS_MAX.  threads:
 * 1 .. PREFETCH_SEED_SCAN_THREADS_MAX; if the system has fewer, the scan goes on with those.
 * Returns 0; -EINVAL: a number is out of range; -ENOMEM; -EAGAIN: the system has not one thread. */
int prefetch_seed_scan_new(const struct prefetch_seed_scan_list *lists, uint32_t n_lists, uint32_t first,
        unsigned threads, struct prefetch_seed_scan **ret_scan);
/* Ends its threads and frees it.  Waiting for them takes microseconds if they get a processor.  NULL is fine. */
void prefetch_seed_scan_free(struct prefetch_seed_scan *scan);

/* Gets the next seed that passed, and for which list.
 * Returns 1; 0: there is none at the moment; -ENOENT: all seeds were tried, and all that passed were returned. */
int prefetch_seed_scan_next(struct prefetch_seed_scan *scan, uint32_t *ret_list, uint32_t *ret_seed);

uint64_t prefetch_seed_scan_tried(const struct prefetch_seed_scan *scan);  /* seeds, of 2^32 */
uint64_t prefetch_seed_scan_cpu_ns(const struct prefetch_seed_scan *scan); /* of all its threads */

#endif
