/* SPDX-License-Identifier: Apache-2.0 */
/* The control socket: its name appears when it listens and takes no other file's place; silent clients; who is
 * believed. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
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
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/control_server.h"
#include "fs/server.h"
#include "fs/supervise/control_socket.h"

static char dir[64];
static char path[96];
static char fresh[112];
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

static void test_only_the_own_socket_is_removed(void **state)
{
	(void)state;
	int fd;
	int other;
	assert_int_equal(fs_control_socket(path, NULL, taken, &fd), 0);
	uint64_t ino = fs_control_ino(path);
	assert_true(ino != 0);
	assert_int_equal(unlink(path), 0);
	fs_control_remove(path, ino);
	assert_int_equal(fs_control_socket(path, NULL, taken, &other), 0);
	fs_control_remove(path, ino);
	assert_int_equal(connects(), 0);
	fs_control_remove(path, fs_control_ino(path));
	assert_int_equal(connects(), -ENOENT);
	close(fd);
	close(other);
}

/* ---- clients that say nothing ---- */

static int connected(void)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0)
		return fd;
	close(fd);
	return -1;
}

static void test_silent_clients_give_way(void **state)
{
	(void)state;
	enum { SILENT = 200 };
	struct fs_channel channel = { 0 };
	struct fs_server *server = calloc(1, sizeof(*server));
	struct fs_control *control;
	struct pollfd polls[FS_CONTROL_POLLS_MAX];
	int silent[SILENT];
	char buf[4096];
	int timeout_ms;
	server->channel = &channel;
	assert_int_equal(fs_control_socket(path, NULL, taken, &channel.control_fd), 0);
	assert_int_equal(fs_control_open(server, &control), 0);
	for (int i = 0; i < SILENT; i++)
		assert_true((silent[i] = connected()) >= 0);
	int asks = connected();
	assert_int_equal(send(asks, "{}\n", 3, 0), 3);
	time_t until = time(NULL) + 60; /* 13 times FS_CONTROL_IDLE_MS is longer */
	while (recv(asks, buf, sizeof(buf), 0) <= 0) {
		assert_true(time(NULL) < until);
		size_t n = fs_control_polls(control, polls, &timeout_ms);
		int got = poll(polls, (nfds_t)n, timeout_ms);
		assert_true(got >= 0);
		fs_control_serve(control, polls, n);
	}
	for (int i = 0; i < SILENT; i++)
		close(silent[i]);
	close(asks);
	fs_control_close(control);
	close(channel.control_fd);
	free(server);
}

/* ---- whom a client believes ---- */

enum { NOBODY = 65534, SOMEBODY = 65533 };
static char sockets[96];

static pid_t servant;

static int set_up_nobody(void **state)
{
	if (geteuid() != 0)
		return 0;
	if (set_up(state) < 0)
		return -1;
	snprintf(sockets, sizeof(sockets), "%s/ddpfs", dir);
	snprintf(path, sizeof(path), "%s/ddpfs/123.sock", dir);
	snprintf(fresh, sizeof(fresh), "%s%s", path, BASE_CONTROL_NEW);
	return mkdir(sockets, 0700) < 0 || chmod(dir, 0755) < 0 || chown(sockets, NOBODY, NOBODY) < 0 ? -1 : 0;
}

static int tear_down_nobody(void **state)
{
	if (geteuid() != 0)
		return 0;
	char silent[128];
	snprintf(silent, sizeof(silent), "%s/124.sock", sockets);
	unlink(silent);
	if (servant > 0) {
		kill(servant, SIGKILL);
		waitpid(servant, NULL, 0);
	}
	servant = 0;
	unlink(path);
	unlink(fresh);
	return rmdir(sockets) < 0 ? -1 : tear_down(state);
}

