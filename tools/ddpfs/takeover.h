/* SPDX-License-Identifier: Apache-2.0 */
/* `ddpfs restart`: another program becomes the supervisor of a live mount.
 *
 *     ddpfs restart MNT --(control socket)--> server --> supervisor: takeover_try   runs `NEW takeover --check FD`
 *                                                                    takeover_become execs `NEW takeover FD`
 *
 * The old program hands over the settled options and what the supervisor holds.  The two programs may have different
 * versions, so this is JSON text in a memfd with a version.  A program that does not know the version, or a key,
 * refuses.  TAKEOVER_VERSION must change if the meaning of a key changes.  It must also change if inode numbers,
 * directory handles or directory offsets change (fs/ino.h, fs/dir.c), because the kernel keeps those.
 *
 * Threads: the main thread of a process without other threads. */
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
	int owner_pidfd; /* a pidfd whose end ends the mount, or -1 */
};

/* The callback fs_supervise.restart.  `arg` is a struct takeover; `held` replaces its member of that name.  Calls
 * takeover_become if `go`, else takeover_try. */
int takeover_restart(void *arg, const char *program, const struct fs_supervised *held, bool go, struct base_err *err);

/* Asks `program` whether it can take over.  Returns 0; -EINVAL with the program's own sentence if it cannot; -EPERM
 * if it lies in the mount, or if an untrusted user can replace it (executable_check.h). */
int takeover_try(const char *program, const struct takeover *takeover, struct base_err *err);

/* Executes `program` in this process.  Returns only on failure: -errno with a sentence. */
int takeover_become(const char *program, const struct takeover *takeover, struct base_err *err);

/* For tests: stores the first line that comes through the pipe `fd`, until its end or for at most timeout_ms. */
enum { TAKEOVER_SAID_MAX = 1024 };
void takeover_listen(int fd, int timeout_ms, char ret_said[TAKEOVER_SAID_MAX]);

/* For tests: takeover_write returns the text, malloc'd.  takeover_read parses text of any origin; it returns 0, or
 * with a sentence -EPROTONOSUPPORT (unknown version or key) or -EINVAL (impossible values).  takeover_done frees the
 * strings and the quarantine list that takeover_read made. */
char *takeover_write(const struct takeover *takeover);
int takeover_read(const char *text, size_t len, struct base_err *err, struct takeover *ret_takeover);
void takeover_done(struct takeover *takeover);

#endif
