/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `mkshard index`:
 *
 *   parse.c  a shard -> its members, with sums, at the speed of the device
 *   index.c  options, what forms a sample, the index */
#ifndef DDPFS_TOOLS_MKSHARD_INDEX_H
#define DDPFS_TOOLS_MKSHARD_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "shard/bare.h"
#include "shard/base/err.h"
#include "shard/format.h"

/* A member of a shard. */
struct found_file {
	uint64_t path; /* offset in paths */
	uint64_t offset, length;
	uint64_t xxh3;
	uint64_t first_block; /* in blocks, for files over SHARD_BLOCK */
	int64_t mtime_s;
	uint32_t mode;
	bool directory;
	bool left_out; /* another one of this name came first (--keep-going) */
	/* Bare shards say these themselves: */
	bool common;
	uint64_t group; /* offset in paths, FOUND_NO_GROUP */
};
#define FOUND_NO_GROUP UINT64_MAX

struct found_shard {
	const char *file; /* where it is */
	char *stored;     /* its path in the index: relative to the dataset where it lies below it; owned */
	char *prefix;     /* put before each path, or NULL; owned */
	enum shard_container container;
	uint64_t size_bytes;
	int64_t mtime_ns;
	struct found_file *files;
	uint64_t n_files, capacity;
	char *paths;
	uint64_t paths_used, paths_size;
	uint64_t *blocks;
	uint64_t n_blocks, blocks_size;
	char **left_out; /* with keep_going: "'path': reason"; owned */
	uint64_t n_left_out;
	bool absent;                       /* with keep_going: nothing of it could be read */
	char *record;                      /* the options record at the head of a packed tar shard, or NULL; owned */
	struct shard_bare_dataset dataset; /* bare */
};

void found_shard_done(struct found_shard *shard);

/* Notes what is not taken.  -ENOMEM. */
int found_shard_leave_out(struct found_shard *shard, const char *text);

/* Reads a shard, tar or bare.  keep_going: members that a dataset cannot hold are left out instead of refused, and so is
 * the rest of a tar from where it is damaged on, or the whole of a shard that cannot be read. */
int found_shard_parse(struct found_shard *shard, bool keep_going, struct base_err *err);

static inline const char *found_path(const struct found_shard *shard, const struct found_file *file)
{
	return shard->paths + file->path;
}

#endif
