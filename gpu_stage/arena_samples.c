/* SPDX-License-Identifier: Apache-2.0 */
/* The samples that the arena holds: table, lists, room, waiting; arena_samples.h first. */
#include "gpu_stage/arena_samples.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "gpu_stage/clock.h"
#include "gpu_stage/pages.h"
#include "shard/base/bits.h"
#include "shard/base/cleanup.h"

/* More than the engine ever has in flight (224 reads of up to 128 KiB).  When so many bytes have come since a wait
 * began, the reads that were in flight then have come as well. */
static const uint64_t OVERTAKEN_BYTES = 32 << 20;

/* Entries and buckets are in huge pages.  Each sample uses others at random, and with small pages a page table walk
 * would cost as much as the entry itself. */
enum {
	HUGE_PAGE = 2 << 20,
	LINE = 64,
	BUCKETS_MAX = 1 << 25,
};

struct chunk {
	struct chunk *next;
	uint8_t pad[LINE - sizeof(struct chunk *)]; /* entries begin on a cache line; an entry is two lines */
	struct stage_entry entries[];
};
enum { CHUNK_ENTRIES = (HUGE_PAGE - sizeof(struct chunk)) / sizeof(struct stage_entry) };
_Static_assert(sizeof(struct stage_entry) == 2 * LINE, "approach() fetches two lines");

struct list {
	struct stage_entry *oldest, *newest;
};

struct stage_samples {
	const struct shard_index *index;
	struct stage_space *space;
	uint32_t n_pages;
	uint32_t bucket_mask;
	pthread_mutex_t lock; /* guards all below, and the entries */
	pthread_cond_t ready_cv;
	pthread_cond_t freed_cv;
	struct stage_pages *pages;
	struct stage_entry **buckets;
	struct stage_entry *spare; /* free entries, linked by hash_next */
	struct chunk *chunks;
	size_t chunk_n, chunk_used;        /* entries of a chunk; used ones of the first chunk */
	struct list idle_used, idle_ahead; /* entries that may go: used, and read ahead but not used */
	uint64_t awaited;                  /* key that a thread waits for; UINT64_MAX: none */
	uint64_t came_bytes;               /* written into entries, ever */
	uint64_t freed;                    /* times memory was given back */
	uint64_t held_pages;               /* of pinned entries */
	uint64_t refused, evicted, apart;
};

/* ---- layouts ---- */

static int layout_place(uint32_t file, const struct shard_place *f, struct stage_layout *l, struct stage_part *part)
{
	uint64_t pages = (f->length + STAGE_PAGE - 1) / STAGE_PAGE;
	if (pages + l->pages > UINT64_C(1) << 31)
		return -EFBIG;
	*part = (struct stage_part){
		.file = file, .first_block = l->n_blocks, .offset = (uint64_t)l->pages * STAGE_PAGE, .len = f->length
	};
	l->n_blocks += shard_blocks(f->length);
	l->pages += (uint32_t)pages;
	l->n_parts++;
	return 0;
}

static int layout_add(const struct shard_index *index, uint32_t file, struct stage_layout *l, struct stage_part *part)
{
	struct shard_place f;
	int rc = shard_index_place(index, file, &f);
	return rc < 0 ? rc : layout_place(file, &f, l, part);
}

static int layout_group(const struct shard_index *index, struct stage_layout *l)
{
	uint32_t files[SHARD_SAMPLE_FILES_MAX], n = 0;
	int rc = shard_index_sample_files(index, l->sample, files, SHARD_SAMPLE_FILES_MAX, &n);
	if (rc < 0 || n == 1)
		return rc < 0 ? rc : layout_add(index, files[0], l, &l->one);
	l->many = calloc(n, sizeof(*l->many));
	if (!l->many)
		return -ENOMEM;
	for (uint32_t i = 0; rc == 0 && i < n; i++)
		rc = layout_add(index, files[i], l, &l->many[i]);
	if (rc < 0)
		stage_layout_done(l);
	return rc;
}

int stage_layout_sample(const struct shard_index *index, uint32_t sample, struct stage_layout *ret_layout)
{
	struct stage_layout l = { .key = stage_sample_key(sample), .sample = sample };
	uint32_t file;
	int rc;
	if (shard_index_info(index)->grouped) {
		rc = layout_group(index, &l);
	} else {
		rc = shard_index_sample_first(index, sample, &file);
		if (rc == 0)
			rc = layout_add(index, file, &l, &l.one);
	}
	if (rc == 0)
		*ret_layout = l;
	return rc;
}

