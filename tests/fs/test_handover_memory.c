/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that a server leaves to its successor: found whole, or not believed. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/supervise/handover_memory.h"

enum { VIEWS = 2, BITS = 1000, SAMPLES = 70000, DIRS = 90, FILES = 70001, PAGE = FS_HANDOVER_HEAD_BYTES };
static const struct fs_handover_sizes usual = {
	.n_views = VIEWS, .view_bits = BITS, .samples = SAMPLES, .dirs = DIRS, .files = FILES
};

struct made {
	int fd;
	struct fs_handover_head *head;
	struct fs_handover *handover;
};

static struct fs_handover *open_as(int fd, const struct fs_handover_sizes *sizes, bool *ret_kept)
{
	struct fs_handover *handover;
	assert_int_equal(fs_handover_open(fd, sizes, &handover, ret_kept), 0);
	return handover;
}

static struct made make(void)
{
	struct made m;
	bool kept;
	assert_int_equal(fs_handover_new(&m.fd, &m.head), 0);
	m.handover = open_as(m.fd, &usual, &kept);
	assert_false(kept);
	return m;
}

static void done(struct made *m)
{
	fs_handover_close(m->handover);
	munmap(m->head, PAGE);
	close(m->fd);
}

static struct fs_handover_record record(uint64_t n)
{
	return (struct fs_handover_record){ .epoch = n,
		.map = n & 1,
		.flags = FS_HANDOVER_TRAINED,
		.trained_epoch = 2 * n,
		.trained_steps = 3 * n,
		.listing_s = -(int64_t)n,
		.listing_ns = n };
}

static bool same(const struct fs_handover_record *found, uint64_t n)
{
	struct fs_handover_record want = record(n);
	want.age = found->age;
	want.xxh3 = found->xxh3;
	return memcmp(&want, found, sizeof(want)) == 0;
}

static void test_the_latest_record_counts(void **state)
{
	struct made m = make();
	struct fs_handover_record found;
	(void)state;
	for (uint32_t v = 0; v < VIEWS; v++) {
		struct fs_handover_view view = fs_handover_view(m.handover, v);
		assert_int_equal(view.bits, BITS);
		assert_false(fs_handover_load(&view, &found));
		for (uint64_t n = 1; n < 10; n++) {
			struct fs_handover_record next = record(100 * v + n);
			fs_handover_store(&view, &next);
			assert_true(fs_handover_load(&view, &found) && same(&found, 100 * v + n));
			assert_int_equal(found.age, n);
		}
	}
	done(&m);
}

static void test_a_successor_finds_everything(void **state)
{
	struct made m = make();
	struct fs_handover_view view = fs_handover_view(m.handover, 1);
	struct fs_handover_record next = record(5), found;
	uint64_t beat = m.head->beat;
	bool kept;
	(void)state;
	fs_handover_store(&view, &next);
	view.maps[1][BITS / 64] = 0x55;
	fs_handover_resident(m.handover)[SAMPLES / 64] = 0xaa;
	fs_handover_names(m.handover).known[DIRS / 64] = 0xbb;
	fs_handover_names(m.handover).old[FILES / 64] = 0xcc;
	fs_handover_close(m.handover);
	m.handover = open_as(m.fd, &usual, &kept);
	assert_true(kept);
	view = fs_handover_view(m.handover, 1);
	assert_true(fs_handover_load(&view, &found) && same(&found, 5));
	assert_int_equal(view.maps[1][BITS / 64], 0x55);
	assert_int_equal(fs_handover_resident(m.handover)[SAMPLES / 64], 0xaa);
	assert_int_equal(fs_handover_names(m.handover).known[DIRS / 64], 0xbb);
	assert_int_equal(fs_handover_names(m.handover).old[FILES / 64], 0xcc);
	fs_handover_beat(m.handover);
	assert_int_equal(m.head->beat, beat + 1);
	fs_handover_clear(&view, 1);
	assert_int_equal(view.maps[1][BITS / 64], 0);
	assert_int_equal(fs_handover_resident(m.handover)[SAMPLES / 64], 0xaa);
	done(&m);
}

