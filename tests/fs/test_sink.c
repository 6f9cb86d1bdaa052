/* SPDX-License-Identifier: Apache-2.0 */
/* The page-cache sink without a session: what it tells the kernel, on the real engine; fs/sink.h first. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/sink.h"
#include "shard/base/cleanup.h"
#include "tests/fs/fake_kernel.h"
#include "tests/fs/fake_server.h"
#include "tests/prefetch/dataset.h"

enum { N_FILES = 300, N_SHARDS = 2, LARGE = 3, BLOCKS_MAX = 4, INVALS_MAX = 512 };
static const uint64_t SIZES[] = { 1, 4097, 70000, (3 << 20) + 12345, 33 };
enum { N_SIZES = sizeof(SIZES) / sizeof(SIZES[0]) };

static struct dataset data;
static char mountpoint[64];

/* What the kernel was told. */
static struct told {
	pthread_mutex_t lock;
	bool refuses; /* it has forgotten all inodes */
	unsigned wrong;
	uint8_t stored[N_FILES]; /* a bit a block */
	unsigned n_invals;
	struct inval {
		uint64_t ino;
		off_t offset, len;
	} invals[INVALS_MAX];
} told = { .lock = PTHREAD_MUTEX_INITIALIZER };

static int take_store(void *arg, uint64_t ino, off_t offset, const uint8_t *bytes, size_t len)
{
	struct fs_node node;
	(void)arg;
	lock_for_scope(&told.lock);
	if (told.refuses)
		return -ENOENT;
	if (fs_ino_node(ino, &node) < 0 || node.kind != FS_FILE || node.id >= N_FILES || offset % SHARD_BLOCK ||
	        !dataset_equal((uint32_t)node.id, (uint64_t)offset, bytes, len))
		told.wrong++;
	else
		told.stored[node.id] |= (uint8_t)(1 << offset / SHARD_BLOCK);
	return 0;
}

static int take_inval(void *arg, uint64_t ino, off_t offset, off_t len)
{
	(void)arg;
	lock_for_scope(&told.lock);
	if (told.n_invals < INVALS_MAX)
		told.invals[told.n_invals++] = (struct inval){ .ino = ino, .offset = offset, .len = len };
	return 0;
}

static struct fake_server *start_server(struct fake_server *fake)
{
	told = (struct told){ .lock = PTHREAD_MUTEX_INITIALIZER };
	fake_server_add_engine(fake, mountpoint);
	return fake;
}

static struct fake_server *start(enum fs_layout layout)
{
	return start_server(fake_server_new(data.index, layout, -1));
}

static void stop(struct fake_server *fake)
{
	fake_server_end_engine(fake);
	assert_int_equal(told.wrong, 0);
	fake_server_free(fake);
}

static uint64_t ino_of(uint32_t file)
{
	return fs_ino((struct fs_node){ .kind = FS_FILE, .id = file });
}

static uint32_t sample_of(uint32_t file)
{
	struct shard_place place;
	assert_int_equal(shard_index_place(data.index, file, &place), 0);
	return place.sample;
}

/* The sink drops these. */
static void drop(struct fake_server *fake, const struct cache_victim *victims, size_t n)
{
	struct prefetch_sink *base = fs_sink_base(fake->server.sink);
	base->ops->drop(base, victims, n);
}

/* FUSE_NOTIFY_PRUNE as it comes through /dev/fuse: header, count, inodes. */
enum { PRUNE_CODE = 9, HEADER_BYTES = 16, PRUNE_BYTES = 16, PRUNE_INOS_MAX = 256 };

