/* SPDX-License-Identifier: Apache-2.0 */
/* Gives up capabilities and system calls; fs/supervise/confine.h first. */
#include "fs/supervise/confine.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef DDPFS_SECCOMP
#include <seccomp.h>
#endif

#include "shard/base/sanitized.h"

/* ---- capabilities ---- */

#define BIT(capability) (UINT64_C(1) << (capability))
#define SERVER_KEEPS (BIT(CAP_SYS_ADMIN) | BIT(CAP_DAC_READ_SEARCH) | BIT(CAP_IPC_LOCK))
#define SUPERVISOR_KEEPS (SERVER_KEEPS | BIT(CAP_DAC_OVERRIDE))

/* Keeps CAP_DAC_OVERRIDE if CAP_DAC_READ_SEARCH is not there, as for root in many containers. */
static uint64_t or_like_it(const struct __user_cap_data_struct *data, uint64_t keep)
{
	return data[0].permitted & BIT(CAP_DAC_READ_SEARCH) ? keep : keep | BIT(CAP_DAC_OVERRIDE);
}

static bool same(const struct __user_cap_data_struct *a, const struct __user_cap_data_struct *b)
{
	return a->permitted == b->permitted && a->inheritable == b->inheritable;
}

/* Gives up all capabilities but `keep`.  The kernel drops from the ambient set what is not inheritable. */
static int keep_capabilities(uint64_t keep, uint64_t keep_inheritable)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
	if (syscall(SYS_capget, &head, data) < 0)
		return -errno;
	keep = keep ? or_like_it(data, keep) : 0;
	keep_inheritable &= keep;
	bool changes = false;
	for (int i = 0; i < _LINUX_CAPABILITY_U32S_3; i++) {
		const struct __user_cap_data_struct before = data[i];
		data[i].permitted &= (uint32_t)(keep >> (32 * i));
		data[i].effective &= data[i].permitted;
		data[i].inheritable &= (uint32_t)(keep_inheritable >> (32 * i));
		changes = changes || !same(&before, &data[i]);
	}
	if (!changes) /* a sandbox may forbid capset(2) */
		return 0;
	return syscall(SYS_capset, &head, data) < 0 ? -errno : 0;
}

int fs_confine_supervisor(void)
{
	return keep_capabilities(SUPERVISOR_KEEPS, UINT64_MAX);
}

/* Call it last: the kernel forgets the signal when credentials change (commit_creds; PR_SET_PDEATHSIG in prctl(2)). */
static int die_with(pid_t parent)
{
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
		return -errno;
	return getppid() == parent ? 0 : -ESRCH; /* the parent ended before prctl(2) */
}

int fs_confine_server(pid_t parent)
{
	int rc = keep_capabilities(SERVER_KEEPS, 0);
	int bound = die_with(parent);
	return bound < 0 ? bound : rc;
}

int fs_confine_greeter(pid_t parent)
{
	int rc = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ? -errno : keep_capabilities(0, 0);
	int bound = die_with(parent);
	return bound < 0 ? bound : rc;
}

/* ---- system calls ---- */

#ifdef DDPFS_SECCOMP

