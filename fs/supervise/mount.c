/* SPDX-License-Identifier: Apache-2.0 */
/* Mounts and unmounts, by mount(2) or fusermount3, and finds mounts in /proc; fs/supervise/mount.h first. */
#include "fs/supervise/mount.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shard/base/cleanup.h"
#include "shard/base/clock.h"

extern char **environ;

#define FUSE_DEVICE "/dev/fuse"
#define FUSERMOUNT "fusermount3"
#define FS_TYPE "fuse.ddpfs"

enum { OPTIONS_MAX = 8192, SAID_MAX = 512 };

enum { LOCK_TRIES = 300, LOCK_MS = 10 }; /* 3 s; a mount takes milliseconds */

/* From the kernel's include/uapi/linux/fuse.h since Linux 6.9; older headers do not have them. */
enum { NOTIFY_RESEND = 7, HAS_RESEND_FLAGS2 = 1 << 7 };

/* ---- /proc/self/mountinfo ---- */

/* Decodes, in place, the octal escapes (\040) that the kernel writes in paths. */
static void unescape(char *s)
{
	char *out = s;
	while (*s) {
		if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' && s[3] >= '0' &&
		        s[3] <= '7') {
			*out++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
			s += 4;
		} else {
			*out++ = *s++;
		}
	}
	*out = '\0';
}

struct mount_line {
	uint64_t dev;
	bool is_root; /* of the file system; a bind mount may show a directory of it */
	char *mountpoint;
	char *type;
};

enum { LISTED_BYTES = 64 << 10 }; /* a line has two paths of at most PATH_MAX bytes, four bytes each when escaped */

/* Parses, in place: "36 35 98:0 /root /mnt/point opts [optional ...] - type source super" (proc(5)). */
static bool parse_line(char *line, struct mount_line *ret_line)
{
	unsigned dev_major;
	unsigned dev_minor;
	char *save;
	char *field = strtok_r(line, " \n", &save);
	for (int i = 0; field && i < 2; i++)
		field = strtok_r(NULL, " \n", &save);
	if (!field || sscanf(field, "%u:%u", &dev_major, &dev_minor) != 2)
		return false;
	field = strtok_r(NULL, " \n", &save);
	if (!field)
		return false;
	ret_line->is_root = strcmp(field, "/") == 0;
	ret_line->mountpoint = strtok_r(NULL, " \n", &save);
	while ((field = strtok_r(NULL, " \n", &save)) && strcmp(field, "-") != 0)
		;
	ret_line->type = field ? strtok_r(NULL, " \n", &save) : NULL;
	if (!ret_line->mountpoint || !ret_line->type)
		return false;
	unescape(ret_line->mountpoint);
	ret_line->dev = makedev(dev_major, dev_minor);
	return true;
}

static int find_mounted(const char *mountpoint, uint64_t *ret_dev, bool *ret_ours)
{
	cleanup_fclose FILE *f = fopen("/proc/self/mountinfo", "re");
	cleanup_free char *text = NULL;
	size_t room = 0;
	int rc = -ENOENT;
	if (!f)
		return -errno;
	while (getline(&text, &room, f) > 0) {
		struct mount_line line;
		if (parse_line(text, &line) && strcmp(line.mountpoint, mountpoint) == 0) {
			*ret_dev = line.dev; /* the last line is the mount on top */
			*ret_ours = strcmp(line.type, FS_TYPE) == 0;
			rc = 0;
		}
	}
	return rc;
}

int fs_mounted_dev(const char *mountpoint, uint64_t *ret_dev)
{
	bool ours;
	return find_mounted(mountpoint, ret_dev, &ours);
}

/* Looks for a device in lines of mountinfo, and leaves an incomplete last line at the begin of the text. */
static bool has_line_of(char *text, size_t *len, uint64_t dev)
{
	char *at = text, *end;
	bool found = false;
	while (!found && (end = memchr(at, '\n', *len - (size_t)(at - text)))) {
		struct mount_line line;
		*end = '\0';
		found = parse_line(at, &line) && line.dev == dev;
		at = end + 1;
	}
	*len -= (size_t)(at - text);
	memmove(text, at, *len);
	return found;
}

