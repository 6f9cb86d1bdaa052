/* SPDX-License-Identifier: Apache-2.0 */
/* Writes and parses the footer of a bare shard; shard/bare.h first. */
#include "shard/bare.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "shard/build.h"
#include "shard/build_private.h"

struct shard_bare_writer {
	struct build_array footer; /* 8 bytes for padding, then the records */
	uint32_t n_entries;        /* records */
	uint64_t content_end;      /* of the last file */
	bool spent;                /* shard_bare_writer_finish was called */
};

static size_t align8(size_t n)
{
	return (n + 7) & ~(size_t)7;
}

int shard_bare_writer_new(struct shard_bare_writer **ret_writer)
{
	struct shard_bare_writer *w = calloc(1, sizeof *w);
	if (!w)
		return -ENOMEM;
	/* Room for the padding before the footer: at most 7 bytes.  8 are reserved, so that records stay 8-aligned. */
	uint64_t *front = build_array_add(&w->footer, sizeof *front);
	if (!front) {
		free(w);
		return -ENOMEM;
	}
	*front = 0;
	*ret_writer = w;
	return 0;
}

void shard_bare_writer_free(struct shard_bare_writer *w)
{
	if (!w)
		return;
	build_array_free(&w->footer);
	free(w);
}

/* Returns the bytes of block sums at the end of a record. */
static size_t sums_bytes(uint64_t length)
{
	return length > SHARD_BLOCK ? shard_units(length, SHARD_BLOCK) * sizeof(uint64_t) : 0;
}

int shard_bare_writer_add(struct shard_bare_writer *w, const struct shard_bare_entry *entry)
{
	size_t path_len = strlen(entry->path), group_len = entry->group ? strlen(entry->group) : 0;
	if (w->spent || w->n_entries == UINT32_MAX || path_len > SHARD_PATH_MAX || group_len > SHARD_BARE_GROUP_MAX)
		return -EINVAL;
	if (!entry->directory && (entry->length > SHARD_FILE_BYTES_MAX || entry->offset > SHARD_FILE_BYTES_MAX ||
	                                 entry->offset < w->content_end))
		return -EINVAL;

	uint64_t length = entry->directory ? 0 : entry->length;
	size_t text = align8(path_len + 1 + (entry->group ? group_len + 1 : 0)), sums = sums_bytes(length);
	if ((sums && !entry->block_sums) || sums > UINT32_MAX - sizeof(struct shard_bare_rec) - text)
		return -EINVAL;
	size_t bytes = sizeof(struct shard_bare_rec) + text + sums;
	uint8_t *p = build_array_add(&w->footer, bytes);
	if (!p)
		return -ENOMEM;

	struct shard_bare_rec rec = {
		.record_bytes = (uint32_t)bytes,
		.mode_flags = (entry->mode & 07777) | (entry->common ? SHARD_BARE_COMMON : 0) |
		              (entry->directory ? SHARD_BARE_DIRECTORY : 0) | (entry->group ? SHARD_BARE_GROUPED : 0),
		.offset = entry->directory ? 0 : entry->offset,
		.length = length,
		.xxh3 = entry->directory ? 0 : entry->xxh3,
		.mtime_s = entry->mtime_s,
		.path_len = (uint16_t)path_len,
		.group_len = (uint16_t)group_len,
	};
	memset(p, 0, sizeof rec + text);
	memcpy(p, &rec, sizeof rec);
	memcpy(p + sizeof rec, entry->path, path_len);
	if (entry->group)
		memcpy(p + sizeof rec + path_len + 1, entry->group, group_len);
	if (sums)
		memcpy(p + sizeof rec + text, entry->block_sums, sums);
	w->n_entries++;
	if (!entry->directory)
		w->content_end = entry->offset + length;
	return 0;
}

int shard_bare_writer_finish(struct shard_bare_writer *w, uint64_t payload_end,
        const struct shard_bare_dataset *dataset, const uint8_t **ret_bytes, size_t *ret_len)
{
	if (w->spent || payload_end < w->content_end || payload_end > SHARD_FILE_BYTES_MAX)
		return -EINVAL;
	w->spent = true;

	size_t padding = -payload_end & 7, footer_bytes = w->footer.used - 8;
	struct shard_bare_trailer_rec t = {
		.magic = { 'D', 'D', 'P', 'F', 'S', 'B', 'A', 'R' },
		.version = SHARD_BARE_VERSION,
		.compat = dataset->shuffled ? SHARD_COMPAT_SHUFFLED : 0,
		.footer_offset = payload_end + padding,
		.footer_bytes = footer_bytes,
		.footer_sum = XXH3_64bits(w->footer.data + 8, footer_bytes),
		.n_entries = w->n_entries,
		.n_shards = dataset->n_shards,
		.pack_seed = dataset->shuffled ? dataset->pack_seed : 0,
	};
	t.trailer_sum = XXH3_64bits(&t, offsetof(struct shard_bare_trailer_rec, trailer_sum));
	uint8_t *p = build_array_add(&w->footer, sizeof t);
	if (!p)
		return -ENOMEM;
	memcpy(p, &t, sizeof t);
	*ret_bytes = w->footer.data + 8 - padding;
	*ret_len = w->footer.used - 8 + padding;
	return 0;
}

