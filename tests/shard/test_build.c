/* SPDX-License-Identifier: Apache-2.0 */
/* The builder: what it refuses, that its bytes depend on what was added and nothing else, and that it fails cleanly. */
#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "shard/base/io.h"
#include "shard/build.h"
#include "shard/index.h"
#include "tests/shard/tree.h"

/* ------------------------------------------------------------------------------------------------ refusals */

struct build {
	char *dir;
	char path[4200];
	struct shard_builder *b;
	struct base_err err;
};

static void build_begin(struct build *x)
{
	memset(x, 0, sizeof *x);
	x->dir = tree_scratch();
	snprintf(x->path, sizeof x->path, "%s/index.ddpfs", x->dir);
	assert_int_equal(shard_builder_new(&x->b), 0);
	assert_int_equal(shard_builder_add_shard(x->b, "s.tar", SHARD_TAR, SHARD_FILE_BYTES_MAX, 0, &x->err), 0);
}

static void build_end(struct build *x)
{
	shard_builder_free(x->b);
	tree_scratch_done(x->dir);
}

static int add(struct build *x, const char *path)
{
	return shard_builder_add_file(x->b, &(struct shard_build_file){ .path = path, .length = 1 }, &x->err);
}

static int finish(struct build *x)
{
	return shard_builder_finish(x->b, x->path, false, 0, &x->err);
}

static char *repeat(const char *piece, unsigned n)
{
	char *s = calloc(n + 1, strlen(piece) + 1);
	for (unsigned i = 0; i < n; i++)
		strcat(s, piece);
	return s;
}

static void paths_that_cannot_be_stored_are_refused(void **state)
{
	(void)state;
	static const struct {
		const char *path;
		int code;
		const char *says;
	} cases[] = {
		{ "", -EINVAL, "empty path" },
		{ "/etc/passwd", -EINVAL, "absolute" },
		{ "a//b", -EINVAL, "empty path component" },
		{ "a/", -EINVAL, "empty path component" },
		{ ".", -EINVAL, "'.' and '..'" },
		{ "..", -EINVAL, "'.' and '..'" },
		{ "a/../b", -EINVAL, "'.' and '..'" },
		{ "./a", -EINVAL, "'.' and '..'" },
		{ "a/..", -EINVAL, "'.' and '..'" },
		{ ".ddpfs", -EINVAL, "mount's own" },
		{ ".ddpfs/x", -EINVAL, "mount's own" },
	};
	struct build x;
	build_begin(&x);
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		assert_int_equal(add(&x, cases[i].path), cases[i].code);
		if (!strstr(x.err.text, cases[i].says))
			fail_msg("'%s': '%s' is not in: %s", cases[i].path, cases[i].says, x.err.text);
		assert_int_equal(shard_path_check(cases[i].path, NULL), cases[i].code);
	}
	static const char *const fine[] = { "...", "..a", "a/.ddpfs", ".ddpfs2", "a b", "\xff", "new\nline", "-" };
	for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++)
		assert_int_equal(add(&x, fine[i]), 0);
	assert_int_equal(finish(&x), 0);
	build_end(&x);
}