bool fs_mount_listed(int mountinfo, uint64_t dev)
{
	cleanup_free char *text = malloc(LISTED_BYTES);
	size_t len = 0;
	ssize_t n = 1;
	if (!text || lseek(mountinfo, 0, SEEK_SET) < 0)
		return true;
	while (n != 0) {
		n = read(mountinfo, text + len, LISTED_BYTES - len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return true;
		len += (size_t)n;
		if (has_line_of(text, &len, dev) || len == LISTED_BYTES)
			return true;
	}
	return false;
}

bool fs_mount_leads_to(const char *path, uint64_t dev)
{
	struct statx st;
	if (statx(AT_FDCWD, path, AT_STATX_DONT_SYNC | AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, 0, &st) < 0)
		return errno != ENOENT && errno != ENOTDIR;
	return makedev(st.stx_dev_major, st.stx_dev_minor) == dev;
}

/* Finds where `dev` is mounted: on `mountpoint`, else elsewhere; else, unless only its root is asked for, a bind mount
 * of a directory of it. */
static int find_place(uint64_t dev, const char *mountpoint, bool only_root, char ret_path[PATH_MAX])
{
	cleanup_fclose FILE *f = fopen("/proc/self/mountinfo", "re");
	cleanup_free char *text = NULL;
	size_t room = 0;
	int best = 0;
	if (!f)
		return -errno;
	while (getline(&text, &room, f) > 0) {
		struct mount_line line;
		if (!parse_line(text, &line) || line.dev != dev || strlen(line.mountpoint) >= PATH_MAX)
			continue;
		int good = !line.is_root ? 1 : strcmp(line.mountpoint, mountpoint) == 0 ? 3 : 2;
		if (good < best || (only_root && !line.is_root))
			continue;
		best = good;
		memcpy(ret_path, line.mountpoint, strlen(line.mountpoint) + 1);
	}
	if (best == 0)
		return -ENOENT;
	return fs_mount_leads_to(ret_path, dev) ? 0 : -EXDEV;
}

int fs_mount_path(uint64_t dev, const char *mountpoint, char ret_path[PATH_MAX])
{
	return find_place(dev, mountpoint, true, ret_path);
}

static bool has_dev(const uint64_t *devs, uint32_t n, uint64_t dev)
{
	for (uint32_t i = 0; i < n; i++) {
		if (devs[i] == dev)
			return true;
	}
	return false;
}

uint32_t fs_mounts_count(void)
{
	cleanup_fclose FILE *f = fopen("/proc/self/mountinfo", "re");
	cleanup_free char *text = NULL;
	size_t room = 0;
	uint64_t devs[FS_MOUNTS_COUNTED_MAX];
	uint32_t n = 0;
	while (f && n < FS_MOUNTS_COUNTED_MAX && getline(&text, &room, f) > 0) {
		struct mount_line line;
		if (parse_line(text, &line) && strcmp(line.type, FS_TYPE) == 0 && !has_dev(devs, n, line.dev))
			devs[n++] = line.dev;
	}
	return n;
}

/* The kernel answers stat(2) of the root from its cache, also if the server is dead; statfs(2) always asks. */
static _Noreturn void ask_mount(const char *mountpoint, uint64_t dev)
{
	struct statfs st;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	bool dead =
	        !fs_mount_leads_to(mountpoint, dev) ||
	        (statfs(mountpoint, &st) < 0 && (errno == ENOTCONN || errno == ECONNABORTED || errno == ECONNREFUSED));
	_exit(dead);
}

static bool is_dead(const char *mountpoint, uint64_t dev)
{
	int status;
	pid_t ended = 0, pid = fork();
	if (pid == 0)
		ask_mount(mountpoint, dev);
	for (int waited_ms = 0; pid > 0 && ended == 0; waited_ms++) {
		if (waited_ms == FS_MOUNTS_ASK_MS)
			kill(pid, SIGKILL);
		if (waited_ms > FS_MOUNTS_ASK_MS)
			return false; /* it ends when the server answers, or is replaced */
		ended = waitpid(pid, &status, WNOHANG);
		if (ended == 0)
			nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	return ended > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

uint32_t fs_mounts_count_dead(const uint64_t *known, uint32_t n_known)
{
	cleanup_fclose FILE *f = fopen("/proc/self/mountinfo", "re");
	cleanup_free char *text = NULL;
	size_t room = 0;
	uint64_t devs[FS_MOUNTS_COUNTED_MAX];
	uint32_t n = 0, dead = 0;
	uint64_t end_ns = base_now_ns() + FS_MOUNTS_ASK_ALL_MS * UINT64_C(1000000);
	while (f && n < FS_MOUNTS_COUNTED_MAX && base_now_ns() < end_ns && getline(&text, &room, f) > 0) {
		struct mount_line line;
		if (!parse_line(text, &line) || strcmp(line.type, FS_TYPE) != 0 || has_dev(devs, n, line.dev))
			continue;
		devs[n++] = line.dev;
		dead += !has_dev(known, n_known, line.dev) && is_dead(line.mountpoint, line.dev);
	}
	return dead;
}

/* ---- mount(2) ---- */

static int mount_direct(const struct fs_mount_options *options, struct base_err *err, int *ret_fd)
{
	char data[256];
	cleanup_close int fd = open(FUSE_DEVICE, O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		int code = -errno;
		return base_err_set(err, code,
		        code == -EACCES ? FUSE_DEVICE ": %s: ask for 'chmod 666 " FUSE_DEVICE
		                                      "', which udev does elsewhere"
		                        : FUSE_DEVICE ": %s: load the fuse module, or give the container the "
		                                      "device (--device " FUSE_DEVICE ")",
		        strerror(-code));
	}
	snprintf(data, sizeof(data), "fd=%d,rootmode=40000,user_id=%u,group_id=%u,default_permissions%s,max_read=%u",
	        fd, (unsigned)geteuid(), (unsigned)getegid(), options->allow_other ? ",allow_other" : "",
	        options->max_read);
	unsigned long flags = MS_RDONLY | MS_NOSUID | MS_NODEV | (options->noexec ? MS_NOEXEC : 0);
	if (mount(options->source, options->mountpoint, FS_TYPE, flags, data) < 0) {
		int code = -errno;
		return base_err_set(err, code, "'%s': mount: %s", options->mountpoint,
		        code == -ENODEV ? "the kernel has no fuse: load the module" : strerror(-code));
	}
	*ret_fd = steal_fd(&fd);
	return 0;
}

/* ---- fusermount3 ---- */

/* Appends an option's value.  fusermount3 wants a backslash before commas and backslashes. */
static void append_escaped(char *out, size_t size, const char *value)
{
	size_t n = strlen(out);
	for (; *value && n + 3 < size; value++) {
		if (*value == ',' || *value == '\\')
			out[n++] = '\\';
		out[n++] = *value;
	}
	out[n] = '\0';
}

/* Starts fusermount3 with no signal blocked and its stderr on said_fd.  It inherits comm_fd (-1: none). */
static int spawn(char *const argv[], int comm_fd, int said_fd, pid_t *ret_pid)
{
	char comm[32];
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	sigset_t none;
	size_t n = 0;
	while (environ[n])
		n++;
	cleanup_free char **env = calloc(n + 2, sizeof(*env));
	if (!env)
		return -ENOMEM;
	snprintf(comm, sizeof(comm), "_FUSE_COMMFD=%d", comm_fd);
	size_t k = 0;
	for (size_t i = 0; i < n; i++)
		if (strncmp(environ[i], "_FUSE_COMMFD=", 13) != 0)
			env[k++] = environ[i];
	if (comm_fd >= 0)
		env[k++] = comm;

	sigemptyset(&none);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&actions, said_fd, 2);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
	int rc = -posix_spawnp(ret_pid, argv[0], &actions, &attr, argv, env);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&actions);
	return rc;
}

static int wait_exit(pid_t pid)
{
	int status;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EIO;
}

/* Reads all that the program writes to stderr (what does not fit is dropped), without newlines at the end. */
static void read_said(int fd, char said[SAID_MAX])
{
	size_t n = 0;
	ssize_t got;
	char rest[256];
	while ((got = read(fd, n < SAID_MAX - 1 ? said + n : rest,
	                n < SAID_MAX - 1 ? SAID_MAX - 1 - n : sizeof(rest))) > 0 ||
	        (got < 0 && errno == EINTR))
		if (got > 0 && n < SAID_MAX - 1)
			n += (size_t)got;
	while (n > 0 && said[n - 1] == '\n')
		n--;
	said[n] = '\0';
}

static int receive_fd(int sock)
{
	char byte;
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = { .iov_base = &byte, .iov_len = 1 };
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)
	};
	ssize_t got;
	do
		got = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
	while (got < 0 && errno == EINTR);
	struct cmsghdr *cmsg = got > 0 ? CMSG_FIRSTHDR(&msg) : NULL;
	int fd;
	if (!cmsg || cmsg->cmsg_type != SCM_RIGHTS || cmsg->cmsg_len != CMSG_LEN(sizeof(int)))
		return -EPROTO;
	memcpy(&fd, CMSG_DATA(cmsg), sizeof(fd));
	return fd;
}