/* By name: a call that this libseccomp or machine does not have is left out. */
static const char *const allowed[] = {
	/* files that are open or opened to read; directories */
	"read",
	"readv",
	"pread64",
	"preadv",
	"preadv2",
	"write",
	"writev",
	"lseek",
	"close",
	"close_range",
	"fstat",
	"newfstatat",
	"stat",
	"lstat",
	"statx",
	"statfs",
	"fstatfs",
	"access",
	"faccessat",
	"faccessat2",
	"readlink",
	"readlinkat",
	"getdents64",
	"getcwd",
	"dup",
	"dup2",
	"dup3",
	"fcntl",
	"fadvise64",
	"readahead",
	"open_tree",
	"inotify_add_watch",
	"inotify_rm_watch",
	/* memory */
	"mmap",
	"munmap",
	"mremap",
	"mprotect",
	"madvise",
	"brk",
	"msync",
	"mincore",
	"mlock",
	"mlock2",
	"munlock",
	"map_shadow_stack",
	/* threads, signals, time, waiting */
	"futex",
	"futex_waitv",
	"set_robust_list",
	"get_robust_list",
	"set_tid_address",
	"rseq",
	"membarrier",
	"sched_yield",
	"sched_getaffinity",
	"sched_getparam",
	"sched_getscheduler",
	"getcpu",
	"gettid",
	"getpid",
	"getppid",
	"getuid",
	"geteuid",
	"getgid",
	"getegid",
	"rt_sigaction",
	"rt_sigprocmask",
	"rt_sigreturn",
	"rt_sigpending",
	"rt_sigtimedwait",
	"rt_sigsuspend",
	"sigaltstack",
	"restart_syscall",
#ifndef __GLIBC__
	"tkill", /* musl's raise() and pthread_kill() */
#endif
	"pause",
	"nanosleep",
	"clock_nanosleep",
	"clock_gettime",
	"clock_getres",
	"gettimeofday",
	"time",
	"poll",
	"ppoll",
	"select",
	"pselect6",
	"eventfd2",
	"exit",
	"exit_group",
	"prctl",
	"arch_prctl",
	"getrlimit",
	"getrusage",
	"sysinfo",
	"uname",
	"getrandom",
	/* existing sockets; connections to the control socket */
	"accept4",
	"recvfrom",
	"recvmsg",
	"shutdown",
	"getsockopt",
	/* the existing ring */
	"io_uring_enter",
	"io_uring_register",
};

/* What libcurl, the resolver of libc and TLS need for connections to a store. */
static const char *const networking[] = {
	"connect",
	"bind", /* of a netlink socket */
	"setsockopt",
	"getsockname",
	"getpeername",
	"sendmsg",
	"sendmmsg",
	"sendto",
	"recvmmsg",
	"pipe2",
	"epoll_create1",
	"epoll_ctl",
	"epoll_wait",
	"epoll_pwait",
};

/* Neither ddpfs nor libc nor a preloaded library makes these calls in a server, so only an intruder does. */
static const char *const fatal[] = { "execve", "execveat", "ptrace", "mount", "umount2", "move_mount", "fsopen",
	"pivot_root", "chroot", "setns", "init_module", "finit_module", "kexec_load", "bpf" };

static int add(scmp_filter_ctx filter, uint32_t action, const char *name, unsigned n, const struct scmp_arg_cmp *args)
{
	int number = seccomp_syscall_resolve_name(name);
	return number == __NR_SCMP_ERROR ? 0 : seccomp_rule_add_array(filter, action, number, n, args);
}

static int add_all(scmp_filter_ctx filter, uint32_t action, const char *const names[], size_t n)
{
	int rc = 0;
	for (size_t i = 0; i < n && rc == 0; i++)
		rc = add(filter, action, names[i], 0, NULL);
	return rc;
}

/* The calls that are allowed only with certain arguments. */
static int add_by_argument(scmp_filter_ctx filter)
{
	/* O_TMPFILE includes the bit of O_DIRECTORY, which is allowed */
	const uint64_t writes = O_ACCMODE | O_CREAT | O_TRUNC | (O_TMPFILE & ~O_DIRECTORY);
	const struct {
		const char *name;
		struct scmp_arg_cmp arg; /* number, comparison, and with MASKED_EQ mask and value */
	} rules[] = {
		{ "open", { 1, SCMP_CMP_MASKED_EQ, writes, 0 } },
		{ "openat", { 2, SCMP_CMP_MASKED_EQ, writes, 0 } },
		{ "sendto", { 4, SCMP_CMP_EQ, 0, 0 } }, /* send(2): no address, so only to the connected peer */
		{ "clone", { 0, SCMP_CMP_MASKED_EQ, CLONE_THREAD, CLONE_THREAD } },
		{ "tgkill", { 0, SCMP_CMP_EQ, (scmp_datum_t)getpid(), 0 } },
		{ "unshare", { 0, SCMP_CMP_EQ, CLONE_FILES, 0 } },
		{ "ioctl", { 1, SCMP_CMP_EQ, TCGETS, 0 } },   /* isatty() in stdio */
		{ "prlimit64", { 2, SCMP_CMP_EQ, 0, 0 } },    /* getrlimit(2): sets nothing */
		{ "setpriority", { 2, SCMP_CMP_EQ, 0, 0 } },  /* the usual one */
		{ "setpriority", { 2, SCMP_CMP_EQ, 19, 0 } }, /* the lowest */
		{ "sched_setscheduler", { 1, SCMP_CMP_EQ, SCHED_IDLE, 0 } },
	};
	int rc = 0;
	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]) && rc == 0; i++)
		rc = add(filter, SCMP_ACT_ALLOW, rules[i].name, 1, &rules[i].arg);
	return rc;
}

