/* SPDX-License-Identifier: Apache-2.0 */
/* Threads: any. */
#ifndef DDPFS_FS_SUPERVISE_PROCESS_STATE_H
#define DDPFS_FS_SUPERVISE_PROCESS_STATE_H

#include <sys/types.h>

/* The state letter of a thread in /proc/PID/task/TID/stat (proc(5)); '?' when it is gone. */
char fs_thread_state(pid_t pid, pid_t tid);

#endif
