/* SPDX-License-Identifier: Apache-2.0 */
/* READs without a session, on the real engine: bytes, ends, errors, counters; fs/read.h first. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/hit_counting.h"
#include "fs/read.h"
#include "fs/read_latency.h"
#include "fs/watch.h"
#include "fs/worker_reads.h"
#include "tests/fs/fake_kernel.h"
#include "tests/fs/fake_server.h"
#include "tests/prefetch/dataset.h"

enum { MIB = 1 << 20, N_FILES = 30, N_SHARDS = 2, LARGE = 3, EMPTY = 4 };
static const uint64_t SIZES[] = { 1, 4097, MIB, 3 * MIB + 12345, 0 };
enum { N_SIZES = sizeof(SIZES) / sizeof(SIZES[0]) };

static struct dataset data;

static struct fake_server *start(void)
{
	struct base_err err = { 0 };
	struct fake_server *fake = fake_server_new(data.index, FS_LAYOUT_TREE, -1);
	const struct prefetch_options options = { .index = data.index, .memory_bytes = 64 << 20 };
	if (prefetch_new(&options, &err, &fake->server.prefetch) < 0)
		fail_msg("%s", err.text);
	assert_int_equal(fs_reads_new(&fake->server, &fake->server.reads), 0);
	return fake;
}

static void stop(struct fake_server *fake)
{
	prefetch_free(fake->server.prefetch);
	fs_reads_free(fake->server.reads);
	fake_server_free(fake);
}

static void ask(struct fake_server *fake, struct fake_request *request, uint32_t file, size_t size, off_t off)
{
	fs_read(fake_request_begin(request, &fake->server), file, size, off, false);
}

/* Reads a range and compares it with the file. Returns the bytes that came, or -errno. */
static long long get(struct fake_server *fake, uint32_t file, size_t size, off_t off)
{
	struct fake_request request;
	ask(fake, &request, file, size, off);
	int rc = fake_request_wait(&request);
	long long len = rc ? -rc : (long long)request.len;
	if (rc == 0)
		assert_true(dataset_equal(file, (uint64_t)off, request.bytes, request.len));
	fake_request_end(&request);
	return len;
}

static uint64_t count(const _Atomic uint64_t *counter)
{
	return fs_counted(counter);
}

static void every_range_of_every_file_is_right(void **state)
{
	(void)state;
	static const size_t sizes[] = { 1, 4096, 131072, MIB };
	struct fake_server *fake = start();
	const struct fs_counters *counters = &fake->server.counters;
	uint64_t n = 0, bytes = 0;
	for (uint32_t file = 0; file < N_SIZES; file++) {
		uint64_t length = dataset_length(&data, file);
		for (unsigned s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
			/* Steps that meet the ends of blocks from both sides. */
			for (uint64_t off = 0; off < length; off += MIB / 2 - 1) {
				uint64_t expected = length - off < sizes[s] ? length - off : sizes[s];
				assert_int_equal(get(fake, file, sizes[s], (off_t)off), expected);
				n++;
				bytes += expected;
			}
		}
	}
	assert_int_equal(count(&counters->reads), n);
	assert_int_equal(count(&counters->asked), n);
	assert_int_equal(count(&counters->replies), n);
	assert_int_equal(count(&counters->read_reply_bytes), bytes);
	assert_int_equal(count(&counters->errors), 0);
	stop(fake);
}

static void a_reply_ends_at_the_end_of_the_file(void **state)
{
	(void)state;
	struct fake_server *fake = start();
	off_t length = (off_t)dataset_length(&data, LARGE);
	assert_int_equal(get(fake, LARGE, MIB, length - 5), 5);
	assert_int_equal(get(fake, LARGE, MIB, length), 0);
	assert_int_equal(get(fake, LARGE, MIB, length + 12345), 0);
	assert_int_equal(get(fake, LARGE, MIB, INT64_MAX), 0);
	assert_int_equal(get(fake, LARGE, 0, 0), 0);
	assert_int_equal(get(fake, EMPTY, MIB, 0), 0);
	/* More than the kernel asks for is cut. */
	assert_int_equal(get(fake, LARGE, SIZE_MAX, 1), FS_READ_MAX);
	/* What needs no byte is no READ for the engine. */
	assert_int_equal(count(&fake->server.counters.reads), 2);
	stop(fake);
}

static void what_cannot_be_read_is_refused(void **state)
{
	(void)state;
	struct fake_server *fake = start();
	assert_int_equal(get(fake, LARGE, 1, -1), -EINVAL);
	assert_true(get(fake, N_FILES, 1, 0) < 0);
	assert_int_equal(count(&fake->server.counters.errors), 2);
	assert_int_equal(count(&fake->server.counters.asked), 0);
	stop(fake);
}