/* Takes one message from the server's end of /dev/fuse. Returns how many inodes it names. */
static uint32_t take_prune(int fd, uint64_t inos[PRUNE_INOS_MAX])
{
	uint8_t message[HEADER_BYTES + PRUNE_BYTES + 8 * PRUNE_INOS_MAX];
	uint32_t len, count;
	int32_t code;
	assert_true(read(fd, message, HEADER_BYTES + PRUNE_BYTES) == HEADER_BYTES + PRUNE_BYTES);
	memcpy(&len, message, 4);
	memcpy(&code, message + 4, 4);
	memcpy(&count, message + HEADER_BYTES, 4);
	assert_int_equal(code, PRUNE_CODE);
	assert_true(count <= PRUNE_INOS_MAX);
	assert_int_equal(len, HEADER_BYTES + PRUNE_BYTES + 8 * count);
	assert_true(read(fd, inos, 8 * count) == 8 * (ssize_t)count);
	return count;
}

static void dropped_samples_are_pruned_many_at_once(void **state)
{
	(void)state;
	struct fake_server *fake = start(FS_LAYOUT_FLAT);
	struct cache_victim victims[N_FILES];
	uint64_t inos[PRUNE_INOS_MAX];
	int pipe_fds[2];
	assert_int_equal(pipe(pipe_fds), 0);
	fake->server.fuse_fd = pipe_fds[1];
	for (uint32_t file = 0; file < N_FILES; file++)
		victims[file] = (struct cache_victim){ .id = sample_of(file), .block = CACHE_WHOLE };
	drop(fake, victims, N_FILES);
	assert_int_equal(take_prune(pipe_fds[0], inos), PRUNE_INOS_MAX);
	for (uint32_t file = 0; file < PRUNE_INOS_MAX; file++)
		assert_int_equal(inos[file], ino_of(file));
	assert_int_equal(take_prune(pipe_fds[0], inos), N_FILES - PRUNE_INOS_MAX);
	for (uint32_t file = PRUNE_INOS_MAX; file < N_FILES; file++)
		assert_int_equal(inos[file - PRUNE_INOS_MAX], ino_of(file));
	assert_int_equal(told.n_invals, 0);
	close(pipe_fds[0]);
	close(pipe_fds[1]);
	stop(fake);
}

static void an_announced_sample_and_a_block_of_a_large_file_keep_their_names(void **state)
{
	(void)state;
	struct fake_server *fake = start(FS_LAYOUT_FLAT);
	const struct cache_victim victims[] = {
		{ .id = sample_of(1), .block = CACHE_WHOLE, .announced = true }, { .id = LARGE, .block = 2 },
		{ .id = 2, .block = 0 }, /* the only block of a small file */
	};
	uint64_t inos[PRUNE_INOS_MAX];
	int pipe_fds[2];
	assert_int_equal(pipe(pipe_fds), 0);
	fake->server.fuse_fd = pipe_fds[1];
	drop(fake, victims, 3);
	assert_int_equal(told.n_invals, 2);
	assert_int_equal(told.invals[0].ino, ino_of(1));
	assert_int_equal(told.invals[0].offset, 0);
	assert_int_equal(told.invals[0].len, 0); /* to the end */
	assert_int_equal(told.invals[1].ino, ino_of(LARGE));
	assert_int_equal(told.invals[1].offset, 2 * SHARD_BLOCK);
	assert_int_equal(told.invals[1].len, SHARD_BLOCK);
	assert_int_equal(take_prune(pipe_fds[0], inos), 1);
	assert_int_equal(inos[0], ino_of(2));
	close(pipe_fds[0]);
	close(pipe_fds[1]);
	stop(fake);
}

