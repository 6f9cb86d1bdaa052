/* SPDX-License-Identifier: Apache-2.0 */
/* `ddpfs umount`: asks the server to unmount and waits for its end; ask_server.h first.
 *
 * If the server has died, this program unmounts itself, with umount2(2) or fusermount3. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shard/base/control_client.h"
#include "shard/base/cleanup.h"
#include "tools/ddpfs/ask_server.h"
#include "tools/common/cli.h"
#include "tools/common/progress.h"
#include "tools/ddpfs/ddpfs.h"
#include "tools/ddpfs/mounts.h"

enum {
	NOBODY_MS = 2000, /* how long to try again if the mount is busy but no user of it is found */
	AGAIN_MS = 50,    /* between two tries */
	REPLY_MS = 30000, /* a server under load flushes first */
	END_MS = 60000,   /* from the unmount to the end of the process, which waits for reads of a busy disk */
};

struct arguments {
	const char *target;
	bool lazy;
};

/* Finds who uses the mount: working directories and open files, as far as this user may read /proc. */

static bool below(const char *link, const char *target)
{
	char path[PATH_MAX];
	ssize_t n = readlink(link, path, sizeof(path) - 1);
	size_t len = strlen(target);
	if (n <= 0)
		return false;
	path[n] = '\0';
	return strncmp(path, target, len) == 0 && (path[len] == '/' || path[len] == '\0');
}

static bool process_uses(const char *pid, const char *target)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "/proc/%s/cwd", pid);
	if (below(path, target))
		return true;
	snprintf(path, sizeof(path), "/proc/%s/fd", pid);
	cleanup_closedir DIR *dir = opendir(path);
	struct dirent *entry;
	while (dir && (entry = readdir(dir))) {
		snprintf(path, sizeof(path), "/proc/%s/fd/%s", pid, entry->d_name);
		if (below(path, target))
			return true;
	}
	return false;
}

static void name_of(const char *pid, char *buf, size_t size)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%.20s/comm", pid);
	cleanup_fclose FILE *file = fopen(path, "re");
	if (!file || !fgets(buf, (int)size, file))
		snprintf(buf, size, "?");
	buf[strcspn(buf, "\n")] = '\0';
}

/* Writes into `err` which processes use the mount, and what helps besides.  *ret_found: there is at least one. */
static int busy(const char *target, const char *besides, struct base_err *err, bool *ret_found)
{
	char first[128] = "";
	unsigned more = 0;
	pid_t own = getpid();
	cleanup_closedir DIR *dir = opendir("/proc");
	struct dirent *entry;
	while (dir && (entry = readdir(dir))) {
		if (!isdigit((unsigned char)entry->d_name[0]) || strtol(entry->d_name, NULL, 10) == own ||
		        !process_uses(entry->d_name, target))
			continue;
		char name[32];
		name_of(entry->d_name, name, sizeof(name));
		if (first[0])
			more++;
		else
			snprintf(first, sizeof(first), " by process %.20s (%s)", entry->d_name, name);
	}
	/* This program inherits open files from its shell, so it looks at itself last. */
	if (!first[0] && process_uses("self", target))
		snprintf(first, sizeof(first),
		        " by this very command, which was started with a file of it open or in it");
	char rest[32] = "";
	*ret_found = first[0];
	if (more)
		snprintf(rest, sizeof(rest), " and %u more", more);
	return base_err_set(err, -EBUSY, "'%s' is in use%s%s: end or leave it there, or detach it with --lazy%s",
	        target, first, rest, besides);
}

/* Without the server: it is dead, or it does not answer this user. */

static int unmount_by_hand(const char *target, bool lazy, const char *besides, struct base_err *err, bool *ret_found)
{
	int r = mounts_remove(target, lazy);
	if (r == -EBUSY)
		return busy(target, besides, err, ret_found);
	if (r < 0)
		return base_err_set(err, r, "cannot unmount '%s': %s", target, strerror(-r));
	return 0;
}

/* Through the server. */

static void wait_end(int pidfd)
{
	struct pollfd p = { .fd = pidfd, .events = POLLIN };
	if (pidfd >= 0 && poll(&p, 1, END_MS) == 0)
		cli_warn("unmounted, but the server has not ended yet: it finishes what is still open");
}

