/* SPDX-License-Identifier: Apache-2.0 */
/* The index: what is read is what was built, whatever the tree; nothing in its bytes can crash a reader. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "shard/index.h"
#include "shard/index_private.h"
#include "tests/shard/exercise.h"
#include "tests/shard/reseal.h"
#include "tests/shard/tree.h"

static struct shard_index *open_ok(const char *path)
{
	struct base_err err = { 0 };
	struct shard_index *index;
	if (shard_index_open(path, &err, &index) < 0)
		fail_msg("%s", err.text);
	return index;
}

static void check_file(const struct shard_index *index, const struct tree *t, uint32_t id)
{
	const struct tree_file *want = &t->files[t->by_id[id]];
	struct shard_file f;
	assert_int_equal(shard_index_file(index, id, &f), 0);
	const char *name = strrchr(want->path, '/');
	name = name ? name + 1 : want->path;
	assert_int_equal(f.name_len, strlen(name));
	assert_memory_equal(f.name, name, f.name_len);
	assert_int_equal(f.offset, want->offset);
	assert_int_equal(f.length, want->length);
	assert_int_equal(f.xxh3, want->xxh3);
	assert_int_equal(f.mtime_s, want->mtime_s);
	assert_int_equal(f.mode, want->mode & 01777);
	assert_int_equal(f.shard, want->shard);
	assert_int_equal(f.common, want->common);
	assert_int_equal(f.sample, want->sample);
	assert_int_equal(f.slot, want->slot);

	char path[SHARD_PATH_MAX + 1];
	assert_int_equal(shard_index_file_path(index, id, path, sizeof path), strlen(want->path));
	assert_string_equal(path, want->path);
	assert_int_equal(shard_index_file_path(index, id, path, strlen(want->path)), -ERANGE);
	enum shard_kind kind;
	uint32_t found;
	assert_int_equal(shard_index_find_path(index, want->path, &kind, &found), 0);
	assert_int_equal(kind, SHARD_KIND_FILE);
	assert_int_equal(found, id);
	assert_int_equal(shard_index_find_file(index, f.dir, f.name, f.name_len, &found), 0);
	assert_int_equal(found, id);
	char other[SHARD_NAME_MAX + 2];
	memcpy(other, name, f.name_len + 1);
	other[f.name_len] = '#';
	assert_int_equal(shard_index_find_file(index, f.dir, other, f.name_len + 1, &found), -ENOENT);
	assert_int_equal(shard_index_find_dir(index, f.dir, f.name, f.name_len, &found), -ENOENT);
}

static void check_blocks(const struct shard_index *index, const struct tree *t, uint32_t id)
{
	const struct tree_file *want = &t->files[t->by_id[id]];
	uint64_t n = (want->length + SHARD_BLOCK - 1) / SHARD_BLOCK, offset, sum, total = 0;
	uint32_t length;
	struct shard_file f;
	assert_int_equal(shard_index_file(index, id, &f), 0);
	assert_int_equal(shard_blocks(f.length), n);
	for (uint32_t block = 0; block < n; block++) {
		assert_int_equal(shard_index_block(index, id, block, &offset, &length, &sum), 0);
		assert_int_equal(offset, want->offset + (uint64_t)block * SHARD_BLOCK);
		assert_int_equal(sum, n == 1 ? want->xxh3 : want->sums[block]);
		assert_true(length > 0 && length <= SHARD_BLOCK);
		total += length;
	}
	assert_int_equal(total, want->length);
	assert_int_equal(shard_index_block(index, id, (uint32_t)n, &offset, &length, &sum), -EINVAL);
}

static bool below(const char *path, const char *dir)
{
	size_t n = strlen(dir);
	return n == 0 || (strncmp(path, dir, n) == 0 && path[n] == '/');
}

static void check_dir(const struct shard_index *index, const struct tree *t, uint32_t id)
{
	const struct tree_dir *want = &t->dirs[id];
	struct shard_dir d;
	char path[SHARD_PATH_MAX + 1];
	assert_int_equal(shard_index_dir(index, id, &d), 0);
	assert_int_equal(shard_index_dir_path(index, id, path, sizeof path), strlen(want->path));
	assert_string_equal(path, want->path);
	assert_int_equal(d.mode, want->mode);
	assert_int_equal(d.mtime_s, want->mtime_s);
	enum shard_kind kind;
	uint32_t found;
	assert_int_equal(shard_index_find_path(index, want->path, &kind, &found), 0);
	assert_int_equal(kind, SHARD_KIND_DIR);
	assert_int_equal(found, id);

	uint32_t files = 0, own = 0, dirs = 0, children = 0, samples = 0, first, end;
	for (uint32_t f = 0; f < t->n_files; f++) {
		bool in = below(t->files[f].path, want->path);
		files += in;
		own += in && !strchr(t->files[f].path + strlen(want->path) + (*want->path != 0), '/');
		if (in) {
			assert_true(t->files[f].id >= d.first_file && t->files[f].id < d.end_file);
		}
		/* samples whose first file lies here */
		bool is_first = t->files[f].sample != SHARD_NONE;
		for (uint32_t g = 0; g < t->n_files && is_first; g++)
			is_first = t->files[g].sample != t->files[f].sample || t->files[g].id >= t->files[f].id;
		samples += in && is_first;
	}
	for (uint32_t c = 1; c < t->n_dirs; c++) {
		bool in = c != id && below(t->dirs[c].path, want->path);
		dirs += in;
		children += in && !strchr(t->dirs[c].path + strlen(want->path) + (*want->path != 0), '/');
	}
	assert_int_equal(d.end_file - d.first_file, files);
	assert_int_equal(d.n_files, own);
	assert_int_equal(d.end_dir - id - 1, dirs);
	assert_int_equal(d.n_dirs, children);
	assert_int_equal(shard_index_dir_samples(index, id, &first, &end), 0);
	assert_int_equal(end - first, samples);
}

