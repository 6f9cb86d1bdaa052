/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `mkshard pack`, in the order in which they run.
 *
 *   scan.c     sources -> items (directories, lists)       \
 *   scan_archive.c  sources -> items (tar, zip, compressed tar)  > shard/pack: the plan
 *   write.c    plan -> shards in DATASET.partial/, by several threads
 *   journal.c  which shards are complete, with their sums: what a rerun after a kill goes on from
 *   publish.c  the places, and publication under the final name
 *   pack.c     options, the run, the index
 *
 * Errors: a file that cannot be packed ends the run.  Before that, the run checks the other files and lists all that
 * cannot be packed, so that the user can repair all at once.  With --keep-going it leaves them out.  Other errors end
 * the run at once.
 *
 * Threads: pack_input has a lock for the threads of scan.c and write.c; the journal has its own. */
#ifndef DDPFS_TOOLS_MKSHARD_PACK_H
#define DDPFS_TOOLS_MKSHARD_PACK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "shard/base/err.h"
#include "shard/pack.h"

/* A source: where the bytes of items come from. */
struct pack_source {
	char *name; /* as the user gave it, for messages */
	int dirfd;  /* of a directory or list: the paths of items are relative to it; -1: an archive */
	/* Of an archive: all items lie in one uncompressed file, the archive itself or a staged copy. */
	char *blob; /* its path */
	uint64_t blob_size;
	int64_t blob_mtime_ns;
	uint64_t blob_ino;
};

enum { PACK_REFUSED_SHOWN = 20 }; /* texts kept without --keep-going: enough to see what is wrong */

/* A file that cannot be packed.  The list is in the order found, and printed sorted. */
struct pack_left_out {
	char *text; /* "'path': reason" */
};

/* All items of all sources.  `lock` guards all members while the threads of a scan run. */
struct pack_input {
	pthread_mutex_t lock;
	struct shard_pack_item *items;
	uint64_t n_items, items_capacity;
	char **chunks; /* memory for the paths of items, so that each path needs no malloc */
	size_t n_chunks, chunk_used, chunk_size;
	struct pack_source *sources;
	uint32_t n_sources;
	struct pack_left_out *left_out;
	uint64_t n_left_out; /* texts in `left_out` */
	uint64_t n_refused;  /* files; without keep_going it may exceed n_left_out */
	bool keep_going;
	bool with_hidden;                  /* pack hidden directories at the root */
	char hidden[256];                  /* the first one that was left out, printable; "": none */
	uint64_t dataset_dev, dataset_ino; /* the directory in which DATASET is made */
};

void pack_input_init(struct pack_input *input, bool keep_going);
/* Frees everything, and closes the sources. */
void pack_input_done(struct pack_input *input);
/* Adds a source and takes over `dirfd` and `blob`.  Returns its number, or -ENOMEM. */
int64_t pack_input_source(struct pack_input *input, const char *name, int dirfd, char *blob);
/* Adds an item and copies its path.  Takes the lock; any thread may call.  Returns 0 or -ENOMEM. */
int pack_input_add(struct pack_input *input, const struct shard_pack_item *item);
/* Notes the text of `err` about a file that cannot be packed, so that the run checks the other files first.  Returns
 * 0, or -ENOMEM, also if `err` holds -ENOMEM. */
int pack_input_refuse(struct pack_input *input, struct base_err *err);

/* Whether an item is left out because it is, or lies in, a hidden directory at the root; notes the directory.  Any
 * thread may call. */
bool pack_input_hides(struct pack_input *input, const char *path, bool directory);

/* Adds everything below a directory; follows symbolic links.  Starts threads.  Returns 0, or -errno with a sentence. */
int pack_scan_directory(struct pack_input *input, const char *path, struct base_err *err);
/* Adds the files whose NUL-separated names come from `fd`, relative to `directory`.  Returns 0, or -errno with a
 * sentence. */
int pack_scan_list(struct pack_input *input, int fd, const char *directory, struct base_err *err);
/* Adds the members of an archive.  It unpacks compressed archives and pipes into a file in the directory `staging`,
 * at most `limit` bytes; 0 means 200 times what it read of the archive, at least 1 GiB.  Returns 0, or -errno with a
 * sentence. */
int pack_scan_archive(
        struct pack_input *input, const char *path, const char *staging, uint64_t limit, struct base_err *err);

/* The checksums of a finished shard. */
struct pack_shard_sums {
	uint64_t *xxh3;      /* one per item, in storage order */
	int32_t *left_out;   /* one per item: 0, or -errno if it could not be read */
	uint64_t *blocks;    /* of all blocks of files over SHARD_BLOCK, in storage order */
	uint64_t n_blocks;   /* elements of `blocks` */
	uint64_t size_bytes; /* of the shard */
	bool complete;       /* the shard is on the disk, and the other members are valid */
};

struct pack_upload; /* tools/mkshard/upload.h */

/* The journal: a record for each complete shard.  It has its own lock; any thread may call pack_journal_add. */
struct pack_journal;
/* Opens or makes `dir`/journal, locks it with flock(2), and reads the sums of complete shards into `sums`, which has
 * one element per shard of the plan.  Complete shards are in `dir`, or where `has` knows of them, if it is not
 * NULL.  Returns 0, or with a sentence: -EBUSY if another mkshard packs there; -ESTALE
 * if complete shards belong to another plan; -ENOMEM; -errno of the file. */
int pack_journal_open(const char *dir, bool (*has)(const void *arg, const char *name, uint64_t bytes), const void *arg,
        const struct shard_pack_plan *plan, struct pack_shard_sums *sums, struct base_err *err,
        struct pack_journal **ret_journal);
/* Appends the record of a complete shard and syncs it to the disk.  Returns 0, or -errno with a sentence. */
int pack_journal_add(struct pack_journal *journal, const struct shard_pack_plan *plan, uint32_t shard,
        const struct pack_shard_sums *sums, struct base_err *err);
/* Whether `dir` may hold complete shards, by the size of its journal.  Returns true also if stat(2) fails. */
bool pack_journal_holds_shards(const char *dir);
/* Closes the journal and releases its lock; NULL is fine. */
void pack_journal_close(struct pack_journal *journal);

struct pack_write_options {
	const char *dir;       /* DATASET.partial */
	uint32_t jobs;         /* worker threads: shards written at once */
	uint64_t memory_bytes; /* for the segments of all workers */
	bool keep_going;
	struct pack_upload *upload; /* sends each shard that is complete to a store; NULL: it stays in dir */
};

/* Writes every shard whose sums are not complete, fills its sums and adds it to the journal.
 * Returns 0, or -errno with a sentence; without keep_going a refused file is an error. */
int pack_write(struct shard_pack_plan *plan, struct pack_input *input, const struct pack_write_options *options,
        struct pack_journal *journal, struct pack_shard_sums *sums, struct base_err *err);

/* Tries to open every file that no complete shard holds (`sums` NULL: every file), and refuses those that fail.
 * Returns 0 or -ENOMEM. */
int pack_check_rest(const struct shard_pack_plan *plan, struct pack_input *input, const struct pack_shard_sums *sums);

#endif
