/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the lists that the opened files may come from: those of the directories that hold a good part of these files.
 * prefetch/sampler/file_list.h first. */
#include <errno.h>
#include <string.h>

#include "prefetch/sampler/recognise_private.h"

enum { COUNTED = 256, SHARE = 8 /* a directory counts if it holds an eighth of the ring */ };

/* whole: from the first dot of the name on, else from the last one. */
static void suffix_of(const struct shard_file *file, bool whole, char ret_suffix[PREFETCH_SUFFIX_MAX + 1])
{
	const char *behind = file->name + 1; /* a dot that begins the name is no suffix */
	const char *dot = whole ? memchr(behind, '.', file->name_len - 1) : memrchr(behind, '.', file->name_len - 1);
	size_t len = dot ? file->name_len - (size_t)(dot - file->name) : 0;
	ret_suffix[0] = '\0';
	if (len > 1 && len <= PREFETCH_SUFFIX_MAX) {
		memcpy(ret_suffix, dot, len);
		ret_suffix[len] = '\0';
	}
}

/* Finds the suffix that most of the files have (majority vote).  Returns by how many files it leads. */
static size_t vote(const struct shard_index *index, const uint32_t *files, size_t n, bool whole,
        char ret_suffix[PREFETCH_SUFFIX_MAX + 1])
{
	size_t lead = 0;
	ret_suffix[0] = '\0';
	for (size_t i = 0; i < n; i++) {
		struct shard_file file;
		char suffix[PREFETCH_SUFFIX_MAX + 1];
		if (shard_index_file(index, files[i], &file) < 0)
			continue;
		suffix_of(&file, whole, suffix);
		if (strcmp(suffix, ret_suffix) == 0) {
			lead++;
		} else if (lead > 0) {
			lead--;
		} else {
			memcpy(ret_suffix, suffix, sizeof(suffix));
			lead = 1;
		}
	}
	return lead;
}

/* `7.left.png` and `7.right.png` of one sample are two kinds of files.  But names may have other dots, too: then few
 * names agree from the first dot on, or only in what is too long for a suffix. */
void prefetch_common_suffix(
        const struct shard_index *index, const uint32_t *files, size_t n, char ret_suffix[PREFETCH_SUFFIX_MAX + 1])
{
	bool whole = shard_index_info(index)->grouped;
	if (!whole || vote(index, files, n, whole, ret_suffix) < n / 2 || !*ret_suffix)
		vote(index, files, n, false, ret_suffix);
}

struct counted {
	uint32_t dir, files;
};

static void count_dir(struct counted counted[COUNTED], uint32_t *n, uint32_t dir)
{
	uint32_t i = 0;
	while (i < *n && counted[i].dir != dir)
		i++;
	if (i == COUNTED)
		return; /* so many cannot hold an eighth each, and the upper ones came first */
	if (i == *n)
		counted[(*n)++] = (struct counted){ .dir = dir };
	counted[i].files++;
}

/* Counts the file for each directory above it, the root first. */
static int count_file(const struct prefetch_recognise *r, uint32_t id, struct counted counted[COUNTED], uint32_t *n)
{
	uint32_t chain[SHARD_DEPTH_MAX + 1], depth = 0;
	struct shard_file file;
	int rc = shard_index_file(r->options.index, id, &file);
	if (rc < 0)
		return rc;
	for (uint32_t dir = file.dir; dir != SHARD_NONE && depth <= SHARD_DEPTH_MAX;) {
		struct shard_dir record;
		rc = shard_index_dir(r->options.index, dir, &record);
		if (rc < 0)
			return rc;
		chain[depth++] = dir;
		dir = record.parent;
	}
	while (depth > 0)
		count_dir(counted, n, chain[--depth]);
	return 0;
}

static bool is_made(const struct prefetch_recognise *r, const struct prefetch_list *list)
{
	for (uint32_t i = 0; i < r->n_lists; i++) {
		if (prefetch_list_equal(list, r->lists[i]))
			return true;
	}
	return false;
}