static void limits_are_exact(void **state)
{
	(void)state;
	struct build x;
	build_begin(&x);
	char *n255 = repeat("n", 255), *n256 = repeat("n", 256), *d255 = repeat("d/", 255), *d256 = repeat("d/", 256);
	char deep[1024], deeper[1024], longest[4097];
	assert_int_equal(add(&x, n255), 0);
	assert_int_equal(add(&x, n256), -ENAMETOOLONG);
	snprintf(deep, sizeof deep, "%sf", d255);
	snprintf(deeper, sizeof deeper, "%sf", d256);
	assert_int_equal(add(&x, deep), 0);
	assert_int_equal(add(&x, deeper), -ENAMETOOLONG);
	deep[strlen(deep) - 2] = '\0'; /* 255 directories */
	assert_int_equal(shard_builder_add_dir(x.b, deep, 0755, 0, &x.err), 0);
	deeper[strlen(deeper) - 2] = '\0';
	assert_int_equal(shard_builder_add_dir(x.b, deeper, 0755, 0, &x.err), -ENAMETOOLONG);

	/* 4095 bytes: 16 components of 254 and their slashes are 4080 */
	longest[0] = '\0';
	for (int i = 0; i < 16; i++)
		sprintf(longest + strlen(longest), "%.254s/", n255);
	strcat(longest, "123456789012345");
	assert_int_equal(strlen(longest), 4095);
	assert_int_equal(add(&x, longest), 0);
	longest[4095] = 'x';
	longest[4096] = '\0';
	assert_int_equal(add(&x, longest), -ENAMETOOLONG);

	struct shard_build_file f = { .path = "big", .length = SHARD_FILE_BYTES_MAX + 1 };
	assert_int_equal(shard_builder_add_file(x.b, &f, &x.err), -EFBIG);
	f = (struct shard_build_file){ .path = "far", .offset = SHARD_FILE_BYTES_MAX + 1 };
	assert_int_equal(shard_builder_add_file(x.b, &f, &x.err), -EFBIG);
	f = (struct shard_build_file){ .path = "nosums", .length = SHARD_BLOCK + 1 };
	assert_int_equal(shard_builder_add_file(x.b, &f, &x.err), -EINVAL);
	assert_int_equal(finish(&x), 0);

	struct shard_index *index;
	assert_int_equal(shard_index_open(x.dir, &x.err, &index), 0);
	assert_int_equal(shard_index_verify(index, &x.err), 0);
	enum shard_kind kind;
	uint32_t id;
	char path[SHARD_PATH_MAX + 1];
	longest[4095] = '\0';
	assert_int_equal(shard_index_find_path(index, longest, &kind, &id), 0);
	assert_int_equal(shard_index_file_path(index, id, path, sizeof path), 4095);
	assert_string_equal(path, longest);
	shard_index_close(index);
	free(n255);
	free(n256);
	free(d255);
	free(d256);
	build_end(&x);
}

static void expect_finish(struct build *x, int code, const char *says)
{
	struct stat st;
	assert_int_equal(finish(x), code);
	if (!strstr(x->err.text, says))
		fail_msg("'%s' is not in: %s", says, x->err.text);
	assert_int_equal(stat(x->path, &st), -1);
	assert_int_equal(finish(x), -EINVAL); /* spent */
	build_end(x);
}

static void contradictions_are_found_at_the_end(void **state)
{
	(void)state;
	struct build x;
	build_begin(&x);
	assert_int_equal(add(&x, "d/twice\x01"), 0);
	assert_int_equal(add(&x, "d/other"), 0);
	assert_int_equal(add(&x, "d/twice\x01"), 0);
	expect_finish(&x, -EEXIST, "'d/twice\\x01': two files have this path");

	build_begin(&x);
	assert_int_equal(add(&x, "d/both/file"), 0);
	assert_int_equal(add(&x, "d/both"), 0);
	expect_finish(&x, -ENOTDIR, "'d/both': both a file and a directory");

	build_begin(&x);
	assert_int_equal(shard_builder_add_file(x.b, &(struct shard_build_file){ .path = "f", .shard = 1 }, &x.err), 0);
	expect_finish(&x, -EINVAL, "'f': stored in shard 1, which was never declared");

	build_begin(&x);
	struct shard_build_file past = { .path = "f", .offset = SHARD_FILE_BYTES_MAX, .length = 2 };
	assert_int_equal(shard_builder_add_file(x.b, &past, &x.err), 0);
	expect_finish(&x, -EINVAL, "'f': reaches past the end of shard 0");

	build_begin(&x);
	for (int i = 0; i < SHARD_SAMPLE_FILES_MAX + 1; i++) {
		char name[32];
		snprintf(name, sizeof name, "%d", i);
		struct shard_build_file f = { .path = name, .group = "g" };
		assert_int_equal(shard_builder_add_file(x.b, &f, &x.err), 0);
	}
	expect_finish(&x, -E2BIG, "its group has 1025 files");
}

