/* SPDX-License-Identifier: Apache-2.0 */
/* A stream: the sequence of samples of one rank, epoch after epoch, which the engine reads ahead of the trainer.
 *
 *   turns:   used . . x x . x | x ....... fetched ........ | .. announced .. |
 *            cursor           high                        fetch
 *
 * `high` is the turn behind the farthest one that the trainer has used.  The engine fetches the turns from `high` on
 * while two things hold: the bytes that were fetched and are not used yet fit the window, and no sample that is used
 * sooner must be dropped for them.  If many of the next samples are
 * in memory already, the window shrinks by their share, down to a sixteenth.
 *
 * Turns below `high` that are not used yet are batches of other workers.  When they fill half of the window, it grows
 * to twice its size if there is memory.  When they fill three quarters of it, the oldest are given up.  If they are
 * more than 4096 turns apart, half of the window is the limit.
 * A window also grows if it was full and the reader took all of it at once, or waits for samples on their way.
 *
 * If the trainer leaves the order, the engine stops reading its stream ahead.  If the trainer follows the order again,
 * the engine reads ahead from that place.
 *
 * Threads: any thread may call all functions.  Only prefetch_stream_new and prefetch_stream_free block. */
#ifndef DDPFS_PREFETCH_STREAM_H
#define DDPFS_PREFETCH_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "prefetch/prefetch.h"
#include "shard/format.h"
#include "shard/view.h"

struct prefetch_stream; /* opaque */

/* Smaller samples (bytes of all their files) are read together with their neighbours in storage (merged_reads.c).  A
 * larger one reaches the bandwidth of a disk alone.  In a store each request costs latency and money, so there it is
 * only read alone if it has the bytes of a block or more. */
enum { PREFETCH_SMALL_BYTES = 64 << 10, PREFETCH_SMALL_BYTES_STORE = SHARD_BLOCK };

static inline uint64_t prefetch_small_bytes(bool store)
{
	return store ? PREFETCH_SMALL_BYTES_STORE : PREFETCH_SMALL_BYTES;
}

struct prefetch_stream_options {
	struct shard_view *view; /* not owned; outlives the stream */
	uint32_t rank;
	uint64_t epoch;        /* where to start */
	uint64_t turn;         /* ... in that epoch; earlier turns count as used */
	uint64_t window_bytes; /* the most that may be fetched and not used; 0: see stream.c */
	/* About so many turns lie in a shuffle buffer behind the order; 0: there is none.  Turns before the farthest
	 * used one come later, in any order.  They are kept while they fill three quarters of the budget at most, and
	 * until the reader is 16 x buffer_turns ahead of them, or 65,536 turns if that is more. */
	uint64_t buffer_turns;
	bool doubtful; /* do not read ahead until the trainer follows the order */
	/* Read while no other stream is followed and readers miss files: see prefetch/warm_up.c, README.md.  An engine
	 * has at most one such stream.  The view has one epoch, whose turns are all samples in storage order.  No uses
	 * are told. */
	bool warm_up;
	/* prefetch_options.tier_uses knows this order, and calls the stream's epoch 0 uses_epoch.  Or it knows the
	 * order in other epochs than the stream does: CACHE_TIER_USES_LATEST.  What is fetched for other streams tells
	 * the tier no use. */
	bool tells_uses;
	uint64_t uses_epoch;
	uint32_t names_ahead; /* the sink may have made names of so many turns more than were announced to it */
	void *user;           /* given to the sink's announce */
};

/* Makes a stream, and waits until the engine has taken it up.
 * Returns 0 or
 * -EINVAL: there is no view, or the engine has no sink;
 * -EEXIST: there is a stream with warm_up already;
 * -ENODATA: the rank never has a turn (more ranks than samples), or a given view has no such turn;
 * -E2BIG: there are CACHE_STREAMS_MAX streams already;
 * -ENOMEM, or an error of the index. */
int prefetch_stream_new(
        struct prefetch *prefetch, const struct prefetch_stream_options *options, struct prefetch_stream **ret_stream);
/* Ends a stream, and waits for its samples in flight and its announcement.  NULL is fine. */
void prefetch_stream_free(struct prefetch_stream *stream);

/* A turn that the trainer has used: it has opened or closed the files of its sample. */
struct prefetch_use {
	uint64_t epoch;
	uint64_t turn;
	bool past; /* it was some time ago: the use does not tell that the sample is in memory */
};
/* Tells the engine the next `n` uses of the trainer, in their order. */
void prefetch_stream_used(struct prefetch_stream *stream, const struct prefetch_use *uses, size_t n);

/* As prefetch_stream_used, for callers that know only the samples because names are the same in every epoch. */
void prefetch_stream_used_samples(struct prefetch_stream *stream, const uint32_t *samples, size_t n);

/* Says that the trainer starts `epoch` now, and will not use what it left of the epoch before. */
void prefetch_stream_epoch(struct prefetch_stream *stream, uint64_t epoch);

/* Says that the stream's view, a given one (shard/view.h), knows an epoch that it did not know before. */
void prefetch_stream_refresh(struct prefetch_stream *stream);

/* Says that the shuffle buffer holds about so many turns.  Only for a stream that was made with one; turns > 0. */
void prefetch_stream_buffer(struct prefetch_stream *stream, uint64_t turns);

/* Changes prefetch_stream_options.tells_uses, for what is fetched from now on. */
void prefetch_stream_tell_uses(struct prefetch_stream *stream, bool tells);

struct prefetch_stream_stats {
	uint64_t epoch;        /* of the first turn that is not used */
	uint64_t turn;         /* ... and that turn */
	uint64_t used;         /* turns that the trainer has used, ever */
	uint64_t fetched;      /* samples fetched, ever */
	uint64_t window_bytes; /* fetched and not used yet */
	uint64_t window_limit; /* the most that window_bytes may be while nothing is in memory */
	uint64_t jumps;        /* how often the stream moved to another place of the order */
	bool following;        /* the trainer follows the order: the engine reads ahead */
};
/* Gives a snapshot; each field is consistent by itself. */
void prefetch_stream_stats_get(struct prefetch_stream *stream, struct prefetch_stream_stats *ret_stats);

#endif
