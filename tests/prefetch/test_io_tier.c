/* SPDX-License-Identifier: Apache-2.0 */
/* Reads of several blocks with a tier: what is asked of the source, and where its bytes go. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cache/cache.h"
#include "cache/tier.h"
#include "cache/tier_uses.h"
#include "prefetch/engine.h"
#include "prefetch/prefetch.h"
#include "shard/base/cleanup.h"
#include "shard/base/clock.h"
#include "shard/base/io.h"
#include "shard/block_sum.h"
#include "shard/view.h"
#include "tests/cache/tier_dir.h"
#include "tests/prefetch/dataset.h"

enum { SHARD = 9, LEN = 1000, BLOCKS = 600, GAP = 100, PITCH = LEN + GAP };

static const uint8_t identity[CACHE_TIER_IDENTITY] = { 3 };
static uint8_t truth[BLOCKS * PITCH], data[BLOCKS * PITCH];
static struct prefetch_block blocks[BLOCKS];
static struct cache_tier *tier;

/* A source that has read at once, and keeps what it was asked for. */
struct source {
	struct prefetch_io_backend base;
	pthread_mutex_t lock;
	pthread_cond_t cv;
	bool woken;
	struct prefetch_op *done;
	unsigned reads, inflight, most;
	uint64_t bytes;
	uint32_t align;
	int error;     /* of each read */
	uint64_t end;  /* bytes of the file */
	bool wrong;    /* it gives other bytes */
	off_t claimed; /* bytes of the first claim, when the latest read was submitted */
	unsigned hold; /* the first so many reads do not come back */
	struct prefetch_op *held;
} source;

/* Returns the bytes of the first claim in the tier; 0: there is none. */
static off_t first_claim(void)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)1 << 61, .l_len = 0 };
	int fd = open(tier_file, O_RDWR);
	assert_true(fd >= 0 && fcntl(fd, F_OFD_GETLK, &lock) == 0);
	close(fd);
	return lock.l_type == F_UNLCK ? 0 : lock.l_len;
}

static void source_submit(struct prefetch_io_backend *io, struct prefetch_op *op)
{
	(void)io;
	source.claimed = first_claim();
	source.reads++;
	source.bytes += op->len;
	source.most = ++source.inflight > source.most ? source.inflight : source.most;
	assert_true(op->offset % source.align == 0);
	uint64_t end = op->offset + op->len < source.end ? op->offset + op->len : source.end;
	op->res = source.error ? source.error : (int)(end > op->offset ? end - op->offset : 0);
	if (op->res > 0)
		memcpy(op->data, truth + op->offset, (size_t)op->res);
	if (op->res > 0 && source.wrong)
		memset(op->data, 0x55, (size_t)op->res);
	struct prefetch_op **list = source.reads <= source.hold ? &source.held : &source.done;
	op->next = *list;
	*list = op;
}

static void source_wait(struct prefetch_io_backend *io, int64_t timeout_ns, struct prefetch_op **ret_done)
{
	(void)io;
	lock_for_scope(&source.lock);
	while (!source.done && !source.woken && timeout_ns)
		pthread_cond_wait(&source.cv, &source.lock);
	source.woken = false;
	*ret_done = source.done;
	source.done = NULL;
	source.inflight = 0;
}

static void source_wake(struct prefetch_io_backend *io)
{
	(void)io;
	lock_for_scope(&source.lock);
	source.woken = true;
	pthread_cond_signal(&source.cv);
}

static void source_free(struct prefetch_io_backend *io)
{
	(void)io;
}

static const struct prefetch_io_ops source_ops = {
	.submit = source_submit, .wait = source_wait, .wake = source_wake, .free = source_free
};

static int set_up(void **state)
{
	struct base_err err = { 0 };
	if (tier_dir_set_up(state) < 0 || cache_tier_open(tier_dir, CACHE_TIER_SIZE_MIN, identity, &err, &tier) < 0)
		return -1;
	for (uint32_t i = 0; i < sizeof(truth); i++)
		truth[i] = (uint8_t)(i * 2654435761U >> 24);
	for (uint32_t i = 0; i < BLOCKS; i++)
		blocks[i] = (struct prefetch_block){ .key = cache_block_key(i, 0),
			.offset = (uint64_t)i * PITCH,
			.len = LEN,
			.xxh3 = shard_block_sum(truth + (size_t)i * PITCH, LEN) };
	memset(data, 0, sizeof(data));
	source = (struct source){ .base = { .ops = &source_ops }, .align = 1, .end = sizeof(truth) };
	pthread_mutex_init(&source.lock, NULL);
	pthread_cond_init(&source.cv, NULL);
	return 0;
}

