/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `mkshard pack`, in the order in which they run:
 *
 *   scan.c     sources -> items (directories, lists)       \
 *   archive.c  sources -> items (tar, zip, compressed tar)  > shard/pack: the plan
 *   write.c    plan -> shards in DATASET.partial/, by several threads
 *   journal.c  which shards are complete, with their sums: what a rerun after a kill goes on from
 *   publish.c  the places, and publication under the final name
 *   pack.c     options, index
 *
 * Errors: a file that cannot be packed ends the run, but first the others are looked at, so that all can be mended in one go;
 * with --keep-going they are left out and listed.  Other errors end it at once. */
#ifndef DDPFS_TOOLS_MKSHARD_PACK_H
#define DDPFS_TOOLS_MKSHARD_PACK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "shard/base/err.h"
#include "shard/pack.h"

/* Where items' bytes come from. */
struct pack_source {
	char *name; /* as given, for messages */
	int dirfd;  /* directories and lists: items' paths are relative to it; -1 otherwise */
	/* Archives: all items lie in one uncompressed file, the archive itself or a staged copy. */
	char *blob;
	uint64_t blob_size;
	int64_t blob_mtime_ns;
	uint64_t blob_ino;
};

enum { PACK_REFUSED_SHOWN = 20 }; /* without --keep-going: enough to see what is wrong with them */

/* What cannot be packed, in the order found; printed sorted. */
struct pack_left_out {
	char *text; /* "'path': reason" */
};

/* All items of all sources.  Guarded by lock while scanning threads run. */
struct pack_input {
	pthread_mutex_t lock;
	struct shard_pack_item *items;
	uint64_t n_items, items_capacity;
	char **chunks; /* memory of the items' paths */
	size_t n_chunks, chunk_used, chunk_size;
	struct pack_source *sources;
	uint32_t n_sources;
	struct pack_left_out *left_out;
	uint64_t n_left_out; /* texts */
	uint64_t n_refused;  /* files; without keep_going more than the texts that were kept */
	bool keep_going;
	uint64_t dataset_dev, dataset_ino; /* the directory DATASET is made in */
};

void pack_input_init(struct pack_input *input, bool keep_going);
void pack_input_done(struct pack_input *input);
/* Adds a source and returns its number, or -ENOMEM.  `dirfd` and `blob` are taken over. */
int64_t pack_input_source(struct pack_input *input, const char *name, int dirfd, char *blob);
/* Adds an item; its path is copied.  Takes the lock.  -ENOMEM. */
int pack_input_add(struct pack_input *input, const struct shard_pack_item *item);
/* A file cannot be packed: notes err's text and returns 0, so that the others are looked at.  -ENOMEM, also when that is what err
 * says. */
int pack_input_refuse(struct pack_input *input, struct base_err *err);

/* A directory: everything below it, symbolic links followed. */
int pack_scan_directory(struct pack_input *input, const char *path, struct base_err *err);
/* NUL-separated names on `fd`, relative to `directory`. */
int pack_scan_list(struct pack_input *input, int fd, const char *directory, struct base_err *err);
/* An archive.  Compressed ones and pipes are unpacked to a file in `staging` (a directory), at most `limit` bytes (0: 200
 * times what was read of the archive, at least 1 GiB). */
int pack_scan_archive(
        struct pack_input *input, const char *path, const char *staging, uint64_t limit, struct base_err *err);

/* A finished shard's sums.  One per item in storage order; blocks: those of the files over SHARD_BLOCK, in a row. */
struct pack_shard_sums {
	uint64_t *xxh3;
	int32_t *left_out; /* -errno of items that could not be read */
	uint64_t *blocks;
	uint64_t n_blocks;
	uint64_t size_bytes;
	bool complete;
};

/* The journal.  Records are appended by one thread at a time (its own lock). */
struct pack_journal;
/* Opens or makes `dir`/journal and locks it.  -EBUSY: another mkshard is at work; -ESTALE: it belongs to another plan. */
int pack_journal_open(const char *dir, const struct shard_pack_plan *plan, struct pack_shard_sums *sums,
        struct base_err *err, struct pack_journal **ret_journal);
int pack_journal_add(struct pack_journal *journal, const struct shard_pack_plan *plan, uint32_t shard,
        const struct pack_shard_sums *sums, struct base_err *err);
/* May `dir` hold shards that a run could go on from?  By the size of its journal; true when that cannot be told. */
bool pack_journal_holds_shards(const char *dir);
void pack_journal_close(struct pack_journal *journal);

struct pack_write_options {
	const char *dir; /* DATASET.partial */
	uint32_t jobs;
	uint64_t memory_bytes;
	bool keep_going;
};

/* Writes every shard whose sums are not complete, and fills these in.  A refused file is an error without keep_going. */
int pack_write(struct shard_pack_plan *plan, struct pack_input *input, const struct pack_write_options *options,
        struct pack_journal *journal, struct pack_shard_sums *sums, struct base_err *err);

/* Refuses what cannot be opened, of all that no complete shard holds (sums NULL: of all).  -ENOMEM. */
int pack_check_rest(const struct shard_pack_plan *plan, struct pack_input *input, const struct pack_shard_sums *sums);

#endif
