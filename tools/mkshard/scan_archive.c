/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the files of an archive, for `mkshard pack`; pack.h first.
 *
 * An uncompressed tar is read in place: its members are ranges of one file, and packing reads them in any order.
 * Everything else (tar.gz, tar.zst, zip, whatever comes through a pipe) is unpacked once, through libarchive, into
 * one staging file that holds the members' contents in a row.  No name of an archive ever becomes a name in the file
 * system. */
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "shard/base/cleanup.h"
#include "shard/base/io.h"
#include "shard/base/units.h"
#include "shard/build.h"
#include "shard/tar.h"
#include "tools/common/cli.h"
#include "tools/mkshard/pack.h"
#include "tools/common/progress.h"

enum {
	UNPACK_BUFFER = 1 << 20,
	MEMBER_COST = 512,
	UNPACK_RATIO = 200, /* text compresses 5 to 50 times; a decompression bomb 1,000 times and more */
};

static void cleanup_archive_free(struct archive **archive)
{
	if (*archive)
		archive_read_free(*archive);
}
#define cleanup_archive __attribute__((cleanup(cleanup_archive_free)))

struct unpack {
	struct pack_input *input;
	const char *name;      /* of the archive, as the user gave it */
	char quoted_name[512]; /* the same, printable, for messages */
	uint32_t source;
	uint32_t version; /* of an archive read in place: from its mtime; goes into the plan's fingerprint */
	int out;          /* staging file */
	uint64_t written;
	uint64_t limit;   /* bytes, as given; 0: UNPACK_RATIO times what was read of the archive */
	uint64_t members; /* each counts for MEMBER_COST bytes of the limit */
	bool stream;      /* from a pipe */
	uint8_t *buffer;
	struct base_err *err;
};

/* Names the kind of a member that a dataset cannot hold.  Returns NULL if it can hold it. */
static const char *refused_kind(enum shard_tar_type type)
{
	switch (type) {
	case SHARD_TAR_FILE:
	case SHARD_TAR_DIR:
		return NULL;
	case SHARD_TAR_LINK:
		return "a hard link";
	case SHARD_TAR_SYMLINK:
		return "a symbolic link";
	case SHARD_TAR_DEVICE:
		return "a device or fifo";
	case SHARD_TAR_OTHER:
		break;
	}
	return "a member of unknown type";
}

/* Checks name and kind of a member and adds it.  Returns 1 if it was added, 0 if it was refused or needs nothing,
 * -errno. */
static int take_member(struct unpack *unpack, const char *path, enum shard_tar_type type, struct shard_pack_item *item)
{
	struct base_err err = { 0 };
	cleanup_free char *name = strdup(path);
	if (!name)
		return base_err_set(unpack->err, -ENOMEM, "out of memory");
	const char *kind = refused_kind(type);
	if (kind)
		base_err_set(&err, -EINVAL, "'%s': %s; unpack the archive and pack the directory instead",
		        base_quoted(path), kind);
	else
		shard_pack_normalise(name, &err);
	if (err.code == 0 && !*name) {
		if (type == SHARD_TAR_DIR)
			return 0; /* "./" */
		base_err_set(&err, -EINVAL, "a member without a name");
	}
	if (err.code == 0 && shard_path_check(name, &err) == 0) {
		if (pack_input_hides(unpack->input, name, type == SHARD_TAR_DIR))
			return 0;
		item->path = name;
		item->directory = type == SHARD_TAR_DIR;
		int rc = pack_input_add(unpack->input, item);
		return rc ? base_err_set(unpack->err, rc, "out of memory") : 1;
	}
	base_err_prefix(&err, "'%s'", unpack->quoted_name);
	int rc = pack_input_refuse(unpack->input, &err);
	if (rc && unpack->err)
		*unpack->err = err;
	return rc;
}

