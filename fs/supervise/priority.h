/* SPDX-License-Identifier: Apache-2.0 */
/* The priority of a mount's processes: they run before those of the trainer.
 *
 * A trainer whose files are in memory takes every processor.  Then the scheduler lets the server's threads wait for
 * some 10 ms (50 ms were measured), and the trainer comes to files that are not read ahead yet.  A trainer who only
 * reads files of 4 KiB, and computes nothing, became 9% slower (tests/bench/README.md, `known-torch`).
 *
 * Two values decide, and each works where the other does not (sched(7)):
 *
 *     nice         of a thread, against other threads of the same group of the scheduler
 *     autogroup    of a session.  Each session is such a group, unless cgroups with a cpu controller are the groups
 *
 * Without CAP_SYS_NICE, as in most containers, both stay as they are.
 *
 * Threads: each function works on the calling thread, and on the threads and processes that it makes later. */
#ifndef DDPFS_FS_SUPERVISE_PRIORITY_H
#define DDPFS_FS_SUPERVISE_PRIORITY_H

#include <stdbool.h>

enum { FS_PRIORITY_NICE = -10 };

/* Raises the priority of the supervisor, and of the servers that it starts.  Call it before fs_confine_supervisor.
 * @session: also that of the session, if the caller leads it.  In a raised session, threads at idle priority run before
 * the trainer, too. */
void fs_priority_raise(bool session);

/* Gives the calling thread the usual nice value again, if it was raised. */
void fs_priority_usual(void);

#endif
