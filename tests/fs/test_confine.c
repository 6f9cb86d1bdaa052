/* SPDX-License-Identifier: Apache-2.0 */
/* What a confined process cannot do, tried: each in a process of its own, with a thread from before. */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/supervise/confine.h"

enum { DONE = 200, NOT_CONFINED = 201 };

static int try_execve(void)
{
	char *const argv[] = { NULL };
	return execve("/bin/true", argv, argv);
}
static int try_ptrace(void)
{
	return (int)ptrace(PTRACE_CONT, getppid(), NULL, NULL);
}
static int try_mount(void)
{
	return mount("none", "/nowhere", "tmpfs", 0, NULL);
}
static int try_umount(void)
{
	return umount2("/nowhere", 0);
}
static int try_setuid(void)
{
	return (int)syscall(SYS_setuid, 0);
}
static int try_process_vm_readv(void)
{
	return (int)syscall(SYS_process_vm_readv, getppid(), NULL, 0, NULL, 0, 0);
}
static int try_inet(void)
{
	return socket(AF_INET, SOCK_STREAM, 0);
}
static int try_inet6(void)
{
	return socket(AF_INET6, SOCK_DGRAM, 0);
}
static int try_netlink(void)
{
	return socket(AF_NETLINK, SOCK_RAW, 0);
}
static int try_packet(void)
{
	return socket(AF_PACKET, SOCK_RAW, 0);
}
static int try_vsock(void)
{
	return socket(AF_VSOCK, SOCK_STREAM, 0);
}
static int outside = -1; /* a datagram socket from before */
static const struct sockaddr_un somebody = { .sun_family = AF_UNIX, .sun_path = "/nowhere/log" };

static int try_unix(void)
{
	return socket(AF_UNIX, SOCK_DGRAM, 0);
}
static int try_socketpair(void)
{
	int pair[2];
	return socketpair(AF_UNIX, SOCK_DGRAM, 0, pair);
}
static int try_connect(void)
{
	return connect(outside, (const struct sockaddr *)&somebody, sizeof(somebody));
}
static int try_bind(void)
{
	return bind(outside, (const struct sockaddr *)&somebody, sizeof(somebody));
}
static int try_sendto(void)
{
	return (int)sendto(outside, "x", 1, 0, (const struct sockaddr *)&somebody, sizeof(somebody));
}
static int try_sendmsg(void)
{
	const struct msghdr msg = { .msg_name = (void *)(uintptr_t)&somebody, .msg_namelen = sizeof(somebody) };
	return (int)sendmsg(outside, &msg, 0);
}
static int try_sendmmsg(void)
{
	return (int)syscall(SYS_sendmmsg, outside, NULL, 0, 0);
}
static int try_listen(void)
{
	return listen(outside, 1);
}
static int try_pwrite(void)
{
	return (int)pwrite(outside, "x", 1, 0);
}
static int try_fork(void)
{
	int pid = (int)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, 0);
	if (pid == 0)
		_exit(0);
	return pid;
}
static int try_namespace(void)
{
	return unshare(CLONE_NEWUSER);
}
static int try_create(void)
{
	return open("/tmp/ddpfs-test-confine", O_RDONLY | O_CREAT, 0600);
}
static int try_write(void)
{
	return open("/dev/null", O_WRONLY);
}
static int try_both(void)
{
	return open("/dev/null", O_RDWR);
}
static int try_truncate(void)
{
	return open("/dev/null", O_RDONLY | O_TRUNC);
}
static int try_openat2(void)
{
	return (int)syscall(SYS_openat2, AT_FDCWD, "/dev/null", NULL, 0);
}
static int try_unlink(void)
{
	return unlink("/nowhere/nothing");
}
static int try_chmod(void)
{
	return chmod("/nowhere/nothing", 0777);
}
static int try_kill(void)
{
	return kill(getppid(), 0);
}
static int try_tgkill(void)
{
	return (int)syscall(SYS_tgkill, getppid(), getppid(), 0);
}
static int try_priority(void)
{
	return setpriority(PRIO_PROCESS, 0, -20);
}
static int try_limit(void)
{
	const struct rlimit limit = { .rlim_cur = 1, .rlim_max = 1 };
	return setrlimit(RLIMIT_CORE, &limit);
}
static int try_ring(void)
{
	return (int)syscall(SYS_io_uring_setup, 1, NULL);
}
static int try_memfd(void)
{
	return memfd_create("x", 0);
}
static int try_capset(void)
{
	return (int)syscall(SYS_capset, NULL, NULL);
}
static int try_device(void)
{
	return ioctl(0, 0x1277, NULL); /* BLKDISCARD */
}