/* Handles a damaged archive: with --keep-going the members before the damage are packed. */
static int archive_broken(struct unpack *unpack, int code, const char *where, const char *reason)
{
	struct base_err err = { 0 };
	if (where)
		base_err_set(&err, code, "'%s': '%s': %s; the archive is damaged or incomplete here",
		        unpack->quoted_name, base_quoted(where), reason);
	else
		base_err_set(&err, code, "'%s': %s", unpack->quoted_name, reason);
	int rc = unpack->input->keep_going ? pack_input_refuse(unpack->input, &err) : code;
	if (rc)
		*unpack->err = err;
	return rc;
}

/* Uncompressed tar, in place */

struct window {
	int fd;
	uint8_t *data;
	size_t len;
	uint64_t offset;
	bool eof;
};

/* Reads at least `need` bytes at `offset` into the window, or fewer at the end of the file. */
static int window_fill(struct window *window, uint64_t offset, size_t need)
{
	if (offset >= window->offset && offset + need <= window->offset + window->len)
		return 0;
	window->offset = offset;
	window->len = 0;
	window->eof = false;
	while (window->len < need) {
		ssize_t n = pread(window->fd, window->data + window->len,
		        UNPACK_BUFFER + SHARD_TAR_PAX_MAX - window->len, (off_t)(offset + window->len));
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0) {
			window->eof = true;
			break;
		}
		window->len += (size_t)n;
	}
	return 0;
}

/* Checks that only zeros follow the mark at `end`, which fill the archive's last record. */
static int check_behind_end(struct window *window, uint64_t end, uint64_t size, struct base_err *err)
{
	for (uint64_t at = end + SHARD_TAR_END; at < size;) {
		int rc = window_fill(window, at, 1);
		if (rc < 0)
			return rc;
		size_t i = (size_t)(at - window->offset);
		if (i >= window->len) /* it has become shorter */
			return 0;
		while (i < window->len && window->data[i] == 0)
			i++;
		if (i < window->len)
			return shard_tar_more_error(end + SHARD_TAR_END, size, err);
		at = window->offset + window->len;
	}
	return 0;
}

static int scan_tar(struct unpack *unpack, int fd, uint64_t size)
{
	struct shard_tar_parser *parser = NULL;
	cleanup_free uint8_t *data = malloc(UNPACK_BUFFER + SHARD_TAR_PAX_MAX);
	struct window window = { .fd = fd, .data = data };
	int rc = data ? shard_tar_parser_new(&parser) : -ENOMEM;
	uint64_t next = 0;
	size_t need = SHARD_TAR_BLOCK;
	struct base_err err = { 0 };
	while (rc == 0) {
		struct shard_tar_member member;
		rc = window_fill(&window, next, need);
		if (rc)
			break;
		uint64_t skip = next - window.offset;
		size_t have = window.len > skip ? window.len - (size_t)skip : 0;
		bool eof = next + have >= size;
		rc = shard_tar_parse(parser, window.data + skip, have, next, eof, &err, &member, &next, &need);
		if (rc == 2 && eof && have < need)
			rc = base_err_set(&err, -EUCLEAN, "ends in the middle of a header at byte %" PRIu64, next);
		if (rc == 0) {
			if (next >= size)
				cli_warn("'%s' has no end-of-archive mark: it may be cut off", unpack->quoted_name);
			else
				rc = check_behind_end(&window, next, size, &err);
			break;
		}
		if (rc == 2)
			rc = 0;
		if (rc != 1)
			continue;
		need = SHARD_TAR_BLOCK;
		if (member.type == SHARD_TAR_FILE &&
		        (member.content_offset > size || member.length > size - member.content_offset)) {
			rc = archive_broken(unpack, -EUCLEAN, member.path, "the archive ends before this file does");
			if (rc == 0)
				break; /* the end of the archive */
			shard_tar_parser_free(parser);
			return rc;
		}
		struct shard_pack_item item = {
			.length = member.type == SHARD_TAR_FILE ? member.length : 0,
			.mtime_s = member.mtime_s,
			.mode = member.mode & 01777,
			.mtime_nsec = unpack->version,
			.source = unpack->source,
			.source_offset = member.content_offset,
			.source_ino = member.content_offset, /* so that reads are in the order of the archive */
		};
		rc = take_member(unpack, member.path, member.type, &item);
		if (rc > 0)
			rc = 0;
		else if (rc < 0) {
			shard_tar_parser_free(parser);
			return rc;
		}
	}
	shard_tar_parser_free(parser);
	if (rc < 0)
		return archive_broken(unpack, rc, NULL, err.text[0] ? err.text : base_err_str(rc));
	return 0;
}

