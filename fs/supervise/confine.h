/* SPDX-License-Identifier: Apache-2.0 */
/* Confinement: the rights that the processes of a mount give up, so that an intruder in one of them can do little.
 *
 *     supervisor   keeps CAP_SYS_ADMIN (unmount), CAP_DAC_OVERRIDE (its socket in another user's directory, fusectl),
 *                  and what its servers keep.  It takes no filter, because it starts programs (fusermount3,
 *                  `ddpfs restart`)
 *     server       keeps CAP_SYS_ADMIN (it mounts before it takes the filter; later it lists a detached copy of its
 *                  mount, so that the mount is not busy), CAP_DAC_READ_SEARCH (datasets and modes of other users;
 *                  CAP_DAC_OVERRIDE if it has only that, as in containers) and CAP_IPC_LOCK (registered buffers).
 *                  Then it takes no_new_privs and a filter of system calls
 *     greeter      (fs/host_sharing.h) keeps no capability, and takes no_new_privs
 *
 * A user who is not root has no capabilities to give up.  The rest is the same.
 *
 * Threads: each function works on the calling thread, and on the threads and processes that it makes later.  So call
 * them before there are other threads. */
#ifndef DDPFS_FS_SUPERVISE_CONFINE_H
#define DDPFS_FS_SUPERVISE_CONFINE_H

#include <stdbool.h>
#include <sys/types.h>

#define FS_CONFINE_ENVIRON "DDPFS_SECCOMP"

/* Gives up all capabilities but the supervisor's.  Those that it keeps stay inheritable and ambient if they were, for
 * the program of `ddpfs restart`.
 * Returns 0, also if there is nothing to give up; -errno of capget(2) or capset(2), and then nothing is given up. */
int fs_confine_supervisor(void);

/* Give up all capabilities but the server's or the greeter's; what they keep is neither inheritable nor ambient.  The
 * greeter also takes no_new_privs.  Both bind the process to its parent (PR_SET_PDEATHSIG): SIGKILL ends it when the
 * parent ends.  They do so even if the capabilities could not be given up.
 * Return 0; -ESRCH: the parent has ended already; another -errno: as fs_confine_supervisor, or of prctl(2). */
int fs_confine_server(pid_t parent);
int fs_confine_greeter(pid_t parent);

/* Returns whether a server shall take the filter: not if the environment has DDPFS_SECCOMP=off, nor in a build with a
 * sanitizer. */
bool fs_confine_wanted(void);

/* Takes no_new_privs, for the calling thread and the threads that it makes later.  With `filter`, if ddpfs was built
 * with libseccomp, takes no_new_privs and the filter for all threads of the process.  Neither can be undone.
 *
 * With the filter, a server cannot open a file to write, start a program or a process, trace, or mount.  It cannot
 * make a ring of io_uring.  It cannot make or connect a socket, nor send a descriptor.  With `network` (the dataset
 * is in a store) it can make and connect sockets of IPv4 and IPv6, and sockets that ask the kernel for its addresses.
 * With `tier` it can write at any offset of a file that is open for writing: that of its tier.
 * A system call that the filter does not list fails with ENOSYS.  Libraries take that for an old kernel, so an update
 * of libc does not end a training run.  A call that no library makes in a server (execve, ptrace, mount...) kills the
 * process.
 *
 * Returns 0; -EINVAL, -ENOSYS: the kernel has no filters; -ENOMEM; another -errno of prctl(2) or seccomp(2). */
int fs_confine_calls(bool filter, bool network, bool tier);

#endif
