/* SPDX-License-Identifier: Apache-2.0 */
/* The resume state: what a checkpoint must keep, so that a job with any world reads each remaining sample exactly once.
 * It is one line of JSON:
 *
 *   {"version":1,"dataset":"<32 hex>","order":"full","deal":"stride","seed":7,"epoch":3,"start":81920,"tail":"pad"}
 *
 * More keys, if they apply:
 *   "subdir":"train"                             a subtree is dealt
 *   "chunk":[items,chunks]                       order=chunk: samples of a chunk, chunks of a pool
 *   "past":[[world,steps],...]                   deal=block, in the middle of an epoch
 *   "groups":[groups,redeal]                     the order has groups; redeal 0: they keep their samples for ever
 *   "on_bad":"skip","quarantine":"<16 hex>"      on_bad is not eio; the hash of the quarantine list
 *
 * A state without subdir and on_bad has under 256 bytes with up to two past segments (one change of the world).  The
 * parser refuses unknown keys, because they may change the order.
 * Threads: pure functions; any thread. */
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
	uint8_t dataset[16]; /* identity of the dataset */
	/* order, deal, tail, seed, epoch, start, past, chunk geometry, groups, on_bad.  subdir is NULL, so the struct
	 * may be copied. */
	struct shard_view_options options;
	char subdir[SHARD_STATE_SUBDIR_MAX + 1]; /* "": the whole dataset */
	uint64_t quarantine;                     /* hash of the list if options.on_bad is not eio */
};

/* Writes the state of a view after `steps_trained` global steps of `epoch`, as NUL-terminated JSON without newline.
 * Steps count from the beginning of the epoch, so in the epoch of options.start they are at least start.  If the epoch
 * is complete, the state is that of the next epoch with start 0.
 * Returns 0; -ERANGE: buf is too small (SHARD_STATE_MAX bytes always suffice); -EINVAL: steps_trained < start;
 * -ENAMETOOLONG: subdir is over SHARD_STATE_SUBDIR_MAX; -EILSEQ: subdir is not UTF-8; -E2BIG: over
 * SHARD_DEAL_SEGMENTS_MAX changes of the world; -ENOMEM. */
int shard_state_format(
        const struct shard_view *view, uint64_t epoch, uint64_t steps_trained, char *buf, size_t buf_size);

/* Parses a state of len bytes; trailing white space is allowed.  err names the key that is wrong.
 * Returns 0; -EUCLEAN: not JSON, a key is unknown, missing or wrong; -EPROTONOSUPPORT: unknown version; -EFBIG: len is
 * not below SHARD_STATE_MAX. */
int shard_state_parse(const char *json, size_t len, struct base_err *err, struct shard_state *ret_state);

/* Bits for shard_state_apply: which options were given explicitly. */
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
	SHARD_STATE_SET_GROUPS = 1 << 9,
	SHARD_STATE_SET_REDEAL = 1 << 10,
};

/* Checks a state against a dataset and the explicit options (`set`), then writes the state into *options.
 *
 * An option that is not in `set` is taken from the state.  An explicit option that differs from the state is refused;
 * an explicit order=auto or deal=auto fits any state.  In the middle of an epoch on_bad and options->quarantine must be
 * those of the state.  At the beginning of an epoch they may differ, but only explicitly: a state with on_bad is
 * refused if `set` has no on_bad and there is no list.  Afterwards options->subdir points into `state`.
 *
 * Returns 0; -EINVAL: an option differs (err names both values) or the list is missing; -ESTALE: the state is of
 * another dataset.  On failure *options is unchanged. */
int shard_state_apply(const struct shard_state *state, const struct shard_index *index, unsigned set,
        struct shard_view_options *options, struct base_err *err);

#endif
