/* SPDX-License-Identifier: Apache-2.0 */
/* Private to index*.c: finds out whether the file of an open index has changed since it was opened.
 *
 * The mapping shows what is in the file now, so a write into the file changes pieces that were verified.  A write
 * changes mtime and ctime before it changes bytes.  So a check of the times *after* records were read says whether they
 * were right:
 *
 *     size or mtime differ   The file was written.  The index stays stale.
 *     only ctime differs     chmod, chown, link or rename; or a copy that set the old mtime again.  All pieces that are
 *                            marked verified are verified again, against sums in private memory.  If they are equal,
 *                            the index is right; if not, it stays stale.
 *
 * Times advance in ticks.  A later write in the same tick has the same ctime.  So each check verifies again until the
 * ctime was first seen more than a tick ago.  The monotonic clock measures that, because the clock of the file system
 * may be another host's.
 *
 * The file is that of the open descriptor.  If rename(2) puts another file under its name, nothing changes here.
 *
 * Not detected: a store through a writable mapping of the file, into a page that was dirty already when the index was
 * opened; a file that was overwritten and restored, bytes and mtime, between two checks; a write by another host, until
 * the network file system asks for the attributes again. */
#ifndef DDPFS_SHARD_INDEX_CHANGE_H
#define DDPFS_SHARD_INDEX_CHANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

struct shard_index;
struct index_change; /* opaque; NULL: the index is not in a file */

/* Begins to follow a file.  `st` is that of fd, taken before the file was read.  Owns fd on success.  Returns 0 or
 * -ENOMEM. */
int index_change_new(int fd, const struct stat *st, struct index_change **ret_change);
void index_change_free(struct index_change *change); /* closes the descriptor; NULL is allowed */

/* From now on shard_index_fault knows that [map, map + len) is a mapping of this file. */
void index_change_watch_faults(struct index_change *change, uint8_t *map, size_t len);

/* Says whether a change was found; false for NULL.  Makes no system call.  Any thread. */
bool index_change_is_stale(const struct index_change *change);

/* Counts how often the marked pieces were verified again; 0 for NULL. */
uint64_t index_change_rounds(const struct index_change *change);

/* Marks a piece as verified: sets bit i of `bits`.  `rounds` is index_change_rounds() before the piece was verified.
 * If it has changed, a round missed this piece: the function marks nothing and returns false, and the caller verifies
 * the piece again. */
bool index_change_mark(struct index_change *change, uint64_t rounds, _Atomic uint64_t *bits, uint64_t i);

#endif
