/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is not in a core (shard/remote/secret_memory.h). */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "shard/base/sanitized.h"
#include "shard/remote/fetch.h"
#include "shard/remote/secret_memory.h"

enum { PIECE = 16 << 10, PIECES = 512, MOVES_MAX = 32, FORKS = 300, CHILD_S = 30 };

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
	if (!BASE_SANITIZED)
		assert_in_range(moves, 1, MOVES_MAX);
	remote_secret_free(block);
}

static void test_what_cannot_be_had_is_refused(void **state)
{
	(void)state;
	if (BASE_SANITIZED)
		return; /* it ends the program */
	char *block = remote_secret_alloc(100);
	assert_non_null(block);
	memcpy(block, "kept", 5);
	assert_null(remote_secret_realloc(block, SIZE_MAX));
	assert_null(remote_secret_realloc(block, SIZE_MAX / 4 * 3));
	assert_string_equal(block, "kept");
	remote_secret_free(block);
}

static atomic_bool stop;

static void *allocate(void *arg)
{
	while (!atomic_load(&stop))
		remote_secret_free(remote_secret_alloc(100));
	return arg;
}

/* The child of a process whose other threads are allocating can allocate, too. */
static void test_a_child_can_allocate(void **state)
{
	pthread_t threads[2];
	(void)state;
	assert_int_equal(remote_fetch_init(), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, allocate, NULL), 0);
	for (int i = 0; i < FORKS; i++) {
		pid_t child = fork();
		assert_true(child >= 0);
		if (child == 0) {
			alarm(CHILD_S);
			remote_secret_free(remote_secret_alloc(100));
			_exit(0);
		}
		int status;
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_int_equal(status, 0);
	}
	atomic_store(&stop, true);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_growing_by_pieces_moves_seldom),
		cmocka_unit_test(test_what_cannot_be_had_is_refused),
		cmocka_unit_test(test_a_child_can_allocate),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