/* ------------------------------------------------------------------------------------------------ determinism */

static void bytes_do_not_depend_on_the_order_of_calls(void **state)
{
	(void)state;
	char *dir = tree_scratch(), path[4200];
	snprintf(path, sizeof path, "%s/index.ddpfs", dir);
	for (uint64_t seed = 0; seed < 40; seed++) {
		struct tree t;
		tree_random(
		        &(struct tree_options){
		                .seed = seed, .n_files = 120, .groups = seed & 1, .commons = true, .big = true },
		        &t);
		uint32_t *order = calloc(t.n_files + 1, sizeof *order);
		size_t want_len, len;

		tree_build(&t, t.by_id, true, path); /* already in the order of ids: nothing is sorted */
		uint8_t *want = tree_read(path, &want_len);
		for (int round = 0; round < 3; round++) {
			uint64_t rng = seed * 100 + (uint64_t)round;
			for (uint32_t i = 0; i < t.n_files; i++) {
				uint32_t j = (uint32_t)(tree_rand(&rng) % (i + 1));
				order[i] = order[j];
				order[j] = i;
			}
			tree_build(&t, order, true, path);
			uint8_t *got = tree_read(path, &len);
			assert_int_equal(len, want_len);
			assert_memory_equal(got, want, len);
			free(got);
		}
		free(want);
		free(order);
		tree_done(&t);
	}
	tree_scratch_done(dir);
}

static void identity(const struct tree *t, bool shuffled, char *hex)
{
	char *dir = tree_scratch(), path[4200];
	struct shard_index *index;
	snprintf(path, sizeof path, "%s/index.ddpfs", dir);
	tree_build(t, NULL, shuffled, path);
	assert_int_equal(shard_index_open(dir, NULL, &index), 0);
	for (int i = 0; i < 16; i++)
		sprintf(hex + 2 * i, "%02x", shard_index_info(index)->identity[i]);
	shard_index_close(index);
	tree_scratch_done(dir);
}

static void the_identity_names_content_and_order_but_not_times(void **state)
{
	(void)state;
	struct tree t;
	char before[33], after[33];
	tree_random(
	        &(struct tree_options){ .seed = 8, .n_files = 60, .exact = true, .groups = true, .commons = true }, &t);
	identity(&t, false, before);

	/* no part of it: times, modes, and where the same order is stored */
	for (uint32_t i = 0; i < t.n_files; i++) {
		t.files[i].mtime_s ^= 1;
		t.files[i].mode ^= 0111;
		t.files[i].offset += 4096;
	}
	for (uint32_t i = 0; i < t.n_shards; i++)
		t.shard_bytes[i] += 4096;
	identity(&t, false, after);
	assert_string_equal(before, after);

	/* parts of it, one after the other */
	uint32_t sample_file = 0, common = 0, grouped = 0;
	for (uint32_t i = 0; i < t.n_files; i++) {
		if (t.files[i].common)
			common = i;
		else if (t.files[i].group)
			grouped = i;
		else if (t.files[i].length > 0)
			sample_file = i;
	}
	struct tree_file *f = &t.files[sample_file];
	f->xxh3 ^= 1;
	identity(&t, false, after);
	assert_string_not_equal(before, after);
	f->xxh3 ^= 1;

	f->length--;
	identity(&t, false, after);
	assert_string_not_equal(before, after);
	f->length++;

	f->path[strlen(f->path) - 1] ^= 0x20;
	identity(&t, false, after);
	assert_string_not_equal(before, after);
	f->path[strlen(f->path) - 1] ^= 0x20;

	t.files[common].common = false;
	identity(&t, false, after);
	assert_string_not_equal(before, after);
	t.files[common].common = true;

	char *group = t.files[grouped].group;
	t.files[grouped].group = NULL;
	identity(&t, false, after);
	assert_string_not_equal(before, after);
	t.files[grouped].group = group;

	identity(&t, true, after);
	assert_string_not_equal(before, after);

	uint64_t offset = f->offset;
	uint32_t shard = f->shard, last = t.n_shards - 1; /* to the very end: other slots */
	f->offset = t.shard_bytes[last];
	f->shard = last;
	t.shard_bytes[last] += f->length;
	identity(&t, false, after);
	assert_string_not_equal(before, after);
	f->offset = offset;
	f->shard = shard;

	struct tree_dir *dirs = calloc(t.n_dirs + 1, sizeof *dirs);
	memcpy(dirs, t.dirs, t.n_dirs * sizeof *dirs);
	dirs[t.n_dirs] = (struct tree_dir){ .path = strdup("zzz-empty"), .declared = true };
	free(t.dirs);
	t.dirs = dirs;
	t.n_dirs++;
	identity(&t, false, after);
	assert_string_not_equal(before, after);
	t.n_dirs--;
	free(dirs[t.n_dirs].path);
	identity(&t, false, after);
	assert_string_equal(before, after);
	tree_done(&t);
}

