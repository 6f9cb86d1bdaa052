/* SPDX-License-Identifier: Apache-2.0 */
/* The engine with a tier in front of its source: what is fetched once is read from the tier, by every process. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "cache/tier.h"
#include "cache/tier_uses.h"
#include "prefetch/prefetch.h"
#include "prefetch/sink.h"
#include "prefetch/stream.h"
#include "shard/base/io.h"
#include "tests/cache/tier_dir.h"
#include "tests/prefetch/asked.h"
#include "tests/prefetch/dataset.h"

static const uint64_t SIZES[] = { 1, 511, 4096, 4097, 70000, 110001, 1 << 20, (1 << 20) + 1, (3 << 20) + 12345, 33 };
enum { N_SIZES = sizeof(SIZES) / sizeof(SIZES[0]), N_FILES = 60, N_SHARDS = 3, MIB = 1 << 20 };

static struct dataset data;
static const uint8_t identity[CACHE_TIER_IDENTITY] = { 7 };

static void ask(struct prefetch *p, struct asked *a, uint32_t number, uint32_t block)
{
	asked_begin(p, a, (struct prefetch_demand){ .file = number, .block = block });
}

static int await(struct asked *a)
{
	int rc = asked_wait(a);
	assert_true(rc < 0 || a->right);
	return rc;
}

static int get(struct prefetch *p, uint32_t number, uint32_t block)
{
	return asked_get(p, (struct prefetch_demand){ .file = number, .block = block });
}

static uint32_t blocks_of(uint32_t number)
{
	return (uint32_t)((dataset_length(&data, number) + SHARD_BLOCK - 1) / SHARD_BLOCK);
}

/* A process of the host, as far as the tier can tell: an engine and its own tier object. */
struct process {
	struct cache_tier *tier;
	struct prefetch *p;
};

static struct process begin(bool threads)
{
	struct process one;
	struct base_err err = { 0 };
	if (cache_tier_open(tier_dir, CACHE_TIER_SIZE_MIN, identity, &err, &one.tier) < 0)
		fail_msg("%s", err.text);
	struct prefetch_options options = {
		.index = data.index, .memory_bytes = 64 << 20, .threads = threads, .tier = one.tier
	};
	if (prefetch_new(&options, &err, &one.p) < 0)
		fail_msg("%s", err.text);
	return one;
}

static void end(struct process *one)
{
	prefetch_free(one->p);
	cache_tier_close(one->tier);
}

static struct prefetch_tier_stats tier_stats(struct process *one)
{
	struct prefetch_tier_stats stats;
	assert_true(prefetch_tier_stats(one->p, &stats));
	return stats;
}

static uint64_t read_bytes(struct process *one)
{
	struct prefetch_stats stats;
	prefetch_stats_get(one->p, &stats);
	return stats.read_bytes;
}

static void read_all(struct process *one)
{
	for (uint32_t f = 0; f < N_FILES; f++)
		for (uint32_t b = 0; b < blocks_of(f); b++)
			assert_int_equal(get(one->p, f, b), 0);
}

static uint64_t blocks_of_all(void)
{
	uint64_t n = 0;
	for (uint32_t f = 0; f < N_FILES; f++)
		n += blocks_of(f);
	return n;
}

static void what_was_fetched_is_not_fetched_again(void **state)
{
	(void)state;
	for (unsigned threads = 0; threads < 2; threads++) {
		struct process one = begin(threads);
		read_all(&one);
		assert_int_equal(tier_stats(&one).blocks.stored, blocks_of_all());
		assert_true(read_bytes(&one) > 0);
		end(&one);
		one = begin(threads);
		read_all(&one);
		struct prefetch_tier_stats stats = tier_stats(&one);
		assert_int_equal(stats.blocks.hits, blocks_of_all());
		assert_int_equal(stats.blocks.misses, 0);
		assert_int_equal(read_bytes(&one), 0);
		assert_true(stats.fill.dataset_bytes >= stats.blocks.hit_bytes);
		end(&one);
		unlink(tier_file);
	}
}

