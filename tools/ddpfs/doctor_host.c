/* SPDX-License-Identifier: Apache-2.0 */
/* `ddpfs doctor`: what host and kernel allow; doctor.h first. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "fs/host_memory.h"
#include "prefetch/io_backend.h"
#include "shard/base/cleanup.h"
#include "shard/base/control_client.h"
#include "shard/base/io.h"
#include "shard/base/units.h"
#include "tools/ddpfs/doctor.h"
#include "tools/ddpfs/namespace.h"

enum { SMALL_FILE = 1 << 16, SYS_ADMIN_BIT = 21 /* CAP_SYS_ADMIN */ };

#define ENOUGH_MEMORY (UINT64_C(256) << 20) /* bytes: a window over some hundred samples */

#define GIVE_RIGHTS                                                                                                    \
	"run as root, or give the container CAP_SYS_ADMIN and the device (docker run --cap-add SYS_ADMIN "             \
	"--device /dev/fuse --security-opt apparmor=unconfined)"

/* Reads a small file below `root` into memory; the caller frees it.  NULL: it cannot be read. */
static char *read_below(const char *root, const char *path)
{
	char whole[PATH_MAX];
	char *text;
	size_t len;
	int n = snprintf(whole, sizeof(whole), "%s%s", root, path);
	if (n < 0 || n >= (int)sizeof(whole))
		return NULL;
	return base_read_file(whole, SMALL_FILE, &text, &len) == 0 ? text : NULL;
}

void doctor_process_read(const char *root, struct doctor_process *ret_process)
{
	cleanup_free char *text = read_below(root, "/proc/self/status");
	const char *caps = text ? strstr(text, "\nCapEff:") : NULL;
	const char *privs = text ? strstr(text, "\nNoNewPrivs:") : NULL;
	*ret_process = (struct doctor_process){
		.uid = geteuid(),
		.may_mount = caps && strtoull(caps + strlen("\nCapEff:"), NULL, 16) >> SYS_ADMIN_BIT & 1,
		.no_new_privs = privs && strtol(privs + strlen("\nNoNewPrivs:"), NULL, 10) != 0,
	};
}

void doctor_fuse(const char *device, json_t *findings)
{
	struct stat st;
	cleanup_close int fd = open(device, O_RDWR | O_CLOEXEC);
	int code = fd < 0 ? errno : 0;
	if (code == EACCES || code == EPERM)
		doctor_say(findings, DOCTOR_FAILURE,
		        "make the device readable and writable for users (chmod 666), or allow it to the container "
		        "(docker run --device /dev/fuse)",
		        "this user may not open %s: %s", device, strerror(code));
	else if (code)
		doctor_say(findings, DOCTOR_FAILURE,
		        "run 'modprobe fuse' as root, or give the container the device (docker run --device /dev/fuse "
		        "--cap-add SYS_ADMIN --security-opt apparmor=unconfined)",
		        "%s cannot be opened, so nothing can be mounted: %s", device, strerror(code));
	else if (fstat(fd, &st) < 0 || !S_ISCHR(st.st_mode))
		doctor_say(findings, DOCTOR_FAILURE, "remove the file, and run 'modprobe fuse' as root",
		        "%s is not a device", device);
	else
		doctor_say(findings, DOCTOR_OK, NULL, "%s can be opened", device);
}

/* Finds a program as execvp(3) does. */
static bool find_program(const char *search_path, const char *name, char ret_path[PATH_MAX])
{
	for (const char *at = search_path; at && *at;) {
		size_t len = strcspn(at, ":");
		int n = snprintf(ret_path, PATH_MAX, "%.*s/%s", (int)len, len ? at : ".", name);
		struct stat st;
		if (n > 0 && n < PATH_MAX && stat(ret_path, &st) == 0 && S_ISREG(st.st_mode) &&
		        access(ret_path, X_OK) == 0)
			return true;
		at += len + (at[len] == ':');
	}
	return false;
}

void doctor_fusermount(const char *search_path, const struct doctor_process *process, json_t *findings)
{
	char path[PATH_MAX];
	struct stat st;
	struct statvfs fs;
	if (process->may_mount) {
		doctor_say(findings, DOCTOR_OK, NULL, "mount(2) is allowed, so fusermount3 is not needed");
	} else if (process->uid == 0) {
		doctor_say(findings, DOCTOR_FAILURE, GIVE_RIGHTS, "root has no CAP_SYS_ADMIN here and cannot mount");
	} else if (!find_program(search_path, "fusermount3", path)) {
		doctor_say(findings, DOCTOR_FAILURE, "install the package fuse3, or mount as root",
		        "no directory of PATH has fusermount3, so this user cannot mount");
	} else if (stat(path, &st) < 0 || !(st.st_mode & S_ISUID) || st.st_uid != 0) {
		doctor_say(findings, DOCTOR_FAILURE,
		        "run 'chown root FILE && chmod 4755 FILE' as root, or install the package fuse3 again",
		        "%s is not set-uid root, so this user cannot mount", path);
	} else if (statvfs(path, &fs) == 0 && fs.f_flag & ST_NOSUID) {
		doctor_say(findings, DOCTOR_FAILURE, "mount that file system without nosuid, or mount as root",
		        "%s lies on a file system with the option nosuid, so this user cannot mount", path);
	} else if (process->no_new_privs) {
		doctor_say(findings, DOCTOR_FAILURE,
		        "start the job without no_new_privs (Kubernetes: allowPrivilegeEscalation: true; systemd: "
		        "NoNewPrivileges=no), or mount as root before the job",
		        "this process has no_new_privs, so fusermount3 gets no rights");
	} else {
		doctor_say(findings, DOCTOR_OK, NULL, "%s is set-uid root", path);
	}
}

