/* SPDX-License-Identifier: Apache-2.0 */
/* Announced lists: entries, chunks, and where the reader is; fs/announced_list.h first. */
#include "fs/announced_list.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shard/base/bits.h"
#include "shard/base/cleanup.h"

enum {
	JOIN = 2,          /* an open is sure if one of so many entries before it was used ... */
	JOIN_OPENS = 128,  /* ... at most so many opens ago: the readers side by side go on in turn */
	SURE_WORTH = 2,    /* opens that fit nothing are made good by a sure one */
	NEIGHBOUR = 4,     /* opens in the ring that are at most so far apart are neighbours */
	RECENT_BITS = 10,  /* of the hash of samples that were used lately */
	AGAIN_OPENS = 256, /* a file that is opened again before so many others counts once */
	RING_ENOUGH = 24,  /* the latest opens in the ring that are looked at, and ... */
	RING_SURE = 16,    /* ... so many of them must have a neighbour to move the reader */
	BUCKET_BITS_MIN = 4,
	BUCKET_BITS_MAX = 15,
};

/* The samples of a block, found by hash: turns[starts[b]] .. turns[starts[b + 1] - 1] are the entries of bucket b, in
 * order. Immutable, with a reference count: the chunks that have the block share it. */
struct table {
	atomic_uint refs;
	uint32_t n; /* entries of the block that are in it */
	unsigned bits;
	uint32_t bytes; /* booked */
	uint16_t *turns;
	uint32_t starts[];
};
_Static_assert(FS_ORDER_BLOCK <= UINT16_MAX + 1, "a turn of a block fits 16 bits");

/* Part of a list: immutable, with a reference count. */
struct chunk {
	atomic_uint refs;
	struct fs_order_memory *memory;
	uint64_t number;
	uint64_t n; /* entries */
	uint32_t n_blocks;
	uint32_t blocks[FS_ANNOUNCED_CHUNK_BLOCKS]; /* a reference each */
	struct table *tables[FS_ANNOUNCED_CHUNK_BLOCKS];
};

struct fs_announced_list {
	struct fs_order_memory *memory;
	char name[FS_HANDOVER_LIST_NAME];
	uint32_t id;
	uint32_t n_samples;
	uint64_t chunk_entries;
	uint32_t chunk_blocks;
	/* The caller's lock: */
	uint32_t *blocks; /* of entries [first, end), a reference each */
	size_t n_blocks, room;
	uint64_t first, end;
	/* The recognise thread: */
	struct chunk *chunks[FS_ANNOUNCED_CHUNKS]; /* by number modulo; NULL: none */
	uint64_t *used[FS_ANNOUNCED_CHUNKS];       /* one bit for each entry of these chunks */
	struct fs_announced_state state;
	uint64_t bad;    /* opens that fit nothing, less those that were made good */
	uint64_t astray; /* the same of opens whose samples the list has */
	struct {
		uint32_t sample;
		uint64_t open; /* opens when it was used; 0: never */
	} recent[1 << RECENT_BITS];
	uint64_t opens;
	uint64_t ring[FS_ANNOUNCED_RING]; /* places of the latest opens that fit elsewhere */
	uint64_t ring_n;

	pthread_mutex_t lock;                     /* a leaf; guards: */
	struct chunk *known[FS_ANNOUNCED_CHUNKS]; /* what the engine may ask for; a reference each */
};

/* ---- tables ---- */

static uint32_t bucket_of(uint32_t sample, unsigned bits)
{
	return (sample * UINT32_C(0x9E3779B1)) >> (32 - bits);
}

static void table_put(struct fs_order_memory *memory, struct table *table)
{
	if (!table || atomic_fetch_sub(&table->refs, 1) > 1)
		return;
	fs_order_memory_book(memory, -(int64_t)table->bytes);
	free(table->turns);
	free(table);
}

