/* SPDX-License-Identifier: Apache-2.0 */
/* Walks the path of a program and checks each component; executable_check.h first. */
#include "fs/supervise/executable_check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "shard/base/cleanup.h"

/* The state of a walk. */
struct walk {
	uint64_t mount_dev;
	int fd;                  /* the component that was checked last */
	char path[PATH_MAX];     /* its path, without links */
	char rest[2 * PATH_MAX]; /* the components that follow */
	unsigned links;
};

static bool trusts_user(uid_t uid)
{
	struct stat root;
	struct stat self;
	return uid == geteuid() || (stat("/", &root) == 0 && uid == root.st_uid) ||
	       (stat("/proc/self/exe", &self) == 0 && uid == self.st_uid);
}

/* "36 35 0:52 ... - fuse.x source rw,user_id=1000,..." (proc(5)) */
static int fuse_owner_in(const char *line, uint64_t dev, uid_t *ret_uid)
{
	unsigned major_id;
	unsigned minor_id;
	const char *type = strstr(line, " - ");
	const char *options = strrchr(line, ' '); /* the source before them may be any text without blanks */
	if (sscanf(line, "%*d %*d %u:%u", &major_id, &minor_id) != 2 || makedev(major_id, minor_id) != dev || !type ||
	        strncmp(type + 3, "fuse", 4) != 0)
		return -ENOENT;
	const char *owner = strstr(options, ",user_id=");
	return owner && sscanf(owner, ",user_id=%u", ret_uid) == 1 ? 0 : -EACCES;
}

/* Stores who mounted the FUSE file system with this st_dev.  Returns 0; -ENOENT if `dev` is no FUSE file system
 * (virtiofs is none); -EACCES if mountinfo does not name the user; -errno of opening mountinfo. */
static int fuse_owner(uint64_t dev, uid_t *ret_uid)
{
	cleanup_fclose FILE *file = fopen("/proc/self/mountinfo", "re");
	cleanup_free char *line = NULL;
	size_t size = 0;
	int rc = file ? -ENOENT : -errno;
	while (rc == -ENOENT && file && getline(&line, &size, file) > 0)
		rc = fuse_owner_in(line, dev, ret_uid);
	return rc;
}

static bool trusts_mounter(uint64_t dev)
{
	uid_t uid;
	int rc = fuse_owner(dev, &uid);
	return rc == -ENOENT || (rc == 0 && trusts_user(uid));
}

static bool trusts(const struct stat *st)
{
	bool shut = !(st->st_mode & S_IWOTH) || (S_ISDIR(st->st_mode) && (st->st_mode & S_ISVTX));
	return shut && trusts_user(st->st_uid);
}

/* AT_STATX_DONT_SYNC: the kernel answers without a request to a FUSE server. */
static int device_of(int fd, uint64_t *ret_dev)
{
	struct statx stx;
	if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &stx) < 0)
		return -errno;
	*ret_dev = makedev(stx.stx_dev_major, stx.stx_dev_minor);
	return 0;
}

/* Starts the walk again at the root: first `target`, relative to the directory of the link, then the rest. */
static int begin_anew(struct walk *walk, const char *target)
{
	char rest[2 * PATH_MAX];
	const char *from = target[0] == '/' ? "" : walk->path;
	int n = snprintf(rest, sizeof(rest), "%s/%s/%s", from, target, walk->rest);
	if (n < 0 || (size_t)n >= sizeof(rest))
		return -ENAMETOOLONG;
	if (walk->links++ >= FS_EXECUTABLE_LINKS_MAX)
		return -ELOOP;
	int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (root < 0)
		return -errno;
	close(walk->fd);
	walk->fd = root;
	walk->path[0] = '\0';
	memcpy(walk->rest, rest, (size_t)n + 1);
	return 0;
}

