/* SPDX-License-Identifier: Apache-2.0 */
/* What the arena holds: samples by key, each contiguous, reference-counted.
 *
 *     entry:   | file 0 ......... pad | file 1 ... pad |      a file begins on a page; blocks arrive in any order, each
 *               block 0  block 1 ...   block k                is claimed by who writes it, so that two never write one
 *
 * An entry is *ready* when no block is missing.  *Pinned* entries (a batch, a writer, a request) stay.  Others stay as long
 * as they are *kept* (the ledger of prefetch/ counts them as resident) and nobody needs their room at once; those
 * that were used already go first then, and the read-ahead never makes room by pushing out what it brought.
 *
 * An entry is one run of pages of the arena.  Where free pages suffice and no run of them is long enough, it lies
 * *apart* (space.h) and counts as many pages of the arena.  So there is room for a sample whenever its pages and
 * those of pinned entries are not more than the arena, wherever these lie.
 *
 * Threads: all functions from any thread; one mutex, never held while copying or looking into the index. */
#ifndef DDPFS_GPU_STAGE_STORE_H
#define DDPFS_GPU_STAGE_STORE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpu_stage/space.h"
#include "shard/index.h"

struct stage_store; /* opaque */

/* A file in its entry. */
struct stage_part {
	uint64_t len;         /* bytes */
	uint64_t offset;      /* in the entry, bytes */
	uint32_t file;        /* id */
	uint32_t first_block; /* of the entry's blocks; it has ceil(len / SHARD_BLOCK) of them */
};

/* Bytes of a block of a file in its entry, of at most SHARD_BLOCK; 0: the file has no such block.  What is copied
 * into an entry is held against this: its length was read of the index at another time. */
static inline uint32_t stage_part_block_len(const struct stage_part *part, uint32_t block)
{
	uint64_t begin = (uint64_t)block * SHARD_BLOCK, left = begin < part->len ? part->len - begin : 0;
	return (uint32_t)(left < SHARD_BLOCK ? left : SHARD_BLOCK);
}

/* Where the files of a sample (or one file) will lie; a pure function of the index. */
struct stage_layout {
	uint64_t key;
	uint32_t sample; /* SHARD_NONE for a file by itself */
	uint32_t n_parts;
	uint32_t n_blocks;
	uint32_t pages;
	struct stage_part one;
	struct stage_part *many; /* NULL: `one`; else owned by the layout, until an entry takes it over */
};

struct stage_entry {
	uint64_t key;
	uint8_t *data;
	uint32_t sample;
	uint32_t pages;
	uint32_t n_parts;
	uint32_t n_blocks;
	const struct stage_part *parts; /* constant */
	/* store.c's, under its lock */
	struct stage_part one;
	uint32_t first_page;
	uint32_t pins;
	uint32_t missing;      /* blocks */
	uint32_t out;          /* batches that it is a part of */
	uint64_t claimed_few;  /* a bit a block, */
	uint64_t *claimed;     /* here when they are more than 64; else NULL */
	bool kept, used, dead; /* dead: not found any more, goes with its last pin */
	bool listed;           /* in one of the lists of those that may go: all that nobody pins, and some others */
	bool again;            /* was pinned since it was listed */
	bool lent;             /* a consumer may have written to it */
	bool apart;            /* first_page is that of the first run of the arena lent for it */
	struct stage_entry *hash_next;
	struct stage_entry *older, *newer;
};

/* space: not owned.  Its own memory: 28 to 44 bytes a page of the arena, of these at most 256 MiB of buckets, and 128
 * an entry. -EINVAL, -ENOMEM. */
int stage_store_new(const struct shard_index *index, struct stage_space *space, struct stage_store **ret_store);
void stage_store_free(struct stage_store *store); /* nothing may be pinned; NULL is fine */

static inline uint64_t stage_sample_key(uint32_t sample)
{
	return sample;
}

/* The layout of a sample, or of one file (of its sample, where that has no other file).  Index errors, -ENOMEM, -EFBIG
 * (more than 2^31 pages). */
int stage_layout_sample(const struct shard_index *index, uint32_t sample, struct stage_layout *ret_layout);
int stage_layout_file(const struct shard_index *index, uint32_t file, struct stage_layout *ret_layout);
/* stage_layout_sample of the sample of a file whose place is known. */
int stage_layout_around(const struct shard_index *index, uint32_t file, const struct shard_place *place,
        struct stage_layout *ret_layout);
