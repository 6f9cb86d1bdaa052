/* SPDX-License-Identifier: Apache-2.0 */
/* Order tracking: where the trainer is, and whether it follows the order; prefetch/engine.h first.
 *
 * A use is *inside* when it lies between the cursor and the last announced turn, with some slack on both sides for
 * late workers.  While most of the last 64 uses are inside, the trainer follows the order.  Uses outside are kept.
 * When the latest 32 of them lie close together, the trainer is at that place of the order, and the stream moves
 * there.  This happens when it was restarted, lists an old epoch again, or comes back from an order of its own. */
#include "prefetch/engine.h"

#include "shard/base/bits.h"

enum {
	SLACK_MIN = 256, /* turns */
	SLACK_MAX = 8192,
	BUFFERS = 16,         /* a shuffle buffer holds e^-16 of its files for longer than so many times its size */
	HELD_MIN = 1 << 16,   /* turns that one may always hold: how large it is shows only later */
	DOUBT = 24,           /* with fewer uses, the stream follows even if most were outside */
	CLUSTER = 32,         /* uses that must lie close together */
	CLUSTER_SPAN = 16384, /* turns; enough for 16 workers with batches of 1024 side by side */
	CLUSTER_EVERY = 16,   /* uses between two searches */
	PASS_MAX = 1 << 16,   /* most turns that are marked as used one by one; beyond that the stream jumps */
};
_Static_assert((int)CLUSTER <= (int)PREFETCH_RING, "the ring holds a cluster");

uint64_t prefetch_tracking_held(const struct prefetch_stream *s)
{
	uint64_t turns = atomic_load_explicit(&s->buffer_turns, memory_order_relaxed);
	if (turns == 0)
		return 0;
	turns = turns < UINT64_MAX / BUFFERS ? turns * BUFFERS : UINT64_MAX;
	return turns > HELD_MIN ? turns : HELD_MIN;
}

/* Returns how many turns a use may lie outside of the window. */
static uint64_t slack(const struct prefetch_stream *s)
{
	uint64_t held = prefetch_tracking_held(s), half = s->tl.epochs[0].turns / 2;
	if (held > 0)
		return held < half ? held : half;
	/* In a recognised order turns are certain, so the slack can be large: in a small epoch, workers with large
	 * batches may be half an epoch apart. */
	uint64_t turns = s->tl.epochs[0].turns / (shard_view_is_given(s->tl.view) ? 2 : 16);
	return turns < SLACK_MIN ? SLACK_MIN : turns > SLACK_MAX ? SLACK_MAX : turns;
}

static bool inside(const struct prefetch_stream *s, uint64_t seq)
{
	uint64_t low = s->tl.cursor < s->high ? s->tl.cursor : s->high;
	uint64_t high = s->announced > s->high ? s->announced : s->high;
	return seq + slack(s) >= low && seq < high + slack(s);
}

bool prefetch_tracking_near(const struct prefetch_stream *s, uint64_t seq)
{
	return seq + slack(s) >= s->high && seq < s->high + slack(s);
}

uint64_t prefetch_tracking_oldest(struct prefetch_stream *s)
{
	/* Behind a large shuffle buffer nearly all of the turns before were used.  Announced again, they would delay
	 * what the reader uses next. */
	uint64_t turn, behind = slack(s) < SLACK_MAX ? slack(s) : SLACK_MAX;
	if (s->high <= s->tl.cursor)
		return s->tl.cursor;
	cache_timeline_epoch_of(&s->tl, s->high - 1, &turn);
	uint64_t oldest = s->high - 1 - (turn < behind ? turn : behind);
	return oldest > s->tl.cursor ? oldest : s->tl.cursor;
}

/* Returns the cost of a turn that was fetched and not used; 0 for other turns. */
static uint64_t ahead_cost(struct prefetch *p, struct prefetch_stream *s, uint64_t seq)
{
	uint64_t turn, cost = 0;
	uint32_t sample;
	const struct cache_timeline_epoch *ep = cache_timeline_epoch_of(&s->tl, seq, &turn);
	if (!bit_get(ep->ahead, turn) || cache_ledger_turn(p->ledger, &s->tl, seq, &sample, &cost) < 0)
		return 0;
	return cost;
}

void prefetch_tracking_wasted(struct prefetch *p, uint64_t bytes)
{
	atomic_fetch_add_explicit(&p->counters.wasted_bytes, bytes, memory_order_relaxed);
}