static void all_zero(struct fs_handover *handover, const struct fs_handover_sizes *sizes)
{
	struct fs_handover_record found;
	const struct fs_handover_names names = fs_handover_names(handover);
	for (uint32_t v = 0; v < sizes->n_views; v++) {
		struct fs_handover_view view = fs_handover_view(handover, v);
		assert_false(fs_handover_load(&view, &found));
		for (uint64_t i = 0; i <= sizes->view_bits / 64; i++)
			assert_int_equal(view.maps[0][i] | view.maps[1][i], 0);
	}
	for (uint64_t i = 0; i <= sizes->samples / 64; i++)
		assert_int_equal(fs_handover_resident(handover)[i], 0);
	for (uint64_t i = 0; i <= sizes->dirs / 64; i++)
		assert_int_equal(names.known[i], 0);
	for (uint64_t i = 0; i <= sizes->files / 64; i++)
		assert_int_equal(names.old[i], 0);
}

static void fill(struct fs_handover *handover)
{
	for (uint32_t v = 0; v < VIEWS; v++) {
		struct fs_handover_view view = fs_handover_view(handover, v);
		struct fs_handover_record next = record(v + 1);
		fs_handover_store(&view, &next);
		memset(view.maps[0], 0xff, BITS / 8);
		memset(view.maps[1], 0xff, BITS / 8);
	}
	memset(fs_handover_resident(handover), 0xff, SAMPLES / 8);
	memset(fs_handover_names(handover).known, 0xff, DIRS / 8);
	memset(fs_handover_names(handover).old, 0xff, FILES / 8);
}

static void test_another_layout_starts_afresh(void **state)
{
	static const struct fs_handover_sizes layouts[] = { { VIEWS, BITS, SAMPLES + 1, DIRS, FILES },
		{ VIEWS, BITS + 1, SAMPLES, DIRS, FILES }, { VIEWS, 1, SAMPLES, DIRS, FILES },
		{ VIEWS + 1, BITS, SAMPLES, DIRS, FILES }, { VIEWS, BITS, SAMPLES, DIRS + 1, FILES },
		{ VIEWS, BITS, SAMPLES, DIRS, FILES + 1 }, { 1, BITS, SAMPLES, DIRS, FILES }, { 1, 0, 0, 0, 0 },
		{ 3, 100000, 1000000, 1000, 2000000 } };
	(void)state;
	for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
		struct made m = make();
		bool kept;
		fill(m.handover);
		fs_handover_close(m.handover);
		m.handover = open_as(m.fd, &layouts[i], &kept);
		assert_false(kept);
		all_zero(m.handover, &layouts[i]);
		done(&m);
	}
}

/* The head's page is read by the supervisor, too, which believes nothing but that the beat changes. */
static void test_a_damaged_head_starts_afresh(void **state)
{
	(void)state;
	const size_t counts = offsetof(struct fs_handover_head, counts), dirs = offsetof(struct fs_handover_head, dirs);
	for (size_t byte = offsetof(struct fs_handover_head, magic); byte < dirs + 2 * sizeof(uint64_t); byte++) {
		byte = byte == counts ? dirs : byte;
		struct made m = make();
		uint8_t b;
		bool kept;
		fill(m.handover);
		fs_handover_close(m.handover);
		assert_int_equal(pread(m.fd, &b, 1, (off_t)byte), 1);
		b ^= (uint8_t)(1U << byte % 8);
		assert_int_equal(pwrite(m.fd, &b, 1, (off_t)byte), 1);
		m.handover = open_as(m.fd, &usual, &kept);
		assert_false(kept);
		all_zero(m.handover, &usual);
		done(&m);
	}
}

