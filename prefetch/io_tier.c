/* SPDX-License-Identifier: Apache-2.0 */
/* A tier in front of another backend, the origin; prefetch/io_backend.h first, then cache/tier.h.
 *
 *   engine thread                        pool threads
 *   -------------                        ------------
 *   submit ------------> ready ---------> look up: each block is here, ours (claimed), or theirs
 *                                          | ours            | theirs: again after a pause
 *   wait: reads of  <--- to_fetch <--------'                 v
 *   the origin                                             parked
 *     `----------------> ready ---------> store: verify, put, unclaim
 *   wait <-------------- done <------------'
 *
 * A read that waits for another process holds no claim, because its own blocks were fetched and stored before.  So two
 * processes never wait for each other.  The pool does what may wait for a disk or a lock; the engine thread never
 * does.
 *
 * A merged read also brings files that nobody asked for, between those that are wanted.  Another rank of the host wants
 * them.  So they are claimed and stored like the others.  A gap in which the tier or another process has a file is not
 * fetched, unless the tier has no room.
 *
 * Lock: `lock`.  No call of the tier or the origin happens under it. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "prefetch/engine.h"
#include "prefetch/gap_blocks.h"
#include "prefetch/io_backend.h"
#include "shard/base/cleanup.h"
#include "shard/base/clock.h"
#include "shard/block_sum.h"

enum {
	THREADS_MAX = 8,                   /* enough for a disk, few enough for any host */
	AGAIN_FIRST_NS = 2 * 1000000,      /* pause before blocks of others are looked up again; it doubles */
	AGAIN_MOST_NS = 32 * 1000000,      /* ... up to this */
	AGAIN_LONG_NS = 8 * AGAIN_MOST_NS, /* ... and after CLAIM_WAIT_S up to this */
	CLAIM_WAIT_S = 10, /* after this a block that another process has claimed is fetched, unless that one works */
	STORE_LATE_S = 5,  /* blocks that wait longer are not stored if the disk hangs */
	HANG_S = 1,        /* ... which means that one write of the thread took so long */
	CLAIM_GAP = 4096,  /* bytes between two blocks of one claim: a tar header and padding */
	PARTS_FIRST = 16,  /* blocks of a read, at first */
	STORE_BYTES = 1 << 20, /* of small blocks that are stored at once */
	MARKS = 1 << 20,       /* counters of blocks that this process fetches */
	MARK_WANTED = 1,       /* what a wanted block adds to a counter */
	MARK_GAP = 1 << 16,    /* ... and one of a gap */
};
#define SECOND_NS UINT64_C(1000000000) /* also the time between two looks at how full the tier is */

/* A block of a read. */
struct part {
	struct cache_tier_block block;
	uint64_t epoch; /* prefetch_block.epoch */
	uint32_t at;    /* where it begins in the data of the read */
	bool gap;       /* nobody asked for it: it lies between two that are wanted */
	enum {
		NEW,          /* not looked up yet */
		HERE,         /* its bytes are there, or nobody asked for them */
		MISSED,       /* it is not there */
		MISSED_AGAIN, /* it was THEIRS, and is not there still */
		OURS,         /* claimed by this read, to be fetched */
		UNCLAIMED,    /* to be fetched without a claim */
		THEIRS,       /* another process has claimed it, or another read fetches it as a part of a gap */
		/* Only of gaps: */
		LEFT, /* it is not fetched: the tier has it, or somebody fetches it, or there is no cause to */
		FREE, /* it may be fetched, but is neither claimed nor stored */
	} state;
};

/* One read of the engine. */
struct tier_read {
	struct prefetch_op *op;
	struct tier_read *next; /* in one of the lists */
	struct part *parts;     /* ascending offsets */
	uint32_t n_parts, room;
	bool store;             /* its bytes have come: the pool stores them */
	bool gaps;              /* the parts of its gaps were added */
	bool whole;             /* no part of it is there: one read of the origin fetches it, as without a tier */
	uint32_t next_part;     /* parts before it have been submitted to the origin */
	uint32_t fetching;      /* reads of the origin that are under way */
	uint32_t end;           /* bytes of the data that came without a gap */
	uint32_t fetched_bytes; /* that came from the origin */
	uint32_t unused_bytes;  /* prefetch_op.unused_bytes */
	int error;              /* of the origin, or 0 */
	bool claims;            /* it has claimed blocks, which are not stored yet */
	bool late, over;        /* look_at_wait() */
	uint64_t since_ns;      /* when it was parked first, or queued to be stored */
	uint64_t waited_ns;     /* for blocks of others */
	uint64_t pause_ns, due_ns;
};

struct list {
	struct tier_read *first, **tail;
};

/* Blocks that a pool thread stores together. */
struct batch {
	struct cache_tier_block blocks[CACHE_TIER_PUT_MAX];
	uint32_t n, bytes;
	uint32_t gap_bytes, lost_bytes; /* of gaps: in `blocks`, and of the read's batches that were not stored whole */
	uint8_t *data;                  /* room for STORE_BYTES; NULL: there is no memory */
	bool hung;                      /* the disk hung in the latest read that this thread stored */
};