/* A counting sort by bucket, which keeps the order within a bucket. */
static int table_new(struct fs_order_memory *memory, const uint32_t *samples, uint32_t n, struct table **ret_table)
{
	unsigned bits = BUCKET_BITS_MIN;
	while (bits < BUCKET_BITS_MAX && UINT32_C(1) << bits < n)
		bits++;
	size_t buckets = (size_t)1 << bits;
	size_t size = sizeof(struct table) + (buckets + 1) * sizeof(uint32_t);
	uint32_t bytes = (uint32_t)(size + n * sizeof(uint16_t));
	struct table *table = calloc(1, size);
	uint16_t *turns = malloc(n * sizeof(*turns));
	if (!table || !turns) {
		free(table);
		free(turns);
		return -ENOMEM;
	}
	fs_order_memory_book(memory, bytes);
	atomic_init(&table->refs, 1);
	table->n = n;
	table->bits = bits;
	table->bytes = bytes;
	table->turns = turns;
	uint32_t *starts = table->starts;
	for (uint32_t i = 0; i < n; i++)
		starts[bucket_of(samples[i], bits)]++;
	uint32_t end = 0;
	for (size_t b = 0; b <= buckets; b++) {
		end += starts[b];
		starts[b] = end; /* the end of bucket b; it moves to the start as entries come, from the last one on */
	}
	for (uint32_t i = n; i-- > 0;)
		turns[--starts[bucket_of(samples[i], bits)]] = (uint16_t)i;
	*ret_table = table;
	return 0;
}

/* Finds the first entry of a sample at or behind `from`. Returns n if there is none. */
static uint32_t table_find(const struct table *table, const uint32_t *samples, uint32_t sample, uint32_t from)
{
	uint32_t bucket = bucket_of(sample, table->bits);
	uint32_t low = table->starts[bucket], end = table->starts[bucket + 1], high = end;
	while (from > 0 && low < high) {
		uint32_t mid = low + (high - low) / 2;
		if (table->turns[mid] < from)
			low = mid + 1;
		else
			high = mid;
	}
	for (; low < end; low++) {
		if (samples[table->turns[low]] == sample)
			return table->turns[low];
	}
	return table->n;
}

/* ---- chunks ---- */

static void chunk_put(struct chunk *chunk)
{
	if (!chunk || atomic_fetch_sub(&chunk->refs, 1) > 1)
		return;
	for (uint32_t i = 0; i < chunk->n_blocks; i++) {
		table_put(chunk->memory, chunk->tables[i]);
		fs_order_memory_put(chunk->memory, chunk->blocks[i]);
	}
	free(chunk);
}

static struct chunk *chunk_get(struct chunk *chunk)
{
	if (chunk)
		atomic_fetch_add(&chunk->refs, 1);
	return chunk;
}

static uint32_t chunk_sample(const struct chunk *chunk, uint64_t turn)
{
	return fs_order_memory_entries(chunk->memory, chunk->blocks[turn / FS_ORDER_BLOCK])[turn % FS_ORDER_BLOCK];
}

static bool chunk_find(const struct chunk *chunk, uint32_t sample, uint64_t from, uint64_t *ret_turn)
{
	uint32_t start = (uint32_t)(from % FS_ORDER_BLOCK);
	for (uint64_t block = from / FS_ORDER_BLOCK; block < chunk->n_blocks; block++, start = 0) {
		const struct table *table = chunk->tables[block];
		const uint32_t *samples = fs_order_memory_entries(chunk->memory, chunk->blocks[block]);
		uint32_t turn = table_find(table, samples, sample, start);
		if (turn < table->n) {
			*ret_turn = block * FS_ORDER_BLOCK + turn;
			return true;
		}
	}
	return false;
}

/* Makes the chunk `number` of the list, as it is now. old: a shorter version of it, or NULL, whose tables it shares. */
static int chunk_new(const struct fs_announced_list *list, uint64_t number, uint64_t n, const struct chunk *old,
        struct chunk **ret_chunk)
{
	struct chunk *chunk = calloc(1, sizeof(*chunk));
	if (!chunk)
		return -ENOMEM;
	atomic_init(&chunk->refs, 1);
	chunk->memory = list->memory;
	chunk->number = number;
	chunk->n = n;
	uint64_t first = (number * list->chunk_entries - list->first) / FS_ORDER_BLOCK;
	int rc = 0;
	for (uint64_t at = 0; at < n && rc == 0; at += FS_ORDER_BLOCK) {
		uint32_t i = chunk->n_blocks, m = (uint32_t)(n - at < FS_ORDER_BLOCK ? n - at : FS_ORDER_BLOCK);
		uint32_t block = list->blocks[first + i];
		if (old && i < old->n_blocks && old->tables[i]->n == m) {
			chunk->tables[i] = old->tables[i];
			atomic_fetch_add(&chunk->tables[i]->refs, 1);
		} else {
			rc = table_new(
			        list->memory, fs_order_memory_entries(list->memory, block), m, &chunk->tables[i]);
		}
		if (rc < 0)
			break;
		fs_order_memory_get(list->memory, block);
		chunk->blocks[i] = block;
		chunk->n_blocks++;
	}
	if (rc < 0) {
		chunk_put(chunk);
		return rc;
	}
	*ret_chunk = chunk;
	return 0;
}

