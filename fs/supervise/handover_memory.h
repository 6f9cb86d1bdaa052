/* SPDX-License-Identifier: Apache-2.0 */
/* The handover memory: what a server leaves to its successor, in a memfd that the supervisor keeps.
 *
 *     0            page                                                                                        size
 *     +------------+---------------------+-------------------+-----+---------+-------+-------+----------+---------+--+
 *     | head: beat,| view 0: 2 records,  | 2 bitmaps of turns| ... |resident:| names | opens |announced | history |  |
 *     | 2 counts   |   2 orders; of each |   the record says |     | a bit a |       |       |   lists  |         |  |
 *     |            |   the younger counts|   which one counts|     | sample  |       |       |          |         |  |
 *     +------------+---------------------+-------------------+-----+---------+-------+-------+----------+---------+--+
 *      mapped by the supervisor, too                                    entries of announced lists, in blocks: sparse ^
 *
 * A server can die at any instruction, or write anywhere before it dies.  So a successor trusts nothing here.  It
 * computes the layout from the dataset and the options, and the head must say the same.  Each record has a checksum,
 * and the younger record with a right checksum counts.  If there is none, the view starts as it was mounted.  Bits
 * are hints: a wrong bit costs a read or a count, never wrong bytes, because nothing here says what a file holds.
 *
 * Threads: main opens and closes.  After that each part has an owner:
 *
 *     beat                          main
 *     counts, those of a view too   the lock of fs/stats.c
 *     records, bitmaps of a view    the lock of the view
 *     orders of a view              the recognise thread
 *     resident                      the engine (prefetch/prefetch.h)
 *     names                         fs/directory_names.h
 *     opens                         the lock of the watcher (fs/watch.c)
 *     announced orders              fs/order_memory.h
 *     history                       main (fs/recorder.h) */
#ifndef DDPFS_FS_SUPERVISE_HANDOVER_MEMORY_H
#define DDPFS_FS_SUPERVISE_HANDOVER_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/inotify.h>

enum { FS_HANDOVER_COUNTS_MAX = 64 };
enum { FS_HANDOVER_HEAD_BYTES = 4096 }; /* what the supervisor maps; the memfd never gets shorter */
enum { FS_HANDOVER_EVENTS_BYTES = 1 << 16 };
enum { FS_HANDOVER_HISTORY_BYTES = 340 << 10 };

/* The counters of all servers so far, by name, because the next server may have another version. */
struct fs_handover_counts {
	uint64_t age; /* as in a record */
	uint64_t n;   /* of `counts`, at most FS_HANDOVER_COUNTS_MAX */
	struct fs_handover_count {
		uint64_t key; /* XXH3-64 of the name */
		uint64_t value;
	} counts[FS_HANDOVER_COUNTS_MAX];
	uint64_t xxh3; /* XXH3-64 of the bytes before it */
};

/* What the layout depends on. */
struct fs_handover_sizes {
	uint64_t n_views, view_bits;   /* bits: turns of a view at most */
	uint64_t samples, dirs, files; /* of the dataset */
};

struct fs_handover_head {
	_Atomic uint64_t beat; /* changes every beat_ms (fs/supervise/channel.h) while the server is well */
	uint64_t magic;        /* a server has laid out the rest; 0: not yet */
	uint64_t size;         /* bytes of the whole memory */
	uint64_t n_views, view_bits, samples;
	struct fs_handover_counts counts[2]; /* never moved: a server of another version finds them here */
	uint64_t dirs, files;
};

struct fs_handover_record {
	uint64_t age; /* the higher one is the younger one; 0: never written */
	uint64_t epoch;
	uint32_t map;           /* which bitmap holds the epoch's turns: 0 or 1 */
	uint32_t flags;         /* FS_HANDOVER_* */
	uint64_t trained_epoch; /* FS_HANDOVER_TRAINED: the resume state */
	uint64_t trained_steps;
	int64_t listing_s;   /* mtime of the view's root: seconds ... */
	uint64_t listing_ns; /* ... and nanoseconds */
	uint64_t xxh3;       /* XXH3-64 of the bytes before it */
};
enum { FS_HANDOVER_PINNED = 1, FS_HANDOVER_TRAINED = 2, FS_HANDOVER_READER = 4 };