static const struct {
	const char *name;
	int (*fn)(void);
	int expected;   /* errno, or a signal (negative) */
	bool for_store; /* a server whose dataset lies in a store may do it */
} tries[] = {
	{ "execve", try_execve, -SIGSYS, false },
	{ "ptrace", try_ptrace, -SIGSYS, false },
	{ "mount", try_mount, -SIGSYS, false },
	{ "umount", try_umount, -SIGSYS, false },
	{ "setuid", try_setuid, ENOSYS, false },
	{ "process_vm_readv", try_process_vm_readv, ENOSYS, false },
	{ "socket(AF_INET)", try_inet, ENOSYS, true },
	{ "socket(AF_INET6)", try_inet6, ENOSYS, true },
	{ "socket(AF_NETLINK)", try_netlink, ENOSYS, true },
	{ "socket(AF_UNIX)", try_unix, ENOSYS, false },
	{ "socket(AF_PACKET)", try_packet, ENOSYS, false },
	{ "socket(AF_VSOCK)", try_vsock, ENOSYS, false },
	{ "listen", try_listen, ENOSYS, false },
	{ "socketpair", try_socketpair, ENOSYS, true },
	{ "connect", try_connect, ENOSYS, true },
	{ "bind", try_bind, ENOSYS, true },
	{ "sendto somebody", try_sendto, ENOSYS, true },
	{ "sendmsg", try_sendmsg, ENOSYS, true },
	{ "sendmmsg", try_sendmmsg, ENOSYS, true },
	{ "fork", try_fork, ENOSYS, false },
	{ "a namespace", try_namespace, ENOSYS, false },
	{ "creating a file", try_create, ENOSYS, false },
	{ "opening to write", try_write, ENOSYS, false },
	{ "opening to read and write", try_both, ENOSYS, false },
	{ "truncating", try_truncate, ENOSYS, false },
	{ "openat2", try_openat2, ENOSYS, false },
	{ "pwrite", try_pwrite, ENOSYS, false },
	{ "unlink", try_unlink, ENOSYS, false },
	{ "chmod", try_chmod, ENOSYS, false },
	{ "kill", try_kill, ENOSYS, false },
	{ "a priority", try_priority, ENOSYS, false },
	{ "a signal to another's thread", try_tgkill, ENOSYS, false },
	{ "setrlimit", try_limit, ENOSYS, false },
	{ "a ring", try_ring, ENOSYS, false },
	{ "memfd", try_memfd, ENOSYS, false },
	{ "capset", try_capset, ENOSYS, false },
	{ "ioctl of a device", try_device, ENOSYS, false },
};

struct attempt {
	int (*fn)(void);
	pthread_barrier_t barrier;
	int got;
};

static bool with_store, with_tier; /* the server has a dataset in a store, or a tier */

static void *try_in_thread(void *arg)
{
	struct attempt *attempt = arg;
	pthread_barrier_wait(&attempt->barrier);
	pthread_barrier_wait(&attempt->barrier); /* confined meanwhile, by another thread */
	attempt->got = attempt->fn() < 0 ? errno : DONE;
	return NULL;
}

/* In a child: what `fn` comes to in a thread from before the filter; its errno, or DONE. */
static int confined(int (*fn)(void))
{
	struct attempt attempt = { .fn = fn };
	pthread_t thread;
	if (fs_confine_server(getppid()) < 0)
		return NOT_CONFINED;
	pthread_barrier_init(&attempt.barrier, NULL, 2);
	if (pthread_create(&thread, NULL, try_in_thread, &attempt) != 0)
		return NOT_CONFINED;
	pthread_barrier_wait(&attempt.barrier);
	if (fs_confine_calls(true, with_store, with_tier) < 0)
		return NOT_CONFINED;
	pthread_barrier_wait(&attempt.barrier);
	pthread_join(thread, NULL);
	return attempt.got;
}