static void a_kernel_without_prune_drops_the_pages_of_each_file(void **state)
{
	(void)state;
	struct fake_server *fake = start(FS_LAYOUT_FLAT);
	int fd = epoll_create1(EPOLL_CLOEXEC); /* a write to it is EINVAL, as an unknown notification is */
	int pipe_fds[2];
	char byte;
	assert_true(fd >= 0);
	assert_int_equal(pipe(pipe_fds), 0);
	fake->server.fuse_fd = fd;
	for (uint32_t round = 1; round <= 2; round++) {
		const struct cache_victim victims[] = { { .id = sample_of(0), .block = CACHE_WHOLE },
			{ .id = sample_of(4), .block = CACHE_WHOLE } };
		drop(fake, victims, 2);
		assert_int_equal(told.n_invals, 2 * round);
		assert_int_equal(told.invals[2 * round - 2].ino, ino_of(0));
		assert_int_equal(told.invals[2 * round - 1].ino, ino_of(4));
		/* The sink does not try again, even if it could now. */
		fake->server.fuse_fd = pipe_fds[1];
	}
	close(pipe_fds[1]);
	assert_int_equal(read(pipe_fds[0], &byte, 1), 0);
	close(pipe_fds[0]);
	close(fd);
	stop(fake);
}

static void a_store_reaches_the_file_s_inode(void **state)
{
	(void)state;
	struct fake_server *fake = start(FS_LAYOUT_FLAT);
	struct prefetch_sink *base = fs_sink_base(fake->server.sink);
	static uint8_t bytes[4];
	/* Wrong bytes, so take_store counts them: they came as they were given. */
	assert_int_equal(base->ops->store(base, LARGE, SHARD_BLOCK, bytes, sizeof(bytes)), 0);
	assert_int_equal(told.wrong, 1);
	told.wrong = 0;
	told.refuses = true;
	assert_int_equal(base->ops->store(base, LARGE, SHARD_BLOCK, bytes, sizeof(bytes)), -ENOENT);
	stop(fake);
}

static unsigned blocks_of(uint32_t file)
{
	return (unsigned)((dataset_length(&data, file) + SHARD_BLOCK - 1) / SHARD_BLOCK);
}

static bool is_stored(uint32_t file)
{
	lock_for_scope(&told.lock);
	return told.stored[file] == (1 << blocks_of(file)) - 1;
}

static uint32_t file_of_turn(struct fs_server *server, uint64_t number, uint64_t turn)
{
	struct shard_epoch *epoch;
	uint32_t sample, file;
	assert_int_equal(shard_view_epoch(server->views[0]->order, number, &epoch), 0);
	assert_int_equal(shard_epoch_turn(epoch, 0, turn, &sample, NULL), 0);
	shard_epoch_put(epoch);
	assert_int_equal(shard_index_sample_first(data.index, sample, &file), 0);
	return file;
}

static void each_file_is_stored_before_its_turn_is_opened(void **state)
{
	(void)state;
	struct fake_server *fake = start(FS_LAYOUT_FLAT);
	struct fs_server *server = &fake->server;
	struct prefetch_stream_stats stats;
	assert_int_equal(fs_sink_start(server->sink), 0);
	for (uint64_t turn = 0; turn < N_FILES; turn++) {
		uint32_t file = file_of_turn(server, 0, turn);
		for (unsigned ms = 0; ms < 60000 && !is_stored(file); ms++)
			usleep(1000);
		assert_true(is_stored(file));
		fs_sink_opened(server->sink, server->views[0], SHARD_NONE, 0, turn);
		fs_sink_drained(server->sink);
	}
	fs_sink_stats(server->sink, server->views[0], &stats);
	assert_true(stats.fetched >= N_FILES);
	assert_int_equal(stats.jumps, 0);
	/* What a stream did counts after its end. */
	fs_sink_own(server->sink, server->views[0], false);
	uint64_t fetched = stats.fetched;
	fs_sink_stats(server->sink, server->views[0], &stats);
	assert_true(stats.fetched >= fetched);
	assert_false(stats.following);
	stop(fake);
}

