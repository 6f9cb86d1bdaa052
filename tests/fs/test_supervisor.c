/* SPDX-License-Identifier: Apache-2.0 */
/* The supervisor with small servers of its own: what it does when they end, flood it, or cannot be started.
 *
 * A server here shows one file, `f`, and does what its test wants.  The supervisor runs in a child of the test. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
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
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/supervise/mount.h"
#include "fs/supervise/thread_state.h"
#include "fs/supervise/supervisor.h"
#include "shard/base/log.h"

enum {
	FILE_INO = 2,
	FILE_BYTES = 4096,
	PATIENCE_S = 60, /* for what must come: a safety net, not a limit that a busy machine could come near */
};

/* What the processes of a test share. */
static struct {
	_Atomic int servers;    /* started */
	_Atomic int forks_fail; /* so many forks of the supervisor fail */
	_Atomic int ready;      /* servers that were ready */
	_Atomic int gone;       /* calls of `restart` that would become the other program */
	_Atomic int unmounted;  /* servers that were told that the mount is gone */
	_Atomic int refused;    /* ... that it is busy */
	_Atomic int failed;     /* the errno of a reader; 0: it got what it read */
	_Atomic uint64_t dev;   /* of the mount; 0: none was made */
	_Atomic bool resends;
	_Atomic bool ask; /* the server shall ask for an unmount that is not lazy */
} * shared;

static char mountpoint[] = "/tmp/ddpfs-supervisor.XXXXXX";
static char control[sizeof(mountpoint) + 8];
static pid_t tested; /* the test's process: forks of others may fail */

/* fork(2) of the supervisor. */
pid_t fork(void)
{
	pid_t (*real)(void) = (pid_t(*)(void))dlsym(RTLD_NEXT, "fork");
	if (getpid() != tested && shared->forks_fail > 0) {
		shared->forks_fail--;
		errno = EAGAIN;
		return -1;
	}
	return real();
}

/* ---- a server ---- */

static void nap(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
}

static void reply(int fd, const struct fuse_in_header *in, int error, const void *body, size_t len)
{
	struct fuse_out_header out = { .len = (uint32_t)(sizeof(out) + len), .error = error, .unique = in->unique };
	struct iovec iov[] = { { &out, sizeof(out) }, { (void *)(uintptr_t)body, len } };
	(void)!writev(fd, iov, 2);
}

static struct fuse_attr attr_of(uint64_t ino)
{
	return (struct fuse_attr){
		.ino = ino,
		.mode = ino == FILE_INO ? S_IFREG | 0444 : S_IFDIR | 0555,
		.size = ino == FILE_INO ? FILE_BYTES : 0,
		.nlink = 1,
	};
}

static void answer_init(int fd, const struct fuse_in_header *in)
{
	const struct fuse_init_out out = {
		.major = 7, .minor = 31, .max_readahead = 1 << 17, .flags = FUSE_ASYNC_READ, .max_write = 4096
	};
	reply(fd, in, 0, &out, sizeof(out));
}

static void answer(int fd, const struct fuse_in_header *in)
{
	static const char zeros[FILE_BYTES];
	switch (in->opcode) {
	case FUSE_LOOKUP: {
		const struct fuse_entry_out out = {
			.nodeid = FILE_INO, .entry_valid = 3600, .attr_valid = 3600, .attr = attr_of(FILE_INO)
		};
		reply(fd, in, 0, &out, sizeof(out));
		break;
	}
	case FUSE_GETATTR: {
		const struct fuse_attr_out out = { .attr_valid = 3600, .attr = attr_of(in->nodeid) };
		reply(fd, in, 0, &out, sizeof(out));
		break;
	}
	case FUSE_OPEN:
	case FUSE_OPENDIR: {
		const struct fuse_open_out out = { .open_flags = FOPEN_KEEP_CACHE };
		reply(fd, in, 0, &out, sizeof(out));
		break;
	}
	case FUSE_READ:
		reply(fd, in, 0, zeros, sizeof(zeros));
		break;
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
	case FUSE_FLUSH:
		reply(fd, in, 0, NULL, 0);
		break;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
	case FUSE_DESTROY:
		break;
	default:
		reply(fd, in, -ENOSYS, NULL, 0);
	}
}

struct store {
	int fd;
	_Atomic pid_t tid;
};

