/* SPDX-License-Identifier: Apache-2.0 */
/* Collects the directories, shards and files of an index to build; shard/build.h first. */
#include "shard/build.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "shard/build_private.h"

void *build_array_add(struct build_array *array, size_t bytes)
{
	if (bytes > array->size - array->used) {
		size_t need, grown;
		if (__builtin_add_overflow(array->used, bytes, &need))
			return NULL;
		grown = array->size + array->size / 2;
		if (grown < need)
			grown = need < 4096 ? 4096 : need;
		uint8_t *moved = realloc(array->data, grown);
		if (!moved)
			return NULL;
		array->data = moved;
		array->size = grown;
	}
	void *place = array->data + array->used;
	array->used += bytes;
	return place;
}

void build_array_free(struct build_array *array)
{
	free(array->data);
	*array = (struct build_array){ 0 };
}

static int no_memory(struct base_err *err, const struct shard_builder *b)
{
	return base_err_set(err, -ENOMEM, "out of memory after collecting %u files", b->n_files);
}

int shard_builder_new(struct shard_builder **ret_builder)
{
	struct shard_builder *b = calloc(1, sizeof *b);
	if (!b)
		return -ENOMEM;
	struct build_dir *root = build_array_add(&b->dirs, sizeof *root);
	if (!root) {
		free(b);
		return -ENOMEM;
	}
	*root = (struct build_dir){ .parent = SHARD_NONE, .mode = 0755 };
	b->n_dirs = 1;
	*ret_builder = b;
	return 0;
}

static void table_done(struct build_table *t)
{
	free(t->cells);
	*t = (struct build_table){ 0 };
}

void shard_builder_free(struct shard_builder *b)
{
	if (!b)
		return;
	struct build_array *const arrays[] = { &b->files, &b->dirs, &b->shards, &b->names, &b->bigs, &b->sums,
		&b->groups, &b->group_keys };
	for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
		build_array_free(arrays[i]);
	table_done(&b->dir_table);
	table_done(&b->group_table);
	free(b);
}

/* Checks one component; `path` is for the message. */
static int check_component(const char *path, const char *name, size_t len, struct base_err *err)
{
	char quoted[BUILD_QUOTE];
	if (len == 0)
		return base_err_set(
		        err, -EINVAL, "'%s': empty path component", base_err_quote(path, quoted, sizeof quoted));
	if (len > SHARD_NAME_MAX)
		return base_err_set(err, -ENAMETOOLONG, "'%s': a name of %zu bytes; the limit is %d",
		        base_err_quote(path, quoted, sizeof quoted), len, SHARD_NAME_MAX);
	if (name[0] == '.' && (len == 1 || (len == 2 && name[1] == '.')))
		return base_err_set(err, -EINVAL, "'%s': '.' and '..' cannot stand in a stored path",
		        base_err_quote(path, quoted, sizeof quoted));
	return 0;
}

int shard_path_check(const char *path, struct base_err *err)
{
	char quoted[BUILD_QUOTE];
	size_t len = strlen(path);

	if (len == 0)
		return base_err_set(err, -EINVAL, "empty path");
	if (path[0] == '/')
		return base_err_set(err, -EINVAL, "'%s': absolute paths cannot be stored",
		        base_err_quote(path, quoted, sizeof quoted));
	if (len > SHARD_PATH_MAX)
		return base_err_set(err, -ENAMETOOLONG, "'%s': a path of %zu bytes; the limit is %d",
		        base_err_quote(path, quoted, sizeof quoted), len, SHARD_PATH_MAX);

	unsigned depth = 0;
	for (const char *name = path;;) {
		const char *slash = strchrnul(name, '/');
		int r = check_component(path, name, (size_t)(slash - name), err);
		if (r < 0)
			return r;
		if (depth == 0 && slash - name == 6 && memcmp(name, ".ddpfs", 6) == 0)
			return base_err_set(err, -EINVAL,
			        "'%s': '.ddpfs' at the root is the name of the mount's own directory; rename it",
			        base_err_quote(path, quoted, sizeof quoted));
		if (*slash == '\0')
			break;
		depth++;
		name = slash + 1;
	}
	if (depth > SHARD_DEPTH_MAX)
		return base_err_set(err, -ENAMETOOLONG, "'%s': %u directories deep; the limit is %d",
		        base_err_quote(path, quoted, sizeof quoted), depth, SHARD_DEPTH_MAX);
	return 0;
}

