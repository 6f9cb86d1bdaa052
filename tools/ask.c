#include "tools/ask.h"

#include <errno.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "shard/base/cleanup.h"

enum { REPLY_MS = 30000 };

static char *copy_text(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));
	return strdup(text ? text : "");
}

static int find_by_socket(const char *path, struct base_err *err, struct fs_control_peer *ret_peer)
{
	struct fs_control_peer peer = { 0 };
	if (strlen(path) >= sizeof(peer.socket))
		return base_err_set(err, -ENAMETOOLONG, "'%s': a socket's path has at most %zu bytes", path,
		        sizeof(peer.socket) - 1);
	int r = fs_control_request(path, "{\"cmd\":\"info\"}", REPLY_MS, err, &peer.info);
	if (r < 0)
		return r;
	json_t *info = json_loads(peer.info, 0, NULL);
	memcpy(peer.socket, path, strlen(path) + 1);
	peer.pid = (pid_t)json_integer_value(json_object_get(info, "pid"));
	peer.mountpoint = copy_text(info, "mountpoint");
	peer.dataset = copy_text(info, "dataset");
	json_decref(info);
	if (!peer.mountpoint || !peer.dataset) {
		fs_control_peer_done(&peer);
		return base_err_set(err, -ENOMEM, "out of memory");
	}
	*ret_peer = peer;
	return 0;
}

int ask_find(const char *target, struct base_err *err, struct fs_control_peer *ret_peer)
{
	struct stat st;
	if (stat(target, &st) == 0 && S_ISSOCK(st.st_mode))
		return find_by_socket(target, err, ret_peer);
	return fs_control_find(target, err, ret_peer);
}

int ask(const char *target, json_t *request, struct base_err *err, json_t **ret_reply)
{
	struct fs_control_peer peer;
	cleanup_free char *reply = NULL;
	cleanup_free char *text = json_dumps(request, JSON_COMPACT | JSON_PRESERVE_ORDER);
	json_decref(request);
	if (!text)
		return base_err_set(err, -ENOMEM, "out of memory");
	int r = ask_find(target, err, &peer);
	if (r < 0)
		return r;
	r = fs_control_request(peer.socket, text, REPLY_MS, err, &reply);
	fs_control_peer_done(&peer);
	if (r < 0)
		return r;
	json_t *object = json_loads(reply, 0, NULL);
	if (!json_is_object(object)) {
		json_decref(object);
		return base_err_set(
		        err, -EPROTO, "the server of '%s' answered with something that is no JSON object", target);
	}
	json_object_del(object, "ok");
	*ret_reply = object;
	return 0;
}