/* ---- life ---- */

int fs_announced_list_new(const struct fs_announced_list_options *options, struct fs_announced_list **ret_list)
{
	struct fs_announced_list *list = calloc(1, sizeof(*list));
	if (!list)
		return -ENOMEM;
	list->memory = options->memory;
	snprintf(list->name, sizeof(list->name), "%s", options->name);
	list->id = options->id;
	list->n_samples = options->n_samples;
	list->chunk_blocks = options->chunk_blocks;
	list->chunk_entries = (uint64_t)options->chunk_blocks * FS_ORDER_BLOCK;
	pthread_mutex_init(&list->lock, NULL);
	*ret_list = list;
	return 0;
}

void fs_announced_list_free(struct fs_announced_list *list)
{
	if (!list)
		return;
	for (unsigned i = 0; i < FS_ANNOUNCED_CHUNKS; i++) {
		chunk_put(list->known[i]);
		chunk_put(list->chunks[i]);
		free(list->used[i]);
	}
	for (size_t i = 0; i < list->n_blocks; i++)
		fs_order_memory_put(list->memory, list->blocks[i]);
	free(list->blocks);
	pthread_mutex_destroy(&list->lock);
	free(list);
}

void fs_announced_list_leave(struct fs_announced_list *list)
{
	list->n_blocks = 0; /* their references stay, so nobody frees them */
	fs_announced_list_free(list);
}

static int add_block(uint32_t **blocks, size_t *n, size_t *room, uint32_t block)
{
	if (*n == *room) {
		size_t more = *room ? *room * 2 : 8;
		uint32_t *bigger = realloc(*blocks, more * sizeof(*bigger));
		if (!bigger)
			return -ENOMEM;
		*blocks = bigger;
		*room = more;
	}
	(*blocks)[(*n)++] = block;
	return 0;
}

/* Returns whether all entries [from, to) of a block are samples. */
static bool are_samples(const struct fs_announced_list *list, uint32_t block, uint32_t from, uint32_t to)
{
	const uint32_t *entries = fs_order_memory_entries(list->memory, block);
	for (uint32_t i = from; i < to; i++) {
		if (entries[i] >= list->n_samples)
			return false;
	}
	return true;
}

int fs_announced_list_restore(const struct fs_announced_list_options *options, const struct fs_handover_list *record,
        struct fs_announced_list **ret_list)
{
	struct fs_announced_list *list;
	struct fs_announced_list_options own = *options;
	uint64_t last = (record->end - 1) / FS_ORDER_BLOCK, chunk_blocks = record->chunk / FS_ORDER_BLOCK;
	if (record->end == 0 || record->chunk % FS_ORDER_BLOCK || chunk_blocks == 0 ||
	        chunk_blocks > FS_ANNOUNCED_CHUNK_BLOCKS || record->first % record->chunk ||
	        record->place >= record->end || record->first > record->place ||
	        last - record->first / FS_ORDER_BLOCK >= FS_HANDOVER_BLOCKS_MAX || last > UINT32_MAX)
		return -ENODATA;
	own.chunk_blocks = (uint32_t)chunk_blocks;
	int rc = fs_announced_list_new(&own, &list);
	if (rc < 0)
		return rc;
	list->first = record->first;
	for (uint64_t number = list->first / FS_ORDER_BLOCK; rc == 0 && number <= last; number++) {
		uint32_t block, n = FS_ORDER_BLOCK;
		rc = fs_order_memory_claim(list->memory, list->id, (uint32_t)number, &block);
		if (rc < 0)
			break;
		rc = add_block(&list->blocks, &list->n_blocks, &list->room, block);
		if (rc < 0)
			fs_order_memory_put(list->memory, block);
		if (number == last)
			n = (uint32_t)(record->end - last * FS_ORDER_BLOCK);
		if (rc == 0 && !are_samples(list, block, 0, n))
			rc = -ENODATA;
	}
	if (rc < 0) {
		fs_announced_list_free(list);
		return rc == -ENOMEM ? rc : -ENODATA;
	}
	list->end = list->state.end = record->end;
	list->state.cursor = list->state.high = record->place;
	*ret_list = list;
	return 0;
}

