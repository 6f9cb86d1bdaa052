/* SPDX-License-Identifier: Apache-2.0 */
/* The engine: turns "this block, now" and "these samples, in this order" into verified bytes.
 *
 *     schedule (positions -> extents -> merged reads) -> source -> io_uring -> XXH3 -> cache -> sink
 *
 * One engine per server, however many views it serves.  Its threads: `engine` (sole owner of the ring) and
 * `deliver` (hashes, calls sinks and done callbacks).  Where io_uring is not to be had (seccomp, old kernel), a few
 * pread threads take its place; prefetch_stats says which.
 *
 * Threads: all functions may be called from any thread; none blocks on I/O but prefetch_new and prefetch_free. */
#ifndef DDPFS_PREFETCH_PREFETCH_H
#define DDPFS_PREFETCH_PREFETCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "prefetch/source.h"
#include "shard/base/err.h"
#include "shard/index.h"

struct prefetch; /* opaque */

enum { PREFETCH_MEMORY_MIN = 8 << 20 }; /* bytes of `memory_bytes` at least */

/* Stands between the source and the engine in tests and benchmarks: makes reads fail, be short, wrong or late.
 * Called by the engine thread; both members may be NULL. */
struct prefetch_hook {
	/* Sees each finished read (res: bytes or -errno) and returns the result to go on with: it may change the
	 * `res` bytes of data, return fewer, or an error. */
	int (*result)(void *arg, uint32_t shard, uint64_t offset, uint8_t *data, int res);
	/* How long after its submission a read may be seen, in ns. */
	uint64_t (*delay_ns)(void *arg, uint32_t shard, uint64_t offset, uint32_t len);
	void *arg;
};

struct prefetch_sink;

struct prefetch_options {
	const struct shard_index *index;  /* not owned; outlives the engine */
	uint64_t memory_bytes;            /* budget for what the engine holds; at least PREFETCH_MEMORY_MIN */
	enum prefetch_io io;              /* AUTO: O_DIRECT where the file system takes it */
	uint32_t depth;                   /* reads in flight; 0 = found by measuring */
	struct prefetch_source *source;   /* NULL: local files; else owned by the engine once prefetch_new succeeded */
	const struct prefetch_hook *hook; /* NULL, or copied */
	struct prefetch_sink *sink; /* where streams deliver to (prefetch/sink.h); NULL: demands only; not owned */
	uint64_t *resident; /* with a sink: bit per sample (n / 64 + 1 words) of what the sink has already, kept up
	                               to date, outlives the engine; NULL: it has nothing */
	bool threads;       /* pread threads even where io_uring is to be had */
};

/* Opens the source (shards are opened lazily, a bounded number kept open) and starts the threads.
 * -EINVAL, -ENOMEM, -ENOENT/-EACCES for a dataset directory that cannot be read. */
int prefetch_new(const struct prefetch_options *options, struct base_err *err, struct prefetch **ret_prefetch);

/* Cancels what is queued (done is called with -ECANCELED), waits for what is in flight, joins the threads. */
void prefetch_free(struct prefetch *prefetch);

/* A request for one block that somebody waits for.  The caller fills the first part, keeps the object alive until
 * done was called, and may free it in done. */
struct prefetch_demand {
	uint32_t file;
	uint32_t block;
	uint32_t take; /* bytes of the block that the asker's page cache will hold; where there is a sink */
	bool direct; /* he reads past his page cache (O_DIRECT): says nothing about what it holds, and brings it nothing */
	/* rc 0: data[len] is the whole verified block, valid during the call only.
	 * rc < 0: -EBADMSG (checksum), -EIO, -ESTALE (shard replaced or shorter than the index says), -ECANCELED,
	 * -ENOMEM, -ENOENT (shard gone); data is NULL.
	 * Called once: from one of the engine's threads, or from within prefetch_demand itself when the block is in memory.
	 * Must not block and must not call prefetch_free. */
	void (*done)(struct prefetch_demand *demand, int rc, const uint8_t *data, uint32_t len);
	/* engine's */
	struct prefetch_demand *next;
	uint64_t asked_ns;
};

