/* SPDX-License-Identifier: Apache-2.0 */
/* The watcher without a session: a plain directory stands in place of the mount; fs/watch.h first. */
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
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/name.h"
#include "fs/node.h"
#include "fs/watch.h"
#include "shard/base/cleanup.h"
#include "tests/fs/dataset.h"
#include "tests/fs/fake_server.h"

static const struct dataset_file files[] = {
	{ .path = "a/b/deep" },
	{ .path = "a/x" },
	{ .path = "labels.csv", .common = true },
	{ .path = "z" },
};
enum { FILES = sizeof(files) / sizeof(files[0]), SAMPLES = FILES - 1, DIRS = 3, HEARD_MAX = 64 };

static struct shard_index *dataset;

/* What the listener heard. */
struct heard {
	pthread_mutex_t lock;
	unsigned n, batches;
	struct {
		uint32_t file;
		uint64_t epoch, turn;
	} opens[HEARD_MAX];
};

static void heard_open(void *arg, struct fs_view *view, uint32_t file, uint64_t epoch, uint64_t turn)
{
	struct heard *heard = arg;
	(void)view;
	lock_for_scope(&heard->lock);
	if (heard->n == HEARD_MAX)
		return;
	heard->opens[heard->n].file = file;
	heard->opens[heard->n].epoch = epoch;
	heard->opens[heard->n++].turn = turn;
}

static void heard_batch(void *arg)
{
	struct heard *heard = arg;
	lock_for_scope(&heard->lock);
	heard->batches++;
}

/* The watcher's thread may drain at any time, too. */
static unsigned batches_of(struct heard *heard)
{
	lock_for_scope(&heard->lock);
	return heard->batches;
}

/* A server whose mountpoint is a plain directory. */
struct watched {
	struct fake_server *fake;
	char dir[64];
	int inotify_fd;
	struct heard heard;
};

/* The name of a turn of an epoch in a flat directory of a rank. */
static void name_of(const struct watched *w, uint32_t rank, uint64_t number, uint64_t turn, char *ret_name)
{
	struct shard_epoch *epoch;
	char path[SHARD_PATH_MAX + 1];
	uint32_t sample, file;
	uint64_t step;
	assert_int_equal(shard_view_epoch(w->fake->server.views[0]->order, number, &epoch), 0);
	assert_int_equal(shard_epoch_turn(epoch, rank, turn, &sample, &step), 0);
	shard_epoch_put(epoch);
	assert_int_equal(shard_index_sample_first(dataset, sample, &file), 0);
	int len = shard_index_file_path(dataset, file, path, sizeof(path));
	assert_true(len > 0);
	fs_name_flat(number, step, path, (size_t)len, ret_name);
}

static void flat_name(const struct watched *w, uint64_t number, uint64_t turn, char ret_name[SHARD_NAME_MAX + 1])
{
	name_of(w, 0, number, turn, ret_name);
}

/* The name of the first turn of a rank in an epoch. */
static void rank_name(const struct watched *w, uint32_t rank, uint64_t number, char ret_name[SHARD_NAME_MAX + 1])
{
	name_of(w, rank, number, 0, ret_name);
}

static void make_file(const struct watched *w, const char *name)
{
	char path[512];
	snprintf(path, sizeof(path), "%s/%s", w->dir, name);
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	close(fd);
}

static void make_dir(const struct watched *w, const char *name)
{
	char path[512];
	snprintf(path, sizeof(path), "%s/%s", w->dir, name);
	assert_int_equal(mkdir(path, 0700), 0);
}

/* Opens a file as a trainer does. */
static void open_file(const struct watched *w, const char *name)
{
	char path[512];
	snprintf(path, sizeof(path), "%s/%s", w->dir, name);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	close(fd);
}

static void remove_all(const struct watched *w)
{
	char command[128];
	snprintf(command, sizeof(command), "rm -r '%s'", w->dir);
	assert_int_equal(system(command), 0);
}

