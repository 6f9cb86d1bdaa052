/* SPDX-License-Identifier: Apache-2.0 */
/* A directory for the tier of a test: made before it, removed after it; and a short form of storing. */
#ifndef DDPFS_TESTS_CACHE_TIER_DIR_H
#define DDPFS_TESTS_CACHE_TIER_DIR_H

#include "cache/tier.h"

extern char tier_dir[64], tier_file[80]; /* the directory; the tier's file in it */

/* For cmocka_unit_test_setup_teardown. The second one also restores base_io. */
int tier_dir_set_up(void **state);
int tier_dir_tear_down(void **state);

/* Stores one block. */
static inline int cache_tier_put(struct cache_tier *tier, const struct cache_tier_block *block, const void *data)
{
	return cache_tier_put_all(tier, block, 1, data);
}

#endif