/* Makes room for one more entry.  `hash_of` returns the hash of entry n, for moving it into a larger table. */
static int table_reserve(struct build_table *t, const struct shard_builder *b,
        uint64_t (*hash_of)(const struct shard_builder *b, uint32_t n))
{
	if (t->used < t->n_cells / 2)
		return 0;

	uint64_t n_cells = t->n_cells ? t->n_cells * 2 : 1024;
	uint32_t *cells = calloc(n_cells, sizeof *cells);
	if (!cells)
		return -ENOMEM;
	for (uint64_t i = 0; i < t->n_cells; i++) {
		if (!t->cells[i])
			continue;
		uint64_t at = hash_of(b, t->cells[i] - 1) & (n_cells - 1);
		while (cells[at])
			at = (at + 1) & (n_cells - 1);
		cells[at] = t->cells[i];
	}
	free(t->cells);
	t->cells = cells;
	t->n_cells = n_cells;
	return 0;
}

static uint64_t dir_hash(const struct shard_builder *b, uint32_t number)
{
	const struct build_dir *dir = &build_dirs(b)[number];
	return XXH3_64bits_withSeed(b->names.data + dir->name, dir->name_len, dir->parent);
}

/* Finds the directory `name` in `parent`, or makes it. */
static int dir_enter(struct shard_builder *b, uint32_t parent, const char *name, size_t len, uint32_t *ret_number)
{
	int r = table_reserve(&b->dir_table, b, dir_hash);
	if (r < 0)
		return r;

	struct build_table *t = &b->dir_table;
	uint64_t at = XXH3_64bits_withSeed(name, len, parent) & (t->n_cells - 1);
	for (; t->cells[at]; at = (at + 1) & (t->n_cells - 1)) {
		const struct build_dir *dir = &build_dirs(b)[t->cells[at] - 1];
		if (dir->parent == parent && dir->name_len == len &&
		        memcmp(b->names.data + dir->name, name, len) == 0) {
			*ret_number = t->cells[at] - 1;
			return 0;
		}
	}

	if (b->n_dirs >= SHARD_FILES_MAX)
		return -E2BIG;
	uint64_t offset = b->names.used;
	uint8_t *copy = build_array_add(&b->names, len);
	struct build_dir *dir = copy ? build_array_add(&b->dirs, sizeof *dir) : NULL;
	if (!dir)
		return -ENOMEM;
	memcpy(copy, name, len);
	*dir = (struct build_dir){ .name = offset,
		.parent = parent,
		.mode = 0755,
		.name_len = (uint8_t)len,
		.depth = (uint8_t)(build_dirs(b)[parent].depth + 1) };
	t->cells[at] = ++b->n_dirs;
	t->used++;
	*ret_number = b->n_dirs - 1;
	return 0;
}

/* Finds or makes the directory path[0..len) and its parents.  The path is already checked. */
static int dir_walk(struct shard_builder *b, const char *path, size_t len, uint32_t *ret_number)
{
	if (len == b->last_dir_len && memcmp(path, b->last_dir, len) == 0) {
		*ret_number = b->last_dir_number;
		return 0;
	}

	uint32_t number = 0;
	for (size_t at = 0; at < len;) {
		const char *slash = memchr(path + at, '/', len - at);
		size_t end = slash ? (size_t)(slash - path) : len;
		int r = dir_enter(b, number, path + at, end - at, &number);
		if (r < 0)
			return r;
		at = end + 1;
	}
	memcpy(b->last_dir, path, len);
	b->last_dir_len = len;
	b->last_dir_number = number;
	*ret_number = number;
	return 0;
}

static uint64_t group_hash(const struct shard_builder *b, uint32_t number)
{
	return ((const struct build_group *)(const void *)b->groups.data)[number].hash;
}

