/* SPDX-License-Identifier: Apache-2.0 */
/* Reads one shard for `mkshard index`; index.h first.
 *
 * It reads a tar shard once from front to back, and gives headers to the parser and contents to the checksums.  Of a
 * bare shard it reads the footer.  A shard is a file, or an object of a store (reader.h). */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shard/base/cleanup.h"
#include "shard/bare.h"
#include "shard/build.h"
#include "shard/pack.h"
#include "shard/tar.h"
#include "tools/common/cli.h"
#include "tools/mkshard/index.h"
#include "tools/mkshard/reader.h"
#include "tools/mkshard/sum.h"
#include "tools/common/progress.h"

/* Room for a header with the largest pax and long-name records that the parser accepts. */
enum { HEADER_BUFFER = SHARD_TAR_PAX_MAX + 4 * SHARD_TAR_BLOCK };
enum { FOOTER_PIECE = 1 << 20 }; /* bytes */

struct parse {
	struct found_shard *shard;
	struct shard_tar_parser *parser;
	bool keep_going;
	struct base_err *err;
	uint64_t next; /* offset of the next header; bytes before it are content or padding */
	size_t need;   /* bytes of the header that the parser wants */
	size_t have;   /* bytes of the header in `header` */
	uint8_t *header;
	bool ended; /* the end-of-archive blocks were found, at `next` */
	bool more;  /* bytes that are not zero follow them */
	/* The content that is read now: */
	bool summing;
	uint64_t content_offset, content_end;
	struct file_sum sum;
};

bool found_shard_is_name(const char *name)
{
	const char *dot = strrchr(name, '.');
	return dot && dot > name && (!strcmp(dot, ".tar") || !strcmp(dot, ".bare"));
}

void compressed_tars_take(struct compressed_tars *tars, const char *name)
{
	static const char *const ends[] = { ".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2", ".tar.lz4" };
	size_t len = strlen(name);
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		size_t n = strlen(ends[i]);
		if (len <= n || strcmp(name + len - n, ends[i]) != 0)
			continue;
		if (tars->n++ == 0)
			base_err_quote(name, tars->first, sizeof(tars->first));
		return;
	}
}

void compressed_tars_warn(const struct compressed_tars *tars)
{
	if (tars->n > 0)
		cli_warn("compressed tar files are left out: %" PRIu32 ", the first one '%s'; decompress them, or pack "
		         "them with 'mkshard pack'",
		        tars->n, tars->first);
}

void found_shard_done(struct found_shard *shard)
{
	free(shard->file);
	free(shard->stored);
	free(shard->prefix);
	free(shard->files);
	free(shard->paths);
	free(shard->blocks);
	for (uint64_t i = 0; i < shard->n_left_out; i++)
		free(shard->left_out[i]);
	free(shard->left_out);
	free(shard->record);
}

/* Grows an array so that it holds n elements. */
static int grow(void *pp, uint64_t *capacity, uint64_t n, size_t size)
{
	void **array = pp;
	if (n <= *capacity)
		return 0;
	uint64_t wanted = *capacity ? *capacity * 2 : 256;
	if (wanted < n)
		wanted = n;
	void *grown = realloc(*array, wanted * size);
	if (!grown)
		return -ENOMEM;
	*array = grown;
	*capacity = wanted;
	return 0;
}

