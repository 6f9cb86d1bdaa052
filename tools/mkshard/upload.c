/* SPDX-License-Identifier: Apache-2.0 */
/* Sends shards to a store while they are made; upload.h first. */
#include "tools/mkshard/upload.h"

#include <assert.h>
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

enum { NAME_SIZE = 32 }; /* of a shard or the index, with the NUL */
static_assert(NAME_SIZE == 32 && REMOTE_ETAG_MAX == 80, "read_notes has these numbers in a format");

/* A shard in the store. */
struct stored {
	char name[NAME_SIZE];
	char etag[REMOTE_ETAG_MAX];
	uint64_t bytes;
	bool own; /* this host sent it, and nobody has replaced it since */
};

struct pack_upload {
	struct remote_store *store;
	char *place; /* in the staging directory */
	char *notes; /* path of what was sent, PLACE.sent: a line "NAME BYTES ETAG" for each object; upload.h */
	int fd;      /* of notes, which are appended to; -1: not open yet */
	bool force;
	bool there;             /* the store has a dataset of this name */
	struct stored *objects; /* shards in the store at pack_upload_begin, sorted by name */
	size_t n_objects, room;
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
	if (asprintf(&upload->place, "%s/%.64s-%016" PRIx64, staging, last, hash) < 0)
		upload->place = NULL;
	if (!upload->place || asprintf(&upload->notes, "%s.sent", upload->place) < 0) {
		upload->notes = NULL;
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

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct stored *)a)->name, ((const struct stored *)b)->name);
}

/* Reads the notes.  Marks the shards that they tell of as own; *ret_index_own: whether the index of this ETag is.  The
 * last line of a name counts.  *ret_end: offset behind the last complete line; a run was killed while it wrote more.
 * Returns 0, or -errno with a sentence. */
static int read_notes(struct pack_upload *upload, const char *index_etag, struct base_err *err, bool *ret_index_own,
        uint64_t *ret_end)
{
	char line[NAME_SIZE + REMOTE_ETAG_MAX + 32];
	*ret_index_own = false;
	*ret_end = 0;
	cleanup_fclose FILE *notes = fopen(upload->notes, "re");
	if (!notes && errno == ENOENT)
		return 0;
	if (!notes)
		return base_err_set(err, -errno, "'%s': %s", upload->notes, base_err_str(-errno));
	while (fgets(line, sizeof(line), notes) && strchr(line, '\n')) {
		struct stored note = { .own = false };
		*ret_end += strlen(line);
		if (sscanf(line, "%31s %" SCNu64 " %79s", note.name, &note.bytes, note.etag) != 3)
			continue; /* of another version */
		struct stored *found =
		        upload->n_objects ? bsearch(&note, upload->objects, upload->n_objects, sizeof(note), by_name)
		                          : NULL;
		if (found)
			found->own = found->bytes == note.bytes && strcmp(found->etag, note.etag) == 0;
		if (strcmp(note.name, SHARD_INDEX_NAME) == 0)
			*ret_index_own = strcmp(note.etag, index_etag) == 0;
	}
	return ferror(notes) ? base_err_set(err, -EIO, "'%s' cannot be read", upload->notes) : 0;
}

/* Finds out whether the store has an index, and refuses to replace it, unless this packing sent it: then only the last
 * steps on this host are missing. */
static int check_index(struct pack_upload *upload, bool goes_on, struct base_err *err)
{
	uint64_t bytes, end;
	char etag[REMOTE_ETAG_MAX];
	bool own = false;
	int rc = remote_object_stat(upload->store, SHARD_INDEX_NAME, err, &bytes, etag);
	upload->there = rc == 0;
	if (rc == -ENOENT) {
		*err = (struct base_err){ 0 };
		return 0;
	}
	if (rc == 0 && !upload->force && goes_on)
		rc = read_notes(upload, etag, err, &own, &end);
	if (rc == 0 && !upload->force && !own)
		rc = base_err_set(err, -EEXIST, "%s: there is a dataset already; give --force to replace it",
		        remote_store_name(upload->store));
	return rc;
}

