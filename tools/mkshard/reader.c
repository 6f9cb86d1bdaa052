/* SPDX-License-Identifier: Apache-2.0 */
/* Reads shards of this host and of stores, and verifies their files; reader.h first. */
#include "tools/mkshard/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "prefetch/bulk.h"
#include "shard/base/cleanup.h"
#include "shard/base/io.h"
#include "shard/base/units.h"
#include "shard/block_sum.h"
#include "shard/remote/client.h"

enum { PIECES = 8, PIECE_BYTES = 4 << 20, NAME_BYTES = 8192 };

/* One request of the client. */
struct piece {
	struct remote_read read; /* first, so that a pointer to it is a pointer to this */
	bool used;               /* it was submitted for `number` of the current range */
	bool done;
	uint64_t number;
	uint8_t *buf; /* PIECE_BYTES; NULL until it is needed */
};

struct mkshard_reader {
	char *path; /* or the object's URL, for messages */
	uint64_t size_bytes;
	int64_t mtime_ns; /* of a file that is in no index */
	bool indexed;     /* an index describes the shard */
	int fd;           /* of a file, else -1 */

	struct remote_client *client;
	struct remote_object *object; /* NULL: a file */
	uint64_t timeout_s;
	struct base_err failed; /* the error after which the object is not read any more */
	bool streams;           /* a piece is in use by the caller's chunk() */
	uint64_t from, to;      /* the range that is read ahead */
	struct piece pieces[PIECES];
};

/* Makes a reader of no shard yet.  name: for messages.  NULL: out of memory. */
static struct mkshard_reader *reader_new(const char *name, uint64_t size_bytes, uint64_t timeout_s)
{
	struct mkshard_reader *reader = calloc(1, sizeof(*reader));
	if (!reader)
		return NULL;
	reader->fd = -1;
	reader->size_bytes = size_bytes;
	reader->timeout_s = timeout_s;
	reader->path = strdup(name);
	if (!reader->path) {
		free(reader);
		return NULL;
	}
	return reader;
}

static int open_object(struct mkshard_reader *reader, struct remote_store *store, const char *path)
{
	int rc = remote_object_new(store, path, reader->size_bytes, &reader->object);
	return rc == 0 ? remote_client_new(store, reader->timeout_s * 1000000000, &reader->client) : rc;
}

static int open_indexed_object(struct mkshard_reader *reader, struct remote_store *store,
        const struct shard_shard *shard, struct base_err *err)
{
	char path[SHARD_PATH_MAX + 1];
	if (shard->path_len > SHARD_PATH_MAX || memchr(shard->path, 0, shard->path_len) || shard->path[0] == '/')
		return base_err_set(err, -EUCLEAN, "%s: the index is damaged: the name of a shard is impossible",
		        remote_store_name(store));
	snprintf(path, sizeof(path), "%.*s", (int)shard->path_len, shard->path);
	int rc = open_object(reader, store, path);
	return rc < 0 ? base_err_set(err, rc, "'%s': %s", base_quoted(reader->path), base_err_str(rc)) : 0;
}

/* Finds a shard: its record, and its path, which is absolute or below the dataset.  path holds NAME_BYTES bytes.
 * Returns 0, -ENAMETOOLONG, or an error of a damaged index, with a sentence. */
static int find_shard(const struct shard_index *index, uint32_t shard, struct base_err *err,
        struct shard_shard *ret_record, char *path)
{
	struct shard_shard *rec = ret_record;
	int rc = shard_index_shard(index, shard, rec);
	if (rc)
		return base_err_set(err, rc, "'%s': the index is damaged (shard %u): %s", shard_index_dataset(index),
		        shard, base_err_str(rc));
	const char *dataset = rec->path_len && rec->path[0] == '/' ? "" : shard_index_dataset(index);
	int n = snprintf(path, NAME_BYTES, "%s%s%.*s", dataset, *dataset ? "/" : "", (int)rec->path_len, rec->path);
	if (n < 0 || n >= NAME_BYTES)
		return base_err_set(
		        err, -ENAMETOOLONG, "'%s': shard %u has too long a path", shard_index_dataset(index), shard);
	return 0;
}

