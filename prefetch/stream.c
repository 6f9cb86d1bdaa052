/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of streams: it queues events, and waits for the engine thread; prefetch/stream.h first. */
#include "prefetch/stream.h"

#include <errno.h>
#include <stdlib.h>

#include "prefetch/engine.h"

enum { WINDOW_MIN = 16 << 20, WINDOW_MAX = 256 << 20 }; /* bytes */

/* Says whether reads are much fewer and longer with a wide window: small samples are read together with neighbours in
 * storage that are used within it.  order=chunk and a shuffle buffer have such neighbours, and a request to a store
 * costs much.  In order=none a narrow window has them, too; in a full shuffle they are rare, and larger samples of a
 * store are not worth the memory there.  For the warm-up the window says how many names are announced. */
static bool merges_more(const struct prefetch *p, const struct prefetch_stream_options *options)
{
	const struct shard_info *info = shard_index_info(p->options.index);
	bool chunk = !shard_view_is_given(options->view) &&
	             shard_view_options_get(options->view)->order == SHARD_ORDER_CHUNK;
	if (info->content_bytes >= info->n_samples * prefetch_small_bytes(p->store && chunk))
		return false;
	return p->store || options->warm_up || options->buffer_turns || chunk;
}

/* Returns the bytes of the window.  A sample that is fetched long before its use takes room from samples kept for the
 * next epoch.  A sample that is fetched too late is waited for.  An eighth of the memory lasts at least a tenth of a
 * second with any device, except if memory is very small.
 *
 * With three eighths, samples of 4 KiB in order=chunk gave 1.25 times the files per second.  In a full shuffle, with
 * names and memory for nine tenths of an epoch, they cost a seventh of the first epoch, and a quarter of the next. */
static uint64_t default_window(const struct prefetch *p, const struct prefetch_stream_options *options)
{
	uint64_t memory_bytes = p->options.memory_bytes;
	uint64_t window = merges_more(p, options) ? memory_bytes / 8 * 3 : memory_bytes / 8;
	if (window < WINDOW_MIN)
		window = WINDOW_MIN;
	if (window > memory_bytes / 2)
		window = memory_bytes / 2;
	return window > WINDOW_MAX ? WINDOW_MAX : window;
}

/* Waits until the engine thread has added the stream.  Returns 0 or why it could not. */
static int wait_added(struct prefetch *p, struct prefetch_stream *s)
{
	prefetch_lock_for_scope(p);
	while (s->state == PREFETCH_STREAM_NEW)
		pthread_cond_wait(&p->locked.streams_cv, &p->lock);
	if (s->add_rc < 0)
		TAILQ_REMOVE(&p->locked.streams, s, link);
	return s->add_rc;
}

static void wait_gone(struct prefetch *p, struct prefetch_stream *s)
{
	prefetch_lock_for_scope(p);
	while (s->state != PREFETCH_STREAM_GONE)
		pthread_cond_wait(&p->locked.streams_cv, &p->lock);
	TAILQ_REMOVE(&p->locked.streams, s, link);
}

int prefetch_stream_new(
        struct prefetch *p, const struct prefetch_stream_options *options, struct prefetch_stream **ret_stream)
{
	if (!p->sink || !options->view)
		return -EINVAL;
	struct prefetch_stream *s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->p = p;
	s->options = *options;
	s->buffer_turns = options->buffer_turns;
	s->tells_uses = options->tells_uses;
	s->window = options->window_bytes ? options->window_bytes : default_window(p, options);
	{
		prefetch_lock_for_scope(p);
		s->state = PREFETCH_STREAM_NEW;
		TAILQ_INSERT_TAIL(&p->locked.streams, s, link);
		prefetch_engine_step(p, PREFETCH_NEWS); /* the end of the scope wakes the engine thread */
	}
	int rc = wait_added(p, s);
	if (rc < 0) {
		free(s);
		return rc;
	}
	*ret_stream = s;
	return 0;
}

void prefetch_stream_free(struct prefetch_stream *s)
{
	if (!s)
		return;
	struct prefetch *p = s->p;
	{
		prefetch_lock_for_scope(p);
		s->state = PREFETCH_STREAM_CLOSING;
		prefetch_engine_step(p, PREFETCH_NEWS); /* the end of the scope wakes the engine thread */
	}
	wait_gone(p, s);
	free(s);
}

void prefetch_stream_used(struct prefetch_stream *s, const struct prefetch_use *uses, size_t n)
{
	prefetch_lock_for_scope(s->p);
	for (size_t i = 0; i < n; i++)
		prefetch_schedule_event(s->p, &(struct prefetch_event){ .kind = PREFETCH_EVENT_TURN,
		                                      .stream = s,
		                                      .epoch = uses[i].epoch,
		                                      .turn = uses[i].turn,
		                                      .past = uses[i].past });
}

void prefetch_stream_used_samples(struct prefetch_stream *s, const uint32_t *samples, size_t n)
{
	prefetch_lock_for_scope(s->p);
	for (size_t i = 0; i < n; i++)
		prefetch_schedule_event(s->p,
		        &(struct prefetch_event){ .kind = PREFETCH_EVENT_SAMPLE, .stream = s, .turn = samples[i] });
}

void prefetch_stream_epoch(struct prefetch_stream *s, uint64_t epoch)
{
	prefetch_lock_for_scope(s->p);
	prefetch_schedule_event(
	        s->p, &(struct prefetch_event){ .kind = PREFETCH_EVENT_EPOCH, .stream = s, .epoch = epoch });
}

void prefetch_stream_refresh(struct prefetch_stream *s)
{
	prefetch_lock_for_scope(s->p);
	prefetch_schedule_event(s->p, &(struct prefetch_event){ .kind = PREFETCH_EVENT_REFRESH, .stream = s });
}

void prefetch_stream_buffer(struct prefetch_stream *s, uint64_t turns)
{
	atomic_store_explicit(&s->buffer_turns, turns, memory_order_relaxed);
}

void prefetch_stream_tell_uses(struct prefetch_stream *s, bool tells)
{
	atomic_store_explicit(&s->tells_uses, tells, memory_order_relaxed);
}

void prefetch_stream_stats_get(struct prefetch_stream *s, struct prefetch_stream_stats *ret_stats)
{
	*ret_stats = (struct prefetch_stream_stats){
		.epoch = atomic_load_explicit(&s->stat_epoch, memory_order_relaxed),
		.turn = atomic_load_explicit(&s->stat_turn, memory_order_relaxed),
		.used = atomic_load_explicit(&s->stat_used, memory_order_relaxed),
		.fetched = atomic_load_explicit(&s->stat_fetched, memory_order_relaxed),
		.window_bytes = atomic_load_explicit(&s->stat_window, memory_order_relaxed),
		.window_limit = s->window,
		.jumps = atomic_load_explicit(&s->stat_jumps, memory_order_relaxed),
		.following = atomic_load_explicit(&s->stat_following, memory_order_relaxed),
	};
}
