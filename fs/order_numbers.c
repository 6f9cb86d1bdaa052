/* SPDX-License-Identifier: Apache-2.0 */
/* Makes and keeps numberings; fs/order_numbers.h first. */
#include "fs/order_numbers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/view.h"
#include "prefetch/sampler/file_list.h"

enum {
	SORTED,
	IMAGEFOLDER,
	TABLE,
	N_ALL = FS_ORDER_NUMBERINGS + FS_ORDER_NUMBERINGS_GUEST,
	OF_ONE_GUEST = 4,
	STEP_FILES = 1 << 18, /* files between two beats */
};
static const char OF_LIST[] = "list-";

struct fs_order_numbers {
	void (*beat)(void *user);
	void *user;
	const struct shard_index *index;
	struct fs_view *view;
	struct fs_order_memory *memory;
	uint64_t tick;
	char owner[FS_ORDER_OWNER];           /* for whom numberings are made */
	struct fs_order_numbering all[N_ALL]; /* the first FS_ORDER_NUMBERINGS are no guest's */
};

int fs_order_numbers_new(const struct shard_index *index, struct fs_view *view, struct fs_order_memory *memory,
        struct fs_order_numbers **ret_numbers)
{
	struct fs_order_numbers *numbers = calloc(1, sizeof(*numbers));
	if (!numbers)
		return -ENOMEM;
	numbers->index = index;
	numbers->view = view;
	numbers->memory = memory;
	*ret_numbers = numbers;
	return 0;
}

void fs_order_numbers_beat(struct fs_order_numbers *numbers, void (*beat)(void *user), void *user)
{
	numbers->beat = beat;
	numbers->user = user;
}

static void beat(const struct fs_order_numbers *numbers)
{
	if (numbers->beat)
		numbers->beat(numbers->user);
}

static void clear(struct fs_order_numbers *numbers, struct fs_order_numbering *one)
{
	fs_order_memory_book(numbers->memory, -(int64_t)(one->room * sizeof(*one->samples)));
	free(one->samples);
	free(one->name);
	*one = (struct fs_order_numbering){ 0 };
}

void fs_order_numbers_free(struct fs_order_numbers *numbers)
{
	if (!numbers)
		return;
	for (unsigned i = 0; i < N_ALL; i++)
		clear(numbers, &numbers->all[i]);
	free(numbers);
}

static struct fs_order_numbering *find(struct fs_order_numbers *numbers, unsigned kind, const char *name)
{
	for (unsigned i = 0; i < N_ALL; i++) {
		struct fs_order_numbering *one = &numbers->all[i];
		if (one->used_at == 0 || one->kind != kind || strcmp(one->name, name) != 0)
			continue;
		one->used_at = ++numbers->tick;
		return one;
	}
	return NULL;
}

void fs_order_numbers_owner(struct fs_order_numbers *numbers, const char *owner)
{
	snprintf(numbers->owner, sizeof(numbers->owner), "%s", owner);
}

uint64_t fs_order_numbers_bytes(const struct fs_order_numbers *numbers, const char *owner)
{
	uint64_t bytes = 0;
	for (unsigned i = FS_ORDER_NUMBERINGS; i < N_ALL; i++) {
		const struct fs_order_numbering *one = &numbers->all[i];
		if (!owner || strcmp(one->owner, owner) == 0)
			bytes += one->room * sizeof(*one->samples);
	}
	return bytes;
}

bool fs_order_numbers_is_of_list(const char *name)
{
	return strncmp(name, OF_LIST, sizeof(OF_LIST) - 1) == 0;
}