/* Stores the file's page, which a READ has locked. */
static void *store_main(void *arg)
{
	struct store *store = arg;
	static const char zeros[FILE_BYTES];
	struct fuse_notify_store_out body = { .nodeid = FILE_INO, .size = FILE_BYTES };
	struct fuse_out_header out = { .len = sizeof(out) + sizeof(body) + sizeof(zeros), .error = FUSE_NOTIFY_STORE };
	struct iovec iov[] = { { &out, sizeof(out) }, { &body, sizeof(body) },
		{ (void *)(uintptr_t)zeros, FILE_BYTES } };
	store->tid = gettid();
	(void)!writev(store->fd, iov, 3);
	return NULL;
}

/* Dies while one of its threads waits in the kernel for the answer to a READ that nobody has given. */
static void die_in_a_store(int fd)
{
	struct store store = { .fd = fd };
	pthread_t thread;
	if (pthread_create(&thread, NULL, store_main, &store) != 0)
		_exit(1);
	while (!store.tid || fs_thread_state(getpid(), store.tid) != 'D')
		nap();
	kill(getpid(), SIGKILL);
	pause();
}

static int take_mount(int *ret_fd, const struct fs_channel *channel, struct base_err *err)
{
	const struct fs_mount_options options = { .mountpoint = mountpoint, .source = "test", .max_read = 1 << 17 };
	_Alignas(struct fuse_in_header) char buf[1 << 18];
	struct fs_channel_message message = { .kind = FS_CHANNEL_MOUNTED };
	int rc = fs_mount(&options, err, ret_fd, &message.mount.dev, &message.mount.fusermount);
	if (rc < 0)
		return rc;
	shared->dev = message.mount.dev;
	ssize_t len = read(*ret_fd, buf, sizeof(buf));
	if (len < (ssize_t)sizeof(struct fuse_in_header) || len > FS_INIT_BYTES_MAX)
		return base_err_set(err, -EPROTO, "INIT");
	memcpy(message.mount.init, buf, (size_t)len);
	message.mount.init_len = (uint32_t)len;
	message.mount.resends = shared->resends;
	answer_init(*ret_fd, (struct fuse_in_header *)buf);
	int session = fcntl(*ret_fd, F_DUPFD_CLOEXEC, 3);
	if (!message.mount.resends)
		message.mount.cloned = fs_mount_clone(*ret_fd, NULL) == 0;
	rc = fs_channel_send(channel->channel, &message, session);
	close(session);
	return rc;
}

static void unmount(const struct fs_channel *channel, bool lazy)
{
	struct fs_channel_message message;
	bool stop;
	if (fs_channel_ask(channel->channel, FS_CHANNEL_UNMOUNT, lazy, NULL, -1, &stop, &message) < 0)
		return;
	shared->unmounted += message.code == 0;
	shared->refused += message.code == -EBUSY;
}

static int end(const struct fs_channel *channel)
{
	fs_channel_say(channel->channel, FS_CHANNEL_ENDING, 0, NULL);
	unmount(channel, true);
	return 0;
}

/* What the first server does, besides answering; each may be NULL. */
struct first {
	void (*on_read)(int fd);
	void (*on_ready)(const struct fs_channel *channel);
};

static int serve(const void *arg, const struct fs_channel *channel, void (*ready)(void *arg), void *ready_arg,
        struct base_err *err)
{
	_Alignas(struct fuse_in_header) static char buf[1 << 18];
	const struct first *does = arg;
	const struct fuse_in_header *in = (const struct fuse_in_header *)buf;
	int fd = channel->fuse_fd;
	bool first = shared->servers++ == 0;
	int rc = fd < 0 ? take_mount(&fd, channel, err) : 0;
	if (rc < 0)
		return rc;
	ready(ready_arg);
	shared->ready++;
	if (first && does->on_ready)
		does->on_ready(channel);
	for (;;) {
		struct pollfd polls[] = { { .fd = fd, .events = POLLIN },
			{ .fd = channel->channel, .events = POLLIN } };
		struct fs_channel_message message;
		int got;
		poll(polls, 2, 10);
		if (shared->ask) {
			shared->ask = false;
			unmount(channel, false);
		}
		if (polls[1].revents && (fs_channel_receive(channel->channel, 0, &message, &got) < 0 ||
		                                message.kind == FS_CHANNEL_STOP))
			return end(channel);
		if (!polls[0].revents)
			continue;
		ssize_t len = read(fd, buf, sizeof(buf));
		if (len < 0 && errno == ENODEV)
			return end(channel);
		if (len < (ssize_t)sizeof(*in))
			continue;
		if (in->opcode == FUSE_READ && first && does->on_read)
			does->on_read(fd);
		answer(fd, in);
	}
}

