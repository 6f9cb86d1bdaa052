/* SPDX-License-Identifier: Apache-2.0 */
/* Losses: what the kernel took back from a sink; prefetch/sink.h and prefetch/engine.h first.
 *
 * Memory pressure and drop_caches take pages, and names and inodes with them.  The engine learns it in two ways:
 *
 * A READ comes for a resident sample: its pages are gone.  If many of the latest uses were lost, the next turns are
 * dropped and fetched again.  Otherwise readers would demand them one by one.
 *
 * A store returns -ENOENT: the name is gone.  Then all names from the reader on are announced again before anything
 * is fetched.
 *
 * In the minute after a loss the sink is asked whether it still has what the reader uses next, if that lies in a store
 * far away.  What is gone is read into landing memory at once, or if it is much, all of it is fetched again.  Otherwise
 * a reader would wait for each such sample.
 *
 * If what was fetched again is lost again, the kernel holds less than the window.  Then the window is halved, so that
 * files are there just before their use.  It grows again when nothing was lost for some seconds.
 *
 * If there are many losses, the budget shrinks. */
#include "prefetch/engine.h"

#include "shard/base/bits.h"

enum {
	WARM_UP_AGAIN = 2,    /* a warm-up reads all again if one in so many opened files was lost, */
	WARM_UP_SHRINK = 4,   /* ... and its budget shrinks if one in so many was */
	LOST_MIN = 16,        /* fewer lost samples, within LOST_NS or of the latest uses, are chance */
	REFETCH_TURNS = 1024, /* turns that are fetched again */
	REFETCH_TURNS_MAX = 16384,
	REFETCH_LOOKED_BYTES =
	        64 << 20,  /* ... or so many bytes, if that is more turns, when looking has shown a loss */
	REFETCH_USES = 64, /* fewest uses between two refetches */
	/* So many of the latest 8 or 16 uses: the kernel takes back what comes next. */
	BURST_OF_8 = 6,
	BURST_OF_16 = 8,
	HALVED_MAX = 3, /* the window shrinks to an eighth */
	/* Turns that are taken as lost at once: their drops take some milliseconds.  With a store it is all of them, so
	 * that one request takes all that it can. */
	SUSPECTS_STEP = 256,
	/* If nothing was stored after names were announced again, the next try waits for NAMES_USES << names_vain
	 * uses, or NAMES_NS << names_vain ns: a reader that waits for a store uses little. */
	NAMES_USES = 16,
	NAMES_VAIN_MAX = 6,   /* the most names_vain */
	LOOK_TURNS = 2048,    /* most turns ahead of the reader that the sink is asked for; of these, */
	LOOK_PART = 8,        /* ... those that fit 1/8 of landing memory */
	LOOK_BYTES = 8 << 20, /* the sink is asked for about so many bytes at a time */
	LOOK_GONE = 4,        /* if more than 1/4 of what was asked for is gone, whole chunks are fetched again */
	LOOK_JUDGED = 64,     /* ... and that is judged when so much was asked for */
};
static const uint64_t LOST_NS = 1000000000;
static const uint64_t NAMES_NS = 100000000;
static const uint64_t LOOK_NS = 60000000000;       /* looking ends so long after a reader found a loss */
static const uint64_t LOOK_ANSWER_NS = 1000000000; /* an answer takes microseconds; one that is lost is not awaited */
static const uint64_t LOST_USES_NS = 10000000000;  /* losses count together with uses of so many ns at most */
static const uint64_t REFETCH_AGAIN_NS = 10000000000; /* losses within this time after a refetch are more of the same */

/* Shrinks the budget after many losses, because the host lacks the memory that the budget allows.  A few losses are
 * chance: a READ was on its way when the sample was stored.  What a warm-up has stored waits long for its use, so some
 * of it is lost even if the host has memory enough.  To drop an eighth of the rest would cost more. */
