/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel took back: memory pressure and drop_caches take pages, and names and inodes with them.
 *
 *   a READ of what counts as resident: its pages are gone.  When many of the latest uses were lost, the next turns are dropped and
 *   fetched again, instead of being asked for one by one.
 *   a store that the sink refuses with -ENOENT: its name is gone.  Then all names from the reader on are announced again before
 *   anything more is fetched.
 *
 * Both shrink the budget when they are many. */
#include "prefetch/engine.h"

#include "cache/bitmap.h"

enum {
	LOST_MIN = 16,        /* samples lost that are no chance: within LOST_NS, or of the latest uses */
	REFETCH_TURNS = 1024, /* read again */
	REFETCH_TURNS_MAX = 16384,
	NAMES_USES =
	        16, /* uses between two times that names are announced again and nothing was stored; twice as many each time */
	NAMES_VAIN_MAX = 6,
};
static const uint64_t LOST_NS = 1000000000;
static const uint64_t LOST_USES_NS = 10000000000; /* losses and uses are of the same while */
static const uint64_t FAR_NS = 1000000;           /* a read from a store with a network, or a hook's delay, before it */
static const uint64_t REFETCH_AGAIN_NS = 10000000000; /* since the last one: more of the same losses */

/* The kernel took pages back that we count as resident: the memory that we were told of is not there.  A few are chance
 * (a READ that was on its way when the sample was stored). */
static void shrink_budget(struct prefetch *p)
{
	uint64_t now = prefetch_now_ns();
	struct cache_ledger_stats st;
	if (now - p->lost_since_ns > LOST_NS) {
		p->lost_since_ns = now;
		p->lost_recently = 0;
	}
	cache_ledger_stats_get(p->ledger, &st);
	if (++p->lost_recently < LOST_MIN + st.resident / 64)
		return;
	if (p->shrunk_ns && now - p->shrunk_ns < LOST_NS)
		return; /* what is lost now was lost before the budget shrank */
	p->shrunk_ns = now;
	p->lost_recently = 0;
	uint64_t less = st.budget_bytes - st.budget_bytes / 8;
	uint64_t least = p->budget / 8 > PREFETCH_MEMORY_MIN ? p->budget / 8 : PREFETCH_MEMORY_MIN;
	cache_ledger_set_budget(p->ledger, less > least ? less : least);
}

/* The host may have needed its memory for a moment only: a step back for every while without losses. */
static void regrow_budget(struct prefetch *p)
{
	struct cache_ledger_stats st;
	if (!p->shrunk_ns)
		return;
	uint64_t now = prefetch_now_ns();
	if (now - p->shrunk_ns < 4 * LOST_NS || (now - p->lost_since_ns < LOST_NS && p->lost_recently >= LOST_MIN))
		return;
	cache_ledger_stats_get(p->ledger, &st);
	uint64_t more = st.budget_bytes + p->budget / 16;
	p->shrunk_ns = more >= p->budget ? 0 : now;
	cache_ledger_set_budget(p->ledger, more >= p->budget ? p->budget : more);
}

/* Announcements begin anew at the reader, and so does fetching, which passes over what is there. */
static void announce_again(struct prefetch *p, struct prefetch_stream *s)
{
	uint64_t from = prefetch_follow_oldest(s);
	pthread_mutex_lock(&p->lock);
	s->announce_void = s->announce_busy;
	s->announce_asked = false;
	s->announce_done = from;
	pthread_mutex_unlock(&p->lock);
	s->fetch = s->announced = s->limit = from;
	s->coming_end = 0;
	s->batch = PREFETCH_ANNOUNCE_FIRST;
	s->names_vain = s->names_stored ? 0 : s->names_vain + (s->names_vain < NAMES_VAIN_MAX);
	s->names_stored = s->names_uses = 0;
	s->names++;
	s->forgotten = false;
}

static bool refetch_stream(struct prefetch *p, struct prefetch_stream *s)
{
	uint64_t end = cache_timeline_end(&s->tl);
	if (!s->following)
		return false; /* it would not fetch them */
	uint32_t n = 0;
	for (uint64_t seq = prefetch_follow_oldest(s); seq < end && n < p->refetch_turns; seq++) {
		uint32_t sample;
		if (cache_timeline_used(&s->tl, seq))
			continue;
		n++;
		if (cache_timeline_sample(&s->tl, seq, &sample) < 0 || !cache_ledger_resident(p->ledger, sample))
			continue;
		prefetch_follow_gone(p, s, seq);
		cache_ledger_lose(p->ledger, sample);
	}
	announce_again(p, s); /* names go together with pages */
	return false;
}

