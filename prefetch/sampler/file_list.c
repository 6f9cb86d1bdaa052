/* SPDX-License-Identifier: Apache-2.0 */
/* Makes filters and lists, and looks files and indices up in them; prefetch/sampler/file_list.h first. */
#include "prefetch/sampler/file_list.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shard/base/bits.h"
#include "shard/base/cleanup.h"
#include "shard/view.h"

enum { RANK_WORDS = 8 }; /* words of 64 files for one entry of `before` */

/* One bit for each file, with rank and select.  before[i]: how many bits are set before word i * RANK_WORDS. */
struct prefetch_filter {
	atomic_uint refs;
	uint32_t n_files;
	uint64_t *words;
	uint32_t *before;
};

struct run {
	uint32_t first, end; /* file ids */
	uint32_t before;     /* files of the list before it */
};

struct prefetch_list {
	atomic_uint refs;
	enum prefetch_list_sort sort;
	enum prefetch_filter_kind kind;
	uint32_t dir;
	uint32_t n;
	uint32_t n_runs;
	uint32_t room;
	struct run *runs;               /* in list order; none is empty */
	uint32_t *by_first;             /* numbers of runs, sorted by their first file id */
	struct prefetch_filter *filter; /* a reference */
	char *where;                    /* the directory's path, or the given list's name */
	char suffix[PREFETCH_SUFFIX_MAX + 1];
	struct prefetch_list_given given;
	uint32_t *named;              /* by name: files in list order; else NULL */
	uint32_t *places;             /* by name: index of file first_file + i; UINT32_MAX: not in the list */
	uint32_t first_file, n_files; /* of `places` */
	struct prefetch_list *whole;  /* a part: the whole list, a reference; else NULL */
	struct prefetch_list_part part;
};

static void filter_put(struct prefetch_filter *filter)
{
	if (!filter || atomic_fetch_sub(&filter->refs, 1) > 1)
		return;
	free(filter->words);
	free(filter->before);
	free(filter);
}

static struct prefetch_filter *filter_new(uint32_t n_files)
{
	struct prefetch_filter *filter = calloc(1, sizeof(*filter));
	if (!filter)
		return NULL;
	size_t counters = (size_t)n_files / (RANK_WORDS * 64) + 2;
	atomic_init(&filter->refs, 1);
	filter->n_files = n_files;
	filter->words = calloc(counters * RANK_WORDS, sizeof(*filter->words));
	filter->before = calloc(counters, sizeof(*filter->before));
	if (!filter->words || !filter->before) {
		filter_put(filter);
		return NULL;
	}
	return filter;
}

static bool filter_has(const struct prefetch_filter *filter, uint32_t file)
{
	return file < filter->n_files && bit_get(filter->words, file);
}

static void filter_count(struct prefetch_filter *filter)
{
	size_t counters = (size_t)filter->n_files / (RANK_WORDS * 64) + 2;
	uint32_t sum = 0;
	for (size_t i = 0; i < counters; i++) {
		filter->before[i] = sum;
		for (unsigned w = 0; w < RANK_WORDS; w++)
			sum += (uint32_t)__builtin_popcountll(filter->words[i * RANK_WORDS + w]);
	}
}

/* Returns how many files of the filter have an id below `file`.  file <= n_files. */
static uint32_t filter_rank(const struct prefetch_filter *filter, uint32_t file)
{
	uint32_t word = file / 64;
	uint32_t rank = filter->before[word / RANK_WORDS];
	for (uint32_t w = word / RANK_WORDS * RANK_WORDS; w < word; w++)
		rank += (uint32_t)__builtin_popcountll(filter->words[w]);
	if (file % 64)
		rank += (uint32_t)__builtin_popcountll(filter->words[word] << (64 - file % 64));
	return rank;
}

