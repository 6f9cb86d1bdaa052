/* SPDX-License-Identifier: Apache-2.0 */
/* `ddpfs restart`: one program's supervisor becomes another program's, under a live mount.
 *
 *     ddpfs restart MNT --(control socket)--> server --> supervisor: takeover_try   runs `NEW takeover --check FD`
 *                                                                    takeover_become execs `NEW takeover FD`
 *
 * The two programs may be of different versions: what is handed over (the options as they were settled, and what the supervisor
 * holds) is text, JSON in a memfd, and says its version.  A program that does not know the version, or a key, refuses.
 * TAKEOVER_VERSION changes when keys change their meaning, and when inode numbers, directory handles or offsets do (fs/ino.h,
 * fs/dir.c), for the kernel keeps those.
 *
 * Threads: main of a process without others. */
#ifndef DDPFS_TOOLS_DDPFS_TAKEOVER_H
#define DDPFS_TOOLS_DDPFS_TAKEOVER_H

#include "fs/fs.h"
#include "fs/supervise/supervisor.h"
#include "shard/base/err.h"
#include "shard/base/log.h"

enum { TAKEOVER_VERSION = 1, TAKEOVER_BYTES_MAX = 1 << 24 /* a full quarantine list: 2^20 samples of 8 digits */ };

struct takeover {
	struct fs_options fs;
	struct fs_supervised held;
	enum base_log_level log_level;
	bool to_syslog;
	int owner_pidfd; /* or -1 */
};

/* fs_supervise.restart; arg: struct takeover, whose `held` is not looked at. */
int takeover_restart(void *arg, const char *program, const struct fs_supervised *held, bool go, struct base_err *err);

/* Whether `program` can go on from here: it says so itself.  Its own sentence when not; -EINVAL.  -EPERM: it lies in the mount, or
 * somebody else than root, us, and who owns this program can put another one into its place. */
int takeover_try(const char *program, const struct takeover *takeover, struct base_err *err);

/* Becomes `program`.  Returns only on failure, -errno. */
int takeover_become(const char *program, const struct takeover *takeover, struct base_err *err);

/* For tests: the first line that comes through a pipe before its end, or within timeout_ms in all. */
enum { TAKEOVER_SAID_MAX = 1024 };
void takeover_listen(int fd, int timeout_ms, char ret_said[TAKEOVER_SAID_MAX]);

/* For tests: the text, malloc'd, and back: text of any origin is right or refused (-EPROTONOSUPPORT, -EINVAL).  takeover_done frees
 * the strings and the list of bad samples that takeover_read made. */
char *takeover_write(const struct takeover *takeover);
int takeover_read(const char *text, size_t len, struct base_err *err, struct takeover *ret_takeover);
void takeover_done(struct takeover *takeover);

#endif
