/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule: takes in news, and decides what is announced, fetched and dropped; prefetch/engine.h first. */
#include "prefetch/engine.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shard/base/bits.h"

enum {
	BATCH_MAX = 512,        /* most turns of an announcement */
	DROP_LAG_MAX = 4 << 20, /* bytes of the latest drops, which wait because their files may still be open */
	WORKERS_TURNS = 4096,   /* turns that workers who read side by side are apart at most */
	LAG_TURNS_MAX =
	        1 << 16, /* most turns from the oldest unused to the farthest used one, without a shuffle buffer */
	MISSING_ONE = 1 << 16, /* prefetch_stream.missing when all turns had to be fetched */
	MISSING_TURNS = 256,   /* turns over which `missing` is averaged */
	AWAY_BETWEEN = 16,     /* a stream between two epochs is away after so many uses of others, */
	AWAY_WITHIN = 1024, /* ... a stream within an epoch after so many per stream, because workers read in bursts */
	FROM_TIER = 8,      /* if a tier had all of so many reads in a row, it probably has what comes next */
	LOOKED_MAX = 1 << 14, /* turns that fetching looks at before the engine looks for demands: about 2 ms */
	COST_KNOWN = 256,     /* samples that must be fetched before their mean cost is used */
	LANDING_PART = 4,     /* landing memory may take so small a part of its size while no order is followed */
};
/* The longest that demands wait for drops; those of 512 samples take 4 ms. */
static const uint64_t DROP_WAIT_NS = 2000000000;
/* The longest that a reader's next turns wait until their pool is announced: 29,000 names take 0.2 to 1 s. */
static const uint64_t HOLD_NS = 1000000000;

/* Returns the bytes that are for the sink: all but landing memory. */
static uint64_t sink_bytes(struct prefetch *p)
{
	uint64_t memory = p->schedule.memory_bytes, landing = p->schedule.landing;
	return memory > landing + PREFETCH_MEMORY_MIN ? memory - landing : PREFETCH_MEMORY_MIN;
}

/* Sets the budget.  bytes: what the sink may hold; the drops that wait count too. */
static void set_budget(struct prefetch *p, uint64_t bytes)
{
	p->schedule.budget = bytes - p->schedule.drop_lag;
	p->schedule.room = p->schedule.budget + 3 * p->schedule.drop_lag;
}

/* Says how much landing memory may take.  While no order is followed, few reads are in flight.  So it takes little, and
 * the sink has the rest: else a dataset of 90% of the budget would not fit.  Files of several blocks are read ahead
 * into landing memory (file_readahead.c): for a dataset of such files it keeps its size. */
static void limit_landing(struct prefetch *p)
{
	const struct shard_info *info = shard_index_info(p->options.index);
	uint64_t size = cache_arena_size(cache_arena_of(p->cache));
	bool whole = p->schedule.followed || p->schedule.shared || info->content_bytes / SHARD_BLOCK >= info->n_files;
	cache_limit(p->cache, whole ? size : size / LANDING_PART);
}

/* Acts on prefetch_set_memory, and on a change of what landing memory may take.  What exceeds the new budget is dropped
 * before the next fetch.  A budget that shrank for losses stays so, and grows by itself. */
static void take_memory(struct prefetch *p, uint64_t memory_bytes)
{
	struct cache_ledger_stats st;
	limit_landing(p);
	uint64_t landing = cache_landing(p->cache);
	bool same = !memory_bytes && landing == p->schedule.landing;
	p->schedule.landing = landing;
	if (same || p->schedule.shared)
		return;
	if (memory_bytes)
		p->schedule.memory_bytes = memory_bytes;
	set_budget(p, sink_bytes(p));
	cache_ledger_stats_get(p->ledger, &st);
	if (!p->losses.shrunk_ns || st.budget_bytes > p->schedule.budget)
		cache_ledger_set_budget(p->ledger, p->schedule.budget);
}

_Static_assert((int)PREFETCH_DEPTH_SMALL_MAX < (int)PREFETCH_OPS_MAX, "demands need not wait for scheduled reads");

int prefetch_schedule_init(struct prefetch *p)
{
	bool too_deep = p->options.depth > PREFETCH_DEPTH_SMALL_MAX;
	prefetch_depth_init(&p->reading.depth, too_deep ? PREFETCH_DEPTH_SMALL_MAX : p->options.depth, p->store);
	uint64_t landing = cache_arena_size(cache_arena_of(p->cache));
	p->schedule.memory_bytes = p->options.memory_bytes;
	p->schedule.landing = landing;
	p->reading.read_max = SHARD_BLOCK;
	if (p->store && landing / 8 > SHARD_BLOCK)
		p->reading.read_max =
		        landing / 8 < PREFETCH_STORE_READ_MAX ? (uint32_t)(landing / 8) : PREFETCH_STORE_READ_MAX;
	if (!p->sink)
		return 0;
	uint64_t bytes = sink_bytes(p);
	p->schedule.drop_lag = bytes / 16 < DROP_LAG_MAX ? bytes / 16 : DROP_LAG_MAX;
	set_budget(p, bytes);
	p->schedule.wants = calloc(PREFETCH_WANTS_MAX, sizeof(*p->schedule.wants));
	p->schedule.neighbours = calloc(PREFETCH_NEIGHBOURS_MAX, sizeof(*p->schedule.neighbours));
	if (!p->schedule.wants || !p->schedule.neighbours)
		return -ENOMEM;
	int rc = cache_ledger_new(
	        p->options.index, p->schedule.budget, p->schedule.drop_lag, p->sink->overhead_bytes, &p->ledger);
	if (rc == 0 && p->options.resident)
		cache_ledger_share(p->ledger, p->options.resident);
	if (rc == 0)
		take_memory(p, 0); /* what a predecessor left may need it */
	return rc;
}