/* An announced list: its record, its blocks, and what is left when a block is given back. */
static void test_announced_lists_are_kept(void **state)
{
	struct made m = make();
	struct fs_handover_announced *announced = fs_handover_announced(m.handover);
	struct fs_handover_list list = { .id = 7, .end = 100, .place = 3, .name = "train" }, found;
	bool kept;
	(void)state;
	assert_int_equal(fs_handover_blocks(m.handover), FS_HANDOVER_BLOCKS_MAX);
	assert_false(fs_handover_load_list(announced, 5, &found));
	fs_handover_store_list(announced, 5, &list);
	list.place = 50;
	fs_handover_store_list(announced, 5, &list);
	fs_handover_block(m.handover, FS_HANDOVER_BLOCKS_MAX - 1)[FS_HANDOVER_BLOCK_ENTRIES - 1] = 0x77;
	fs_handover_block(m.handover, 1)[0] = 0x78;
	fs_handover_close(m.handover);
	m.handover = open_as(m.fd, &usual, &kept);
	announced = fs_handover_announced(m.handover);
	assert_true(kept);
	assert_true(fs_handover_load_list(announced, 5, &found));
	assert_int_equal(found.place, 50);
	assert_string_equal(found.name, "train");
	assert_int_equal(
	        fs_handover_block(m.handover, FS_HANDOVER_BLOCKS_MAX - 1)[FS_HANDOVER_BLOCK_ENTRIES - 1], 0x77);
	fs_handover_release_block(m.handover, FS_HANDOVER_BLOCKS_MAX - 1);
	assert_int_equal(fs_handover_block(m.handover, FS_HANDOVER_BLOCKS_MAX - 1)[FS_HANDOVER_BLOCK_ENTRIES - 1], 0);
	assert_int_equal(fs_handover_block(m.handover, 1)[0], 0x78);
	/* Every bit of both records: only what was stored is loaded. */
	uint8_t *bytes = (uint8_t *)announced->lists[5];
	for (size_t bit = 0; bit < 8 * sizeof(announced->lists[5]); bit++) {
		bytes[bit / 8] ^= (uint8_t)(1U << bit % 8);
		assert_true(fs_handover_load_list(announced, 5, &found));
		assert_true(found.place == 50 || found.place == 3);
		bytes[bit / 8] ^= (uint8_t)(1U << bit % 8);
	}
	list.id = 0;
	fs_handover_store_list(announced, 5, &list);
	assert_false(fs_handover_load_list(announced, 5, &found));
	done(&m);
}

/* Every bit of both records: what is loaded was stored. */
static void test_no_flipped_bit_is_believed(void **state)
{
	struct made m = make();
	struct fs_handover_view view = fs_handover_view(m.handover, 0);
	struct fs_handover_record next = record(1), found;
	(void)state;
	fs_handover_store(&view, &next);
	next = record(2);
	fs_handover_store(&view, &next);
	uint8_t *bytes = (uint8_t *)view.records;
	for (size_t bit = 0; bit < 2 * 8 * sizeof(next); bit++) {
		bytes[bit / 8] ^= (uint8_t)(1U << bit % 8);
		bool young = bit / 8 / sizeof(next) == 0; /* ages 1 and 2 lie in 1 and 0 */
		assert_true(fs_handover_load(&view, &found));
		assert_true(same(&found, young ? 1 : 2));
		bytes[bit / 8] ^= (uint8_t)(1U << bit % 8);
	}
	memset(bytes, 0xff, 2 * sizeof(next));
	assert_false(fs_handover_load(&view, &found));
	next = record(7); /* and the next one is at home again */
	fs_handover_store(&view, &next);
	assert_true(fs_handover_load(&view, &found) && same(&found, 7));
	done(&m);
}

/* Killed after any byte of a store. */
static void test_a_torn_record_leaves_the_one_before(void **state)
{
	struct made m = make();
	struct fs_handover_view view = fs_handover_view(m.handover, 0);
	struct fs_handover_record next, found, old[2], whole[2];
	(void)state;
	for (uint64_t n = 1; n <= 3; n++) {
		next = record(n);
		fs_handover_store(&view, &next);
	}
	memcpy(old, view.records, sizeof(old));
	next = record(4);
	fs_handover_store(&view, &next);
	memcpy(whole, view.records, sizeof(whole));
	for (size_t n = 0; n <= sizeof(whole); n++) {
		memcpy(view.records, old, sizeof(old));
		memcpy(view.records, whole, n);
		assert_true(fs_handover_load(&view, &found));
		assert_true(same(&found, 3) || same(&found, 4));
	}
	done(&m);
}

