/* SPDX-License-Identifier: Apache-2.0 */
/* Recognises an unfinished packing: the directory DATASET.partial, in which `mkshard pack` makes a dataset.  It is not
 * a dataset, because shards and the index are missing.
 *
 *   journal   the shards that are complete (tools/mkshard/journal.c).  It exists from before the first shard until the
 *             dataset gets its name.
 *   command   text: the directory in which `mkshard pack` ran, a newline, the command, a newline
 *
 * Threads: any. */
#ifndef DDPFS_SHARD_UNFINISHED_H
#define DDPFS_SHARD_UNFINISHED_H

#include "shard/base/err.h"

#define SHARD_UNFINISHED_JOURNAL "journal"
#define SHARD_UNFINISHED_MAGIC "DDPFSJ1" /* the first bytes of a journal, NUL included */
#define SHARD_UNFINISHED_COMMAND "command"

/* Checks that `dir` is not an unfinished packing.
 * Returns 0 if it is not, or if `dir` cannot be read; -ENOENT with a sentence if it is.  The sentence contains the
 * command that continues the packing, if the caller or root wrote it. */
int shard_unfinished_check(const char *dir, struct base_err *err);

#endif
