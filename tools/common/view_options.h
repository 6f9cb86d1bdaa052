/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the options that choose a view: order deal tail seed epoch start past rank world subdir chunk pool groups
 * redeal state on_bad quarantine.  Mounts, `ddpfs order` and `mkshard stats` use it.
 *
 * The order of calls: view_options_set or view_options_parse for each option, view_options_finish, view_options_done.
 *
 * Threads: the main thread. */
#ifndef DDPFS_TOOLS_COMMON_VIEW_OPTIONS_H
#define DDPFS_TOOLS_COMMON_VIEW_OPTIONS_H

#include "shard/base/err.h"
#include "shard/state.h"
#include "shard/view.h"

/* Bits of `set` beyond enum SHARD_STATE_SET_*. */
enum { VIEW_OPTIONS_SET_RANK = 1 << 16, VIEW_OPTIONS_SET_WORLD = 1 << 17, VIEW_OPTIONS_SET_PAST = 1 << 18 };

struct view_options {
	struct shard_view_options view;      /* subdir points into the given `value`, or into `state` */
	unsigned set;                        /* the given keys: SHARD_STATE_SET_*, VIEW_OPTIONS_SET_* */
	const char *state_path;              /* state=FILE or state=-FILE; NULL: not given */
	bool state_optional;                 /* state=-FILE: a missing file counts as not given */
	bool state_missing;                  /* set by view_options_finish: that file is missing */
	struct shard_state state;            /* set by view_options_finish if there is a state file */
	const char *quarantine_path;         /* quarantine=FILE; NULL: the list in the dataset */
	struct shard_quarantine *quarantine; /* owned, the same as view.quarantine; NULL with on_bad=eio */
};
#define VIEW_OPTIONS_DEFAULT ((struct view_options){ .view = SHARD_VIEW_OPTIONS_DEFAULT })

/* The keys above, space-separated, for messages. */
extern const char view_options_keys[];

/* Takes one key=value; `value` is NULL for a key without '='.  `value` must outlive `options`.
 * Returns 1 if it took the option, 0 if `key` is no view option, -EINVAL with a sentence that names the option. */
int view_options_set(struct view_options *options, const char *key, const char *value, struct base_err *err);

/* Takes a comma-separated list, in which "\," is a comma and "\\" a backslash; items may be empty.  It changes
 * `text`, which must outlive `options`.  Returns 0, or -EINVAL with a sentence, also for a key that is no view
 * option. */
int view_options_parse(struct view_options *options, char *text, struct base_err *err);

/* Splits the first item off such a list and moves *text behind it.  Returns the item, unescaped and terminated, or
 * NULL at the end.  *ret_value points behind the first '=', where the item then ends; NULL if there is none. */
char *view_options_split(char **text, char **ret_value);

/* Completes the options after the last one.  `index` is the open dataset; it may be NULL if neither state= nor
 * on_bad= was given.  The function reads the quarantine list that on_bad needs, and reads state=FILE into the
 * options.  It checks that the steps of `past` add up to `start`, and sets `start` if it was not given.  Returns 0,
 * or with a sentence: -EINVAL for a contradiction, an error of a file or of the state. */
int view_options_finish(struct view_options *options, const struct shard_index *index, struct base_err *err);

/* Frees the quarantine list. */
void view_options_done(struct view_options *options);

#endif
