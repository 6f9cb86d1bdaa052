/* SPDX-License-Identifier: Apache-2.0 */
/* Parses /proc/self/mountinfo (proc(5)), and checks datasets and mountpoints; mounts.h first. */
#include "tools/ddpfs/mounts.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#include "shard/base/cleanup.h"
#include "shard/remote/location.h"

enum { QUOTED_MAX = 512 };

/* Undoes the kernel's \040-style escapes of blanks and backslashes (proc(5)). */
static void unescape(const char *text, size_t len, char *buf, size_t size)
{
	size_t n = 0;
	for (size_t i = 0; i < len && n + 1 < size; i++) {
		const char *octal = text + i + 1;
		if (text[i] == '\\' && i + 3 < len && strspn(octal, "01234567") >= 3) {
			buf[n++] = (char)((octal[0] - '0') << 6 | (octal[1] - '0') << 3 | (octal[2] - '0'));
			i += 3;
		} else {
			buf[n++] = text[i];
		}
	}
	buf[n] = '\0';
}

/* Returns the next word of a line, or NULL at its end. */
static const char *word(const char **p, size_t *ret_len)
{
	const char *start = *p + strspn(*p, " ");
	*ret_len = strcspn(start, " \n");
	*p = start + *ret_len;
	return *ret_len ? start : NULL;
}

/* "36 35 98:0 /root /target options optional... - type source superoptions" */
static bool parse_line(const char *line, struct mounts_entry *entry)
{
	const char *w = NULL;
	size_t len = 0;
	for (int i = 0; i < 4; i++)
		w = word(&line, &len);
	entry->whole = w && len == 1;
	w = word(&line, &len);
	if (!w)
		return false;
	unescape(w, len, entry->target, sizeof(entry->target));
	do
		w = word(&line, &len);
	while (w && !(len == 1 && w[0] == '-'));
	w = word(&line, &len);
	if (!w)
		return false;
	unescape(w, len, entry->type, sizeof(entry->type));
	w = word(&line, &len);
	if (!w)
		return false;
	unescape(w, len, entry->source, sizeof(entry->source));
	return true;
}

int mounts_find(const char *path, struct mounts_entry *ret_entry)
{
	cleanup_fclose FILE *file = fopen("/proc/self/mountinfo", "re");
	cleanup_free char *line = NULL;
	size_t size = 0;
	bool found = false;
	if (!file)
		return -errno;
	while (getline(&line, &size, file) > 0) {
		struct mounts_entry entry;
		/* The last matching line is the topmost mount. */
		if (parse_line(line, &entry) && strcmp(entry.target, path) == 0) {
			*ret_entry = entry;
			found = true;
		}
	}
	return found ? 0 : -ENOENT;
}

/* "36 35 0:52 / /target ...": stores the target if the file system's root is mounted there. */
static bool root_target(const char *line, uint64_t dev, char *buf, size_t size)
{
	unsigned major_id;
	unsigned minor_id;
	const char *w = NULL;
	size_t len = 0;
	char target[PATH_MAX];
	if (sscanf(line, "%*d %*d %u:%u", &major_id, &minor_id) != 2 || makedev(major_id, minor_id) != dev)
		return false;
	for (int i = 0; i < 4; i++)
		w = word(&line, &len);
	if (!w || len != 1 || !(w = word(&line, &len)))
		return false;
	unescape(w, len, target, sizeof(target));
	base_err_quote(target, buf, (unsigned)size);
	return true;
}

int mounts_place(uint64_t dev, const char *known, char ret_path[PATH_MAX])
{
	cleanup_fclose FILE *file = fopen("/proc/self/mountinfo", "re");
	cleanup_free char *line = NULL;
	char first[PATH_MAX] = "", target[PATH_MAX];
	size_t size = 0;
	bool is_known = false;
	if (!file)
		return -errno;
	while (!is_known && getline(&line, &size, file) > 0) {
		if (!root_target(line, dev, target, sizeof(target)))
			continue;
		is_known = strcmp(target, known) == 0;
		if (!first[0])
			memcpy(first, target, sizeof(first));
	}
	if (!first[0])
		return -ENOENT;
	snprintf(ret_path, PATH_MAX, "%s", is_known ? known : first);
	return 0;
}