static void damaged_blocks_are_fetched_again(void **state)
{
	(void)state;
	static uint8_t bytes[MIB];
	struct process one = begin(false);
	read_all(&one);
	uint64_t used = tier_stats(&one).blocks.stored_bytes;
	end(&one);
	int fd = open(tier_file, O_RDWR);
	struct stat st;
	assert_true(fd >= 0 && fstat(fd, &st) == 0);
	/* One byte in each 64 KiB: records, entries and blocks, but not the header. */
	for (off_t at = 4096; at < st.st_size; at += 65536) {
		ssize_t got = pread(fd, bytes, 1, at);
		bytes[0] ^= 0x10;
		assert_true(got == 1 && pwrite(fd, bytes, 1, at) == 1);
	}
	close(fd);
	one = begin(false);
	read_all(&one);
	struct prefetch_tier_stats stats = tier_stats(&one);
	assert_true(stats.blocks.bad > 0 && stats.blocks.misses > 0 && used > 0);
	assert_true(read_bytes(&one) > 0);
	assert_int_equal(stats.off, 0);
	end(&one);
}

/* Tells whether a process has claimed a block. */
static bool claims_are_there(void)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)1 << 61, .l_len = 0 };
	int fd = open(tier_file, O_RDWR);
	assert_true(fd >= 0 && fcntl(fd, F_OFD_GETLK, &lock) == 0);
	close(fd);
	return lock.l_type != F_UNLCK;
}

static void each_block_is_fetched_by_one_of_two_processes(void **state)
{
	(void)state;
	struct process all[2] = { begin(true), begin(true) };
	static struct asked a[2][N_FILES];
	for (uint32_t f = 0; f < N_FILES; f++)
		for (unsigned i = 0; i < 2; i++)
			ask(all[i].p, &a[i][f], f, 0);
	for (uint32_t f = 0; f < N_FILES; f++)
		for (unsigned i = 0; i < 2; i++)
			assert_int_equal(await(&a[i][f]), 0);
	uint64_t stored = 0, hits = 0;
	for (unsigned i = 0; i < 2; i++) {
		stored += tier_stats(&all[i]).blocks.stored;
		hits += tier_stats(&all[i]).blocks.hits;
	}
	assert_int_equal(stored, N_FILES);
	assert_int_equal(hits, N_FILES);
	assert_false(claims_are_there());
	end(&all[0]);
	end(&all[1]);
}

static void claims_of_a_process_that_hangs_are_waited_for_and_passed(void **state)
{
	(void)state;
	struct process one = begin(false);
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)1 << 61, .l_len = 0 };
	int fd = open(tier_file, O_RDWR);
	struct asked a;
	assert_true(fd >= 0 && fcntl(fd, F_OFD_SETLK, &lock) == 0); /* all claims there are */
	ask(one.p, &a, 5, 0);
	usleep(100000);
	assert_int_equal(read_bytes(&one), 0);
	assert_int_equal(await(&a), 0); /* after some seconds */
	assert_true(read_bytes(&one) > 0);
	/* And when the other process ends, its claims end. */
	ask(one.p, &a, 6, 0);
	close(fd);
	assert_int_equal(await(&a), 0);
	end(&one);
}

static void freeing_does_not_wait_for_claims(void **state)
{
	(void)state;
	struct process one = begin(false);
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)1 << 61, .l_len = 0 };
	int fd = open(tier_file, O_RDWR);
	struct asked a;
	assert_true(fd >= 0 && fcntl(fd, F_OFD_SETLK, &lock) == 0);
	ask(one.p, &a, 5, 0);
	usleep(20000);
	end(&one);
	assert_int_equal(await(&a), -ECANCELED);
	close(fd);
}

static ssize_t full(int fd, const void *buf, size_t len, off_t offset)
{
	(void)fd;
	(void)buf;
	(void)len;
	(void)offset;
	errno = ENOSPC;
	return -1;
}

static void a_full_disk_switches_the_tier_off_and_reading_goes_on(void **state)
{
	(void)state;
	struct process one = begin(true);
	struct base_io io = base_io_libc;
	io.pwrite = full;
	base_io = &io;
	for (unsigned round = 0; round < 2; round++)
		read_all(&one);
	assert_int_equal(tier_stats(&one).off, ENOSPC);
	assert_int_equal(tier_stats(&one).blocks.stored, 0);
	end(&one);
	base_io = &base_io_libc;
}

