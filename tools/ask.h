/* One question to the server of a mount, and its answer as JSON.  What ctl, stat and top share.
 * Threads: no shared state. */
#ifndef DDPFS_TOOLS_ASK_H
#define DDPFS_TOOLS_ASK_H

#include <jansson.h>

#include "fs/control.h"
#include "shard/base/err.h"

/* Finds the server of a mount: target is what fs_control_find takes, or the path of a control socket (control=SOCKET, which
 * fs_control_find does not know of).  Errors of fs_control_find and _request; fs_control_peer_done the result. */
int ask_find(const char *target, struct base_err *err, struct fs_control_peer *ret_peer);

/* target: as for ask_find.  request: an object; its reference is taken over.  *ret_reply: the server's object
 * without "ok"; json_decref it.  Errors of fs/control.h, with a sentence. */
int ask(const char *target, json_t *request, struct base_err *err, json_t **ret_reply);

#endif
