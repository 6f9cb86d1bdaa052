/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between a server and its supervisor: each side takes the other's for a stranger's. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/supervise/channel.h"

static int pair[2];
static struct fs_channel_message got;
static int got_fd;

static unsigned open_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static int set_up(void **state)
{
	(void)state;
	return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair);
}

static int tear_down(void **state)
{
	(void)state;
	close(pair[0]);
	close(pair[1]);
	return 0;
}

/* One packet as a mad process would send it, with n_fds copies of a descriptor. */
static void send_raw(const void *data, size_t len, unsigned n_fds)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(4 * sizeof(int))];
	} control = { 0 };
	struct iovec iov = { .iov_base = (void *)(uintptr_t)data, .iov_len = len };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	if (n_fds) {
		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
		*cmsg = (struct cmsghdr){
			.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(n_fds * sizeof(int))
		};
		for (unsigned i = 0; i < n_fds; i++)
			memcpy(CMSG_DATA(cmsg) + i * sizeof(int), &pair[0], sizeof(int));
	}
	assert_int_equal(sendmsg(pair[0], &msg, MSG_NOSIGNAL), (ssize_t)len);
}

static int receive(void)
{
	return fs_channel_receive(pair[1], MSG_DONTWAIT, &got, &got_fd);
}

/* Refused, and nothing of it stays. */
static void refused(const void *data, size_t len, unsigned n_fds)
{
	unsigned before = open_fds();
	send_raw(data, len, n_fds);
	assert_int_equal(receive(), -EPROTO);
	assert_int_equal(got_fd, -1);
	assert_int_equal(open_fds(), before);
}

static void test_words_arrive(void **state)
{
	(void)state;
	for (uint32_t kind = FS_CHANNEL_READY; kind <= FS_CHANNEL_ANSWER; kind++) {
		assert_int_equal(fs_channel_say(pair[0], kind, -(int)kind, kind % 2 ? "why" : NULL), 0);
		assert_int_equal(receive(), 0);
		assert_int_equal(got.kind, kind);
		assert_int_equal(got.code, -(int)kind);
		assert_string_equal(got.text, kind % 2 ? "why" : "");
		assert_int_equal(got_fd, -1);
	}
	assert_int_equal(receive(), -EAGAIN);
}

static void test_who_does_not_read_is_not_waited_for(void **state)
{
	uint32_t sent = 0;
	int rc;
	(void)state;
	while ((rc = fs_channel_try(pair[0], FS_CHANNEL_LOG, 1, "a line")) == 0)
		sent++;
	assert_int_equal(rc, -EAGAIN);
	assert_true(sent > 0);
	while (sent-- > 0) {
		assert_int_equal(receive(), 0);
		assert_int_equal(got.kind, FS_CHANNEL_LOG);
		assert_string_equal(got.text, "a line");
	}
	assert_int_equal(receive(), -EAGAIN);
}

static void test_last_words_arrive_from_who_has_left_words_unread(void **state)
{
	(void)state;
	assert_int_equal(fs_channel_say(pair[1], FS_CHANNEL_STOP, 0, NULL), 0); /* never read */
	assert_int_equal(fs_channel_say(pair[0], FS_CHANNEL_FAILED, -EIO, "why"), 0);
	assert_int_equal(fs_channel_say(pair[0], FS_CHANNEL_LOG, 1, "more"), 0);
	close(pair[0]);
	assert_int_equal(receive(), 0);
	assert_string_equal(got.text, "why");
	assert_int_equal(receive(), 0);
	assert_string_equal(got.text, "more");
	assert_int_equal(receive(), -EPIPE);
	assert_int_equal(receive(), -EPIPE);
	pair[0] = -1;
}

static void test_an_answer_is_not_waited_for(void **state)
{
	(void)state;
	int rc = 0;
	while (rc == 0)
		rc = fs_channel_answer(pair[0], 1, 0, NULL);
	assert_int_equal(rc, -EAGAIN);
}

static void test_a_mount_arrives_with_its_descriptor(void **state)
{
	struct fs_channel_message message = { .kind = FS_CHANNEL_MOUNTED,
		.mount = { .dev = 7, .init_len = FS_INIT_BYTES_MAX } };
	(void)state;
	memset(message.mount.init, 0x5a, sizeof(message.mount.init));
	assert_int_equal(fs_channel_send(pair[0], &message, pair[0]), 0);
	assert_int_equal(receive(), 0);
	assert_memory_equal(&got.mount, &message.mount, sizeof(message.mount));
	assert_true(got_fd >= 0 && fcntl(got_fd, F_GETFD) == FD_CLOEXEC);
	close(got_fd);
}

static void test_a_long_text_is_cut(void **state)
{
	char text[PATH_MAX + 100];
	(void)state;
	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	assert_int_equal(fs_channel_say(pair[0], FS_CHANNEL_FAILED, -1, text), 0);
	assert_int_equal(receive(), 0);
	assert_int_equal(strlen(got.text), PATH_MAX - 1);
}