static int add_list(
        struct prefetch_recognise *r, uint32_t dir, enum prefetch_list_sort sort, enum prefetch_filter_kind kind)
{
	struct prefetch_list *list;
	if (r->n_lists == LISTS_MAX)
		return 0;
	int rc = prefetch_list_new(&r->filters, dir, sort, kind, &list);
	if (rc == -ENOENT)
		return 0;
	if (rc < 0)
		return rc;
	if (is_made(r, list))
		prefetch_list_put(list);
	else
		r->lists[r->n_lists++] = list;
	return 0;
}

/* Makes the next list of a directory: three sorts of four filters each. */
static int add_dir(struct prefetch_recognise *r, uint32_t dir)
{
	static const enum prefetch_list_sort sorts[] = { PREFETCH_SORT_WALK, PREFETCH_SORT_ID, PREFETCH_SORT_PATH };
	static const enum prefetch_filter_kind kinds[] = { PREFETCH_FILTER_IMAGES, PREFETCH_FILTER_SUFFIX,
		PREFETCH_FILTER_DEALT, PREFETCH_FILTER_ALL };
	int rc = add_list(r, dir, sorts[r->listing % 3], kinds[r->listing / 3]);
	if (rc < 0)
		return rc;
	if (++r->listing == 12) {
		r->listing = 0;
		r->listed[r->n_listed++] = dir;
	}
	return 0;
}

static bool is_listed(const struct prefetch_recognise *r, uint32_t dir)
{
	for (uint32_t i = 0; i < r->n_listed; i++) {
		if (r->listed[i] == dir)
			return true;
	}
	return false;
}

/* Makes one new list, of the next directory that has some to make.  1: there may be more; 0: done. */
static int add_next_dir(struct prefetch_recognise *r)
{
	struct counted counted[COUNTED];
	uint32_t n = 0, tried = 0;
	for (uint32_t i = 0; i < r->n_ring; i++) {
		int rc = count_file(r, r->ring[i], counted, &n);
		if (rc < 0)
			return rc;
	}
	for (uint32_t i = 0; i < n && tried < DIRS_MAX; i++) {
		if (counted[i].files < PREFETCH_FIT_HITS_MIN || counted[i].files * SHARE < r->n_ring)
			continue;
		tried++;
		if (is_listed(r, counted[i].dir) || r->n_listed == DIRS_MAX * 4 || r->n_lists == LISTS_MAX)
			continue;
		int rc = add_dir(r, counted[i].dir);
		return rc < 0 ? rc : 1;
	}
	return 0;
}

/* ---- by name alone ---- */

/* Whether a reader seems to go by name alone.  The question is asked first, because a list by name takes a sort of
 * all names.  Such a reader opens files of several directories in turn, all about equally far into their directories.
 * So its opens lie in few of the STRETCHES equal parts of directories, while those of a shuffle lie in most. */
static bool go_by_name(const struct prefetch_recognise *r, const struct shard_dir *dir)
{
	enum { STRETCHES = 64, FEW_FILES = 1 << 14 };
	uint64_t stretches = 0;
	uint32_t n = 0, turns = 0, cut = 0, last = SHARD_NONE;
	for (uint32_t i = 0; i < r->n_ring; i++) {
		struct shard_file file;
		struct shard_dir own;
		if (r->ring[i] < dir->first_file || r->ring[i] >= dir->end_file ||
		        shard_index_file(r->options.index, r->ring[i], &file) < 0 ||
		        shard_index_dir(r->options.index, file.dir, &own) < 0 || own.n_files == 0)
			continue;
		n++;
		turns += file.dir != last;
		cut += own.n_files >= STRETCHES;
		last = file.dir;
		stretches |= UINT64_C(1) << ((uint64_t)(r->ring[i] - own.first_file) * STRETCHES / own.n_files);
	}
	if (n < PREFETCH_FIT_HITS_MIN || turns * 8 < n)
		return false;
	uint32_t most = n < STRETCHES ? n : STRETCHES;
	return (cut * 2 > n || dir->end_file - dir->first_file <= FEW_FILES) &&
	       (uint32_t)__builtin_popcountll(stretches) * 2 < most;
}