static void shrink_budget(struct prefetch *p)
{
	uint64_t now = base_now_ns();
	struct cache_ledger_stats st;
	if (now - p->losses.since_ns > LOST_NS) {
		p->losses.since_ns = now;
		p->losses.recently = 0;
	}
	cache_ledger_stats_get(p->ledger, &st);
	if (++p->losses.recently < LOST_MIN + st.resident / 64)
		return;
	if (p->warm_up.running && !p->store && !prefetch_warm_up_lost_part(p, WARM_UP_SHRINK))
		return;
	if (p->losses.shrunk_ns && now - p->losses.shrunk_ns < LOST_NS)
		return; /* these samples were lost before the budget shrank */
	p->losses.shrunk_ns = now;
	p->losses.recently = 0;
	uint64_t less = st.budget_bytes - st.budget_bytes / 8;
	uint64_t least = p->schedule.budget / 8 > PREFETCH_MEMORY_MIN ? p->schedule.budget / 8 : PREFETCH_MEMORY_MIN;
	cache_ledger_set_budget(p->ledger, less > least ? less : least);
}

/* Raises a shrunk budget by a sixteenth after some time without losses, because the host may have needed its memory
 * only for a moment. */
static void regrow_budget(struct prefetch *p)
{
	struct cache_ledger_stats st;
	if (!p->losses.shrunk_ns)
		return;
	uint64_t now = base_now_ns();
	if (now - p->losses.shrunk_ns < 4 * LOST_NS ||
	        (now - p->losses.since_ns < LOST_NS && p->losses.recently >= LOST_MIN))
		return;
	cache_ledger_stats_get(p->ledger, &st);
	uint64_t more = st.budget_bytes + p->schedule.budget / 16;
	p->losses.shrunk_ns = more >= p->schedule.budget ? 0 : now;
	cache_ledger_set_budget(p->ledger, more >= p->schedule.budget ? p->schedule.budget : more);
}

/* Announces again from the reader on, and fetches again what is not in memory. */
static void announce_again(struct prefetch *p, struct prefetch_stream *s)
{
	uint64_t from = prefetch_tracking_oldest(s);
	prefetch_schedule_unannounce(p, s, from);
	s->filled = s->waited = false;
	s->coming_end = 0;
	prefetch_schedule_moved(s);
	s->names_vain = s->names_stored ? 0 : s->names_vain + (s->names_vain < NAMES_VAIN_MAX);
	s->names_stored = s->names_uses = 0;
	s->names_ns = base_now_ns();
	s->names++;
	s->forgotten = false;
}

void prefetch_lost_suspects(struct prefetch *p, struct prefetch_stream *s)
{
	if (s->suspected < s->fetch)
		s->suspected = s->fetch;
	if (s->suspected >= s->suspect || s->suspected >= s->fetch + SUSPECTS_STEP)
		return;
	uint64_t left = s->suspect - s->suspected;
	bool all = left < SUSPECTS_STEP || (p->store && !s->options.warm_up);
	uint64_t end = s->suspected + (all ? left : SUSPECTS_STEP);
	for (; s->suspected < end; s->suspected++) {
		uint32_t sample;
		uint64_t cost;
		if (cache_timeline_used(&s->tl, s->suspected) ||
		        cache_ledger_turn(p->ledger, &s->tl, s->suspected, &sample, &cost) < 0 ||
		        !cache_ledger_resident(p->ledger, sample))
			continue;
		prefetch_tracking_wasted(p, prefetch_tracking_gone(p, s, s->suspected));
		cache_ledger_lose(p->ledger, sample);
	}
}

/* Returns the seq up to which turns are fetched again.  announced: no turn from it on was fetched.  A part of a
 * pool would be many requests of a few samples each, so a store is asked for the whole pool. */
static uint64_t refetch_end(struct prefetch *p, struct prefetch_stream *s, uint64_t announced)
{
	uint64_t end = cache_timeline_end(&s->tl);
	struct prefetch_pool pool;
	if (s->options.warm_up || end - s->fetch <= p->losses.refetch_turns)
		return end;
	uint64_t upto = s->fetch + p->losses.refetch_turns;
	if (upto >= announced || !prefetch_schedule_pool(p, s, upto - 1, &pool))
		return upto;
	return pool.end < announced ? pool.end : announced;
}

/* Fetches the next turns of a stream again.  They are taken as lost just before they are fetched, step by step unless
 * they lie in a store: no fetch waits for thousands of drops. */
