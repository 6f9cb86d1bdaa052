/* SPDX-License-Identifier: Apache-2.0 */
/* The options that choose a view, as text: order deal tail seed epoch start past rank world subdir chunk pool state on_bad
 * quarantine.
 * The mount options and `-o` of the tools that only look (ddpfs order, mkshard stats) share them.
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
	struct shard_view_options view;      /* subdir points into `value` given, or into `state` */
	unsigned set;                        /* which keys were given: SHARD_STATE_SET_*, VIEW_OPTIONS_SET_* */
	const char *state_path;              /* state=FILE, or state=-FILE; NULL = not given */
	bool state_optional;                 /* state=-FILE: it may be missing, then as if it were not given */
	bool state_missing;                  /* it was, says view_options_finish */
	struct shard_state state;            /* after view_options_finish with a state_path */
	const char *quarantine_path;         /* quarantine=FILE; NULL = the list beside the index */
	struct shard_quarantine *quarantine; /* view.quarantine; NULL with on_bad=eio */
};
#define VIEW_OPTIONS_DEFAULT ((struct view_options){ .view = SHARD_VIEW_OPTIONS_DEFAULT })

/* The keys above, space-separated, for messages that list what there is. */
extern const char view_options_keys[];

/* Takes one key=value (value NULL: a key without '=').  `value` must outlive `options`.
 * Returns 1 taken, 0 not a view option, -EINVAL: err has one sentence that names the option. */
int view_options_set(struct view_options *options, const char *key, const char *value, struct base_err *err);

/* Takes a comma-separated list ("\," is a comma, "\\" a backslash), changing `text` in place; empty items are fine.
 * `text` must outlive `options`.  A key that is no view option is -EINVAL. */
int view_options_parse(struct view_options *options, char *text, struct base_err *err);

/* Splits the first item off such a list: returns the item (unescaped, terminated) and moves *text on; NULL at the end.
 * *ret_value: behind the first '=' (the item then ends there), or NULL. */
char *view_options_split(char **text, char **ret_value);

/* After the last option and with the dataset open (index may be NULL where neither state= nor on_bad= was given): reads the
 * quarantine list that on_bad needs, checks what belongs together (past sums up to start, which it sets
 * when start was not given) and reads state=FILE into the options.  0, -EINVAL, or an error of reading or of the state. */
int view_options_finish(struct view_options *options, const struct shard_index *index, struct base_err *err);

void view_options_done(struct view_options *options);

#endif
