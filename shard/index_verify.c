/* SPDX-License-Identifier: Apache-2.0 */
/* Verifies a whole index: every sum, then every rule of FORMAT.md, in one pass over each section; shard/index_private.h
 * first. */
#include "shard/index_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <xxhash.h>

/* Elements after which mapped pages are released, so that a large index does not fill the memory of the process. */
enum { RELEASE_EVERY = 1 << 20 };

/* A verification that is under way. */
struct verify {
	const struct shard_index *index;
	struct base_err *err;
};

/* Makes the message for a broken rule at element i of a section. */
static int wrong(const struct verify *v, const char *section, uint64_t i, const char *what)
{
	return base_err_set(
	        v->err, -EUCLEAN, "'%s': %s %llu: %s", v->index->path, section, (unsigned long long)i, what);
}

/* Makes the message for the error r of an accessor at element i of a section. */
static int failed(const struct verify *v, const char *section, uint64_t i, int r)
{
	return base_err_set(
	        v->err, r, "'%s': %s %llu: %s", v->index->path, section, (unsigned long long)i, base_err_str(r));
}

static void release_sometimes(const struct verify *v, uint64_t i)
{
	if (i % RELEASE_EVERY == RELEASE_EVERY - 1)
		shard_index_release_pages(v->index);
}

int index_verify_sums(const struct shard_index *index, struct base_err *err)
{
	uint64_t parts = index_section(index, SHARD_SEC_L1)->length_bytes / 8;
	uint64_t blocks = index_section(index, SHARD_SEC_L0)->length_bytes / 8;
	for (uint64_t part = 0; part < parts; part++) {
		int r = index_check_l0(index, part);
		if (r == -ENOMEM)
			return base_err_set(err, r, "'%s': out of memory", index->path);
		if (r < 0)
			return base_err_set(err, -EBADMSG, "'%s': the sums at byte %llu do not match their own sum",
			        index->path,
			        (unsigned long long)(index_section(index, SHARD_SEC_L0)->offset +
			                             part * SHARD_SUM_BLOCK));
	}
	for (uint64_t block = 0; block < blocks; block++) {
		if (index_check_block(index, block) < 0)
			return base_err_set(err, -EBADMSG, "'%s': checksum mismatch in the 64 KiB at byte %llu",
			        index->path, (unsigned long long)(SHARD_PAGE + block * SHARD_SUM_BLOCK));
		if (block % 256 == 255) /* 16 MiB */
			shard_index_release_pages(index);
	}
	return 0;
}

/* Checks that the gaps between sections are zero. */
static int verify_gaps(const struct verify *v)
{
	const struct shard_section_rec *s = v->index->header.sections;
	for (int i = 0; i + 1 < SHARD_SEC_COUNT; i++)
		for (uint64_t at = s[i].offset + s[i].length_bytes; at < s[i + 1].offset; at++)
			if (v->index->map[at])
				return wrong(v, "byte", at, "not zero between two sections");
	return 0;
}

static int compare_names(const char *a, uint32_t a_len, const char *b, uint32_t b_len)
{
	int c = memcmp(a, b, a_len < b_len ? a_len : b_len);
	return c ? c : (a_len > b_len) - (a_len < b_len);
}

/* Checks one directory: its children are sorted by name and share out its ids and files without gaps. */
static int verify_dir(const struct verify *v, uint32_t id, uint64_t *name_at)
{
	const struct shard_index *index = v->index;
	struct shard_dir dir, child, last = { 0 };
	struct shard_dir_rec rec;
	int r = shard_index_dir(index, id, &dir);
	if (r == 0)
		r = index_dir_rec(index, id, &rec);
	if (r < 0)
		return failed(v, "directory", id, r);
	if (shard_dir_name(&rec) != *name_at)
		return wrong(v, "directory", id, "its name does not follow the one before");
	*name_at += dir.name_len;

	uint32_t n = 0, file = dir.first_file + dir.n_files;
	for (uint32_t c = id + 1; c < dir.end_dir; c = child.end_dir) {
		r = shard_index_dir(index, c, &child);
		if (r < 0)
			return failed(v, "directory", c, r);
		if (child.parent != id || child.end_dir > dir.end_dir || child.first_file != file)
			return wrong(v, "directory", c, "does not fit into its parent");
		if (n > 0 && compare_names(last.name, last.name_len, child.name, child.name_len) >= 0)
			return wrong(v, "directory", c, "stands before its predecessor by name");
		file = child.end_file;
		last = child;
		n++;
	}
	if (file != dir.end_file || n != dir.n_dirs)
		return wrong(v, "directory", id, "its children do not fill it");
	return 0;
}

