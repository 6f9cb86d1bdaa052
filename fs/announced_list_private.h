/* SPDX-License-Identifier: Apache-2.0 */
/* Private to announced_list.c and announced_reader.c: what a list is made of. fs/announced_list.h first.
 *
 * Threads: the functions below are for the recognise thread. */
#ifndef DDPFS_FS_ANNOUNCED_LIST_PRIVATE_H
#define DDPFS_FS_ANNOUNCED_LIST_PRIVATE_H

#include <pthread.h>

#include "fs/announced_list.h"

enum {
	RECENT_BITS = 10, /* of the hash of samples that were used lately */
	RING = 256,       /* opens in the ring: of up to 32 readers each the latest 8 */
};

#define NOWHERE UINT64_MAX /* the place of an entry of the ring that counts no more */

/* Opens of one reader in a row, each at most a few entries behind the one before. */
struct run {
	uint64_t first, last; /* places */
	unsigned n;           /* opens; 0: there is no run */
	uint64_t sure;        /* sure opens of the list before the first of them */
};

struct fs_announced_list {
	struct fs_order_memory *memory;
	char name[FS_HANDOVER_LIST_NAME];
	uint32_t id;
	uint32_t n_samples;
	uint64_t buffer;
	uint64_t empty_at;      /* the shuffle buffer was empty when the reader was at this place */
	uint64_t restored_high; /* a predecessor left this `high`: which entries before it were used is not known */
	uint64_t chunk_entries;
	uint32_t chunk_blocks;
	/* The caller's lock: */
	uint32_t *blocks; /* of entries [first, end), a reference each */
	size_t n_blocks, room;
	uint64_t first, begin, end; /* begin: of this part of the list; entries before it are another part's */
	/* The recognise thread: */
	struct fs_announced_chunk *chunks[FS_ANNOUNCED_CHUNKS]; /* by number modulo; NULL: none */
	uint64_t *used[FS_ANNOUNCED_CHUNKS];                    /* one bit for each entry of these chunks */
	struct fs_announced_state state;
	uint64_t bad;    /* opens that fit nothing, less those that were made good */
	uint64_t astray; /* the same of opens whose samples the list has */
	struct {
		uint32_t sample;
		uint64_t open; /* opens when it was used; 0: never */
	} recent[1 << RECENT_BITS];
	uint64_t opens;
	uint64_t latest; /* the place that fs_announced_list_use booked last */
	struct {
		uint64_t place, sure; /* sure: opens of the list until then */
	} ring[RING];                 /* the latest opens that fit elsewhere */
	uint64_t ring_n;
	uint64_t left, left_opens; /* where the reader was when it was moved, and `opens` then */
	uint64_t moved_to;         /* where it was moved to */
	uint64_t soon;             /* the lowest place in the ring that the reader has not reached; NOWHERE: none */
	struct run other;          /* of a second reader */
	struct {
		uint64_t opens, end; /* of the list */
		uint64_t since_ns;   /* when these two changed, or too many were left; 0: nobody has looked */
		uint64_t gone_on;    /* opens of its files by other readers since these two changed */
	} silent;

	pthread_mutex_t lock;                                  /* a leaf; guards: */
	struct fs_announced_chunk *known[FS_ANNOUNCED_CHUNKS]; /* what the engine may ask for; a reference each */
};

/* ---- in announced_list.c ---- */

/* Returns the chunk that is in use, or NULL. */
struct fs_announced_chunk *fs_announced_list_chunk(const struct fs_announced_list *list, uint64_t number);
/* Gets the sample of an entry. Returns false if its chunk is not in use. */
bool fs_announced_list_sample(const struct fs_announced_list *list, uint64_t place, uint32_t *ret_sample);
/* Finds the first place of a sample in [from, to), in the chunks in use. Returns false if there is none. */
bool fs_announced_list_find(
        const struct fs_announced_list *list, uint32_t sample, uint64_t from, uint64_t to, uint64_t *ret_place);

/* Makes the list end before @end. With the caller's lock held. */
void fs_announced_list_shorten(struct fs_announced_list *list, uint64_t end);
/* Makes a list of the entries [begin, end), which shares the blocks. Where its reader is, the caller says. With the
 * caller's lock held. Returns 0; -ENOMEM. */
int fs_announced_list_part(
        const struct fs_announced_list *list, uint64_t begin, uint64_t end, struct fs_announced_list **ret_part);

#endif
