/* SPDX-License-Identifier: Apache-2.0 */
/* The control socket of a mount: one line of JSON asks, one line of JSON answers.
 *
 * Where: one unix stream socket a server, mode 0600, named `<pid>.sock`, in the first of
 *   /run/ddpfs                  when the server runs as root
 *   $XDG_RUNTIME_DIR/ddpfs      else
 *   /run/user/<uid>/ddpfs       else, when that runtime directory exists
 *   /tmp/ddpfs-<uid>            else
 * The directory is made with mode 0700 and used only when it belongs to the caller and nobody else can write to it.
 * Only the mount's owner and root are answered (SO_PEERCRED).  Sockets are found by name, so a caller in another mount
 * namespace reaches them as long as it sees the same /run.
 *
 * Requests (an object on one line of at most BASE_CONTROL_LINE_MAX bytes) and what the reply holds besides "ok":true:
 *   {"cmd":"info"}                       pid (of the supervisor: it stays), server_pid, version, mountpoint, dataset, layout, view ("rank"|"all"), rank, world,
 *                                        order, deal, tail, seed, subdir, identity (of the dataset), view_identity,
 *                                        dev (st_dev of the mount), advance
 *   {"cmd":"stat"}                       stats: the object that .ddpfs/stats.json shows
 *   {"cmd":"epoch"}                      epoch, turns (samples of this rank), opened (of these), advance ("auto"|"off"); with view=all
 *                                        also samplers and what goes with them, as in the statistics
 *   {"cmd":"epoch","set":N}              the same, after the change; the epoch no longer advances by itself
 *   {"cmd":"epoch","advance":"auto"}     the same; "auto" or "off"
 *   {"cmd":"state"}                      state: the resume state (shard/state.h) as an object
 *   {"cmd":"state","steps":G}            the same, after recording that the trainer has trained G global steps, counted
 *                                        from the beginning of the current epoch (or of "epoch":E when that is given)
 *   {"cmd":"state","turns":K}            the same, counted as one rank counts: each rank has trained the first K of its
 *                                        samples that the mount shows of that epoch (all of them when there are fewer)
 *   {"cmd":"consumed","epoch":E,"steps":G}  the same as state, after recording that all ranks together have had G global steps
 *                                        of E from a library that reads the dataset by itself (gpu_stage/): they are trained,
 *                                        E is the current epoch, and this rank's share of them counts as opened.  Nothing is
 *                                        read ahead for it, and listings stay in E until it has had all of it, or
 *                                        somebody opens files of it
 *   {"cmd":"unmount"}                    nothing; the server unmounts and ends.  Refused with "busy" while files or
 *                                        directories of the mount are in use; {"cmd":"unmount","lazy":true} detaches it,
 *                                        and the server ends when the last of them is closed
 *   {"cmd":"neighbour","servers":N,"mounts":M,"claims":[[BYTES,FIXED],...]}
 *                                        nothing; N servers of this host show this dataset: what is in memory may be shared
 *                                        (fs/host_sharing.h).  This user has M mounts, and those others that are in use claim so
 *                                        much memory (fs/budget.h).  "mounts" and "claims" come together or not at all
 *   {"cmd":"restart","program":PATH}     nothing; the supervisor becomes the program at PATH (absolute, as the server sees
 *                                        it), which goes on with the mount; refused when that program cannot
 * A refused request is answered {"ok":false,"error":"<one sentence>"}.  Unknown commands and keys are refused.
 *
 * Threads: the client functions share no state; any thread.  They ignore no signals: EINTR is continued until the
 * time limit. */
#ifndef DDPFS_SHARD_BASE_CONTROL_CLIENT_H
#define DDPFS_SHARD_BASE_CONTROL_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "shard/base/err.h"

enum {
	BASE_CONTROL_LINE_MAX = 65536, /* bytes of a request or reply, newline included */
	BASE_CONTROL_PATH_MAX = 108,   /* sizeof(sun_path), NUL included */
	BASE_CONTROL_SURVEY_MS = 1000, /* what servers are given to answer, all of them together */
	BASE_CONTROL_TIMEOUT_MS =
	        5000, /* ... where one that is silent may be the one that is wanted; base_control_list */
	BASE_CONTROL_PEERS_MAX = 4096, /* sockets looked at in one directory */
};