void prefetch_schedule_done(struct prefetch *p)
{
	struct prefetch_item *item;
	while ((item = STAILQ_FIRST(&p->schedule.free_items))) {
		STAILQ_REMOVE_HEAD(&p->schedule.free_items, link);
		free(item);
	}
	free(p->schedule.wants);
	free(p->schedule.neighbours);
	free(p->locked.events);
	free(p->schedule.events_spare);
	cache_ledger_free(p->ledger);
}

void prefetch_each_stream(struct prefetch *p, bool (*fn)(struct prefetch *p, struct prefetch_stream *s))
{
	struct prefetch_stream *live[CACHE_STREAMS_MAX], *s;
	size_t n = 0;
	{
		prefetch_lock_for_scope(p);
		TAILQ_FOREACH(s, &p->locked.streams, link)
		{
			if (s->state == PREFETCH_STREAM_LIVE && n < CACHE_STREAMS_MAX)
				live[n++] = s;
		}
	}
	for (bool more = true; more;) {
		more = false;
		for (size_t i = 0; i < n; i++)
			more |= fn(p, live[i]);
	}
}

static void queue_event(struct prefetch *p, const struct prefetch_event *event, enum prefetch_engine_step step)
{
	if (p->locked.n_events == p->locked.events_room) {
		size_t room = p->locked.events_room ? p->locked.events_room * 2 : 1024;
		struct prefetch_event *bigger =
		        room <= PREFETCH_EVENTS_MAX ? realloc(p->locked.events, room * sizeof(*bigger)) : NULL;
		if (!bigger)
			return;
		p->locked.events = bigger;
		p->locked.events_room = room;
	}
	p->locked.events[p->locked.n_events++] = *event;
	prefetch_engine_step(p, step);
}

void prefetch_schedule_event(struct prefetch *p, const struct prefetch_event *event)
{
	queue_event(p, event, PREFETCH_NEWS);
}

void prefetch_schedule_event_soon(struct prefetch *p, const struct prefetch_event *event)
{
	queue_event(p, event, p->locked.soon ? PREFETCH_LATER : PREFETCH_NEWS);
}

void prefetch_schedule_event_later(struct prefetch *p, const struct prefetch_event *event)
{
	queue_event(p, event, PREFETCH_LATER);
}

/* Books a demand, because its reader brings the bytes into the page cache. */
static void demanded(struct prefetch *p, const struct prefetch_event *event)
{
	uint32_t file = (uint32_t)event->turn;
	struct shard_place f;
	uint64_t cost;
	if (shard_index_place(p->options.index, file, &f) < 0)
		return;
	if (event->epoch == 0)
		prefetch_warm_up_missed(p); /* also if a hint had it read in time */
	if (f.sample == SHARD_NONE || cache_ledger_cost(p->ledger, f.sample, &cost) < 0) {
		cache_ledger_block(p->ledger, file, (uint32_t)event->epoch, event->bytes);
		return;
	}
	uint64_t key = cache_block_key(file, (uint32_t)event->epoch);
	bool had = cache_ledger_has(p->ledger, f.sample);
	/* The block was in landing memory, or a reader is bringing in other blocks of the sample: neither tells that
	 * the sample was lost. */
	if (had && (event->kind == PREFETCH_EVENT_BROUGHT || prefetch_lost_comes(p, f.sample, key)))
		return;
	if (cache_ledger_asked(p->ledger, f.sample))
		prefetch_lost_sample(p, f.sample);
	else if (!had)
		prefetch_lost_brought(p, f.sample, key);
}

/* Samples that more turns use are found when their drop is considered.  A whole epoch is worth looking for all of
 * them. */
static void refresh(struct prefetch *p, struct prefetch_stream *s)
{
	bool grown = cache_timeline_grow(&s->tl), came = cache_timeline_refresh(&s->tl);
	if (grown || came)
		cache_timeline_advance(&s->tl);
	if (came && s->booked)
		cache_ledger_keep(p->ledger, &s->tl);
}

static void one_event(struct prefetch *p, const struct prefetch_event *event)
{
	/* The stream still exists, because its removal waits until there are no events. */
	switch (event->kind) {
	case PREFETCH_EVENT_TURN:
		prefetch_tracking_use(p, event->stream,
		        &(struct prefetch_use){ .epoch = event->epoch, .turn = event->turn, .past = event->past });
		break;
	case PREFETCH_EVENT_SAMPLE:
		prefetch_tracking_sample(p, event->stream, (uint32_t)event->turn);
		break;
	case PREFETCH_EVENT_EPOCH:
		prefetch_tracking_epoch(p, event->stream, event->epoch);
		break;
	case PREFETCH_EVENT_REFRESH:
		refresh(p, event->stream);
		break;
	case PREFETCH_EVENT_MISS:
	case PREFETCH_EVENT_BROUGHT:
		demanded(p, event);
		break;
	}
}

/* Books the items that have arrived, and frees them. */
static void take_arrived(struct prefetch *p, struct prefetch_item_list *arrived)
{
	struct prefetch_item *item;
	while ((item = STAILQ_FIRST(arrived))) {
		STAILQ_REMOVE_HEAD(arrived, link);
		cache_ledger_arrived(p->ledger, &item->stream->tl, item->seq, item->sample, item->cost, !item->failed);
		item->stream->items--;
		item->stream->waited |= item->waited && item->stream->filled;
		if (item->refused)
			prefetch_lost_refused(p, item);
		else if (item->stored)
			item->stream->names_stored++;
		STAILQ_INSERT_HEAD(&p->schedule.free_items, item, link);
	}
}

/* Returns the mean number of files of a sample. */
static uint64_t mean_files(const struct prefetch *p)
{
	const struct shard_info *info = shard_index_info(p->options.index);
	return info->grouped && info->n_files > info->n_samples ? info->n_files / info->n_samples : 1;
}