void fs_announced_list_save(const struct fs_announced_list *list, uint32_t number)
{
	struct fs_handover_list record = {
		.id = list->id,
		.first = list->first,
		.end = list->end,
		.place = list->state.cursor,
		.chunk = list->chunk_entries,
	};
	memcpy(record.name, list->name, sizeof(record.name));
	fs_handover_store_list(fs_order_memory_records(list->memory), number, &record);
}

const char *fs_announced_list_name(const struct fs_announced_list *list)
{
	return list->name;
}

void fs_announced_list_state(const struct fs_announced_list *list, struct fs_announced_state *ret_state)
{
	*ret_state = list->state;
	ret_state->end = list->end;
}

/* ---- entries ---- */

void fs_announced_piece_begin(struct fs_announced_list *list, struct fs_announced_piece *ret_piece)
{
	*ret_piece = (struct fs_announced_piece){ .list = list, .end = list->end };
	if (list->n_blocks > 0)
		ret_piece->last = list->blocks[list->n_blocks - 1];
}

int fs_announced_piece_add(struct fs_announced_piece *piece, const uint32_t *samples, size_t n)
{
	struct fs_announced_list *list = piece->list;
	while (n > 0) {
		uint32_t block, at = (uint32_t)(piece->end % FS_ORDER_BLOCK);
		if (at == 0) {
			int rc = fs_order_memory_take(
			        list->memory, list->id, (uint32_t)(piece->end / FS_ORDER_BLOCK), &block);
			if (rc < 0)
				return rc;
			rc = add_block(&piece->blocks, &piece->n_blocks, &piece->room, block);
			if (rc < 0) {
				fs_order_memory_put(list->memory, block);
				return rc;
			}
		} else {
			block = piece->n_blocks ? piece->blocks[piece->n_blocks - 1] : piece->last;
		}
		size_t some = n < FS_ORDER_BLOCK - at ? n : FS_ORDER_BLOCK - at;
		memcpy(fs_order_memory_entries(list->memory, block) + at, samples, some * sizeof(*samples));
		samples += some;
		piece->end += some;
		n -= some;
	}
	return 0;
}

void fs_announced_piece_undo(struct fs_announced_piece *piece)
{
	for (size_t i = 0; i < piece->n_blocks; i++)
		fs_order_memory_put(piece->list->memory, piece->blocks[i]);
	free(piece->blocks);
	*piece = (struct fs_announced_piece){ 0 };
}

int fs_announced_list_commit(struct fs_announced_piece *piece)
{
	struct fs_announced_list *list = piece->list;
	size_t want = list->n_blocks + piece->n_blocks;
	if (want > list->room) {
		uint32_t *bigger = realloc(list->blocks, 2 * want * sizeof(*bigger));
		if (!bigger)
			return -ENOMEM;
		list->blocks = bigger;
		list->room = 2 * want;
	}
	if (piece->n_blocks)
		memcpy(list->blocks + list->n_blocks, piece->blocks, piece->n_blocks * sizeof(*piece->blocks));
	list->n_blocks = want;
	list->end = piece->end;
	free(piece->blocks);
	*piece = (struct fs_announced_piece){ 0 };
	return 0;
}

/* ---- chunks in use ---- */

/* Returns the chunk that is in use, or NULL. */
static struct chunk *chunk_at(const struct fs_announced_list *list, uint64_t number)
{
	struct chunk *chunk = list->chunks[number % FS_ANNOUNCED_CHUNKS];
	return chunk && chunk->number == number ? chunk : NULL;
}

/* Replaces what is in use at `number`; chunk NULL: nothing is. */
static void set_chunk(struct fs_announced_list *list, uint64_t number, struct chunk *chunk)
{
	unsigned i = number % FS_ANNOUNCED_CHUNKS;
	struct chunk *known;
	{
		lock_for_scope(&list->lock);
		known = list->known[i];
		list->known[i] = chunk_get(chunk);
	}
	chunk_put(known);
	chunk_put(list->chunks[i]);
	list->chunks[i] = chunk;
}