static void test_counts_outlive_what_else_is_lost(void **state)
{
	struct made m = make();
	struct fs_handover_counts counts = { .n = FS_HANDOVER_COUNTS_MAX }, found;
	bool kept;
	(void)state;
	assert_false(fs_handover_load_counts(m.handover, &found));
	for (uint64_t n = 1; n <= 3; n++) {
		for (size_t i = 0; i < FS_HANDOVER_COUNTS_MAX; i++)
			counts.counts[i] = (struct fs_handover_count){ .key = i, .value = n * i };
		fs_handover_store_counts(m.handover, &counts);
		assert_true(fs_handover_load_counts(m.handover, &found));
		assert_memory_equal(found.counts, counts.counts, sizeof(counts.counts));
	}
	fs_handover_close(m.handover);
	struct fs_handover_sizes other = usual;
	other.samples += 1000000;
	m.handover = open_as(m.fd, &other, &kept);
	assert_false(kept);
	assert_true(fs_handover_load_counts(m.handover, &found) && found.counts[9].value == 27);
	const off_t at = offsetof(struct fs_handover_head, counts);
	for (size_t byte = 0; byte < 2 * sizeof(counts); byte++) {
		uint8_t b;
		assert_int_equal(pread(m.fd, &b, 1, at + (off_t)byte), 1);
		b ^= 0x10;
		assert_int_equal(pwrite(m.fd, &b, 1, at + (off_t)byte), 1);
		assert_true(fs_handover_load_counts(m.handover, &found));
		assert_int_equal(found.counts[9].value, byte < sizeof(counts) ? 27 : 18); /* ages 2 and 3 */
		b ^= 0x10;
		assert_int_equal(pwrite(m.fd, &b, 1, at + (off_t)byte), 1);
	}
	done(&m);
}

static void test_each_rank_has_counts_of_its_own(void **state)
{
	struct made m = make();
	struct fs_handover_rank_counts counts = { 0 }, found;
	(void)state;
	for (uint32_t v = 0; v < VIEWS; v++) {
		struct fs_handover_view view = fs_handover_view(m.handover, v);
		struct fs_handover_record next = record(9), there;
		fs_handover_store(&view, &next);
		assert_false(fs_handover_load_rank_counts(&view, &found));
		for (uint64_t n = 1; n <= 3; n++) {
			for (size_t i = 0; i < FS_HANDOVER_RANK_COUNTS; i++)
				counts.values[i] = 1000 * v + 100 * n + i;
			fs_handover_store_rank_counts(&view, &counts);
			assert_true(fs_handover_load_rank_counts(&view, &found));
			assert_memory_equal(found.values, counts.values, sizeof(counts.values));
		}
		assert_true(fs_handover_load(&view, &there) && same(&there, 9));
		view.counts[found.age & 1].values[2] ^= 1; /* the younger ones do not count any more */
		assert_true(fs_handover_load_rank_counts(&view, &found));
		assert_int_equal(found.values[2], 1000 * v + 202);
	}
	done(&m);
}

static size_t put_event(struct fs_handover_opens *opens, size_t at, int wd, const char *name, uint32_t len)
{
	struct inotify_event event = { .wd = wd, .mask = IN_OPEN, .len = len };
	memcpy(opens->events + at, &event, sizeof(event));
	if (len)
		snprintf((char *)opens->events + at + sizeof(event), len, "%s", name);
	return at + sizeof(event) + len;
}

static void test_events_are_taken_once_whoever_dies(void **state)
{
	bool kept;
	(void)state;
	for (int die_at = 0; die_at <= 3; die_at++) {
		struct made m = make();
		struct fs_handover_opens *opens = fs_handover_opens(m.handover);
		const struct inotify_event *event;
		int n = 0;
		assert_null(fs_handover_take_event(opens));
		put_event(opens, put_event(opens, put_event(opens, 0, 1, "a", 16), 2, "", 0), -1, "ccc", 32);
		while (n < die_at && (event = fs_handover_take_event(opens)))
			n++;
		fs_handover_close(m.handover);
		m.handover = open_as(m.fd, &usual, &kept);
		assert_true(kept);
		opens = fs_handover_opens(m.handover);
		for (event = fs_handover_take_event(opens); event; event = fs_handover_take_event(opens)) {
			n++;
			assert_int_equal(event->wd, n == 3 ? -1 : n);
			assert_string_equal(event->len ? event->name : "", n == 1 ? "a" : n == 3 ? "ccc" : "");
		}
		assert_int_equal(n, 3);
		assert_null(fs_handover_take_event(opens));
		for (size_t i = 0; i < sizeof(opens->events); i++)
			assert_int_equal(opens->events[i], 0);
		done(&m);
	}
}