static void wrong_bytes_of_the_source_do_not_enter_the_tier(void **state)
{
	(void)state;
	char path[128];
	struct process one;
	/* All shards are zeros: a reader gets an error, and the tier gets nothing. */
	struct dataset other;
	dataset_new(&other, 4, 1, &SIZES[4], 1);
	dataset_shard_path(&other, 0, path);
	int fd = open(path, O_WRONLY);
	struct stat st;
	assert_true(fd >= 0 && fstat(fd, &st) == 0);
	static uint8_t zeros[MIB];
	assert_true(pwrite(fd, zeros, (size_t)st.st_size, 0) == st.st_size);
	close(fd);
	struct dataset right = data;
	data = other;
	one = begin(false);
	assert_true(get(one.p, 0, 0) < 0);
	assert_int_equal(tier_stats(&one).blocks.stored, 0);
	end(&one);
	data = right;
	dataset_free(&other);
}

static void an_error_of_the_source_ends_the_claim(void **state)
{
	char path[128];
	struct stat st;
	(void)state;
	struct process one = begin(true);
	assert_int_equal(get(one.p, 0, 0), 0);
	for (uint32_t shard = 0; shard < N_SHARDS; shard++) {
		dataset_shard_path(&data, shard, path);
		assert_true(stat(path, &st) == 0 && truncate(path, 0) == 0 && truncate(path, st.st_size) == 0);
	}
	assert_true(get(one.p, 5, 0) < 0);
	assert_false(claims_are_there());
	assert_int_equal(tier_stats(&one).blocks.stored, 1);
	assert_int_equal(get(one.p, 0, 0), 0); /* it is in memory */
	end(&one);
	dataset_free(&data);
	dataset_new(&data, N_FILES, N_SHARDS, SIZES, N_SIZES);
}

enum { N_SMALL = 2000, NAMES_AT_ONCE = 256, N_LARGE = CACHE_TIER_SIZE_MIN / MIB + 8 };
static const uint64_t LARGE[] = { MIB };
static const uint64_t SMALL[] = { 4096 };

/* Announces some names, then waits until it is let go. */
struct slow_sink {
	struct prefetch_sink base;
	pthread_mutex_t lock;
	pthread_cond_t cv;
	bool let_go;
	uint32_t names;
	bool stored[N_SMALL];
};

static uint32_t slow_announce(struct prefetch_sink *sink, void *user, uint64_t epoch, uint64_t turn, uint32_t n)
{
	struct slow_sink *s = (struct slow_sink *)sink;
	(void)user;
	(void)epoch;
	(void)turn;
	pthread_mutex_lock(&s->lock);
	s->names += n;
	while (s->names > NAMES_AT_ONCE && !s->let_go)
		pthread_cond_wait(&s->cv, &s->lock);
	pthread_mutex_unlock(&s->lock);
	return n;
}

static int slow_store(struct prefetch_sink *sink, uint32_t number, uint64_t offset, const uint8_t *bytes, uint32_t len)
{
	struct slow_sink *s = (struct slow_sink *)sink;
	assert_true(dataset_equal(number, offset, bytes, len));
	pthread_mutex_lock(&s->lock);
	s->stored[number] = true;
	pthread_mutex_unlock(&s->lock);
	return 0;
}

static void slow_drop(struct prefetch_sink *sink, const struct cache_victim *victims, size_t n)
{
	struct slow_sink *s = (struct slow_sink *)sink;
	pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < n; i++)
		s->stored[victims[i].id] = false;
	pthread_mutex_unlock(&s->lock);
}

/* Waits until a file is stored.  Returns false after `ms` ms. */
static bool comes(struct slow_sink *s, uint32_t number, unsigned ms)
{
	bool there = false;
	for (unsigned i = 0; i <= ms && !there; i++) {
		usleep(i ? 1000 : 0);
		pthread_mutex_lock(&s->lock);
		there = s->stored[number];
		pthread_mutex_unlock(&s->lock);
	}
	return there;
}

static uint64_t late_by_5_ms(void *arg, uint32_t shard, uint64_t offset, uint32_t len)
{
	(void)arg;
	(void)shard;
	(void)offset;
	(void)len;
	return 5000000;
}

