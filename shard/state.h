/* SPDX-License-Identifier: Apache-2.0 */
/* The resume state: what a checkpoint must keep to continue exactly once with any world size.  One line of JSON:
 *
 *   {"version":1,"dataset":"<32 hex>","order":"full","deal":"stride","seed":7,"epoch":3,"start":81920,"tail":"pad"}
 *
 * plus "subdir" when set, "chunk":[items,pool] for order=chunk and "past":[[world,steps],...] when a deal=block epoch is
 * under way, and "on_bad":"skip","quarantine":"<16 hex>" (the list's hash) where that is not eio.  Under 256 bytes without a
 * subdir and on_bad and with up to two past segments (a state after one change of the world).
 * Unknown keys are refused (they may mean something that changes the order).  Threads: pure functions. */
#ifndef DDPFS_SHARD_STATE_H
#define DDPFS_SHARD_STATE_H

#include <stddef.h>
#include <stdint.h>

#include "shard/base/err.h"
#include "shard/view.h"

enum {
	SHARD_STATE_MAX = 4096,       /* bytes, NUL included: any state fits; longer input is refused */
	SHARD_STATE_SUBDIR_MAX = 255, /* bytes of a subdir that a state keeps */
};

struct shard_state {
	uint8_t dataset[16];
	struct shard_view_options
	        options; /* order, deal, tail, seed, epoch, start, past, chunk geometry, on_bad; subdir is NULL:
	                                      the struct may be copied */
	char subdir[SHARD_STATE_SUBDIR_MAX + 1];
	uint64_t quarantine; /* hash of the list, where options.on_bad is not eio */
};

/* State of a view after `steps_trained` global steps of `epoch` (counted from the epoch's beginning, so at least start in
 * the epoch of `start`).  When the epoch is complete the state is that of the next epoch at start 0.
 * Writes NUL-terminated JSON without newline.
 * -ERANGE when buf is too small (SHARD_STATE_MAX always suffices), -EINVAL (fewer steps than start),
 * -ENAMETOOLONG or -EILSEQ (subdir too long, or not UTF-8), -E2BIG (too many changes of the world), -ENOMEM. */
int shard_state_format(
        const struct shard_view *view, uint64_t epoch, uint64_t steps_trained, char *buf, size_t buf_size);

/* Parses (trailing white space is fine).  err names the key that is wrong.  -EUCLEAN, -EPROTONOSUPPORT (version),
 * -EFBIG. */
int shard_state_parse(const char *json, size_t len, struct base_err *err, struct shard_state *ret_state);

/* Which options were given explicitly. */
enum {
	SHARD_STATE_SET_ORDER = 1 << 0,
	SHARD_STATE_SET_DEAL = 1 << 1,
	SHARD_STATE_SET_SEED = 1 << 2,
	SHARD_STATE_SET_TAIL = 1 << 3,
	SHARD_STATE_SET_SUBDIR = 1 << 4,
	SHARD_STATE_SET_CHUNK = 1 << 5, /* chunk or pool */
	SHARD_STATE_SET_EPOCH = 1 << 6,
	SHARD_STATE_SET_START = 1 << 7, /* start or past */
	SHARD_STATE_SET_ON_BAD = 1 << 8,
};

/* Checks a state against a dataset and explicit options, and puts it into them: a given option that differs is refused
 * (-EINVAL, err names both values; a given order=auto or deal=auto agrees with anything), one not given is taken from
 * the state.  on_bad and the list that options->quarantine holds must be the state's in the middle of an epoch (-EINVAL);
 * at the beginning of one they may be others, but not by default: a state with on_bad and no list
 * given is refused.  options->subdir may point into `state` afterwards.  Another dataset is -ESTALE. */
int shard_state_apply(const struct shard_state *state, const struct shard_index *index, unsigned set,
        struct shard_view_options *options, struct base_err *err);

#endif