/* One read of the origin. */
struct fetch {
	struct prefetch_op op; /* first, so that a pointer to it is a pointer to this */
	struct tier_read *read;
	struct fetch *next; /* in `unused_fetches` */
};

struct tier_io {
	struct prefetch_io_backend base;
	const struct shard_index *index; /* NULL: gaps are not searched */
	struct cache_tier *tier;
	struct cache_tier_uses *uses; /* NULL: nothing is told */
	struct prefetch_io_backend *origin;
	uint64_t timeout_ns; /* how long blocks are waited for that a process which works has claimed */
	/* Of the engine thread: */
	struct tier_read *unused;
	struct fetch *unused_fetches;
	struct list waiting; /* reads that have no room for all their fetches yet */

	pthread_mutex_t lock;   /* guards the fields below, up to the atomics */
	pthread_cond_t pool_cv; /* ready, parked, stop or cancelled has changed */
	struct list ready, parked, to_fetch, done;
	bool stop, cancelled;
	unsigned idle, queued, n_threads;
	pthread_t threads[THREADS_MAX];
	uint64_t fill_ns; /* when `fill` was read */
	bool fill_old;    /* blocks were stored or looked up since then */
	struct cache_tier_fill fill;
	uint32_t n_claiming; /* reads with claims */
	uint64_t work_ns;    /* when the tier was told last that this process works; 0: it rests */
	bool telling;        /* a thread tells it now */

	_Atomic uint64_t waited, skipped, look_up_ns;
	/* How many reads have claimed a block, by the hash of its key.  Claims exclude other processes only.  Of a
	 * process, two reads can fetch the same block if it lies in a gap of one of them.  4 MiB of memory soon after
	 * the tier is used, because the hash spreads blocks over all pages. */
	_Atomic uint32_t *marks;
	struct tier_read reads[PREFETCH_OPS_MAX];
	struct fetch fetches[PREFETCH_OPS_MAX];
};

static struct tier_io *tier_of(struct prefetch_io_backend *io)
{
	return (struct tier_io *)io;
}

static void list_init(struct list *list)
{
	list->first = NULL;
	list->tail = &list->first;
}

static void list_add(struct list *list, struct tier_read *read)
{
	read->next = NULL;
	*list->tail = read;
	list->tail = &read->next;
}

static struct tier_read *list_take(struct list *list)
{
	struct tier_read *read = list->first;
	if (read && !(list->first = read->next))
		list->tail = &list->first;
	return read;
}

static void list_add_first(struct list *list, struct tier_read *read)
{
	read->next = list->first;
	list->first = read;
	if (!read->next)
		list->tail = &read->next;
}

/* ---- pool threads ---- */

/* Stores blocks.  The tier counts, and switches itself off. */
static int put_now(
        struct tier_io *t, struct batch *batch, const struct cache_tier_block *blocks, uint32_t n, const void *data)
{
	uint64_t start_ns = base_now_ns();
	int rc = cache_tier_put_all(t->tier, blocks, n, data);
	batch->hung = batch->hung || base_now_ns() - start_ns >= HANG_S * SECOND_NS;
	return rc;
}

/* Stores what a batch has. */
static void put_batch(struct tier_io *t, struct batch *batch)
{
	if (batch->n && put_now(t, batch, batch->blocks, batch->n, batch->data) < 0)
		batch->lost_bytes += batch->gap_bytes;
	batch->n = 0;
	batch->bytes = 0;
	batch->gap_bytes = 0;
}

/* Stores a block, now or with the next ones. */
static void put(struct tier_io *t, struct batch *batch, const struct part *part, const void *data)
{
	const struct cache_tier_block *block = &part->block;
	uint32_t gap_bytes = part->gap ? block->len : 0;
	if (batch->n == CACHE_TIER_PUT_MAX || batch->bytes + block->len > STORE_BYTES)
		put_batch(t, batch);
	if (!batch->data || block->len > STORE_BYTES / 4) {
		batch->lost_bytes += put_now(t, batch, block, 1, data) < 0 ? gap_bytes : 0;
		return;
	}
	memcpy(batch->data + batch->bytes, data, block->len);
	batch->blocks[batch->n++] = *block;
	batch->bytes += block->len;
	batch->gap_bytes += gap_bytes;
}

/* Looks up one block. */
static void look_up_part(struct tier_io *t, struct tier_read *read, struct part *part, struct batch *batch)
{
	void *data = read->op->data + part->at;
	bool again = part->state == THEIRS;
	if (t->uses && !again)
		cache_tier_uses_of(t->uses, part->epoch, &part->block);
	int rc =
	        again ? cache_tier_get_again(t->tier, &part->block, data) : cache_tier_get(t->tier, &part->block, data);
	if (rc == 0) {
		part->state = HERE;
		if (again)
			atomic_fetch_add_explicit(&t->waited, 1, memory_order_relaxed);
		if (part->block.next && !cache_tier_full(t->tier, &part->block))
			put(t, batch, part, data); /* it moves to those of its next use */
	} else if (rc == -ENOENT && !cache_tier_full(t->tier, &part->block)) {
		part->state = again ? MISSED_AGAIN : MISSED;
	} else {
		/* The tier is off; or it is full, so others would not find what this process fetches. */
		part->state = UNCLAIMED;
	}
}