static void times_and_modes_are_kept_within_their_bounds(void **state)
{
	(void)state;
	static const struct {
		int64_t given, kept;
	} times[] = { { 0, 0 }, { -1, -1 }, { 1700000000, 1700000000 }, { INT64_MAX, (INT64_C(1) << 39) - 1 },
		{ INT64_MIN, -(INT64_C(1) << 39) } };
	struct build x;
	build_begin(&x);
	for (unsigned i = 0; i < 5; i++) {
		char name[8];
		snprintf(name, sizeof name, "%u", i);
		struct shard_build_file f = { .path = name, .mtime_s = times[i].given, .mode = 0106755 };
		assert_int_equal(shard_builder_add_file(x.b, &f, &x.err), 0);
	}
	assert_int_equal(finish(&x), 0);
	struct shard_index *index;
	assert_int_equal(shard_index_open(x.dir, &x.err, &index), 0);
	for (uint32_t i = 0; i < 5; i++) {
		struct shard_file f;
		assert_int_equal(shard_index_file(index, i, &f), 0);
		assert_int_equal(f.mtime_s, times[i].kept);
		assert_int_equal(f.mode, 0755); /* set-user-id is gone */
	}
	shard_index_close(index);
	build_end(&x);
}

static void an_empty_dataset_has_a_root(void **state)
{
	(void)state;
	struct build x;
	struct shard_index *index;
	struct shard_dir d;
	build_begin(&x);
	assert_int_equal(finish(&x), 0);
	assert_int_equal(shard_index_open(x.dir, &x.err, &index), 0);
	assert_int_equal(shard_index_verify(index, &x.err), 0);
	assert_int_equal(shard_index_dir(index, 0, &d), 0);
	assert_int_equal(d.end_file, 0);
	uint32_t id;
	assert_int_equal(shard_index_find_file(index, 0, "x", 1, &id), -ENOENT);
	shard_index_close(index);
	build_end(&x);
}

/* ------------------------------------------------------------------------------------------------ size */