int stage_layout_around(const struct shard_index *index, uint32_t file, const struct shard_place *place,
        struct stage_layout *ret_layout)
{
	struct stage_layout l = { .key = stage_sample_key(place->sample), .sample = place->sample };
	if (shard_index_info(index)->grouped)
		return stage_layout_sample(index, place->sample, ret_layout);
	int rc = layout_place(file, place, &l, &l.one);
	if (rc == 0)
		*ret_layout = l;
	return rc;
}

int stage_layout_file(const struct shard_index *index, uint32_t file, struct stage_layout *ret_layout)
{
	struct shard_file f;
	int rc = shard_index_file(index, file, &f);
	if (rc < 0)
		return rc;
	if (!f.common && !shard_index_info(index)->grouped)
		return stage_layout_sample(index, f.sample, ret_layout);
	struct stage_layout l = { .key = UINT64_C(1) << 32 | file, .sample = SHARD_NONE };
	rc = layout_add(index, file, &l, &l.one);
	if (rc == 0)
		*ret_layout = l;
	return rc;
}

void stage_layout_done(struct stage_layout *layout)
{
	free(layout->many);
	layout->many = NULL;
}

/* ---- lists and table; all under the lock ---- */

static void list_remove(struct list *list, struct stage_entry *e)
{
	*(e->older ? &e->older->newer : &list->oldest) = e->newer;
	*(e->newer ? &e->newer->older : &list->newest) = e->older;
	e->older = e->newer = NULL;
}

static void list_append(struct list *list, struct stage_entry *e)
{
	e->older = list->newest;
	e->newer = NULL;
	*(list->newest ? &list->newest->newer : &list->oldest) = e;
	list->newest = e;
}

static struct stage_entry **bucket_of(struct stage_samples *s, uint64_t key)
{
	return &s->buckets[(key * UINT64_C(0x9e3779b97f4a7c15) >> 32) & s->bucket_mask];
}

static struct stage_entry *find(struct stage_samples *s, uint64_t key)
{
	struct stage_entry *e = *bucket_of(s, key);
	while (e && e->key != key)
		e = e->hash_next;
	return e;
}

static void unhash(struct stage_samples *s, struct stage_entry *e)
{
	struct stage_entry **link = bucket_of(s, e->key);
	while (*link != e)
		link = &(*link)->hash_next;
	*link = e->hash_next;
	e->dead = true;
}

static struct list *list_of(struct stage_samples *s, const struct stage_entry *e)
{
	return e->used ? &s->idle_used : &s->idle_ahead;
}

