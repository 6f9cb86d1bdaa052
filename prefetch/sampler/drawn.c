/* SPDX-License-Identifier: Apache-2.0 */
/* Holds drawn indices against opened files, list by list; prefetch/sampler/drawn.h first. */
#include "prefetch/sampler/drawn.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "prefetch/sampler/recognise_private.h"
#include "shard/base/cleanup.h"

#define HIT 0.95 /* of the draws of a stretch, so many have opened their file */

enum {
	HITS_PERCENT = 90,    /* of the draws of the best stretch, so many must have opened their file */
	ASKED = 16,           /* opened files whose directories are tried */
	DIRS = 32,            /* directories that are tried */
	PARTS_DRAWS = 512,    /* the latest draws, with which parts of lists are compared: these are many */
	OPENED_SHARE = 4,     /* opens of more than this part of the files are left out: q would be too near to HIT */
	STEP_FILES = 1 << 18, /* files of the filters' pass between two beats */
};

struct draw {
	uint64_t index;
	uint32_t place;
};

static int by_index(const void *a, const void *b)
{
	const struct draw *x = a, *y = b;
	if (x->index != y->index)
		return x->index < y->index ? -1 : 1;
	return (x->place > y->place) - (x->place < y->place);
}

static int by_place(const void *a, const void *b)
{
	const struct draw *x = a, *y = b;
	return (x->place > y->place) - (x->place < y->place);
}

static int by_file(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return (x > y) - (x < y);
}

/* What is looked at: each file and each index once. */
struct look {
	const struct prefetch_drawn *given;
	struct prefetch_filters filters;
	uint32_t *opened; /* sorted */
	size_t n_opened;
	struct draw *draws; /* in their order */
	size_t n_draws;
	double hit, miss; /* nats of a draw */
	bool parts;       /* longer lists are tried, of which the dataset may be a part */
	bool any;         /* a list that was tried has the right size, or is longer */
	double best_score;
	struct prefetch_list *best; /* NULL: none yet */
};

static int look_new(struct look *look)
{
	const struct prefetch_drawn *given = look->given;
	size_t most = given->size / OPENED_SHARE < PREFETCH_DRAWN_MAX ? given->size / OPENED_SHARE : PREFETCH_DRAWN_MAX;
	size_t n_opened = given->n_opened < most ? given->n_opened : most;
	size_t n_draws = given->n_indices < PREFETCH_DRAWN_MAX ? given->n_indices : PREFETCH_DRAWN_MAX;
	look->opened = calloc(n_opened + 1, sizeof(*look->opened));
	look->draws = calloc(n_draws + 1, sizeof(*look->draws));
	if (!look->opened || !look->draws)
		return -ENOMEM;
	memcpy(look->opened, given->opened + given->n_opened - n_opened, n_opened * sizeof(*look->opened));
	qsort(look->opened, n_opened, sizeof(*look->opened), by_file);
	for (size_t i = 0; i < n_opened; i++) {
		if (i == 0 || look->opened[i] != look->opened[i - 1])
			look->opened[look->n_opened++] = look->opened[i];
	}
	for (size_t i = 0; i < n_draws; i++)
		look->draws[i] = (struct draw){ given->indices[given->n_indices - n_draws + i], (uint32_t)i };
	qsort(look->draws, n_draws, sizeof(*look->draws), by_index);
	for (size_t i = 0; i < n_draws; i++) {
		if (i == 0 || look->draws[i].index != look->draws[i - 1].index)
			look->draws[look->n_draws++] = look->draws[i];
	}
	qsort(look->draws, look->n_draws, sizeof(*look->draws), by_place);
	double q = (double)look->n_opened / given->size;
	look->hit = q > 0 ? log(HIT / q) : 0;
	look->miss = log((1 - HIT) / (1 - q));
	return 0;
}

static void look_done(struct look *look)
{
	prefetch_filters_done(&look->filters);
	free(look->opened);
	free(look->draws);
}

/* Returns the score of a list in *ret_score; 0: it has too few hits, or too many draws of the best stretch missed.  A
 * list that is shifted by one file from some place on is right in front of it. */
