/* SPDX-License-Identifier: Apache-2.0 */
/* When the statistics say that the recogniser is behind, or recognises nothing; what they say of an unknown order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "fs/read_ahead_note.h"

static const char UNTOUCHED[] = "untouched";

/* Returns the sentence, or NULL if there is none. */
static const char *note_of(struct fs_read_ahead_counts counts)
{
	static char text[FS_READ_AHEAD_NOTE_MAX];
	memcpy(text, UNTOUCHED, sizeof(UNTOUCHED));
	if (fs_read_ahead_note(&counts, text)) {
		assert_string_not_equal(text, UNTOUCHED);
		return text;
	}
	assert_string_equal(text, UNTOUCHED);
	return NULL;
}

static void test_recogniser_is_behind_from_4096_opens_on(void **state)
{
	(void)state;
	assert_null(note_of((struct fs_read_ahead_counts){ .behind = 4095 }));
	assert_string_equal(note_of((struct fs_read_ahead_counts){ .behind = 4096 }),
	        "the recogniser is behind by 4096 opens: files are read ahead late");
	assert_string_equal(note_of((struct fs_read_ahead_counts){ .behind = 5906, .recognised = true }),
	        "the recogniser is behind by 5906 opens: files are read ahead late");
}

static void test_nothing_recognised_says_opens_and_percent(void **state)
{
	(void)state;
	struct fs_read_ahead_counts counts = { .unexplained = 512, .opens = 1000, .misses = 995 };
	const char *text = note_of(counts);
	assert_non_null(text);
	assert_non_null(strstr(text, "nothing recognised after 512 opens, 99% missed: "));
	assert_non_null(strstr(text, "missed: run the trainer under `ddpfs exec`, call ddpfs.torch.follow(loader), "));
	assert_non_null(strstr(text, "`ddpfs ctl MNT follow LIST`"));
	assert_non_null(strstr(text, ".ddpfs/epoch/N.list"));
	counts.unexplained = 70000;
	counts.misses = 100;
	assert_non_null(strstr(note_of(counts), "nothing recognised after 70000 opens, 10% missed: "));
}

static void test_nothing_recognised_is_not_said_without_a_reason(void **state)
{
	(void)state;
	const struct fs_read_ahead_counts counts = { .unexplained = 512, .opens = 1000, .misses = 100 };
	struct fs_read_ahead_counts other = counts;
	assert_non_null(note_of(counts));
	other.unexplained = 511;
	assert_null(note_of(other));
	other = counts;
	other.rests = true;
	assert_null(note_of(other));
	other = counts;
	other.misses = 99;
	assert_null(note_of(other));
	other = counts;
	other.recognised = true;
	assert_null(note_of(other));
	other = counts;
	other.opens = other.misses = 0; /* counters are not shown */
	assert_null(note_of(other));
}

/* Returns the sentence on an unknown order. */
static const char *order_note_of(struct fs_read_ahead_counts counts)
{
	static char text[FS_READ_AHEAD_NOTE_MAX];
	fs_unknown_order_note(&counts, text);
	assert_memory_equal(text, "unknown: ", strlen("unknown: "));
	return text;
}

static void test_an_unknown_order_is_looked_for_until_512_opens(void **state)
{
	(void)state;
	assert_non_null(strstr(order_note_of((struct fs_read_ahead_counts){ 0 }), "no opens yet"));
	assert_non_null(strstr(order_note_of((struct fs_read_ahead_counts){ .unexplained = 1 }),
	        "the search for the order goes on: 1 opens so far, of 512"));
	assert_null(strstr(order_note_of((struct fs_read_ahead_counts){ .unexplained = 511 }), "fit no sampler"));
	assert_non_null(strstr(order_note_of((struct fs_read_ahead_counts){ .unexplained = 512 }),
	        "512 opens fit no sampler that ddpfs knows: announce the order with `ddpfs exec`, "));
	assert_non_null(strstr(order_note_of((struct fs_read_ahead_counts){ .unexplained = 9, .rests = true }),
	        "everything that is opened is in memory"));
}

static void test_nobody_who_runs_under_exec_is_told_to_do_so(void **state)
{
	(void)state;
	for (uint64_t opens = 0; opens < 600; opens += 512) {
		const struct fs_read_ahead_counts counts = {
			.watched = true, .unexplained = opens, .opens = 1000, .misses = 995
		};
		const char *text = order_note_of(counts);
		assert_null(strstr(text, "with `ddpfs exec`"));
		assert_non_null(strstr(text, "ddpfs.torch.follow(loader, paths=...)"));
		assert_non_null(strstr(text, "`ddpfs ctl MNT follow LIST`"));
		text = note_of(counts);
		assert_true(opens == 0 || !strstr(text, "`ddpfs exec`"));
	}
}

static void test_a_hook_that_nobody_heard_of_may_be_missing(void **state)
{
	(void)state;
	static const char said[] = "gets PYTHONPATH and DDPFS_MOUNT (`export PYTHONPATH=DIR` in a launch ";
	struct fs_read_ahead_counts counts = { .watched = true, .unexplained = 512, .opens = 1000, .misses = 995 };
	assert_non_null(strstr(order_note_of(counts), said));
	assert_non_null(strstr(note_of(counts), said));
	counts.heard = true;
	assert_null(strstr(order_note_of(counts), "PYTHONPATH"));
	assert_null(strstr(note_of(counts), "PYTHONPATH"));
	counts.heard = counts.watched = false; /* a mount without `ddpfs exec` */
	assert_null(strstr(order_note_of(counts), "PYTHONPATH"));
	assert_null(strstr(note_of(counts), "PYTHONPATH"));
}

