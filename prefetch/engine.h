/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's inside: what its threads share.
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
 *                                them into the sink instead of answering somebody
 *
 * A *block* that is asked for and not yet verified stands in `blocks` and belongs to one *read*, an extent of a shard.
 * From its verification on it is a cache_buffer.  Both steps happen under `lock`, so that prefetch_demand, which looks
 * into the cache and then into `blocks` under the same lock, sees it in one of the two.
 *
 * Lock order: lock, then the cache's own.  No callback, I/O, hashing or look into the index under `lock`.  The caller may
 * hold locks of its own around any function of prefetch.h and stream.h, but none that a callback of it takes. */
#ifndef DDPFS_PREFETCH_ENGINE_H
#define DDPFS_PREFETCH_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "cache/cache.h"
#include "cache/ledger.h"
#include "prefetch/depth.h"
#include "prefetch/files.h"
#include "prefetch/latency_histogram.h"
#include "prefetch/io_backend.h"
#include "prefetch/prefetch.h"
#include "prefetch/sink.h"
#include "prefetch/stream.h"

enum {
	PREFETCH_BLOCK_BUCKETS = 1 << 14, /* hundreds of reads of some 30 small blocks each */
	/* EAGAIN, EINTR and short reads of one read before it counts as failed.  A short one that brings a page is none. */
	PREFETCH_TRIES_MAX = 64,
	PREFETCH_EVENTS_MAX = 1 << 17, /* events that wait for the engine; more are lost, which costs hits only */
	PREFETCH_RING = 64,            /* uses outside of the window that are remembered, to find a new place */
	PREFETCH_COMING = 16, /* turns whose samples are worked out ahead, so that their records are on their way */
	PREFETCH_RUNS = 16,   /* files at once that are read on */
	PREFETCH_ANNOUNCE_FIRST = 16, /* turns of the first announcement: the first sample is wanted at once */
	PREFETCH_DROPS_MAX = 512,     /* samples handed to the sink at once */
	PREFETCH_BAD_MAX = 1024,      /* bad blocks that are remembered, so that each is counted once */
	PREFETCH_LOST_USES = 512,     /* uses over which losses are counted */
	PREFETCH_WANTS_MAX = SHARD_SAMPLE_FILES_MAX + 256, /* blocks of one fetch: a sample, or small neighbours */
};

struct prefetch_read;

/* A sample on its way to the sink. */
struct prefetch_item {
	struct prefetch_stream *stream;
	STAILQ_ENTRY(prefetch_item) link;
	uint64_t seq; /* the stream's use that it was fetched for */
	uint32_t sample;
	uint64_t cost;    /* as booked in the ledger */
	uint32_t names;   /* the stream's when it was fetched */
	uint32_t pending; /* blocks not delivered yet; under lock once the first of them is published */
	bool failed;
	bool stored;  /* one of its blocks at least, by the sink */
	bool refused; /* the sink has forgotten what was announced of it */
};

struct prefetch_block {
	uint64_t key;
	struct prefetch_read *read;
	struct prefetch_block *hash_next;
	STAILQ_ENTRY(prefetch_block) link; /* in its read, ascending offset; or in the free list */
	uint64_t offset;                   /* in the shard */
	uint32_t len;
	uint64_t xxh3;
	struct prefetch_demand *waiters;
	bool asked;                  /* somebody waits or waited, whose page cache has it then */
	struct prefetch_item *item;  /* NULL: only asked for */
	struct cache_buffer *buffer; /* was in memory already: held, verified */
};

STAILQ_HEAD(prefetch_block_list, prefetch_block);

/* Where a read is; changes under `lock` only. */
enum prefetch_read_state {
	PREFETCH_READ_QUEUED,   /* in `urgent` */
	PREFETCH_READ_INFLIGHT, /* the engine thread's */
	PREFETCH_READ_LANDED,   /* in `landed` */
	PREFETCH_READ_DELIVERY, /* the deliver thread's */
};

