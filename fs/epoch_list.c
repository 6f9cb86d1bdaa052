/* SPDX-License-Identifier: Apache-2.0 */
/* The text of `.ddpfs/epoch/N.list`, and the lists that are kept; fs/epoch_list.h first. */
#include "fs/epoch_list.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct list {
	struct fs_view *view; /* NULL: this place is empty */
	uint64_t number;
	struct shard_epoch *epoch;
	uint64_t turns;
	uint64_t bytes;
	uint64_t *offsets; /* byte offsets of turns 0, FS_EPOCH_LIST_STEP, ... */
	uint64_t used;     /* value of `clock` at the last use */
};

struct fs_lists {
	const struct shard_index *index;
	uint64_t clock;
	size_t n_kept;
	struct list kept[];
};

int fs_lists_new(const struct shard_index *index, uint32_t n_views, struct fs_lists **ret_lists)
{
	size_t n_kept = FS_LISTS_KEPT + n_views - 1;
	struct fs_lists *lists = calloc(1, sizeof(*lists) + n_kept * sizeof(lists->kept[0]));
	if (!lists)
		return -ENOMEM;
	lists->index = index;
	lists->n_kept = n_kept;
	*ret_lists = lists;
	return 0;
}

static void list_done(struct list *list)
{
	shard_epoch_put(list->epoch);
	free(list->offsets);
	*list = (struct list){ 0 };
}

void fs_lists_free(struct fs_lists *lists)
{
	if (!lists)
		return;
	for (size_t i = 0; i < lists->n_kept; i++)
		list_done(&lists->kept[i]);
	free(lists);
}

/* Writes the lines of one turn into `buf`, if it is not NULL. Returns their length, or an error. */
static int64_t turn_lines(struct fs_lists *lists, const struct list *list, uint64_t turn, char end, char *buf)
{
	uint32_t files[SHARD_SAMPLE_FILES_MAX];
	uint32_t n;
	uint32_t sample;
	int64_t len = 0;
	int rc = shard_epoch_turn(list->epoch, list->view->options.rank, turn, &sample, NULL);
	if (rc == 0)
		rc = shard_index_sample_files(lists->index, sample, files, SHARD_SAMPLE_FILES_MAX, &n);
	for (uint32_t i = 0; rc == 0 && i < n; i++) {
		char path[SHARD_PATH_MAX + 1];
		int path_len = shard_index_file_path(lists->index, files[i], path, sizeof(path));
		if (path_len < 0)
			return path_len;
		if (buf) {
			memcpy(buf + len, path, (size_t)path_len);
			buf[len + path_len] = end;
		}
		len += path_len + 1;
	}
	return rc < 0 ? rc : len;
}

static int list_build(struct fs_lists *lists, struct list *list, const _Atomic bool *cancel)
{
	uint64_t n = list->turns / FS_EPOCH_LIST_STEP + 1;
	list->offsets = calloc(n, sizeof(*list->offsets));
	if (!list->offsets)
		return -ENOMEM;
	for (uint64_t turn = 0; turn < list->turns; turn++) {
		if (turn % FS_EPOCH_LIST_STEP == 0) {
			list->offsets[turn / FS_EPOCH_LIST_STEP] = list->bytes;
			if (cancel && *cancel)
				return -ECANCELED;
		}
		int64_t len = turn_lines(lists, list, turn, '\n', NULL);
		if (len < 0)
			return (int)len;
		list->bytes += (uint64_t)len;
	}
	return 0;
}

static int list_get(struct fs_lists *lists, struct fs_view *view, uint64_t number, const _Atomic bool *cancel,
        struct list **ret_list)
{
	struct list *oldest = &lists->kept[0];
	for (size_t i = 0; i < lists->n_kept; i++) {
		struct list *list = &lists->kept[i];
		if (list->view == view && list->number == number) {
			list->used = ++lists->clock;
			*ret_list = list;
			return 0;
		}
		if (list->used < oldest->used)
			oldest = list;
	}
	list_done(oldest);
	int rc = shard_view_epoch(view->order, number, &oldest->epoch);
	if (rc < 0) {
		oldest->epoch = NULL;
		return rc;
	}
	oldest->view = view;
	oldest->number = number;
	oldest->turns = shard_epoch_turns(oldest->epoch, view->options.rank);
	rc = list_build(lists, oldest, cancel);
	if (rc < 0) {
		list_done(oldest);
		return rc;
	}
	oldest->used = ++lists->clock;
	*ret_list = oldest;
	return 0;
}

int fs_epoch_list_size(
        struct fs_lists *lists, struct fs_view *view, uint64_t epoch, const _Atomic bool *cancel, uint64_t *ret_bytes)
{
	struct list *list;
	int rc = list_get(lists, view, epoch, cancel, &list);
	if (rc == 0)
		*ret_bytes = list->bytes;
	return rc;
}

/* Returns the index of the last remembered offset at or before `off`. */
static uint64_t nearest(const struct list *list, uint64_t off)
{
	uint64_t low = 0;
	uint64_t high = list->turns / FS_EPOCH_LIST_STEP + (list->turns % FS_EPOCH_LIST_STEP != 0);
	while (high - low > 1) {
		uint64_t mid = low + (high - low) / 2;
		if (list->offsets[mid] <= off)
			low = mid;
		else
			high = mid;
	}
	return low;
}

int fs_epoch_list_read(struct fs_lists *lists, struct fs_view *view, uint64_t epoch, char end,
        const _Atomic bool *cancel, uint64_t off, char *buf, size_t size, size_t *ret_len)
{
	struct list *list;
	int rc = list_get(lists, view, epoch, cancel, &list);
	if (rc < 0)
		return rc;
	if (off >= list->bytes) {
		*ret_len = 0;
		return 0;
	}
	uint64_t step = nearest(list, off);
	uint64_t at = list->offsets[step];
	uint64_t turn = step * FS_EPOCH_LIST_STEP;
	size_t len = 0;
	/* The lines of a grouped sample can be long: SHARD_SAMPLE_FILES_MAX paths. */
	size_t line_room = 0;
	char *line = NULL;
	for (; turn < list->turns && len < size; turn++) {
		int64_t n = turn_lines(lists, list, turn, '\n', NULL);
		if (n < 0) {
			rc = (int)n;
			break;
		}
		if (at + (uint64_t)n > off) {
			if ((size_t)n > line_room) {
				free(line);
				line_room = (size_t)n;
				line = malloc(line_room);
				if (!line) {
					rc = -ENOMEM;
					break;
				}
			}
			n = turn_lines(lists, list, turn, end, line);
			if (n < 0) {
				rc = (int)n;
				break;
			}
			size_t skip = off > at ? (size_t)(off - at) : 0;
			size_t take = (size_t)n - skip;
			if (take > size - len)
				take = size - len;
			memcpy(buf + len, line + skip, take);
			len += take;
		}
		at += (uint64_t)n;
	}
	free(line);
	if (rc == 0)
		*ret_len = len;
	return rc;
}