/* Returns the file of the filter that has `rank` others below it.  The caller knows that there is one. */
static uint32_t filter_select(const struct prefetch_filter *filter, uint32_t rank)
{
	size_t low = 0, high = (size_t)filter->n_files / (RANK_WORDS * 64) + 1;
	while (low < high) {
		size_t mid = (low + high + 1) / 2;
		if (filter->before[mid] <= rank)
			low = mid;
		else
			high = mid - 1;
	}
	size_t word = low * RANK_WORDS;
	rank -= filter->before[low];
	for (;; word++) {
		uint32_t bits = (uint32_t)__builtin_popcountll(filter->words[word]);
		if (rank < bits)
			break;
		rank -= bits;
	}
	uint64_t left = filter->words[word];
	while (rank--)
		left &= left - 1;
	return (uint32_t)(word * 64) + (uint32_t)__builtin_ctzll(left);
}

/* Returns the last n characters of a name, n <= 8, in lower case, one a byte. */
static uint64_t tail_of(const char *name, uint32_t len, uint32_t n)
{
	uint64_t tail = 0;
	for (uint32_t i = len - n; i < len; i++) {
		unsigned char c = (unsigned char)name[i];
		tail = tail << 8 | (c >= 'A' && c <= 'Z' ? c + 'a' - 'A' : c);
	}
	return tail;
}

/* Called for every file of a dataset, so it makes no loop of strcasecmp(). */
bool prefetch_list_is_image(const char *name, uint32_t len)
{
	enum { DOT = '.' << 24 };
	switch (len >= 4 ? tail_of(name, len, 4) : 0) {
	case DOT | 'j' << 16 | 'p' << 8 | 'g':
	case DOT | 'p' << 16 | 'n' << 8 | 'g':
	case DOT | 'p' << 16 | 'p' << 8 | 'm':
	case DOT | 'b' << 16 | 'm' << 8 | 'p':
	case DOT | 'p' << 16 | 'g' << 8 | 'm':
	case DOT | 't' << 16 | 'i' << 8 | 'f':
		return true;
	case 'j' << 24 | 'p' << 16 | 'e' << 8 | 'g':
	case 't' << 24 | 'i' << 16 | 'f' << 8 | 'f':
	case 'w' << 24 | 'e' << 16 | 'b' << 8 | 'p':
		return len >= 5 && name[len - 5] == '.';
	default:
		return false;
	}
}

int prefetch_filters_init(struct prefetch_filters *filters, const struct shard_index *index,
        const struct shard_view *shown, const char *suffix)
{
	uint32_t n_files = shard_index_info(index)->n_files;
	struct prefetch_filters made = { .index = index, .shown = shown, .end = n_files };
	if (strlen(suffix) <= PREFETCH_SUFFIX_MAX)
		memcpy(made.suffix, suffix, strlen(suffix) + 1);
	for (unsigned i = 0; i < PREFETCH_FILTER_KINDS; i++) {
		made.filters[i] = filter_new(n_files);
		if (!made.filters[i]) {
			prefetch_filters_done(&made);
			return -ENOMEM;
		}
	}
	*filters = made;
	return 0;
}

int prefetch_filters_below(struct prefetch_filters *filters, uint32_t dir)
{
	struct shard_dir record;
	int rc = shard_index_dir(filters->index, dir, &record);
	if (rc < 0)
		return rc;
	filters->next = record.first_file;
	filters->end = record.end_file;
	return 0;
}

