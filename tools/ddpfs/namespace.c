/* SPDX-License-Identifier: Apache-2.0 */
/* Enters a private mount namespace, or says what forbids it; namespace.h first. */
#include "tools/ddpfs/namespace.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shard/base/cleanup.h"

#define OTHER_WAY "or mount with 'ddpfs mount' before the job and run the command without 'ddpfs exec'"

static int write_text(const char *path, const char *text)
{
	cleanup_close int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ssize_t n = write(fd, text, strlen(text));
	return n < 0 ? -errno : 0;
}

static long sysctl_value(const char *path)
{
	cleanup_fclose FILE *file = fopen(path, "re");
	char text[32];
	return file && fgets(text, sizeof(text), file) ? strtol(text, NULL, 10) : -1;
}

/* Whether "/" is the root of a chroot and no mount point.  There the kernel refuses user namespaces
 * (user_namespaces(7)), and mounts cannot be made private (mount(2): EINVAL). */
static bool in_plain_chroot(void)
{
	struct statx st;
	return statx(AT_FDCWD, "/", 0, 0, &st) == 0 && st.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT &&
	       !(st.stx_attributes & STATX_ATTR_MOUNT_ROOT);
}

/* Distributions forbid user namespaces in different ways; the sentence names the one that applies here. */
static int refuse(int r, struct base_err *err)
{
	if (in_plain_chroot())
		return base_err_set(err, r,
		        "cannot make a private mount namespace (%s): the root of this chroot is no mount point; run "
		        "'mount --bind DIR DIR' as root before the chroot, and run ddpfs as root, " OTHER_WAY,
		        strerror(-r));
	if (geteuid() == 0)
		return base_err_set(err, r,
		        "a private mount namespace is not allowed here (%s): in a container give it CAP_SYS_ADMIN and "
		        "/dev/fuse (docker run "
		        "--cap-add SYS_ADMIN --device /dev/fuse --security-opt apparmor=unconfined), " OTHER_WAY,
		        strerror(-r));
	if (sysctl_value("/proc/sys/user/max_user_namespaces") == 0)
		return base_err_set(err, r,
		        "user namespaces are switched off here: ask for sysctl user.max_user_namespaces "
		        "above 0, " OTHER_WAY);
	if (sysctl_value("/proc/sys/kernel/unprivileged_userns_clone") == 0)
		return base_err_set(err, r,
		        "user namespaces are switched off here: ask for sysctl "
		        "kernel.unprivileged_userns_clone=1, " OTHER_WAY);
	if (sysctl_value("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == 1)
		return base_err_set(err, r,
		        "AppArmor keeps ddpfs from using user namespaces: ask for sysctl "
		        "kernel.apparmor_restrict_unprivileged_userns=0 or a profile for ddpfs, " OTHER_WAY);
	return base_err_set(err, r,
	        "a private mount namespace is not allowed here (%s): ask for user namespaces, " OTHER_WAY,
	        strerror(-r));
}

/* Maps user and group to themselves; without a map every file would belong to the overflow user "nobody". */
static int map_user(uid_t uid, gid_t gid)
{
	char text[64];
	int r = write_text("/proc/self/setgroups", "deny");
	if (r < 0 && r != -ENOENT)
		return r;
	snprintf(text, sizeof(text), "%u %u 1\n", uid, uid);
	r = write_text("/proc/self/uid_map", text);
	if (r < 0)
		return r;
	snprintf(text, sizeof(text), "%u %u 1\n", gid, gid);
	return write_text("/proc/self/gid_map", text);
}

int namespace_enter(struct base_err *err, bool *ret_user)
{
	uid_t uid = geteuid();
	gid_t gid = getegid();
	bool user = false;
	if (unshare(CLONE_NEWNS) < 0) {
		if (errno != EPERM)
			return refuse(-errno, err);
		user = true;
		if (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
			return refuse(-errno, err);
		int r = map_user(uid, gid);
		if (r < 0)
			return refuse(r, err);
	}
	if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0)
		return refuse(-errno, err);
	*ret_user = user;
	return 0;
}