/* Returns the mean cost of all samples, in bytes. */
static uint64_t mean_cost(const struct prefetch *p)
{
	const struct shard_info *info = shard_index_info(p->options.index);
	uint64_t mean = info->n_samples ? info->content_bytes / info->n_samples : 0;
	return mean + mean_files(p) * (p->sink->overhead_bytes + CACHE_PAGE / 2);
}

/* Returns how many turns behind the farthest used one are not used.  Returns 0 when they are too far apart for
 * workers who read side by side. */
static uint64_t late_turns(struct prefetch_stream *s)
{
	uint64_t late = 0;
	if (s->high - s->tl.cursor > WORKERS_TURNS)
		return 0;
	for (uint64_t seq = s->tl.cursor; seq < s->high; seq++)
		late += !cache_timeline_used(&s->tl, seq);
	return late;
}

/* Doubles a window that is filled by batches of workers who read side by side, or that a reader takes at once.  If the
 * mount shares, the sink's budget grows with it.  Returns false when there is no memory for it. */
static bool widen(struct prefetch *p, struct prefetch_stream *s)
{
	uint64_t window = s->window * 2;
	if (p->schedule.shared && p->schedule.budget < p->schedule.share_most && p->schedule.budget / 4 * 3 < window) {
		p->schedule.budget = window / 3 * 4 < p->schedule.share_most ? window / 3 * 4 : p->schedule.share_most;
		p->schedule.room = p->schedule.budget + 3 * p->schedule.drop_lag > p->schedule.room
		                           ? p->schedule.budget + 3 * p->schedule.drop_lag
		                           : p->schedule.room;
		p->losses.shrunk_ns = 0;
		cache_ledger_set_budget(p->ledger, p->schedule.budget);
	}
	uint64_t most = p->schedule.budget / 4 * 3, before = s->window;
	s->window = before > most ? before : window < most ? window : most;
	return s->window > before;
}

/* Returns the most bytes that a stream's window can have: a budget may have shrunk since it began. */
static uint64_t window_most(const struct prefetch *p, const struct prefetch_stream *s)
{
	uint64_t most = p->schedule.budget / 4 * 3;
	return s->window < most ? s->window : most;
}

/* Gives up turns that will probably not be used: they are too far behind the farthest used one, or fill the window. */
static void give_up_laggards(struct prefetch *p, struct prefetch_stream *s)
{
	struct cache_timeline *tl = &s->tl;
	const struct cache_timeline_epoch *next = &tl->epochs[1];
	uint64_t late = late_turns(s), late_bytes = late * mean_cost(p);
	late_bytes = late && s->lag_bytes > late_bytes ? s->lag_bytes : late_bytes;
	const uint64_t held = prefetch_tracking_held(s);
	while (!held && late_bytes > s->window / 2 && widen(p, s))
		;
	const uint64_t window = window_most(p, s);
	uint64_t in_next = s->high > next->first ? s->high - next->first : 0;
	/* A loader with its own order begins an epoch when it has read the whole last one.  A shuffle buffer may mix
	 * the two. */
	bool mixed = held || !shard_view_is_given(tl->view);
	uint64_t ended = next->turns / (mixed ? 2 : 8), farthest = held ? held : LAG_TURNS_MAX;
	uint64_t most = late ? window / 4 * 3 : window / 2;
	if (held)
		most = p->schedule.budget / 4 * 3;
	while (tl->cursor < s->high && (s->lag_bytes > most || s->high - tl->cursor > farthest ||
	                                       (in_next > ended && tl->cursor < next->first))) {
		uint64_t turn, cost = 0;
		struct cache_timeline_epoch *ep = cache_timeline_epoch_of(tl, tl->cursor, &turn);
		uint32_t sample;
		if (bit_get(ep->ahead, turn) && cache_ledger_turn(p->ledger, tl, tl->cursor, &sample, &cost) == 0) {
			s->ahead_bytes -= cost;
			s->lag_bytes -= cost;
			prefetch_tracking_wasted(p, cost);
		}
		cache_ledger_use(p->ledger, tl, tl->cursor, false);
		if (cache_timeline_advance(tl) < 0)
			break;
	}
	if (s->fetch < tl->cursor)
		s->fetch = tl->cursor;
	if (s->announced < s->fetch)
		s->announced = s->fetch;
}

/* Limits the window of a sink that holds little: a quarter of the budget is for samples just used. */
static void limit_window(struct prefetch *p, struct prefetch_stream *s)
{
	if (s->window > p->schedule.budget / 4 * 3)
		s->window = p->schedule.budget / 4 * 3;
}

static void add_stream(struct prefetch *p, struct prefetch_stream *s)
{
	int rc = s->options.warm_up && p->warm_up.stream ? -EEXIST : 0;
	if (rc == 0)
		rc = cache_timeline_init(&s->tl, s->options.view, s->options.rank, s->options.epoch);
	if (rc == 0) {
		rc = cache_timeline_advance(&s->tl); /* skips epochs without turns */
		if (rc == 0 && s->tl.cursor == cache_timeline_end(&s->tl))
			rc = -ENODATA;
		if (rc == 0 && s->options.turn)
			rc = cache_timeline_jump(&s->tl, s->options.epoch, s->options.turn, false);
		if (rc == 0 && !s->options.warm_up)
			rc = cache_ledger_add(p->ledger, &s->tl);
		if (rc < 0)
			cache_timeline_done(&s->tl);
	}
	s->fetch = s->announced = s->high = s->limit = s->tl.cursor;
	s->used_at = p->schedule.all_uses; /* a reader that comes after others is not away */
	s->batch = PREFETCH_ANNOUNCE_FIRST;
	s->missing = MISSING_ONE;
	if (p->schedule.shared)
		limit_window(p, s);
	s->following = !s->options.doubtful && !s->options.warm_up;
	s->booked = rc == 0 && !s->options.warm_up;
	if (rc == 0 && s->options.warm_up)
		prefetch_warm_up_add(p, s);
	prefetch_lock_for_scope(p);
	s->announce_done = s->tl.cursor;
	s->add_rc = rc;
	s->state = rc < 0 ? PREFETCH_STREAM_GONE : PREFETCH_STREAM_LIVE;
	pthread_cond_broadcast(&p->locked.streams_cv);
}

