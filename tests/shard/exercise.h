/* SPDX-License-Identifier: Apache-2.0 */
/* Calls every accessor of an index with every id (up to a bound), whatever it holds: for hostile contents.  Results do
 * not matter; that strings lie inside memory does, so their bytes are read. */
#ifndef DDPFS_TESTS_SHARD_EXERCISE_H
#define DDPFS_TESTS_SHARD_EXERCISE_H

#include "shard/index.h"

/* Returns a sum over what was read, so that no compiler leaves the reading out. */
uint64_t exercise_index(const struct shard_index *index);

#endif