/* ---- the supervisor's process ---- */

static void greet(const char *control_path)
{
	(void)control_path;
}

static int become(void *arg, const char *program, const struct fs_supervised *held, bool go, struct base_err *err);

static struct fs_supervise usual(const struct first *does)
{
	return (struct fs_supervise){
		.mountpoint = mountpoint,
		.control_path = control,
		.timeout_s = 1,
		.serve = serve,
		.serve_arg = does,
		.greet = greet,
		.restart = become,
		.owner_pidfd = -1,
	};
}

/* Exits with 0: unmounted; 1: given up or failed. */
static _Noreturn void run(const struct fs_supervise *how)
{
	struct base_err err = { 0 };
	bool ready;
	int rc = fs_supervise(how, &err, &ready);
	if (rc < 0)
		fprintf(stderr, "%s\n", err.text);
	_exit(rc < 0);
}

/* Becomes a supervisor that takes over, and cannot make its first processes. */
static int become(void *arg, const char *program, const struct fs_supervised *held, bool go, struct base_err *err)
{
	(void)arg;
	(void)program;
	(void)err;
	if (!go)
		return 0;
	static const struct first nothing;
	struct fs_supervise how = usual(&nothing);
	how.takeover = held;
	shared->gone++;
	shared->forks_fail = 2;
	run(&how);
}

static bool ended(pid_t pid, int *ret_status)
{
	return waitpid(pid, ret_status, WNOHANG) == pid;
}

/* Ends the session, also of a mount that is detached: fusectl must be mounted for that. */
static void free_all(void)
{
	static const char place[] = "/sys/fs/fuse/connections";
	char path[64];
	snprintf(path, sizeof(path), "%s/%u/abort", place, minor(shared->dev));
	bool ours = shared->dev && access(path, F_OK) < 0 && mount("fusectl", place, "fusectl", 0, NULL) == 0;
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd >= 0) {
		(void)!write(fd, "1", 1);
		close(fd);
	}
	if (ours)
		umount2(place, 0);
	umount2(mountpoint, MNT_DETACH);
}

/* Waits for a condition; frees what waits in the kernel and fails if it does not come. */
#define WAIT_FOR(condition)                                                                                            \
	do {                                                                                                           \
		time_t until = time(NULL) + PATIENCE_S;                                                                \
		while (!(condition)) {                                                                                 \
			if (time(NULL) > until) {                                                                      \
				free_all();                                                                            \
				fail_msg("%s did not come", #condition);                                               \
			}                                                                                              \
			nap();                                                                                         \
		}                                                                                                      \
	} while (0)

static int set_up(void **state)
{
	(void)state;
	memset((void *)shared, 0, sizeof(*shared));
	snprintf(mountpoint, sizeof(mountpoint), "/tmp/ddpfs-supervisor.XXXXXX");
	if (!mkdtemp(mountpoint))
		return -1;
	snprintf(control, sizeof(control), "%s.sock", mountpoint);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	free_all();
	unlink(control);
	return rmdir(mountpoint);
}

static bool may_mount(void)
{
	return geteuid() == 0 && access("/dev/fuse", R_OK | W_OK) == 0;
}

static pid_t supervise(const struct first *does)
{
	const struct fs_supervise how = usual(does);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		run(&how);
	}
	WAIT_FOR(shared->ready > 0);
	return pid;
}

/* A process that reads the file.  ahead: it leaves that to the kernel, and does not wait for it. */
static pid_t reader(bool ahead)
{
	char path[sizeof(mountpoint) + 2];
	char buf[FILE_BYTES];
	snprintf(path, sizeof(path), "%s/f", mountpoint);
	pid_t pid = fork();
	if (pid > 0)
		return pid;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool well = fd >= 0 && (ahead ? posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED) == 0
	                              : read(fd, buf, sizeof(buf)) == sizeof(buf));
	shared->failed = well ? 0 : errno;
	_exit(0);
}

static void ends_with(pid_t pid, int status)
{
	int got;
	WAIT_FOR(ended(pid, &got));
	assert_true(WIFEXITED(got));
	assert_int_equal(WEXITSTATUS(got), status);
}

static void goes_on(void)
{
	ends_with(reader(false), 0);
	assert_int_equal(shared->failed, 0);
}

#define NEEDS_MOUNTS()                                                                                                 \
	do {                                                                                                           \
		(void)state;                                                                                           \
		if (!may_mount())                                                                                      \
			skip();                                                                                        \
	} while (0)