/* Would reading a turn again cost less than waiting for those of the latest turns that were lost?  A store far away makes a few
 * in a hundred dear; from a near one a quarter must be gone. */
static bool worth_a_refetch(const struct prefetch *p)
{
	if (p->uses < LOST_MIN)
		return false;
	if (p->lost >= LOST_MIN && p->lost * 4 >= p->uses)
		return true;
	if (p->depth.least_ns < FAR_NS)
		return false;
	double bytes = p->n_cost ? (double)p->cost_bytes / (double)p->n_cost : 0;
	/* What could be read while one is waited for; where the rate is not known yet, as many as are in flight. */
	double meanwhile = p->depth.settled_rate > 0 ? p->depth.settled_rate * (double)p->depth.least_ns
	                                             : p->depth.settled * bytes;
	return p->lost >= LOST_MIN / 2 && p->lost * meanwhile > p->uses * 2 * bytes;
}

/* The kernel takes back what was not touched for long (DAMON, a cgroup's reclaim): of a window that waited, a part that only
 * readers find out, one READ after the other.  Then the next turns are taken as lost and fetched again; when that was not
 * all of it, four times as many.  Losses without uses (of names that are not watched) say nothing of the
 * share. */
static void count_lost(struct prefetch *p, uint32_t sample)
{
	uint64_t now = prefetch_now_ns();
	if (sample == p->lost_latest)
		return; /* another block of it */
	p->lost_latest = sample;
	if (!p->lost || now - p->lost_first_ns > LOST_USES_NS) {
		p->lost_first_ns = now;
		p->uses = p->lost = 0;
	}
	p->lost++;
	if (!worth_a_refetch(p))
		return;
	bool again = p->refetch_ns && now - p->refetch_ns < REFETCH_AGAIN_NS;
	if (again && p->refetch_uses < p->refetch_turns / 8)
		return; /* what was fetched again is lost again: the memory is not there */
	if (!again)
		p->refetch_turns = REFETCH_TURNS;
	else if (p->refetch_turns < REFETCH_TURNS_MAX)
		p->refetch_turns *= 4;
	p->refetch_uses = 0;
	p->refetch_ns = now;
	p->refetch = true;
	p->uses = p->lost = 0;
}

static void refetch_lost(struct prefetch *p)
{
	if (!p->refetch)
		return;
	p->refetch = false;
	prefetch_each_stream(p, refetch_stream);
	atomic_fetch_add_explicit(&p->counters.refetches, 1, memory_order_relaxed);
}

void prefetch_lost_sample(struct prefetch *p, uint32_t sample)
{
	shrink_budget(p);
	count_lost(p, sample);
}

/* A sink that has never had the names of a stream says nothing of memory. */
void prefetch_lost_refused(struct prefetch *p, const struct prefetch_item *item)
{
	struct prefetch_stream *s = item->stream;
	uint64_t seq = item->seq;
	if (s->names_stored || (item->names != s->names && !s->names_vain)) {
		atomic_fetch_add_explicit(&p->counters.forgotten, 1, memory_order_relaxed);
		shrink_budget(p);
	}
	if (seq < s->tl.cursor || seq >= s->fetch || cache_timeline_used(&s->tl, seq))
		return; /* its reader was sooner, or the stream has gone elsewhere */
	prefetch_follow_gone(p, s, seq);
	if (seq < prefetch_follow_oldest(s))
		return;
	s->fetch = seq;
	s->coming_end = 0;
	s->forgotten |= item->names == s->names; /* else they were announced again meanwhile */
}

/* Where nothing could be stored since the last time, the sink cannot have the names now: each try costs reads in vain. */
static bool remember_names(struct prefetch *p, struct prefetch_stream *s)
{
	if (s->forgotten &&
	        (s->names_stored || !s->names_vain || s->names_uses >= (uint32_t)NAMES_USES << s->names_vain))
		announce_again(p, s);
	return false;
}

void prefetch_lost_settle(struct prefetch *p)
{
	refetch_lost(p);
	prefetch_each_stream(p, remember_names);
	regrow_budget(p);
}