/* The reader has left the chunks before `oldest`. */
static void give_back(struct fs_announced_list *list, uint64_t oldest)
{
	for (unsigned i = 0; i < FS_ANNOUNCED_CHUNKS; i++) {
		if (list->chunks[i] && list->chunks[i]->number < oldest)
			set_chunk(list, i, NULL);
	}
	uint64_t first = oldest * list->chunk_entries;
	if (first <= list->first)
		return;
	size_t n = (size_t)((first - list->first) / FS_ORDER_BLOCK);
	for (size_t i = 0; i < n; i++)
		fs_order_memory_put(list->memory, list->blocks[i]);
	list->n_blocks -= n;
	memmove(list->blocks, list->blocks + n, list->n_blocks * sizeof(*list->blocks));
	list->first = first;
}

int fs_announced_list_build(struct fs_announced_list *list)
{
	uint64_t at = list->state.cursor / list->chunk_entries;
	/* Behind a reader at the beginning of a chunk, late workers may still read the one before. */
	uint64_t oldest = list->state.cursor % list->chunk_entries < FS_ANNOUNCED_BEHIND && at > 0 ? at - 1 : at;
	bool changed = false;
	if (oldest * list->chunk_entries < list->first)
		oldest = list->first / list->chunk_entries; /* `first` is the beginning of a chunk */
	give_back(list, oldest);
	for (uint64_t number = oldest; number < oldest + FS_ANNOUNCED_CHUNKS; number++) {
		uint64_t begin = number * list->chunk_entries, n;
		if (begin >= list->end)
			break;
		n = list->end - begin < list->chunk_entries ? list->end - begin : list->chunk_entries;
		struct chunk *old = chunk_at(list, number), *chunk;
		if (old && old->n == n)
			continue;
		if (!old) {
			uint64_t *used = bits_new(list->chunk_entries);
			if (!used)
				return -ENOMEM;
			free(list->used[number % FS_ANNOUNCED_CHUNKS]);
			list->used[number % FS_ANNOUNCED_CHUNKS] = used;
		}
		int rc = chunk_new(list, number, n, old, &chunk);
		if (rc < 0)
			return rc;
		set_chunk(list, number, chunk);
		changed = true;
	}
	list->state.end = list->end;
	return changed;
}

/* ---- what the engine asks ---- */

static int given_get(void *user, uint64_t number, void **ret_epoch, uint64_t *ret_turns)
{
	struct fs_announced_list *list = user;
	lock_for_scope(&list->lock);
	struct chunk *chunk = list->known[number % FS_ANNOUNCED_CHUNKS];
	chunk = chunk && chunk->number == number ? chunk_get(chunk) : NULL;
	if (!chunk)
		return -ENODATA;
	*ret_epoch = chunk;
	*ret_turns = chunk->n;
	return 0;
}

static void given_put(void *epoch)
{
	chunk_put(epoch);
}

static int given_turn(void *epoch, uint64_t turn, uint32_t *ret_sample)
{
	*ret_sample = chunk_sample(epoch, turn);
	return 0;
}

static int given_find_from(void *epoch, uint32_t sample, uint64_t from, uint64_t *ret_turn)
{
	return chunk_find(epoch, sample, from, ret_turn) ? 0 : -ENOENT;
}

static int given_find(void *epoch, uint32_t sample, uint64_t *ret_turn)
{
	return given_find_from(epoch, sample, 0, ret_turn);
}

void fs_announced_list_given(struct fs_announced_list *list, struct shard_view_given *ret_given)
{
	*ret_given = (struct shard_view_given){
		.user = list,
		.get = given_get,
		.put = given_put,
		.turn = given_turn,
		.find = given_find,
		.find_from = given_find_from,
	};
}

void fs_announced_list_turn(
        const struct fs_announced_list *list, uint64_t place, uint64_t *ret_epoch, uint64_t *ret_turn)
{
	*ret_epoch = place / list->chunk_entries;
	*ret_turn = place % list->chunk_entries;
}

/* ---- the reader ---- */

