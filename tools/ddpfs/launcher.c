/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the variables of each launcher, and decides between nested ones; launcher.h first. */
#include "tools/ddpfs/launcher.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shard/base/units.h"
#include "shard/deal.h"

/* One launcher.  The table below is in the order of nesting, innermost first. */
struct source {
	const char *name;
	const char *rank_name;
	const char *world_names[2]; /* the first one that is set */
	bool (*valid)(void);        /* NULL: always */
	const char *local_name;     /* the variable with the ranks of this host */
};

/* srun numbers its steps from 0.  Numbers from SLURM_MAX_NORMAL_STEP_ID (0xfffffff0) up are not steps of srun
 * (slurm.h):
 * batch script, external step, interactive shell, and pseudo steps of `srun --overlap` in a batch step. */
static bool inside_srun_step(void)
{
	const char *text = getenv("SLURM_STEP_ID");
	uint64_t step;
	return text && base_parse_u64(text, 0xfffffff0U - 1, &step) == 0;
}

static const struct source sources[] = {
	{ "torchrun", "RANK", { "WORLD_SIZE", NULL }, NULL, "LOCAL_WORLD_SIZE" },
	{ "horovod", "HOROVOD_RANK", { "HOROVOD_SIZE", NULL }, NULL, "HOROVOD_LOCAL_SIZE" },
	{ "ompi", "OMPI_COMM_WORLD_RANK", { "OMPI_COMM_WORLD_SIZE", NULL }, NULL, "OMPI_COMM_WORLD_LOCAL_SIZE" },
	{ "pmi", "PMI_RANK", { "PMI_SIZE", NULL }, NULL, "MPI_LOCALNRANKS" },
	{ "slurm", "SLURM_PROCID", { "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS" }, inside_srun_step,
	        "SLURM_NTASKS_PER_NODE" },
};
enum { SOURCES = sizeof(sources) / sizeof(sources[0]) };

const char *launcher_names(void)
{
	return "torchrun, horovod, ompi, pmi, slurm";
}

static int read_number(const char *name, const char *text, struct base_err *err, uint32_t *ret_value)
{
	uint64_t value;
	if (base_parse_u64(text, SHARD_WORLD_MAX, &value) < 0)
		return base_err_set(err, -EINVAL,
		        "%s='%s' in the environment is not a number from 0 to %d: correct it, "
		        "or give -o rank=R,world=W",
		        name, base_quoted(text), SHARD_WORLD_MAX);
	*ret_value = (uint32_t)value;
	return 0;
}

/* Returns 0 and fills *ret; -ENOENT if this launcher set no rank; -ENODATA if the world is missing; -EINVAL for a
 * wrong value. */
static int read_source(const struct source *source, struct base_err *err, struct launcher *ret)
{
	struct launcher found = { .name = source->name, .rank_name = source->rank_name };
	if (source->valid && !source->valid())
		return -ENOENT;
	const char *rank = getenv(source->rank_name);
	const char *world = NULL;
	for (int i = 0; i < 2 && !world && source->world_names[i]; i++) {
		found.world_name = source->world_names[i];
		world = getenv(found.world_name);
	}
	if (!rank)
		return -ENOENT;
	if (!world)
		return base_err_set(err, -ENODATA, "%s is set but %s is not: set both, or give -o rank=R,world=W",
		        source->rank_name, source->world_names[0]);
	int r = read_number(found.rank_name, rank, err, &found.rank);
	if (r == 0)
		r = read_number(found.world_name, world, err, &found.world);
	if (r < 0)
		return r;
	if (found.rank >= found.world)
		return base_err_set(err, -EINVAL,
		        "%s=%u is not below %s=%u: correct the environment, or give -o rank=R,world=W", found.rank_name,
		        found.rank, found.world_name, found.world);
	const char *local = getenv(source->local_name);
	uint64_t n;
	if (local && base_parse_u64(local, found.world, &n) == 0)
		found.local_world = (uint32_t)n;
	*ret = found;
	return 0;
}

static bool equal(const struct launcher *a, const struct launcher *b)
{
	return a->rank == b->rank && a->world == b->world;
}

/* Whether the variables of `inner` surely come from that launcher.  Anyone may set RANK, but only torchrun sets
 * TORCHELASTIC_RUN_ID. */
static bool proven_inside(const struct launcher *inner)
{
	return strcmp(inner->name, "torchrun") != 0 || getenv("TORCHELASTIC_RUN_ID");
}

static int settle(
        const struct launcher *inner, const struct launcher *outer, struct base_err *err, struct launcher *best)
{
	if (equal(inner, outer))
		return 0;
	if (!proven_inside(inner))
		return base_err_set(err, -EINVAL,
		        "%s=%u, %s=%u and %s=%u, %s=%u disagree: choose with --launcher=%s or "
		        "--launcher=%s, or give -o rank=R,world=W",
		        inner->rank_name, inner->rank, inner->world_name, inner->world, outer->rank_name, outer->rank,
		        outer->world_name, outer->world, inner->name, outer->name);
	if (!best->note[0])
		snprintf(best->note, sizeof(best->note), "%s=%u of %u is the launcher's own place and was passed over",
		        outer->rank_name, outer->rank, outer->world);
	return 0;
}

int launcher_find(const char *only, struct base_err *err, struct launcher *ret_launcher)
{
	struct launcher best = { 0 };
	struct base_err half = { 0 };
	bool known = false;
	for (int i = 0; i < SOURCES; i++) {
		struct launcher found;
		struct base_err wrong = { 0 };
		if (only && strcmp(only, sources[i].name) != 0)
			continue;
		known = true;
		int r = read_source(&sources[i], &wrong, &found);
		if (r == -ENODATA && !half.code)
			half = wrong;
		if (r == -ENOENT || r == -ENODATA)
			continue;
		if (r < 0)
			return base_err_set(err, r, "%s", wrong.text);
		if (!best.name) {
			best = found;
			continue;
		}
		r = settle(&best, &found, err, &best);
		if (r < 0)
			return r;
	}
	if (!known) {
		return base_err_set(
		        err, -EINVAL, "unknown launcher '%s': one of %s", base_quoted(only), launcher_names());
	}
	/* An incomplete launcher (a forgotten RANK=0 in a shell) matters only if no launcher is complete. */
	if (!best.name)
		return half.code ? base_err_set(err, -EINVAL, "%s", half.text) : -ENOENT;
	*ret_launcher = best;
	return 0;
}
