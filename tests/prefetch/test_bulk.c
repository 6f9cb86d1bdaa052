/* SPDX-License-Identifier: Apache-2.0 */
/* Bulk reads: every byte of every file at its place, changed and missing files noticed, with io_uring and without. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "prefetch/bulk.h"

enum { FILES = 300, GUARD = 64 };

struct place {
	char dir[64];
	int fd;
};

static uint8_t byte_of(uint32_t file, uint64_t i)
{
	return (uint8_t)(file * 31 + i * 7 + (i >> 8) * 13 + (i >> 16));
}

static uint64_t size_of(uint32_t file)
{
	static const uint64_t sizes[] = { 0, 1, 511, 512, 513, 4095, 4096, 4097, 110000, 262144, 262145, 3000001 };
	return sizes[file % (sizeof(sizes) / sizeof(sizes[0]))];
}

static void write_file(struct place *place, uint32_t file, bool cold)
{
	char name[32];
	snprintf(name, sizeof(name), "f%u", file);
	int fd = openat(place->fd, name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	assert_true(fd >= 0);
	uint64_t size = size_of(file);
	uint8_t *data = malloc(size + 1);
	for (uint64_t i = 0; i < size; i++)
		data[i] = byte_of(file, i);
	assert_int_equal(write(fd, data, size), (ssize_t)size);
	free(data);
	if (cold) {
		assert_int_equal(fdatasync(fd), 0);
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	}
	close(fd);
}

/* Below the build directory: a disk, where direct reads are to be had more likely than in /tmp. */
static int make_place(void **state)
{
	struct place *place = calloc(1, sizeof(*place));
	snprintf(place->dir, sizeof(place->dir), "test-bulk.XXXXXX");
	if (!mkdtemp(place->dir))
		return -1;
	place->fd = open(place->dir, O_RDONLY | O_DIRECTORY);
	*state = place;
	return place->fd < 0;
}

static int drop_place(void **state)
{
	struct place *place = *state;
	char command[128];
	close(place->fd);
	snprintf(command, sizeof(command), "rm -rf %s", place->dir);
	free(place);
	return system(command);
}

struct request {
	struct prefetch_bulk_file file;
	char name[32];
	uint8_t *memory;
};

static void prepare(struct place *place, struct request *request, uint32_t file, uint64_t offset, uint64_t want,
        unsigned misalign, uint64_t room)
{
	struct stat st;
	snprintf(request->name, sizeof(request->name), "f%u", file);
	assert_int_equal(fstatat(place->fd, request->name, &st, 0), 0);
	request->memory = aligned_alloc(4096, (misalign + room + GUARD + 4095) / 4096 * 4096);
	memset(request->memory + misalign + room, 0xa5, GUARD);
	request->file = (struct prefetch_bulk_file){
		.dirfd = place->fd,
		.path = request->name,
		.offset = offset,
		.buf = request->memory + misalign,
		.want = want,
		.room = room,
		.expect_size = (uint64_t)st.st_size,
		.expect_mtime_ns = st.st_mtim.tv_sec * INT64_C(1000000000) + st.st_mtim.tv_nsec,
		.expect_ino = st.st_ino,
		.user = request,
	};
}

static void check(const struct request *request, uint32_t file)
{
	assert_int_equal(request->file.rc, 0);
	for (uint64_t i = 0; i < request->file.want; i++)
		if (request->file.buf[i] != byte_of(file, request->file.offset + i))
			fail_msg("file %u: wrong byte at %llu", file, (unsigned long long)i);
	for (unsigned i = 0; i < GUARD; i++)
		assert_int_equal(request->file.buf[request->file.room + i], 0xa5);
}

static void read_all(struct prefetch_bulk *bulk, struct request *requests, uint32_t n)
{
	uint32_t submitted = 0, landed = 0;
	while (landed < n) {
		while (submitted < n && prefetch_bulk_submit(bulk, &requests[submitted].file) == 0)
			submitted++;
		struct prefetch_bulk_file *file;
		assert_int_equal(prefetch_bulk_reap(bulk, true, &file), 1);
		landed++;
	}
	struct prefetch_bulk_file *file;
	assert_int_equal(prefetch_bulk_reap(bulk, true, &file), 0);
}

