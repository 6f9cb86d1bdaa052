/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers what a builder collected: directories in pre-order, files by (directory, name), samples by first file, slots
 * by place; shard/build_private.h first. */
#include "shard/build_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shard/base/cleanup.h"

static int no_memory(struct base_err *err, const struct shard_builder *b)
{
	return base_err_set(err, -ENOMEM, "out of memory while sorting %u files", b->n_files);
}

void build_plan_done(struct build_plan *plan)
{
	free(plan->dirs);
	free(plan->perm);
	free(plan->sample_file);
	free(plan->sample_first);
	free(plan->members);
	free(plan->slots);
	free(plan->sample_slot);
	*plan = (struct build_plan){ 0 };
}

/* Allocates n zeroed elements.  NULL means out of memory, also for n = 0. */
static void *new_array(uint64_t n, size_t size)
{
	return calloc(n ? n : 1, size);
}

static int name_compare(const uint8_t *a, size_t a_len, const uint8_t *b, size_t b_len)
{
	int c = memcmp(a, b, a_len < b_len ? a_len : b_len);
	return c ? c : (a_len > b_len) - (a_len < b_len);
}

/* Writes the path of a directory, given its number in order of appearance, so that it ends at `end`.  It takes at most
 * SHARD_PATH_MAX + 1 bytes.  Returns its start. */
static char *dir_path_backwards(const struct shard_builder *b, uint32_t number, char *end)
{
	for (const struct build_dir *d = &build_dirs(b)[number]; d->parent != SHARD_NONE;
	        d = &build_dirs(b)[d->parent]) {
		*--end = '/';
		end -= d->name_len;
		memcpy(end, b->names.data + d->name, d->name_len);
	}
	return end;
}

/* Returns the number in order of appearance of directory `id`.  A linear search, because only messages need it. */
static uint32_t dir_number(const struct shard_builder *b, uint32_t id)
{
	for (uint32_t i = 0; i < b->n_dirs; i++)
		if (build_dirs(b)[i].id == id)
			return i;
	return 0;
}

const char *build_file_quote(const struct shard_builder *b, const struct shard_file_rec *rec, char *buf)
{
	char path[SHARD_PATH_MAX + 2 + SHARD_NAME_MAX];
	char *name = path + SHARD_PATH_MAX + 1;
	memcpy(name, b->names.data + shard_rec_name(rec), shard_rec_name_len(rec));
	name[shard_rec_name_len(rec)] = '\0';
	return base_err_quote(dir_path_backwards(b, dir_number(b, rec->dir), name), buf, BUILD_QUOTE);
}

static int compare_dirs(const void *pa, const void *pb, void *arg)
{
	const struct shard_builder *b = arg;
	const struct build_dir *x = &build_dirs(b)[*(const uint32_t *)pa], *y = &build_dirs(b)[*(const uint32_t *)pb];
	if (x->parent != y->parent)
		return x->parent < y->parent ? -1 : 1;
	return name_compare(b->names.data + x->name, x->name_len, b->names.data + y->name, y->name_len);
}

static struct shard_dir_rec dir_record(const struct build_dir *dir, uint32_t parent_id)
{
	return (struct shard_dir_rec){
		.parent = parent_id,
		.name_lo = (uint32_t)dir->name,
		.name_hi = (uint8_t)(dir->name >> 32),
		.name_len = dir->name_len,
		.mode = dir->mode,
		.mtime_s = dir->mtime_s,
	};
}

/* Walks the tree in pre-order.  sorted[first[d] .. first[d + 1]) are the children of number d. */
static void number_walk(
        struct shard_builder *b, const uint32_t *sorted, const uint32_t *first, struct shard_dir_rec *out)
{
	struct {
		uint32_t number, next;
	} stack[SHARD_DEPTH_MAX + 1];
	struct build_dir *dirs = build_dirs(b);
	unsigned depth = 0;
	uint32_t next_id = 1;

	out[0] = dir_record(&dirs[0], SHARD_NONE);
	dirs[0].id = 0;
	stack[0].number = 0;
	stack[0].next = first[0];
	for (;;) {
		uint32_t number = stack[depth].number, id = dirs[number].id;
		if (stack[depth].next == first[number + 1]) {
			out[id].end_dir = next_id;
			if (depth == 0)
				return;
			depth--;
			continue;
		}
		uint32_t child = sorted[stack[depth].next++];
		out[id].n_dirs++;
		out[next_id] = dir_record(&dirs[child], id);
		dirs[child].id = next_id++;
		depth++;
		stack[depth].number = child;
		stack[depth].next = first[child];
	}
}