/* Where a view's part lies. */
struct fs_handover_view {
	struct fs_handover_record *records;     /* 2 */
	struct fs_handover_orders *orders;      /* 2 */
	struct fs_handover_rank_counts *counts; /* 2 */
	uint64_t *maps[2];                      /* a bit a turn: opened */
	uint64_t bits;                          /* of each map */
};

/* What one of several ranks counted (fs/stats.c), in the page of its records. */
enum { FS_HANDOVER_RANK_COUNTS = 14 };
struct fs_handover_rank_counts {
	uint64_t age; /* as in a record */
	uint64_t values[FS_HANDOVER_RANK_COUNTS];
	uint64_t xxh3; /* XXH3-64 of the bytes before it */
};

/* Opens that the watcher has read from inotify and not handled yet.  The kernel does not have them any more, so a
 * server that dies meanwhile leaves them here. */
struct fs_handover_opens {
	/* What one read(2) of the inotify descriptor brought; else zeros. */
	_Alignas(8) uint8_t events[FS_HANDOVER_EVENTS_BYTES];
	_Atomic uint32_t taken; /* bytes of `events` that fs_handover_take_event has returned */
};

/* What was recognised of a view's readers (fs/sampler_streams.h), in the page of its records.  Who wrote the bytes
 * checks them.  A program that does not know them leaves zeros, which count as none. */
enum { FS_HANDOVER_ORDERS_BYTES = 1472, FS_HANDOVER_ORDERS_VERSION = 3 };
struct fs_handover_orders {
	uint64_t age; /* as in a record */
	uint32_t version, len;
	uint8_t bytes[FS_HANDOVER_ORDERS_BYTES]; /* the first `len` count */
	uint64_t xxh3;                           /* XXH3-64 of the bytes before it */
};

/* Orders that trainers have announced (fs/announced_orders.h): lists of samples, in blocks. A block that nobody owns
 * has no memory. */
enum {
	FS_HANDOVER_LISTS_MAX = 160,
	FS_HANDOVER_LIST_NAME = 64,          /* bytes of a list's name, with its NUL */
	FS_HANDOVER_BLOCK_ENTRIES = 1 << 16, /* entries of a block: samples, 4 bytes each */
	FS_HANDOVER_BLOCKS_MAX = 1 << 14,    /* 4 GiB */
};
struct fs_handover_list {
	uint64_t age;    /* as in a record */
	uint64_t id;     /* owner of its blocks, below 2^32; 0: no list */
	uint64_t first;  /* the blocks with entries before it were given back; a multiple of a block */
	uint64_t begin;  /* of this part of the list (fs/announced_list.h) */
	uint64_t end;    /* entries that were ever announced; of a part: where the next one begins */
	uint64_t place;  /* the reader has had all entries before it */
	uint64_t high;   /* behind the farthest entry that the reader has had */
	uint64_t chunk;  /* entries of a chunk (fs/announced_list.h) */
	uint64_t buffer; /* entries of a shuffle buffer behind the list; 0: there is none */
	char name[FS_HANDOVER_LIST_NAME];
	uint64_t xxh3; /* XXH3-64 of the bytes before it */
};
struct fs_handover_announced {
	struct fs_handover_list lists[FS_HANDOVER_LISTS_MAX][2]; /* of each the younger counts */
	/* Of each block: the list's id << 32 | the number of the block in the list; 0: nobody's. */
	uint64_t owners[FS_HANDOVER_BLOCKS_MAX];
};

/* Which names the kernel has from listings of whole directories (fs/directory_names.h). */
struct fs_handover_names {
	uint64_t *known; /* a bit a directory: dirs / 64 + 1 words */
	uint64_t *old;   /* a bit a file: files / 64 + 1 words */
};

struct fs_handover; /* opaque */

/* Maps the handover memory of `fd` for these sizes.  Lays it out anew, all zeros, if it is not laid out for them.
 * *ret_kept: it is as a predecessor left it.
 * Returns 0; -ENOMEM; -EFBIG: more than 65,535 views, 2^40 turns, or 2^32 - 1 samples, directories or files; another
 * -errno of the memfd. */