static void check_samples(const struct shard_index *index, const struct tree *t)
{
	for (uint32_t s = 0; s < t->n_samples; s++) {
		uint32_t files[SHARD_SAMPLE_FILES_MAX], n, slot, back, first;
		assert_int_equal(shard_index_sample_files(index, s, files, SHARD_SAMPLE_FILES_MAX, &n), 0);
		uint32_t want_n = 0;
		for (uint32_t id = 0; id < t->n_files; id++)
			if (t->files[t->by_id[id]].sample == s) {
				assert_true(want_n < n);
				assert_int_equal(files[want_n++], id);
			}
		assert_int_equal(n, want_n);
		assert_int_equal(shard_index_sample_first(index, s, &first), 0);
		assert_int_equal(first, files[0]);
		assert_int_equal(shard_index_sample_slot(index, s, &slot), 0);
		assert_int_equal(slot, t->files[t->by_id[first]].slot);
		assert_int_equal(shard_index_slot_sample(index, slot, &back), 0);
		assert_int_equal(back, s);
		if (n > 1) {
			uint32_t got = 77;
			assert_int_equal(shard_index_sample_files(index, s, files, n - 1, &got), -ERANGE);
			assert_int_equal(got, 77);
		}
	}
}

static void check_all(const struct shard_index *index, const struct tree *t)
{
	const struct shard_info *info = shard_index_info(index);
	assert_int_equal(info->n_files, t->n_files);
	assert_int_equal(info->n_dirs, t->n_dirs);
	assert_int_equal(info->n_samples, t->n_samples);
	assert_int_equal(info->n_shards, t->n_shards);
	assert_int_equal(info->grouped, t->grouped);
	uint64_t total = 0;
	for (uint32_t id = 0; id < t->n_files; id++) {
		check_file(index, t, id);
		check_blocks(index, t, id);
		total += t->files[id].length;
	}
	assert_int_equal(info->content_bytes, total);
	for (uint32_t id = 0; id < t->n_dirs; id++)
		check_dir(index, t, id);
	check_samples(index, t);
	for (uint32_t i = 0; i < t->n_shards; i++) {
		struct shard_shard s;
		char name[32];
		uint32_t files = 0;
		snprintf(name, sizeof name, "shard-%06u.tar", i);
		for (uint32_t f = 0; f < t->n_files; f++)
			files += t->files[f].shard == i;
		assert_int_equal(shard_index_shard(index, i, &s), 0);
		assert_int_equal(s.path_len, strlen(name));
		assert_memory_equal(s.path, name, s.path_len);
		assert_int_equal(s.size_bytes, t->shard_bytes[i]);
		assert_int_equal(s.n_files, files);
		assert_int_equal(s.mtime_ns, i * 1000);
	}
	struct base_err err = { 0 };
	if (shard_index_verify(index, &err) < 0)
		fail_msg("%s", err.text);
}

