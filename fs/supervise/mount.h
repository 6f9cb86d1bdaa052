/* SPDX-License-Identifier: Apache-2.0 */
/* Mounting and unmounting, without libfuse: so the /dev/fuse descriptor is ours and can outlive a server.
 *
 * Whoever may call mount(2) mounts with it.  Everybody else mounts through the set-uid fusermount3, which sends the
 * descriptor over a socket.  Every mount is read-only, nosuid, nodev and default_permissions: the kernel checks modes
 * itself (no ACCESS round trips), and no request to write ever reaches a server.
 *
 * Threads: main of a server mounts before it has workers.  The supervisor and its unmounter call the rest. */
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
	bool allow_other;       /* other users may use the mount */
	bool noexec;
	uint32_t max_read; /* bytes of a READ, at most */
};

/* Mounts.  *ret_fd is the session's descriptor (close-on-exec), *ret_dev the mount's st_dev; *ret_fusermount tells
 * whether fusermount3 mounted.
 * Returns 0; -EBUSY: a ddpfs mount is there; -ENOENT: there is no such directory, or no /dev/fuse; -ENOTDIR; -EACCES,
 * -EPERM: neither way is allowed; -ENODEV: the kernel has no fuse; another -errno.  Each has its sentence in `err`. */
int fs_mount(const struct fs_mount_options *options, struct base_err *err, int *ret_fd, uint64_t *ret_dev,
        bool *ret_fusermount);

/* Finds in /proc/self/mountinfo where the root of the file system `dev` is mounted now: on `mountpoint`, or elsewhere
 * if a directory above it was renamed.
 * Returns 0; -ENOENT: nowhere, or only a directory of it is (a bind mount); -EXDEV: another file system is mounted
 * over it; another -errno of fopen(3).  Any thread. */
int fs_mount_path(uint64_t dev, const char *mountpoint, char ret_path[PATH_MAX]);

/* Returns whether the file system `dev` is in /proc/self/mountinfo: mounted somewhere, covered or not.  mountinfo: a
 * descriptor of that file; its offset changes.  Opens none, because a server may have no descriptor left.  Sends no
 * request to the server, and does not make the mount busy, not even for a moment.  True if the file cannot be read.
 * One thread at a time, and none that is detached (fs/detached_thread.h). */
bool fs_mount_listed(int mountinfo, uint64_t dev);

/* Returns whether `path` leads to the file system `dev`.  False: `dev` is not mounted there, or another file system
 * is mounted over it or above it.  Sends no request to the server, but makes the mount busy for a moment: an
 * umount(2) at that moment fails.  Any thread. */
bool fs_mount_leads_to(const char *path, uint64_t dev);

/* Unmounts `dev` from where it is now, else a bind mount of a directory of it (`dev` 0: what is mounted on
 * `mountpoint`).  fusermount: through fusermount3.  lazy: detaches the mount if it is busy.  umount(2) waits for the
 * server.
 * Returns 0, also if it is not mounted; -EBUSY: in use, or fusermount3 failed; -EXDEV: another file system is mounted
 * over it; -EPERM; another -errno. */
int fs_unmount(const char *mountpoint, uint64_t dev, bool fusermount, bool lazy);

/* Returns false if the kernel has ended the session of this descriptor (unmounted or aborted).  Any thread. */
bool fs_mount_lives(int fd);

/* Returns whether the kernel that sent this INIT request (`len` bytes) knows FUSE_NOTIFY_RESEND. */
bool fs_mount_resends(const uint8_t *init, uint32_t len);

/* Makes the kernel resend every request that was read from the session and not answered.
 * Returns 0 or -errno of write(2). */
int fs_mount_resend(int fd);

/* Puts a clone of the session's descriptor in the place of `fd`: when the clone is closed, requests read from it end.
 * Returns 0; -EACCES, -ENOENT, ...: /dev/fuse cannot be opened; another -errno of ioctl(2).  Each has its sentence in
 * `err`. */
int fs_mount_clone(int fd, struct base_err *err);

/* Returns whether umount(2) of `dev` would fail now because the mount is in use.  False if it cannot be asked. */
bool fs_mount_in_use(const char *mountpoint, uint64_t dev);

/* Ends the session, even while processes have its descriptor open.  Waiting requests fail with ECONNABORTED, later
 * ones with ENOTCONN.  The mount stays.  Uses fusectl, or umount2(MNT_FORCE) if that is not allowed.
 * Returns 0; -ENOENT: `dev` is not mounted; -EXDEV: as fs_mount_path; another -errno: neither is allowed. */
int fs_mount_abort(const char *mountpoint, uint64_t dev);

/* Finds the st_dev of the file system mounted last on exactly `mountpoint`, from /proc/self/mountinfo (no request to
 * a server).
 * Returns 0; -ENOENT: nothing is mounted there; another -errno of fopen(3).  Any thread. */
int fs_mounted_dev(const char *mountpoint, uint64_t *ret_dev);

enum { FS_MOUNTS_COUNTED_MAX = 256 };

/* Returns how many mounts of type fuse.ddpfs this process can see, at most FS_MOUNTS_COUNTED_MAX.  Counts one that is
 * bind-mounted once.  Any thread. */
uint32_t fs_mounts_count(void);

/* Returns how many of these mounts have no server any more, without those whose st_dev is one of known[n_known].  A
 * mount that is hidden below another one counts, too: it cannot be asked, and nobody can open files of it.  A process
 * of its own asks each, because nothing can end one that waits for a server that hangs.  A mount that does not answer
 * within FS_MOUNTS_ASK_MS has a server; when FS_MOUNTS_ASK_ALL_MS are over, no more are asked.  For a process without
 * other threads. */
enum { FS_MOUNTS_ASK_MS = 250, FS_MOUNTS_ASK_ALL_MS = 2000 };
uint32_t fs_mounts_count_dead(const uint64_t *known, uint32_t n_known);

#endif