static void test_events_that_cannot_be_are_not_taken(void **state)
{
	struct made m = make();
	struct fs_handover_opens *opens = fs_handover_opens(m.handover);
	const size_t size = sizeof(opens->events);
	(void)state;
	put_event(opens, 0, 1, "", 0);
	put_event(opens, 16, 1, "", 16); /* its end is overwritten */
	memset(opens->events + 32, 'x', 16);
	assert_non_null(fs_handover_take_event(opens));
	assert_null(fs_handover_take_event(opens));
	fs_handover_clear_events(opens);

	const uint32_t lens[] = { UINT32_MAX, UINT32_MAX - 15, (uint32_t)size, (uint32_t)size - 15 };
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		put_event(opens, 0, 1, NULL, 0);
		memcpy(opens->events + offsetof(struct inotify_event, len), &lens[i], sizeof(lens[i]));
		assert_null(fs_handover_take_event(opens));
		fs_handover_clear_events(opens);
	}
	const uint32_t taken[] = { 1, (uint32_t)size, (uint32_t)size - 8, UINT32_MAX, UINT32_MAX - 15 };
	for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++) {
		memset(opens->events, 1, size);
		opens->taken = taken[i];
		assert_null(fs_handover_take_event(opens));
		assert_int_equal(opens->taken, 0);
		fs_handover_clear_events(opens);
	}
	put_event(opens, size - 16, 7, NULL, 0); /* the last one that fits */
	opens->taken = (uint32_t)size - 16;
	assert_int_equal(fs_handover_take_event(opens)->wd, 7);
	assert_null(fs_handover_take_event(opens));
	done(&m);
}

static void test_what_cannot_be_is_refused(void **state)
{
	struct fs_handover *handover;
	struct fs_handover_head *head;
	struct made m = make();
	bool kept;
	(void)state;
	const struct fs_handover_sizes small = { 1, 1, 1, 1, 1 };
	const struct fs_handover_sizes large[] = { { UINT64_MAX, 1, 1, 1, 1 }, { 1, UINT64_MAX, 1, 1, 1 },
		{ 1, 1, UINT64_MAX, 1, 1 }, { 1, 1, 1, UINT64_MAX, 1 }, { 1, 1, 1, 1, UINT64_MAX } };
	for (size_t i = 0; i < sizeof(large) / sizeof(large[0]); i++)
		assert_int_equal(fs_handover_open(m.fd, &large[i], &handover, &kept), -EFBIG);
	assert_int_equal(fs_handover_open(-1, &small, &handover, &kept), -EBADF);
	assert_int_equal(fs_handover_map_head(-1, &head), -EBADF);
	assert_int_equal(ftruncate(m.fd, 0), -1); /* sealed: a server cannot take the head away */
	int empty = memfd_create("empty", MFD_CLOEXEC);
	assert_true(empty >= 0);
	assert_int_equal(fs_handover_map_head(empty, &head), -EINVAL);
	assert_int_equal(ftruncate(empty, PAGE - 1), 0);
	assert_int_equal(fs_handover_map_head(empty, &head), -EINVAL);
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	assert_true(fs_handover_open(null, &small, &handover, &kept) < 0);
	assert_true(fs_handover_map_head(null, &head) < 0);
	close(null);
	close(empty);
	fs_handover_close(NULL);
	done(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_latest_record_counts),
		cmocka_unit_test(test_a_successor_finds_everything),
		cmocka_unit_test(test_another_layout_starts_afresh),
		cmocka_unit_test(test_a_damaged_head_starts_afresh),
		cmocka_unit_test(test_announced_lists_are_kept),
		cmocka_unit_test(test_no_flipped_bit_is_believed),
		cmocka_unit_test(test_a_torn_record_leaves_the_one_before),
		cmocka_unit_test(test_counts_outlive_what_else_is_lost),
		cmocka_unit_test(test_each_rank_has_counts_of_its_own),
		cmocka_unit_test(test_events_are_taken_once_whoever_dies),
		cmocka_unit_test(test_events_that_cannot_be_are_not_taken),
		cmocka_unit_test(test_what_cannot_be_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
