/* SPDX-License-Identifier: Apache-2.0 */
/* When the search for an order rests: all files that are opened are in memory, so a known order would make no open
 * faster.
 *
 * The engine's reads tell it. The engine reads what readers miss, what a known order needs next, and what a warm-up has
 * not read yet. If it read next to nothing while a thousand files were opened, they were in memory. With the read
 * after FS_SEARCH_REST_READS the rest ends.
 *
 * One read in 64 opens is little: the kernel takes back pages now and then (0.5% of opens were measured).
 *
 * Threads: one. */
#ifndef DDPFS_FS_SEARCH_REST_H
#define DDPFS_FS_SEARCH_REST_H

#include <stdbool.h>
#include <stdint.h>

enum {
	FS_SEARCH_REST_OPENS = 1024, /* opens with few reads: what is opened is in memory */
	FS_SEARCH_REST_READS = 16,   /* of the engine; more of them, and some of what is opened is not */
};

enum fs_search {
	FS_SEARCH_NEEDED, /* some of what is opened is not in memory, or nothing is known yet */
	FS_SEARCH_KEPT,   /* all of it is, but the search has another use */
	FS_SEARCH_RESTS,  /* all of it is */
};

/* {0} at first: the search is needed. */
struct fs_search_rest {
	uint64_t opens; /* since reads are counted */
	uint64_t reads; /* of the engine, when that began */
	enum fs_search search;
};

/* Takes in that @opens files more were opened, and how many reads the engine has done since the server began.
 * @may_rest: the search has no other use. Returns what the search does now. */
enum fs_search fs_search_rest_opened(struct fs_search_rest *rest, uint64_t opens, uint64_t reads, bool may_rest);

#endif