static void start(struct watched *w, enum fs_layout layout)
{
	struct stat st;
	*w = (struct watched){ .dir = "/tmp/ddpfs-test-watch.XXXXXX", .heard.lock = PTHREAD_MUTEX_INITIALIZER };
	assert_non_null(mkdtemp(w->dir));
	assert_int_equal(stat(w->dir, &st), 0);
	w->inotify_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	assert_true(w->inotify_fd >= 0);
	w->fake = fake_server_new(dataset, layout, w->inotify_fd);
	w->fake->server.options.mountpoint = w->dir;
	w->fake->server.dev = st.st_dev;
	make_dir(w, "a");
	make_dir(w, "a/b");
	for (unsigned i = 0; i < FILES; i++)
		make_file(w, files[i].path);
	make_file(w, "stranger");
	for (uint64_t turn = 0; layout == FS_LAYOUT_FLAT && turn < SAMPLES; turn++) {
		char name[SHARD_NAME_MAX + 1];
		flat_name(w, 0, turn, name);
		make_file(w, name);
		flat_name(w, 5, turn, name);
		make_file(w, name);
	}
	fs_watch_free(w->fake->server.watch); /* one whose thread has run does not start again */
	assert_int_equal(fs_watch_new(&w->fake->server, &w->fake->server.watch), 0);
	fs_watch_listen(w->fake->server.watch,
	        (struct fs_watch_listener){ .opened = heard_open, .drained = heard_batch, .arg = &w->heard });
	assert_int_equal(fs_watch_start(w->fake->server.watch), 0);
	assert_int_equal(fs_watch_wait_ready(w->fake->server.watch), 0);
	assert_true(fs_watch_is_ready(w->fake->server.watch, NULL));
}

static void stop(struct watched *w)
{
	fs_watch_stop(w->fake->server.watch);
	fake_server_free(w->fake);
	close(w->inotify_fd);
	remove_all(w);
}

static uint32_t file_of(const char *path)
{
	enum shard_kind kind;
	uint32_t id;
	assert_int_equal(shard_index_find_path(dataset, path, &kind, &id), 0);
	return id;
}

/* Begins a rank as its first reader does, and waits until it is watched. */
static void begin_rank(struct watched *w, uint32_t view)
{
	assert_true(fs_view_begin(w->fake->server.views[view]));
	fs_watch_begin(w->fake->server.watch, w->fake->server.views[view]);
	fs_watch_wait_view(w->fake->server.watch, w->fake->server.views[view]);
}

/* A server of all ranks of a job, whose mountpoint is a plain directory. Ranks from @n_read on have no reader. */
static void start_ranks(struct watched *w, enum fs_layout layout, uint32_t n_ranks, uint32_t n_read)
{
	struct stat st;
	char name[SHARD_NAME_MAX + 16];
	*w = (struct watched){ .dir = "/tmp/ddpfs-test-watch.XXXXXX", .heard.lock = PTHREAD_MUTEX_INITIALIZER };
	assert_non_null(mkdtemp(w->dir));
	assert_int_equal(stat(w->dir, &st), 0);
	w->inotify_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	assert_true(w->inotify_fd >= 0);
	w->fake = fake_server_new_ranks(dataset, layout, 0, n_ranks, n_ranks);
	struct fs_server *server = &w->fake->server;
	server->options.mountpoint = w->dir;
	server->dev = st.st_dev;
	w->fake->channel.inotify_fd = w->inotify_fd;
	for (uint32_t rank = 0; rank < n_ranks; rank++) {
		for (unsigned i = 0; i < 3; i++) {
			static const char *const dirs[] = { "", "/a", "/a/b" };
			snprintf(name, sizeof(name), "rank%u%s", rank, dirs[i]);
			make_dir(w, name);
		}
		for (unsigned i = 0; i < FILES; i++) {
			snprintf(name, sizeof(name), "rank%u/%s", rank, files[i].path);
			make_file(w, name);
		}
		for (uint64_t number = 0; layout == FS_LAYOUT_FLAT && number < 2; number++) {
			snprintf(name, sizeof(name), "rank%u/", rank);
			rank_name(w, rank, number, name + strlen(name));
			make_file(w, name);
		}
	}
	for (uint32_t view = 0; view < n_read; view++)
		assert_true(fs_view_begin(server->views[view]));
	fs_watch_free(server->watch);
	assert_int_equal(fs_watch_new(server, &server->watch), 0);
	fs_watch_listen(server->watch,
	        (struct fs_watch_listener){ .opened = heard_open, .drained = heard_batch, .arg = &w->heard });
	assert_int_equal(fs_watch_start(server->watch), 0);
	assert_int_equal(fs_watch_wait_ready(server->watch), 0);
}