int prefetch_filters_step(struct prefetch_filters *filters, uint32_t max)
{
	size_t suffix_len = strlen(filters->suffix);
	if (filters->next == filters->end && filters->end > 0)
		return 0;
	for (; max > 0 && filters->next < filters->end; max--, filters->next++) {
		uint32_t id = filters->next;
		struct shard_file file;
		int rc = shard_index_file(filters->index, id, &file);
		if (rc < 0)
			return rc;
		uint32_t instead;
		if (filters->shown && !file.common && shard_view_instead(filters->shown, file.sample, &instead) < 0)
			continue; /* the view leaves its sample out */
		bit_set(filters->filters[PREFETCH_FILTER_ALL]->words, id);
		if (!file.common)
			bit_set(filters->filters[PREFETCH_FILTER_DEALT]->words, id);
		if (prefetch_list_is_image(file.name, file.name_len))
			bit_set(filters->filters[PREFETCH_FILTER_IMAGES]->words, id);
		if (suffix_len > 0 && file.name_len >= suffix_len &&
		        memcmp(file.name + file.name_len - suffix_len, filters->suffix, suffix_len) == 0)
			bit_set(filters->filters[PREFETCH_FILTER_SUFFIX]->words, id);
	}
	if (filters->next < filters->end)
		return 1;
	for (unsigned i = 0; i < PREFETCH_FILTER_KINDS; i++)
		filter_count(filters->filters[i]);
	return 0;
}

void prefetch_filters_done(struct prefetch_filters *filters)
{
	for (unsigned i = 0; i < PREFETCH_FILTER_KINDS; i++)
		filter_put(filters->filters[i]);
	*filters = (struct prefetch_filters){ 0 };
}

/* Appends those of the files [first, end) that the filter has.  Extends the last run if they continue it. */
static int add_run(struct prefetch_list *list, uint32_t first, uint32_t end)
{
	uint32_t n = first < end ? filter_rank(list->filter, end) - filter_rank(list->filter, first) : 0;
	if (n == 0)
		return 0;
	struct run *last = list->n_runs ? &list->runs[list->n_runs - 1] : NULL;
	if (last && last->end == first) {
		last->end = end;
		list->n += n;
		return 0;
	}
	if (list->n_runs == list->room) {
		uint32_t room = list->room ? list->room * 2 : 16;
		struct run *runs = reallocarray(list->runs, room, sizeof(*runs));
		if (!runs)
			return -ENOMEM;
		list->runs = runs;
		list->room = room;
	}
	list->runs[list->n_runs++] = (struct run){ .first = first, .end = end, .before = list->n };
	list->n += n;
	return 0;
}

/* A directory among its siblings and their files: it compares as "name/". */
struct entry {
	const char *name;
	uint32_t len;
	uint32_t dir;
};

static int compare_bytes(const char *a, uint32_t a_len, bool a_dir, const char *b, uint32_t b_len, bool b_dir)
{
	uint32_t common = a_len < b_len ? a_len : b_len;
	int c = memcmp(a, b, common);
	if (c != 0)
		return c;
	int x = common < a_len ? (unsigned char)a[common] : a_dir ? '/' : -1;
	int y = common < b_len ? (unsigned char)b[common] : b_dir ? '/' : -1;
	return x - y;
}

static int compare_entries(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;
	return compare_bytes(x->name, x->len, true, y->name, y->len, true);
}

/* Finds the first of the files [low, high) of one directory whose name is not below "name/".  They are sorted by
 * name. */
static int first_behind(
        const struct shard_index *index, const struct entry *entry, uint32_t low, uint32_t high, uint32_t *ret_file)
{
	while (low < high) {
		uint32_t mid = low + (high - low) / 2;
		struct shard_file file;
		int rc = shard_index_file(index, mid, &file);
		if (rc < 0)
			return rc;
		if (compare_bytes(file.name, file.name_len, false, entry->name, entry->len, true) < 0)
			low = mid + 1;
		else
			high = mid;
	}
	*ret_file = low;
	return 0;
}

static int children(
        const struct shard_index *index, const struct shard_dir *dir, uint32_t id, struct entry **ret_entries)
{
	struct entry *entries = calloc((size_t)dir->n_dirs + 1, sizeof(*entries));
	if (!entries)
		return -ENOMEM;
	uint32_t child = id + 1;
	for (uint32_t i = 0; i < dir->n_dirs; i++) {
		struct shard_dir sub;
		int rc = shard_index_dir(index, child, &sub);
		if (rc < 0) {
			free(entries);
			return rc;
		}
		entries[i] = (struct entry){ .name = sub.name, .len = sub.name_len, .dir = child };
		child = sub.end_dir;
	}
	*ret_entries = entries;
	return 0;
}

