/* SPDX-License-Identifier: Apache-2.0 */
/* The control socket of a mount: its protocol and its one client.  Requests and replies are lines of JSON.
 *
 * Place: each server has one unix stream socket of mode 0600, named `<pid>.sock`, in the first directory that applies:
 *   /run/ddpfs                  if the server runs as root
 *   $XDG_RUNTIME_DIR/ddpfs      else, if that variable is an absolute path
 *   /run/user/<uid>/ddpfs       else, if /run/user/<uid> exists and belongs to the user
 *   /tmp/ddpfs-<uid>            else
 * The directory is made with mode 0700.  It is used only if it belongs to that user and nobody else can write to it.
 * The server answers only the owner of the mount and root.  A client accepts only a server of its own user or of root
 * (SO_PEERCRED); root accepts all.  Sockets are found by name, so a caller in another mount namespace can reach them if
 * it sees the same /run.
 *
 * Requests, and what the reply holds besides "ok":true.  A request is an object on one line of at most
 * BASE_CONTROL_LINE_MAX bytes.  If the mount shows several ranks (`rank=0-7`), "rank":R says which one is meant.
 * Without it, the reply is about all ranks with a reader together (sums, the lowest epoch), or about the first of them
 * (state), or the first rank (the options).  If no rank has a reader, all of them count.  What such a request changes,
 * it changes for all.  consumed needs a rank.
 *   {"cmd":"info"}                       pid (of the supervisor, which stays), server_pid, version, mountpoint,
 *                                        dataset, layout, view ("rank"|"all"), rank, world, order, deal, tail, seed,
 *                                        subdir, identity (of the dataset), view_identity, dev (st_dev of the mount),
 *                                        advance; if the mount shows several ranks, also ranks (how many, from rank on)
 *   {"cmd":"stat"}                       stats: the object that .ddpfs/stats.json shows
 *   {"cmd":"history","after":MS}         the mount's history (fs/recorder.h) from MS milliseconds after its beginning
 *                                        on; default: from the beginning.  "more": ask again, with the last at_ms
 *   {"cmd":"epoch"}                      epoch, turns (samples of this rank), opened (how many of them), advance
 *                                        ("auto"|"off"); with view=all also samplers and the keys that belong to it,
 *                                        as in the statistics
 *   {"cmd":"epoch","set":N}              the same, after the change; from then on the epoch does not advance by itself
 *   {"cmd":"epoch","advance":"auto"}     the same; "auto" or "off"
 *   {"cmd":"state"}                      state: the resume state (shard/state.h) as an object
 *   {"cmd":"state","steps":G}            the same, after recording that the trainer has trained G global steps.  They
 *                                        count from the beginning of the current epoch, or of "epoch":E if that is
 *                                        given
 *   {"cmd":"state","turns":K}            the same, counted in turns of one rank: each rank has trained the first
 *                                        K samples of its part of that epoch, or all if there are fewer
 *   {"cmd":"consumed","epoch":E,"steps":G}
 *                                        the same as state, for a library that reads the dataset by itself
 *                                        (gpu_stage/).  All ranks together have had G global steps of E: these are
 *                                        trained.  E becomes the current epoch, and this rank's part of the steps
 *                                        counts as opened.  The engine reads nothing ahead for it.  Listings stay in E
 *                                        until this rank has had all of it, or somebody opens files of it
 *   {"cmd":"reset"}                      nothing; if the mount shows several ranks: epoch, advance and state are what
 *                                        they were at the mount, nothing is opened, and there is no reader.  Counters
 *                                        go on
 *   {"cmd":"unmount"}                    nothing; the server unmounts and ends.  It refuses with "busy" while files or
 *                                        directories of the mount are in use.  {"cmd":"unmount","lazy":true} detaches
 *                                        the mount; the server ends when the last of them is closed
 *   {"cmd":"neighbour","servers":N,"mounts":M,"claims":[[BYTES,FIXED],...]}
 *                                        nothing; N servers of this host show this dataset, so they may share what is
 *                                        in memory (fs/host_sharing.h).  M mounts are this user's, or have no server
 *                                        any more.  The other mounts that are in use claim this much memory
 *                                        (fs/budget.h).  "mounts" and "claims" come together or not at all
 *   {"cmd":"follow","list":NAME,"how":HOW,"form":FORM,"bytes":N, ...}
 *                                        announces what will be opened (fs/announced_orders.h).  A descriptor comes
 *                                        with the first byte of the request (SCM_RIGHTS): a memfd, or a file on
 *                                        tmpfs, whose first N bytes hold the entries.  The server reads them before
 *                                        it answers.
 *                                        "list" (default "default"): 1 to 63 printable ASCII characters
 *                                        "how": "replace" (the default): the list begins anew with these entries;
 *                                        "append": behind its end; "end": it is forgotten, without a descriptor
 *                                        "form": "u32", "u64": numbers in the byte order of the machine; "text" (the
 *                                        default): paths below the root of the mount, or flat names, each ended by a
 *                                        NUL, at most 16 MiB
 *                                        "listing": what numbers mean: "sorted" (the default): the files below "dir"
 *                                        (default: the root) by the bytes of their paths; "imagefolder": the images
 *                                        there as torchvision's ImageFolder numbers them; "table": the paths of "table"
 *                                        "skip_unknown": true: paths that are not there are left out
 *                                        Reply: list, entries and skipped (of this request), length (entries of the
 *                                        list that are not used yet), order_memory_bytes.  A refusal changes nothing,
 *                                        and has "code": "unknown", "range", "space", "lists", "table" or "invalid",
 *                                        and "at": the entry
 *   {"cmd":"follow","list":NAME,"how":"none","reason":TEXT}
 *                                        the same reply, without a descriptor; a trainer says why it announces nothing:
 *                                        1 to 255 printable ASCII characters.  order_note shows the last reason while
 *                                        no order is known, until its list is announced.  A successor has none
 *   {"cmd":"follow","how":"table","table":NAME,"form":"text","bytes":N}
 *                                        the same reply; adds paths to a table, with a descriptor as above.  A refusal
 *                                        drops the table.  "table-end" drops it, without a descriptor.  A successor
 *                                        has no tables
 *   {"cmd":"follow","how":"learn","size":S,"form":"u64","bytes":N}
 *                                        how a trainer numbers its S files: the descriptor holds indices that its
 *                                        sampler has drawn, all below S; the latest 4,096 count.  They are held
 *                                        against the latest opens (prefetch/sampler/drawn.h).  Reply: found; if it is
 *                                        true, list (in words) and table, the name of a table of this list, which all
 *                                        trainers share; else more: later opens can show it
 *   {"cmd":"restart","program":PATH}     nothing; the supervisor becomes the program at PATH (absolute, as the server
 *                                        sees it), which continues the mount.  Refused if that program cannot
 *
 * Who can read the mount but cannot reach its socket announces by ioctl(2) on a descriptor of its root directory:
 * BASE_ANNOUNCE_IOCTL, with BASE_ANNOUNCE_BYTES bytes.  They hold the request, a newline, and the entries.  So a long
 * list takes several requests.  The reply takes the place of the request, up to its newline.  Only "follow" is taken,
 * with "from":K besides: the entries of the same list that went before, for the places in refusals.  If all entries of
 * a request are left out, it does nothing, and is not refused.  Lists and tables are those of the caller's user.
 * EAGAIN: too many requests wait; ask again.  The kernel sends a request again that a server had taken but not answered
 * when it died: then the entries of an append stand twice in the list.
 *
 * The reply to a refused request is {"ok":false,"error":"<one sentence>"}.  Unknown commands and keys are refused.
 *
 * Threads: any; the functions share no state.  After EINTR they continue, until their time limit. */