uint64_t prefetch_tracking_gone(struct prefetch *p, struct prefetch_stream *s, uint64_t seq)
{
	uint64_t turn, cost = ahead_cost(p, s, seq);
	struct cache_timeline_epoch *ep = cache_timeline_epoch_of(&s->tl, seq, &turn);
	s->ahead_bytes -= cost;
	s->lag_bytes -= seq < s->high ? cost : 0;
	bit_clear(ep->ahead, turn);
	return cost;
}

/* Books a use: had, or passed over. */
static void use(struct prefetch *p, struct prefetch_stream *s, uint64_t seq, bool had)
{
	uint64_t cost = ahead_cost(p, s, seq);
	s->ahead_bytes -= cost;
	if (seq < s->high)
		s->lag_bytes -= cost;
	cache_ledger_use(p->ledger, &s->tl, seq, had);
	s->used_at = ++p->schedule.all_uses;
	struct prefetch_used *used = &p->losses.used[s->used_at % PREFETCH_USED_LATELY];
	used->ahead_bytes = cache_timeline_sample(&s->tl, seq, &used->sample) == 0 ? cost : 0;
	p->losses.refetch_uses++;
	p->losses.history <<= 1;
	s->names_uses++;
	if (++p->losses.uses == PREFETCH_LOST_USES)
		p->losses.uses = p->losses.lost = 0;
	atomic_fetch_add_explicit(&s->stat_used, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&p->counters.used, 1, memory_order_relaxed);
}

/* Raises `high`.  Turns between its old and new value that are not used count in lag_bytes from now on. */
static void raise_high(struct prefetch *p, struct prefetch_stream *s, uint64_t high)
{
	uint64_t from = s->high > s->tl.cursor ? s->high : s->tl.cursor;
	for (uint64_t seq = from; seq < high; seq++)
		s->lag_bytes += ahead_cost(p, s, seq);
	if (high > s->high)
		s->high = high;
}

/* Keeps whether the latest use was inside. */
static void remember(struct prefetch_stream *s, bool in)
{
	s->recent = s->recent << 1 | in;
	if (s->n_recent < 64)
		s->n_recent++;
}

/* Moves a stream to another turn.  Returns false when it stays where it is. */
static bool move(struct prefetch *p, struct prefetch_stream *s, uint64_t epoch, uint64_t turn, bool repeat)
{
	if (cache_timeline_jump(&s->tl, epoch, turn, repeat) < 0)
		return false; /* no memory, or no such turn: reads are served on demand */
	cache_ledger_rebuild(p->ledger);
	prefetch_tracking_wasted(p, s->ahead_bytes);
	s->coming_end = 0; /* the seqs may have other samples now */
	s->fetch = s->announced = s->high = s->limit = s->looked = s->tl.cursor;
	prefetch_schedule_moved(s);
	s->filled = s->waited = false;
	s->ahead_bytes = s->lag_bytes = s->taken = 0;
	s->batch = PREFETCH_ANNOUNCE_FIRST;
	return true;
}

/* Moves a stream to where the trainer is. */
static void jump(struct prefetch *p, struct prefetch_stream *s, uint64_t epoch, uint64_t turn, bool repeat)
{
	if (!move(p, s, epoch, turn, repeat))
		return;
	s->following = true;
	s->recent = 0;
	s->n_recent = 0;
	s->ring_n = s->ring_checked = 0;
	atomic_fetch_add_explicit(&s->stat_jumps, 1, memory_order_relaxed);
}

void prefetch_tracking_refetch(struct prefetch *p, struct prefetch_stream *s)
{
	uint64_t turn;
	const struct cache_timeline_epoch *ep = cache_timeline_epoch_of(&s->tl, s->tl.cursor, &turn);
	move(p, s, ep->number, turn, s->tl.repeat);
}

/* Returns whether the latest uses outside lie close together.  *ret_turn: the first turn of them. */
static bool clustered(const struct prefetch_stream *s, uint64_t *ret_epoch, uint64_t *ret_turn)
{
	uint64_t turns = s->tl.epochs[0].turns, low = UINT64_MAX, high = 0, epoch = 0;
	for (uint32_t i = 0; i < CLUSTER; i++) {
		const struct prefetch_use *use = &s->ring[(s->ring_n - 1 - i) % PREFETCH_RING];
		if (i == 0)
			epoch = use->epoch;
		if (use->epoch != epoch)
			return false;
		low = use->turn < low ? use->turn : low;
		high = use->turn > high ? use->turn : high;
	}
	uint64_t span = turns / 4 < CLUSTER_SPAN ? turns / 4 : CLUSTER_SPAN;
	*ret_epoch = epoch;
	*ret_turn = low;
	return high - low >= CLUSTER / 2 && high - low < span;
}