static void random_trees_read_back_as_the_model_says(void **state)
{
	(void)state;
	char *dir = tree_scratch(), path[4200];
	snprintf(path, sizeof path, "%s/index.ddpfs", dir);
	for (uint64_t seed = 0; seed < 120; seed++) {
		struct tree t;
		struct tree_options o = { .seed = seed,
			.n_files = seed < 20 ? (uint32_t)seed / 2 : 200,
			.groups = seed & 1,
			.commons = seed & 2,
			.big = seed & 4 };
		tree_random(&o, &t);
		tree_build(&t, NULL, seed & 8, path);
		struct shard_index *index = open_ok(seed & 16 ? path : dir);
		check_all(index, &t);
		shard_index_release_pages(index);
		check_all(index, &t);
		char *real = realpath(dir, NULL);
		assert_string_equal(shard_index_dataset(index), real);
		free(real);
		shard_index_close(index);
		tree_done(&t);
	}
	tree_scratch_done(dir);
}

static void ids_past_the_end_are_refused(void **state)
{
	(void)state;
	struct tree t;
	char *dir = tree_scratch(), path[4200], name[SHARD_PATH_MAX + 1];
	snprintf(path, sizeof path, "%s/index.ddpfs", dir);
	tree_random(&(struct tree_options){ .seed = 5, .n_files = 50, .groups = true }, &t);
	tree_build(&t, NULL, false, path);
	struct shard_index *index = open_ok(dir);
	const uint32_t wrong[] = { 0, 1, 1000, SHARD_NONE - 1, SHARD_NONE };
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		uint32_t file = wrong[i] > SHARD_NONE - 2 ? wrong[i] : t.n_files + wrong[i], n;
		uint32_t d = wrong[i] > SHARD_NONE - 2 ? wrong[i] : t.n_dirs + wrong[i];
		uint32_t s = wrong[i] > SHARD_NONE - 2 ? wrong[i] : t.n_samples + wrong[i];
		uint64_t offset, sum;
		struct shard_file rec;
		struct shard_dir drec;
		struct shard_shard srec;
		assert_int_equal(shard_index_file(index, file, &rec), -EINVAL);
		assert_int_equal(shard_index_file_path(index, file, name, sizeof name), -EINVAL);
		assert_int_equal(shard_index_block(index, file, 0, &offset, &n, &sum), -EINVAL);
		assert_int_equal(shard_index_dir(index, d, &drec), -EINVAL);
		assert_int_equal(shard_index_dir_path(index, d, name, sizeof name), -EINVAL);
		assert_int_equal(shard_index_dir_samples(index, d, &n, &n), -EINVAL);
		assert_int_equal(shard_index_find_file(index, d, "x", 1, &n), -EINVAL);
		assert_int_equal(shard_index_shard(index, t.n_shards + wrong[i] % 1000, &srec), -EINVAL);
		assert_int_equal(shard_index_sample_first(index, s, &n), -EINVAL);
		assert_int_equal(shard_index_sample_slot(index, s, &n), -EINVAL);
		assert_int_equal(shard_index_slot_sample(index, s, &n), -EINVAL);
	}
	shard_index_close(index);
	tree_done(&t);
	tree_scratch_done(dir);
}

static void paths_are_looked_up_as_people_write_them(void **state)
{
	(void)state;
	char *dir = tree_scratch(), path[4200];
	struct shard_builder *b;
	snprintf(path, sizeof path, "%s/index.ddpfs", dir);
	assert_int_equal(shard_builder_new(&b), 0);
	assert_int_equal(shard_builder_add_shard(b, "/elsewhere/s.tar", SHARD_TAR, 100, 0, NULL), 0);
	assert_int_equal(
	        shard_builder_add_file(b, &(struct shard_build_file){ .path = "a/b/c", .length = 1 }, NULL), 0);
	assert_int_equal(shard_builder_add_file(b, &(struct shard_build_file){ .path = "a/f", .length = 1 }, NULL), 0);
	assert_int_equal(shard_builder_finish(b, path, false, 0, NULL), 0);
	shard_builder_free(b);

	struct shard_index *index = open_ok(dir);
	static const struct {
		const char *path;
		int rc;
		enum shard_kind kind;
		uint32_t id;
	} cases[] = {
		{ "", 0, SHARD_KIND_DIR, 0 },
		{ ".", 0, SHARD_KIND_DIR, 0 },
		{ "/", 0, SHARD_KIND_DIR, 0 },
		{ "a", 0, SHARD_KIND_DIR, 1 },
		{ "./a//b/", 0, SHARD_KIND_DIR, 2 },
		{ "/a/b/c", 0, SHARD_KIND_FILE, 1 },
		{ "a/./f", 0, SHARD_KIND_FILE, 0 },
		{ "a/f/", 0, SHARD_KIND_FILE, 0 },
		{ "a/f/x", -ENOTDIR, 0, 0 },
		{ "a/..", -ENOENT, 0, 0 },
		{ "..", -ENOENT, 0, 0 },
		{ "b", -ENOENT, 0, 0 },
		{ "a/b/c/d/e", -ENOTDIR, 0, 0 },
		{ "x/f", -ENOENT, 0, 0 },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		enum shard_kind kind = SHARD_KIND_FILE;
		uint32_t id = 99;
		assert_int_equal(shard_index_find_path(index, cases[i].path, &kind, &id), cases[i].rc);
		if (cases[i].rc == 0) {
			assert_int_equal(kind, cases[i].kind);
			assert_int_equal(id, cases[i].id);
		} else {
			assert_int_equal(id, 99);
		}
	}
	shard_index_close(index);
	tree_scratch_done(dir);
}