static int follow(struct walk *walk, int link)
{
	char target[PATH_MAX];
	ssize_t n = readlinkat(link, "", target, sizeof(target) - 1);
	if (n < 0)
		return -errno;
	target[n] = '\0';
	return begin_anew(walk, target);
}

/* walk->path has no links, so ".." means its parent. */
static int go_up(struct walk *walk)
{
	char parent[PATH_MAX];
	snprintf(parent, sizeof(parent), "%s", walk->path);
	char *slash = strrchr(parent, '/');
	if (slash)
		*slash = '\0';
	walk->path[0] = '\0';
	return begin_anew(walk, parent);
}

static int go_down(struct walk *walk, const char *name, struct stat *ret_st)
{
	uint64_t dev = 0;
	size_t used = strlen(walk->path);
	cleanup_close int next = openat(walk->fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	int rc = next < 0 ? -errno : device_of(next, &dev);
	if (rc == 0 && used + 1 + strlen(name) >= sizeof(walk->path))
		rc = -ENAMETOOLONG;
	if (rc < 0)
		return rc;
	snprintf(walk->path + used, sizeof(walk->path) - used, "/%s", name);
	if (dev == walk->mount_dev)
		return -EXDEV;
	if (!trusts_mounter(dev))
		return -EPERM;
	if (fstat(next, ret_st) < 0)
		return -errno;
	if (S_ISLNK(ret_st->st_mode)) {
		walk->path[used] = '\0';
		return follow(walk, next);
	}
	close(walk->fd);
	walk->fd = steal_fd(&next);
	return trusts(ret_st) ? 0 : -EPERM;
}

/* Takes one component.  Returns 1 if none is left. */
static int step(struct walk *walk, struct stat *ret_st)
{
	char name[NAME_MAX + 1];
	char *start = walk->rest + strspn(walk->rest, "/");
	size_t len = strcspn(start, "/");
	if (len == 0)
		return 1;
	if (len > NAME_MAX)
		return -ENAMETOOLONG;
	memcpy(name, start, len);
	name[len] = '\0';
	memmove(walk->rest, start + len, strlen(start + len) + 1);
	if (strcmp(name, ".") == 0)
		return 0;
	return strcmp(name, "..") == 0 ? go_up(walk) : go_down(walk, name, ret_st);
}

static int walk_to(struct walk *walk, struct stat *ret_st)
{
	if (fstat(walk->fd, ret_st) < 0)
		return -errno;
	int rc = trusts(ret_st) ? 0 : -EPERM;
	while (rc == 0)
		rc = step(walk, ret_st);
	if (rc < 0)
		return rc;
	bool runs = S_ISREG(ret_st->st_mode) && access(walk->path, X_OK) == 0;
	return runs ? 0 : -EINVAL;
}

int fs_executable_check(const char *program, uint64_t mount_dev, struct base_err *err, char ret_path[PATH_MAX])
{
	struct stat st;
	struct walk walk = { .mount_dev = mount_dev, .fd = -1 };
	const char *quoted = base_quoted(program);
	int rc = program[0] == '/' && strlen(program) < PATH_MAX ? 0 : -EINVAL;
	if (rc == 0) {
		snprintf(walk.rest, sizeof(walk.rest), "%s", program);
		walk.fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
		rc = walk.fd < 0 ? -errno : walk_to(&walk, &st);
	}
	if (walk.fd >= 0)
		close(walk.fd);
	if (rc == -EXDEV)
		return base_err_set(err, -EPERM, "'%s' lies in the mount itself: it is not run", quoted);
	if (rc == -EPERM)
		return base_err_set(err, -EPERM,
		        "'%s' is not run: others can replace it, by the owner or mode of '%s' or by who mounted what "
		        "it lies on",
		        quoted, base_quoted(walk.path[0] ? walk.path : "/"));
	if (rc < 0)
		return base_err_set(err, -EINVAL, "'%s' is no program that can be run here", quoted);
	memcpy(ret_path, walk.path, PATH_MAX);
	return 0;
}
