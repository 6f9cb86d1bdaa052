/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the server of a mount and asks it one question; ctl, stat, top, umount, restart and ls use it.
 *
 * It adds to shard/base/control_client.h: sentences for people, and the place of moved mounts.
 *
 * Threads: any; no shared state. */
#ifndef DDPFS_TOOLS_DDPFS_ASK_SERVER_H
#define DDPFS_TOOLS_DDPFS_ASK_SERVER_H

#include <jansson.h>

#include "shard/base/control_client.h"
#include "shard/base/err.h"

/* Finds the server of a mount.  `target` is a target of base_control_find.  If the mount was moved, *ret_peer has its
 * new place.
 *
 * Returns 0; the caller frees *ret_peer with base_control_peer_done.  Returns -EACCES if the mount belongs to another
 * user, and the errors of base_control_find and base_control_request. */
int ask_find(const char *target, struct base_err *err, struct base_control_peer *ret_peer);
/* Like ask_find, but waits at most limit_ms for a silent server (ask_find: BASE_CONTROL_TIMEOUT_MS). */
int ask_find_within(const char *target, unsigned limit_ms, struct base_err *err, struct base_control_peer *ret_peer);

/* Finds which rank of a mount of several ranks a path belongs to, also by a bind mount of the rank's directory.
 * Returns false if it belongs to none: the root of the mount, a control socket, @PID. */
bool ask_rank(const char *target, const struct base_control_peer *peer, uint32_t *ret_rank);

/* Stores who mounted the ddpfs mount in which the path `target` lies.  Returns 0, or the errors of mounts_absolute
 * and mounts_ddpfs_owner (-ENOENT: it lies in no ddpfs mount). */
int ask_owner(const char *target, uid_t *ret_uid);

/* Lists all servers of this host within limit_ms.  Like base_control_survey, but with the present places of moved
 * mounts. */
int ask_survey(unsigned limit_ms, struct base_control_peer **ret_peers, size_t *ret_n,
        struct base_control_silent **ret_silent, size_t *ret_n_silent);

/* Sends `request` to the server of `target` (see ask_find) and stores its answer, without "ok".  The function takes
 * over the reference to `request`; the caller frees *ret_reply with json_decref.
 *
 * Returns 0, or with a sentence: -ENOMEM, -EPROTO (the answer is no JSON object), and the errors of ask_find and
 * base_control_request. */
int ask(const char *target, json_t *request, struct base_err *err, json_t **ret_reply);

#endif