static int tear_down(void **state)
{
	cache_tier_close(tier);
	return tier_dir_tear_down(state);
}

/* Puts block `i` into the tier. */
static void have(uint32_t i)
{
	const struct cache_tier_block block = { .key = blocks[i].key, .xxh3 = blocks[i].xxh3, .len = LEN };
	assert_int_equal(cache_tier_put(tier, &block, truth + (size_t)i * PITCH), 0);
}

/* Reads blocks [0, n) as one read that begins `skip` bytes later.  Returns its result.  *ret_tier_bytes may be NULL. */
static int read_rest(uint32_t skip, uint32_t n, uint32_t gap_bytes, uint32_t *ret_tier_bytes)
{
	struct prefetch_block_list list = STAILQ_HEAD_INITIALIZER(list);
	const struct prefetch_object object = { .fd = -1, .align = source.align };
	struct prefetch_io_backend *io;
	struct prefetch_op *done = NULL;
	assert_int_equal(prefetch_io_tier(NULL, tier, NULL, &source.base, &io), 0);
	for (uint32_t i = 0; i < n; i++)
		STAILQ_INSERT_TAIL(&list, &blocks[i], link);
	struct prefetch_op op = { .object = &object,
		.shard = SHARD,
		.data = data + skip,
		.offset = skip,
		.len = n * PITCH - skip,
		.blocks = &list,
		.gap_bytes = gap_bytes };
	op.len -= source.align == 1 ? GAP : 0;
	prefetch_io_submit(io, &op);
	while (!done)
		prefetch_io_wait(io, -1, &done);
	assert_ptr_equal(done, &op);
	prefetch_io_free(io);
	if (ret_tier_bytes)
		*ret_tier_bytes = op.tier_bytes;
	return op.res;
}

static int read_blocks(uint32_t n, uint32_t gap_bytes, uint32_t *ret_tier_bytes)
{
	return read_rest(0, n, gap_bytes, ret_tier_bytes);
}

static void assert_right(uint32_t first, uint32_t end)
{
	for (uint32_t i = first; i < end; i++)
		assert_memory_equal(data + (size_t)i * PITCH, truth + (size_t)i * PITCH, LEN);
}

static void a_read_without_anything_in_the_tier_is_one_read(void **state)
{
	(void)state;
	uint32_t from_tier;
	assert_int_equal(read_blocks(20, 0, &from_tier), 20 * PITCH - GAP);
	assert_right(0, 20);
	assert_int_equal(source.reads, 1);
	assert_int_equal(from_tier, 0);
	assert_int_equal(read_blocks(20, 0, &from_tier), 20 * PITCH - GAP);
	assert_int_equal(source.reads, 1);
	assert_int_equal(from_tier, 20 * PITCH - GAP);
}

static void only_what_is_missing_is_fetched(void **state)
{
	(void)state;
	uint32_t from_tier;
	for (uint32_t i = 0; i < 20; i++)
		if (i != 3 && i != 4 && i != 11)
			have(i);
	assert_int_equal(read_blocks(20, GAP, &from_tier), 20 * PITCH - GAP);
	assert_right(0, 20);
	assert_int_equal(source.reads, 2);
	assert_int_equal(source.bytes, 2 * LEN + GAP + LEN);
	assert_int_equal(from_tier, 20 * PITCH - GAP - source.bytes);
}

static void a_gap_that_the_tier_has_is_not_fetched_again(void **state)
{
	(void)state;
	have(1);
	have(2);
	assert_int_equal(read_blocks(4, 2 * PITCH + GAP, NULL), 4 * PITCH - GAP);
	assert_right(0, 4);
	assert_int_equal(source.reads, 2);
	assert_int_equal(source.bytes, 2 * LEN);
}

