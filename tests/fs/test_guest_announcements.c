/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of guests' requests: who waits, who is refused, how long main rests. The kernel's side, the answers and the
 * clock are this file's: an answer takes as long as a test says. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "fs/control_server.h"
#include "fs/guest_announcements.h"

#define MS UINT64_C(1000000)
#define S UINT64_C(1000000000)

static uint64_t now_ns, answer_takes_ns;

struct request {
	struct fuse_ctx context;
	unsigned replies;
	int error; /* 0: answered */
	uint64_t answered_ns;
};

int __wrap_clock_gettime(clockid_t clock, struct timespec *ts);
int __wrap_clock_gettime(clockid_t clock, struct timespec *ts)
{
	(void)clock;
	*ts = (struct timespec){ .tv_sec = (time_t)(now_ns / S), .tv_nsec = (long)(now_ns % S) };
	return 0;
}

const struct fuse_ctx *fuse_req_ctx(fuse_req_t req)
{
	return &((struct request *)req)->context;
}

static int reply(fuse_req_t req, int error)
{
	struct request *request = (struct request *)req;
	request->replies++;
	request->error = error;
	request->answered_ns = now_ns;
	return 0;
}

int fuse_reply_err(fuse_req_t req, int err)
{
	return reply(req, err);
}

int fuse_reply_ioctl(fuse_req_t req, int result, const void *buf, size_t size)
{
	assert_int_equal(result, 0);
	assert_memory_equal(buf, "{}\n", size);
	return reply(req, 0);
}

char *fs_control_answer_guest(struct fs_server *server, uid_t uid, uint64_t ino, const char *bytes, size_t len)
{
	assert_null(server);
	assert_int_equal(ino, uid + 1000);
	assert_int_equal(bytes[len], 0);
	now_ns += answer_takes_ns;
	return strdup("{}\n");
}

static void take(struct fs_guests *guests, struct request *request, uid_t uid)
{
	*request = (struct request){ .context = { .uid = uid }, .error = -1 };
	fs_guests_take(guests, (fuse_req_t)request, uid + 1000, "{}", 2);
}

static int set_up(void **state)
{
	now_ns = 100 * S;
	answer_takes_ns = 0;
	return fs_guests_new(NULL, (struct fs_guests **)state);
}

static int tear_down(void **state)
{
	fs_guests_end(*state);
	fs_guests_free(*state);
	return 0;
}

/* Returns after how many milliseconds main looks at the guests again; -1: not before a request comes. */
static int rest(struct fs_guests *guests)
{
	struct pollfd poll;
	return fs_guests_poll(guests, &poll);
}

static void test_the_end_answers_all_who_wait_and_all_who_come_later(void **state)
{
	struct fs_guests *guests = *state;
	struct request waiting[5], late;
	for (unsigned i = 0; i < 5; i++)
		take(guests, &waiting[i], i % 2);
	fs_guests_end(guests);
	take(guests, &late, 7);
	for (unsigned i = 0; i < 5; i++) {
		assert_int_equal(waiting[i].replies, 1);
		assert_int_equal(waiting[i].error, EAGAIN);
	}
	assert_int_equal(late.replies, 1);
	assert_int_equal(late.error, EAGAIN);
	assert_int_equal(rest(guests), -1);
}

static void test_one_user_waits_with_eight_requests_and_all_with_64(void **state)
{
	struct fs_guests *guests = *state;
	struct request requests[FS_GUEST_QUEUE + 2];
	unsigned n = 0;
	for (uid_t uid = 0; n < FS_GUEST_QUEUE; n++, uid += n % FS_GUEST_QUEUE_USER == 0) {
		take(guests, &requests[n], uid);
		assert_int_equal(requests[n].replies, 0);
		if (n != FS_GUEST_QUEUE_USER - 1)
			continue;
		take(guests, &requests[FS_GUEST_QUEUE], uid);
		assert_int_equal(requests[FS_GUEST_QUEUE].error, EAGAIN);
	}
	take(guests, &requests[FS_GUEST_QUEUE + 1], 4711);
	assert_int_equal(requests[FS_GUEST_QUEUE + 1].error, EAGAIN);
	fs_guests_serve(guests);
	for (n = 0; n < FS_GUEST_QUEUE; n++) {
		assert_int_equal(requests[n].replies, 1);
		assert_int_equal(requests[n].error, 0);
	}
	take(guests, &requests[0], 4711);
	fs_guests_serve(guests);
	assert_int_equal(requests[0].error, 0);
}

static void test_users_are_answered_in_turn(void **state)
{
	struct fs_guests *guests = *state;
	struct request mine[3], his[2];
	answer_takes_ns = 100000;
	for (unsigned i = 0; i < 3; i++)
		take(guests, &mine[i], 1);
	for (unsigned i = 0; i < 2; i++)
		take(guests, &his[i], 2);
	fs_guests_serve(guests);
	assert_true(mine[0].answered_ns < his[0].answered_ns && his[0].answered_ns < mine[1].answered_ns);
	assert_true(mine[1].answered_ns < his[1].answered_ns && his[1].answered_ns < mine[2].answered_ns);
}

/* Returns for how many milliseconds main rests after a turn with one answer that takes so long. */
static int rest_after(struct fs_guests *guests, uint64_t takes_ns)
{
	struct request first, second;
	answer_takes_ns = takes_ns;
	take(guests, &first, 1);
	take(guests, &second, 1);
	fs_guests_serve(guests);
	assert_int_equal(first.error, 0);
	assert_int_equal(second.replies, 0);
	int rest_ms = rest(guests);
	now_ns += (uint64_t)(rest_ms - 2) * MS;
	fs_guests_serve(guests); /* a millisecond too early */
	assert_int_equal(second.replies, 0);
	now_ns += MS;
	answer_takes_ns = 0;
	fs_guests_serve(guests);
	assert_int_equal(second.error, 0);
	return rest_ms;
}

static void test_main_rests_as_long_as_a_turn_or_nine_times_as_long(void **state)
{
	static const struct {
		uint64_t takes_ns, rests_ms;
	} cases[] = {
		{ 5 * MS, 5 },
		{ 199 * MS, 199 },
		{ 200 * MS, 1800 },
		{ 1000 * MS, 9000 },
		{ 3333 * MS, 29997 },
		{ 3334 * MS, 30000 },
		{ 30000 * MS, 30000 },
		{ 30001 * MS, 30001 },
		{ 90000 * MS, 90000 },
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_int_equal(rest_after(*state, cases[i].takes_ns), cases[i].rests_ms + 1);
}

static void test_main_does_not_rest_after_a_short_turn(void **state)
{
	struct fs_guests *guests = *state;
	struct request requests[2];
	answer_takes_ns = MS / 2;
	for (unsigned i = 0; i < 2; i++)
		take(guests, &requests[i], 1);
	assert_int_equal(rest(guests), 0);
	fs_guests_serve(guests);
	assert_int_equal(requests[1].error, 0);
	take(guests, &requests[0], 1);
	assert_int_equal(rest(guests), 0);
	fs_guests_serve(guests);
	assert_int_equal(requests[0].error, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
		        test_the_end_answers_all_who_wait_and_all_who_come_later, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
		        test_one_user_waits_with_eight_requests_and_all_with_64, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_users_are_answered_in_turn, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
		        test_main_rests_as_long_as_a_turn_or_nine_times_as_long, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_main_does_not_rest_after_a_short_turn, set_up, tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