/* Opens a shard that is a file, and checks its size, and its mtime if the index has one. */
static int open_indexed_file(const char *path, const struct shard_shard *shard, struct base_err *err, int *ret_fd)
{
	struct stat st;
	const char *quoted = base_quoted(path);
	cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0 || fstat(fd, &st)) {
		int rc = -errno;
		return base_err_set(err, rc, "'%s': %s%s", quoted, strerror(-rc),
		        rc == -EACCES   ? "; whoever reads the dataset must be allowed to read its shards"
		        : rc == -ENOENT ? "; put the shard back where it was, or index the dataset again"
		                        : "");
	}
	int64_t mtime_ns = base_time_ns(st.st_mtim.tv_sec, (uint32_t)st.st_mtim.tv_nsec);
	if (!S_ISREG(st.st_mode))
		return base_err_set(err, -ESTALE, "'%s': not a regular file", quoted);
	if ((uint64_t)st.st_size != shard->size_bytes)
		return base_err_set(err, -ESTALE,
		        "'%s': %" PRIu64 " bytes, but %" PRIu64
		        " were indexed: replaced or cut off; index it again if that is right",
		        quoted, (uint64_t)st.st_size, shard->size_bytes);
	if (shard->mtime_ns && shard->mtime_ns != mtime_ns)
		return base_err_set(err, -ESTALE, "'%s': changed since it was indexed; index it again", quoted);
	*ret_fd = steal_fd(&fd);
	return 0;
}

int mkshard_reader_open(const struct shard_index *index, uint32_t shard, uint64_t timeout_s, struct base_err *err,
        struct mkshard_reader **ret_reader)
{
	struct shard_shard rec;
	char path[NAME_BYTES];
	struct remote_store *store = shard_index_store(index);
	int rc = find_shard(index, shard, err, &rec, path);
	if (rc < 0)
		return rc;
	struct mkshard_reader *reader = reader_new(path, rec.size_bytes, timeout_s);
	if (!reader)
		return base_err_set(err, -ENOMEM, "out of memory");
	reader->indexed = true;
	rc = store ? open_indexed_object(reader, store, &rec, err) : open_indexed_file(path, &rec, err, &reader->fd);
	if (rc < 0) {
		mkshard_reader_close(reader);
		return rc;
	}
	*ret_reader = reader;
	return 0;
}