static void test_no_other_length_is_a_message(void **state)
{
	uint8_t packet[sizeof(struct fs_channel_message) + 1] = { 0 };
	(void)state;
	packet[0] = FS_CHANNEL_READY;
	for (size_t len = 1; len <= sizeof(packet); len += len < 64 || len > sizeof(packet) - 64 ? 1 : 61)
		if (len != sizeof(struct fs_channel_message))
			refused(packet, len, len % 2);
}

static void test_what_is_no_message_is_refused(void **state)
{
	struct fs_channel_message message = { .kind = FS_CHANNEL_MOUNTED, .mount = { .init_len = 64 } };
	(void)state;
	refused(&message, sizeof(message), 0); /* a mount without its descriptor */
	message.mount.init_len = FS_INIT_BYTES_MAX + 1;
	refused(&message, sizeof(message), 1);
	message.mount.init_len = UINT32_MAX;
	refused(&message, sizeof(message), 1);
	message.mount.init_len = 64;
	refused(&message, sizeof(message), 2);
	refused(&message, sizeof(message), 4);
	memset(&message, 'x', sizeof(message)); /* a text without an end */
	for (uint32_t kind = FS_CHANNEL_READY; kind <= FS_CHANNEL_ANSWER; kind++) {
		message.kind = kind;
		refused(&message, sizeof(message), kind % 3);
	}
}

static void test_the_end_of_the_other_side(void **state)
{
	(void)state;
	assert_int_equal(fs_channel_say(pair[0], FS_CHANNEL_ENDING, 0, NULL), 0);
	close(pair[0]);
	assert_int_equal(receive(), 0); /* its last words are heard */
	assert_int_equal(receive(), -EPIPE);
	assert_int_equal(fs_channel_say(pair[1], FS_CHANNEL_STOP, 0, NULL), -EPIPE);
	pair[0] = dup(pair[1]);
}

/* A supervisor that answers late: first what was asked before, then what is asked. */
static void *answer_late(void *arg)
{
	struct fs_channel_message question;
	int fd;
	(void)arg;
	assert_int_equal(fs_channel_receive(pair[1], 0, &question, &fd), 0);
	assert_int_equal(question.kind, FS_CHANNEL_UNMOUNT);
	assert_int_not_equal(question.id, 0);
	fs_channel_answer(pair[1], question.id - 1, 0, NULL);
	fs_channel_answer(pair[1], 0, 0, NULL);
	fs_channel_say(pair[1], FS_CHANNEL_STOP, 0, NULL);
	fs_channel_answer(pair[1], question.id, -EBUSY, "the one");
	return NULL;
}

static void test_a_late_answer_is_not_taken_for_another(void **state)
{
	pthread_t thread;
	bool stop = false;
	(void)state;
	assert_int_equal(fs_channel_ask(pair[0], FS_CHANNEL_RESTART, 0, "/bin/x", 1, &stop, &got), -ETIMEDOUT);
	assert_int_equal(fs_channel_receive(pair[1], 0, &got, &got_fd), 0); /* it comes to that one too late */
	assert_int_equal(got.kind, FS_CHANNEL_RESTART);
	assert_int_equal(fs_channel_answer(pair[1], got.id, 0, NULL), 0);
	assert_int_equal(pthread_create(&thread, NULL, answer_late, NULL), 0);
	assert_int_equal(fs_channel_ask(pair[0], FS_CHANNEL_UNMOUNT, 1, NULL, -1, &stop, &got), 0);
	assert_int_equal(got.code, -EBUSY);
	assert_string_equal(got.text, "the one");
	assert_true(stop);
	pthread_join(thread, NULL);
}

static void test_what_comes_meanwhile_makes_no_question_longer(void **state)
{
	bool stop = false;
	(void)state;
	for (uint32_t i = 0; i < 20; i++)
		assert_int_equal(fs_channel_answer(pair[1], UINT32_MAX - i, 0, NULL), 0);
	assert_int_equal(fs_channel_ask(pair[0], FS_CHANNEL_RESTART, 0, NULL, 1, &stop, &got), -ETIMEDOUT);
	assert_false(stop);
	close(pair[1]);
	assert_int_equal(fs_channel_ask(pair[0], FS_CHANNEL_RESTART, 0, NULL, -1, &stop, &got), -EPIPE);
	pair[1] = -1;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_words_arrive, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_who_does_not_read_is_not_waited_for, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
		        test_last_words_arrive_from_who_has_left_words_unread, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_an_answer_is_not_waited_for, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_a_mount_arrives_with_its_descriptor, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_a_long_text_is_cut, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_no_other_length_is_a_message, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_what_is_no_message_is_refused, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_the_end_of_the_other_side, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_a_late_answer_is_not_taken_for_another, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_what_comes_meanwhile_makes_no_question_longer, set_up, tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
