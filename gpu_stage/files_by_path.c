/* SPDX-License-Identifier: Apache-2.0 */
/* Look-ups and reads by path, over an engine without streams; the end of stage.h first. */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_stage/stage.h"
#include "prefetch/prefetch.h"
#include "shard/base/cleanup.h"
#include "shard/index.h"

enum { PIECES = 32 }; /* blocks that one call may have in flight: as many as landing memory has room for */

/* A cookie is the id of the next directory, or COOKIE_FILES + the number of the next file.  0, the root, is no child,
 * so it means the beginning. */
#define COOKIE_FILES ((uint64_t)1 << 32)

static_assert((int)DDPFS_FILES_NAME_MAX > (int)SHARD_NAME_MAX, "room for a name and its NUL");

struct ddpfs_files {
	struct shard_index *index;
	struct prefetch *prefetch;
};

/* The blocks of one call that are in flight. */
struct reading {
	pthread_mutex_t lock;
	pthread_cond_t cv;
	struct piece *free; /* linked by next; under lock */
	uint32_t pending;   /* under lock */
	struct piece *pieces;
};

/* What is wanted of one block. */
struct piece {
	struct prefetch_demand demand; /* first: an answer is cast back to its piece */
	struct reading *reading;
	struct ddpfs_range *range; /* its rc is under reading->lock */
	uint8_t *to;
	uint32_t begin, len; /* in the block, bytes */
	struct piece *next;
};

static int fail(struct ddpfs_stage_error *error, const struct base_err *err, uint32_t file)
{
	if (error) {
		error->code = err->code;
		error->file = file;
		error->sample = DDPFS_STAGE_NONE;
		snprintf(error->text, sizeof(error->text), "%s", err->text);
	}
	return err->code;
}

static int fail_path(struct ddpfs_stage_error *error, int rc, const char *path)
{
	struct base_err err = { 0 };
	base_err_set(&err, rc, "'%s': %s", base_quoted(path), base_err_str(rc));
	return fail(error, &err, DDPFS_STAGE_NONE);
}

/* Checks the index after its records were read and before their result is handed out.  Returns 0 or -errno. */
static int check_index(const struct ddpfs_files *files, struct ddpfs_stage_error *error)
{
	struct base_err err = { 0 };
	return shard_index_check_err(files->index, &err) < 0 ? fail(error, &err, DDPFS_STAGE_NONE) : 0;
}

int ddpfs_files_open(const char *dataset, struct ddpfs_stage_error *error, struct ddpfs_files **ret_files)
{
	return ddpfs_files_open_with(dataset, NULL, error, ret_files);
}

int ddpfs_files_open_with(
        const char *dataset, const char *index, struct ddpfs_stage_error *error, struct ddpfs_files **ret_files)
{
	struct base_err err = { 0 };
	struct ddpfs_files *files = calloc(1, sizeof(*files));
	int rc = files ? shard_index_open_with(dataset, index, &err, &files->index)
	               : base_err_set(&err, -ENOMEM, "out of memory");
	if (rc == 0)
		rc = shard_index_check_shards(files->index, &err);
	if (rc == 0)
		rc = prefetch_new(
		        &(struct prefetch_options){ .index = files->index, .memory_bytes = 4 * DDPFS_FILES_MEMORY },
		        &err, &files->prefetch);
	if (rc < 0) {
		ddpfs_files_close(files);
		return fail(error, &err, DDPFS_STAGE_NONE);
	}
	*ret_files = files;
	return 0;
}

void ddpfs_files_close(struct ddpfs_files *files)
{
	if (!files)
		return;
	prefetch_free(files->prefetch);
	shard_index_close(files->index);
	free(files);
}

/* Fills in the name of an entry.  Returns 0, or -EUCLEAN. */
static int set_name(struct ddpfs_entry *entry, const char *name, uint32_t len)
{
	if (len >= sizeof(entry->name))
		return -EUCLEAN;
	memcpy(entry->name, name, len);
	entry->name[len] = '\0';
	return 0;
}

