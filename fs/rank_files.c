/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's files of an epoch, and the lists that samplers are compared with; fs/rank_files.h first. */
#include "fs/rank_files.h"

#include <errno.h>
#include <stdlib.h>

#include "fs/view.h"
#include "shard/base/list.h"

enum { TURNS_MAX = 1 << 24 }; /* a larger part is refused: its list takes 4 bytes a file */

struct list {
	uint32_t *files;
	uint32_t *by_file; /* indices into `files`, ascending by file; NULL if `files` is ascending itself */
	uint32_t n;
	size_t room; /* entries that `files` has room for */
};

struct fs_rank_files {
	uint64_t epoch;
	struct list all, images;
};

static int add(struct list *list, uint32_t file)
{
	int rc = base_grow(&list->files, list->n, &list->room, sizeof(*list->files));
	if (rc == 0)
		list->files[list->n++] = file;
	return rc;
}

static void list_done(struct list *list)
{
	free(list->files);
	free(list->by_file);
}

static uint32_t file_at(const struct list *list, uint32_t i)
{
	return list->files[list->by_file ? list->by_file[i] : i];
}

/* Returns how many files of the list are below `file`. */
static uint32_t below(const struct list *list, uint32_t file)
{
	uint32_t low = 0, high = list->n;
	while (low < high) {
		uint32_t mid = low + (high - low) / 2;
		if (file_at(list, mid) < file)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static int list_at(void *user, uint32_t i, uint32_t *ret_file)
{
	const struct list *list = user;
	*ret_file = list->files[i];
	return 0;
}

static int list_find(void *user, uint32_t file, uint32_t *ret_index)
{
	const struct list *list = user;
	uint32_t i = below(list, file);
	if (i == list->n || file_at(list, i) != file)
		return -ENOENT;
	*ret_index = list->by_file ? list->by_file[i] : i;
	return 0;
}

static int compare_numbers(const void *a, const void *b, void *files)
{
	return base_compare_u32(
	        (const uint32_t *)files + *(const uint32_t *)a, (const uint32_t *)files + *(const uint32_t *)b);
}

/* Flat: one name a turn; it shows the first file of its sample. */
static int order_by_turn(struct list *list)
{
	list->by_file = calloc((size_t)list->n + 1, sizeof(*list->by_file));
	if (!list->by_file)
		return -ENOMEM;
	for (uint32_t i = 0; i < list->n; i++)
		list->by_file[i] = i;
	qsort_r(list->by_file, list->n, sizeof(*list->by_file), compare_numbers, list->files);
	return 0;
}

/* Tree: ids ascend as ImageFolder walks. A sample that fills up the epoch can be there twice; one is removed. */
static void order_by_file(struct list *list)
{
	uint32_t n = 0;
	qsort(list->files, list->n, sizeof(*list->files), base_compare_u32);
	for (uint32_t i = 0; i < list->n; i++) {
		if (n == 0 || list->files[i] != list->files[n - 1])
			list->files[n++] = list->files[i];
	}
	list->n = n;
}

static int add_sample(const struct shard_index *index, bool flat, uint32_t sample, struct list *list)
{
	uint32_t files[SHARD_SAMPLE_FILES_MAX], n = 1;
	int rc = flat ? shard_index_sample_first(index, sample, files)
	              : shard_index_sample_files(index, sample, files, SHARD_SAMPLE_FILES_MAX, &n);
	for (uint32_t i = 0; rc == 0 && i < n; i++)
		rc = add(list, files[i]);
	return rc;
}

static int has(const void *user, uint32_t id, const struct shard_file *file)
{
	const struct list *list = user;
	uint32_t i = below(list, id);
	(void)file;
	return i < list->n && file_at(list, i) == id;
}

/* fill_class: adds the files that fs/dir.c shows in directories where this rank has none. */
static int fill(const struct shard_index *index, const struct fs_view *view, struct list *list)
{
	struct list more = { 0 };
	struct shard_dir dir;
	int rc = shard_index_dir(index, view->subdir, &dir);
	for (uint32_t id = view->subdir; rc == 0 && id < dir.end_dir; id++) {
		uint32_t file;
		rc = fs_view_stand_in(view, id, has, list, &file);
		if (rc == 0 && file != SHARD_NONE)
			rc = add(&more, file);
	}
	for (uint32_t i = 0; rc == 0 && i < more.n; i++)
		rc = add(list, more.files[i]);
	list_done(&more);
	order_by_file(list);
	return rc;
}

/* Collects the images among a tree's files. */
static int look(const struct shard_index *index, struct fs_rank_files *part)
{
	struct shard_file file;
	int rc = 0;
	for (uint32_t i = 0; rc == 0 && i < part->all.n; i++) {
		rc = shard_index_file(index, part->all.files[i], &file);
		if (rc < 0)
			return rc;
		if (prefetch_list_is_image(file.name, file.name_len))
			rc = add(&part->images, part->all.files[i]);
	}
	return rc;
}

static int add_turns(const struct shard_index *index, const struct fs_view *view, struct shard_epoch *epoch,
        uint64_t turns, struct list *list)
{
	uint32_t sample;
	int rc = 0;
	for (uint64_t t = 0; rc == 0 && t < turns; t++) {
		rc = shard_epoch_turn(epoch, view->options.rank, t, &sample, NULL);
		if (rc == 0)
			rc = add_sample(index, view->layout == FS_LAYOUT_FLAT, sample, list);
	}
	return rc;
}

/* In a tree a replaced sample keeps its name and place. So the loop asks for each sample whether it is this rank's. */
static int add_names(
        const struct shard_index *index, const struct fs_view *view, struct shard_epoch *epoch, struct list *list)
{
	int rc = 0;
	for (uint32_t sample = view->sample0; rc == 0 && sample < view->sample_end; sample++) {
		uint64_t turn;
		uint32_t instead;
		if (shard_view_instead(view->order, sample, &instead) < 0)
			continue; /* the sample is left out */
		rc = fs_view_turn(view, epoch, sample, &turn);
		if (rc == 0)
			rc = add_sample(index, false, sample, list);
		else if (rc == -ENOENT)
			rc = 0;
	}
	return rc;
}

static int make(
        const struct shard_index *index, struct fs_view *view, struct shard_epoch *epoch, struct fs_rank_files *part)
{
	bool flat = view->layout == FS_LAYOUT_FLAT;
	uint64_t turns = shard_epoch_turns(epoch, view->options.rank);
	part->epoch = shard_epoch_number(epoch);
	if (turns == 0 || turns > TURNS_MAX)
		return -ENODATA;
	int rc = !flat && shard_view_n_bad(view->order) > 0 ? add_names(index, view, epoch, &part->all)
	                                                    : add_turns(index, view, epoch, turns, &part->all);
	if (rc == 0 && part->all.n == 0)
		rc = -ENODATA;
	if (rc < 0)
		return rc;
	if (flat)
		return order_by_turn(&part->all);
	order_by_file(&part->all);
	if (view->fill_class)
		rc = fill(index, view, &part->all);
	return rc < 0 ? rc : look(index, part);
}

int fs_rank_files_new(const struct shard_index *index, struct fs_view *view, struct fs_rank_files **ret_part)
{
	struct fs_rank_files *part = calloc(1, sizeof(*part));
	if (!part)
		return -ENOMEM;
	struct shard_epoch *epoch = fs_view_epoch(view);
	int rc = make(index, view, epoch, part);
	shard_epoch_put(epoch);
	if (rc < 0) {
		fs_rank_files_free(part);
		return rc;
	}
	*ret_part = part;
	return 0;
}

void fs_rank_files_free(struct fs_rank_files *part)
{
	if (!part)
		return;
	list_done(&part->all);
	list_done(&part->images);
	free(part);
}

uint64_t fs_rank_files_epoch(const struct fs_rank_files *part)
{
	return part->epoch;
}

bool fs_rank_files_has(const struct fs_rank_files *part, uint32_t file)
{
	return has(&part->all, file, NULL);
}

int fs_rank_files_file(const struct fs_rank_files *part, uint64_t turn, uint32_t *ret_file)
{
	if (turn >= part->all.n)
		return -ERANGE;
	*ret_file = part->all.files[turn];
	return 0;
}

unsigned fs_rank_files_lists(struct fs_rank_files *part, struct prefetch_list_given lists[FS_RANK_FILES_LISTS])
{
	struct list *both[FS_RANK_FILES_LISTS] = { &part->all, &part->images };
	static const char *const names[] = { "this rank's part", "the images of this rank's part" };
	unsigned n = part->images.n > 0 && part->images.n < part->all.n ? 2 : 1;
	for (unsigned i = 0; i < n; i++)
		lists[i] = (struct prefetch_list_given){
			.name = names[i],
			.n = both[i]->n,
			.user = both[i],
			.at = list_at,
			.find = list_find,
		};
	return n;
}
