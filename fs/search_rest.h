/* SPDX-License-Identifier: Apache-2.0 */
/* When the search for an order rests: all files that are opened are in memory.
 *
 * Then an order that is recognised spares no wait. The engine's reads tell it: it reads what readers miss, what a known
 * order needs next, and what a warm-up has not read yet. If it read next to nothing while thousands of files were
 * opened, they were in memory. The rest ends with the read after FS_SEARCH_REST_READS.
 *
 * One read in 64 opens is little: the kernel takes back pages now and then (0.5% of opens were measured).
 *
 * Threads: one. */
#ifndef DDPFS_FS_SEARCH_REST_H
#define DDPFS_FS_SEARCH_REST_H

#include <stdbool.h>
#include <stdint.h>

enum {
	FS_SEARCH_REST_OPENS = 4096, /* opens with few reads, after which the search rests */
	FS_SEARCH_REST_READS = 64,   /* of the engine: more in these opens, or in a rest, and the search goes on */
};

/* {0} at first: the search does not rest. */
struct fs_search_rest {
	uint64_t opens; /* since the stretch began in which reads are counted */
	uint64_t reads; /* of the engine, when it began */
	bool rests;
};

/* Takes in that so many files more were opened, and the reads of the engine until now. Returns whether the search
 * rests. */
bool fs_search_rest_opened(struct fs_search_rest *rest, uint64_t opens, uint64_t reads);

#endif