static void remove_stream(struct prefetch *p, struct prefetch_stream *s)
{
	prefetch_warm_up_remove(p, s);
	if (s->booked)
		cache_ledger_remove(p->ledger, &s->tl);
	cache_timeline_done(&s->tl);
	prefetch_lock_for_scope(p);
	s->state = PREFETCH_STREAM_GONE;
	pthread_cond_broadcast(&p->locked.streams_cv);
}

/* Finds a stream that is new, or one that is closing and has nothing under way.  Returns NULL if there is none. */
static struct prefetch_stream *changing(struct prefetch *p)
{
	struct prefetch_stream *s;
	prefetch_lock_for_scope(p);
	TAILQ_FOREACH(s, &p->locked.streams, link)
	{
		if (s->state == PREFETCH_STREAM_NEW)
			return s;
		if (s->state == PREFETCH_STREAM_CLOSING && !s->items && s->announce < PREFETCH_BUSY &&
		        !p->locked.n_events) {
			s->announce = PREFETCH_IDLE;
			return s;
		}
	}
	return NULL;
}

/* Adds new streams and removes closing ones, each without the lock: adding reads the index, removing looks at all
 * resident samples. */
static void come_and_go(struct prefetch *p)
{
	struct prefetch_stream *s;
	while ((s = changing(p))) {
		if (s->state == PREFETCH_STREAM_NEW)
			add_stream(p, s);
		else
			remove_stream(p, s);
	}
}

/* Marks drops of samples that will be fetched again for a turn whose names may be made already: the sink keeps these
 * names. */
static bool mark_announced(struct prefetch *p, struct prefetch_stream *s)
{
	if (s->options.warm_up && !s->following)
		return false; /* it announces again when it begins */
	for (size_t i = 0; i < p->lister.n_drops; i++) {
		struct cache_victim *v = &p->lister.drops[i];
		if (v->block == CACHE_WHOLE && !v->announced)
			v->announced = cache_timeline_next_below(&s->tl, v->id, SHARD_NONE,
			                       s->announced + s->options.names_ahead) != CACHE_NEVER;
	}
	return false;
}

static bool lister_is_idle(struct prefetch *p)
{
	prefetch_lock_for_scope(p);
	return p->lister.request == PREFETCH_IDLE;
}

/* Gives the lister its next drops if it has done the last ones. */
static void pass_on_drops(struct prefetch *p)
{
	if (!lister_is_idle(p))
		return;
	cache_ledger_dropped(p->ledger, p->lister.drops, p->lister.n_drops);
	p->lister.n_drops = cache_ledger_drops(p->ledger, p->lister.drops, PREFETCH_DROPS_MAX);
	if (!p->lister.n_drops)
		return;
	if (p->sink->ops->announce)
		prefetch_each_stream(p, mark_announced);
	p->lister.since_ns = base_now_ns();
	prefetch_lock_for_scope(p);
	p->lister.request = PREFETCH_ASKED;
	pthread_cond_signal(&p->lister.cv);
}

/* Publishes where a stream is, for its statistics. */
static void show(struct prefetch_stream *s)
{
	uint64_t turn;
	const struct cache_timeline_epoch *ep = cache_timeline_epoch_of(&s->tl, s->tl.cursor, &turn);
	atomic_store_explicit(&s->stat_epoch, ep->number, memory_order_relaxed);
	atomic_store_explicit(&s->stat_turn, turn, memory_order_relaxed);
	atomic_store_explicit(&s->stat_window, s->ahead_bytes, memory_order_relaxed);
	atomic_store_explicit(&s->stat_following, s->following, memory_order_relaxed);
}

/* Demands fill the sink as fetches do.  The engine stops fetching when held bytes exceed the budget by 2 x drop_lag;
 * demands wait when they exceed it by 3 x drop_lag.  They wait at most DROP_WAIT_NS, because the sink may wait for
 * one of them while it drops. */
int64_t prefetch_schedule_room_ns(const struct prefetch *p)
{
	if (!p->ledger || !cache_ledger_dropping(p->ledger) || cache_ledger_held(p->ledger) <= p->schedule.room)
		return 0;
	uint64_t waited_ns = base_now_ns() - p->lister.since_ns;
	return waited_ns < DROP_WAIT_NS ? (int64_t)(DROP_WAIT_NS - waited_ns) : 0;
}

bool prefetch_schedule_cannot_wait(const struct prefetch *p, const struct prefetch_read *read)
{
	uint32_t file = cache_key_file(STAILQ_FIRST(&read->blocks)->key);
	for (size_t i = 0; i < p->lister.n_drops; i++) {
		if (p->lister.drops[i].id == (p->lister.drops[i].block == CACHE_WHOLE ? read->sample : file))
			return true;
	}
	return read->sample != SHARD_NONE && cache_ledger_state(p->ledger, read->sample) == CACHE_COMING;
}

static bool share_stream(struct prefetch *p, struct prefetch_stream *s)
{
	limit_window(p, s);
	prefetch_tracking_refetch(p, s);
	return false;
}

/* Acts on prefetch_share.  It drops what was read with O_DIRECT, because otherwise the others would read the same
 * shards again in later epochs.  So it waits until nothing is coming, and nothing new is fetched meanwhile. */