static void a_rank_is_watched_from_its_first_reader_on(void **state)
{
	(void)state;
	struct watched w;
	start_ranks(&w, FS_LAYOUT_TREE, 3, 0);
	struct fs_server *server = &w.fake->server;
	assert_true(fs_watch_is_ready(server->watch, NULL));
	assert_false(fs_watch_is_ready(server->watch, server->views[2]));
	assert_int_equal(fs_watch_dirs(server->watch), 0);
	open_file(&w, "rank2/z");
	begin_rank(&w, 2);
	assert_true(fs_watch_is_ready(server->watch, server->views[2]));
	assert_false(fs_watch_is_ready(server->watch, server->views[1]));
	assert_int_equal(fs_watch_dirs(server->watch), DIRS);
	open_file(&w, "rank1/z");
	open_file(&w, "rank2/a/x");
	fs_watch_drain(server->watch);
	assert_int_equal(w.heard.n, 1);
	assert_int_equal(w.heard.opens[0].file, file_of("a/x"));
	begin_rank(&w, 1);
	begin_rank(&w, 0);
	assert_int_equal(fs_watch_dirs(server->watch), 3 * DIRS);
	open_file(&w, "rank1/z");
	fs_watch_drain(server->watch);
	assert_int_equal(w.heard.n, 2);
	stop(&w);
}

static void ranks_with_a_reader_at_the_start_are_watched_then(void **state)
{
	(void)state;
	struct watched w;
	start_ranks(&w, FS_LAYOUT_TREE, 3, 2);
	struct fs_server *server = &w.fake->server;
	fs_watch_wait_view(server->watch, server->views[0]);
	fs_watch_wait_view(server->watch, server->views[1]);
	assert_int_equal(fs_watch_dirs(server->watch), 2 * DIRS);
	stop(&w);
}

static void nobody_waits_for_a_watcher_that_was_stopped(void **state)
{
	(void)state;
	struct watched w;
	start_ranks(&w, FS_LAYOUT_FLAT, 3, 0);
	fs_watch_stop(w.fake->server.watch);
	fs_watch_wait_view(w.fake->server.watch, w.fake->server.views[1]);
	assert_true(fs_watch_is_ready(w.fake->server.watch, w.fake->server.views[1]));
	stop(&w);
}

/* Each rank has one turn, so its first turn says all: rank 1 reads epoch 0 and then 1, rank 2 epoch 0. */
static void a_miss_counts_in_the_rank_that_opened_the_file(void **state)
{
	(void)state;
	static const struct {
		uint32_t rank;
		uint64_t epoch;
	} opens[] = { { 1, 0 }, { 2, 0 }, { 1, 1 } };
	struct watched w;
	struct fs_hit_counting_count count;
	uint64_t misses[3] = { 0 };
	start_ranks(&w, FS_LAYOUT_FLAT, 3, 0);
	struct fs_server *server = &w.fake->server;
	begin_rank(&w, 1);
	begin_rank(&w, 2);
	for (unsigned i = 0; i < 3; i++) {
		char name[SHARD_NAME_MAX + 16];
		struct fs_node node;
		snprintf(name, sizeof(name), "rank%u/", opens[i].rank);
		if (opens[i].epoch > 0)
			assert_int_equal(fs_view_set_epoch(server->views[opens[i].rank], opens[i].epoch), 0);
		rank_name(&w, opens[i].rank, opens[i].epoch, name + strlen(name));
		assert_int_equal(
		        fs_node_lookup(server, fs_server_root(server, opens[i].rank), strchr(name, '/') + 1, &node), 0);
		open_file(&w, name);
		fs_watch_read(server->watch, (uint32_t)node.id, true, 0, base_now_ns());
		misses[opens[i].rank]++;
		for (uint32_t rank = 0; rank < 3; rank++) {
			fs_watch_count(server->watch, server->views[rank], &count);
			assert_int_equal(count.opens, misses[rank]);
			assert_int_equal(count.misses, misses[rank]);
		}
	}
	assert_int_equal(fs_counted(&server->counters.unwatched_reads), 0);
	stop(&w);
}