static int verify_dirs(const struct verify *v, uint64_t *name_at)
{
	struct shard_dir root;
	int r = shard_index_dir(v->index, 0, &root);
	if (r < 0)
		return failed(v, "directory", 0, r);
	if (root.first_file != 0 || root.end_file != v->index->info.n_files || root.end_dir != v->index->info.n_dirs)
		return wrong(v, "directory", 0, "does not hold all files and directories");
	for (uint32_t id = 0; id < v->index->info.n_dirs && r == 0; id++) {
		r = verify_dir(v, id, name_at);
		release_sometimes(v, id);
	}
	return r;
}

/* Running totals over the files, in the order of ids. */
struct files_state {
	uint32_t dir; /* of the previous file; all directories before it are complete */
	struct shard_dir dir_info;
	const char *last_name;
	uint32_t last_len;
	uint64_t name_at;
	uint64_t content_bytes;
	uint32_t n_common;
	uint32_t next_sample; /* id of the next sample to begin */
	uint64_t next_sum;
	uint64_t big;
};

static int verify_file_place(const struct verify *v, uint32_t id, const struct shard_file *f, struct files_state *s)
{
	if (id == 0 || f->dir != s->dir) {
		if (id > 0 && f->dir < s->dir)
			return wrong(v, "file", id, "its directory stands before that of the file before");
		int r = shard_index_dir(v->index, f->dir, &s->dir_info);
		if (r < 0)
			return failed(v, "directory", f->dir, r);
		s->dir = f->dir;
		s->last_len = 0;
	}
	if (id < s->dir_info.first_file || id - s->dir_info.first_file >= s->dir_info.n_files)
		return wrong(v, "file", id, "lies outside its directory's range");
	if (s->last_len && compare_names(s->last_name, s->last_len, f->name, f->name_len) >= 0)
		return wrong(v, "file", id, "stands before its predecessor by name");
	s->last_name = f->name;
	s->last_len = f->name_len;

	uint32_t found;
	if (shard_index_find_dir(v->index, f->dir, f->name, f->name_len, &found) == 0)
		return wrong(v, "file", id, "a directory has the same name");
	return 0;
}

static int verify_file_sample(const struct verify *v, uint32_t id, const struct shard_file *f, struct files_state *s)
{
	if (f->common) {
		s->n_common++;
		return 0;
	}
	uint32_t first, slot_sample;
	int r = shard_index_sample_first(v->index, f->sample, &first);
	if (r == 0)
		r = shard_index_slot_sample(v->index, f->slot, &slot_sample);
	if (r < 0)
		return failed(v, "file", id, r);
	if (slot_sample != f->sample)
		return wrong(v, "file", id, "its slot belongs to another sample");
	if (first == id && f->sample != s->next_sample++)
		return wrong(v, "file", id, "samples are not numbered by their first files");
	if (first == id)
		return 0;
	if (first > id || !v->index->info.grouped)
		return wrong(v, "file", id, "is not the first of its sample");
	return 0;
}