static void more_parts_than_operations_are_fetched_one_after_the_other(void **state)
{
	(void)state;
	for (uint32_t i = 1; i < BLOCKS; i += 2)
		have(i);
	assert_int_equal(read_blocks(BLOCKS, 0, NULL), BLOCKS * PITCH - GAP);
	assert_right(0, BLOCKS);
	assert_int_equal(source.reads, BLOCKS / 2);
	assert_true(source.most <= PREFETCH_OPS_MAX);
}

/* After a short read, the rest begins in the middle of a block. */
static void the_rest_of_a_block_is_fetched(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 4; i++)
		have(i);
	memcpy(data, truth, PITCH + LEN / 2);
	assert_int_equal(read_rest(PITCH + LEN / 2, 4, 0, NULL), 4 * PITCH - GAP - PITCH - LEN / 2);
	assert_right(0, 4);
	/* It begins between two blocks. */
	memset(data, 0, sizeof(data));
	source.bytes = 0;
	assert_int_equal(read_rest(PITCH + LEN, 4, 0, NULL), 4 * PITCH - GAP - PITCH - LEN);
	assert_right(2, 4);
	assert_int_equal(source.bytes, 0);
}

static void parts_are_aligned(void **state)
{
	(void)state;
	source.align = 512;
	source.end = 512 * 2 * PITCH;
	/* 512 blocks of PITCH bytes end at a multiple of the alignment. */
	for (uint32_t i = 0; i < 512; i++)
		if (i != 7 && i != 500)
			have(i);
	assert_int_equal(read_blocks(512, 0, NULL), 512 * PITCH);
	assert_right(0, 512);
	assert_int_equal(source.reads, 2);
	assert_true(source.bytes <= (uint64_t)2 * (LEN + 2 * 512));
}

static void a_short_file_is_a_short_read(void **state)
{
	(void)state;
	source.end = 10 * PITCH;
	assert_int_equal(read_blocks(20, 0, NULL), 10 * PITCH);
	assert_right(0, 10);
	struct cache_tier_stats stats;
	cache_tier_stats_get(tier, &stats);
	assert_int_equal(stats.stored, 10);
}

static void an_error_is_the_result_and_nothing_is_stored(void **state)
{
	(void)state;
	have(0);
	source.error = -EIO;
	assert_int_equal(read_blocks(4, 0, NULL), -EIO);
	struct cache_tier_stats stats;
	cache_tier_stats_get(tier, &stats);
	assert_int_equal(stats.stored, 1);
	/* No claim is left. */
	struct cache_tier *other;
	struct base_err err = { 0 };
	assert_int_equal(cache_tier_open(tier_dir, CACHE_TIER_SIZE_MIN, identity, &err, &other), 0);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(cache_tier_claim(other, SHARD, blocks[i].offset, LEN), 0);
	cache_tier_close(other);
}

static void neighbours_are_one_claim(void **state)
{
	(void)state;
	assert_int_equal(read_blocks(BLOCKS, GAP, NULL), BLOCKS * PITCH - GAP);
	assert_int_equal(source.claimed, BLOCKS * PITCH - GAP);
	assert_int_equal(first_claim(), 0);
}

static void wrong_bytes_are_not_stored(void **state)
{
	(void)state;
	source.wrong = true;
	assert_int_equal(read_blocks(4, 0, NULL), 4 * PITCH - GAP);
	struct cache_tier_stats stats;
	cache_tier_stats_get(tier, &stats);
	assert_int_equal(stats.stored, 0);
}

static void fill_the_tier(void)
{
	static uint8_t large[SHARD_BLOCK];
	struct cache_tier_block block = { .len = SHARD_BLOCK };
	for (uint32_t i = 0; block.len; i++) {
		block.key = cache_block_key(BLOCKS + i, 0);
		block.xxh3 = shard_block_sum(large, block.len);
		if (cache_tier_put(tier, &block, large) == -ENOBUFS)
			block.len /= 2;
	}
}

static void a_full_tier_is_not_claimed(void **state)
{
	(void)state;
	struct cache_tier *other;
	struct base_err err = { 0 };
	fill_the_tier();
	/* A process that has no room either has claimed all of it. */
	assert_int_equal(cache_tier_open(tier_dir, CACHE_TIER_SIZE_MIN, identity, &err, &other), 0);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(cache_tier_claim(other, SHARD, blocks[i].offset, LEN), 0);
	assert_int_equal(read_blocks(4, 0, NULL), 4 * PITCH - GAP);
	assert_right(0, 4);
	assert_int_equal(source.reads, 1);
	cache_tier_close(other);
}