static int make_file(const struct shard_index *index, uint32_t id, struct ddpfs_entry *entry)
{
	struct shard_file f;
	int rc = shard_index_file(index, id, &f);
	if (rc < 0)
		return rc;
	entry->len = f.length;
	entry->xxh3 = f.xxh3;
	entry->mtime_s = f.mtime_s;
	entry->id = id;
	entry->mode = f.mode;
	entry->is_dir = 0;
	return set_name(entry, f.name, f.name_len);
}

static void make_dir(const struct shard_dir *d, uint32_t id, struct ddpfs_entry *entry)
{
	entry->len = entry->xxh3 = 0;
	entry->mtime_s = d->mtime_s;
	entry->id = id;
	entry->mode = d->mode;
	entry->is_dir = 1;
}

int ddpfs_files_find(
        struct ddpfs_files *files, const char *path, struct ddpfs_stage_error *error, struct ddpfs_entry *ret_entry)
{
	struct ddpfs_entry entry;
	struct shard_dir d;
	enum shard_kind kind;
	uint32_t id;
	int rc = shard_index_find_path(files->index, path, &kind, &id);
	if (rc == 0 && kind == SHARD_KIND_FILE)
		rc = make_file(files->index, id, &entry);
	else if (rc == 0 && (rc = shard_index_dir(files->index, id, &d)) == 0) {
		make_dir(&d, id, &entry);
		rc = set_name(&entry, d.name, d.name_len);
	}
	int stale = check_index(files, error);
	if (stale < 0)
		return stale;
	if (rc < 0)
		return fail_path(error, rc, path);
	*ret_entry = entry;
	return 0;
}

/* Lists from *cookie on.  Returns how many, or an error. */
static int list(
        const struct shard_index *index, uint32_t dir, uint64_t *cookie, uint32_t n, struct ddpfs_entry *entries)
{
	struct shard_dir d, child;
	uint32_t filled = 0;
	uint64_t at = *cookie;
	int rc = shard_index_dir(index, dir, &d);
	if (rc < 0)
		return rc;
	if (at == 0)
		at = (uint64_t)dir + 1;
	if (at < COOKIE_FILES && (at <= dir || at > d.end_dir))
		return -EINVAL;
	for (; filled < n && at < d.end_dir; at = child.end_dir) {
		rc = shard_index_dir(index, (uint32_t)at, &child);
		if (rc == 0 && child.end_dir <= at)
			rc = -EUCLEAN;
		if (rc == 0)
			rc = set_name(&entries[filled], child.name, child.name_len);
		if (rc < 0)
			return rc;
		make_dir(&child, (uint32_t)at, &entries[filled++]);
	}
	if (at < COOKIE_FILES && at >= d.end_dir)
		at = COOKIE_FILES;
	for (; filled < n && at >= COOKIE_FILES && at - COOKIE_FILES < d.n_files; at++) {
		rc = make_file(index, d.first_file + (uint32_t)(at - COOKIE_FILES), &entries[filled++]);
		if (rc < 0)
			return rc;
	}
	*cookie = at;
	return (int)filled;
}

int ddpfs_files_list(struct ddpfs_files *files, uint32_t dir, uint64_t *cookie, uint32_t n,
        struct ddpfs_stage_error *error, struct ddpfs_entry *entries)
{
	char path[SHARD_PATH_MAX + 1];
	uint64_t at = *cookie;
	int filled = list(files->index, dir, &at, n < INT32_MAX ? n : INT32_MAX, entries);
	int stale = check_index(files, error);
	if (stale < 0)
		return stale;
	if (filled < 0) {
		if (shard_index_dir_path(files->index, dir, path, sizeof(path)) < 0)
			snprintf(path, sizeof(path), "directory %u", dir);
		return fail_path(error, filled, path);
	}
	*cookie = at;
	return filled;
}

static void answer(struct prefetch_demand *demand, int rc, const uint8_t *data, uint32_t len)
{
	struct piece *piece = (struct piece *)demand;
	struct reading *reading = piece->reading;
	if (rc == 0 && (uint64_t)piece->begin + piece->len > len)
		rc = -ESTALE; /* the index changes */
	if (rc == 0)
		memcpy(piece->to, data + piece->begin, piece->len);
	lock_for_scope(&reading->lock); /* the reader may free the piece from the end of this scope on */
	if (rc < 0 && piece->range->rc == 0)
		piece->range->rc = rc;
	piece->next = reading->free;
	reading->free = piece;
	reading->pending--;
	pthread_cond_signal(&reading->cv);
}

