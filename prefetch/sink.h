/* SPDX-License-Identifier: Apache-2.0 */
/* Where scheduled samples go before anybody asks for them: the kernel's page cache (fs/), a pinned arena (gpu_stage/).
 *
 *   announce   "these turns come next": what must exist before bytes can be stored (inodes and names)
 *   expect     a hint: of what is stored in a moment, what processor caches should hold
 *   store      one verified block; after its last block a file is resident
 *   drop       these samples (and blocks) are wanted no more: give their memory back
 *
 * A sample is announced before it is stored; drops and announcements reach the sink in an order that keeps a sample
 * alive that is fetched again after it was dropped, if what was announced of it outlives its drop (victims say so).
 *
 * A sink may lose what it has (the kernel takes pages, names and inodes back).  It says so by -ENOENT of store, and a demand for a
 * block of a resident sample says it, too.
 *
 * Threads: announce and drop are called by the `lister` thread, expect and store by the `deliver` thread; they may run
 * side by side.  None may call prefetch_free or prefetch_stream_free.  They may block: a demand waits for a drop for at most 2 s, and
 * for a store 0.5 ms, so that they may wait for a demand's answer. */
#ifndef DDPFS_PREFETCH_SINK_H
#define DDPFS_PREFETCH_SINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cache/ledger.h"

struct prefetch_sink;

struct prefetch_sink_ops {
	/* Turns [turn, turn + n) of `epoch` of the stream whose options carried `user`.  Failures show at store.
	 * NULL: nothing has to exist first, and all of the window may be fetched, and merged, at once. */
	void (*announce)(struct prefetch_sink *sink, void *user, uint64_t epoch, uint64_t turn, uint32_t n);

	/* True: nothing is announced for now.  The engine asks again when it hears of uses.  Called by the engine
	 * thread.  NULL: never. */
	bool (*rests)(struct prefetch_sink *sink);

	/* A block of this file will be stored in some microseconds.  NULL: none is wanted.  Must not block. */
	void (*expect)(struct prefetch_sink *sink, uint32_t sample, uint32_t file);

	/* data[len] is the file's content from `offset`, block-aligned; it reaches to the file's end or is a whole
	 * block.  Returns 0 or -errno: then the sample counts as not resident and is served on demand.  -ENOENT: what was announced is
	 * forgotten.  Then the next turns, this one among them, are announced and stored again. */
	int (*store)(struct prefetch_sink *sink, uint32_t file, uint64_t offset, const uint8_t *data, uint32_t len);

	/* Samples with all their files, and blocks of files (which readers asked for; the sink did not store them). */
	void (*drop)(struct prefetch_sink *sink, const struct cache_victim *victims, size_t n);
};

struct prefetch_sink {
	const struct prefetch_sink_ops *ops;
	uint32_t overhead_bytes; /* what a resident file costs besides its pages */
};

#endif
