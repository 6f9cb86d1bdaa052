/* SPDX-License-Identifier: Apache-2.0 */
/* What the processes of a mount give up: who gets into one finds little to do there.
 *
 *     supervisor   keeps CAP_SYS_ADMIN (unmount), CAP_DAC_OVERRIDE (its socket in another's directory, fusectl), and what
 *                  its servers keep; not confined further, for it starts programs (fusermount3, `ddpfs restart`)
 *     server       keeps CAP_SYS_ADMIN (mount, before it is confined; then a detached copy of its mount to list, so that
 *                  umount is not busy), CAP_DAC_READ_SEARCH (datasets and modes that are not its user's; CAP_DAC_OVERRIDE
 *                  where it has only that, as in containers),
 *                  CAP_IPC_LOCK (registered buffers); then no new privileges, and a filter of system calls
 *     greeter      (fs/host_sharing.h) keeps none, and no new privileges
 *
 * A user who is not root has no capabilities to give up; the rest is the same. */
#ifndef DDPFS_FS_SUPERVISE_CONFINE_H
#define DDPFS_FS_SUPERVISE_CONFINE_H

#include <stdbool.h>
#include <sys/types.h>

#define FS_CONFINE_ENVIRON "DDPFS_SECCOMP"

/* Of the calling thread, and of threads and processes made after: call before there are threads.  The supervisor's stay
 * inheritable and ambient as far as they were, for the program of `ddpfs restart`; a server's do not.  -errno, and then nothing
 * is given up; not where there is nothing to give up. */
int fs_confine_supervisor(void);
/* These two also bind the process to its parent, whose end kills it (PR_SET_PDEATHSIG), even when capabilities could not
 * be given up.  -ESRCH: the parent has ended already. */
int fs_confine_server(pid_t parent);
int fs_confine_greeter(pid_t parent);

/* Whether servers of this environment and build take the filter: not with DDPFS_SECCOMP=off, nor with a sanitizer. */
bool fs_confine_wanted(void);

/* For good: with `filter`, where libseccomp was built in, no_new_privs and the filter for all threads of the process; else
 * no_new_privs for the calling thread and those it makes later, but not for other threads there are.  Behind the filter nothing
 * can be opened to write, run, traced or mounted; no process, no ring of io_uring be made; no socket be made, connected, or sent a
 * descriptor.  What the filter does not know fails with ENOSYS, which libraries take for an old kernel: an update of libc must not end a
 * training run.  What no library calls in a server (execve, ptrace, mount...) kills the process.
 * -EINVAL, -ENOSYS: the kernel does not filter; -ENOMEM. */
int fs_confine_calls(bool filter);

#endif