/* Recursion: at most SHARD_DEPTH_MAX deep. */
static int add_by_path(
        struct prefetch_list *list, const struct shard_index *index, uint32_t id) // NOLINT(misc-no-recursion)
{
	struct shard_dir dir;
	cleanup_free struct entry *entries = NULL;
	int rc = shard_index_dir(index, id, &dir);
	if (rc < 0)
		return rc;
	uint32_t file = dir.first_file, end = dir.first_file + dir.n_files;
	if (dir.n_dirs > 0) {
		rc = children(index, &dir, id, &entries);
		if (rc < 0)
			return rc;
		qsort(entries, dir.n_dirs, sizeof(*entries), compare_entries);
	}
	for (uint32_t i = 0; i < dir.n_dirs; i++) {
		uint32_t behind;
		rc = first_behind(index, &entries[i], file, end, &behind);
		if (rc == 0)
			rc = add_run(list, file, behind);
		if (rc == 0)
			rc = add_by_path(list, index, entries[i].dir);
		if (rc < 0)
			return rc;
		file = behind;
	}
	return add_run(list, file, end);
}

struct walked {
	char *path;
	uint32_t dir;
};

static int compare_walked(const void *a, const void *b)
{
	const struct walked *x = a, *y = b;
	return strcmp(x->path, y->path);
}

/* Appends one class: its directories sorted by path, as in sorted(os.walk(class)). */
static int add_class(struct prefetch_list *list, const struct shard_index *index, uint32_t class, uint32_t end_dir)
{
	uint32_t n = end_dir - class, made = 0;
	int rc = 0;
	struct walked *dirs = calloc(n, sizeof(*dirs));
	if (!dirs)
		return -ENOMEM;
	for (; rc == 0 && made < n; made++) {
		char path[SHARD_PATH_MAX + 1];
		int len = n > 1 ? shard_index_dir_path(index, class + made, path, sizeof(path)) : 0;
		dirs[made] =
		        (struct walked){ .path = len < 0 ? NULL : strndup(path, (size_t)len), .dir = class + made };
		if (!dirs[made].path)
			rc = len < 0 ? len : -ENOMEM;
	}
	if (rc == 0)
		qsort(dirs, n, sizeof(*dirs), compare_walked);
	for (uint32_t i = 0; i < n; i++) {
		struct shard_dir dir;
		if (rc == 0)
			rc = shard_index_dir(index, dirs[i].dir, &dir);
		if (rc == 0)
			rc = add_run(list, dir.first_file, dir.first_file + dir.n_files);
		free(dirs[i].path);
	}
	free(dirs);
	return rc;
}

static int add_walk(struct prefetch_list *list, const struct shard_index *index, uint32_t id)
{
	struct shard_dir dir;
	int rc = shard_index_dir(index, id, &dir);
	uint32_t class = id + 1;
	while (rc == 0 && class < dir.end_dir) {
		struct shard_dir sub;
		rc = shard_index_dir(index, class, &sub);
		if (rc == 0)
			rc = add_class(list, index, class, sub.end_dir);
		if (rc == 0)
			class = sub.end_dir;
	}
	return rc;
}

static int add_subtree(struct prefetch_list *list, const struct shard_index *index, uint32_t id)
{
	struct shard_dir dir;
	int rc = shard_index_dir(index, id, &dir);
	return rc < 0 ? rc : add_run(list, dir.first_file, dir.end_file);
}

/* A file to sort by name.  key: 8 bytes of the name, compared first. */
struct named {
	uint64_t key;
	uint32_t file;
};

static uint64_t key_of(const struct shard_file *file, uint32_t skip)
{
	uint64_t key = 0;
	for (uint32_t i = 0; i < sizeof(key); i++)
		key = key << 8 | (skip + i < file->name_len ? (unsigned char)file->name[skip + i] : 0);
	return key;
}