/* Whole files, hot and cold, with and without room for rounding, aligned and not. */
static void whole_files(void **state, unsigned flags)
{
	struct place *place = *state;
	struct prefetch_bulk *bulk;
	struct request *requests = calloc(FILES, sizeof(*requests));
	assert_int_equal(prefetch_bulk_new(32, flags, &bulk), 0);
	for (uint32_t f = 0; f < FILES; f++) {
		uint64_t size = size_of(f), padded = (size + 511) / 512 * 512;
		write_file(place, f, f % 3 != 0);
		prepare(place, &requests[f], f, 0, size, f % 5 == 0 ? 1 : f % 5 == 1 ? 512 : 0, f % 2 ? padded : size);
	}
	read_all(bulk, requests, FILES);
	for (uint32_t f = 0; f < FILES; f++) {
		check(&requests[f], f);
		free(requests[f].memory);
	}
	free(requests);
	prefetch_bulk_free(bulk);
}

static void whole_files_by_uring(void **state)
{
	whole_files(state, 0);
}

static void whole_files_by_threads(void **state)
{
	whole_files(state, PREFETCH_BULK_THREADS);
}

static void ranges_of_files(void **state)
{
	struct place *place = *state;
	struct prefetch_bulk *bulk;
	struct request requests[64] = { 0 };
	assert_int_equal(prefetch_bulk_new(8, 0, &bulk), 0);
	write_file(place, 11, true);
	for (uint32_t i = 0; i < 64; i++) {
		uint64_t offset = i % 2 ? i * 4096 : i * 4099, want = 1 + i * 977 % 900000;
		prepare(place, &requests[i], 11, offset, want, i % 3 ? 0 : 4, want);
	}
	read_all(bulk, requests, 64);
	for (uint32_t i = 0; i < 64; i++) {
		check(&requests[i], 11);
		free(requests[i].memory);
	}
	prefetch_bulk_free(bulk);
}

static int read_one(struct prefetch_bulk *bulk, struct request *request)
{
	struct prefetch_bulk_file *file;
	assert_int_equal(prefetch_bulk_submit(bulk, &request->file), 0);
	assert_int_equal(prefetch_bulk_reap(bulk, true, &file), 1);
	assert_ptr_equal(file, &request->file);
	return file->rc;
}

static void changed_files_are_stale(void **state)
{
	struct place *place = *state;
	for (unsigned flags = 0; flags <= PREFETCH_BULK_THREADS; flags += PREFETCH_BULK_THREADS) {
		struct prefetch_bulk *bulk;
		struct request request;
		assert_int_equal(prefetch_bulk_new(4, flags, &bulk), 0);
		write_file(place, 5, true);

		prepare(place, &request, 5, 0, 4095, 0, 4095);
		request.file.expect_size++;
		assert_int_equal(read_one(bulk, &request), -ESTALE);
		request.file.expect_size--;
		request.file.expect_mtime_ns--;
		assert_int_equal(read_one(bulk, &request), -ESTALE);
		request.file.expect_mtime_ns++;
		request.file.expect_ino++;
		assert_int_equal(read_one(bulk, &request), -ESTALE);
		request.file.expect_ino--;
		assert_int_equal(read_one(bulk, &request), 0);
		free(request.memory);
		prefetch_bulk_free(bulk);
	}
}

static void missing_files_and_fifos(void **state)
{
	struct place *place = *state;
	struct prefetch_bulk *bulk;
	struct request request;
	assert_int_equal(prefetch_bulk_new(4, 0, &bulk), 0);
	write_file(place, 1, false);
	prepare(place, &request, 1, 0, 1, 0, 1);
	request.file.path = "nothing";
	assert_int_equal(read_one(bulk, &request), -ENOENT);
	assert_int_equal(mkfifoat(place->fd, "fifo", 0644), 0);
	request.file.path = "fifo"; /* must not wait for a writer */
	assert_int_equal(read_one(bulk, &request), -ESTALE);
	free(request.memory);
	prefetch_bulk_free(bulk);
}

static void depth_is_a_limit(void **state)
{
	struct place *place = *state;
	struct prefetch_bulk *bulk;
	struct request requests[3];
	assert_int_equal(prefetch_bulk_new(0, 0, &bulk), -EINVAL);
	assert_int_equal(prefetch_bulk_new(PREFETCH_BULK_DEPTH_MAX + 1, 0, &bulk), -EINVAL);
	assert_int_equal(prefetch_bulk_new(2, 0, &bulk), 0);
	write_file(place, 1, false);
	for (int i = 0; i < 3; i++)
		prepare(place, &requests[i], 1, 0, 1, 0, 1);
	assert_int_equal(prefetch_bulk_submit(bulk, &requests[0].file), 0);
	assert_int_equal(prefetch_bulk_submit(bulk, &requests[1].file), 0);
	assert_int_equal(prefetch_bulk_submit(bulk, &requests[2].file), -EAGAIN);
	prefetch_bulk_free(bulk); /* waits for the two */
	for (int i = 0; i < 3; i++)
		free(requests[i].memory);
}

