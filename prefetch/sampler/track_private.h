/* SPDX-License-Identifier: Apache-2.0 */
/* What the .c files of a track share.  track.c has its life, and which open it expects.
 * prefetch/sampler/recognise_private.h first.
 *
 * All places are positions of the permutation.  A *turn* is the number of a position among those that the ranks of the
 * track read. */
#ifndef DDPFS_PREFETCH_SAMPLER_TRACK_PRIVATE_H
#define DDPFS_PREFETCH_SAMPLER_TRACK_PRIVATE_H

#include "prefetch/sampler/recognise_private.h"

enum {
	SUPPORT = 16,        /* turns before (or behind) an open that are checked */
	REFIT_FIRST = 64,    /* opens before the first refit; each next one waits for twice as many */
	BUFFER_SPARE = 64,   /* files that a shuffle buffer may hold beyond those that it was seen to hold */
	VERIFIED_OPENS = 16, /* expected opens that confirm a restored track */
	WRONG_LATEST = 128,  /* opens by which a track is judged */
};

/* Whether the list is read through a shuffle buffer (shuffle_buffer.c). */
static inline bool is_buffered(const struct track *t)
{
	return t->source.buffer > 0;
}

static inline bool shuffled(const struct source *source)
{
	return source->sampler >= PREFETCH_SAMPLER_DISTRIBUTED;
}

/* Whether the list is sorted and read in contiguous parts (parts.c). */
static inline bool in_parts(const struct track *t)
{
	return t->source.sampler == PREFETCH_SAMPLER_SORTED && t->source.seed > 0;
}

/* Returns how many ranks are mixed: the stride if it is greater than the world. */
static inline uint64_t ranks(const struct track *t)
{
	return t->part.stride > t->part.world ? t->part.stride : t->part.world;
}

static inline bool in_part(const struct track *t, uint64_t position)
{
	uint64_t residue = position % t->part.world;
	return residue >= t->part.first && residue - t->part.first < t->part.ranks;
}

/* Position -> turn of the part, and back. */
static inline uint64_t turn_of(const struct track *t, uint64_t position)
{
	return position / t->part.world * t->part.ranks + position % t->part.world - t->part.first;
}

static inline uint64_t position_of(const struct track *t, uint64_t turn)
{
	return turn / t->part.ranks * t->part.world + t->part.first + turn % t->part.ranks;
}

/* ---- track_places.c ---- */

/* Returns the turn before which a buffer's next open lies.  A pause of the watch leaves out opens, so what lies a
 * little beyond the front fits, too. */
uint64_t prefetch_track_buffer_end(const struct track *t);
/* Whether a buffer takes in no more of this epoch.  A repeated dataset then fills it with the next one. */
bool prefetch_track_is_taken_in(const struct track *t);
/* Returns how many turns the workers of one rank may be apart: two batches each. */
uint64_t prefetch_track_slack_rank(const struct track *t);
/* Returns how far behind the farthest position late workers may be. */
uint64_t prefetch_track_behind(const struct track *t);
/* Returns how far ahead of it early workers may be. */
uint64_t prefetch_track_ahead(const struct track *t);
/* Returns the position below which a new epoch's first opens lie. */
uint64_t prefetch_track_start(const struct track *t);
/* Whether a position lies where opens are expected: behind() and ahead() of the farthest one. */
bool prefetch_track_is_near(const struct track *t, uint64_t position);
/* Whether enough of the SUPPORT turns just before it (or ahead of it), or of the same reader's turns there, were
 * opened.  One or two are not enough, because a second job's files lie anywhere, and sometimes two are close
 * together. */
bool prefetch_track_supported(const struct track *t, uint64_t position, bool ahead_of_it, uint32_t least);
/* The same, for an open: whether SUPPORT_MIN turns were opened. */
bool prefetch_track_joins(const struct track *t, uint64_t position, bool ahead_of_it);

/* ---- track_source.c ---- */