int fs_handover_open(int fd, const struct fs_handover_sizes *sizes, struct fs_handover **ret_handover, bool *ret_kept);
void fs_handover_close(struct fs_handover *handover); /* NULL is fine */

/* Changes the beat. */
void fs_handover_beat(struct fs_handover *handover);

/* Return a part.  It lasts until fs_handover_close.  number: of the view, below n_views. */
struct fs_handover_view fs_handover_view(struct fs_handover *handover, uint32_t number);
uint64_t *fs_handover_resident(struct fs_handover *handover); /* samples / 64 + 1 words */
struct fs_handover_names fs_handover_names(struct fs_handover *handover);
struct fs_handover_opens *fs_handover_opens(struct fs_handover *handover);
struct fs_handover_announced *fs_handover_announced(struct fs_handover *handover);
/* FS_HANDOVER_HISTORY_BYTES bytes. Who wrote them checks them. */
void *fs_handover_history(struct fs_handover *handover);

/* Returns how many blocks there are: 0 if RLIMIT_FSIZE does not allow a memfd that is so long. */
uint32_t fs_handover_blocks(const struct fs_handover *handover);
/* Returns the entries of a block below fs_handover_blocks. */
uint32_t *fs_handover_block(struct fs_handover *handover, uint32_t block);
/* Gives the memory of a block back to the kernel; its entries are zeros. */
void fs_handover_release_block(struct fs_handover *handover, uint32_t block);

/* Gets the younger valid record of list `number`, below FS_HANDOVER_LISTS_MAX. Returns false if there is none, or no
 * list. */
bool fs_handover_load_list(
        const struct fs_handover_announced *announced, uint32_t number, struct fs_handover_list *ret_list);
/* Overwrites the older record of list `number`. Fills in age and xxh3 itself. */
void fs_handover_store_list(
        struct fs_handover_announced *announced, uint32_t number, const struct fs_handover_list *list);

/* Gets the younger valid record.  Returns false if there is none. */
bool fs_handover_load(const struct fs_handover_view *view, struct fs_handover_record *ret_record);

/* Overwrites the older record with this one.  Fills in age and xxh3 itself. */
void fs_handover_store(const struct fs_handover_view *view, const struct fs_handover_record *record);

/* Gets the younger orders with a right checksum.  Returns false if there are none, or only of another version. */
bool fs_handover_load_orders(const struct fs_handover_view *view, struct fs_handover_orders *ret_orders);

/* Overwrites the older orders with these bytes.  Does nothing if len is above FS_HANDOVER_ORDERS_BYTES. */
void fs_handover_store_orders(const struct fs_handover_view *view, const void *bytes, uint32_t len);

/* Makes the bitmap `map` (0 or 1) all zeros and gives its memory back to the kernel. */
void fs_handover_clear(const struct fs_handover_view *view, uint32_t map);

/* The same for the counters: get the younger valid ones (false: there are none); overwrite the older ones. */
bool fs_handover_load_counts(const struct fs_handover *handover, struct fs_handover_counts *ret_counts);
void fs_handover_store_counts(struct fs_handover *handover, const struct fs_handover_counts *counts);

/* The same for the counters of a view. */
bool fs_handover_load_rank_counts(const struct fs_handover_view *view, struct fs_handover_rank_counts *ret_counts);
void fs_handover_store_rank_counts(const struct fs_handover_view *view, const struct fs_handover_rank_counts *counts);

/* Returns the next whole event, its name ended with NUL.  NULL: there are no more, and `events` is all zeros again.
 * A returned event counts as handled: if a server dies over it, the next server must not die over it, too. */
const struct inotify_event *fs_handover_take_event(struct fs_handover_opens *opens);

/* Makes `events` all zeros.  Call it after the predecessor's events were taken: it may have left any bytes. */
void fs_handover_clear_events(struct fs_handover_opens *opens);

/* For the supervisor.  fs_handover_new makes the memfd and maps its head; fs_handover_map_head maps the head of an
 * existing memfd.  The head is mapped to read only.
 * Return 0; -EINVAL: `fd` is too short to be such a memfd; another -errno. */
int fs_handover_new(int *ret_fd, struct fs_handover_head **ret_head);
int fs_handover_map_head(int fd, struct fs_handover_head **ret_head);

#endif
