/* SPDX-License-Identifier: Apache-2.0 */
/* Sends shards to a store while they are made; upload.h first. */
#include "tools/mkshard/upload.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "shard/base/cleanup.h"
#include "shard/format.h"
#include "shard/remote/index_copy.h"
#include "shard/remote/store_objects.h"
#include "shard/unfinished.h"
#include "tools/common/cli.h"

struct sent {
	char name[32];
	uint64_t bytes;
};

struct pack_upload {
	struct remote_store *store;
	char *place; /* in the staging directory */
	bool force;
	bool there;        /* the store has a dataset of this name */
	struct sent *sent; /* shards in the store, sorted by name */
	size_t n_sent, room;
};

/* Names the packing after the last part of the dataset's name, and a hash of all of it. */
static int set_place(struct pack_upload *upload, const char *staging, struct base_err *err)
{
	const char *name = remote_store_name(upload->store), *last = strrchr(name, '/') + 1;
	cleanup_free char *own = NULL;
	if (!staging) {
		int rc = remote_index_directory(err, &own);
		if (rc < 0)
			return rc;
		staging = own;
	}
	uint64_t hash = XXH3_64bits(name, strlen(name));
	if (asprintf(&upload->place, "%s/%.64s-%016" PRIx64, staging, last, hash) < 0) {
		upload->place = NULL;
		return base_err_set(err, -ENOMEM, "out of memory");
	}
	return 0;
}

/* Whether an earlier run was interrupted. */
static bool resumes(const struct pack_upload *upload)
{
	cleanup_free char *journal = NULL;
	return asprintf(&journal, "%s.partial/%s", upload->place, SHARD_UNFINISHED_JOURNAL) >= 0 &&
	       access(journal, F_OK) == 0;
}

int pack_upload_open(
        const char *dataset, const char *staging, bool force, struct base_err *err, struct pack_upload **ret_upload)
{
	struct pack_upload *upload = calloc(1, sizeof(*upload));
	if (!upload)
		return base_err_set(err, -ENOMEM, "out of memory");
	upload->force = force;
	int rc = remote_store_open(dataset, err, &upload->store);
	if (rc == 0 && !remote_store_location(upload->store)->bucket)
		rc = base_err_set(err, -EROFS, "%s: datasets are packed to s3:// names; HTTP servers are only read",
		        remote_store_name(upload->store));
	if (rc == 0)
		rc = set_place(upload, staging, err);
	uint64_t bytes;
	if (rc == 0) {
		rc = remote_object_size(upload->store, SHARD_INDEX_NAME, err, &bytes);
		upload->there = rc == 0;
		rc = rc == -ENOENT ? 0 : rc;
	}
	if (rc == 0 && upload->there && !force && !resumes(upload))
		rc = base_err_set(err, -EEXIST, "%s: there is a dataset already; give --force to replace it",
		        remote_store_name(upload->store));
	if (rc < 0) {
		pack_upload_close(upload);
		return rc;
	}
	if (err)
		*err = (struct base_err){ 0 };
	*ret_upload = upload;
	return 0;
}

void pack_upload_close(struct pack_upload *upload)
{
	if (!upload)
		return;
	remote_store_close(upload->store);
	free(upload->place);
	free(upload->sent);
	free(upload);
}

const char *pack_upload_place(const struct pack_upload *upload)
{
	return upload->place;
}

const char *pack_upload_name(const struct pack_upload *upload)
{
	return remote_store_name(upload->store);
}

static int note_sent(void *arg, const char *path, uint64_t bytes)
{
	struct pack_upload *upload = arg;
	if (strlen(path) >= sizeof(upload->sent->name))
		return 0; /* none of mkshard's */
	if (upload->n_sent == upload->room) {
		size_t room = upload->room ? 2 * upload->room : 256;
		struct sent *grown = realloc(upload->sent, room * sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		upload->sent = grown;
		upload->room = room;
	}
	struct sent *sent = &upload->sent[upload->n_sent++];
	snprintf(sent->name, sizeof(sent->name), "%s", path);
	sent->bytes = bytes;
	return 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct sent *)a)->name, ((const struct sent *)b)->name);
}