/* Disk of the tier: writes of it hang as long as `hang`. */
static atomic_bool hang;

static ssize_t hanging_write(int fd, const void *buf, size_t len, off_t offset)
{
	while (atomic_load(&hang))
		usleep(1000);
	return pwrite(fd, buf, len, offset);
}

static void a_disk_that_hangs_for_seconds_costs_few_blocks(void **state)
{
	(void)state;
	enum { READS = 60, EACH = BLOCKS / READS, HANG_S = 6 };
	static struct prefetch_op ops[READS];
	static struct prefetch_block_list lists[READS];
	const struct prefetch_object object = { .fd = -1, .align = 1 };
	struct prefetch_io_backend *io;
	struct prefetch_op *done = NULL;
	struct prefetch_tier_stats stats;
	struct base_io slow = base_io_libc;
	uint32_t n = 0;
	slow.pwrite = hanging_write;
	base_io = &slow;
	atomic_store(&hang, true);
	assert_int_equal(prefetch_io_tier(NULL, tier, NULL, &source.base, &io), 0);
	for (uint32_t i = 0; i < READS; i++) {
		STAILQ_INIT(&lists[i]);
		for (uint32_t k = 0; k < EACH; k++)
			STAILQ_INSERT_TAIL(&lists[i], &blocks[i * EACH + k], link);
		ops[i] = (struct prefetch_op){ .object = &object,
			.shard = SHARD,
			.data = data + (size_t)i * EACH * PITCH,
			.offset = (uint64_t)i * EACH * PITCH,
			.len = EACH * PITCH,
			.blocks = &lists[i] };
		prefetch_io_submit(io, &ops[i]);
	}
	bool late = false;
	for (uint64_t since_ns = base_now_ns(); n < READS;) {
		prefetch_io_wait(io, late ? -1 : 0, &done);
		for (; done; done = done->next)
			n++;
		if (!late && base_now_ns() - since_ns > HANG_S * UINT64_C(1000000000)) {
			late = true;
			atomic_store(&hang, false);
		}
		if (!late)
			usleep(1000);
	}
	prefetch_io_tier_stats(io, &stats);
	prefetch_io_free(io);
	base_io = &base_io_libc;
	assert_right(0, BLOCKS);
	assert_int_equal(stats.blocks.stored + stats.skipped, BLOCKS);
	assert_true(stats.skipped < BLOCKS / 2);
}

/* The other process has some of the blocks, and stores them while the read waits. */
static void *store_later(void *arg)
{
	struct cache_tier *other = arg;
	for (uint32_t i = 2; i < 4; i++) {
		const struct cache_tier_block block = { .key = blocks[i].key, .xxh3 = blocks[i].xxh3, .len = LEN };
		usleep(50000);
		assert_int_equal(cache_tier_put(other, &block, truth + (size_t)i * PITCH), 0);
		cache_tier_unclaim(other, SHARD, blocks[i].offset, LEN);
	}
	return NULL;
}

static void blocks_that_others_fetch_are_waited_for(void **state)
{
	(void)state;
	struct cache_tier *other;
	struct base_err err = { 0 };
	pthread_t thread;
	uint32_t from_tier;
	assert_int_equal(cache_tier_open(tier_dir, CACHE_TIER_SIZE_MIN, identity, &err, &other), 0);
	for (uint32_t i = 2; i < 4; i++)
		assert_int_equal(cache_tier_claim(other, SHARD, blocks[i].offset, LEN), 0);
	assert_int_equal(pthread_create(&thread, NULL, store_later, other), 0);
	assert_int_equal(read_blocks(6, 0, &from_tier), 6 * PITCH - GAP);
	pthread_join(thread, NULL);
	assert_right(0, 6);
	assert_int_equal(source.bytes, 4 * LEN);
	assert_int_equal(from_tier, 6 * PITCH - GAP - source.bytes);
	cache_tier_close(other);
}

enum { FILES = 40, FILE_LEN = 4096 };
static struct dataset dataset; /* one shard, files back to back */