static int unmount_by_server(
        const struct base_control_peer *peer, const char *target, bool lazy, struct base_err *err, bool *ret_found)
{
	cleanup_free char *reply = NULL;
	cleanup_close int pidfd = (int)syscall(SYS_pidfd_open, peer->pid, 0);
	int r = base_control_request(peer->socket,
	        lazy ? "{\"cmd\":\"unmount\",\"lazy\":true}" : "{\"cmd\":\"unmount\"}", REPLY_MS, err, &reply);
	if (r == 0 && !lazy)
		wait_end(pidfd);
	return r == -EREMOTEIO && strstr(err->text, "busy") ? busy(target, "", err, ret_found) : r;
}

/* Refuses a path in a rank of a mount of several: all of them would lose the mount. */
static int check_rank(const struct base_control_peer *peer, const char *path, struct base_err *err)
{
	uint32_t rank;
	if (!ask_rank(path, peer, &rank))
		return 0;
	return base_err_set(err, -EINVAL,
	        "'%s' is in rank %u of '%s', which has other ranks too: to unmount all, run 'ddpfs umount %s'", path,
	        rank, peer->mountpoint, peer->mountpoint);
}

static int unmount(const struct arguments *a, struct base_err *err, bool *ret_found)
{
	struct base_control_peer peer;
	struct mounts_entry entry;
	char path[PATH_MAX];
	bool by_pid = a->target[0] == '@';
	int r = by_pid ? 0 : mounts_absolute(a->target, path);
	if (r < 0)
		return base_err_set(err, r, "'%s': %s", a->target, strerror(-r));
	bool here = !by_pid && mounts_find(path, &entry) == 0;
	if (here && !mounts_is_ddpfs(&entry))
		return base_err_set(
		        err, -EINVAL, "'%s' is a mount of type %s, not of ddpfs: use umount", path, entry.type);
	if (here && !entry.whole)
		return unmount_by_hand(path, a->lazy, "", err, ret_found);
	const char *besides = "";
	r = ask_find(by_pid ? a->target : path, err, &peer);
	if (r == 0) {
		r = here || by_pid ? 0 : check_rank(&peer, path, err);
		if (r == 0)
			r = unmount_by_server(&peer, here ? path : peer.mountpoint, a->lazy, err, ret_found);
		base_control_peer_done(&peer);
		if (r == 0 || r == -EBUSY || r == -EREMOTEIO || !here)
			return r;
	} else if (!here) {
		return r;
	} else {
		besides = "; if they hang because its server was killed, 'umount -f' ends their reads";
	}
	/* The server may have died after the unmount, before its answer. */
	if (mounts_find(path, &entry) == -ENOENT)
		return 0;
	return unmount_by_hand(path, a->lazy, besides, err, ret_found);
}

/* A server that was just killed holds files of its own mount open until it has ended.  Until then the mount is busy,
 * but no process shows as its user; so try again. */
static int unmount_patiently(const struct arguments *a, struct base_err *err)
{
	for (int waited_ms = 0;; waited_ms += AGAIN_MS) {
		bool found = true;
		int r = unmount(a, err, &found);
		if (r != -EBUSY || found || waited_ms >= NOBODY_MS)
			return r;
		poll(NULL, 0, AGAIN_MS);
	}
}

int ddpfs_umount(int argc, char **argv)
{
	static const struct cli_line line = { "MNT|@PID",
		"Unmounts MNT and waits until its server has ended. A mount of another mount namespace is named by "
		"the path there, or by its server's process id.",
		.options = { { "lazy", NULL, "Detach it now, even while files are open; it ends with the last one", 'l',
		        CLI_FLAG(struct arguments, lazy) } },
		.words = { { "MNT", .at = offsetof(struct arguments, target), DDPFS_MNT_MISSING } } };
	struct arguments a = { 0 };
	struct base_err err = { 0 };
	cli_parse(&line, argc, argv, &a);
	progress_wait_start("waiting for the server to unmount");
	int r = unmount_patiently(&a, &err);
	progress_wait_done();
	return r < 0 ? cli_fail(&err) : CLI_DONE;
}
