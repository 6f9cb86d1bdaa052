/* SPDX-License-Identifier: Apache-2.0 */
/* One question to the server of a mount, and its answer as JSON.  What ctl, stat and top share.
 * Threads: no shared state. */
#ifndef DDPFS_TOOLS_DDPFS_CONTROL_CLIENT_H
#define DDPFS_TOOLS_DDPFS_CONTROL_CLIENT_H

#include <jansson.h>

#include "shard/base/control_client.h"
#include "shard/base/err.h"

/* Finds the server of a mount: target is what base_control_find takes, or the path of a control socket
 * (control=SOCKET, which base_control_find does not know of).  A mount that was moved since is told where it is now.
 * -EACCES: it is another user's.  Errors of base_control_find and _request; base_control_peer_done the result. */
int ask_find(const char *target, struct base_err *err, struct base_control_peer *ret_peer);
/* The same; a server that is silent is waited for so long. */
int ask_find_within(const char *target, unsigned limit_ms, struct base_err *err, struct base_control_peer *ret_peer);

/* Who mounted the ddpfs mount in which the target lies: mounts_ddpfs_owner.  -ENOENT: it lies in none. */
int ask_owner(const char *target, uid_t *ret_uid);

/* All servers of this host, at most limit_ms: base_control_survey, with mounts where they are now. */
int ask_survey(unsigned limit_ms, struct base_control_peer **ret_peers, size_t *ret_n,
        struct base_control_silent **ret_silent, size_t *ret_n_silent);

/* target: as for ask_find.  request: an object; its reference is taken over.  *ret_reply: the server's object
 * without "ok"; json_decref it.  Errors of shard/base/control_client.h, with a sentence. */
int ask(const char *target, json_t *request, struct base_err *err, json_t **ret_reply);

#endif