struct by_name {
	const struct shard_index *index;
	bool short_names; /* keys have all of each name behind what all have in common */
};

/* Whether x comes before y: by name, then by id. */
static bool is_before(const struct by_name *by, const struct named *x, const struct named *y)
{
	struct shard_file one, two;
	int c = 0;
	if (x->key != y->key)
		return x->key < y->key;
	if (!by->short_names && shard_index_file(by->index, x->file, &one) == 0 &&
	        shard_index_file(by->index, y->file, &two) == 0)
		c = compare_bytes(one.name, one.name_len, false, two.name, two.name_len, false);
	return c != 0 ? c < 0 : x->file < y->file;
}

static uint32_t run_end(const struct by_name *by, const struct named *named, uint32_t start, uint32_t n)
{
	uint32_t end = start + 1;
	while (end < n && is_before(by, &named[end - 1], &named[end]))
		end++;
	return end;
}

/* Merges each sorted run with the next one.  Returns how many runs are left. */
static uint32_t merge_runs(const struct by_name *by, const struct named *named, uint32_t n, struct named *ret_merged)
{
	uint32_t runs = 0;
	for (uint32_t at = 0; at < n; runs++) {
		uint32_t mid = run_end(by, named, at, n), end = mid < n ? run_end(by, named, mid, n) : n;
		for (uint32_t a = at, b = mid; at < end; at++) {
			bool left = b == end || (a < mid && is_before(by, &named[a], &named[b]));
			ret_merged[at] = left ? named[a++] : named[b++];
		}
	}
	return runs;
}

/* Gathers the files of the filter.  Keys begin behind the bytes that all names begin with. */
static int gather_named(struct prefetch_list *list, const struct shard_index *index, const struct shard_dir *dir,
        struct named *named, bool *ret_short_names)
{
	uint32_t n = 0, common = UINT32_MAX, longest = 0;
	char first[256] = "";
	for (uint32_t file = dir->first_file; file < dir->end_file; file++) {
		struct shard_file record;
		if (!filter_has(list->filter, file))
			continue;
		int rc = shard_index_file(index, file, &record);
		if (rc < 0)
			return rc;
		if (n == 0) {
			common = record.name_len < sizeof(first) ? record.name_len : sizeof(first);
			memcpy(first, record.name, common);
		}
		uint32_t same = 0;
		while (same < common && same < record.name_len && record.name[same] == first[same])
			same++;
		common = same;
		longest = record.name_len > longest ? record.name_len : longest;
		named[n++].file = file;
	}
	for (uint32_t i = 0; i < n; i++) {
		struct shard_file record;
		int rc = shard_index_file(index, named[i].file, &record);
		if (rc < 0)
			return rc;
		named[i].key = key_of(&record, common);
	}
	list->n = n;
	*ret_short_names = longest - common <= sizeof(named->key);
	return 0;
}

static int add_by_name(struct prefetch_list *list, const struct shard_index *index, uint32_t id)
{
	struct shard_dir dir;
	int rc = shard_index_dir(index, id, &dir);
	uint32_t n = rc == 0 ? filter_rank(list->filter, dir.end_file) - filter_rank(list->filter, dir.first_file) : 0;
	if (rc < 0 || n == 0)
		return rc;
	struct by_name by = { .index = index };
	cleanup_free struct named *named = calloc(n, sizeof(*named)), *merged = calloc(n, sizeof(*merged));
	list->first_file = dir.first_file;
	list->n_files = dir.end_file - dir.first_file;
	list->named = calloc(n, sizeof(*list->named));
	list->places = calloc(list->n_files, sizeof(*list->places));
	if (!named || !merged || !list->named || !list->places)
		return -ENOMEM;
	rc = gather_named(list, index, &dir, named, &by.short_names);
	if (rc < 0)
		return rc;
	/* The files of a directory are sorted already, so few passes merge all runs.  Each halves their number. */
	for (unsigned pass = 0; merge_runs(&by, named, n, merged) > 1 && pass < 32; pass++) {
		struct named *last = named;
		named = merged;
		merged = last;
	}
	memset(list->places, 0xff, list->n_files * sizeof(*list->places));
	for (uint32_t i = 0; i < n; i++) {
		list->named[i] = merged[i].file;
		list->places[merged[i].file - list->first_file] = i;
	}
	return 0;
}