/* Returns where the claim of a part ends: at the next part, if that is near.  So the claims of neighbours touch. */
static uint32_t claim_end(const struct tier_read *read, uint32_t i)
{
	uint32_t end = read->parts[i].at + read->parts[i].block.len;
	return i + 1 < read->n_parts && read->parts[i + 1].at - end <= CLAIM_GAP ? read->parts[i + 1].at : end;
}

/* Returns the end of the run of parts from `i` on whose claims touch.  ours: parts that are OURS; else missed ones. */
static uint32_t run_end(const struct tier_read *read, uint32_t i, bool ours)
{
	for (;; i++) {
		if (i + 1 == read->n_parts || claim_end(read, i) != read->parts[i + 1].at)
			return i + 1;
		int next = read->parts[i + 1].state;
		if (ours ? next != OURS : next != MISSED && next != MISSED_AGAIN)
			return i + 1;
	}
}

static _Atomic uint32_t *mark_of(struct tier_io *t, const struct part *part)
{
	return &t->marks[part->block.key * UINT64_C(0x9e3779b97f4a7c15) >> 44];
}

static void unmark(struct tier_io *t, const struct tier_read *read, uint32_t first, uint32_t end)
{
	for (uint32_t i = first; i < end; i++) {
		const struct part *part = &read->parts[i];
		atomic_fetch_sub(mark_of(t, part), part->gap ? MARK_GAP : MARK_WANTED);
	}
}

/* Marks a run of parts.  Returns false, and marks none, if another read of this process fetches one of them.  Two
 * wanted ones are never the same block.  Seldom, two blocks have the same counter: then it is as if they were one. */
static bool mark(struct tier_io *t, const struct tier_read *read, uint32_t first, uint32_t end)
{
	for (uint32_t i = first; i < end; i++) {
		const struct part *part = &read->parts[i];
		uint32_t before = atomic_fetch_add(mark_of(t, part), part->gap ? MARK_GAP : MARK_WANTED);
		if (part->gap ? before > 0 : before >= MARK_GAP) {
			unmark(t, read, first, i + 1);
			return false;
		}
	}
	return true;
}

static void unclaim(struct tier_io *t, const struct tier_read *read, uint32_t first, uint32_t end)
{
	uint32_t at = read->parts[first].at;
	cache_tier_unclaim(t->tier, read->op->shard, read->op->offset + at, claim_end(read, end - 1) - at);
	unmark(t, read, first, end);
}

/* Claims a run of missed blocks: all of them or, after -EAGAIN or -EBUSY, none. */
static int claim(struct tier_io *t, struct tier_read *read, uint32_t first, uint32_t end)
{
	uint32_t at = read->parts[first].at;
	if (!mark(t, read, first, end))
		return -EBUSY; /* another read of this process fetches one of them */
	int rc = cache_tier_claim(t->tier, read->op->shard, read->op->offset + at, claim_end(read, end - 1) - at);
	if (rc < 0) {
		unmark(t, read, first, end);
		return rc;
	}
	for (uint32_t i = first; i < end; i++) {
		struct part *part = &read->parts[i];
		bool here = part->gap ? cache_tier_has(t->tier, &part->block)
		                      : cache_tier_get_again(t->tier, &part->block, read->op->data + part->at) == 0;
		part->state = OURS;
		if (here) {
			/* It was stored between the miss and the claim. */
			unclaim(t, read, i, i + 1);
			part->state = part->gap ? LEFT : HERE;
		}
	}
	return 0;
}

/* Claims a run of missed blocks, as many as it can.  The others become THEIRS.  They become UNCLAIMED if they
 * were waited for long enough (late; over, if another read of this process fetches them), or if a reader waits for them
 * and another read of this process fetches them.  Those of gaps become LEFT. */
static void claim_run(struct tier_io *t, struct tier_read *read, uint32_t first, uint32_t end)
{
	struct part *part = &read->parts[first];
	bool again = part->state == MISSED_AGAIN;
	int rc = claim(t, read, first, end);
	if (rc == 0)
		return;
	if (end - first > 1) {
		uint32_t middle = first + (end - first) / 2;
		claim_run(t, read, first, middle);
		claim_run(t, read, middle, end);
	} else if (part->gap) {
		part->state = LEFT;
	} else {
		/* Another read of this process may be slow, and is stored after those before it.  A reader does not
		 * wait for it. */
		bool wait = rc == -EAGAIN || (rc == -EBUSY && !read->op->urgent);
		bool enough = again && (rc == -EBUSY ? read->over : read->late);
		part->state = wait && !enough ? THEIRS : UNCLAIMED;
	}
}

static int by_place(const void *a, const void *b)
{
	const struct part *x = a, *y = b;
	return x->at < y->at ? -1 : x->at > y->at;
}

/* Appends a part.  Returns false if there is no memory. */
static bool add_part(struct tier_read *read, const struct part *part)
{
	if (read->n_parts == read->room) {
		uint32_t room = read->room ? 2 * read->room : PARTS_FIRST;
		struct part *parts = realloc(read->parts, room * sizeof(*parts));
		if (!parts)
			return false;
		read->parts = parts;
		read->room = room;
	}
	read->parts[read->n_parts++] = *part;
	return true;
}

