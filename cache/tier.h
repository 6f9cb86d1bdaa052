/* SPDX-License-Identifier: Apache-2.0 */
/* A tier: a bounded store of blocks on a local disk.  All processes of a host share it, and it stays between jobs.
 *
 * It holds copies of blocks (cache/cache.h says what a block is).  It is one sparse file DIR/tier, whose length is the
 * size of the tier:
 *
 *   header, names, hits | datasets | segments | buckets of entries | segment 0 | segment 1 | ...
 *
 *     segment  a span of data that one dataset owns; blocks are appended to it, without gaps
 *     entry    says where a block lies; found by the hash of (identity of the dataset, file, block)
 *     bucket   one page of entries; the hash says which
 *
 * There is one entry for each 2 KiB of the file's length, so smaller blocks use up the entries before the room.
 *
 * Nothing in the file is trusted.  Entries and records have a checksum.  The caller gives the XXH3 of each block, from
 * the index of its dataset, and each read is verified.  So no write needs fsync(2): after kill -9 or a power cut, a
 * damaged or missing part is a miss.  A block that does not verify is counted, and its entry is removed.
 *
 * The file is never mapped, so a full or failing disk is an error of a system call, and never SIGBUS.  The first such
 * error switches the tier off for this process (cache_tier_off).
 *
 * When the tier is full, it keeps what it holds, and a put finds no room.  It first
 * takes a segment from a dataset that no process has open: from the one that was opened longest ago.  So epochs that
 * read everything do not replace their own blocks.
 *
 * A caller that knows the order tells the next use of each block (cache_tier_join, cache/tier_uses.h).  Blocks with the
 * same time of use lie in the same segments:
 *
 *     segment: used by now | closed dataset | use not known | used in epoch 7 | ... | in epoch 4 | in epoch 3
 *     a put for epoch 4 takes one of these:  <------------------------------->   and none of these
 *
 * So it replaces only what is used later, if it is used at all.  A put that tells nothing replaces no block of its
 * dataset.  If a block is put again for a later use, it moves to a segment of that use.
 *
 * The file belongs to one user (mode 0600).  If its directory has the set-group-id bit and the sticky bit, and its
 * group may write to it but others may not, the file belongs to that group (0660), whatever the umask is.  Each member
 * can then do all with it but rename and remove it.  A file of this user that is no tier is not given to the group.
 *
 * Locks between processes are open file description locks on bytes behind the end of the file (fcntl(2)).  They end
 * with the process that holds them.  A child made by fork(2) shares them; it must close the descriptor or call exec.
 *
 * Threads: any thread may call every function but open and close.  One mutex guards changes.  It is held during reads
 * and writes of entries and records, and never during those of blocks.  A change waits at most a second for other
 * processes.  If a process stops while it holds the lock, the others cannot change the tier, but they can read it. */
#ifndef DDPFS_CACHE_TIER_H
#define DDPFS_CACHE_TIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard/base/err.h"

#define CACHE_TIER_SIZE_MIN ((uint64_t)64 << 20) /* bytes; with less, the ends of segments would waste over 10% */
#define CACHE_TIER_SIZE_MAX ((uint64_t)1 << 46)  /* bytes */
enum {
	CACHE_TIER_IDENTITY = 16,               /* bytes of a dataset's identity */
	CACHE_TIER_DATASETS_MAX = 256,          /* datasets that one tier knows */
	CACHE_TIER_NAME_MAX = 256,              /* bytes of a dataset's name, NUL included */
	CACHE_TIER_PUT_MAX = 128,               /* blocks of one cache_tier_put_all */
	CACHE_TIER_EPOCH = 8,                   /* units of time of an epoch */
	CACHE_TIER_FAR = 32 * CACHE_TIER_EPOCH, /* uses that are so far from now are as good as none */
	CACHE_TIER_RANKS_MAX = 1 << 20,         /* of an order */
	CACHE_TIER_EPOCHS_MAX = 1 << 27,        /* later epochs have no time */
};

struct cache_tier; /* opaque */

/* A block of the dataset for which the tier is open. */
struct cache_tier_block {
	uint64_t key;  /* cache_block_key */
	uint64_t xxh3; /* shard_block_sum of its bytes */
	uint32_t len;  /* bytes, 1 .. SHARD_BLOCK */
	/* Only for puts.  The next use of this host, in units of time from epoch 0 on: epoch * CACHE_TIER_EPOCH + the
	 * part of the epoch + 1.  0: not known.  now: the same of the use for which it is read. */
	uint32_t next, now;
};

