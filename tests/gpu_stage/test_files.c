/* SPDX-License-Identifier: Apache-2.0 */
/* Datasets opened by paths, through the public header: listings, look-ups, ranges, bad bytes, threads. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpu_stage/stage.h"
#include "tests/prefetch/dataset.h"

/* Files 4, 6 and 9 have several blocks; few are large, because there are three directories of files. */
static const uint64_t SIZES[] = { 20000, 100, 0, 1, (1 << 20) + 77, 512, (5 << 20) + 1, 30, 7, 1 << 20,
	[10 ... 210] = 60 };
enum { N_SIZES = sizeof(SIZES) / sizeof(SIZES[0]), N_FILES = 2100, N_SHARDS = 3 }; /* files 0..999 lie in d000, ... */

static struct dataset data;

static struct ddpfs_files *open_files(const struct dataset *d)
{
	struct ddpfs_stage_error error = { 0 };
	struct ddpfs_files *files = NULL;
	if (ddpfs_files_open(d->dir, &error, &files) < 0)
		fail_msg("%s", error.text);
	return files;
}

static struct ddpfs_entry find(struct ddpfs_files *files, const char *path)
{
	struct ddpfs_stage_error error = { 0 };
	struct ddpfs_entry entry;
	if (ddpfs_files_find(files, path, &error, &entry) < 0)
		fail_msg("%s", error.text);
	return entry;
}

/* Lists a directory, n entries a call.  Returns how many there are; entries has room for all. */
static uint32_t list(struct ddpfs_files *files, uint32_t dir, uint32_t n, struct ddpfs_entry *entries)
{
	uint64_t cookie = 0;
	uint32_t count = 0;
	int got;
	while ((got = ddpfs_files_list(files, dir, &cookie, n, NULL, entries + count)) > 0) {
		assert_true((uint32_t)got <= n);
		count += (uint32_t)got;
	}
	assert_int_equal(got, 0);
	return count;
}

static void listings_have_every_name_once_whatever_is_asked_for_at_once(void **state)
{
	(void)state;
	static const uint32_t AT_ONCE[] = { 1, 2, 7, 3000 };
	struct ddpfs_files *files = open_files(&data);
	struct ddpfs_entry *entries = calloc(3000, sizeof(*entries));
	assert_non_null(entries);
	for (size_t k = 0; k < 4; k++) {
		struct ddpfs_entry root = find(files, "");
		assert_true(root.is_dir);
		assert_string_equal(root.name, "");
		assert_int_equal(list(files, root.id, AT_ONCE[k], entries), 3);
		struct ddpfs_entry dirs[3] = { entries[0], entries[1], entries[2] };
		uint32_t file = 0;
		for (uint32_t d = 0; d < 3; d++) {
			char name[16];
			snprintf(name, sizeof(name), "d%03u", d);
			assert_string_equal(dirs[d].name, name);
			assert_true(dirs[d].is_dir);
			uint32_t n = list(files, dirs[d].id, AT_ONCE[k], entries);
			for (uint32_t i = 0; i < n; i++, file++) {
				char path[64];
				snprintf(path, sizeof(path), "%s/%s", name, entries[i].name);
				struct ddpfs_entry found = find(files, path);
				assert_memory_equal(&found, &entries[i], offsetof(struct ddpfs_entry, name));
				assert_string_equal(found.name, entries[i].name);
				assert_int_equal(found.id, file);
				assert_int_equal(found.len, SIZES[file % N_SIZES]);
				assert_false(found.is_dir);
			}
		}
		assert_int_equal(file, N_FILES);
	}
	free(entries);
	ddpfs_files_close(files);
}