static int verify_file_blocks(const struct verify *v, uint32_t id, const struct shard_file *f, struct files_state *s)
{
	uint64_t offset, sum;
	uint32_t length, blocks = shard_blocks(f->length);
	if (blocks > 0) { /* this also checks that the file is inside its shard */
		int r = shard_index_block(v->index, id, blocks - 1, &offset, &length, &sum);
		if (r < 0)
			return failed(v, "file", id, r);
	}
	if (f->length <= SHARD_BLOCK)
		return 0;

	struct shard_big_rec rec;
	int r = index_load(v->index, SHARD_SEC_BIG, s->big, sizeof rec, &rec);
	if (r < 0)
		return failed(v, "big file", s->big, r);
	if (rec.file != id || rec.first_sum != s->next_sum)
		return wrong(v, "big file", s->big, "is not in the order of ids");
	s->big++;
	s->next_sum += blocks;
	return 0;
}

static int verify_file(const struct verify *v, uint32_t id, struct files_state *s)
{
	struct shard_file f;
	struct shard_file_rec rec;
	uint32_t found = SHARD_NONE;
	int r = shard_index_file(v->index, id, &f);
	if (r == 0)
		r = index_load(v->index, SHARD_SEC_FILES, id, sizeof rec, &rec);
	if (r == 0)
		r = shard_index_find_file(v->index, f.dir, f.name, f.name_len, &found);
	if (r < 0)
		return failed(v, "file", id, r);
	if (found != id)
		return wrong(v, "file", id, "its name leads to another file");
	if (shard_rec_name(&rec) != s->name_at)
		return wrong(v, "file", id, "its name does not follow the one before");
	s->name_at += f.name_len;
	if (__builtin_add_overflow(s->content_bytes, f.length, &s->content_bytes))
		return wrong(v, "file", id, "the lengths overflow");
	r = verify_file_place(v, id, &f, s);
	if (r == 0)
		r = verify_file_sample(v, id, &f, s);
	if (r == 0)
		r = verify_file_blocks(v, id, &f, s);
	return r;
}

static int verify_files(const struct verify *v, uint64_t *ret_name_at)
{
	struct files_state s = { 0 };
	for (uint32_t id = 0; id < v->index->info.n_files; id++) {
		int r = verify_file(v, id, &s);
		if (r < 0)
			return r;
		release_sometimes(v, id);
	}
	const struct shard_info *info = &v->index->info;
	if (s.content_bytes != info->content_bytes)
		return wrong(v, "header", 0, "the lengths of the files do not add up to content_bytes");
	if (s.next_sample != info->n_samples || (!info->grouped && info->n_files - s.n_common != info->n_samples) ||
	        (info->grouped && info->n_files - s.n_common != v->index->n_members))
		return wrong(v, "header", 0, "the number of samples does not fit the files");
	if (s.big != v->index->n_big || s.next_sum != v->index->n_block_sums)
		return wrong(v, "header", 0, "block sums without a file");
	*ret_name_at = s.name_at;
	return 0;
}

/* Checks that MEMBERS and SLOTS are bijections: verify_files checked the counts, and here each element must map
 * back. */
static int verify_samples(const struct verify *v)
{
	const struct shard_index *index = v->index;
	uint32_t files[SHARD_SAMPLE_FILES_MAX], n, slot, back;
	uint64_t members = 0;
	bool several = false;
	for (uint32_t sample = 0; sample < index->info.n_samples; sample++) {
		int r = shard_index_sample_files(index, sample, files, SHARD_SAMPLE_FILES_MAX, &n);
		if (r == 0)
			r = shard_index_sample_slot(index, sample, &slot);
		if (r == 0)
			r = shard_index_slot_sample(index, slot, &back);
		if (r < 0)
			return failed(v, "sample", sample, r);
		if (back != sample)
			return wrong(v, "sample", sample, "its slot belongs to another one");
		for (uint32_t i = 0; i < n; i++) {
			struct shard_file f;
			r = shard_index_file(index, files[i], &f);
			if (r < 0)
				return failed(v, "file", files[i], r);
			if (f.sample != sample || f.slot != slot)
				return wrong(v, "sample", sample, "one of its files belongs to another one");
		}
		members += n;
		several = several || n > 1;
		release_sometimes(v, sample);
	}
	if (index->info.grouped && (members != index->n_members || !several))
		return wrong(v, "header", 0, "the groups do not fit the members");
	if (index->info.grouped && index->info.n_samples > 0) {
		uint32_t first;
		int r = index_load(index, SHARD_SEC_SAMPLE_FIRST, 0, sizeof first, &first);
		if (r < 0)
			return failed(v, "sample", 0, r);
		if (first != 0)
			return wrong(v, "sample", 0, "its members do not begin at 0");
	}
	return 0;
}

