/* SPDX-License-Identifier: Apache-2.0 */
/* The tier on a local disk: right bytes or a miss, whatever happens to the file and to the processes that use it. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include <cmocka.h>

#include "cache/cache.h"
#include "cache/tier.h"
#include "shard/base/clock.h"
#include "shard/base/io.h"
#include "shard/block_sum.h"
#include "shard/format.h"
#include "tests/cache/tier_dir.h"

enum { MIB = 1 << 20, LEN = 100000, PAGE = 4096, BUCKETS_AT = 45056 /* before it: header and records */ };
#define SIZE CACHE_TIER_SIZE_MIN

static const uint8_t one[CACHE_TIER_IDENTITY] = { 1 }, two[CACHE_TIER_IDENTITY] = { 2 };

static struct cache_tier *opened(const uint8_t *identity)
{
	struct cache_tier *tier;
	struct base_err err = { 0 };
	if (cache_tier_open(tier_dir, SIZE, identity, &err, &tier) < 0)
		fail_msg("%s", err.text);
	return tier;
}

/* The bytes of a block are a function of its key. */
static struct cache_tier_block block_of(uint32_t number, uint32_t len, uint8_t *data)
{
	uint64_t x = number * UINT64_C(0x9e3779b97f4a7c15) + 1;
	for (uint32_t i = 0; i < len; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		data[i] = (uint8_t)x;
	}
	return (struct cache_tier_block){
		.key = cache_block_key(number, 0), .xxh3 = shard_block_sum(data, len), .len = len
	};
}

static int put(struct cache_tier *tier, uint32_t number, uint32_t len)
{
	static _Thread_local uint8_t data[MIB];
	struct cache_tier_block block = block_of(number, len, data);
	return cache_tier_put(tier, &block, data);
}

/* Gets a block; if the tier has it, its bytes are right. */
static int get(struct cache_tier *tier, uint32_t number, uint32_t len)
{
	static _Thread_local uint8_t data[MIB], want[MIB];
	struct cache_tier_block block = block_of(number, len, want);
	int rc = cache_tier_get(tier, &block, data);
	if (rc == 0 && memcmp(data, want, len) != 0)
		abort(); /* also in a child and in a thread */
	return rc;
}

/* Gets blocks 0 .. n - 1 and puts those that the tier does not have.  Returns their number. */
static uint64_t missing(struct cache_tier *tier, uint32_t n, uint32_t len)
{
	uint64_t missed = 0;
	for (uint32_t i = 0; i < n; i++)
		if (get(tier, i, len) < 0) {
			missed++;
			assert_int_equal(put(tier, i, len), 0);
		}
	return missed;
}

/* Tells whether the tier is full for a block of so many bytes. */
static bool full(struct cache_tier *tier, uint32_t len)
{
	return cache_tier_full(tier, &(struct cache_tier_block){ .len = len });
}

static struct cache_tier_stats stats_of(struct cache_tier *tier)
{
	struct cache_tier_stats stats;
	cache_tier_stats_get(tier, &stats);
	return stats;
}

/* Adds `by` to one byte of the file. */
static void change_byte(off_t at, uint8_t by)
{
	uint8_t byte;
	int fd = open(tier_file, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &byte, 1, at), 1);
	byte = (uint8_t)(byte + by);
	assert_int_equal(pwrite(fd, &byte, 1, at), 1);
	close(fd);
}

static void what_is_put_is_got(void **state)
{
	static const uint32_t lens[] = { 1, 7, 4096, LEN, MIB - 1, MIB };
	struct cache_tier *tier = opened(one), *other = opened(one);
	(void)state;
	for (uint32_t i = 0; i < 6; i++) {
		assert_int_equal(get(tier, i, lens[i]), -ENOENT);
		assert_int_equal(put(tier, i, lens[i]), 0);
		assert_int_equal(put(tier, i, lens[i]), 0); /* it stays as it is */
	}
	for (uint32_t i = 0; i < 6; i++) {
		assert_int_equal(get(tier, i, lens[i]), 0);
		assert_int_equal(get(other, i, lens[i]), 0);
	}
	struct cache_tier_stats stats = stats_of(tier);
	assert_int_equal(stats.hits, 6);
	assert_int_equal(stats.misses, 6);
	assert_int_equal(stats.stored, 6);
	assert_int_equal(stats.bad, 0);
	struct cache_tier_fill fill;
	assert_int_equal(cache_tier_fill_get(tier, &fill), 0);
	assert_int_equal(fill.used_bytes, 8 + 4096 + LEN + MIB - 1 + MIB); /* without gaps, each block once */
	cache_tier_close(other);
	cache_tier_close(tier);
	cache_tier_close(NULL);
}

static void it_stays_between_jobs(void **state)
{
	struct cache_tier *tier = opened(one);
	(void)state;
	assert_int_equal(put(tier, 1, LEN), 0);
	cache_tier_close(tier);
	tier = opened(one);
	assert_int_equal(get(tier, 1, LEN), 0);
	cache_tier_close(tier);
}

static void another_file_of_that_name_stays(void **state)
{
	struct cache_tier *tier;
	struct base_err err = { 0 };
	char text[16] = { 0 };
	(void)state;
	int fd = open(tier_file, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, "mine", 4), 4);
	assert_int_equal(cache_tier_open(tier_dir, SIZE, one, &err, &tier), -EPERM);
	assert_non_null(strstr(err.text, "is another file, and no tier; move it away"));
	assert_int_equal(pread(fd, text, sizeof(text), 0), 4);
	assert_string_equal(text, "mine");
	close(fd);
}

static void datasets_do_not_see_each_other(void **state)
{
	struct cache_tier *a = opened(one), *b = opened(two);
	(void)state;
	assert_int_equal(put(a, 1, LEN), 0);
	assert_int_equal(get(b, 1, LEN), -ENOENT);
	assert_int_equal(get(a, 1, LEN), 0);
	cache_tier_close(b);
	cache_tier_close(a);
}

static void a_block_with_other_bytes_in_the_index_is_a_miss(void **state)
{
	static uint8_t data[LEN];
	struct cache_tier *tier = opened(one);
	struct cache_tier_block block = block_of(1, LEN, data);
	(void)state;
	assert_int_equal(cache_tier_put(tier, &block, data), 0);
	block.xxh3++;
	assert_int_equal(cache_tier_get(tier, &block, data), -ENOENT);
	assert_int_equal(stats_of(tier).bad, 1);
	cache_tier_close(tier);
}