/* Makes a dataset.  The source has the first bytes of its shard; blocks[i] is that of storage slot i. */
static void begin_dataset_of(uint32_t files, uint64_t len)
{
	char path[128];
	size_t bytes = files * len < sizeof(truth) ? files * len : sizeof(truth);
	dataset_new(&dataset, files, 1, &len, 1);
	dataset_shard_path(&dataset, 0, path);
	int fd = open(path, O_RDONLY);
	assert_true(fd >= 0 && read(fd, truth, bytes) == (ssize_t)bytes);
	close(fd);
	for (uint32_t slot = 0; slot < files; slot++) {
		struct prefetch_block *b = &blocks[slot];
		uint32_t sample, file;
		assert_int_equal(shard_index_slot_sample(dataset.index, slot, &sample), 0);
		assert_int_equal(shard_index_sample_first(dataset.index, sample, &file), 0);
		*b = (struct prefetch_block){ .key = cache_block_key(file, 0) };
		assert_int_equal(shard_index_block(dataset.index, file, 0, &b->offset, &b->len, &b->xxh3), 0);
		assert_int_equal(b->offset, slot * len);
	}
}

static void begin_dataset(void)
{
	begin_dataset_of(FILES, FILE_LEN);
}

/* Reads the files of some slots (a bit each) as one read, with a gap of any size.  Returns how many bytes came between
 * them and are not in the tier. */
static uint32_t read_slots(uint64_t slots)
{
	struct prefetch_block_list list = STAILQ_HEAD_INITIALIZER(list);
	const struct prefetch_object object = { .fd = -1, .align = 1 };
	struct prefetch_op *done = NULL;
	struct prefetch_io_backend *io;
	uint32_t first = (uint32_t)__builtin_ctzll(slots), end = 64 - (uint32_t)__builtin_clzll(slots), bytes = 0;
	for (uint32_t i = first; i < end; i++)
		if (slots >> i & 1) {
			STAILQ_INSERT_TAIL(&list, &blocks[i], link);
			bytes += FILE_LEN;
		}
	assert_int_equal(prefetch_io_tier(dataset.index, tier, NULL, &source.base, &io), 0);
	struct prefetch_op op = { .object = &object,
		.data = data,
		.offset = first * FILE_LEN,
		.len = (end - first) * FILE_LEN,
		.blocks = &list,
		.gap_bytes = 1 << 20 };
	op.unused_bytes = op.len - bytes;
	prefetch_io_submit(io, &op);
	while (!done)
		prefetch_io_wait(io, -1, &done);
	assert_int_equal(op.res, op.len);
	for (uint32_t i = first; i < end; i++)
		if (slots >> i & 1)
			assert_memory_equal(data + (i - first) * FILE_LEN, truth + i * FILE_LEN, FILE_LEN);
	prefetch_io_free(io);
	return op.unused_bytes;
}

static void files_between_those_that_are_wanted_are_stored(void **state)
{
	(void)state;
	begin_dataset();
	assert_int_equal(read_slots(0x4d), 0); /* 0, 2, 3, 6 */
	assert_int_equal(source.reads, 1);
	assert_int_equal(source.claimed, 7 * FILE_LEN);
	assert_int_equal(first_claim(), 0);
	assert_int_equal(read_slots(0x32), 0); /* 1, 4, 5 */
	assert_int_equal(source.bytes, 7 * FILE_LEN);
	dataset_free(&dataset);
}

static void a_gap_that_another_process_fetches_is_not_fetched(void **state)
{
	(void)state;
	struct cache_tier *other;
	struct base_err err = { 0 };
	begin_dataset();
	assert_int_equal(cache_tier_open(tier_dir, CACHE_TIER_SIZE_MIN, identity, &err, &other), 0);
	assert_int_equal(cache_tier_claim(other, 0, 5 * FILE_LEN, FILE_LEN), 0);
	assert_int_equal(read_slots(0x145), 0); /* 0, 2, 6, 8: 1 and 7 come with them; 3, 4, 5 do not */
	assert_int_equal(source.reads, 2);
	assert_int_equal(source.bytes, 6 * FILE_LEN);
	cache_tier_close(other);
	assert_int_equal(read_slots(0x38), 0); /* 3, 4, 5: nobody has claimed them */
	assert_int_equal(source.bytes, 9 * FILE_LEN);
	dataset_free(&dataset);
}