static void test_who_announced_too_little_or_wrongly_is_not_told_to_announce(void **state)
{
	(void)state;
	struct fs_read_ahead_counts counts = {
		.watched = true, .heard = true, .announced = true, .unexplained = 512, .opens = 1000, .misses = 500
	};
	assert_non_null(
	        strstr(note_of(counts), "512 opens are in no announced list, 50% missed: if items open more files"));
	counts.announced = false;
	counts.dropped = 1;
	assert_non_null(
	        strstr(order_note_of(counts), "unknown: 1 announced lists were dropped: the opens were of other"));
	assert_non_null(
	        strstr(note_of(counts), "1 announced lists dropped: the opens were of other files or came in another"));
	counts.dropped = counts.unexplained = UINT64_MAX;
	assert_non_null(strstr(note_of(counts), "paths= of ddpfs.torch.follow)"));
	counts.reason = "the sampler differs";
	assert_non_null(strstr(order_note_of(counts), counts.reason));
}

static void test_the_reason_of_the_trainer_is_said(void **state)
{
	(void)state;
	const struct fs_read_ahead_counts counts = {
		.unexplained = 700, .opens = 1000, .misses = 995, .reason = "it has no indices", .watched = true
	};
	assert_string_equal(order_note_of(counts), "unknown: the trainer announces no order: it has no indices");
	assert_string_equal(note_of(counts), "nothing recognised after 700 opens, 99% missed: it has no indices");
}

static void test_the_longest_reason_fits(void **state)
{
	char reason[FS_READ_AHEAD_REASON_MAX];
	(void)state;
	memset(reason, 'x', sizeof(reason) - 1);
	reason[sizeof(reason) - 1] = '\0';
	struct fs_read_ahead_counts counts = {
		.unexplained = UINT64_MAX, .opens = UINT64_MAX / 100, .misses = UINT64_MAX / 100, .reason = reason
	};
	assert_non_null(strstr(note_of(counts), reason));
	assert_non_null(strstr(order_note_of(counts), reason));
	counts.reason = NULL;
	assert_non_null(strstr(order_note_of(counts), "ddpfs.Mount(MNT).follow(...)"));
	counts.watched = true;
	assert_non_null(strstr(order_note_of(counts), "ddpfs.Mount(MNT).follow(...)"));
	assert_non_null(strstr(note_of(counts), "N.list"));
}

static void test_being_behind_comes_first(void **state)
{
	(void)state;
	assert_string_equal(note_of((struct fs_read_ahead_counts){
	                            .behind = 4096, .unexplained = 512, .opens = 1000, .misses = 1000 }),
	        "the recogniser is behind by 4096 opens: files are read ahead late");
}

static void test_largest_numbers_fit(void **state)
{
	(void)state;
	const char *text = note_of((struct fs_read_ahead_counts){
	        .unexplained = UINT64_MAX, .opens = UINT64_MAX / 100, .misses = UINT64_MAX / 100 });
	assert_non_null(text);
	assert_non_null(strstr(text, "100% missed"));
	assert_string_equal(text + strlen(text) - strlen("N.list"), "N.list");
}

static void test_an_order_that_was_left_is_unknown(void **state)
{
	(void)state;
	char order[FS_READ_AHEAD_NOTE_MAX];
	struct fs_read_ahead_counts counts = {
		.recognised = true, .order_left = true, .unexplained = 512, .opens = 1000, .misses = 500
	};
	const char *text = note_of(counts);
	assert_non_null(text);
	assert_non_null(strstr(text, "50% missed, and few of the latest opens are in the order that was recognised"));
	assert_non_null(strstr(text, "`ddpfs ctl MNT follow LIST`"));
	fs_unknown_order_note(&counts, order);
	assert_non_null(strstr(order, "unknown: few of the latest opens are in the order that was recognised"));
	counts.misses = 0;
	assert_null(note_of(counts));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_recogniser_is_behind_from_4096_opens_on),
		cmocka_unit_test(test_nothing_recognised_says_opens_and_percent),
		cmocka_unit_test(test_nothing_recognised_is_not_said_without_a_reason),
		cmocka_unit_test(test_an_unknown_order_is_looked_for_until_512_opens),
		cmocka_unit_test(test_nobody_who_runs_under_exec_is_told_to_do_so),
		cmocka_unit_test(test_a_hook_that_nobody_heard_of_may_be_missing),
		cmocka_unit_test(test_who_announced_too_little_or_wrongly_is_not_told_to_announce),
		cmocka_unit_test(test_the_reason_of_the_trainer_is_said),
		cmocka_unit_test(test_the_longest_reason_fits),
		cmocka_unit_test(test_being_behind_comes_first),
		cmocka_unit_test(test_largest_numbers_fit),
		cmocka_unit_test(test_an_order_that_was_left_is_unknown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
