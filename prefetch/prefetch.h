/* SPDX-License-Identifier: Apache-2.0 */
/* The engine: it reads and verifies the blocks that readers demand, and the samples of streams, in their order.
 *
 *     schedule (positions -> extents -> merged reads) -> source -> io_uring -> XXH3 -> cache -> sink
 *
 * A server has one engine for all its streams (prefetch/stream.h).  Its threads are `engine`, which alone owns
 * the ring, `deliver`, which hashes, stores and calls done callbacks, and, with a sink, `lister`.  If io_uring is
 * forbidden (seccomp) or the kernel lacks it, up to 32 pread threads take its place; prefetch_stats.uring says which.
 *
 * Threads: any thread may call all functions.  Only prefetch_new and prefetch_free block on I/O, and callers that
 * offer to read themselves (prefetch_demand.reading). */
#ifndef DDPFS_PREFETCH_PREFETCH_H
#define DDPFS_PREFETCH_PREFETCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "cache/tier.h"
#include "cache/tier_uses.h"
#include "prefetch/source.h"
#include "shard/base/err.h"
#include "shard/index.h"

struct prefetch; /* opaque */

enum { PREFETCH_MEMORY_MIN = 8 << 20 }; /* the least `memory_bytes` */

/* Functions between source and engine, for tests and benchmarks: they make reads fail, be short, wrong or late.
 * The thread that reads calls them.  Either may be NULL. */
struct prefetch_hook {
	/* Gets each finished read, and returns its new result.  It may change the bytes of data, return fewer bytes, or
	 * an error.  res: bytes read, or -errno. */
	int (*result)(void *arg, uint32_t shard, uint64_t offset, uint8_t *data, int res);
	/* Returns the ns from the submission of a read during which the engine must not see its result; 0: none. */
	uint64_t (*delay_ns)(void *arg, uint32_t shard, uint64_t offset, uint32_t len);
	void *arg;
};

struct prefetch_sink;

struct prefetch_options {
	const struct shard_index *index; /* not owned; outlives the engine */
	uint64_t memory_bytes;           /* for landing memory and the sink together; at least PREFETCH_MEMORY_MIN */
	enum prefetch_io io;             /* of local files; AUTO and DIRECT: O_DIRECT where the file system takes it */
	uint32_t depth; /* scheduled reads in flight, at most PREFETCH_DEPTH_SMALL_MAX; 0: found by measuring */
	struct prefetch_source *source;   /* NULL: local files; else owned by the engine once prefetch_new succeeded */
	const struct prefetch_hook *hook; /* copied; NULL: none */
	struct prefetch_sink *sink; /* gets the blocks of streams (prefetch/sink.h); NULL: demands only; not owned */
	/* With a sink: a bit per sample (n_samples / 64 + 1 words) of what the sink holds already.  The engine keeps
	 * it up to date.  It outlives the engine.  NULL: the sink holds nothing. */
	uint64_t *resident;
	bool threads; /* pread threads even if io_uring is allowed */
	/* How long a read of an object waits while its store does not answer; 0: REMOTE_TIMEOUT_DEFAULT_S. */
	uint64_t timeout_ns;
	/* Open for the dataset of the index: blocks are looked for in it before they are read from the source, and are
	 * stored in it after that.  Not owned, outlives the engine.  NULL: there is none. */
	struct cache_tier *tier;
	/* When this host uses blocks again, by the order of streams with tells_uses; the tier is told.  Not owned,
	 * outlives the engine.  NULL: nothing is told. */
	struct cache_tier_uses *tier_uses;
};

/* Opens the source and starts the threads.  Shards are opened when they are first read, and a bounded number stays
 * open.
 * Returns 0 or
 * -EINVAL: memory_bytes is too small;
 * -ENOENT, -EACCES, -ENOTDIR: the dataset's directory cannot be opened;
 * -ENOMEM, -EAGAIN: there is no memory, or no thread can be started.
 * err says it in a sentence. */
int prefetch_new(const struct prefetch_options *options, struct base_err *err, struct prefetch **ret_prefetch);

/* Returns the bytes of landing memory of an engine with this budget: a quarter of it, 8 to 64 MiB.  The rest is for
 * what the sink holds.  While no order is followed, landing memory takes a quarter of that, and the sink has more. */
uint64_t prefetch_landing_bytes(uint64_t memory_bytes);
/* Returns the bytes that landing memory may take now. */
uint64_t prefetch_landing(struct prefetch *prefetch);

/* Cancels queued demands (their done gets -ECANCELED), waits for reads in flight, and ends the threads.  All streams
 * must have been freed.  NULL is fine. */
void prefetch_free(struct prefetch *prefetch);

