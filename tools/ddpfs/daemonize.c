/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a server in the foreground or background, and opens its log file; daemonize.h first. */
#include "tools/ddpfs/daemonize.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fs/supervise/priority.h"
#include "fs/supervise/supervisor.h"
#include "shard/base/cleanup.h"
#include "shard/remote/credentials_agent.h"
#include "shard/remote/start_directory.h"
#include "tools/common/progress.h"
#include "tools/ddpfs/mounts.h"
#include "tools/ddpfs/takeover.h"

enum {
	POLL_MS = 100,   /* between two checks whether a signal came */
	STOP_POLLS = 50, /* 5 s for a server to unmount before it is killed */
	LINKS_MAX = 40,  /* as path_resolution(7) */
};

/* The server's report to its parent: one write, smaller than PIPE_BUF, so it arrives whole. */
struct report {
	int code; /* 0: the mount answers */
	char text[BASE_ERR_TEXT_MAX];
};

/* A walk to a file, one component a step.  It follows only links of this user and of root, because a link of another
 * user can lead anywhere. */
struct walk {
	char path[PATH_MAX]; /* the components that follow */
	int dir;             /* the directory that `path` starts from; -1: the working directory */
	int links;           /* followed so far */
	uid_t stranger;      /* after -EPERM: the owner of the refused link */
};

static void walk_to(struct walk *w, int dir)
{
	if (w->dir >= 0)
		close(w->dir);
	w->dir = dir;
}

/* Replaces w->path by the target of the link `fd`, followed by `rest`. */
static int follow(struct walk *w, int fd, const char *rest)
{
	char to[PATH_MAX], path[2 * PATH_MAX];
	struct stat st;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (st.st_uid != geteuid() && st.st_uid != 0) {
		w->stranger = st.st_uid;
		return -EPERM;
	}
	ssize_t n = readlinkat(fd, "", to, sizeof(to) - 1);
	if (n < 0)
		return -errno;
	to[n] = '\0';
	if (++w->links > LINKS_MAX)
		return -ELOOP;
	if (snprintf(path, sizeof(path), "%s%s%s", to, *rest ? "/" : "", rest) >= PATH_MAX)
		return -ENAMETOOLONG;
	memcpy(w->path, path, strlen(path) + 1);
	return 0;
}

/* Is this link, of this user or of root, one of /proc/PID/fd? */
static bool is_open_file(int fd, const struct stat *st)
{
	struct statfs fs;
	return (st->st_uid == geteuid() || st->st_uid == 0) && fstatfs(fd, &fs) == 0 && fs.f_type == PROC_SUPER_MAGIC;
}

/* Takes one component.  Returns 1 if it was the last one: the file is open as *ret_fd. */
static int step(struct walk *w, int flags, int *ret_fd)
{
	char name[PATH_MAX], rest[PATH_MAX];
	struct stat st;
	if (w->path[0] == '/')
		walk_to(w, open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
	const char *from = w->path + strspn(w->path, "/");
	size_t len = strcspn(from, "/");
	memcpy(name, from, len);
	name[len] = '\0';
	from += len;
	bool last = !*from;
	from += strspn(from, "/");
	memcpy(rest, from, strlen(from) + 1);
	int at = w->dir < 0 ? AT_FDCWD : w->dir;
	cleanup_close int fd = openat(at, *name ? name : ".", O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 && (errno != ENOENT || !last))
		return -errno;
	if (fd >= 0 && fstat(fd, &st) < 0)
		return -errno;
	/* A link of /proc that stands for an open file (/dev/stdout) has a target that is no path: proc(5). */
	bool opened = fd >= 0 && S_ISLNK(st.st_mode) && last && is_open_file(fd, &st);
	if (fd >= 0 && S_ISLNK(st.st_mode) && !opened)
		return follow(w, fd, rest);
	if (opened)
		flags &= ~O_CREAT;
	if (last) {
		*ret_fd = openat(at, *name ? name : ".", flags | (opened ? 0 : O_NOFOLLOW), 0640);
		return *ret_fd < 0 ? -errno : 1;
	}
	walk_to(w, steal_fd(&fd));
	memcpy(w->path, rest, strlen(rest) + 1);
	return 0;
}

static int open_unled(const char *path, int flags, uid_t *ret_stranger, int *ret_fd)
{
	struct walk w = { .dir = -1 };
	int rc = strlen(path) < sizeof(w.path) ? 0 : -ENAMETOOLONG;
	if (rc == 0)
		memcpy(w.path, path, strlen(path) + 1);
	while (rc == 0)
		rc = step(&w, flags, ret_fd);
	walk_to(&w, -1);
	*ret_stranger = w.stranger;
	return rc < 0 ? rc : 0;
}

/* The server loses log lines beyond the limit, so the log says so at its beginning. */
static void warn_of_limit(const char *quoted)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
		log_warning("log file '%s': cut at %llu bytes by this process's limit (ulimit -f): `ddpfs stat` "
		            "shows the last lines in any case",
		        quoted, (unsigned long long)limit.rlim_cur);
}

