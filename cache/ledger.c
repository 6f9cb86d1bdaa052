/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger: states of samples, the queue of drops, and the choice of what is dropped; cache/ledger.h first. */
#include "cache/ledger.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "cache/arena.h"
#include "shard/base/bits.h"
#include "shard/base/cleanup.h"

struct entry {
	struct cache_victim what;
	uint64_t cost; /* bytes; of samples in `idle` it may be 0: then it is worked out when they are dropped */
};

/* MARK_STATE: mask of an enum cache_state; MARK_LISTED: the sample is in `idle`. */
enum { MARK_STATE = 7, MARK_LISTED = 8 };
_Static_assert((unsigned)CACHE_HANDED <= MARK_STATE, "a state fits");

enum { TURNS_AT_ONCE = 64 }; /* of which the samples are worked out together */

/* A first-in-first-out queue that grows. */
struct ring {
	struct entry *entries;
	size_t head, n, room;
};

struct cache_ledger {
	const struct shard_index *index;
	uint32_t overhead;
	uint64_t largest; /* bytes; a sample that costs more is booked by the block */
	uint32_t n_samples;
	uint8_t *marks;       /* four bits a sample: MARK_STATE, MARK_LISTED */
	uint64_t *resident;   /* bit per sample: those whose state is CACHE_RESIDENT */
	bool resident_shared; /* the caller owns `resident` */
	uint32_t n_timelines;
	struct cache_timeline *timelines[CACHE_STREAMS_MAX];
	/* Samples without a known use, and blocks of files that are booked by the block, oldest first.
	 * A sample may have got a known use, or have been dropped, since it was listed. */
	struct ring idle;
	struct ring drops;     /* the queue of drops */
	uint64_t drops_bytes;  /* bytes in the queue */
	uint64_t handed_bytes; /* bytes taken from the queue and not dropped by the sink yet */
	size_t flush;          /* so many of the queue's first entries do not wait for the lag */
	uint64_t lag;
	/* Read by any thread: */
	_Atomic uint64_t budget_bytes, resident_bytes, coming_bytes, n_resident, n_evicted, n_evicted_blocks, n_dropped,
	        n_lost;
};