static int open_new_file(struct mkshard_reader *reader, struct base_err *err)
{
	struct stat st;
	reader->fd = open(reader->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (reader->fd < 0 || fstat(reader->fd, &st) < 0)
		return base_err_set(err, -errno, "%s", strerror(errno));
	if (!S_ISREG(st.st_mode))
		return base_err_set(err, -EINVAL, "not a regular file");
	reader->size_bytes = (uint64_t)st.st_size;
	reader->mtime_ns = base_time_ns(st.st_mtim.tv_sec, (uint32_t)st.st_mtim.tv_nsec);
	return 0;
}

int mkshard_reader_open_new(struct remote_store *store, const char *path, uint64_t size_bytes, uint64_t timeout_s,
        struct base_err *err, struct mkshard_reader **ret_reader)
{
	struct mkshard_reader *reader = reader_new(path, size_bytes, timeout_s);
	if (!reader)
		return base_err_set(err, -ENOMEM, "out of memory");
	int rc = store ? open_object(reader, store, path) : open_new_file(reader, err);
	if (rc < 0) {
		if (store)
			base_err_set(err, rc, "%s", base_err_str(rc));
		mkshard_reader_close(reader);
		return rc;
	}
	*ret_reader = reader;
	return 0;
}

void mkshard_reader_close(struct mkshard_reader *reader)
{
	if (!reader)
		return;
	remote_client_free(reader->client);
	remote_object_free(reader->object);
	for (size_t i = 0; i < PIECES; i++)
		free(reader->pieces[i].buf);
	if (reader->fd >= 0)
		close(reader->fd);
	free(reader->path);
	free(reader);
}

bool mkshard_reader_is_remote(const struct mkshard_reader *reader)
{
	return reader->object != NULL;
}

uint64_t mkshard_reader_size(const struct mkshard_reader *reader)
{
	return reader->size_bytes;
}

int64_t mkshard_reader_mtime_ns(const struct mkshard_reader *reader)
{
	return reader->mtime_ns;
}

bool mkshard_reader_changed(const struct mkshard_reader *reader)
{
	struct stat st;
	return !reader->object &&
	       (fstat(reader->fd, &st) < 0 || (uint64_t)st.st_size != reader->size_bytes ||
	               base_time_ns(st.st_mtim.tv_sec, (uint32_t)st.st_mtim.tv_nsec) != reader->mtime_ns);
}

const char *mkshard_reader_name(const struct mkshard_reader *reader)
{
	return reader->path;
}

int mkshard_reader_failed(const struct mkshard_reader *reader, struct base_err *ret_err)
{
	if (reader->failed.code && ret_err)
		*ret_err = reader->failed;
	return reader->failed.code;
}

bool mkshard_reader_is_ours(int rc)
{
	return rc == -EACCES || rc == -EPERM || rc == -EMFILE || rc == -ENFILE || rc == -ENOMEM || rc == -EAGAIN ||
	       mkshard_reader_is_of_store(rc);
}

bool mkshard_reader_is_of_store(int rc)
{
	return rc == -ETIMEDOUT || rc == -EKEYREJECTED || rc == -EOPNOTSUPP || rc == -EREMCHG;
}

/* Objects */

static int cannot_read(struct mkshard_reader *reader, uint64_t offset, int rc, struct base_err *err)
{
	struct base_err made = { 0 };
	struct remote_stats stats = { 0 };
	if (!reader->object || rc == -ENODATA || rc == -ENOMEM)
		return base_err_set(err, rc, "cannot be read at byte %" PRIu64 ": %s", offset, base_err_str(rc));
	remote_client_stats_get(reader->client, &stats);
	const char *latest = stats.error[0] ? stats.error : "no answer";
	base_err_set(&made, rc, "cannot be read at byte %" PRIu64 ": ", offset);
	size_t len = strlen(made.text), room = sizeof(made.text) - len;
	if (rc == -ESTALE)
		snprintf(made.text + len, room,
		        reader->indexed
		                ? "replaced or cut off since it was indexed; put the right one there, or pack again"
		                : "it was replaced while it was read; run the command again");
	else if (rc == -ENOENT)
		snprintf(made.text + len, room,
		        reader->indexed ? "there is no such object; put the shard back, or pack again"
		                        : "it was removed while it was read; run the command again");
	else if (rc == -ETIMEDOUT)
		snprintf(made.text + len, room,
		        "the store did not answer for %" PRIu64 " s (%s); run the command again when it does",
		        reader->timeout_s, latest);
	else
		snprintf(made.text + len, room, "%s", stats.error[0] ? stats.error : base_err_str(rc));
	reader->failed = made;
	return base_err_set(err, rc, "%s", made.text);
}

static void submit(struct mkshard_reader *reader, struct piece *piece, uint8_t *buf, uint32_t len, uint64_t offset)
{
	piece->read = (struct remote_read){ .object = reader->object, .offset = offset, .len = len, .data = buf };
	piece->used = true;
	piece->done = false;
	remote_client_submit(reader->client, &piece->read);
}

/* Waits for one piece; marks all that are done meanwhile.  Returns 0 or -errno. */
static int wait_for(struct mkshard_reader *reader, struct piece *piece)
{
	while (!piece->done) {
		struct remote_read *list;
		remote_client_wait(reader->client, -1, &list);
		for (; list; list = list->next)
			((struct piece *)list)->done = true;
	}
	return piece->read.res < 0 ? piece->read.res : 0;
}

void mkshard_reader_ahead(struct mkshard_reader *reader, uint64_t from, uint64_t to)
{
	if (!reader->object) {
		posix_fadvise(reader->fd, (off_t)from, (off_t)(to - from), POSIX_FADV_SEQUENTIAL);
		return;
	}
	for (size_t i = 0; i < PIECES; i++) {
		if (reader->pieces[i].used)
			wait_for(reader, &reader->pieces[i]);
		reader->pieces[i].used = false;
	}
	reader->from = from;
	reader->to = to < reader->size_bytes ? to : reader->size_bytes;
}

/* Gives piece `number` of the range, and submits those behind it.  Returns 0 or -errno. */
static int piece_at(struct mkshard_reader *reader, uint64_t number, struct piece **ret_piece)
{
	struct piece *wanted = &reader->pieces[number % PIECES];
	for (uint64_t n = number; n < number + PIECES; n++) {
		struct piece *piece = &reader->pieces[n % PIECES];
		uint64_t offset = reader->from + n * PIECE_BYTES;
		if (offset >= reader->to)
			break;
		if (piece->used && piece->number == n)
			continue;
		if (piece->used)
			wait_for(reader, piece); /* of a place that was left */
		piece->used = false;
		if (!piece->buf)
			piece->buf = malloc(PIECE_BYTES);
		if (!piece->buf && piece == wanted)
			return -ENOMEM;
		if (!piece->buf)
			break;
		uint64_t len = reader->to - offset;
		piece->number = n;
		submit(reader, piece, piece->buf, (uint32_t)(len < PIECE_BYTES ? len : PIECE_BYTES), offset);
	}
	int rc = wait_for(reader, wanted);
	if (rc < 0)
		wanted->used = false; /* so that it is asked for again */
	*ret_piece = wanted;
	return rc;
}

int mkshard_reader_read_again(
        struct mkshard_reader *reader, uint8_t *buf, uint32_t len, uint64_t offset, struct base_err *err)
{
	int rc = reader->failed.code;
	if (rc < 0)
		return base_err_set(err, rc, "%s", reader->failed.text);
	if (!reader->object) {
		rc = base_pread_full(reader->fd, buf, len, offset);
	} else if (offset > reader->size_bytes || len > reader->size_bytes - offset) {
		rc = -ENODATA;
	} else if (len > 0) {
		struct piece piece = { 0 };
		submit(reader, &piece, buf, len, offset);
		rc = wait_for(reader, &piece);
	}
	return rc < 0 ? cannot_read(reader, offset, rc, err) : 0;
}

int mkshard_reader_read(
        struct mkshard_reader *reader, uint8_t *buf, uint32_t len, uint64_t offset, struct base_err *err)
{
	if (!reader->object || reader->failed.code || reader->streams || offset < reader->from ||
	        offset >= reader->to || len > reader->to - offset)
		return mkshard_reader_read_again(reader, buf, len, offset, err);
	for (uint32_t got = 0; got < len;) {
		uint64_t at = offset + got - reader->from;
		struct piece *piece;
		int rc = piece_at(reader, at / PIECE_BYTES, &piece);
		if (rc < 0)
			return cannot_read(reader, offset + got, rc, err);
		uint32_t skip = (uint32_t)(at % PIECE_BYTES), part = piece->read.len - skip;
		part = part < len - got ? part : len - got;
		memcpy(buf + got, piece->buf + skip, part);
		got += part;
	}
	return 0;
}

int mkshard_reader_stream(struct mkshard_reader *reader,
        int (*chunk)(void *arg, uint64_t offset, const uint8_t *data, size_t len), void *arg, struct base_err *err,
        uint64_t *ret_offset)
{
	*ret_offset = 0;
	if (!reader->object) {
		int rc = prefetch_bulk_stream(reader->path, 0, reader->size_bytes, chunk, arg, ret_offset);
		return rc < 0 ? cannot_read(reader, *ret_offset, rc, err) : rc;
	}
	if (reader->from != 0 || reader->to != reader->size_bytes) /* else pieces may be there already */
		mkshard_reader_ahead(reader, 0, reader->size_bytes);
	for (uint64_t n = 0; *ret_offset < reader->size_bytes; n++) {
		struct piece *piece;
		int rc = piece_at(reader, n, &piece);
		if (rc < 0)
			return cannot_read(reader, *ret_offset, rc, err);
		reader->streams = true;
		rc = chunk(arg, *ret_offset, piece->buf, piece->read.len);
		reader->streams = false;
		if (rc)
			return rc;
		*ret_offset += piece->read.len;
	}
	return 0;
}

int mkshard_read_file(const struct shard_index *index, uint32_t file, struct mkshard_reader *reader, uint8_t *buf,
        int (*put)(void *arg, uint64_t offset, const uint8_t *data, size_t len), void *arg, struct base_err *err)
{
	struct shard_file rec;
	int rc = shard_index_file(index, file, &rec);
	if (rc)
		return base_err_set(err, rc, "the index is damaged (file %u): %s", file, base_err_str(rc));
	uint32_t blocks = shard_blocks(rec.length);
	for (uint32_t b = 0; b < blocks; b++) {
		uint64_t offset, xxh3;
		uint32_t length;
		rc = shard_index_block(index, file, b, &offset, &length, &xxh3);
		if (rc)
			return base_err_set(err, rc, "the index is damaged (file %u): %s", file, base_err_str(rc));
		rc = mkshard_reader_read(reader, buf, length, offset, err);
		if (rc && !mkshard_reader_is_remote(reader))
			return base_err_set(err, rc, "shard %u cannot be read at byte %" PRIu64 ": %s", rec.shard,
			        offset, base_err_str(rc));
		if (rc)
			return base_err_prefix(err, "'%s'", base_quoted(mkshard_reader_name(reader)));
		rc = shard_index_check_err(index, err); /* offset and checksum came from an unchanged index */
		if (rc)
			return rc;
		bool wrong = shard_block_sum(buf, length) != xxh3;
		if (wrong && mkshard_reader_is_remote(reader)) {
			rc = mkshard_reader_read_again(reader, buf, length, offset, err);
			if (rc)
				return base_err_prefix(err, "'%s'", base_quoted(mkshard_reader_name(reader)));
			wrong = shard_block_sum(buf, length) != xxh3;
		}
		if (wrong)
			return base_err_set(err, -EBADMSG, "damaged in shard %u at byte %" PRIu64, rec.shard, offset);
		rc = put(arg, (uint64_t)b * SHARD_BLOCK, buf, length);
		if (rc)
			return rc;
	}
	return shard_index_check_err(index, err); /* so did the length */
}