static int open_log(const struct options *o, struct base_err *err)
{
	cleanup_close int fd = -1;
	uid_t stranger = 0;
	if (!o->log_file)
		return 0;
	const char *quoted = base_quoted(o->log_file);
	/* O_NONBLOCK: opening a FIFO without a reader fails with ENXIO instead of waiting (fifo(7)). */
	int r = open_unled(
	        o->log_file, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, &stranger, &fd);
	if (r == -EPERM && stranger)
		return base_err_set(err, r,
		        "log file '%s': a symbolic link of another user (%u) is on the way: give the path that it "
		        "leads to",
		        quoted, (unsigned)stranger);
	if (r < 0)
		return base_err_set(err, r, "log file '%s': %s", quoted, strerror(-r));
	warn_of_limit(quoted);
	if (fcntl(fd, F_SETFL, O_APPEND) < 0 || dup2(fd, STDERR_FILENO) < 0)
		return base_err_set(err, -errno, "log file '%s': %s", quoted, strerror(errno));
	return 0;
}

/* Removes what a failed server left.  mounts_check_target found no ddpfs mount before, so a dead one is ours.  A live
 * one belongs to another process that mounted there in the meantime. */
static void remove_left_mount(const char *mountpoint)
{
	struct mounts_entry entry;
	if (mounts_find(mountpoint, &entry) == 0 && mounts_is_dead(&entry))
		mounts_remove(mountpoint, true);
}

/* Handover memory is a memfd, so RLIMIT_FSIZE limits it. */
static int supervise(
        const struct options *options, const struct fs_supervise *how, struct base_err *err, bool *ret_ready)
{
	fs_priority_raise(
	        options->fs.scan_threads == 0); /* seed_search= promises to try seeds at the lowest priority */
	int r = fs_supervise(how, err, ret_ready);
	if (r == -EFBIG)
		base_err_set(err, r,
		        "the limit on the size of files (ulimit -f) is too small for what a server keeps in memory: "
		        "`ulimit -f unlimited`, or LimitFSIZE=infinity of the systemd unit");
	return r;
}

/* In the foreground */

int serve_front(const struct options *options, struct base_err *err)
{
	bool ready = false;
	base_log_init("ddpfs", options->log_level, false);
	signal(SIGXFSZ, SIG_IGN);
	int r = open_log(options, err);
	if (r < 0)
		return r;
	struct takeover takeover = { .fs = options->fs, .log_level = options->log_level, .owner_pidfd = -1 };
	struct fs_supervise supervised;
	fs_supervise_options(&options->fs, &supervised);
	supervised.restart = takeover_restart;
	supervised.arg = &takeover;
	r = supervise(options, &supervised, err, &ready);
	if (r < 0 && !ready)
		remove_left_mount(options->fs.mountpoint);
	/* Unmounted, or stopped by a signal, before the mount answered: in the foreground that is no error. */
	return r == -ECANCELED || r == -EINTR ? 0 : r;
}

/* In the background: the supervisor's side */

struct child {
	struct takeover takeover; /* must be first: takeover_restart gets a pointer to it */
	const struct serve_background *how;
	int report_fd;
};

static void send_report(int fd, int code, const char *text)
{
	struct report report = { .code = code };
	snprintf(report.text, sizeof(report.text), "%s", text);
	/* If the parent has ended, nobody needs the report. */
	ssize_t ignored = write(fd, &report, sizeof(report));
	(void)ignored;
}

static void close_others(int keep_a, int keep_b)
{
	cleanup_closedir DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	while (dir && (entry = readdir(dir))) {
		int fd = (int)strtol(entry->d_name, NULL, 10); /* 0 for "." and ".." */
		if (fd > STDERR_FILENO && fd != keep_a && fd != keep_b && fd != dirfd(dir))
			close(fd);
	}
}

