/* SPDX-License-Identifier: Apache-2.0 */
/* A sink: where the engine puts the blocks of samples before the trainer asks for them.  It is the kernel's page
 * cache (fs/) or the arena of libddpfs_stage (gpu_stage/).
 *
 *   announce   these turns come next: make what must exist before their bytes can be stored (inodes and names)
 *   expect     a hint that a block of this file is stored soon: load what the store needs into the processor's caches
 *   store      take one verified block; the file is resident after its last block
 *   drop       give the memory of these samples and blocks back
 *
 * The engine announces a sample before it stores it.  A sample may be dropped for a nearer one and fetched again
 * for a turn whose names are made already.  Then cache_victim.announced is set: the sink must keep its names.
 *
 * A sink may lose what it holds, because the kernel takes pages, names and inodes back.  The engine learns it when
 * store returns -ENOENT, when a demand comes for a block of a resident sample, or when it asks (look).
 *
 * Threads: the `lister` thread calls announce, drop and look, the `deliver` thread calls expect and store, the `engine`
 * thread calls rests.  They may run at the same time.  None may call prefetch_free or prefetch_stream_free.
 * announce, store, drop and look may block, and may wait for the answer of a demand: a demand waits at most 2 s for a
 * drop and 0.5 ms for a store. */
#ifndef DDPFS_PREFETCH_SINK_H
#define DDPFS_PREFETCH_SINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cache/ledger.h"

enum { PREFETCH_LOOK_BYTES = 128 << 10 }; /* most bytes of a look: the kernel answers so many at once */

struct prefetch_sink;

struct prefetch_sink_ops {
	/* Announces turns [turn, turn + n) of `epoch` of the stream whose options have this `user`.  If it fails,
	 * store fails.  Returns of how many turns, 1 .. n: a sink that has worked long returns, and other streams and
	 * drops come before the rest.  NULL: nothing must exist first, so the engine may fetch the whole window at
	 * once. */
	uint32_t (*announce)(struct prefetch_sink *sink, void *user, uint64_t epoch, uint64_t turn, uint32_t n);

	/* Returns true to stop announcements for now.  The engine asks again when it learns of uses.
	 * NULL: never. */
	bool (*rests)(struct prefetch_sink *sink);

	/* Says that a block of this file is stored in some microseconds.  Must not block.  NULL: the sink needs no
	 * hint. */
	void (*expect)(struct prefetch_sink *sink, uint32_t sample, uint32_t file);

	/* Stores data[len], the content of the file from `offset` on: one block.  offset: multiple of SHARD_BLOCK.
	 * Returns 0 or -errno; then the sample is not resident and is read on demand.  After -ENOENT (the sink has lost
	 * what was announced) the engine announces and stores the next turns again, this one among them. */
	int (*store)(struct prefetch_sink *sink, uint32_t file, uint64_t offset, const uint8_t *data, uint32_t len);

	/* Asks whether `len` bytes from `offset` on of a file that was stored are still there.  len: at most
	 * PREFETCH_LOOK_BYTES.  Returns 0, and prefetch_looked is called later, by any thread; -ENOENT: they are gone
	 * with their name; other errors: it cannot be told.  NULL: what is stored stays. */
	int (*look)(struct prefetch_sink *sink, uint32_t file, uint64_t offset, uint32_t len);

	/* Drops samples with all their files, and blocks of files.  Readers brought in these blocks, not store. */
	void (*drop)(struct prefetch_sink *sink, const struct cache_victim *victims, size_t n);
};

struct prefetch_sink {
	const struct prefetch_sink_ops *ops;
	uint32_t overhead_bytes; /* cost of a resident file besides its pages (inode, names) */
};

#endif