struct prefetch_read {
	struct prefetch_op op; /* first: reaped operations lead back to their read */
	TAILQ_ENTRY(prefetch_read) link;
	struct prefetch_block_list blocks; /* constant once queued */
	enum prefetch_read_state state;
	bool urgent;   /* somebody waits */
	bool ahead;    /* nobody asked for it: counts against the depth */
	bool answered; /* who waited has its answer, the blocks are out of the table: they are to be stored */
	bool again;    /* read a second time, because the first gave wrong bytes */
	bool changed;  /* when `again`: the shard is not what the index says any more */
	uint32_t shard;
	uint32_t sample; /* of one that was asked for: what its file belongs to, or SHARD_NONE */
	uint64_t offset; /* of the extent wanted: [offset, offset + len) of the shard */
	uint32_t len;
	/* From here the engine thread's until it lands. */
	struct cache_area *area; /* NULL before and when it failed */
	uint32_t slot;           /* UINT32_MAX: no file */
	uint64_t start;          /* aligned offset that area's first byte stands for */
	uint32_t want;           /* bytes from start to the end of the extent */
	uint32_t span;           /* the same, rounded up to the alignment: what is asked of the source */
	uint32_t got;            /* bytes of it that came */
	uint32_t tries;
	bool failed; /* counted in io_errors */
	uint64_t submitted_ns;
	uint64_t due_ns; /* hook delay: not seen before */
	int rc;          /* the outcome */
};

TAILQ_HEAD(prefetch_read_list, prefetch_read);
STAILQ_HEAD(prefetch_item_list, prefetch_item);

/* Something happened that the schedule must know. */
struct prefetch_event {
	enum {
		PREFETCH_EVENT_TURN,
		PREFETCH_EVENT_SAMPLE,
		PREFETCH_EVENT_EPOCH,
		PREFETCH_EVENT_REFRESH,
		PREFETCH_EVENT_MISS,   /* a demand that is read for its own sake */
		PREFETCH_EVENT_BROUGHT /* a demand answered from landing memory */
	} kind;
	bool past;                      /* prefetch_use.past */
	uint32_t bytes;                 /* of a demand: prefetch_demand.take */
	struct prefetch_stream *stream; /* NULL for a demand */
	uint64_t epoch;                 /* or block */
	uint64_t turn;                  /* or sample, or file */
};

struct prefetch_stream {
	struct prefetch *p;
	struct prefetch_stream_options options;
	TAILQ_ENTRY(prefetch_stream) link;
	/* Engine thread's, from registration to removal: */
	struct cache_timeline tl;
	uint64_t fetch;                   /* seq: the next one to look at */
	uint64_t coming_end;              /* seq behind the last one in `coming` */
	uint32_t coming[PREFETCH_COMING]; /* samples of the seqs before coming_end, by seq modulo; SHARD_NONE: error */
	uint64_t announced;               /* seq: those below were announced, or are being */
	uint64_t limit;                   /* seq: those below exist, may be fetched */
	uint64_t high;                    /* seq behind the farthest used one */
	uint64_t ahead_bytes;             /* fetched and not used */
	uint64_t lag_bytes;               /* the part of it below `high` */
	_Atomic uint64_t window;          /* limit of ahead_bytes, where nothing is in memory yet */
	uint64_t used_at;                 /* p->all_uses at its latest use */
	uint32_t missing;                 /* share of the latest turns looked at that had to be fetched, in 1/65536 */
	uint32_t batch;                   /* turns of the next announcement */
	/* The sink forgot what was announced (lost.c): */
	uint32_t names;        /* announcements were begun anew so often */
	uint32_t names_stored; /* samples stored since then */
	uint32_t names_uses;   /* uses since then */
	uint32_t names_vain;   /* ... and so often in a row nothing was stored */
	bool forgotten;        /* they are to be begun anew; nothing is fetched meanwhile */
	bool following;
	uint64_t recent;                         /* the last 64 uses, bit set: inside the window */
	uint32_t n_recent;                       /* of them are known, at most 64 */
	struct prefetch_use ring[PREFETCH_RING]; /* the latest uses outside of the window */
	uint32_t ring_n;                         /* all that ever came */
	uint32_t ring_checked;
	uint32_t items; /* on their way */
	_Atomic uint64_t stat_epoch, stat_turn, stat_used, stat_fetched, stat_window, stat_jumps;
	_Atomic bool stat_following;
	/* Under lock: */
	enum { PREFETCH_STREAM_NEW, PREFETCH_STREAM_LIVE, PREFETCH_STREAM_CLOSING, PREFETCH_STREAM_GONE } state;
	int add_rc;          /* why it is GONE instead of LIVE */
	bool announce_asked; /* the lister has work here, described by: */
	bool announce_busy;  /* ... and is at it */
	bool announce_void;  /* ... for nothing: what it announces now and the rest count as not announced */
	uint64_t announce_epoch, announce_turn;
	uint32_t announce_n;
	uint32_t announce_piece; /* turns that the lister announces at once; those are fetched meanwhile */
	uint64_t announce_upto;  /* seq behind the announcement asked for */
	uint64_t announce_done;  /* seq: those below exist */
};