static void to_null(int fd, int flags)
{
	cleanup_close int null = open("/dev/null", flags | O_CLOEXEC);
	if (null >= 0)
		dup2(null, fd);
}

static bool logs_to_syslog(const struct serve_background *how)
{
	return !how->keep_stderr && !how->options->log_file;
}

static bool gives_up_stderr(const struct serve_background *how)
{
	return logs_to_syslog(how) && !how->options->fs.debug;
}

/* Runs in the server and in the supervisor when the mount answers: from then on they log where the options say. */
static void leave_stderr(void *arg)
{
	const struct child *child = arg;
	const struct serve_background *how = child->how;
	base_log_init("ddpfs", how->options->log_level, logs_to_syslog(how));
	if (gives_up_stderr(how))
		to_null(STDERR_FILENO, O_RDONLY); /* a confined server opens nothing to write */
}

static void on_ready(void *arg)
{
	struct child *child = arg;
	leave_stderr(child);
	send_report(child->report_fd, 0, "");
	close(child->report_fd);
	child->report_fd = -1;
}

static int serve_child(struct child *child, struct base_err *err)
{
	static char name[32] = "ddpfs"; /* of lines, until the mount answers */
	const struct options *options = child->how->options;
	if (child->how->task_world > 1)
		snprintf(name, sizeof(name), "ddpfs: rank %u", child->how->task_rank);
	base_log_init(name, options->log_level, false);
	struct fs_options fs = options->fs;
	bool ready;
	fs.gives_up_stderr = gives_up_stderr(child->how);
	int r = open_log(options, err);
	if (r < 0)
		return r;
	child->takeover = (struct takeover){ .fs = fs,
		.log_level = options->log_level,
		.to_syslog = logs_to_syslog(child->how),
		.owner_pidfd = child->how->owner_pidfd };
	struct fs_supervise supervised;
	fs_supervise_options(&fs, &supervised);
	supervised.owner_pidfd = child->how->owner_pidfd;
	supervised.ready_server = leave_stderr;
	supervised.ready = on_ready;
	supervised.restart = takeover_restart;
	supervised.arg = child;
	return supervise(options, &supervised, err, &ready);
}

/* An automounter (systemd's automount units) waits for this mount: only processes of its process group may use the
 * mountpoint until it is mounted, all others wait for that in the kernel (autofs). */
static bool is_automounted(const char *mountpoint)
{
	struct mounts_entry entry;
	return mounts_find(mountpoint, &entry) == 0 && strcmp(entry.type, "autofs") == 0;
}

/* Settings may have relative paths. A server that looked below its own mountpoint would wait for itself. */
static void leave_directory(const char *mountpoint)
{
	char cwd[PATH_MAX];
	if (getcwd(cwd, sizeof(cwd)) && !mounts_lies_below(cwd, mountpoint))
		remote_start_directory_keep(cwd);
	if (chdir("/") < 0)
		log_warning("chdir /: %s", strerror(errno)); /* the server keeps the caller's directory in use */
}

static _Noreturn void child_main(const struct serve_background *how, int report_fd)
{
	struct base_err err = { 0 };
	struct child child = { .how = how, .report_fd = report_fd };
	if (!is_automounted(how->options->fs.mountpoint))
		setsid();
	signal(SIGPIPE, SIG_IGN); /* if the parent was killed, send_report must not end the server */
	signal(SIGXFSZ, SIG_IGN); /* a write beyond RLIMIT_FSIZE must give EFBIG, not end the server */
	close_others(report_fd, how->owner_pidfd);
	to_null(STDIN_FILENO, O_RDONLY);
	to_null(STDOUT_FILENO, O_WRONLY);
	umask(022);
	sigset_t set;
	if (how->owner_pidfd >= 0)
		sigfillset(&set);
	else
		sigemptyset(&set);
	sigdelset(&set, SIGSEGV);
	sigdelset(&set, SIGBUS);
	sigdelset(&set, SIGABRT);
	sigdelset(&set, SIGFPE);
	sigdelset(&set, SIGILL);
	pthread_sigmask(SIG_SETMASK, &set, NULL);
	leave_directory(how->options->fs.mountpoint);
	if (!how->keep_stderr)
		remote_agent_quiet();
	int r = serve_child(&child, &err);
	if (child.report_fd >= 0)
		send_report(child.report_fd, r, err.text[0] ? err.text : base_err_str(r));
	else if (r < 0)
		log_error("%s", err.text);
	_exit(r < 0);
}