static uint64_t load(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

static void add(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_store_explicit(counter, load(counter) + n, memory_order_relaxed); /* one writer */
}

/* Returns the four bits of a sample. */
static unsigned marks_of(const struct cache_ledger *ledger, uint32_t sample)
{
	return __atomic_load_n(&ledger->marks[sample / 2], __ATOMIC_RELAXED) >> sample % 2 * 4 & 15;
}

static void set_marks(struct cache_ledger *ledger, uint32_t sample, unsigned marks)
{
	uint8_t *byte = &ledger->marks[sample / 2];
	unsigned shift = sample % 2 * 4;
	__atomic_store_n(byte, (uint8_t)((*byte & ~(15U << shift)) | marks << shift), __ATOMIC_RELAXED);
}

static bool is_listed(const struct cache_ledger *ledger, uint32_t sample)
{
	return marks_of(ledger, sample) & MARK_LISTED;
}

static void set_listed(struct cache_ledger *ledger, uint32_t sample, bool listed)
{
	set_marks(ledger, sample, (marks_of(ledger, sample) & MARK_STATE) | (listed ? MARK_LISTED : 0));
}

enum cache_state cache_ledger_state(const struct cache_ledger *ledger, uint32_t sample)
{
	if (sample >= ledger->n_samples)
		return CACHE_ABSENT;
	return marks_of(ledger, sample) & MARK_STATE;
}

static void book_resident(struct cache_ledger *ledger, uint64_t n, uint64_t bytes)
{
	add(&ledger->n_resident, n);
	add(&ledger->resident_bytes, bytes);
}

/* Changes the state of a sample; nothing else does.  cost: its bytes, which are booked while it is coming or
 * resident. */
static void move(struct cache_ledger *ledger, uint32_t sample, enum cache_state to, uint64_t cost)
{
	static const uint8_t from[] = {
		[CACHE_ABSENT] = 1 << CACHE_COMING | 1 << CACHE_RESIDENT | 1 << CACHE_HANDED,
		[CACHE_COMING] = 1 << CACHE_ABSENT,
		[CACHE_RESIDENT] = 1 << CACHE_ABSENT | 1 << CACHE_COMING | 1 << CACHE_LEAVING |
		                   1 << CACHE_LEAVING_FOR_GOOD | 1 << CACHE_HANDED,
		[CACHE_LEAVING] = 1 << CACHE_RESIDENT,
		[CACHE_LEAVING_FOR_GOOD] = 1 << CACHE_LEAVING,
		[CACHE_HANDED] = 1 << CACHE_LEAVING | 1 << CACHE_LEAVING_FOR_GOOD,
	};
	unsigned marks = marks_of(ledger, sample);
	enum cache_state state = marks & MARK_STATE;
	assert(from[to] >> state & 1);
	set_marks(ledger, sample, (marks & MARK_LISTED) | to);
	if (state == CACHE_COMING)
		add(&ledger->coming_bytes, -cost);
	if (to == CACHE_COMING)
		add(&ledger->coming_bytes, cost);
	if (state == CACHE_RESIDENT) {
		bit_clear(ledger->resident, sample);
		book_resident(ledger, (uint64_t)-1, -cost);
	}
	if (to == CACHE_RESIDENT) {
		bit_set(ledger->resident, sample);
		book_resident(ledger, 1, cost);
	}
}

int cache_ledger_new(const struct shard_index *index, uint64_t budget_bytes, uint64_t lag_bytes,
        uint32_t overhead_bytes, struct cache_ledger **ret_ledger)
{
	struct cache_ledger *ledger = calloc(1, sizeof(*ledger));
	if (!ledger)
		return -ENOMEM;
	ledger->index = index;
	ledger->overhead = overhead_bytes;
	ledger->lag = lag_bytes;
	ledger->largest = budget_bytes / 4; /* constant, because a cost must not change while it is booked */
	ledger->n_samples = shard_index_info(index)->n_samples;
	ledger->resident = bits_new(ledger->n_samples);
	ledger->marks = calloc((size_t)ledger->n_samples / 2 + 1, 1);
	if (!ledger->resident || !ledger->marks) {
		cache_ledger_free(ledger);
		return -ENOMEM;
	}
	ledger->budget_bytes = budget_bytes;
	*ret_ledger = ledger;
	return 0;
}

void cache_ledger_free(struct cache_ledger *ledger)
{
	if (!ledger)
		return;
	assert(!ledger->n_timelines);
	if (!ledger->resident_shared)
		free(ledger->resident);
	free(ledger->marks);
	free(ledger->idle.entries);
	free(ledger->drops.entries);
	free(ledger);
}

void cache_ledger_share(struct cache_ledger *ledger, uint64_t *resident)
{
	free(ledger->resident);
	ledger->resident = resident;
	ledger->resident_shared = true;
	for (uint64_t word = 0; word <= ledger->n_samples / 64; word++) {
		for (uint64_t bits = resident[word]; bits; bits &= bits - 1) {
			uint64_t cost, sample = word * 64 + (uint64_t)__builtin_ctzll(bits);
			if (sample >= ledger->n_samples || cache_ledger_cost(ledger, (uint32_t)sample, &cost) < 0)
				bit_clear(resident, sample);
			else
				move(ledger, (uint32_t)sample, CACHE_RESIDENT, cost);
		}
	}
}

void cache_ledger_set_budget(struct cache_ledger *ledger, uint64_t budget_bytes)
{
	atomic_store_explicit(&ledger->budget_bytes, budget_bytes, memory_order_relaxed);
}

int cache_ledger_cost(struct cache_ledger *ledger, uint32_t sample, uint64_t *ret_bytes)
{
	uint32_t files[SHARD_SAMPLE_FILES_MAX], n = 0;
	int rc = shard_index_sample_files(ledger->index, sample, files, SHARD_SAMPLE_FILES_MAX, &n);
	uint64_t bytes = 0;
	for (uint32_t i = 0; rc == 0 && i < n; i++) {
		struct shard_place file;
		rc = shard_index_place(ledger->index, files[i], &file);
		if (rc == 0)
			bytes += ((file.length + CACHE_PAGE - 1) & ~(uint64_t)(CACHE_PAGE - 1)) + ledger->overhead;
	}
	if (rc == 0 && bytes > ledger->largest)
		rc = -EFBIG;
	if (rc == 0)
		*ret_bytes = bytes;
	return rc;
}

int cache_ledger_turn(
        struct cache_ledger *ledger, struct cache_timeline *tl, uint64_t seq, uint32_t *ret_sample, uint64_t *ret_bytes)
{
	uint32_t sample;
	int rc = cache_timeline_sample(tl, seq, &sample);
	struct cache_note *note = rc == 0 ? cache_timeline_note(tl, seq) : NULL;
	uint64_t bytes = note ? note->cost : 0;
	if (rc == 0 && !bytes)
		rc = cache_ledger_cost(ledger, sample, &bytes);
	if (rc < 0)
		return rc;
	if (note)
		note->cost = bytes;
	*ret_sample = sample;
	*ret_bytes = bytes;
	return 0;
}

/* Gives the cost of a sample whose cost was worked out before: then its part of the index is verified and has no
 * error.  Returns false if somebody has written into the index since: then no cost is known, and nothing may be
 * dropped, because the budget would not fall and everything would go. */
static bool cost_of(struct cache_ledger *ledger, uint32_t sample, uint64_t *ret_bytes)
{
	return cache_ledger_cost(ledger, sample, ret_bytes) == 0;
}

static bool ring_push(struct ring *ring, struct entry entry)
{
	if (ring->n == ring->room) {
		size_t room = ring->room ? ring->room * 2 : 1024;
		struct entry *bigger = calloc(room, sizeof(*bigger));
		if (!bigger)
			return false;
		for (size_t i = 0; i < ring->n; i++)
			bigger[i] = ring->entries[(ring->head + i) % ring->room];
		free(ring->entries);
		ring->entries = bigger;
		ring->head = 0;
		ring->room = room;
	}
	ring->entries[(ring->head + ring->n++) % ring->room] = entry;
	return true;
}

static bool ring_pop(struct ring *ring, struct entry *ret_entry)
{
	if (!ring->n)
		return false;
	*ret_entry = ring->entries[ring->head];
	ring->head = (ring->head + 1) % ring->room;
	ring->n--;
	return true;
}

static bool is_sample(const struct entry *entry)
{
	return entry->what.block == CACHE_WHOLE;
}

/* Returns false when there is no memory; then the pages stay until the kernel reclaims them. */
static bool drops_push(struct cache_ledger *ledger, struct entry entry)
{
	if (!ring_push(&ledger->drops, entry))
		return false;
	ledger->drops_bytes += entry.cost;
	return true;
}

/* The drop of this sample, which waits in the queue, must not be taken back. */
static void leave_for_good(struct cache_ledger *ledger, uint32_t sample)
{
	if (cache_ledger_state(ledger, sample) == CACHE_LEAVING)
		move(ledger, sample, CACHE_LEAVING_FOR_GOOD, 0);
}

size_t cache_ledger_drops(struct cache_ledger *ledger, struct cache_victim *victims, size_t max)
{
	struct entry entry;
	size_t n = 0;
	assert(!ledger->handed_bytes);
	while (n < max && (ledger->flush || ledger->drops_bytes > ledger->lag) && ring_pop(&ledger->drops, &entry)) {
		ledger->drops_bytes -= entry.cost;
		ledger->flush -= ledger->flush > 0;
		if (is_sample(&entry)) {
			enum cache_state state = cache_ledger_state(ledger, entry.what.id);
			if (state != CACHE_LEAVING && state != CACHE_LEAVING_FOR_GOOD)
				continue; /* its drop was taken back, or is another entry */
			move(ledger, entry.what.id, CACHE_HANDED, 0);
		}
		victims[n++] = entry.what;
		ledger->handed_bytes += entry.cost;
	}
	return n;
}

void cache_ledger_dropped(struct cache_ledger *ledger, const struct cache_victim *victims, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (victims[i].block == CACHE_WHOLE && cache_ledger_state(ledger, victims[i].id) == CACHE_HANDED)
			move(ledger, victims[i].id, CACHE_ABSENT, 0);
	}
	ledger->handed_bytes = 0;
}

