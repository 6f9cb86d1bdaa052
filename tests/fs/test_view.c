/* SPDX-License-Identifier: Apache-2.0 */
/* How far a trainer is: counting, advancing, what to tell it, what a checkpoint holds. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/fs/dataset.h"
#include "fs/ino.h"
#include "fs/view.h"

struct fixture {
	struct shard_index *index;
	struct fs_view *view;
};

static struct fixture open_view(uint32_t n, struct fs_options options)
{
	struct fixture f;
	struct base_err err = { 0 };
	f.index = dataset_open_n(n, 7);
	if (fs_view_new(f.index, &options, 0, &err, &f.view) < 0)
		fail_msg("%s", err.text);
	return f;
}

static void close_view(struct fixture f)
{
	fs_view_free(f.view);
	shard_index_close(f.index);
}

static struct fs_options rank_of(uint32_t rank, uint32_t world)
{
	struct fs_options options = { .view = SHARD_VIEW_OPTIONS_DEFAULT };
	options.view.rank = rank;
	options.view.world = world;
	return options;
}

static uint64_t epoch_now(struct fs_view *view)
{
	struct fs_view_progress progress;
	fs_view_progress(view, &progress);
	return progress.epoch;
}

static void open_turns(struct fs_view *view, uint64_t from, uint64_t to)
{
	for (uint64_t turn = from; turn < to; turn++)
		fs_view_opened(view, epoch_now(view), turn);
}

static void half_advances(void **state)
{
	(void)state;
	struct fixture f = open_view(101, rank_of(0, 1));
	open_turns(f.view, 0, 50);
	open_turns(f.view, 0, 50);
	assert_false(fs_view_listing(f.view));
	open_turns(f.view, 50, 51);
	assert_true(fs_view_listing(f.view));
	assert_int_equal(epoch_now(f.view), 1);
	assert_false(fs_view_listing(f.view));
	close_view(f);
}

static void other_epochs_and_turns_do_not_count(void **state)
{
	(void)state;
	struct fixture f = open_view(10, rank_of(0, 1));
	struct fs_view_progress progress;
	for (uint64_t turn = 0; turn < 10; turn++)
		assert_false(fs_view_opened(f.view, 1, turn));
	fs_view_opened(f.view, 0, 10);
	fs_view_opened(f.view, 0, UINT64_MAX);
	fs_view_progress(f.view, &progress);
	assert_int_equal(progress.n_opened, 0);
	assert_int_equal(progress.turns, 10);
	close_view(f);
}

static void ranges_count_each_turn_once(void **state)
{
	(void)state;
	struct fixture f = open_view(1000, rank_of(0, 1));
	struct fs_view_progress progress;
	open_turns(f.view, 90, 110);
	fs_view_opened_range(f.view, 0, 100, 200);
	fs_view_opened_range(f.view, 0, 900, 5000);
	fs_view_opened_range(f.view, 7, 0, 1000);
	fs_view_progress(f.view, &progress);
	assert_int_equal(progress.n_opened, 110 + 100);
	assert_int_equal(progress.next_turn, 1000);
	close_view(f);
}

static void explicit_epoch_stays(void **state)
{
	(void)state;
	struct fixture f = open_view(10, rank_of(0, 1));
	assert_int_equal(fs_view_set_epoch(f.view, 5), 0);
	open_turns(f.view, 0, 10);
	assert_false(fs_view_listing(f.view));
	assert_int_equal(epoch_now(f.view), 5);
	fs_view_set_advance(f.view, true);
	assert_true(fs_view_listing(f.view));
	assert_int_equal(epoch_now(f.view), 6);
	assert_int_equal(fs_view_set_epoch(f.view, FS_EPOCH_MAX + 1), -ERANGE);
	assert_int_equal(epoch_now(f.view), 6);
	close_view(f);
}

static void the_last_epoch_is_the_last(void **state)
{
	(void)state;
	struct fixture f = open_view(10, rank_of(0, 1));
	assert_int_equal(fs_view_set_epoch(f.view, FS_EPOCH_MAX), 0);
	fs_view_set_advance(f.view, true);
	open_turns(f.view, 0, 10);
	assert_false(fs_view_listing(f.view));
	assert_int_equal(epoch_now(f.view), FS_EPOCH_MAX);
	close_view(f);
}

static void a_second_pass_is_told_once(void **state)
{
	(void)state;
	struct fixture f = open_view(100, rank_of(0, 1));
	unsigned told = 0;
	for (int pass = 0; pass < 4; pass++)
		for (uint64_t turn = 0; turn < 100; turn++)
			told += fs_view_opened(f.view, 0, turn);
	assert_int_equal(told, 1);
	close_view(f);
}

static void opening_twice_is_no_second_pass(void **state)
{
	(void)state;
	struct fixture f = open_view(100, rank_of(0, 1));
	for (uint64_t turn = 0; turn < 100; turn++)
		for (int i = 0; i < 3; i++)
			assert_false(fs_view_opened(f.view, 0, turn));
	close_view(f);
}

/* fs_view_turn against the definition: the samples that shard_epoch_turn gives, and no others. */
static void turns_are_found_back(void **state)
{
	(void)state;
	static const enum shard_tail tails[] = { SHARD_TAIL_PAD, SHARD_TAIL_DROP, SHARD_TAIL_SHORT };
	static const uint32_t worlds[] = { 1, 2, 3, 7, 16, 40 };
	for (size_t t = 0; t < 3; t++) {
		for (size_t w = 0; w < sizeof(worlds) / sizeof(worlds[0]); w++) {
			for (uint32_t rank = 0; rank < worlds[w]; rank++) {
				struct fs_options options = rank_of(rank, worlds[w]);
				options.view.tail = tails[t];
				options.view.seed = 3;
				struct fixture f = open_view(37, options);
				struct shard_epoch *epoch = fs_view_epoch(f.view);
				uint64_t turns = shard_epoch_turns(epoch, rank);
				bool mine[37] = { false };
				for (uint64_t k = 0; k < turns; k++) {
					uint32_t sample;
					uint64_t turn;
					assert_int_equal(shard_epoch_turn(epoch, rank, k, &sample, NULL), 0);
					assert_int_equal(fs_view_turn(f.view, epoch, sample, &turn), 0);
					mine[sample] = true;
					uint32_t again;
					assert_int_equal(shard_epoch_turn(epoch, rank, turn, &again, NULL), 0);
					assert_int_equal(again, sample);
				}
				for (uint32_t sample = 0; sample < 37; sample++) {
					uint64_t turn;
					assert_int_equal(
					        fs_view_turn(f.view, epoch, sample, &turn), mine[sample] ? 0 : -ENOENT);
				}
				uint64_t turn;
				assert_int_equal(fs_view_turn(f.view, epoch, SHARD_NONE, &turn), -ENOENT);
				shard_epoch_put(epoch);
				close_view(f);
			}
		}
	}
}

