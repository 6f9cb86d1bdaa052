/* SPDX-License-Identifier: Apache-2.0 */
/* Fills a tier (cache/tier.h) from the source of a dataset, without the engine: `ddpfs warm`.
 *
 * It reads all files in storage order, in long reads, through the same backend as a mount (prefetch/io_backend.h).  So
 * it claims what it fetches, verifies it, and fetches nothing that the tier has.  Several processes that do this at the
 * same time, and mounts, fetch each block once.  What is stored stays when the process is killed.
 *
 * Threads: one thread calls; it starts those of the backend.  Memory: at most 144 MiB. */
#ifndef DDPFS_PREFETCH_TIER_FILL_H
#define DDPFS_PREFETCH_TIER_FILL_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/tier.h"
#include "shard/base/err.h"
#include "shard/index.h"

struct prefetch_tier_fill_options {
	const struct shard_index *index; /* not owned */
	struct cache_tier *tier;         /* open for the dataset of the index; not owned */
	uint64_t timeout_ns;             /* prefetch_options.timeout_ns */
	/* Called after each read with the bytes of its blocks; NULL: not. */
	void (*progress)(void *arg, uint64_t bytes);
	void *arg; /* the first argument of `progress` */
};

/* What was done, in bytes of blocks. */
struct prefetch_tier_filled {
	uint64_t read_bytes;    /* looked at; less than the dataset if the tier is full */
	uint64_t held_bytes;    /* of these, what the tier has now */
	uint64_t fetched_bytes; /* what came from the source, gaps between blocks included */
	uint64_t stored_bytes;  /* what this process has stored */
	uint64_t bad_blocks;    /* blocks of the dataset whose checksum is wrong; they are not stored */
	uint32_t bad_file;      /* the file of the first of them */
	bool full;              /* the tier has no room for more */
	bool no_entry;          /* the tier had no entry left for some blocks */
};

/* Fills the tier until it has all or is full.
 * Returns 0, or with a sentence in err: an error of a read of the source; -ENODEV: the tier has switched itself off;
 * -ESTALE: a shard is not what the index says; -ENOMEM or -EAGAIN (no thread can be started).  *ret is set after an
 * error, too. */
int prefetch_tier_fill(
        const struct prefetch_tier_fill_options *options, struct base_err *err, struct prefetch_tier_filled *ret);

#endif