uint64_t cache_ledger_held(const struct cache_ledger *ledger)
{
	return load(&ledger->resident_bytes) + load(&ledger->coming_bytes) + ledger->drops_bytes + ledger->handed_bytes;
}

bool cache_ledger_dropping(const struct cache_ledger *ledger)
{
	return ledger->handed_bytes > 0;
}

/* A turn at which a stream uses a sample. */
struct use {
	struct cache_timeline *tl; /* NULL: no use is known */
	uint64_t seq;
};
static const struct use UNKNOWN = { .tl = NULL };

/* Sets the kept bit of a resident sample at its next use in every stream.  known: one of its uses, or UNKNOWN.
 * Returns false when no stream has a use. */
static bool keep(struct cache_ledger *ledger, uint32_t sample, struct use known)
{
	struct cache_found found;
	bool wanted = false;
	found.n = 0;
	for (uint32_t i = 0; i < ledger->n_timelines; i++) {
		struct cache_timeline *tl = ledger->timelines[i];
		uint64_t next = cache_timeline_next_shared(
		        tl, sample, tl == known.tl ? known.seq : CACHE_NEVER, ledger->n_timelines > 1 ? &found : NULL);
		if (next == CACHE_NEVER)
			continue;
		cache_timeline_set_kept(tl, next);
		wanted = true;
	}
	return wanted;
}

