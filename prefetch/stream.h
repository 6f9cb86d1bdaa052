/* SPDX-License-Identifier: Apache-2.0 */
/* A stream: one rank's way through its epochs, read ahead of the trainer.
 *
 *   turns:   used . . x x . x | x ....... fetched ........ | .. announced .. |
 *            cursor           high                        fetch
 *
 * The engine fetches the turns behind `high`, the farthest turn the trainer has had, as long as what was fetched and is
 * still to be used fits the window (the part of it that was not in memory anyway), and as long as nothing that is used sooner has to go for it.  Turns below `high` that
 * are not used yet are other workers' batches.  When they fill half of the window it grows to twice its size, as far as memory goes;
 * when they fill three quarters of it, or half where they lie far apart, the oldest are given up.
 *
 * A trainer that leaves the order turns the read-ahead of its stream off; one that follows it again, from wherever,
 * turns it on again at that place.
 *
 * Threads: all functions may be called from any thread; none blocks but prefetch_stream_new and _free. */
#ifndef DDPFS_PREFETCH_STREAM_H
#define DDPFS_PREFETCH_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "prefetch/prefetch.h"
#include "shard/view.h"

struct prefetch_stream; /* opaque */

enum { PREFETCH_SMALL_BYTES = 64 << 10 }; /* samples below it are read together with their neighbours, see fetch.c */

struct prefetch_stream_options {
	struct shard_view *view; /* not owned; outlives the stream */
	uint32_t rank;
	uint64_t epoch;        /* where to start, at the view's `start` */
	uint64_t turn;         /* ... and this turn; those before it count as used */
	uint64_t window_bytes; /* fetched and not used yet, at most; 0 = an eighth of the memory, 16 to 256 MiB */
	bool doubtful;         /* start without reading ahead, until the order is seen to be followed */
	void *user;            /* for sink->announce */
};

/* The engine must have been made with a sink.  -ENODATA (the rank never has a turn: more ranks than samples), -EINVAL,
 * -ENOMEM, -E2BIG, index errors. */
int prefetch_stream_new(
        struct prefetch *prefetch, const struct prefetch_stream_options *options, struct prefetch_stream **ret_stream);
/* Waits for what the stream has in flight.  NULL is fine. */
void prefetch_stream_free(struct prefetch_stream *stream);

/* The trainer has had these turns of `epoch` (opened or closed the files), in this order. */
struct prefetch_use {
	uint64_t epoch;
	uint64_t turn;
	bool past; /* some time ago: whether it is in memory cannot be told from it */
};
void prefetch_stream_used(struct prefetch_stream *stream, const struct prefetch_use *uses, size_t n);

/* The same where only the sample is known (names that are the same in every epoch). */
void prefetch_stream_used_samples(struct prefetch_stream *stream, const uint32_t *samples, size_t n);

/* The trainer starts `epoch` now, whatever it left of the one before. */
void prefetch_stream_epoch(struct prefetch_stream *stream, uint64_t epoch);

/* The stream's view is given (shard/view.h), and knows an epoch now that it did not know before. */
void prefetch_stream_refresh(struct prefetch_stream *stream);

struct prefetch_stream_stats {
	uint64_t epoch;        /* of the cursor */
	uint64_t turn;         /* first one not used */
	uint64_t used;         /* turns the trainer had */
	uint64_t fetched;      /* samples read ahead */
	uint64_t window_bytes; /* fetched and not used yet */
	uint64_t window_limit;
	uint64_t jumps; /* changes of place */
	bool following;
};
void prefetch_stream_stats_get(struct prefetch_stream *stream, struct prefetch_stream_stats *ret_stats);

#endif
