/* SPDX-License-Identifier: Apache-2.0 */
/* Starts the process that unmounts for a server, and takes in its end; fs/supervise/unmounter.h first. */
#include "fs/supervise/unmounter.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static void start(struct fs_unmounter *u, const struct fs_unmount_request *request)
{
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		close_range(STDERR_FILENO + 1, UINT_MAX, 0);
		_exit(-u->unmount(u->arg, request->lazy));
	}
	if (pid < 0) {
		u->answer(u->arg, request, -errno);
		return;
	}
	u->pid = pid;
	u->running = *request;
}

void fs_unmounter_ask(struct fs_unmounter *u, const struct fs_unmount_request *request)
{
	if (u->pid)
		u->next = *request;
	else
		start(u, request);
}

bool fs_unmounter_ended(struct fs_unmounter *u, pid_t pid, int status)
{
	if (!u->pid || pid != u->pid)
		return false;
	const struct fs_unmount_request next = u->next;
	u->pid = 0;
	u->next = (struct fs_unmount_request){ 0 };
	u->answer(u->arg, &u->running, WIFEXITED(status) ? -WEXITSTATUS(status) : -EIO);
	if (next.server)
		start(u, &next);
	return true;
}