int found_shard_leave_out(struct found_shard *shard, const char *text)
{
	char **grown = realloc(shard->left_out, (shard->n_left_out + 1) * sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	shard->left_out = grown;
	shard->left_out[shard->n_left_out] = strdup(text);
	return shard->left_out[shard->n_left_out++] ? 0 : -ENOMEM;
}

/* Checks that a dataset can hold this member.  Fills `path` with the name to store ("" for the root itself). */
static int check_member(
        const struct parse *parse, const struct shard_tar_member *member, char *path, size_t size, struct base_err *err)
{
	const char *kind = member->type == SHARD_TAR_LINK      ? "a hard link"
	                   : member->type == SHARD_TAR_SYMLINK ? "a symbolic link"
	                   : member->type == SHARD_TAR_DEVICE  ? "a device or fifo"
	                   : member->type == SHARD_TAR_OTHER   ? "a member of unknown type"
	                                                       : NULL;
	if (kind)
		return base_err_set(err, -EINVAL,
		        "'%s' at byte %" PRIu64 ": %s; pack the files with 'mkshard pack', or give --keep-going",
		        base_quoted(member->path), member->header_offset, kind);
	char name[SHARD_PATH_MAX + 1];
	snprintf(name, sizeof(name), "%s", member->path);
	int rc = shard_pack_normalise(name, err);
	if (rc == 0 && !*name && member->type != SHARD_TAR_DIR)
		rc = base_err_set(err, -EINVAL,
		        "'%s': a file without a name of its own; give --keep-going to leave it out",
		        base_quoted(member->path));
	if (rc == 0) {
		const char *prefix = parse->shard->prefix;
		snprintf(path, size, "%s%s%s", prefix ? prefix : "", prefix && *name ? "/" : "", name);
		if (*name)
			rc = shard_path_check(path, err);
	}
	if (rc)
		base_err_prefix(err, "member at byte %" PRIu64, member->header_offset);
	return rc;
}

static int take_member(struct parse *parse, const struct shard_tar_member *member)
{
	struct found_shard *shard = parse->shard;
	struct base_err err = { 0 };
	char path[SHARD_PATH_MAX * 2 + 2];
	if (check_member(parse, member, path, sizeof(path), &err)) {
		if (parse->keep_going)
			return found_shard_leave_out(parse->shard, err.text)
			               ? base_err_set(parse->err, -ENOMEM, "out of memory")
			               : 0;
		*parse->err = err;
		return err.code;
	}
	bool directory = member->type == SHARD_TAR_DIR;
	if (directory && (!*path || !strcmp(path, shard->prefix ? shard->prefix : "")))
		return 0;
	size_t len = strlen(path) + 1;
	uint64_t blocks = member->length > SHARD_BLOCK ? (member->length + SHARD_BLOCK - 1) / SHARD_BLOCK : 0;
	if (member->length > shard->size_bytes) /* checked before memory is allocated for the member */
		return base_err_set(parse->err, -EUCLEAN,
		        "truncated: the member at byte %" PRIu64 " is longer than the shard", member->header_offset);
	if (grow(&shard->files, &shard->capacity, shard->n_files + 1, sizeof(*shard->files)) ||
	        grow(&shard->paths, &shard->paths_size, shard->paths_used + len, 1) ||
	        grow(&shard->blocks, &shard->blocks_size, shard->n_blocks + blocks + 1, sizeof(*shard->blocks)))
		return base_err_set(parse->err, -ENOMEM, "out of memory");
	memcpy(shard->paths + shard->paths_used, path, len);
	shard->files[shard->n_files++] = (struct found_file){
		.path = shard->paths_used,
		.offset = member->content_offset,
		.length = member->length,
		.first_block = shard->n_blocks,
		.mtime_s = member->mtime_s,
		.mode = member->mode & 01777,
		.directory = directory,
		.group = FOUND_NO_GROUP,
	};
	shard->paths_used += len;
	if (!directory) {
		parse->summing = true;
		parse->content_offset = member->content_offset;
		parse->content_end = member->content_offset + member->length;
		file_sum_start(&parse->sum, member->length, shard->blocks + shard->n_blocks);
		shard->n_blocks += blocks;
	}
	return 0;
}

/* Gives the gathered header bytes to the parser.  Returns 0, or -errno with a sentence. */
static int parse_header(struct parse *parse, bool at_eof)
{
	struct shard_tar_member member;
	uint64_t next = parse->next;
	size_t need = 0;
	int rc = shard_tar_parse(
	        parse->parser, parse->header, parse->have, parse->next, at_eof, parse->err, &member, &next, &need);
	if (rc < 0)
		return rc;
	if (rc == 0) {
		parse->ended = true;
		return 0;
	}
	if (rc == 1) {
		parse->next = next;
		parse->have = 0;
		parse->need = SHARD_TAR_BLOCK;
		return take_member(parse, &member);
	}
	/* The parser needs more bytes: drop those that it has taken, and keep the others. */
	size_t done = (size_t)(next - parse->next);
	if (need > HEADER_BUFFER || (done == 0 && need <= parse->have))
		return base_err_set(parse->err, -EUCLEAN, "impossible header at byte %" PRIu64, next);
	if (done < parse->have)
		memmove(parse->header, parse->header + done, parse->have - done);
	parse->have = done < parse->have ? parse->have - done : 0;
	parse->next = next;
	parse->need = need;
	return parse->have >= need ? parse_header(parse, at_eof) : 0;
}

static void end_content(struct parse *parse)
{
	parse->shard->files[parse->shard->n_files - 1].xxh3 = file_sum_end(&parse->sum);
	parse->summing = false;
}

/* Looks for what is not zero behind the end of the archive: zeros only fill its last record. */
static void look_behind_end(struct parse *parse, uint64_t offset, const uint8_t *data, size_t len)
{
	uint64_t end_of_mark = parse->next + SHARD_TAR_END;
	size_t i = end_of_mark > offset ? (size_t)(end_of_mark - offset) : 0;
	while (i < len && data[i] == 0)
		i++;
	parse->more = parse->more || i < len;
}

static int consume(void *arg, uint64_t offset, const uint8_t *data, size_t len)
{
	struct parse *parse = arg;
	uint64_t at = offset, end = offset + len;
	while (!parse->ended) {
		if (parse->summing) {
			uint64_t from = parse->content_offset > at ? parse->content_offset : at;
			uint64_t to = parse->content_end < end ? parse->content_end : end;
			if (from < to)
				file_sum_feed(&parse->sum, data + (from - offset), to - from);
			if (parse->content_end > end)
				break;
			end_content(parse);
		}
		uint64_t header_at = parse->next + parse->have; /* offset of the next header byte */
		if (header_at >= end)
			break;
		size_t want = parse->need - parse->have, there = (size_t)(end - header_at);
		size_t take = want < there ? want : there;
		memcpy(parse->header + parse->have, data + (header_at - offset), take);
		parse->have += take;
		if (parse->have < parse->need)
			break;
		int rc = parse_header(parse, false);
		if (rc)
			return rc;
		at = offset;
	}
	if (parse->ended && !parse->more)
		look_behind_end(parse, offset, data, len);
	progress_add(len, 0);
	return 0;
}

static int finish(struct parse *parse)
{
	if (parse->summing && parse->content_end <= parse->shard->size_bytes)
		end_content(parse); /* an empty file at the very end */
	if (parse->summing)
		return base_err_set(parse->err, -EUCLEAN,
		        "truncated: the file at byte %" PRIu64 " ends at byte %" PRIu64 ", the shard at %" PRIu64,
		        parse->content_offset, parse->content_end, parse->shard->size_bytes);
	if (parse->more)
		return shard_tar_more_error(parse->next + SHARD_TAR_END, parse->shard->size_bytes, parse->err);
	if (parse->ended)
		return 0;
	int rc = parse_header(parse, true);
	if (rc == 0) {
		cli_warn("'%s' has no end-of-archive mark: it may be cut off", base_quoted(parse->shard->file));
	}
	return rc;
}

/* Reads the options record, if `mkshard pack` wrote this shard.  The begin of an object stays for the reading. */
static int read_record(struct found_shard *shard, struct mkshard_reader *reader, struct base_err *err)
{
	uint32_t n = shard->size_bytes < HEADER_BUFFER ? (uint32_t)shard->size_bytes : HEADER_BUFFER;
	cleanup_free uint8_t *head = malloc(n);
	if (!head)
		return -ENOMEM;
	if (mkshard_reader_is_remote(reader))
		mkshard_reader_ahead(reader, 0, shard->size_bytes);
	int rc = mkshard_reader_read(reader, head, n, 0, err);
	if (rc < 0)
		return rc;
	rc = shard_pack_lead_parse(head, n, &shard->record);
	return rc == -ENOENT ? 0 : rc;
}

/* Keeps the members before the damage.  It does not search for headers behind it, because a file's content may look
 * like one (a tar in a tar). */
static int keep_what_came_before(struct parse *parse, int rc)
{
	struct found_shard *shard = parse->shard;
	char text[BASE_ERR_TEXT_MAX + 64];
	if (parse->summing)
		shard->n_files--; /* its content is not complete */
	if (shard->n_files == 0)
		return rc;
	snprintf(text, sizeof(text), "%s; all from there on", parse->err->code ? parse->err->text : base_err_str(rc));
	*parse->err = (struct base_err){ 0 };
	return found_shard_leave_out(shard, text);
}

static int parse_tar(struct found_shard *shard, struct mkshard_reader *reader, bool keep_going, struct base_err *err)
{
	struct base_err reading = { 0 };
	struct parse parse = { .shard = shard, .keep_going = keep_going, .err = err, .need = SHARD_TAR_BLOCK };
	uint64_t at;
	parse.header = malloc(HEADER_BUFFER);
	int rc = parse.header ? shard_tar_parser_new(&parse.parser) : -ENOMEM;
	if (rc == 0)
		rc = read_record(shard, reader, &reading);
	if (rc == 0)
		rc = mkshard_reader_stream(reader, consume, &parse, &reading, &at);
	if (rc == 0)
		rc = finish(&parse);
	if (rc && !err->code && reading.code)
		*err = reading;
	/* An object that was replaced in the middle has no begin to keep. */
	if (rc && rc != -ENOMEM && keep_going && !mkshard_reader_failed(reader, NULL))
		rc = keep_what_came_before(&parse, rc);
	shard_tar_parser_free(parse.parser);
	free(parse.header);
	return rc;
}

/* Bare */

static int take_entry(struct found_shard *shard, const struct shard_bare_entry *entry, struct base_err *err)
{
	size_t len = strlen(entry->path) + 1, group = entry->group ? strlen(entry->group) + 1 : 0;
	uint64_t blocks = entry->block_sums ? (entry->length + SHARD_BLOCK - 1) / SHARD_BLOCK : 0;
	if (grow(&shard->files, &shard->capacity, shard->n_files + 1, sizeof(*shard->files)) ||
	        grow(&shard->paths, &shard->paths_size, shard->paths_used + len + group, 1) ||
	        grow(&shard->blocks, &shard->blocks_size, shard->n_blocks + blocks + 1, sizeof(*shard->blocks)))
		return base_err_set(err, -ENOMEM, "out of memory");
	shard->files[shard->n_files++] = (struct found_file){
		.path = shard->paths_used,
		.offset = entry->offset,
		.length = entry->length,
		.xxh3 = entry->xxh3,
		.first_block = shard->n_blocks,
		.mtime_s = entry->mtime_s,
		.mode = entry->mode,
		.directory = entry->directory,
		.common = entry->common,
		.group = group ? shard->paths_used + len : FOUND_NO_GROUP,
	};
	memcpy(shard->paths + shard->paths_used, entry->path, len);
	if (group)
		memcpy(shard->paths + shard->paths_used + len, entry->group, group);
	if (blocks)
		memcpy(shard->blocks + shard->n_blocks, entry->block_sums, blocks * sizeof(uint64_t));
	shard->n_blocks += blocks;
	shard->paths_used += len + group;
	return 0;
}

/* Reads the footer, which may be larger than what a reader gives at once. */
static int read_footer(
        struct mkshard_reader *reader, uint8_t *footer, const struct shard_bare_info *info, struct base_err *err)
{
	int rc = 0;
	mkshard_reader_ahead(reader, info->footer_offset, info->footer_offset + info->footer_bytes);
	for (uint64_t at = 0; at < info->footer_bytes && rc == 0; at += FOOTER_PIECE) {
		uint64_t left = info->footer_bytes - at;
		rc = mkshard_reader_read(reader, footer + at, (uint32_t)(left < FOOTER_PIECE ? left : FOOTER_PIECE),
		        info->footer_offset + at, err);
	}
	return rc;
}

static int parse_bare(
        struct found_shard *shard, struct mkshard_reader *reader, const uint8_t *trailer, struct base_err *err)
{
	struct shard_bare_info info;
	struct shard_bare_reader entries;
	struct shard_bare_entry entry;
	shard->container = SHARD_BARE;
	int rc = shard_bare_trailer(trailer, shard->size_bytes, err, &info);
	if (rc)
		return rc;
	/* The parser of the trailer has checked that the footer is not larger than the shard. */
	cleanup_free uint8_t *footer = malloc(info.footer_bytes + 1);
	if (!footer)
		return base_err_set(err, -ENOMEM, "out of memory");
	rc = read_footer(reader, footer, &info, err);
	if (rc)
		return rc;
	rc = shard_bare_reader_init(&entries, &info, footer, info.footer_bytes, err);
	while (rc == 0 && (rc = shard_bare_reader_next(&entries, err, &entry)) > 0)
		rc = take_entry(shard, &entry, err);
	shard->dataset = info.dataset;
	progress_add(shard->size_bytes, shard->n_files);
	return rc;
}

/* Reads the trailer.  Returns 1 if the shard is a bare one, 0 if it is not, or -errno of an object.  A file whose end
 * cannot be read is read as a tar, of which what comes before can be kept. */
static int read_trailer(const struct found_shard *shard, struct mkshard_reader *reader,
        uint8_t trailer[static SHARD_BARE_TRAILER], struct base_err *err)
{
	if (shard->size_bytes < SHARD_BARE_TRAILER)
		return 0;
	int rc = mkshard_reader_read(reader, trailer, SHARD_BARE_TRAILER, shard->size_bytes - SHARD_BARE_TRAILER, err);
	if (rc < 0 && !mkshard_reader_is_remote(reader)) {
		*err = (struct base_err){ 0 };
		return 0;
	}
	return rc < 0 ? rc : !memcmp(trailer, SHARD_BARE_MAGIC, strlen(SHARD_BARE_MAGIC));
}

static int parse_opened(struct found_shard *shard, struct mkshard_reader *reader, bool keep_going, struct base_err *err)
{
	uint8_t trailer[SHARD_BARE_TRAILER];
	shard->container = SHARD_TAR;
	shard->size_bytes = mkshard_reader_size(reader);
	shard->mtime_ns = mkshard_reader_mtime_ns(reader);
	if (shard->size_bytes == 0)
		return base_err_set(err, -EUCLEAN, "an empty file, not a shard");
	int rc = read_trailer(shard, reader, trailer, err);
	if (rc < 0)
		return rc;
	return rc ? parse_bare(shard, reader, trailer, err) : parse_tar(shard, reader, keep_going, err);
}

static int parse_shard(struct found_shard *shard, struct remote_store *store, uint64_t timeout_s, bool keep_going,
        struct base_err *err)
{
	struct mkshard_reader *reader;
	int rc = mkshard_reader_open_new(
	        store, store ? shard->stored : shard->file, shard->size_bytes, timeout_s, err, &reader);
	if (rc < 0)
		return rc;
	rc = parse_opened(shard, reader, keep_going, err);
	if (rc == 0 && mkshard_reader_changed(reader))
		rc = base_err_set(err, -ESTALE, "changed while it was read");
	if (rc && !err->code)
		base_err_set(err, rc, "%s", base_err_str(rc));
	mkshard_reader_close(reader);
	return rc;
}

int found_shard_parse(struct found_shard *shard, struct remote_store *store, uint64_t timeout_s, bool keep_going,
        struct base_err *err)
{
	int rc = parse_shard(shard, store, timeout_s, keep_going, err);
	bool of_store = store && mkshard_reader_is_of_store(rc);
	if (rc && rc != -ENOMEM && keep_going && !of_store) {
		shard->absent = true;
		shard->n_files = 0;
		rc = found_shard_leave_out(shard, err->text);
		*err = (struct base_err){ 0 };
	}
	return rc ? base_err_prefix(err, "'%s'", base_quoted(shard->file)) : 0;
}