static void test_a_killed_server_that_does_not_end_is_given_up(void **state)
{
	NEEDS_MOUNTS();
	static const struct first dies = { .on_read = die_in_a_store };
	pid_t pid = supervise(&dies);
	ends_with(reader(false), 0);
	ends_with(pid, 1);
	assert_int_equal(shared->servers, 2);
}

static void test_unmounting_does_not_wait_for_a_killed_server_that_does_not_end(void **state)
{
	NEEDS_MOUNTS();
	static const struct first dies = { .on_read = die_in_a_store };
	pid_t pid = supervise(&dies);
	ends_with(reader(true), 0);
	WAIT_FOR(shared->ready == 2);
	kill(pid, SIGTERM);
	ends_with(pid, 0);
	assert_int_equal(shared->unmounted, 1); /* the second server heard of it: nobody had to kill it */
	uint64_t dev;
	assert_int_equal(fs_mounted_dev(mountpoint, &dev), -ENOENT);
}

static void test_a_mount_in_use_is_not_aborted_for_an_unmount(void **state)
{
	NEEDS_MOUNTS();
	static const struct first dies = { .on_read = die_in_a_store };
	pid_t pid = supervise(&dies);
	ends_with(reader(true), 0);
	WAIT_FOR(shared->ready == 2);
	int use = open(mountpoint, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	shared->ask = true;
	WAIT_FOR(shared->refused == 1);
	char path[sizeof(mountpoint) + 2];
	struct stat st;
	snprintf(path, sizeof(path), "%s/g", mountpoint);
	assert_int_equal(stat(path, &st), 0);
	close(use);
	shared->ask = true;
	WAIT_FOR(shared->unmounted > 0);
	ends_with(pid, 0);
}

static void ask_to_restart(const struct fs_channel *channel)
{
	struct fs_channel_message message;
	bool stop;
	fs_channel_ask(channel->channel, FS_CHANNEL_RESTART, 0, "/another", -1, &stop, &message);
}

static void restart_beside_a_signal(const struct fs_channel *channel)
{
	ask_to_restart(channel);
	kill(channel->supervisor, SIGTERM);
	fs_channel_say(channel->channel, FS_CHANNEL_GO, 0, NULL);
}

static void test_a_signal_that_comes_before_a_restart_ends_the_mount(void **state)
{
	NEEDS_MOUNTS();
	static const struct first restarts = { .on_ready = restart_beside_a_signal };
	shared->resends = true;
	pid_t pid = supervise(&restarts);
	ends_with(pid, 0);
	assert_int_equal(shared->gone, 0);
}

static void restart_now(const struct fs_channel *channel)
{
	ask_to_restart(channel);
	fs_channel_say(channel->channel, FS_CHANNEL_GO, 0, NULL);
}

static void test_a_takeover_without_a_process_for_its_server_tries_again(void **state)
{
	NEEDS_MOUNTS();
	static const struct first restarts = { .on_ready = restart_now };
	shared->resends = true;
	pid_t pid = supervise(&restarts);
	WAIT_FOR(shared->ready == 2);
	assert_int_equal(shared->gone, 1);
	assert_int_equal(shared->forks_fail, 0);
	goes_on();
	kill(pid, SIGTERM);
	ends_with(pid, 0);
}

/* Asks again and again, and reads no answer. */
static void flood(const struct fs_channel *channel)
{
	struct fs_channel_message message = { .kind = FS_CHANNEL_RESTART, .id = 1 };
	for (;;)
		if (fs_channel_send(channel->channel, &message, -1) < 0)
			pause();
}

static void test_a_server_that_reads_no_answers_stops_no_supervisor(void **state)
{
	NEEDS_MOUNTS();
	static const struct first floods = { .on_ready = flood };
	shared->resends = true;
	pid_t pid = supervise(&floods);
	for (int i = 0; i < 500; i++)
		nap(); /* the socket is full by then; if it is not, the test proves less */
	kill(pid, SIGTERM);
	ends_with(pid, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_a_killed_server_that_does_not_end_is_given_up, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
		        test_unmounting_does_not_wait_for_a_killed_server_that_does_not_end, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_a_mount_in_use_is_not_aborted_for_an_unmount, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
		        test_a_signal_that_comes_before_a_restart_ends_the_mount, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
		        test_a_takeover_without_a_process_for_its_server_tries_again, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
		        test_a_server_that_reads_no_answers_stops_no_supervisor, set_up, tear_down),
	};
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		return 1;
	tested = getpid();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