static bool refetch_stream(struct prefetch *p, struct prefetch_stream *s)
{
	uint64_t end = cache_timeline_end(&s->tl);
	uint64_t announced = s->limit < end ? s->limit : end;
	if (!s->following)
		return false; /* nothing would be fetched */
	if (s->options.warm_up && !prefetch_warm_up_again(p))
		return false;
	announce_again(p, s); /* the kernel takes names together with pages */
	/* Else what the kernel took would fill the window, and nothing would be fetched until its turns have passed.  A
	 * hole or a refused store may have moved `fetch` back before, so some of it lies beyond the old `fetch`. */
	s->suspected = s->fetch;
	s->suspect = refetch_end(p, s, announced);
	for (uint64_t seq = s->fetch; seq < s->taken && seq < end; seq++) {
		uint64_t cost = prefetch_tracking_gone(p, s, seq);
		uint32_t sample;
		if (seq < s->suspect && cache_timeline_sample(&s->tl, seq, &sample) == 0 &&
		        cache_ledger_resident(p->ledger, sample))
			prefetch_tracking_wasted(p, cost);
	}
	return false;
}

/* Doubles a halved window after some time without a burst of losses. */
static void regrow_window(struct prefetch *p)
{
	struct prefetch_losses *l = &p->losses;
	uint64_t now = base_now_ns();
	if (!l->halved || now - l->refetch_ns < 2 * LOST_NS || now - l->halved_ns < 2 * LOST_NS)
		return;
	l->halved--;
	l->halved_ns = now;
}

/* Returns how many of the latest uses had lost their sample. */
static unsigned lost_of(const struct prefetch *p, unsigned uses)
{
	return (unsigned)__builtin_popcountll(p->losses.history & ((UINT64_C(1) << uses) - 1));
}

/* Notes whether a stream uses the sample lost last now, at a turn that is to be fetched again anyway. */
static bool suspect(struct prefetch *p, struct prefetch_stream *s)
{
	uint64_t seq = s->suspected < s->suspect ? cache_timeline_next(&s->tl, p->losses.latest) : CACHE_NEVER;
	p->losses.expected |=
	        seq != CACHE_NEVER && seq >= s->suspected && seq < s->suspect && prefetch_tracking_near(s, seq);
	return false;
}

/* Returns whether the sink is asked for what readers use next, after a loss. */
static bool looks(const struct prefetch *p)
{
	return p->store && p->sink->ops->look && p->reading.depth.least_ns >= PREFETCH_FAR_NS;
}

/* Returns whether fetching the next turns again costs less than waiting for those that are lost.  With a near store,
 * a quarter of the latest uses must have been lost.  With a store far away, a few in a hundred suffice.  A warm-up
 * would fetch all that it has.  So half must have been lost, unless it has them from a store.
 * If the sink is asked what it still has, its answers decide instead (answered).  Losses come before their uses, so six
 * of a thousand uses may seem to be six of eight. */
static bool worth_a_refetch(const struct prefetch *p)
{
	if (p->warm_up.running && !p->store)
		return prefetch_warm_up_lost_part(p, WARM_UP_AGAIN);
	if (looks(p) && !p->warm_up.running)
		return false;
	if (lost_of(p, 8) >= BURST_OF_8 || lost_of(p, 16) >= BURST_OF_16)
		return true;
	if (p->losses.uses < LOST_MIN)
		return false;
	if (p->losses.lost >= LOST_MIN && p->losses.lost * 4 >= p->losses.uses)
		return true;
	if (p->reading.depth.least_ns < PREFETCH_FAR_NS)
		return false;
	double bytes = p->schedule.n_cost ? (double)p->schedule.cost_bytes / (double)p->schedule.n_cost : 0;
	/* Bytes that can be read while one read is waited for.  While the rate is not known: those in flight. */
	double meanwhile = p->reading.depth.settled_rate > 0
	                           ? p->reading.depth.settled_rate * (double)p->reading.depth.least_ns
	                           : p->reading.depth.settled * bytes;
	return p->losses.lost >= LOST_MIN / 2 && p->losses.lost * meanwhile > p->losses.uses * 2 * bytes;
}