int shard_bare_trailer(
        const uint8_t *trailer, uint64_t shard_bytes, struct base_err *err, struct shard_bare_info *ret_info)
{
	struct shard_bare_trailer_rec t;
	memcpy(&t, trailer, sizeof t);
	if (shard_bytes < sizeof t || memcmp(t.magic, SHARD_BARE_MAGIC, sizeof t.magic) != 0)
		return base_err_set(
		        err, -EUCLEAN, "no bare shard, or a truncated one (its last 64 bytes are no trailer)");
	if (XXH3_64bits(&t, offsetof(struct shard_bare_trailer_rec, trailer_sum)) != t.trailer_sum)
		return base_err_set(
		        err, -EBADMSG, "the checksum of the trailer does not match: the shard's end is damaged");
	if (t.version != SHARD_BARE_VERSION)
		return base_err_set(err, -EPROTONOSUPPORT,
		        "bare format version %u; this ddpfs reads version %d: use a newer one", t.version,
		        SHARD_BARE_VERSION);
	uint64_t trailer_at = shard_bytes - sizeof t;
	if (shard_bytes > SHARD_FILE_BYTES_MAX + 1 || t.footer_offset > trailer_at || t.footer_offset % 8 ||
	        t.footer_bytes != trailer_at - t.footer_offset || t.footer_bytes % 8 ||
	        t.n_entries > t.footer_bytes / sizeof(struct shard_bare_rec))
		return base_err_set(err, -EUCLEAN,
		        "the trailer contradicts itself: truncated in the middle, or not written by mkshard");
	*ret_info = (struct shard_bare_info){
		.footer_offset = t.footer_offset,
		.footer_bytes = t.footer_bytes,
		.footer_sum = t.footer_sum,
		.n_entries = t.n_entries,
		.dataset = {
			.n_shards = t.n_shards,
			.shuffled = t.compat & SHARD_COMPAT_SHUFFLED,
			.pack_seed = t.pack_seed,
		},
	};
	return 0;
}

int shard_bare_reader_init(struct shard_bare_reader *reader, const struct shard_bare_info *info, const uint8_t *bytes,
        size_t len, struct base_err *err)
{
	if ((uintptr_t)bytes % 8 || len != info->footer_bytes)
		return base_err_set(err, -EINVAL, "the footer was read to the wrong place");
	if (XXH3_64bits(bytes, len) != info->footer_sum)
		return base_err_set(err, -EBADMSG, "the checksum of the footer at byte %llu does not match",
		        (unsigned long long)info->footer_offset);
	*reader = (struct shard_bare_reader){
		.bytes = bytes, .len = len, .left = info->n_entries, .payload_end = info->footer_offset
	};
	return 0;
}

static int bad_record(const struct shard_bare_reader *reader, struct base_err *err)
{
	return base_err_set(err, -EUCLEAN, "an impossible record at byte %llu of the shard",
	        (unsigned long long)(reader->payload_end + reader->at));
}

/* Checks the numbers and lengths of a record against each other and against the bytes that are left. */
static bool record_ok(const struct shard_bare_reader *reader, const struct shard_bare_rec *rec)
{
	bool grouped = rec->mode_flags & SHARD_BARE_GROUPED, directory = rec->mode_flags & SHARD_BARE_DIRECTORY;
	uint64_t known = 07777 | SHARD_BARE_COMMON | SHARD_BARE_DIRECTORY | SHARD_BARE_GROUPED;
	if ((rec->mode_flags & ~known) || rec->reserved || rec->path_len > SHARD_PATH_MAX ||
	        rec->group_len > SHARD_BARE_GROUP_MAX || (!grouped && rec->group_len) ||
	        rec->length > SHARD_FILE_BYTES_MAX || rec->offset > SHARD_FILE_BYTES_MAX)
		return false;
	size_t text = align8((size_t)rec->path_len + 1 + (grouped ? (size_t)rec->group_len + 1 : 0));
	if (rec->record_bytes > reader->len - reader->at ||
	        rec->record_bytes != sizeof *rec + text + sums_bytes(rec->length))
		return false;
	if (directory)
		return rec->offset == 0 && rec->length == 0 && rec->xxh3 == 0;
	return rec->offset >= reader->content_end && rec->offset + rec->length <= reader->payload_end;
}

int shard_bare_reader_next(struct shard_bare_reader *reader, struct base_err *err, struct shard_bare_entry *ret_entry)
{
	if (reader->left == 0)
		return reader->at == reader->len ? 0 : bad_record(reader, err);

	struct shard_bare_rec rec;
	if (reader->len - reader->at < sizeof rec)
		return bad_record(reader, err);
	const uint8_t *p = reader->bytes + reader->at;
	memcpy(&rec, p, sizeof rec);
	if (!record_ok(reader, &rec))
		return bad_record(reader, err);

	const char *path = (const char *)p + sizeof rec, *group = path + rec.path_len + 1;
	bool grouped = rec.mode_flags & SHARD_BARE_GROUPED, directory = rec.mode_flags & SHARD_BARE_DIRECTORY;
	if (strnlen(path, (size_t)rec.path_len + 1) != rec.path_len ||
	        (grouped && strnlen(group, (size_t)rec.group_len + 1) != rec.group_len))
		return bad_record(reader, err);
	/* the record of the root has an empty path */
	if (rec.path_len > 0 || !directory) {
		int r = shard_path_check(path, err);
		if (r < 0)
			return err ? base_err_prefix(err, "record at byte %llu of the shard",
			                     (unsigned long long)(reader->payload_end + reader->at))
			           : r;
	}

	size_t sums = sums_bytes(rec.length);
	*ret_entry = (struct shard_bare_entry){
		.path = path,
		.group = grouped ? group : NULL,
		.block_sums = sums ? (const uint64_t *)(const void *)(p + rec.record_bytes - sums) : NULL,
		.offset = rec.offset,
		.length = rec.length,
		.xxh3 = rec.xxh3,
		.mtime_s = rec.mtime_s,
		.mode = rec.mode_flags & 07777,
		.common = rec.mode_flags & SHARD_BARE_COMMON,
		.directory = directory,
	};
	reader->at += rec.record_bytes;
	reader->left--;
	if (!directory)
		reader->content_end = rec.offset + rec.length;
	return 1;
}