/* Whether the file starts with a tar header.  An archive without members is zeros. */
static bool is_tar(int fd)
{
	uint8_t block[SHARD_TAR_BLOCK];
	if (base_pread_full(fd, block, sizeof(block), 0))
		return false;
	unsigned sum = 0;
	for (int i = 0; i < SHARD_TAR_BLOCK; i++)
		sum += i >= 148 && i < 156 ? ' ' : block[i];
	char digits[9] = { 0 };
	memcpy(digits, block + 148, 8);
	bool ustar = !memcmp(block + 257, "ustar", 5);
	return ustar || (sum != 8 * ' ' && strtoul(digits, NULL, 8) == sum);
}

/* All other archives, through libarchive */

static enum shard_tar_type entry_type(struct archive_entry *entry)
{
	if (archive_entry_hardlink(entry))
		return SHARD_TAR_LINK;
	switch (archive_entry_filetype(entry)) {
	case AE_IFREG:
		return SHARD_TAR_FILE;
	case AE_IFDIR:
		return SHARD_TAR_DIR;
	case AE_IFLNK:
		return SHARD_TAR_SYMLINK;
	case AE_IFCHR:
	case AE_IFBLK:
	case AE_IFIFO:
	case AE_IFSOCK:
		return SHARD_TAR_DEVICE;
	default:
		return SHARD_TAR_OTHER;
	}
}

static bool over_limit(struct unpack *unpack, struct archive *archive, uint64_t more)
{
	uint64_t used = unpack->written + unpack->members * MEMBER_COST, limit = unpack->limit;
	if (limit == 0) {
		uint64_t packed = (uint64_t)archive_filter_bytes(archive, -1);
		limit = packed * UNPACK_RATIO > BASE_GIB ? packed * UNPACK_RATIO : BASE_GIB;
	}
	if (used <= limit && more <= limit - used)
		return false;
	char size[16];
	base_err_set(unpack->err, -EFBIG, "'%s': unpacks to more than %s; raise --unpack-limit if that is right",
	        unpack->quoted_name, base_format_size(limit, size));
	return true;
}

/* Appends one member's content to the staging file, with the zeros of sparse members. */
static int stage_content(struct unpack *unpack, struct archive *archive, const char *path, struct shard_pack_item *item)
{
	uint64_t hash = 0;
	for (;;) {
		la_ssize_t n = archive_read_data(archive, unpack->buffer, UNPACK_BUFFER);
		if (n == ARCHIVE_RETRY)
			continue;
		if (n < 0) {
			const char *reason = archive_error_string(archive);
			return archive_broken(unpack, -EUCLEAN, path, reason ? reason : "cannot be unpacked");
		}
		if (n == 0)
			break;
		if (over_limit(unpack, archive, (uint64_t)n))
			return unpack->err->code;
		int rc = base_pwrite_full(unpack->out, unpack->buffer, (size_t)n, unpack->written);
		if (rc)
			return base_err_set(unpack->err, rc, "'%s': unpacking: %s%s", unpack->quoted_name,
			        strerror(-rc),
			        rc == -ENOSPC ? "; the unpacked files need room beside the dataset" : "");
		hash = XXH3_64bits_withSeed(unpack->buffer, (size_t)n, hash);
		unpack->written += (uint64_t)n;
		item->length += (uint64_t)n;
		progress_add((uint64_t)n, 0);
	}
	item->mtime_nsec = (uint32_t)hash; /* a pipe has no mtime, so a rerun compares the content */
	return 1;
}