static bool refetched_lately(const struct prefetch *p, uint64_t now)
{
	return p->losses.refetch_ns && now - p->losses.refetch_ns < REFETCH_AGAIN_NS;
}

/* Returns whether the next turns may be fetched again.  It takes some uses until those of the last time are there.
 * looked: turns behind those were found gone; of these no reader tells, so it may be once more. */
static bool may_refetch(const struct prefetch *p, uint64_t now, bool looked)
{
	return !refetched_lately(p, now) || p->losses.refetch_uses >= REFETCH_USES ||
	       (looked && !p->losses.refetched_early);
}

/* Returns how many turns are fetched again when looking has shown that much is gone: more of small samples, because a
 * second time costs names and parts of chunks once more. */
static uint32_t looked_turns(const struct prefetch *p)
{
	uint64_t bytes = p->schedule.n_cost ? p->schedule.cost_bytes / p->schedule.n_cost : SHARD_BLOCK;
	uint64_t turns = REFETCH_LOOKED_BYTES / (bytes + 1);
	return turns < REFETCH_TURNS ? REFETCH_TURNS : turns < REFETCH_TURNS_MAX ? (uint32_t)turns : REFETCH_TURNS_MAX;
}

/* Decides that the next turns are fetched again, if they may be. */
static void refetch(struct prefetch *p, uint64_t now, bool looked)
{
	if (!may_refetch(p, now, looked))
		return;
	bool again = refetched_lately(p, now);
	bool early = again && p->losses.refetch_uses < REFETCH_USES;
	if (again && !early && p->losses.refetch_uses < p->losses.refetch_turns) {
		p->losses.halved += p->losses.halved < HALVED_MAX;
		p->losses.halved_ns = now;
	}
	p->losses.refetched_early = early;
	p->losses.refetch_turns = again ? REFETCH_TURNS_MAX : looked ? looked_turns(p) : REFETCH_TURNS;
	p->losses.refetch_uses = 0;
	p->losses.refetch_ns = now;
	p->losses.refetch = true;
	p->losses.uses = p->losses.lost = 0;
	p->losses.history = 0;
}

/* Counts a lost sample, and decides whether the next turns are fetched again.  The kernel takes back pages that were
 * not used for long (DAMON, reclaim of a cgroup).  Of a window that waited, it takes a part, which only READs reveal,
 * one by one.  So the next turns are taken as lost and fetched again.  If turns behind them are lost soon after that,
 * many more are.  Losses without uses (of names that are not watched) do not tell what share is lost. */
static void count_lost(struct prefetch *p, uint32_t sample)
{
	uint64_t now = base_now_ns();
	if (sample == p->losses.latest)
		return; /* another block of the same sample */
	p->losses.latest = sample;
	p->losses.expected = false;
	prefetch_each_stream(p, suspect);
	if (p->losses.expected)
		return; /* its reader is faster than the engine, which is on its way to it */
	if (!p->losses.lost || now - p->losses.first_ns > LOST_USES_NS) {
		p->losses.first_ns = now;
		p->losses.uses = p->losses.lost = 0;
	}
	p->losses.lost++;
	prefetch_warm_up_lost(p);
	p->losses.history |= p->losses.history + 1; /* its use may not be known yet */
	if (worth_a_refetch(p))
		refetch(p, now, false);
}

/* Fetches the next turns of all streams again, if that was decided. */
static void refetch_lost(struct prefetch *p)
{
	if (!p->losses.refetch)
		return;
	p->losses.refetch = false;
	prefetch_each_stream(p, refetch_stream);
	atomic_fetch_add_explicit(&p->counters.refetches, 1, memory_order_relaxed);
}

/* If a stream read the sample lost last ahead for a use to come, this was in vain. */
static bool waste_ahead(struct prefetch *p, struct prefetch_stream *s)
{
	uint64_t seq = cache_timeline_next(&s->tl, p->losses.latest);
	if (seq != CACHE_NEVER)
		prefetch_tracking_wasted(p, prefetch_tracking_gone(p, s, seq));
	return false;
}

