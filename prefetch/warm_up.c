/* SPDX-License-Identifier: Apache-2.0 */
/* Warm-up: while readers open files in an order that nobody knows, a stream reads in storage order what fits the
 * budget; prefetch/engine.h first.
 *
 * The stream is one with prefetch_stream_options.warm_up.  It differs from the others:
 *
 * - It is asleep at first.  It begins when PREFETCH_WARM_UP_MISSES files were missed and no other stream is followed,
 *   and ends when another stream is followed.  Then it is asleep again.  Streams that few of the opens belong to do not
 *   count (prefetch_set_order_left).
 * - Its turns are never used, so it is in no order that a reader could leave.
 * - Each turn is read at most once in a pass.  What readers brought in is skipped.  A read is up to SHARD_BLOCK long.
 *   A fetch is about that long, and is a few reads if readers brought in much between its files (merged_reads.c).
 * - While it runs, the ledger knows its turns only, not those of streams that are not followed.  So a sample that comes
 *   early in storage is never dropped for one that comes later, whoever reads that.  What it brought in loses these
 *   uses when it ends, so it goes first when a known order needs room.
 * - Demands go first.  A fetch starts only when all demands are submitted, and less than READS_MAX reads are in flight.
 * - If its reads get slow, or are slow, it rests after each SHARD_BLOCK / 2 or more for as long as that took.
 * - If no file was missed for QUIET_NS, it waits for the next miss.
 * - When it ends, its announcement ends, too: the names of the known order do not wait for those of the dataset.
 *
 * The kernel may take back what the stream has stored.  A reader brings in again what he opens of that.  If half of
 * the files that readers open were lost, or fewer of a dataset in a store (lost.c), the pass begins again: at most once
 * in AGAIN_NS, and each time only after twice as long.  Nobody knows which others were lost, so such a pass drops and
 * reads all of them.  This costs about as much for a file as a READ does. */
#include "prefetch/engine.h"

static const uint64_t QUIET_NS = 2000000000;
/* A device that needs longer for SHARD_BLOCK is slow, or many share it: 128 MiB/s. */
static const uint64_t SLOW_NS = 8000000;
enum { READS_MAX = 2 }; /* in flight when another fetch starts: fewer */
enum { LOST_MIN = 64 }; /* fewer lost samples, or opens, do not tell what share is lost */
enum { SHARED = 4 };    /* reads that take so many times the shortest time share the device with others */
static const uint64_t REST_MAX_NS = 1000000000;
static const uint64_t AGAIN_NS = 10000000000;

static void show(struct prefetch *p, enum prefetch_warm_up_state state)
{
	atomic_store_explicit(&p->warm_up.state, (int)state, memory_order_relaxed);
}

void prefetch_warm_up_add(struct prefetch *p, struct prefetch_stream *stream)
{
	p->warm_up.stream = stream;
	p->warm_up.running = false;
	p->warm_up.missed = 0;
	show(p, PREFETCH_WARM_UP_WATCHES);
}

/* Enters a stream into the ledger, or takes it out. */
static void book(struct prefetch *p, struct prefetch_stream *s, bool booked)
{
	if (s->booked == booked)
		return;
	if (!booked)
		cache_ledger_remove(p->ledger, &s->tl);
	else if (cache_ledger_add(p->ledger, &s->tl) < 0)
		return; /* cannot happen: there are never more streams than the ledger takes */
	s->booked = booked;
}

/* While a warm-up runs, only streams that are followed are in the ledger, besides its own. */
static bool book_others(struct prefetch *p, struct prefetch_stream *s)
{
	if (s != p->warm_up.stream)
		book(p, s, s->following || !p->warm_up.running);
	return false;
}

static void end(struct prefetch *p)
{
	struct prefetch_warm_up *w = &p->warm_up;
	if (!w->running)
		return;
	w->running = w->stream->following = false;
	prefetch_schedule_unannounce(p, w->stream, w->stream->tl.cursor); /* the known order's names come first */
	book(p, w->stream, false);
	prefetch_each_stream(p, book_others);
	show(p, PREFETCH_WARM_UP_WATCHES);
}

void prefetch_warm_up_remove(struct prefetch *p, struct prefetch_stream *stream)
{
	if (p->warm_up.stream != stream)
		return;
	end(p);
	p->warm_up.stream = NULL;
	show(p, PREFETCH_WARM_UP_NONE);
}

/* The stream begins with the first turn.  What is in memory by then is skipped. */
static void rewind_stream(struct prefetch_stream *s)
{
	s->fetch = s->limit = s->tl.cursor;
	s->coming_end = 0;
}

static void begin(struct prefetch *p)
{
	struct prefetch_warm_up *w = &p->warm_up;
	w->running = w->stream->following = true;
	w->opened = w->lost = 0;
	w->timed_bytes = 0;
	rewind_stream(w->stream);
	prefetch_each_stream(p, book_others);
	book(p, w->stream, true);
	atomic_fetch_add_explicit(&w->begun, 1, memory_order_relaxed);
	show(p, PREFETCH_WARM_UP_READS_ON);
}