static int stage_member(struct unpack *unpack, struct archive *archive, struct archive_entry *entry)
{
	unpack->members++;
	if (over_limit(unpack, archive, 0))
		return unpack->err->code;
	const char *path = archive_entry_pathname(entry);
	if (!path)
		path = archive_entry_pathname_utf8(entry);
	enum shard_tar_type type = entry_type(entry);
	if (archive_entry_is_encrypted(entry))
		return archive_broken(unpack, -EACCES, path, "encrypted");
	struct shard_pack_item item = {
		.mtime_s = archive_entry_mtime_is_set(entry) ? archive_entry_mtime(entry) : 0,
		.mode = archive_entry_perm(entry) & 01777,
		.source = unpack->source,
		.source_offset = unpack->written,
		.source_ino = unpack->written,
	};
	if (item.mode == 0) /* zip files from other systems than Unix have no mode */
		item.mode = type == SHARD_TAR_DIR ? 0755 : 0644;
	if (type == SHARD_TAR_FILE) {
		int rc = stage_content(unpack, archive, path ? path : "", &item);
		if (rc <= 0)
			return rc;
	}
	int rc = take_member(unpack, path ? path : "", type, &item);
	return rc > 0 ? 0 : rc;
}

/* Whether the tar blocks ended where the next header should have been. libarchive calls that the end, and consumes
 * blocks of zeros if they are there. */
static bool lacks_end_mark(struct archive *archive)
{
	return (archive_format(archive) & ARCHIVE_FORMAT_BASE_MASK) == ARCHIVE_FORMAT_TAR &&
	       archive_filter_bytes(archive, 0) == archive_read_header_position(archive);
}

/* The end of an archive. A pipe ends in the same way whether its writer was done or was killed between two members; a
 * file of that kind has been there, and its owner may know. */
static int check_end(struct unpack *unpack, struct archive *archive)
{
	char reason[256];
	if (!lacks_end_mark(archive))
		return 0;
	if (!unpack->stream) {
		cli_warn("'%s' has no end-of-archive mark: it may be cut off", unpack->quoted_name);
		return 0;
	}
	snprintf(reason, sizeof(reason),
	        "the tar stream ends at byte %lld without its end-of-archive mark: what wrote it may have been "
	        "stopped; if it leaves the mark out, write to a file, and pack that",
	        (long long)archive_filter_bytes(archive, 0));
	return archive_broken(unpack, -EUCLEAN, NULL, reason);
}

static int unpack_all(struct unpack *unpack, int fd)
{
	cleanup_archive struct archive *archive = archive_read_new();
	if (!archive)
		return base_err_set(unpack->err, -ENOMEM, "out of memory");
	archive_read_support_filter_all(archive);
	archive_read_support_format_tar(archive);
	archive_read_support_format_zip(archive);
	/* Of archives that were put one behind the other, libarchive takes all, or does not say that there are more. */
	if (archive_read_set_format_option(archive, "tar", "read_concatenated_archives", "1") != ARCHIVE_OK)
		return base_err_set(unpack->err, -ENOTSUP, "libarchive: %s", archive_error_string(archive));
	if (archive_read_open_fd(archive, fd, UNPACK_BUFFER) != ARCHIVE_OK)
		return base_err_set(unpack->err, -EINVAL,
		        "'%s': neither a directory nor an archive (tar, tar.gz, tar.zst, zip)", unpack->quoted_name);
	bool any = false;
	for (;;) {
		struct archive_entry *entry;
		int status = archive_read_next_header(archive, &entry);
		if (status == ARCHIVE_RETRY)
			continue;
		if (status == ARCHIVE_EOF)
			return check_end(unpack, archive);
		if (status != ARCHIVE_OK && status != ARCHIVE_WARN) {
			const char *reason = archive_error_string(archive);
			if (any && reason &&
			        strcmp(reason, "Truncated tar archive") == 0) /* libarchive's words for both */
				reason =
				        "the tar archive is cut off, or what follows its end is neither an archive nor "
				        "blocks of zeros";
			if (any)
				return archive_broken(
				        unpack, -EUCLEAN, NULL, reason ? reason : "damaged or incomplete");
			return base_err_set(unpack->err, -EINVAL,
			        "'%s': neither a directory nor an archive (tar, tar.gz, tar.zst, zip): %s",
			        unpack->quoted_name, reason ? reason : "unknown format");
		}
		any = true;
		int rc = stage_member(unpack, archive, entry);
		if (rc)
			return rc;
	}
}