static void what_is_not_there_is_refused(void **state)
{
	(void)state;
	struct ddpfs_files *files = open_files(&data);
	struct ddpfs_stage_error error = { 0 };
	struct ddpfs_entry entry = { .id = 77 };
	uint64_t cookie = 0;
	assert_int_equal(ddpfs_files_find(files, "d000/none", &error, &entry), -ENOENT);
	assert_non_null(strstr(error.text, "d000/none"));
	assert_int_equal(ddpfs_files_find(files, "../d000", NULL, &entry), -ENOENT);
	assert_int_equal(ddpfs_files_find(files, "d000/f0000001/x", NULL, &entry), -ENOTDIR);
	assert_int_equal(entry.id, 77);
	assert_int_equal(ddpfs_files_list(files, 4, &cookie, 1, NULL, &entry), -EINVAL); /* there are 4 directories */
	cookie = 4;
	assert_int_equal(ddpfs_files_list(files, find(files, "d000").id, &cookie, 1, NULL, &entry), -EINVAL);
	cookie = UINT64_MAX;
	assert_int_equal(ddpfs_files_list(files, 0, &cookie, 1, NULL, &entry), 0);
	struct ddpfs_range range = { .file = N_FILES, .len = 1, .data = (uint8_t[1]){ 0 }, .got = 9 };
	assert_int_equal(ddpfs_files_read(files, &range, 1, NULL), -EINVAL);
	assert_int_equal(range.rc, -EINVAL);
	assert_int_equal(range.got, 0);
	assert_int_equal(ddpfs_files_read(files, NULL, 0, NULL), 0);
	ddpfs_files_close(files);
	ddpfs_files_close(NULL);
	files = NULL;
	assert_int_equal(ddpfs_files_open("/nonexistent", &error, &files), -ENOENT);
	assert_null(files);
	assert_non_null(strstr(error.text, "/nonexistent"));
}

enum { RANGES = 64, RANGE_MAX = 3 << 20 };

/* Reads ranges at random places of random files, many in one call, and compares them. */
static void read_at_random(struct ddpfs_files *files, unsigned seed, uint8_t *memory)
{
	struct ddpfs_range ranges[RANGES];
	uint64_t used = 0;
	for (uint32_t i = 0; i < RANGES; i++) {
		uint32_t file = (uint32_t)rand_r(&seed) % N_FILES;
		uint64_t len = SIZES[file % N_SIZES];
		uint64_t offset = (uint64_t)rand_r(&seed) % (len + 2);
		ranges[i] = (struct ddpfs_range){ .file = file, .offset = offset, .data = memory + used };
		ranges[i].len = (uint64_t)rand_r(&seed) % (i % 2 ? 3000 : RANGE_MAX);
		used += ranges[i].len;
	}
	assert_int_equal(ddpfs_files_read(files, ranges, RANGES, NULL), 0);
	for (uint32_t i = 0; i < RANGES; i++) {
		uint64_t len = SIZES[ranges[i].file % N_SIZES];
		uint64_t left = ranges[i].offset < len ? len - ranges[i].offset : 0;
		assert_int_equal(ranges[i].rc, 0);
		assert_int_equal(ranges[i].got, left < ranges[i].len ? left : ranges[i].len);
		assert_true(dataset_equal(ranges[i].file, ranges[i].offset, ranges[i].data, ranges[i].got));
	}
}

struct reader {
	struct ddpfs_files *files;
	unsigned seed;
};

static void *read_on(void *arg)
{
	const struct reader *r = arg;
	uint8_t *memory = malloc((size_t)RANGES * RANGE_MAX);
	assert_non_null(memory);
	for (unsigned round = 0; round < 3; round++)
		read_at_random(r->files, r->seed + round, memory);
	free(memory);
	return NULL;
}

