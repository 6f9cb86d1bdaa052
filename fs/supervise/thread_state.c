/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the state of a thread from /proc; fs/supervise/thread_state.h first. */
#include "fs/supervise/thread_state.h"

#include <stdio.h>
#include <string.h>

#include "shard/base/cleanup.h"

char fs_thread_state(pid_t pid, pid_t tid)
{
	char path[64];
	char text[256];
	snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", (int)pid, (int)tid);
	cleanup_fclose FILE *f = fopen(path, "re");
	/* "tid (name) S ...": a name may hold any character, also a parenthesis, so look for the last one. */
	const char *end = f && fgets(text, sizeof(text), f) ? strrchr(text, ')') : NULL;
	return end && end[1] == ' ' ? end[2] : '?';
}