/* What this process did.  Blocks and bytes since cache_tier_open. */
struct cache_tier_stats {
	uint64_t hits, hit_bytes;      /* blocks that were read and verified */
	uint64_t misses;               /* blocks that were not there, the bad ones included */
	uint64_t bad;                  /* blocks that did not verify, and damaged entries; removed */
	uint64_t stored, stored_bytes; /* blocks that were written */
	uint64_t moved, moved_bytes;   /* those of them that were there, for an earlier use */
	uint64_t refused;              /* blocks that found no room, or the lock was not free for long */
	uint64_t no_entry;             /* those of them for which the tier had no entry left */
};

/* How full the tier is, for all processes. */
struct cache_tier_fill {
	uint64_t size_bytes;    /* of the file */
	uint64_t room_bytes;    /* for blocks: all segments */
	uint64_t used_bytes;    /* in segments that a dataset owns */
	uint64_t dataset_bytes; /* those of this dataset */
};

/* Opens the tier in directory `dir` for one dataset, and makes it if it is not there.  It costs the same at any size.
 * size_bytes: CACHE_TIER_SIZE_MIN .. CACHE_TIER_SIZE_MAX.  A tier of another size, or one whose header is damaged, is
 * made anew, and what it held is gone.
 * Returns 0, -EINVAL (size_bytes is out of range), -EBUSY (the tier has another size and another process uses it),
 * -ENOENT (there is no such directory), -EPERM or -EACCES (the file belongs to another user, or to a group of which
 * this one is no member), -EPERM (others may read or write it, it has a second name, or is no regular file; or the
 * directory is shared, and it is a private file and no tier), -ENOSPC (the tier knows CACHE_TIER_DATASETS_MAX datasets,
 * and all of them are in use), -ETIMEDOUT (for 10 s, another process has been opening the tier), -ENOMEM, or an error
 * of a system call; err says it in a sentence. */
int cache_tier_open(const char *dir, uint64_t size_bytes, const uint8_t identity[CACHE_TIER_IDENTITY],
        struct base_err *err, struct cache_tier **ret_tier);
/* Returns the size of the tier that was there before this one, and that was emptied because its size was another one;
 * 0: none was. */
uint64_t cache_tier_emptied(const struct cache_tier *tier);
/* Closes the tier; its claims end.  NULL is fine. */
void cache_tier_close(struct cache_tier *tier);

/* Tells the tier where its dataset lies, so that people know it in a list: a path, or a name in a store.  name: len
 * bytes, which everybody may see (remote_public_len).  Of a long name, the end is kept.  There is room for the names of
 * dozens of datasets: those that were told last.  It changes nothing if the tier is off or the lock is not free. */
void cache_tier_tell_name(struct cache_tier *tier, const char *name, size_t len);

/* Reads a block into `data` (block->len bytes) and verifies it.  After an error, data holds any bytes.
 * Returns 0, -ENOENT (it is not there, or was damaged), -ENODEV (the tier is off), or the error of a system call that
 * switches it off now. */
int cache_tier_get(struct cache_tier *tier, const struct cache_tier_block *block, void *data);

/* Does the same, but does not count a miss: for a block that was missed before, and that another process may have
 * stored since then. */
int cache_tier_get_again(struct cache_tier *tier, const struct cache_tier_block *block, void *data);

/* Does the same, and counts neither a hit nor a miss: for a tool that looks at what is there.  A damaged block counts
 * and is removed. */
int cache_tier_verify(struct cache_tier *tier, const struct cache_tier_block *block, void *data);

/* Tells whether the tier has a block, without reading or verifying it.  Counts nothing. */
bool cache_tier_has(struct cache_tier *tier, const struct cache_tier_block *block);

/* Joins the ranks of this host that use the dataset in one order.  Call it for each rank of this process, for
 * one of them before puts that tell a next use, which is then a time in this order.  order: names the order, the same
 * for all ranks of a job.  rank: below CACHE_TIER_RANKS_MAX.
 * Returns 0 or an error of fcntl(2). */
int cache_tier_join(struct cache_tier *tier, uint64_t order, uint32_t rank);
/* Ends what this process has joined.  Until it joins again, the next uses that puts tell are ignored. */
void cache_tier_leave(struct cache_tier *tier);
/* Sets the bits of the ranks below `world` that other processes have joined with. */
void cache_tier_ranks(struct cache_tier *tier, uint32_t world, uint64_t *ranks);