/* Whether two sources make the same order.  `step` does not count, nor how large a buffer is. */
bool prefetch_source_same(const struct source *a, const struct source *b);
/* Makes the permutation of a new track.  mt: where it begins, or NULL.  Returns 0; -ENOMEM. */
int prefetch_track_first_perm(struct track *t, const struct shard_mt19937 *mt);
/* Begins the order that is expected in the next epoch.  Returns 0; -ENOMEM. */
int prefetch_track_begin_next(struct track *t);

/* ---- track_part.c ---- */

/* Makes the sequence of an epoch, as prefetch_sequence_new().  perm: the order of `source`, or NULL. */
int prefetch_track_sequence(const struct prefetch_recognise *r, const struct track *t, const struct source *source,
        struct prefetch_perm *perm, uint64_t number, struct prefetch_sequence **ret_sequence);
/* Changes which positions a track reads.  Returns 0; -ENOMEM. */
int prefetch_track_set_part(const struct prefetch_recognise *r, struct track *t, const struct prefetch_part *part);
/* Finds part and pace again, because more opens say more.  The part grows if opens outside of it follow one another,
 * which a second job's do not.  It shrinks only by positions that are behind every worker. */
void prefetch_track_refit(struct prefetch_recognise *r, struct track *t);

/* ---- track_catch_up.c ---- */

/* Finds how far the trainer is, if recognition took long.  The trainer is far ahead of what the ring could hold.
 * `seen` has what it opened, but also what others opened, who may read the same files in another order.  So the
 * trainer has come as far as most turns were opened.  Beyond that, one worker may be ahead of another.  There the
 * track takes those of the latest opens (before `n_recent`) that it would have expected, one by one. */
void prefetch_track_catch_up(struct prefetch_recognise *r, struct track *t, uint64_t n_recent);
/* Takes in what was opened before the buffer was recognised: the ring may have been filled long after its beginning. */
void prefetch_track_catch_up_buffer(struct prefetch_recognise *r, struct track *t);
/* The ring has what others opened before this trainer began, too.  Those opens lie anywhere in the permutation.  Some
 * support each other, so that the farthest may be thousands of positions ahead of the trainer.  Forgets what lies
 * beyond the positions that are dense, and was opened before the trainer began.  Then only the trainer's own workers
 * are ahead.  If the farthest is farther ahead than workers can be, it forgets all that lie there. */
void prefetch_track_forget_strangers(struct track *t);
/* Others' opens may have filled the ring before this trainer began.  The search found the trainer in the latest opens.
 * If fewer than twice as many opens as by chance lie beyond the dense positions and its window, these are others'.
 * Then the track forgets them.  After that, prefetch_track_catch_up() finds the place of a trainer who has gone on. */
void prefetch_track_forget_ring_of_strangers(struct track *t, uint64_t window);
/* Takes out of the ring what a track has caught up with. */
void prefetch_track_forget_caught_up(struct prefetch_recognise *r);

/* ---- track_wrong.c ---- */

/* Whether a track is wrong: the list, or ddpfs's own order, is not read in its order.  Three signs show it:
 * - the opens are of other files of the list than expected
 * - several readers read in places far apart, because each has a part of the list.  If one of them was alone at first,
 *   it looked like a reader of the whole list
 * - the opens lie all over the list, and do not follow one another.
 * A restored track of any sampler is wrong by the first sign, too. */
bool prefetch_track_is_wrong(const struct prefetch_recognise *r, const struct track *t);
/* Several ranks, each with a contiguous part, looked like one reader of the whole list, because one came first and
 * alone.  Makes the track of all of them, if the opened files say which parts they are.  Returns false if not. */
bool prefetch_track_divide(struct prefetch_recognise *r, struct track *t);
/* Drops a wrong track.  Its latest opens go to the ring again, but no older ones, which may have been right. */
void prefetch_track_drop(struct prefetch_recognise *r, struct track *t);

/* ---- track_epoch.c ---- */

/* An epoch begins with the same order once more.  Returns 0; -ENOMEM. */
int prefetch_track_enter_again(struct prefetch_recognise *r, struct track *t);

#endif
