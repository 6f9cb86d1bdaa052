/* SPDX-License-Identifier: Apache-2.0 */
/* An index that does not lie with its shards: opens the file, and checks that the shards are those that it names.
 * shard/index.h first. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shard/base/cleanup.h"
#include "shard/base/units.h"
#include "shard/index_private.h"
#include "shard/remote/location.h"
#include "shard/remote/store.h"
#include "shard/remote/store_objects.h"

enum {
	SHARDS_LOOKED_AT = 4, /* if none is right; the first right one ends the check */
	SHOWN_MAX = 1024,
};

/* Sets the directory of the shards, or their store. */
static int set_dataset(const char *dataset, struct base_err *err, struct shard_index *index)
{
	struct stat st;
	if (remote_is_url(dataset)) {
		int rc = remote_store_open(dataset, err, &index->store);
		if (rc < 0)
			return rc;
		index->dataset = strdup(remote_store_name(index->store));
		return index->dataset ? 0 : base_err_set(err, -ENOMEM, "out of memory");
	}
	if (stat(dataset, &st) < 0) {
		int code = -errno;
		return base_err_set(err, code, "'%s': %s; name the directory of the shards, or their URL",
		        remote_quoted(dataset), base_err_str(code));
	}
	if (!S_ISDIR(st.st_mode))
		return base_err_set(err, -ENOTDIR,
		        "'%s' is not a directory: with an index that is named apart, name the directory of the shards",
		        base_quoted(dataset));
	index->dataset = realpath(dataset, NULL);
	return index->dataset ? 0 : base_err_set(err, -errno, "'%s': %s", base_quoted(dataset), base_err_str(-errno));
}

int index_locate_separate(
        const char *dataset, const char *index_file, struct base_err *err, struct shard_index *index, int *ret_fd)
{
	const char *quoted = remote_quoted(index_file);
	/* O_NONBLOCK: a FIFO must not block the mount */
	cleanup_close int fd = open(index_file, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0 && remote_resembles_url(index_file))
		return base_err_set(err, -EINVAL,
		        "index '%s': an index that is named apart is a file of this host: fetch it, and name the file",
		        quoted);
	if (fd < 0 && errno == ENOENT)
		return base_err_set(err, -ENOENT, "index '%s': there is none; 'mkshard index -o %s %s' makes it",
		        quoted, quoted, remote_quoted(dataset));
	if (fd < 0)
		return base_err_set(err, -errno, "index '%s': cannot open it: %s", quoted, base_err_str(-errno));
	index->separate = realpath(index_file, NULL);
	index->path = malloc(SHOWN_MAX);
	if (!index->separate || !index->path)
		return base_err_set(err, -errno, "index '%s': %s", quoted, base_err_str(-errno));
	remote_quote(index_file, index->path, SHOWN_MAX);
	int rc = set_dataset(dataset, err, index);
	if (rc == 0)
		*ret_fd = steal_fd(&fd);
	return rc;
}

const char *shard_index_separate(const struct shard_index *index)
{
	return index->separate;
}

/* ---- whether the shards are those of the index ---- */

/* Writes why a file is not the shard of the record.  Returns 0: it is that shard; -ESTALE: it is not. */
static int look_at_file(
        const struct shard_index *index, const struct shard_shard *shard, const char *path, char why[SHOWN_MAX])
{
	cleanup_free char *full = NULL;
	struct stat st;
	if (asprintf(&full, "%s%s%s", path[0] == '/' ? "" : index->dataset, path[0] == '/' ? "" : "/", path) < 0) {
		full = NULL;
		return -ENOMEM;
	}
	const char *quoted = base_quoted(path);
	if (stat(full, &st) < 0)
		snprintf(why, SHOWN_MAX, "'%.300s': %s", quoted, base_err_str(-errno));
	else if ((uint64_t)st.st_size != shard->size_bytes)
		snprintf(why, SHOWN_MAX, "'%.300s' has %" PRIu64 " bytes and should have %" PRIu64, quoted,
		        (uint64_t)st.st_size, shard->size_bytes);
	else if (shard->mtime_ns && shard->mtime_ns != base_time_ns(st.st_mtim.tv_sec, (uint32_t)st.st_mtim.tv_nsec))
		snprintf(why, SHOWN_MAX, "'%.300s' has another time of change", quoted);
	else
		return 0;
	return -ESTALE;
}

/* The same for an object.  Another error, with a sentence in err: the store did not say how large it is. */
static int look_at_object(const struct shard_index *index, const struct shard_shard *shard, const char *path,
        struct base_err *err, char why[SHOWN_MAX])
{
	const char *quoted = base_quoted(path);
	uint64_t bytes;
	if (path[0] == '/') {
		snprintf(why, SHOWN_MAX, "'%.300s' is a file of a host", quoted);
		return -ESTALE;
	}
	int rc = remote_object_size(index->store, path, err, &bytes);
	if (rc == 0 && bytes == shard->size_bytes)
		return 0;
	if (rc == -ENOENT)
		snprintf(why, SHOWN_MAX, "%.800s", err ? err->text : quoted);
	else if (rc == 0)
		snprintf(why, SHOWN_MAX, "'%.300s' has %" PRIu64 " bytes and should have %" PRIu64, quoted, bytes,
		        shard->size_bytes);
	return rc == 0 || rc == -ENOENT ? -ESTALE : rc;
}

static int look_at(const struct shard_index *index, uint32_t number, struct base_err *err, char why[SHOWN_MAX])
{
	struct shard_shard shard;
	char path[SHARD_PATH_MAX + 1];
	int rc = shard_index_shard(index, number, &shard);
	if (rc == 0 && (shard.path_len > SHARD_PATH_MAX || memchr(shard.path, 0, shard.path_len)))
		rc = -EUCLEAN;
	if (rc < 0)
		return base_err_set(
		        err, rc, "'%s': the record of a shard cannot be used: %s", index->path, base_err_str(rc));
	memcpy(path, shard.path, shard.path_len);
	path[shard.path_len] = '\0';
	rc = index->store ? look_at_object(index, &shard, path, err, why) : look_at_file(index, &shard, path, why);
	return rc == -ENOMEM ? base_err_set(err, rc, "out of memory") : rc;
}

int shard_index_check_shards(const struct shard_index *index, struct base_err *err)
{
	uint32_t n = index->info.n_shards, looked = n < SHARDS_LOOKED_AT ? n : SHARDS_LOOKED_AT;
	char first[SHOWN_MAX] = "", why[SHOWN_MAX] = "";
	if (!index->separate || n == 0)
		return 0;
	for (uint32_t i = 0; i < looked; i++) {
		int rc = look_at(index, looked < 2 ? 0 : (uint32_t)((uint64_t)i * (n - 1) / (looked - 1)), err, why);
		if (rc != -ESTALE) {
			if (rc == 0 && err)
				*err = (struct base_err){ 0 };
			return rc;
		}
		if (i == 0)
			memcpy(first, why, sizeof(first));
	}
	return base_err_set(err, -ESTALE,
	        "index '%.300s' is not that of the shards in '%.300s': %s; name the index that 'mkshard index -o' "
	        "made of them, or make it anew",
	        index->path, base_quoted(index->dataset), first);
}