int mounts_ddpfs_owner(const char *path, uid_t *ret_uid)
{
	cleanup_fclose FILE *file = fopen("/proc/self/mountinfo", "re");
	cleanup_free char *line = NULL;
	size_t size = 0, longest = 0;
	int rc = -ENOENT;
	while (file && getline(&line, &size, file) > 0) {
		struct mounts_entry entry;
		if (!parse_line(line, &entry) || !mounts_lies_below(path, entry.target) ||
		        strlen(entry.target) < longest)
			continue;
		longest = strlen(entry.target);
		const char *owner = strstr(strrchr(line, ' '), ",user_id=");
		rc = !mounts_is_ddpfs(&entry)                              ? -ENOENT
		     : owner && sscanf(owner, ",user_id=%u", ret_uid) == 1 ? 0
		                                                           : -EACCES;
	}
	return rc;
}

bool mounts_is_ddpfs(const struct mounts_entry *entry)
{
	return strcmp(entry->type, "fuse.ddpfs") == 0;
}

bool mounts_is_dead(const struct mounts_entry *entry)
{
	/* The kernel answers stat(2) of the root from its cache, also if the server is dead; statfs(2) always asks. */
	struct statfs st;
	return mounts_is_ddpfs(entry) && statfs(entry->target, &st) < 0 &&
	       (errno == ENOTCONN || errno == ECONNREFUSED || errno == ECONNABORTED);
}

int mounts_absolute(const char *path, char ret_path[PATH_MAX])
{
	char joined[2 * PATH_MAX];
	char cwd[PATH_MAX] = "";
	if (path[0] != '/' && !getcwd(cwd, sizeof(cwd)))
		return -errno;
	if (strlen(path) >= PATH_MAX)
		return -ENAMETOOLONG;
	snprintf(joined, sizeof(joined), "%s/%s", cwd, path);
	char out[2 * PATH_MAX];
	size_t n = 0;
	const char *p = joined;
	while (*p) {
		p += strspn(p, "/");
		size_t len = strcspn(p, "/");
		if (len == 2 && p[0] == '.' && p[1] == '.') {
			while (n > 0 && out[--n] != '/') {
			}
		} else if (len > 0 && !(len == 1 && p[0] == '.')) {
			out[n++] = '/';
			memcpy(out + n, p, len);
			n += len;
		}
		p += len;
	}
	if (n == 0)
		out[n++] = '/';
	if (n >= PATH_MAX)
		return -ENAMETOOLONG;
	memcpy(ret_path, out, n);
	ret_path[n] = '\0';
	return 0;
}

/* The same for a dataset in a store; whether it is there shows when its index is opened. */
static int check_store(const char *name, struct base_err *err, char ret_path[PATH_MAX])
{
	struct remote_location location;
	int rc = remote_location_parse(name, err, &location);
	if (rc < 0)
		return rc;
	snprintf(ret_path, PATH_MAX, "%s", location.name);
	remote_location_done(&location);
	return 0;
}