/* A request for one block that a reader waits for.  The caller fills the first part, keeps the object until done is
 * called, and may free it in done. */
struct prefetch_demand {
	uint32_t file;
	uint32_t block;
	uint32_t take; /* bytes of the block that the reader's page cache will hold; only used with a sink */
	bool direct;   /* the reader uses O_DIRECT: the demand neither tells nor changes what is in the page cache */
	/* Not NULL: if the block is neither in memory nor on its way, the calling thread may read and verify it itself.
	 * Meanwhile *reading is true.  Whatever goes wrong then, the engine reads the block. */
	_Atomic bool *reading;
	/* Called once: by one of the engine's threads, or within prefetch_demand when the block is in memory or
	 * cannot be read.  Must not block and must not call prefetch_free.
	 * rc 0: data[len] is the whole verified block, valid during the call only.
	 * rc < 0: data is NULL, and rc is
	 * -EBADMSG: the checksum differs;
	 * -EIO: the read failed (other errors of open(2) and read(2) come as they are);
	 * -ESTALE: the shard or the index was replaced, or the shard is shorter than the index says;
	 * -ENOENT: the shard is gone;
	 * -ECANCELED: the engine is being freed;
	 * -ENOMEM: there is no memory. */
	void (*done)(struct prefetch_demand *demand, int rc, const uint8_t *data, uint32_t len);
	/* Private to the engine: */
	struct prefetch_demand *next;
	uint64_t asked_ns;
};

/* Asks for a block.  If the block is in flight already, the demand waits for that read.  Blocks only on a read of the
 * caller's own (`reading`); all errors go to done. */
void prefetch_demand(struct prefetch *prefetch, struct prefetch_demand *demand);

/* Says that a reader will probably ask for this whole file soon.  With `read` it is read into landing memory now,
 * unless demands wait to be submitted: those go first.  The engine reads it, or the caller (prefetch_demand.reading).
 * Returns true when the file was neither in memory nor on its way.  Returns false otherwise, also when the file has not
 * exactly one block. */
bool prefetch_hint(struct prefetch *prefetch, uint32_t file, bool read, _Atomic bool *reading);

/* The answer to prefetch_sink_ops.look.  If bytes are gone, the block of the file in which `offset` lies is read into
 * landing memory, before its reader asks for it.  This read counts against the depth, so demands go before it.  Never
 * blocks. */
void prefetch_looked(struct prefetch *prefetch, uint32_t file, uint64_t offset, bool there);

/* Sets the budget to `memory_bytes` (at least PREFETCH_MEMORY_MIN).  Landing memory and the windows of streams keep
 * their size.  A larger budget fills as samples are read; for a smaller one samples are dropped.  No effect after
 * prefetch_share. */
void prefetch_set_memory(struct prefetch *prefetch, uint64_t memory_bytes);

/* Makes the engine share the host's page cache with others on this host who read the same shards.  Call it when the
 * host has memory for all of these shards once.  From now on shards are read through the page cache, and the sink
 * holds at most `sink_bytes` bytes.  If workers' batches need more, it holds up to a quarter of the budget before.
 * The sink drops what it holds now.  This cannot be undone; a second call does nothing. */
void prefetch_share(struct prefetch *prefetch, uint64_t sink_bytes);

/* Missed files after which the warm-up begins: more than a recogniser needs to recognise an order, so that known orders
 * seldom begin with a warm-up. */
enum { PREFETCH_WARM_UP_MISSES = 128 };

/* What the warm-up does (prefetch_stream_options.warm_up). */
enum prefetch_warm_up_state {
	PREFETCH_WARM_UP_NONE,              /* there is no such stream */
	PREFETCH_WARM_UP_WATCHES,           /* few files were missed so far, or an order is known */
	PREFETCH_WARM_UP_READS_ON,          /* it reads */
	PREFETCH_WARM_UP_RESTS,             /* it waits because the device is slow, or others use it */
	PREFETCH_WARM_UP_WAITS_FOR_READERS, /* it waits because no file is missed */
	PREFETCH_WARM_UP_FULL,              /* what it read fills the budget */
	PREFETCH_WARM_UP_DONE,              /* it has read everything */
};