/* Streaming */

struct seen {
	uint32_t file;
	uint64_t next, stop_at;
	bool wrong;
};

static int see(void *arg, uint64_t offset, const uint8_t *data, size_t len)
{
	struct seen *seen = arg;
	seen->wrong |= offset != seen->next;
	for (size_t i = 0; i < len; i++)
		seen->wrong |= data[i] != byte_of(seen->file, offset + i);
	seen->next = offset + len;
	return seen->stop_at && seen->next >= seen->stop_at ? 77 : 0;
}

static void stream_delivers_in_order(void **state)
{
	struct place *place = *state;
	char path[128];
	for (uint32_t f = 0; f < 12; f++) {
		for (int cold = 0; cold < 2; cold++) {
			struct seen seen = { .file = f };
			uint64_t at = 1;
			write_file(place, f, cold);
			snprintf(path, sizeof(path), "%s/f%u", place->dir, f);
			assert_int_equal(prefetch_bulk_stream(path, 0, size_of(f), see, &seen, &at), 0);
			assert_false(seen.wrong);
			assert_int_equal(seen.next, size_of(f));
			assert_int_equal(at, size_of(f));
		}
	}
}

static void *stream_often(void *arg)
{
	const char *path = arg;
	for (unsigned i = 0; i < 20; i++) {
		struct seen seen = { .file = 11 };
		if (prefetch_bulk_stream(path, 0, size_of(11), see, &seen, NULL) || seen.wrong)
			return arg;
	}
	return NULL;
}

/* Rings come and go at the same addresses: nothing is shared, and a thread sanitizer is told so. */
static void streams_of_several_threads(void **state)
{
	struct place *place = *state;
	char path[128];
	pthread_t threads[4];
	write_file(place, 11, false);
	snprintf(path, sizeof(path), "%s/f11", place->dir);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, stream_often, path), 0);
	for (unsigned i = 0; i < 4; i++) {
		void *failed;
		assert_int_equal(pthread_join(threads[i], &failed), 0);
		assert_null(failed);
	}
}

static void stream_of_a_part(void **state)
{
	struct place *place = *state;
	char path[128];
	struct seen seen = { .file = 11, .next = 12345 };
	write_file(place, 11, true);
	snprintf(path, sizeof(path), "%s/f11", place->dir);
	assert_int_equal(prefetch_bulk_stream(path, 12345, 2000000, see, &seen, NULL), 0);
	assert_false(seen.wrong);
	assert_int_equal(seen.next, 2012345);
}

static void stream_stops(void **state)
{
	struct place *place = *state;
	char path[128];
	uint64_t at;
	struct seen seen = { .file = 11, .stop_at = 1 };
	write_file(place, 11, true);
	snprintf(path, sizeof(path), "%s/f11", place->dir);
	assert_int_equal(prefetch_bulk_stream(path, 0, size_of(11), see, &seen, NULL), 77);
	assert_int_equal(
	        prefetch_bulk_stream(path, 0, size_of(11) + 1, see, &(struct seen){ .file = 11 }, &at), -ENODATA);
	assert_int_equal(at, 2 << 20); /* the piece that is not complete */
	assert_int_equal(prefetch_bulk_stream("nothing", 0, 1, see, &seen, NULL), -ENOENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(whole_files_by_uring, make_place, drop_place),
		cmocka_unit_test_setup_teardown(whole_files_by_threads, make_place, drop_place),
		cmocka_unit_test_setup_teardown(ranges_of_files, make_place, drop_place),
		cmocka_unit_test_setup_teardown(changed_files_are_stale, make_place, drop_place),
		cmocka_unit_test_setup_teardown(missing_files_and_fifos, make_place, drop_place),
		cmocka_unit_test_setup_teardown(depth_is_a_limit, make_place, drop_place),
		cmocka_unit_test_setup_teardown(stream_delivers_in_order, make_place, drop_place),
		cmocka_unit_test_setup_teardown(streams_of_several_threads, make_place, drop_place),
		cmocka_unit_test_setup_teardown(stream_of_a_part, make_place, drop_place),
		cmocka_unit_test_setup_teardown(stream_stops, make_place, drop_place),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