static int mount_helper(const struct fs_mount_options *options, struct base_err *err, int *ret_fd)
{
	cleanup_free char *text = calloc(1, OPTIONS_MAX);
	int socks[2];
	int said_pipe[2];
	char said[SAID_MAX];
	pid_t pid;
	if (!text)
		return base_err_set(err, -ENOMEM, "out of memory");
	snprintf(text, OPTIONS_MAX, "ro,nosuid,nodev%s,default_permissions%s,max_read=%u,subtype=ddpfs,fsname=",
	        options->noexec ? ",noexec" : "", options->allow_other ? ",allow_other" : "", options->max_read);
	append_escaped(text, OPTIONS_MAX, options->source);
	cleanup_free char *mountpoint = strdup(options->mountpoint);
	char program[] = FUSERMOUNT;
	char dash_o[] = "-o";
	char dashes[] = "--";
	char *argv[] = { program, dash_o, text, dashes, mountpoint, NULL };

	/* The child's end must survive exec, so the pair has no SOCK_CLOEXEC. */
	if (!mountpoint || socketpair(AF_UNIX, SOCK_STREAM, 0, socks) < 0)
		return base_err_set(err, -errno, "cannot reach " FUSERMOUNT ": %s", strerror(errno));
	cleanup_close int ours = socks[0];
	cleanup_close int theirs = socks[1];
	fcntl(ours, F_SETFD, FD_CLOEXEC);
	if (pipe2(said_pipe, O_CLOEXEC) < 0)
		return base_err_set(err, -errno, "cannot reach " FUSERMOUNT ": %s", strerror(errno));
	cleanup_close int said_in = said_pipe[0];
	cleanup_close int said_out = said_pipe[1];

	int rc = spawn(argv, theirs, said_out, &pid);
	if (rc < 0)
		return base_err_set(err, rc,
		        "cannot run " FUSERMOUNT " (%s): install the package fuse3, or mount as root", strerror(-rc));
	close(steal_fd(&theirs));
	close(steal_fd(&said_out));
	int fd = receive_fd(ours);
	read_said(said_in, said);
	rc = wait_exit(pid);
	if (rc < 0 || fd < 0) {
		if (fd >= 0)
			close(fd);
		/* fusermount3's message names the file.  The hint says what to do. */
		const char *hint = strstr(said, "user_allow_other")
		                           ? ": add that line as root, or mount without allow_other"
		                   : geteuid() == 0 ? ": root needs CAP_SYS_ADMIN to mount (in a container: --cap-add "
		                                      "SYS_ADMIN --device /dev/fuse)"
		                                    : "";
		return base_err_set(err, -EPERM, "'%s': %s%s", options->mountpoint,
		        said[0] ? said : FUSERMOUNT " refused to mount", hint);
	}
	*ret_fd = fd;
	return 0;
}