static void ask_huge_pages(void *at, size_t bytes)
{
	uintptr_t from = ((uintptr_t)at + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
	uintptr_t end = ((uintptr_t)at + bytes) / HUGE_PAGE * HUGE_PAGE;
	if (from < end)
		madvise((void *)from, end - from, MADV_HUGEPAGE); /* without huge pages, small ones work */
}

static int chunk_new(struct stage_samples *s)
{
	size_t bytes = sizeof(struct chunk) + s->chunk_n * sizeof(struct stage_entry);
	bool whole = s->chunk_n == CHUNK_ENTRIES;
	struct chunk *chunk = whole ? aligned_alloc(HUGE_PAGE, HUGE_PAGE) : aligned_alloc(LINE, bytes);
	if (!chunk)
		return -ENOMEM;
	if (whole)
		ask_huge_pages(chunk, HUGE_PAGE);
	chunk->next = s->chunks;
	s->chunks = chunk;
	s->chunk_used = 0;
	return 0;
}

static struct stage_entry *entry_new(struct stage_samples *s)
{
	struct stage_entry *e = s->spare;
	if (e) {
		s->spare = e->hash_next;
		return e;
	}
	if (s->chunk_used == s->chunk_n && chunk_new(s) < 0)
		return NULL;
	return &s->chunks->entries[s->chunk_used++];
}

static void entry_free(struct stage_samples *s, struct stage_entry *e)
{
	e->hash_next = s->spare;
	s->spare = e;
}

/* Frees an entry that nobody pins and that is in no list.  Under the lock. */
static void destroy(struct stage_samples *s, struct stage_entry *e)
{
	if (!e->dead)
		unhash(s, e);
	if (e->apart) {
		stage_space_put(s->space, e->data, e->pages);
		stage_pages_give_back(s->pages, e->first_page);
	} else if (e->pages) {
		stage_pages_put(s->pages, e->first_page, e->pages);
	}
	if (e->parts != &e->one)
		free((void *)(uintptr_t)e->parts);
	free(e->claimed);
	entry_free(s, e);
	s->freed++;
	pthread_cond_broadcast(&s->freed_cv);
}

/* A used entry stays in its list when it is pinned: later epochs pin each sample once, and unlinking costs two cache
 * misses, one for each neighbour. */
static void pin(struct stage_samples *s, struct stage_entry *e)
{
	if (e->pins++)
		return;
	s->held_pages += e->pages;
	if (e->used)
		e->again = true;
	else
		list_remove(list_of(s, e), e);
	e->listed = e->used;
}

static void unpin(struct stage_samples *s, struct stage_entry *e)
{
	assert(e->pins > 0);
	if (--e->pins)
		return;
	s->held_pages -= e->pages;
	if (e->dead || !e->kept) {
		if (e->listed)
			list_remove(list_of(s, e), e);
		destroy(s, e);
		return;
	}
	if (!e->listed)
		list_append(list_of(s, e), e);
	e->listed = true;
	s->freed++; /* it can be dropped from now on */
	pthread_cond_broadcast(&s->freed_cv);
}

/* From this size on, clearing new pages for a sample costs less than reading again the samples that a run would push
 * out. */
enum { APART_PAGES = (1 << 20) / STAGE_PAGE };

enum { CHANCES_MAX = 1024 }; /* entries looked at one after the other, under the lock: 0.2 ms */

/* Drops one entry: the oldest used one that was not pinned again since it was listed, otherwise (room now) the newest
 * that was read ahead.  Returns false if there is none. */
static bool evict_one(struct stage_samples *s, enum stage_room room)
{
	struct list *list = &s->idle_used;
	struct stage_entry *e;
	unsigned chances = 0;
	while ((e = list->oldest) && (e->pins || (e->again && chances++ < CHANCES_MAX))) {
		list_remove(list, e);
		e->listed = !e->pins; /* if pinned, its last unpin puts it back */
		e->again = false;
		if (e->listed)
			list_append(list, e);
	}
	if (!e && room == STAGE_ROOM_NOW) {
		list = &s->idle_ahead;
		e = list->newest; /* read ahead last, wanted last */
	}
	if (!e)
		return false;
	list_remove(list, e);
	destroy(s, e);
	s->evicted++;
	return true;
}

/* ---- the samples ---- */

int stage_samples_new(const struct shard_index *index, struct stage_space *space, struct stage_samples **ret_samples)
{
	struct stage_samples *s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	uint64_t n_pages = stage_space_arena_bytes(space) / STAGE_PAGE;
	uint32_t n = 1024;
	/* At most one entry in two buckets, even if all samples have one page: a search that finds nothing looks
	 * once. */
	while (n < 2 * n_pages && n < BUCKETS_MAX)
		n *= 2;
	int rc = stage_pages_new(n_pages, &s->pages);
	s->buckets = rc == 0 ? calloc(n, sizeof(struct stage_entry *)) : NULL;
	if (!s->buckets) {
		stage_pages_free(s->pages);
		free(s);
		return rc < 0 ? rc : -ENOMEM;
	}
	s->index = index;
	s->space = space;
	s->n_pages = (uint32_t)n_pages;
	s->bucket_mask = n - 1;
	ask_huge_pages(s->buckets, n * sizeof(struct stage_entry *));
	s->chunk_n = n_pages < CHUNK_ENTRIES ? n_pages : CHUNK_ENTRIES;
	s->chunk_used = s->chunk_n;
	s->awaited = UINT64_MAX;
	pthread_mutex_init(&s->lock, NULL);
	base_cond_init(&s->ready_cv);
	base_cond_init(&s->freed_cv);
	*ret_samples = s;
	return 0;
}

void stage_samples_free(struct stage_samples *s)
{
	if (!s)
		return;
	assert(s->held_pages == 0);
	struct list *lists[] = { &s->idle_used, &s->idle_ahead };
	for (unsigned i = 0; i < 2; i++) {
		while (lists[i]->oldest) {
			struct stage_entry *e = lists[i]->oldest;
			list_remove(lists[i], e);
			destroy(s, e);
		}
	}
	while (s->chunks) {
		struct chunk *chunk = s->chunks;
		s->chunks = chunk->next;
		free(chunk);
	}
	pthread_cond_destroy(&s->ready_cv);
	pthread_cond_destroy(&s->freed_cv);
	pthread_mutex_destroy(&s->lock);
	stage_pages_free(s->pages);
	free(s->buckets);
	free(s);
}

/* Prefetches cache lines of samples ahead of i.  The order is random, so each sample costs the line of its bucket and
 * the two lines of its entry. */
static void approach(struct stage_samples *s, const uint64_t *keys, uint32_t i, uint32_t n)
{
	enum { BUCKET = 16, ENTRY = 8 };
	if (i + BUCKET < n)
		__builtin_prefetch(bucket_of(s, keys[i + BUCKET]));
	struct stage_entry *e = i + ENTRY < n ? *bucket_of(s, keys[i + ENTRY]) : NULL;
	if (e) {
		__builtin_prefetch(e, 1);
		__builtin_prefetch((const char *)e + 64, 1);
	}
}

uint32_t stage_samples_take(struct stage_samples *s, const struct stage_take *take, bool *ret_discarded)
{
	uint32_t i;
	lock_for_scope(&s->lock);
	for (i = 0; i < take->n; i++) {
		approach(s, take->keys, i, take->n);
		struct stage_entry *e = find(s, take->keys[i]);
		if (!e || e->missing)
			break;
		if (e->out && (e->lent || take->lend)) {
			unhash(s, e);
			*ret_discarded = true;
			break;
		}
		pin(s, e);
		e->out++;
		e->used = true;
		e->kept = e->pages <= take->keep_pages;
		take->doubtful[i] = e->lent;
		e->lent |= take->lend;
		take->entries[i] = e;
	}
	return i;
}

void stage_samples_give_back(struct stage_samples *s, struct stage_entry *const *entries, uint32_t n)
{
	lock_for_scope(&s->lock);
	for (uint32_t i = 0; i < n; i++) {
		assert(entries[i]->out > 0);
		entries[i]->out--;
		unpin(s, entries[i]);
	}
	s->freed++;
	pthread_cond_broadcast(&s->freed_cv);
}

void stage_samples_unpin(struct stage_samples *s, struct stage_entry *const *entries, uint32_t n)
{
	lock_for_scope(&s->lock);
	for (uint32_t i = 0; i < n; i++)
		unpin(s, entries[i]);
	s->freed++;
	pthread_cond_broadcast(&s->freed_cv);
}

/* Where an entry lies. */
struct place {
	uint8_t *data;
	uint32_t first_page;
	bool apart;
};

/* Puts an entry apart, if as many pages of the arena are free. */
static bool place_apart(struct stage_samples *s, uint32_t pages, struct place *ret_place)
{
	uint8_t *data = stage_pages_free_pages(s->pages) >= pages ? stage_space_take(s->space, pages) : NULL;
	if (!data)
		return false;
	uint32_t first = stage_pages_lend(s->pages, pages);
	for (uint32_t run = first, n, next; run != STAGE_PAGES_NONE; run = next) {
		n = stage_pages_lent(s->pages, run, &next);
		stage_space_give_up(s->space, run, n);
	}
	*ret_place = (struct place){ .data = data, .first_page = first, .apart = true };
	s->apart++;
	return true;
}

/* Finds room for `pages`.  A large entry (APART_PAGES) goes apart as soon as as many pages are free.  For a small one,
 * entries are dropped until a run is long enough, because that happens soon. */
static bool place(struct stage_samples *s, uint32_t pages, enum stage_room room, struct place *ret_place)
{
	uint32_t first = pages ? stage_pages_get(s->pages, pages) : 0;
	while (first == STAGE_PAGES_NONE) {
		if (pages >= APART_PAGES && place_apart(s, pages, ret_place))
			return true;
		if (!evict_one(s, room))
			return place_apart(s, pages, ret_place);
		first = stage_pages_get(s->pages, pages);
	}
	*ret_place = (struct place){ .data = stage_space_arena(s->space) + (uint64_t)first * STAGE_PAGE,
		.first_page = first };
	return true;
}

/* Makes an entry, pinned once, and takes over the layout.  Under the lock. */
static int make(struct stage_samples *s, struct stage_layout *l, enum stage_room room, bool kept,
        struct stage_entry **ret_entry)
{
	struct place at;
	struct stage_entry *e = entry_new(s);
	uint64_t *claimed = l->n_blocks > 64 ? calloc((l->n_blocks + 63) / 64, sizeof(*claimed)) : NULL;
	if (!e || (l->n_blocks > 64 && !claimed)) {
		if (e)
			entry_free(s, e);
		free(claimed);
		return -ENOMEM;
	}
	if (!place(s, l->pages, room, &at)) {
		entry_free(s, e);
		free(claimed);
		return -ENOBUFS;
	}
	*e = (struct stage_entry){ .key = l->key,
		.data = at.data,
		.sample = l->sample,
		.pages = l->pages,
		.n_parts = l->n_parts,
		.n_blocks = l->n_blocks,
		.one = l->one,
		.first_page = at.first_page,
		.apart = at.apart,
		.pins = 1,
		.missing = l->n_blocks,
		.claimed = claimed,
		.kept = kept };
	e->parts = l->many ? l->many : &e->one;
	l->many = NULL;
	struct stage_entry **bucket = bucket_of(s, e->key);
	e->hash_next = *bucket;
	*bucket = e;
	s->held_pages += e->pages;
	*ret_entry = e;
	return 0;
}

/* Under the lock.  The layout is spent on success. */
static int open_entry(struct stage_samples *s, struct stage_layout *layout, enum stage_room room, bool kept,
        struct stage_entry **ret_entry)
{
	struct stage_entry *e = find(s, layout->key);
	if (!e) {
		int rc = make(s, layout, room, kept, ret_entry);
		s->refused += rc == -ENOBUFS && room == STAGE_ROOM_AHEAD;
		if (rc == -ENOBUFS && s->awaited != UINT64_MAX)
			pthread_cond_broadcast(&s->ready_cv);
		return rc;
	}
	pin(s, e);
	e->kept |= kept;
	stage_layout_done(layout);
	*ret_entry = e;
	return 0;
}

int stage_samples_open(struct stage_samples *s, struct stage_layout *layout, enum stage_room room, bool kept,
        struct stage_entry **ret_entry)
{
	if (layout->pages > s->n_pages)
		return -EFBIG;
	lock_for_scope(&s->lock);
	return open_entry(s, layout, room, kept, ret_entry);
}

static uint64_t *claims(struct stage_entry *e)
{
	return e->claimed ? e->claimed : &e->claimed_few;
}

/* Claims a block and returns where to write it; NULL: it is claimed.  Under the lock. */
static uint8_t *claim(struct stage_entry *e, uint32_t block)
{
	assert(block < e->n_blocks);
	if (!bit_set(claims(e), block))
		return NULL;
	uint32_t part = 0;
	while (part + 1 < e->n_parts && e->parts[part + 1].first_block <= block)
		part++;
	return e->data + e->parts[part].offset + (uint64_t)(block - e->parts[part].first_block) * SHARD_BLOCK;
}

uint8_t *stage_samples_claim(struct stage_samples *s, struct stage_entry *e, uint32_t block)
{
	lock_for_scope(&s->lock);
	return claim(e, block);
}

bool stage_samples_claimed(struct stage_samples *s, struct stage_entry *e, uint32_t block)
{
	lock_for_scope(&s->lock);
	assert(block < e->n_blocks);
	return bit_get(claims(e), block);
}

/* Under the lock. */
static void wrote(struct stage_samples *s, struct stage_entry *e, uint64_t bytes)
{
	assert(e->missing > 0);
	s->came_bytes += bytes;
	if (--e->missing == 0 && s->awaited == e->key)
		pthread_cond_broadcast(&s->ready_cv);
}

void stage_samples_wrote(struct stage_samples *s, struct stage_entry *e, uint64_t bytes)
{
	lock_for_scope(&s->lock);
	wrote(s, e, bytes);
}

int stage_samples_write(struct stage_samples *s, struct stage_layout *layout, uint32_t file, uint32_t block,
        const uint8_t *data, uint32_t len)
{
	struct stage_entry *e = NULL;
	uint8_t *to = NULL;
	if (layout->pages > s->n_pages)
		return -EFBIG;
	pthread_mutex_lock(&s->lock);
	int rc = open_entry(s, layout, STAGE_ROOM_AHEAD, true, &e);
	if (rc == 0) {
		uint32_t part = 0;
		while (part < e->n_parts && e->parts[part].file != file)
			part++;
		if (part < e->n_parts && len == stage_part_block_len(&e->parts[part], block))
			to = claim(e, e->parts[part].first_block + block);
		else
			rc = -EUCLEAN; /* the index contradicts itself, or changes */
	}
	if (to) {
		pthread_mutex_unlock(&s->lock);
		memcpy(to, data, len);
		pthread_mutex_lock(&s->lock);
		wrote(s, e, len);
	}
	if (e)
		unpin(s, e);
	pthread_mutex_unlock(&s->lock);
	return rc;
}

bool stage_samples_ready(struct stage_samples *s, struct stage_entry *e)
{
	lock_for_scope(&s->lock);
	return e->missing == 0;
}

void stage_samples_discard(struct stage_samples *s, struct stage_entry *e)
{
	lock_for_scope(&s->lock);
	if (!e->dead)
		unhash(s, e);
}

void stage_samples_drop(struct stage_samples *s, const uint32_t *ids, uint32_t n)
{
	uint64_t keys[STAGE_DROPS];
	assert(n <= STAGE_DROPS);
	for (uint32_t i = 0; i < n; i++)
		keys[i] = stage_sample_key(ids[i]);
	lock_for_scope(&s->lock);
	for (uint32_t i = 0; i < n; i++) {
		approach(s, keys, i, n);
		struct stage_entry *e = find(s, keys[i]);
		if (e)
			e->kept = false;
		if (e && !e->pins) {
			list_remove(list_of(s, e), e);
			destroy(s, e);
		}
	}
}

void stage_samples_hint(struct stage_samples *s, uint64_t key)
{
	__builtin_prefetch(bucket_of(s, key));
}

enum stage_wait stage_samples_wait(struct stage_samples *s, uint64_t key, uint64_t grace_ns)
{
	enum stage_wait outcome;
	bool quiet = false;
	lock_for_scope(&s->lock);
	uint64_t begin = s->came_bytes, refused = s->refused;
	s->awaited = key;
	for (;;) {
		struct stage_entry *e = find(s, key);
		if (e && !e->missing) {
			outcome = STAGE_WAIT_READY;
			break;
		}
		if (s->refused != refused || s->came_bytes - begin > OVERTAKEN_BYTES) {
			outcome = STAGE_WAIT_PASSED;
			break;
		}
		if (quiet) {
			outcome = STAGE_WAIT_QUIET;
			break;
		}
		uint64_t seen = s->came_bytes;
		int rc = stage_cond_wait_until(&s->ready_cv, &s->lock, base_now_ns() + grace_ns);
		quiet = rc == ETIMEDOUT && s->came_bytes == seen;
	}
	s->awaited = UINT64_MAX;
	return outcome;
}

uint64_t stage_samples_freed(struct stage_samples *s)
{
	lock_for_scope(&s->lock);
	return s->freed;
}

void stage_samples_wait_freed(struct stage_samples *s, uint64_t seen, uint64_t until_ns)
{
	int rc = 0;
	lock_for_scope(&s->lock);
	while (s->freed == seen && rc == 0)
		rc = stage_cond_wait_until(&s->freed_cv, &s->lock, until_ns);
}

void stage_samples_stats_get(struct stage_samples *s, struct stage_samples_stats *ret_stats)
{
	lock_for_scope(&s->lock);
	*ret_stats = (struct stage_samples_stats){
		.used_bytes = stage_pages_used(s->pages) * STAGE_PAGE,
		.held_bytes = s->held_pages * STAGE_PAGE,
		.refused = s->refused,
		.evicted = s->evicted,
		.touched_bytes = stage_pages_touched(s->pages) * STAGE_PAGE,
		.apart = s->apart,
		.apart_bytes = stage_space_apart(s->space) * STAGE_PAGE,
		.came_bytes = s->came_bytes,
	};
}
