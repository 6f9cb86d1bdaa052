/* SPDX-License-Identifier: Apache-2.0 */
/* `ddpfs restart`: asks the supervisor of a live mount to execute this program in its place; takeover.h first. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shard/base/cleanup.h"
#include "tools/ddpfs/ask_server.h"
#include "tools/common/cli.h"
#include "tools/common/progress.h"
#include "tools/ddpfs/ddpfs.h"

enum {
	REPLY_MS = 60000, /* the supervisor first tries the program (takeover_try) */
	WAIT_MS = 60000,  /* for the new server to answer */
	PAUSE_MS = 20,    /* between two questions to the server */
};

/* Returns the server's process id, or 0 if it does not answer. */
static pid_t server_of(const char *socket)
{
	cleanup_free char *reply = NULL;
	if (base_control_request(socket, "{\"cmd\":\"info\"}", WAIT_MS, NULL, &reply) < 0)
		return 0;
	json_t *info = json_loads(reply, 0, NULL);
	pid_t pid = (pid_t)json_integer_value(json_object_get(info, "server_pid"));
	json_decref(info);
	return pid;
}

static int wait_for_another(const struct base_control_peer *peer, pid_t before, struct base_err *err)
{
	for (int ms = 0; ms < WAIT_MS; ms += PAUSE_MS) {
		pid_t now = server_of(peer->socket);
		if (now && now != before)
			return 0;
		if (access(peer->socket, F_OK) < 0)
			return base_err_set(err, -EIO, "'%s': the mount has ended: its log says why", peer->mountpoint);
		nanosleep(&(struct timespec){ .tv_nsec = PAUSE_MS * 1000000L }, NULL);
	}
	return base_err_set(
	        err, -ETIMEDOUT, "'%s': the new server does not answer: its log says why", peer->mountpoint);
}

static int restart(const char *target, struct base_err *err)
{
	char program[PATH_MAX];
	struct base_control_peer peer;
	cleanup_free char *reply = NULL;
	ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);
	if (n < 0)
		return base_err_set(err, -errno, "/proc/self/exe: %s", strerror(errno));
	program[n] = '\0';
	int r = ask_find(target, err, &peer);
	if (r < 0)
		return r;
	json_t *object = json_pack("{s:s, s:s}", "cmd", "restart", "program", program);
	cleanup_free char *request = object ? json_dumps(object, JSON_COMPACT) : NULL;
	json_decref(object);
	pid_t before = server_of(peer.socket);
	r = request ? base_control_request(peer.socket, request, REPLY_MS, err, &reply)
	            : base_err_set(err, -ENOMEM, "out of memory");
	if (r == 0)
		r = wait_for_another(&peer, before, err);
	base_control_peer_done(&peer);
	return r;
}

int ddpfs_restart(int argc, char **argv)
{
	static const struct cli_line line = { "MNT|@PID",
		"Puts this program in the place of the one that serves MNT, under its readers: how a live mount is "
		"upgraded. Returns when it answers; when this program cannot go on with the mount, the old one does.",
		.words = { { "MNT", .at = 0, DDPFS_MNT_MISSING } } };
	const char *target = NULL;
	struct base_err err = { 0 };
	cli_parse(&line, argc, argv, &target);
	progress_wait_start("waiting for the new server");
	int r = restart(target, &err);
	progress_wait_done();
	return r < 0 ? cli_fail(&err) : CLI_DONE;
}
