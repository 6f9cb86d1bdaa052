/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the engine: what its threads share.  Private to this room; prefetch/prefetch.h first.
 *
 *   any thread           engine thread                         deliver thread
 *   ----------           -------------                         --------------
 *   prefetch_demand ---> urgent ---> start: file, area, op
 *                                      |  ring / threads
 *                                    finish: retry or ---> landed ---> XXH3 -> cache -> done callbacks
 *
 *   stream_used --> events ---> schedule: what comes next          lister thread
 *                             |  announce, drop -----------------> sink->announce, sink->drop
 *                             `- fetch: a read whose blocks carry an *item* (a sample of a stream); delivery stores
 *                                them into the sink
 *
 * A *block* that is wanted and not verified yet is in the table `blocks`, and belongs to one *read*, an extent of a
 * shard.  A caller who offers to read a block itself has its read in PREFETCH_READ_INFLIGHT without the engine thread
 * (caller_reads.c).  When a block is verified it leaves the table and becomes a cache_buffer in one step under
 * `lock`.  So prefetch_demand, which looks into the cache and then into the table under the same lock, finds it in one
 * of the two.
 *
 * Lock order: `lock`, then the cache's own.  No callback, I/O, hashing or reading of the index happens under `lock`.
 * It is taken with prefetch_lock or prefetch_lock_for_scope, because its end may have to wake the engine thread.
 * A caller of prefetch.h and stream.h may hold locks of its own, but none that its callbacks take. */
#ifndef DDPFS_PREFETCH_ENGINE_H
#define DDPFS_PREFETCH_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "cache/cache.h"
#include "cache/ledger.h"
#include "prefetch/depth.h"
#include "prefetch/open_shards.h"
#include "prefetch/latency_histogram.h"
#include "prefetch/io_backend.h"
#include "prefetch/prefetch.h"
#include "prefetch/request_cost.h"
#include "prefetch/sink.h"
#include "prefetch/stream.h"
#include "shard/base/clock.h"

enum {
	PREFETCH_BLOCK_BUCKETS = 1 << 14, /* for hundreds of reads with about 30 small blocks each */
	/* A read fails after so many times EAGAIN, EINTR or a short read.  A short read that brings a page does not
	 * count. */
	PREFETCH_TRIES_MAX = 64,
	PREFETCH_EVENTS_MAX = 1 << 17, /* events that wait for the engine; more are dropped, which costs hits only */
	PREFETCH_RING = 64,            /* latest uses outside of the window that are kept to find a new place */
	/* Turns whose samples are worked out ahead, so that their records are in the processor's cache when they are
	 * needed. */
	PREFETCH_COMING = 16,
	PREFETCH_RUNS = 16, /* files that are read ahead by the block at the same time; file_readahead.c */
	/* Turns of the first announcement: few, because the first sample is wanted at once. */
	PREFETCH_ANNOUNCE_FIRST = 16,
	PREFETCH_DROPS_MAX = 512,       /* samples handed to the sink at once */
	PREFETCH_BAD_MAX = 1024,        /* latest bad blocks, kept so that each is counted once */
	PREFETCH_LOST_USES = 512,       /* uses over which losses are counted */
	PREFETCH_USED_LATELY = 64,      /* latest uses whose READ may come yet: the watcher and readers race */
	PREFETCH_NEIGHBOURS_MAX = 4096, /* samples beside one that a fetch takes */
	/* Blocks of one fetch: a sample, or small neighbours. */
	PREFETCH_WANTS_MAX = SHARD_SAMPLE_FILES_MAX + PREFETCH_NEIGHBOURS_MAX,
	/* The largest scheduled read of a store: a chunk of 4 MiB with its tar headers. */
	PREFETCH_STORE_READ_MAX = 6 << 20,
	/* ns: a store is far away, behind a network or the delay of a hook, if its reads take longer. */
	PREFETCH_FAR_NS = 1000000,
};

struct prefetch_read;

/* A sample that is fetched for the sink. */
struct prefetch_item {
	struct prefetch_stream *stream;
	STAILQ_ENTRY(prefetch_item) link;
	uint64_t seq; /* the use of the stream that it is fetched for */
	uint32_t sample;
	uint64_t cost;    /* bytes, as booked in the ledger */
	uint32_t names;   /* prefetch_stream.names when it was fetched */
	uint32_t pending; /* blocks not delivered yet; under lock once the first of them is in the table */
	bool failed;      /* a block could not be read or stored: the sample is not resident */
	bool stored;      /* the sink has stored at least one of its blocks */
	bool refused;     /* the sink returned -ENOENT: it has lost what was announced of the sample */
	bool waited;      /* a demand waits for one of its blocks; under lock */
};

/* A block that is on its way. */
struct prefetch_block {
	uint64_t key; /* cache_block_key */
	struct prefetch_read *read;
	struct prefetch_block *hash_next;
	STAILQ_ENTRY(prefetch_block) link; /* in its read, ascending offset; or in the free list */
	uint64_t offset;                   /* in the shard */
	uint32_t len;
	uint64_t xxh3;
	uint64_t epoch; /* for cache_tier_uses_of: of the use that it is fetched for; demands: CACHE_TIER_USES_LATEST;
	                 * CACHE_TIER_USES_NONE: the tier does not know its order */
	struct prefetch_demand *waiters;
	bool asked; /* a reader waits or waited for it, and its page cache then has the bytes: not stored */
	struct prefetch_item *item;  /* the sample that it is fetched for; NULL: demands only */
	struct cache_buffer *buffer; /* its verified bytes, held; NULL: not read yet */
};

STAILQ_HEAD(prefetch_block_list, prefetch_block);

/* Where a read is.  It changes under `lock` only. */
enum prefetch_read_state {
	PREFETCH_READ_QUEUED,   /* in `urgent` or `regains` */
	PREFETCH_READ_INFLIGHT, /* the engine thread has it, or the caller who reads it */
	PREFETCH_READ_LANDED,   /* in `landed` */
	PREFETCH_READ_DELIVERY, /* the thread in prefetch_deliver_read has it */
};

/* One extent of a shard that is read. */
struct prefetch_read {
	struct prefetch_op op; /* the first member: a pointer to it is a pointer to its read */
	TAILQ_ENTRY(prefetch_read) link;
	struct prefetch_block_list blocks; /* constant once the read is queued */
	enum prefetch_read_state state;
	/* It goes before others: a reader waits for it, or will probably do so. Set under the lock. The engine thread
	 * submits a read without the lock. */
	atomic_bool urgent;
	bool ahead;    /* a scheduled read: it counts against the depth */
	bool answered; /* its demands are answered and its blocks are out of the table, but not stored yet */
	bool warm_up;  /* with `ahead`: of the warm-up's stream */
	bool caller;   /* the thread that asked reads it; under lock */
	bool again;    /* a second read of one block, because the first gave wrong bytes */
	bool changed;  /* with `again`: the shard is not what the index says */
	uint32_t shard;
	uint32_t sample; /* of a read of one block: the sample of its file, or SHARD_NONE */
	uint64_t offset; /* the extent is [offset, offset + len) of the shard */
	uint32_t len;
	uint32_t gap_bytes; /* prefetch_op.gap_bytes */
	uint32_t between;   /* bytes of the extent between its blocks, when it was planned */
	/* Owned by the engine thread until the read lands: */
	struct cache_area *area; /* where the bytes arrive; NULL before that, and when the read failed */
	uint32_t entry;          /* number in the table of open shards; UINT32_MAX: none */
	uint64_t start;          /* offset in the shard of area's first byte: `offset`, aligned down */
	uint32_t want;           /* bytes from start to the end of the extent */
	uint32_t span;           /* `want`, rounded up to the alignment: what the source is asked for */
	uint32_t got;            /* bytes of it that have come */
	uint32_t tries;          /* EAGAIN, EINTR and short reads so far */
	bool failed;             /* counted in io_errors already */
	uint64_t submitted_ns;
	uint64_t due_ns; /* when the engine may see its result; set by a hook's delay */
	int rc;          /* 0 or -errno */
};

TAILQ_HEAD(prefetch_read_list, prefetch_read);
STAILQ_HEAD(prefetch_item_list, prefetch_item);

/* News for the schedule. */
struct prefetch_event {
	enum {
		PREFETCH_EVENT_TURN,
		PREFETCH_EVENT_SAMPLE,
		PREFETCH_EVENT_EPOCH,
		PREFETCH_EVENT_REFRESH,
		PREFETCH_EVENT_MISS,   /* a demand for a block that is neither in memory nor fetched */
		PREFETCH_EVENT_BROUGHT /* a demand answered from landing memory */
	} kind;
	bool past;                      /* prefetch_use.past */
	uint32_t bytes;                 /* of a demand: prefetch_demand.take */
	struct prefetch_stream *stream; /* NULL for a demand */
	uint64_t epoch;                 /* of a demand: the block */
	uint64_t turn;                  /* of PREFETCH_EVENT_SAMPLE: the sample; of a demand: the file */
};

/* What the engine thread has asked of the lister: an announcement of a stream, or the drops.
 *
 *             engine               lister            lister: done
 *     IDLE -----------> ASKED ---------------> BUSY --------------> IDLE
 *      ^                 | ^                   | |
 *      '-----------------' '-------------------' '---> VOID ------> IDLE
 *       taken back          more is to be done    taken back: what is done now does not count
 *
 * Drops are never taken back, and done at once. */
enum prefetch_request { PREFETCH_IDLE, PREFETCH_ASKED, PREFETCH_BUSY, PREFETCH_VOID };

/* The turns of a pool of order=chunk in one epoch: seq first .. end - 1. */
struct prefetch_pool {
	uint64_t first, end;
};

struct prefetch_stream {
	struct prefetch *p;
	struct prefetch_stream_options options;
	TAILQ_ENTRY(prefetch_stream) link;
	/* Owned by the engine thread, from registration to removal: */
	struct cache_timeline tl;
	uint64_t fetch;                   /* seq of the turn that is looked at next */
	uint64_t coming_end;              /* seq behind the last one in `coming` */
	uint32_t coming[PREFETCH_COMING]; /* samples of the seqs before coming_end, by seq modulo; SHARD_NONE: error */
	uint64_t announced;               /* the lister has been asked to announce the seqs below it */
	uint64_t taken;                   /* seq behind the farthest one that was fetched since the stream moved */
	uint64_t limit;                   /* seqs below it are announced, and may be fetched */
	uint64_t high;                    /* seq behind the farthest used one */
	uint64_t looked;                  /* the sink was asked whether it still has the seqs below it */
	uint64_t ahead_bytes;             /* fetched and not used */
	uint64_t lag_bytes;               /* the part of ahead_bytes below `high` */
	_Atomic uint64_t window;          /* most ahead_bytes, while nothing is in memory yet */
	_Atomic uint64_t buffer_turns;    /* options.buffer_turns, as it is known now; any thread sets it */
	_Atomic bool tells_uses;          /* options.tells_uses, as it is now; any thread sets it */
	bool filled;                      /* the window was full since it was last widened, or the stream moved */
	bool waited;                      /* a reader waited since then for a sample that was on its way */
	uint64_t used_at;                 /* prefetch_schedule.all_uses at its latest use */
	uint32_t missing;                 /* share of the latest turns looked at that had to be fetched, in 1/65536 */
	uint32_t batch;                   /* turns of the next announcement */
	uint64_t hold_from; /* from this seq on, next turns wait for the names of their pool; 0: none does */
	uint64_t hold_ns;   /* since when the first of them waits; 0: none does */
	/* The latest answer of prefetch_schedule_pool, its epoch, and the seq of turn 0 of that. */
	struct prefetch_pool pool;
	uint64_t pool_epoch, pool_base;
	/* When the sink has lost what was announced (lost.c): */
	uint32_t names;        /* how often announcements were begun again */
	uint32_t names_stored; /* samples stored since then */
	uint32_t names_uses;   /* uses since then */
	uint32_t names_vain;   /* how often in a row announcements were begun again and nothing was stored since */
	uint64_t names_ns;     /* when announcements were last begun again */
	/* Turns up to `suspect` are taken as lost and are fetched again; those up to `suspected` were so already. */
	uint64_t suspected, suspect;
	bool forgotten; /* announcements must begin again; nothing is fetched meanwhile */
	/* Whether the trainer follows the order (order_tracking.c): */
	bool following;
	uint64_t recent;                         /* a bit for each of the last 64 uses, set: inside the window */
	uint32_t n_recent;                       /* how many of these bits count, at most 64 */
	struct prefetch_use ring[PREFETCH_RING]; /* the latest uses outside of the window */
	uint32_t ring_n;                         /* uses that ever came into it */
	uint32_t ring_checked;                   /* ring_n when it was last searched for a place */
	bool booked;                             /* the ledger knows `tl` */
	uint32_t items;                          /* samples that are fetched and have not arrived */
	_Atomic uint64_t stat_epoch, stat_turn, stat_used, stat_fetched, stat_window, stat_jumps;
	_Atomic bool stat_following;
	/* Under lock: */
	enum { PREFETCH_STREAM_NEW, PREFETCH_STREAM_LIVE, PREFETCH_STREAM_CLOSING, PREFETCH_STREAM_GONE } state;
	int add_rc;                             /* why it is GONE instead of LIVE */
	enum prefetch_request announce;         /* the turns below, for the lister */
	uint64_t announce_epoch, announce_turn; /* the first turn */
	uint32_t announce_n;                    /* turns */
	uint32_t announce_piece; /* turns in one call of the sink; after each piece its turns can be fetched */
	uint64_t announce_upto;  /* seq behind the last of these turns */
	uint64_t announce_done;  /* seqs below it are announced */
};

TAILQ_HEAD(prefetch_stream_list, prefetch_stream);

/* The counters of prefetch_stats; any thread adds to them. */
struct prefetch_counters {
	_Atomic uint64_t demands, demand_hits, hinted, joined, reads, read_bytes, delivered_bytes, stored_bytes,
	        bad_blocks, mended_blocks, io_errors, misses, used, wasted_bytes, refetches, regained, forgotten,
	        wake_ups, caller_reads;
};

/* A block of a sample that is being fetched; see merged_reads.c. */
struct prefetch_want {
	uint64_t key;
	uint64_t offset;
	uint64_t xxh3;
	uint32_t shard;
	uint32_t len;
	struct prefetch_item *item;
	struct prefetch_block *block; /* NULL: need not be read */
};

/* A sample beside one that is fetched; see merged_reads.c. */
struct prefetch_neighbour {
	uint32_t sample;
	uint64_t seq; /* of its use */
};

/* A file whose blocks are read ahead of a reader; see file_readahead.c. */
struct prefetch_run {
	uint32_t file;  /* SHARD_NONE: none */
	uint32_t next;  /* the block behind the one demanded last */
	uint32_t upto;  /* blocks below it were read ahead, or are being read */
	uint32_t ahead; /* blocks that are read ahead at a time */
};

/* Whether the engine thread runs or sleeps.
 *
 *     any state ----------------NEWS---> POKED ---ROUND---> AWAKE
 *     STARVED, ASLEEP_STARVED -MEMORY--> POKED
 *     AWAKE, STARVED ----------LATER---> POKED    (asleep it goes on sleeping)
 *
 *              <--SLEEPS--              ---ASKS--->             --SLEEPS-->
 *      ASLEEP               AWAKE                      STARVED               ASLEEP_STARVED
 *            --WORK, WOKEN-->   <---SERVED, WORK---             <--WOKEN---        | WORK
 *                           ^                                                      |
 *                           '------------------------------------------------------'
 *
 * While it is POKED, only ROUND changes that: one more round, which asks for memory again, goes before any sleep. */
enum prefetch_engine_state {
	PREFETCH_AWAKE,
	PREFETCH_POKED,   /* there is news that it has not taken in */
	PREFETCH_STARVED, /* a read waits for landing memory, the file table or room in the sink, or may find none */
	PREFETCH_ASLEEP,  /* in prefetch_io_wait, or about to be */
	PREFETCH_ASLEEP_STARVED,
};

/* What changes that state. */
enum prefetch_engine_step {
	PREFETCH_NEWS,   /* there are events, drops, streams or memory for the schedule */
	PREFETCH_LATER,  /* there are events that can wait until a read in flight comes back */
	PREFETCH_WORK,   /* a read is in `urgent` */
	PREFETCH_MEMORY, /* landing memory was given back */
	/* Steps of the engine thread: */
	PREFETCH_ROUND,  /* it takes in the news */
	PREFETCH_ASKS,   /* it asks for memory from now on, so that no memory given back is missed */
	PREFETCH_SERVED, /* nothing waits for memory */
	PREFETCH_SLEEPS,
	PREFETCH_WOKEN, /* prefetch_io_wait has returned */
};

/* What `lock` guards. */
struct prefetch_locked {
	struct prefetch_block *blocks[PREFETCH_BLOCK_BUCKETS];
	struct prefetch_read_list urgent; /* reads that wait to be submitted */
	/* Scheduled reads of what the sink has lost, which wait until the depth allows them. */
	struct prefetch_read_list regains;
	struct prefetch_read_list free_reads;
	struct prefetch_block_list free_blocks;
	pthread_cond_t started_cv;
	int started;                   /* 1: the engine thread runs; < 0: -errno of its start; 0: not known yet */
	struct prefetch_event *events; /* a vector that grows */
	size_t n_events, events_room;
	struct prefetch_item_list arrived;        /* items without pending blocks, for the ledger */
	struct prefetch_stream_list streams;      /* all that exist */
	pthread_cond_t streams_cv;                /* a stream's state changed */
	_Atomic enum prefetch_engine_state state; /* prefetch_engine_step changes it; read without the lock, too */
	bool wake_due;                            /* prefetch_unlock must wake the engine thread */
	bool resting;                             /* it sleeps until the warm-up may read on */
	bool soon;                                /* it sleeps for a short time only, then takes in events */
	bool stopping;                            /* no new work */
	uint64_t share_bytes;                     /* sink_bytes of prefetch_share; 0: not called */
	uint64_t new_memory_bytes;                /* of prefetch_set_memory, not taken up yet; 0: none */
	struct prefetch_run runs[PREFETCH_RUNS];
	uint32_t run_at; /* modulo PREFETCH_RUNS: the place of the next run */
};

/* The deliver thread's work, under `lock`. */
struct prefetch_delivery {
	struct prefetch_read_list landed; /* reads that wait for delivery, urgent ones first */
	pthread_cond_t landed_cv;
	bool idle;                      /* the thread waits for work */
	bool stop;                      /* the engine thread has ended: the reads in `landed` are the last ones */
	uint64_t bad[PREFETCH_BAD_MAX]; /* a ring of keys: the blocks found bad last */
	uint64_t n_bad;                 /* blocks that were ever found bad */
	_Atomic uint64_t storing_ns;    /* without lock: when it entered the sink's store; 0: it is not there */
};

/* Bytes that the sink is asked for (prefetch_sink_ops.look). */
struct prefetch_look {
	uint64_t offset;
	uint32_t file;
	uint32_t len;
};

enum { PREFETCH_LOOKS_MAX = 256 }; /* asked for at a time */

/* The lister thread's work, under `lock`; the announcements are in the streams. */
struct prefetch_lister {
	pthread_cond_t cv; /* announcements or drops, or `stop` */
	bool stop;
	enum prefetch_request request; /* hand `drops` to the sink */
	/* Owned by the engine thread; the lister reads it while the request is not IDLE: */
	struct cache_victim drops[PREFETCH_DROPS_MAX];
	size_t n_drops;
	uint64_t since_ns;          /* when the lister was given `drops` */
	enum prefetch_request look; /* ask the sink for `looks`; while it is IDLE, they are the engine thread's */
	uint32_t n_looks;
	struct prefetch_look looks[PREFETCH_LOOKS_MAX];
};

/* Reads in flight.  Owned by the engine thread. */
struct prefetch_reading {
	struct prefetch_read_list delayed; /* finished reads that wait for their due_ns, by due_ns */
	struct prefetch_read_list parked;  /* scheduled reads that wait for memory or an entry of the file table */
	uint32_t inflight;                 /* reads in flight */
	uint32_t inflight_ahead;           /* scheduled ones of them */
	uint64_t full_at_ns;               /* when device_full was set or cleared */
	bool device_full;  /* when the engine last waited, as many scheduled reads were in flight as the depth allows */
	uint32_t read_max; /* bytes of a scheduled read, at most; constant */
	struct prefetch_depth depth;
	struct prefetch_request_cost cost; /* of a store */
	/* Scheduled reads in a row that took nothing from the source, because a tier had all of it. */
	uint32_t from_tier;
	_Atomic uint64_t ahead_landing; /* bytes of landing memory held by scheduled reads; any thread subtracts */
};

/* What the schedule works with.  Owned by the engine thread. */
struct prefetch_schedule {
	struct prefetch_event *events_spare; /* swapped with prefetch_locked.events */
	size_t events_spare_room;
	struct prefetch_item_list free_items;
	struct prefetch_want *wants;           /* PREFETCH_WANTS_MAX of them */
	struct prefetch_neighbour *neighbours; /* PREFETCH_NEIGHBOURS_MAX of them */
	uint64_t memory_bytes;                 /* of sink and landing memory together */
	uint64_t landing;                      /* bytes of that which landing memory may take */
	uint64_t budget;                       /* bytes that the ledger may hold without losses */
	uint64_t share_most;                   /* most that `budget` may grow to since prefetch_share */
	uint64_t room;               /* bytes: demands wait while the ledger holds more and drops are under way */
	uint64_t drop_lag;           /* lag_bytes of the ledger */
	uint64_t cost_bytes, n_cost; /* cost of all fetched samples, and their number: for the mean */
	uint64_t all_uses;           /* uses of all streams */
	bool followed;               /* a stream is followed, besides the warm-up */
	uint32_t n_live;             /* live streams */
	uint32_t n_here;             /* those of them that read ahead and are not away */
	uint64_t here_left;          /* the fewest turns that one of those has left in its epoch */
	uint32_t n_looked;           /* turns that fetching has looked at in this round of the engine thread */
	bool share_pending;          /* prefetch_share waits for samples that are coming */
	uint64_t demanded_ns;        /* when the latest events of demands were taken in; 0: none were */
	_Atomic bool shared;         /* prefetch_share took effect; any thread reads it */
};

/* One of the latest uses. */
struct prefetch_used {
	uint32_t sample;
	uint64_t ahead_bytes; /* that were read ahead for it, as the ledger counts; 0: none */
};

/* A sample that a reader brought in, and the block that he asked for first. */
struct prefetch_brought {
	uint32_t sample;
	uint64_t key; /* cache_block_key */
};

/* What the sink has lost (lost.c).  Owned by the engine thread. */
struct prefetch_losses {
	uint64_t since_ns;  /* start of the interval of `recently` */
	uint64_t shrunk_ns; /* when the ledger's budget last changed because of losses; 0: it is the whole budget */
	uint32_t recently;  /* losses in this interval */
	uint32_t latest;    /* the sample lost last */
	uint32_t uses;      /* uses since the count began, less than PREFETCH_LOST_USES */
	uint32_t lost;      /* samples that were lost since then */
	uint64_t first_ns;  /* when the first of them was lost */
	uint64_t history;   /* a bit for each of the latest 64 uses, set: its sample was lost */
	struct prefetch_used used[PREFETCH_USED_LATELY]; /* by prefetch_schedule.all_uses modulo */
	/* Samples that were not in memory when a reader asked for a block of them: the latest ones, a ring. */
	struct prefetch_brought brought[PREFETCH_USED_LATELY];
	uint64_t n_brought;   /* that there ever were */
	bool expected;        /* `latest` is to be fetched again anyway */
	uint32_t halved;      /* windows are divided by 2 so many times, because the kernel holds less */
	uint64_t halved_ns;   /* when that last changed */
	bool refetch;         /* the next refetch_turns of all streams must be fetched again */
	bool refetched_early; /* ... and looking led to it, few uses after the time before */
	uint32_t refetch_turns;
	uint64_t looked_ns;    /* when the sink was asked for the lister's `looks` */
	uint32_t looked, gone; /* of few looks at a time: so many since they were judged; of these, gone */
	uint64_t refetch_uses; /* uses since `refetch` was last set */
	uint64_t refetch_ns;   /* when it was last set; 0: never */
};

/* The state of a warm-up.  Owned by the engine thread; any thread may read the atomics. */
struct prefetch_warm_up {
	struct prefetch_stream *stream; /* NULL: there is none */
	bool running;
	uint32_t missed;      /* files missed since another stream was last followed, at most PREFETCH_WARM_UP_MISSES */
	uint64_t missed_ns;   /* when the last one was missed */
	uint32_t opened;      /* files opened since the count began, less than PREFETCH_LOST_USES */
	uint32_t lost;        /* samples that were lost since then */
	uint32_t inflight;    /* reads */
	uint64_t timed_ns;    /* when the first of the reads was submitted that are timed together */
	uint64_t timed_bytes; /* of those that have come back; 0: none */
	uint64_t least_ns;    /* the shortest time of SHARD_BLOCK bytes; 0: none yet */
	uint64_t rest_ns;     /* no read starts before this time */
	uint64_t again_ns;    /* when a pass last began again; 0: never */
	uint64_t next_again;  /* ns after again_ns until a pass may begin again */
	_Atomic bool order_left; /* prefetch_set_order_left(); any thread sets it */
	_Atomic int state;       /* enum prefetch_warm_up_state */
	_Atomic uint64_t begun, bytes;
};

/* For the statistics; any thread. */
struct prefetch_figures {
	_Atomic uint32_t inflight, depth;
	_Atomic uint32_t callers; /* reads of callers, from their start until they are delivered */
	_Atomic bool room;        /* callers may read: demands need not wait for room in the sink */
	_Atomic uint64_t rate, busy_ns, full_ns;
	_Atomic pid_t tid, deliver_tid;
	_Atomic bool direct, depth_full, depth_most;
	struct prefetch_hist waits;
};

/* An engine. */
struct prefetch {
	/* Constant, but for what they point to: */
	struct prefetch_options options;
	struct prefetch_hook hook;
	struct prefetch_source *source; /* owned */
	bool store;                     /* prefetch_source.store */
	bool http;                      /* the shards are read over HTTP */
	bool callers_read;              /* callers may read blocks themselves: the source is local, without a tier */
	struct cache *cache;
	struct prefetch_io_backend *io;     /* for the engine thread; any thread may call prefetch_io_wake */
	struct prefetch_io_backend *origin; /* reads from the source; `io`, or what a tier stands in front of */
	struct prefetch_shards *files;      /* for the engine thread */
	struct cache_ledger *ledger;        /* for the engine thread; NULL without a sink */
	struct prefetch_sink *sink;
	uint32_t run_max; /* blocks of a large file that are read ahead at a time, at most */
	pthread_t engine_thread, deliver_thread, lister_thread;

	pthread_mutex_t lock;
	struct prefetch_locked locked;
	struct prefetch_delivery delivery;
	struct prefetch_lister lister;

	struct prefetch_reading reading;
	struct prefetch_schedule schedule;
	struct prefetch_losses losses;
	struct prefetch_warm_up warm_up;

	_Atomic uint64_t lost_ns;                 /* when the sink was last found to have lost something; 0: never */
	_Atomic uint32_t look_answers, look_gone; /* of the lister's `looks`: answers; of these, gone */
	_Atomic uint32_t look_regains;            /* of those that are gone, so many are read one by one */
	struct prefetch_counters counters;
	struct prefetch_figures figures;
};

/* prefetch.c: releases a buffer of the cache, and wakes the engine thread if that waits for memory.  So use it
 * instead of cache_put.  Any thread; not under lock. */
void prefetch_put(struct prefetch *p, struct cache_buffer *buffer);

/* prefetch.c: queues an urgent read of one block that is neither in memory nor in the table.  demand: waits for it;
 * NULL: none yet.  Returns 0, -ECANCELED (the engine is being freed) or -ENOMEM.  Any thread, under lock. */
int prefetch_queue_block(struct prefetch *p, uint64_t key, const struct shard_place *file, uint64_t offset,
        uint32_t len, uint64_t xxh3, struct prefetch_demand *demand);

/* caller_reads.c: reads of the threads that ask. */
/* Returns whether a caller may read a block itself now.  Any thread. */
bool prefetch_caller_may_read(const struct prefetch *p);
/* Reads, verifies and delivers a read of one block, or leaves it to the engine.  Its state is PREFETCH_READ_INFLIGHT,
 * and no other thread has it.  reading: true while the thread waits for the disk.  Any thread; not under lock. */
void prefetch_caller_read(struct prefetch *p, struct prefetch_read *read, _Atomic bool *reading);

/* file_readahead.c: prepares the runs for this much landing memory. */
void prefetch_readahead_init(struct prefetch *p, uint64_t landing_bytes);
/* Reads the blocks behind a demanded one into landing memory, if a run says so.  there: the demanded block was in
 * memory or on its way.  Any thread; not under lock. */
void prefetch_readahead_demanded(
        struct prefetch *p, uint32_t file, const struct shard_place *place, uint32_t block, bool there);

/* engine.c: the thread that owns the ring. */
void *prefetch_engine_run(void *arg);
/* Changes the state of the engine thread.  If it sleeps and must not, prefetch_unlock wakes it.  Under lock. */
void prefetch_engine_step(struct prefetch *p, enum prefetch_engine_step step);
/* Takes `lock`, and releases it; the second also wakes the engine thread if it must be. */
void prefetch_lock(struct prefetch *p);
void prefetch_unlock(struct prefetch *p);
static inline void prefetch_unlock_scope(struct prefetch **p)
{
	prefetch_unlock(*p);
}
static inline struct prefetch *prefetch_locked(struct prefetch *p)
{
	prefetch_lock(p);
	return p;
}
/* Holds `lock` until the end of the scope; one of these in a scope. */
#define prefetch_lock_for_scope(p)                                                                                     \
	__attribute__((cleanup(prefetch_unlock_scope), unused)) struct prefetch *prefetch_locked_scope =               \
	        prefetch_locked(p)

/* Opens the shard, takes landing memory and submits the read.  Engine thread.
 * Returns 0, also when the read has failed: then it has landed with the error.  Returns -EAGAIN when landing memory
 * or the table of open shards is all in use. */
int prefetch_engine_start(struct prefetch *p, struct prefetch_read *read);
/* Hands a read to the deliver thread, with its bytes (rc 0) or an error.  Engine thread. */
void prefetch_engine_land(struct prefetch *p, struct prefetch_read *read, int rc);
/* Gives back the landing memory of a read, if it has some.  Any thread. */
void prefetch_engine_free_area(struct prefetch *p, struct prefetch_read *read);

/* schedule.c: what to read ahead.  Engine thread. */
int prefetch_schedule_init(struct prefetch *p);
void prefetch_schedule_done(struct prefetch *p);
/* Takes in events, arrived items, and streams that come and go; acts on them. */
void prefetch_schedule_news(struct prefetch *p);
/* Starts reads while depth, memory and windows allow. */
void prefetch_schedule_fill(struct prefetch *p);
/* Returns the most ns from now that demands must wait, because the sink holds too much and drops are under way; 0:
 * none. */
int64_t prefetch_schedule_room_ns(const struct prefetch *p);
/* Returns true for a demand's read that must not wait so.  If its sample is being dropped, the sink may wait for the
 * answer, because the kernel holds the page locks of a READ.  If its sample is coming, its room is booked already. */
bool prefetch_schedule_cannot_wait(const struct prefetch *p, const struct prefetch_read *read);
/* Finds the pool that a turn lies in, if a store is read by whole chunks; else returns false.  The samples of a chunk
 * lie anywhere in the turns of their pool.  So all of those are announced before it is fetched, and they are fetched
 * again together. */
bool prefetch_schedule_pool(
        const struct prefetch *p, struct prefetch_stream *stream, uint64_t seq, struct prefetch_pool *ret);
/* Returns the seq below which a fetch of the turn at stream->fetch may take neighbours: of its own pool, and of pools
 * that are announced.  A part of another pool's chunk would leave the chunk's other samples to many small requests. */
uint64_t prefetch_schedule_neighbours_limit(const struct prefetch *p, struct prefetch_stream *stream);
/* The stream's window has moved: nothing waits for the pool that it left. */
void prefetch_schedule_moved(struct prefetch_stream *stream);
/* From now on the turns from @seq on count as not announced and not fetched.  What is being announced is not gone on
 * with. */
void prefetch_schedule_unannounce(struct prefetch *prefetch, struct prefetch_stream *stream, uint64_t seq);
/* Queues an event.  Any thread, under lock. */
void prefetch_schedule_event(struct prefetch *p, const struct prefetch_event *event);
/* Does the same, but does not wake the engine thread: a read of it that is queued or in flight will. */
void prefetch_schedule_event_later(struct prefetch *p, const struct prefetch_event *event);
/* Does the same, but does not wake the engine thread if that sleeps for a short time only. */
void prefetch_schedule_event_soon(struct prefetch *p, const struct prefetch_event *event);

/* merged_reads.c: starts the reads of a sample that the stream uses at seq, and of small neighbours that it uses
 * soon.
 * Engine thread.
 * Returns 0, an error of cache_ledger_fetch, -EFBIG (too large to be read ahead), -ENOMEM or an error of the index. */
int prefetch_fetch(struct prefetch *p, struct prefetch_stream *stream, uint64_t seq, uint32_t sample);
/* Returns whether a fetch of the sample may take neighbours, too: it is small, and its files lie side by side. */
bool prefetch_fetch_merges(const struct prefetch *p, uint32_t sample);
/* Tries the parked reads again.  Returns true when none is left. */
bool prefetch_fetch_parked(struct prefetch *p);

/* lost.c: what the sink has lost, because the kernel took it back.  Engine thread. */
/* A reader asked for a sample that counted as resident. */
void prefetch_lost_sample(struct prefetch *p, uint32_t sample);
/* A reader brings a sample in, of which he asked for this block first. */
void prefetch_lost_brought(struct prefetch *p, uint32_t sample, uint64_t key);
/* Returns whether a reader brought the sample in lately, and this is another block of it: then it is not lost. */
bool prefetch_lost_comes(const struct prefetch *p, uint32_t sample, uint64_t key);
/* The sink refused an item, which the ledger has as absent now. */
void prefetch_lost_refused(struct prefetch *p, const struct prefetch_item *item);
/* Takes the next turns from `fetch` on as lost, if they are to be fetched again. */
void prefetch_lost_suspects(struct prefetch *p, struct prefetch_stream *stream);
/* Asks the sink whether it still has what the reader uses next, if that may be lost and lies in a store far away. */
void prefetch_lost_look(struct prefetch *p, struct prefetch_stream *stream);
/* Acts on losses: fetches again, announces again, raises a budget that had shrunk. */
void prefetch_lost_settle(struct prefetch *p);
/* schedule.c: calls fn for each live stream, again and again until all return false. */
void prefetch_each_stream(struct prefetch *p, bool (*fn)(struct prefetch *p, struct prefetch_stream *s));

/* order_tracking.c: whether the trainer follows the order, and where it is.  Engine thread. */
/* The trainer has used a turn, or a sample. */
void prefetch_tracking_use(struct prefetch *p, struct prefetch_stream *stream, const struct prefetch_use *use);
void prefetch_tracking_sample(struct prefetch *p, struct prefetch_stream *stream, uint32_t sample);
/* Returns how many turns a shuffle buffer behind the order may hold a sample back; 0: there is none. */
uint64_t prefetch_tracking_held(const struct prefetch_stream *stream);
/* Returns whether a turn lies so near to the farthest one that a worker may use it now. */
bool prefetch_tracking_near(const struct prefetch_stream *stream, uint64_t seq);
/* Returns the seq of the oldest turn that workers behind the farthest one may still use.  It is of the same epoch,
 * because a given view (shard/view.h) may have dropped the one before. */
uint64_t prefetch_tracking_oldest(struct prefetch_stream *stream);
/* The sample of a turn that was fetched and not used is not in memory after all, or may not be.  It leaves the
 * window.  Returns its cost, in bytes; 0: it was not in the window. */
uint64_t prefetch_tracking_gone(struct prefetch *p, struct prefetch_stream *stream, uint64_t seq);
/* Counts bytes that were fetched and that nobody will use. */
void prefetch_tracking_wasted(struct prefetch *p, uint64_t bytes);
/* Begins to fetch again at the cursor: what was fetched and not used counts as absent. */
void prefetch_tracking_refetch(struct prefetch *p, struct prefetch_stream *stream);
/* The trainer starts an epoch. */
void prefetch_tracking_epoch(struct prefetch *p, struct prefetch_stream *stream, uint64_t epoch);

/* warm_up.c: what is read in storage order while no order is known.  Engine thread. */
/* A stream with prefetch_stream_options.warm_up has come, or goes. */
void prefetch_warm_up_add(struct prefetch *p, struct prefetch_stream *stream);
void prefetch_warm_up_remove(struct prefetch *p, struct prefetch_stream *stream);

/* A reader asked for the first block of a file. */
void prefetch_warm_up_missed(struct prefetch *p);

/* Begins or ends the warm-up, as the other streams say.  After news. */
void prefetch_warm_up_settle(struct prefetch *p);

/* Returns whether one more read may start now. */
bool prefetch_warm_up_may_read(struct prefetch *p);
/* Returns the ns until a read may start that waits for the end of a rest; -1: none waits for that. */
int64_t prefetch_warm_up_wait_ns(struct prefetch *p);
/* The stream has nothing to read: its pass is over, or (full) there is no room. */
void prefetch_warm_up_idle(struct prefetch *p, bool full);

/* A read of the stream was submitted; it has come back. */
void prefetch_warm_up_submitted(struct prefetch *p);
void prefetch_warm_up_came_back(struct prefetch *p, const struct prefetch_read *read);

/* A reader opened a file, or found a sample lost. */
void prefetch_warm_up_opened(struct prefetch *p);
void prefetch_warm_up_lost(struct prefetch *p);
/* Returns whether at least one in @part of the files that readers opened lately were lost. */
bool prefetch_warm_up_lost_part(const struct prefetch *p, uint32_t part);
/* Returns whether the pass may begin again: not soon after the last time. */
bool prefetch_warm_up_again(struct prefetch *p);

/* lister.c: the thread that announces to the sink, and hands it drops. */
void *prefetch_lister_run(void *arg);

/* deliver.c: the thread that verifies and answers. */
void *prefetch_deliver_run(void *arg);
/* Verifies the blocks of a read, answers their demands, stores the others, and frees the read.  Without `stores` the
 * deliver thread stores them later.  Deliver thread; without `stores` also a caller who read it, and the engine thread
 * if the deliver thread is idle or blocks in the sink. */
void prefetch_deliver_read(struct prefetch *p, struct prefetch_read *read, bool stores);
/* Calls done of each demand of the list.  buffer: the block, when rc is 0.  Any thread; not under lock. */
void prefetch_answer(struct prefetch *p, struct prefetch_demand *list, int rc, const struct cache_buffer *buffer);

/* blocks.c: the table of blocks that are on their way, and the pools of blocks and reads.  Any thread, under lock. */
/* Returns the block of a key, or NULL. */
struct prefetch_block *prefetch_block_find(struct prefetch *p, uint64_t key);
/* Returns a new block, which is in the table, or NULL: no memory.  The table must not have the key. */
struct prefetch_block *prefetch_block_new(struct prefetch *p, uint64_t key);
/* Takes a block out of the table. */
void prefetch_block_unhash(struct prefetch *p, struct prefetch_block *block);
/* Frees a block that is in no table and no list. */
void prefetch_block_free(struct prefetch *p, struct prefetch_block *block);
/* Returns a new read without blocks, or NULL: no memory. */
struct prefetch_read *prefetch_read_new(struct prefetch *p);
/* Frees a read without blocks and area, which is in no list. */
void prefetch_read_free(struct prefetch *p, struct prefetch_read *read);
/* Frees the pools; not under lock, when no other thread is left. */
void prefetch_blocks_done(struct prefetch *p);

#endif