static int open_staging(struct unpack *unpack, const char *staging, char **ret_path)
{
	char *path = NULL;
	if (asprintf(&path, "%s/unpacked-%u", staging, unpack->input->n_sources) < 0)
		return base_err_set(unpack->err, -ENOMEM, "out of memory");
	unpack->out = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (unpack->out < 0) {
		int code = -errno;
		base_err_set(unpack->err, code, "'%s': %s", base_quoted(path), strerror(-code));
		free(path);
		return code;
	}
	*ret_path = path;
	return 0;
}

/* Notes size, mtime and inode of the blob, which each read checks. */
static int note_blob(struct pack_input *input, uint32_t source, int fd)
{
	struct stat st;
	if (fstat(fd, &st))
		return -errno;
	input->sources[source].blob_size = (uint64_t)st.st_size;
	input->sources[source].blob_mtime_ns = base_time_ns(st.st_mtim.tv_sec, (uint32_t)st.st_mtim.tv_nsec);
	input->sources[source].blob_ino = st.st_ino;
	return 0;
}

int pack_scan_archive(
        struct pack_input *input, const char *path, const char *staging, uint64_t limit, struct base_err *err)
{
	struct unpack unpack = { .input = input, .name = path, .out = -1, .limit = limit, .err = err };
	base_err_quote(path, unpack.quoted_name, sizeof(unpack.quoted_name));
	cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	if (fd < 0 || fstat(fd, &st))
		return base_err_set(err, -errno, "'%s': %s", unpack.quoted_name, strerror(errno));
	bool stream = S_ISFIFO(st.st_mode); /* /dev/stdin, <(COMMAND) */
	if (!S_ISREG(st.st_mode) && !stream)
		return base_err_set(err, -EINVAL, "'%s': neither a directory nor an archive", unpack.quoted_name);
	if (st.st_size == 0 && !stream)
		return base_err_set(err, -EINVAL, "'%s': an empty file, not an archive", unpack.quoted_name);
	unpack.stream = stream;
	posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
	uint64_t size = (uint64_t)st.st_size;
	unpack.version = (uint32_t)st.st_mtim.tv_sec ^ (uint32_t)st.st_mtim.tv_nsec;

	char *blob = NULL;
	bool tar = !stream && is_tar(fd);
	int rc = 0;
	if (tar && !(blob = strdup(path)))
		rc = base_err_set(err, -ENOMEM, "out of memory");
	else if (!tar)
		rc = open_staging(&unpack, staging, &blob);
	if (rc)
		return rc;
	int64_t source = pack_input_source(input, path, -1, blob);
	if (source < 0) {
		rc = base_err_set(err, -ENOMEM, "out of memory");
		goto out;
	}
	unpack.source = (uint32_t)source;
	if (tar) {
		rc = scan_tar(&unpack, fd, size);
	} else {
		/* libarchive converts names by the locale; in "C" it fails for names that are not ASCII. */
		locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0), before = uselocale(utf8);
		unpack.buffer = malloc(UNPACK_BUFFER);
		rc = unpack.buffer ? unpack_all(&unpack, fd) : base_err_set(err, -ENOMEM, "out of memory");
		uselocale(before);
		if (utf8)
			freelocale(utf8);
	}
	if (rc == 0)
		rc = note_blob(input, unpack.source, tar ? fd : unpack.out);
	if (rc && err->code == 0)
		base_err_set(err, rc, "'%s': %s", unpack.quoted_name, strerror(-rc));
out:
	free(unpack.buffer);
	if (unpack.out >= 0)
		close(unpack.out);
	return rc;
}
