/* SPDX-License-Identifier: Apache-2.0 */
/* Where `mkshard pack` makes a dataset, and how the dataset gets its final name.
 *
 *   DATASET.partial/    the unfinished dataset: shards, journal, command, staging files; a rerun goes on here
 *   DATASET             appears by one rename, complete and durable
 *   DATASET.replaced/   with --force: the old dataset until it is removed
 *
 * The journal moves with the directory, and is removed last.  So the next run sees where this one ended:
 *
 *   DATASET.partial has a journal and no index          shards are missing: pack the rest
 *   DATASET.partial has a journal and an index          all is complete: only rename
 *   DATASET has a journal and an index                  only working files are left: remove them
 *   DATASET.partial has "replacing", DATASET is gone    between two renames: give the old dataset its name back
 *
 * If the file system knows the flags of renameat2(2), a new dataset uses RENAME_NOREPLACE, and --force
 * RENAME_EXCHANGE.  Other file systems (NFS, 9p, some FUSE) use rename(2), which replaces a directory only if that is
 * empty.  Then --force needs two renames, and DATASET is missing between them.
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
	int lock;         /* descriptor of `partial`, locked with flock(2); -1: not yet */
	bool published;   /* the directory `partial` is now DATASET */
	bool restarted;   /* the run was given --restart */
};

/* Fills the paths.  Returns 0, or with a sentence: -EINVAL if `dataset` cannot be the name of a dataset; -ENOMEM. */
int pack_places_init(struct pack_places *places, const char *dataset, struct base_err *err);
/* Frees the paths and releases the lock. */
void pack_places_done(struct pack_places *places);

/* Completes or reverts what an earlier run left between its renames, and checks whether DATASET can be made here.
 * Returns 0, or with a sentence: -EEXIST without `force`; -EBUSY for another mkshard or a mount point; other -errno. */
int pack_places_check(struct pack_places *places, bool force, struct base_err *err);

/* Makes DATASET.partial, locks it, and tests whether a directory in it can be renamed.  With places->restarted it
 * removes what an interrupted run left there.  Call it before reading sources.  `command` is the text for the file
 * "command", or NULL.  Returns 0, or with a sentence: -EBUSY if another run packs this dataset; other -errno. */
int pack_places_lock(struct pack_places *places, const char *command, struct base_err *err);

/* Removes the index of DATASET.partial, because the run writes shards again and the index would be wrong.  Returns 0,
 * or -errno with a sentence. */
int pack_places_drop_index(const struct pack_places *places, struct base_err *err);

/* Gives the complete DATASET.partial its final name.  Returns 0, or -errno with a sentence that says how to go on.
 * If places->published is set then, the name is right, but a power cut may revert it.  Otherwise DATASET.partial is
 * still complete, and DATASET is unchanged. */
int pack_publish(struct pack_places *places, bool force, const struct shard_pack_plan *plan, struct base_err *err);

/* Removes the replaced dataset and the journal; the caller has closed the journal.  A failure is a warning, because
 * the new dataset is complete. */
void pack_publish_finish(struct pack_places *places);

/* Cleans up after a failure: keeps what a rerun can use, and removes everything else. */
void pack_places_tidy(const struct pack_places *places);

/* Removes all working files of DATASET.partial, the journal last, unless it is published.  For a failed run that
 * completed no shard; it still holds the journal open. */
void pack_places_sweep(const struct pack_places *places);

#endif