/* Locks the directory to mount on.  If two programs mount there at once, the second one then sees the first one's
 * mount.
 * Returns the descriptor; -1: there is no lock, and two mounts may lie on each other, as with mount(8).  There is
 * none if we may not read the directory, or if its file system has no locks.  There is none either if another program
 * holds the lock for LOCK_TRIES x LOCK_MS (`flock MNT ddpfs mount ...`). */
static int lock_mountpoint(const char *mountpoint)
{
	cleanup_close int fd = open(mountpoint, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK);
	for (int tries = 0; fd >= 0 && tries < LOCK_TRIES; tries++) {
		if (flock(fd, LOCK_EX | LOCK_NB) == 0)
			return steal_fd(&fd);
		if (errno != EWOULDBLOCK)
			break;
		poll(NULL, 0, LOCK_MS);
	}
	return -1;
}

static int mount_alone(const struct fs_mount_options *options, struct base_err *err, int *ret_fd, uint64_t *ret_dev,
        bool *ret_fusermount)
{
	bool taken;
	if (find_mounted(options->mountpoint, ret_dev, &taken) == 0 && taken)
		return base_err_set(err, -EBUSY,
		        "'%s': another ddpfs mount was made there at this moment: unmount it first, or choose another "
		        "directory",
		        options->mountpoint);
	struct base_err direct_err = { 0 };
	int fd = -1;
	/* The user id does not say whether mount(2) is allowed: a user namespace allows it to anybody, and a container
	 * forbids it to root.  If mount(2) is refused, fusermount3 may still be allowed. */
	int rc = mount_direct(options, &direct_err, &fd);
	bool fusermount = rc == -EPERM || rc == -EACCES;
	if (rc < 0 && !fusermount)
		return base_err_set(err, rc, "%s", direct_err.text);
	if (fusermount)
		rc = mount_helper(options, err, &fd);
	if (rc < 0 && direct_err.code == -EACCES && err)
		base_err_prefix(err, "%s; and through " FUSERMOUNT, direct_err.text);
	if (rc < 0)
		return rc;
	rc = fs_mounted_dev(options->mountpoint, ret_dev);
	if (rc < 0) {
		fs_unmount(options->mountpoint, 0, fusermount, true);
		close(fd);
		return base_err_set(
		        err, rc, "'%s': mounted, but /proc/self/mountinfo does not show it", options->mountpoint);
	}
	*ret_fd = fd;
	*ret_fusermount = fusermount;
	return 0;
}

