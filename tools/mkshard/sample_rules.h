/* SPDX-License-Identifier: Apache-2.0 */
/* Which files form a sample: the options of pack and index that say so, and how index finds it out.
 *
 * Threads: the main thread. */
#ifndef DDPFS_TOOLS_MKSHARD_SAMPLE_RULES_H
#define DDPFS_TOOLS_MKSHARD_SAMPLE_RULES_H

#include <stdbool.h>
#include <stdint.h>

#include "shard/base/err.h"
#include "shard/pack.h"

/* Which files form a sample, and which are common: the options --sample, --group and --common of pack and index. */
struct mkshard_rules {
	struct shard_pack_rules rules;
	bool sample_given, common_given, group_given;
	bool automatic;  /* --sample=auto, the default of index */
	bool knows_auto; /* --sample takes "auto" */
};
/* The take() of these options (tools/common/cli.h); `at` is the struct mkshard_rules. */
int mkshard_take_sample(void *at, char *arg, struct base_err *err);
int mkshard_take_group(void *at, char *arg, struct base_err *err);
int mkshard_take_common(void *at, char *arg, struct base_err *err);

/* Counts neighbouring files with one key (WebDataset: the name up to the first dot).  Begins zeroed; give it the
 * paths in their order. */
struct mkshard_keys {
	const char *last; /* the key of the latest file, inside its path; NULL: none */
	size_t last_len;
	uint64_t keys;    /* seen so far */
	uint64_t several; /* those with several files */
	bool counted;     /* `several` counts `last` already */
};

/* Counts the next path, which must live until the next call.  keys->last = NULL begins a new list.  Returns true for
 * the second file of a key. */
bool mkshard_keys_see(struct mkshard_keys *keys, const char *path);

/* Whether at least half of the keys have several files. */
bool mkshard_keys_paired(const struct mkshard_keys *keys);

#endif
