/* SPDX-License-Identifier: Apache-2.0 */
/* When the search for an order rests: all files that are opened are in memory, or in an announced order, so what it
 * could find would make no open faster.
 *
 * The engine's reads tell what is in memory. The engine reads what readers miss, what a known order needs next, and
 * what a warm-up has not read yet. If it read next to nothing while a thousand files were opened, they were in memory.
 * With a dataset in a store that counts for nothing: each page that the kernel takes back is a wait for the store, and
 * only a known order finds these pages in time (prefetch/lost.c).
 *
 * The rest ends with more than FS_SEARCH_REST_FEW reads and as many opens that no announced order has. One in 64 opens
 * is little: the kernel takes back pages now and then (0.5% of opens were measured), and somebody lists or copies.
 *
 * Threads: one. */
#ifndef DDPFS_FS_SEARCH_REST_H
#define DDPFS_FS_SEARCH_REST_H

#include <stdbool.h>
#include <stdint.h>

enum {
	FS_SEARCH_REST_OPENS = 1024, /* as many are judged together */
	FS_SEARCH_REST_FEW = 16,     /* reads or unexplained opens that are next to none */
};

enum fs_search {
	FS_SEARCH_NEEDED, /* a known order would make some opens faster, or nothing is known yet */
	FS_SEARCH_KEPT,   /* it would not, but the search has another use */
	FS_SEARCH_RESTS,  /* it would not */
};

/* {0} at first: the search is needed. */
struct fs_search_rest {
	uint64_t opens;       /* that are judged together so far */
	uint64_t unexplained; /* of these */
	uint64_t reads;       /* of the engine, when the first of them came */
	enum fs_search search;
};

/* What was opened since the last call. */
struct fs_search_news {
	uint64_t opens;
	uint64_t unexplained; /* of these: no announced order has them */
	uint64_t reads;       /* of the engine since the server began */
	bool in_store;        /* the dataset is */
};

/* Takes in what was opened. @may_rest: the search has no other use. Returns what the search does now. */
enum fs_search fs_search_rest_opened(struct fs_search_rest *rest, const struct fs_search_news *news, bool may_rest);

#endif