/* Notes in every stream that a sample is not kept for its next use.  next: that use in one stream, or UNKNOWN.
 * hole: the sample was dropped, and may be fetched again for it. */
static void unkeep(struct cache_ledger *ledger, uint32_t sample, struct use next, bool hole)
{
	struct cache_found found;
	found.n = 0;
	for (uint32_t i = 0; i < ledger->n_timelines; i++) {
		struct cache_timeline *tl = ledger->timelines[i];
		uint64_t seq = tl == next.tl ? next.seq : cache_timeline_next_shared(tl, sample, CACHE_NEVER, &found);
		if (seq == CACHE_NEVER)
			continue;
		cache_timeline_clear_kept(tl, seq);
		if (hole && seq < tl->hole)
			tl->hole = seq;
	}
}

/* Drops a resident sample that no stream uses. */
static void drop_unused(struct cache_ledger *ledger, uint32_t sample, uint64_t cost)
{
	bool queued =
	        drops_push(ledger, (struct entry){ .what = { .id = sample, .block = CACHE_WHOLE }, .cost = cost });
	move(ledger, sample, queued ? CACHE_LEAVING : CACHE_ABSENT, cost);
	add(&ledger->n_dropped, 1);
}

/* Drops a resident sample.  next: its next use in one stream, or UNKNOWN. */
static void drop(struct cache_ledger *ledger, uint32_t sample, uint64_t cost, struct use next)
{
	unkeep(ledger, sample, next, true);
	drop_unused(ledger, sample, cost);
}

/* Keeps a resident sample for its next uses or, when no stream has one, while there is room.  known: one of its uses,
 * or UNKNOWN. */
static void keep_or_idle(struct cache_ledger *ledger, uint32_t sample, uint64_t cost, struct use known)
{
	if (keep(ledger, sample, known) || is_listed(ledger, sample))
		return;
	if (ring_push(&ledger->idle, (struct entry){ .what = { .id = sample, .block = CACHE_WHOLE }, .cost = cost }))
		set_listed(ledger, sample, true);
	else if (cost || cost_of(ledger, sample, &cost))
		drop_unused(ledger, sample, cost);
}

