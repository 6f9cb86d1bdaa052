/* SPDX-License-Identifier: Apache-2.0 */
/* The store of `mkshard index s3://...`: finds the shards, sends the index; index.h first. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "shard/base/cleanup.h"
#include "shard/remote/index_copy.h"
#include "shard/remote/location.h"
#include "shard/remote/store_objects.h"
#include "tools/mkshard/index.h"
#include "tools/mkshard/shards.h"

int index_store_open(const char *dataset, bool sends, bool force, struct base_err *err, struct remote_store **ret_store,
        bool *ret_there)
{
	struct remote_store *store;
	uint64_t bytes;
	int rc = remote_store_open(dataset, err, &store);
	if (rc < 0)
		return rc;
	*ret_there = false;
	if (sends && !remote_store_location(store)->bucket)
		rc = base_err_set(err, -EROFS,
		        "%s: HTTP servers are only read; give --output=FILE, and mount with index=FILE",
		        remote_store_name(store));
	if (rc == 0 && sends) {
		rc = remote_object_size(store, SHARD_INDEX_NAME, err, &bytes);
		*ret_there = rc == 0;
		rc = rc == -ENOENT ? 0 : rc;
	}
	if (rc == 0 && *ret_there && !force)
		rc = base_err_set(err, -EEXIST, "'%s' has an index already; give --force to replace it",
		        remote_store_name(store));
	if (rc < 0) {
		remote_store_close(store);
		return rc;
	}
	*err = (struct base_err){ 0 };
	*ret_store = store;
	return 0;
}

/* Which shards */

struct search {
	struct remote_store *store;
	struct found_shard *shards;
	uint32_t n;
	uint64_t room;
	bool keep_going;
	struct compressed_tars compressed;
	struct base_err *err;
	pthread_mutex_t lock; /* guards the next two while sizes are asked for */
	struct base_err failed;
	uint32_t failed_shard; /* the lowest one that failed */
};

/* Adds a shard.  stored: owned from here on.  file: its URL; copied. */
static int add_shard(struct search *search, char *stored, const char *file, uint64_t bytes)
{
	char *copy = strdup(file);
	if (search->n == search->room) {
		uint64_t room = search->room ? 2 * search->room : 256;
		struct found_shard *grown = realloc(search->shards, room * sizeof(*grown));
		if (grown) {
			search->shards = grown;
			search->room = room;
		}
	}
	if (!copy || search->n == search->room) {
		free(copy);
		free(stored);
		return base_err_set(search->err, -ENOMEM, "out of memory");
	}
	search->shards[search->n++] = (struct found_shard){ .file = copy, .stored = stored, .size_bytes = bytes };
	return 0;
}

/* Takes an object of the list.  As in a directory: not those of directories below. */
static int take_listed(void *arg, const char *path, uint64_t bytes, const char *etag)
{
	(void)etag;
	struct search *search = arg;
	if (strchr(path, '/'))
		return 0;
	if (!found_shard_is_name(path)) {
		compressed_tars_take(&search->compressed, path);
		return 0;
	}
	cleanup_free char *file = NULL;
	char *stored = strdup(path);
	if (!stored || asprintf(&file, "%s/%s", remote_store_name(search->store), path) < 0) {
		file = NULL;
		free(stored);
		return base_err_set(search->err, -ENOMEM, "out of memory");
	}
	return add_shard(search, stored, file, bytes);
}

static int list_shards(struct search *search)
{
	const char *name = remote_store_name(search->store);
	if (!remote_store_location(search->store)->bucket)
		return base_err_set(search->err, -EINVAL,
		        "%s: HTTP servers do not list their files; name the shards: mkshard index --output=FILE %s "
		        "%s/SHARD.tar...",
		        name, name, name);
	int rc = remote_object_list(search->store, "", take_listed, search, search->err);
	compressed_tars_warn(&search->compressed);
	if (rc == 0 && search->n == 0)
		rc = base_err_set(search->err, -ENOENT,
		        "'%s' holds no shards; name them: mkshard index %s %s/SHARD.tar...", name, name, name);
	return rc;
}

