/* SPDX-License-Identifier: Apache-2.0 */
/* The piece of a listing that is made ahead. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fs/listing_ahead.h"

static const struct fs_dir_place here = { .ino = 1, .handle = 7, .off = 300, .size = 4096, .plus = true };

static struct fs_dir_piece piece_of(uint64_t names)
{
	struct fs_dir_piece piece = { .buf = malloc(8), .used = 8, .names = names, .next = 400, .full = true };
	assert_non_null(piece.buf);
	memcpy(piece.buf, &names, 8);
	return piece;
}

static struct fs_listing_ahead *fresh(void)
{
	struct fs_listing_ahead *ahead;
	assert_int_equal(fs_listing_ahead_new(&ahead), 0);
	return ahead;
}

static void test_a_piece_is_handed_out_once(void **state)
{
	struct fs_listing_ahead *ahead = fresh();
	struct fs_dir_piece piece = { 0 };
	(void)state;
	assert_false(fs_listing_ahead_take(ahead, &here, &piece));
	assert_true(fs_listing_ahead_begin(ahead, &here));
	fs_listing_ahead_end(ahead, piece_of(5));
	assert_true(fs_listing_ahead_take(ahead, &here, &piece));
	assert_int_equal(piece.names, 5);
	assert_int_equal(piece.used, 8);
	assert_int_equal(piece.next, 400);
	assert_true(piece.full);
	free(piece.buf);
	assert_false(fs_listing_ahead_take(ahead, &here, &piece));
	fs_listing_ahead_free(ahead);
}

static void test_another_place_does_not_get_it(void **state)
{
	struct fs_listing_ahead *ahead = fresh();
	struct fs_dir_piece piece = { 0 };
	struct fs_dir_place others[5];
	(void)state;
	for (size_t i = 0; i < 5; i++)
		others[i] = here;
	others[0].ino++;
	others[1].handle++;
	others[2].off++;
	others[3].size++;
	others[4].plus = false;
	assert_true(fs_listing_ahead_begin(ahead, &here));
	for (size_t i = 0; i < 5; i++)
		assert_false(fs_listing_ahead_take(ahead, &others[i], &piece)); /* nor does it wait */
	fs_listing_ahead_end(ahead, piece_of(5));
	for (size_t i = 0; i < 5; i++) {
		assert_false(fs_listing_ahead_take(ahead, &others[i], &piece));
		assert_false(fs_listing_ahead_begin(ahead, &others[i])); /* the first one keeps its place */
	}
	fs_listing_ahead_free(ahead); /* with what it keeps */
}

struct taker {
	struct fs_listing_ahead *ahead;
	struct fs_dir_piece piece;
	bool taken;
};

static void *take_here(void *arg)
{
	struct taker *taker = arg;
	taker->taken = fs_listing_ahead_take(taker->ahead, &here, &taker->piece);
	return NULL;
}

static void test_who_waits_for_a_piece_goes_on(void **state)
{
	struct fs_listing_ahead *ahead = fresh();
	struct fs_dir_piece piece = { 0 };
	(void)state;
	assert_true(fs_listing_ahead_begin(ahead, &here));
	assert_false(fs_listing_ahead_take(ahead, &here, &piece)); /* its maker is stuck: not for long */
	for (int forgotten = 0; forgotten < 2; forgotten++) {
		struct taker taker = { .ahead = ahead };
		pthread_t thread;
		assert_int_equal(pthread_create(&thread, NULL, take_here, &taker), 0);
		if (forgotten)
			fs_listing_ahead_forget(ahead);
		fs_listing_ahead_end(ahead, piece_of(5));
		assert_int_equal(pthread_join(thread, NULL), 0);
		/* On a busy machine he may have given up before it came. */
		if (!taker.taken)
			assert_int_equal(fs_listing_ahead_take(ahead, &here, &taker.piece), !forgotten);
		else
			assert_false(forgotten);
		free(taker.piece.buf);
		assert_true(fs_listing_ahead_begin(ahead, &here));
	}
	fs_listing_ahead_end(ahead, (struct fs_dir_piece){ 0 });
	fs_listing_ahead_free(ahead);
}

static void test_what_is_forgotten_is_not_handed_out(void **state)
{
	struct fs_listing_ahead *ahead = fresh();
	struct fs_dir_piece piece = { 0 };
	(void)state;
	fs_listing_ahead_forget(ahead);
	for (int making = 0; making < 2; making++) {
		assert_true(fs_listing_ahead_begin(ahead, &here));
		if (making)
			fs_listing_ahead_forget(ahead);
		fs_listing_ahead_end(ahead, piece_of(5));
		if (!making)
			fs_listing_ahead_forget(ahead);
		assert_false(fs_listing_ahead_take(ahead, &here, &piece));
	}
	assert_true(fs_listing_ahead_begin(ahead, &here));
	fs_listing_ahead_end(ahead, (struct fs_dir_piece){ 0 }); /* could not be made */
	assert_false(fs_listing_ahead_take(ahead, &here, &piece));
	assert_true(fs_listing_ahead_begin(ahead, &here));
	fs_listing_ahead_end(ahead, piece_of(6));
	assert_true(fs_listing_ahead_take(ahead, &here, &piece));
	assert_int_equal(piece.names, 6);
	free(piece.buf);
	fs_listing_ahead_free(ahead);
}

/* Readers that follow one listing beside each other, with OPENDIRs between: each sees each place's own piece. */
enum { READERS = 4, ROUNDS = 20000 };

static void *follow(void *arg)
{
	struct fs_listing_ahead *ahead = arg;
	for (uint64_t off = 0; off < ROUNDS; off++) {
		struct fs_dir_place place = { .off = off, .size = 8 };
		struct fs_dir_piece piece;
		if (fs_listing_ahead_take(ahead, &place, &piece)) {
			uint64_t names;
			memcpy(&names, piece.buf, 8);
			if (names != off || piece.names != off)
				return arg;
			free(piece.buf);
		}
		if (off % 1000 == 999)
			fs_listing_ahead_forget(ahead);
		place.off++;
		if (fs_listing_ahead_begin(ahead, &place))
			fs_listing_ahead_end(ahead, piece_of(place.off));
	}
	return NULL;
}

static void test_readers_side_by_side(void **state)
{
	struct fs_listing_ahead *ahead = fresh();
	pthread_t threads[READERS];
	(void)state;
	for (size_t i = 0; i < READERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, follow, ahead), 0);
	for (size_t i = 0; i < READERS; i++) {
		void *wrong;
		assert_int_equal(pthread_join(threads[i], &wrong), 0);
		assert_null(wrong);
	}
	fs_listing_ahead_free(ahead);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_piece_is_handed_out_once),
		cmocka_unit_test(test_another_place_does_not_get_it),
		cmocka_unit_test(test_who_waits_for_a_piece_goes_on),
		cmocka_unit_test(test_what_is_forgotten_is_not_handed_out),
		cmocka_unit_test(test_readers_side_by_side),
	};
	return cmocka_run_group_tests_name("fs/dir_ahead", tests, NULL, NULL);
}
