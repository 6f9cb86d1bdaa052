/* SPDX-License-Identifier: Apache-2.0 */
/* The uses that a stream will make of samples, in order: the turns of this epoch, of the next one and of the one after.
 *
 *      seq:      first ........... cursor .................... end
 *               |   epoch e (epochs[0])   |   e+1 (epochs[1])  |   e+2 (epochs[2])  |
 *
 * A *seq* numbers the turns of all epochs in one line.  It never goes back; cache_timeline_jump goes on behind the end.
 * Three bits stand for each seq:
 *   used   the trainer has had it, or never will
 *   ahead  its sample was fetched for this use, which is still to come: it fills the window
 *   kept   its sample is resident and this is the sample's next use here: eviction by next use looks at this bit
 * So finding the next use of a sample costs one evaluation of the order, and no array of it.  The sample of a turn is
 * needed when it is fetched, when it arrives and when it is used.  So it is worked out once and noted until the turn
 * is used.
 *
 * Unless a function says otherwise, a seq that it takes lies between epochs[0].first and cache_timeline_end.
 *
 * Threads: one owner (the engine thread). */
#ifndef DDPFS_CACHE_TIMELINE_H
#define DDPFS_CACHE_TIMELINE_H

#include <stdbool.h>
#include <stdint.h>

#include "shard/view.h"

enum {
	CACHE_EPOCHS = 3,      /* epochs that a timeline spans */
	CACHE_NOTES = 1 << 16, /* turns from the cursor on that are noted: windows of small samples, 1 MiB a timeline */
};
#define CACHE_NEVER UINT64_MAX /* instead of a seq: there is none */

/* One epoch of a timeline. */
struct cache_timeline_epoch {
	struct shard_epoch *epoch;     /* held */
	uint64_t number;               /* of the epoch */
	uint64_t first;                /* seq of its turn 0 */
	uint64_t turns;                /* of this timeline's rank; may be 0 */
	uint64_t *used, *ahead, *kept; /* a bit per turn */
	uint64_t words;                /* of each map */
	uint64_t kept_top;             /* no bit above it is set in kept */
};

/* What is known of a turn. */
struct cache_note {
	uint32_t lap;    /* seq / CACHE_NOTES + 1 of the turn, because turns share places; 0: the place is empty */
	uint32_t sample; /* of the turn */
	uint64_t cost;   /* bytes that the sample takes; the ledger's field; 0: not worked out */
};

struct cache_timeline {
	struct shard_view *view; /* not owned */
	uint32_t rank;
	bool repeat;     /* the trainer reads the same epoch again and again: all of `epochs` show it */
	uint64_t cursor; /* seq of the first turn that is not used */
	uint64_t hole;   /* first seq whose sample was dropped before its use since the owner set it to CACHE_NEVER */
	/* The owner sets these for cache_timeline_distance: */
	uint64_t reader; /* seq behind the farthest used one; while it is below the cursor, the cursor counts */
	uint64_t away;   /* turns of other streams that will be used before this timeline's next one, about */
	struct cache_timeline_epoch epochs[CACHE_EPOCHS];
	bool exact;               /* the sample that is found at a turn is the one that comes there */
	struct cache_note *notes; /* CACHE_NOTES of them, by seq modulo */
};

/* Makes a timeline of `rank` from turn 0 of `epoch` on.  view: not owned, outlives the timeline.
 * Returns 0, -ENOMEM or an error of the index. */
int cache_timeline_init(struct cache_timeline *tl, struct shard_view *view, uint32_t rank, uint64_t epoch);
/* Frees what a timeline holds. */
void cache_timeline_done(struct cache_timeline *tl);

/* Forgets all turns and starts at turn `turn` of `epoch`.  The earlier turns of that epoch count as used.  repeat: the
 * trainer reads this epoch again and again.
 * Returns 0, -ENOMEM, -ENODATA (a given view has no such turn) or an error of the index; after these the timeline is
 * unchanged.  The last step is cache_timeline_advance: it may fail too, but then the timeline has moved. */
int cache_timeline_jump(struct cache_timeline *tl, uint64_t epoch, uint64_t turn, bool repeat);