static int number_dirs(struct shard_builder *b, struct base_err *err, struct build_plan *plan)
{
	uint32_t n = b->n_dirs;
	cleanup_free uint32_t *sorted = new_array(n, sizeof *sorted);
	cleanup_free uint32_t *first = new_array((uint64_t)n + 1, sizeof *first);
	plan->dirs = new_array(n, sizeof *plan->dirs);
	if (!sorted || !first || !plan->dirs)
		return no_memory(err, b);

	/* the root (number 0) has no parent, so it is not sorted */
	for (uint32_t i = 1; i < n; i++) {
		sorted[i - 1] = i;
		first[build_dirs(b)[i].parent + 1]++;
	}
	for (uint32_t i = 0; i < n; i++)
		first[i + 1] += first[i];
	qsort_r(sorted, n - 1, sizeof *sorted, compare_dirs, b);
	number_walk(b, sorted, first, plan->dirs);
	return 0;
}

static int compare_files(const struct shard_builder *b, const struct shard_file_rec *x, const struct shard_file_rec *y)
{
	if (x->dir != y->dir)
		return x->dir < y->dir ? -1 : 1;
	return name_compare(b->names.data + shard_rec_name(x), shard_rec_name_len(x), b->names.data + shard_rec_name(y),
	        shard_rec_name_len(y));
}

/* The key by which the files of one directory are sorted.  The first eight bytes of the name nearly always decide, so
 * the comparison does not read the name, which would be a cache miss. */
struct name_key {
	uint64_t prefix; /* first bytes of the name, big-endian */
	uint32_t number;
};

static int compare_keys(const void *pa, const void *pb, void *arg)
{
	const struct name_key *x = pa, *y = pb;
	if (x->prefix != y->prefix)
		return x->prefix < y->prefix ? -1 : 1;
	const struct shard_builder *b = arg;
	return compare_files(b, &build_files(b)[x->number], &build_files(b)[y->number]);
}

static int sort_directory(struct shard_builder *b, uint32_t *perm, uint32_t n)
{
	const struct shard_file_rec *files = build_files(b);
	bool sorted = true;
	for (uint32_t i = 1; i < n && sorted; i++)
		sorted = compare_files(b, &files[perm[i - 1]], &files[perm[i]]) <= 0;
	if (sorted)
		return 0;

	cleanup_free struct name_key *keys = new_array(n, sizeof *keys);
	if (!keys)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		const struct shard_file_rec *rec = &files[perm[i]];
		uint32_t len = shard_rec_name_len(rec);
		uint64_t prefix = 0;
		memcpy(&prefix, b->names.data + shard_rec_name(rec), len < 8 ? len : 8);
		keys[i].prefix = __builtin_bswap64(prefix);
		keys[i].number = perm[i];
	}
	qsort_r(keys, n, sizeof *keys, compare_keys, b);
	for (uint32_t i = 0; i < n; i++)
		perm[i] = keys[i].number;
	return 0;
}

/* Counts the files of each directory and sets the ranges of ids. */
static void number_file_ranges(struct shard_builder *b, struct build_plan *plan)
{
	struct shard_file_rec *files = build_files(b);
	struct shard_dir_rec *dirs = plan->dirs;

	for (uint32_t i = 0; i < b->n_files; i++) {
		files[i].dir = build_dirs(b)[files[i].dir].id;
		dirs[files[i].dir].n_files++;
	}
	uint32_t next = 0;
	for (uint32_t d = 0; d < b->n_dirs; d++) {
		dirs[d].first_file = next;
		next += dirs[d].n_files;
	}
	for (uint32_t d = 0; d < b->n_dirs; d++)
		dirs[d].end_file = dirs[d].end_dir < b->n_dirs ? dirs[dirs[d].end_dir].first_file : b->n_files;
}