#ifndef DDPFS_SHARD_BASE_CONTROL_CLIENT_H
#define DDPFS_SHARD_BASE_CONTROL_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/types.h>

#include "shard/base/err.h"

enum {
	BASE_CONTROL_LINE_MAX = 65536, /* bytes of a request or reply, newline included */
	BASE_CONTROL_PATH_MAX = 108,   /* sizeof(sun_path), NUL included */
	BASE_CONTROL_SURVEY_MS = 1000, /* time for all servers together to answer */
	/* The same for base_control_list, and for who looks for one server. */
	BASE_CONTROL_TIMEOUT_MS = 5000,
	BASE_CONTROL_PEERS_MAX = 4096, /* sockets that are used in one directory */
	BASE_ANNOUNCE_BYTES = 16376,   /* the number of an ioctl has 14 bits for its size */
};

#define BASE_ANNOUNCE_IOCTL _IOC(_IOC_READ | _IOC_WRITE, 0xdd, 1, BASE_ANNOUNCE_BYTES)

/* The end of a socket's name until it listens. */
#define BASE_CONTROL_NEW ".new"

/* A server that answered, as its reply to "info" says. */
struct base_control_peer {
	char socket[BASE_CONTROL_PATH_MAX]; /* its path */
	pid_t pid;                          /* of the supervisor */
	uint64_t dev;                       /* st_dev of the mount; 0 while it is being set up */
	uint32_t rank;
	uint32_t world;
	uint32_t ranks;   /* how many ranks the mount shows as directories, from `rank` on; 0: it is one view */
	bool view_all;    /* view=all */
	char *mountpoint; /* as the server sees it; owned, never NULL */
	char *dataset;    /* owned, never NULL */
	char *info;       /* the whole reply, JSON; owned, never NULL */
};

/* A server that did not answer: it accepts connections, or its queue of them is full. */
struct base_control_silent {
	char socket[BASE_CONTROL_PATH_MAX]; /* its path */
	pid_t pid;                          /* from the name of the socket; 0: the name has none */
};