static void files_between_that_are_not_stored_are_unused(void **state)
{
	(void)state;
	struct cache_tier_stats stats;
	begin_dataset();
	fill_the_tier();
	assert_int_equal(read_slots(0x4d), 3 * FILE_LEN); /* 0, 2, 3, 6 */
	assert_int_equal(source.reads, 1);
	/* A wrong one is not stored. */
	cache_tier_close(tier);
	assert_int_equal(unlink(tier_file), 0);
	struct base_err err = { 0 };
	assert_int_equal(cache_tier_open(tier_dir, CACHE_TIER_SIZE_MIN, identity, &err, &tier), 0);
	truth[FILE_LEN] ^= 1;
	assert_int_equal(read_slots(0x4d), FILE_LEN);
	cache_tier_stats_get(tier, &stats);
	assert_int_equal(stats.stored, 6);
	dataset_free(&dataset);
}

static void two_reads_of_a_process_fetch_a_file_once(void **state)
{
	(void)state;
	enum { ROUNDS = 10 };
	const struct prefetch_object object = { .fd = -1, .align = 1 };
	struct prefetch_io_backend *io;
	begin_dataset();
	assert_int_equal(prefetch_io_tier(dataset.index, tier, NULL, &source.base, &io), 0);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		struct prefetch_block_list lists[2] = { STAILQ_HEAD_INITIALIZER(lists[0]),
			STAILQ_HEAD_INITIALIZER(lists[1]) };
		struct prefetch_op ops[2], *done;
		uint32_t first = 3 * i;
		STAILQ_INSERT_TAIL(&lists[0], &blocks[first], link);
		STAILQ_INSERT_TAIL(&lists[0], &blocks[first + 2], link);
		STAILQ_INSERT_TAIL(&lists[1], &blocks[first + 1], link); /* it lies in the gap of the other */
		for (uint32_t k = 0; k < 2; k++)
			ops[k] = (struct prefetch_op){ .object = &object,
				.data = data + k * 3 * FILE_LEN,
				.offset = (first + k) * FILE_LEN,
				.len = k ? FILE_LEN : 3 * FILE_LEN,
				.blocks = &lists[k],
				.gap_bytes = 1 << 20 };
		prefetch_io_submit(io, &ops[i % 2]);
		prefetch_io_submit(io, &ops[1 - i % 2]);
		for (uint32_t n = 0; n < 2;) {
			prefetch_io_wait(io, -1, &done);
			for (; done; done = done->next)
				n++;
		}
		assert_memory_equal(data + 3 * FILE_LEN, truth + (first + 1) * FILE_LEN, FILE_LEN);
		assert_int_equal(source.bytes, (i + 1) * 3 * FILE_LEN);
	}
	prefetch_io_free(io);
	dataset_free(&dataset);
}

/* Waits for the reads of a backend until some have come, or a while.  Returns them. */
static struct prefetch_op *some_done(struct prefetch_io_backend *io)
{
	struct prefetch_op *done;
	source_wake(&source.base); /* it has no timeout */
	prefetch_io_wait(io, 1000000, &done);
	return done;
}