static int score(const struct look *look, const struct prefetch_list *list, double *ret_score)
{
	double sum = 0, best = 0;
	uint32_t hits = 0, draws = 0;
	bool fits = false;
	for (size_t i = 0; i < look->n_draws; i++) {
		uint32_t file;
		int rc = prefetch_list_at(list, (uint32_t)look->draws[i].index, &file);
		if (rc < 0)
			return rc;
		bool hit = bsearch(&file, look->opened, look->n_opened, sizeof(file), by_file);
		sum += hit ? look->hit : look->miss;
		hits = sum > 0 ? hits + hit : 0;
		draws = sum > 0 ? draws + 1 : 0;
		sum = sum > 0 ? sum : 0;
		if (hits >= PREFETCH_DRAWN_HITS_MIN && sum > best) {
			best = sum;
			fits = hits * 100 >= draws * HITS_PERCENT; /* draws: PREFETCH_DRAWN_MAX at most */
		}
	}
	*ret_score = fits ? best : 0;
	return 0;
}

/* Keeps the list if it fits better than those before. */
static int compare(struct look *look, struct prefetch_list *list)
{
	double nats;
	int rc = score(look, list, &nats);
	if (rc == 0 && nats >= PREFETCH_DRAWN_SURE && nats > look->best_score) {
		prefetch_list_put(look->best);
		look->best = prefetch_list_get(list);
		look->best_score = nats;
	}
	return rc;
}

/* The parts of a list that a dataset of `size` files may be: first the first files and the last ones (a split for
 * training and validation); then what one of W ranks takes, every W-th file or W-th part. */
static bool part_at(uint32_t whole, uint32_t size, uint32_t number, struct prefetch_list_part *ret_part)
{
	uint32_t world = (whole + size / 2) / size, rank = number / 2 - 1;
	*ret_part = (struct prefetch_list_part){ .start = number == 0 ? 0 : whole - size, .stride = 1, .n = size };
	if (number < 2)
		return true;
	if (number % 2 == 0)
		*ret_part = (struct prefetch_list_part){ .start = rank, .stride = world, .n = size };
	else
		ret_part->start = rank * size;
	return rank < world && world <= PREFETCH_DRAWN_WORLD;
}

static int compare_parts(struct look *look, struct prefetch_list *whole)
{
	struct prefetch_list_part part;
	int rc = 0;
	for (uint32_t i = 0; rc == 0 && part_at(prefetch_list_size(whole), look->given->size, i, &part); i++) {
		struct prefetch_list *list;
		rc = prefetch_list_new_part(whole, &part, &list);
		if (rc == -EINVAL) { /* the last rank's part is shorter */
			rc = 0;
			continue;
		}
		if (rc == 0) {
			rc = compare(look, list);
			prefetch_list_put(list);
		}
	}
	return rc;
}

/* Tries one list.  *ret_fits: by its size it can be the dataset's.  Returns 0, or -errno. */
static int try_list(
        struct look *look, uint32_t dir, enum prefetch_list_sort sort, enum prefetch_filter_kind filter, bool *ret_fits)
{
	struct prefetch_list *list = NULL;
	*ret_fits = false;
	int rc = prefetch_list_new(&look->filters, dir, sort, filter, &list);
	if (rc == 0) {
		uint32_t n = prefetch_list_size(list), size = look->given->size;
		*ret_fits = look->parts ? n > size : n == size;
		look->any |= *ret_fits;
	}
	if (*ret_fits)
		rc = look->parts ? compare_parts(look, list) : compare(look, list);
	prefetch_list_put(list);
	if (look->given->beat)
		look->given->beat(look->given->user);
	return rc == -ENOENT ? 0 : rc;
}

/* Tries the lists of one directory.  files: how many it holds.  tried: a directory with the same files was tried, so
 * only the walk is another list: it depends on where the classes are. */
