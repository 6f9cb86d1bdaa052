/* SPDX-License-Identifier: Apache-2.0 */
/* Announced lists: entries, chunks, what the engine asks, what a successor finds; fs/announced_list.h first. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/announced_list_private.h"
#include "shard/base/bits.h"
#include "shard/base/cleanup.h"

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
	list->state.cursor = list->empty_at = record->place;
	list->state.high = record->high; /* what is opened next lies around it, perhaps far from the cursor */
	if (list->buffer == 0)
		list->restored_high = record->high;
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

uint64_t fs_announced_list_bytes(const struct fs_announced_list *list)
{
	return list->n_blocks * FS_ORDER_BLOCK * sizeof(uint32_t);
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

struct fs_announced_chunk *fs_announced_list_chunk(const struct fs_announced_list *list, uint64_t number)
{
	struct fs_announced_chunk *chunk = list->chunks[number % FS_ANNOUNCED_CHUNKS];
	return chunk && chunk->number == number ? chunk : NULL;
}

bool fs_announced_list_find(
        const struct fs_announced_list *list, uint32_t sample, uint64_t from, uint64_t to, uint64_t *ret_place)
{
	uint64_t turn, start = from % list->chunk_entries;
	for (uint64_t number = from / list->chunk_entries; number * list->chunk_entries < to; number++, start = 0) {
		const struct fs_announced_chunk *chunk = fs_announced_list_chunk(list, number);
		if (!chunk || !fs_announced_chunk_find(chunk, sample, start, &turn))
			continue;
		*ret_place = number * list->chunk_entries + turn;
		return *ret_place < to;
	}
	return false;
}

bool fs_announced_list_sample(const struct fs_announced_list *list, uint64_t place, uint32_t *ret_sample)
{
	const struct fs_announced_chunk *chunk = fs_announced_list_chunk(list, place / list->chunk_entries);
	uint64_t turn = place % list->chunk_entries;
	if (!chunk || turn >= chunk->n)
		return false;
	*ret_sample = fs_announced_chunk_sample(chunk, turn);
	return true;
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
		struct fs_announced_chunk *old = fs_announced_list_chunk(list, number), *chunk;
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

/* ---- parts ---- */

void fs_announced_list_shorten(struct fs_announced_list *list, uint64_t end)
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

int fs_announced_list_part(
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
	part->end = part->state.end = end;
	*ret_part = part;
	return 0;
}