/* ------------------------------------------------------------------------------------------------ bad input */

static void expect_refusal(const char *dataset, int code, const char *says)
{
	struct base_err err = { 0 };
	struct shard_index *index = NULL;
	assert_int_equal(shard_index_open(dataset, &err, &index), code);
	assert_null(index);
	if (!strstr(err.text, says))
		fail_msg("'%s' is not in: %s", says, err.text);
}

static void what_is_no_index_is_refused_with_a_reason(void **state)
{
	(void)state;
	char *dir = tree_scratch(), path[4200];
	snprintf(path, sizeof path, "%s/nothing/here", dir);
	expect_refusal(path, -ENOENT, "mkshard pack");
	expect_refusal(dir, -ENOENT, "no index.ddpfs in it");
	snprintf(path, sizeof path, "%s/index.ddpfs", dir);
	FILE *f = fopen(path, "w");
	fclose(f);
	expect_refusal(dir, -EUCLEAN, "empty or truncated");
	f = fopen(path, "w");
	for (int i = 0; i < 5000; i++)
		fputc('x', f);
	fclose(f);
	expect_refusal(dir, -EUCLEAN, "not a ddpfs index");
	expect_refusal("/dev/null", -EUCLEAN, "not a regular file");
	tree_scratch_done(dir);
}

/* A small index with everything in it, in memory. */
struct specimen {
	char *dir;
	char path[4200];
	struct tree tree;
	uint8_t *bytes;
	size_t len;
};

static void specimen_make(struct specimen *s, uint64_t seed, uint32_t n_files)
{
	s->dir = tree_scratch();
	snprintf(s->path, sizeof s->path, "%s/index.ddpfs", s->dir);
	tree_random(
	        &(struct tree_options){
	                .seed = seed, .n_files = n_files, .exact = true, .groups = true, .commons = true, .big = true },
	        &s->tree);
	tree_build(&s->tree, NULL, true, s->path);
	s->bytes = tree_read(s->path, &s->len);
}

static void specimen_done(struct specimen *s)
{
	free(s->bytes);
	tree_done(&s->tree);
	tree_scratch_done(s->dir);
}

static int attach(const uint8_t *bytes, size_t len, struct base_err *err, struct shard_index **ret)
{
	struct shard_index *index = calloc(1, sizeof *index);
	index->path = strdup("specimen");
	int r = index_attach(index, bytes, len, err);
	if (r < 0) {
		shard_index_close(index);
		return r;
	}
	*ret = index;
	return 0;
}

static int open_and_verify(const uint8_t *bytes, size_t len)
{
	struct shard_index *index;
	int r = attach(bytes, len, NULL, &index);
	if (r == 0) {
		r = shard_index_verify(index, NULL);
		shard_index_close(index);
	}
	return r;
}

static void a_newer_format_says_so(void **state)
{
	(void)state;
	struct specimen s;
	struct base_err err = { 0 };
	struct shard_index *index;
	specimen_make(&s, 3, 20);
	struct shard_header *h = (struct shard_header *)(void *)s.bytes;

	h->version = 2;
	reseal_index(s.bytes, s.len);
	assert_int_equal(attach(s.bytes, s.len, &err, &index), -EPROTONOSUPPORT);
	assert_non_null(strstr(err.text, "version 2"));
	h->version = 1;
	h->incompat |= 1 << 7;
	reseal_index(s.bytes, s.len);
	assert_int_equal(attach(s.bytes, s.len, &err, &index), -EPROTONOSUPPORT);
	h->incompat &= ~(uint64_t)(1 << 7);
	h->compat |= 1 << 7; /* unknown but harmless */
	reseal_index(s.bytes, s.len);
	assert_int_equal(open_and_verify(s.bytes, s.len), 0);
	specimen_done(&s);
}

