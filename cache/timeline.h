/* SPDX-License-Identifier: Apache-2.0 */
/* The uses a stream will make of samples, in order: turns of this epoch, of the next one and of the one after.
 *
 *      seq:      first ........... cursor .................... end
 *               |   epoch e (slot 0)     |   e+1 (slot 1)  |   e+2 (slot 2)  |
 *
 * A *seq* numbers the turns of all epochs in one line and never goes back, but for cache_timeline_jump.  Three bits
 * stand for each of them:
 *   used   the trainer has had it (or never will, see cache_timeline_pass)
 *   ahead  it was fetched for this use, which is still to come: it fills the window
 *   kept   its sample is resident and this is the sample's next use here: what eviction by next use looks at
 * So next use, in both directions, costs one evaluation of the order and no array of it.  A turn's sample is worked out once
 * and noted until the turn is used: it is looked at when it is fetched, when it arrives and when it is used.
 *
 * Threads: one owner (the engine thread). */
#ifndef DDPFS_CACHE_TIMELINE_H
#define DDPFS_CACHE_TIMELINE_H

#include <stdbool.h>
#include <stdint.h>

#include "shard/view.h"

enum {
	CACHE_EPOCHS = 3,      /* slots */
	CACHE_NOTES = 1 << 16, /* turns from the cursor on that are noted: windows of small samples, 1 MiB a timeline */
};
#define CACHE_NEVER UINT64_MAX

struct cache_slot {
	struct shard_epoch *epoch;
	uint64_t number; /* of the epoch */
	uint64_t first;  /* seq of its turn 0 */
	uint64_t turns;
	uint64_t *used, *ahead, *kept;
	uint64_t kept_top; /* no bit above it is set in kept */
};

/* What is known of a turn. */
struct cache_note {
	uint32_t lap; /* which of the turns that share the place, see note_lap(); 0: none */
	uint32_t sample;
	uint64_t cost; /* bytes it takes in the ledger, whose the field is; 0: not worked out */
};

struct cache_timeline {
	struct shard_view *view; /* not owned */
	uint32_t rank;
	bool repeat;     /* the trainer reads the same epoch again and again: the slots all show it */
	uint64_t cursor; /* seq of the first turn not used */
	uint64_t gap; /* seq behind the last one whose sample was to be in memory and is not; hint of whoever fetches */
	uint64_t
	        hole; /* the first seq whose sample was dropped before its use since the owner last set it to CACHE_NEVER */
	/* The owner's, for cache_timeline_distance: */
	uint64_t reader; /* seq behind the farthest used one; below the cursor: the cursor counts */
	uint64_t away;   /* turns of others that will be used before this timeline's next one, about */
	struct cache_slot slots[CACHE_EPOCHS];
	bool exact;               /* what comes at the turn where a sample is found is that sample */
	struct cache_note *notes; /* CACHE_NOTES of them, by seq modulo */
};

/* view outlives the timeline.  -ENOMEM, index errors. */
int cache_timeline_init(struct cache_timeline *tl, struct shard_view *view, uint32_t rank, uint64_t epoch);
void cache_timeline_done(struct cache_timeline *tl);

/* Forgets all and starts at turn `turn` of `epoch`, whose earlier turns count as used. -ENOMEM, -ENODATA: there is no such turn (then unchanged). */
int cache_timeline_jump(struct cache_timeline *tl, uint64_t epoch, uint64_t turn, bool repeat);

/* Turns until a seq is used, as far as is known. */
static inline uint64_t cache_timeline_distance(const struct cache_timeline *tl, uint64_t seq)
{
	uint64_t from = tl->reader > tl->cursor ? tl->reader : tl->cursor;
	return (seq > from ? seq - from : 0) + tl->away;
}

uint64_t cache_timeline_end(const struct cache_timeline *tl); /* seq behind the last slot */

/* The seq of a turn: the first one not used yet where an epoch repeats, CACHE_NEVER when no slot shows it. */
uint64_t cache_timeline_seq(const struct cache_timeline *tl, uint64_t epoch, uint64_t turn);

/* The slot and turn of a seq between the first slot's first and the end. */
struct cache_slot *cache_timeline_slot(struct cache_timeline *tl, uint64_t seq, uint64_t *ret_turn);

/* The sample of a seq.  Index errors. */
int cache_timeline_sample(struct cache_timeline *tl, uint64_t seq, uint32_t *ret_sample);
/* The note of a seq whose sample was worked out, or NULL: it was not, or lies too far ahead.  Good until the next call. */
struct cache_note *cache_timeline_note(struct cache_timeline *tl, uint64_t seq);

/* The first seq not used at which the sample comes, or CACHE_NEVER. */
uint64_t cache_timeline_next(struct cache_timeline *tl, uint32_t sample);
/* The same where the sample comes at `seq`, used or not, which mostly says it: an epoch has a sample once.  A seq of long ago or
 * CACHE_NEVER says nothing. */
uint64_t cache_timeline_next_from(struct cache_timeline *tl, uint32_t sample, uint64_t seq);
/* The same as cache_timeline_next, but CACHE_NEVER when it is not below `limit`: epochs behind that are not looked at.  stored: its slot in the index, or
 * SHARD_NONE: to be looked up. */
uint64_t cache_timeline_next_below(struct cache_timeline *tl, uint32_t sample, uint32_t stored, uint64_t limit);

/* Looks again for epochs that a given view did not know yet (shard/view.h).  True when one has come. */
bool cache_timeline_refresh(struct cache_timeline *tl);

/* Moves the cursor over used turns; retires slots it has left and appends the epochs that follow.  -ENOMEM, or -EAGAIN: what follows is not known (yet): the cursor
 * stays in its slot and it is tried again next time. */
int cache_timeline_advance(struct cache_timeline *tl);

bool cache_timeline_used(struct cache_timeline *tl, uint64_t seq);
void cache_timeline_set_kept(struct cache_timeline *tl, uint64_t seq);
void cache_timeline_clear_kept(struct cache_timeline *tl, uint64_t seq);

/* The last kept seq, or CACHE_NEVER. */
uint64_t cache_timeline_last_kept(struct cache_timeline *tl);

#endif