static void trained_is_what_was_recorded(void **state)
{
	(void)state;
	struct fs_options options = rank_of(0, 2);
	options.view.epoch = 3;
	options.view.start = 20;
	struct fixture f = open_view(100, options);
	uint64_t epoch;
	uint64_t steps;
	fs_view_trained(f.view, &epoch, &steps);
	assert_int_equal(epoch, 3);
	assert_int_equal(steps, 20);
	open_turns(f.view, 0, 30);
	fs_view_trained(f.view, &epoch, &steps);
	assert_int_equal(steps, 20); /* opened is not trained */
	assert_int_equal(fs_view_set_trained(f.view, 3, 50), 0);
	fs_view_trained(f.view, &epoch, &steps);
	assert_int_equal(steps, 50);
	assert_true(fs_view_listing(f.view));
	fs_view_trained(f.view, &epoch, &steps);
	assert_int_equal(epoch, 4); /* the trainer went on without saying so */
	assert_int_equal(steps, 0);
	assert_int_equal(fs_view_set_trained(f.view, 4, 1000), -ERANGE);
	close_view(f);
}

static void ranks_of_a_mount_share_an_order_and_nothing_else(void **state)
{
	(void)state;
	struct fs_options options = rank_of(1, 4);
	struct base_err err = { 0 };
	struct fs_view *second;
	options.n_ranks = 2;
	struct fixture f = open_view(100, options);
	assert_int_equal(fs_view_new_rank(f.view, 1, &err, &second), 0);
	assert_ptr_equal(second->order, f.view->order);
	assert_int_equal(second->options.rank, 2);
	assert_int_equal(second->number, 1);
	assert_string_equal(f.view->place, "rank1/");
	assert_string_equal(second->place, "rank2/");
	open_turns(second, 0, 20);
	assert_true(fs_view_listing(second));
	assert_false(fs_view_listing(f.view));
	assert_int_equal(epoch_now(second), 1);
	assert_int_equal(epoch_now(f.view), 0);
	fs_view_free(second);
	close_view(f);
}

/* The handover memory has room for the turns of each rank, and not for all samples in each rank. */
static void no_epoch_has_more_turns_than_there_is_room_for(void **state)
{
	static const uint32_t worlds[] = { 1, 3, 8, 256 };
	enum { N = 101 };
	(void)state;
	for (enum shard_tail tail = SHARD_TAIL_PAD; tail <= SHARD_TAIL_SHORT; tail++) {
		for (size_t w = 0; w < sizeof(worlds) / sizeof(worlds[0]); w++) {
			struct fs_options options = rank_of(0, worlds[w]);
			options.n_ranks = worlds[w];
			options.view.tail = tail;
			options.view.start = w == 1 ? 50 : 0;
			struct fixture f = open_view(N, options);
			for (uint64_t number = 0; number < 2; number++) {
				struct shard_epoch *epoch;
				assert_int_equal(shard_view_epoch(f.view->order, number, &epoch), 0);
				for (uint32_t rank = 0; rank < worlds[w]; rank++)
					assert_true(shard_epoch_turns(epoch, rank) <= fs_view_turns_max(f.view));
				shard_epoch_put(epoch);
			}
			assert_true(fs_view_turns_max(f.view) <= N / worlds[w] + 1);
			close_view(f);
		}
	}
	struct fixture one = open_view(N, rank_of(0, 8));
	assert_int_equal(fs_view_turns_max(one.view), N + 8); /* as servers of all versions have it */
	close_view(one);
}