static void more_readers_than_the_pool_has_requests_are_answered(void **state)
{
	(void)state;
	enum { N = 3 * FS_READ_POOL };
	struct fake_server *fake = start();
	struct fake_request *requests = calloc(N, sizeof(*requests));
	assert_non_null(requests);
	for (unsigned round = 0; round < 2; round++) {
		for (uint32_t i = 0; i < N; i++)
			ask(fake, &requests[i], LARGE + i % 5 * N_SIZES, 4096,
			        (off_t)(i % 7) * (MIB / 2) - (i % 7 ? 9 : 0));
		for (uint32_t i = 0; i < N; i++) {
			off_t off = (off_t)(i % 7) * (MIB / 2) - (i % 7 ? 9 : 0);
			assert_int_equal(fake_request_wait(&requests[i]), 0);
			assert_int_equal(requests[i].len, 4096);
			assert_true(dataset_equal(
			        LARGE + i % 5 * N_SIZES, (uint64_t)off, requests[i].bytes, requests[i].len));
			fake_request_end(&requests[i]);
		}
	}
	assert_int_equal(count(&fake->server.counters.asked), 2 * N);
	assert_int_equal(count(&fake->server.counters.replies), 2 * N);
	free(requests);
	stop(fake);
}

static void a_shard_that_is_cut_is_an_error_of_the_reader(void **state)
{
	(void)state;
	char path[128];
	for (uint32_t shard = 0; shard < N_SHARDS; shard++) {
		dataset_shard_path(&data, shard, path);
		assert_int_equal(truncate(path, 0), 0);
	}
	struct fake_server *fake = start();
	assert_int_equal(get(fake, LARGE, 4096, MIB - 1), -ESTALE); /* two blocks, one answer */
	assert_int_equal(get(fake, 1, 4096, 0), -ESTALE);
	assert_int_equal(count(&fake->server.counters.errors), 2);
	assert_int_equal(count(&fake->server.counters.replies), 2);
	assert_int_equal(count(&fake->server.counters.read_reply_bytes), 0);
	stop(fake);
	dataset_free(&data);
	dataset_new(&data, N_FILES, N_SHARDS, SIZES, N_SIZES);
}

static void freeing_the_engine_answers_what_is_in_flight(void **state)
{
	(void)state;
	enum { N = 2 * FS_READ_POOL };
	struct fake_server *fake = start();
	struct fake_request *requests = calloc(N, sizeof(*requests));
	assert_non_null(requests);
	for (uint32_t i = 0; i < N; i++)
		ask(fake, &requests[i], LARGE + i % 5 * N_SIZES, MIB, MIB / 2);
	stop(fake);
	for (uint32_t i = 0; i < N; i++) {
		assert_true(fake_request_answered(&requests[i]));
		assert_true(requests[i].error == 0 || requests[i].error == EIO);
		fake_request_end(&requests[i]);
	}
	free(requests);
}

static void a_worker_reads_itself_if_not_too_many_do(void **state)
{
	(void)state;
	struct fake_server *fake = start();
	struct fs_server *server = &fake->server;
	struct fs_worker worker = { 0 };
	struct prefetch_stats st;
	server->workers_read_max = 1;
	assert_null(fs_worker_reads_begin(server)); /* this is no worker yet */
	fs_worker_reads_init(&worker);
	for (unsigned round = 0; round < 2; round++) {
		_Atomic bool *reading = fs_worker_reads_begin(server);
		assert_ptr_equal(reading, &worker.reading);
		assert_null(fs_worker_reads_begin(server));
		fs_worker_reads_end(server, NULL);
		fs_worker_reads_end(server, reading);
	}
	uint64_t n = 0;
	for (uint32_t file = 0; file < N_FILES; file++) {
		if (file % N_SIZES != EMPTY) {
			assert_true(get(fake, file, MIB, 0) > 0);
			n++;
		}
	}
	prefetch_stats_get(server->prefetch, &st);
	/* Large files, and the first of each shard, are the engine's. */
	assert_in_range(st.caller_reads, n - N_FILES / N_SIZES - N_SHARDS, n - N_FILES / N_SIZES);
	assert_int_equal(st.misses, n);
	assert_int_equal(count(&server->counters.replies), n);
	assert_int_equal(server->workers_reading, 0);
	assert_false(worker.reading);
	fs_worker_reads_init(NULL);
	stop(fake);
}

static void watcher_and_latency_hear_of_each_read(void **state)
{
	(void)state;
	struct fake_server *fake = start();
	struct fs_hit_counting_count opens;
	struct fs_read_latency_epoch latency;
	for (uint32_t file = 0; file < 3; file++)
		assert_true(get(fake, file, 4096, 0) > 0);
	fs_watch_count(fake->server.watch, NULL, &opens);
	assert_int_equal(opens.opens, 0);
	assert_int_equal(count(&fake->server.counters.unwatched_reads), 3);
	fs_read_latency_get(fake->server.read_latency, 0, &latency);
	assert_int_equal(latency.n, 3);
	assert_int_equal(latency.sum_ns, count(&fake->server.counters.waited_ns));
	stop(fake);
}

static int set_up(void **state)
{
	(void)state;
	dataset_new(&data, N_FILES, N_SHARDS, SIZES, N_SIZES);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	dataset_free(&data);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_range_of_every_file_is_right),
		cmocka_unit_test(a_reply_ends_at_the_end_of_the_file),
		cmocka_unit_test(what_cannot_be_read_is_refused),
		cmocka_unit_test(more_readers_than_the_pool_has_requests_are_answered),
		cmocka_unit_test(a_shard_that_is_cut_is_an_error_of_the_reader),
		cmocka_unit_test(freeing_the_engine_answers_what_is_in_flight),
		cmocka_unit_test(a_worker_reads_itself_if_not_too_many_do),
		cmocka_unit_test(watcher_and_latency_hear_of_each_read),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