/* Sockets of these families, and of the pair that libcurl wakes a thread with. */
static int add_network(scmp_filter_ctx filter)
{
	static const int families[] = { AF_INET, AF_INET6, AF_NETLINK };
	int rc = add_all(filter, SCMP_ACT_ALLOW, networking, sizeof(networking) / sizeof(networking[0]));
	for (size_t i = 0; i < sizeof(families) / sizeof(families[0]) && rc == 0; i++)
		rc = add(filter, SCMP_ACT_ALLOW, "socket", 1,
		        &(struct scmp_arg_cmp){ 0, SCMP_CMP_EQ, (scmp_datum_t)families[i], 0 });
	if (rc == 0)
		rc = add(filter, SCMP_ACT_ALLOW, "socketpair", 1, &(struct scmp_arg_cmp){ 0, SCMP_CMP_EQ, AF_UNIX, 0 });
	if (rc == 0)
		rc = add(filter, SCMP_ACT_ALLOW, "ioctl", 1, &(struct scmp_arg_cmp){ 1, SCMP_CMP_EQ, FIONBIO, 0 });
	return rc;
}

/* perf and bpf can set probes on a program, and the probed process then makes a system call: 335 for a return probe
 * (Linux 6.11), 336 for other probes (Linux 6.18).  If the filter refuses it, the process crashes.  libseccomp 2.5
 * has no names for these calls. */
static int add_probes(scmp_filter_ctx filter)
{
	int rc = 0;
#ifdef __x86_64__
	for (int number = 335; number <= 336 && rc == 0; number++)
		rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, number, 0);
#endif
	return rc;
}

static int filter_calls(bool network, bool tier)
{
	scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(ENOSYS));
	if (!filter)
		return -ENOMEM;
	int rc = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1);
	if (rc == 0) /* else, before Linux 5.16, a filter slows down every load after a store */
		rc = seccomp_attr_set(filter, SCMP_FLTATR_CTL_SSB, 1);
	if (rc == 0)
		rc = seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
	if (rc == 0)
		rc = add_all(filter, SCMP_ACT_ALLOW, allowed, sizeof(allowed) / sizeof(allowed[0]));
	if (rc == 0)
		rc = add_all(filter, SCMP_ACT_KILL_PROCESS, fatal, sizeof(fatal) / sizeof(fatal[0]));
	if (rc == 0)
		rc = add_by_argument(filter);
	if (rc == 0 && network)
		rc = add_network(filter);
	if (rc == 0 && tier)
		rc = add(filter, SCMP_ACT_ALLOW, "pwrite64", 0, NULL);
	if (rc == 0)
		rc = add_probes(filter);
	if (rc == 0)
		rc = seccomp_load(filter);
	seccomp_release(filter);
	return rc;
}

#else

static int filter_calls(bool network, bool tier)
{
	(void)network;
	(void)tier;
	return 0;
}

#endif

bool fs_confine_wanted(void)
{
	const char *text = getenv(FS_CONFINE_ENVIRON);
	/* A sanitizer writes reports, and traces the process to look for leaks. */
	return !BASE_SANITIZED && (!text || strcmp(text, "off") != 0);
}

int fs_confine_calls(bool filter, bool network, bool tier)
{
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return -errno;
	return filter ? filter_calls(network, tier) : 0;
}