static int compare_first(const void *a, const void *b, void *runs)
{
	const struct run *x = (struct run *)runs + *(const uint32_t *)a;
	const struct run *y = (struct run *)runs + *(const uint32_t *)b;
	return (x->first > y->first) - (x->first < y->first);
}

static int index_runs(struct prefetch_list *list)
{
	list->by_first = calloc(list->n_runs, sizeof(*list->by_first));
	if (!list->by_first)
		return -ENOMEM;
	for (uint32_t i = 0; i < list->n_runs; i++)
		list->by_first[i] = i;
	qsort_r(list->by_first, list->n_runs, sizeof(*list->by_first), compare_first, list->runs);
	return 0;
}

int prefetch_list_new(const struct prefetch_filters *filters, uint32_t dir, enum prefetch_list_sort sort,
        enum prefetch_filter_kind kind, struct prefetch_list **ret_list)
{
	char path[SHARD_PATH_MAX + 1];
	int rc = shard_index_dir_path(filters->index, dir, path, sizeof(path));
	if (rc < 0)
		return rc;
	struct prefetch_list *list = calloc(1, sizeof(*list));
	if (!list)
		return -ENOMEM;
	atomic_init(&list->refs, 1);
	list->sort = sort;
	list->dir = dir;
	list->kind = kind;
	list->filter = filters->filters[kind];
	atomic_fetch_add(&list->filter->refs, 1);
	memcpy(list->suffix, filters->suffix, sizeof(list->suffix));
	list->where = strndup(path, (size_t)rc);
	rc = !list->where                 ? -ENOMEM
	     : sort == PREFETCH_SORT_WALK ? add_walk(list, filters->index, dir)
	     : sort == PREFETCH_SORT_ID   ? add_subtree(list, filters->index, dir)
	     : sort == PREFETCH_SORT_NAME ? add_by_name(list, filters->index, dir)
	                                  : add_by_path(list, filters->index, dir);
	if (rc == 0 && list->n == 0)
		rc = -ENOENT;
	if (rc == 0 && sort != PREFETCH_SORT_NAME)
		rc = index_runs(list);
	if (rc < 0) {
		prefetch_list_put(list);
		return rc;
	}
	*ret_list = list;
	return 0;
}

int prefetch_list_new_given(const struct prefetch_list_given *given, struct prefetch_list **ret_list)
{
	struct prefetch_list *list = calloc(1, sizeof(*list));
	if (!list)
		return -ENOMEM;
	atomic_init(&list->refs, 1);
	list->sort = PREFETCH_SORT_GIVEN;
	list->dir = SHARD_NONE;
	list->n = given->n;
	list->given = *given;
	list->where = strdup(given->name);
	if (!list->where) {
		free(list);
		return -ENOMEM;
	}
	list->given.name = list->where;
	*ret_list = list;
	return 0;
}

int prefetch_list_new_part(
        struct prefetch_list *whole, const struct prefetch_list_part *part, struct prefetch_list **ret_list)
{
	if (whole->whole || part->n == 0 || part->stride == 0 ||
	        part->start + (uint64_t)(part->n - 1) * part->stride >= whole->n)
		return -EINVAL;
	struct prefetch_list *list = calloc(1, sizeof(*list));
	if (!list)
		return -ENOMEM;
	atomic_init(&list->refs, 1);
	list->sort = whole->sort;
	list->kind = whole->kind;
	list->dir = whole->dir;
	list->n = part->n;
	list->part = *part;
	list->where = strdup("");
	if (!list->where) {
		free(list);
		return -ENOMEM;
	}
	list->whole = prefetch_list_get(whole);
	*ret_list = list;
	return 0;
}