/* The parent's side */

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
	interrupted = number;
}

/* Reads the report.  If a signal comes first, it stops the server and reads the end of the pipe.  It sends SIGTERM
 * first, because a killed server leaves a dead mount.  A server with an owner (`blocked`) ends by SIGKILL only;
 * under `ddpfs exec` its mount namespace ends with it. */
static ssize_t read_report(int fd, pid_t server, bool blocked, struct report *report)
{
	int waited = 0;
	for (;;) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		if (interrupted && waited == 0)
			kill(server, blocked ? SIGKILL : SIGTERM);
		else if (interrupted && waited == STOP_POLLS)
			kill(server, SIGKILL);
		if (interrupted)
			waited++;
		/* If a signal comes between the test and poll(), the next round sees it after POLL_MS. */
		int n = poll(&p, 1, POLL_MS);
		if (n > 0)
			return read(fd, report, sizeof(*report));
		if (n < 0 && errno != EINTR)
			return -1;
	}
}

/* Ends a server whose mount answers already. */
static void stop(pid_t server, bool blocked)
{
	siginfo_t info = { .si_pid = 0 };
	kill(server, blocked ? SIGKILL : SIGTERM);
	for (int waited = 0; waitid(P_PID, (id_t)server, &info, WEXITED | WNOWAIT | WNOHANG) == 0 && !info.si_pid;) {
		if (++waited == STOP_POLLS)
			kill(server, SIGKILL);
		nanosleep(&(struct timespec){ .tv_nsec = POLL_MS * 1000000L }, NULL);
	}
}

/* The supervisor ended without a report, or was stopped: sets the error. */
static int explain_death(pid_t server, const char *mountpoint, struct base_err *err)
{
	int status;
	while (waitpid(server, &status, 0) < 0)
		if (errno != EINTR)
			return base_err_set(err, -ECHILD, "the server ended without a word");
	remove_left_mount(mountpoint);
	if (interrupted)
		return base_err_set(err, -EINTR, "interrupted");
	return base_err_set(err, -EIO, "the server was killed before the mount answered");
}

static int wait_ready(int fd, pid_t server, const struct serve_background *how, struct base_err *err)
{
	static const int numbers[] = { SIGINT, SIGTERM, SIGHUP };
	struct sigaction old[3];
	struct sigaction action = { .sa_handler = on_signal };
	struct report report;
	interrupted = 0;
	for (int i = 0; i < 3; i++)
		sigaction(numbers[i], &action, &old[i]);
	if (!how->quiet)
		progress_wait_start("waiting for the mount to answer");
	ssize_t n = read_report(fd, server, how->owner_pidfd >= 0, &report);
	progress_wait_done();
	for (int i = 0; i < 3; i++)
		sigaction(numbers[i], &old[i], NULL);
	if (n != sizeof(report))
		return explain_death(server, how->options->fs.mountpoint, err);
	if (report.code == 0 && interrupted) { /* the signal came when the mount began to answer */
		stop(server, how->owner_pidfd >= 0);
		return explain_death(server, how->options->fs.mountpoint, err);
	}
	if (report.code == 0)
		return 0;
	while (waitpid(server, NULL, 0) < 0 && errno == EINTR) {
	}
	report.text[sizeof(report.text) - 1] = '\0';
	remove_left_mount(how->options->fs.mountpoint);
	return base_err_set(err, report.code, "%s", report.text);
}

int serve_background(const struct serve_background *how, struct base_err *err, pid_t *ret_pid)
{
	int fds[2];
	signal(SIGCHLD, SIG_DFL); /* some launchers ignore it, and then waitpid(2) fails with ECHILD */
	if (pipe2(fds, O_CLOEXEC) < 0)
		return base_err_set(err, -errno, "cannot make a pipe: %s", strerror(errno));
	cleanup_close int read_fd = fds[0];
	pid_t pid = fork();
	if (pid == 0) {
		child_main(how, fds[1]);
	}
	close(fds[1]);
	if (pid < 0)
		return base_err_set(err, -errno, "cannot start the server's process: %s", strerror(errno));
	int r = wait_ready(read_fd, pid, how, err);
	if (r < 0)
		return r;
	*ret_pid = pid;
	return 0;
}