static int group_enter(struct shard_builder *b, const char *key, uint32_t *ret_number)
{
	int r = table_reserve(&b->group_table, b, group_hash);
	if (r < 0)
		return r;

	size_t len = strlen(key);
	struct build_table *t = &b->group_table;
	uint64_t hash = XXH3_64bits(key, len);
	uint64_t at = hash & (t->n_cells - 1);
	for (; t->cells[at]; at = (at + 1) & (t->n_cells - 1)) {
		const struct build_group *g =
		        &((const struct build_group *)(const void *)b->groups.data)[t->cells[at] - 1];
		if (g->hash == hash && strcmp((const char *)b->group_keys.data + g->key, key) == 0) {
			*ret_number = t->cells[at] - 1;
			return 0;
		}
	}

	uint64_t offset = b->group_keys.used;
	uint8_t *copy = build_array_add(&b->group_keys, len + 1);
	struct build_group *group = copy ? build_array_add(&b->groups, sizeof *group) : NULL;
	if (!group)
		return -ENOMEM;
	memcpy(copy, key, len + 1);
	*group = (struct build_group){ .hash = hash, .key = offset };
	t->cells[at] = ++b->n_groups;
	t->used++;
	*ret_number = b->n_groups - 1;
	return 0;
}

int shard_builder_add_shard(struct shard_builder *b, const char *path, enum shard_container container,
        uint64_t size_bytes, int64_t mtime_ns, struct base_err *err)
{
	size_t len = strlen(path);
	if (len == 0 || len > SHARD_PATH_MAX)
		return base_err_set(
		        err, -EINVAL, "a shard's path has %zu bytes; 1 to %d are allowed", len, SHARD_PATH_MAX);
	if (size_bytes > SHARD_FILE_BYTES_MAX + 1) {
		char quoted[BUILD_QUOTE];
		return base_err_set(
		        err, -EINVAL, "shard '%s': over 256 TiB", base_err_quote(path, quoted, sizeof quoted));
	}
	if (b->n_shards >= SHARD_SHARDS_MAX)
		return base_err_set(err, -E2BIG, "more than %u shards", SHARD_SHARDS_MAX);

	uint64_t offset = b->names.used;
	uint8_t *copy = build_array_add(&b->names, len);
	struct shard_shard_rec *rec = copy ? build_array_add(&b->shards, sizeof *rec) : NULL;
	if (!rec)
		return no_memory(err, b);
	memcpy(copy, path, len);
	*rec = (struct shard_shard_rec){ .size_bytes = size_bytes,
		.mtime_ns = mtime_ns,
		.name_off = offset,
		.name_len = (uint32_t)len,
		.container = (uint8_t)container };
	b->n_shards++;
	return 0;
}

/* Returns the mode to store: without set-id bits, which would give rights on every machine that mounts the dataset. */
static uint32_t stored_mode(uint32_t mode)
{
	return mode & 01777;
}

int shard_builder_add_dir(
        struct shard_builder *b, const char *path, uint32_t mode, int64_t mtime_s, struct base_err *err)
{
	uint32_t number = 0;
	if (*path) {
		int r = shard_path_check(path, err);
		if (r < 0)
			return r;
		/* a file may be at the limit of depth; a directory there could not hold a file */
		unsigned depth = 1;
		for (const char *s = path; *s; s++)
			depth += *s == '/';
		char quoted[BUILD_QUOTE];
		if (depth > SHARD_DEPTH_MAX)
			return base_err_set(err, -ENAMETOOLONG, "'%s': %u directories deep; the limit is %d",
			        base_err_quote(path, quoted, sizeof quoted), depth, SHARD_DEPTH_MAX);
		r = dir_walk(b, path, strlen(path), &number);
		if (r == -E2BIG)
			return base_err_set(err, r, "more than %u directories", SHARD_FILES_MAX);
		if (r < 0)
			return no_memory(err, b);
	}
	struct build_dir *dir = &build_dirs(b)[number];
	dir->declared = true;
	dir->mode = (uint16_t)stored_mode(mode);
	dir->mtime_s = mtime_s;
	return 0;
}

static int64_t clamp_mtime(int64_t s)
{
	const int64_t limit = INT64_C(1) << 39;
	return s < -limit ? -limit : s >= limit ? limit - 1 : s;
}

/* Copies the block sums of a file over SHARD_BLOCK.  *ret_number is its number in `bigs`. */
static int add_big(struct shard_builder *b, const struct shard_build_file *file, uint32_t *ret_number)
{
	size_t bytes = shard_units(file->length, SHARD_BLOCK) * sizeof(uint64_t);
	uint64_t first = b->sums.used / sizeof(uint64_t);
	void *copy = build_array_add(&b->sums, bytes);
	uint64_t *big = copy ? build_array_add(&b->bigs, sizeof *big) : NULL;
	if (!big)
		return -ENOMEM;
	memcpy(copy, file->block_sums, bytes);
	*big = first;
	*ret_number = (uint32_t)(b->bigs.used / sizeof(uint64_t) - 1);
	return 0;
}

