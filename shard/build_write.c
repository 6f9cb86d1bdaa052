/* SPDX-License-Identifier: Apache-2.0 */
/* Writes an index: the sections in order through one buffer that also computes their sums, then the header;
 * shard/build_private.h first. */
#include "shard/build_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "shard/base/cleanup.h"
#include "shard/base/io.h"

enum { BUFFER_BYTES = 16 * SHARD_SUM_BLOCK };

/* The file that is written, from its beginning to its end. */
struct writer {
	int fd;
	uint8_t *buf;            /* BUFFER_BYTES */
	size_t used;             /* bytes in buf; buf[0] belongs to offset `flushed` of the file */
	uint64_t flushed;        /* bytes of the file that are written */
	int rc;                  /* the first error; after it all calls do nothing */
	struct build_array sums; /* of the 64 KiB pieces written since the last section of sums */
	struct shard_section_rec sections[SHARD_SEC_COUNT]; /* of the sections written so far */
};

static uint64_t writer_at(const struct writer *w)
{
	return w->flushed + w->used;
}

/* Writes the buffer and stores the sums of its 64 KiB pieces.  Only the last piece before section_sums may be
 * shorter. */
static void writer_flush(struct writer *w)
{
	if (w->rc < 0 || w->used == 0)
		return;
	for (size_t at = 0; at < w->used; at += SHARD_SUM_BLOCK) {
		size_t len = w->used - at < SHARD_SUM_BLOCK ? w->used - at : SHARD_SUM_BLOCK;
		uint64_t *sum = build_array_add(&w->sums, sizeof *sum);
		if (!sum) {
			w->rc = -ENOMEM;
			return;
		}
		*sum = XXH3_64bits(w->buf + at, len);
	}
	w->rc = base_pwrite_full(w->fd, w->buf, w->used, w->flushed);
	w->flushed += w->used;
	w->used = 0;
}

static void writer_put(struct writer *w, const void *data, size_t len)
{
	const uint8_t *p = data;
	while (len > 0 && w->rc == 0) {
		size_t room = BUFFER_BYTES - w->used;
		size_t n = len < room ? len : room;
		memcpy(w->buf + w->used, p, n);
		w->used += n;
		p += n;
		len -= n;
		if (w->used == BUFFER_BYTES)
			writer_flush(w);
	}
}

static void section_begin(struct writer *w, enum shard_section section)
{
	static const uint8_t zeros[SHARD_PAGE];
	writer_put(w, zeros, -writer_at(w) & (SHARD_PAGE - 1));
	w->sections[section].offset = writer_at(w);
}

static void section_end(struct writer *w, enum shard_section section)
{
	w->sections[section].length_bytes = writer_at(w) - w->sections[section].offset;
}

static void section_put(struct writer *w, enum shard_section section, const void *data, uint64_t bytes)
{
	section_begin(w, section);
	if (data)
		writer_put(w, data, bytes);
	section_end(w, section);
}

/* Writes a section of sums over the bytes written since the last such section, including the padding before this one.
 * *ret_sum is the sum of this section's bytes. */
static void section_sums(struct writer *w, enum shard_section section, uint64_t *ret_sum)
{
	section_begin(w, section);
	writer_flush(w);
	struct build_array sums = w->sums;
	w->sums = (struct build_array){ 0 };
	writer_put(w, sums.data, sums.used);
	section_end(w, section);
	*ret_sum = XXH3_64bits(sums.data, sums.used);
	build_array_free(&sums);
}

/* The hash of the identity's bytes; FORMAT.md, section 4, has their layout. */
struct identity {
	XXH3_state_t *state;
};

static void identity_head(
        struct identity *id, const struct shard_builder *b, const struct build_plan *plan, bool shuffled)
{
	uint32_t counts[4] = { b->n_files, plan->n_samples, b->n_dirs, shuffled ? SHARD_COMPAT_SHUFFLED : 0 };
	XXH3_128bits_reset(id->state);
	XXH3_128bits_update(id->state, "ddpfs identity 1", 16);
	XXH3_128bits_update(id->state, counts, sizeof counts);
	for (uint32_t d = 0; d < b->n_dirs; d++) {
		uint8_t text[4 + 1 + SHARD_NAME_MAX];
		memcpy(text, &plan->dirs[d].parent, 4);
		text[4] = plan->dirs[d].name_len;
		if (text[4])
			memcpy(text + 5, b->names.data + shard_dir_name(&plan->dirs[d]), text[4]);
		XXH3_128bits_update(id->state, text, 5U + text[4]);
	}
}