struct prefetch_list *prefetch_list_whole(const struct prefetch_list *list)
{
	return list->whole;
}

bool prefetch_list_part(const struct prefetch_list *list, struct prefetch_list_part *ret_part)
{
	if (list->whole)
		*ret_part = list->part;
	return list->whole != NULL;
}

struct prefetch_list *prefetch_list_get(struct prefetch_list *list)
{
	atomic_fetch_add(&list->refs, 1);
	return list;
}

void prefetch_list_put(struct prefetch_list *list) // NOLINT(misc-no-recursion): a part has a whole list
{
	if (!list || atomic_fetch_sub(&list->refs, 1) > 1)
		return;
	filter_put(list->filter);
	prefetch_list_put(list->whole);
	free(list->runs);
	free(list->by_first);
	free(list->named);
	free(list->places);
	free(list->where);
	free(list);
}

uint32_t prefetch_list_size(const struct prefetch_list *list)
{
	return list->n;
}

uint32_t prefetch_list_dir(const struct prefetch_list *list)
{
	return list->dir;
}

bool prefetch_list_kind(const struct prefetch_list *list, uint32_t *ret_sort, uint32_t *ret_filter)
{
	if (list->sort == PREFETCH_SORT_GIVEN)
		return false;
	*ret_sort = list->sort;
	*ret_filter = list->kind;
	return true;
}

bool prefetch_list_is_given(const struct prefetch_list *list)
{
	return list->sort == PREFETCH_SORT_GIVEN;
}

int prefetch_list_at(const struct prefetch_list *list, uint32_t i, uint32_t *ret_file)
{
	if (i >= list->n)
		return -ERANGE;
	if (list->whole) {
		i = list->part.start + i * list->part.stride;
		list = list->whole;
	}
	if (list->sort == PREFETCH_SORT_GIVEN)
		return list->given.at(list->given.user, i, ret_file);
	if (list->named) {
		*ret_file = list->named[i];
		return 0;
	}
	uint32_t low = 0, high = list->n_runs - 1;
	while (low < high) {
		uint32_t mid = low + (high - low + 1) / 2;
		if (list->runs[mid].before <= i)
			low = mid;
		else
			high = mid - 1;
	}
	const struct run *run = &list->runs[low];
	*ret_file = filter_select(list->filter, filter_rank(list->filter, run->first) + i - run->before);
	return 0;
}

static int find_in_whole(const struct prefetch_list *list, uint32_t file, uint32_t *ret_index)
{
	if (list->sort == PREFETCH_SORT_GIVEN)
		return list->given.find(list->given.user, file, ret_index);
	if (list->named) {
		uint32_t at = file - list->first_file;
		if (file < list->first_file || at >= list->n_files || list->places[at] == UINT32_MAX)
			return -ENOENT;
		*ret_index = list->places[at];
		return 0;
	}
	if (!filter_has(list->filter, file) || file < list->runs[list->by_first[0]].first)
		return -ENOENT;
	uint32_t low = 0, high = list->n_runs - 1;
	while (low < high) {
		uint32_t mid = low + (high - low + 1) / 2;
		if (list->runs[list->by_first[mid]].first <= file)
			low = mid;
		else
			high = mid - 1;
	}
	const struct run *run = &list->runs[list->by_first[low]];
	if (file >= run->end)
		return -ENOENT;
	*ret_index = run->before + filter_rank(list->filter, file) - filter_rank(list->filter, run->first);
	return 0;
}

int prefetch_list_find(const struct prefetch_list *list, uint32_t file, uint32_t *ret_index)
{
	const struct prefetch_list_part *part = &list->part;
	uint32_t index;
	if (!list->whole)
		return find_in_whole(list, file, ret_index);
	int rc = find_in_whole(list->whole, file, &index);
	if (rc < 0)
		return rc;
	if (index < part->start || (index - part->start) % part->stride != 0 ||
	        (index - part->start) / part->stride >= part->n)
		return -ENOENT;
	*ret_index = (index - part->start) / part->stride;
	return 0;
}