static int check_file(const struct shard_builder *b, const struct shard_build_file *file, struct base_err *err)
{
	int r = shard_path_check(file->path, err);
	if (r < 0)
		return r;

	char quoted[BUILD_QUOTE];
	base_err_quote(file->path, quoted, sizeof quoted);
	if (file->length > SHARD_FILE_BYTES_MAX || file->offset > SHARD_FILE_BYTES_MAX)
		return base_err_set(err, -EFBIG, "'%s': length or place in its shard is over 256 TiB", quoted);
	if (file->shard >= SHARD_SHARDS_MAX)
		return base_err_set(err, -EINVAL, "'%s': shard number %u is over the limit", quoted, file->shard);
	if (file->length > SHARD_BLOCK && !file->block_sums)
		return base_err_set(err, -EINVAL, "'%s': files over 1 MiB need their block sums", quoted);
	if (b->n_files >= SHARD_FILES_MAX)
		return base_err_set(err, -E2BIG, "more than %u files", SHARD_FILES_MAX);
	return 0;
}

int shard_builder_add_file(struct shard_builder *b, const struct shard_build_file *file, struct base_err *err)
{
	int r = check_file(b, file, err);
	if (r < 0)
		return r;

	const char *slash = strrchr(file->path, '/');
	const char *name = slash ? slash + 1 : file->path;
	uint32_t dir, big = SHARD_NONE, group = SHARD_NONE;
	r = dir_walk(b, file->path, slash ? (size_t)(slash - file->path) : 0, &dir);
	if (r == 0 && file->length > SHARD_BLOCK)
		r = add_big(b, file, &big);
	if (r == 0 && file->group && !file->common)
		r = group_enter(b, file->group, &group);

	size_t name_len = strlen(name);
	uint64_t name_off = b->names.used;
	if (r == 0 && name_off + name_len >= UINT64_C(1) << 40)
		return base_err_set(err, -E2BIG, "over 1 TiB of file names");
	uint64_t content_bytes = 0;
	if (r == 0 && __builtin_add_overflow(b->content_bytes, file->length, &content_bytes))
		return base_err_set(err, -E2BIG, "over 16 EiB of content");
	if (r == -E2BIG)
		return base_err_set(err, r, "more than %u directories", SHARD_FILES_MAX);
	uint8_t *copy = r == 0 ? build_array_add(&b->names, name_len) : NULL;
	struct shard_file_rec *rec = copy ? build_array_add(&b->files, sizeof *rec) : NULL;
	if (!rec)
		return no_memory(err, b);

	memcpy(copy, name, name_len);
	*rec = (struct shard_file_rec){
		.offset_mode =
		        file->offset | (uint64_t)stored_mode(file->mode) << 48 | (file->common ? SHARD_REC_COMMON : 0),
		.length_name = file->length | (uint64_t)name_len << 48 | name_off >> 32 << 56,
		.xxh3 = file->xxh3,
		.mtime_shard = ((uint64_t)clamp_mtime(file->mtime_s) & ((UINT64_C(1) << 40) - 1)) |
		               (uint64_t)file->shard << 40,
		.name_lo = (uint32_t)name_off,
		.dir = dir,
		.sample = group,
		.slot = big,
	};
	b->n_files++;
	b->content_bytes = content_bytes;
	return 0;
}

int shard_builder_finish(
        struct shard_builder *b, const char *path, bool shuffled, uint64_t pack_seed, struct base_err *err)
{
	if (b->finished)
		return base_err_set(err, -EINVAL, "this index was finished before");
	b->finished = true;

	/* Only collecting needs the tables. */
	table_done(&b->dir_table);
	table_done(&b->group_table);
	build_array_free(&b->groups);
	build_array_free(&b->group_keys);

	struct build_plan plan = { 0 };
	int r = build_number(b, err, &plan);
	if (r == 0)
		r = build_write(b, &plan, path, shuffled, pack_seed, err);
	build_plan_done(&plan);
	return r;
}
