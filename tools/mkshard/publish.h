/* SPDX-License-Identifier: Apache-2.0 */
/* Where a dataset is made, and how it gets its name.
 *
 *   DATASET.partial/    being made: shards, journal, command, staging files; a rerun goes on here
 *   DATASET             appears by one rename, complete and durable
 *   DATASET.replaced/   with --force: the old dataset until it is removed
 *
 * The journal moves with the directory and is the last thing that is removed.  So the next run sees where this one
 * ended, by a signal or an error:
 *
 *   DATASET.partial has a journal and no index          shards are missing: it packs the rest
 *   DATASET.partial has a journal and an index          all is complete: it only gives it its name
 *   DATASET has a journal and an index                  only the tidying is missing
 *   DATASET.partial has "replacing", DATASET is gone    between two renames: it gives the old dataset its name back
 *
 * File systems with flags of renameat2(2): NOREPLACE for a new dataset, EXCHANGE for --force.  Others (NFS, 9p, some
 * FUSE): rename(2), which takes a directory's place only when that is empty; for --force two of them, with DATASET gone
 * in between.
 *
 * Threads: one. */
#ifndef DDPFS_TOOLS_MKSHARD_PUBLISH_H
#define DDPFS_TOOLS_MKSHARD_PUBLISH_H

#include <stdbool.h>

#include "shard/base/err.h"
#include "shard/pack.h"

struct pack_places {
	char *dataset; /* without trailing slashes */
	char *partial;
	char *replaced;
	char quoted[512]; /* dataset, printable */
	int lock;         /* partial, locked; -1 = not yet */
	bool published;   /* what was partial is DATASET */
};

/* -EINVAL: `dataset` is no name for one; -ENOMEM. */
int pack_places_init(struct pack_places *places, const char *dataset, struct base_err *err);
void pack_places_done(struct pack_places *places);

/* Completes or takes back what an earlier run left between its renames, and says whether DATASET can be made here.
 * -EEXIST, -EBUSY (another mkshard, a mount point), ... */
int pack_places_check(struct pack_places *places, bool force, struct base_err *err);

/* Makes DATASET.partial, locks it, and tries whether directories can be renamed in it; nothing has been read yet.
 * `command` is what `command` shall hold, or NULL.  -EBUSY: another run is at work. */
int pack_places_lock(struct pack_places *places, const char *command, struct base_err *err);

/* Drops what an interrupted run has left in DATASET.partial. */
int pack_places_restart(struct pack_places *places, struct base_err *err);

/* Shards are about to be written anew: an index of them is no longer true.  Returns 0 or -errno. */
int pack_places_drop_index(const struct pack_places *places, struct base_err *err);

/* Gives the complete DATASET.partial its name.  On failure all of it is still there, and DATASET is what it was; the
 * sentence says how to go on.  With places->published: the name is right, but may not last a power cut. */
int pack_publish(struct pack_places *places, bool force, const struct shard_pack_plan *plan, struct base_err *err);

/* Removes the replaced dataset and the journal.  Failures are warnings: the new dataset stands.  The journal must be
 * closed. */
void pack_publish_finish(struct pack_places *places);

/* After a failure: what a rerun can use stays, everything else goes. */
void pack_places_tidy(const struct pack_places *places);

/* Nothing of DATASET.partial is of use, and a living journal is in it: only that stays. */
void pack_places_sweep(const struct pack_places *places);

#endif