static void identity_file(struct identity *id, const struct shard_file_rec *rec, const uint8_t *name)
{
	uint8_t text[8 + 8 + 4 + 4 + 4 + 1 + SHARD_NAME_MAX];
	uint64_t length = shard_rec_length(rec);
	memcpy(text, &length, 8);
	memcpy(text + 8, &rec->xxh3, 8);
	memcpy(text + 16, &rec->dir, 4);
	memcpy(text + 20, &rec->sample, 4);
	memcpy(text + 24, &rec->slot, 4);
	text[28] = (uint8_t)shard_rec_name_len(rec);
	memcpy(text + 29, name, text[28]);
	XXH3_128bits_update(id->state, text, 29U + text[28]);
}

/* Writes FILES with the final ids and offsets in NAMES, and adds the files to the identity. */
static uint64_t write_files(
        struct writer *w, const struct shard_builder *b, const struct build_plan *plan, struct identity *identity)
{
	uint64_t name_off = 0;
	section_begin(w, SHARD_SEC_FILES);
	for (uint32_t id = 0; id < b->n_files && w->rc == 0; id++) {
		struct shard_file_rec rec = build_files(b)[build_file_number(plan, id)];
		const uint8_t *name = b->names.data + shard_rec_name(&rec);
		rec.slot = rec.sample == SHARD_NONE ? SHARD_NONE
		           : plan->sample_slot      ? plan->sample_slot[rec.sample]
		                                    : rec.sample;
		rec.name_lo = (uint32_t)name_off;
		rec.length_name = (rec.length_name & ~(UINT64_C(0xff) << 56)) | name_off >> 32 << 56;
		identity_file(identity, &rec, name);
		writer_put(w, &rec, sizeof rec);
		name_off += shard_rec_name_len(&rec);
	}
	section_end(w, SHARD_SEC_FILES);
	return name_off;
}

static void write_dirs(
        struct writer *w, const struct shard_builder *b, const struct build_plan *plan, uint64_t *name_off)
{
	section_begin(w, SHARD_SEC_DIRS);
	for (uint32_t d = 0; d < b->n_dirs && w->rc == 0; d++) {
		struct shard_dir_rec rec = plan->dirs[d];
		rec.name_lo = (uint32_t)*name_off;
		rec.name_hi = (uint8_t)(*name_off >> 32);
		writer_put(w, &rec, sizeof rec);
		*name_off += rec.name_len;
	}
	section_end(w, SHARD_SEC_DIRS);
}

static void write_shards(struct writer *w, const struct shard_builder *b, uint64_t *name_off)
{
	section_begin(w, SHARD_SEC_SHARDS);
	for (uint32_t i = 0; i < b->n_shards && w->rc == 0; i++) {
		struct shard_shard_rec rec = build_shards(b)[i];
		rec.name_off = *name_off;
		writer_put(w, &rec, sizeof rec);
		*name_off += rec.name_len;
	}
	section_end(w, SHARD_SEC_SHARDS);
}

static void write_names(struct writer *w, const struct shard_builder *b, const struct build_plan *plan)
{
	section_begin(w, SHARD_SEC_NAMES);
	for (uint32_t id = 0; id < b->n_files && w->rc == 0; id++) {
		const struct shard_file_rec *rec = &build_files(b)[build_file_number(plan, id)];
		writer_put(w, b->names.data + shard_rec_name(rec), shard_rec_name_len(rec));
	}
	for (uint32_t d = 1; d < b->n_dirs; d++)
		writer_put(w, b->names.data + shard_dir_name(&plan->dirs[d]), plan->dirs[d].name_len);
	for (uint32_t i = 0; i < b->n_shards; i++)
		writer_put(w, b->names.data + build_shards(b)[i].name_off, build_shards(b)[i].name_len);
	section_end(w, SHARD_SEC_NAMES);
}