/* Reads the first `turns` turns of a dataset in a store far away, with the tier, while only the first names of its only
 * pool are announced.  Returns how many of them came: each within `ms` ms. */
static uint64_t turns_that_come(uint64_t turns, unsigned ms)
{
	static const struct prefetch_sink_ops ops = {
		.announce = slow_announce, .store = slow_store, .drop = slow_drop
	};
	struct slow_sink sink = {
		.base = { .ops = &ops }, .lock = PTHREAD_MUTEX_INITIALIZER, .cv = PTHREAD_COND_INITIALIZER
	};
	const struct shard_view_options order = {
		.order = SHARD_ORDER_CHUNK, .world = 1, .chunk_bytes = 256 << 10, .pool_bytes = 64 << 20
	};
	const struct prefetch_hook hook = { .delay_ns = late_by_5_ms };
	struct prefetch_options options = {
		.index = data.index, .memory_bytes = 64 << 20, .sink = &sink.base, .hook = &hook
	};
	struct base_err err = { 0 };
	struct prefetch *p;
	struct shard_view *view;
	struct shard_epoch *epoch;
	struct prefetch_stream *stream;
	assert_int_equal(cache_tier_open(tier_dir, CACHE_TIER_SIZE_MIN, identity, &err, &options.tier), 0);
	assert_int_equal(prefetch_source_local(data.index, PREFETCH_IO_BUFFERED, &err, &options.source), 0);
	options.source->store = true;
	assert_int_equal(prefetch_new(&options, &err, &p), 0);
	assert_int_equal(shard_view_new(data.index, &order, &err, &view), 0);
	assert_int_equal(shard_view_epoch(view, 0, &epoch), 0);
	assert_int_equal(prefetch_stream_new(p, &(struct prefetch_stream_options){ .view = view }, &stream), 0);
	uint64_t k = 0;
	for (; k < turns; k++) {
		uint32_t sample;
		assert_int_equal(shard_epoch_turn(epoch, 0, k, &sample, NULL), 0);
		if (!comes(&sink, sample, ms))
			break;
		prefetch_stream_used(stream, &(struct prefetch_use){ .turn = k }, 1);
	}
	pthread_mutex_lock(&sink.lock);
	sink.let_go = true;
	pthread_cond_broadcast(&sink.cv);
	pthread_mutex_unlock(&sink.lock);
	prefetch_stream_free(stream);
	shard_epoch_put(epoch);
	shard_view_free(view);
	prefetch_free(p);
	cache_tier_close(options.tier);
	return k;
}

/* Else each of its next turns would be a request of its own.  What the tier has needs none. */
static void a_reader_waits_for_names_only_if_its_files_are_not_in_the_tier(void **state)
{
	(void)state;
	struct dataset large = data;
	dataset_new(&data, N_SMALL, 1, SMALL, 1);
	assert_in_range(turns_that_come(100, 300), 16, 50);
	struct process one = begin(false);
	for (uint32_t f = 0; f < N_SMALL; f++)
		assert_int_equal(get(one.p, f, 0), 0);
	end(&one);
	assert_int_equal(turns_that_come(100, 10000), 100);
	dataset_free(&data);
	data = large;
}

/* A table in which this host uses every sample. */
static struct cache_use_table *table_of_all(void)
{
	uint32_t n = shard_index_info(data.index)->n_samples;
	struct cache_use_table *table = cache_use_table_new(n);
	assert_non_null(table);
	for (uint32_t i = 0; i < n; i++)
		cache_use_table_set(table, i, i, n);
	return table;
}

enum { FAR = 20 };

/* How a stream tells uses: struct prefetch_stream_options. */
struct telling {
	bool tells_uses;
	uint64_t epoch, uses_epoch;
};

/* Reads an epoch of an order, while the tier knows when this host uses each sample in the epochs FAR and FAR + 1 of one
 * order, and that it reads FAR.  Returns how many blocks the tier moved to those of their next use. */