/* Moves the stream if the trainer is at another place of the order. */
static void find_place(struct prefetch *p, struct prefetch_stream *s)
{
	uint64_t epoch, turn;
	bool lost = !s->following ||
	            (s->n_recent >= CLUSTER && (uint32_t)__builtin_popcountll(s->recent) * 4 <= s->n_recent);
	if (!lost || s->ring_n < CLUSTER || s->ring_n - s->ring_checked < CLUSTER_EVERY)
		return;
	s->ring_checked = s->ring_n;
	if (!clustered(s, &epoch, &turn))
		return;
	/* At the beginning of this epoch, or of the one before, the trainer reads the same list again and again. */
	uint64_t now = s->tl.epochs[0].number;
	bool repeat = (epoch == now || epoch + 1 == now) && turn < s->tl.epochs[0].turns / 4;
	struct prefetch_use latest[CLUSTER];
	for (uint32_t i = 0; i < CLUSTER; i++)
		latest[i] = s->ring[(s->ring_n - 1 - i) % PREFETCH_RING];
	jump(p, s, epoch, turn, repeat);
	if (!s->following)
		return;
	for (uint32_t i = 0; i < CLUSTER; i++) {
		uint64_t seq = cache_timeline_seq(&s->tl, latest[i].epoch, latest[i].turn);
		if (seq == CACHE_NEVER || cache_timeline_used(&s->tl, seq))
			continue;
		cache_ledger_use(p->ledger, &s->tl, seq, !latest[i].past);
		raise_high(p, s, seq + 1);
	}
	cache_timeline_advance(&s->tl);
}

/* Takes in a use.  seq: its place in the timeline, or CACHE_NEVER. */
static void place(struct prefetch *p, struct prefetch_stream *s, uint64_t seq, const struct prefetch_use *used)
{
	bool known = seq != CACHE_NEVER;
	bool in = known && s->following && inside(s, seq);
	if (in && cache_timeline_used(&s->tl, seq))
		return; /* opened twice: this tells nothing */
	remember(s, in);
	if (known && !cache_timeline_used(&s->tl, seq))
		use(p, s, seq, !used->past);
	if (in) {
		raise_high(p, s, seq + 1);
	} else {
		s->ring[s->ring_n++ % PREFETCH_RING] = *used;
		if (s->n_recent >= DOUBT && (uint32_t)__builtin_popcountll(s->recent) * 2 < s->n_recent)
			s->following = false;
		find_place(p, s);
	}
	cache_timeline_advance(&s->tl);
	if (s->high < s->tl.cursor)
		s->high = s->tl.cursor;
}

void prefetch_tracking_use(struct prefetch *p, struct prefetch_stream *s, const struct prefetch_use *used)
{
	place(p, s, cache_timeline_seq(&s->tl, used->epoch, used->turn), used);
}

void prefetch_tracking_sample(struct prefetch *p, struct prefetch_stream *s, uint32_t sample)
{
	const struct cache_timeline_epoch *first = &s->tl.epochs[0];
	uint64_t step, turn;
	uint32_t rank;
	prefetch_warm_up_opened(p);
	/* It was used a moment ago: a file was opened twice, or another file of the sample was. */
	if (shard_epoch_find(first->epoch, sample, &step, &rank, &turn) == 0 && rank == s->tl.rank &&
	        turn < first->turns && bit_get(first->used, turn) && inside(s, first->first + turn))
		return;
	uint64_t seq = cache_timeline_next(&s->tl, sample);
	if (seq == CACHE_NEVER) {
		remember(s, false);
		return;
	}
	const struct cache_timeline_epoch *ep = cache_timeline_epoch_of(&s->tl, seq, &turn);
	place(p, s, seq, &(struct prefetch_use){ .epoch = ep->number, .turn = turn });
}

void prefetch_tracking_epoch(struct prefetch *p, struct prefetch_stream *s, uint64_t epoch)
{
	const struct cache_timeline_epoch *next = &s->tl.epochs[1];
	if (s->tl.epochs[0].number == epoch)
		return;
	if (next->number != epoch || next->first - s->tl.cursor > PASS_MAX) {
		jump(p, s, epoch, 0, false);
		return;
	}
	for (uint64_t end = next->first; s->tl.cursor < end;) {
		uint64_t cost = ahead_cost(p, s, s->tl.cursor);
		s->ahead_bytes -= cost;
		if (s->tl.cursor < s->high)
			s->lag_bytes -= cost;
		cache_ledger_use(p->ledger, &s->tl, s->tl.cursor, false);
		if (cache_timeline_advance(&s->tl) < 0)
			return;
	}
	if (s->high < s->tl.cursor)
		s->high = s->tl.cursor;
}
