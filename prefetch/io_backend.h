/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's way to the kernel: io_uring, or pread threads where that is not to be had.
 *
 * Threads: one owner (the engine thread) calls everything but prefetch_io_wake; that one is for any thread. */
#ifndef DDPFS_PREFETCH_IO_BACKEND_H
#define DDPFS_PREFETCH_IO_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/arena.h"
#include "prefetch/source.h"

enum {
	PREFETCH_OPS_MAX = 512,   /* operations in flight */
	PREFETCH_FILES_MAX = 512, /* entries of the registered file table */
};

/* One read. The owner keeps it alive until it was reaped. */
struct prefetch_op {
	const struct prefetch_object *object;
	uint32_t slot;    /* the object's number in the file table */
	uint32_t segment; /* the arena segment that data lies in */
	uint8_t *data;
	uint32_t len;
	uint64_t offset;
	int res; /* bytes, 0 at the end of the file, or -errno */
	struct prefetch_op *next;
};

struct prefetch_io_backend;

struct prefetch_port_ops {
	void (*submit)(struct prefetch_io_backend *io, struct prefetch_op *op);
	void (*wait)(struct prefetch_io_backend *io, int64_t timeout_ns, struct prefetch_op **ret_done);
	void (*wake)(struct prefetch_io_backend *io);
	void (*set_file)(struct prefetch_io_backend *io, uint32_t slot, int fd);
	void (*free)(struct prefetch_io_backend *io);
};

struct prefetch_io_backend {
	const struct prefetch_port_ops *ops;
	bool uring;
};

/* Call from the thread that will own it.  files: entries of the file table wanted.  arena: where reads land.
 * -EPERM, -ENOSYS: making or entering a ring is forbidden or unknown here; -ENOMEM, ... */
int prefetch_io_uring(uint32_t files, const struct cache_arena *arena, struct prefetch_io_backend **ret_io);
int prefetch_io_threads(struct prefetch_io_backend **ret_io); /* -ENOMEM, -EAGAIN */

/* At most PREFETCH_OPS_MAX between submit and reaping.  May wait for the next prefetch_io_wait to reach the kernel. */
static inline void prefetch_io_submit(struct prefetch_io_backend *io, struct prefetch_op *op)
{
	io->ops->submit(io, op);
}

/* Pushes what was submitted, then waits until something is done, prefetch_io_wake was called or the time is over
 * (timeout_ns < 0: no limit; 0: do not wait).  *ret_done: the list of what is done, or NULL. */
static inline void prefetch_io_wait(struct prefetch_io_backend *io, int64_t timeout_ns, struct prefetch_op **ret_done)
{
	io->ops->wait(io, timeout_ns, ret_done);
}

/* Makes the current or the next prefetch_io_wait return. */
static inline void prefetch_io_wake(struct prefetch_io_backend *io)
{
	io->ops->wake(io);
}

/* Puts a descriptor into the file table, or takes it out (fd -1). */
static inline void prefetch_io_set_file(struct prefetch_io_backend *io, uint32_t slot, int fd)
{
	io->ops->set_file(io, slot, fd);
}

/* Nothing may be in flight. */
static inline void prefetch_io_free(struct prefetch_io_backend *io)
{
	if (io)
		io->ops->free(io);
}

#endif