/* Stores n blocks, 1 .. CACHE_TIER_PUT_MAX, as far as there is room.  data: their bytes, one after the other; the
 * caller has verified them.  A block that is there stays as it is, or moves if its next use is later than the one that
 * it was stored for.  It takes the locks twice for all blocks, and writes neighbours at once.
 * Returns 0, -ENOBUFS (there is no room for some, or another process holds the lock for long; those that found room are
 * stored), -ENODEV (the tier is off), or the error of a system call that switches it off now. */
int cache_tier_put_all(struct cache_tier *tier, const struct cache_tier_block *blocks, uint32_t n, const void *data);

/* Tells whether a put of such a block was -ENOBUFS in this process, less than a second ago: one that was not larger,
 * or one that was used sooner and read at the same time.  Then another put, which searches for room, is hardly worth
 * it. */
bool cache_tier_full(struct cache_tier *tier, const struct cache_tier_block *block);

/* Claims bytes of a shard before they are fetched, so that no other process fetches them.  It does not wait.  The claim
 * excludes other cache_tier objects, and not other threads with this one.  Claims that touch each other are one for the
 * kernel, which walks through all of a file at each call: so claim runs of blocks, and not one after the other.
 * After 0, call cache_tier_get_again: a block may have been stored since the miss.
 * offset, len: below 2^40.  Seldom, two shards have the same claims.
 * Returns 0, -EAGAIN (another process has claimed a part of it: call cache_tier_get_again later), or an error of
 * fcntl(2) (-ENOLCK). */
int cache_tier_claim(struct cache_tier *tier, uint32_t shard, uint64_t offset, uint64_t len);
/* Ends the claims of these bytes; call it after cache_tier_put_all, or after the fetch has failed. */
void cache_tier_unclaim(struct cache_tier *tier, uint32_t shard, uint64_t offset, uint64_t len);

/* Says that this process lives and works for its claims.  Call it once a second as long as it has some, one thread at a
 * time.  A process that was stopped does not. */
void cache_tier_work(struct cache_tier *tier);
/* Says that this process has no claims.  The same thread, or after it. */
void cache_tier_rest(struct cache_tier *tier);
/* Tells whether other processes work for their claims of this dataset: some have called cache_tier_work in the last
 * seconds, and none has ceased to without cache_tier_rest.  The kernel does not tell whose a claim is. */
bool cache_tier_others_work(struct cache_tier *tier);

/* Returns the errno that switched the tier off, as a positive number, or 0. */
int cache_tier_off(struct cache_tier *tier);

/* What a tier holds of one dataset. */
struct cache_tier_dataset {
	uint8_t identity[CACHE_TIER_IDENTITY];
	uint64_t opened_ns; /* CLOCK_REALTIME, when it was opened last */
	uint64_t bytes;     /* in its segments */
	uint64_t hits;      /* blocks read since it came; what a process reads comes in thousands, and when it ends */
	bool open;          /* a process has it open */
	/* Where it lay when it was opened last; "": not known.  It has any bytes, because others may write to the
	 * file: show it by remote_quote. */
	char name[CACHE_TIER_NAME_MAX];
};

/* Lists a tier that is there, without changing it.  all: CACHE_TIER_DATASETS_MAX of them.  ret_fill: its
 * dataset_bytes is 0.
 * Returns 0; -ENOENT (there is none); -EPERM as cache_tier_open; -EUCLEAN (its header is damaged); an error of a
 * system call.  err says it in a sentence. */
int cache_tier_list(const char *dir, struct base_err *err, struct cache_tier_dataset *all, uint32_t *ret_n,
        struct cache_tier_fill *ret_fill);
/* Removes a dataset from a tier that is there.  Its bytes go back to the file system, if that can punch holes.
 * Returns 0; an error of cache_tier_list; -ESRCH (the tier does not know it); -EBUSY (a process has it open);
 * -EAGAIN (a process holds the lock for long). */
int cache_tier_remove(const char *dir, const uint8_t identity[CACHE_TIER_IDENTITY], struct base_err *err);

void cache_tier_stats_get(struct cache_tier *tier, struct cache_tier_stats *ret_stats);
/* Reads how full the tier is.  Returns 0 or an error of a system call. */
int cache_tier_fill_get(struct cache_tier *tier, struct cache_tier_fill *ret_fill);

#endif
