/* SPDX-License-Identifier: Apache-2.0 */
/* The last words of a server that crashes.
 *
 * A crash with a core dump first waits for all threads, and one of ours may wait in the kernel for an answer that only a server
 * gives (fs/detached_thread.h): nothing of the process ends until a successor answers it, and nobody would start one.  So the signal's
 * handler tells the supervisor, shuts the socket down and closes /dev/fuse, then lets the signal do what it does.
 *
 * Threads: take and give back by main; fs_crash_tell from signal handlers. */
#ifndef DDPFS_FS_SUPERVISE_CRASH_H
#define DDPFS_FS_SUPERVISE_CRASH_H

/* From now on SIGSEGV, SIGABRT, SIGFPE and SIGILL tell.  (SIGBUS does so in fs/sigbus.c.) */
void fs_crash_take(int channel, int fuse_fd);
void fs_crash_give_back(void);

void fs_crash_tell(int sig);

#endif