/* Asks all servers at the same time; base_control_list says which.  Those that have not answered after limit_ms are
 * silent.  *ret_peers is sorted and freed as in base_control_list; *ret_silent is freed with free.
 * Returns 0, also if there is no server, or -ENOMEM. */
int base_control_survey(unsigned limit_ms, struct base_control_peer **ret_peers, size_t *ret_n,
        struct base_control_silent **ret_silent, size_t *ret_n_silent);

/* Lists every server that answers.  It searches the directory of this process, and for a user other than root also
 * /run/user/<uid>/ddpfs and /tmp/ddpfs-<uid>.  Root also finds the sockets of all users there.
 * It removes sockets whose server is dead, if they belong to the caller.  A server cannot do that, because its system
 * calls are filtered (fs/supervise/confine.h); tools can.
 * *ret_peers is sorted by (mountpoint, rank, pid); free it with base_control_peers_free.
 * Returns 0, also if there is no server, or -ENOMEM. */
int base_control_list(struct base_control_peer **ret_peers, size_t *ret_n);
void base_control_peers_free(struct base_control_peer *peers, size_t n); /* NULL is allowed */

/* Finds the server of a mount.  `target` is the mountpoint, any path inside it, `@PID`, or the path of a control
 * socket.  A mount that the caller can see is found by its device number, so equal paths in private namespaces are
 * different.  A mount that the caller cannot see (in another mount namespace) is found by the path that its server
 * knows.  It waits at most limit_ms for a silent server that may be the one.
 * Returns 0, and a peer that the caller releases with base_control_peer_done; -ENOENT: no ddpfs server has it (err says
 * what to do); -ENOTUNIQ: several namespaces use this path (err lists their pids, for @PID); -ETIMEDOUT: no server that
 * answers has it, and some do not answer (err names their pids); -ENOTCONN: its server is dead; -ENOMEM. */
int base_control_find(const char *target, unsigned limit_ms, struct base_err *err, struct base_control_peer *ret_peer);
/* Frees what a peer owns. */
void base_control_peer_done(struct base_control_peer *peer);

/* Sends one request (JSON text without newline) and waits for the reply, at most timeout_ms.  *ret_reply is the text of
 * the reply without newline; the caller frees it.
 * Returns 0 if the server said ok; -EREMOTEIO: it refused (err has its sentence, *ret_reply is not set); -ECONNREFUSED:
 * no process listens; -ENOENT: no such socket; -EACCES: no permission, or another user's server listens; -ETIMEDOUT: no
 * reply in time; -EPROTO: the reply is not a line of JSON; -EMSGSIZE: the request is too long or has a newline;
 * -ENAMETOOLONG: the path is too long;
 * -ENOMEM. */
int base_control_request(
        const char *socket_path, const char *request, unsigned timeout_ms, struct base_err *err, char **ret_reply);

/* Does the same, and sends a descriptor along; -1: none.  It stays the caller's. */
int base_control_request_with(const char *socket_path, const char *request, int fd, unsigned timeout_ms,
        struct base_err *err, char **ret_reply);

/* Announces by ioctl(2).  @dir: a descriptor of the mount's root directory, with this name for messages.  @data: `len`
 * bytes of entries; they must fit behind the request.  Asks again for at most timeout_ms while too many requests wait.
 * A request that the server has taken waits for its turn, without a limit.
 * Returns as base_control_request; -ENOTTY: no ddpfs mount, or its server does not take announcements so; other -errno
 * of ioctl(2). */
int base_control_announce(int dir, const char *name, const char *request, const void *data, size_t len,
        unsigned timeout_ms, struct base_err *err, char **ret_reply);

/* Sends a request as above to n servers at the same time, and waits for all replies, at most limit_ms.
 * ret_rcs[i] is 0, and ret_replies[i] is the reply, also if the server refused; the caller frees it.  Or ret_rcs[i] is
 * an error as of base_control_request, and ret_replies[i] is NULL.
 * Returns 0 or -ENOMEM. */
int base_control_request_all(
        const char *const *sockets, size_t n, const char *request, unsigned limit_ms, int *ret_rcs, char **ret_replies);

/* Counts the sockets in the directory of this process.  Sockets of killed servers count until base_control_list removes
 * them.  It opens that directory and nothing else. */
unsigned base_control_count(void);

/* Writes the path for the socket of this process: "<dir>/<pid>.sock", or "<dir>/<pid>-<number>.sock" if number is not
 * 0.  Makes the directory.
 * Returns 0; -EACCES: the directory is not one that belongs to this user alone; -ENAMETOOLONG; errors of mkdir(2). */
int base_control_default_path(unsigned number, struct base_err *err, char ret_path[BASE_CONTROL_PATH_MAX]);

#endif