void prefetch_warm_up_missed(struct prefetch *p)
{
	struct prefetch_warm_up *w = &p->warm_up;
	w->missed_ns = base_now_ns();
	if (w->missed < PREFETCH_WARM_UP_MISSES)
		w->missed++;
	if (w->running)
		w->stream->names_uses++; /* names that the kernel took back are announced again after some misses */
}

void prefetch_warm_up_settle(struct prefetch *p)
{
	struct prefetch_warm_up *w = &p->warm_up;
	if (!w->stream)
		return;
	bool known = p->schedule.followed && !atomic_load(&w->order_left);
	if (known || p->schedule.shared) {
		w->missed = 0;
		end(p);
	} else if (!w->running && w->missed == PREFETCH_WARM_UP_MISSES) {
		begin(p);
	} else if (w->running) {
		prefetch_each_stream(p, book_others); /* streams come */
	}
}

bool prefetch_warm_up_may_read(struct prefetch *p)
{
	struct prefetch_warm_up *w = &p->warm_up;
	uint64_t now = base_now_ns();
	if (now - w->missed_ns > QUIET_NS) {
		show(p, PREFETCH_WARM_UP_WAITS_FOR_READERS);
		return false;
	}
	if (now < w->rest_ns) {
		show(p, PREFETCH_WARM_UP_RESTS);
		return false;
	}
	show(p, PREFETCH_WARM_UP_READS_ON);
	/* Readers wait for the device: leave most of it to them. */
	bool waiting = p->reading.inflight > p->reading.inflight_ahead || atomic_load(&p->figures.callers);
	return w->inflight < (waiting ? 1U : (unsigned)READS_MAX);
}

int64_t prefetch_warm_up_wait_ns(struct prefetch *p)
{
	const struct prefetch_warm_up *w = &p->warm_up;
	if (!w->running || atomic_load_explicit(&w->state, memory_order_relaxed) != (int)PREFETCH_WARM_UP_RESTS)
		return -1;
	uint64_t now = base_now_ns();
	if (now < w->rest_ns)
		return (int64_t)(w->rest_ns - now);
	/* Over once: the stream may wait for names now, and asks prefetch_warm_up_may_read only when they come. */
	show(p, PREFETCH_WARM_UP_READS_ON);
	return 0;
}

void prefetch_warm_up_idle(struct prefetch *p, bool full)
{
	show(p, full ? PREFETCH_WARM_UP_FULL : PREFETCH_WARM_UP_DONE);
}

void prefetch_warm_up_submitted(struct prefetch *p)
{
	p->warm_up.inflight++;
}

/* A fast device that nobody else uses is read without a rest. */
void prefetch_warm_up_came_back(struct prefetch *p, const struct prefetch_read *read)
{
	struct prefetch_warm_up *w = &p->warm_up;
	uint64_t now = base_now_ns();
	w->inflight--;
	if (read->op.res <= 0) {
		if (!w->inflight)
			w->timed_bytes = 0;
		return;
	}
	atomic_fetch_add_explicit(&w->bytes, (uint64_t)read->op.res, memory_order_relaxed);
	if (!w->timed_bytes || read->submitted_ns < w->timed_ns)
		w->timed_ns = read->submitted_ns;
	w->timed_bytes += (uint64_t)read->op.res;
	uint64_t bytes = w->timed_bytes, took_ns = now - w->timed_ns;
	if (bytes >= SHARD_BLOCK / 2 || !w->inflight)
		w->timed_bytes = 0;
	if (bytes < SHARD_BLOCK / 2)
		return; /* latency hides the rate */
	uint64_t block_ns = took_ns * SHARD_BLOCK / bytes;
	if (!w->least_ns || block_ns < w->least_ns)
		w->least_ns = block_ns;
	if (block_ns > SLOW_NS || block_ns > SHARED * w->least_ns)
		w->rest_ns = now + (took_ns < REST_MAX_NS ? took_ns : REST_MAX_NS);
}

void prefetch_warm_up_opened(struct prefetch *p)
{
	struct prefetch_warm_up *w = &p->warm_up;
	if (++w->opened == PREFETCH_LOST_USES)
		w->opened = w->lost = 0;
}

void prefetch_warm_up_lost(struct prefetch *p)
{
	p->warm_up.lost++;
}

bool prefetch_warm_up_lost_part(const struct prefetch *p, uint32_t part)
{
	const struct prefetch_warm_up *w = &p->warm_up;
	return w->lost >= LOST_MIN && w->opened >= LOST_MIN && w->lost >= w->opened / part;
}

bool prefetch_warm_up_again(struct prefetch *p)
{
	struct prefetch_warm_up *w = &p->warm_up;
	uint64_t now = base_now_ns();
	if (!w->running || (w->again_ns && now - w->again_ns < w->next_again))
		return false;
	w->next_again = w->again_ns ? w->next_again * 2 : AGAIN_NS;
	w->again_ns = now;
	w->opened = w->lost = 0;
	return true;
}