enum { FLIPPED_BLOCKS = 4, FLIPPED_LEN = 9001 };

/* Makes the same tier anew, with some blocks. */
static struct cache_tier *made_anew(void)
{
	unlink(tier_file);
	struct cache_tier *tier = opened(one);
	assert_int_equal(missing(tier, FLIPPED_BLOCKS, FLIPPED_LEN), FLIPPED_BLOCKS);
	return tier;
}

/* Calls `flip` for each byte of the file that is not zero and lies in [from, to), with a tier made anew.  Of pages that
 * are full of blocks, it takes some bytes.  Returns the number of bytes. */
static unsigned each_byte(off_t from, off_t to, void (*flip)(off_t at, struct cache_tier *tier))
{
	static uint8_t page[PAGE];
	unsigned n = 0;
	cache_tier_close(made_anew());
	int fd = open(tier_file, O_RDONLY | O_CLOEXEC); /* stays open while the file is made anew */
	assert_true(fd >= 0);
	for (off_t at = lseek(fd, from, SEEK_DATA); at >= 0 && at < to; at = lseek(fd, at + PAGE, SEEK_DATA)) {
		uint32_t set = 0;
		assert_int_equal(pread(fd, page, PAGE, at), PAGE);
		for (uint32_t i = 0; i < PAGE; i++)
			set += page[i] != 0;
		for (uint32_t i = 0; i < PAGE; i++)
			if (page[i] != 0 && (set < PAGE / 4 || (at + i) % 499 == 0)) {
				flip(at + i, made_anew());
				n++;
			}
	}
	close(fd);
	return n;
}

static void flip_and_get(off_t at, struct cache_tier *tier)
{
	change_byte(at, 1);
	assert_int_equal(missing(tier, FLIPPED_BLOCKS, FLIPPED_LEN), 1);
	assert_int_equal(stats_of(tier).bad, 1);
	assert_int_equal(missing(tier, FLIPPED_BLOCKS, FLIPPED_LEN), 0);
	cache_tier_close(tier);
}

static void a_flipped_byte_of_an_entry_or_a_block_is_a_miss_and_counted(void **state)
{
	(void)state;
	assert_true(each_byte(BUCKETS_AT, SIZE, flip_and_get) > FLIPPED_BLOCKS * (FLIPPED_LEN / 500));
}

static void flip_and_open(off_t at, struct cache_tier *tier)
{
	cache_tier_close(tier);
	change_byte(at, 1);
	for (int i = 0; i < 2; i++) {
		tier = opened(one);
		for (uint32_t tries = 0; missing(tier, FLIPPED_BLOCKS, FLIPPED_LEN) > 0; tries++)
			assert_true(tries < FLIPPED_BLOCKS + 1);
		assert_int_equal(put(tier, 1000 + (uint32_t)at, FLIPPED_LEN), 0); /* a change uses the records */
		assert_true(get(tier, 1000 + (uint32_t)at, FLIPPED_LEN) == 0);
		cache_tier_close(tier);
	}
}

static void a_flipped_byte_of_a_record_gives_no_wrong_bytes(void **state)
{
	(void)state;
	assert_true(each_byte(0, BUCKETS_AT, flip_and_open) > 0);
}

/* After a power cut, an entry can be on the disk, and its block not. */
static void a_block_that_was_never_written_is_a_miss(void **state)
{
	static uint8_t page[PAGE], zeros[PAGE];
	struct cache_tier *tier = opened(one);
	(void)state;
	assert_int_equal(put(tier, 1, LEN), 0);
	int fd = open(tier_file, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	off_t at = 0;
	for (off_t next = 0; next >= 0; next = lseek(fd, next + PAGE, SEEK_DATA)) {
		assert_int_equal(pread(fd, page, PAGE, next), PAGE);
		if (memcmp(page, zeros, PAGE) != 0)
			at = next; /* the last one is a page of the block */
	}
	assert_int_equal(pwrite(fd, zeros, PAGE, at), PAGE);
	close(fd);
	assert_int_equal(get(tier, 1, LEN), -ENOENT);
	assert_int_equal(stats_of(tier).bad, 1);
	assert_int_equal(get(tier, 1, LEN), -ENOENT); /* removed, so counted once */
	assert_int_equal(stats_of(tier).bad, 1);
	assert_int_equal(put(tier, 1, LEN), 0);
	assert_int_equal(get(tier, 1, LEN), 0);
	cache_tier_close(tier);
}

/* Puts blocks from `first` on, in another process, and writes a byte into a pipe after each.  The caller kills it. */
static pid_t writer(uint32_t first, uint32_t n, int *ret_pipe)
{
	int ends[2];
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct cache_tier *tier;
		if (cache_tier_open(tier_dir, SIZE, one, NULL, &tier) < 0)
			_exit(1);
		for (uint32_t i = first; i < first + n; i++)
			if (put(tier, i, LEN) < 0 || write(ends[1], "", 1) != 1)
				_exit(1);
		_exit(0);
	}
	close(ends[1]);
	*ret_pipe = ends[0];
	return pid;
}

static void a_killed_writer_costs_at_most_its_last_block(void **state)
{
	enum { ROUNDS = 20 };
	uint32_t done[ROUNDS];
	(void)state;
	for (uint32_t r = 0; r < ROUNDS; r++) {
		int from, status;
		char c;
		pid_t pid = writer(r * 1000, r + 10, &from); /* all rounds together fit the tier */
		for (done[r] = 0; done[r] < r + 1; done[r]++)
			assert_int_equal(read(from, &c, 1), 1);
		kill(pid, SIGKILL);
		while (read(from, &c, 1) == 1)
			done[r]++;
		close(from);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		struct cache_tier *tier = opened(one);
		for (uint32_t i = 0; i < done[r]; i++)
			assert_int_equal(get(tier, r * 1000 + i, LEN), 0);
		for (uint32_t i = 0; i < done[0]; i++)
			assert_int_equal(get(tier, i, LEN), 0);
		assert_int_equal(stats_of(tier).bad, 0);
		cache_tier_close(tier);
	}
}

static void two_processes_fill_one_tier(void **state)
{
	int from[2], status;
	char c;
	pid_t pid[2];
	(void)state;
	for (int i = 0; i < 2; i++)
		pid[i] = writer((uint32_t)i * 100, 200, &from[i]); /* 100 .. 199 are put by both */
	for (int i = 0; i < 2; i++) {
		while (read(from[i], &c, 1) == 1)
			;
		close(from[i]);
		assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
		assert_int_equal(status, 0);
	}
	struct cache_tier *tier = opened(one);
	for (uint32_t i = 0; i < 300; i++)
		assert_int_equal(get(tier, i, LEN), 0);
	cache_tier_close(tier);
}