void stage_layout_done(struct stage_layout *layout);

struct stage_take {
	const uint64_t *keys;
	uint32_t n;
	uint32_t keep_pages;          /* entries of more are not kept: the ledger does not count them */
	bool lend;                    /* the consumer may write to the memory */
	struct stage_entry **entries; /* n; set for those that are taken */
	bool *doubtful;               /* n; set likewise: the entry was lent before, so its bytes may be others */
};
/* For a batch: pins the ready entries of keys[0 .. n) up to the first that is not there or not ready; returns how
 * many.  They count as used.  The caller verifies the doubtful ones before it hands them out.  A lent entry is part
 * of one batch at a time: if it is part of another batch, it is discarded, the search ends there, and *ret_discarded
 * becomes true.  Else *ret_discarded is untouched. */
uint32_t stage_store_take(struct stage_store *store, const struct stage_take *take, bool *ret_discarded);
/* After give_back and unpin, who waits in stage_store_wait_freed looks again, also where n is 0. */
void stage_store_give_back(struct stage_store *store, struct stage_entry *const *entries, uint32_t n);
void stage_store_pin(struct stage_store *store, struct stage_entry *entry); /* once more; it counts as used */
void stage_store_unpin(struct stage_store *store, struct stage_entry *const *entries, uint32_t n);

enum stage_room {
	STAGE_ROOM_AHEAD, /* room of what was used */
	STAGE_ROOM_NOW,   /* of anything that is not pinned */
};
/* The entry of a layout, pinned; made (kept or not) when it is not there.  Layout is spent on success.
 * -ENOBUFS: no room now, -EFBIG: larger than the arena, -ENOMEM. */
int stage_store_open(struct stage_store *store, struct stage_layout *layout, enum stage_room room, bool kept,
        struct stage_entry **ret_entry);

/* A block of `file` that was read ahead: copied into its sample's entry, made (kept) when it is not there, unless somebody has
 * written it or does.  Returns and layout as stage_store_open; -EUCLEAN: the sample has no such file. */
int stage_store_write(struct stage_store *store, struct stage_layout *layout, uint32_t file, uint32_t block,
        const uint8_t *data, uint32_t len);

/* Where to write a block, or NULL: somebody has or does.  Then stage_store_wrote. */
uint8_t *stage_store_claim(struct stage_store *store, struct stage_entry *entry, uint32_t block);
void stage_store_wrote(struct stage_store *store, struct stage_entry *entry, uint64_t bytes);
bool stage_store_claimed(struct stage_store *store, struct stage_entry *entry, uint32_t block);
bool stage_store_ready(struct stage_store *store, struct stage_entry *entry);

/* Its bytes cannot be had: it is not found any more, and gone when nobody pins it. */
void stage_store_discard(struct stage_store *store, struct stage_entry *entry);

/* The ledger lets go of samples. */
enum { STAGE_DROPS = 64 /* at most */ };
void stage_store_drop(struct stage_store *store, const uint32_t *samples, uint32_t n);

/* The key will be looked for in some hundred nanoseconds.  No effect but speed; takes no lock. */
void stage_store_hint(struct stage_store *store, uint64_t key);

enum stage_wait {
	STAGE_WAIT_READY,
	STAGE_WAIT_QUIET,  /* nothing at all came for grace_ns */
	STAGE_WAIT_PASSED, /* much more than is ever in flight came, or the arena refused something: it will not come */
};
/* Waits for an entry that the read-ahead should bring.  One thread at a time. */
enum stage_wait stage_store_wait(struct stage_store *store, uint64_t key, uint64_t grace_ns);

/* Waits until memory was given back since `seen` (a value of stage_store_freed), or until a time (stage_now_ns; 0: for ever). */
uint64_t stage_store_freed(struct stage_store *store);
void stage_store_wait_freed(struct stage_store *store, uint64_t seen, uint64_t until_ns);

struct stage_store_stats {
	uint64_t used_bytes, held_bytes, refused, evicted;
	uint64_t touched_bytes; /* of the arena: those beyond were never used */
	uint64_t apart;         /* entries placed apart, ever */
	uint64_t apart_bytes;   /* of those that are there now */
	uint64_t came_bytes;    /* written, ever */
};
void stage_store_stats_get(struct stage_store *store, struct stage_store_stats *ret_stats);

#endif