int mounts_check_dataset(const char *path, struct base_err *err, char ret_path[PATH_MAX])
{
	char resolved[PATH_MAX];
	struct stat st;
	if (remote_is_url(path))
		return check_store(path, err, ret_path);
	const char *quoted = base_quoted(path);
	if (!realpath(path, resolved) || stat(resolved, &st) < 0) {
		int r = -errno;
		if (r == -ENOENT && remote_check_kind(path, err) < 0)
			return r;
		return base_err_set(err, r,
		        r == -ENOENT ? "dataset '%s' does not exist: give the directory that 'mkshard pack' made"
		                     : "dataset '%s': %s",
		        quoted, strerror(-r));
	}
	if (!S_ISDIR(st.st_mode))
		return base_err_set(err, -ENOTDIR,
		        "dataset '%s' is not a directory: give the one that holds index.ddpfs, which 'mkshard pack' "
		        "makes of files or archives, and 'mkshard index' of tar shards that stay where they are",
		        quoted);
	memcpy(ret_path, resolved, sizeof(resolved));
	return 0;
}

bool mounts_is_empty(const char *path)
{
	cleanup_closedir DIR *dir = opendir(path);
	struct dirent *entry;
	while (dir && (entry = readdir(dir)))
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			return false;
	return true;
}

bool mounts_lies_below(const char *path, const char *dir)
{
	size_t len = strlen(dir);
	return strcmp(dir, "/") == 0 || (strncmp(path, dir, len) == 0 && (path[len] == '/' || path[len] == '\0'));
}

static int check_free(const char *path, const char *quoted, struct base_err *err)
{
	struct mounts_entry entry;
	if (mounts_find(path, &entry) < 0 || !mounts_is_ddpfs(&entry))
		return 0;
	if (mounts_is_dead(&entry))
		return base_err_set(err, -ENOTCONN,
		        "'%s' is a ddpfs mount whose server has died: run 'ddpfs umount %s' first", quoted, quoted);
	char source[QUOTED_MAX];
	return base_err_set(err, -EBUSY,
	        "'%s' is a ddpfs mount already (of '%s'): run 'ddpfs umount %s' first, or choose "
	        "another directory",
	        quoted, base_err_quote(entry.source, source, sizeof(source)), quoted);
}

int mounts_check_target(
        const char *path, const char *dataset, bool make, struct base_err *err, char ret_path[PATH_MAX], bool *ret_made)
{
	char resolved[PATH_MAX];
	struct stat st;
	bool made = false;
	const char *quoted = base_quoted(path);
	int r = mounts_absolute(path, resolved);
	if (r < 0)
		return base_err_set(err, r, "mountpoint '%s': %s", quoted, strerror(-r));
	r = check_free(resolved, quoted, err);
	if (r < 0)
		return r;
	/* Several ranks may make it at once; for all but the first, mkdir fails because it is there. */
	if (make && mkdir(path, 0755) == 0)
		made = true;
	if (!realpath(path, resolved) || stat(resolved, &st) < 0) {
		r = -errno;
		if (r == -ENOENT)
			return base_err_set(
			        err, r, "mountpoint '%s' does not exist: run 'mkdir -p %s' first", quoted, quoted);
		return base_err_set(err, r, "mountpoint '%s': %s", quoted, strerror(-r));
	}
	if (!S_ISDIR(st.st_mode))
		return base_err_set(
		        err, -ENOTDIR, "mountpoint '%s' is not a directory: give an existing, empty one", quoted);
	r = check_free(resolved, quoted, err);
	if (r < 0)
		return r;
	if (mounts_lies_below(dataset, resolved))
		return base_err_set(err, -EINVAL,
		        "mountpoint '%s' would cover the dataset itself: choose another directory", quoted);
	memcpy(ret_path, resolved, sizeof(resolved));
	if (ret_made)
		*ret_made = made;
	return 0;
}

static int run_fusermount(const char *target, bool lazy)
{
	int status;
	pid_t pid = fork();
	if (pid == 0) {
		execlp("fusermount3", "fusermount3", lazy ? "-uqz" : "-uq", "--", target, NULL);
		_exit(127);
	}
	if (pid < 0)
		return -errno;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EPERM;
}

int mounts_remove(const char *target, bool lazy)
{
	if (umount2(target, UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)) == 0)
		return 0;
	return errno == EPERM ? run_fusermount(target, lazy) : -errno;
}