/* With tail=pad, twenty ranks have the same sample. */
static void a_miss_counts_also_in_the_last_of_many_ranks_that_have_the_file(void **state)
{
	(void)state;
	enum { RANKS = 20 * SAMPLES };
	struct watched w;
	struct fs_hit_counting_count count;
	start_ranks(&w, FS_LAYOUT_FLAT, RANKS, RANKS);
	struct fs_server *server = &w.fake->server;
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		char name[SHARD_NAME_MAX + 16];
		struct fs_node node;
		snprintf(name, sizeof(name), "rank%u/", rank);
		rank_name(&w, rank, 0, name + strlen(name));
		assert_int_equal(fs_node_lookup(server, fs_server_root(server, rank), strchr(name, '/') + 1, &node), 0);
		fs_watch_wait_view(server->watch, server->views[rank]);
		open_file(&w, name);
		fs_watch_read(server->watch, (uint32_t)node.id, true, 0, base_now_ns());
		fs_watch_count(server->watch, server->views[rank], &count);
		assert_int_equal(count.opens, 1);
		assert_int_equal(count.misses, 1);
	}
	assert_int_equal(fs_counted(&server->counters.unwatched_reads), 0);
	stop(&w);
}

static void opens_in_a_tree_are_told_in_order(void **state)
{
	(void)state;
	static const char *const order[] = { "z", "a/x", "a/b/deep", "labels.csv", "a/x" };
	struct watched w;
	struct fs_view_progress progress;
	start(&w, FS_LAYOUT_TREE);
	assert_int_equal(fs_watch_dirs(w.fake->server.watch), DIRS);
	for (unsigned i = 0; i < 5; i++)
		open_file(&w, order[i]);
	fs_watch_drain(w.fake->server.watch);
	assert_int_equal(w.heard.n, 5);
	assert_true(batches_of(&w.heard) > 0);
	for (unsigned i = 0; i < 5; i++) {
		assert_int_equal(w.heard.opens[i].file, file_of(order[i]));
		assert_int_equal(w.heard.opens[i].epoch, 0);
	}
	assert_int_equal(w.heard.opens[3].turn, UINT64_MAX); /* a common file has no turn */
	assert_int_equal(w.heard.opens[4].turn, w.heard.opens[1].turn);
	fs_view_progress(w.fake->server.views[0], &progress);
	assert_int_equal(progress.n_opened, SAMPLES);
	stop(&w);
}

static void flat_names_tell_their_epoch_and_turn(void **state)
{
	(void)state;
	struct watched w;
	struct fs_view_progress progress;
	start(&w, FS_LAYOUT_FLAT);
	assert_int_equal(fs_watch_dirs(w.fake->server.watch), 1);
	for (uint64_t turn = 0; turn < SAMPLES; turn++) {
		char name[SHARD_NAME_MAX + 1];
		flat_name(&w, turn == 1 ? 5 : 0, turn, name);
		open_file(&w, name);
	}
	open_file(&w, "labels.csv");
	fs_watch_drain(w.fake->server.watch);
	assert_int_equal(w.heard.n, SAMPLES + 1);
	for (uint64_t turn = 0; turn < SAMPLES; turn++) {
		assert_int_equal(w.heard.opens[turn].file, SHARD_NONE);
		assert_int_equal(w.heard.opens[turn].epoch, turn == 1 ? 5 : 0);
		assert_int_equal(w.heard.opens[turn].turn, turn);
	}
	assert_int_equal(w.heard.opens[SAMPLES].file, file_of("labels.csv"));
	assert_int_equal(w.heard.opens[SAMPLES].turn, UINT64_MAX);
	/* The name of another epoch is no progress in this one. */
	fs_view_progress(w.fake->server.views[0], &progress);
	assert_int_equal(progress.n_opened, SAMPLES - 1);
	stop(&w);
}

static void names_that_are_not_of_the_dataset_are_not_told(void **state)
{
	(void)state;
	struct watched w;
	start(&w, FS_LAYOUT_TREE);
	open_file(&w, "stranger");
	fs_watch_drain(w.fake->server.watch);
	assert_int_equal(w.heard.n, 0);
	open_file(&w, "z");
	fs_watch_drain(w.fake->server.watch);
	assert_int_equal(w.heard.n, 1);
	stop(&w);
}

