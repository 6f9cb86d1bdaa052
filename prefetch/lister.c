/* SPDX-License-Identifier: Apache-2.0 */
/* The lister thread: it calls the sink to announce, drop and look; prefetch/sink.h and prefetch/engine.h first. */
#include "prefetch/engine.h"

#include <assert.h>
#include <errno.h>

/* Returns a stream that has asked for an announcement, or NULL.  Under lock. */
static struct prefetch_stream *next_announcement(struct prefetch *p)
{
	struct prefetch_stream *stream;
	TAILQ_FOREACH(stream, &p->locked.streams, link)
	{
		if (stream->announce == PREFETCH_ASKED)
			return stream;
	}
	return NULL;
}

/* Announces one piece, or its beginning.  The lock is held on entry and on return, but not during the call to the
 * sink. */
static void announce(struct prefetch *p, struct prefetch_stream *stream)
{
	uint64_t epoch = stream->announce_epoch, turn = stream->announce_turn;
	uint32_t n = stream->announce_n < stream->announce_piece ? stream->announce_n : stream->announce_piece;
	stream->announce = PREFETCH_BUSY;
	/* Streams are served in rotation: this one goes behind the others. */
	TAILQ_REMOVE(&p->locked.streams, stream, link);
	TAILQ_INSERT_TAIL(&p->locked.streams, stream, link);
	prefetch_unlock(p);
	n = p->sink->ops->announce(p->sink, stream->options.user, epoch, turn, n);
	prefetch_lock(p);
	if (stream->announce == PREFETCH_BUSY) {
		stream->announce_turn += n;
		stream->announce_n -= n;
		stream->announce_done = stream->announce_upto - stream->announce_n;
		stream->announce = stream->announce_n > 0 ? PREFETCH_ASKED : PREFETCH_IDLE;
	} else {
		assert(stream->announce == PREFETCH_VOID);
		stream->announce = PREFETCH_IDLE;
	}
	prefetch_engine_step(p, PREFETCH_NEWS);
	pthread_cond_broadcast(&p->locked.streams_cv);
}

/* Hands drops to the sink; locks as in announce().  The engine thread does not change the list meanwhile. */
static void drop(struct prefetch *p)
{
	p->lister.request = PREFETCH_BUSY;
	prefetch_unlock(p);
	p->sink->ops->drop(p->sink, p->lister.drops, p->lister.n_drops);
	prefetch_lock(p);
	p->lister.request = PREFETCH_IDLE;
	prefetch_engine_step(p, PREFETCH_NEWS); /* memory came back, and there may be more to drop */
}

/* Asks the sink for what may be gone.  Without lock.  The kernel may make this thread wait until a READ is answered, so
 * it must not be the engine thread. */
static void look(struct prefetch *p)
{
	for (uint32_t i = 0; i < p->lister.n_looks; i++) {
		const struct prefetch_look *at = &p->lister.looks[i];
		int rc = p->sink->ops->look(p->sink, at->file, at->offset, at->len);
		if (rc < 0)
			prefetch_looked(p, at->file, at->offset, rc != -ENOENT);
	}
}

/* Drops go first, because the names of a sample that is announced again must not be dropped after that. */
void *prefetch_lister_run(void *arg)
{
	struct prefetch *p = arg;
	pthread_setname_np(pthread_self(), "lister");
	prefetch_lock(p);
	while (!p->lister.stop) {
		struct prefetch_stream *stream = p->lister.request == PREFETCH_ASKED ? NULL : next_announcement(p);
		if (p->lister.request == PREFETCH_ASKED) {
			drop(p);
		} else if (p->lister.look == PREFETCH_ASKED) { /* it is short; announcements may go on and on */
			p->lister.look = PREFETCH_BUSY;
			prefetch_unlock(p);
			look(p);
			prefetch_lock(p);
			p->lister.look = PREFETCH_IDLE;
		} else if (stream) {
			announce(p, stream);
		} else {
			pthread_cond_wait(&p->lister.cv, &p->lock);
			continue;
		}
		prefetch_unlock(p); /* wakes the engine thread */
		prefetch_lock(p);
	}
	prefetch_unlock(p);
	return NULL;
}