static int try_dir(struct look *look, uint32_t dir, uint32_t files, bool tried)
{
	static const enum prefetch_filter_kind filters[] = { PREFETCH_FILTER_ALL, PREFETCH_FILTER_IMAGES,
		PREFETCH_FILTER_SUFFIX, PREFETCH_FILTER_DEALT };
	int rc = 0;
	for (unsigned f = 0; rc == 0 && f < sizeof(filters) / sizeof(filters[0]); f++) {
		bool walked, fits = false;
		rc = try_list(look, dir, PREFETCH_SORT_WALK, filters[f], &walked);
		if (rc == 0 && !tried) {
			rc = try_list(look, dir, PREFETCH_SORT_ID, filters[f], &fits);
			if (rc == 0 && fits)
				rc = try_list(look, dir, PREFETCH_SORT_PATH, filters[f], &fits);
			if (rc == 0 && fits && files <= PREFETCH_DRAWN_BY_NAME)
				rc = try_list(look, dir, PREFETCH_SORT_NAME, filters[f], &fits);
		}
		if (filters[f] == PREFETCH_FILTER_ALL && (tried ? walked : fits) && !look->parts)
			break; /* the other filters have these files, or fewer */
	}
	return rc;
}

/* Tries the directories above a file that hold enough files and were not tried yet. */
static int try_above(struct look *look, uint32_t opened, uint32_t tried[DIRS], uint32_t *n_tried)
{
	uint32_t below = 0; /* files of the directory that was tried before this one, which is in it */
	struct shard_file file;
	int rc = shard_index_file(look->given->index, opened, &file);
	for (uint32_t dir = rc == 0 ? file.dir : SHARD_NONE; rc == 0 && dir != SHARD_NONE;) {
		struct shard_dir record;
		bool again = false;
		rc = shard_index_dir(look->given->index, dir, &record);
		for (uint32_t i = 0; i < *n_tried; i++)
			again |= tried[i] == dir;
		if (rc < 0 || again || *n_tried == DIRS)
			break;
		uint32_t files = record.end_file - record.first_file;
		if (files >= look->given->size && (!look->parts || files <= PREFETCH_DRAWN_PARTS)) {
			tried[(*n_tried)++] = dir;
			rc = try_dir(look, dir, files, files == below);
			below = files;
		}
		dir = record.parent;
	}
	return rc;
}

static int make_filters(struct look *look)
{
	const struct prefetch_drawn *given = look->given;
	char suffix[PREFETCH_SUFFIX_MAX + 1];
	prefetch_common_suffix(given->index, look->opened, look->n_opened, suffix);
	int rc = prefetch_filters_init(&look->filters, given->index, given->shown, suffix);
	while (rc == 0 && (rc = prefetch_filters_step(&look->filters, STEP_FILES)) > 0) {
		rc = 0;
		if (given->beat)
			given->beat(given->user);
	}
	return rc;
}

/* Tries the directories above some of the opened files. */
static int try_opened(struct look *look)
{
	uint32_t tried[DIRS], n_tried = 0;
	int rc = 0;
	for (size_t i = 0; rc == 0 && i < ASKED; i++)
		rc = try_above(look, look->opened[i * (look->n_opened - 1) / (ASKED - 1)], tried, &n_tried);
	return rc;
}

int prefetch_drawn_list(const struct prefetch_drawn *given, struct prefetch_list **ret_list)
{
	struct look look = { .given = given };
	if (given->size < OPENED_SHARE * PREFETCH_DRAWN_HITS_MIN)
		return -ENOENT;
	int rc = look_new(&look);
	bool enough = rc == 0 && look.n_opened >= PREFETCH_DRAWN_HITS_MIN && look.n_draws >= PREFETCH_DRAWN_HITS_MIN;
	if (enough)
		rc = make_filters(&look);
	if (enough && rc == 0)
		rc = try_opened(&look);
	if (enough && rc == 0 && !look.any) {
		look.parts = true;
		if (look.n_draws > PARTS_DRAWS) {
			memmove(look.draws, look.draws + look.n_draws - PARTS_DRAWS, PARTS_DRAWS * sizeof(*look.draws));
			look.n_draws = PARTS_DRAWS;
		}
		rc = try_opened(&look);
	}
	if (rc == 0 && look.best)
		*ret_list = look.best;
	else
		prefetch_list_put(look.best);
	if (rc == 0 && !look.best)
		rc = enough && !look.any ? -ENOENT : -EAGAIN;
	look_done(&look);
	return rc;
}