/* Drops the oldest entry of `idle` to make room.  Returns false when there is none, or its cost is not known. */
static bool drop_idle(struct cache_ledger *ledger)
{
	while (ledger->idle.n) {
		struct entry entry = ledger->idle.entries[ledger->idle.head];
		if (is_sample(&entry) && !entry.cost && cache_ledger_resident(ledger, entry.what.id) &&
		        !cost_of(ledger, entry.what.id, &entry.cost))
			return false;
		ring_pop(&ledger->idle, &(struct entry){ 0 });
		if (!is_sample(&entry)) {
			add(&ledger->resident_bytes, -entry.cost);
			drops_push(ledger, entry);
			add(&ledger->n_evicted_blocks, 1);
			return true;
		}
		uint32_t sample = entry.what.id;
		set_listed(ledger, sample, false);
		/* An epoch that the timeline has reached since may use it. */
		if (!cache_ledger_resident(ledger, sample) || keep(ledger, sample, UNKNOWN))
			continue;
		drop_unused(ledger, sample, entry.cost);
		add(&ledger->n_evicted, 1);
		return true;
	}
	return false;
}

/* Finds the resident sample whose next use is farthest from its stream's reader, in turns (cache_timeline_distance).
 * The ledger assumes that all streams that are not away read at the same pace.  Returns that distance, or CACHE_NEVER
 * when nothing is kept. */
static uint64_t farthest(struct cache_ledger *ledger, uint32_t *ret_sample, struct use *ret_next)
{
	for (;;) {
		uint64_t best = CACHE_NEVER, seq = 0;
		struct cache_timeline *from = NULL;
		for (uint32_t i = 0; i < ledger->n_timelines; i++) {
			struct cache_timeline *tl = ledger->timelines[i];
			uint64_t last = cache_timeline_last_kept(tl);
			if (last == CACHE_NEVER)
				continue;
			uint64_t distance = cache_timeline_distance(tl, last);
			if (!from || distance > best) {
				best = distance;
				seq = last;
				from = tl;
			}
		}
		uint32_t sample;
		if (!from)
			return CACHE_NEVER;
		if (cache_timeline_sample(from, seq, &sample) < 0 || !cache_ledger_resident(ledger, sample)) {
			cache_timeline_clear_kept(from, seq); /* stale: tail=pad shows a sample twice */
			continue;
		}
		/* If another stream uses the sample sooner, it is kept for that use. */
		struct cache_found found;
		bool nearer = false;
		found.n = 0;
		for (uint32_t i = 0; i < ledger->n_timelines; i++) {
			struct cache_timeline *tl = ledger->timelines[i];
			uint64_t next =
			        tl == from ? CACHE_NEVER : cache_timeline_next_shared(tl, sample, CACHE_NEVER, &found);
			if (next == CACHE_NEVER || cache_timeline_distance(tl, next) >= best)
				continue;
			cache_timeline_set_kept(tl, next);
			nearer = true;
		}
		if (nearer) {
			cache_timeline_clear_kept(from, seq);
			continue;
		}
		*ret_sample = sample;
		*ret_next = (struct use){ .tl = from, .seq = seq };
		return best;
	}
}

static bool fits(const struct cache_ledger *ledger, uint64_t room)
{
	return load(&ledger->resident_bytes) + load(&ledger->coming_bytes) + room <= load(&ledger->budget_bytes);
}

/* Drops what has no known use, then samples used later than `distance` turns from now, until `room` bytes fit.
 * Returns false when they do not fit. */
static bool make_room(struct cache_ledger *ledger, uint64_t room, uint64_t distance)
{
	while (!fits(ledger, room)) {
		if (!drop_idle(ledger)) {
			struct use next;
			uint32_t sample;
			uint64_t cost, far = farthest(ledger, &sample, &next);
			if (far == CACHE_NEVER || far <= distance || !cost_of(ledger, sample, &cost))
				return false;
			drop(ledger, sample, cost, next);
			add(&ledger->n_evicted, 1);
		}
	}
	return true;
}

void cache_ledger_trim(struct cache_ledger *ledger)
{
	struct use next;
	uint32_t sample;
	uint64_t cost;
	while (!fits(ledger, 0)) {
		if (!drop_idle(ledger)) {
			if (farthest(ledger, &sample, &next) == CACHE_NEVER || !cost_of(ledger, sample, &cost))
				return;
			drop(ledger, sample, cost, next);
			add(&ledger->n_evicted, 1);
		}
	}
}