/* Adds what lies between the wanted parts. */
static void add_gaps(struct tier_io *t, struct tier_read *read)
{
	struct prefetch_gap_block found[PREFETCH_GAP_BLOCKS_MAX];
	const struct prefetch_op *op = read->op;
	uint32_t wanted = read->n_parts;
	read->gaps = true;
	for (uint32_t i = 0; t->index && i + 1 < wanted; i++) {
		const struct part before = read->parts[i];
		uint64_t start = op->offset + before.at + before.block.len, end = op->offset + read->parts[i + 1].at;
		uint32_t n = prefetch_gap_blocks(t->index, cache_key_file(before.block.key), start, end, found);
		for (uint32_t k = 0; k < n; k++) {
			const struct part part = {
				.block = { .key = found[k].key, .xxh3 = found[k].xxh3, .len = found[k].len },
				.epoch = before.epoch,
				.at = (uint32_t)(found[k].offset - op->offset),
				.gap = true,
			};
			if (!add_part(read, &part))
				break; /* those that were found count */
		}
	}
	if (read->n_parts > wanted)
		qsort(read->parts, read->n_parts, sizeof(read->parts[0]), by_place);
}

/* Returns the next wanted part from `i` on, or n_parts. */
static uint32_t next_wanted(const struct tier_read *read, uint32_t i)
{
	while (i < read->n_parts && read->parts[i].gap)
		i++;
	return i;
}

static void set_gap(struct tier_read *read, uint32_t first, uint32_t end, int state)
{
	for (uint32_t i = first; i < end; i++)
		read->parts[i].state = state;
}

/* Changes the next use of a block of a gap, which is read at the time `now` (0: not known): another rank of the host
 * uses it in this epoch, unless it has done so.  When it does, the block moves to the use that follows. */
static void set_use_of_gap(struct cache_tier_block *block, uint32_t now)
{
	if (block->next && block->now >= now)
		block->next = block->now;
	if (block->next && now)
		block->now = now;
}

/* Decides whether the parts of a gap, [first, end), are claimed (MISSED) with the wanted ones on both sides. */
static void look_at_gap(struct tier_io *t, struct tier_read *read, uint32_t first, uint32_t end, bool all_missed)
{
	const struct part *before = &read->parts[first - 1], *after = &read->parts[end];
	if (before->state == UNCLAIMED || after->state == UNCLAIMED) {
		set_gap(read, first, end, FREE); /* the tier takes nothing */
		return;
	}
	set_gap(read, first, end, LEFT);
	if (before->state != MISSED || after->state != MISSED ||
	        (!all_missed && after->at - before->at - before->block.len > read->op->gap_bytes))
		return;
	for (uint32_t i = first; i < end; i++) {
		struct part *part = &read->parts[i];
		bool used = !t->uses || cache_tier_uses_of(t->uses, part->epoch, &part->block);
		set_use_of_gap(&part->block, before->block.now);
		if (used && cache_tier_has(t->tier, &part->block)) {
			set_gap(read, first, end, LEFT);
			return;
		}
		part->state = used && !cache_tier_full(t->tier, &part->block) ? MISSED : FREE;
	}
}

/* Decides about all gaps, once the wanted parts were looked up. */
static void look_at_gaps(struct tier_io *t, struct tier_read *read)
{
	bool all_missed = true;
	for (uint32_t i = 0; i < read->n_parts; i++)
		all_missed = all_missed && (read->parts[i].gap || read->parts[i].state == MISSED);
	for (uint32_t i = 0, next; i < read->n_parts; i = next) {
		next = next_wanted(read, i + 1);
		if (next > i + 1 && next < read->n_parts)
			look_at_gap(t, read, i + 1, next, all_missed);
	}
}

/* Gives up the parts of a gap that cannot be fetched together with what is on both sides of it. */
static void leave_gap(struct tier_io *t, struct tier_read *read, uint32_t first, uint32_t end)
{
	bool leave = read->parts[first - 1].state != OURS || read->parts[end].state != OURS;
	for (uint32_t i = first; i < end; i++)
		leave = leave || read->parts[i].state == LEFT;
	for (uint32_t i = first; leave && i < end; i++) {
		if (read->parts[i].state != OURS)
			continue;
		unclaim(t, read, i, i + 1);
		read->parts[i].state = LEFT;
	}
}

/* Notes whether blocks were waited for long enough.  Those of another process that works come: its link is slow, or its
 * store is away, and so they are for this process. */
static void look_at_wait(struct tier_io *t, struct tier_read *read, uint64_t now)
{
	uint64_t waited_ns = read->pause_ns ? now - read->since_ns : 0;
	read->over = waited_ns >= t->timeout_ns;
	read->late = read->over || (waited_ns >= CLAIM_WAIT_S * SECOND_NS && !cache_tier_others_work(t->tier));
}