/* Demands the blocks of a range. */
static void read_range(struct ddpfs_files *files, struct reading *reading, struct ddpfs_range *range)
{
	struct shard_place place;
	uint64_t left, at = range->offset;
	uint8_t *to = range->data;
	range->got = 0;
	range->rc = shard_index_place(files->index, range->file, &place);
	if (range->rc < 0 || at >= place.length)
		return;
	left = range->len < place.length - at ? range->len : place.length - at;
	range->got = left;
	while (left) {
		uint32_t begin = (uint32_t)(at % SHARD_BLOCK);
		uint32_t len = left < SHARD_BLOCK - begin ? (uint32_t)left : SHARD_BLOCK - begin;
		bool failed;
		struct piece *piece;
		{
			lock_for_scope(&reading->lock);
			while (!reading->free)
				pthread_cond_wait(&reading->cv, &reading->lock);
			failed = range->rc < 0;
			piece = reading->free;
			if (!failed) {
				reading->free = piece->next;
				reading->pending++;
			}
		}
		if (failed)
			return;
		*piece = (struct piece){
			.demand = { .file = range->file, .block = (uint32_t)(at / SHARD_BLOCK), .done = answer },
			.reading = reading,
			.range = range,
			.to = to,
			.begin = begin,
			.len = len
		};
		prefetch_demand(files->prefetch, &piece->demand);
		at += len;
		to += len;
		left -= len;
	}
}

/* Makes the error of a range that failed. */
static int fail_range(struct ddpfs_files *files, const struct ddpfs_range *range, struct ddpfs_stage_error *error)
{
	char path[SHARD_PATH_MAX + 1];
	struct base_err err = { 0 };
	struct shard_file f;
	struct shard_shard s = { 0 };
	if (shard_index_file_path(files->index, range->file, path, sizeof(path)) < 0)
		snprintf(path, sizeof(path), "file %u", range->file);
	if (shard_index_file(files->index, range->file, &f) == 0)
		(void)shard_index_shard(files->index, f.shard, &s);
	if (!s.path || range->rc == -ENOMEM)
		base_err_set(&err, range->rc, "'%s': %s", base_quoted(path), base_err_str(range->rc));
	else
		base_err_set(&err, range->rc, "'%s': %s (shard '%.*s'): repair the shard, or leave the file out",
		        base_quoted(path), base_err_str(range->rc), (int)s.path_len, s.path);
	return fail(error, &err, range->file);
}

int ddpfs_files_read(struct ddpfs_files *files, struct ddpfs_range *ranges, uint32_t n, struct ddpfs_stage_error *error)
{
	struct base_err err = { 0 };
	struct reading reading = { .pieces = calloc(PIECES, sizeof(struct piece)) };
	int rc = 0;
	if (!reading.pieces) {
		for (uint32_t i = 0; i < n; i++) {
			ranges[i].got = 0;
			ranges[i].rc = -ENOMEM;
		}
		base_err_set(&err, -ENOMEM, "out of memory");
		return fail(error, &err, DDPFS_STAGE_NONE);
	}
	pthread_mutex_init(&reading.lock, NULL);
	pthread_cond_init(&reading.cv, NULL);
	for (uint32_t i = 0; i < PIECES; i++) {
		reading.pieces[i].next = reading.free;
		reading.free = &reading.pieces[i];
	}
	for (uint32_t i = 0; i < n; i++)
		read_range(files, &reading, &ranges[i]);
	{
		lock_for_scope(&reading.lock);
		while (reading.pending)
			pthread_cond_wait(&reading.cv, &reading.lock);
	}
	pthread_cond_destroy(&reading.cv);
	pthread_mutex_destroy(&reading.lock);
	free(reading.pieces);
	int stale = check_index(files, error);
	for (uint32_t i = 0; i < n; i++) {
		if (stale < 0)
			ranges[i].rc = stale;
		if (ranges[i].rc < 0)
			ranges[i].got = 0;
		if (ranges[i].rc < 0 && rc == 0)
			rc = stale < 0 ? stale : fail_range(files, &ranges[i], error);
	}
	return rc < 0 ? rc : stale;
}