static bool is_used(const struct fs_announced_list *list, uint64_t place)
{
	if (place < list->state.cursor)
		return true;
	return chunk_at(list, place / list->chunk_entries) &&
	       bit_get(list->used[place / list->chunk_entries % FS_ANNOUNCED_CHUNKS], place % list->chunk_entries);
}

static void set_used(struct fs_announced_list *list, uint64_t place, bool used)
{
	if (!chunk_at(list, place / list->chunk_entries))
		return;
	uint64_t *map = list->used[place / list->chunk_entries % FS_ANNOUNCED_CHUNKS];
	if (used)
		bit_set(map, place % list->chunk_entries);
	else
		bit_clear(map, place % list->chunk_entries);
}

/* Finds the first place of a sample in [from, to). */
static bool find_place(
        const struct fs_announced_list *list, uint32_t sample, uint64_t from, uint64_t to, uint64_t *ret_place)
{
	uint64_t turn, start = from % list->chunk_entries;
	for (uint64_t number = from / list->chunk_entries; number * list->chunk_entries < to; number++, start = 0) {
		const struct chunk *chunk = chunk_at(list, number);
		if (!chunk || !chunk_find(chunk, sample, start, &turn))
			continue;
		*ret_place = number * list->chunk_entries + turn;
		return *ret_place < to;
	}
	return false;
}

static bool find_unused(
        const struct fs_announced_list *list, uint32_t sample, uint64_t from, uint64_t to, uint64_t *ret_place)
{
	while (find_place(list, sample, from, to, ret_place)) {
		if (!is_used(list, *ret_place))
			return true;
		from = *ret_place + 1;
	}
	return false;
}

/* Whether a sample was used at most so many opens ago. */
static bool lately(const struct fs_announced_list *list, uint32_t sample, uint64_t opens)
{
	unsigned i = bucket_of(sample, RECENT_BITS);
	return list->recent[i].open > 0 && list->recent[i].sample == sample &&
	       list->opens - list->recent[i].open < opens;
}

/* Whether an entry just before this one was used a moment ago. The first open of all joins nothing. */
static bool joins(const struct fs_announced_list *list, uint64_t place)
{
	for (uint64_t k = 1; k <= JOIN && k <= place; k++) {
		const struct chunk *chunk = chunk_at(list, (place - k) / list->chunk_entries);
		if (chunk && is_used(list, place - k) &&
		        lately(list, chunk_sample(chunk, (place - k) % list->chunk_entries), JOIN_OPENS))
			return true;
	}
	return false;
}

enum fs_announced_fit fs_announced_list_fit(const struct fs_announced_list *list, uint32_t sample, uint64_t *ret_place)
{
	const struct fs_announced_state *s = &list->state;
	bool again = lately(list, sample, AGAIN_OPENS);
	if (!find_unused(list, sample, s->cursor, s->high + FS_ANNOUNCED_AHEAD, ret_place))
		return again ? FS_ANNOUNCED_AGAIN : FS_ANNOUNCED_ELSEWHERE;
	if (joins(list, *ret_place))
		return FS_ANNOUNCED_SURELY;
	return again ? FS_ANNOUNCED_AGAIN : FS_ANNOUNCED_LOOSE;
}

/* Entries far behind the farthest one are not expected to be opened. */
static void advance(struct fs_announced_list *list)
{
	struct fs_announced_state *s = &list->state;
	uint64_t least = s->high > FS_ANNOUNCED_BEHIND ? s->high - FS_ANNOUNCED_BEHIND : 0;
	if (s->cursor < least)
		s->cursor = least;
	while (s->cursor < s->high && chunk_at(list, s->cursor / list->chunk_entries) && is_used(list, s->cursor))
		s->cursor++;
}

static void book_use(struct fs_announced_list *list, uint64_t place)
{
	struct fs_announced_state *s = &list->state;
	const struct chunk *chunk = chunk_at(list, place / list->chunk_entries);
	if (!chunk)
		return;
	uint32_t sample = chunk_sample(chunk, place % list->chunk_entries);
	unsigned i = bucket_of(sample, RECENT_BITS);
	set_used(list, place, true);
	list->recent[i].sample = sample;
	list->recent[i].open = ++list->opens;
	s->used++;
	if (place >= s->high)
		s->high = place + 1;
}

/* A reader of a confirmed list may pause while others read. But if it reads the list's files and none of them where it
 * should, it has another order. */