/* What the socket's name ends in until it listens. */
#define BASE_CONTROL_NEW ".new"

/* A live server, as its "info" told. */
struct base_control_peer {
	char socket[BASE_CONTROL_PATH_MAX];
	pid_t pid;
	uint64_t dev; /* st_dev of the mount; 0 while it is being set up */
	uint32_t rank;
	uint32_t world;
	bool view_all;
	char *mountpoint; /* as the server sees it; owned, never NULL */
	char *dataset;    /* owned, never NULL */
	char *info;       /* the whole reply, JSON; owned, never NULL */
};

/* A server that takes connections, or has a full queue of them, and says nothing. */
struct base_control_silent {
	char socket[BASE_CONTROL_PATH_MAX];
	pid_t pid; /* by the socket's name; 0: another name */
};

/* All servers that base_control_list finds, asked at the same time; those that have not answered after limit_ms are
 * silent.  Free the peers with base_control_peers_free, the silent ones with free.  Returns 0, -ENOMEM. */
int base_control_survey(unsigned limit_ms, struct base_control_peer **ret_peers, size_t *ret_n,
        struct base_control_silent **ret_silent, size_t *ret_n_silent);

/* The directories that are searched, in order (what exists of the list at the top: a caller who is root also finds the
 * sockets of other users under /run/user).  Lists every server that answers; sockets whose server is dead are removed
 * when they are the caller's own and it may: a server whose system calls are filtered (fs/supervise/confine.h) may not, tools do.
 * *ret_peers is sorted by (mountpoint, rank, pid); free with base_control_peers_free.  Returns 0 (also for none), -ENOMEM. */
int base_control_list(struct base_control_peer **ret_peers, size_t *ret_n);
void base_control_peers_free(struct base_control_peer *peers, size_t n); /* NULL is fine */

/* Finds the server of a mount.  `target` is the mountpoint (or any path inside it), or `@PID`.  A mount that the caller can
 * see is recognised by its device number alone, so equal paths in private namespaces are told apart; one that it cannot see
 * (another mount namespace) by the path its server knows.
 * -ENOENT: no ddpfs server has it (err says what to do); -ENOTUNIQ: several namespaces use this path (err lists their
 * pids, to be named as @PID); -EACCES: the server belongs to another user; -ETIMEDOUT: no server that answers has it, and
 * some do not answer (err names their pids); -ENOTCONN: its server is dead; -ENOMEM. */
int base_control_find(const char *target, struct base_err *err, struct base_control_peer *ret_peer);
/* The same; a silent server that may be the one is waited for so long. */
int base_control_find_within(
        const char *target, unsigned limit_ms, struct base_err *err, struct base_control_peer *ret_peer);
void base_control_peer_done(struct base_control_peer *peer);

/* Sends one request (JSON text without newline) and waits for the reply, at most timeout_ms.
 * *ret_reply is the reply's text without newline, malloc'd.  Returns 0 when the server said ok;
 * -EREMOTEIO: it refused (err holds its sentence, *ret_reply is not set); -ECONNREFUSED, -ENOENT, -EACCES, -ETIMEDOUT,
 * -EPROTO (no JSON came back), -EMSGSIZE (request too long), -ENOMEM. */
int base_control_request(
        const char *socket_path, const char *request, unsigned timeout_ms, struct base_err *err, char **ret_reply);

/* Sends a short request (under 60 bytes) to n servers at the same time and waits for all replies, at most limit_ms.
 * ret_rcs[i]: 0, and ret_replies[i] the reply, malloc'd, whatever it says; or as base_control_request, and NULL.
 * Returns 0, -ENOMEM. */
int base_control_request_all(
        const char *const *sockets, size_t n, const char *request, unsigned limit_ms, int *ret_rcs, char **ret_replies);

/* Sockets that lie where this process would put its own; those of killed servers count until somebody asks them.  Opens a
 * directory and nothing else. */
unsigned base_control_count(void);

/* Where this process would put its socket: "<dir>/<pid>.sock", or "<dir>/<pid>-<number>.sock".  Makes the directory.  -EACCES when what stands there
 * is not safe to use; -ENAMETOOLONG. */
int base_control_default_path(unsigned number, struct base_err *err, char ret_path[BASE_CONTROL_PATH_MAX]);

#endif