static void look_up(struct tier_io *t, struct tier_read *read, struct batch *batch)
{
	uint64_t start_ns = base_now_ns();
	bool first = !read->gaps;
	look_at_wait(t, read, start_ns);
	if (first)
		add_gaps(t, read);
	for (uint32_t i = 0; i < read->n_parts; i++) {
		struct part *part = &read->parts[i];
		if (!part->gap && (part->state == NEW || part->state == THEIRS))
			look_up_part(t, read, part, batch);
	}
	put_batch(t, batch);
	if (first)
		look_at_gaps(t, read);
	for (uint32_t i = 0, end; i < read->n_parts; i = end) {
		end = i + 1;
		if (read->parts[i].state != MISSED && read->parts[i].state != MISSED_AGAIN)
			continue;
		end = run_end(read, i, false);
		claim_run(t, read, i, end);
	}
	for (uint32_t i = 0, next; first && i < read->n_parts; i = next) {
		next = next_wanted(read, i + 1);
		if (next > i + 1 && next < read->n_parts)
			leave_gap(t, read, i + 1, next);
	}
	atomic_fetch_add_explicit(&t->look_up_ns, base_now_ns() - start_ns, memory_order_relaxed);
}

/* Stores a part, if it is right.  Returns false if it does not. */
static bool store_part(
        struct tier_io *t, const struct tier_read *read, const struct part *part, bool late, struct batch *batch)
{
	const void *data = read->op->data + part->at;
	if (read->error || part->at + part->block.len > read->end)
		return false;
	if (late || cache_tier_full(t->tier, &part->block)) {
		atomic_fetch_add_explicit(&t->skipped, part->gap ? 0 : 1, memory_order_relaxed);
		return false;
	}
	if (shard_block_sum(data, part->block.len) != part->block.xxh3)
		return false;
	put(t, batch, part, data);
	return true;
}

/* Stores the blocks that the origin gave, and ends their claims.  After a pause of the disk, all reads in the queue are
 * late, so each thread leaves only one of them out. */
static void store(struct tier_io *t, struct tier_read *read, struct batch *batch)
{
	bool late = batch->hung && base_now_ns() - read->since_ns > STORE_LATE_S * SECOND_NS;
	batch->hung = false;
	batch->lost_bytes = 0;
	for (uint32_t i = 0; i < read->n_parts; i++) {
		const struct part *part = &read->parts[i];
		if ((part->state == OURS || part->state == UNCLAIMED) && !store_part(t, read, part, late, batch))
			read->unused_bytes += part->gap ? part->block.len : 0;
	}
	put_batch(t, batch);
	read->unused_bytes += batch->lost_bytes;
	for (uint32_t i = 0, end; i < read->n_parts; i = end) {
		end = i + 1;
		if (read->parts[i].state == OURS) {
			end = run_end(read, i, true);
			unclaim(t, read, i, end);
		}
	}
	for (uint32_t i = 0; i < read->n_parts; i++)
		if (read->parts[i].state == OURS || read->parts[i].state == UNCLAIMED)
			read->parts[i].state = HERE;
}

/* Returns how many parts of the read must be fetched (theirs: waited for). */
static uint32_t n_parts(const struct tier_read *read, bool theirs)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < read->n_parts; i++) {
		int state = read->parts[i].state;
		n += theirs ? state == THEIRS : state == OURS || state == UNCLAIMED;
	}
	return n;
}

static bool has_claims(const struct tier_read *read)
{
	for (uint32_t i = 0; i < read->n_parts; i++)
		if (read->parts[i].state == OURS)
			return true;
	return false;
}

/* Tells whether one read of the origin may fetch all. */
static bool is_whole(const struct tier_read *read)
{
	for (uint32_t i = 0; i < read->n_parts; i++) {
		int state = read->parts[i].state;
		if (state != OURS && state != UNCLAIMED && state != FREE)
			return false;
	}
	return true;
}

/* Reads how full the tier is, at most once a second.  Under lock, which it releases meanwhile. */
static void look_at_fill(struct tier_io *t)
{
	struct cache_tier_fill fill;
	uint64_t now = base_now_ns();
	t->fill_old = t->fill_ns && now - t->fill_ns < SECOND_NS;
	if (t->fill_old)
		return;
	t->fill_ns = now;
	pthread_mutex_unlock(&t->lock);
	int rc = cache_tier_off(t->tier) ? -ENODEV : cache_tier_fill_get(t->tier, &fill);
	pthread_mutex_lock(&t->lock);
	if (rc == 0)
		t->fill = fill;
}

/* Tells the tier once a second that this process works, as long as it has claims.  Under lock, which it releases
 * meanwhile. */
static void tell_work(struct tier_io *t)
{
	uint64_t now = base_now_ns();
	if (t->telling || !(t->work_ns ? now - t->work_ns >= SECOND_NS : t->n_claiming > 0))
		return;
	bool works = t->n_claiming > 0;
	t->work_ns = works ? now : 0;
	t->telling = true;
	pthread_mutex_unlock(&t->lock);
	if (works)
		cache_tier_work(t->tier);
	else
		cache_tier_rest(t->tier);
	pthread_mutex_lock(&t->lock);
	t->telling = false;
}

/* Ends a read.  Under lock. */
static void finish(struct tier_io *t, struct tier_read *read, int error)
{
	struct prefetch_op *op = read->op;
	op->res = error ? error : (int)read->end;
	op->tier_bytes = read->end > read->fetched_bytes ? read->end - read->fetched_bytes : 0;
	if (read->n_parts)
		op->unused_bytes = read->unused_bytes;
	list_add(&t->done, read);
}