static void judge(struct fs_announced_list *list)
{
	struct fs_announced_state *s = &list->state;
	s->wrong = list->bad >= (s->confirmed ? FS_ANNOUNCED_LOST : FS_ANNOUNCED_DOUBT) ||
	           list->astray >= FS_ANNOUNCED_ASTRAY;
}

void fs_announced_list_use(struct fs_announced_list *list, uint64_t place, bool sure)
{
	struct fs_announced_state *s = &list->state;
	book_use(list, place);
	advance(list);
	s->sure += sure;
	s->loose += !sure;
	if (sure) {
		list->bad = list->bad > SURE_WORTH ? list->bad - SURE_WORTH : 0;
		list->astray = list->astray > SURE_WORTH ? list->astray - SURE_WORTH : 0;
	} else {
		list->bad++;
		list->astray++;
	}
	s->confirmed |= s->sure >= FS_ANNOUNCED_SURE && s->sure >= 2 * s->loose;
	judge(list);
}

/* Counts the latest opens in the ring that have a neighbour there, and finds where they lie. */
static unsigned neighbours(const struct fs_announced_list *list, uint64_t *ret_low, uint64_t *ret_high)
{
	unsigned found = 0;
	*ret_low = UINT64_MAX;
	*ret_high = 0;
	for (unsigned i = 1; i <= RING_ENOUGH; i++) {
		uint64_t place = list->ring[(list->ring_n - i) % FS_ANNOUNCED_RING];
		bool near = false;
		for (unsigned k = 1; k <= RING_ENOUGH && !near; k++) {
			uint64_t other = list->ring[(list->ring_n - k) % FS_ANNOUNCED_RING];
			near = k != i && other != place && other + NEIGHBOUR >= place && other <= place + NEIGHBOUR;
		}
		if (!near)
			continue;
		found++;
		*ret_low = place < *ret_low ? place : *ret_low;
		*ret_high = place > *ret_high ? place : *ret_high;
	}
	return found;
}

/* Finds where else in the list the sample comes: near the latest such open, or from the beginning on. */
static bool find_elsewhere(const struct fs_announced_list *list, uint32_t sample, uint64_t *ret_place)
{
	uint64_t from = UINT64_MAX, latest;
	for (unsigned i = 0; i < FS_ANNOUNCED_CHUNKS; i++) {
		if (list->chunks[i] && list->chunks[i]->number * list->chunk_entries < from)
			from = list->chunks[i]->number * list->chunk_entries;
	}
	if (from == UINT64_MAX)
		return false;
	if (list->ring_n > 0) {
		latest = list->ring[(list->ring_n - 1) % FS_ANNOUNCED_RING];
		if (find_place(list, sample, latest > NEIGHBOUR ? latest - NEIGHBOUR : 0, latest + FS_ANNOUNCED_AHEAD,
		            ret_place))
			return true;
	}
	return find_place(list, sample, from, list->state.end, ret_place);
}

bool fs_announced_list_missed(
        struct fs_announced_list *list, uint32_t sample, uint64_t places[FS_ANNOUNCED_RING], size_t *ret_n)
{
	struct fs_announced_state *s = &list->state;
	uint64_t place, low, high;
	bool has = find_elsewhere(list, sample, &place);
	list->bad++;
	list->astray += has;
	judge(list);
	if (!has)
		return false;
	list->ring[list->ring_n++ % FS_ANNOUNCED_RING] = place;
	if (list->ring_n < RING_ENOUGH || neighbours(list, &low, &high) < RING_SURE ||
	        high - low >= FS_ANNOUNCED_BEHIND)
		return false;
	for (uint64_t p = low; p < (s->high > high ? s->high : high + 1); p++)
		set_used(list, p, false);
	s->cursor = low;
	s->high = low;
	s->moves++;
	*ret_n = 0;
	for (unsigned i = RING_ENOUGH; i >= 1; i--) {
		place = list->ring[(list->ring_n - i) % FS_ANNOUNCED_RING];
		if (place < low || place > high || is_used(list, place))
			continue;
		book_use(list, place);
		places[(*ret_n)++] = place;
	}
	advance(list);
	list->ring_n = 0;
	list->bad = list->astray = 0;
	s->wrong = false;
	return true;
}