static void share(struct prefetch *p, uint64_t sink_bytes)
{
	struct cache_ledger_stats st;
	if (p->schedule.shared || !sink_bytes)
		return;
	if (!p->schedule.share_pending)
		prefetch_shards_buffer(p->files);
	cache_ledger_stats_get(p->ledger, &st);
	p->schedule.share_pending = st.coming_bytes > 0;
	if (p->schedule.share_pending)
		return; /* prefetch_schedule_fill makes the next delivery wake the engine */
	p->schedule.share_most = p->schedule.budget / 4 > sink_bytes ? p->schedule.budget / 4 : sink_bytes;
	if (p->schedule.budget > sink_bytes)
		p->schedule.budget = sink_bytes;
	p->losses.shrunk_ns = 0;
	cache_ledger_set_budget(p->ledger, p->schedule.budget);
	cache_ledger_clear(p->ledger);
	prefetch_each_stream(p, share_stream);
	p->schedule.shared = true;
}

/* Does what each stream needs after news. */
static bool settle(struct prefetch *p, struct prefetch_stream *s)
{
	give_up_laggards(p, s);
	/* An engine that keeps up with a reader has fetched further than he is, but he waits for what is on its way. */
	if (s->filled && (s->high >= s->fetch || s->waited)) {
		s->filled = s->waited = false; /* the reader takes more at once than the window holds */
		widen(p, s);
	}
	s->tl.reader = s->high;
	prefetch_lost_look(p, s);
	show(s);
	return false;
}

/* Returns whether a stream's reader pauses while others read, as a validation loader's does in a training epoch. */
static bool is_away(const struct prefetch *p, struct prefetch_stream *s)
{
	uint64_t turn, place = s->high > s->tl.cursor ? s->high : s->tl.cursor;
	if (place >= cache_timeline_end(&s->tl))
		return false;
	cache_timeline_epoch_of(&s->tl, place, &turn);
	return p->schedule.all_uses - s->used_at > (turn ? (uint64_t)AWAY_WITHIN * p->schedule.n_live : AWAY_BETWEEN);
}

static bool count_followed(struct prefetch *p, struct prefetch_stream *s)
{
	p->schedule.followed |= s->following && !s->options.warm_up;
	return false;
}

/* Counts live streams, and those that read ahead and are not away. */
static bool count_here(struct prefetch *p, struct prefetch_stream *s)
{
	if (s->options.warm_up)
		return false;
	uint64_t turn, place = s->high > s->tl.cursor ? s->high : s->tl.cursor;
	p->schedule.n_live++;
	if (place >= cache_timeline_end(&s->tl) || !s->following || is_away(p, s))
		return false;
	const struct cache_timeline_epoch *ep = cache_timeline_epoch_of(&s->tl, place, &turn);
	p->schedule.n_here++;
	uint64_t left = ep->turns - turn;
	p->schedule.here_left = left < p->schedule.here_left ? left : p->schedule.here_left;
	return false;
}

/* Assumes that a stream that is away reads on when one of the others ends its epoch. */
static bool set_away(struct prefetch *p, struct prefetch_stream *s)
{
	s->tl.away = p->schedule.n_here && is_away(p, s) ? p->schedule.here_left : 0;
	return false;
}

static void find_away(struct prefetch *p)
{
	p->schedule.n_live = p->schedule.n_here = 0;
	p->schedule.here_left = UINT64_MAX;
	prefetch_each_stream(p, count_here);
	prefetch_each_stream(p, set_away);
}

void prefetch_schedule_news(struct prefetch *p)
{
	struct prefetch_item_list arrived = STAILQ_HEAD_INITIALIZER(arrived);
	bool poke;
	uint64_t share_bytes, memory_bytes;
	struct prefetch_event *events;
	size_t n, room;
	{
		prefetch_lock_for_scope(p);
		poke = p->locked.state == PREFETCH_POKED || p->locked.n_events > 0;
		share_bytes = p->locked.share_bytes;
		memory_bytes = p->locked.new_memory_bytes;
		p->locked.new_memory_bytes = 0;
		prefetch_engine_step(p, PREFETCH_ROUND);
		events = p->locked.events;
		n = p->locked.n_events;
		room = p->locked.events_room;
		if (n) {
			p->locked.events = p->schedule.events_spare;
			p->locked.events_room = p->schedule.events_spare_room;
			p->locked.n_events = 0;
		}
		STAILQ_CONCAT(&arrived, &p->locked.arrived);
	}
	if (!p->ledger)
		return;
	take_arrived(p, &arrived);
	bool demanded = false;
	for (size_t i = 0; i < n; i++) {
		demanded |= events[i].kind == PREFETCH_EVENT_MISS || events[i].kind == PREFETCH_EVENT_BROUGHT;
		one_event(p, &events[i]);
	}
	if (demanded)
		p->schedule.demanded_ns = base_now_ns();
	if (n) {
		p->schedule.events_spare = events;
		p->schedule.events_spare_room = room;
	}
	if (!poke)
		return;
	come_and_go(p);
	p->schedule.followed = false;
	prefetch_each_stream(p, count_followed);
	take_memory(p, memory_bytes);
	share(p, share_bytes);
	prefetch_lost_settle(p);
	cache_ledger_trim(p->ledger); /* readers have brought samples in themselves */
	prefetch_each_stream(p, settle);
	prefetch_warm_up_settle(p);
	find_away(p);
	pass_on_drops(p);
}

/* Returns how many turns are announced ahead: those that fit the window by the mean cost of a sample.
 *
 * That is the mean of all samples, or of those that were fetched if the samples come from a store, if they have several
 * files (a label of one byte takes a page), or if the sink needs no announcements.  Neighbours are then merged over the
 * whole window, and not beyond it: far samples would take the room of the next ones.  The difference matters: of 4 KiB
 * samples a window holds half as many again as of 6 KiB samples. */
