/* SPDX-License-Identifier: Apache-2.0 */
/* Finds and asks the server of a mount; ask_server.h first. */
#include "tools/ddpfs/ask_server.h"

#include <errno.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/ino.h"
#include "shard/base/cleanup.h"
#include "shard/base/cleanup_json.h"
#include "tools/common/progress.h"
#include "tools/ddpfs/mounts.h"

enum { REPLY_MS = 30000 };

/* The server knows only where it mounted.  It does not learn of mount --move, or of a renamed directory above. */
static void set_place(struct base_control_peer *peer)
{
	char place[PATH_MAX];
	if (!peer->dev || mounts_place(peer->dev, peer->mountpoint, place) < 0 || strcmp(place, peer->mountpoint) == 0)
		return;
	json_t *info = json_loads(peer->info, 0, NULL);
	char *mountpoint = strdup(place);
	json_object_set_new(info, "mountpoint", json_string(place));
	char *text = json_dumps(info, JSON_COMPACT | JSON_PRESERVE_ORDER);
	json_decref(info);
	if (mountpoint && text) {
		free(peer->mountpoint);
		free(peer->info);
		peer->mountpoint = mountpoint;
		peer->info = text;
	} else {
		free(mountpoint);
		free(text);
	}
}

int ask_owner(const char *target, uid_t *ret_uid)
{
	char absolute[PATH_MAX];
	cleanup_free char *path = realpath(target, NULL); /* it fails in another user's mount */
	int rc = path ? 0 : mounts_absolute(target, absolute);
	return rc < 0 ? rc : mounts_ddpfs_owner(path ? path : absolute, ret_uid);
}

/* Says why no server of this user has `target`: another user's mount, or an own one with control=SOCKET. */
static int explain(const char *target, int rc, struct base_err *err)
{
	uid_t owner;
	if (rc != -ENOENT || target[0] == '@' || ask_owner(target, &owner) < 0)
		return rc;
	if (owner == geteuid())
		return base_err_set(err, rc,
		        "'%s': a ddpfs mount whose control socket is not where yours are: if it was mounted with "
		        "control=SOCKET, give that path in place of the mountpoint",
		        base_quoted(target));
	struct passwd *user = getpwuid(owner);
	char number[32];
	snprintf(number, sizeof(number), "%u", (unsigned)owner);
	return base_err_set(err, -EACCES,
	        "'%s' is a ddpfs mount of user %s: only that user and root may ask its server", base_quoted(target),
	        user ? user->pw_name : number);
}

int ask_find_within(const char *target, unsigned limit_ms, struct base_err *err, struct base_control_peer *ret_peer)
{
	int rc = explain(target, base_control_find(target, limit_ms, err, ret_peer), err);
	if (rc == 0)
		set_place(ret_peer);
	return rc;
}

int ask_find(const char *target, struct base_err *err, struct base_control_peer *ret_peer)
{
	return ask_find_within(target, BASE_CONTROL_TIMEOUT_MS, err, ret_peer);
}

int ask_survey(unsigned limit_ms, struct base_control_peer **ret_peers, size_t *ret_n,
        struct base_control_silent **ret_silent, size_t *ret_n_silent)
{
	int rc = base_control_survey(limit_ms, ret_peers, ret_n, ret_silent, ret_n_silent);
	for (size_t i = 0; rc == 0 && i < *ret_n; i++)
		set_place(&(*ret_peers)[i]);
	return rc;
}

/* Puts the present place into an answer, if it holds a mountpoint. */
static void tell_place(json_t *object, const char *mountpoint)
{
	if (json_object_get(object, "mountpoint"))
		json_object_set_new(object, "mountpoint", json_string(mountpoint));
}

/* Returns 1 with the rank, 0 if the target means the whole mount, or -errno if nothing tells which of the two. */
static int find_rank(const char *target, const struct base_control_peer *peer, uint32_t *ret_rank)
{
	if (peer->ranks == 0 || target[0] == '@' || strcmp(target, peer->mountpoint) == 0)
		return 0;
	cleanup_free char *path = realpath(target, NULL);
	if (!path)
		return -errno;
	/* A file is one inode in all ranks, so the directory that holds it tells the rank. */
	for (;;) {
		struct stat st;
		struct fs_node node;
		if (stat(path, &st) < 0)
			return -errno;
		if (st.st_dev != peer->dev)
			return 0; /* the control socket */
		if (fs_ino_node(st.st_ino, &node) < 0)
			return -ESTALE;
		if (node.kind == FS_ROOT && !node.id)
			return 0; /* the mount's own root */
		if (node.kind != FS_FILE) {
			*ret_rank = peer->rank + node.view;
			return 1;
		}
		*strrchr(path, '/') = '\0';
	}
}

bool ask_rank(const char *target, const struct base_control_peer *peer, uint32_t *ret_rank)
{
	return find_rank(target, peer, ret_rank) > 0;
}

static int find_and_ask(const char *target, json_t *given, struct base_err *err, json_t **ret_reply)
{
	struct base_control_peer peer;
	cleanup_free char *reply = NULL;
	cleanup_json json_t *request = given;
	uint32_t rank;
	int r = ask_find(target, err, &peer);
	if (r < 0)
		return r;
	r = find_rank(target, &peer, &rank);
	if (r < 0) {
		base_err_set(err, r, "nothing tells which rank of '%s' is meant by '%s': %s", peer.mountpoint,
		        base_quoted(target), strerror(-r));
		base_control_peer_done(&peer);
		return r;
	}
	if (r > 0)
		json_object_set_new(request, "rank", json_integer(rank));
	cleanup_free char *text = json_dumps(request, JSON_COMPACT | JSON_PRESERVE_ORDER);
	r = text ? base_control_request(peer.socket, text, REPLY_MS, err, &reply)
	         : base_err_set(err, -ENOMEM, "out of memory");
	json_t *object = r == 0 ? json_loads(reply, 0, NULL) : NULL;
	tell_place(object, peer.mountpoint);
	tell_place(json_object_get(object, "stats"), peer.mountpoint);
	base_control_peer_done(&peer);
	if (r < 0)
		return r;
	if (!json_is_object(object)) {
		json_decref(object);
		return base_err_set(err, -EPROTO, "the server of '%s' answered with something that is no JSON object",
		        base_quoted(target));
	}
	json_object_del(object, "ok");
	*ret_reply = object;
	return 0;
}

int ask(const char *target, json_t *request, struct base_err *err, json_t **ret_reply)
{
	progress_wait_start("waiting for the server of the mount");
	int r = find_and_ask(target, request, err, ret_reply);
	progress_wait_done();
	return r;
}