static void a_sample_costs_at_most_64_bytes_besides_its_name(void **state)
{
	(void)state;
	/* shuffled storage and common files in the middle: every optional list but the groups' */
	enum { N = 300000 };
	struct build x;
	struct stat st;
	uint64_t names = 0, rng = 1;
	uint32_t samples = 0;
	build_begin(&x);
	for (uint32_t i = 0; i < N; i++) {
		char path[64];
		int len = snprintf(path, sizeof path, "class_%04u/image_%08u.jpg", i / 1000, i);
		struct shard_build_file f = {
			.path = path, .offset = tree_rand(&rng) >> 20, .length = 100, .common = i % 1000 == 0
		};
		assert_int_equal(shard_builder_add_file(x.b, &f, &x.err), 0);
		names += (uint64_t)len - strlen("class_0000/");
		samples += !f.common;
	}
	assert_int_equal(shard_builder_finish(x.b, x.path, true, 1, &x.err), 0);
	assert_int_equal(stat(x.path, &st), 0);
	double each = (double)((uint64_t)st.st_size - names) / samples;
	print_message("%.2f bytes a sample besides its name\n", each);
	assert_true(each <= 64);
	build_end(&x);
}

/* ------------------------------------------------------------------------------------------------ faults */

static struct {
	long countdown; /* calls until the failure; negative: never */
	bool short_writes;
	long calls;
} io_fault;

static bool io_fails(void)
{
	io_fault.calls++;
	return io_fault.countdown >= 0 && io_fault.countdown-- == 0;
}

static ssize_t faulty_pwrite(int fd, const void *buf, size_t len, off_t offset)
{
	if (io_fails()) {
		errno = ENOSPC;
		return -1;
	}
	if (io_fault.short_writes && len > 1)
		len = len / 2;
	return pwrite(fd, buf, len, offset);
}

static int faulty_fsync(int fd)
{
	if (io_fails()) {
		errno = EIO;
		return -1;
	}
	return fsync(fd);
}

static int faulty_rename(const char *from, const char *to)
{
	if (io_fails()) {
		errno = EACCES;
		return -1;
	}
	return rename(from, to);
}

static const struct base_io io_faulty = {
	.pread = pread, .pwrite = faulty_pwrite, .fsync = faulty_fsync, .rename = faulty_rename
};

static unsigned count_entries(const char *dir)
{
	unsigned n = 0;
	DIR *d = opendir(dir);
	for (struct dirent *e; (e = readdir(d));)
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

static void a_failed_write_leaves_the_old_index_and_nothing_else(void **state)
{
	(void)state;
	struct build x;
	size_t len;
	build_begin(&x);
	assert_int_equal(add(&x, "old"), 0);
	assert_int_equal(finish(&x), 0);
	uint8_t *old = tree_read(x.path, &len);

	base_io = &io_faulty;
	for (long n = 0;; n++) {
		struct shard_builder *b;
		assert_int_equal(shard_builder_new(&b), 0);
		assert_int_equal(shard_builder_add_shard(b, "s.tar", SHARD_TAR, 10, 0, NULL), 0);
		assert_int_equal(shard_builder_add_file(b, &(struct shard_build_file){ .path = "new" }, NULL), 0);
		io_fault.countdown = n;
		io_fault.calls = 0;
		int r = shard_builder_finish(b, x.path, false, 0, &x.err);
		shard_builder_free(b);
		if (r == 0) {
			assert_true(n >= 4); /* data, header, fsync, rename, fsync of the directory */
			break;
		}
		assert_non_null(strstr(x.err.text, "index.ddpfs"));
		assert_int_equal(count_entries(x.dir), 1);
		if (io_fault.calls < 5) { /* the last failure comes after the rename */
			size_t now_len;
			uint8_t *now = tree_read(x.path, &now_len);
			assert_int_equal(now_len, len);
			assert_memory_equal(now, old, len);
			free(now);
		}
	}
	base_io = &base_io_libc;
	free(old);
	build_end(&x);
}

static void short_writes_are_continued(void **state)
{
	(void)state;
	char *dir = tree_scratch(), path[4200];
	struct tree t;
	size_t want_len, len;
	snprintf(path, sizeof path, "%s/index.ddpfs", dir);
	tree_random(&(struct tree_options){ .seed = 4, .n_files = 200 }, &t);
	tree_build(&t, NULL, false, path);
	uint8_t *want = tree_read(path, &want_len);
	base_io = &io_faulty;
	io_fault.countdown = -1;
	io_fault.short_writes = true;
	tree_build(&t, NULL, false, path);
	base_io = &base_io_libc;
	io_fault.short_writes = false;
	uint8_t *got = tree_read(path, &len);
	assert_int_equal(len, want_len);
	assert_memory_equal(got, want, len);
	free(got);
	free(want);
	tree_done(&t);
	tree_scratch_done(dir);
}

/* Allocations of the code under test come in here (ld --wrap). */
static long alloc_countdown = -1;

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

static bool alloc_fails(void)
{
	return alloc_countdown >= 0 && alloc_countdown-- == 0;
}

void *__wrap_malloc(size_t n)
{
	return alloc_fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
	return alloc_fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
	return alloc_fails() ? NULL : __real_realloc(p, n);
}

/* Builds and opens; every error on the way comes back. */
static int build_and_open(const struct tree *t, const char *path)
{
	struct shard_builder *b;
	struct shard_index *index;
	struct base_err err;
	int r = shard_builder_new(&b);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < t->n_shards && r == 0; i++)
		r = shard_builder_add_shard(b, "s.tar", SHARD_TAR, t->shard_bytes[i], 0, &err);
	for (uint32_t i = 0; i < t->n_files && r == 0; i++) {
		const struct tree_file *f = &t->files[i];
		struct shard_build_file file = { .path = f->path,
			.shard = f->shard,
			.offset = f->offset,
			.length = f->length,
			.xxh3 = f->xxh3,
			.block_sums = f->sums,
			.common = f->common,
			.group = f->group };
		r = shard_builder_add_file(b, &file, &err);
	}
	if (r == 0)
		r = shard_builder_finish(b, path, true, 1, &err);
	shard_builder_free(b);
	if (r == 0)
		r = shard_index_open(path, &err, &index);
	if (r == 0) {
		r = shard_index_verify(index, &err);
		shard_index_close(index);
	}
	return r;
}

