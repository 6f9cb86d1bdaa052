/* SPDX-License-Identifier: Apache-2.0 */
/* Which opens missed: READs that reached the server, paired with the opens of watched names that they belong to.
 *
 * A READ carries an inode and nothing else (OPEN never comes), an inotify event a name and no time.  The kernel queues
 * the event before its opener can read, so a READ belongs to an open that was drained shortly before it came or that
 * the next drain brings.  An open is a miss when a READ comes within FS_HIT_COUNTING_PAIR_MS of it; READs of a file's middle
 * are the same open reading on, as long as none is later than FS_HIT_COUNTING_ON_MS after the one before.  A READ that finds no open
 * came through a name that is not watched.
 *
 * An open that has not been read yet looks like a hit.  So what is shown (fs_hit_counting_count) takes back no hit: a miss that
 * comes to light later waits for the next hits.  At most the files that were being opened just then are out.
 *
 * Bounded: READs are kept until the next drain, FS_HIT_COUNTING_READS of them; of opens the latest, about FS_HIT_COUNTING_KEPT.
 *
 * Threads: fs_hit_counting_read from any; its lock is a leaf.  All others under the watcher's lock. */
#ifndef DDPFS_FS_HIT_COUNTING_H
#define DDPFS_FS_HIT_COUNTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	FS_HIT_COUNTING_READS = 4096,
	FS_HIT_COUNTING_KEPT = 4096,
	FS_HIT_COUNTING_PAIR_MS =
	        250, /* from open to read, and from the event to its drain; a reader may be held up by others */
	FS_HIT_COUNTING_ON_MS =
	        2000, /* from one READ of an open to the next: a slow store's answer lies between them */
};

struct fs_hit_counting; /* opaque */

/* pair_ms: FS_HIT_COUNTING_PAIR_MS, but for tests, which must not depend on how busy the machine is; FS_HIT_COUNTING_ON_MS goes with it.
 * -ENOMEM. */
int fs_hit_counting_new(uint32_t pair_ms, struct fs_hit_counting **ret_opens);
void fs_hit_counting_free(struct fs_hit_counting *opens); /* NULL is fine */

struct fs_hit_counting_read {
	uint32_t file;
	bool first; /* of the file's beginning */
	uint64_t ns;
};

/* A READ came.  Returns false when it finds no room: after a drain it does. */
bool fs_hit_counting_read(struct fs_hit_counting *opens, struct fs_hit_counting_read read);

/* What is opened: a file (place 0), or a turn of an epoch as flat names tell it. */
struct fs_hit_counting_key {
	uint64_t place; /* fs_hit_counting_place */
	uint64_t id;    /* file or turn */
};
static inline uint64_t fs_hit_counting_place(uint32_t view, uint64_t epoch)
{
	return epoch << 8 | view | UINT64_C(1) << 63;
}

/* An open was drained at now_ns. */
void fs_hit_counting_opened(struct fs_hit_counting *opens, struct fs_hit_counting_key key, uint64_t now_ns);

/* The READs since the last call, oldest first; valid until the next call. */
size_t fs_hit_counting_take(struct fs_hit_counting *opens, const struct fs_hit_counting_read **ret_reads);

/* Pairs a READ with an open of one of `keys`, all the names that the file has; false when there was none. */
bool fs_hit_counting_pair(struct fs_hit_counting *opens, const struct fs_hit_counting_key *keys, size_t n_keys,
        const struct fs_hit_counting_read *read);

/* hits + misses = opens; none of the three ever falls. */
struct fs_hit_counting_count {
	uint64_t opens;
	uint64_t hits;   /* no READ came */
	uint64_t misses; /* ... */
};
void fs_hit_counting_count(struct fs_hit_counting *opens, struct fs_hit_counting_count *ret_count);

#endif