TAILQ_HEAD(prefetch_stream_list, prefetch_stream);

struct prefetch_counters {
	_Atomic uint64_t demands, demand_hits, hinted, joined, reads, read_bytes, delivered_bytes, stored_bytes,
	        bad_blocks, mended_blocks, io_errors, misses, used, wasted_bytes, refetches, forgotten;
};

/* A block that is to be read ahead; see fetch.c. */
struct prefetch_want {
	uint64_t key;
	uint64_t offset;
	uint64_t xxh3;
	uint32_t shard;
	uint32_t len;
	struct prefetch_item *item;
	struct prefetch_block *block; /* NULL: need not be read */
};

/* A file that is asked for block by block; see run.c. */
struct prefetch_run {
	uint32_t file; /* SHARD_NONE: none */
	uint32_t next; /* the block that follows the latest one */
	uint32_t upto; /* those below were read on, or are being */
	uint32_t ahead;
};

struct prefetch {
	struct prefetch_options options;
	struct prefetch_hook hook;
	struct prefetch_source *source; /* owned */
	struct cache *cache;
	struct prefetch_io_backend *io; /* engine thread's, but for prefetch_io_wake */
	struct prefetch_files *files;   /* engine thread's */
	struct cache_ledger *ledger;    /* engine thread's; NULL without a sink */
	struct prefetch_sink *sink;
	pthread_t engine, deliver, lister;

	pthread_mutex_t lock;
	/* Under lock: */
	struct prefetch_block *blocks[PREFETCH_BLOCK_BUCKETS];
	struct prefetch_read_list urgent;
	struct prefetch_read_list landed; /* those with waiters first */
	struct prefetch_read_list free_reads;
	struct prefetch_block_list free_blocks;
	pthread_cond_t landed_cv;
	pthread_cond_t started_cv;
	int started;                   /* 1: the engine thread has its ring; < 0: it could not */
	bool poke;                     /* the schedule has news: events, an announcement, memory */
	struct prefetch_event *events; /* a vector that grows */
	size_t n_events, events_room;
	struct prefetch_item_list arrived;
	struct prefetch_stream_list streams; /* all that exist */
	pthread_cond_t streams_cv;           /* a stream's state changed */
	pthread_cond_t lister_cv;            /* announcements or drops, or lister_stop */
	bool drops_asked;                    /* the lister has `drops` to do */
	bool drops_busy;                     /* ... and is at it */
	bool lister_stop;
	bool asleep;          /* the engine thread waits (or is about to): wake it */
	_Atomic bool starved; /* the engine thread waits for landing memory or a file slot; changed under lock */
	bool stopping;        /* no new work */
	bool deliver_idle;    /* the deliver thread waits for work */
	bool deliver_stop;    /* the engine thread is gone: what stands in `landed` is the last */
	uint64_t bad[PREFETCH_BAD_MAX]; /* a ring of keys: the latest blocks found bad */
	uint64_t n_bad;                 /* all that ever were */
	uint64_t share_bytes;           /* of prefetch_share; 0: not asked for */
	uint64_t new_memory_bytes;      /* of prefetch_set_memory, not taken up yet; 0: none */
	struct prefetch_run runs[PREFETCH_RUNS];
	uint32_t run_at;  /* the place that the next one takes */
	uint32_t run_max; /* blocks that are read on at most; constant */
	/* Engine thread's: */
	struct cache_victim drops[PREFETCH_DROPS_MAX]; /* the lister's while drops_asked or drops_busy */
	size_t n_drops;
	struct prefetch_read_list delayed; /* by due_ns */
	uint32_t inflight;
	uint32_t inflight_ahead; /* those of them that nobody had asked for when they were submitted */
	bool device_full;        /* when the engine last waited, as many were in flight as the depth allows */
	struct prefetch_depth depth;
	struct prefetch_event *events_spare; /* swapped with `events` */
	size_t events_spare_room;
	struct prefetch_item_list free_items;
	struct prefetch_want *wants;      /* PREFETCH_WANTS_MAX of them */
	struct prefetch_read_list parked; /* scheduled reads for which there was no memory or file slot */
	uint64_t budget;                  /* of the ledger, as configured, or less since prefetch_share */
	uint64_t share_most;              /* ... at most, since then */
	uint64_t room;                    /* what the sink may hold while drops are under way; never less */
	uint64_t drop_lag;                /* bytes of drops that wait */
	uint64_t cost_bytes, n_cost; /* of the samples that were fetched: what one takes in the sink, in the mean */
	uint64_t drops_since_ns;     /* when the lister was given `drops` */
	uint64_t lost_since_ns;
	uint64_t shrunk_ns; /* when the budget was last changed for losses; 0 = it is whole */
	uint32_t lost_recently;
	uint32_t lost_latest; /* sample */
	uint64_t all_uses;    /* of all streams */
	uint32_t n_live;      /* streams */
	uint32_t n_here;      /* those of them that read ahead and are not away */
	uint64_t here_left;   /* the fewest turns that one of those has left of its epoch */
	uint32_t uses;        /* the latest, at most PREFETCH_LOST_USES */
	uint32_t lost;        /* samples that were lost meanwhile */
	uint64_t lost_first_ns;
	bool refetch; /* the next refetch_turns of all streams are to be taken as lost */
	uint32_t refetch_turns;
	uint64_t refetch_uses; /* since then */
	uint64_t refetch_ns;   /* when that was last decided; 0: never */
	bool share_pending;    /* prefetch_share waits for what is on its way */
	/* Any thread: */
	_Atomic uint64_t ahead_landing; /* bytes of landing memory held by scheduled reads */
	_Atomic uint32_t stat_inflight, stat_depth;
	_Atomic uint64_t stat_rate, stat_busy_ns;
	_Atomic pid_t tid;
	_Atomic bool direct;
	_Atomic bool shared;         /* set by the engine thread */
	_Atomic uint64_t storing_ns; /* since when the deliver thread is in the sink's store; 0: it is not */
	struct prefetch_counters counters;
	struct prefetch_hist waits;
};

