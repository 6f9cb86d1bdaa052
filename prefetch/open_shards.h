/* SPDX-License-Identifier: Apache-2.0 */
/* The table of open shards.  Its size is bounded: the shard that was unused longest is closed first.  The number of
 * an entry is that of the ring's table of registered files.
 *
 * Threads: the engine thread.  Any thread may call prefetch_shards_find and prefetch_shards_release; one lock, a
 * leaf. */
#ifndef DDPFS_PREFETCH_OPEN_SHARDS_H
#define DDPFS_PREFETCH_OPEN_SHARDS_H

#include "prefetch/io_backend.h"
#include "prefetch/source.h"

struct prefetch_shards; /* opaque */

/* Makes a table for `max` open shards (1 .. PREFETCH_SHARDS_MAX).  source, io: not owned; they outlive the table.
 * Returns 0 or -ENOMEM. */
int prefetch_shards_new(struct prefetch_source *source, struct prefetch_io_backend *io, uint32_t max,
        struct prefetch_shards **ret_files);
/* Closes all shards and frees the table.  No entry may be in use.  NULL is fine. */
void prefetch_shards_free(struct prefetch_shards *files);

/* Gives the number of a shard's entry, and opens the shard if it is not open.  The entry is in use until
 * prefetch_shards_put.
 * Returns 0, -EBUSY (all entries are in use: try again after a put) or an error of prefetch_source_ops.open. */
int prefetch_shards_get(struct prefetch_shards *files, uint32_t shard, uint32_t *ret_entry);
/* Ends a use of an entry. */
void prefetch_shards_put(struct prefetch_shards *files, uint32_t entry);

/* Gives the number of a shard's entry if the shard is open.  The entry is in use until prefetch_shards_release.  The
 * caller reads `fd` and `align` of its object only.  Opens nothing.
 * Returns 0 or -ENOENT. */
int prefetch_shards_find(struct prefetch_shards *files, uint32_t shard, uint32_t *ret_entry);
void prefetch_shards_release(struct prefetch_shards *files, uint32_t entry);

/* Returns the object of an entry, valid while the entry is in use. */
struct prefetch_object *prefetch_shards_object(struct prefetch_shards *files, uint32_t entry);

/* Checks whether a shard is still what the index describes.  If not, the shard is opened again at its next use.
 * wrong: see prefetch_source_ops.check.
 * Returns 0, or an error of prefetch_source_ops.check (-ESTALE: it has changed). */
int prefetch_shards_check(struct prefetch_shards *files, uint32_t entry, bool wrong);

/* Returns how many shards this process may keep open: a quarter of RLIMIT_NOFILE, 4 .. PREFETCH_SHARDS_MAX. */
uint32_t prefetch_shards_limit(void);

/* Turns O_DIRECT off for an object.  Reads in flight on its descriptor are not disturbed.
 * Returns false when it had no O_DIRECT, or fcntl(2) failed. */
bool prefetch_shards_leave_direct(struct prefetch_object *object);

/* From now on all shards, those that are open and those that will be, are read through the page cache. */
void prefetch_shards_buffer(struct prefetch_shards *files);

#endif
