/* SPDX-License-Identifier: Apache-2.0 */
/* killat N COMMAND...: runs a command and kills it (SIGKILL, all threads) when it is about to make its N-th system
 * call, counted over
 * all of its threads from the execve on.  Prints how many were seen: "killed 7" or "ended 812 CODE".
 * N = 0: only counts. */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS_MAX = 1024 };

/* Threads that are inside a call: the next stop is its end. */
static pid_t inside[THREADS_MAX];

static pid_t *place_of(pid_t thread)
{
	for (int i = 0; i < THREADS_MAX; i++)
		if (inside[i] == thread)
			return &inside[i];
	return NULL;
}

/* A stop for a system call: true when it is one that begins. */
static bool begins(pid_t thread)
{
	pid_t *place = place_of(thread);
	if (place) {
		*place = 0;
		return false;
	}
	place = place_of(0);
	if (!place)
		abort();
	*place = thread;
	return true;
}

int main(int argc, char **argv)
{
	uint64_t at = argc > 2 ? strtoull(argv[1], NULL, 10) : 0, seen = 0;
	int status, code = 0;
	if (argc < 3)
		return 2;
	pid_t child = fork();
	if (child == 0) {
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		raise(SIGSTOP);
		execvp(argv[2], argv + 2);
		_exit(127);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		return 1;
	if (ptrace(PTRACE_SETOPTIONS, child, NULL,
	            PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL) < 0)
		return 77;
	ptrace(PTRACE_CONT, child, NULL, NULL);
	bool counting = false;
	for (;;) {
		pid_t thread = waitpid(-1, &status, __WALL);
		if (thread < 0)
			break; /* all have ended */
		if (WIFEXITED(status) || WIFSIGNALED(status)) {
			if (thread == child)
				code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
			continue;
		}
		int signal = WSTOPSIG(status), deliver = 0;
		if (signal == (SIGTRAP | 0x80)) {
			if (begins(thread) && ++seen == at) {
				kill(child, SIGKILL);
				while (waitpid(-1, &status, __WALL) > 0) {
				}
				printf("killed %llu\n", (unsigned long long)seen);
				return 0;
			}
		} else if (signal == SIGTRAP && status >> 16 == PTRACE_EVENT_EXEC) {
			counting = true;
		} else if (signal != SIGTRAP && signal != SIGSTOP) {
			deliver = signal;
		}
		ptrace(counting ? PTRACE_SYSCALL : PTRACE_CONT, thread, NULL, (void *)(intptr_t)deliver);
	}
	printf("ended %llu %d\n", (unsigned long long)seen, code);
	return 0;
}
