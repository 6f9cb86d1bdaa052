/* SPDX-License-Identifier: Apache-2.0 */
/* The samples that the arena holds, by key: each contiguous and reference-counted.
 *
 *     entry:   | file 0 ......... pad | file 1 ... pad |      a file begins on a page; blocks arrive in any order; each
 *               block 0  block 1 ...   block k                is claimed by its writer, so that two never write one
 *
 * An entry is *ready* if no block is missing.  *Pinned* entries (of a batch, a writer or a demand) stay.  Other
 * entries stay as long as they are *kept* (the ledger of prefetch/ counts them as resident) and no batch needs their
 * room at once.  If one does, entries that were used already go first.  Read-ahead makes room only of used entries,
 * never of those that it brought itself.
 *
 * An entry is one run of pages of the arena.  If enough pages are free but no run of them is long enough, the entry
 * lies *apart* (space.h) and counts as many pages of the arena.  So a sample has room if its pages and those of
 * pinned entries are together not more than the arena, wherever these lie.  (space.h says when there is none.)
 *
 * Threads: any thread may call any function.  There is one mutex.  It is not held while bytes are copied or the index
 * is read. */
#ifndef DDPFS_GPU_STAGE_ARENA_SAMPLES_H
#define DDPFS_GPU_STAGE_ARENA_SAMPLES_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpu_stage/space.h"
#include "shard/index.h"

struct stage_samples; /* opaque */

/* One file of an entry. */
struct stage_part {
	uint64_t len;         /* bytes */
	uint64_t offset;      /* of its first byte in the entry, bytes; a multiple of STAGE_PAGE */
	uint32_t file;        /* id */
	uint32_t first_block; /* among the entry's blocks; the file has ceil(len / SHARD_BLOCK) */
};

/* Returns the bytes of block `block` of a file, at most SHARD_BLOCK, or 0 if the file has no such block.  Every copy
 * into an entry compares its length with this, because it read the index at another time. */
static inline uint32_t stage_part_block_len(const struct stage_part *part, uint32_t block)
{
	uint64_t begin = (uint64_t)block * SHARD_BLOCK, left = begin < part->len ? part->len - begin : 0;
	return (uint32_t)(left < SHARD_BLOCK ? left : SHARD_BLOCK);
}

/* Where the files of a sample (or one file) will lie in an entry: a pure function of the index. */
struct stage_layout {
	uint64_t key;
	uint32_t sample; /* SHARD_NONE: a file by itself */
	uint32_t n_parts;
	uint32_t n_blocks;
	uint32_t pages;
	struct stage_part one;   /* the part, if there is one only */
	struct stage_part *many; /* NULL: `one`; else n_parts, owned by the layout until an entry takes them over */
};

/* One sample, or one file, in the arena. */
struct stage_entry {
	uint64_t key;
	uint8_t *data;
	uint32_t sample;
	uint32_t pages;
	uint32_t n_parts;
	uint32_t n_blocks;
	const struct stage_part *parts; /* constant */
	/* Of arena_samples.c, under its lock: */
	struct stage_part one;
	uint32_t first_page;   /* in the arena, see `apart` */
	uint32_t pins;         /* 0: nobody needs it now */
	uint32_t missing;      /* blocks that are not written */
	uint32_t out;          /* batches that have it */
	uint64_t claimed_few;  /* blocks claimed, one bit for each, if there are at most 64 */
	uint64_t *claimed;     /* the same, if there are more; else NULL */
	bool kept, used, dead; /* dead: nobody finds it, and it goes with its last pin */
	bool listed;           /* in a list of entries that may go: all that nobody pins, and some others */
	bool again;            /* pinned since it was listed */
	bool lent;             /* a consumer may have written to it */
	bool apart;            /* first_page is that of the first run that the arena lends for it */
	struct stage_entry *hash_next;
	struct stage_entry *older, *newer;
};

/* Makes an empty set of samples over a space, which it does not own.  It takes 28 to 44 bytes a page of the arena
 * besides, of these at most 256 MiB of buckets, and 128 an entry.
 * Returns 0, or -EINVAL (size of the arena), -ENOMEM. */
int stage_samples_new(const struct shard_index *index, struct stage_space *space, struct stage_samples **ret_samples);
void stage_samples_free(struct stage_samples *samples); /* nothing may be pinned; NULL: does nothing */

/* The key of a sample. */
static inline uint64_t stage_sample_key(uint32_t sample)
{
	return sample;
}

/* Makes the layout of a sample, or of one file.  The layout of a file is that of its sample, if that has no other file.
 * End with stage_layout_done, unless stage_samples_open or stage_samples_write takes it.
 * Returns 0, or -EFBIG (more than 2^31 pages), -ENOMEM, or an error of the index. */
int stage_layout_sample(const struct shard_index *index, uint32_t sample, struct stage_layout *ret_layout);
int stage_layout_file(const struct shard_index *index, uint32_t file, struct stage_layout *ret_layout);
/* Makes the layout of the sample of a file, whose place the caller has.  Returns as above. */
int stage_layout_around(const struct shard_index *index, uint32_t file, const struct shard_place *place,
        struct stage_layout *ret_layout);
/* Frees what a layout owns. */
void stage_layout_done(struct stage_layout *layout);

