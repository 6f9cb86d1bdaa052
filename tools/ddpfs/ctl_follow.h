/* SPDX-License-Identifier: Apache-2.0 */
/* `ddpfs ctl MNT follow LIST`: announces to a mount what will be opened.
 *
 * Threads: the main thread. */
#ifndef DDPFS_TOOLS_DDPFS_CTL_FOLLOW_H
#define DDPFS_TOOLS_DDPFS_CTL_FOLLOW_H

#include <stdbool.h>
#include <stdint.h>

#define CTL_FOLLOW_LINES "lines"

struct ctl_follow {
	const char *list;    /* its name; NULL: "default" */
	const char *form;    /* NULL: paths; CTL_FOLLOW_LINES: numbers as text; "u32", "u64": numbers in binary */
	const char *listing; /* what numbers mean; NULL: "sorted" */
	const char *dir;     /* ... below this directory of the mount; NULL: its root */
	uint64_t buffer;     /* entries of a shuffle buffer behind the list; 0: there is none */
	bool null;           /* entries end with NUL */
	bool append, end, skip_unknown, json;
};

/* Returns whether an option of follow was given. */
bool ctl_follow_is_set(const struct ctl_follow *options);

/* Announces the entries of the file `list_path` ("-": standard input), in pieces as they come.  list_path does not
 * count with `end`.  Returns the exit status. */
int ctl_follow(const char *target, const char *list_path, const struct ctl_follow *options);

#endif