int fs_mount(const struct fs_mount_options *options, struct base_err *err, int *ret_fd, uint64_t *ret_dev,
        bool *ret_fusermount)
{
	int lock = lock_mountpoint(options->mountpoint);
	int rc = mount_alone(options, err, ret_fd, ret_dev, ret_fusermount);
	if (lock >= 0)
		close(lock);
	return rc;
}

/* ---- sessions of dead servers ---- */

bool fs_mount_lives(int fd)
{
	struct pollfd p = { .fd = fd };
	return poll(&p, 1, 0) == 0 || !(p.revents & POLLERR);
}

bool fs_mount_resends(const uint8_t *init, uint32_t len)
{
	struct fuse_init_in in;
	const size_t at = sizeof(struct fuse_in_header);
	if (len < at + offsetof(struct fuse_init_in, flags2) + sizeof(in.flags2))
		return false;
	memcpy(&in, init + at, len - at < sizeof(in) ? len - at : sizeof(in));
	return (in.flags & FUSE_INIT_EXT) && (in.flags2 & HAS_RESEND_FLAGS2);
}

int fs_mount_resend(int fd)
{
	const struct fuse_out_header message = { .len = sizeof(message), .error = NOTIFY_RESEND };
	return write(fd, &message, sizeof(message)) < 0 ? -errno : 0;
}