static void ranges_have_the_sources_bytes_in_every_thread(void **state)
{
	(void)state;
	struct ddpfs_files *files = open_files(&data);
	struct reader readers[4];
	pthread_t threads[4];
	for (unsigned i = 0; i < 4; i++) {
		readers[i] = (struct reader){ .files = files, .seed = 100 * i };
		assert_int_equal(pthread_create(&threads[i], NULL, read_on, &readers[i]), 0);
	}
	for (unsigned i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	/* A range that begins or ends beyond every number a file can have. */
	uint8_t byte = 7;
	struct ddpfs_range far = { .file = 0, .offset = UINT64_MAX, .len = UINT64_MAX, .data = &byte };
	assert_int_equal(ddpfs_files_read(files, &far, 1, NULL), 0);
	assert_int_equal(far.got, 0);
	far = (struct ddpfs_range){ .file = 3, .offset = 0, .len = UINT64_MAX, .data = &byte }; /* a file of 1 byte */
	assert_int_equal(ddpfs_files_read(files, &far, 1, NULL), 0);
	assert_int_equal(far.got, 1);
	ddpfs_files_close(files);
}

static void a_damaged_block_fails_its_ranges_and_no_others(void **state)
{
	(void)state;
	struct dataset own;
	struct shard_file f;
	char path[128];
	const uint32_t victim = 6; /* of 6 blocks: damaged in the third */
	dataset_new(&own, 16, 2, SIZES, N_SIZES);
	assert_int_equal(shard_index_file(own.index, victim, &f), 0);
	dataset_shard_path(&own, f.shard, path);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	assert_int_equal(pwrite(fd, "damage", 6, (off_t)(f.offset + 2 * SHARD_BLOCK + 10)), 6);
	close(fd);
	struct ddpfs_files *files = open_files(&own);
	struct ddpfs_stage_error error = { 0 };
	uint8_t *memory = calloc(1, 8 << 20);
	assert_non_null(memory);
	struct ddpfs_range ranges[] = {
		{ .file = victim, .len = 100, .data = memory },                                        /* before it */
		{ .file = victim, .offset = 3 * SHARD_BLOCK - 1, .len = 1, .data = memory + 200 },     /* in it */
		{ .file = 0, .len = 20000, .data = memory + 400 },                                     /* elsewhere */
		{ .file = victim, .offset = 3 * SHARD_BLOCK, .len = 3 << 20, .data = memory + 30000 }, /* behind it */
	};
	assert_int_equal(ddpfs_files_read(files, ranges, 4, &error), -EBADMSG);
	assert_int_equal(error.file, victim);
	assert_non_null(strstr(error.text, "f0000006"));
	static const int RC[] = { 0, -EBADMSG, 0, 0 };
	static const uint64_t GOT[] = { 100, 0, 20000, (2 << 20) + 1 };
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(ranges[i].rc, RC[i]);
		assert_int_equal(ranges[i].got, GOT[i]);
		assert_true(dataset_equal(ranges[i].file, ranges[i].offset, ranges[i].data, ranges[i].got));
	}
	free(memory);
	ddpfs_files_close(files);
	dataset_free(&own);
}

static void an_index_that_changes_is_stale(void **state)
{
	(void)state;
	struct dataset own;
	char path[128];
	dataset_new(&own, 16, 2, SIZES, N_SIZES);
	struct ddpfs_files *files = open_files(&own);
	assert_false(find(files, "d000/f0000001").is_dir);
	snprintf(path, sizeof(path), "%s/index.ddpfs", own.dir);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	char byte;
	assert_int_equal(pread(fd, &byte, 1, 40), 1);
	byte ^= 1;
	assert_int_equal(pwrite(fd, &byte, 1, 40), 1);
	close(fd);
	struct ddpfs_stage_error error = { 0 };
	struct ddpfs_entry entry;
	uint64_t cookie = 0;
	struct ddpfs_range range = { .file = 0, .len = 1, .data = (uint8_t[1]){ 0 } };
	assert_int_equal(ddpfs_files_find(files, "", &error, &entry), -ESTALE);
	assert_true(error.text[0]);
	assert_int_equal(ddpfs_files_list(files, 0, &cookie, 1, NULL, &entry), -ESTALE);
	assert_int_equal(ddpfs_files_read(files, &range, 1, NULL), -ESTALE);
	assert_int_equal(range.rc, -ESTALE);
	ddpfs_files_close(files);
	dataset_free(&own);
}

static int setup(void **state)
{
	(void)state;
	dataset_new(&data, N_FILES, N_SHARDS, SIZES, N_SIZES);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	dataset_free(&data);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(listings_have_every_name_once_whatever_is_asked_for_at_once),
		cmocka_unit_test(what_is_not_there_is_refused),
		cmocka_unit_test(ranges_have_the_sources_bytes_in_every_thread),
		cmocka_unit_test(a_damaged_block_fails_its_ranges_and_no_others),
		cmocka_unit_test(an_index_that_changes_is_stale),
	};
	return cmocka_run_group_tests_name("files", tests, setup, teardown);
}