static void *use_it(void *arg)
{
	struct cache_tier *tier = arg;
	for (uint32_t i = 0; i < 200; i++) {
		if (get(tier, i, 5000) == -ENOENT && put(tier, i, 5000) < 0)
			return tier;
		if (get(tier, i, 5000) < 0)
			return tier;
	}
	return NULL;
}

static void threads_share_it(void **state)
{
	pthread_t threads[4];
	struct cache_tier *tier = opened(one);
	(void)state;
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, use_it, tier), 0);
	for (int i = 0; i < 4; i++) {
		void *failed;
		pthread_join(threads[i], &failed);
		assert_null(failed);
	}
	assert_int_equal(stats_of(tier).bad, 0);
	cache_tier_close(tier);
}

static void its_size_is_never_exceeded_and_it_keeps_what_it_has(void **state)
{
	struct cache_tier *tier = opened(one);
	struct stat st;
	uint32_t n = 0;
	int rc;
	(void)state;
	while ((rc = put(tier, n, LEN)) == 0)
		n++;
	assert_int_equal(rc, -ENOBUFS);
	assert_true((uint64_t)n * LEN > SIZE / 10 * 9);
	for (uint32_t i = n; i < n + 50; i++)
		assert_int_equal(put(tier, i, LEN), -ENOBUFS);
	assert_int_equal(stats_of(tier).refused, 51);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(get(tier, i, LEN), 0);
	assert_int_equal(stat(tier_file, &st), 0);
	assert_int_equal(st.st_size, SIZE);
	cache_tier_close(tier);
}

static void a_dataset_that_nobody_uses_makes_room(void **state)
{
	struct cache_tier *a = opened(one), *b = opened(two);
	uint32_t n = 0;
	(void)state;
	while (put(a, n, LEN) == 0)
		n++;
	assert_int_equal(put(b, 0, LEN), -ENOBUFS); /* a is in use */
	cache_tier_close(a);
	for (uint32_t i = 0; i < 10; i++)
		assert_int_equal(put(b, 10000 + i, LEN), 0);
	a = opened(one);
	uint32_t left = 0;
	for (uint32_t i = 0; i < n; i++)
		left += get(a, i, LEN) == 0;
	assert_true(left > 0 && left < n); /* some went */
	assert_true(stats_of(a).bad == 0); /* and that is no damage */
	for (uint32_t i = 0; i < 10; i++)
		assert_int_equal(get(b, 10000 + i, LEN), 0);
	cache_tier_close(b);
	cache_tier_close(a);
}

static void many_datasets_come_and_go(void **state)
{
	(void)state;
	for (int i = 0; i < CACHE_TIER_DATASETS_MAX + 20; i++) {
		uint8_t identity[CACHE_TIER_IDENTITY] = { 3, (uint8_t)i, (uint8_t)(i >> 8) };
		struct cache_tier *tier = opened(identity);
		assert_int_equal(get(tier, 1, 5000), -ENOENT);
		assert_int_equal(put(tier, 1, 5000), 0);
		assert_int_equal(get(tier, 1, 5000), 0);
		cache_tier_close(tier);
	}
}

static int calls, fail_at, fail_with;

static ssize_t failing_pwrite(int fd, const void *buf, size_t len, off_t offset)
{
	if (++calls >= fail_at) {
		errno = fail_with;
		return -1;
	}
	return base_io_libc.pwrite(fd, buf, len, offset);
}

static ssize_t failing_pread(int fd, void *buf, size_t len, off_t offset)
{
	if (++calls >= fail_at) {
		errno = fail_with;
		return -1;
	}
	return base_io_libc.pread(fd, buf, len, offset);
}

/* The n-th write fails, and all later ones, for each n. */
static void a_full_disk_switches_it_off(void **state)
{
	struct base_io io = base_io_libc;
	(void)state;
	io.pwrite = failing_pwrite;
	fail_with = ENOSPC;
	for (fail_at = 1; fail_at <= 6; fail_at++) {
		struct cache_tier *tier = opened(one);
		base_io = &io;
		calls = 0;
		int rc = 0;
		for (uint32_t i = 0; i < 10 && rc == 0; i++)
			rc = put(tier, (uint32_t)fail_at * 100 + i, LEN);
		base_io = &base_io_libc;
		assert_int_equal(rc, -ENOSPC);
		assert_int_equal(cache_tier_off(tier), ENOSPC);
		assert_int_equal(put(tier, 1, LEN), -ENODEV);
		assert_int_equal(get(tier, 1, LEN), -ENODEV);
		cache_tier_close(tier);
		tier = opened(one);
		for (uint32_t i = 0; i < 10; i++)
			get(tier, (uint32_t)fail_at * 100 + i, LEN);
		assert_int_equal(stats_of(tier).bad, 0);
		cache_tier_close(tier);
	}
}

static void a_failing_disk_switches_it_off(void **state)
{
	struct base_io io = base_io_libc;
	struct cache_tier *tier = opened(one);
	(void)state;
	io.pread = failing_pread;
	fail_with = EIO;
	fail_at = 1;
	calls = 0;
	assert_int_equal(put(tier, 1, LEN), 0);
	base_io = &io;
	assert_int_equal(get(tier, 1, LEN), -EIO);
	base_io = &base_io_libc;
	assert_int_equal(cache_tier_off(tier), EIO);
	assert_int_equal(get(tier, 1, LEN), -ENODEV);
	cache_tier_close(tier);
}

static void a_file_that_was_cut_switches_it_off(void **state)
{
	struct cache_tier *tier = opened(one);
	(void)state;
	assert_int_equal(put(tier, 1, LEN), 0);
	assert_int_equal(truncate(tier_file, PAGE), 0);
	assert_int_equal(get(tier, 1, LEN), -ENODATA);
	cache_tier_close(tier);
	tier = opened(one); /* made anew */
	assert_int_equal(get(tier, 1, LEN), -ENOENT);
	assert_int_equal(put(tier, 1, LEN), 0);
	cache_tier_close(tier);
}