static void a_reader_does_not_wait_for_a_slow_read_of_this_process(void **state)
{
	(void)state;
	const struct prefetch_object object = { .fd = -1, .align = 1 };
	struct prefetch_block_list lists[2] = { STAILQ_HEAD_INITIALIZER(lists[0]), STAILQ_HEAD_INITIALIZER(lists[1]) };
	struct prefetch_io_backend *io;
	struct prefetch_op ops[2], *done = NULL;
	begin_dataset();
	assert_int_equal(prefetch_io_tier(dataset.index, tier, NULL, &source.base, &io), 0);
	STAILQ_INSERT_TAIL(&lists[0], &blocks[0], link);
	STAILQ_INSERT_TAIL(&lists[0], &blocks[2], link);
	STAILQ_INSERT_TAIL(&lists[1], &blocks[1], link); /* it lies in the gap of the other */
	for (uint32_t k = 0; k < 2; k++)
		ops[k] = (struct prefetch_op){ .object = &object,
			.data = data + k * 3 * FILE_LEN,
			.offset = k * FILE_LEN,
			.len = k ? FILE_LEN : 3 * FILE_LEN,
			.blocks = &lists[k],
			.gap_bytes = 1 << 20,
			.urgent = k == 1 };
	source.hold = 1;
	prefetch_io_submit(io, &ops[0]);
	while (!source.reads)
		assert_null(some_done(io));
	uint64_t since_ns = base_now_ns();
	prefetch_io_submit(io, &ops[1]);
	while (!done)
		done = some_done(io);
	assert_ptr_equal(done, &ops[1]);
	assert_null(done->next);
	assert_true(base_now_ns() - since_ns < UINT64_C(8000000000)); /* blocks of others are waited for, 10 s */
	assert_memory_equal(data + 3 * FILE_LEN, truth + FILE_LEN, FILE_LEN);
	assert_int_equal(source.reads, 2);
	source.done = source.held;
	for (done = NULL; !done;)
		done = some_done(io);
	assert_ptr_equal(done, &ops[0]);
	prefetch_io_free(io);
	assert_int_equal(read_slots(7), 0); /* all are there */
	assert_int_equal(source.reads, 2);
	assert_int_equal(first_claim(), 0);
	dataset_free(&dataset);
}

enum { MANY = 600, LARGE = 128 << 10, EPOCH = CACHE_TIER_EPOCH }; /* files that do not fit the tier */

/* Returns block `slot`, with its uses from an epoch on.  *ret_used may be NULL. */
static struct cache_tier_block uses_of(struct cache_tier_uses *uses, uint64_t epoch, uint32_t slot, bool *ret_used)
{
	struct cache_tier_block block = { .key = blocks[slot].key, .xxh3 = blocks[slot].xxh3, .len = blocks[slot].len };
	bool used = cache_tier_uses_of(uses, epoch, &block);
	if (ret_used)
		*ret_used = used;
	return block;
}

/* Finds a slot and an epoch in which the host uses the slot, after the one before it; the slots on both sides are used
 * in the next epoch again, and the slot itself, if at all, later. */
static uint32_t find_slot(struct cache_tier_uses *uses, uint64_t *ret_epoch)
{
	for (uint64_t epoch = 0; epoch < 10000; epoch++)
		for (uint32_t slot = 1; slot <= 3; slot++) {
			bool used;
			const struct cache_tier_block before = uses_of(uses, epoch, slot - 1, NULL),
			                              after = uses_of(uses, epoch, slot + 1, NULL),
			                              gap = uses_of(uses, epoch, slot, &used);
			*ret_epoch = epoch;
			if (used && gap.now > before.now && gap.next > (epoch + 2) * EPOCH &&
			        before.next <= (epoch + 2) * EPOCH && after.next <= (epoch + 2) * EPOCH)
				return slot;
		}
	fail_msg("no such slot");
	return 0;
}

/* Fills the tier with blocks that are used in the epoch after the next. */
static void fill_for(uint64_t epoch)
{
	static uint8_t bytes[LARGE];
	struct cache_tier_block block = { .xxh3 = shard_block_sum(bytes, LARGE),
		.len = LARGE,
		.now = (uint32_t)(epoch * EPOCH + 1),
		.next = (uint32_t)((epoch + 2) * EPOCH + 1) };
	int rc = 0;
	for (uint32_t i = 0; rc == 0; i++) {
		block.key = cache_block_key(MANY + i, 0);
		rc = cache_tier_put(tier, &block, bytes);
	}
	assert_int_equal(rc, -ENOBUFS);
}

/* Makes the dataset, and the uses of a host of three. */
static struct cache_tier_uses *begin_uses(struct shard_view **ret_view)
{
	const struct shard_view_options options = { .world = 3, .order = SHARD_ORDER_FULL, .seed = 5 };
	struct cache_tier_uses *uses;
	struct base_err err = { 0 };
	begin_dataset_of(MANY, LARGE);
	assert_int_equal(shard_view_new(dataset.index, &options, &err, ret_view), 0);
	assert_int_equal(cache_tier_uses_new(tier, *ret_view, &uses), 0);
	assert_int_equal(cache_tier_uses_add(uses, 0), 0);
	return uses;
}

static void end_uses(struct cache_tier_uses *uses, struct shard_view *view)
{
	cache_tier_uses_free(uses);
	shard_view_free(view);
	dataset_free(&dataset);
}

