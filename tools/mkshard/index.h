/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `mkshard index`:
 *
 *   parse.c        reads one shard: its members and their checksums, at the speed of the device
 *   index_store.c  finds shards in a store, and sends the index there
 *   index.c        options, what forms a sample, writing the index
 *
 * Threads: a struct found_shard belongs to one thread. */
#ifndef DDPFS_TOOLS_MKSHARD_INDEX_H
#define DDPFS_TOOLS_MKSHARD_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "shard/bare.h"
#include "shard/base/err.h"
#include "shard/format.h"
#include "shard/remote/store.h"

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
	char *file;   /* path of the shard, or its URL; owned */
	char *stored; /* its path in the index: relative if it lies below the dataset; owned */
	char *prefix; /* stands before each member's path; NULL: none; owned */
	enum shard_container container;
	uint64_t size_bytes; /* of an object: known before it is read */
	int64_t mtime_ns;    /* 0 for an object */
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

/* Returns whether a file is a shard by its name. */
bool found_shard_is_name(const char *name);

/* Tar files that are compressed: they are no shards. */
struct compressed_tars {
	uint32_t n;
	char first[256]; /* its name, quoted */
};
/* Takes in the name of a file that is no shard. */
void compressed_tars_take(struct compressed_tars *tars, const char *name);
/* Warns if there are any. */
void compressed_tars_warn(const struct compressed_tars *tars);

/* Reads the shard `shard->file`, or if store is not NULL its object `shard->stored`, tar or bare, and fills the other
 * members.  timeout_s: how long a read waits for a store that does not answer.  With `keep_going` it skips members
 * that a dataset cannot hold, the rest of a damaged tar, and shards that cannot be read.  It still fails if a store
 * does not answer.  Returns 0, or -errno with a sentence that names shard and byte. */
int found_shard_parse(struct found_shard *shard, struct remote_store *store, uint64_t timeout_s, bool keep_going,
        struct base_err *err);

/* A dataset in a store */

/* Opens the store of a dataset.  sends: the index will be sent there.  *ret_there: it is sent, and will replace one.
 * Returns 0, or with a sentence: -EEXIST: there is an index, without `force`; -EROFS: nothing can be sent to an HTTP
 * server; errors of remote_store_open and remote_object_size. */
int index_store_open(const char *dataset, bool sends, bool force, struct base_err *err, struct remote_store **ret_store,
        bool *ret_there);

/* Finds the shards: the n objects that `names` has as URLs, or if n is 0, those directly below the dataset, sorted by
 * name.  Sets file, stored and size_bytes of each.  It asks for sizes on `jobs` threads.  With keep_going an object
 * that is not there is absent.  The caller frees *ret_shards and what it holds, also if the function fails.
 * Returns 0, or -errno with a sentence. */
int index_store_find(struct remote_store *store, char **names, uint32_t n, uint32_t jobs, bool keep_going,
        struct base_err *err, struct found_shard **ret_shards, uint32_t *ret_n);

/* Returns where on this host the index is made before it is sent; the caller frees it.  A run that is killed leaves at
 * most this file.  Returns 0, or -errno with a sentence. */
int index_store_place(const struct remote_store *store, struct base_err *err, char **ret_path);

/* Sends the index at `path`, and removes that file.  If that fails the file stays, and the sentence names it.
 * Returns 0 or -errno. */
int index_store_send(struct remote_store *store, const char *path, struct base_err *err);

/* Returns the path of a member. */
static inline const char *found_path(const struct found_shard *shard, const struct found_file *file)
{
	return shard->paths + file->path;
}

#endif