static void a_rank_begins_with_its_reader_and_anew_with_the_next(void **state)
{
	(void)state;
	struct fs_options options = rank_of(1, 4);
	uint64_t epoch, steps;
	options.n_ranks = 1;
	options.view.epoch = 3;
	options.view.start = 20;
	struct fixture f = open_view(100, options);
	assert_false(fs_view_has_reader(f.view));
	assert_true(fs_view_begin(f.view));
	assert_false(fs_view_begin(f.view));
	assert_true(fs_view_has_reader(f.view));
	open_turns(f.view, 0, 15);
	assert_true(fs_view_listing(f.view));
	open_turns(f.view, 0, 3);
	assert_int_equal(fs_view_set_trained(f.view, 4, 50), 0);
	fs_view_set_advance(f.view, false);
	assert_int_equal(fs_view_reset(f.view), 0);
	struct fs_view_progress progress;
	fs_view_progress(f.view, &progress);
	assert_int_equal(progress.epoch, 3);
	assert_int_equal(progress.n_opened, 0);
	assert_int_equal(progress.next_turn, 0);
	assert_true(progress.automatic);
	fs_view_trained(f.view, &epoch, &steps);
	assert_int_equal(epoch, 3);
	assert_int_equal(steps, 20);
	assert_false(fs_view_has_reader(f.view));
	close_view(f);
	f = open_view(100, rank_of(1, 4));
	assert_true(fs_view_has_reader(f.view)); /* the only view of its mount */
	close_view(f);
}

static void a_successor_knows_which_ranks_have_a_reader(void **state)
{
	(void)state;
	struct fs_handover *handover;
	struct fs_handover_head *head;
	struct fs_options options = rank_of(1, 4);
	bool kept;
	int fd;
	options.n_ranks = 1;
	assert_int_equal(fs_handover_new(&fd, &head), 0);
	const struct fs_handover_sizes sizes = { .n_views = 1, .view_bits = 200, .samples = 100 };
	assert_int_equal(fs_handover_open(fd, &sizes, &handover, &kept), 0);
	const struct fs_handover_view place = fs_handover_view(handover, 0);
	struct fixture first = open_view(100, options), second = open_view(100, options);
	assert_int_equal(fs_view_keep(first.view, &place, false), 0);
	assert_int_equal(fs_view_keep(second.view, &place, true), 0);
	assert_false(fs_view_has_reader(second.view));
	assert_true(fs_view_begin(first.view));
	close_view(second);
	second = open_view(100, options);
	assert_int_equal(fs_view_keep(second.view, &place, true), 0);
	assert_true(fs_view_has_reader(second.view));
	close_view(second);
	memset(place.records, 0, 2 * sizeof(*place.records)); /* what was left is lost, but not the reader */
	second = open_view(100, options);
	assert_int_equal(fs_view_keep(second.view, &place, true), 0);
	assert_true(fs_view_has_reader(second.view));
	close_view(second);
	close_view(first);
	fs_handover_close(handover);
	munmap(head, FS_HANDOVER_HEAD_BYTES);
	close(fd);
}

static void view_all_is_one_rank(void **state)
{
	(void)state;
	struct fs_options options = rank_of(1, 4);
	options.view_all = true;
	options.layout = FS_LAYOUT_TREE;
	options.fill_class = true;
	struct fixture f = open_view(10, options);
	assert_int_equal(f.view->options.world, 1);
	assert_int_equal(f.view->turns, 10);
	assert_false(f.view->fill_class);
	close_view(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(half_advances),
		cmocka_unit_test(other_epochs_and_turns_do_not_count),
		cmocka_unit_test(ranges_count_each_turn_once),
		cmocka_unit_test(explicit_epoch_stays),
		cmocka_unit_test(the_last_epoch_is_the_last),
		cmocka_unit_test(a_second_pass_is_told_once),
		cmocka_unit_test(opening_twice_is_no_second_pass),
		cmocka_unit_test(turns_are_found_back),
		cmocka_unit_test(trained_is_what_was_recorded),
		cmocka_unit_test(ranks_of_a_mount_share_an_order_and_nothing_else),
		cmocka_unit_test(no_epoch_has_more_turns_than_there_is_room_for),
		cmocka_unit_test(a_rank_begins_with_its_reader_and_anew_with_the_next),
		cmocka_unit_test(a_successor_knows_which_ranks_have_a_reader),
		cmocka_unit_test(view_all_is_one_rank),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