uint64_t prefetch_now_ns(void);

/* prefetch.c: gives a buffer of the cache back.  Who holds one calls this, not cache_put, because the engine thread may
 * wait for its memory.  Any thread; not under lock. */
void prefetch_put(struct prefetch *p, struct cache_buffer *buffer);

/* prefetch.c: a new read of one block, urgent; demand may be NULL: nobody waits for it yet.  Under lock. */
int prefetch_queue_block(struct prefetch *p, uint64_t key, const struct shard_place *file, uint64_t offset,
        uint32_t len, uint64_t xxh3, struct prefetch_demand *demand);

/* run.c: reads on behind a block that was asked for.  there: it was in memory or coming.  Any thread. */
void prefetch_run_init(struct prefetch *p, uint64_t landing_bytes);
void prefetch_run_on(struct prefetch *p, uint32_t file, const struct shard_place *place, uint32_t block, bool there);

/* engine.c: the thread that owns the ring. */
void *prefetch_engine_run(void *arg);
/* Under lock; returns true when the caller must call prefetch_io_wake after unlocking. */
bool prefetch_engine_nudge(struct prefetch *p);
/* Landing memory was given back: the engine thread tries again if it waits for some.  As above. */
bool prefetch_engine_fed(struct prefetch *p);

/* Opens the file, takes memory, submits.  Returns 0 (also when it failed for good: then it has landed with the error),
 * or -EAGAIN: memory or file slots are all in use.  Engine thread. */
int prefetch_engine_start(struct prefetch *p, struct prefetch_read *read);
/* Hands a read to the deliver thread.  Engine thread. */
void prefetch_engine_land(struct prefetch *p, struct prefetch_read *read, int rc);

/* schedule.c: what to read ahead.  Engine thread. */
int prefetch_schedule_init(struct prefetch *p);
void prefetch_schedule_done(struct prefetch *p);
void prefetch_schedule_news(struct prefetch *p); /* takes in what `poke` was about */
void prefetch_schedule_fill(struct prefetch *p); /* starts reads as far as depth, memory and windows allow */
/* Reads that somebody waits for wait themselves while what has to be dropped for them is in the lister's hands, for at most
 * so many ns from now (0: not at all)... */