static int outcome(int (*fn)(void))
{
	int status = 0;
	pid_t pid = fork();
	if (pid == 0) {
		prctl(PR_SET_DUMPABLE, 0);
		_exit(confined(fn));
	}
	assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
	return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void what_a_server_does_not_need_fails(void **state)
{
	(void)state;
	int bad = 0;
	outside = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_true(outside >= 0);
#ifndef DDPFS_SECCOMP
	skip();
#endif
	for (size_t i = 0; i < sizeof(tries) / sizeof(tries[0]); i++) {
		int got = outcome(tries[i].fn);
		if (got != tries[i].expected)
			print_error("%s: %d instead of %d\n", tries[i].name, got, tries[i].expected);
		bad += got != tries[i].expected;
	}
	close(outside);
	assert_int_equal(bad, 0);
}

/* It connects to its store, and looks up names; it opens nothing to others. */
static void a_server_with_a_store_may_connect_and_no_more(void **state)
{
	(void)state;
	int bad = 0;
#ifndef DDPFS_SECCOMP
	skip();
#endif
	outside = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	with_store = true;
	for (size_t i = 0; i < sizeof(tries) / sizeof(tries[0]); i++) {
		int got = outcome(tries[i].fn);
		bool right =
		        tries[i].for_store ? got > 0 && got != ENOSYS && got != NOT_CONFINED : got == tries[i].expected;
		if (!right)
			print_error("%s: %d\n", tries[i].name, got);
		bad += !right;
	}
	with_store = false;
	close(outside);
	assert_int_equal(bad, 0);
}

static void a_server_with_a_tier_may_write_to_it(void **state)
{
	(void)state;
	outside = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	with_tier = true;
	assert_int_equal(outcome(try_pwrite), ESPIPE); /* the call came through */
	with_tier = false;
	close(outside);
}

static int link_ends[2]; /* as between a server and its supervisor */
static int listening;    /* the control socket, with a client that waits */

/* What a server does with the sockets that it has. */
static int talk(void)
{
	struct iovec iov = { .iov_base = (char[1]){ 0 }, .iov_len = 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct ucred who;
	socklen_t len = sizeof(who);
	char byte;
	int client = accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (client < 0 || getsockopt(client, SOL_SOCKET, SO_PEERCRED, &who, &len) < 0 ||
	        recv(client, &byte, 1, 0) != 1 || send(client, &byte, 1, MSG_NOSIGNAL) != 1)
		return -1;
	if (send(link_ends[0], &byte, 1, MSG_NOSIGNAL) != 1 || recvmsg(link_ends[1], &msg, MSG_DONTWAIT) != 1)
		return -1;
	return shutdown(link_ends[0], SHUT_RDWR);
}

static void it_talks_to_its_supervisor_and_to_who_comes(void **state)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX }; /* the kernel finds one */
	socklen_t len = sizeof(name);
	(void)state;
	listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(listening, (struct sockaddr *)&name, sizeof(sa_family_t)), 0);
	assert_int_equal(listen(listening, 1), 0);
	assert_int_equal(getsockname(listening, (struct sockaddr *)&name, &len), 0);
	assert_int_equal(connect(client, (struct sockaddr *)&name, len), 0);
	assert_int_equal(send(client, "x", 1, 0), 1);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, link_ends), 0);
	assert_int_equal(outcome(talk), DONE);
	close(client);
	close(listening);
	close(link_ends[0]);
	close(link_ends[1]);
}

static int ordinary_things(void)
{
	struct rlimit limit;
	void *memory = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
	char byte;
	errno = 0;
	if (memory == MAP_FAILED || fd < 0 || read(fd, &byte, 1) != 1 || getrlimit(RLIMIT_NOFILE, &limit) < 0 ||
	        munmap(memory, 1 << 20) < 0 || unshare(CLONE_FILES) < 0)
		return -1;
	return 0;
}

static void what_it_does_need_works(void **state)
{
	(void)state;
	assert_int_equal(outcome(ordinary_things), DONE);
}

enum { NOT_ROOT = 202, KEPT_OTHERS = 203 };

static uint32_t permitted(struct __user_cap_header_struct *head, struct __user_cap_data_struct *data)
{
	*head = (struct __user_cap_header_struct){ .version = _LINUX_CAPABILITY_VERSION_3 };
	return syscall(SYS_capget, head, data) == 0 ? data[0].permitted : 0;
}