/* Does one step of a read, and puts it into its next list.  Under lock, which it releases meanwhile. */
static void step(struct tier_io *t, struct tier_read *read, struct batch *batch)
{
	bool cancelled = t->cancelled;
	pthread_mutex_unlock(&t->lock);
	if (read->store)
		store(t, read, batch);
	else if (!cancelled)
		look_up(t, read, batch);
	uint32_t fetch = read->store || cancelled ? 0 : n_parts(read, false);
	bool park = !read->error && n_parts(read, true) > 0, claims = has_claims(read);
	read->whole = fetch && is_whole(read);
	pthread_mutex_lock(&t->lock);
	t->n_claiming += claims;
	t->n_claiming -= read->claims;
	read->claims = claims;
	if (fetch) {
		read->waited_ns += read->pause_ns ? base_now_ns() - read->since_ns : 0;
		list_add(&t->to_fetch, read);
	} else if (park && !t->cancelled) {
		uint64_t now = base_now_ns();
		if (read->store || !read->pause_ns) {
			read->since_ns = now;
			read->pause_ns = AGAIN_FIRST_NS;
		} else if (read->pause_ns <
		           (now - read->since_ns < CLAIM_WAIT_S * SECOND_NS ? AGAIN_MOST_NS : AGAIN_LONG_NS)) {
			read->pause_ns *= 2;
		}
		read->store = false;
		read->due_ns = now + read->pause_ns;
		list_add(&t->parked, read);
		return; /* the engine thread need not know */
	} else {
		finish(t, read, cancelled || (park && t->cancelled) ? -ECANCELED : read->error);
	}
	pthread_mutex_unlock(&t->lock);
	prefetch_io_wake(t->origin);
	pthread_mutex_lock(&t->lock);
}

/* Takes a parked read that is due.  *ret_wait_ns: else, how long until one is; 0: none is parked.  Under lock. */
static struct tier_read *take_due(struct tier_io *t, uint64_t *ret_wait_ns)
{
	struct tier_read *due = NULL, *read;
	struct list rest;
	uint64_t now = base_now_ns(), wait_ns = 0;
	list_init(&rest);
	while ((read = list_take(&t->parked))) {
		if (!due && (t->cancelled || read->due_ns <= now)) {
			due = read;
			continue;
		}
		uint64_t left_ns = read->due_ns > now ? read->due_ns - now : 1;
		wait_ns = wait_ns && wait_ns < left_ns ? wait_ns : left_ns;
		list_add(&rest, read);
	}
	if (rest.first) {
		t->parked.first = rest.first;
		t->parked.tail = rest.tail;
	}
	*ret_wait_ns = wait_ns;
	return due;
}

static void *pool_run(void *arg)
{
	struct tier_io *t = arg;
	struct batch batch = { .data = malloc(STORE_BYTES) };
	pthread_setname_np(pthread_self(), "tier");
	pthread_mutex_lock(&t->lock);
	for (;;) {
		uint64_t wait_ns;
		struct tier_read *read = take_due(t, &wait_ns);
		if (!read && (read = list_take(&t->ready)))
			t->queued--;
		if (read) {
			step(t, read, &batch);
			tell_work(t);
			look_at_fill(t);
			continue;
		}
		if (t->stop)
			break;
		uint64_t old_ns = t->fill_old ? base_now_ns() - t->fill_ns : 0;
		if (old_ns >= SECOND_NS) {
			look_at_fill(t);
			continue;
		}
		if (t->fill_old && (!wait_ns || SECOND_NS - old_ns < wait_ns))
			wait_ns = SECOND_NS - old_ns;
		uint64_t told_ns = t->work_ns ? base_now_ns() - t->work_ns : 0;
		if (told_ns >= SECOND_NS && !t->telling) {
			tell_work(t);
			continue;
		}
		if (t->work_ns && (!wait_ns || SECOND_NS - told_ns < wait_ns))
			wait_ns = told_ns < SECOND_NS ? SECOND_NS - told_ns : SECOND_NS;
		struct timespec until = base_until(wait_ns);
		t->idle++;
		if (wait_ns)
			pthread_cond_timedwait(&t->pool_cv, &t->lock, &until);
		else
			pthread_cond_wait(&t->pool_cv, &t->lock);
		t->idle--;
	}
	pthread_mutex_unlock(&t->lock);
	free(batch.data);
	return NULL;
}

/* ---- engine thread ---- */

/* Gives a read to the pool. */
static void give(struct tier_io *t, struct tier_read *read)
{
	lock_for_scope(&t->lock);
	if (read->op->urgent)
		list_add_first(&t->ready, read);
	else
		list_add(&t->ready, read);
	if (++t->queued > t->idle && t->n_threads < THREADS_MAX &&
	        pthread_create(&t->threads[t->n_threads], NULL, pool_run, t) == 0)
		t->n_threads++; /* if no thread can be added, those that run serve the queue */
	pthread_cond_signal(&t->pool_cv);
}

/* All reads of the origin for this read have come back. */
static void fetched(struct tier_io *t, struct tier_read *read)
{
	if (!read->n_parts) {
		lock_for_scope(&t->lock);
		finish(t, read, read->error);
		return;
	}
	read->store = true;
	read->since_ns = base_now_ns();
	give(t, read);
}