/* A hash table to be filled in the order of ids, so that equal input gives equal bytes. */
struct hash_table {
	uint32_t *ids; /* SHARD_NONE = empty */
	uint8_t *tags; /* 0 = empty */
	uint64_t buckets;
};

static void table_insert(struct hash_table *t, uint32_t id, uint32_t parent, const uint8_t *name, size_t len)
{
	uint64_t h = XXH3_64bits_withSeed(name, len, parent);
	uint64_t at = shard_hash_bucket(h, t->buckets);
	while (t->tags[at])
		at = at + 1 == t->buckets ? 0 : at + 1;
	t->tags[at] = shard_hash_tag(h);
	t->ids[at] = id;
}

static void write_table(struct writer *w, const struct shard_builder *b, const struct build_plan *plan, bool of_files)
{
	uint32_t n = of_files ? b->n_files : b->n_dirs;
	uint64_t buckets = shard_hash_buckets(n);
	cleanup_free uint32_t *ids = malloc(buckets * sizeof *ids);
	cleanup_free uint8_t *tags = calloc(buckets, 1);
	if (!ids || !tags) {
		w->rc = w->rc < 0 ? w->rc : -ENOMEM;
		return;
	}
	memset(ids, 0xff, buckets * sizeof *ids);

	struct hash_table table = { ids, tags, buckets };
	for (uint32_t id = of_files ? 0 : 1; id < n; id++) {
		if (of_files) {
			const struct shard_file_rec *rec = &build_files(b)[build_file_number(plan, id)];
			table_insert(
			        &table, id, rec->dir, b->names.data + shard_rec_name(rec), shard_rec_name_len(rec));
		} else {
			const struct shard_dir_rec *rec = &plan->dirs[id];
			table_insert(&table, id, rec->parent, b->names.data + shard_dir_name(rec), rec->name_len);
		}
	}
	section_put(w, of_files ? SHARD_SEC_FILE_TABLE : SHARD_SEC_DIR_TABLE, ids, buckets * sizeof *ids);
	section_put(w, of_files ? SHARD_SEC_FILE_TAGS : SHARD_SEC_DIR_TAGS, tags, buckets);
}

static void write_samples(struct writer *w, const struct build_plan *plan)
{
	uint64_t n = plan->n_samples;
	section_put(w, SHARD_SEC_SAMPLE_FILE, plan->sample_file, n * sizeof(uint32_t));
	section_put(w, SHARD_SEC_SAMPLE_FIRST, plan->sample_first, (n + 1) * sizeof(uint32_t));
	section_put(w, SHARD_SEC_MEMBERS, plan->members, (uint64_t)plan->n_members * sizeof(uint32_t));
	section_put(w, SHARD_SEC_SLOTS, plan->slots, n * sizeof(uint32_t));
}

/* Writes BIG and BLOCK_SUMS, both in the order of file ids. */
static void write_bigs(struct writer *w, const struct shard_builder *b, const struct build_plan *plan)
{
	const uint64_t *firsts = (const uint64_t *)(const void *)b->bigs.data;
	bool any = b->bigs.used > 0;
	uint64_t next = 0;

	section_begin(w, SHARD_SEC_BIG);
	for (uint32_t id = 0; any && id < b->n_files && w->rc == 0; id++) {
		const struct shard_file_rec *rec = &build_files(b)[build_file_number(plan, id)];
		if (rec->slot == SHARD_NONE)
			continue;
		struct shard_big_rec big = { .file = id, .first_sum = next };
		writer_put(w, &big, sizeof big);
		next += shard_units(shard_rec_length(rec), SHARD_BLOCK);
	}
	section_end(w, SHARD_SEC_BIG);

	section_begin(w, SHARD_SEC_BLOCK_SUMS);
	for (uint32_t id = 0; any && id < b->n_files && w->rc == 0; id++) {
		const struct shard_file_rec *rec = &build_files(b)[build_file_number(plan, id)];
		if (rec->slot == SHARD_NONE)
			continue;
		const uint64_t *sums = (const uint64_t *)(const void *)b->sums.data + firsts[rec->slot];
		writer_put(w, sums, shard_units(shard_rec_length(rec), SHARD_BLOCK) * sizeof *sums);
	}
	section_end(w, SHARD_SEC_BLOCK_SUMS);
}