static uint64_t lookahead(const struct prefetch *p, const struct prefetch_stream *s)
{
	uint64_t cost = mean_cost(p), files = mean_files(p);
	if (p->store && files == 1) /* files of one size are common, and a pool must fit */
		cost = (cost - p->sink->overhead_bytes - CACHE_PAGE / 2 + CACHE_PAGE - 1) / CACHE_PAGE * CACHE_PAGE +
		       p->sink->overhead_bytes;
	if ((p->store || files > 1 || !p->sink->ops->announce) && p->schedule.n_cost >= COST_KNOWN)
		cost = p->schedule.cost_bytes / p->schedule.n_cost + 1;
	uint64_t turns = (s->window >> p->losses.halved) / cost;
	return turns < 4 * PREFETCH_ANNOUNCE_FIRST ? 4 * PREFETCH_ANNOUNCE_FIRST : turns;
}

/* Returns the turns of one piece of an announcement: a quarter of the turns between the trainer and the announcement.
 * Nothing is fetched before its piece is announced.  On a busy machine a name takes a millisecond.  So a trainer that
 * is near would reach the turns before the first of 512 is fetched. */
static uint32_t piece(const struct prefetch_stream *s)
{
	uint64_t way = s->announced > s->high ? s->announced - s->high : 0;
	return way / 4 < PREFETCH_ANNOUNCE_FIRST ? PREFETCH_ANNOUNCE_FIRST
	       : way / 4 > BATCH_MAX             ? BATCH_MAX
	                                         : (uint32_t)(way / 4);
}

bool prefetch_schedule_pool(
        const struct prefetch *p, struct prefetch_stream *s, uint64_t seq, struct prefetch_pool *ret)
{
	const struct shard_view_options *o = shard_view_options_get(s->tl.view);
	const struct shard_info *info = shard_index_info(p->options.index);
	if (!p->store || s->options.warm_up || shard_view_is_given(s->tl.view) || o->order != SHARD_ORDER_CHUNK)
		return false;
	if (info->content_bytes / info->n_samples >= prefetch_small_bytes(p->store))
		return false; /* they are read alone */
	if (seq >= cache_timeline_end(&s->tl))
		return false;
	uint64_t turn, first, end;
	const struct cache_timeline_epoch *ep = cache_timeline_epoch_of(&s->tl, seq, &turn);
	if (s->pool_epoch == ep->number && s->pool_base == ep->first && seq >= s->pool.first && seq < s->pool.end) {
		*ret = s->pool;
		return true;
	}
	uint32_t sample;
	if (shard_epoch_pool(ep->epoch, s->tl.rank, turn, &first, &end) < 0)
		return false;
	if (info->grouped && (cache_timeline_sample(&s->tl, seq, &sample) < 0 || !prefetch_fetch_merges(p, sample)))
		return false; /* its files lie apart, and probably those of the others, too */
	*ret = s->pool = (struct prefetch_pool){ .first = ep->first + first, .end = ep->first + end };
	s->pool_epoch = ep->number;
	s->pool_base = ep->first;
	return true;
}

uint64_t prefetch_schedule_neighbours_limit(const struct prefetch *p, struct prefetch_stream *s)
{
	struct prefetch_pool last, own;
	if (!prefetch_schedule_pool(p, s, s->limit, &last) || !prefetch_schedule_pool(p, s, s->fetch, &own))
		return s->limit;
	uint64_t whole = last.first > own.end ? last.first : own.end; /* pools before last.first are announced */
	return whole < s->limit ? whole : s->limit;
}

void prefetch_schedule_moved(struct prefetch_stream *s)
{
	s->hold_from = s->hold_ns = 0;
}

/* Returns whether the turn at `fetch` waits although it is one of the reader's next turns.  While a pool is announced,
 * each of them is a request of its own.  So a reader gets PREFETCH_ANNOUNCE_FIRST of them, and the next ones when the
 * pool is announced, or after HOLD_NS.  Demands do not wait.  From a store that is near, single requests are quick.
 * What a tier has needs no request. */
static bool hold(const struct prefetch *p, struct prefetch_stream *s)
{
	if (p->reading.from_tier >= FROM_TIER ||
	        (p->reading.depth.least_ns && p->reading.depth.least_ns < PREFETCH_FAR_NS))
		return false;
	if (!s->hold_from)
		s->hold_from = s->high + PREFETCH_ANNOUNCE_FIRST;
	if (s->fetch < s->hold_from)
		return false;
	uint64_t now = base_now_ns();
	if (!s->hold_ns)
		s->hold_ns = now;
	return now - s->hold_ns < HOLD_NS;
}

/* Returns whether fetching must wait for announcements, of as many turns as a pool has: then each chunk is one request.
 * (To wait for the turn's own pool only made 400 requests/GB of 300.)  The reader's next turns wait less (hold). */
static bool held_back(const struct prefetch *p, struct prefetch_stream *s)
{
	struct prefetch_pool pool;
	uint64_t far = s->fetch + lookahead(p, s), end = cache_timeline_end(&s->tl), until = s->fetch;
	bool pools = prefetch_schedule_pool(p, s, s->fetch, &pool);
	if (pools)
		until = s->fetch + (pool.end - pool.first);
	else if (p->store && !s->options.warm_up && s->fetch < s->suspect)
		until = s->suspect; /* lost turns are announced again; without neighbours each would be a request */
	until = until < far ? until : far;
	if (s->limit >= (until < end ? until : end) || (p->sink->ops->rests && p->sink->ops->rests(p->sink))) {
		prefetch_schedule_moved(s);
		return false;
	}
	return s->fetch >= s->high + PREFETCH_ANNOUNCE_FIRST || (pools && hold(p, s));
}