int pack_upload_open(const char *dataset, const char *staging, bool force, bool restart, struct base_err *err,
        struct pack_upload **ret_upload)
{
	struct pack_upload *upload = calloc(1, sizeof(*upload));
	if (!upload)
		return base_err_set(err, -ENOMEM, "out of memory");
	upload->fd = -1;
	upload->force = force;
	int rc = remote_store_open(dataset, err, &upload->store);
	if (rc == 0 && !remote_store_location(upload->store)->bucket)
		rc = base_err_set(err, -EROFS, "%s: datasets are packed to s3:// names; HTTP servers are only read",
		        remote_store_name(upload->store));
	if (rc == 0)
		rc = set_place(upload, staging, err);
	if (rc == 0)
		rc = check_index(upload, !restart && resumes(upload), err);
	if (rc < 0) {
		pack_upload_close(upload);
		return rc;
	}
	*ret_upload = upload;
	return 0;
}

void pack_upload_close(struct pack_upload *upload)
{
	if (!upload)
		return;
	remote_store_close(upload->store);
	if (upload->fd >= 0) {
		struct stat st;
		if (fstat(upload->fd, &st) == 0 && st.st_size == 0)
			unlink(upload->notes);
		close(upload->fd);
	}
	free(upload->place);
	free(upload->notes);
	free(upload->objects);
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

/* Returns whether mkshard gave a shard this name; then its number and container. */
static bool own_name(const char *name, uint32_t *ret_number, enum shard_container *ret_container)
{
	static const enum shard_container containers[] = { SHARD_TAR, SHARD_BARE };
	if (sscanf(name, "shard-%" SCNu32 ".", ret_number) != 1)
		return false;
	for (size_t i = 0; i < sizeof(containers) / sizeof(containers[0]); i++) {
		char own[NAME_SIZE];
		*ret_container = containers[i];
		if (strcmp(name, shard_pack_shard_name(*ret_number, *ret_container, own)) == 0)
			return true;
	}
	return false;
}

/* Returns whether packing makes an object of this name. */
static bool is_made(const char *path)
{
	uint32_t number;
	enum shard_container container;
	return strcmp(path, SHARD_INDEX_NAME) == 0 || own_name(path, &number, &container);
}

static int take_object(void *arg, const char *path, uint64_t bytes, const char *etag)
{
	struct pack_upload *upload = arg;
	if (!is_made(path))
		return 0;
	if (upload->n_objects == upload->room) {
		size_t room = upload->room ? 2 * upload->room : 256;
		struct stored *grown = realloc(upload->objects, room * sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		upload->objects = grown;
		upload->room = room;
	}
	struct stored *stored = &upload->objects[upload->n_objects++];
	*stored = (struct stored){ .bytes = bytes };
	snprintf(stored->name, sizeof(stored->name), "%s", path);
	snprintf(stored->etag, sizeof(stored->etag), "%s", etag);
	return 0;
}

bool pack_upload_has(const void *arg, const char *name, uint64_t bytes)
{
	const struct pack_upload *upload = arg;
	struct stored wanted;
	snprintf(wanted.name, sizeof(wanted.name), "%s", name);
	const struct stored *found =
	        upload->n_objects ? bsearch(&wanted, upload->objects, upload->n_objects, sizeof(wanted), by_name)
	                          : NULL;
	return found && found->own && found->bytes == bytes;
}

int pack_upload_begin(struct pack_upload *upload, struct base_err *err)
{
	bool index_own;
	uint64_t end;
	int rc = check_index(upload, true, err); /* again: to find the sources may have taken long */
	if (rc < 0)
		return rc;
	/* Some stores do not list uploads, or do not allow it. */
	remote_object_abort_uploads(upload->store, "shard-", is_made, NULL);
	remote_object_abort_uploads(upload->store, SHARD_INDEX_NAME, is_made, NULL);
	if (upload->force)
		rc = pack_upload_drop_index(upload, err);
	if (rc == 0)
		rc = remote_object_list(upload->store, "shard-", take_object, upload, err);
	if (rc == 0 && upload->n_objects)
		qsort(upload->objects, upload->n_objects, sizeof(*upload->objects), by_name);
	if (rc == 0)
		rc = read_notes(upload, "", err, &index_own, &end);
	if (rc < 0)
		return rc;
	upload->fd = open(upload->notes, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (upload->fd < 0 || ftruncate(upload->fd, (off_t)end) < 0)
		return base_err_set(err, -errno, "'%s': %s", upload->notes, base_err_str(-errno));
	return 0;
}

int pack_upload_drop_index(struct pack_upload *upload, struct base_err *err)
{
	int rc = upload->there ? remote_object_remove(upload->store, SHARD_INDEX_NAME, err) : 0;
	upload->there = upload->there && rc < 0;
	return rc;
}

static int send_file(struct pack_upload *upload, const char *path, const char *name, struct base_err *err,
        struct pack_sent *ret_sent)
{
	struct stat st;
	cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return base_err_set(err, -errno, "'%s': %s", path, base_err_str(-errno));
	snprintf(ret_sent->name, sizeof(ret_sent->name), "%s", name);
	ret_sent->bytes = (uint64_t)st.st_size;
	return remote_object_write(upload->store, name, fd, ret_sent->bytes, err, ret_sent->etag);
}

int pack_upload_shard(struct pack_upload *upload, const char *path, const char *name, struct base_err *err,
        struct pack_sent *ret_sent)
{
	int rc = send_file(upload, path, name, err, ret_sent);
	if (rc == 0 && unlink(path) < 0)
		cli_warn("'%s' was sent and cannot be removed: %s", path, base_err_str(-errno));
	return rc;
}

int pack_upload_note(struct pack_upload *upload, const struct pack_sent *sent, struct base_err *err)
{
	char line[sizeof(*sent) + 32];
	if (!*sent->etag)
		return 0; /* so it is sent again if this run is interrupted */
	size_t len = (size_t)snprintf(line, sizeof(line), "%s %" PRIu64 " %s\n", sent->name, sent->bytes, sent->etag);
	ssize_t n = write(upload->fd, line, len); /* O_APPEND: the lines of threads do not mix */
	int rc = n < 0 ? -errno : (size_t)n < len ? -ENOSPC : fdatasync(upload->fd) < 0 ? -errno : 0;
	return rc ? base_err_set(err, rc, "'%s': %s", upload->notes, base_err_str(rc)) : 0;
}

/* Removes the shards that the new dataset does not have: `mkshard index` would adopt them.  They are of the replaced
 * dataset, or of an interrupted run of this host that --restart dropped. */
static void remove_others(struct pack_upload *upload, uint32_t n_shards, enum shard_container container)
{
	for (size_t i = 0; i < upload->n_objects; i++) {
		const struct stored *object = &upload->objects[i];
		struct base_err err = { 0 };
		uint32_t number;
		enum shard_container found;
		if (!own_name(object->name, &number, &found) || (number < n_shards && found == container) ||
		        (!upload->force && !object->own))
			continue;
		if (remote_object_remove(upload->store, object->name, &err) < 0)
			cli_warn("'%s' of %s cannot be removed; remove it: %s", object->name,
			        upload->force ? "the replaced dataset" : "an interrupted run", err.text);
	}
}

int pack_upload_index(struct pack_upload *upload, const char *path, uint32_t n_shards, enum shard_container container,
        struct base_err *err)
{
	struct pack_sent sent;
	int rc = send_file(upload, path, SHARD_INDEX_NAME, err, &sent);
	if (rc == 0)
		rc = pack_upload_note(upload, &sent, err);
	if (rc == 0)
		remove_others(upload, n_shards, container);
	return rc;
}

void pack_upload_finish(struct pack_upload *upload)
{
	cleanup_free char *index = NULL;
	if (asprintf(&index, "%s/%s", upload->place, SHARD_INDEX_NAME) >= 0)
		unlink(index);
	unlink(upload->notes);
	close(upload->fd);
	upload->fd = -1;
	if (rmdir(upload->place) < 0)
		cli_warn("'%s' is not needed any more and cannot be removed: %s", upload->place, base_err_str(-errno));
}