/* Finds the place of a sample's first-stored file.  Slots are in the order of these places. */
static int sample_place(const struct verify *v, uint32_t sample, uint32_t *ret_shard, uint64_t *ret_offset)
{
	uint32_t files[SHARD_SAMPLE_FILES_MAX], n;
	int r = shard_index_sample_files(v->index, sample, files, SHARD_SAMPLE_FILES_MAX, &n);
	for (uint32_t i = 0; i < n && r == 0; i++) {
		struct shard_file f;
		r = shard_index_file(v->index, files[i], &f);
		if (r == 0 && (i == 0 || f.shard < *ret_shard || (f.shard == *ret_shard && f.offset < *ret_offset))) {
			*ret_shard = f.shard;
			*ret_offset = f.offset;
		}
	}
	return r;
}

static int verify_slots(const struct verify *v)
{
	uint32_t last_shard = 0, last_sample = 0;
	uint64_t last_offset = 0;
	for (uint32_t slot = 0; slot < v->index->info.n_samples; slot++) {
		uint32_t sample, shard = 0;
		uint64_t offset = 0;
		int r = shard_index_slot_sample(v->index, slot, &sample);
		if (r == 0)
			r = sample_place(v, sample, &shard, &offset);
		if (r < 0)
			return failed(v, "slot", slot, r);
		if (slot > 0 &&
		        (shard < last_shard ||
		                (shard == last_shard &&
		                        (offset < last_offset || (offset == last_offset && sample < last_sample)))))
			return wrong(v, "slot", slot, "is stored before its predecessor");
		last_shard = shard;
		last_offset = offset;
		last_sample = sample;
		release_sometimes(v, slot);
	}
	return 0;
}

static int verify_shards(const struct verify *v, uint64_t name_at)
{
	const struct shard_index *index = v->index;
	uint64_t files = 0;
	for (uint32_t i = 0; i < index->info.n_shards; i++) {
		struct shard_shard shard;
		struct shard_shard_rec rec;
		int r = shard_index_shard(index, i, &shard);
		if (r == 0)
			r = index_load(index, SHARD_SEC_SHARDS, i, sizeof rec, &rec);
		if (r < 0)
			return failed(v, "shard", i, r);
		if (rec.name_off != name_at)
			return wrong(v, "shard", i, "its name does not follow the one before");
		name_at += rec.name_len;
		files += rec.n_files;
	}
	if (files != index->info.n_files)
		return wrong(v, "header", 0, "the shards' counts of files do not add up");
	if (name_at != index_section(index, SHARD_SEC_NAMES)->length_bytes)
		return wrong(v, "header", 0, "names that nothing uses");
	return 0;
}

/* Checks the number of entries in a table.  Every file and directory is found in it (checked elsewhere), so if the
 * number is right there are no other entries. */
static int verify_table(
        const struct verify *v, enum shard_section ids, enum shard_section tags, uint64_t buckets, uint32_t want)
{
	uint64_t used = 0;
	for (uint64_t i = 0; i < buckets; i++) {
		uint8_t tag;
		uint32_t id;
		int r = index_load(v->index, tags, i, 1, &tag);
		if (r == 0)
			r = index_load(v->index, ids, i, sizeof id, &id);
		if (r < 0)
			return failed(v, "bucket", i, r);
		if ((tag == 0) != (id == SHARD_NONE))
			return wrong(v, "bucket", i, "tag and id disagree");
		used += tag != 0;
	}
	return used == want ? 0 : wrong(v, "header", 0, "a name table has entries that lead nowhere");
}