static void a_claim_ends_with_its_process(void **state)
{
	int ends[2], status;
	char c;
	struct cache_tier *tier = opened(one);
	(void)state;
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct cache_tier *mine;
		if (cache_tier_open(tier_dir, SIZE, one, NULL, &mine) < 0 || cache_tier_claim(mine, 0, 7, 1) < 0 ||
		        write(ends[1], "", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	assert_int_equal(read(ends[0], &c, 1), 1);
	assert_int_equal(cache_tier_claim(tier, 0, 7, 1), -EAGAIN);
	assert_int_equal(cache_tier_claim(tier, 0, 8, 1), 0);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(cache_tier_claim(tier, 0, 7, 1), 0);
	struct cache_tier *other = opened(one);
	assert_int_equal(cache_tier_claim(other, 0, 7, 1), -EAGAIN);
	cache_tier_unclaim(tier, 0, 7, 1);
	assert_int_equal(cache_tier_claim(other, 0, 7, 1), 0);
	cache_tier_close(other);
	cache_tier_close(tier);
	close(ends[0]);
	close(ends[1]);
}

static ssize_t counting_pread(int fd, void *buf, size_t len, off_t offset)
{
	calls++;
	return base_io_libc.pread(fd, buf, len, offset);
}

/* Returns the bytes of this process's memory that it alone uses. */
static uint64_t own_memory(void)
{
	unsigned long pages = 0;
	FILE *statm = fopen("/proc/self/statm", "re");
	assert_non_null(statm);
	assert_int_equal(fscanf(statm, "%*u %*u %*u %*u %*u %lu", &pages), 1); /* data and stack, touched or not */
	fclose(statm);
	return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Processor time of this process: other load of the machine does not change it. */
static uint64_t cpu_ns(void)
{
	struct timespec t;
	assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t), 0);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void a_tier_of_a_terabyte_opens_in_a_second_with_a_few_reads(void **state)
{
	struct base_io io = base_io_libc;
	struct cache_tier *tier;
	struct stat st;
	uint64_t best_ns = UINT64_MAX;
	(void)state;
	io.pread = counting_pread;
	for (int i = 0; i < 4; i++) { /* the first one makes it */
		uint64_t memory = own_memory(), begun_ns = cpu_ns();
		base_io = &io;
		calls = 0;
		int rc = cache_tier_open(tier_dir, UINT64_C(1) << 40, one, NULL, &tier);
		base_io = &base_io_libc;
		if (rc == -EFBIG)
			skip(); /* the file system of /tmp has no files of that size */
		assert_int_equal(rc, 0);
		uint64_t took_ns = cpu_ns() - begun_ns;
		best_ns = i > 0 && took_ns < best_ns ? took_ns : best_ns;
		assert_true(calls <= 1100); /* at most one for each segment */
		assert_int_equal(i == 0 ? put(tier, 1, LEN) : get(tier, 1, LEN), 0);
		assert_true(own_memory() < memory + 64 * MIB);
		cache_tier_close(tier);
	}
	assert_in_range(best_ns, 0, 999999999);
	assert_int_equal(stat(tier_file, &st), 0);
	assert_true(st.st_blocks * 512 < 64 * MIB);
}

static void another_size_makes_it_anew_unless_it_is_in_use(void **state)
{
	struct cache_tier *tier = opened(one), *other;
	struct base_err err = { 0 };
	(void)state;
	assert_int_equal(put(tier, 1, LEN), 0);
	assert_int_equal(cache_tier_emptied(tier), 0);
	assert_int_equal(cache_tier_open(tier_dir, SIZE * 2, one, &err, &other), -EBUSY);
	assert_non_null(strstr(err.text, "tier_size"));
	assert_int_equal(get(tier, 1, LEN), 0);
	cache_tier_close(tier);
	assert_int_equal(cache_tier_open(tier_dir, SIZE * 2, one, &err, &other), 0);
	assert_int_equal(get(other, 1, LEN), -ENOENT);
	assert_int_equal(cache_tier_emptied(other), SIZE);
	cache_tier_close(other);
	assert_int_equal(cache_tier_open(tier_dir, SIZE * 2, one, &err, &other), 0);
	assert_int_equal(cache_tier_emptied(other), 0);
	cache_tier_close(other);
	assert_int_equal(cache_tier_open(tier_dir, SIZE - 1, one, &err, &other), -EINVAL);
}

static void a_missing_directory_has_a_next_step(void **state)
{
	struct cache_tier *tier;
	struct base_err err = { 0 };
	char missing[PATH_MAX], step[PATH_MAX + 16];
	(void)state;
	snprintf(missing, sizeof(missing), "%s/a/b", tier_dir);
	snprintf(step, sizeof(step), "'mkdir -p %s'", missing);
	assert_int_equal(cache_tier_open(missing, SIZE, one, &err, &tier), -ENOENT);
	assert_non_null(strstr(err.text, step));
}

static void a_file_of_another_user_is_named_as_such(void **state)
{
	struct cache_tier *tier = opened(one);
	struct base_err err = { 0 };
	(void)state;
	cache_tier_close(tier);
	if (chown(tier_file, 12345, (gid_t)-1) < 0)
		skip();
	assert_int_equal(cache_tier_open(tier_dir, SIZE, one, &err, &tier), -EPERM);
	assert_non_null(strstr(err.text, "belongs to user 12345"));
	assert_null(strstr(err.text, "remove"));
}

static void a_file_that_others_can_read_or_that_is_a_link_is_refused(void **state)
{
	struct cache_tier *tier = opened(one);
	struct base_err err = { 0 };
	(void)state;
	cache_tier_close(tier);
	assert_int_equal(chmod(tier_file, 0644), 0);
	assert_int_equal(cache_tier_open(tier_dir, SIZE, one, &err, &tier), -EPERM);
	unlink(tier_file);
	assert_int_equal(symlink("/dev/null", tier_file), 0);
	assert_int_equal(cache_tier_open(tier_dir, SIZE, one, &err, &tier), -ELOOP);
	unlink(tier_file);
	assert_int_equal(mkfifo(tier_file, 0600), 0);
	assert_int_equal(cache_tier_open(tier_dir, SIZE, one, &err, &tier), -EPERM);
}

enum { GROUP = 23456, MEMBER = 12345, ANOTHER = 12346 };

/* Makes the directory that of a group.  Only root can. */
static void share_directory(mode_t mode)
{
	if (geteuid() != 0)
		skip(); /* other users are needed */
	assert_int_equal(chown(tier_dir, 0, GROUP), 0);
	assert_int_equal(chmod(tier_dir, mode), 0);
}

/* Runs a function as another user.  Returns its result, 0 .. 98. */
static int as_user(uid_t uid, bool member, int (*run)(void))
{
	int status = 0;
	pid_t child = fork();
	if (child == 0) {
		const gid_t group = GROUP;
		umask(077);
		if (setgroups(member ? 1 : 0, &group) < 0 || setgid(uid) < 0 || setuid(uid) < 0)
			_exit(99);
		_exit(run());
	}
	assert_true(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
	return WEXITSTATUS(status);
}

static char said[sizeof(((struct base_err *)0)->text)]; /* by the latest open that was refused, in this process */

/* Opens the tier.  Returns NULL, and `said`, if it is refused. */
static struct cache_tier *open_or_hear(void)
{
	struct cache_tier *tier = NULL;
	struct base_err err = { 0 };
	if (cache_tier_open(tier_dir, SIZE, one, &err, &tier) < 0)
		snprintf(said, sizeof(said), "%s", err.text);
	return tier;
}

static int first_puts(void)
{
	struct cache_tier *tier = open_or_hear();
	return !tier ? 1 : put(tier, 1, LEN) < 0 ? 2 : 0;
}

static int second_gets_and_puts(void)
{
	static struct cache_tier_dataset all[CACHE_TIER_DATASETS_MAX];
	struct cache_tier_fill fill;
	struct base_err err = { 0 };
	uint32_t n;
	struct cache_tier *tier = open_or_hear();
	if (!tier)
		return 1;
	if (get(tier, 1, LEN) < 0 || put(tier, 2, LEN) < 0 || cache_tier_claim(tier, 1, 0, LEN) < 0)
		return 2;
	if (cache_tier_list(tier_dir, &err, all, &n, &fill) < 0 || n != 1 || fill.used_bytes != 2 * LEN)
		return 3;
	return 0;
}

static int removes(void)
{
	struct base_err err = { 0 };
	return cache_tier_remove(tier_dir, one, &err) < 0;
}

static int makes_it_anew(void)
{
	struct cache_tier *tier;
	struct base_err err = { 0 };
	return cache_tier_open(tier_dir, 2 * SIZE, two, &err, &tier) < 0;
}

static int hears_of_the_group(void)
{
	return open_or_hear() ? 1
	                      : strstr(said, "belongs to group 23456, of which this user (12346) is no member") == NULL;
}

static int hears_of_the_owner(void)
{
	return open_or_hear() ? 1 : strstr(said, "belongs to user 12345") == NULL;
}

static int hears_how_to_share(void)
{
	return open_or_hear() ? 1 : strstr(said, "let the group share this one: 'chmod +t ") == NULL;
}

static int hears_that_it_is_no_tier(void)
{
	struct cache_tier_fill fill;
	static struct cache_tier_dataset all[CACHE_TIER_DATASETS_MAX];
	struct base_err err = { 0 };
	uint32_t n;
	if (cache_tier_list(tier_dir, &err, all, &n, &fill) != -EPERM || !strstr(err.text, "and no tier; move it away"))
		return 2;
	return open_or_hear() ? 1 : strstr(said, "is another file, and no tier; move it away") == NULL;
}

static int hears_that_it_is_still_private(void)
{
	return open_or_hear() ? 1 : strstr(said, "still that of user 12345 alone") == NULL;
}

static int hears_of_the_second_name(void)
{
	return open_or_hear() ? 1 : strstr(said, "second name") == NULL;
}

static void members_of_a_group_share_the_tier_of_its_directory(void **state)
{
	struct stat st;
	(void)state;
	share_directory(03770);
	assert_int_equal(as_user(MEMBER, true, first_puts), 0);
	assert_int_equal(stat(tier_file, &st), 0);
	assert_true(st.st_uid == MEMBER && st.st_gid == GROUP && (st.st_mode & 07777) == 0660);
	assert_int_equal(as_user(ANOTHER, true, second_gets_and_puts), 0);
	struct cache_tier *tier = opened(one);
	assert_int_equal(get(tier, 2, LEN), 0);
	/* A claim of one user counts for the others. */
	assert_int_equal(cache_tier_claim(tier, 1, 0, LEN), 0);
	assert_int_equal(as_user(ANOTHER, true, second_gets_and_puts), 2);
	assert_int_equal(as_user(ANOTHER, true, removes), 1); /* it is open */
	cache_tier_close(tier);
	assert_int_equal(as_user(ANOTHER, true, removes), 0);
	assert_int_equal(as_user(ANOTHER, true, makes_it_anew), 0);
}

static void who_is_no_member_is_refused(void **state)
{
	(void)state;
	share_directory(03775);
	assert_int_equal(as_user(ANOTHER, false, hears_of_the_group), 0); /* he cannot make one */
	assert_int_equal(as_user(MEMBER, true, first_puts), 0);
	assert_int_equal(as_user(ANOTHER, false, hears_of_the_group), 0);
	assert_int_equal(chmod(tier_dir, 03770), 0);
	assert_int_equal(as_user(ANOTHER, false, hears_of_the_group), 0);
}

static void a_directory_that_is_not_shared_has_a_private_tier(void **state)
{
	/* mkdir(2) in a directory of a group makes 02770 and 02775, if the umask is 007 or 002. */
	static const mode_t modes[] = { 0770, 01770, 02750, 02770, 02775, 03750, 03777 };
	struct stat st;
	(void)state;
	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		share_directory(modes[i]);
		assert_int_equal(chown(tier_dir, MEMBER, GROUP), 0);
		assert_int_equal(chmod(tier_dir, modes[i]), 0);
		assert_int_equal(as_user(MEMBER, true, first_puts), 0);
		assert_true(stat(tier_file, &st) == 0 && (st.st_mode & 0777) == 0600);
		assert_int_equal(as_user(ANOTHER, true, hears_of_the_owner), 0);
		if (modes[i] == 02770 || modes[i] == 02775)
			assert_int_equal(as_user(ANOTHER, true, hears_how_to_share), 0);
		unlink(tier_file);
	}
}

static void a_private_tier_is_shared_when_its_owner_opens_it_in_a_shared_directory(void **state)
{
	char second[sizeof(tier_file) + 8];
	(void)state;
	share_directory(0770);
	assert_int_equal(as_user(MEMBER, true, first_puts), 0);
	assert_int_equal(chmod(tier_dir, 03770), 0);
	assert_int_equal(as_user(ANOTHER, true, hears_that_it_is_still_private), 0);
	/* A file with two names may be any file of this user. */
	snprintf(second, sizeof(second), "%s/second", tier_dir);
	assert_int_equal(link(tier_file, second), 0);
	assert_int_equal(as_user(MEMBER, true, hears_of_the_second_name), 0);
	assert_int_equal(as_user(ANOTHER, true, hears_that_it_is_still_private), 0);
	assert_int_equal(unlink(second), 0);
	assert_int_equal(as_user(MEMBER, true, first_puts), 0);
	assert_int_equal(as_user(ANOTHER, true, second_gets_and_puts), 0);
}

/* As a member can, by rename(2), if the file's own directory lets him. */
static void a_private_file_that_got_the_name_of_a_tier_stays_private(void **state)
{
	static const char *const texts[] = { "", "a secret of the user", NULL };
	char name[sizeof(tier_file) + 8], text[32] = { 0 };
	struct stat st;
	(void)state;
	share_directory(03770);
	snprintf(name, sizeof(name), "%s/private", tier_dir);
	for (size_t i = 0; texts[i]; i++) {
		int fd = open(name, O_WRONLY | O_CREAT | O_EXCL, 0600);
		ssize_t len = (ssize_t)strlen(texts[i]);
		assert_true(fd >= 0 && write(fd, texts[i], (size_t)len) == len && fchown(fd, MEMBER, GROUP) == 0);
		close(fd);
		assert_int_equal(rename(name, tier_file), 0);
		assert_int_equal(as_user(MEMBER, true, hears_that_it_is_no_tier), 0);
		assert_int_equal(as_user(ANOTHER, true, hears_that_it_is_still_private), 0);
		assert_true(stat(tier_file, &st) == 0 && (st.st_mode & 07777) == 0600);
		fd = open(tier_file, O_RDONLY);
		assert_true(fd >= 0 && read(fd, text, sizeof(text)) == len && memcmp(text, texts[i], (size_t)len) == 0);
		close(fd);
		unlink(tier_file);
	}
}

static int renames_the_tier(void)
{
	char name[sizeof(tier_file) + 8];
	snprintf(name, sizeof(name), "%s/other", tier_dir);
	return rename(tier_file, name) == 0 || unlink(tier_file) == 0;
}

static void a_member_cannot_rename_the_tier_of_another(void **state)
{
	(void)state;
	share_directory(03770);
	assert_int_equal(as_user(MEMBER, true, first_puts), 0);
	assert_int_equal(as_user(ANOTHER, true, renames_the_tier), 0);
	assert_int_equal(as_user(ANOTHER, true, second_gets_and_puts), 0);
}

static void datasets_are_listed_and_removed(void **state)
{
	static struct cache_tier_dataset all[CACHE_TIER_DATASETS_MAX];
	struct cache_tier_fill fill;
	struct base_err err = { 0 };
	uint32_t n = 7;
	(void)state;
	assert_int_equal(cache_tier_list(tier_dir, &err, all, &n, &fill), -ENOENT);
	struct cache_tier *a = opened(one), *b = opened(two);
	assert_int_equal(put(a, 1, LEN), 0);
	assert_int_equal(put(b, 2, LEN), 0);
	assert_int_equal(put(b, 3, LEN), 0);
	cache_tier_close(a);
	assert_int_equal(cache_tier_list(tier_dir, &err, all, &n, &fill), 0);
	assert_int_equal(n, 2);
	assert_int_equal(fill.used_bytes, 3 * LEN);
	for (uint32_t i = 0; i < n; i++) {
		bool first = memcmp(all[i].identity, one, sizeof(one)) == 0;
		assert_int_equal(all[i].bytes, first ? LEN : 2 * LEN);
		assert_int_equal(all[i].open, !first);
	}
	assert_int_equal(cache_tier_remove(tier_dir, two, &err), -EBUSY);
	assert_int_equal(cache_tier_remove(tier_dir, one, &err), 0);
	assert_int_equal(cache_tier_remove(tier_dir, one, &err), -ESRCH);
	assert_int_equal(cache_tier_list(tier_dir, &err, all, &n, &fill), 0);
	assert_int_equal(n, 1);
	assert_int_equal(fill.used_bytes, 2 * LEN);
	assert_int_equal(get(b, 2, LEN), 0);
	cache_tier_close(b);
	assert_int_equal(truncate(tier_file, 0), 0);
	assert_int_equal(cache_tier_list(tier_dir, &err, all, &n, &fill), -EUCLEAN);
}

/* Tells a name by a process that has the dataset open. */
static void tell_name(const uint8_t *identity, const char *name)
{
	struct cache_tier *tier = opened(identity);
	cache_tier_tell_name(tier, name, strlen(name));
	cache_tier_close(tier);
}

/* Returns the name that a list shows of a dataset: "" if none. */
static const char *name_of(const uint8_t *identity)
{
	static struct cache_tier_dataset all[CACHE_TIER_DATASETS_MAX];
	struct cache_tier_fill fill;
	struct base_err err = { 0 };
	uint32_t n;
	assert_int_equal(cache_tier_list(tier_dir, &err, all, &n, &fill), 0);
	for (uint32_t i = 0; i < n; i++) {
		assert_non_null(memchr(all[i].name, 0, sizeof(all[i].name)));
		if (memcmp(all[i].identity, identity, CACHE_TIER_IDENTITY) == 0)
			return all[i].name;
	}
	return NULL;
}

static void names_of_datasets_are_listed(void **state)
{
	struct base_err err = { 0 };
	(void)state;
	cache_tier_close(opened(one));
	assert_string_equal(name_of(one), "");
	tell_name(one, "/data/images");
	tell_name(two, "s3://bucket/words");
	assert_string_equal(name_of(one), "/data/images");
	assert_string_equal(name_of(two), "s3://bucket/words");
	tell_name(one, "https://host/images"); /* it is mounted from another place */
	cache_tier_close(opened(one));
	assert_string_equal(name_of(one), "https://host/images");
	assert_string_equal(name_of(two), "s3://bucket/words");
	assert_int_equal(cache_tier_remove(tier_dir, one, &err), 0);
	cache_tier_close(opened(one));
	assert_string_equal(name_of(one), ""); /* what was removed is forgotten */
	assert_string_equal(name_of(two), "s3://bucket/words");
}

static void names_have_a_bounded_room_and_the_latest_stay(void **state)
{
	char name[2 * CACHE_TIER_NAME_MAX];
	uint8_t identity[CACHE_TIER_IDENTITY] = { 0 };
	(void)state;
	for (unsigned i = 0; i < 100; i++) {
		memset(name, 'x', sizeof(name));
		snprintf(name + sizeof(name) - 10, 10, "/%u", i);
		memcpy(identity, &i, sizeof(i));
		tell_name(identity, name);
		const char *told = name_of(identity);
		assert_int_equal(strlen(told), CACHE_TIER_NAME_MAX - 1);
		assert_memory_equal(told, "...x", 4); /* the end of a long name says more than its beginning */
		assert_string_equal(strrchr(told, '/'), strrchr(name + sizeof(name) - 10, '/'));
	}
	for (unsigned i = 0; i < 100; i++) {
		memcpy(identity, &i, sizeof(i));
		assert_int_equal(strlen(name_of(identity)), i < 93 ? 0 : CACHE_TIER_NAME_MAX - 1);
	}
	for (unsigned i = 0; i < 40; i++) {
		memcpy(identity, &i, sizeof(i));
		snprintf(name, sizeof(name), "s3://bucket/datasets/%05u", i);
		tell_name(identity, name);
	}
	for (unsigned i = 0; i < 40; i++) {
		memcpy(identity, &i, sizeof(i));
		snprintf(name, sizeof(name), "s3://bucket/datasets/%05u", i);
		assert_string_equal(name_of(identity), name);
	}
}

static void damaged_names_are_none(void **state)
{
	enum { NAMES_AT = 32, HITS_AT = PAGE / 2 };
	(void)state;
	for (off_t at = NAMES_AT; at < HITS_AT; at += 7) {
		tell_name(two, "s3://bucket/words");
		tell_name(one, "/data/images");
		change_byte(at, 1);
		assert_string_equal(name_of(one), "");
		assert_string_equal(name_of(two), "");
	}
	/* A length that goes beyond the end, with a right checksum: somebody else wrote it. */
	uint8_t page[PAGE];
	int fd = open(tier_file, O_RDWR | O_CLOEXEC);
	assert_int_equal(pread(fd, page, PAGE, 0), PAGE);
	memset(page + NAMES_AT + 8, 0xff, HITS_AT - NAMES_AT - 8);
	uint64_t check = XXH3_64bits_withSeed(page + NAMES_AT + 8, HITS_AT - NAMES_AT - 8, 0x3252454954504444);
	memcpy(page + NAMES_AT, &check, sizeof(check));
	assert_int_equal(pwrite(fd, page, PAGE, 0), PAGE);
	close(fd);
	assert_string_equal(name_of(one), "");
	tell_name(one, "/data/images");
	assert_string_equal(name_of(one), "/data/images");
}

static uint64_t hits_of(const uint8_t *identity)
{
	static struct cache_tier_dataset all[CACHE_TIER_DATASETS_MAX];
	struct cache_tier_fill fill;
	struct base_err err = { 0 };
	uint32_t n;
	assert_int_equal(cache_tier_list(tier_dir, &err, all, &n, &fill), 0);
	for (uint32_t i = 0; i < n; i++) {
		if (memcmp(all[i].identity, identity, CACHE_TIER_IDENTITY) == 0)
			return all[i].hits;
	}
	fail_msg("the tier does not know the dataset");
	return 0;
}

static void hits_of_all_processes_are_listed(void **state)
{
	enum { MANY = 5000 };
	struct base_err err = { 0 };
	(void)state;
	struct cache_tier *a = opened(one), *again = opened(one), *b = opened(two);
	assert_int_equal(put(a, 1, LEN), 0);
	assert_int_equal(put(b, 2, LEN), 0);
	assert_int_equal(get(a, 1, LEN), 0);
	assert_int_equal(get(a, 7, LEN), -ENOENT);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(get(again, 1, LEN), 0);
	cache_tier_close(a);
	cache_tier_close(again);
	assert_int_equal(hits_of(one), 4);
	for (unsigned i = 0; i < MANY; i++)
		assert_int_equal(get(b, 2, LEN), 0);
	assert_in_range(hits_of(two), MANY / 2, MANY); /* while a process has it open */
	cache_tier_close(b);
	assert_int_equal(hits_of(two), MANY);
	a = opened(one);
	assert_int_equal(get(a, 1, LEN), 0);
	cache_tier_close(a);
	assert_int_equal(hits_of(one), 5);
	assert_int_equal(cache_tier_remove(tier_dir, one, &err), 0);
	cache_tier_close(opened(one));
	assert_int_equal(hits_of(one), 0); /* it came anew */
}

static void a_full_tier_is_told_for_blocks_that_found_no_room(void **state)
{
	struct cache_tier *tier = opened(one);
	uint32_t n = 0;
	(void)state;
	assert_false(full(tier, LEN));
	while (put(tier, n, LEN) == 0)
		n++;
	while (!full(tier, LEN)) /* it is forgotten after a while */
		assert_int_equal(put(tier, n, LEN), -ENOBUFS);
	assert_false(full(tier, 1));
	cache_tier_close(tier);
}

static unsigned writes;

static ssize_t counted_write(int fd, const void *buf, size_t len, off_t offset)
{
	writes++;
	return pwrite(fd, buf, len, offset);
}

static void blocks_that_are_put_together_are_written_at_once(void **state)
{
	(void)state;
	enum { N = CACHE_TIER_PUT_MAX, MOST = 5000 };
	static uint8_t bytes[N * MOST], got[MOST];
	struct cache_tier_block blocks[N];
	struct cache_tier *tier = opened(one);
	struct cache_tier_stats stats;
	struct base_io io = base_io_libc;
	uint32_t at = 0;
	for (uint32_t i = 0; i < N; i++) {
		blocks[i] = block_of(i, 1 + i * 37, bytes + at);
		at += blocks[i].len;
	}
	/* Two are there; one is there twice. */
	assert_int_equal(put(tier, 5, blocks[5].len), 0);
	assert_int_equal(put(tier, 6, blocks[6].len), 0);
	io.pwrite = counted_write;
	base_io = &io;
	writes = 0;
	assert_int_equal(cache_tier_put_all(tier, blocks, N, bytes), 0);
	assert_true(
	        writes <= N - 2 + 1 + 2); /* entries, the segment, and blocks before and after those that are there */
	cache_tier_stats_get(tier, &stats);
	assert_int_equal(stats.stored, N);
	writes = 0;
	assert_int_equal(cache_tier_put_all(tier, blocks, N, bytes), 0);
	assert_int_equal(writes, 0);
	at = 0;
	for (uint32_t i = 0; i < N; i++) {
		assert_int_equal(cache_tier_get(tier, &blocks[i], got), 0);
		assert_memory_equal(got, bytes + at, blocks[i].len);
		at += blocks[i].len;
	}
	cache_tier_close(tier);
}

static void what_finds_room_of_a_batch_is_stored(void **state)
{
	(void)state;
	enum { N = 3, SMALL = 100 };
	static uint8_t bytes[2 * SHARD_BLOCK + SMALL], got[SHARD_BLOCK];
	struct cache_tier *tier = opened(one);
	uint32_t number = 100;
	while (put(tier, number, SHARD_BLOCK) == 0)
		number++;
	struct cache_tier_stats before, after;
	cache_tier_stats_get(tier, &before);
	struct cache_tier_block blocks[N] = { block_of(1, SHARD_BLOCK, bytes), block_of(2, SMALL, bytes + SHARD_BLOCK),
		block_of(3, SHARD_BLOCK, bytes + SHARD_BLOCK + SMALL) };
	assert_int_equal(cache_tier_put_all(tier, blocks, N, bytes), -ENOBUFS);
	cache_tier_stats_get(tier, &after);
	assert_int_equal(after.stored - before.stored, 1);
	assert_int_equal(after.refused - before.refused, 2);
	assert_int_equal(cache_tier_get(tier, &blocks[1], got), 0);
	assert_memory_equal(got, bytes + SHARD_BLOCK, SMALL);
	assert_int_equal(cache_tier_get(tier, &blocks[0], got), -ENOENT);
	assert_int_equal(cache_tier_off(tier), 0);
	cache_tier_close(tier);
}

/* As a process that was stopped in the middle of a change. */
static void a_lock_that_stays_taken_costs_changes_and_no_reads(void **state)
{
	(void)state;
	static uint8_t bytes[LEN], got[LEN];
	struct cache_tier *tier = opened(one);
	struct cache_tier_stats stats;
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)1 << 60, .l_len = 1 };
	struct cache_tier_block there = block_of(1, LEN, bytes);
	assert_int_equal(cache_tier_put(tier, &there, bytes), 0);
	int fd = open(tier_file, O_RDWR);
	assert_true(fd >= 0 && fcntl(fd, F_OFD_SETLK, &lock) == 0);
	for (uint32_t i = 2; i < 100; i++) /* only the first one waits */
		assert_int_equal(put(tier, i, LEN), -ENOBUFS);
	assert_int_equal(cache_tier_get(tier, &there, got), 0);
	assert_memory_equal(got, bytes, LEN);
	cache_tier_stats_get(tier, &stats);
	assert_int_equal(stats.refused, 98);
	assert_int_equal(cache_tier_off(tier), 0);
	close(fd);
	assert_int_equal(put(tier, 2, LEN), 0);
	cache_tier_close(tier);
}

