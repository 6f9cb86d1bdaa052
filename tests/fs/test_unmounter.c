/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to unmount, while one is under way: each server hears of its newest one, and one process runs at a time. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/supervise/unmounter.h"

static unsigned n_answers;
static struct fs_unmount_request answered;
static int answer;

/* In the child: a lazy one is busy at once, another one waits until it is killed. */
static int unmount_it(void *arg, bool lazy)
{
	(void)arg;
	if (lazy)
		return -EBUSY;
	for (;;)
		pause();
}

static void take_answer(void *arg, const struct fs_unmount_request *request, int rc)
{
	(void)arg;
	n_answers++;
	answered = *request;
	answer = rc;
}

static struct fs_unmounter fresh(void)
{
	n_answers = 0;
	return (struct fs_unmounter){ .unmount = unmount_it, .answer = take_answer };
}

static void ask(struct fs_unmounter *u, uint32_t id, bool lazy)
{
	fs_unmounter_ask(u, &(struct fs_unmount_request){ .id = id, .server = 77, .lazy = lazy });
}

static void reap(struct fs_unmounter *u)
{
	int status;
	pid_t pid = u->pid;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_false(fs_unmounter_ended(u, pid + 1, status));
	assert_true(fs_unmounter_ended(u, pid, status));
	assert_false(fs_unmounter_ended(u, pid, status));
}

static void test_what_unmounting_returned_is_the_answer(void **state)
{
	struct fs_unmounter u = fresh();
	(void)state;
	ask(&u, 5, true);
	assert_int_equal(n_answers, 0);
	reap(&u);
	assert_int_equal(n_answers, 1);
	assert_int_equal(answered.id, 5);
	assert_int_equal(answer, -EBUSY);
	assert_int_equal(u.pid, 0);
}

static void test_a_second_request_does_not_forget_the_process_that_runs(void **state)
{
	struct fs_unmounter u = fresh();
	(void)state;
	ask(&u, 1, false);
	pid_t first = u.pid;
	ask(&u, 2, true);
	ask(&u, 3, true);
	assert_int_equal(u.pid, first); /* and no other was started */
	assert_int_equal(n_answers, 0);
	kill(first, SIGKILL);
	reap(&u);
	assert_int_equal(n_answers, 1);
	assert_int_equal(answered.id, 1);
	assert_int_equal(answer, -EIO);
	assert_int_not_equal(u.pid, 0);
	reap(&u);
	assert_int_equal(n_answers, 2);
	assert_int_equal(answered.id, 3); /* the newest of those that waited */
	assert_int_equal(answer, -EBUSY);
	assert_int_equal(u.pid, 0);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no other child is left */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_unmounting_returned_is_the_answer),
		cmocka_unit_test(test_a_second_request_does_not_forget_the_process_that_runs),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