/* Reads the files on both sides of a slot as one read.  Returns as read_slots. */
static uint32_t read_around(struct cache_tier_uses *uses, uint64_t epoch, uint32_t slot)
{
	const struct prefetch_object object = { .fd = -1, .align = 1 };
	struct prefetch_block_list list = STAILQ_HEAD_INITIALIZER(list);
	struct prefetch_io_backend *io;
	struct prefetch_op *done = NULL;
	assert_int_equal(prefetch_io_tier(dataset.index, tier, uses, &source.base, &io), 0);
	for (uint32_t i = slot - 1; i <= slot + 1; i += 2) {
		blocks[i].epoch = epoch;
		STAILQ_INSERT_TAIL(&list, &blocks[i], link);
	}
	struct prefetch_op op = { .object = &object,
		.data = data,
		.offset = (uint64_t)(slot - 1) * LARGE,
		.len = 3 * LARGE,
		.blocks = &list,
		.gap_bytes = 1 << 20,
		.unused_bytes = LARGE };
	prefetch_io_submit(io, &op);
	while (!done)
		prefetch_io_wait(io, -1, &done);
	assert_int_equal(op.res, op.len);
	prefetch_io_free(io);
	return op.unused_bytes;
}

/* Its next use is that of the other rank, in this epoch, and not the one of the epoch after the next. */
static void a_full_tier_takes_what_another_rank_uses_in_this_epoch(void **state)
{
	(void)state;
	struct shard_view *view;
	struct cache_tier_uses *uses = begin_uses(&view);
	uint64_t epoch;
	assert_int_equal(cache_tier_uses_add(uses, 1), 0); /* as if it were another process */
	uint32_t slot = find_slot(uses, &epoch);
	fill_for(epoch);
	assert_int_equal(read_around(uses, epoch, slot), 0);
	for (uint32_t i = slot - 1; i <= slot + 1; i++) {
		const struct cache_tier_block block = uses_of(uses, epoch, i, NULL);
		assert_int_equal(cache_tier_get(tier, &block, data), 0);
	}
	end_uses(uses, view);
}

static void a_file_between_that_no_rank_of_the_host_uses_does_not_split_a_read(void **state)
{
	(void)state;
	struct shard_view *view;
	struct cache_tier_uses *uses = begin_uses(&view);
	uint64_t epoch = 0;
	bool used = true;
	while (epoch < 10000 && (uses_of(uses, epoch, 1, &used), used))
		epoch++;
	assert_false(used);
	const struct cache_tier_block block = uses_of(uses, epoch, 1, NULL);
	assert_int_equal(cache_tier_put(tier, &block, truth + LARGE), 0);
	assert_int_equal(read_around(uses, epoch, 1), LARGE);
	assert_int_equal(source.reads, 1);
	end_uses(uses, view);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_read_without_anything_in_the_tier_is_one_read),
		TEST(only_what_is_missing_is_fetched),
		TEST(a_gap_that_the_tier_has_is_not_fetched_again),
		TEST(more_parts_than_operations_are_fetched_one_after_the_other),
		TEST(the_rest_of_a_block_is_fetched),
		TEST(parts_are_aligned),
		TEST(a_short_file_is_a_short_read),
		TEST(an_error_is_the_result_and_nothing_is_stored),
		TEST(neighbours_are_one_claim),
		TEST(wrong_bytes_are_not_stored),
		TEST(blocks_that_others_fetch_are_waited_for),
		TEST(a_full_tier_is_not_claimed),
		TEST(a_disk_that_hangs_for_seconds_costs_few_blocks),
		TEST(files_between_those_that_are_wanted_are_stored),
		TEST(a_gap_that_another_process_fetches_is_not_fetched),
		TEST(files_between_that_are_not_stored_are_unused),
		TEST(two_reads_of_a_process_fetch_a_file_once),
		TEST(a_reader_does_not_wait_for_a_slow_read_of_this_process),
		TEST(a_full_tier_takes_what_another_rank_uses_in_this_epoch),
		TEST(a_file_between_that_no_rank_of_the_host_uses_does_not_split_a_read),
	};
	return cmocka_run_group_tests_name("prefetch/io_tier", tests, NULL, NULL);
}
