/* SPDX-License-Identifier: Apache-2.0 */
/* Which opens missed: it pairs READs that reached the server with the opens of watched names that they belong to.
 *
 * A READ has an inode and nothing else (OPEN never comes). An inotify event has a name and no time. The kernel queues
 * the event before the opener can read. So a READ belongs to an open that was drained shortly before it came, or that
 * the next drain brings.
 *
 * An open is a miss if a READ comes within FS_HIT_COUNTING_PAIR_MS of it. READs of a file's middle belong to the same
 * open, as long as each comes within FS_HIT_COUNTING_ON_MS of the one before. A READ that finds no open came through
 * a name that is not watched.
 *
 * An open that was not read yet looks like a hit. What was shown (fs_hit_counting_count) takes back no hit: a miss
 * that is found later is counted in place of a later hit. The error is at most the files that were being opened at
 * that moment.
 *
 * Memory is bounded: READs are kept until the next drain, at most FS_HIT_COUNTING_READS; of opens, about the latest
 * FS_HIT_COUNTING_KEPT.
 *
 * Threads: fs_hit_counting_read from any; its lock is a leaf. All others under the watcher's lock. */
#ifndef DDPFS_FS_HIT_COUNTING_H
#define DDPFS_FS_HIT_COUNTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	FS_HIT_COUNTING_READS = 4096,
	FS_HIT_COUNTING_KEPT = 4096,
	/* from open to read, and from the event to its drain; other threads may hold a reader up */
	FS_HIT_COUNTING_PAIR_MS = 250,
	/* from one READ of an open to the next: a slow store's answer lies between them */
	FS_HIT_COUNTING_ON_MS = 2000,
};

struct fs_hit_counting; /* opaque */

/* Makes the counters. @pair_ms: FS_HIT_COUNTING_PAIR_MS; tests give more, so that they do not depend on how busy the
 * machine is. FS_HIT_COUNTING_ON_MS changes in proportion. Returns 0; -ENOMEM. */
int fs_hit_counting_new(uint32_t pair_ms, struct fs_hit_counting **ret_opens);
void fs_hit_counting_free(struct fs_hit_counting *opens); /* NULL is fine */

struct fs_hit_counting_read {
	uint32_t file;
	uint32_t bytes; /* of the file that it asks for */
	bool first;     /* the READ is of the file's beginning */
	uint64_t ns;
	uint64_t length; /* of the file; only for fs_hit_counting_pair. 0: not known, and its bytes do not count */
};

/* Records a READ. Returns false if there is no room; there is room after a drain. */
bool fs_hit_counting_read(struct fs_hit_counting *opens, struct fs_hit_counting_read read);

/* What is opened: a file of a view, or a turn of one of its epochs, as flat names tell it. */
struct fs_hit_counting_key {
	uint64_t place; /* fs_hit_counting_files or fs_hit_counting_turns */
	uint64_t id;    /* file or turn */
};
static inline uint64_t fs_hit_counting_files(uint32_t view)
{
	return view;
}
static inline uint64_t fs_hit_counting_turns(uint32_t view, uint64_t epoch)
{
	return epoch << 8 | view | UINT64_C(1) << 63;
}

/* Records an open that was drained at @now_ns (CLOCK_MONOTONIC). @bytes: of the file, or the mean of
 * all files if its own are not known; what READs ask for counts in proportion. */
void fs_hit_counting_opened(
        struct fs_hit_counting *opens, struct fs_hit_counting_key key, uint64_t bytes, uint64_t now_ns);

/* Returns how many READs came since the last call; *ret_reads: oldest first, valid until the next call. */
size_t fs_hit_counting_take(struct fs_hit_counting *opens, const struct fs_hit_counting_read **ret_reads);

/* Pairs a READ with an open of one of @keys, which are all names of the file in all views. Returns false if there was
 * no such open. */
bool fs_hit_counting_pair(struct fs_hit_counting *opens, const struct fs_hit_counting_key *keys, size_t n_keys,
        const struct fs_hit_counting_read *read);

/* What is shown: hits + misses = opens; none of the numbers ever falls. */
struct fs_hit_counting_count {
	uint64_t opens;
	uint64_t hits;         /* no READ came, as far as is known */
	uint64_t misses;       /* a READ came */
	uint64_t bytes;        /* of the opened files */
	uint64_t cached_bytes; /* of these, those that no READ asked for, as far as is known */
};
/* Tells the counts of a view, or of all views together (FS_HIT_COUNTING_ALL). If two views open a file by its name in a
 * tree at the same time, the first READ counts in the one that opened it last. */
#define FS_HIT_COUNTING_ALL UINT32_MAX
void fs_hit_counting_count(struct fs_hit_counting *opens, uint32_t view, struct fs_hit_counting_count *ret_count);

#endif