/* Asks the lister to announce the next turns, one batch at a time. */
static void announce(struct prefetch *p, struct prefetch_stream *s)
{
	struct cache_timeline *tl = &s->tl;
	while (s->announced < s->high && cache_timeline_used(tl, s->announced))
		s->announced++; /* the trainer has used it already */
	uint64_t until = s->fetch + lookahead(p, s), turn;
	if (s->announced >= until || s->announced >= cache_timeline_end(tl))
		return;
	if (!p->sink->ops->announce) {
		s->announced = until < cache_timeline_end(tl) ? until : cache_timeline_end(tl);
		return;
	}
	if (p->sink->ops->rests && p->sink->ops->rests(p->sink))
		return;
	const struct cache_timeline_epoch *ep = cache_timeline_epoch_of(tl, s->announced, &turn);
	uint64_t n = ep->turns - turn < s->batch ? ep->turns - turn : s->batch;
	{
		prefetch_lock_for_scope(p);
		if (s->announce != PREFETCH_IDLE || s->state != PREFETCH_STREAM_LIVE)
			return;
		s->announce = PREFETCH_ASKED;
		s->announce_epoch = ep->number;
		s->announce_turn = turn;
		s->announce_n = (uint32_t)n;
		s->announce_piece = piece(s);
		s->announce_upto = s->announced + n;
		pthread_cond_signal(&p->lister.cv);
	}
	s->announced += n;
	s->batch = s->batch * 2 > BATCH_MAX ? BATCH_MAX : s->batch * 2;
}

void prefetch_schedule_unannounce(struct prefetch *p, struct prefetch_stream *s, uint64_t seq)
{
	s->fetch = s->announced = s->limit = seq; /* a later turn to fetch would count as announced */
	s->batch = PREFETCH_ANNOUNCE_FIRST;
	prefetch_lock_for_scope(p);
	s->announce = s->announce >= PREFETCH_BUSY ? PREFETCH_VOID : PREFETCH_IDLE;
	s->announce_done = seq;
}

/* Returns whether one more scheduled read may start.  A quarter of the landing memory is left for demands. */
static bool may_read(struct prefetch *p)
{
	return p->reading.inflight_ahead < p->reading.depth.depth && TAILQ_EMPTY(&p->reading.parked) &&
	       atomic_load(&p->reading.ahead_landing) + p->reading.read_max + 2 * PREFETCH_ALIGN_MAX <=
	               p->schedule.landing / 4 * 3;
}

/* Returns the bytes of the turns that the window spans.  Streams that read side by side have three quarters of the
 * budget together. */
static uint64_t window_span(const struct prefetch *p, const struct prefetch_stream *s)
{
	uint64_t most = p->schedule.budget / 4 * 3 / (p->schedule.n_here > 1 ? p->schedule.n_here : 1);
	return (s->window < most ? s->window : most) >> p->losses.halved;
}

/* Returns the bytes of the window now.  Reading ahead takes room from samples that are kept for later.  If a part of
 * the next turns is in memory already, the window spans the same turns and holds fewer bytes, at least a sixteenth. */
static uint64_t window_now(const struct prefetch *p, const struct prefetch_stream *s)
{
	uint64_t share = s->missing > MISSING_ONE / 16 ? s->missing : MISSING_ONE / 16, window = window_span(p, s);
	return window / MISSING_ONE * share + window % MISSING_ONE * share / MISSING_ONE;
}

/* Counts whether the turn at `fetch` had to be fetched, now or before as a neighbour. */
static void count_missing(struct prefetch_stream *s)
{
	uint64_t turn;
	const struct cache_timeline_epoch *ep = cache_timeline_epoch_of(&s->tl, s->fetch, &turn);
	bool missing = bit_get(ep->ahead, turn);
	s->missing = s->missing - s->missing / MISSING_TURNS + (missing ? MISSING_ONE / MISSING_TURNS : 0);
}

/* Gives the sample at `fetch`.  Records in the index are ordered by path, so reading one costs a miss or two of the
 * processor's cache.  So they are prefetched some turns before they are read. */
static int next_sample(struct prefetch *p, struct prefetch_stream *s, uint32_t *ret_sample)
{
	if (s->coming_end < s->fetch || s->coming_end > s->fetch + PREFETCH_COMING)
		s->coming_end = s->fetch;
	for (; s->coming_end < s->fetch + PREFETCH_COMING && s->coming_end < s->limit; s->coming_end++) {
		uint32_t sample, file;
		int rc = cache_timeline_sample(&s->tl, s->coming_end, &sample);
		s->coming[s->coming_end % PREFETCH_COMING] = rc < 0 ? SHARD_NONE : sample;
		if (rc == 0 && !cache_ledger_has(p->ledger, sample) &&
		        shard_index_sample_first(p->options.index, sample, &file) == 0)
			shard_index_hint_record(p->options.index, file);
	}
	*ret_sample = s->coming[s->fetch % PREFETCH_COMING];
	return *ret_sample == SHARD_NONE ? -EUCLEAN : 0;
}

/* Goes back to samples that were dropped before their use, so that they are fetched again when there is room.  They
 * do not count as fetched. */
static void go_back(struct prefetch *p, struct prefetch_stream *s)
{
	uint64_t oldest = prefetch_tracking_oldest(s), hole = s->tl.hole > oldest ? s->tl.hole : oldest;
	bool back = s->tl.hole < s->fetch && hole < s->fetch;
	s->tl.hole = CACHE_NEVER;
	if (!back)
		return;
	uint64_t end = s->fetch - hole < LAG_TURNS_MAX ? s->fetch : hole + LAG_TURNS_MAX;
	for (uint64_t seq = hole; seq < end; seq++) {
		uint64_t turn;
		uint32_t sample;
		const struct cache_timeline_epoch *ep = cache_timeline_epoch_of(&s->tl, seq, &turn);
		if (bit_get(ep->ahead, turn) && cache_timeline_sample(&s->tl, seq, &sample) == 0 &&
		        !cache_ledger_has(p->ledger, sample))
			prefetch_tracking_wasted(p, prefetch_tracking_gone(p, s, seq));
	}
	s->fetch = hole;
	s->filled = s->waited = false;
	s->coming_end = 0;
}