/* Every bit of the file is under a sum that is checked: there is no byte that could change unseen. */
static void every_flipped_bit_is_found(void **state)
{
	(void)state;
	struct specimen s;
	specimen_make(&s, 9, 12);
	assert_int_equal(open_and_verify(s.bytes, s.len), 0);
	uint64_t flips = 0;
	for (size_t at = 0; at < s.len; at++)
		for (unsigned bit = 0; bit < 8; bit++) {
			s.bytes[at] ^= (uint8_t)(1U << bit);
			int r = open_and_verify(s.bytes, s.len);
			if (r >= 0)
				fail_msg("bit %u of byte %zu flipped unseen", bit, at);
			s.bytes[at] ^= (uint8_t)(1U << bit);
			flips++;
		}
	assert_int_equal(open_and_verify(s.bytes, s.len), 0);
	print_message("%llu flips of an index of %zu bytes, all found\n", (unsigned long long)flips, s.len);
	specimen_done(&s);
}

/* An accessor that touches a damaged block says so and fills nothing; those that do not touch it still work. */
static void damage_is_met_where_it_is(void **state)
{
	(void)state;
	struct specimen s;
	struct shard_index *index = NULL;
	specimen_make(&s, 21, 4000); /* several blocks */
	const struct shard_header *h = (const struct shard_header *)(const void *)s.bytes;
	assert_int_equal(h->n_files, 4000);
	s.bytes[h->sections[SHARD_SEC_FILES].offset + 48 * 1400] ^= 1;
	assert_int_equal(attach(s.bytes, s.len, NULL, &index), 0);
	struct shard_file f = { .length = 4711 };
	assert_int_equal(shard_index_file(index, 1400, &f), -EBADMSG);
	assert_int_equal(f.length, 4711);
	assert_int_equal(shard_index_file(index, 0, &f), 0);
	struct base_err err = { 0 };
	assert_int_equal(shard_index_verify(index, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "64 KiB at byte"));
	shard_index_close(index);
	specimen_done(&s);
}

static void every_truncation_is_found_at_open(void **state)
{
	(void)state;
	struct specimen s;
	struct shard_index *index;
	specimen_make(&s, 9, 12);
	for (size_t len = 0; len < s.len; len++)
		if (attach(s.bytes, len, NULL, &index) == 0)
			fail_msg("cut to %zu of %zu bytes and opened", len, s.len);
	/* through files, at the interesting lengths */
	for (size_t len = 0; len < s.len; len += len < 4096 ? 512 : 4096) {
		assert_int_equal(truncate(s.path, (off_t)s.len), 0);
		FILE *f = fopen(s.path, "w");
		assert_int_equal(fwrite(s.bytes, 1, len, f), len);
		fclose(f);
		expect_refusal(s.dir, -EUCLEAN, "truncated");
	}
	uint8_t *longer = calloc(1, s.len + 1);
	memcpy(longer, s.bytes, s.len);
	assert_int_equal(attach(longer, s.len + 1, NULL, &index), -EUCLEAN);
	free(longer);
	specimen_done(&s);
}

static void a_small_file_cannot_claim_billions(void **state)
{
	(void)state;
	struct specimen s;
	struct shard_index *index;
	specimen_make(&s, 9, 12);
	struct shard_header h, *header = (struct shard_header *)(void *)s.bytes;
	memcpy(&h, s.bytes, sizeof h);

	/* the file as it is, with larger and larger claims, sealed */
	for (int what = 0; what < 6; what++) {
		memcpy(header, &h, sizeof h);
		*(what == 0         ? &header->n_files
		        : what == 1 ? &header->n_samples
		        : what == 2 ? &header->n_dirs
		                    : &header->n_shards) = 4000000000U;
		if (what == 4)
			header->file_buckets = UINT64_MAX;
		if (what == 5)
			header->sections[SHARD_SEC_L0].length_bytes = UINT64_MAX - 7;
		header->header_sum = XXH3_64bits(header, offsetof(struct shard_header, header_sum));
		assert_int_equal(attach(s.bytes, s.len, NULL, &index), -EUCLEAN);
	}
	/* sections that would fit the claim, far behind the end of a file of one page */
	memcpy(header, &h, sizeof h);
	header->n_files = 1000000000;
	header->file_bytes = UINT64_C(1) << 40;
	for (int i = 0; i < SHARD_SEC_COUNT; i++)
		header->sections[i].offset = UINT64_C(1) << 38;
	header->header_sum = XXH3_64bits(header, offsetof(struct shard_header, header_sum));
	assert_int_equal(attach(s.bytes, SHARD_PAGE, NULL, &index), -EUCLEAN);
	assert_int_equal(attach(s.bytes, 1024, NULL, &index), -EUCLEAN);
	specimen_done(&s);
}