bool cache_ledger_resident(const struct cache_ledger *ledger, uint32_t sample)
{
	return cache_ledger_state(ledger, sample) == CACHE_RESIDENT;
}

bool cache_ledger_has(const struct cache_ledger *ledger, uint32_t sample)
{
	enum cache_state state = cache_ledger_state(ledger, sample);
	return state == CACHE_RESIDENT || state == CACHE_COMING;
}

static void set_ahead(struct cache_timeline *tl, uint64_t seq)
{
	uint64_t turn;
	struct cache_timeline_epoch *ep = cache_timeline_epoch_of(tl, seq, &turn);
	bit_set(ep->ahead, turn);
}

int cache_ledger_fetch(
        struct cache_ledger *ledger, struct cache_timeline *tl, uint64_t seq, uint32_t sample, uint64_t bytes)
{
	if (sample >= ledger->n_samples)
		return -EINVAL;
	if (cache_ledger_has(ledger, sample))
		return -EEXIST;
	if (!make_room(ledger, bytes, cache_timeline_distance(tl, seq)))
		return -ENOSPC;
	enum cache_state state = cache_ledger_state(ledger, sample);
	if (cache_ledger_held(ledger) > load(&ledger->budget_bytes) + 2 * ledger->lag ||
	        state == CACHE_LEAVING_FOR_GOOD || state == CACHE_HANDED)
		return -EAGAIN;
	if (state == CACHE_LEAVING) {
		move(ledger, sample, CACHE_RESIDENT, bytes); /* the drop is taken back */
		keep_or_idle(ledger, sample, bytes, (struct use){ .tl = tl, .seq = seq });
		return -EEXIST;
	}
	move(ledger, sample, CACHE_COMING, bytes);
	set_ahead(tl, seq);
	return 0;
}

int cache_ledger_reserve(struct cache_ledger *ledger, struct cache_timeline *tl, uint64_t seq, uint64_t bytes)
{
	if (!make_room(ledger, bytes, cache_timeline_distance(tl, seq)))
		return -ENOSPC;
	return cache_ledger_held(ledger) + bytes > load(&ledger->budget_bytes) + 2 * ledger->lag ? -EAGAIN : 0;
}

void cache_ledger_arrived(
        struct cache_ledger *ledger, struct cache_timeline *tl, uint64_t seq, uint32_t sample, uint64_t bytes, bool ok)
{
	if (cache_ledger_state(ledger, sample) != CACHE_COMING)
		return;
	move(ledger, sample, ok ? CACHE_RESIDENT : CACHE_ABSENT, bytes);
	if (!ok) {
		unkeep(ledger, sample, UNKNOWN, false);
		return;
	}
	keep_or_idle(ledger, sample, bytes, (struct use){ .tl = tl, .seq = seq });
}

/* A sample that was kept for the use at seq is kept for its next one. */
void cache_ledger_use(struct cache_ledger *ledger, struct cache_timeline *tl, uint64_t seq, bool had)
{
	uint64_t turn;
	uint32_t sample;
	struct cache_timeline_epoch *ep = cache_timeline_epoch_of(tl, seq, &turn);
	if (bit_get(ep->used, turn))
		return;
	bit_set(ep->used, turn);
	bit_clear(ep->ahead, turn);
	bit_clear(ep->kept, turn);
	if (cache_timeline_sample(tl, seq, &sample) < 0 || sample >= ledger->n_samples)
		return;
	enum cache_state state = cache_ledger_state(ledger, sample);
	if (state == CACHE_COMING)
		return;
	if (state != CACHE_RESIDENT) {
		uint64_t cost;
		if (!had || cache_ledger_turn(ledger, tl, seq, &sample, &cost) < 0)
			return;
		move(ledger, sample, CACHE_RESIDENT, cost);
	}
	const struct cache_note *note = cache_timeline_note(tl, seq);
	keep_or_idle(ledger, sample, note ? note->cost : 0, (struct use){ .tl = tl, .seq = seq });
}