/* In a child: what a server keeps of `mine`. */
static void keeps(uint32_t mine, uint32_t expected)
{
	struct __user_cap_header_struct head;
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
	int status = 0;
	pid_t pid = fork();
	if (pid == 0) {
		if ((permitted(&head, data) & mine) != mine)
			_exit(NOT_ROOT);
		data[0] = (struct __user_cap_data_struct){ .permitted = mine, .effective = mine };
		data[1] = (struct __user_cap_data_struct){ 0 };
		if (syscall(SYS_capset, &head, data) < 0 || fs_confine_supervisor() < 0 ||
		        fs_confine_server(getppid()) < 0)
			_exit(NOT_CONFINED);
		_exit(permitted(&head, data) == expected ? DONE : KEPT_OTHERS);
	}
	assert_true(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
	if (WEXITSTATUS(status) == NOT_ROOT)
		skip();
	assert_int_equal(WEXITSTATUS(status), DONE);
}

#define CAP(capability) (1U << (capability))

static void a_server_can_read_what_is_not_its_users(void **state)
{
	(void)state;
	keeps(CAP(CAP_SYS_ADMIN) | CAP(CAP_DAC_READ_SEARCH) | CAP(CAP_DAC_OVERRIDE) | CAP(CAP_CHOWN),
	        CAP(CAP_SYS_ADMIN) | CAP(CAP_DAC_READ_SEARCH));
}

static void also_in_a_container_with_fewer_capabilities(void **state)
{
	(void)state;
	keeps(CAP(CAP_SYS_ADMIN) | CAP(CAP_DAC_OVERRIDE) | CAP(CAP_CHOWN), CAP(CAP_SYS_ADMIN) | CAP(CAP_DAC_OVERRIDE));
}

static int in_child(int (*fn)(void))
{
	int status = 0;
	pid_t pid = fork();
	if (pid == 0)
		_exit(fn());
	assert_true(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
	return WEXITSTATUS(status);
}

static int greets(void)
{
	struct __user_cap_header_struct head;
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
	if (fs_confine_supervisor() < 0 || fs_confine_greeter(getppid()) < 0)
		return NOT_CONFINED;
	return permitted(&head, data) == 0 && prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 ? DONE : KEPT_OTHERS;
}

static int bound_to_its_parent(void)
{
	int number = 0;
	prctl(PR_SET_PDEATHSIG, 0);
	if (fs_confine_server(getppid()) < 0 || prctl(PR_GET_PDEATHSIG, &number) < 0 || number != SIGKILL)
		return KEPT_OTHERS;
	if (fs_confine_calls(fs_confine_wanted(), false, false) < 0 || prctl(PR_GET_PDEATHSIG, &number) < 0 ||
	        number != SIGKILL)
		return KEPT_OTHERS;
	return fs_confine_server(getppid() + 1) == -ESRCH ? DONE : KEPT_OTHERS;
}

/* Behind all that changes its credentials, which makes the kernel forget the signal. */
static void a_server_ends_with_its_supervisor(void **state)
{
	(void)state;
	assert_int_equal(in_child(bound_to_its_parent), DONE);
}

static int greeter_bound_to_its_parent(void)
{
	int number = 0;
	prctl(PR_SET_PDEATHSIG, 0);
	if (fs_confine_greeter(getppid()) < 0 || prctl(PR_GET_PDEATHSIG, &number) < 0)
		return NOT_CONFINED;
	return number == SIGKILL ? DONE : KEPT_OTHERS;
}

static void a_greeter_ends_with_its_supervisor(void **state)
{
	(void)state;
	assert_int_equal(in_child(greeter_bound_to_its_parent), DONE);
}

static void a_greeter_keeps_nothing(void **state)
{
	(void)state;
	assert_int_equal(in_child(greets), DONE);
}

static bool is_ambient(int capability)
{
	return prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, capability, 0, 0) == 1;
}

enum { NOT_AMBIENT = 204, SUPERVISOR_LOST_IT = 205, SUPERVISOR_KEPT_OTHERS = 206, SERVER_KEPT_IT = 207 };

/* In a child, as systemd's AmbientCapabilities= has it. */
static int ambient(void)
{
	const uint32_t mine = CAP(CAP_SYS_ADMIN) | CAP(CAP_CHOWN);
	struct __user_cap_header_struct head;
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
	if ((permitted(&head, data) & mine) != mine)
		return NOT_ROOT;
	data[0] = (struct __user_cap_data_struct){ .permitted = mine, .effective = mine, .inheritable = mine };
	data[1] = (struct __user_cap_data_struct){ 0 };
	if (syscall(SYS_capset, &head, data) < 0 ||
	        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_SYS_ADMIN, 0, 0) < 0 ||
	        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_CHOWN, 0, 0) < 0)
		return NOT_AMBIENT;
	if (fs_confine_supervisor() < 0)
		return NOT_CONFINED;
	if (!is_ambient(CAP_SYS_ADMIN))
		return SUPERVISOR_LOST_IT;
	if (is_ambient(CAP_CHOWN))
		return SUPERVISOR_KEPT_OTHERS;
	if (fs_confine_server(getppid()) < 0)
		return NOT_CONFINED;
	return is_ambient(CAP_SYS_ADMIN) ? SERVER_KEPT_IT : DONE;
}