/* Contents changed on purpose and sealed again: every accessor survives, and verify finds what is not as it must be. */
static void hostile_contents_cannot_crash_a_reader(void **state)
{
	(void)state;
	uint64_t rng = 4242, found = 0, rounds = 4000;
	struct specimen s;
	specimen_make(&s, 33, 40);
	uint8_t *mutant = malloc(s.len);
	for (uint64_t round = 0; round < rounds; round++) {
		memcpy(mutant, s.bytes, s.len);
		/* from the first record to the end of the sums, mostly where something stands */
		for (unsigned i = 1 + tree_rand(&rng) % 4; i > 0; i--) {
			size_t at = tree_rand(&rng) % s.len;
			for (int tries = 0; tries < 50 && s.bytes[at] == 0; tries++)
				at = tree_rand(&rng) % s.len;
			static const uint8_t interesting[] = { 0, 1, 0x7f, 0x80, 0xff };
			mutant[at] = tree_rand(&rng) % 2 ? (uint8_t)tree_rand(&rng) : interesting[tree_rand(&rng) % 5];
		}
		reseal_index(mutant, s.len);
		struct shard_index *index;
		if (attach(mutant, s.len, NULL, &index) < 0) {
			found++;
			continue;
		}
		exercise_index(index);
		found += shard_index_verify(index, NULL) < 0;
		shard_index_close(index);
	}
	print_message("%llu of %llu mutants refused by open or verify\n", (unsigned long long)found,
	        (unsigned long long)rounds);
	assert_true(found > rounds / 2);
	free(mutant);
	specimen_done(&s);
}

/* ------------------------------------------------------------------------------------------------ threads */

struct reader {
	const struct shard_index *index;
	uint64_t seed;
	uint64_t wrong;
};

static void *read_randomly(void *arg)
{
	struct reader *r = arg;
	const struct shard_info *info = shard_index_info(r->index);
	for (int i = 0; i < 3000; i++) {
		uint32_t file = (uint32_t)(tree_rand(&r->seed) % info->n_files), found = SHARD_NONE;
		char path[SHARD_PATH_MAX + 1];
		enum shard_kind kind;
		if (shard_index_file_path(r->index, file, path, sizeof path) < 0 ||
		        shard_index_find_path(r->index, path, &kind, &found) < 0 || found != file)
			r->wrong++;
		if (i % 500 == 0)
			shard_index_release_pages(r->index);
	}
	return NULL;
}

static void many_threads_read_at_once(void **state)
{
	(void)state;
	struct specimen s;
	specimen_make(&s, 21, 4000);
	struct shard_index *index = open_ok(s.dir);
	pthread_t threads[6];
	struct reader readers[6];
	for (unsigned i = 0; i < 6; i++) {
		readers[i] = (struct reader){ .index = index, .seed = i };
		assert_int_equal(pthread_create(&threads[i], NULL, read_randomly, &readers[i]), 0);
	}
	for (unsigned i = 0; i < 6; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(readers[i].wrong, 0);
	}
	shard_index_close(index);
	specimen_done(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_trees_read_back_as_the_model_says),
		cmocka_unit_test(ids_past_the_end_are_refused),
		cmocka_unit_test(paths_are_looked_up_as_people_write_them),
		cmocka_unit_test(what_is_no_index_is_refused_with_a_reason),
		cmocka_unit_test(a_newer_format_says_so),
		cmocka_unit_test(every_flipped_bit_is_found),
		cmocka_unit_test(damage_is_met_where_it_is),
		cmocka_unit_test(every_truncation_is_found_at_open),
		cmocka_unit_test(a_small_file_cannot_claim_billions),
		cmocka_unit_test(hostile_contents_cannot_crash_a_reader),
		cmocka_unit_test(many_threads_read_at_once),
	};
	return cmocka_run_group_tests_name("shard/index", tests, NULL, NULL);
}