/* Whether both lists have the same first and last file in each run of `a`.  If so, the run has the same files in
 * both: it ascends in both, the counts are equal, and the filters are nested or disjoint. */
static bool pieces_equal(const struct prefetch_list *a, const struct prefetch_list *b)
{
	for (uint32_t i = 0; i < a->n_runs; i++) {
		uint32_t first = a->runs[i].before, last = (i + 1 < a->n_runs ? a->runs[i + 1].before : a->n) - 1;
		uint32_t x, y;
		if (prefetch_list_at(a, first, &x) < 0 || prefetch_list_at(b, first, &y) < 0 || x != y ||
		        prefetch_list_at(a, last, &x) < 0 || prefetch_list_at(b, last, &y) < 0 || x != y)
			return false;
	}
	return true;
}

static bool places_equal(const struct prefetch_list *a, const struct prefetch_list *b)
{
	uint32_t x, y;
	for (uint32_t i = 0; i < a->n; i++) {
		if (prefetch_list_at(a, i, &x) < 0 || prefetch_list_at(b, i, &y) < 0 || x != y)
			return false;
	}
	return true;
}

bool prefetch_list_equal(const struct prefetch_list *a, const struct prefetch_list *b)
{
	if (a == b)
		return true;
	if (a->whole || b->whole)
		return a->whole && b->whole && a->part.start == b->part.start && a->part.stride == b->part.stride &&
		       a->part.n == b->part.n && a->whole == b->whole;
	if (a->n != b->n || a->sort == PREFETCH_SORT_GIVEN || b->sort == PREFETCH_SORT_GIVEN)
		return false;
	if (a->named && b->named && a->dir == b->dir)
		return true; /* equal counts, so equal files, as in pieces_equal() */
	if (a->named || b->named)
		return places_equal(a, b);
	return pieces_equal(a, b) && pieces_equal(b, a);
}

const char *prefetch_list_describe(
        const struct prefetch_list *list, char *buf, size_t size) // NOLINT(misc-no-recursion)
{
	static const char *const what[] = { "files", "files", "images", "files" };
	char where[256] = "the whole dataset";
	if (list->whole) {
		const struct prefetch_list_part *part = &list->part;
		prefetch_list_describe(list->whole, buf, size);
		size_t at = strlen(buf);
		if (part->stride > 1)
			snprintf(buf + at, size - at, ", every %u. from %u on", part->stride, part->start);
		else
			snprintf(buf + at, size - at, ", %u to %u", part->start, part->start + part->n - 1);
		return buf;
	}
	if (list->sort == PREFETCH_SORT_GIVEN) {
		snprintf(buf, size, "%s", list->where);
		return buf;
	}
	if (list->where[0]) {
		char quoted[240];
		snprintf(where, sizeof(where), "%s/", base_err_quote(list->where, quoted, sizeof(quoted)));
	}
	snprintf(buf, size, "%s%s%s of %s, %s", list->kind == PREFETCH_FILTER_SUFFIX ? base_quoted(list->suffix) : "",
	        list->kind == PREFETCH_FILTER_SUFFIX ? " " : "", what[list->kind], where,
	        list->sort == PREFETCH_SORT_WALK   ? "as ImageFolder lists them"
	        : list->sort == PREFETCH_SORT_ID   ? "directory by directory"
	        : list->sort == PREFETCH_SORT_NAME ? "sorted by name over all directories"
	                                           : "sorted by path");
	return buf;
}

uint64_t prefetch_list_bytes(const struct prefetch_list *list)
{
	return sizeof(*list) + (uint64_t)list->room * sizeof(*list->runs) +
	       (uint64_t)list->n_runs * sizeof(*list->by_first) + strlen(list->where) + 1 +
	       (list->named ? (uint64_t)(list->n + list->n_files) * sizeof(*list->named) : 0);
}
