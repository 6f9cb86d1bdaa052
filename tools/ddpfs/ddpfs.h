/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of ddpfs; each is a main() of its own (tools/common/cli.h). */
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
int ddpfs_top(int argc, char **argv);
int ddpfs_order(int argc, char **argv);
int ddpfs_restart(int argc, char **argv);
int ddpfs_takeover(int argc, char **argv);

/* The mount(8) helper: its usage and exit status are mount(8)'s. */
int mount_ddpfs(int argc, char **argv);

/* What mount, mount.ddpfs and exec have in common: checks that dataset and mountpoint can be used, puts their absolute
 * paths into the options, settles the options and reads the state file.  -EINVAL from the options is wrong usage
 * (*ret_usage), the rest is not. */
int ddpfs_prepare(struct options *options, const char *dataset, const char *target, bool make_target,
        struct base_err *err, bool *ret_usage);
/* A line on stderr where the mountpoint is not empty; after ddpfs_prepare. */
void ddpfs_warn_of_hidden(const struct options *options);

#endif