bool pack_upload_has(const void *arg, const char *name, uint64_t bytes)
{
	const struct pack_upload *upload = arg;
	struct sent wanted;
	snprintf(wanted.name, sizeof(wanted.name), "%s", name);
	const struct sent *found =
	        upload->n_sent ? bsearch(&wanted, upload->sent, upload->n_sent, sizeof(wanted), by_name) : NULL;
	return found && found->bytes == bytes;
}

int pack_upload_begin(struct pack_upload *upload, struct base_err *err)
{
	int rc = remote_object_abort_uploads(upload->store, "shard-", err);
	if (rc == 0)
		rc = remote_object_abort_uploads(upload->store, SHARD_INDEX_NAME, err);
	if (rc == -EOPNOTSUPP || rc == -EIO || rc == -EACCES) /* some stores do not list uploads, or do not allow it */
		rc = 0;
	if (rc == 0 && upload->there && upload->force)
		rc = remote_object_remove(upload->store, SHARD_INDEX_NAME, err);
	if (rc == 0)
		rc = remote_object_list(upload->store, "shard-", note_sent, upload, err);
	if (rc == 0 && upload->n_sent)
		qsort(upload->sent, upload->n_sent, sizeof(*upload->sent), by_name);
	return rc;
}

static int send_file(struct pack_upload *upload, const char *path, const char *name, struct base_err *err)
{
	struct stat st;
	cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return base_err_set(err, -errno, "'%s': %s", path, base_err_str(-errno));
	return remote_object_write(upload->store, name, fd, (uint64_t)st.st_size, NULL, NULL, err);
}

int pack_upload_shard(struct pack_upload *upload, const char *path, const char *name, struct base_err *err)
{
	int rc = send_file(upload, path, name, err);
	if (rc == 0 && unlink(path) < 0)
		cli_warn("'%s' was sent and cannot be removed: %s", path, base_err_str(-errno));
	return rc;
}

/* Returns whether mkshard gave a shard this name; then its number and container. */
static bool own_name(const char *name, uint32_t *ret_number, enum shard_container *ret_container)
{
	static const enum shard_container containers[] = { SHARD_TAR, SHARD_BARE };
	if (sscanf(name, "shard-%" SCNu32 ".", ret_number) != 1)
		return false;
	for (size_t i = 0; i < sizeof(containers) / sizeof(containers[0]); i++) {
		char own[32];
		*ret_container = containers[i];
		if (strcmp(name, shard_pack_shard_name(*ret_number, *ret_container, own)) == 0)
			return true;
	}
	return false;
}

/* Removes the shards of the replaced dataset that no new shard has overwritten: `mkshard index` would adopt them. */
static void remove_replaced(struct pack_upload *upload, uint32_t n_shards, enum shard_container container)
{
	for (size_t i = 0; i < upload->n_sent; i++) {
		struct base_err err = { 0 };
		uint32_t number;
		enum shard_container found;
		if (!own_name(upload->sent[i].name, &number, &found) || (number < n_shards && found == container))
			continue;
		if (remote_object_remove(upload->store, upload->sent[i].name, &err) < 0)
			cli_warn("'%s' of the replaced dataset cannot be removed; remove it: %s", upload->sent[i].name,
			        err.text);
	}
}

int pack_upload_index(struct pack_upload *upload, const char *path, uint32_t n_shards, enum shard_container container,
        struct base_err *err)
{
	int rc = send_file(upload, path, SHARD_INDEX_NAME, err);
	if (rc == 0 && upload->force)
		remove_replaced(upload, n_shards, container);
	return rc;
}

void pack_upload_finish(const struct pack_upload *upload)
{
	cleanup_free char *index = NULL;
	if (asprintf(&index, "%s/%s", upload->place, SHARD_INDEX_NAME) >= 0)
		unlink(index);
	if (rmdir(upload->place) < 0)
		cli_warn("'%s' is not needed any more and cannot be removed: %s", upload->place, base_err_str(-errno));
}