static void who_works_for_claims_is_known(void **state)
{
	enum { SECONDS = 64 };
	struct cache_tier *a = opened(one), *b = opened(one), *c = opened(two);
	(void)state;
	assert_false(cache_tier_others_work(a));
	cache_tier_work(b);
	cache_tier_work(b);
	assert_true(cache_tier_others_work(a));
	assert_false(cache_tier_others_work(b)); /* that is this process */
	assert_false(cache_tier_others_work(c));
	/* A process that was stopped 20 seconds ago. */
	time_t then = (time_t)(base_now_ns() / 1000000000) - 20;
	struct flock lock = { .l_type = F_RDLCK,
		.l_whence = SEEK_SET,
		.l_start = ((off_t)1 << 60) + (1 << 20) + then % SECONDS,
		.l_len = 1 };
	int fd = open(tier_file, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0 && fcntl(fd, F_OFD_SETLK, &lock) == 0);
	assert_false(cache_tier_others_work(a));
	close(fd);
	assert_true(cache_tier_others_work(a));
	cache_tier_rest(b);
	assert_false(cache_tier_others_work(a));
	cache_tier_work(b);
	cache_tier_close(b);
	assert_false(cache_tier_others_work(a));
	cache_tier_close(a);
	cache_tier_close(c);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, tier_dir_set_up, tier_dir_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(what_is_put_is_got),
		TEST(it_stays_between_jobs),
		TEST(another_file_of_that_name_stays),
		TEST(datasets_do_not_see_each_other),
		TEST(a_block_with_other_bytes_in_the_index_is_a_miss),
		TEST(a_flipped_byte_of_an_entry_or_a_block_is_a_miss_and_counted),
		TEST(a_flipped_byte_of_a_record_gives_no_wrong_bytes),
		TEST(a_block_that_was_never_written_is_a_miss),
		TEST(a_killed_writer_costs_at_most_its_last_block),
		TEST(two_processes_fill_one_tier),
		TEST(threads_share_it),
		TEST(its_size_is_never_exceeded_and_it_keeps_what_it_has),
		TEST(a_dataset_that_nobody_uses_makes_room),
		TEST(many_datasets_come_and_go),
		TEST(a_full_disk_switches_it_off),
		TEST(a_failing_disk_switches_it_off),
		TEST(a_file_that_was_cut_switches_it_off),
		TEST(blocks_that_are_put_together_are_written_at_once),
		TEST(what_finds_room_of_a_batch_is_stored),
		TEST(a_lock_that_stays_taken_costs_changes_and_no_reads),
		TEST(a_claim_ends_with_its_process),
		TEST(who_works_for_claims_is_known),
		TEST(a_tier_of_a_terabyte_opens_in_a_second_with_a_few_reads),
		TEST(another_size_makes_it_anew_unless_it_is_in_use),
		TEST(a_missing_directory_has_a_next_step),
		TEST(datasets_are_listed_and_removed),
		TEST(names_of_datasets_are_listed),
		TEST(names_have_a_bounded_room_and_the_latest_stay),
		TEST(damaged_names_are_none),
		TEST(hits_of_all_processes_are_listed),
		TEST(a_full_tier_is_told_for_blocks_that_found_no_room),
		TEST(a_file_of_another_user_is_named_as_such),
		TEST(a_file_that_others_can_read_or_that_is_a_link_is_refused),
		TEST(members_of_a_group_share_the_tier_of_its_directory),
		TEST(who_is_no_member_is_refused),
		TEST(a_directory_that_is_not_shared_has_a_private_tier),
		TEST(a_private_tier_is_shared_when_its_owner_opens_it_in_a_shared_directory),
		TEST(a_private_file_that_got_the_name_of_a_tier_stays_private),
		TEST(a_member_cannot_rename_the_tier_of_another),
	};
	return cmocka_run_group_tests_name("cache/tier", tests, NULL, NULL);
}
