/* SPDX-License-Identifier: Apache-2.0 */
/* Mount options as text (`-o rank=0,world=2,memory=1G`) -> struct fs_options.  What `ddpfs mount`, `ddpfs exec` and
 * mount.ddpfs have in common.
 *
 * The text is a comma-separated list; a comma or backslash in a value is written \, and \\, or the value stands in
 * double quotes (as in fstab).  Later options win.  Options that mount(8) or fstab bring for themselves (defaults, noauto,
 * nofail, _netdev, user, x-*, ...) are taken and mean nothing here; any other unknown word is refused, with the nearest known one.
 *
 * Threads: one object, one thread. */
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
	struct fs_options fs;     /* strings belong to this object */
	struct view_options view; /* what becomes fs.view in options_settle_view */
	bool layout_set;
	const char *log_file; /* NULL: stderr in front, syslog in the background */
	enum base_log_level log_level;
	bool log_level_set;
	bool sloppy;                        /* skip unknown options (mount -s) */
	bool writable;                      /* "rw" was among them, which mount(8) adds by itself */
	char *strings[OPTIONS_STRINGS_MAX]; /* storage of the texts above */
	unsigned n_strings;
};

void options_init(struct options *options);
void options_done(struct options *options);

/* Reads one -o text.  Returns 0; -EINVAL (err: which option, why, what is allowed); -ENOMEM; -E2BIG (more than
 * OPTIONS_STRINGS_MAX values that are texts). */
int options_parse(struct options *options, const char *text, struct base_err *err);

/* Is a rank that was given one of a world that was given?  -EINVAL with a sentence. */
int options_check_rank(const struct options *options, struct base_err *err);

/* Settles what depends on several options once all are read: the default layout, rank and world or view=all (-EINVAL
 * with both ways to mend it when neither was given). */
int options_finish(struct options *options, struct base_err *err);

/* Fills fs.view, the last step; fs.dataset is set.  Reads the state file, if one was given, and takes from it what was not
 * given explicitly.  -EINVAL for a mismatch, errors of the file and of the index. */
int options_settle_view(struct options *options, struct base_err *err);

/* Keeps a copy of `text` as long as the object.  NULL when out of memory or room. */
const char *options_keep(struct options *options, const char *text);

/* The i-th option's name; NULL behind the last one. */
const char *options_name(unsigned i);

/* The list of options for --help, within 80 columns. */
void options_print_help(FILE *out);

/* The same as an argp help_filter. */
char *options_help_filter(int key, const char *text, void *input);

#endif