static int number_files(struct shard_builder *b, struct base_err *err, struct build_plan *plan)
{
	struct shard_file_rec *files = build_files(b);
	number_file_ranges(b, plan);

	bool sorted = true;
	for (uint32_t i = 1; i < b->n_files && sorted; i++)
		sorted = compare_files(b, &files[i - 1], &files[i]) <= 0;
	if (!sorted) {
		cleanup_free uint32_t *fill = new_array(b->n_dirs, sizeof *fill);
		plan->perm = new_array(b->n_files, sizeof *plan->perm);
		if (!fill || !plan->perm)
			return no_memory(err, b);
		for (uint32_t i = 0; i < b->n_files; i++) {
			uint32_t d = files[i].dir;
			plan->perm[plan->dirs[d].first_file + fill[d]++] = i;
		}
		for (uint32_t d = 0; d < b->n_dirs; d++)
			if (sort_directory(b, plan->perm + plan->dirs[d].first_file, plan->dirs[d].n_files) < 0)
				return no_memory(err, b);
	}

	for (uint32_t id = 1; id < b->n_files; id++) {
		const struct shard_file_rec *rec = &files[build_file_number(plan, id)];
		if (compare_files(b, &files[build_file_number(plan, id - 1)], rec) == 0) {
			char quoted[BUILD_QUOTE];
			return base_err_set(err, -EEXIST, "'%s': two files have this path; rename one or leave it out",
			        build_file_quote(b, rec, quoted));
		}
	}
	return 0;
}

/* Finds a name that is both a file and a directory: for each directory a binary search among the files of its
 * parent. */
static int check_clashes(const struct shard_builder *b, const struct build_plan *plan, struct base_err *err)
{
	for (uint32_t d = 1; d < b->n_dirs; d++) {
		const struct shard_dir_rec *dir = &plan->dirs[d], *parent = &plan->dirs[dir->parent];
		uint32_t low = parent->first_file, high = low + parent->n_files;
		while (low < high) {
			uint32_t mid = low + (high - low) / 2;
			const struct shard_file_rec *rec = &build_files(b)[build_file_number(plan, mid)];
			int c = name_compare(b->names.data + shard_rec_name(rec), shard_rec_name_len(rec),
			        b->names.data + shard_dir_name(dir), dir->name_len);
			if (c == 0) {
				char quoted[BUILD_QUOTE];
				return base_err_set(err, -ENOTDIR, "'%s': both a file and a directory; rename one",
				        build_file_quote(b, rec, quoted));
			}
			if (c < 0)
				low = mid + 1;
			else
				high = mid;
		}
	}
	return 0;
}

/* Sets the mtime of directories that were not declared: that of the newest file below, or else of the newest
 * directory. */
static int date_dirs(struct shard_builder *b, struct base_err *err, struct build_plan *plan)
{
	uint32_t n = b->n_dirs;
	cleanup_free int64_t *newest_file = new_array(n, sizeof *newest_file);
	cleanup_free bool *declared = new_array(n, sizeof *declared);
	if (!newest_file || !declared)
		return no_memory(err, b);
	for (uint32_t i = 0; i < n; i++) {
		declared[build_dirs(b)[i].id] = build_dirs(b)[i].declared;
		newest_file[i] = INT64_MIN;
	}
	for (uint32_t i = 0; i < b->n_files; i++) {
		const struct shard_file_rec *rec = &build_files(b)[i];
		if (shard_rec_mtime(rec) > newest_file[rec->dir])
			newest_file[rec->dir] = shard_rec_mtime(rec);
	}
	/* Children have larger ids than their parents.  So in this loop, which runs backwards, each child is done
	 * before its parent reads it.  An undeclared directory without a file below has a child, or it is an empty root
	 * (1970). */
	for (uint32_t d = n; d-- > 0;) {
		struct shard_dir_rec *dir = &plan->dirs[d];
		int64_t newest_dir = INT64_MIN;
		for (uint32_t c = d + 1; c < dir->end_dir; c = plan->dirs[c].end_dir) {
			if (newest_file[c] > newest_file[d])
				newest_file[d] = newest_file[c];
			if (plan->dirs[c].mtime_s > newest_dir)
				newest_dir = plan->dirs[c].mtime_s;
		}
		if (!declared[d])
			dir->mtime_s = dir->first_file < dir->end_file ? newest_file[d]
			               : newest_dir > INT64_MIN        ? newest_dir
			                                               : 0;
	}
	return 0;
}

/* Numbers samples in the order of their first files.  Sets `sample` in every record. */
static int number_samples(struct shard_builder *b, struct base_err *err, struct build_plan *plan)
{
	cleanup_free uint32_t *of_group = new_array(b->n_groups, sizeof *of_group);
	if (!of_group)
		return no_memory(err, b);
	memset(of_group, 0xff, (size_t)b->n_groups * sizeof *of_group);

	for (uint32_t id = 0; id < b->n_files; id++) {
		struct shard_file_rec *rec = &build_files(b)[build_file_number(plan, id)];
		if (rec->offset_mode & SHARD_REC_COMMON) {
			rec->sample = SHARD_NONE;
		} else if (rec->sample == SHARD_NONE) {
			rec->sample = plan->n_samples++;
			plan->n_members++;
		} else {
			uint32_t *sample = &of_group[rec->sample];
			if (*sample == SHARD_NONE)
				*sample = plan->n_samples++;
			else
				plan->grouped = true;
			rec->sample = *sample;
			plan->n_members++;
		}
	}
	return 0;
}

