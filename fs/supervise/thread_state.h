/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel says a thread does.
 * Threads: any. */
#ifndef DDPFS_FS_SUPERVISE_THREAD_STATE_H
#define DDPFS_FS_SUPERVISE_THREAD_STATE_H

#include <sys/types.h>

/* Returns the state letter of a thread from /proc/PID/task/TID/stat (proc(5)): 'D' waits for a disk, for example.
 * '?': it cannot be read, for the thread has ended. */
char fs_thread_state(pid_t pid, pid_t tid);

#endif
