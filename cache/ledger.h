/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger: which samples are in memory outside of this process (the kernel's page cache, a pinned arena), for which
 * use, and which of them goes when room is needed.
 *
 * One ledger and one budget serve all streams.  A resident sample (enum cache_state) stays until something else wants
 * its room.  Then those go first, oldest first, for which no stream has a known use (another epoch than the next may
 * use them), after them the one whose next use is the farthest (Belady, IBM Systems Journal 1966).  Fetching never
 * drops what is used sooner than what is fetched.
 *
 * Files that are no samples here (common files, and samples of more than a quarter of the budget, which nobody reads
 * ahead) are booked by the block as their readers touch them, and count as used without a known use.
 *
 * A sample that goes, or did not come, leaves a gap (cache_timeline.gap) where a stream uses it next.
 *
 * The ledger only keeps the books: what it decides to drop is put into a list, which the caller hands to the sink.
 *
 * Threads: one owner (the engine thread); cache_ledger_stats from any. */
#ifndef DDPFS_CACHE_LEDGER_H
#define DDPFS_CACHE_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cache/timeline.h"
#include "shard/index.h"

enum { CACHE_STREAMS_MAX = 256 }; /* streams of a ledger: ranks and jobs of one host */

struct cache_ledger; /* opaque */

/* Where a sample is.
 *
 *              fetch              arrived
 *   ABSENT ------------> COMING ----------> RESIDENT <---- a reader brings it in (from each state but COMING)
 *    ^  ^                  |                 |    ^
 *    |  '------------------'        its room  |    | fetch: it stays
 *    |     it did not come        is wanted  v    |
 *    | dropped                              LEAVING
 *    |                                       |  | lose, clear
 *    |                        drops          |  v
 *   HANDED <---------------------------------'- LEAVING_FOR_GOOD
 *
 * A reader can bring a sample back before its drop is done.  So an entry of the queue of drops counts only if its
 * sample is LEAVING or LEAVING_FOR_GOOD, and a drop that is done makes a sample absent only if that is HANDED.  When
 * there is no memory for an entry of the queue, a sample that leaves is ABSENT at once. */
enum cache_state {
	CACHE_ABSENT,
	CACHE_COMING, /* it is being fetched */
	CACHE_RESIDENT,
	CACHE_LEAVING,          /* its drop waits in the queue, and can be taken back */
	CACHE_LEAVING_FOR_GOOD, /* its drop waits in the queue */
	CACHE_HANDED,           /* the sink drops it */
};

/* What is to be dropped: a sample with all its files, or a block of a file. */
struct cache_victim {
	uint32_t id;    /* sample, or file */
	uint32_t block; /* CACHE_WHOLE: a sample */
	bool announced; /* a coming use was announced to the sink already (the ledger leaves it false) */
};
#define CACHE_WHOLE UINT32_MAX

/* overhead_bytes: what a resident file costs besides its pages (inode, names).  lag_bytes: of the latest drops that
 * wait, in addition to the budget. -ENOMEM. */
int cache_ledger_new(const struct shard_index *index, uint64_t budget_bytes, uint64_t lag_bytes,
        uint32_t overhead_bytes, struct cache_ledger **ret_ledger);
void cache_ledger_free(struct cache_ledger *ledger); /* NULL is fine; all timelines must have been removed */

/* From now on the bits of what is resident stand in the caller's memory (n_samples / 64 + 1 words that outlive the ledger),
 * which may hold some already: those samples are taken as resident.  Right after cache_ledger_new. */
void cache_ledger_share(struct cache_ledger *ledger, uint64_t *resident);

/* A new budget; what is over it goes at the next fetch or cache_ledger_trim. */
void cache_ledger_set_budget(struct cache_ledger *ledger, uint64_t budget_bytes);

/* Timelines take part from here to there.  -E2BIG. */
int cache_ledger_add(struct cache_ledger *ledger, struct cache_timeline *tl);
void cache_ledger_remove(struct cache_ledger *ledger, struct cache_timeline *tl);
/* After cache_timeline_jump: works out anew which use each resident sample is kept for.  O(samples / 64 + resident). */
void cache_ledger_rebuild(struct cache_ledger *ledger, struct cache_timeline *tl);

/* Bytes a sample takes when resident.  Samples of more than a quarter of the budget are not booked as such: nobody wants
 * them whole.  -EFBIG for them; index errors.  Any thread. */
int cache_ledger_cost(struct cache_ledger *ledger, uint32_t sample, uint64_t *ret_bytes);
/* The same for the sample that tl uses at seq, and that: the index is looked at once a turn (cache/timeline.h, notes). */
int cache_ledger_turn(struct cache_ledger *ledger, struct cache_timeline *tl, uint64_t seq, uint32_t *ret_sample,
        uint64_t *ret_bytes);

enum cache_state cache_ledger_state(const struct cache_ledger *ledger, uint32_t sample); /* any thread */
bool cache_ledger_has(const struct cache_ledger *ledger, uint32_t sample); /* resident or coming; any thread */
bool cache_ledger_resident(const struct cache_ledger *ledger, uint32_t sample);

/* Makes room for a sample that tl uses at seq and books it as coming.  `bytes` is its cost, here and below.
 * -EEXIST (resident or coming already), -ENOSPC (only what is used sooner is in the way), -EAGAIN (what has to go is not
 * gone yet), -EINVAL (no such sample). */
int cache_ledger_fetch(
        struct cache_ledger *ledger, struct cache_timeline *tl, uint64_t seq, uint32_t sample, uint64_t bytes);

/* A sample that was coming, fetched for the use at seq, has arrived, or never will (then it is absent again). */
void cache_ledger_arrived(
        struct cache_ledger *ledger, struct cache_timeline *tl, uint64_t seq, uint32_t sample, uint64_t bytes, bool ok);

/* The trainer has had the sample of tl at seq, or never will (`had` false: it was passed over).  A sample it had that was
 * neither resident nor coming has become so by its reading. */
void cache_ledger_use(struct cache_ledger *ledger, struct cache_timeline *tl, uint64_t seq, bool had);

/* Somebody reads the sample by himself.  Returns true when it was booked as resident, so that part of it had been lost.
 * His reading brings it (back): it is resident from now on, unless it is coming. */
bool cache_ledger_asked(struct cache_ledger *ledger, uint32_t sample);

/* Somebody reads `bytes` of a block of a file that is not part of a booked sample, for the first time since they were
 * dropped: the kernel asks for what it does not have. */
void cache_ledger_block(struct cache_ledger *ledger, uint32_t file, uint32_t block, uint32_t bytes);

/* Drops until the budget holds. */
void cache_ledger_trim(struct cache_ledger *ledger);

/* A sample, if resident, leaves for good: a fetch of it is -EAGAIN until it is gone. */
void cache_ledger_lose(struct cache_ledger *ledger, uint32_t sample);

/* All samples that are resident or leaving leave for good: a fetch of one is -EAGAIN until it is gone. */
void cache_ledger_clear(struct cache_ledger *ledger);

/* What was decided to be dropped, oldest first, all but the latest decisions of up to the lag; at most max.  Until
 * cache_ledger_dropped says that it is done their memory counts as used.  Returns their number.  All that was handed
 * out before must be done. */
size_t cache_ledger_drops(struct cache_ledger *ledger, struct cache_victim *victims, size_t max);
/* All that was handed out. */
void cache_ledger_dropped(struct cache_ledger *ledger, const struct cache_victim *victims, size_t n);

/* Everything that is or may still be in memory: resident, coming, decided to be dropped, handed out for it. */
uint64_t cache_ledger_held(const struct cache_ledger *ledger);
/* Is anything handed out and not done? */
bool cache_ledger_dropping(const struct cache_ledger *ledger);

struct cache_ledger_stats {
	uint64_t budget_bytes;
	uint64_t resident_bytes;
	uint64_t coming_bytes;
	uint64_t resident;       /* samples */
	uint64_t evicted;        /* samples dropped to make room */
	uint64_t evicted_blocks; /* blocks of files dropped to make room; see cache_ledger_block */
	uint64_t dropped;        /* all drops of samples */
	uint64_t lost;
};
void cache_ledger_stats_get(const struct cache_ledger *ledger, struct cache_ledger_stats *ret_stats);

#endif
