/* SPDX-License-Identifier: Apache-2.0 */
/* Turns mount options (`-o rank=0,world=2,memory=1G`) into a struct fs_options, for mount, exec, order and
 * mount.ddpfs.
 *
 * The order of calls: options_init, options_parse for each -o, options_finish, options_settle_view, options_done.
 *
 * The text is a comma-separated list.  In a value, a comma is written \, and a backslash \\; or the value stands in
 * double quotes, as in fstab.  Later options win.  The parser accepts and ignores options that mount(8) and fstab use
 * for themselves (defaults, noauto, nofail, _netdev, user, x-*, ...).  It refuses other unknown words, and names the
 * nearest known one.
 *
 * Threads: one object belongs to one thread. */
#ifndef DDPFS_TOOLS_DDPFS_MOUNT_OPTIONS_H
#define DDPFS_TOOLS_DDPFS_MOUNT_OPTIONS_H

#include <stdbool.h>
#include <stdio.h>

#include "fs/fs.h"
#include "shard/base/err.h"
#include "shard/base/log.h"
#include "tools/common/view_options.h"

enum { OPTIONS_STRINGS_MAX = 64 };

struct options {
	struct fs_options fs;     /* its strings belong to this object */
	struct view_options view; /* options_settle_view copies it to fs.view */
	bool layout_set;          /* layout= was given */
	bool all_ranks;           /* rank=all was given */
	const char *log_file;     /* NULL: stderr in the foreground, syslog in the background */
	enum base_log_level log_level;
	bool log_level_set;                 /* log_level= was given */
	bool sloppy;                        /* skip unknown options (mount -s) */
	bool writable;                      /* "rw" was given; mount(8) adds it by itself */
	char *strings[OPTIONS_STRINGS_MAX]; /* memory of the texts above */
	unsigned n_strings;                 /* used elements of `strings` */
};

/* Sets the defaults. */
void options_init(struct options *options);
/* Frees the texts and the view options. */
void options_done(struct options *options);

/* Reads one -o text into `options`.  Returns 0, or with a sentence: -EINVAL for a wrong option (the sentence says
 * which, why, and what is allowed); -ENOMEM; -E2BIG for more than OPTIONS_STRINGS_MAX texts. */
int options_parse(struct options *options, const char *text, struct base_err *err);

/* The same as the take() of an option (tools/common/cli.h); `at` is the struct options. */
int options_take(void *at, char *text, struct base_err *err);
/* Checks rank and world, and counts the ranks of rank=all.  Returns 0, also if no rank was given; -EINVAL with a
 * sentence if world is missing, if rank >= world, or if rank=all are too many. */
int options_check_rank(struct options *options, struct base_err *err);

/* Checks and completes what depends on several options; call it after the last options_parse.  It sets the default
 * layout.  Returns 0, or -EINVAL with a sentence, for example if neither rank and world nor view=all was given. */
int options_finish(struct options *options, struct base_err *err);

/* Fills fs.view; the caller has set fs.dataset.  It reads the state file and the quarantine list, if the options name
 * them, and takes from the state what was not given explicitly.
 * Returns 0, or with a sentence: -EINVAL for a contradiction, errors of the files and of the index. */
int options_settle_view(struct options *options, struct base_err *err);

/* Copies `text`; the copy lives as long as the object.  Returns NULL without memory, or after OPTIONS_STRINGS_MAX
 * texts. */
const char *options_keep(struct options *options, const char *text);

/* Prints the list of options for --help, within 80 columns. */
void options_print_help(FILE *out);

/* An argp help_filter that appends the same list. */
char *options_help_filter(int key, const char *text, void *input);

#endif
