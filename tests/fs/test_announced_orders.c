/* SPDX-License-Identifier: Apache-2.0 */
/* Announced lists without a session: when they end, and what is left of them then; fs/announced_orders.h first. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/announced_orders.h"
#include "fs/order_numbers.h"
#include "fs/sink.h"
#include "shard/base/clock.h"
#include "shard/base/log.h"
#include "tests/fs/fake_kernel.h"
#include "tests/fs/fake_server.h"
#include "tests/prefetch/dataset.h"

enum { N_FILES = 900, N_SHARDS = 2 };
static const uint64_t SIZES[] = { 1, 4097, 70000, 33 };
enum { N_SIZES = sizeof(SIZES) / sizeof(SIZES[0]) };
static const uint64_t SECOND_NS = 1000000000;

static struct dataset data;
static char mountpoint[64];
static struct fake_server *fake;
static struct fs_announced_orders *orders;

static int take_store(void *arg, uint64_t ino, off_t offset, const uint8_t *bytes, size_t len)
{
	(void)arg;
	(void)ino;
	(void)offset;
	(void)bytes;
	(void)len;
	return 0;
}

static int take_inval(void *arg, uint64_t ino, off_t offset, off_t len)
{
	(void)arg;
	(void)ino;
	(void)offset;
	(void)len;
	return 0;
}

static void wake(void *arg)
{
	(void)arg;
}

static int start(void **state)
{
	(void)state;
	fake = fake_server_new(data.index, FS_LAYOUT_TREE, -1);
	struct fs_server *server = &fake->server;
	fake_server_add_engine(fake, mountpoint);
	assert_int_equal(fs_sink_start(server->sink), 0);
	assert_int_equal(fs_announced_orders_new(server, server->views[0], wake, NULL, &orders), 0);
	return 0;
}

static int stop(void **state)
{
	(void)state;
	fs_announced_orders_end(orders);
	fs_announced_orders_free(orders);
	fake_server_end_engine(fake);
	fake_server_free(fake);
	return 0;
}

/* Announces every file from `first` on once, by its number. */
static void announce_from(uint32_t first, const char *name, uint64_t buffer)
{
	struct fs_announced_piece piece;
	struct shard_place place;
	uint32_t samples[N_FILES];
	uint64_t length;
	for (uint32_t file = first; file < N_FILES; file++) {
		assert_int_equal(shard_index_place(data.index, file, &place), 0);
		samples[file - first] = place.sample;
	}
	assert_int_equal(fs_announced_orders_begin(orders, name, false, buffer, &piece), 0);
	assert_int_equal(fs_announced_piece_add(&piece, samples, N_FILES - first), 0);
	assert_int_equal(fs_announced_orders_show(orders, &piece, &length), 0);
}

static void announce(const char *name, uint64_t buffer)
{
	announce_from(0, name, buffer);
}

static struct prefetch_stream_stats window(void)
{
	struct prefetch_stream_stats stats;
	fs_sink_stats(fake->server.sink, fake->server.views[0], &stats);
	return stats;
}

/* Opens files in turn, but one of them. */
static void open_files(uint32_t from, uint32_t to, uint32_t except)
{
	for (uint32_t file = from; file < to; file++) {
		uint32_t opened = file, explained;
		if (file != except)
			fs_announced_orders_opened(orders, &opened, 1, &explained);
	}
}

static struct fs_announced_orders_counts counts(void)
{
	struct fs_announced_orders_counts now;
	fs_announced_orders_count(orders, &now);
	return now;
}

static size_t parts(void)
{
	json_t *stats = json_object();
	fs_announced_orders_stats(orders, stats);
	size_t n = json_array_size(json_object_get(stats, "announced"));
	json_decref(stats);
	return n;
}

/* Waits until the stream has fetched so many samples. */
static void wait_for_fetched(uint64_t n)
{
	for (unsigned ms = 0; ms < 60000 && window().fetched < n; ms++)
		usleep(1000);
	assert_true(window().fetched >= n);
}