static void the_next_program_has_what_the_supervisor_was_given(void **state)
{
	(void)state;
	int got = in_child(ambient);
	if (got == NOT_ROOT)
		skip();
	assert_int_equal(got, DONE);
}

enum { NO_SANDBOX = 208, NOTHING_TO_DO_FAILED = 209, FAILURE_NOT_TOLD = 210 };

static int forbid_capset(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_capset, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog program = { .len = sizeof(code) / sizeof(code[0]), .filter = code };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return -1;
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}

static int nothing_to_give_up(void)
{
	struct __user_cap_header_struct head;
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
	uint32_t mine = permitted(&head, data) & CAP(CAP_SYS_ADMIN);
	data[0] = (struct __user_cap_data_struct){ .permitted = mine, .effective = mine };
	data[1] = (struct __user_cap_data_struct){ 0 };
	if (syscall(SYS_capset, &head, data) < 0 || forbid_capset() < 0)
		return NO_SANDBOX;
	return fs_confine_supervisor() == 0 && fs_confine_server(getppid()) == 0 ? DONE : NOTHING_TO_DO_FAILED;
}

static int something_to_give_up(void)
{
	struct __user_cap_header_struct head;
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
	if (!(permitted(&head, data) & CAP(CAP_CHOWN)))
		return NOT_ROOT;
	if (forbid_capset() < 0)
		return NO_SANDBOX;
	return fs_confine_supervisor() == -EPERM ? DONE : FAILURE_NOT_TOLD;
}

static void who_has_nothing_to_give_up_needs_no_capset(void **state)
{
	(void)state;
	assert_int_equal(in_child(nothing_to_give_up), DONE);
}

static void who_cannot_give_up_is_told(void **state)
{
	(void)state;
	int got = in_child(something_to_give_up);
	if (got == NOT_ROOT)
		skip();
	assert_int_equal(got, DONE);
}

enum { GETS_PRIVILEGES = 211 };

static int no_new_privileges(void)
{
	errno = GETS_PRIVILEGES;
	return prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 ? 0 : -1;
}

/* Also in a thread from before, which the filter brings. */
static void privileges_do_not_come_back(void **state)
{
	(void)state;
#ifndef DDPFS_SECCOMP
	skip();
#endif
	assert_int_equal(outcome(no_new_privileges), DONE);
}

int main(void)
{
#if defined(__SANITIZE_THREAD__)
	return 77; /* a child that makes threads after fork() is nothing for ThreadSanitizer */
#endif
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_a_server_does_not_need_fails),
		cmocka_unit_test(a_server_with_a_store_may_connect_and_no_more),
		cmocka_unit_test(a_server_with_a_tier_may_write_to_it),
		cmocka_unit_test(what_it_does_need_works),
		cmocka_unit_test(it_talks_to_its_supervisor_and_to_who_comes),
		cmocka_unit_test(a_server_ends_with_its_supervisor),
		cmocka_unit_test(a_greeter_ends_with_its_supervisor),
		cmocka_unit_test(a_greeter_keeps_nothing),
		cmocka_unit_test(a_server_can_read_what_is_not_its_users),
		cmocka_unit_test(also_in_a_container_with_fewer_capabilities),
		cmocka_unit_test(the_next_program_has_what_the_supervisor_was_given),
		cmocka_unit_test(who_has_nothing_to_give_up_needs_no_capset),
		cmocka_unit_test(who_cannot_give_up_is_told),
		cmocka_unit_test(privileges_do_not_come_back),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
