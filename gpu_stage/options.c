/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the options of a stage, and makes a view of them; stage_private.h first. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "gpu_stage/stage_private.h"
#include "shard/state.h"

static const uint64_t MEMORY_DEFAULT_MAX = UINT64_C(4) << 30;

int stage_options_check(const struct ddpfs_stage_options *given, struct base_err *err, struct ddpfs_stage_options *ret)
{
	struct ddpfs_stage_options o = { 0 };
	enum shard_on_bad on_bad;
	if (given && (given->size < offsetof(struct ddpfs_stage_options, seed) || given->size > sizeof(o)))
		return base_err_set(err, -EINVAL,
		        "options.size is %u, this library knows %zu bytes: set it to sizeof(struct "
		        "ddpfs_stage_options) and "
		        "use the library of the same version as the header",
		        given->size, sizeof(o));
	if (given)
		memcpy(&o, given, given->size);
	if (!o.world)
		o.world = 1;
	if (o.world > SHARD_WORLD_MAX || o.rank >= o.world)
		return base_err_set(err, -EINVAL, "rank %u of world %u: rank must be below world, world at most %u",
		        o.rank, o.world, (unsigned)SHARD_WORLD_MAX);
	if (o.memory_bytes && o.memory_bytes < DDPFS_STAGE_MEMORY_MIN)
		return base_err_set(err, -EINVAL, "memory of %llu bytes is too small: give at least %u MiB",
		        (unsigned long long)o.memory_bytes, DDPFS_STAGE_MEMORY_MIN >> 20);
	if (o.on_bad && shard_on_bad_parse(o.on_bad, &on_bad) < 0)
		return base_err_set(
		        err, -EINVAL, "on_bad=%s is not known: eio, skip or substitute", base_quoted(o.on_bad));
	*ret = o;
	return 0;
}

static int parse_words(
        const struct ddpfs_stage_options *o, struct base_err *err, struct shard_view_options *v, unsigned *ret_set)
{
	*ret_set = 0;
	if (o->order && shard_order_mode_parse(o->order, &v->order) < 0)
		return base_err_set(
		        err, -EINVAL, "order=%s is not known: auto, full, chunk, torch or none", base_quoted(o->order));
	if (o->deal && shard_deal_mode_parse(o->deal, &v->deal) < 0)
		return base_err_set(err, -EINVAL, "deal=%s is not known: auto, stride or block", base_quoted(o->deal));
	if (o->tail && shard_tail_parse(o->tail, &v->tail) < 0)
		return base_err_set(err, -EINVAL, "tail=%s is not known: pad, drop or short", base_quoted(o->tail));
	*ret_set = (o->order ? SHARD_STATE_SET_ORDER : 0) | (o->deal ? SHARD_STATE_SET_DEAL : 0) |
	           (o->tail ? SHARD_STATE_SET_TAIL : 0) | (o->subdir && o->subdir[0] ? SHARD_STATE_SET_SUBDIR : 0) |
	           (o->seed ? SHARD_STATE_SET_SEED : 0) | (o->epoch ? SHARD_STATE_SET_EPOCH : 0) |
	           (o->start ? SHARD_STATE_SET_START : 0) | (o->groups ? SHARD_STATE_SET_GROUPS : 0) |
	           (o->redeal ? SHARD_STATE_SET_REDEAL : 0);
	return 0;
}

/* Reads the quarantine list, if *list is NULL and the caller did not refuse one.  A caller that gives on_bad=skip or
 * substitute needs no list: bad samples are then found when they are read. */
static int read_list(const struct shard_index *index, const struct ddpfs_stage_options *o, struct base_err *err,
        struct shard_quarantine **list)
{
	struct base_err own = { 0 };
	if (*list || (o->quarantine && !o->quarantine[0]))
		return 0;
	int rc = shard_quarantine_read(index, o->quarantine, &own, list);
	if (rc == -ENOENT && o->on_bad && !o->quarantine)
		return 0;
	return rc < 0 ? base_err_set(err, rc, "%s", own.text) : 0;
}

static int apply_on_bad(const struct shard_index *index, const struct ddpfs_stage_options *o,
        enum shard_on_bad of_state, struct base_err *err, struct shard_quarantine **list, struct shard_view_options *v,
        unsigned *set)
{
	enum shard_on_bad wanted = of_state;
	if (o->on_bad)
		(void)shard_on_bad_parse(o->on_bad, &wanted); /* valid: stage_options_check parsed it */
	if (wanted != SHARD_ON_BAD_EIO) {
		int rc = read_list(index, o, err, list);
		if (rc < 0)
			return rc;
		v->quarantine = *list;
	}
	if (o->on_bad && (wanted == SHARD_ON_BAD_EIO || v->quarantine)) {
		v->on_bad = wanted;
		*set |= SHARD_STATE_SET_ON_BAD;
	}
	return 0;
}

int stage_options_view(const struct shard_index *index, const struct ddpfs_stage_options *o, struct base_err *err,
        struct shard_quarantine **list, struct shard_view **ret_view)
{
	struct shard_view_options v = SHARD_VIEW_OPTIONS_DEFAULT;
	struct shard_state state = { .options.on_bad = SHARD_ON_BAD_EIO };
	unsigned set;
	int rc = parse_words(o, err, &v, &set);
	if (rc < 0)
		return rc;
	v.seed = o->seed;
	v.epoch = o->epoch;
	v.start = o->start;
	v.groups = o->groups;
	v.redeal = o->redeal;
	v.rank = o->rank;
	v.world = o->world;
	v.subdir = o->subdir;
	if (o->state)
		rc = shard_state_parse(o->state, strlen(o->state), err, &state);
	if (rc == 0)
		rc = apply_on_bad(index, o, state.options.on_bad, err, list, &v, &set);
	if (rc == 0 && o->state)
		rc = shard_state_apply(&state, index, set, &v, err);
	if (rc < 0)
		return rc;
	return shard_view_new(index, &v, err, ret_view);
}

/* Returns MemAvailable of the host in bytes, or 0 if it is unknown. */
static uint64_t available(void)
{
	char line[128];
	unsigned long long kib = 0;
	FILE *f = fopen("/proc/meminfo", "re");
	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
			break;
	}
	if (f)
		fclose(f);
	return (uint64_t)kib << 10;
}

uint64_t stage_options_memory(const struct ddpfs_stage_options *options)
{
	if (options->memory_bytes)
		return options->memory_bytes;
	uint64_t bytes = available() / 4;
	if (bytes > MEMORY_DEFAULT_MAX)
		bytes = MEMORY_DEFAULT_MAX;
	return bytes < DDPFS_STAGE_MEMORY_MIN ? DDPFS_STAGE_MEMORY_MIN : bytes;
}
