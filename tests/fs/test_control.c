/* SPDX-License-Identifier: Apache-2.0 */
/* The control socket's name: it appears when the socket listens, and takes no other file's place. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/control_server.h"
#include "fs/supervise/control_socket.h"

static char dir[64];
static char path[80];
static char fresh[96];
static char taken[BASE_CONTROL_PATH_MAX];

static int set_up(void **state)
{
	(void)state;
	snprintf(dir, sizeof(dir), "/tmp/ddpfs-control.XXXXXX");
	if (!mkdtemp(dir))
		return -1;
	snprintf(path, sizeof(path), "%s/a.sock", dir);
	snprintf(fresh, sizeof(fresh), "%s%s", path, BASE_CONTROL_NEW);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	unlink(path);
	unlink(fresh);
	return rmdir(dir);
}

static int connects(void)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int rc = connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ? -errno : 0;
	close(fd);
	return rc;
}

/* shard/base/control_client.c's clients remove a NAME.sock that refuses connections. */
static void test_named_when_it_listens(void **state)
{
	(void)state;
	_Alignas(struct inotify_event) char events[4096];
	struct stat st;
	int fd;
	int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	assert_true(inotify_add_watch(watch, dir, IN_CREATE | IN_MOVED_TO) >= 0);
	assert_int_equal(fs_control_socket(path, NULL, taken, &fd), 0);
	ssize_t len = read(watch, events, sizeof(events));
	unsigned moved = 0;
	for (ssize_t at = 0; at < len;) {
		const struct inotify_event *event = (const void *)(events + at);
		if (strcmp(event->name, "a.sock") == 0) {
			assert_true(event->mask & IN_MOVED_TO);
			moved++;
		}
		at += (ssize_t)(sizeof(*event) + event->len);
	}
	assert_int_equal(moved, 1);
	assert_string_equal(taken, path);
	assert_int_equal(connects(), 0);
	assert_int_equal(lstat(path, &st), 0);
	assert_int_equal(st.st_mode, S_IFSOCK | 0600);
	assert_int_equal(lstat(fresh, &st), -1);
	close(watch);
	close(fd);
}

static void test_a_dead_servers_is_replaced(void **state)
{
	(void)state;
	int fd;
	assert_int_equal(fs_control_socket(path, NULL, taken, &fd), 0);
	close(fd);
	assert_int_equal(connects(), -ECONNREFUSED);
	assert_int_equal(rename(path, fresh), 0); /* as one that was killed before it listened */
	assert_int_equal(fs_control_socket(path, NULL, taken, &fd), 0);
	close(fd);
	assert_int_equal(fs_control_socket(path, NULL, taken, &fd), 0);
	assert_int_equal(connects(), 0);
	close(fd);
}

static void test_other_files_stay(void **state)
{
	(void)state;
	const char *names[] = { path, fresh };
	for (int i = 0; i < 2; i++) {
		struct base_err err = { 0 };
		struct stat st;
		int fd = open(names[i], O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		assert_int_equal(write(fd, "mine", 4), 4);
		close(fd);
		assert_int_equal(fs_control_socket(path, &err, taken, &fd), -EEXIST);
		assert_non_null(strstr(err.text, path));
		assert_int_equal(lstat(names[i], &st), 0);
		assert_int_equal(st.st_size, 4);
		unlink(names[i]);
	}
}

static void test_too_long(void **state)
{
	(void)state;
	struct base_err err = { 0 };
	char name[BASE_CONTROL_PATH_MAX + 8];
	int fd;
	for (size_t len = BASE_CONTROL_PATH_MAX - sizeof(BASE_CONTROL_NEW) + 1; len < sizeof(name); len++) {
		memset(name, 'x', len);
		name[len] = '\0';
		assert_int_equal(fs_control_socket(name, &err, taken, &fd), -ENAMETOOLONG);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_named_when_it_listens, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_a_dead_servers_is_replaced, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_other_files_stay, set_up, tear_down),
		cmocka_unit_test(test_too_long),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