void doctor_namespaces(json_t *findings)
{
	struct base_err err = { 0 };
	bool user;
	if (namespace_enter(&err, &user) < 0)
		doctor_say(findings, DOCTOR_WARNING, err.text,
		        "'ddpfs exec' does not work, because it cannot make a private mount namespace");
	else
		doctor_say(findings, DOCTOR_OK, NULL, "private mount namespaces are allowed%s",
		        user ? ", in a user namespace" : "");
}

void doctor_io_uring(const char *root, json_t *findings)
{
	uint64_t bytes;
	int registered;
	int rc = prefetch_io_uring_probe(&bytes, &registered);
	if (rc == 0) {
		doctor_say(findings, DOCTOR_OK, NULL, "rings of io_uring can be made and entered");
		return;
	}
	cleanup_free char *disabled = read_below(root, "/proc/sys/kernel/io_uring_disabled");
	bool sysctl = disabled && strtol(disabled, NULL, 10) != 0;
	doctor_say(findings, DOCTOR_WARNING,
	        rc == -ENOMEM ? "raise RLIMIT_MEMLOCK (ulimit -l; systemd: LimitMEMLOCK=; docker run --ulimit "
	                        "memlock=-1), or free memory"
	        : sysctl      ? "ask for sysctl kernel.io_uring_disabled=0"
	                      : "use a seccomp profile with io_uring (docker run --security-opt seccomp=unconfined)",
	        "io_uring cannot be used (%s): threads with pread(2) read the shards, which costs more processor time",
	        strerror(-rc));
}

void doctor_memlock(json_t *findings)
{
	static const char advice[] =
	        "raise it for the process that mounts: ulimit -l, LimitMEMLOCK= of a systemd unit, or docker run "
	        "--ulimit memlock=-1";
	struct rlimit limit;
	uint64_t bytes = 0;
	int registered = 0;
	char have[16] = "unlimited";
	char need[16];
	int rc = prefetch_io_uring_probe(&bytes, &registered);
	if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
		base_format_size(limit.rlim_cur, have);
	if (rc == -ENOMEM)
		doctor_say(findings, DOCTOR_WARNING, advice,
		        "RLIMIT_MEMLOCK is %s, too little for a ring of io_uring: threads with pread(2) read the "
		        "shards",
		        have);
	else if (rc < 0)
		doctor_say(
		        findings, DOCTOR_OK, NULL, "RLIMIT_MEMLOCK is %s, and nothing needs it without io_uring", have);
	else if (registered == -ENOMEM)
		doctor_say(findings, DOCTOR_WARNING, advice,
		        "RLIMIT_MEMLOCK is %s, less than the %s of one piece of landing memory: the kernel pins the "
		        "memory of each read anew",
		        have, base_format_size(bytes, need));
	else
		doctor_say(findings, DOCTOR_OK, NULL, "RLIMIT_MEMLOCK is %s: landing memory can be registered", have);
}

struct kernel_feature {
	unsigned major, minor; /* the first kernel that has it */
	enum doctor_level level;
	const char *without;
};

void doctor_kernel(const char *release, json_t *findings)
{
	/* Failures first, so that an old kernel's first finding is its worst. */
	static const struct kernel_feature features[] = {
		{ 5, 3, DOCTOR_FAILURE, "'ddpfs exec' does not work (pidfd_open)" },
		{ 5, 6, DOCTOR_FAILURE, "io_uring cannot read files as ddpfs does (IORING_OP_READ)" },
		{ 5, 10, DOCTOR_WARNING, "a server's ring is not restricted to reads (share/doc/ddpfs/SECURITY.md)" },
		{ 6, 9, DOCTOR_WARNING,
		        "a server that is killed can take its mount with it, and 'ddpfs restart' does not work "
		        "(FUSE_NOTIFY_RESEND)" },
		{ 6, 1, DOCTOR_NOTE, "io_uring interrupts the engine at each completion (IORING_SETUP_DEFER_TASKRUN)" },
		{ 6, 18, DOCTOR_NOTE,
		        "names of dropped samples stay in memory until the kernel needs it (FUSE_NOTIFY_PRUNE)" },
	};
	unsigned major, minor;
	size_t said = 0;
	if (sscanf(release, "%u.%u", &major, &minor) != 2) {
		doctor_say(findings, DOCTOR_NOTE, "look at 'uname -r'", "the kernel's release '%s' is no number",
		        base_quoted(release));
		return;
	}
	for (size_t i = 0; i < sizeof(features) / sizeof(features[0]); i++) {
		const struct kernel_feature *f = &features[i];
		char advice[64];
		if (major > f->major || (major == f->major && minor >= f->minor))
			continue;
		snprintf(advice, sizeof(advice), "use Linux %u.%u or newer", f->major, f->minor);
		doctor_say(findings, f->level, advice, "with Linux %u.%u, %s", major, minor, f->without);
		said++;
	}
	if (!said)
		doctor_say(findings, DOCTOR_OK, NULL, "Linux %u.%u has all that ddpfs uses", major, minor);
}