/* A stretch of the data that one read of the origin fetches. */
struct run {
	uint32_t start, end;   /* of its first and last part, aligned */
	uint32_t unused_bytes; /* between the parts that are fetched */
};

/* Finds the next run of parts to fetch.  Bytes that are not needed are read too, if that costs less than another
 * request: headers and files that the tier does not take, or, if it takes nothing, any.  Returns false if none is
 * left. */
static bool next_run(struct tier_read *read, struct run *ret)
{
	const struct prefetch_op *op = read->op;
	const struct part *last = NULL;
	uint32_t start = 0, end = 0, used = 0, mask = op->object->align - 1;
	bool there = false; /* the tier or another process has what lies behind `last` */
	for (; read->next_part < read->n_parts; read->next_part++) {
		const struct part *part = &read->parts[read->next_part];
		if (part->state != OURS && part->state != UNCLAIMED) {
			there = there || part->state != FREE;
			continue;
		}
		if (last && !read->whole && part->at > end &&
		        (part->at - end > op->gap_bytes || (there && last->state == OURS && part->state == OURS)))
			break;
		if (!last)
			start = part->at;
		end = part->at + part->block.len;
		used += part->block.len;
		last = part;
		there = false;
	}
	if (!last)
		return false;
	ret->start = read->whole ? 0 : start & ~mask;
	ret->end = !read->whole && end + mask < op->len ? (end + mask) & ~mask : op->len;
	ret->unused_bytes = end - start - used;
	return true;
}

/* Submits one read of the origin. */
static void start_fetch(struct tier_io *t, struct tier_read *read, const struct run *run)
{
	struct fetch *fetch = t->unused_fetches;
	t->unused_fetches = fetch->next;
	fetch->read = read;
	fetch->op = *read->op;
	fetch->op.data += run->start;
	fetch->op.offset += run->start;
	fetch->op.len = run->end - run->start;
	fetch->op.waited_ns = read->waited_ns;
	read->fetching++;
	read->unused_bytes += run->unused_bytes;
	prefetch_io_submit(t->origin, &fetch->op);
}

/* Submits what the read still has to fetch.  Returns false if there is no room for all of it. */
static bool start_fetches(struct tier_io *t, struct tier_read *read)
{
	struct run run = { .end = read->op->len };
	if (!read->n_parts && t->unused_fetches && !read->next_part++)
		start_fetch(t, read, &run);
	while (!read->error && t->unused_fetches && next_run(read, &run))
		start_fetch(t, read, &run);
	return read->error || t->unused_fetches;
}

/* Begins to fetch. */
static void begin_fetch(struct tier_io *t, struct tier_read *read)
{
	read->next_part = 0;
	if (t->waiting.first || !start_fetches(t, read))
		list_add(&t->waiting, read);
}

/* A read of the origin has come back. */
static void came_back(struct tier_io *t, struct fetch *fetch)
{
	struct tier_read *read = fetch->read;
	const struct prefetch_op *op = &fetch->op;
	uint32_t start = (uint32_t)(op->offset - read->op->offset);
	fetch->next = t->unused_fetches;
	t->unused_fetches = fetch;
	if (op->res < 0 && !read->error)
		read->error = op->res;
	else if (op->res >= 0 && (uint32_t)op->res < op->len && start + (uint32_t)op->res < read->end)
		read->end = start + (uint32_t)op->res;
	read->fetched_bytes += op->res > 0 ? (uint32_t)op->res : 0;
	read->fetching--;
	for (struct tier_read *ready; (ready = t->waiting.first) && start_fetches(t, ready);) {
		list_take(&t->waiting);
		if (!ready->fetching && ready != read)
			fetched(t, ready); /* an error came meanwhile */
	}
	if (!read->fetching && t->waiting.first != read)
		fetched(t, read);
}

/* Takes the blocks that lie in a read.  Returns false if the tier cannot serve it: a short read has ended in one of
 * them, or there is no memory. */
static bool take_parts(struct tier_read *read, const struct prefetch_op *op)
{
	const struct prefetch_block *block;
	STAILQ_FOREACH(block, op->blocks, link)
	{
		if (block->offset + block->len <= op->offset)
			continue; /* it came before */
		if (block->offset < op->offset || block->offset + block->len > op->offset + op->len)
			return false;
		const struct part part = {
			.block = { .key = block->key, .xxh3 = block->xxh3, .len = block->len },
			.epoch = block->epoch,
			.at = (uint32_t)(block->offset - op->offset),
		};
		if (!add_part(read, &part))
			return false;
	}
	return true;
}

static void tier_submit(struct prefetch_io_backend *io, struct prefetch_op *op)
{
	struct tier_io *t = tier_of(io);
	struct tier_read *read = t->unused; /* there are as many as operations in flight */
	t->unused = read->next;
	*read = (struct tier_read){ .op = op, .parts = read->parts, .room = read->room, .end = op->len };
	if (cache_tier_off(t->tier) || !op->blocks || !take_parts(read, op))
		read->n_parts = 0;
	if (!read->n_parts)
		begin_fetch(t, read);
	else
		give(t, read);
}