static int fill_members(struct shard_builder *b, struct base_err *err, struct build_plan *plan)
{
	uint32_t n = plan->n_samples;
	cleanup_free uint32_t *fill = new_array(n, sizeof *fill);
	plan->sample_first = new_array((uint64_t)n + 1, sizeof *plan->sample_first);
	plan->members = new_array(plan->n_members, sizeof *plan->members);
	if (!fill || !plan->sample_first || !plan->members)
		return no_memory(err, b);

	const struct shard_file_rec *files = build_files(b);
	for (uint32_t i = 0; i < b->n_files; i++)
		if (files[i].sample != SHARD_NONE)
			plan->sample_first[files[i].sample + 1]++;
	for (uint32_t s = 0; s < n; s++) {
		uint32_t count = plan->sample_first[s + 1];
		plan->sample_first[s + 1] += plan->sample_first[s];
		fill[s] = count;
	}
	for (uint32_t id = b->n_files; id-- > 0;) {
		const struct shard_file_rec *rec = &files[build_file_number(plan, id)];
		if (rec->sample == SHARD_NONE)
			continue;
		uint32_t place = --fill[rec->sample];
		plan->members[plan->sample_first[rec->sample] + place] = id;
	}
	for (uint32_t s = 0; s < n; s++) {
		uint32_t count = plan->sample_first[s + 1] - plan->sample_first[s];
		if (count > SHARD_SAMPLE_FILES_MAX) {
			char quoted[BUILD_QUOTE];
			uint32_t id = plan->members[plan->sample_first[s]];
			return base_err_set(err, -E2BIG, "'%s': its group has %u files; a sample holds at most %d",
			        build_file_quote(b, &files[build_file_number(plan, id)], quoted), count,
			        SHARD_SAMPLE_FILES_MAX);
		}
	}
	return 0;
}

static int fill_sample_file(struct shard_builder *b, struct base_err *err, struct build_plan *plan)
{
	/* Usually the common files have the first ids, because they are in the root.  Then file id - shift is the
	 * sample id, and no list is needed. */
	uint32_t shift = b->n_files - plan->n_samples;
	bool shifted = true;
	const struct shard_file_rec *files = build_files(b);
	for (uint32_t id = 0; id < shift && shifted; id++)
		shifted = files[build_file_number(plan, id)].sample == SHARD_NONE;
	if (shifted)
		return 0;

	plan->sample_file = new_array(plan->n_samples, sizeof *plan->sample_file);
	if (!plan->sample_file)
		return no_memory(err, b);
	for (uint32_t id = 0; id < b->n_files; id++) {
		uint32_t sample = files[build_file_number(plan, id)].sample;
		if (sample != SHARD_NONE)
			plan->sample_file[sample] = id;
	}
	return 0;
}

/* The place of a sample in its shard: the offset of its first-stored file. */
struct place {
	uint64_t offset;
	uint32_t sample;
};

static int compare_places(const void *pa, const void *pb)
{
	const struct place *x = pa, *y = pb;
	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	return (x->sample > y->sample) - (x->sample < y->sample);
}

static bool stored_before(const struct shard_file_rec *x, const struct shard_file_rec *y)
{
	if (shard_rec_shard(x) != shard_rec_shard(y))
		return shard_rec_shard(x) < shard_rec_shard(y);
	return shard_rec_offset(x) < shard_rec_offset(y);
}

/* Says whether sample ids are in storage order already.  Needs no memory. */
static bool slots_are_identity(const struct shard_builder *b, const struct build_plan *plan)
{
	const struct shard_file_rec *last = NULL;
	for (uint32_t id = 0; id < b->n_files; id++) {
		const struct shard_file_rec *rec = &build_files(b)[build_file_number(plan, id)];
		if (rec->sample == SHARD_NONE)
			continue;
		if (last && stored_before(rec, last))
			return false;
		last = rec;
	}
	return true;
}

