/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger: the list of the samples that a sink holds (in the kernel's page cache, in the arena of libddpfs_stage),
 * and for which use.  It decides which of them are dropped when room is needed.
 *
 * One ledger and one budget serve all streams.  A resident sample (enum cache_state) stays until another one needs
 * its room.  Samples for which no stream has a known use go first, oldest first: only a later epoch may use them.
 * After them, the sample whose next use is the farthest goes (Belady, IBM Systems Journal 1966).  A fetch never drops
 * a sample that is used sooner than the one that is fetched.
 *
 * Common files, and samples that cost more than a quarter of the first budget, are not read ahead.  They are booked
 * by the block when readers ask for them, and have no known use.
 *
 * When a sample is dropped, the ledger notes it in cache_timeline.hole of each stream that will use it.
 *
 * If somebody has written into the index, costs are not known any more.  Then the ledger drops nothing that it would
 * have to look up: what is resident stays readable.
 *
 * The ledger does no I/O.  It puts what it decides to drop into a queue, and the caller hands that to the sink.
 *
 * Threads: one owner (the engine thread).  Any thread may call the functions that say so. */
#ifndef DDPFS_CACHE_LEDGER_H
#define DDPFS_CACHE_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cache/timeline.h"
#include "shard/index.h"

/* Streams of a ledger: those of all ranks and jobs of one mount.  A mount shows at most 256 ranks, each with its own
 * stream, and follows at most 448 orders (fs/sink.c). */
enum { CACHE_STREAMS_MAX = 768 };

struct cache_ledger; /* opaque */

/* The states of a sample.
 *
 *              fetch              arrived
 *   ABSENT ------------> COMING ----------> RESIDENT <---- a reader reads it (from each state but COMING)
 *    ^  ^                  |                 |    ^
 *    |  '------------------'        its room  |    | fetch: it stays
 *    |     it did not come        is wanted  v    |
 *    | dropped                              LEAVING
 *    |                                       |  | lose, clear
 *    |                        drops          |  v
 *   HANDED <---------------------------------'- LEAVING_FOR_GOOD
 *
 * A reader can bring a sample back before its drop is done.  So an entry of the queue of drops counts only while its
 * sample is LEAVING or LEAVING_FOR_GOOD.  For the same reason a drop that is done makes a sample ABSENT only if it is
 * HANDED.  When there is no memory for an entry of the queue, a sample that leaves is ABSENT at once. */
enum cache_state {
	CACHE_ABSENT,
	CACHE_COMING, /* it is being fetched */
	CACHE_RESIDENT,
	CACHE_LEAVING,          /* its drop waits in the queue, and can be taken back */
	CACHE_LEAVING_FOR_GOOD, /* its drop waits in the queue */
	CACHE_HANDED,           /* the sink drops it */
};

/* A sample with all its files, or one block of a file, that the sink must drop. */
struct cache_victim {
	uint32_t id;    /* sample when block is CACHE_WHOLE, else file */
	uint32_t block; /* number of the block in the file, or CACHE_WHOLE */
	bool announced; /* a use to come was announced to the sink already; the ledger sets it to false */
};
#define CACHE_WHOLE UINT32_MAX

/* Makes a ledger with nothing resident.  index: not owned, outlives the ledger.  lag_bytes: the latest drops, up to
 * this many bytes, wait in the queue, in addition to the budget.  overhead_bytes: cost of a resident file besides its
 * pages (inode, names).
 * Returns 0 or -ENOMEM. */
int cache_ledger_new(const struct shard_index *index, uint64_t budget_bytes, uint64_t lag_bytes,
        uint32_t overhead_bytes, struct cache_ledger **ret_ledger);
/* Frees the ledger; all timelines must have been removed.  NULL is fine. */
void cache_ledger_free(struct cache_ledger *ledger);

/* From now on the ledger keeps the bits of resident samples in the caller's memory: n_samples / 64 + 1 words that
 * outlive the ledger.  Samples whose bits are set already are taken as resident.  Call it right after
 * cache_ledger_new. */
void cache_ledger_share(struct cache_ledger *ledger, uint64_t *resident);

/* Sets the budget.  What exceeds it is dropped at the next fetch or cache_ledger_trim. */
void cache_ledger_set_budget(struct cache_ledger *ledger, uint64_t budget_bytes);

/* Makes the ledger consider the uses of a timeline until cache_ledger_remove.  Its time is that of cache_ledger_keep.
 * Returns 0, or -E2BIG: there are CACHE_STREAMS_MAX timelines already. */
int cache_ledger_add(struct cache_ledger *ledger, struct cache_timeline *tl);
void cache_ledger_remove(struct cache_ledger *ledger, struct cache_timeline *tl);
/* Keeps resident samples for the next uses that a timeline has.  Call it when an epoch of it has become known.  Its
 * time is O(n_samples / 64 + resident samples), or O(turns of the timeline) if these are less. */
void cache_ledger_keep(struct cache_ledger *ledger, struct cache_timeline *tl);
/* Works out again for which use each resident sample is kept.  Call it after cache_timeline_jump.  Its time is
 * O(n_samples / 64 + resident samples x timelines); timelines of ranks that share a view share most of it. */
void cache_ledger_rebuild(struct cache_ledger *ledger);

/* Gives the bytes that a sample takes while it is resident.  Any thread.
 * Returns 0, -EFBIG (more than a quarter of the first budget: it is booked by the block) or an error of the index. */
int cache_ledger_cost(struct cache_ledger *ledger, uint32_t sample, uint64_t *ret_bytes);
/* Gives the sample that tl uses at seq, and its cost as above.  The index is read once a turn (struct cache_note). */
int cache_ledger_turn(struct cache_ledger *ledger, struct cache_timeline *tl, uint64_t seq, uint32_t *ret_sample,
        uint64_t *ret_bytes);

/* Returns the state of a sample; CACHE_ABSENT when there is no such sample.  Any thread. */
enum cache_state cache_ledger_state(const struct cache_ledger *ledger, uint32_t sample);
/* Returns whether a sample is resident or coming.  Any thread. */
bool cache_ledger_has(const struct cache_ledger *ledger, uint32_t sample);
/* Returns whether a sample is resident.  Any thread. */
bool cache_ledger_resident(const struct cache_ledger *ledger, uint32_t sample);

/* Makes room for a sample that tl uses at seq, and books it as coming.  bytes: its cost, here and below.
 * Returns 0 or
 * -EEXIST: it is resident or coming, or its drop was taken back;
 * -ENOSPC: there is room only in place of samples that are used sooner;
 * -EAGAIN: what must be dropped first, this sample perhaps, is not dropped yet;
 * -EINVAL: there is no such sample. */
int cache_ledger_fetch(
        struct cache_ledger *ledger, struct cache_timeline *tl, uint64_t seq, uint32_t sample, uint64_t bytes);

/* Makes room for samples of `bytes` bytes together, the first of which tl uses at seq, so that cache_ledger_fetch of
 * each returns neither -ENOSPC nor -EAGAIN for lack of room.  Books nothing.
 * Returns 0, -ENOSPC or -EAGAIN as cache_ledger_fetch does. */
int cache_ledger_reserve(struct cache_ledger *ledger, struct cache_timeline *tl, uint64_t seq, uint64_t bytes);

/* A sample that was coming, fetched for the use at seq, has arrived (ok), or it will not arrive: then it is absent
 * again.  Does nothing when it was not coming. */
void cache_ledger_arrived(
        struct cache_ledger *ledger, struct cache_timeline *tl, uint64_t seq, uint32_t sample, uint64_t bytes, bool ok);

/* The trainer has used the sample of tl at seq (had), or will never use it.  A sample that it used is resident from
 * now on, unless it is coming: reading it brought it in.  Does nothing when the turn is used already. */
void cache_ledger_use(struct cache_ledger *ledger, struct cache_timeline *tl, uint64_t seq, bool had);

/* A reader asks the server for bytes of a sample.  Reading brings it in: it is resident from now on, unless it is
 * coming.
 * Returns true when it was resident already: the kernel has taken a part of it back. */
bool cache_ledger_asked(struct cache_ledger *ledger, uint32_t sample);

/* Books `bytes` bytes of a block of a file that is not part of a booked sample, because a reader asks for them.  They
 * were not in memory, because the kernel asks only for what it does not have. */
void cache_ledger_block(struct cache_ledger *ledger, uint32_t file, uint32_t block, uint32_t bytes);

/* Drops samples and blocks until resident and coming bytes fit the budget, or nothing can be dropped. */
void cache_ledger_trim(struct cache_ledger *ledger);

/* Drops a sample, if it is resident, without waiting for the lag.  A fetch of it returns -EAGAIN until the sink has
 * dropped it. */
void cache_ledger_lose(struct cache_ledger *ledger, uint32_t sample);

/* Drops all samples that are resident or leaving, without waiting for the lag.  A fetch of one returns -EAGAIN until
 * the sink has dropped it. */
void cache_ledger_clear(struct cache_ledger *ledger);

/* Takes up to `max` drops from the queue, oldest first, and leaves the latest ones of up to lag_bytes.  Their memory
 * counts as held until cache_ledger_dropped.  Call it only when nothing is handed out.
 * Returns the number of victims. */
size_t cache_ledger_drops(struct cache_ledger *ledger, struct cache_victim *victims, size_t max);
/* The sink has dropped these: all that the last cache_ledger_drops handed out. */
void cache_ledger_dropped(struct cache_ledger *ledger, const struct cache_victim *victims, size_t n);

/* Returns the bytes that are or may still be in memory: resident, coming, in the queue of drops, and handed out. */
uint64_t cache_ledger_held(const struct cache_ledger *ledger);
/* Returns whether drops are handed out that the sink has not done. */
bool cache_ledger_dropping(const struct cache_ledger *ledger);

struct cache_ledger_stats {
	uint64_t budget_bytes;
	uint64_t resident_bytes; /* of samples, and of blocks booked by cache_ledger_block */
	uint64_t coming_bytes;
	uint64_t resident;       /* samples, now */
	uint64_t evicted;        /* samples dropped to make room, ever */
	uint64_t evicted_blocks; /* blocks of files dropped to make room, ever; see cache_ledger_block */
	uint64_t dropped;        /* samples dropped for any reason, ever */
	uint64_t lost;           /* how often a reader asked for a resident sample; see cache_ledger_asked */
};
/* Gives a snapshot; each field is consistent by itself.  Any thread. */
void cache_ledger_stats_get(const struct cache_ledger *ledger, struct cache_ledger_stats *ret_stats);

#endif
