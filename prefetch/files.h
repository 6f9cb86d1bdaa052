/* SPDX-License-Identifier: Apache-2.0 */
/* Open shards: a bounded table, the longest unused closed first.  Slot numbers are those of the ring's file table.
 * Threads: the engine thread only. */
#ifndef DDPFS_PREFETCH_FILES_H
#define DDPFS_PREFETCH_FILES_H

#include "prefetch/io_backend.h"
#include "prefetch/source.h"

struct prefetch_files; /* opaque */

/* max: shards open at once (1 .. PREFETCH_FILES_MAX).  -ENOMEM. */
int prefetch_files_new(struct prefetch_source *source, struct prefetch_io_backend *io, uint32_t max,
        struct prefetch_files **ret_files);
void prefetch_files_free(struct prefetch_files *files); /* closes all; none may be in use */

/* The slot of an open shard, opened when need be and in use until put.
 * -EBUSY: every slot is in use (try again after a put); else what ops->open says. */
int prefetch_files_get(struct prefetch_files *files, uint32_t shard, uint32_t *ret_slot);
void prefetch_files_put(struct prefetch_files *files, uint32_t slot);

/* Valid while the slot is in use. */
struct prefetch_object *prefetch_files_object(struct prefetch_files *files, uint32_t slot);

/* -ESTALE when the shard is no longer what the index says; then it is also reopened at its next use. */
int prefetch_files_check(struct prefetch_files *files, uint32_t slot);

/* How many shards this process may keep open: a quarter of RLIMIT_NOFILE, at most PREFETCH_FILES_MAX. */
uint32_t prefetch_files_limit(void);

/* Takes O_DIRECT from an object; reads in flight on its descriptor are not disturbed by that.  False: it had none. */
bool prefetch_files_leave_direct(struct prefetch_object *object);

/* Reads of what is open, and of what will be opened, go through the page cache from now on. */
void prefetch_files_buffer(struct prefetch_files *files);

#endif
