/* SPDX-License-Identifier: Apache-2.0 */
/* An announced list: the samples that a trainer says it will open, and where in them it is.
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
 * An open belongs to a place if the entry there is the opened sample and no other open used the place. The place must
 * lie near the farthest place that was used. The open is *sure* if an entry shortly before this place was also used,
 * because each reader opens its entries in order. One open far ahead tells little: somebody looked at a file. Two in a
 * row are a worker that begins its batch. If several opens follow each other at another place of the list, the reader
 * is moved there. A list is *confirmed* when many opens were sure. A list is *wrong* if too many opens do not follow
 * it; then it is dropped.
 *
 * If the reader goes on at its place, while others read at another place, the list has several readers: for example,
 * each worker reads a contiguous part. One window cannot serve them. So the list is *split* into two lists, and each
 * has a reader:
 *
 *      first        cursor                       | begin        cursor                  end
 *      | kept       | . . read ahead . .   end   |              | . . read ahead . .    |  <-- append
 *
 * Both have the same id and share blocks, and places stay what they were.
 *
 * Behind a *shuffle buffer* (tf.data, WebDataset) the files of the list come in any order: each entry in the buffer may
 * be opened next, and some entries stay in it for long. If the announcement says how large the buffer is, every entry
 * that may be in it is expected, and the list is never split. So nearly any order fits a list whose buffer is nearly as
 * large as the list.
 *
 * Threads: `lock` of the caller guards append and the fields of struct fs_announced_state that say so. One thread (the
 * recognise thread) calls all other functions, with that lock held where they say so. The engine's threads call the
 * callbacks of fs_announced_list_given; these take a leaf lock. */
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
	FS_ANNOUNCED_NEAR = 256,           /* entries by which a single open may lie ahead of the farthest one */
	FS_ANNOUNCED_AHEAD = 4096,         /* ... and opens in a row */
	FS_ANNOUNCED_BEHIND = 8192,        /* ... and behind it: 16 workers with two batches of 256 each */
	FS_ANNOUNCED_BUFFER_MAX = 1 << 30, /* entries of a shuffle buffer */
	FS_ANNOUNCED_SURE = 64,            /* sure opens that confirm a list */
	FS_ANNOUNCED_DOUBT = 512,          /* opens that fit nothing, after which an unconfirmed list is wrong */
	FS_ANNOUNCED_ASTRAY = 1 << 12,     /* opens of the list's own files at wrong places: then any list is wrong */
	FS_ANNOUNCED_LOST = 1 << 16, /* opens of other files: then a confirmed list is wrong; its reader may pause */
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
/* Copies the state. With the caller's lock held. */
void fs_announced_list_state(const struct fs_announced_list *list, struct fs_announced_state *ret_state);
uint32_t fs_announced_list_id(const struct fs_announced_list *list); /* the same of all parts of a list */
uint64_t fs_announced_list_buffer(const struct fs_announced_list *list);
const char *fs_announced_list_name(const struct fs_announced_list *list);

/* Makes the chunks that are due, and gives back what was read. With the caller's lock held.
 * Returns 1: the engine should ask again (prefetch_stream_refresh); 0: nothing new; -ENOMEM. */
int fs_announced_list_build(struct fs_announced_list *list);

/* Fills in the callbacks of a given view; get, put, turn, find, find_from. `user` is the list. */
void fs_announced_list_given(struct fs_announced_list *list, struct shard_view_given *ret_given);
/* Returns the epoch and the turn of an entry. */
void fs_announced_list_turn(
        const struct fs_announced_list *list, uint64_t place, uint64_t *ret_epoch, uint64_t *ret_turn);

enum fs_announced_fit {
	FS_ANNOUNCED_ELSEWHERE, /* the sample is not expected now */
	FS_ANNOUNCED_AGAIN,     /* it was used a moment ago */
	FS_ANNOUNCED_LOOSE,     /* it is expected, but nothing just before it was used */
	FS_ANNOUNCED_SURELY,
};
/* Says how an open of @sample fits. *ret_place: the entry, if it is expected. */
enum fs_announced_fit fs_announced_list_fit(const struct fs_announced_list *list, uint32_t sample, uint64_t *ret_place);
/* An open has used an entry that is expected. */
void fs_announced_list_use(struct fs_announced_list *list, uint64_t place, bool sure);
/* Finds entries that were opened before, and that the reader has come to or passed only now: they were far ahead of
 * it, or looked like files that are opened twice. At most FS_ANNOUNCED_RING places, *ret_n of them. They count as used.
 * Call it after fs_announced_list_use. */
enum { FS_ANNOUNCED_RING = 32 };
void fs_announced_list_reached(struct fs_announced_list *list, uint64_t places[FS_ANNOUNCED_RING], size_t *ret_n);
/* An open of @sample was explained by nothing.
 * @apart: readers who leave fewer entries unused between them share a stream; UINT64_MAX: the list cannot be split.
 * Returns true if the reader was moved, or a worker is ahead of it: then the entries in @places (at most
 * FS_ANNOUNCED_RING, *ret_n of them) were used there. May set the state `apart`. */
bool fs_announced_list_missed(struct fs_announced_list *list, uint32_t sample, uint64_t apart,
        uint64_t places[FS_ANNOUNCED_RING], size_t *ret_n);

/* Returns about how many bytes the tables of one more part may take: those of long lists have 4 for each entry. */
uint64_t fs_announced_list_part_bytes(const struct fs_announced_list *list);
/* Splits a list with the state `apart`. It keeps its reader, and *ret_other has the other one, with the entries behind
 * it or before it: the `end` of both tells. With the caller's lock held. Nobody may write into the list, and no stream
 * may read it. Then call fs_announced_list_build for both.
 * Returns 0; -ENOMEM: nothing was done. */
int fs_announced_list_split(struct fs_announced_list *list, struct fs_announced_list **ret_other);

/* Writes what a successor needs into the record of list @number. With the caller's lock held. */
void fs_announced_list_save(const struct fs_announced_list *list, uint32_t number);

#endif