/* Takes a shard of the command line. */
static int take_named(struct search *search, const char *name)
{
	const struct remote_location *dataset = remote_store_location(search->store);
	struct remote_location shard;
	if (!remote_is_url(name))
		return base_err_set(search->err, -EINVAL,
		        "'%s': the shards of a dataset in a store are named as %s/SHARD.tar", remote_quoted(name),
		        dataset->name);
	int rc = remote_location_parse(name, search->err, &shard);
	if (rc < 0)
		return rc;
	size_t len = strlen(dataset->prefix);
	bool same = dataset->bucket ? shard.bucket && !strcmp(shard.bucket, dataset->bucket)
	                            : shard.origin && !strcmp(shard.origin, dataset->origin);
	bool below = same && strncmp(shard.prefix, dataset->prefix, len) == 0 && (len == 0 || shard.prefix[len] == '/');
	const char *rest = below ? shard.prefix + len + (len > 0) : "";
	if (!*rest)
		rc = base_err_set(search->err, -EINVAL,
		        "'%s' is not below %s; a dataset in a store has its shards there", base_quoted(name),
		        dataset->name);
	char *stored = rc == 0 ? strdup(rest) : NULL;
	remote_location_done(&shard);
	if (rc == 0)
		rc = stored ? add_shard(search, stored, name, 0) : base_err_set(search->err, -ENOMEM, "out of memory");
	return rc;
}

static int ask_size(void *arg, uint32_t number)
{
	struct search *search = arg;
	struct found_shard *shard = &search->shards[number];
	struct base_err err = { 0 };
	int rc = remote_object_size(search->store, shard->stored, &err, &shard->size_bytes);
	if (rc < 0 && search->keep_going && (rc == -ENOENT || rc == -EACCES)) {
		shard->absent = true;
		rc = found_shard_leave_out(shard, err.text);
	}
	if (rc == 0)
		return 0;
	lock_for_scope(&search->lock);
	if (!search->failed.code || number < search->failed_shard) {
		search->failed = err;
		search->failed_shard = number;
	}
	return rc;
}

static int take_all_named(struct search *search, char **names, uint32_t n, uint32_t jobs)
{
	int rc = 0;
	for (uint32_t i = 0; i < n && rc == 0; i++)
		rc = take_named(search, names[i]);
	if (rc < 0)
		return rc;
	pthread_mutex_init(&search->lock, NULL);
	rc = shard_run(search->n, jobs, "index", ask_size, search);
	pthread_mutex_destroy(&search->lock);
	if (rc)
		*search->err = search->failed;
	return rc;
}

int index_store_find(struct remote_store *store, char **names, uint32_t n, uint32_t jobs, bool keep_going,
        struct base_err *err, struct found_shard **ret_shards, uint32_t *ret_n)
{
	struct search search = { .store = store, .keep_going = keep_going, .err = err };
	int rc = n ? take_all_named(&search, names, n, jobs) : list_shards(&search);
	*ret_shards = search.shards;
	*ret_n = search.n;
	return rc;
}

/* The index */

int index_store_place(const struct remote_store *store, struct base_err *err, char **ret_path)
{
	const char *name = remote_store_name(store), *last = strrchr(name, '/') + 1;
	cleanup_free char *dir = NULL;
	int rc = remote_index_directory(err, &dir);
	if (rc == 0 &&
	        asprintf(ret_path, "%s/%.64s-%016" PRIx64 ".ddpfs", dir, last, XXH3_64bits(name, strlen(name))) < 0) {
		*ret_path = NULL;
		rc = base_err_set(err, -ENOMEM, "out of memory");
	}
	return rc;
}

static bool is_index(const char *path)
{
	return strcmp(path, SHARD_INDEX_NAME) == 0;
}

int index_store_send(struct remote_store *store, const char *path, struct base_err *err)
{
	struct stat st;
	cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return base_err_set(err, -errno, "'%s': %s", base_quoted(path), strerror(errno));
	/* Of runs that were killed; some stores list none. */
	remote_object_abort_uploads(store, SHARD_INDEX_NAME, is_index, NULL);
	int rc = remote_object_write(store, SHARD_INDEX_NAME, fd, (uint64_t)st.st_size, err, NULL);
	if (rc < 0)
		return base_err_prefix(err, "the index stays in '%s'", base_quoted(path));
	unlink(path);
	return 0;
}