int64_t prefetch_schedule_room_ns(const struct prefetch *p);
/* ... but for those of a sample that is being dropped itself, because the sink may be waiting for their answer (the kernel
 * holds the page locks of a READ), and of one that is coming, which has its room. */
bool prefetch_schedule_cannot_wait(const struct prefetch *p, const struct prefetch_read *read);
/* Under lock: tells the schedule something; returns true when the caller must call prefetch_io_wake after unlocking. */
bool prefetch_schedule_event(struct prefetch *p, const struct prefetch_event *event);

/* fetch.c: turns a sample that is to be read ahead, and small neighbours that are wanted soon, into reads.  Engine thread.
 * -EEXIST (resident or coming already), -ENOSPC (only what is used sooner is in the way), -EFBIG (too large to be read
 * ahead), -ENOMEM, index errors. */
int prefetch_fetch(struct prefetch *p, struct prefetch_stream *stream, uint64_t seq, uint32_t sample);
bool prefetch_fetch_parked(struct prefetch *p); /* tries the parked reads again; true: none is left */

/* lost.c: the kernel, or whoever owns the sink's memory, took something back.  Engine thread. */
/* Somebody asked for a sample that counted as resident. */
void prefetch_lost_sample(struct prefetch *p, uint32_t sample);
/* The sink refused an item, which is gone from the ledger. */
void prefetch_lost_refused(struct prefetch *p, const struct prefetch_item *item);
/* Acts on it: fetches again, announces again, gives back what the budget shrank by. */
void prefetch_lost_settle(struct prefetch *p);
/* Of all live streams, until none of them returns true. */
void prefetch_each_stream(struct prefetch *p, bool (*fn)(struct prefetch *p, struct prefetch_stream *s));

/* follow.c: is the order followed, and where is the trainer?  Engine thread. */
void prefetch_follow_use(struct prefetch *p, struct prefetch_stream *stream, const struct prefetch_use *use);
void prefetch_follow_sample(struct prefetch *p, struct prefetch_stream *stream, uint32_t sample);
/* The oldest turn that workers behind the farthest one may still want, seq: of the same epoch, for the one before may be
 * known no more (shard/view.h, given). */
uint64_t prefetch_follow_oldest(struct prefetch_stream *stream);
/* A turn that was fetched and not used is not there after all. */
void prefetch_follow_gone(struct prefetch *p, struct prefetch_stream *stream, uint64_t seq);
/* All that was fetched for the stream and not used is to be fetched again. */
void prefetch_follow_refetch(struct prefetch *p, struct prefetch_stream *stream);
void prefetch_follow_epoch(struct prefetch *p, struct prefetch_stream *stream, uint64_t epoch);

/* lister.c: the thread that talks to the sink about names. */
void *prefetch_lister_run(void *arg);

/* deliver.c: the thread that verifies and answers. */
void *prefetch_deliver_run(void *arg);
/* Verifies a read's blocks, answers who waits for them, then stores the rest (`stores`; else the deliver thread does that
 * later), frees the read.  Deliver thread; the engine thread, which never stores, when that is idle or stuck in the sink. */
void prefetch_deliver_read(struct prefetch *p, struct prefetch_read *read, bool stores);
/* Calls done of each demand of the list. */
void prefetch_answer(struct prefetch *p, struct prefetch_demand *list, int rc, const struct cache_buffer *buffer);

/* blocks.c: the table of blocks that are on their way.  All under lock. */
struct prefetch_block *prefetch_block_find(struct prefetch *p, uint64_t key);
struct prefetch_block *prefetch_block_new(struct prefetch *p, uint64_t key); /* NULL: no memory */
void prefetch_block_unhash(struct prefetch *p, struct prefetch_block *block);
void prefetch_block_free(struct prefetch *p, struct prefetch_block *block); /* unhashed */
struct prefetch_read *prefetch_read_new(struct prefetch *p);                /* NULL: no memory */
void prefetch_read_free(struct prefetch *p, struct prefetch_read *read);    /* its blocks are gone */
void prefetch_blocks_done(struct prefetch *p);                              /* frees the pools */

#endif
