/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of ddpfs.  Each is a main() of its own: it gets its argv and returns the exit status
 * (tools/common/cli.h).
 *
 * Threads: the main thread. */
#ifndef DDPFS_TOOLS_DDPFS_DDPFS_H
#define DDPFS_TOOLS_DDPFS_DDPFS_H

#include "shard/base/err.h"
#include "tools/ddpfs/mount_options.h"

int ddpfs_mount(int argc, char **argv);
int ddpfs_umount(int argc, char **argv);
int ddpfs_exec(int argc, char **argv);
int ddpfs_ctl(int argc, char **argv);
int ddpfs_ls(int argc, char **argv);
int ddpfs_stat(int argc, char **argv);
int ddpfs_doctor(int argc, char **argv);
int ddpfs_top(int argc, char **argv);
int ddpfs_order(int argc, char **argv);
int ddpfs_report(int argc, char **argv);
int ddpfs_restart(int argc, char **argv);
int ddpfs_tier(int argc, char **argv);
int ddpfs_warm(int argc, char **argv);
int ddpfs_takeover(int argc, char **argv);

/* What to say if the word MNT of a command is missing. */
#define DDPFS_MNT_MISSING "the mountpoint, or @PID of its server"

/* The helper of mount(8); usage and exit status are those of mount(8). */
int mount_ddpfs(int argc, char **argv);

/* Prepares a mount, for mount, mount.ddpfs and exec: checks that dataset and mountpoint can be used, puts their
 * absolute paths into the options, settles the options and reads the state file.  `make_target` makes a missing
 * mountpoint.
 *
 * Returns 0, or -errno with a sentence; *ret_usage is set if the user's options are wrong. */
int ddpfs_prepare(struct options *options, const char *dataset, const char *target, bool make_target,
        struct base_err *err, bool *ret_usage);
/* Prints a line on stderr if the mountpoint is not empty.  Call it after ddpfs_prepare. */
void ddpfs_warn_of_hidden(const struct options *options);

#endif
