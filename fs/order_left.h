/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the readers have left the orders that are known: one has another seed in its next epoch than was expected, or
 * draws with replacement what first looked like a permutation. Of 3,000 files opened at random, 5 to 20% seem to fit an
 * order by chance. No lock: one thread. */
#ifndef DDPFS_FS_ORDER_LEFT_H
#define DDPFS_FS_ORDER_LEFT_H

#include <stdbool.h>
#include <stdint.h>

enum {
	FS_ORDER_LEFT_OPENS = 512, /* of so many opens ... */
	FS_ORDER_LEFT_SHARE = 4,   /* ... at least one in so many must be in a known order, else they are left ... */
	FS_ORDER_LEFT_BACK = 2,    /* ... until one in so many is */
};

struct fs_order_left {
	bool left;
	uint64_t opens, explained, orders; /* as they were when the latest opens began */
};

/* Takes in how many files were opened since the search began, and how many of these were in a known order. The files
 * of a sample that are opened together count once. orders: what is known, as a number that changes with it; 0: nothing.
 * Returns whether the known orders are left. Zero is a new search. */
bool fs_order_left_update(struct fs_order_left *left, uint64_t opens, uint64_t explained, uint64_t orders);

#endif
