/* SPDX-License-Identifier: Apache-2.0 */
/* How the engine reads: io_uring, or pread threads where io_uring is forbidden or unknown; HTTP for a store.  A
 * tier may stand in front of each.
 *
 * Threads: one owner (the engine thread) calls all functions.  Any thread may call prefetch_io_wake. */
#ifndef DDPFS_PREFETCH_IO_BACKEND_H
#define DDPFS_PREFETCH_IO_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/arena.h"
#include "cache/tier.h"
#include "cache/tier_uses.h"
#include "prefetch/source.h"
#include "shard/index.h"
#include "shard/remote/client.h"

enum {
	PREFETCH_OPS_MAX = 2240,   /* operations in flight: PREFETCH_DEPTH_SMALL_MAX, and 192 demands */
	PREFETCH_SHARDS_MAX = 512, /* entries of the table of registered files */
};

struct prefetch_block_list; /* prefetch/engine.h */
struct prefetch_tier_stats; /* prefetch/prefetch.h */

/* One read.  The owner keeps it until prefetch_io_wait has returned it. */
struct prefetch_op {
	const struct prefetch_object *object;
	uint32_t entry;   /* of the object in the file table */
	uint32_t segment; /* number of the arena's segment in which data lies */
	uint8_t *data;    /* room for `len` bytes */
	uint32_t len;     /* bytes */
	uint64_t offset;  /* in the file */
	/* For a tier; other backends ignore them: */
	uint32_t shard;
	const struct prefetch_block_list *blocks; /* the blocks that are wanted, ascending offset; NULL: not known */
	uint32_t gap_bytes;  /* reading so many bytes that are not wanted costs no more than another read */
	uint32_t tier_bytes; /* result: bytes of it that did not come from the source */
	/* In: bytes between the blocks.  Result of a tier: bytes between them that came, and are not in the tier. */
	uint32_t unused_bytes;
	bool urgent;        /* a reader waits for it */
	uint64_t waited_ns; /* for a store: remote_read.waited_ns */

	int res;                  /* the result: bytes read, 0 at the end of the file, or -errno */
	struct prefetch_op *next; /* in the list that prefetch_io_wait returns */
};

struct prefetch_io_backend;

/* What a backend implements; the functions below say what each does. */
struct prefetch_io_ops {
	void (*submit)(struct prefetch_io_backend *io, struct prefetch_op *op);
	void (*wait)(struct prefetch_io_backend *io, int64_t timeout_ns, struct prefetch_op **ret_done);
	void (*wake)(struct prefetch_io_backend *io);
	void (*set_file)(struct prefetch_io_backend *io, uint32_t entry, int fd);
	void (*cancel)(struct prefetch_io_backend *io); /* NULL: its reads end soon by themselves */
	void (*free)(struct prefetch_io_backend *io);
};

struct prefetch_io_backend {
	const struct prefetch_io_ops *ops;
	bool uring; /* it is io_uring */
};

/* Makes an io_uring backend, which the calling thread owns.  files: entries of the file table.  arena: landing
 * memory; not owned, outlives the backend.
 * Returns 0, -EPERM or -EACCES (rings are forbidden here), -ENOSYS (the kernel does not know them), -ENOMEM, or another
 * error of a system call. */
int prefetch_io_uring(uint32_t files, const struct cache_arena *arena, struct prefetch_io_backend **ret_io);
/* Tries what prefetch_io_uring and its reads need: makes a ring, enters it, and registers one segment of landing
 * memory.  Any thread.
 * *ret_segment_bytes: the size of a segment.  *ret_register: 0, -ENOMEM (RLIMIT_MEMLOCK is too small), or another
 * -errno of io_uring_register(2); then reads use plain buffers.
 * Returns 0, or an error of prefetch_io_uring. */
int prefetch_io_uring_probe(uint64_t *ret_segment_bytes, int *ret_register);
/* Makes a backend of pread threads.  Returns 0, -ENOMEM or -EAGAIN (no thread can be started). */
int prefetch_io_threads(struct prefetch_io_backend **ret_io);

/* Makes a backend for objects of a store (shard/remote/client.h).  store: not owned, outlives the backend.  timeout_ns:
 * how long a read waits for a store that does not answer; 0: the default.
 * Returns 0, -ENOMEM or -EAGAIN. */
int prefetch_io_http(struct remote_store *store, uint64_t timeout_ns, struct prefetch_io_backend **ret_io);
/* Gets the counters of the client of that backend.  Any thread. */
void prefetch_io_http_stats(struct prefetch_io_backend *io, struct remote_stats *ret_stats);

/* Makes a backend that looks into a tier first, and reads what is not there from `origin`.  It stores the blocks that
 * it has read, if their checksums are right.  No other process that has the tier open fetches them meanwhile.
 * What a merged read brings between its blocks is stored, too, as far as it is whole files of `index` (NULL: it is
 * not).
 * It tells the tier when blocks are used again, if `uses` (NULL: nothing is told) says so.
 * index, tier, uses: not owned, outlive the backend.  origin: owned once this succeeded.
 * Returns 0, -ENOMEM or -EAGAIN (no thread can be started). */
int prefetch_io_tier(const struct shard_index *index, struct cache_tier *tier, struct cache_tier_uses *uses,
        struct prefetch_io_backend *origin, struct prefetch_io_backend **ret_io);
/* Says how long a block is waited for that another process has claimed and works for; 0, or not called:
 * REMOTE_TIMEOUT_DEFAULT_S.  Call it before the first read. */
void prefetch_io_tier_wait_for(struct prefetch_io_backend *io, uint64_t timeout_ns);
/* Reads what that backend counts.  Any thread; it waits for no disk. */
void prefetch_io_tier_stats(struct prefetch_io_backend *io, struct prefetch_tier_stats *ret_stats);

/* Submits a read.  It may reach the kernel only at the next prefetch_io_wait.  At most PREFETCH_OPS_MAX reads may be
 * submitted and not returned yet. */
static inline void prefetch_io_submit(struct prefetch_io_backend *io, struct prefetch_op *op)
{
	io->ops->submit(io, op);
}

/* Gives submitted reads to the kernel.  Then waits until a read is done, prefetch_io_wake is called or the time is
 * over.  timeout_ns: < 0: no limit; 0: do not wait.  *ret_done: the list of reads that are done, or NULL. */
static inline void prefetch_io_wait(struct prefetch_io_backend *io, int64_t timeout_ns, struct prefetch_op **ret_done)
{
	io->ops->wait(io, timeout_ns, ret_done);
}

/* Makes the current or the next prefetch_io_wait return.  Any thread. */
static inline void prefetch_io_wake(struct prefetch_io_backend *io)
{
	io->ops->wake(io);
}

/* Puts a descriptor into entry `entry` of the file table, or removes it (fd -1). */
static inline void prefetch_io_set_file(struct prefetch_io_backend *io, uint32_t entry, int fd)
{
	io->ops->set_file(io, entry, fd);
}

/* Ends all reads in flight, and all that are submitted later, with -ECANCELED, if they could wait for long. */
static inline void prefetch_io_cancel(struct prefetch_io_backend *io)
{
	if (io->ops->cancel)
		io->ops->cancel(io);
}

/* Frees a backend; no read may be in flight.  NULL is fine. */
static inline void prefetch_io_free(struct prefetch_io_backend *io)
{
	if (io)
		io->ops->free(io);
}

#endif
