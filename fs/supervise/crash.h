/* SPDX-License-Identifier: Apache-2.0 */
/* The message that a server sends when it crashes.
 *
 * Before a crash can write a core, all threads of the process must stop.  One of ours may wait in the kernel for an
 * answer that only a server gives (fs/detached_thread.h).  Then the process does not end until a successor gives that
 * answer, and the supervisor starts no successor until the process ends.  So the signal's handler does three things
 * before the signal takes its usual course: it tells the supervisor, shuts the channel down, and closes /dev/fuse.
 *
 * Threads: main calls fs_crash_take and fs_crash_give_back; signal handlers call fs_crash_tell. */
#ifndef DDPFS_FS_SUPERVISE_CRASH_H
#define DDPFS_FS_SUPERVISE_CRASH_H

/* Installs the handler for SIGSEGV, SIGABRT, SIGFPE and SIGILL.  (fs/supervise/sigbus.c has SIGBUS.)
 * channel: the server's end (fs/supervise/channel.h).  Call it before confinement, because it opens /dev/null to
 * write. */
void fs_crash_take(int channel, int fuse_fd);

/* Puts the earlier handlers back.  Does nothing if fs_crash_take was not called. */
void fs_crash_give_back(void);

/* Sends FS_CHANNEL_CRASHED with this signal, shuts the channel down, and puts /dev/null in the place of /dev/fuse.
 * Does nothing before fs_crash_take.  Async-signal-safe. */
void fs_crash_tell(int sig);

#endif
