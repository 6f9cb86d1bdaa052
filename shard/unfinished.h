/* SPDX-License-Identifier: Apache-2.0 */
/* An unfinished packing: the directory in which `mkshard pack` makes a dataset (DATASET.partial) until its index is
 * there.  What is in it is no dataset: shards are missing.
 *
 *   journal   which shards are complete (tools/mkshard/journal.c); from before the first shard until the dataset
 *             has its name
 *   command   text: the directory in which `mkshard pack` ran, a newline, the command, a newline
 *
 * Threads: any. */
#ifndef DDPFS_SHARD_UNFINISHED_H
#define DDPFS_SHARD_UNFINISHED_H

#include "shard/base/err.h"

#define SHARD_UNFINISHED_JOURNAL "journal"
#define SHARD_UNFINISHED_MAGIC "DDPFSJ1" /* the first bytes of a journal, NUL included */
#define SHARD_UNFINISHED_COMMAND "command"

/* Is `dir` something else than an unfinished packing?  Returns 0 (also when `dir` cannot be looked into), or -ENOENT
 * with a sentence that has the command that goes on. */
int shard_unfinished_check(const char *dir, struct base_err *err);

#endif