bool cache_ledger_asked(struct cache_ledger *ledger, uint32_t sample)
{
	uint64_t cost;
	if (sample >= ledger->n_samples)
		return false;
	enum cache_state state = cache_ledger_state(ledger, sample);
	if (state == CACHE_COMING)
		return false;
	if (state == CACHE_RESIDENT) {
		add(&ledger->n_lost, 1);
		return true;
	}
	if (cache_ledger_cost(ledger, sample, &cost) < 0)
		return false;
	move(ledger, sample, CACHE_RESIDENT, cost);
	keep_or_idle(ledger, sample, cost, UNKNOWN);
	return false;
}

void cache_ledger_block(struct cache_ledger *ledger, uint32_t file, uint32_t block, uint32_t bytes)
{
	bytes = (bytes + CACHE_PAGE - 1) & ~(uint32_t)(CACHE_PAGE - 1);
	if (!bytes)
		return;
	struct entry *last =
	        ledger->idle.n ? &ledger->idle.entries[(ledger->idle.head + ledger->idle.n - 1) % ledger->idle.room]
	                       : NULL;
	if (last && last->what.id == file && last->what.block == block && last->cost + bytes <= SHARD_BLOCK)
		last->cost += bytes; /* the reader reads on in the same block */
	else if (!ring_push(&ledger->idle, (struct entry){ .what = { .id = file, .block = block }, .cost = bytes }))
		return;
	add(&ledger->resident_bytes, bytes);
}

/* Calls fn for each resident sample. */
static void each_resident(struct cache_ledger *ledger,
        void (*fn)(struct cache_ledger *ledger, struct cache_timeline *tl, uint32_t sample), struct cache_timeline *tl)
{
	for (uint64_t word = 0; word <= ledger->n_samples / 64; word++) {
		uint64_t bits = ledger->resident[word];
		while (bits) {
			uint32_t sample = (uint32_t)(word * 64 + (uint64_t)__builtin_ctzll(bits));
			bits &= bits - 1;
			fn(ledger, tl, sample);
		}
	}
}

static void keep_in_one(struct cache_ledger *ledger, struct cache_timeline *tl, uint32_t sample)
{
	(void)ledger;
	uint64_t next = cache_timeline_next(tl, sample);
	if (next != CACHE_NEVER)
		cache_timeline_set_kept(tl, next);
}

/* Sets the kept bits of an epoch.  seen: a bit a sample that an earlier epoch of the timeline uses.
 * Returns 0 or an error of the index. */
static int keep_epoch(
        struct cache_ledger *ledger, struct cache_timeline *tl, const struct cache_timeline_epoch *ep, uint64_t *seen)
{
	uint32_t samples[TURNS_AT_ONCE];
	uint64_t steps[TURNS_AT_ONCE];
	for (uint64_t turn = tl->cursor > ep->first ? tl->cursor - ep->first : 0; turn < ep->turns;) {
		uint32_t n = ep->turns - turn < TURNS_AT_ONCE ? (uint32_t)(ep->turns - turn) : TURNS_AT_ONCE;
		int rc = shard_epoch_samples(ep->epoch, tl->rank, turn, n, samples, steps);
		if (rc < 0)
			return rc;
		for (uint32_t i = 0; i < n; i++, turn++) {
			if (bit_get(ep->used, turn) || !cache_ledger_resident(ledger, samples[i]))
				continue;
			/* With tail=pad the last turn may show a sample for the second time. */
			if (turn + 1 == ep->turns && cache_timeline_next(tl, samples[i]) != ep->first + turn)
				continue;
			if (bit_set(seen, samples[i]))
				cache_timeline_set_kept(tl, ep->first + turn);
		}
	}
	return 0;
}

/* Does the same as keep_in_one for each resident sample, by the turns of the timeline: a rank of many has few.
 * Returns false without memory, or when the index cannot be read. */
static bool keep_by_turn(struct cache_ledger *ledger, struct cache_timeline *tl)
{
	cleanup_free uint64_t *seen = bits_new(ledger->n_samples);
	int rc = seen ? 0 : -ENOMEM;
	for (unsigned i = 0; i < CACHE_EPOCHS && rc == 0; i++)
		rc = keep_epoch(ledger, tl, &tl->epochs[i], seen);
	return rc == 0;
}