/* Finds where a new one goes: in the place of the one that was not used for the longest time. */
static struct fs_order_numbering *place_for_new(struct fs_order_numbers *numbers)
{
	bool guest = *numbers->owner;
	unsigned from = guest ? FS_ORDER_NUMBERINGS : 0, to = guest ? N_ALL : FS_ORDER_NUMBERINGS, own = 0;
	struct fs_order_numbering *oldest = &numbers->all[from], *own_oldest = NULL;
	for (unsigned i = from; i < to; i++) {
		struct fs_order_numbering *one = &numbers->all[i];
		oldest = one->used_at < oldest->used_at ? one : oldest;
		if (!guest || strcmp(one->owner, numbers->owner) != 0)
			continue;
		own++;
		own_oldest = !own_oldest || one->used_at < own_oldest->used_at ? one : own_oldest;
	}
	return own >= OF_ONE_GUEST ? own_oldest : oldest;
}

/* Returns an empty one; NULL: no memory. */
static struct fs_order_numbering *make(struct fs_order_numbers *numbers, unsigned kind, const char *name)
{
	char *copy = strdup(name);
	if (!copy)
		return NULL;
	struct fs_order_numbering *one = place_for_new(numbers);
	clear(numbers, one);
	*one = (struct fs_order_numbering){ .name = copy, .kind = kind, .used_at = ++numbers->tick };
	memcpy(one->owner, numbers->owner, sizeof(one->owner));
	return one;
}

/* Makes room for n numbers. */
static int reserve(struct fs_order_numbers *numbers, struct fs_order_numbering *one, uint64_t n)
{
	if (n <= one->room)
		return 0;
	uint64_t room = one->room * 2 > n ? one->room * 2 : n;
	uint64_t more = (room - one->room) * sizeof(*one->samples);
	if (room > UINT32_MAX || !fs_order_memory_fits(numbers->memory, more))
		return -ENOSPC;
	uint32_t *samples = realloc(one->samples, room * sizeof(*samples));
	if (!samples)
		return -ENOMEM;
	fs_order_memory_book(numbers->memory, (int64_t)more);
	one->samples = samples;
	one->room = room;
	return 0;
}

/* What a file shows: its sample, or the one in its place; SHARD_NONE: a common file. */
static int sample_of(const struct fs_order_numbers *numbers, uint32_t file, uint32_t *ret_sample)
{
	struct shard_place place;
	int rc = shard_index_place(numbers->index, file, &place);
	if (rc == 0 && place.sample == SHARD_NONE) {
		*ret_sample = SHARD_NONE;
		return 0;
	}
	return rc < 0 ? rc : shard_view_instead(numbers->view->order, place.sample, ret_sample);
}

/* Gives a numbering its own entries, of which the first n were samples in a row. */
static int leave_row(struct fs_order_numbers *numbers, struct fs_order_numbering *one, uint32_t n, uint32_t size)
{
	int rc = reserve(numbers, one, size);
	for (uint32_t i = 0; rc == 0 && i < n; i++)
		one->samples[i] = one->base + i;
	return rc;
}

/* In most datasets the sorted paths are the samples in a row, which take no memory. */
static int fill(struct fs_order_numbers *numbers, struct fs_order_numbering *one, const struct prefetch_list *list)
{
	uint32_t n = prefetch_list_size(list);
	int rc = 0;
	for (uint32_t i = 0; rc == 0 && i < n; i++) {
		uint32_t file, sample = SHARD_NONE;
		rc = prefetch_list_at(list, i, &file);
		if (rc == 0)
			rc = sample_of(numbers, file, &sample);
		if (i == 0)
			one->base = sample;
		bool row = !one->samples && sample != SHARD_NONE && sample == one->base + i;
		if (rc == 0 && !one->samples && !row)
			rc = leave_row(numbers, one, i, n);
		if (rc == 0 && !row)
			one->samples[i] = sample;
		if (i % STEP_FILES == STEP_FILES - 1)
			beat(numbers);
	}
	one->n = rc == 0 ? n : 0;
	return rc;
}