int prefetch_lists_by_name(struct prefetch_recognise *r)
{
	static const enum prefetch_filter_kind kinds[] = { PREFETCH_FILTER_IMAGES, PREFETCH_FILTER_SUFFIX,
		PREFETCH_FILTER_DEALT, PREFETCH_FILTER_ALL };
	for (uint32_t i = 0; i < r->n_listed; i++) {
		struct shard_dir dir;
		bool named = false;
		for (uint32_t k = 0; k < r->n_named; k++)
			named |= r->named[k] == r->listed[i];
		if (named || shard_index_dir(r->options.index, r->listed[i], &dir) < 0 || dir.n_dirs == 0 ||
		        !go_by_name(r, &dir))
			continue;
		int rc = 0;
		for (unsigned k = 0; k < sizeof(kinds) / sizeof(kinds[0]) && rc == 0; k++)
			rc = add_list(r, r->listed[i], PREFETCH_SORT_NAME, kinds[k]);
		r->named[r->n_named++] = r->listed[i];
		return rc < 0 ? rc : 1;
	}
	return 0;
}

/* Which kinds of a directory's files other lists have, a bit each. */
static unsigned kinds_of(const struct prefetch_recognise *r, uint32_t dir)
{
	unsigned kinds = 0;
	for (uint32_t i = 0; i < r->n_lists; i++) {
		uint32_t sort, kind;
		if (prefetch_list_dir(r->lists[i]) == dir && prefetch_list_kind(r->lists[i], &sort, &kind))
			kinds |= 1U << kind;
	}
	return kinds;
}

int prefetch_lists_shuffled(struct prefetch_recognise *r, const struct prefetch_list *list)
{
	enum { FILES_MAX = 1 << 20 /* of more, a list takes a second */ };
	uint32_t id = prefetch_list_dir(list);
	struct shard_dir dir;
	int rc = 0;
	if (r->shuffled_made || id == SHARD_NONE || shard_index_dir(r->options.index, id, &dir) < 0 ||
	        dir.n_dirs == 0 || dir.end_file - dir.first_file > FILES_MAX)
		return 0;
	r->shuffled_made = true;
	unsigned kinds = kinds_of(r, id);
	for (unsigned kind = 0; kind < PREFETCH_FILTER_KINDS && (rc == 0 || rc == -ENOENT); kind++) {
		struct prefetch_list *by_name;
		if (!(kinds >> kind & 1))
			continue;
		rc = prefetch_list_new(&r->filters, id, PREFETCH_SORT_NAME, kind, &by_name);
		if (rc == 0 && is_made(r, by_name))
			prefetch_list_put(by_name);
		else if (rc == 0)
			r->shuffled[r->n_shuffled++] = by_name;
	}
	return rc == -ENOENT ? 0 : rc;
}

void prefetch_lists_found(struct prefetch_recognise *r, const struct prefetch_list *list)
{
	for (uint32_t i = 0; i < r->n_shuffled && r->n_lists < LISTS_MAX; i++) {
		if (r->shuffled[i] != list)
			continue;
		r->lists[r->n_lists++] = r->shuffled[i];
		r->shuffled[i] = r->shuffled[--r->n_shuffled];
	}
}

int prefetch_lists_step(struct prefetch_recognise *r)
{
	if (!r->filters_begun) {
		char suffix[PREFETCH_SUFFIX_MAX + 1];
		prefetch_common_suffix(r->options.index, r->ring, r->n_ring, suffix);
		int rc = prefetch_filters_init(&r->filters, r->options.index, r->options.shown, suffix);
		if (rc < 0)
			return rc;
		r->filters_begun = true;
	}
	if (!r->filters_made) {
		int rc = prefetch_filters_step(&r->filters, SLICE_FILES);
		if (rc == 0)
			r->filters_made = true;
		return rc < 0 ? rc : 1;
	}
	return add_next_dir(r);
}