/* Returns true when a stream that is away must wait: memory is short, and its turns are farther away than a window.
 * It would take room that the streams that read now need back at once. */
static bool too_early(const struct prefetch *p, const struct prefetch_stream *s)
{
	return s->tl.away > lookahead(p, s) &&
	       cache_ledger_held(p->ledger) + p->schedule.budget / 4 > p->schedule.budget;
}

/* Returns whether a stream may start a read, as far as it alone is concerned.
 *
 * Samples that were fetched far ahead, when the stream had more of the budget, may fill the window, and nearer ones may
 * have been dropped.  The reader's next turns, a quarter of what the window spans, are fetched all the same: the ledger
 * drops the farthest samples for them. */
static bool may_fetch(struct prefetch *p, const struct prefetch_stream *s)
{
	if (s->options.warm_up)
		return prefetch_warm_up_may_read(p);
	const uint64_t way = s->fetch > s->high ? s->fetch - s->high : 0;
	return s->ahead_bytes < window_now(p, s) + s->lag_bytes ||
	       (s->fetch < s->taken && way < window_span(p, s) / 4 / mean_cost(p));
}

/* Returns whether fetching has looked at enough turns.  Then the engine thread takes in demands, and fetches on in its
 * next round. */
static bool looked_enough(struct prefetch *p)
{
	if (p->schedule.n_looked < LOOKED_MAX)
		return false;
	prefetch_lock_for_scope(p);
	prefetch_engine_step(p, PREFETCH_NEWS);
	return true;
}

/* Fetches the next sample of a stream that is not in memory.  Returns true when one was fetched, and also when turns
 * were passed over: the next call can then announce more. */
static bool fetch_one(struct prefetch *p, struct prefetch_stream *s)
{
	if (!s->following || s->forgotten || p->schedule.share_pending)
		return false;
	while (s->fetch < s->high && cache_timeline_used(&s->tl, s->fetch))
		s->fetch++; /* used turns are not fetched, and may not have been announced either */
	go_back(p, s);
	if (too_early(p, s))
		return false;
	announce(p, s);
	{
		prefetch_lock_for_scope(p);
		s->limit = p->sink->ops->announce ? s->announce_done : s->announced;
	}
	uint64_t from = s->fetch;
	for (; s->fetch < s->limit && may_read(p) && !held_back(p, s); s->fetch++) {
		uint32_t sample;
		if (looked_enough(p))
			return false;
		p->schedule.n_looked++;
		prefetch_lost_suspects(p, s);
		if (next_sample(p, s, &sample) < 0)
			continue;
		if (cache_timeline_used(&s->tl, s->fetch))
			continue;
		if (!may_fetch(p, s)) {
			s->filled = !s->options.warm_up && !p->losses.halved;
			return false;
		}
		/* Most small samples were fetched as neighbours.  Reading their records would take time while the
		 * device may be idle. */
		int rc = cache_ledger_has(p->ledger, sample) ? -EEXIST : prefetch_fetch(p, s, s->fetch, sample);
		if (rc == -ENOSPC && s->options.warm_up)
			prefetch_warm_up_idle(p, true);
		if (rc == -ENOSPC || rc == -EAGAIN || rc == -ENOMEM)
			return false;
		count_missing(s);
		if (rc == 0) {
			s->fetch++;
			atomic_store_explicit(&s->stat_window, s->ahead_bytes, memory_order_relaxed);
			return true;
		}
		/* Others are in memory, too large or not found: passed over. */
	}
	if (s->options.warm_up && s->fetch == cache_timeline_end(&s->tl))
		prefetch_warm_up_idle(p, false);
	return s->fetch > from;
}

/* Starts reads of what the sink has lost, before those of the streams and within the same limits. */
static void start_regains(struct prefetch *p)
{
	while (may_read(p)) {
		struct prefetch_read *read;
		{
			prefetch_lock_for_scope(p);
			read = TAILQ_FIRST(&p->locked.regains);
			if (!read)
				return;
			TAILQ_REMOVE(&p->locked.regains, read, link);
			read->state = PREFETCH_READ_INFLIGHT;
		}
		if (prefetch_engine_start(p, read) < 0)
			TAILQ_INSERT_TAIL(&p->reading.parked, read, link);
	}
}

/* Returns whether landing memory, and not the depth, keeps reads from starting. */
static bool short_of_memory(struct prefetch *p)
{
	return !TAILQ_EMPTY(&p->reading.parked) || (p->reading.inflight_ahead < p->reading.depth.depth && !may_read(p));
}

void prefetch_schedule_fill(struct prefetch *p)
{
	if (!p->ledger)
		return;
	p->schedule.n_looked = 0;
	for (unsigned tries = 0; tries < 2; tries++) {
		if (prefetch_fetch_parked(p)) {
			start_regains(p);
			prefetch_each_stream(p, fetch_one);
		}
		pass_on_drops(p); /* fetches wait for these drops, so they do not wait for the next news */
		if (!short_of_memory(p) && !p->schedule.share_pending)
			return;
		/* Set before the second try, so that memory given back from now on wakes the engine. */
		prefetch_lock_for_scope(p);
		prefetch_engine_step(p, PREFETCH_ASKS);
		if (p->schedule.share_pending && !STAILQ_EMPTY(&p->locked.arrived))
			prefetch_engine_step(p, PREFETCH_NEWS);
	}
}
