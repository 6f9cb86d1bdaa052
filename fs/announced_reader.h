/* SPDX-License-Identifier: Apache-2.0 */
/* The reader of an announced list (fs/announced_list.h): which open belongs to which entry, whether opens follow the
 * list, and when it has several readers.
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
 * A list is *over* when its reader has nothing left to open. Some entries may stay that nobody opens: another reader
 * had opened them, no server saw their opens, or the trainer drops its last batch (drop_last). A few of them do not
 * keep a list. But its reader may also pause, for example during a validation. So the reader must be silent for a
 * time, and must have come to the end: the last entry was used, or other readers open the files of this list meanwhile.
 *
 * Threads: any thread calls fs_announced_list_state. The recognise thread calls all other functions. The lock of the
 * list's caller is held where they say so. */
#ifndef DDPFS_FS_ANNOUNCED_READER_H
#define DDPFS_FS_ANNOUNCED_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/announced_list.h"

enum {
	FS_ANNOUNCED_NEAR = 256,       /* entries by which a single open may lie ahead of the farthest one */
	FS_ANNOUNCED_AHEAD = 4096,     /* ... and opens in a row; FS_ANNOUNCED_BEHIND: behind it */
	FS_ANNOUNCED_SURE = 64,        /* sure opens that confirm a list */
	FS_ANNOUNCED_DOUBT = 512,      /* opens that fit nothing, after which an unconfirmed list is wrong */
	FS_ANNOUNCED_ASTRAY = 1 << 12, /* opens of the list's own files at wrong places: then any list is wrong */
	FS_ANNOUNCED_LEFT = 256,       /* unused entries that do not keep a list whose reader is silent ... */
	FS_ANNOUNCED_SILENT_S = 60,    /* ... for so many seconds */
	FS_ANNOUNCED_GONE_ON = 256,    /* opens of its files by others, after which its last entries count as dropped */
	FS_ANNOUNCED_LOST = 1 << 16,   /* opens of other files: then a confirmed list is wrong; its reader may pause */
};

/* Copies the state. With the caller's lock held. */
void fs_announced_list_state(const struct fs_announced_list *list, struct fs_announced_state *ret_state);
/* Returns the place from which a new stream reads the list. That is the cursor. But a successor does not know which
 * entries behind a shuffle buffer were used. It would read all of them again if one old entry was not used. So the
 * place is at most four times the buffer behind the farthest used entry: only 2% of the buffer are older. */
uint64_t fs_announced_list_start(const struct fs_announced_list *list);

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

/* An open of @sample has used an entry of another list. @part: that is a part of the same list. */
void fs_announced_list_passed(struct fs_announced_list *list, uint32_t sample, bool part);
/* Returns whether the list is over. Call it after opens, and about every two seconds; @now_ns: CLOCK_MONOTONIC. With
 * the caller's lock held.
 *
 * Readers side by side, or a shuffle buffer, may have used the last entry while many before it come later. So the
 * number of entries that are left counts, wherever they are. */
bool fs_announced_list_over(struct fs_announced_list *list, uint64_t now_ns);

/* Returns about how many bytes the tables of one more part may take: those of long lists have 4 for each entry. */
uint64_t fs_announced_list_part_bytes(const struct fs_announced_list *list);
/* Splits a list with the state `apart`. It keeps its reader, and *ret_other has the other one, with the entries behind
 * it or before it: the `end` of both tells. With the caller's lock held. Nobody may write into the list, and no stream
 * may read it. Then call fs_announced_list_build for both.
 * Returns 0; -ENOMEM: nothing was done. */
int fs_announced_list_split(struct fs_announced_list *list, struct fs_announced_list **ret_other);

#endif