static int list_dir(struct fs_order_numbers *numbers, bool imagefolder, uint32_t dir, struct prefetch_list **ret_list)
{
	struct prefetch_filters filters;
	int rc = prefetch_filters_init(&filters, numbers->index, numbers->view->order, "");
	if (rc < 0)
		return rc;
	rc = prefetch_filters_below(&filters, dir);
	while (rc == 0 && (rc = prefetch_filters_step(&filters, STEP_FILES)) > 0) {
		rc = 0;
		beat(numbers);
	}
	if (rc == 0)
		rc = prefetch_list_new(&filters, dir, imagefolder ? PREFETCH_SORT_WALK : PREFETCH_SORT_PATH,
		        imagefolder ? PREFETCH_FILTER_IMAGES : PREFETCH_FILTER_ALL, ret_list);
	prefetch_filters_done(&filters);
	return rc;
}

int fs_order_numbers_listing(
        struct fs_order_numbers *numbers, bool imagefolder, const char *dir, struct fs_order_numbering **ret_numbering)
{
	struct fs_order_numbering *one = find(numbers, imagefolder ? IMAGEFOLDER : SORTED, dir);
	struct prefetch_list *list = NULL;
	enum shard_kind kind;
	uint32_t id;
	if (one) {
		*ret_numbering = one;
		return 0;
	}
	int rc = shard_index_find_path(numbers->index, dir, &kind, &id);
	if (rc == 0 && kind != SHARD_KIND_DIR)
		rc = -ENOENT;
	if (rc == 0)
		rc = list_dir(numbers, imagefolder, id, &list);
	if (rc < 0)
		return rc == -ENOTDIR ? -ENOENT : rc;
	one = make(numbers, imagefolder ? IMAGEFOLDER : SORTED, dir);
	rc = one ? fill(numbers, one, list) : -ENOMEM;
	prefetch_list_put(list);
	if (rc < 0 && one)
		clear(numbers, one);
	if (rc == 0)
		*ret_numbering = one;
	return rc;
}

int fs_order_numbers_table(
        struct fs_order_numbers *numbers, const char *name, struct fs_order_numbering **ret_numbering)
{
	struct fs_order_numbering *one = find(numbers, TABLE, name);
	if (!one)
		return -ENOENT;
	*ret_numbering = one;
	return 0;
}

int fs_order_numbers_add(struct fs_order_numbers *numbers, const char *name, const uint32_t *samples, size_t n)
{
	struct fs_order_numbering *one = find(numbers, TABLE, name);
	if (!one)
		one = make(numbers, TABLE, name);
	if (!one)
		return -ENOMEM;
	int rc = reserve(numbers, one, one->n + n);
	if (rc < 0)
		return rc;
	memcpy(one->samples + one->n, samples, n * sizeof(*samples));
	one->n += n;
	return 0;
}

int fs_order_numbers_of_list(
        struct fs_order_numbers *numbers, const struct prefetch_list *list, char ret_name[FS_ORDER_TABLE_NAME])
{
	struct prefetch_list_part part = { .stride = 1, .n = 0 };
	uint32_t sort = 0, filter = 0, first;
	int rc = prefetch_list_at(list, 0, &first); /* tells the suffix, of which lists of one directory may differ */
	if (rc < 0)
		return rc;
	prefetch_list_kind(list, &sort, &filter);
	prefetch_list_part(list, &part);
	snprintf(ret_name, FS_ORDER_TABLE_NAME, "%s%u-%u-%u-%u-%u-%u", OF_LIST, prefetch_list_dir(list), sort, filter,
	        first, part.stride, part.n);
	if (find(numbers, TABLE, ret_name))
		return 0;
	struct fs_order_numbering *one = make(numbers, TABLE, ret_name);
	rc = one ? fill(numbers, one, list) : -ENOMEM;
	if (rc < 0 && one)
		clear(numbers, one);
	return rc;
}

void fs_order_numbers_drop(struct fs_order_numbers *numbers, const char *name)
{
	struct fs_order_numbering *one = find(numbers, TABLE, name);
	if (one)
		clear(numbers, one);
}

uint64_t fs_order_numbering_size(const struct fs_order_numbering *numbering)
{
	return numbering->n;
}
