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
	RING = 256,        /* opens in the ring: of up to 32 readers each the latest 8 */
	RUN_JOINS = 2,     /* a worker begins a batch far ahead: so many opens in a row */
	RUN_ENOUGH = 8,    /* another reader is elsewhere: so many opens in a row, while ... */
	GOES_ON = 4,       /* ... the reader of the list made so many sure ones */
	RUN_PAUSE = 128,   /* sure opens between two of a run at most */
	BUFFERS = 16,      /* a shuffle buffer holds e^-16 of its files for longer than so many times its size */
};
_Static_assert((int)RING_ENOUGH <= (int)FS_ANNOUNCED_RING && (int)RUN_ENOUGH <= (int)FS_ANNOUNCED_RING,
        "the places of the opens that move a reader are told");

static const uint64_t NOWHERE = UINT64_MAX; /* the place of an entry of the ring that counts no more */

/* Opens of one reader in a row, each at most NEIGHBOUR entries behind the one before. */
struct run {
	uint64_t first, last; /* places */
	unsigned n;           /* opens; 0: there is no run */
	uint64_t sure;        /* sure opens of the list before the first of them */
};

struct fs_announced_list {
	struct fs_order_memory *memory;
	char name[FS_HANDOVER_LIST_NAME];
	uint32_t id;
	uint32_t n_samples;
	uint64_t buffer;
	uint64_t empty_at; /* the shuffle buffer was empty when the reader was at this place */
	uint64_t chunk_entries;
	uint32_t chunk_blocks;
	/* The caller's lock: */
	uint32_t *blocks; /* of entries [first, end), a reference each */
	size_t n_blocks, room;
	uint64_t first, begin, end; /* begin: of this part of the list; entries before it are another part's */
	/* The recognise thread: */
	struct fs_announced_chunk *chunks[FS_ANNOUNCED_CHUNKS]; /* by number modulo; NULL: none */
	uint64_t *used[FS_ANNOUNCED_CHUNKS];                    /* one bit for each entry of these chunks */
	struct fs_announced_state state;
	uint64_t bad;    /* opens that fit nothing, less those that were made good */
	uint64_t astray; /* the same of opens whose samples the list has */
	struct {
		uint32_t sample;
		uint64_t open; /* opens when it was used; 0: never */
	} recent[1 << RECENT_BITS];
	uint64_t opens;
	uint64_t latest; /* the place that fs_announced_list_use booked last */
	struct {
		uint64_t place, sure; /* sure: opens of the list until then */
	} ring[RING];                 /* the latest opens that fit elsewhere */
	uint64_t ring_n;
	uint64_t left, left_opens; /* where the reader was when it was moved, and `opens` then */
	uint64_t moved_to;         /* where it was moved to */
	uint64_t soon;             /* the lowest place in the ring that the reader has not reached; NOWHERE: none */
	struct run other;          /* of a second reader */

	pthread_mutex_t lock;                                  /* a leaf; guards: */
	struct fs_announced_chunk *known[FS_ANNOUNCED_CHUNKS]; /* what the engine may ask for; a reference each */
};

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
	list->buffer = options->buffer;
	list->chunk_blocks = options->chunk_blocks;
	list->chunk_entries = (uint64_t)options->chunk_blocks * FS_ORDER_BLOCK;
	list->soon = NOWHERE;
	pthread_mutex_init(&list->lock, NULL);
	*ret_list = list;
	return 0;
}