/* Takes what the pool has put out.  Adds the reads that are done to a list.  Returns its new end. */
static struct prefetch_op **collect(struct tier_io *t, struct prefetch_op **tail)
{
	struct tier_read *read, *fetch, *done;
	{
		lock_for_scope(&t->lock);
		fetch = t->to_fetch.first;
		done = t->done.first;
		list_init(&t->to_fetch);
		list_init(&t->done);
	}
	while ((read = fetch)) {
		fetch = read->next;
		begin_fetch(t, read);
	}
	while ((read = done)) {
		done = read->next;
		read->op->next = NULL;
		*tail = read->op;
		tail = &read->op->next;
		read->next = t->unused;
		t->unused = read;
	}
	return tail;
}

static void tier_wait(struct prefetch_io_backend *io, int64_t timeout_ns, struct prefetch_op **ret_done)
{
	struct tier_io *t = tier_of(io);
	struct prefetch_op *done = NULL, *list, **tail = collect(t, &done);
	prefetch_io_wait(t->origin, done ? 0 : timeout_ns, &list);
	while (list) {
		struct fetch *fetch = (struct fetch *)list;
		list = list->next;
		came_back(t, fetch);
	}
	collect(t, tail);
	*ret_done = done;
}

static void tier_wake(struct prefetch_io_backend *io)
{
	prefetch_io_wake(tier_of(io)->origin);
}

static void tier_set_file(struct prefetch_io_backend *io, uint32_t entry, int fd)
{
	prefetch_io_set_file(tier_of(io)->origin, entry, fd);
}

static void tier_cancel(struct prefetch_io_backend *io)
{
	struct tier_io *t = tier_of(io);
	{
		lock_for_scope(&t->lock);
		t->cancelled = true;
		pthread_cond_broadcast(&t->pool_cv);
	}
	prefetch_io_cancel(t->origin);
}

static void tier_free(struct prefetch_io_backend *io)
{
	struct tier_io *t = tier_of(io);
	{
		lock_for_scope(&t->lock);
		t->stop = true;
		pthread_cond_broadcast(&t->pool_cv);
	}
	for (unsigned i = 0; i < t->n_threads; i++)
		pthread_join(t->threads[i], NULL);
	prefetch_io_free(t->origin);
	pthread_cond_destroy(&t->pool_cv);
	pthread_mutex_destroy(&t->lock);
	for (size_t i = 0; i < PREFETCH_OPS_MAX; i++)
		free(t->reads[i].parts);
	free(t->marks);
	free(t);
}

static const struct prefetch_io_ops tier_ops = {
	.submit = tier_submit,
	.wait = tier_wait,
	.wake = tier_wake,
	.set_file = tier_set_file,
	.cancel = tier_cancel,
	.free = tier_free,
};

int prefetch_io_tier(const struct shard_index *index, struct cache_tier *tier, struct cache_tier_uses *uses,
        struct prefetch_io_backend *origin, struct prefetch_io_backend **ret_io)
{
	struct tier_io *t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	t->marks = calloc(MARKS, sizeof(t->marks[0]));
	if (!t->marks) {
		free(t);
		return -ENOMEM;
	}
	t->index = index;
	t->base = (struct prefetch_io_backend){ .ops = &tier_ops, .uring = origin->uring };
	t->tier = tier;
	t->uses = uses;
	t->origin = origin;
	t->timeout_ns = REMOTE_TIMEOUT_DEFAULT_S * SECOND_NS;
	pthread_mutex_init(&t->lock, NULL);
	base_cond_init(&t->pool_cv);
	list_init(&t->waiting);
	list_init(&t->ready);
	list_init(&t->parked);
	list_init(&t->to_fetch);
	list_init(&t->done);
	for (size_t i = 0; i < PREFETCH_OPS_MAX; i++) {
		t->reads[i].next = t->unused;
		t->unused = &t->reads[i];
		t->fetches[i].next = t->unused_fetches;
		t->unused_fetches = &t->fetches[i];
	}
	int rc;
	{
		lock_for_scope(&t->lock);
		look_at_fill(t);
		/* One thread must exist, or reads would never end. */
		rc = pthread_create(&t->threads[0], NULL, pool_run, t);
		t->n_threads = rc == 0;
	}
	if (rc) {
		t->origin = NULL; /* the caller keeps it */
		tier_free(&t->base);
		return -rc;
	}
	*ret_io = &t->base;
	return 0;
}

void prefetch_io_tier_wait_for(struct prefetch_io_backend *io, uint64_t timeout_ns)
{
	struct tier_io *t = tier_of(io);
	t->timeout_ns = timeout_ns ? timeout_ns : t->timeout_ns;
}

void prefetch_io_tier_stats(struct prefetch_io_backend *io, struct prefetch_tier_stats *ret_stats)
{
	struct tier_io *t = tier_of(io);
	struct prefetch_tier_stats stats = {
		.waited = atomic_load_explicit(&t->waited, memory_order_relaxed),
		.skipped = atomic_load_explicit(&t->skipped, memory_order_relaxed),
		.look_up_ns = atomic_load_explicit(&t->look_up_ns, memory_order_relaxed),
		.off = cache_tier_off(t->tier),
	};
	cache_tier_stats_get(t->tier, &stats.blocks);
	lock_for_scope(&t->lock);
	stats.fill = t->fill;
	stats.threads = t->n_threads;
	*ret_stats = stats;
}