/* Counts the sample lost last as wasted if it was read ahead and its reader did not find it.  The engine learns of a
 * use before or after the READ. */
static void count_wasted(struct prefetch *p)
{
	for (uint32_t i = 0; i < PREFETCH_USED_LATELY; i++) {
		struct prefetch_used *used = &p->losses.used[i];
		if (used->sample == p->losses.latest) {
			prefetch_tracking_wasted(p, used->ahead_bytes);
			used->ahead_bytes = 0;
		}
	}
	prefetch_each_stream(p, waste_ahead);
}

/* Returns how many times the sink is asked for a sample. */
static uint64_t looks_of(struct prefetch *p, const uint32_t *files, uint32_t n)
{
	uint64_t looks = 0;
	struct shard_place f;
	for (uint32_t i = 0; i < n; i++)
		looks += shard_index_place(p->options.index, files[i], &f) < 0
		                 ? 0
		                 : (f.length + PREFETCH_LOOK_BYTES - 1) / PREFETCH_LOOK_BYTES;
	return looks;
}

/* Adds all bytes of a file to what the sink is asked for: the kernel takes single pages, too.  Returns its bytes. */
static uint64_t look_at(struct prefetch *p, uint32_t file)
{
	struct prefetch_lister *l = &p->lister;
	struct shard_place f;
	if (shard_index_place(p->options.index, file, &f) < 0)
		return 0;
	for (uint64_t at = 0; at < f.length && l->n_looks < PREFETCH_LOOKS_MAX; at += PREFETCH_LOOK_BYTES) {
		uint64_t left = f.length - at;
		l->looks[l->n_looks++] = (struct prefetch_look){
			.file = file,
			.offset = at,
			.len = left < PREFETCH_LOOK_BYTES ? (uint32_t)left : PREFETCH_LOOK_BYTES,
		};
	}
	return f.length;
}

/* Judges the answers to what the sink was asked for last.  Returns false while they may still come. */
static bool answered(struct prefetch *p)
{
	uint64_t now = base_now_ns();
	{
		prefetch_lock_for_scope(p);
		if (p->lister.look != PREFETCH_IDLE)
			return false;
	}
	uint32_t asked = p->lister.n_looks;
	if (!asked)
		return true;
	if (atomic_load_explicit(&p->look_answers, memory_order_relaxed) < asked &&
	        now - p->losses.looked_ns < LOOK_ANSWER_NS)
		return false;
	atomic_store_explicit(&p->look_answers, 0, memory_order_relaxed);
	uint32_t gone = atomic_exchange_explicit(&p->look_gone, 0, memory_order_relaxed);
	p->lister.n_looks = 0;
	if (asked < LOOK_JUDGED) { /* these and the latest other few are judged together */
		asked = p->losses.looked += asked;
		gone = p->losses.gone += gone;
		if (asked < LOOK_JUDGED)
			return true;
		p->losses.looked = p->losses.gone = 0;
	}
	if (gone > asked / LOOK_GONE)
		refetch(p, now, true);
	return true;
}

/* Of what is asked for, so many that are gone are read one by one.  If there are more, all are fetched again by whole
 * chunks. */
static uint32_t most_regains(const struct prefetch *p, uint64_t now)
{
	bool judged = p->lister.n_looks >= LOOK_JUDGED && may_refetch(p, now, true);
	return judged ? p->lister.n_looks / LOOK_GONE : UINT32_MAX;
}