static uint64_t moved_by_reads(struct telling how)
{
	static const struct prefetch_sink_ops ops = {
		.announce = slow_announce, .store = slow_store, .drop = slow_drop
	};
	struct slow_sink sink = { .base = { .ops = &ops },
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.cv = PTHREAD_COND_INITIALIZER,
		.let_go = true };
	const struct shard_view_options order = { .order = SHARD_ORDER_CHUNK, .world = 1 };
	struct prefetch_options options = { .index = data.index, .memory_bytes = 64 << 20, .sink = &sink.base };
	struct prefetch_stream_options mine = {
		.epoch = how.epoch, .tells_uses = how.tells_uses, .uses_epoch = how.uses_epoch
	};
	const struct cache_tier_told told = { .order = 1, .world = 2, .n = 1 };
	struct cache_tier_stats stats;
	struct base_err err = { 0 };
	struct prefetch *p;
	struct shard_view *view;
	struct shard_epoch *epoch;
	struct prefetch_stream *stream;
	assert_int_equal(cache_tier_open(tier_dir, CACHE_TIER_SIZE_MIN, identity, &err, &options.tier), 0);
	assert_int_equal(cache_tier_uses_new_told(options.tier, data.index, &options.tier_uses), 0);
	assert_int_equal(cache_tier_uses_follow(options.tier_uses, &told), 0);
	cache_tier_uses_tell(options.tier_uses, FAR, table_of_all());
	cache_tier_uses_tell(options.tier_uses, FAR + 1, table_of_all());
	cache_tier_uses_reach(options.tier_uses, FAR, 0, 1);
	assert_int_equal(prefetch_new(&options, &err, &p), 0);
	assert_int_equal(shard_view_new(data.index, &order, &err, &view), 0);
	assert_int_equal(shard_view_epoch(view, how.epoch, &epoch), 0);
	mine.view = view;
	assert_int_equal(prefetch_stream_new(p, &mine, &stream), 0);
	for (uint64_t k = 0; k < N_LARGE; k++) {
		uint32_t sample;
		assert_int_equal(shard_epoch_turn(epoch, 0, k, &sample, NULL), 0);
		assert_true(comes(&sink, sample, 10000));
		prefetch_stream_used(stream, &(struct prefetch_use){ .epoch = how.epoch, .turn = k }, 1);
	}
	prefetch_stream_free(stream);
	shard_epoch_put(epoch);
	shard_view_free(view);
	prefetch_free(p);
	cache_tier_stats_get(options.tier, &stats);
	cache_tier_uses_free(options.tier_uses);
	cache_tier_close(options.tier);
	return stats.moved;
}

/* Streams of other trainers have their own epoch numbers.  Those of announced lists do not know when an epoch of the
 * told order begins. */
static void only_a_stream_of_the_told_order_tells_uses(void **state)
{
	(void)state;
	struct dataset small = data;
	dataset_new(&data, N_LARGE, 1, LARGE, 1);
	assert_int_equal(moved_by_reads((struct telling){ .epoch = 0 }), 0);
	assert_int_equal(moved_by_reads((struct telling){ .epoch = FAR }), 0);
	assert_true(moved_by_reads((struct telling){ .tells_uses = true, .uses_epoch = CACHE_TIER_USES_LATEST }) > 0);
	assert_int_equal(moved_by_reads((struct telling){ .tells_uses = true, .epoch = FAR }), 0); /* the same use */
	dataset_free(&data);
	data = small;
}

static int group_set_up(void **state)
{
	(void)state;
	dataset_new(&data, N_FILES, N_SHARDS, SIZES, N_SIZES);
	return 0;
}

static int group_tear_down(void **state)
{
	(void)state;
	dataset_free(&data);
	return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, tier_dir_set_up, tier_dir_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(what_was_fetched_is_not_fetched_again),
		TEST(damaged_blocks_are_fetched_again),
		TEST(each_block_is_fetched_by_one_of_two_processes),
		TEST(claims_of_a_process_that_hangs_are_waited_for_and_passed),
		TEST(freeing_does_not_wait_for_claims),
		TEST(a_full_disk_switches_the_tier_off_and_reading_goes_on),
		TEST(wrong_bytes_of_the_source_do_not_enter_the_tier),
		TEST(an_error_of_the_source_ends_the_claim),
		TEST(only_a_stream_of_the_told_order_tells_uses),
		TEST(a_reader_waits_for_names_only_if_its_files_are_not_in_the_tier),
	};
	return cmocka_run_group_tests_name("prefetch/tier", tests, group_set_up, group_tear_down);
}
