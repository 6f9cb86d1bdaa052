#include "fs/sigbus.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "fs/crash.h"
#include "shard/base/err.h"
#include "shard/index.h"

enum { QUOTED_MAX = 1024, LINE_MAX_BYTES = 4096 };

static char log_head[] = "<27>"; /* LOG_DAEMON | LOG_ERR, as syslog(3) writes it */

/* Made before the handler stands, for a handler may format nothing. */
static char line[LINE_MAX_BYTES];
static size_t line_len;
static bool taken;
static struct sigaction before;

/* syslog(3) takes locks; its socket is a datagram away without. */
static void tell_log(void)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX, .sun_path = "/dev/log" };
	struct iovec parts[2] = {
		{ .iov_base = log_head, .iov_len = sizeof(log_head) - 1 },
		{ .iov_base = line, .iov_len = line_len - 1 }, /* without its newline */
	};
	struct msghdr message = { .msg_name = &addr, .msg_namelen = sizeof(addr), .msg_iov = parts, .msg_iovlen = 2 };
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return;
	(void)!sendmsg(fd, &message, MSG_NOSIGNAL);
	close(fd);
}

static void on_sigbus(int sig)
{
	(void)!write(STDERR_FILENO, line, line_len);
	tell_log();
	fs_crash_tell(sig);
	raise(sig); /* the handler is reset already: on return the signal ends the process */
}

void fs_sigbus_take(const char *dataset, const char *mountpoint)
{
	char quoted_dataset[QUOTED_MAX];
	char quoted_mountpoint[QUOTED_MAX];
	base_err_quote(dataset, quoted_dataset, sizeof(quoted_dataset));
	base_err_quote(mountpoint, quoted_mountpoint, sizeof(quoted_mountpoint));
	int len = snprintf(line, sizeof(line),
	        "ddpfs: error: '%s/" SHARD_INDEX_NAME
	        "' cannot be read any more: it was truncated or overwritten in place "
	        "under the mount, or its disk fails; the server of the mount '%s' ends: `ddpfs umount` it, bring the "
	        "dataset "
	        "back (`mkshard verify` checks it, `mkshard pack --force` replaces it safely) and mount again\n",
	        quoted_dataset, quoted_mountpoint);
	if (len < 0 || (size_t)len >= sizeof(line))
		return;
	line_len = (size_t)len;
	struct sigaction action = { .sa_handler = on_sigbus, .sa_flags = (int)SA_RESETHAND };
	taken = sigaction(SIGBUS, &action, &before) == 0;
}

void fs_sigbus_give_back(void)
{
	if (taken)
		sigaction(SIGBUS, &before, NULL);
	taken = false;
}