/* Adds what a stream's reader uses next, as much as the sink may be asked for at a time. */
static void look_ahead(struct prefetch *p, struct prefetch_stream *s)
{
	const struct shard_info *info = shard_index_info(p->options.index);
	uint64_t turns = p->schedule.landing / LOOK_PART / (info->content_bytes / info->n_samples + 1);
	uint64_t until = s->high + (turns < LOOK_TURNS ? turns : LOOK_TURNS);
	until = until < s->fetch ? until : s->fetch;
	if (s->looked < s->high)
		s->looked = s->high;
	for (uint64_t bytes = 0; s->looked < until && bytes < LOOK_BYTES; s->looked++) {
		uint32_t sample, files[SHARD_SAMPLE_FILES_MAX], n = 0;
		if (cache_timeline_used(&s->tl, s->looked) || cache_timeline_sample(&s->tl, s->looked, &sample) < 0 ||
		        !cache_ledger_resident(p->ledger, sample) ||
		        shard_index_sample_files(p->options.index, sample, files, SHARD_SAMPLE_FILES_MAX, &n) < 0)
			continue;
		if (p->lister.n_looks > 0 && p->lister.n_looks + looks_of(p, files, n) > PREFETCH_LOOKS_MAX)
			return;
		for (uint32_t i = 0; i < n; i++)
			bytes += look_at(p, files[i]);
	}
}

void prefetch_lost_look(struct prefetch *p, struct prefetch_stream *s)
{
	uint64_t lost_ns = atomic_load_explicit(&p->lost_ns, memory_order_relaxed);
	if (!looks(p) || !s->following || !lost_ns || base_now_ns() - lost_ns > LOOK_NS || !answered(p) ||
	        p->losses.refetch)
		return;
	look_ahead(p, s);
	if (!p->lister.n_looks)
		return;
	p->losses.looked_ns = base_now_ns();
	atomic_store_explicit(&p->look_regains, most_regains(p, p->losses.looked_ns), memory_order_relaxed);
	prefetch_lock_for_scope(p);
	p->lister.look = PREFETCH_ASKED;
	pthread_cond_signal(&p->lister.cv);
}

void prefetch_lost_brought(struct prefetch *p, uint32_t sample, uint64_t key)
{
	p->losses.brought[p->losses.n_brought++ % PREFETCH_USED_LATELY] =
	        (struct prefetch_brought){ .sample = sample, .key = key };
}

bool prefetch_lost_comes(const struct prefetch *p, uint32_t sample, uint64_t key)
{
	uint64_t n = p->losses.n_brought < PREFETCH_USED_LATELY ? p->losses.n_brought : PREFETCH_USED_LATELY;
	for (uint64_t i = 1; i <= n; i++) { /* the latest first */
		const struct prefetch_brought *b = &p->losses.brought[(p->losses.n_brought - i) % PREFETCH_USED_LATELY];
		if (b->sample == sample)
			return b->key != key;
	}
	return false;
}

void prefetch_lost_sample(struct prefetch *p, uint32_t sample)
{
	atomic_store_explicit(&p->lost_ns, base_now_ns(), memory_order_relaxed);
	shrink_budget(p);
	count_lost(p, sample);
	count_wasted(p);
}

/* If the sink has never had the names of a stream, a refused store does not count as a loss. */
void prefetch_lost_refused(struct prefetch *p, const struct prefetch_item *item)
{
	struct prefetch_stream *s = item->stream;
	uint64_t seq = item->seq;
	if (s->names_stored || (item->names != s->names && !s->names_vain)) {
		atomic_fetch_add_explicit(&p->counters.forgotten, 1, memory_order_relaxed);
		shrink_budget(p);
	}
	if (seq < s->tl.cursor || seq >= s->fetch || cache_timeline_used(&s->tl, seq))
		return; /* its reader was faster, or the stream has moved */
	prefetch_tracking_gone(p, s, seq);
	if (seq < prefetch_tracking_oldest(s))
		return;
	s->fetch = seq;
	s->coming_end = 0;
	s->forgotten |= item->names == s->names; /* if they differ, names were announced again meanwhile */
}

/* Announces lost names again.  If nothing could be stored since the last time, it waits for more uses or some time,
 * because each try costs reads. */
static bool remember_names(struct prefetch *p, struct prefetch_stream *s)
{
	if (s->forgotten &&
	        (s->names_stored || !s->names_vain || s->names_uses >= (uint32_t)NAMES_USES << s->names_vain ||
	                base_now_ns() - s->names_ns >= NAMES_NS << s->names_vain))
		announce_again(p, s);
	return false;
}

void prefetch_lost_settle(struct prefetch *p)
{
	refetch_lost(p);
	prefetch_each_stream(p, remember_names);
	regrow_budget(p);
	regrow_window(p);
}
