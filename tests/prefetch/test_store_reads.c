/* SPDX-License-Identifier: Apache-2.0 */
/* Samples that a disk reads alone, neighbours in storage: a store reads them together, where they are used soon. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "prefetch/engine.h"
#include "tests/prefetch/dataset.h"

enum { N_FILES = 300, SIZE = 110000, DEPTH = 16, CHUNK = 1 << 20, POOL = 8 << 20 };
static const uint64_t SIZES[] = { SIZE };

static struct dataset data;

struct counting_sink {
	struct prefetch_sink base;
	_Atomic uint32_t stored, wrong, longest; /* longest: bytes of a read */
};

static int store(struct prefetch_sink *base, uint32_t file, uint64_t offset, const uint8_t *bytes, uint32_t len)
{
	struct counting_sink *sink = (struct counting_sink *)base;
	sink->wrong += !dataset_equal(file, offset, bytes, len);
	sink->stored++;
	return 0;
}

static void drop(struct prefetch_sink *base, const struct cache_victim *victims, size_t n)
{
	(void)base;
	(void)victims;
	(void)n;
}

static uint64_t note_length(void *arg, uint32_t shard, uint64_t offset, uint32_t len)
{
	struct counting_sink *sink = arg;
	(void)shard;
	(void)offset;
	if (len > sink->longest)
		sink->longest = len;
	return 0;
}

struct outcome {
	uint64_t reads;
	uint32_t stored;  /* files */
	uint32_t longest; /* bytes of a read */
	struct prefetch_stream_stats stream;
};

/* Reads ahead what fits the window, while no reader comes. */
static struct outcome read_ahead(const struct shard_view_options *order, bool in_store, uint64_t memory_bytes)
{
	static const struct prefetch_sink_ops ops = { .store = store, .drop = drop };
	struct counting_sink sink = { .base.ops = &ops };
	const struct prefetch_hook hook = { .delay_ns = note_length, .arg = &sink };
	struct prefetch_options options = {
		.index = data.index, .memory_bytes = memory_bytes, .depth = DEPTH, .sink = &sink.base, .hook = &hook
	};
	struct shard_view_options view_options = *order;
	struct base_err err = { 0 };
	struct prefetch_stream *stream;
	struct prefetch_stats stats;
	struct shard_view *view;
	struct prefetch *p;
	view_options.world = 1;
	assert_int_equal(prefetch_source_local(data.index, PREFETCH_IO_BUFFERED, &err, &options.source), 0);
	options.source->store = in_store;
	if (prefetch_new(&options, &err, &p) < 0)
		fail_msg("%s", err.text);
	assert_int_equal(shard_view_new(data.index, &view_options, &err, &view), 0);
	assert_int_equal(prefetch_stream_new(p, &(struct prefetch_stream_options){ .view = view }, &stream), 0);
	while (!prefetch_idle(p))
		usleep(1000);
	struct outcome o = { .stored = sink.stored, .longest = sink.longest };
	prefetch_stream_stats_get(stream, &o.stream);
	prefetch_stats_get(p, &stats);
	o.reads = stats.reads;
	assert_int_equal(sink.wrong, 0);
	prefetch_stream_free(stream);
	prefetch_free(p);
	shard_view_free(view);
	return o;
}

static const struct shard_view_options chunk = { .order = SHARD_ORDER_CHUNK, .chunk_bytes = CHUNK, .pool_bytes = POOL };

/* Nine files of 110 KB are a chunk.  One that lies in two shards is two requests, and so is one that goes on at the
 * dataset's beginning.  Chunks that lie side by side may be one. */
static void a_store_reads_a_chunk_by_one_request(void **state)
{
	const uint64_t chunks = N_FILES / (CHUNK / SIZE) + 1;
	(void)state;
	struct outcome o = read_ahead(&chunk, true, 256 << 20);
	assert_int_equal(o.stored, N_FILES);
	assert_in_range(o.reads, 1, chunks + data.n_shards + 1);
}

static void a_disk_reads_each_file_alone(void **state)
{
	(void)state;
	struct outcome o = read_ahead(&chunk, false, 256 << 20);
	assert_int_equal(o.stored, N_FILES);
	assert_int_equal(o.reads, N_FILES);
}

/* Neighbours that are used next would be in flight at the same time; reads of them have 1 MiB. */
static void a_store_reads_the_stored_order_by_the_megabyte(void **state)
{
	const struct shard_view_options stored = { .order = SHARD_ORDER_NONE };
	(void)state;
	struct outcome o = read_ahead(&stored, true, 256 << 20);
	assert_int_equal(o.stored, N_FILES);
	assert_in_range(o.reads, N_FILES * (uint64_t)SIZE / SHARD_BLOCK, N_FILES / (SHARD_BLOCK / SIZE) + 3);
	assert_in_range(o.longest, SIZE, SHARD_BLOCK);
}

/* All files are within the window, but neighbours are used too late to be worth a longer read. */
static void a_store_reads_a_full_shuffle_one_by_one(void **state)
{
	const struct shard_view_options full = { .order = SHARD_ORDER_FULL };
	(void)state;
	struct outcome o = read_ahead(&full, true, 256 << 20);
	assert_int_equal(o.stored, N_FILES);
	assert_in_range(o.reads, N_FILES * 3 / 4, N_FILES);
}

/* A read of neighbours begins in the window, and is as long as the landing memory allows. */
static void reads_of_chunks_are_bounded(void **state)
{
	const struct shard_view_options long_chunk = {
		.order = SHARD_ORDER_CHUNK, .chunk_bytes = 4 << 20, .pool_bytes = 16 << 20
	};
	const uint64_t memory = 64 << 20, longest = prefetch_landing_bytes(memory) / 8;
	(void)state;
	struct outcome o = read_ahead(&long_chunk, true, memory);
	assert_in_range(o.longest, SHARD_BLOCK + 1, longest);
	assert_in_range(o.stored, 1, N_FILES - 1);
	assert_in_range(o.stream.window_bytes, o.stream.window_limit - longest, o.stream.window_limit + longest);
}

static int group_set_up(void **state)
{
	(void)state;
	dataset_new(&data, N_FILES, 2, SIZES, 1);
	return 0;
}

static int group_tear_down(void **state)
{
	(void)state;
	dataset_free(&data);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_store_reads_a_chunk_by_one_request),
		cmocka_unit_test(a_disk_reads_each_file_alone),
		cmocka_unit_test(a_store_reads_the_stored_order_by_the_megabyte),
		cmocka_unit_test(a_store_reads_a_full_shuffle_one_by_one),
		cmocka_unit_test(reads_of_chunks_are_bounded),
	};
	return cmocka_run_group_tests_name("prefetch/store_reads", tests, group_set_up, group_tear_down);
}