void cache_ledger_keep(struct cache_ledger *ledger, struct cache_timeline *tl)
{
	uint64_t turns = cache_timeline_end(tl) - tl->cursor;
	/* Stand-ins of bad samples (on_bad) come at turns where a sample is not found. */
	bool found_at_turns = tl->exact || shard_view_is_given(tl->view);
	if (!found_at_turns || turns >= load(&ledger->n_resident) || !keep_by_turn(ledger, tl))
		each_resident(ledger, keep_in_one, tl);
}

static void rebuild_one(struct cache_ledger *ledger, struct cache_timeline *tl, uint32_t sample)
{
	(void)tl;
	keep_or_idle(ledger, sample, 0, UNKNOWN);
}

void cache_ledger_rebuild(struct cache_ledger *ledger)
{
	each_resident(ledger, rebuild_one, NULL);
}

int cache_ledger_add(struct cache_ledger *ledger, struct cache_timeline *tl)
{
	if (ledger->n_timelines == CACHE_STREAMS_MAX)
		return -E2BIG;
	ledger->timelines[ledger->n_timelines++] = tl;
	if (ledger->n_timelines > 1)
		cache_ledger_keep(ledger, tl);
	else
		cache_ledger_rebuild(ledger); /* what cache_ledger_share found is not listed as idle yet */
	return 0;
}

/* What is resident is listed as idle, or has a kept bit in some timeline.  So a timeline that goes concerns only the
 * samples that have theirs in it. */
void cache_ledger_remove(struct cache_ledger *ledger, struct cache_timeline *tl)
{
	uint32_t place = 0, sample;
	uint64_t seq;
	while (place < ledger->n_timelines && ledger->timelines[place] != tl)
		place++;
	if (place == ledger->n_timelines)
		return;
	ledger->timelines[place] = ledger->timelines[--ledger->n_timelines];
	if (ledger->n_timelines == 0)
		cache_ledger_rebuild(ledger); /* quicker if there is nothing to look at but the list of idle samples */
	while (ledger->n_timelines > 0 && (seq = cache_timeline_last_kept(tl)) != CACHE_NEVER) {
		cache_timeline_clear_kept(tl, seq);
		if (cache_timeline_sample(tl, seq, &sample) == 0 && cache_ledger_resident(ledger, sample))
			keep_or_idle(ledger, sample, 0, UNKNOWN);
	}
}

void cache_ledger_lose(struct cache_ledger *ledger, uint32_t sample)
{
	uint64_t cost;
	if (sample >= ledger->n_samples || !cache_ledger_resident(ledger, sample) || !cost_of(ledger, sample, &cost))
		return;
	drop(ledger, sample, cost, UNKNOWN);
	leave_for_good(ledger, sample);
	ledger->flush = ledger->drops.n;
}

static void clear_one(struct cache_ledger *ledger, struct cache_timeline *tl, uint32_t sample)
{
	uint64_t cost;
	(void)tl;
	if (cost_of(ledger, sample, &cost))
		drop(ledger, sample, cost, UNKNOWN);
}

void cache_ledger_clear(struct cache_ledger *ledger)
{
	each_resident(ledger, clear_one, NULL);
	for (size_t i = 0; i < ledger->drops.n; i++) {
		const struct entry *entry = &ledger->drops.entries[(ledger->drops.head + i) % ledger->drops.room];
		if (is_sample(entry))
			leave_for_good(ledger, entry->what.id);
	}
	ledger->flush = ledger->drops.n;
}

void cache_ledger_stats_get(const struct cache_ledger *ledger, struct cache_ledger_stats *ret_stats)
{
	*ret_stats = (struct cache_ledger_stats){
		.budget_bytes = load(&ledger->budget_bytes),
		.resident_bytes = load(&ledger->resident_bytes),
		.coming_bytes = load(&ledger->coming_bytes),
		.resident = load(&ledger->n_resident),
		.evicted = load(&ledger->n_evicted),
		.evicted_blocks = load(&ledger->n_evicted_blocks),
		.dropped = load(&ledger->n_dropped),
		.lost = load(&ledger->n_lost),
	};
}