static void every_failed_allocation_is_an_error_and_no_leak(void **state)
{
	(void)state;
	char *dir = tree_scratch(), path[4200];
	struct tree t;
	snprintf(path, sizeof path, "%s/index.ddpfs", dir);
	tree_random(
	        &(struct tree_options){
	                .seed = 12, .n_files = 300, .exact = true, .groups = true, .commons = true, .big = true },
	        &t);
	long failures = 0;
	for (long n = 0;; n++) {
		unlink(path);
		alloc_countdown = n;
		int r = build_and_open(&t, path);
		bool failed = alloc_countdown < 0;
		alloc_countdown = -1;
		if (!failed) {
			assert_int_equal(r, 0);
			break;
		}
		/* qsort_r sorts in place when it gets no memory: that one is no error */
		if (r != 0) {
			assert_int_equal(r, -ENOMEM);
			failures++;
		}
		assert_true(count_entries(dir) <= 1);
	}
	print_message("%ld allocations failed in turn\n", failures);
	assert_true(failures > 20);
	tree_done(&t);
	tree_scratch_done(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(paths_that_cannot_be_stored_are_refused),
		cmocka_unit_test(limits_are_exact),
		cmocka_unit_test(contradictions_are_found_at_the_end),
		cmocka_unit_test(bytes_do_not_depend_on_the_order_of_calls),
		cmocka_unit_test(the_identity_names_content_and_order_but_not_times),
		cmocka_unit_test(times_and_modes_are_kept_within_their_bounds),
		cmocka_unit_test(an_empty_dataset_has_a_root),
		cmocka_unit_test(a_sample_costs_at_most_64_bytes_besides_its_name),
		cmocka_unit_test(a_failed_write_leaves_the_old_index_and_nothing_else),
		cmocka_unit_test(short_writes_are_continued),
		cmocka_unit_test(every_failed_allocation_is_an_error_and_no_leak),
	};
	return cmocka_run_group_tests_name("shard/build", tests, NULL, NULL);
}