static int sort_shard(const struct shard_builder *b, const uint32_t *place_file, uint32_t *slots, uint32_t n)
{
	cleanup_free struct place *places = new_array(n, sizeof *places);
	if (!places)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		places[i].sample = slots[i];
		places[i].offset = shard_rec_offset(&build_files(b)[place_file[slots[i]]]);
	}
	qsort(places, n, sizeof *places, compare_places);
	for (uint32_t i = 0; i < n; i++)
		slots[i] = places[i].sample;
	return 0;
}

/* Puts the samples into their shards, keeping their order, then sorts each shard by offset.  So the temporary memory is
 * that of one shard. */
static int sort_slots(struct shard_builder *b, struct build_plan *plan, const uint32_t *place_file)
{
	uint32_t n = plan->n_samples;
	const struct shard_file_rec *files = build_files(b);
	cleanup_free uint32_t *first = new_array((uint64_t)b->n_shards + 1, sizeof *first);
	plan->slots = new_array(n, sizeof *plan->slots);
	if (!first || !plan->slots)
		return -ENOMEM;

	for (uint32_t s = 0; s < n; s++)
		first[shard_rec_shard(&files[place_file[s]]) + 1]++;
	for (uint32_t i = 0; i < b->n_shards; i++)
		first[i + 1] += first[i];
	for (uint32_t s = 0; s < n; s++)
		plan->slots[first[shard_rec_shard(&files[place_file[s]])]++] = s;
	/* first[i] is now the end of shard i */
	for (uint32_t i = 0; i < b->n_shards; i++) {
		uint32_t begin = i ? first[i - 1] : 0;
		if (sort_shard(b, place_file, plan->slots + begin, first[i] - begin) < 0)
			return -ENOMEM;
	}
	return 0;
}

static int number_slots(struct shard_builder *b, struct base_err *err, struct build_plan *plan)
{
	if (!plan->grouped && slots_are_identity(b, plan))
		return 0;

	uint32_t n = plan->n_samples;
	const struct shard_file_rec *files = build_files(b);
	plan->sample_slot = new_array(n, sizeof *plan->sample_slot);
	if (!plan->sample_slot)
		return no_memory(err, b);
	uint32_t *place_file = plan->sample_slot; /* the memory is first used for the sort */
	memset(place_file, 0xff, (size_t)n * sizeof *place_file);
	for (uint32_t i = 0; i < b->n_files; i++) {
		uint32_t s = files[i].sample;
		if (s != SHARD_NONE && (place_file[s] == SHARD_NONE || stored_before(&files[i], &files[place_file[s]])))
			place_file[s] = i;
	}
	if (sort_slots(b, plan, place_file) < 0)
		return no_memory(err, b);

	bool identity = true;
	for (uint32_t slot = 0; slot < n; slot++) {
		plan->sample_slot[plan->slots[slot]] = slot;
		identity = identity && plan->slots[slot] == slot;
	}
	if (identity) {
		free(steal_ptr(&plan->slots));
		free(steal_ptr(&plan->sample_slot));
	}
	return 0;
}

/* Checks that every file is inside a declared shard. */
static int check_places(struct shard_builder *b, struct base_err *err)
{
	struct shard_shard_rec *shards = build_shards(b);
	for (uint32_t i = 0; i < b->n_files; i++) {
		const struct shard_file_rec *rec = &build_files(b)[i];
		uint32_t shard = shard_rec_shard(rec);
		char quoted[BUILD_QUOTE];
		if (shard >= b->n_shards)
			return base_err_set(err, -EINVAL, "'%s': stored in shard %u, which was never declared",
			        build_file_quote(b, rec, quoted), shard);
		if (shard_rec_offset(rec) + shard_rec_length(rec) > shards[shard].size_bytes)
			return base_err_set(err, -EINVAL, "'%s': reaches past the end of shard %u",
			        build_file_quote(b, rec, quoted), shard);
		shards[shard].n_files++;
	}
	return 0;
}

int build_number(struct shard_builder *b, struct base_err *err, struct build_plan *ret_plan)
{
	int r = number_dirs(b, err, ret_plan);
	if (r == 0)
		r = number_files(b, err, ret_plan);
	if (r == 0)
		r = check_clashes(b, ret_plan, err);
	if (r == 0)
		r = check_places(b, err);
	if (r == 0)
		r = date_dirs(b, err, ret_plan);
	if (r == 0)
		r = number_samples(b, err, ret_plan);
	if (r == 0)
		r = ret_plan->grouped ? fill_members(b, err, ret_plan) : fill_sample_file(b, err, ret_plan);
	if (r == 0)
		r = number_slots(b, err, ret_plan);
	return r;
}
