/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `mkshard index`:
 *
 *   parse.c  reads one shard: its members and their checksums, at the speed of the device
 *   index.c  options, what forms a sample, writing the index
 *
 * Threads: a struct found_shard belongs to one thread. */
#ifndef DDPFS_TOOLS_MKSHARD_INDEX_H
#define DDPFS_TOOLS_MKSHARD_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "shard/bare.h"
#include "shard/base/err.h"
#include "shard/format.h"

/* A member of a shard. */
struct found_file {
	uint64_t path;           /* offset in `paths` of the shard */
	uint64_t offset, length; /* bytes, in the shard */
	uint64_t xxh3;
	uint64_t first_block; /* index in `blocks` of the shard, for files over SHARD_BLOCK */
	int64_t mtime_s;
	uint32_t mode;
	bool directory;
	bool left_out; /* with --keep-going: an earlier file has this name */
	/* From the footer of a bare shard: */
	bool common;
	uint64_t group; /* offset in `paths` of the sample's key, or FOUND_NO_GROUP */
};
#define FOUND_NO_GROUP UINT64_MAX

struct found_shard {
	const char *file; /* path of the shard */
	char *stored;     /* its path in the index: relative if it lies below the dataset; owned */
	char *prefix;     /* stands before each member's path; NULL: none; owned */
	enum shard_container container;
	uint64_t size_bytes;
	int64_t mtime_ns;
	struct found_file *files;
	uint64_t n_files, capacity;
	char *paths; /* texts of all members, NUL-terminated */
	uint64_t paths_used, paths_size;
	uint64_t *blocks; /* XXH3-64 of each block, of files over SHARD_BLOCK */
	uint64_t n_blocks, blocks_size;
	char **left_out; /* with keep_going: "'path': reason"; owned */
	uint64_t n_left_out;
	bool absent;                       /* with keep_going: the shard could not be read at all */
	char *record;                      /* the options record at the head of a packed tar shard, or NULL; owned */
	struct shard_bare_dataset dataset; /* for a bare shard */
};

/* Frees the members. */
void found_shard_done(struct found_shard *shard);

/* Notes a member that is left out; copies `text`.  Returns 0 or -ENOMEM. */
int found_shard_leave_out(struct found_shard *shard, const char *text);

/* Reads the shard `shard->file`, tar or bare, and fills the other members.  With `keep_going` it leaves out what it
 * would otherwise refuse: members that a dataset cannot hold, the rest of a tar after damage, a shard that cannot be
 * read.  Returns 0, or -errno with a sentence that names shard and byte. */
int found_shard_parse(struct found_shard *shard, bool keep_going, struct base_err *err);

/* Returns the path of a member. */
static inline const char *found_path(const struct found_shard *shard, const struct found_file *file)
{
	return shard->paths + file->path;
}

#endif
