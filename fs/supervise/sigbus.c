/* SPDX-License-Identifier: Apache-2.0 */
/* Handles SIGBUS from a mapped index; fs/supervise/sigbus.h first. */
#include "fs/supervise/sigbus.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fs/supervise/crash.h"
#include "fs/supervise/channel.h"
#include "shard/base/err.h"
#include "shard/base/log.h"
#include "shard/index.h"

enum { QUOTED_MAX = 1024 };

/* Formatted before the handler is installed, because snprintf(3) is not async-signal-safe. */
static struct fs_channel_message last_words = { .kind = FS_CHANNEL_LOG, .code = BASE_LOG_ERROR };
static int told_channel;
static pthread_t main_thread;
static bool taken;
static struct sigaction before;

/* A detached thread (fs/detached_thread.h) has no channel: in its descriptor table the number is free or another
 * file's. */
static bool is_detached(int error)
{
	return error == EBADF || error == ENOTSOCK;
}

static void on_sigbus(int sig, siginfo_t *info, void *context)
{
	(void)context;
	if (info->si_code > 0 && shard_index_fault(info->si_addr))
		return; /* fs_index_check logs it */
	ssize_t sent = send(told_channel, &last_words, sizeof(last_words), MSG_NOSIGNAL | MSG_DONTWAIT);
	if (sent < 0 && is_detached(errno)) {
		pthread_kill(main_thread, sig); /* main tells, and ends the process */
		for (;;)
			pause();
	}
	if (sent < 0)
		(void)!write(STDERR_FILENO, last_words.text, strlen(last_words.text));
	sigaction(sig, &(struct sigaction){ .sa_handler = SIG_DFL }, NULL);
	fs_crash_tell(sig);
	raise(sig); /* delivered when this returns */
}

void fs_sigbus_take(int channel, const char *index, const char *mountpoint)
{
	char quoted_mountpoint[QUOTED_MAX];
	base_err_quote(mountpoint, quoted_mountpoint, sizeof(quoted_mountpoint));
	int len = snprintf(last_words.text, sizeof(last_words.text),
	        "'%s' cannot be read any more: its disk fails; the server of the mount '%s' "
	        "ends: `ddpfs umount` it, bring the dataset back (`mkshard verify` checks it) and mount again",
	        index, quoted_mountpoint);
	if (len < 0 || (size_t)len >= sizeof(last_words.text))
		return;
	told_channel = channel;
	main_thread = pthread_self();
	const struct sigaction action = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO };
	taken = sigaction(SIGBUS, &action, &before) == 0;
}

void fs_sigbus_give_back(void)
{
	if (taken)
		sigaction(SIGBUS, &before, NULL);
	taken = false;
}
