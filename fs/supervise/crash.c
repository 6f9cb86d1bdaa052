/* SPDX-License-Identifier: Apache-2.0 */
/* Tells the supervisor of a crash from a signal handler; fs/supervise/crash.h first. */
#include "fs/supervise/crash.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fs/supervise/channel.h"

static const int signals[] = { SIGSEGV, SIGABRT, SIGFPE, SIGILL };
enum { N_SIGNALS = sizeof(signals) / sizeof(signals[0]) };

static struct sigaction before[N_SIGNALS]; /* a sanitizer's handlers write reports */
static volatile sig_atomic_t taken;
static int told_channel;
static int told_fuse_fd;
static int null_fd = -1;
static struct fs_channel_message last_words = { .kind = FS_CHANNEL_CRASHED };

void fs_crash_tell(int sig)
{
	if (!taken)
		return;
	last_words.code = sig;
	(void)!send(told_channel, &last_words, sizeof(last_words), MSG_NOSIGNAL | MSG_DONTWAIT);
	shutdown(told_channel, SHUT_RDWR);
	if (null_fd >= 0)
		dup2(null_fd,
		        told_fuse_fd); /* not close(2): another file could get the number while threads still answer */
}

static void on_crash(int sig)
{
	fs_crash_tell(sig);
	for (int i = 0; i < N_SIGNALS; i++)
		if (signals[i] == sig)
			sigaction(sig, &before[i], NULL);
	raise(sig); /* delivered when this returns */
}

void fs_crash_take(int channel, int fuse_fd)
{
	const struct sigaction action = { .sa_handler = on_crash };
	told_channel = channel;
	told_fuse_fd = fuse_fd;
	null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	taken = true;
	for (int i = 0; i < N_SIGNALS; i++)
		sigaction(signals[i], &action, &before[i]);
}

void fs_crash_give_back(void)
{
	for (int i = 0; taken && i < N_SIGNALS; i++)
		sigaction(signals[i], &before[i], NULL);
	if (null_fd >= 0)
		close(null_fd);
	null_fd = -1;
	taken = false;
}
