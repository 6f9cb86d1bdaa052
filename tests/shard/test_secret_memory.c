/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is not in a core (shard/remote/secret_memory.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "shard/remote/secret_memory.h"

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || __has_feature(address_sanitizer) ||               \
        __has_feature(thread_sanitizer)
#define SANITIZED true
#else
#define SANITIZED false
#endif

enum { PIECE = 16 << 10, PIECES = 512, MOVES_MAX = 32 };

/* As an answer of 8 MiB comes: in pieces.  A move for each piece copies all of it each time. */
static void test_growing_by_pieces_moves_seldom(void **state)
{
	char *block = NULL;
	unsigned moves = 0;
	(void)state;
	for (size_t i = 0; i < PIECES; i++) {
		char *made = remote_secret_realloc(block, (i + 1) * PIECE);
		assert_non_null(made);
		moves += made != block;
		block = made;
		memset(block + i * PIECE, (int)(i & 0xff), PIECE);
	}
	for (size_t i = 0; i < PIECES; i++) {
		assert_int_equal((uint8_t)block[i * PIECE], i & 0xff);
		assert_int_equal((uint8_t)block[(i + 1) * PIECE - 1], i & 0xff);
	}
	if (!SANITIZED)
		assert_in_range(moves, 1, MOVES_MAX);
	remote_secret_free(block);
}

static void test_what_cannot_be_had_is_refused(void **state)
{
	(void)state;
	if (SANITIZED)
		return; /* it ends the program */
	char *block = remote_secret_alloc(100);
	assert_non_null(block);
	memcpy(block, "kept", 5);
	assert_null(remote_secret_realloc(block, SIZE_MAX));
	assert_null(remote_secret_realloc(block, SIZE_MAX / 4 * 3));
	assert_string_equal(block, "kept");
	remote_secret_free(block);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_growing_by_pieces_moves_seldom),
		cmocka_unit_test(test_what_cannot_be_had_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
