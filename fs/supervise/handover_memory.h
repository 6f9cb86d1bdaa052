/* SPDX-License-Identifier: Apache-2.0 */
/* What a server knows and its successor needs, in memory that outlives it (a memfd kept by the supervisor).
 *
 *     0            page                                                                               size
 *     +------------+---------------------+------------------------+-----+------------------+----------+
 *     | head: beat,| view 0: 2 records,  | 2 bitmaps of turns     | ... | resident:        | opens    |
 *     | 2 counts   |   the younger valid |   the record says      |     |   a bit a sample |          |
 *     |            |   one counts        |   which one counts     |     |                  |          |
 *     +------------+---------------------+------------------------+-----+------------------+----------+
 *      mapped by the supervisor, too
 *
 * A server can die at any instruction, or write anywhere before it does.  So nothing here is believed: the layout is worked
 * out from the dataset and the options and must be what stands in the head; records carry a checksum, and the younger one that
 * has the right one counts (none: the view starts as it was mounted); bits are hints.  A wrong bit costs a read or a count, never
 * bytes: what is wrong here cannot change what a file holds.
 *
 * Threads: fs_handover_open and _close main.  A view's part is guarded by the view's lock, its orders are the recognise
 * thread's, the counts by fs/stats_files.c's, `resident` is
 * the engine's, `opens` are the watcher's lock's, `beat` is main's. */
#ifndef DDPFS_FS_SUPERVISE_HANDOVER_MEMORY_H
#define DDPFS_FS_SUPERVISE_HANDOVER_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/inotify.h>

enum { FS_HANDOVER_COUNTS_MAX = 64 };
enum { FS_HANDOVER_HEAD_BYTES = 4096 }; /* what the supervisor maps; the memfd never gets shorter */
enum { FS_HANDOVER_EVENTS_BYTES = 1 << 16 };

/* Counters of all servers so far, by name: the next server may be of another version. */
struct fs_handover_counts {
	uint64_t age; /* as of a record */
	uint64_t n;
	struct fs_handover_count {
		uint64_t key; /* XXH3-64 of the name */
		uint64_t value;
	} counts[FS_HANDOVER_COUNTS_MAX];
	uint64_t xxh3; /* of what stands before it */
};

struct fs_handover_head {
	_Atomic uint64_t beat; /* changes every beat_ms while the server is well */
	uint64_t magic;        /* the rest is here (server's; 0: not yet) */
	uint64_t size;
	uint64_t n_views, view_bits, samples;
	struct fs_handover_counts counts[2];
};

struct fs_handover_record {
	uint64_t age; /* the higher one is the younger one */
	uint64_t epoch;
	uint32_t map;   /* which bitmap holds its turns: 0 or 1 */
	uint32_t flags; /* FS_HANDOVER_* */
	uint64_t trained_epoch;
	uint64_t trained_steps;
	int64_t listing_s; /* mtime of the view's root */
	uint64_t listing_ns;
	uint64_t xxh3; /* of what stands before it */
};
enum { FS_HANDOVER_PINNED = 1, FS_HANDOVER_TRAINED = 2 };

struct fs_handover_view {
	struct fs_handover_record *records; /* 2 */
	struct fs_handover_orders *orders;  /* 2 */
	uint64_t *maps[2];
	uint64_t bits; /* of each map */
};

/* Opens that were seen and not taken in yet: the kernel has them no more, so whoever dies over them leaves them here. */
struct fs_handover_opens {
	/* What a read(2) of inotify's descriptor brought; zero but while events lie in it. */
	_Alignas(8) uint8_t events[FS_HANDOVER_EVENTS_BYTES];
	_Atomic uint32_t taken; /* bytes of `events` that fs_handover_take_event has handed out */
};

/* What was recognised of a view's readers (fs/sampler_streams.h), in the page of its records: bytes that their maker checks.  A program that
 * does not know them leaves zeros there, which are none. */
enum { FS_HANDOVER_ORDERS_BYTES = 1280, FS_HANDOVER_ORDERS_VERSION = 1 };
struct fs_handover_orders {
	uint64_t age; /* the higher one is the younger one; 0: never written */
	uint32_t version, len;
	uint8_t bytes[FS_HANDOVER_ORDERS_BYTES]; /* `len` of them count */
	uint64_t xxh3;                           /* of what stands before it */
};

struct fs_handover; /* opaque */

/* Makes or finds the parts for `n_views` views of at most `view_bits` turns and `samples` samples.  *ret_kept: they were there
 * already, as a predecessor left them.  -ENOMEM, -EFBIG, -errno of the memfd. */
int fs_handover_open(int fd, uint64_t n_views, uint64_t view_bits, uint64_t samples, struct fs_handover **ret_estate,
        bool *ret_kept);
void fs_handover_close(struct fs_handover *estate); /* NULL is fine */

void fs_handover_beat(struct fs_handover *estate);
struct fs_handover_view fs_handover_view(struct fs_handover *estate, uint32_t number);
uint64_t *fs_handover_resident(struct fs_handover *estate);
struct fs_handover_opens *fs_handover_opens(struct fs_handover *estate);

/* The younger valid record.  False: there is none. */
bool fs_handover_load(const struct fs_handover_view *view, struct fs_handover_record *ret_record);
/* Takes the place of the older one.  age and xxh3 are filled in. */
void fs_handover_store(const struct fs_handover_view *view, const struct fs_handover_record *record);
/* As with records.  False: there is none, or of another version.  The younger one that has the right checksum counts. */
bool fs_handover_load_orders(const struct fs_handover_view *view, struct fs_handover_orders *ret_orders);
/* len at most FS_HANDOVER_ORDERS_BYTES. */
void fs_handover_store_orders(const struct fs_handover_view *view, const void *bytes, uint32_t len);
/* All zeros, its memory given back. */
void fs_handover_clear(const struct fs_handover_view *view, uint32_t map);

/* As with a view's records.  Guarded by the caller. */
bool fs_handover_load_counts(const struct fs_handover *estate, struct fs_handover_counts *ret_counts);
void fs_handover_store_counts(struct fs_handover *estate, const struct fs_handover_counts *counts);

/* The next event of those that were read, whole and its name ended; NULL: there is none, and `events` is empty again.  One that is
 * handed out counts as taken in: a server that dies over it must not take the next one along. */
const struct inotify_event *fs_handover_take_event(struct fs_handover_opens *opens);
/* After what a predecessor left was taken: it may have left anything. */
void fs_handover_clear_events(struct fs_handover_opens *opens);

/* The supervisor's end: makes the memfd and maps its head.  -EINVAL: fd is too short to be one; -errno. */
int fs_handover_new(int *ret_fd, struct fs_handover_head **ret_head);
int fs_handover_map_head(int fd, struct fs_handover_head **ret_head);

#endif