/* What stage_samples_take takes, and where it puts it. */
struct stage_take {
	const uint64_t *keys;
	uint32_t n;
	uint32_t keep_pages;          /* entries of more pages are not kept: the ledger does not count them */
	bool lend;                    /* the consumer may write to the memory */
	struct stage_entry **entries; /* n; filled for those that are taken */
	bool *doubtful;               /* n; filled likewise: the entry was lent before, so its bytes may have changed */
};
/* Pins for a batch the ready entries of keys[0 .. n), up to the first that is not there or not ready.  They count as
 * used.  The caller verifies the doubtful ones before it hands them out.  A lent entry is part of one batch at a
 * time.  If an entry is in another batch, and it is lent or this batch lends, it is discarded and the search ends
 * there.  *ret_discarded becomes true then; else it is untouched.
 * Returns how many entries it took. */
uint32_t stage_samples_take(struct stage_samples *samples, const struct stage_take *take, bool *ret_discarded);
/* Gives back n entries that stage_samples_take took.  Wakes the threads in stage_samples_wait_freed, even if n is 0. */
void stage_samples_give_back(struct stage_samples *samples, struct stage_entry *const *entries, uint32_t n);
/* Unpins n entries.  Wakes the threads in stage_samples_wait_freed, even if n is 0. */
void stage_samples_unpin(struct stage_samples *samples, struct stage_entry *const *entries, uint32_t n);

/* What may be dropped to make room. */
enum stage_room {
	STAGE_ROOM_AHEAD, /* may drop entries that were used and are not pinned */
	STAGE_ROOM_NOW,   /* may drop any entry that is not pinned */
};
/* Gives the entry of a layout, pinned; makes it, kept or not, if it is not there.
 * Returns 0: the layout is spent.  Else -ENOBUFS (no room now), -EFBIG (larger than the arena), -ENOMEM: the layout is
 * the caller's. */
int stage_samples_open(struct stage_samples *samples, struct stage_layout *layout, enum stage_room room, bool kept,
        struct stage_entry **ret_entry);

/* Copies a block of `file` that was read ahead into the entry of its sample; makes the entry, kept, if it is not there.
 * Copies nothing if somebody has written the block, or does so.
 * Returns as stage_samples_open, and -EUCLEAN: the sample has no such file, or the block has another length. */
int stage_samples_write(struct stage_samples *samples, struct stage_layout *layout, uint32_t file, uint32_t block,
        const uint8_t *data, uint32_t len);

/* Claims a block of a pinned entry.  Returns where to write it; call stage_samples_wrote after.  NULL: somebody has
 * written the block, or does so. */
uint8_t *stage_samples_claim(struct stage_samples *samples, struct stage_entry *entry, uint32_t block);
/* A claimed block is written; bytes: of the block. */
void stage_samples_wrote(struct stage_samples *samples, struct stage_entry *entry, uint64_t bytes);
/* Tells whether somebody has claimed a block. */
bool stage_samples_claimed(struct stage_samples *samples, struct stage_entry *entry, uint32_t block);
/* Tells whether no block is missing. */
bool stage_samples_ready(struct stage_samples *samples, struct stage_entry *entry);

/* Discards an entry, because its bytes are bad or have changed: nobody finds it from now on, and it goes with its last
 * pin. */
void stage_samples_discard(struct stage_samples *samples, struct stage_entry *entry);

/* The most samples of one stage_samples_drop. */
enum { STAGE_DROPS = 64 };
/* Drops the n samples `ids` that the ledger has let go of; those that are pinned are dropped with their last pin. */
void stage_samples_drop(struct stage_samples *samples, const uint32_t *ids, uint32_t n);

/* Says that the key will be looked for in some hundred nanoseconds.  Only affects speed; takes no lock. */
void stage_samples_hint(struct stage_samples *samples, uint64_t key);

/* How a wait ended. */
enum stage_wait {
	STAGE_WAIT_READY,  /* the entry is ready */
	STAGE_WAIT_QUIET,  /* nothing came for grace_ns */
	STAGE_WAIT_PASSED, /* it will not come: more came than is ever in flight, or the arena refused something */
};
/* Waits for an entry that read-ahead should bring.  One thread at a time. */
enum stage_wait stage_samples_wait(struct stage_samples *samples, uint64_t key, uint64_t grace_ns);

/* Counts how often memory was given back. */
uint64_t stage_samples_freed(struct stage_samples *samples);
/* Waits until memory is given back after `seen` (a value of stage_samples_freed), or until a stage_now_ns time (0: no
 * limit). */
void stage_samples_wait_freed(struct stage_samples *samples, uint64_t seen, uint64_t until_ns);

struct stage_samples_stats {
	/* Bytes of the arena in use or lent; bytes of pinned entries; blocks that found no room ahead; entries
	 * dropped to make room.  The last two are counted since the set was made. */
	uint64_t used_bytes, held_bytes, refused, evicted;
	uint64_t touched_bytes; /* of the arena; those beyond were never used */
	uint64_t apart;         /* entries placed apart, ever */
	uint64_t apart_bytes;   /* of entries that lie apart now */
	uint64_t came_bytes;    /* written into entries, ever */
};
void stage_samples_stats_get(struct stage_samples *samples, struct stage_samples_stats *ret_stats);

#endif
