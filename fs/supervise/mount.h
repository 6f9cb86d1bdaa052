/* SPDX-License-Identifier: Apache-2.0 */
/* Mounting by ourselves, so that the /dev/fuse descriptor is ours and can outlive a server.
 *
 * Root mounts with mount(2); everybody else, and root where mount(2) is refused, through the set-uid fusermount3, which hands
 * the descriptor over a socket.  Every mount is read-only, nosuid, nodev and default_permissions: the kernel checks modes
 * itself (no ACCESS round trips), and no request to write ever reaches us.
 *
 * Threads: main only, before any other thread uses the mount. */
#ifndef DDPFS_FS_SUPERVISE_MOUNT_H
#define DDPFS_FS_SUPERVISE_MOUNT_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "shard/base/err.h"

struct fs_mount_options {
	const char *mountpoint; /* absolute, canonical */
	const char *source;     /* what `mount` shows as the device: the dataset */
	bool allow_other;
	bool noexec;
	uint32_t max_read; /* bytes */
};

/* *ret_fd is the session's descriptor (close-on-exec); *ret_dev the mount's st_dev; *ret_fusermount says how it was done.
 * -EBUSY (a ddpfs mount is there), -ENOENT (no such mountpoint, or no /dev/fuse), -ENOTDIR, -EACCES/-EPERM, -ENODEV (no fuse in the kernel), ... */
int fs_mount(const struct fs_mount_options *options, struct base_err *err, int *ret_fd, uint64_t *ret_dev,
        bool *ret_fusermount);

/* Where the file system `dev` is mounted now: on `mountpoint`, or elsewhere since a directory above it was renamed.  From
 * /proc/self/mountinfo.  -ENOENT: nowhere; -EXDEV: another file system is mounted over it. */
int fs_mount_path(uint64_t dev, const char *mountpoint, char ret_path[PATH_MAX]);

/* False: `path` leads to another file system: `dev` is not mounted there, or something is mounted over it or above it.  Sends no
 * request to the server. */
bool fs_mount_leads_to(const char *path, uint64_t dev);

/* Unmounts `dev` from where it is now (0: whatever is on `mountpoint`).  lazy: detaches it when it is busy.
 * Returns 0 (also when it was gone already), -EBUSY, -EXDEV (as above), -EPERM, ... */
int fs_unmount(const char *mountpoint, uint64_t dev, bool fusermount, bool lazy);

/* False: the kernel has ended the session of this descriptor (unmounted, aborted). */
bool fs_mount_lives(int fd);

/* Whether the kernel that sent this INIT knows FUSE_NOTIFY_RESEND. */
bool fs_mount_resends(const uint8_t *init, uint32_t len);

/* Hands out again every request that was read from the session and not answered.  -errno. */
int fs_mount_resend(int fd);

/* Puts a clone of the session's descriptor in its place: requests read from it end with it.  -EACCES, -ENOENT, ... of
 * /dev/fuse; -errno. */
int fs_mount_clone(int fd, struct base_err *err);

/* Ends the session whoever has its descriptor open: all requests fail with ECONNABORTED, later ones with ENOTCONN.  It
 * stays mounted.  By fusectl, or by umount2(MNT_FORCE); -errno when neither is allowed. */
int fs_mount_abort(const char *mountpoint, uint64_t dev);

/* st_dev of the file system mounted last on `mountpoint`, from /proc/self/mountinfo (no request to it).
 * -ENOENT: nothing is mounted exactly there. */
int fs_mounted_dev(const char *mountpoint, uint64_t *ret_dev);

enum { FS_MOUNTS_COUNTED_MAX = 256 };

/* Mounts of type fuse.ddpfs that this process can see, each once however often it is bind-mounted; at most
 * FS_MOUNTS_COUNTED_MAX. */
uint32_t fs_mounts_count(void);

#endif