/* Whether a kernel thread of DAMON runs: its number n is 0, 1, ... */
static bool kdamond_runs(const char *root, unsigned n)
{
	char path[128];
	snprintf(path, sizeof(path), "/sys/kernel/mm/damon/admin/kdamonds/%u/state", n);
	cleanup_free char *state = read_below(root, path);
	return state && strncmp(state, "on", 2) == 0;
}

void doctor_damon(const char *root, json_t *findings)
{
	enum { KDAMONDS_MAX = 16 };
	cleanup_free char *reclaim = read_below(root, "/sys/module/damon_reclaim/parameters/enabled");
	bool on = reclaim && reclaim[0] == 'Y';
	for (unsigned i = 0; i < KDAMONDS_MAX && !on; i++)
		on = kdamond_runs(root, i);
	if (on)
		doctor_say(findings, DOCTOR_NOTE,
		        "if 'lost' of 'ddpfs stat' grows, switch it off or give it a longer min_age",
		        "DAMON takes pages back that nobody used for some time: ddpfs then reads them again");
	else
		doctor_say(findings, DOCTOR_OK, NULL, "DAMON takes no pages back");
}

void doctor_memory(const char *root, uint64_t content_bytes, json_t *findings)
{
	char a[16], b[16];
	uint64_t most = fs_memory_most(root);
	uint64_t free_bytes = fs_memory_free(root, 0);
	static const char advice[] =
	        "raise the memory limit of the container or cgroup (docker run --memory, Kubernetes limits.memory, "
	        "sbatch --mem), because the page cache counts against it";
	if (most < FS_MEMORY_MIN || (most < ENOUGH_MEMORY && content_bytes > most))
		doctor_say(findings, DOCTOR_WARNING, advice,
		        "this cgroup or host leaves a mount at most %s, and reading ahead wants %s",
		        base_format_size(most, a), base_format_size(ENOUGH_MEMORY, b));
	else if (free_bytes < FS_MEMORY_MIN)
		doctor_say(findings, DOCTOR_WARNING, "end processes that use memory, or raise the limit of the cgroup",
		        "only %s of memory is free, and a mount wants at least %s", base_format_size(free_bytes, a),
		        base_format_size(FS_MEMORY_MIN, b));
	else if (content_bytes > free_bytes / 2)
		doctor_say(findings, DOCTOR_NOTE, "more memory lets later epochs read less from the disk",
		        "the dataset has %s, and a mount may hold %s: each epoch reads the rest again",
		        base_format_size(content_bytes, a), base_format_size(free_bytes / 2, b));
	else
		doctor_say(findings, DOCTOR_OK, NULL, "%s of memory is free", base_format_size(free_bytes, a));
}

void doctor_control(json_t *findings)
{
	static const char page[4096];
	char socket[BASE_CONTROL_PATH_MAX];
	char path[BASE_CONTROL_PATH_MAX + 8];
	struct base_err err = { 0 };
	if (base_control_default_path(0, &err, socket) < 0) {
		doctor_say(findings, DOCTOR_FAILURE,
		        err.code == -ENOSPC ? "make room on that file system"
		                            : "make the directory yours alone (mode 0700), or remove it, or mount with "
		                              "control=FILE",
		        "no control socket can be made: %s", err.text);
		return;
	}
	snprintf(path, sizeof(path), "%s.doctor", socket);
	cleanup_close int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	int code = fd < 0 ? errno : 0;
	int rc = fd < 0 ? 0 : base_pwrite_full(fd, page, sizeof(page), 0);
	if (fd >= 0)
		unlink(path);
	*strrchr(path, '/') = '\0';
	if (code)
		doctor_say(findings, DOCTOR_FAILURE,
		        code == ENOSPC ? "make room on that file system, inodes too ('df -i')"
		                       : "make the directory writable for this user, or mount with control=FILE",
		        "no control socket can be made in %s: %s", path, strerror(code));
	else if (rc < 0)
		doctor_say(findings, DOCTOR_WARNING, "make room on that file system",
		        "nothing can be written to %s, where control sockets lie: %s", path, base_err_str(rc));
	else
		doctor_say(findings, DOCTOR_OK, NULL, "control sockets can be made in %s", path);
}