static void what_a_rank_s_stream_did_counts_for_that_rank_after_its_end(void **state)
{
	(void)state;
	enum { RANKS = 2 };
	struct fake_server *fake = start_server(fake_server_new_ranks(data.index, FS_LAYOUT_FLAT, 0, RANKS, RANKS));
	struct fs_server *server = &fake->server;
	struct prefetch_stream_stats live[RANKS] = { 0 }, ended[RANKS], all;
	assert_int_equal(fs_sink_start(server->sink), 0);
	for (uint32_t i = 0; i < RANKS; i++)
		fs_sink_own(server->sink, server->views[i], true);
	for (uint32_t i = 0; i < RANKS; i++) {
		for (unsigned ms = 0; ms < 60000 && live[i].fetched == 0; ms++) {
			usleep(1000);
			fs_sink_stats(server->sink, server->views[i], &live[i]);
		}
		fs_sink_own(server->sink, server->views[i], false);
		fs_sink_stats(server->sink, server->views[i], &ended[i]);
		assert_true(live[i].fetched > 0 && ended[i].fetched >= live[i].fetched);
	}
	fs_sink_stats(server->sink, NULL, &all);
	assert_int_equal(all.fetched, ended[0].fetched + ended[1].fetched);
	stop(fake);
}

static int follow(struct fs_server *server, struct fs_sink_stream **ret_stream)
{
	struct fs_view *view = server->views[0];
	return fs_sink_follow(server->sink, view, &(struct prefetch_stream_options){ .view = view->order }, ret_stream);
}

static void a_sink_holds_at_most_448_followed_orders(void **state)
{
	(void)state;
	enum { FOLLOWED_MAX = 192 + FS_VIEWS_MAX };
	struct fake_server *fake = start(FS_LAYOUT_FLAT);
	struct fs_server *server = &fake->server;
	static struct fs_sink_stream *streams[FOLLOWED_MAX + 1];
	assert_int_equal(fs_sink_start(server->sink), 0);
	for (unsigned i = 0; i < FOLLOWED_MAX; i++)
		assert_int_equal(follow(server, &streams[i]), 0);
	assert_int_equal(follow(server, &streams[FOLLOWED_MAX]), -E2BIG);
	fs_sink_unfollow(server->sink, streams[100]);
	assert_int_equal(follow(server, &streams[100]), 0);
	for (unsigned i = 0; i < FOLLOWED_MAX; i++)
		fs_sink_unfollow(server->sink, streams[i]);
	stop(fake);
}

static void no_order_is_followed_before_the_start_and_after_the_end(void **state)
{
	(void)state;
	struct fake_server *fake = start(FS_LAYOUT_TREE);
	struct fs_server *server = &fake->server;
	struct fs_view *view = server->views[0];
	struct fs_sink_stream *stream;
	assert_int_equal(follow(server, &stream), -EAGAIN);
	fs_sink_own(server->sink, view, true);
	assert_int_equal(fs_sink_start(server->sink), 0);
	assert_int_equal(follow(server, &stream), 0);
	fs_sink_unfollow(server->sink, stream);
	fs_sink_stop(server->sink);
	assert_int_equal(follow(server, &stream), -EAGAIN);
	stop(fake);
}

static int set_up(void **state)
{
	(void)state;
	dataset_new(&data, N_FILES, N_SHARDS, SIZES, N_SIZES);
	strcpy(mountpoint, "/tmp/ddpfs-test-sink.XXXXXX");
	fake_notified = (struct fake_notified){ .store = take_store, .inval = take_inval };
	return mkdtemp(mountpoint) ? 0 : -1;
}

static int tear_down(void **state)
{
	(void)state;
	dataset_free(&data);
	return rmdir(mountpoint);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(dropped_samples_are_pruned_many_at_once),
		cmocka_unit_test(an_announced_sample_and_a_block_of_a_large_file_keep_their_names),
		cmocka_unit_test(a_kernel_without_prune_drops_the_pages_of_each_file),
		cmocka_unit_test(a_store_reaches_the_file_s_inode),
		cmocka_unit_test(each_file_is_stored_before_its_turn_is_opened),
		cmocka_unit_test(what_a_rank_s_stream_did_counts_for_that_rank_after_its_end),
		cmocka_unit_test(a_sink_holds_at_most_448_followed_orders),
		cmocka_unit_test(no_order_is_followed_before_the_start_and_after_the_end),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