static void a_list_gives_its_window_back_though_an_entry_of_it_is_never_opened(void **state)
{
	(void)state;
	uint64_t now_ns = base_now_ns();
	announce("train", 0);
	fs_announced_orders_sync(orders, now_ns);
	assert_int_equal(fs_announced_orders_live(orders), 1);
	wait_for_fetched(N_FILES);
	open_files(0, N_FILES, 150);
	fs_announced_orders_sync(orders, now_ns + SECOND_NS);
	for (unsigned ms = 0; ms < 60000 && window().used < N_FILES - 1; ms++)
		usleep(1000);
	assert_true(window().window_bytes > 0); /* the file that is not opened */
	assert_true(counts().memory_bytes > 0);
	fs_announced_orders_sync(orders, now_ns + 60 * SECOND_NS);
	assert_int_equal(fs_announced_orders_live(orders), 1);
	fs_announced_orders_sync(orders, now_ns + 61 * SECOND_NS);
	assert_int_equal(fs_announced_orders_live(orders), 0);
	assert_int_equal(window().window_bytes, 0);
	assert_int_equal(counts().memory_bytes, 0);
	assert_true(counts().ended);
	assert_int_equal(counts().dropped, 0);
}

/* Each epoch is announced under a name of its own, and the trainer drops the last files of each. */
static void a_list_whose_last_entries_are_dropped_ends_when_the_next_list_is_read(void **state)
{
	(void)state;
	uint64_t now_ns = base_now_ns();
	announce("epoch-0", 0);
	fs_announced_orders_sync(orders, now_ns);
	open_files(0, N_FILES - 20, N_FILES);
	fs_announced_orders_sync(orders, now_ns + SECOND_NS);
	fs_announced_orders_sync(orders, now_ns + 3600 * SECOND_NS); /* a pause */
	assert_int_equal(fs_announced_orders_live(orders), 1);
	announce("epoch-1", 0);
	fs_announced_orders_sync(orders, now_ns + 3601 * SECOND_NS);
	assert_int_equal(fs_announced_orders_live(orders), 2);
	open_files(0, N_FILES - 20, N_FILES);
	fs_announced_orders_sync(orders, now_ns + 3602 * SECOND_NS);
	assert_int_equal(fs_announced_orders_live(orders), 1);
	fs_announced_orders_sync(orders, now_ns + 7200 * SECOND_NS);
	assert_int_equal(fs_announced_orders_live(orders), 1);
}

/* Returns how many warnings say this, of the latest that the log has kept. */
static unsigned warnings(const char *said)
{
	struct base_log_line lines[BASE_LOG_KEPT];
	unsigned n = base_log_kept(lines), found = 0;
	for (unsigned i = 0; i < n; i++)
		found += strstr(lines[i].text, said) != NULL;
	return found;
}

/* Of two readers of a list, the one of its first part is where the other one began when the list is split. */
static void a_part_whose_reader_is_at_its_end_is_no_failure(void **state)
{
	(void)state;
	uint64_t now_ns = base_now_ns();
	announce("train", 0);
	for (unsigned i = 0; i < 30; i++) { /* many lists have little memory each, so readers are soon apart */
		char name[32];
		snprintf(name, sizeof(name), "other-%u", i);
		announce_from(N_FILES - 1, name, 0);
	}
	fs_announced_orders_sync(orders, now_ns);
	open_files(600, 700, N_FILES);
	for (uint32_t k = 0; k < 8; k++) {
		open_files(592 + k, 593 + k, N_FILES);
		open_files(700 + k, 701 + k, N_FILES);
	}
	fs_announced_orders_sync(orders, now_ns);
	assert_int_equal(parts(), 32);
	assert_int_equal(fs_announced_orders_live(orders), 31);
	assert_int_equal(warnings("is not read ahead"), 0);
}