void fs_announced_list_free(struct fs_announced_list *list)
{
	if (!list)
		return;
	for (unsigned i = 0; i < FS_ANNOUNCED_CHUNKS; i++) {
		fs_announced_chunk_put(list->known[i]);
		fs_announced_chunk_put(list->chunks[i]);
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
	if (record->end == 0 || record->begin > record->place || record->buffer > FS_ANNOUNCED_BUFFER_MAX ||
	        record->chunk % FS_ORDER_BLOCK || chunk_blocks == 0 || chunk_blocks > FS_ANNOUNCED_CHUNK_BLOCKS ||
	        record->first % record->chunk || record->place > record->high || record->high > record->end ||
	        record->first > record->place || last - record->first / FS_ORDER_BLOCK >= FS_HANDOVER_BLOCKS_MAX ||
	        last > UINT32_MAX)
		return -ENODATA;
	own.chunk_blocks = (uint32_t)chunk_blocks;
	own.buffer = record->buffer;
	int rc = fs_announced_list_new(&own, &list);
	if (rc < 0)
		return rc;
	list->first = record->first;
	list->begin = record->begin;
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
	list->empty_at = record->place;
	if (list->buffer > 0)
		list->state.high = record->high; /* what is opened next lies around it, far from the cursor */
	*ret_list = list;
	return 0;
}

void fs_announced_list_save(const struct fs_announced_list *list, uint32_t number)
{
	struct fs_handover_list record = {
		.id = list->id,
		.first = list->first,
		.begin = list->begin,
		.end = list->end,
		.place = list->state.cursor,
		.high = list->state.high,
		.chunk = list->chunk_entries,
		.buffer = list->buffer,
	};
	memcpy(record.name, list->name, sizeof(record.name));
	fs_handover_store_list(fs_order_memory_records(list->memory), number, &record);
}

uint32_t fs_announced_list_id(const struct fs_announced_list *list)
{
	return list->id;
}

uint64_t fs_announced_list_buffer(const struct fs_announced_list *list)
{
	return list->buffer;
}

const char *fs_announced_list_name(const struct fs_announced_list *list)
{
	return list->name;
}

static bool other_is_ahead(const struct fs_announced_list *list)
{
	return list->other.first > list->state.high && list->other.last + 1 < list->end;
}

/* Its entries must not have been given back, and the reader must have entries left. */
static bool other_is_behind(const struct fs_announced_list *list)
{
	uint64_t cursor = list->state.cursor;
	return list->other.first >= list->first && list->other.last < cursor && cursor < list->end;
}

void fs_announced_list_state(const struct fs_announced_list *list, struct fs_announced_state *ret_state)
{
	*ret_state = list->state;
	ret_state->end = list->end;
	ret_state->apart = list->state.apart && (other_is_ahead(list) || other_is_behind(list));
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
static struct fs_announced_chunk *chunk_at(const struct fs_announced_list *list, uint64_t number)
{
	struct fs_announced_chunk *chunk = list->chunks[number % FS_ANNOUNCED_CHUNKS];
	return chunk && chunk->number == number ? chunk : NULL;
}

/* Replaces what is in use at `number`; chunk NULL: nothing is. */
static void set_chunk(struct fs_announced_list *list, uint64_t number, struct fs_announced_chunk *chunk)
{
	unsigned i = number % FS_ANNOUNCED_CHUNKS;
	struct fs_announced_chunk *known;
	{
		lock_for_scope(&list->lock);
		known = list->known[i];
		list->known[i] = fs_announced_chunk_get(chunk);
	}
	fs_announced_chunk_put(known);
	fs_announced_chunk_put(list->chunks[i]);
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
		struct fs_announced_chunk *old = chunk_at(list, number), *chunk;
		if (old && old->n == n)
			continue;
		if (!old) {
			uint64_t *used = bits_new(list->chunk_entries);
			if (!used)
				return -ENOMEM;
			free(list->used[number % FS_ANNOUNCED_CHUNKS]);
			list->used[number % FS_ANNOUNCED_CHUNKS] = used;
		}
		const uint32_t *blocks = list->blocks + (begin - list->first) / FS_ORDER_BLOCK;
		int rc = fs_announced_chunk_new(list->memory, number, blocks, n, old, &chunk);
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
	struct fs_announced_chunk *chunk = list->known[number % FS_ANNOUNCED_CHUNKS];
	chunk = chunk && chunk->number == number ? fs_announced_chunk_get(chunk) : NULL;
	if (!chunk)
		return -ENODATA;
	*ret_epoch = chunk;
	*ret_turns = chunk->n;
	return 0;
}

static void given_put(void *epoch)
{
	fs_announced_chunk_put(epoch);
}

static int given_turn(void *epoch, uint64_t turn, uint32_t *ret_sample)
{
	*ret_sample = fs_announced_chunk_sample(epoch, turn);
	return 0;
}

static int given_find_from(void *epoch, uint32_t sample, uint64_t from, uint64_t *ret_turn)
{
	return fs_announced_chunk_find(epoch, sample, from, ret_turn) ? 0 : -ENOENT;
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
		const struct fs_announced_chunk *chunk = chunk_at(list, number);
		if (!chunk || !fs_announced_chunk_find(chunk, sample, start, &turn))
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

static unsigned recent_of(uint32_t sample)
{
	return (sample * UINT32_C(0x9E3779B1)) >> (32 - RECENT_BITS);
}

/* Whether a sample was used at most so many opens ago. */
static bool lately(const struct fs_announced_list *list, uint32_t sample, uint64_t opens)
{
	unsigned i = recent_of(sample);
	return list->recent[i].open > 0 && list->recent[i].sample == sample &&
	       list->opens - list->recent[i].open < opens;
}

/* Gets the sample of an entry. Returns false if its chunk is not in use. */
static bool sample_at(const struct fs_announced_list *list, uint64_t place, uint32_t *ret_sample)
{
	const struct fs_announced_chunk *chunk = chunk_at(list, place / list->chunk_entries);
	uint64_t turn = place % list->chunk_entries;
	if (!chunk || turn >= chunk->n)
		return false;
	*ret_sample = fs_announced_chunk_sample(chunk, turn);
	return true;
}

/* Whether an entry just before this one was used a moment ago. The first open of all joins nothing. */
static bool joins(const struct fs_announced_list *list, uint64_t place)
{
	uint32_t sample;
	for (uint64_t k = 1; k <= JOIN && k <= place; k++) {
		if (is_used(list, place - k) && sample_at(list, place - k, &sample) && lately(list, sample, JOIN_OPENS))
			return true;
	}
	return false;
}

/* Returns the end of the entries that may be opened next. An empty buffer is filled before the next file is opened.
 * After that, the latest entries that it holds lie near the farthest used one: the probability that none of the latest
 * g entries was opened is about e^(-g^2 / 2B) behind a buffer of B. */
static uint64_t end_of_expected(const struct fs_announced_list *list)
{
	const struct fs_announced_state *s = &list->state;
	if (list->buffer == 0)
		return s->high + FS_ANNOUNCED_AHEAD;
	uint64_t filled = list->empty_at + list->buffer;
	return (filled > s->high ? filled : s->high) + FS_ANNOUNCED_NEAR + list->buffer / 8;
}

enum fs_announced_fit fs_announced_list_fit(const struct fs_announced_list *list, uint32_t sample, uint64_t *ret_place)
{
	const struct fs_announced_state *s = &list->state;
	bool again = lately(list, sample, AGAIN_OPENS);
	if (!find_unused(list, sample, s->cursor, end_of_expected(list), ret_place))
		return again ? FS_ANNOUNCED_AGAIN : FS_ANNOUNCED_ELSEWHERE;
	if (list->buffer > 0 && (!again || *ret_place < s->high))
		return FS_ANNOUNCED_SURELY;
	if (joins(list, *ret_place))
		return FS_ANNOUNCED_SURELY;
	if (again)
		return FS_ANNOUNCED_AGAIN;
	return *ret_place < s->high + FS_ANNOUNCED_NEAR ? FS_ANNOUNCED_LOOSE : FS_ANNOUNCED_ELSEWHERE;
}

/* Returns how many entries behind the farthest one are expected. Their chunks must be in use. */
static uint64_t held_behind(const struct fs_announced_list *list)
{
	uint64_t held = list->buffer * BUFFERS, most = (FS_ANNOUNCED_CHUNKS - 2) * list->chunk_entries;
	held = held < most ? held : most;
	return held > FS_ANNOUNCED_BEHIND ? held : FS_ANNOUNCED_BEHIND;
}

/* Entries far behind the farthest one are not expected to be opened. */
static void advance(struct fs_announced_list *list)
{
	struct fs_announced_state *s = &list->state;
	uint64_t behind = held_behind(list), least = s->high > behind ? s->high - behind : 0;
	if (s->cursor < least)
		s->cursor = least;
	while (s->cursor < s->high && chunk_at(list, s->cursor / list->chunk_entries) && is_used(list, s->cursor))
		s->cursor++;
	if (s->cursor == s->high)
		list->empty_at = s->high;
}

static void book_use(struct fs_announced_list *list, uint64_t place)
{
	struct fs_announced_state *s = &list->state;
	uint32_t sample;
	if (!sample_at(list, place, &sample))
		return;
	unsigned i = recent_of(sample);
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
	list->latest = place;
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

/* ---- opens elsewhere ---- */

/* Returns the place of the i-th latest open in the ring. */
static uint64_t ring_place(const struct fs_announced_list *list, unsigned i)
{
	return list->ring[(list->ring_n - i) % RING].place;
}

static unsigned ring_length(const struct fs_announced_list *list)
{
	return list->ring_n < RING ? (unsigned)list->ring_n : RING;
}

/* Counts the latest opens in the ring that have a neighbour there, and finds where they lie. */
static unsigned neighbours(const struct fs_announced_list *list, uint64_t *ret_low, uint64_t *ret_high)
{
	unsigned found = 0;
	*ret_low = UINT64_MAX;
	*ret_high = 0;
	for (unsigned i = 1; i <= RING_ENOUGH; i++) {
		uint64_t place = ring_place(list, i);
		bool near = false;
		for (unsigned k = 1; k <= RING_ENOUGH && !near; k++) {
			uint64_t other = ring_place(list, k);
			uint64_t between = other > place ? other - place : place - other;
			near = between > 0 && between <= NEIGHBOUR;
		}
		if (!near)
			continue;
		found++;
		*ret_low = place < *ret_low ? place : *ret_low;
		*ret_high = place > *ret_high ? place : *ret_high;
	}
	return found;
}

/* Returns the latest open in the ring with those before it by which its reader came there. */
static struct run latest_run(const struct fs_announced_list *list)
{
	struct run run = { .first = ring_place(list, 1) + 1, .last = ring_place(list, 1), .sure = list->state.sure };
	for (unsigned i = 1; i <= ring_length(list) && run.n < FS_ANNOUNCED_RING; i++) {
		uint64_t place = ring_place(list, i), sure = list->ring[(list->ring_n - i) % RING].sure;
		if (run.sure - sure > RUN_PAUSE)
			break;
		if (place >= run.first || run.first - place > NEIGHBOUR)
			continue;
		run.first = place;
		run.sure = sure;
		run.n++;
	}
	return run;
}

/* Finds the entry with which an open of the sample goes on with a run. */
static bool find_next_of_run(const struct fs_announced_list *list, uint32_t sample, uint64_t *ret_place)
{
	for (unsigned i = 1; i <= ring_length(list); i++) {
		for (uint64_t k = 1; k <= JOIN && ring_place(list, i) != NOWHERE; k++) {
			uint32_t next;
			*ret_place = ring_place(list, i) + k;
			if (*ret_place >= list->begin && sample_at(list, *ret_place, &next) && next == sample)
				return true;
		}
	}
	return false;
}

/* Finds where else in the list the sample comes: behind a run, soon, near the latest such open, or from the beginning
 * on. */
static bool find_elsewhere(const struct fs_announced_list *list, uint32_t sample, uint64_t *ret_place)
{
	const struct fs_announced_state *s = &list->state;
	uint64_t first, from = UINT64_MAX, latest = list->ring_n > 0 ? ring_place(list, 1) : NOWHERE;
	for (unsigned i = 0; i < FS_ANNOUNCED_CHUNKS; i++) {
		if (list->chunks[i] && list->chunks[i]->number * list->chunk_entries < from)
			from = list->chunks[i]->number * list->chunk_entries;
	}
	if (from == UINT64_MAX)
		return false;
	from = from > list->begin ? from : list->begin;
	if (!find_place(list, sample, from, s->end, &first))
		return false; /* most files that another program opens */
	if (find_next_of_run(list, sample, ret_place) ||
	        find_unused(list, sample, s->cursor, s->high + FS_ANNOUNCED_AHEAD, ret_place))
		return true;
	if (latest != NOWHERE && find_place(list, sample, latest > from + NEIGHBOUR ? latest - NEIGHBOUR : from,
	                                 latest + FS_ANNOUNCED_AHEAD, ret_place))
		return true;
	*ret_place = first;
	return true;
}

/* Counts the entries that the readers of one stream would have left unused if one of them was at `place`. */
static uint64_t unused_before(const struct fs_announced_list *list, uint64_t place)
{
	const struct fs_announced_state *s = &list->state;
	uint64_t n = place - s->high;
	for (uint64_t p = s->cursor; p < s->high; p++)
		n += !is_used(list, p);
	return n;
}

/* Takes the places [low, high] out of the ring. */
static void forget_places(struct fs_announced_list *list, uint64_t low, uint64_t high)
{
	for (unsigned i = 0; i < RING; i++) {
		if (list->ring[i].place >= low && list->ring[i].place <= high)
			list->ring[i].place = NOWHERE;
	}
}

/* Books the latest opens in the ring as used that lie in [low, high], and takes them out of it. Those for which there
 * is no room in @places stay for fs_announced_list_reached. */
static void use_ring(struct fs_announced_list *list, unsigned latest, uint64_t low, uint64_t high,
        uint64_t places[FS_ANNOUNCED_RING], size_t *ret_n)
{
	*ret_n = 0;
	for (unsigned i = latest; i >= 1; i--) {
		uint64_t place = ring_place(list, i);
		if (place < low || place > high)
			continue;
		if (*ret_n == FS_ANNOUNCED_RING) {
			list->soon = place < list->soon ? place : list->soon;
			continue;
		}
		list->ring[(list->ring_n - i) % RING].place = NOWHERE;
		if (is_used(list, place))
			continue;
		book_use(list, place);
		places[(*ret_n)++] = place;
	}
	advance(list);
}

/* Files that were drawn twice, not far apart, looked like files that are opened twice. Their reader has gone on. Behind
 * a shuffle buffer the entries before the latest one may still be held. */
static void use_drawn_again(struct fs_announced_list *list, uint64_t places[FS_ANNOUNCED_RING], size_t *ret_n)
{
	if (list->buffer > 0)
		return;
	uint32_t sample;
	for (uint64_t place = list->latest; place > list->begin && *ret_n < FS_ANNOUNCED_RING; place--) {
		if (is_used(list, place - 1) || !sample_at(list, place - 1, &sample) ||
		        !lately(list, sample, AGAIN_OPENS))
			break;
		book_use(list, place - 1);
		places[(*ret_n)++] = place - 1;
	}
	advance(list);
}

void fs_announced_list_reached(struct fs_announced_list *list, uint64_t places[FS_ANNOUNCED_RING], size_t *ret_n)
{
	const struct fs_announced_state *s = &list->state;
	*ret_n = 0;
	if (list->soon < s->high)
		use_ring(list, ring_length(list), s->cursor, s->high - 1, places, ret_n);
	use_drawn_again(list, places, ret_n);
	if (list->soon >= s->high)
		return;
	list->soon = NOWHERE;
	for (unsigned i = 1; i <= ring_length(list); i++) {
		uint64_t place = ring_place(list, i);
		list->soon = place >= s->cursor && place < list->soon ? place : list->soon;
	}
}

/* Moves the reader to where the latest opens in the ring lie, if they lie together and it has made no others. */
static bool move_reader(struct fs_announced_list *list, uint64_t places[FS_ANNOUNCED_RING], size_t *ret_n)
{
	struct fs_announced_state *s = &list->state;
	uint64_t low, high, left = s->high;
	if (list->ring_n < RING_ENOUGH || list->ring[(list->ring_n - RING_ENOUGH) % RING].sure < s->sure ||
	        neighbours(list, &low, &high) < RING_SURE || high - low >= FS_ANNOUNCED_BEHIND || low < list->first)
		return false; /* `first`: those entries were given back meanwhile */
	for (uint64_t p = low; p < (s->high > high ? s->high : high + 1); p++)
		set_used(list, p, false);
	s->cursor = low;
	s->high = low;
	s->moves++;
	s->apart = false;
	list->left = left;
	list->left_opens = list->opens;
	list->moved_to = low;
	use_ring(list, RING_ENOUGH, low, high, places, ret_n);
	list->ring_n = 0;
	list->bad = list->astray = 0;
	s->wrong = false;
	return true;
}

/* Whether the reader was moved, and somebody goes on where it was: then there are two, who read by turns. */
static bool comes_back(const struct fs_announced_list *list, const struct run *run)
{
	return list->state.moves > 0 && list->opens - list->left_opens < FS_ANNOUNCED_BEHIND &&
	       run->first < list->left + FS_ANNOUNCED_NEAR && run->first + FS_ANNOUNCED_AHEAD >= list->left;
}

bool fs_announced_list_missed(struct fs_announced_list *list, uint32_t sample, uint64_t apart,
        uint64_t places[FS_ANNOUNCED_RING], size_t *ret_n)
{
	struct fs_announced_state *s = &list->state;
	uint64_t place;
	bool has = find_elsewhere(list, sample, &place);
	list->bad++;
	list->astray += has;
	judge(list);
	if (!has || list->buffer > 0)
		return false;
	list->soon = place >= s->high && place < list->soon ? place : list->soon;
	list->ring[list->ring_n % RING].place = place;
	list->ring[list->ring_n++ % RING].sure = s->sure;
	struct run run = latest_run(list);
	if (run.n >= RUN_JOINS && run.first >= s->high && run.last < s->high + FS_ANNOUNCED_AHEAD &&
	        unused_before(list, run.first) < apart) {
		use_ring(list, ring_length(list), s->cursor, run.last, places, ret_n);
		return true;
	}
	if (apart < UINT64_MAX && run.n >= RUN_ENOUGH && (s->sure - run.sure >= GOES_ON || comes_back(list, &run))) {
		list->other = run;
		s->apart = other_is_ahead(list) || other_is_behind(list);
		if (s->apart)
			return false;
	}
	return move_reader(list, places, ret_n);
}

/* ---- splitting ---- */

uint64_t fs_announced_list_part_bytes(const struct fs_announced_list *list)
{
	uint64_t kept = list->end - list->first, most = FS_ANNOUNCED_CHUNKS * list->chunk_entries;
	return sizeof(uint32_t) * (kept < most ? kept : most);
}

/* Makes the list end before `end`. */
static void shorten(struct fs_announced_list *list, uint64_t end)
{
	size_t n = (size_t)((end - list->first + FS_ORDER_BLOCK - 1) / FS_ORDER_BLOCK);
	for (size_t i = n; i < list->n_blocks; i++)
		fs_order_memory_put(list->memory, list->blocks[i]);
	list->n_blocks = n;
	list->end = list->state.end = end;
	for (unsigned i = 0; i < FS_ANNOUNCED_CHUNKS; i++) {
		if (list->chunks[i] && list->chunks[i]->number * list->chunk_entries >= end)
			set_chunk(list, i, NULL);
	}
}

/* Makes a list of the entries [begin, end). It shares the blocks. */
static int list_of_part(
        const struct fs_announced_list *list, uint64_t begin, uint64_t end, struct fs_announced_list **ret_part)
{
	struct fs_announced_list_options options = {
		.memory = list->memory,
		.name = list->name,
		.id = list->id,
		.chunk_blocks = list->chunk_blocks,
		.n_samples = list->n_samples,
	};
	struct fs_announced_list *part;
	int rc = fs_announced_list_new(&options, &part);
	if (rc < 0)
		return rc;
	part->begin = begin;
	part->first = begin > list->first ? begin - begin % list->chunk_entries : list->first;
	uint64_t last = (end - 1 - list->first) / FS_ORDER_BLOCK;
	for (uint64_t i = (part->first - list->first) / FS_ORDER_BLOCK; i <= last; i++) {
		rc = add_block(&part->blocks, &part->n_blocks, &part->room, list->blocks[i]);
		if (rc < 0) {
			fs_announced_list_free(part);
			return rc;
		}
		fs_order_memory_get(list->memory, list->blocks[i]);
	}
	part->soon = list->soon;
	memcpy(part->ring, list->ring, sizeof(part->ring)); /* where further readers are */
	part->ring_n = list->ring_n;
	part->end = end;
	part->state = list->state;
	part->state.end = end;
	part->state.used = part->state.moves = 0;
	*ret_part = part;
	return 0;
}

int fs_announced_list_split(struct fs_announced_list *list, struct fs_announced_list **ret_other)
{
	struct fs_announced_list *part;
	const struct run *other = &list->other;
	bool is_ahead = other_is_ahead(list);
	/* Where the second part begins: what the list's reader has read since it was moved is its own. */
	uint64_t own = list->moved_to > other->last && list->moved_to < list->state.cursor ? list->moved_to
	                                                                                   : list->state.cursor;
	uint64_t at = is_ahead ? other->first : own;
	list->state.apart = false;
	int rc = list_of_part(list, is_ahead ? at : list->begin, is_ahead ? list->end : at, &part);
	if (rc < 0)
		return rc;
	part->state.cursor = part->state.high = other->last + 1;
	forget_places(list, other->first, other->last);
	forget_places(part, other->first, other->last);
	forget_places(is_ahead ? list : part, at, NOWHERE);
	forget_places(is_ahead ? part : list, 0, at - 1); /* the first part has entries */
	if (is_ahead)
		shorten(list, at);
	else
		list->begin = at;
	list->bad = list->astray = 0;
	*ret_other = part;
	return 0;
}
