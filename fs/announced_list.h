/* SPDX-License-Identifier: Apache-2.0 */
/* An announced list: the samples that a trainer says it will open, and which of them the engine may ask for.
 *
 *      0        first         cursor        high                              end
 *      | given back | kept      | x . x x x . | .... read ahead ....             |  <-- append
 *
 * A *place* is the index of an entry in the list. Entries lie in order blocks (fs/order_memory.h), which are called
 * blocks here. The engine reads a list as epochs of a given view (shard/view.h): epoch k is the k-th *chunk* of the
 * list. All chunks have the same number of blocks. The last chunk grows when entries are appended.
 *
 * At most FS_ANNOUNCED_CHUNKS chunks (fs/announced_chunk.h) are in use: the reader's chunk, and those after it.
 *
 * Opens say where the reader is, and whether there are several: fs/announced_reader.h.
 *
 * Threads: main makes and restores lists, appends to them and saves them, and frees them if nobody has seen them or the
 * server ends. Any thread asks for the id, the buffer and the name. The recognise thread calls all functions but those
 * that append. The `lock` of the caller is held where they say so. The engine's threads call the callbacks of
 * fs_announced_list_given; these take a leaf lock. */
#ifndef DDPFS_FS_ANNOUNCED_LIST_H
#define DDPFS_FS_ANNOUNCED_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/announced_chunk.h"
#include "fs/order_memory.h"
#include "shard/view.h"

enum {
	FS_ANNOUNCED_CHUNKS = 4,           /* chunks in use: as many as the engine looks ahead, and one behind */
	FS_ANNOUNCED_BEHIND = 8192,        /* entries behind the farthest one: 16 workers with two batches of 256 */
	FS_ANNOUNCED_BUFFER_MAX = 1 << 30, /* entries of a shuffle buffer */
};

struct fs_announced_list; /* opaque */

struct fs_announced_list_options {
	struct fs_order_memory *memory; /* outlives the list */
	const char *name;               /* below FS_HANDOVER_LIST_NAME bytes; copied */
	uint32_t id;                    /* of its blocks; never used before */
	uint32_t chunk_blocks;          /* 1 .. FS_ANNOUNCED_CHUNK_BLOCKS */
	uint32_t n_samples;             /* of the dataset */
	uint64_t buffer;                /* entries of a shuffle buffer, at most FS_ANNOUNCED_BUFFER_MAX; 0: none */
};

/* Makes an empty list. Returns 0; -ENOMEM. */
int fs_announced_list_new(const struct fs_announced_list_options *options, struct fs_announced_list **ret_list);
/* Takes over the list that a predecessor left (@record), from its place on. Every entry is checked. chunk_blocks of the
 * options does not count.
 * Returns 0; -ENODATA: it is not whole; -ENOMEM. */
int fs_announced_list_restore(const struct fs_announced_list_options *options, const struct fs_handover_list *record,
        struct fs_announced_list **ret_list);
/* Frees it and gives its blocks back. No callback of it may be called any more, and all epochs must have been put.
 * NULL is fine. */
void fs_announced_list_free(struct fs_announced_list *list);

/* Frees it, and leaves its blocks to a successor. */
void fs_announced_list_leave(struct fs_announced_list *list);

/* Entries that are being appended. Nobody sees them until fs_announced_list_commit. */
struct fs_announced_piece {
	struct fs_announced_list *list;
	uint64_t end;     /* of the list with them */
	uint32_t last;    /* the list's last block */
	uint32_t *blocks; /* new blocks, owned */
	size_t n_blocks, room;
};
/* Begins a piece. With the caller's lock held. The list must stay until the piece is shown or undone, and there is one
 * piece of a list at a time. */
void fs_announced_piece_begin(struct fs_announced_list *list, struct fs_announced_piece *ret_piece);
/* Adds entries. @samples: below n_samples. Returns 0; -ENOSPC: no block is free; -ENOMEM. */
int fs_announced_piece_add(struct fs_announced_piece *piece, const uint32_t *samples, size_t n);
/* Undoes all of it. */
void fs_announced_piece_undo(struct fs_announced_piece *piece);
/* Shows the entries. With the caller's lock held. Returns 0; -ENOMEM: nothing was done. */
int fs_announced_list_commit(struct fs_announced_piece *piece);

/* Where the reader of a list is, and how well opens follow the list. The caller's lock guards all fields. */
struct fs_announced_state {
	uint64_t end;                /* entries that were ever announced; of a part: where the next part begins */
	uint64_t cursor;             /* all entries before it were used, or never will be */
	uint64_t high;               /* behind the farthest used entry */
	uint64_t used;               /* entries that opens have used */
	uint64_t sure, loose, moves; /* opens that were sure, and not; how often the reader was moved */
	bool confirmed, wrong;
	bool apart; /* another reader is far away: fs_announced_list_split */
};

uint32_t fs_announced_list_id(const struct fs_announced_list *list); /* the same of all parts of a list */
uint64_t fs_announced_list_buffer(const struct fs_announced_list *list);
const char *fs_announced_list_name(const struct fs_announced_list *list);
/* Returns the bytes of its entries; what several parts share counts for each. With the caller's lock held. */
uint64_t fs_announced_list_bytes(const struct fs_announced_list *list);

/* Makes the chunks that are due, and gives back what was read. With the caller's lock held.
 * Returns 1: the engine should ask again (prefetch_stream_refresh); 0: nothing new; -ENOMEM. */
int fs_announced_list_build(struct fs_announced_list *list);

/* Fills in the callbacks of a given view; get, put, turn, find, find_from. `user` is the list. */
void fs_announced_list_given(struct fs_announced_list *list, struct shard_view_given *ret_given);
/* Returns the epoch and the turn of an entry. */
void fs_announced_list_turn(
        const struct fs_announced_list *list, uint64_t place, uint64_t *ret_epoch, uint64_t *ret_turn);

/* Writes what a successor needs into the record of list @number. With the caller's lock held. */
void fs_announced_list_save(const struct fs_announced_list *list, uint32_t number);

#endif