static void write_header(struct writer *w, const struct shard_builder *b, const struct build_plan *plan,
        const struct identity *identity, uint64_t l1_sum, bool shuffled, uint64_t pack_seed)
{
	struct shard_header h = {
		.version = SHARD_VERSION,
		.header_bytes = SHARD_PAGE,
		.compat = shuffled ? SHARD_COMPAT_SHUFFLED : 0,
		.incompat = plan->grouped ? SHARD_INCOMPAT_GROUPED : 0,
		.file_bytes = writer_at(w),
		.content_bytes = b->content_bytes,
		.n_files = b->n_files,
		.n_samples = plan->n_samples,
		.n_dirs = b->n_dirs,
		.n_shards = b->n_shards,
		.file_buckets = shard_hash_buckets(b->n_files),
		.dir_buckets = shard_hash_buckets(b->n_dirs),
		.pack_seed = shuffled ? pack_seed : 0,
		.l1_sum = l1_sum,
	};
	memcpy(h.magic, SHARD_MAGIC, sizeof h.magic);
	XXH128_canonical_t canonical;
	XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(identity->state));
	memcpy(h.identity, canonical.digest, sizeof h.identity);
	memcpy(h.sections, w->sections, sizeof h.sections);
	h.header_sum = XXH3_64bits(&h, offsetof(struct shard_header, header_sum));
	w->rc = base_pwrite_full(w->fd, &h, sizeof h, 0);
}

static int write_all(
        int fd, const struct shard_builder *b, const struct build_plan *plan, bool shuffled, uint64_t pack_seed)
{
	cleanup_free uint8_t *buf = malloc(BUFFER_BYTES);
	struct identity identity = { XXH3_createState() };
	if (!buf || !identity.state) {
		XXH3_freeState(identity.state);
		return -ENOMEM;
	}
	struct writer w = { .fd = fd, .buf = buf, .flushed = SHARD_PAGE };

	identity_head(&identity, b, plan, shuffled);
	uint64_t name_off = write_files(&w, b, plan, &identity);
	write_dirs(&w, b, plan, &name_off);
	write_shards(&w, b, &name_off);
	write_names(&w, b, plan);
	write_table(&w, b, plan, true);
	write_table(&w, b, plan, false);
	write_samples(&w, plan);
	write_bigs(&w, b, plan);
	if (w.rc == 0 && name_off >= UINT64_C(1) << 40)
		w.rc = -E2BIG;

	uint64_t sum;
	section_sums(&w, SHARD_SEC_L0, &sum);
	section_sums(&w, SHARD_SEC_L1, &sum);
	writer_flush(&w);
	build_array_free(&w.sums);
	if (w.rc == 0)
		write_header(&w, b, plan, &identity, sum, shuffled, pack_seed);
	XXH3_freeState(identity.state);
	return w.rc;
}

int build_write(struct shard_builder *b, const struct build_plan *plan, const char *path, bool shuffled,
        uint64_t pack_seed, struct base_err *err)
{
	char quoted[BUILD_QUOTE];
	base_err_quote(path, quoted, sizeof quoted);

	cleanup_free char *tmp = NULL;
	cleanup_close int fd = -1;
	int r = base_temp_open(path, 0666, &tmp, &fd);
	if (r < 0)
		return base_err_set(err, r, "'%s': cannot create the index: %s", quoted, base_err_str(r));

	r = write_all(fd, b, plan, shuffled, pack_seed);
	if (r == 0 && base_io->fsync(fd) < 0)
		r = -errno;
	if (r == 0 && base_io->rename(tmp, path) < 0)
		r = -errno;
	if (r < 0)
		unlink(tmp);
	else
		r = base_fsync_parent(path);
	if (r < 0)
		return base_err_set(err, r, "'%s': cannot write the index: %s", quoted, base_err_str(r));
	return 0;
}
