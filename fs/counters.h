/* SPDX-License-Identifier: Apache-2.0 */
/* The counters of a server, and the numbers that several files of fs/ use. This header knows nothing of the server.
 *
 * Threads: any. */
#ifndef DDPFS_FS_COUNTERS_H
#define DDPFS_FS_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

enum {
	FS_READ_MAX = 1 << 20, /* bytes of one READ at most: the kernel never asks for more */
	FS_WATCH_SLACK = 4096, /* turns by which the workers of one loader may be apart */
	/* bytes of a resident file besides its pages: the slab objects of an inode and of a name */
	FS_FILE_OVERHEAD_BYTES = 1200 + 290,
};
#define FS_HIDDEN_NAME ".ddpfs"
#define FS_FOREVER 1e9 /* timeout in seconds of what never changes */

/* Events since this server began. Each counter is a relaxed atomic: it is right by itself, not together with others. */
struct fs_counters {
	_Atomic uint64_t lookups;
	_Atomic uint64_t getattrs;
	_Atomic uint64_t listings;        /* OPENDIRs */
	_Atomic uint64_t entries;         /* names listed */
	_Atomic uint64_t reads;           /* READs of files that reached this process */
	_Atomic uint64_t unwatched_reads; /* READs for no watched open: fs/hit_counting.h */
	_Atomic uint64_t read_reply_bytes;
	_Atomic uint64_t errors;    /* READs answered with an error */
	_Atomic uint64_t replies;   /* READs of files that were answered; as many as `asked` when none waits */
	_Atomic uint64_t asked;     /* READs of files given to the engine */
	_Atomic uint64_t waited_ns; /* from each READ to its answer, summed */
	_Atomic uint64_t watch_overflows;
	_Atomic uint64_t fill_class; /* files of other ranks that were listed because of fill_class */
};

static inline void fs_count(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static inline uint64_t fs_counted(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

#endif
