/* SPDX-License-Identifier: Apache-2.0 */
/* Private to index*.c: whether the file of an open index is still what it was when it was opened.
 *
 * The mapping follows the file, so somebody who writes into the file changes verified blocks.  A write moves mtime
 * and ctime before it moves bytes.  So a look at them *behind* the use of records says whether the records were
 * right:
 *
 *     size or mtime differ   the file was written: the index is stale for good
 *     only ctime differs     chmod, chown, link, rename; or a copy that set the old mtime back.  All blocks that are marked verified
 *                            are verified again, against sums in private memory: equal, go on; different, stale for good
 *
 * Times move in ticks.  A ctime that was first seen less than a tick ago may be that of a later write as well, so
 * until it is older each look verifies again.  It goes by the monotonic clock since that first sight: the file
 * system's clock may be another host's.
 *
 * The file is the open descriptor's: another one that takes its name by rename(2) changes nothing here.
 *
 * Not seen: a store through a writable mapping of the file into a page that was dirty already when the index was
 * opened; a file that was overwritten and put back, bytes and mtime, between two looks; a write by another host
 * before the network file system has asked for the attributes again. */
#ifndef DDPFS_SHARD_INDEX_CHANGE_H
#define DDPFS_SHARD_INDEX_CHANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

struct shard_index;
struct index_change; /* opaque; NULL: the bytes of the index are not a file's */

/* st: of fd, taken before anything of the file was read.  Takes fd on success.  -ENOMEM. */
int index_change_new(int fd, const struct stat *st, struct index_change **ret_change);
void index_change_free(struct index_change *change); /* NULL is fine */

/* A fault in [map, map + len) is this file's from now on (shard_index_fault). */
void index_change_watch_faults(struct index_change *change, uint8_t *map, size_t len);

bool index_change_is_stale(const struct index_change *change); /* NULL is fine: false; no system call */

/* Counts the times at which marked blocks were verified again: a block whose check began before one of them is
 * marked, and the count looked at behind that, or it may be missed (index_check_block). */
uint64_t index_change_rounds(const struct index_change *change);

#endif