int fs_mount_clone(int fd, struct base_err *err)
{
	uint32_t session = (uint32_t)fd;
	cleanup_close int clone = open(FUSE_DEVICE, O_RDWR | O_CLOEXEC);
	if (clone < 0 || ioctl(clone, FUSE_DEV_IOC_CLONE, &session) < 0 || dup3(clone, fd, O_CLOEXEC) < 0)
		return base_err_set(err, -errno, FUSE_DEVICE ": %s", strerror(errno));
	return 0;
}

bool fs_mount_in_use(const char *mountpoint, uint64_t dev)
{
	char path_now[PATH_MAX];
	/* The first call with MNT_EXPIRE marks the mount, and the second one unmounts.  find_place uses the mount,
	 * which takes an old mark away. */
	return find_place(dev, mountpoint, false, path_now) == 0 &&
	       umount2(path_now, MNT_EXPIRE | UMOUNT_NOFOLLOW) < 0 && errno == EBUSY;
}

int fs_mount_abort(const char *mountpoint, uint64_t dev)
{
	char path[64];
	snprintf(path, sizeof(path), "/sys/fs/fuse/connections/%u/abort", minor(dev));
	cleanup_close int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd >= 0 && write(fd, "1", 1) == 1)
		return 0;
	char path_now[PATH_MAX];
	int rc = find_place(dev, mountpoint, false, path_now);
	if (rc < 0)
		return rc;
	/* While the mount is in use, MNT_FORCE aborts it and fails with EBUSY, so it stays mounted.  If it were
	 * unmounted, readers would take the empty directory below for the dataset.  O_PATH sends no request to the
	 * server. */
	cleanup_close int use = open(path_now, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (use < 0)
		return -errno;
	return umount2(path_now, MNT_FORCE | UMOUNT_NOFOLLOW) < 0 && errno != EBUSY ? -errno : 0;
}

/* ---- unmounting ---- */

static int unmount_helper(const char *mountpoint, bool lazy)
{
	cleanup_free char *path = strdup(mountpoint);
	cleanup_close int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	char program[] = FUSERMOUNT;
	char dash_u[] = "-u";
	char dash_z[] = "-z";
	char dashes[] = "--";
	char *busy[] = { program, dash_u, dashes, path, NULL };
	char *now[] = { program, dash_u, dash_z, dashes, path, NULL };
	pid_t pid;
	if (!path || null < 0)
		return -ENOMEM;
	int rc = spawn(lazy ? now : busy, -1, null, &pid);
	if (rc == 0)
		rc = wait_exit(pid);
	return rc == -EIO ? -EBUSY : rc; /* its exit status gives no reason; nearly always the mount is busy */
}

int fs_unmount(const char *mountpoint, uint64_t dev, bool fusermount, bool lazy)
{
	char path_now[PATH_MAX];
	int rc = dev ? find_place(dev, mountpoint, false, path_now) : 0;
	if (rc == -ENOENT)
		return 0;
	if (rc == -EXDEV)
		return rc;
	if (dev && rc == 0)
		mountpoint = path_now;
	if (fusermount) {
		rc = unmount_helper(mountpoint, false);
		return rc == -EBUSY && lazy ? unmount_helper(mountpoint, true) : rc;
	}
	if (umount2(mountpoint, UMOUNT_NOFOLLOW) == 0)
		return 0;
	if (errno == EBUSY && lazy && umount2(mountpoint, UMOUNT_NOFOLLOW | MNT_DETACH) == 0)
		return 0;
	return -errno;
}