static void a_read_makes_its_open_a_miss(void **state)
{
	(void)state;
	const enum fs_layout layouts[] = { FS_LAYOUT_TREE, FS_LAYOUT_FLAT };
	for (unsigned i = 0; i < 2; i++) {
		struct watched w;
		struct fs_hit_counting_count count;
		char name[SHARD_NAME_MAX + 1];
		struct fs_node node = { .id = file_of("z") };
		start(&w, layouts[i]);
		struct fs_server *server = &w.fake->server;
		snprintf(name, sizeof(name), "z");
		if (layouts[i] == FS_LAYOUT_FLAT) {
			flat_name(&w, 0, 1, name);
			assert_int_equal(fs_node_lookup(server, (struct fs_node){ .kind = FS_ROOT }, name, &node), 0);
		}
		open_file(&w, name);
		fs_watch_read(server->watch, (uint32_t)node.id, true, 0, base_now_ns());
		open_file(&w, "labels.csv");
		fs_watch_count(server->watch, NULL, &count);
		assert_int_equal(count.opens, 2);
		assert_int_equal(count.misses, 1);
		assert_int_equal(count.hits, 1);
		assert_int_equal(fs_counted(&server->counters.unwatched_reads), 0);
		/* A READ of a file that nobody opened here. */
		fs_watch_read(server->watch, file_of("a/b/deep") == node.id ? file_of("a/x") : file_of("a/b/deep"),
		        true, 0, base_now_ns());
		fs_watch_count(server->watch, NULL, &count);
		assert_int_equal(count.misses, 1);
		assert_int_equal(fs_counted(&server->counters.unwatched_reads), 1);
		stop(&w);
	}
}

static void the_thread_drains_by_itself(void **state)
{
	(void)state;
	struct watched w;
	unsigned n = 0;
	start(&w, FS_LAYOUT_TREE);
	open_file(&w, "z");
	for (unsigned i = 0; i < 10000 && !n; i++) {
		usleep(1000);
		lock_for_scope(&w.heard.lock);
		n = w.heard.n;
	}
	assert_int_equal(n, 1);
	stop(&w);
}

static void a_listener_that_was_replaced_hears_nothing(void **state)
{
	(void)state;
	struct watched w;
	struct heard second = { .lock = PTHREAD_MUTEX_INITIALIZER };
	struct fs_hit_counting_count count;
	start(&w, FS_LAYOUT_TREE);
	fs_watch_listen(w.fake->server.watch, (struct fs_watch_listener){ .opened = heard_open, .arg = &second });
	open_file(&w, "z");
	fs_watch_drain(w.fake->server.watch);
	assert_int_equal(w.heard.n, 0);
	assert_int_equal(second.n, 1);
	fs_watch_listen(w.fake->server.watch, (struct fs_watch_listener){ 0 });
	open_file(&w, "z");
	fs_watch_count(w.fake->server.watch, NULL, &count);
	assert_int_equal(second.n, 1);
	assert_int_equal(count.opens, 2); /* counted all the same */
	stop(&w);
}

static void a_watcher_without_inotify_answers(void **state)
{
	(void)state;
	struct fake_server *fake = fake_server_new(dataset, FS_LAYOUT_TREE, -1);
	struct fs_hit_counting_count count;
	fs_watch_read(fake->server.watch, 0, true, 0, base_now_ns());
	fs_watch_count(fake->server.watch, NULL, &count);
	assert_int_equal(count.opens, 0);
	assert_int_equal(fs_counted(&fake->server.counters.unwatched_reads), 1);
	assert_int_equal(fs_watch_dirs(fake->server.watch), 0);
	assert_int_equal(fs_watch_wait_ready(fake->server.watch), -ECANCELED); /* it was stopped */
	fake_server_free(fake);
}

static int set_up(void **state)
{
	(void)state;
	setenv("DDPFS_TEST_PAIR_MS", "600000", 1); /* a slow machine changes no count */
	dataset = dataset_open(files, FILES);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	shard_index_close(dataset);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(opens_in_a_tree_are_told_in_order),
		cmocka_unit_test(flat_names_tell_their_epoch_and_turn),
		cmocka_unit_test(names_that_are_not_of_the_dataset_are_not_told),
		cmocka_unit_test(a_read_makes_its_open_a_miss),
		cmocka_unit_test(the_thread_drains_by_itself),
		cmocka_unit_test(a_listener_that_was_replaced_hears_nothing),
		cmocka_unit_test(a_watcher_without_inotify_answers),
		cmocka_unit_test(a_rank_is_watched_from_its_first_reader_on),
		cmocka_unit_test(ranks_with_a_reader_at_the_start_are_watched_then),
		cmocka_unit_test(nobody_waits_for_a_watcher_that_was_stopped),
		cmocka_unit_test(a_miss_counts_in_the_rank_that_opened_the_file),
		cmocka_unit_test(a_miss_counts_also_in_the_last_of_many_ranks_that_have_the_file),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