/* Never blocks, never fails synchronously.  Requests for a block in flight join that landing. */
void prefetch_demand(struct prefetch *prefetch, struct prefetch_demand *demand);

/* A reader may ask for the whole of this file in a moment.  False when it is in memory or on its way, or does not fit one block;
 * else true, and with `read` it is read now, into landing memory, where it waits for him; not while others wait for theirs, whose
 * reads go first.  Never blocks. */
bool prefetch_hint(struct prefetch *prefetch, uint32_t file, bool read);

/* The budget is `memory_bytes` from now on, at least PREFETCH_MEMORY_MIN.  Landing memory and the windows of streams keep their
 * size.  A larger budget is filled as samples are read; a smaller one is reached by drops.  No effect after prefetch_share. */
void prefetch_set_memory(struct prefetch *prefetch, uint64_t memory_bytes);

/* Others on this host read the same shards, and the host has memory for all of them once.  From now on shards are read through
 * the host's page cache, which is shared, and the sink holds no more than `sink_bytes`, or a quarter of what it held before where
 * workers' batches need it; what it holds now is read again.
 * There is no way back.  Does nothing the second time. */
void prefetch_share(struct prefetch *prefetch, uint64_t sink_bytes);

/* Counters since start; a snapshot, each field consistent by itself. */
struct prefetch_stats {
	uint64_t demands;         /* prefetch_demand calls */
	uint64_t demand_hits;     /* answered from memory */
	uint64_t hinted;          /* reads begun by prefetch_hint */
	uint64_t joined;          /* waited for a read that was already in flight */
	uint64_t reads;           /* submitted to the source */
	uint64_t read_bytes;      /* bytes the source read (alignment included) */
	uint64_t delivered_bytes; /* bytes of blocks handed to demands */
	uint64_t stored_bytes;    /* bytes of blocks handed to the sink */
	uint64_t
	        bad_blocks; /* whose checksum did not match, twice; each once, as far as the last 1024 are remembered */
	uint64_t mended_blocks; /* whose checksum matched when they were read a second time */
	uint64_t io_errors;     /* reads of the source that failed, each once, also when its second try succeeded */
	uint64_t wait_p50_ns;   /* of demands */
	uint64_t wait_p99_ns;
	uint64_t wait_max_ns;
	uint64_t buffer_bytes;           /* landing buffers held now */
	uint64_t used;                   /* turns that trainers had, of all streams */
	uint64_t wasted_bytes;           /* read ahead and given up before they were used */
	uint64_t misses;                 /* files that a demand had to wait for */
	uint64_t resident_bytes;         /* in the sink, overhead included */
	uint64_t budget_bytes;           /* ... at most */
	uint64_t evicted, dropped, lost; /* samples: for room; all; reclaimed behind our back */
	uint64_t evicted_blocks;         /* of files that are read by the block (cache/ledger.h): for room */
	uint64_t refetches;              /* of the next turns, because much had been reclaimed */
	uint64_t device_rate;            /* bytes per second the source gave at the settled depth; 0 = not measured */
	uint32_t depth;                  /* scheduled reads in flight the engine allows now */
	uint32_t inflight;
	pid_t tid;        /* of the engine thread */
	uint64_t busy_ns; /* since when (CLOCK_MONOTONIC) it has been at one round of work; 0: it waits for some */
	bool uring;       /* false: pread threads */
	bool direct;      /* O_DIRECT */
	bool shared;      /* prefetch_share took effect */
};
void prefetch_stats_get(struct prefetch *prefetch, struct prefetch_stats *ret_stats);

/* True: nothing is being read, delivered, announced or dropped, nor will be until a demand or a trainer's progress comes. */
bool prefetch_idle(struct prefetch *prefetch);

#endif