static int verify_tables(const struct verify *v)
{
	const struct shard_index *index = v->index;
	for (uint32_t id = 1; id < index->info.n_dirs; id++) {
		struct shard_dir dir;
		uint32_t found = SHARD_NONE;
		int r = shard_index_dir(index, id, &dir);
		if (r == 0)
			r = shard_index_find_dir(index, dir.parent, dir.name, dir.name_len, &found);
		if (r < 0)
			return failed(v, "directory", id, r);
		if (found != id)
			return wrong(v, "directory", id, "its name leads to another one");
		release_sometimes(v, id);
	}
	int r = verify_table(
	        v, SHARD_SEC_FILE_TABLE, SHARD_SEC_FILE_TAGS, index->header.file_buckets, index->info.n_files);
	if (r == 0)
		r = verify_table(
		        v, SHARD_SEC_DIR_TABLE, SHARD_SEC_DIR_TAGS, index->header.dir_buckets, index->info.n_dirs - 1);
	return r;
}

/* Computes the identity from the records; FORMAT.md, section 4, has the layout. */
static int verify_identity(const struct verify *v)
{
	const struct shard_index *index = v->index;
	const struct shard_info *info = &index->info;
	XXH3_state_t *state = XXH3_createState();
	if (!state)
		return base_err_set(v->err, -ENOMEM, "'%s': out of memory", index->path);

	uint32_t counts[4] = { info->n_files, info->n_samples, info->n_dirs,
		info->shuffled ? SHARD_COMPAT_SHUFFLED : 0 };
	int r = 0;
	XXH3_128bits_reset(state);
	XXH3_128bits_update(state, "ddpfs identity 1", 16);
	XXH3_128bits_update(state, counts, sizeof counts);
	for (uint32_t id = 0; id < info->n_dirs && r == 0; id++) {
		struct shard_dir d;
		r = shard_index_dir(index, id, &d);
		if (r < 0)
			break;
		uint8_t len = (uint8_t)d.name_len;
		XXH3_128bits_update(state, &d.parent, sizeof d.parent);
		XXH3_128bits_update(state, &len, sizeof len);
		XXH3_128bits_update(state, d.name, d.name_len);
	}
	for (uint32_t id = 0; id < info->n_files && r == 0; id++) {
		struct shard_file f;
		r = shard_index_file(index, id, &f);
		if (r < 0)
			break;
		uint64_t numbers[2] = { f.length, f.xxh3 };
		uint32_t ids[3] = { f.dir, f.sample, f.slot };
		uint8_t len = (uint8_t)f.name_len;
		XXH3_128bits_update(state, numbers, sizeof numbers);
		XXH3_128bits_update(state, ids, sizeof ids);
		XXH3_128bits_update(state, &len, sizeof len);
		XXH3_128bits_update(state, f.name, f.name_len);
		release_sometimes(v, id);
	}
	XXH128_canonical_t canonical;
	XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
	XXH3_freeState(state);
	if (r < 0)
		return base_err_set(v->err, r, "'%s': %s", index->path, base_err_str(r));
	if (memcmp(canonical.digest, info->identity, sizeof info->identity) != 0)
		return wrong(v, "header", 0, "the identity does not fit the contents");
	return 0;
}

int shard_index_verify(const struct shard_index *index, struct base_err *err)
{
	struct verify v = { index, err };
	uint64_t name_at = 0;
	/* Most of this reads from front to back, so let the kernel read ahead. */
	if (index->mapping)
		madvise(index->mapping, index->mapping_bytes, MADV_NORMAL);

	int r = index_verify_sums(index, err);
	if (r == 0)
		r = verify_gaps(&v);
	if (r == 0)
		r = verify_files(&v, &name_at);
	if (r == 0)
		r = verify_dirs(&v, &name_at);
	if (r == 0)
		r = verify_shards(&v, name_at);
	if (r == 0)
		r = verify_samples(&v);
	if (r == 0)
		r = verify_slots(&v);
	if (r == 0)
		r = verify_tables(&v);
	if (r == 0)
		r = verify_identity(&v);

	if (index->mapping)
		madvise(index->mapping, index->mapping_bytes, MADV_RANDOM);
	return r;
}