/* As fs/follow_request.c asks before a guest's list. */
static bool may(const char *owner, const char *name)
{
	char whole[32];
	snprintf(whole, sizeof(whole), "%s%s", owner, name);
	return fs_announced_orders_guest_may(orders, owner, whole);
}

static void announce_many(const char *owner, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		char name[32];
		snprintf(name, sizeof(name), "%slist%u", owner, i);
		announce(name, 0);
	}
}

static void one_guest_has_32_lists_and_all_have_48(void **state)
{
	(void)state;
	announce("default", 0); /* no guest's */
	announce_many("12 ", FS_GUEST_LISTS_USER - 1);
	assert_true(may("12 ", "one more"));
	announce("12 last", 0);
	assert_false(may("12 ", "one more"));
	assert_true(may("12 ", "last"));
	announce_many("13 ", FS_GUEST_LISTS - FS_GUEST_LISTS_USER - 1);
	assert_true(may("1 ", "list"));
	announce("1 list", 0);
	assert_false(may("13 ", "one more"));
	assert_true(may("13 ", "list3"));
	assert_true(fs_announced_orders_forget(orders, "12 list7"));
	assert_true(may("13 ", "one more"));
}

static void a_guest_waits_while_64_lists_that_he_replaced_have_not_ended(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 2 * FS_GUEST_LISTS_USER; i++) {
		assert_true(may("12 ", "train"));
		announce("12 train", 0);
	}
	assert_false(may("12 ", "train"));
	assert_true(may("13 ", "train"));
	fs_announced_orders_sync(orders, base_now_ns());
	assert_true(may("12 ", "train"));
}

static int set_up(void **state)
{
	(void)state;
	dataset_new(&data, N_FILES, N_SHARDS, SIZES, N_SIZES);
	strcpy(mountpoint, "/tmp/ddpfs-test-orders.XXXXXX");
	fake_notified = (struct fake_notified){ .store = take_store, .inval = take_inval };
	return mkdtemp(mountpoint) ? 0 : -1;
}

static int tear_down(void **state)
{
	(void)state;
	dataset_free(&data);
	return rmdir(mountpoint);
}

/* Of a dataset whose sorted paths are its samples in a row. */
static void samples_in_a_row_need_no_memory(void **state)
{
	struct fs_server *server = &fake->server;
	struct fs_order_memory *memory = fs_announced_orders_memory(orders);
	struct fs_order_numbers *numbers;
	struct fs_order_numbering *one;
	(void)state;
	assert_int_equal(fs_order_numbers_new(data.index, server->views[0], memory, &numbers), 0);
	fs_order_memory_limit(memory, 0);
	assert_int_equal(fs_order_numbers_listing(numbers, false, "", &one), 0);
	assert_int_equal(fs_order_numbering_size(one), N_FILES);
	for (uint32_t i = 0; i < N_FILES; i++) {
		struct shard_place place;
		assert_int_equal(shard_index_place(data.index, i, &place), 0);
		assert_int_equal(fs_order_numbering_sample(one, i), place.sample);
	}
	fs_order_numbers_free(numbers);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
		        a_list_gives_its_window_back_though_an_entry_of_it_is_never_opened, start, stop),
		cmocka_unit_test_setup_teardown(
		        a_list_whose_last_entries_are_dropped_ends_when_the_next_list_is_read, start, stop),
		cmocka_unit_test_setup_teardown(a_part_whose_reader_is_at_its_end_is_no_failure, start, stop),
		cmocka_unit_test_setup_teardown(samples_in_a_row_need_no_memory, start, stop),
		cmocka_unit_test_setup_teardown(one_guest_has_32_lists_and_all_have_48, start, stop),
		cmocka_unit_test_setup_teardown(
		        a_guest_waits_while_64_lists_that_he_replaced_have_not_ended, start, stop),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
