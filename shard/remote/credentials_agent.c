/* SPDX-License-Identifier: Apache-2.0 */
/* The process that asks providers; shard/remote/credentials_agent.h first. */
#include "shard/remote/credentials_agent.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shard/base/cleanup.h"

/* One answer.  Both ends are the same program, so its pointers are not read: provider is a constant. */
struct answer {
	int rc;
	struct base_err err; /* why, if rc is not 0 */
	struct remote_credentials credentials;
};

/* Sends or receives `len` bytes.  Returns 0 or -EPIPE. */
static int whole(int fd, void *data, size_t len, bool sends)
{
	for (size_t done = 0; done < len;) {
		uint8_t *at = (uint8_t *)data + done;
		ssize_t n = sends ? send(fd, at, len - done, MSG_NOSIGNAL) : recv(fd, at, len - done, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -EPIPE;
		done += (size_t)n;
	}
	return 0;
}

static void serve(int fd)
{
	char request;
	struct answer answer;
	while (whole(fd, &request, 1, false) == 0) {
		struct remote_credentials *found = NULL;
		memset(&answer, 0, sizeof(answer));
		answer.rc = remote_credentials_get(&answer.err, &found);
		if (answer.rc == 0)
			answer.credentials = *found;
		remote_credentials_free(found);
		int rc = whole(fd, &answer, sizeof(answer), true);
		explicit_bzero(&answer, sizeof(answer));
		if (rc < 0)
			return;
	}
}

static bool quiet;

void remote_agent_quiet(void)
{
	quiet = true;
}

/* Keeps one descriptor, as number 3, and the standard ones. */
static void run(int fd, pid_t parent)
{
	signal(SIGCHLD, SIG_DFL); /* popen(3) waits for its program */
	signal(SIGINT, SIG_IGN);  /* of a terminal: it is for the server */
	prctl(PR_SET_NAME, "ddpfs-keys");
	prctl(PR_SET_DUMPABLE, 0); /* no core with keys */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
		_exit(0);
	cleanup_close int null = quiet ? open("/dev/null", O_WRONLY | O_CLOEXEC) : -1;
	if (null >= 0 && dup2(null, STDERR_FILENO) < 0)
		_exit(1);
	if (fd != 3 && dup2(fd, 3) < 0)
		_exit(1);
	syscall(SYS_close_range, 4U, ~0U, 0U); /* above all /dev/fuse, which must close with the server */
	serve(3);
	_exit(0);
}

int remote_agent_start(int *ret_fd)
{
	int ends[2];
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
		return -errno;
	pid_t parent = getpid(), pid = fork();
	if (pid == 0)
		run(ends[1], parent);
	int rc = pid < 0 ? -errno : 0;
	close(ends[1]);
	if (rc < 0)
		close(ends[0]);
	else
		*ret_fd = ends[0];
	return rc;
}

int remote_agent_ask(int fd, struct base_err *err, struct remote_credentials **ret_credentials)
{
	char request = 1;
	struct answer answer;
	int rc = whole(fd, &request, 1, true);
	if (rc == 0)
		rc = whole(fd, &answer, sizeof(answer), false);
	if (rc < 0)
		return base_err_set(err, rc, "the process that asks for them has ended");
	rc = answer.rc;
	if (rc < 0)
		base_err_set(err, rc, "%.*s", (int)sizeof(answer.err.text) - 1, answer.err.text);
	struct remote_credentials *made = rc == 0 ? remote_credentials_new() : NULL;
	if (rc == 0 && !made)
		rc = base_err_set(err, -ENOMEM, "out of memory");
	if (made) {
		*made = answer.credentials;
		made->provider = "a provider";
		*ret_credentials = made;
	}
	explicit_bzero(&answer, sizeof(answer));
	return rc;
}