/* Returns the number of turns until a seq is used, as far as is known.  Any seq. */
static inline uint64_t cache_timeline_distance(const struct cache_timeline *tl, uint64_t seq)
{
	uint64_t from = tl->reader > tl->cursor ? tl->reader : tl->cursor;
	return (seq > from ? seq - from : 0) + tl->away;
}

/* Returns the seq behind the last turn of the last epoch. */
uint64_t cache_timeline_end(const struct cache_timeline *tl);

/* Returns the seq of a turn, or CACHE_NEVER when the timeline does not span that epoch or the epoch has no such turn.
 * Where an epoch repeats, it is the first one not used. */
uint64_t cache_timeline_seq(const struct cache_timeline *tl, uint64_t epoch, uint64_t turn);

/* Returns the epoch of a seq, and its turn in that epoch. */
struct cache_timeline_epoch *cache_timeline_epoch_of(struct cache_timeline *tl, uint64_t seq, uint64_t *ret_turn);

/* Gives the sample of a seq.  Returns 0 or an error of the index. */
int cache_timeline_sample(struct cache_timeline *tl, uint64_t seq, uint32_t *ret_sample);
/* Returns the note of a seq, or NULL when its sample was not worked out or it lies too far ahead.  The note is valid
 * until the next call. */
struct cache_note *cache_timeline_note(struct cache_timeline *tl, uint64_t seq);

/* Returns the first seq not used at which the sample comes, or CACHE_NEVER. */
uint64_t cache_timeline_next(struct cache_timeline *tl, uint32_t sample);
/* As cache_timeline_next, but cheaper when the sample comes at `seq`, used or not: an epoch mostly has a sample once.
 * seq: may lie before epochs[0] or be CACHE_NEVER; then it does not help. */
uint64_t cache_timeline_next_from(struct cache_timeline *tl, uint32_t sample, uint64_t seq);
/* Where a sample comes in epochs of views, as far as it was worked out.  The timelines of ranks that share a view share
 * it: the order tells the rank, too, so that one look finds which of them uses the sample.  For one sample; starts with
 * n = 0. */
enum { CACHE_FOUND_MAX = 8 }; /* epochs: those of timelines that are a few epochs apart; further ones are not noted */
struct cache_found {
	uint32_t n;
	struct {
		const struct shard_view *view;
		uint64_t number; /* of the epoch */
		uint64_t turn;
		uint32_t rank; /* UINT32_MAX: the epoch does not have the sample */
	} places[CACHE_FOUND_MAX];
};
/* As cache_timeline_next_from, but looks into *found first, and adds what it works out. */
uint64_t cache_timeline_next_shared(
        struct cache_timeline *tl, uint32_t sample, uint64_t seq, struct cache_found *found);
/* As cache_timeline_next, but returns CACHE_NEVER when the seq is not below `limit`; epochs behind that are not
 * looked at.  stored: the sample's storage slot, or SHARD_NONE: the index is asked for it. */
uint64_t cache_timeline_next_below(struct cache_timeline *tl, uint32_t sample, uint32_t stored, uint64_t limit);

/* Asks a given view (shard/view.h) for more turns of the last epoch that it knew.  Returns true when some have come. */
bool cache_timeline_grow(struct cache_timeline *tl);
/* Asks a given view again for the epochs that it did not know.  Returns true when one has come. */
bool cache_timeline_refresh(struct cache_timeline *tl);

/* Moves the cursor over used turns, removes the epochs that it has left and appends those that follow.
 * Returns 0, -ENOMEM, an error of the index, or -EAGAIN: a given view does not know yet what follows.  Then the
 * cursor stays in its epoch, and the next call tries again. */
int cache_timeline_advance(struct cache_timeline *tl);

/* Returns whether the turn at seq is used. */
bool cache_timeline_used(struct cache_timeline *tl, uint64_t seq);
/* Sets, and clears, the kept bit of a seq. */
void cache_timeline_set_kept(struct cache_timeline *tl, uint64_t seq);
void cache_timeline_clear_kept(struct cache_timeline *tl, uint64_t seq);

/* Returns the last seq whose kept bit is set, or CACHE_NEVER. */
uint64_t cache_timeline_last_kept(struct cache_timeline *tl);

#endif
