/* SPDX-License-Identifier: Apache-2.0 */
/* The priority of a mount's processes; fs/supervise/priority.h first. */
#include "fs/supervise/priority.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "shard/base/cleanup.h"

/* Writes /proc/self/autogroup, which is missing where the kernel has no autogroups. */
static void raise_session(void)
{
	cleanup_close int fd = open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC);
	if (fd >= 0)
		dprintf(fd, "%d", FS_PRIORITY_NICE);
}

void fs_priority_raise(bool session)
{
	errno = 0;
	if (getpriority(PRIO_PROCESS, 0) != 0 || errno != 0)
		return; /* somebody has decided already */
	setpriority(PRIO_PROCESS, 0, FS_PRIORITY_NICE);
	if (session && getsid(0) == getpid())
		raise_session();
}

void fs_priority_usual(void)
{
	setpriority(PRIO_PROCESS, 0, 0); /* 0 is this thread.  The kernel refuses if that would raise it */
}