/* What fn returns in a process of user nobody. */
static int by_nobody(int (*fn)(void))
{
	int status;
	pid_t pid = fork();
	if (pid == 0) {
		setenv("XDG_RUNTIME_DIR", dir, 1);
		_exit(setgid(NOBODY) < 0 || setuid(NOBODY) < 0 ? 99 : fn());
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* Answers in the name of a user, at a socket that belongs to nobody. */
static void answer_as(uid_t uid)
{
	static const char reply[] =
	        "{\"ok\":true,\"pid\":1,\"mountpoint\":\"/m\",\"dataset\":\"/d\",\"view\":\"all\"}\n";
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(chown(path, NOBODY, NOBODY) | chmod(path, 0666), 0);
	servant = fork();
	if (servant == 0) {
		if (setgid(uid) < 0 || setuid(uid) < 0 || listen(fd, 8) < 0)
			_exit(1);
		for (;;) {
			int client = accept(fd, NULL, NULL);
			(void)!send(client, reply, sizeof(reply) - 1, MSG_NOSIGNAL);
			close(client);
		}
	}
	close(fd);
	while (connects() == -ECONNREFUSED)
		usleep(1000);
}

static int count_servers(void)
{
	struct base_control_peer *peers;
	size_t n;
	return base_control_list(&peers, &n) < 0 ? 98 : (int)n;
}

static int ask_it(void)
{
	char *reply;
	return -base_control_request(path, "{\"cmd\":\"info\"}", 10000, NULL, &reply);
}

#define NEEDS_ROOT()                                                                                                   \
	do {                                                                                                           \
		(void)state;                                                                                           \
		if (geteuid() != 0)                                                                                    \
			skip();                                                                                        \
	} while (0)

static void test_the_own_server_and_roots_are_believed(void **state)
{
	NEEDS_ROOT();
	static const uid_t believed[] = { NOBODY, 0 };
	for (int i = 0; i < 2; i++) {
		answer_as(believed[i]);
		assert_int_equal(by_nobody(count_servers), 1);
		assert_int_equal(by_nobody(ask_it), 0);
		kill(servant, SIGKILL);
		waitpid(servant, NULL, 0);
		servant = 0;
		unlink(path);
	}
}

static void test_another_users_server_is_not_believed(void **state)
{
	NEEDS_ROOT();
	answer_as(SOMEBODY);
	assert_int_equal(by_nobody(count_servers), 0);
	assert_int_equal(by_nobody(ask_it), EACCES);
}

static void test_a_directory_that_others_can_write_to_is_not_used(void **state)
{
	NEEDS_ROOT();
	answer_as(NOBODY);
	assert_int_equal(chmod(sockets, 0777), 0);
	assert_int_equal(by_nobody(count_servers), 0);
	assert_int_equal(chmod(sockets, 0755) | chown(sockets, SOMEBODY, SOMEBODY), 0);
	assert_int_equal(by_nobody(count_servers), 0);
}

static int listening(const char *name)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", name);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	return bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 || listen(fd, 8) < 0 ? -1 : fd;
}

/* Puts a living socket in the place of the dead one when the search has begun. */
static void *replace(void *arg)
{
	struct pollfd asked = { .fd = *(int *)arg, .events = POLLIN };
	if (poll(&asked, 1, 60000) == 1 && usleep(20000) == 0 && listening(fresh) >= 0)
		rename(fresh, path);
	return NULL;
}

static int search_while_one_is_replaced(void)
{
	struct base_control_peer *peers;
	struct base_control_silent *silent;
	size_t n;
	size_t n_silent;
	char name[128];
	pthread_t thread;
	snprintf(name, sizeof(name), "%s/124.sock", sockets);
	close(listening(path));
	int fd = listening(name);
	if (pthread_create(&thread, NULL, replace, &fd) != 0 ||
	        base_control_survey(500, &peers, &n, &silent, &n_silent) < 0)
		return 97;
	pthread_join(thread, NULL);
	return -connects();
}

static void test_a_socket_that_replaces_a_dead_one_stays(void **state)
{
	NEEDS_ROOT();
	assert_int_equal(by_nobody(search_while_one_is_replaced), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_named_when_it_listens, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_a_dead_servers_is_replaced, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_other_files_stay, set_up, tear_down),
		cmocka_unit_test(test_too_long),
		cmocka_unit_test_setup_teardown(test_only_the_own_socket_is_removed, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_silent_clients_give_way, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
		        test_the_own_server_and_roots_are_believed, set_up_nobody, tear_down_nobody),
		cmocka_unit_test_setup_teardown(
		        test_another_users_server_is_not_believed, set_up_nobody, tear_down_nobody),
		cmocka_unit_test_setup_teardown(
		        test_a_directory_that_others_can_write_to_is_not_used, set_up_nobody, tear_down_nobody),
		cmocka_unit_test_setup_teardown(
		        test_a_socket_that_replaces_a_dead_one_stays, set_up_nobody, tear_down_nobody),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