/* Counters since the start, and values of now.  It is a snapshot: each field is consistent by itself. */
struct prefetch_stats {
	uint64_t demands;         /* prefetch_demand calls */
	uint64_t demand_hits;     /* demands answered from memory at once */
	uint64_t hinted;          /* reads begun by prefetch_hint */
	uint64_t caller_reads;    /* of `reads`: by the threads that asked */
	uint64_t wake_ups;        /* how often other threads woke the engine thread */
	uint64_t joined;          /* demands that waited for a read that was already in flight */
	uint64_t reads;           /* reads submitted to the source */
	uint64_t read_bytes;      /* bytes the source read (alignment included) */
	uint64_t delivered_bytes; /* bytes of blocks handed to demands */
	uint64_t stored_bytes;    /* bytes of blocks handed to the sink */
	/* Blocks whose checksum did not match twice.  Each counts once while it is one of the last 1024 of them. */
	uint64_t bad_blocks;
	uint64_t mended_blocks; /* blocks whose checksum matched when they were read a second time */
	uint64_t io_errors;     /* reads that failed, each once, also when the second try succeeded */
	uint64_t wait_p50_ns;   /* from a demand to its answer: the median, */
	uint64_t wait_p99_ns;   /* ... the 99th percentile, */
	uint64_t wait_max_ns;   /* ... and the longest */
	uint64_t buffer_bytes;  /* landing memory in use now */
	uint64_t used;          /* turns that trainers used, of all streams */
	/* Bytes that were read ahead and never used: gaps inside a read, except files of them that a tier stored, and
	 * samples that were given up, dropped, lost, or counted as lost before their use.  What the sink refused does
	 * not count, because it is stored later from landing memory.  The bytes of a sample are those of the ledger. */
	uint64_t wasted_bytes;
	uint64_t misses;         /* files whose first block a demand had to wait for */
	uint64_t resident_bytes; /* in the sink or coming, overhead included, now */
	uint64_t budget_bytes;   /* the most that resident_bytes may be, now */
	/* Samples: dropped to make room; dropped for any reason; taken back by the kernel before their use. */
	uint64_t evicted, dropped, lost;
	uint64_t evicted_blocks; /* blocks of files booked by the block (cache/ledger.h), dropped to make room */
	uint64_t warm_ups;       /* how often a warm-up began */
	uint64_t warm_up_bytes;  /* bytes that it read */
	enum prefetch_warm_up_state warm_up;
	uint64_t refetches;   /* how often the next turns were fetched again after losses */
	uint64_t regained;    /* blocks that prefetch_looked has had read */
	uint64_t device_rate; /* bytes per second of the source at the settled depth; 0: not measured */
	uint32_t depth;       /* scheduled reads in flight that the engine allows now */
	uint64_t full_ns;     /* for which so many were in flight */
	bool depth_full;      /* a larger depth did not raise the rate when it was last tried */
	bool depth_most;      /* the depth is the largest one that is allowed */
	uint32_t inflight;    /* reads in flight now, also those of callers */
	pid_t tid;            /* of the engine thread */
	pid_t deliver_tid;    /* 0: not known yet */
	/* Processor time of these threads. */
	uint64_t engine_cpu_ns, deliver_cpu_ns;
	/* CLOCK_MONOTONIC when the engine thread began its present round of work; 0: it waits for work. */
	uint64_t busy_ns;
	bool uring;  /* false: pread threads */
	bool direct; /* the latest read uses O_DIRECT */
	bool shared; /* prefetch_share took effect */
};
void prefetch_stats_get(struct prefetch *prefetch, struct prefetch_stats *ret_stats);

struct remote_stats; /* shard/remote/client.h */
/* Reads the counters of the client of a store.  Returns false: the dataset is on a disk. */
bool prefetch_remote_stats(struct prefetch *prefetch, struct remote_stats *ret_stats);

/* What the engine did with its tier. */
struct prefetch_tier_stats {
	struct cache_tier_stats blocks;
	struct cache_tier_fill fill; /* at most a second older than the latest read */
	uint64_t waited;             /* blocks of `blocks.hits` that another process fetched while this one waited */
	/* Blocks that were not stored, because the disk was too slow, or others had found no room just before. */
	uint64_t skipped;
	uint64_t look_up_ns; /* that its threads looked blocks up, added over all threads */
	uint32_t threads;    /* that look up and store */
	int off;             /* the errno that switched the tier off; 0: it is on */
};
/* Reads these.  It waits for no disk.  Returns false: there is no tier. */
bool prefetch_tier_stats(struct prefetch *prefetch, struct prefetch_tier_stats *ret_stats);

/* Says whether most of what is opened is in no known order, though streams are followed: their readers have left them,
 * or read slowly beside others.  Then the warm-up may run beside these streams.  Any thread. */
void prefetch_set_order_left(struct prefetch *prefetch, bool left);

/* Returns prefetch_stats.reads alone, at next to no cost. */
uint64_t prefetch_reads(struct prefetch *prefetch);

/* Returns true when nothing is being read, delivered, announced or dropped, and nothing will be until a demand, a
 * hint or a trainer's use comes. */
bool prefetch_idle(struct prefetch *prefetch);

#endif
