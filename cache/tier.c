/* SPDX-License-Identifier: Apache-2.0 */
/* cache/tier.h first.
 *
 *   put:  lock | room in a segment | unlock | write the blocks | lock | write their entries | unlock
 *   get:  read the bucket | read the block | verify
 *
 * An entry is written after its block, so a process that dies between them leaves only unused bytes in a segment.  A
 * segment that changes its owner gets a new generation, and entries of an older one are stale.  Nobody takes a segment
 * while a put writes blocks into it (LOCK_SEGMENT), because that put would overwrite blocks of the new generation.  A
 * get takes no lock: what another process writes meanwhile has a wrong checksum, or the old bytes. */
#include "cache/tier.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "shard/base/bits.h"
#include "shard/base/cleanup.h"
#include "shard/base/clock.h"
#include "shard/base/io.h"
#include "shard/block_sum.h"
#include "shard/format.h"

enum {
	PAGE = 4096,
	ENTRIES = PAGE / 32, /* of a bucket */
	ENTRY_BYTES = 2048,  /* of data for each entry */
	SEGMENTS_MAX = 1024,
	FULL_NS = 1000000000, /* after "no room" nobody looks for room for so long */
	SEGMENT_BYTES_MIN = 4 << 20,
	NAMES_AT = 32,      /* behind the header */
	HITS_AT = PAGE / 2, /* of each dataset, uint64_t: for people only, so without a checksum */
	DATASETS_AT = PAGE,
	SEGMENTS_AT = DATASETS_AT + CACHE_TIER_DATASETS_MAX * 32,
	BUCKETS_AT = SEGMENTS_AT + SEGMENTS_MAX * 32,
	SPARE_PART = 64, /* so many segments in all are kept for blocks that are used sooner than the farthest ones */
	NO_SEGMENT = UINT32_MAX,
	POLL_FIRST_NS = 20000, /* pause before the lock is tried again; it doubles */
	POLL_MOST_NS = 1000000,
	PATIENCE_NS = 1000000000, /* how long a change waits for the lock */
	HITS_TOLD = 4096,         /* hits of a process that are added to the dataset's at once */
	WORK_SECONDS = 64,        /* a process that works holds the byte of the present second: modulo this */
	WORK_LATE = 6,            /* a process that is so many seconds behind does not work: it was stopped */
};
static_assert(HITS_AT + CACHE_TIER_DATASETS_MAX * sizeof(uint64_t) <= DATASETS_AT, "they fit");
#define OPEN_NS UINT64_C(10000000000)      /* how long an open waits for others that open the tier */
#define STUCK_NS UINT64_C(10000000000)     /* how long no change waits after one has waited in vain */
#define MAGIC UINT64_C(0x3252454954504444) /* "DDPTIER2" */

/* Bytes behind the end of any file, for locks. */
#define LOCK_CHANGE ((off_t)1 << 60)                /* exclusive: changes of entries and records */
#define LOCK_USER (LOCK_CHANGE + 1)                 /* shared: the tier is open */
#define LOCK_DATASET (LOCK_CHANGE + 16)             /* shared, + number: the dataset is open */
#define LOCK_WORK (LOCK_CHANGE + (1 << 20))         /* shared, + number of the dataset * WORK_SECONDS + second */
#define LOCK_SEGMENT (LOCK_CHANGE + (1 << 21))      /* shared, + number: a put writes blocks into the segment */
#define LOCK_CLAIM ((off_t)1 << 61)                 /* exclusive, + lane of a shard, + offset in it */
#define LOCK_RANKS (LOCK_CHANGE + ((off_t)1 << 40)) /* shared, + lane of an order, + rank: it has joined */
#define RANK_LANES (UINT64_C(1) << 16)
#define RANK_LANE_BYTES ((uint64_t)CACHE_TIER_RANKS_MAX)
#define CLAIM_LANES (UINT64_C(1) << 20)
#define CLAIM_LANE_BYTES (UINT64_C(1) << 40)

/* Each record ends in the checksum of the rest.  A record of zeros is unused. */
struct header {
	uint64_t magic, size_bytes, reserved, check;
};

struct dataset {
	uint8_t identity[CACHE_TIER_IDENTITY];
	uint64_t opened_ns; /* CLOCK_REALTIME */
	uint64_t check;
};

struct segment {
	uint32_t owner; /* number of the dataset + 1; 0: nobody */
	uint32_t generation;
	uint64_t used_bytes;
	uint32_t order, last; /* the last use of its blocks in an order, as cache_tier_block.next; 0: not known */
	uint64_t check;
};

struct entry {
	uint64_t hash;
	uint64_t place; /* in the file */
	uint32_t len;
	uint32_t generation; /* of the segment */
	uint64_t check;
};

/* The names of datasets, one record after the other, the one that was told last first.
 *
 *   identity, 16 bytes | length, 1 byte | name, without NUL
 *
 * A length of 0 ends them.  They are for people only.  A tier that an older ddpfs made has zeros here, and an older
 * ddpfs leaves this part as it is. */
struct names {
	uint64_t check; /* of `records` */
	uint8_t records[HITS_AT - NAMES_AT - sizeof(uint64_t)];
};
static_assert(NAMES_AT + sizeof(struct names) == HITS_AT && CACHE_TIER_NAME_MAX - 1 <= UINT8_MAX, "they fit");

static_assert(sizeof(struct header) == 32 && sizeof(struct dataset) == 32 && sizeof(struct segment) == 32 &&
                      sizeof(struct entry) == 32,
        "records have 32 bytes");

struct cache_tier {
	int fd;
	uint8_t identity[CACHE_TIER_IDENTITY];
	uint32_t number;        /* of the dataset */
	_Atomic uint32_t order; /* in which this process tells next uses; 0: in none so far */
	uint64_t size_bytes, data_at, segment_bytes;
	uint64_t emptied_bytes; /* the size of the tier that was there; 0: it had this one, or there was none */
	uint32_t n_segments;
	uint64_t n_buckets;
	atomic_int off; /* errno */

	pthread_mutex_t mutex;       /* taken before LOCK_CHANGE, because threads share the locks of a descriptor */
	uint32_t current;            /* the segment that the last put used; guarded by mutex */
	uint64_t stuck_ns;           /* when a wait for LOCK_CHANGE was last in vain; 0: never; guarded by mutex */
	uint32_t puts[SEGMENTS_MAX]; /* of this process, that write blocks into the segment now; guarded by mutex */

	/* No room was found for full_len bytes at full_ns (0: never).  At full_next_ns, none was found for blocks that
	 * are used until full_next, when the host was at full_now.  Puts change them, under mutex. */
	_Atomic uint64_t full_ns, full_next_ns;
	_Atomic uint32_t full_len, full_next, full_now;

	uint32_t working; /* the byte of LOCK_WORK that this process holds, + 1; 0: none; of one thread at a time */

	_Atomic uint64_t hits_told; /* those of `hits` that are added to the number in the file */
	_Atomic uint64_t hits, hit_bytes, misses, bad, stored, stored_bytes, moved, moved_bytes, refused, no_entry;
};

static void count(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* Returns the checksum of a record: never that of zeros. */
static uint64_t check_of(const void *record)
{
	return XXH3_64bits_withSeed(record, 24, MAGIC);
}

static bool zeros(const void *record)
{
	return memcmp(record, (uint8_t[32]){ 0 }, 32) == 0;
}

static bool dataset_ok(const struct dataset *d)
{
	return d->check == check_of(d);
}

/* ---- locks ---- */

static int lock_bytes(int fd, short type, off_t start, off_t len, bool wait)
{
	struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len };
	int rc;
	do
		rc = fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &lock);
	while (rc < 0 && errno == EINTR);
	if (rc == 0)
		return 0;
	return errno == EACCES ? -EAGAIN : -errno;
}

static int lock_byte(int fd, short type, off_t byte, bool wait)
{
	return lock_bytes(fd, type, byte, 1, wait);
}

/* Tells whether another process has a dataset open. */
static bool dataset_is_open(int fd, uint32_t number)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_DATASET + number, .l_len = 1 };
	return fcntl(fd, F_OFD_GETLK, &lock) < 0 || lock.l_type != F_UNLCK;
}

/* Returns the lock's first byte for the ranks of an order. */
static off_t rank_lane(uint32_t order)
{
	return LOCK_RANKS + (off_t)(order % RANK_LANES * RANK_LANE_BYTES);
}

int cache_tier_join(struct cache_tier *tier, uint64_t order, uint32_t rank)
{
	uint32_t name = (uint32_t)(order ^ order >> 32);
	assert(rank < RANK_LANE_BYTES);
	tier->order = name ? name : 1;
	return lock_byte(tier->fd, F_RDLCK, rank_lane(tier->order) + rank, false);
}

void cache_tier_leave(struct cache_tier *tier)
{
	if (tier->order)
		lock_bytes(tier->fd, F_UNLCK, rank_lane(tier->order), RANK_LANE_BYTES, false);
	tier->order = 0;
}

/* Sets the bits of the numbers in [first, end) whose bytes behind `lane` others hold.  The kernel tells any of their
 * locks, not the lowest. */
static void find_locked(int fd, off_t lane, off_t first, off_t end, uint64_t *numbers)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = lane + first, .l_len = end - first };
	if (first >= end || fcntl(fd, F_OFD_GETLK, &lock) < 0 || lock.l_type == F_UNLCK)
		return;
	off_t from = lock.l_start - lane, to = from + lock.l_len;
	for (off_t number = from > first ? from : first; number < to && number < end; number++)
		bit_set(numbers, (uint64_t)number);
	find_locked(fd, lane, first, from, numbers);
	find_locked(fd, lane, to, end, numbers);
}

void cache_tier_ranks(struct cache_tier *tier, uint32_t world, uint64_t *ranks)
{
	assert(world <= RANK_LANE_BYTES);
	find_locked(tier->fd, rank_lane(tier->order), 0, world, ranks);
}

/* Tells whether another process has joined an order. */
static bool order_is_live(int fd, uint32_t order)
{
	struct flock lock = {
		.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank_lane(order), .l_len = RANK_LANE_BYTES
	};
	return fcntl(fd, F_OFD_GETLK, &lock) < 0 || lock.l_type != F_UNLCK;
}

/* Takes LOCK_CHANGE, under mutex.  A lock that waits in the kernel has no timeout, so this one tries again. */
static int lock_with_patience(struct cache_tier *tier)
{
	uint64_t start_ns = base_now_ns(), now_ns = start_ns;
	bool stuck = tier->stuck_ns && start_ns - tier->stuck_ns < STUCK_NS;
	int rc = lock_byte(tier->fd, F_WRLCK, LOCK_CHANGE, false);
	for (long pause_ns = POLL_FIRST_NS; rc == -EAGAIN && !stuck; pause_ns *= pause_ns < POLL_MOST_NS ? 2 : 1) {
		nanosleep(&(struct timespec){ .tv_nsec = pause_ns }, NULL);
		rc = lock_byte(tier->fd, F_WRLCK, LOCK_CHANGE, false);
		now_ns = base_now_ns();
		stuck = now_ns - start_ns >= PATIENCE_NS;
	}
	if (rc == 0)
		tier->stuck_ns = 0;
	else if (now_ns > start_ns)
		tier->stuck_ns = now_ns;
	return rc;
}

/* Allows changes to this thread alone.  After 0, call unlock_changes.  Returns -EAGAIN if another process holds the
 * lock for long. */
static int lock_changes(struct cache_tier *tier)
{
	pthread_mutex_lock(&tier->mutex);
	int rc = lock_with_patience(tier);
	if (rc < 0)
		pthread_mutex_unlock(&tier->mutex);
	return rc;
}

static void unlock_changes(struct cache_tier *tier)
{
	lock_byte(tier->fd, F_UNLCK, LOCK_CHANGE, false);
	pthread_mutex_unlock(&tier->mutex);
}

/* ---- records ---- */

/* Returns what a record says; a damaged one is that of a free segment. */
static struct segment segment_of(const struct cache_tier *tier, const struct segment *s)
{
	if (s->check != check_of(s) || s->used_bytes > tier->segment_bytes || s->owner > CACHE_TIER_DATASETS_MAX)
		return (struct segment){ .generation = s->generation + 1 };
	return *s;
}

static int segment_read(struct cache_tier *tier, uint32_t number, struct segment *ret)
{
	struct segment s = { 0 };
	int rc = base_pread_full(tier->fd, &s, sizeof(s), SEGMENTS_AT + (uint64_t)number * sizeof(s));
	*ret = segment_of(tier, &s);
	return rc;
}

static int segment_write(struct cache_tier *tier, uint32_t number, struct segment *segment)
{
	segment->check = check_of(segment);
	return base_pwrite_full(tier->fd, segment, sizeof(*segment), SEGMENTS_AT + (uint64_t)number * sizeof(*segment));
}

static uint64_t hash_of(const struct cache_tier *tier, uint64_t key)
{
	uint8_t bytes[CACHE_TIER_IDENTITY + sizeof(key)];
	memcpy(bytes, tier->identity, CACHE_TIER_IDENTITY);
	memcpy(bytes + CACHE_TIER_IDENTITY, &key, sizeof(key));
	return XXH3_64bits(bytes, sizeof(bytes));
}

static uint64_t bucket_at(const struct cache_tier *tier, uint64_t hash)
{
	return BUCKETS_AT + hash % tier->n_buckets * PAGE;
}

/* Tells whether an entry is undamaged and lies within one segment. */
static bool entry_ok(const struct cache_tier *tier, const struct entry *e)
{
	if (e->check != check_of(e) || e->place < tier->data_at || e->place >= tier->size_bytes || e->len == 0 ||
	        e->len > SHARD_BLOCK)
		return false;
	uint64_t offset = e->place - tier->data_at;
	return offset / tier->segment_bytes < tier->n_segments &&
	       offset % tier->segment_bytes + e->len <= tier->segment_bytes;
}

static uint32_t segment_number(const struct cache_tier *tier, const struct entry *e)
{
	return (uint32_t)((e->place - tier->data_at) / tier->segment_bytes);
}

/* Returns the segment of an entry.  Its owner is 0 if it has another generation. */
static struct segment entry_segment(struct cache_tier *tier, const struct entry *e)
{
	struct segment segment;
	if (segment_read(tier, segment_number(tier, e), &segment) < 0 || segment.generation != e->generation)
		return (struct segment){ 0 };
	return segment;
}

static bool entry_stale(struct cache_tier *tier, const struct entry *e)
{
	return !entry_segment(tier, e).owner;
}

/* Removes an entry of a bucket, given by its number, if it still is `e`.  Returns 1, 0 (it is another one, or stays
 * because the lock is not free), or an error of a system call. */
static int entry_remove(struct cache_tier *tier, uint64_t bucket, uint32_t entry, const struct entry *e)
{
	struct entry now;
	uint64_t at = bucket + entry * sizeof(now);
	int rc = lock_changes(tier);
	if (rc < 0)
		return rc == -EAGAIN ? 0 : rc;
	rc = base_pread_full(tier->fd, &now, sizeof(now), at);
	if (rc == 0 && memcmp(&now, e, sizeof(now)) == 0) {
		now = (struct entry){ 0 };
		rc = base_pwrite_full(tier->fd, &now, sizeof(now), at);
		rc = rc < 0 ? rc : 1;
	}
	unlock_changes(tier);
	return rc;
}

/* ---- open ---- */

static void set_layout(struct cache_tier *tier, uint64_t size_bytes)
{
	tier->size_bytes = size_bytes;
	tier->n_buckets = size_bytes / ENTRY_BYTES / ENTRIES;
	tier->data_at = BUCKETS_AT + tier->n_buckets * PAGE;
	uint64_t room = size_bytes - tier->data_at, n = room / SEGMENT_BYTES_MIN;
	tier->n_segments = (uint32_t)(n < SEGMENTS_MAX ? n : SEGMENTS_MAX);
	tier->segment_bytes = room / tier->n_segments / PAGE * PAGE;
}

/* Makes an empty tier of this file unless it is one of the right size. */
static int make(struct cache_tier *tier, const char *dir, struct base_err *err)
{
	struct header h = { 0 };
	struct stat st = { 0 };
	int rc = fstat(tier->fd, &st) < 0 ? -errno : 0;
	if (rc == 0 && st.st_size >= PAGE)
		rc = base_pread_full(tier->fd, &h, sizeof(h), 0);
	bool same = h.magic == MAGIC && h.check == check_of(&h) && h.size_bytes == tier->size_bytes &&
	            (uint64_t)st.st_size == tier->size_bytes;
	if (rc == 0 && !same) {
		rc = lock_byte(tier->fd, F_WRLCK, LOCK_USER, false);
		if (rc == -EAGAIN)
			return base_err_set(err, -EBUSY,
			        "the tier in '%s' has another size, and another process uses it; give the same "
			        "tier_size",
			        base_quoted(dir));
		if (rc == 0 && ftruncate(tier->fd, 0) < 0)
			rc = -errno;
		if (rc == 0 && ftruncate(tier->fd, (off_t)tier->size_bytes) < 0)
			rc = -errno;
		if (h.magic == MAGIC && h.check == check_of(&h) && h.size_bytes != tier->size_bytes)
			tier->emptied_bytes = h.size_bytes;
		h = (struct header){ .magic = MAGIC, .size_bytes = tier->size_bytes };
		h.check = check_of(&h);
		if (rc == 0)
			rc = base_pwrite_full(tier->fd, &h, sizeof(h), 0);
	}
	if (rc == 0)
		rc = lock_byte(tier->fd, F_RDLCK, LOCK_USER, false);
	if (rc < 0)
		return base_err_set(err, rc, "cannot make the tier in '%s': %s", base_quoted(dir), base_err_str(rc));
	return 0;
}

/* Frees all segments of a dataset. */
static int free_segments(struct cache_tier *tier, uint32_t number)
{
	int rc = 0;
	for (uint32_t i = 0; rc == 0 && i < tier->n_segments; i++) {
		struct segment s;
		rc = segment_read(tier, i, &s);
		if (rc == 0 && s.owner == number + 1) {
			s = (struct segment){ .generation = s.generation + 1 };
			rc = segment_write(tier, i, &s);
		}
	}
	return rc;
}

/* Does so under the lock.  If another process holds that for long, it does so without, because the records would else
 * be those of another dataset.  Then a put of that process may lose blocks. */
static int free_segments_locked(struct cache_tier *tier, uint32_t number)
{
	int locked = lock_changes(tier);
	if (locked < 0 && locked != -EAGAIN)
		return locked;
	int rc = free_segments(tier, number);
	if (locked == 0)
		unlock_changes(tier);
	return rc;
}

static uint64_t hits_at(uint32_t number)
{
	return HITS_AT + number * sizeof(uint64_t);
}

/* Adds the hits that are not told yet to the dataset's.  If the lock is not free, the next call does. */
static void tell_hits(struct cache_tier *tier)
{
	uint64_t all = atomic_load(&tier->hits), hits;
	uint64_t more = all - atomic_exchange(&tier->hits_told, all);
	if (!more || cache_tier_off(tier))
		return;
	if (lock_changes(tier) < 0) {
		atomic_fetch_sub(&tier->hits_told, more);
		return;
	}
	if (base_pread_full(tier->fd, &hits, sizeof(hits), hits_at(tier->number)) == 0) {
		hits += more;
		base_pwrite_full(tier->fd, &hits, sizeof(hits), hits_at(tier->number));
	}
	unlock_changes(tier);
}

/* Finds the dataset's record or makes one: a free one, or that of the dataset that was opened longest ago. */
static int register_dataset(struct cache_tier *tier)
{
	struct dataset all[CACHE_TIER_DATASETS_MAX];
	uint32_t number = CACHE_TIER_DATASETS_MAX;
	uint64_t oldest = UINT64_MAX;
	struct timespec now;
	int rc = base_pread_full(tier->fd, all, sizeof(all), DATASETS_AT);
	for (uint32_t i = 0; rc == 0 && i < CACHE_TIER_DATASETS_MAX; i++) {
		if (dataset_ok(&all[i]) && memcmp(all[i].identity, tier->identity, CACHE_TIER_IDENTITY) == 0) {
			number = i;
			break;
		}
		uint64_t age = dataset_ok(&all[i]) ? all[i].opened_ns : 0;
		if (age < oldest && !dataset_is_open(tier->fd, i)) {
			oldest = age;
			number = i;
		}
	}
	if (rc == 0 && number == CACHE_TIER_DATASETS_MAX)
		rc = -ENOSPC;
	if (rc < 0)
		return rc;
	struct dataset *mine = &all[number];
	if (!dataset_ok(mine) || memcmp(mine->identity, tier->identity, CACHE_TIER_IDENTITY) != 0) {
		rc = free_segments_locked(tier, number);
		if (rc == 0)
			rc = base_pwrite_full(tier->fd, &(uint64_t){ 0 }, sizeof(uint64_t), hits_at(number));
	}
	clock_gettime(CLOCK_REALTIME, &now);
	memcpy(mine->identity, tier->identity, CACHE_TIER_IDENTITY);
	mine->opened_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
	mine->check = check_of(mine);
	if (rc == 0)
		rc = base_pwrite_full(tier->fd, mine, sizeof(*mine), DATASETS_AT + (uint64_t)number * sizeof(*mine));
	if (rc == 0)
		rc = lock_byte(tier->fd, F_RDLCK, LOCK_DATASET + number, false);
	tier->number = number;
	return rc;
}

/* Locks the directory.  A process that was stopped while it opened the tier keeps the lock, so the wait has an end. */
static int lock_directory(int dir_fd)
{
	uint64_t start_ns = base_now_ns();
	for (long pause_ns = POLL_FIRST_NS;; pause_ns *= pause_ns < POLL_MOST_NS ? 2 : 1) {
		if (flock(dir_fd, LOCK_EX | LOCK_NB) == 0)
			return 0;
		if (errno != EWOULDBLOCK && errno != EINTR)
			return -errno;
		if (base_now_ns() - start_ns >= OPEN_NS)
			return -ETIMEDOUT;
		nanosleep(&(struct timespec){ .tv_nsec = pause_ns }, NULL);
	}
}

/* Tells whether a directory is its group's: the group may write to it, others may not, and files in it get the group.
 * Directories made in such a one are such ones too, if the umask is 002. */
static bool is_of_group(const struct stat *dir_st)
{
	return (dir_st->st_mode & (S_ISGID | S_IWGRP | S_IWOTH)) == (S_ISGID | S_IWGRP);
}

/* Tells whether a group shares the tiers of a directory: it is the group's, and has the sticky bit.  mkdir(2) passes on
 * the set-group-id bit, but not the sticky one, so who made the directory meant it.  With the sticky bit, a member can
 * neither rename nor remove the files of another.  fs.protected_regular=2 does not matter: it refuses O_CREAT for a
 * file of another user in such a directory, and open_or_make gives O_CREAT only with O_EXCL. */
static bool is_shared(const struct stat *dir_st)
{
	return is_of_group(dir_st) && (dir_st->st_mode & S_ISVTX);
}

/* Says that the file must be of this user; rc is the errno. */
static int say_whose(const char *dir, const struct stat *dir_st, const struct stat *st, int rc, struct base_err *err)
{
	unsigned long uid = (unsigned long)st->st_uid;
	if (is_of_group(dir_st) && !is_shared(dir_st))
		return base_err_set(err, rc,
		        "the tier in '%s' belongs to user %lu: give this user another directory, or let the group "
		        "share this one: 'chmod +t %s'",
		        base_quoted(dir), uid, base_quoted(dir));
	return base_err_set(err, rc,
	        "the tier in '%s' belongs to user %lu: give this user another directory, or run as user %lu",
	        base_quoted(dir), uid, uid);
}

/* Says that the user is no member of the directory's group. */
static int say_group(const char *dir, const struct stat *dir_st, struct base_err *err)
{
	return base_err_set(err, -EACCES,
	        "the tier in '%s' belongs to group %lu, of which this user (%lu) is no member: add the user to it, or "
	        "give "
	        "another directory",
	        base_quoted(dir), (unsigned long)dir_st->st_gid, (unsigned long)geteuid());
}

/* Tells whether a file has the header of a tier, of any size. */
static bool is_tier(int fd)
{
	struct header h = { 0 };
	return base_pread_full(fd, &h, sizeof(h), 0) == 0 && h.magic == MAGIC && h.check == check_of(&h);
}

/* Gives the file of a shared directory to the group.  The umask does not count.  Only the owner can, and only for a
 * tier: a member may have given any other file of this user that name, by rename(2) or link(2). */
static int share(int fd, bool made, const struct stat *dir_st, struct stat *st)
{
	if (st->st_uid != geteuid() || st->st_nlink != 1 || !S_ISREG(st->st_mode) || (!made && !is_tier(fd)))
		return 0;
	if (st->st_gid == dir_st->st_gid && (st->st_mode & 0777) == 0660)
		return 0;
	if ((st->st_gid != dir_st->st_gid && fchown(fd, (uid_t)-1, dir_st->st_gid) < 0) || fchmod(fd, 0660) < 0 ||
	        fstat(fd, st) < 0)
		return -errno;
	return 0;
}

/* Checks whose the file is, who else has access, and that no file of something else is lost. */
static int check_file(const char *dir, int fd, const struct stat *dir_st, const struct stat *st, struct base_err *err)
{
	bool group = is_shared(dir_st) && st->st_gid == dir_st->st_gid && (st->st_mode & 0060) == 0060;
	if (st->st_uid != geteuid() && !group)
		return say_whose(dir, dir_st, st, -EPERM, err);
	if (!S_ISREG(st->st_mode) || (st->st_mode & 07) != 0 || (!group && (st->st_mode & 070) != 0))
		return base_err_set(err, -EPERM,
		        "'%s/tier' must be a regular file without access for others; remove it", base_quoted(dir));
	if (is_shared(dir_st) && st->st_nlink != 1)
		return base_err_set(
		        err, -EPERM, "'%s/tier' must have no second name (hard link); remove it", base_quoted(dir));
	bool other = st->st_size > 0 && (uint64_t)st->st_size < CACHE_TIER_SIZE_MIN && !is_tier(fd);
	if (other || (is_shared(dir_st) && !group))
		return base_err_set(
		        err, -EPERM, "'%s/tier' is another file, and no tier; move it away", base_quoted(dir));
	return 0;
}

/* Opens the file, or makes it.  The caller has the lock on the directory. */
static int open_or_make(int dir_fd, int flags, bool *ret_made, int *ret_fd)
{
	int modes = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
	int fd = openat(dir_fd, "tier", modes);
	*ret_made = fd < 0 && errno == ENOENT && (flags & O_CREAT);
	if (*ret_made)
		fd = openat(dir_fd, "tier", modes | O_CREAT | O_EXCL, 0600);
	*ret_fd = fd;
	return fd < 0 ? -errno : 0;
}

/* Says why the directory or the file cannot be opened. */
static int say_no_access(const char *dir, int dir_fd, const struct stat *dir_st, int rc, struct base_err *err)
{
	struct stat st;
	bool there = dir_fd >= 0 && fstatat(dir_fd, "tier", &st, AT_SYMLINK_NOFOLLOW) == 0;
	if (rc == -EACCES && is_shared(dir_st) && !group_member(dir_st->st_gid))
		return say_group(dir, dir_st, err);
	if (rc == -EACCES && there && is_shared(dir_st) && (st.st_mode & 0060) != 0060)
		return base_err_set(err, rc,
		        "the tier in '%s' is still that of user %lu alone: the group gets it when this user uses or "
		        "removes it",
		        base_quoted(dir), (unsigned long)st.st_uid);
	if (rc == -EACCES && there && st.st_uid != geteuid())
		return say_whose(dir, dir_st, &st, rc, err);
	return base_err_set(err, rc, "cannot open the tier in '%s': %s", base_quoted(dir), base_err_str(rc));
}

/* Opens the file for one process at a time, which the lock on the directory ensures.  The lock ends when *ret_dir_fd is
 * closed.  flags: O_CREAT or 0. */
static int open_locked(const char *dir, int flags, struct base_err *err, int *ret_dir_fd, int *ret_fd)
{
	cleanup_close int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cleanup_close int fd = -1;
	struct stat dir_st = { 0 }, st = { 0 };
	bool made = false;
	int rc = dir_fd < 0 ? -errno : lock_directory(dir_fd);
	if (rc == -ENOENT && (flags & O_CREAT))
		return base_err_set(err, rc, "there is no directory '%s' for the tier: make it with 'mkdir -p %s'",
		        base_quoted(dir), base_quoted(dir));
	if (rc == -ETIMEDOUT)
		return base_err_set(
		        err, rc, "another process is opening the tier in '%s', and does not end", base_quoted(dir));
	if ((dir_fd < 0 ? stat(dir, &dir_st) : fstat(dir_fd, &dir_st)) < 0 && rc == 0)
		rc = -errno;
	if (rc == 0)
		rc = open_or_make(dir_fd, flags, &made, &fd);
	if (rc == 0 && fstat(fd, &st) < 0)
		rc = -errno;
	if (rc == 0 && is_shared(&dir_st))
		rc = share(fd, made, &dir_st, &st);
	if (rc < 0)
		return say_no_access(dir, dir_fd, &dir_st, rc, err);
	rc = check_file(dir, fd, &dir_st, &st, err);
	if (rc < 0)
		return rc;
	*ret_dir_fd = steal_fd(&dir_fd);
	*ret_fd = steal_fd(&fd);
	return 0;
}

static int open_file(struct cache_tier *tier, const char *dir, struct base_err *err)
{
	cleanup_close int dir_fd = -1;
	int rc = open_locked(dir, O_CREAT, err, &dir_fd, &tier->fd);
	if (rc == 0)
		rc = make(tier, dir, err);
	if (rc < 0)
		return rc;
	rc = register_dataset(tier);
	if (rc < 0)
		return base_err_set(err, rc, "cannot enter the dataset into the tier in '%s': %s", base_quoted(dir),
		        base_err_str(rc));
	return 0;
}

int cache_tier_open(const char *dir, uint64_t size_bytes, const uint8_t identity[CACHE_TIER_IDENTITY],
        struct base_err *err, struct cache_tier **ret_tier)
{
	if (size_bytes < CACHE_TIER_SIZE_MIN || size_bytes > CACHE_TIER_SIZE_MAX)
		return base_err_set(err, -EINVAL, "the size of a tier must be 64M to 64T");
	struct cache_tier *tier = calloc(1, sizeof(*tier));
	if (!tier)
		return base_err_set(err, -ENOMEM, "no memory for the tier");
	tier->fd = -1;
	tier->current = NO_SEGMENT;
	pthread_mutex_init(&tier->mutex, NULL);
	memcpy(tier->identity, identity, CACHE_TIER_IDENTITY);
	set_layout(tier, size_bytes);
	int rc = open_file(tier, dir, err);
	if (rc < 0)
		cache_tier_close(tier);
	else
		*ret_tier = tier;
	return rc;
}

uint64_t cache_tier_emptied(const struct cache_tier *tier)
{
	return tier->emptied_bytes;
}

void cache_tier_close(struct cache_tier *tier)
{
	if (!tier)
		return;
	if (tier->fd >= 0) {
		tell_hits(tier);
		close(tier->fd);
	}
	pthread_mutex_destroy(&tier->mutex);
	free(tier);
}

/* ---- names ---- */

enum { NAME_HEAD = CACHE_TIER_IDENTITY + 1 };

/* Returns the length of the record at `at`, or 0 if there is none. */
static size_t name_record(const struct names *names, size_t at)
{
	const size_t room = sizeof(names->records);
	if (at + NAME_HEAD >= room)
		return 0;
	size_t len = names->records[at + CACHE_TIER_IDENTITY];
	return len && at + NAME_HEAD + len <= room ? NAME_HEAD + len : 0;
}

/* Reads the names.  Damaged ones are none. */
static int names_read(int fd, struct names *ret)
{
	int rc = base_pread_full(fd, ret, sizeof(*ret), NAMES_AT);
	if (rc == 0 && ret->check != XXH3_64bits_withSeed(ret->records, sizeof(ret->records), MAGIC))
		*ret = (struct names){ 0 };
	return rc;
}

/* Appends a record, if there is room. */
static void names_add(struct names *names, size_t *at, const uint8_t *record, size_t len)
{
	if (*at + len > sizeof(names->records))
		return;
	memcpy(names->records + *at, record, len);
	*at += len;
}

/* Tells whether one of the datasets has an identity. */
static bool is_known(const struct dataset all[CACHE_TIER_DATASETS_MAX], const uint8_t identity[CACHE_TIER_IDENTITY])
{
	for (uint32_t i = 0; i < CACHE_TIER_DATASETS_MAX; i++)
		if (dataset_ok(&all[i]) && memcmp(all[i].identity, identity, CACHE_TIER_IDENTITY) == 0)
			return true;
	return false;
}

/* Puts the record of this dataset (len: 0 for none) in front of those of the others that the tier knows. */
static int names_change(struct cache_tier *tier, const uint8_t *record, size_t len)
{
	struct dataset all[CACHE_TIER_DATASETS_MAX];
	struct names old, now = { 0 };
	size_t end = 0;
	int rc = names_read(tier->fd, &old);
	if (rc == 0)
		rc = base_pread_full(tier->fd, all, sizeof(all), DATASETS_AT);
	if (rc < 0)
		return rc;
	names_add(&now, &end, record, len);
	for (size_t at = 0, n; (n = name_record(&old, at)) > 0; at += n) {
		const uint8_t *other = old.records + at;
		if (memcmp(other, tier->identity, CACHE_TIER_IDENTITY) != 0 && is_known(all, other))
			names_add(&now, &end, other, n);
	}
	now.check = XXH3_64bits_withSeed(now.records, sizeof(now.records), MAGIC);
	return base_pwrite_full(tier->fd, &now, sizeof(now), NAMES_AT);
}

void cache_tier_tell_name(struct cache_tier *tier, const char *name, size_t len)
{
	static const char cut[] = "...";
	uint8_t record[NAME_HEAD + CACHE_TIER_NAME_MAX];
	size_t cut_len = len < CACHE_TIER_NAME_MAX ? 0 : sizeof(cut) - 1;
	size_t told = cut_len ? CACHE_TIER_NAME_MAX - 1 : len;
	if (!len || cache_tier_off(tier) || lock_changes(tier) < 0)
		return;
	memcpy(record, tier->identity, CACHE_TIER_IDENTITY);
	record[CACHE_TIER_IDENTITY] = (uint8_t)told;
	memcpy(record + NAME_HEAD, cut, cut_len);
	memcpy(record + NAME_HEAD + cut_len, name + len - (told - cut_len), told - cut_len);
	names_change(tier, record, NAME_HEAD + told); /* to lack a name is no reason to switch the tier off */
	unlock_changes(tier);
}

/* Copies the name of a dataset; "" if it has none. */
static void name_of(
        const struct names *names, const uint8_t identity[CACHE_TIER_IDENTITY], char ret[CACHE_TIER_NAME_MAX])
{
	ret[0] = '\0';
	for (size_t at = 0, n; (n = name_record(names, at)) > 0; at += n)
		if (memcmp(names->records + at, identity, CACHE_TIER_IDENTITY) == 0) {
			memcpy(ret, names->records + at + NAME_HEAD, n - NAME_HEAD);
			ret[n - NAME_HEAD] = '\0';
			return;
		}
}

/* ---- get ---- */

/* Switches the tier off.  Returns rc. */
static int switch_off(struct cache_tier *tier, int rc)
{
	int none = 0;
	atomic_compare_exchange_strong(&tier->off, &none, -rc);
	return rc;
}

int cache_tier_off(struct cache_tier *tier)
{
	return atomic_load(&tier->off);
}

/* Reads a bucket.  *ret_entry: that of the hash, or ENTRIES. */
static int find(struct cache_tier *tier, uint64_t hash, struct entry entries[ENTRIES], uint32_t *ret_entry)
{
	int rc = base_pread_full(tier->fd, entries, PAGE, bucket_at(tier, hash));
	uint32_t entry = 0;
	if (rc < 0)
		return rc;
	while (entry < ENTRIES && !(entries[entry].hash == hash && entry_ok(tier, &entries[entry])))
		entry++;
	*ret_entry = entry;
	return 0;
}

/* Removes damaged entries of a bucket, and counts them.  An entry that another process writes just now can look
 * damaged; it stays, because entry_remove reads it again under the lock. */
static int remove_damaged(struct cache_tier *tier, uint64_t bucket, const struct entry entries[ENTRIES])
{
	for (uint32_t i = 0; i < ENTRIES; i++) {
		if (zeros(&entries[i]) || entry_ok(tier, &entries[i]))
			continue;
		int rc = entry_remove(tier, bucket, i, &entries[i]);
		if (rc < 0)
			return rc;
		count(&tier->bad, (uint64_t)rc);
	}
	return 0;
}

/* What a look for a block counts. */
enum counts { COUNT_NONE = 0, COUNT_HIT = 1, COUNT_MISS = 2, COUNT_BOTH = 3 };

static int get(struct cache_tier *tier, const struct cache_tier_block *block, void *data, enum counts counts)
{
	struct entry entries[ENTRIES];
	uint64_t hash = hash_of(tier, block->key);
	uint32_t entry;
	assert(block->len > 0 && block->len <= SHARD_BLOCK);
	if (cache_tier_off(tier))
		return -ENODEV;
	int rc = find(tier, hash, entries, &entry);
	if (rc < 0)
		return switch_off(tier, rc);
	if (entry == ENTRIES) {
		count(&tier->misses, counts & COUNT_MISS ? 1 : 0);
		rc = remove_damaged(tier, bucket_at(tier, hash), entries);
		return rc < 0 ? switch_off(tier, rc) : -ENOENT;
	}
	const struct entry *e = &entries[entry];
	if (e->len == block->len) {
		rc = base_pread_full(tier->fd, data, e->len, e->place);
		if (rc < 0)
			return switch_off(tier, rc);
		if (shard_block_sum(data, e->len) == block->xxh3) {
			count(&tier->hits, counts & COUNT_HIT ? 1 : 0);
			count(&tier->hit_bytes, counts & COUNT_HIT ? e->len : 0);
			if (tier->hits - tier->hits_told >= HITS_TOLD)
				tell_hits(tier);
			return 0;
		}
	}
	count(&tier->misses, counts & COUNT_MISS ? 1 : 0);
	bool stale = entry_stale(tier, e);
	rc = entry_remove(tier, bucket_at(tier, hash), entry, e);
	if (rc < 0)
		return switch_off(tier, rc);
	count(&tier->bad, rc == 1 && !stale);
	return -ENOENT;
}

int cache_tier_get(struct cache_tier *tier, const struct cache_tier_block *block, void *data)
{
	return get(tier, block, data, COUNT_BOTH);
}

int cache_tier_get_again(struct cache_tier *tier, const struct cache_tier_block *block, void *data)
{
	return get(tier, block, data, COUNT_HIT);
}

int cache_tier_verify(struct cache_tier *tier, const struct cache_tier_block *block, void *data)
{
	return get(tier, block, data, COUNT_NONE);
}

bool cache_tier_has(struct cache_tier *tier, const struct cache_tier_block *block)
{
	struct entry entries[ENTRIES];
	uint32_t entry;
	return !cache_tier_off(tier) && find(tier, hash_of(tier, block->key), entries, &entry) == 0 &&
	       entry < ENTRIES && entries[entry].len == block->len && !entry_stale(tier, &entries[entry]);
}

/* ---- put: which segment ---- */

/* Returns the last use of the segment to which a block belongs.  The farther a use is, the longer is the time that
 * shares a segment.  Few segments have longer times, too. */
static uint32_t last_use(const struct cache_tier *tier, const struct cache_tier_block *block)
{
	uint32_t ahead = block->next > block->now ? block->next - block->now : 0;
	uint32_t width = ahead < 2 * CACHE_TIER_EPOCH   ? 1
	                 : ahead < 8 * CACHE_TIER_EPOCH ? CACHE_TIER_EPOCH / 4
	                                                : CACHE_TIER_EPOCH;
	uint32_t least = tier->n_segments >= SEGMENTS_MAX / 2   ? 1
	                 : tier->n_segments >= SEGMENTS_MAX / 8 ? CACHE_TIER_EPOCH / 4
	                                                        : CACHE_TIER_EPOCH;
	if (!tier->order || !block->next)
		return 0;
	width = width > least ? width : least;
	return (block->next - 1) / width * width + width;
}

bool cache_tier_full(struct cache_tier *tier, const struct cache_tier_block *block)
{
	uint32_t last = last_use(tier, block);
	uint64_t since_ns = atomic_load_explicit(last ? &tier->full_next_ns : &tier->full_ns, memory_order_relaxed);
	if (!since_ns || base_now_ns() - since_ns >= FULL_NS)
		return false;
	return last ? last >= atomic_load_explicit(&tier->full_next, memory_order_relaxed) &&
	                       block->now == atomic_load_explicit(&tier->full_now, memory_order_relaxed)
	            : block->len >= atomic_load_explicit(&tier->full_len, memory_order_relaxed);
}

/* No room was found for a block.  While that counts, a smaller one, or one that is used sooner, may still find some. */
static void note_full(struct cache_tier *tier, uint32_t last, const struct cache_tier_block *block)
{
	_Atomic uint64_t *at_ns = last ? &tier->full_next_ns : &tier->full_ns;
	uint64_t now_ns = base_now_ns(), since_ns = atomic_load_explicit(at_ns, memory_order_relaxed);
	atomic_store_explicit(
	        last ? &tier->full_next : &tier->full_len, last ? last : block->len, memory_order_relaxed);
	if (last)
		atomic_store_explicit(&tier->full_now, block->now, memory_order_relaxed);
	if (!since_ns || now_ns - since_ns >= FULL_NS)
		atomic_store_explicit(at_ns, now_ns, memory_order_relaxed);
}

/* The records of a tier while a batch of puts looks for room. */
struct records {
	struct segment segments[SEGMENTS_MAX];
	bool changed[SEGMENTS_MAX];
	struct dataset datasets[CACHE_TIER_DATASETS_MAX];
	bool asked[CACHE_TIER_DATASETS_MAX], open[CACHE_TIER_DATASETS_MAX];
	uint32_t order; /* another order, and whether it is live; 0: none was asked for */
	bool live;
	bool asked_locked;
	uint64_t locked[SEGMENTS_MAX / 64]; /* segments into which puts of other processes write blocks now */
};

static int records_read(struct cache_tier *tier, struct records *r)
{
	*r = (struct records){ 0 };
	int rc = base_pread_full(tier->fd, r->segments, tier->n_segments * sizeof(r->segments[0]), SEGMENTS_AT);
	if (rc == 0)
		rc = base_pread_full(tier->fd, r->datasets, sizeof(r->datasets), DATASETS_AT);
	for (uint32_t i = 0; rc == 0 && i < tier->n_segments; i++)
		r->segments[i] = segment_of(tier, &r->segments[i]);
	return rc;
}

static int records_write(struct cache_tier *tier, struct records *r)
{
	int rc = 0;
	for (uint32_t i = 0; rc == 0 && i < tier->n_segments; i++)
		if (r->changed[i])
			rc = segment_write(tier, i, &r->segments[i]);
	return rc;
}

static bool is_open(const struct cache_tier *tier, struct records *r, uint32_t dataset)
{
	if (!r->asked[dataset])
		r->open[dataset] = dataset_is_open(tier->fd, dataset);
	r->asked[dataset] = true;
	return r->open[dataset];
}

static bool is_live(const struct cache_tier *tier, struct records *r, uint32_t order)
{
	if (r->order != order)
		r->live = order_is_live(tier->fd, order);
	r->order = order;
	return r->live;
}

/* Tells whether a put writes blocks into a segment now. */
static bool is_being_written(const struct cache_tier *tier, struct records *r, uint32_t number)
{
	if (!r->asked_locked)
		find_locked(tier->fd, LOCK_SEGMENT, 0, tier->n_segments, r->locked);
	r->asked_locked = true;
	return tier->puts[number] || bit_get(r->locked, number);
}

/* Why a segment may be taken, the best reason last. */
enum reason { KEEP, USED_LATER, NOT_KNOWN, CLOSED, USED, UNUSED };

/* Tells whether a segment may be taken for blocks that are used until `last` (0: not known), and why.  *ret_rank: of
 * those with one reason, the one with the highest is taken. */
static enum reason may_take(const struct cache_tier *tier, struct records *r, uint32_t number, uint32_t last,
        uint32_t now, uint64_t *ret_rank)
{
	const struct segment *s = &r->segments[number];
	*ret_rank = 0;
	if (is_being_written(tier, r, number))
		return KEEP;
	if (!s->owner)
		return UNUSED;
	if (s->owner != tier->number + 1) {
		const struct dataset *d = &r->datasets[s->owner - 1];
		if (is_open(tier, r, s->owner - 1))
			return KEEP;
		*ret_rank = UINT64_MAX - (dataset_ok(d) ? d->opened_ns : 0);
		return CLOSED;
	}
	if (!last)
		return KEEP;
	if (s->order == tier->order) {
		*ret_rank = s->last;
		return s->last < now ? USED : s->last > last ? USED_LATER : KEEP;
	}
	return s->order && is_live(tier, r, s->order) ? KEEP : NOT_KNOWN;
}

static bool has_room(const struct cache_tier *tier, const struct segment *s, uint32_t len)
{
	return s->owner == tier->number + 1 && tier->segment_bytes - s->used_bytes >= len;
}

/* Finds a segment for blocks that are used until `last`: one that has such blocks, one that may be taken, or at least
 * one with blocks that are used later.  Returns its number, or NO_SEGMENT. */
static uint32_t find_segment(struct cache_tier *tier, struct records *r, uint32_t last, uint32_t now, uint32_t len)
{
	uint32_t best = NO_SEGMENT, later = NO_SEGMENT, order = last ? tier->order : 0;
	enum reason best_reason = KEEP;
	uint64_t best_rank = 0, rank;
	uint32_t n_used = 0, farthest = 0;
	for (uint32_t i = 0; i < tier->n_segments; i++) {
		const struct segment *s = &r->segments[i];
		if (has_room(tier, s, len) && (last ? s->order == order && s->last == last : !s->order))
			return i;
	}
	for (uint32_t i = 0; i < tier->n_segments; i++) {
		const struct segment *s = &r->segments[i];
		enum reason reason = may_take(tier, r, i, last, now, &rank);
		n_used += reason == USED;
		if (s->owner == tier->number + 1 && s->order == order && s->last > farthest)
			farthest = s->last;
		if (reason > best_reason || (reason == best_reason && reason != KEEP && rank > best_rank)) {
			best = i;
			best_reason = reason;
			best_rank = rank;
		}
		if (last && has_room(tier, s, len) && s->order == order && s->last > last &&
		        (later == NO_SEGMENT || s->last < r->segments[later].last))
			later = i;
	}
	/* What is used later than all others would soon be replaced by what is used sooner. */
	if (best == NO_SEGMENT || (best_reason <= USED && last > farthest && n_used < tier->n_segments / SPARE_PART))
		return later;
	r->segments[best] = (struct segment){
		.owner = tier->number + 1, .generation = r->segments[best].generation + 1, .order = order, .last = last
	};
	return best;
}

/* ---- put ---- */

/* Blocks that are put together. */
struct batch {
	const struct cache_tier_block *blocks;
	struct entry entries[CACHE_TIER_PUT_MAX]; /* len: 0 if the block is not stored */
	bool moves[CACHE_TIER_PUT_MAX];           /* it is there already */
	uint32_t n;
	uint32_t refused, no_entry, stored, moved;
	uint64_t stored_bytes, moved_bytes;
};

static void refuse(struct batch *batch, uint32_t i)
{
	batch->entries[i].len = 0;
	batch->refused += !batch->moves[i];
}

/* Refuses a block whose bucket is full. */
static void refuse_entry(struct batch *batch, uint32_t i)
{
	refuse(batch, i);
	batch->no_entry += !batch->moves[i];
}

/* Gives a block a place, or refuses it.  The caller holds the lock. */
static void take_room(struct cache_tier *tier, struct records *r, struct batch *batch, uint32_t i)
{
	const struct cache_tier_block *block = &batch->blocks[i];
	struct entry *e = &batch->entries[i];
	uint32_t last = last_use(tier, block), number = tier->current;
	const struct segment *s = number == NO_SEGMENT ? NULL : &r->segments[number];
	if (!s || !has_room(tier, s, e->len) || s->last != last || (last && s->order != tier->order) ||
	        (!last && s->order))
		number = find_segment(tier, r, last, block->now, e->len);
	if (number == NO_SEGMENT) {
		note_full(tier, last, block);
		refuse(batch, i);
		return;
	}
	struct segment *taken = &r->segments[number];
	e->place = tier->data_at + number * tier->segment_bytes + taken->used_bytes;
	e->generation = taken->generation;
	taken->used_bytes += e->len;
	r->changed[number] = true;
	tier->current = number;
}

/* Keeps others from taking the segments of a batch until end_writes.  The caller holds the lock. */
static void begin_writes(struct cache_tier *tier, const struct batch *batch)
{
	for (uint32_t i = 0; i < batch->n; i++) {
		if (!batch->entries[i].place)
			continue;
		uint32_t number = segment_number(tier, &batch->entries[i]);
		if (!tier->puts[number]++)
			lock_byte(tier->fd, F_RDLCK, LOCK_SEGMENT + number, false);
	}
}

/* The blocks of a batch are written.  Takes the mutex. */
static void end_writes(struct cache_tier *tier, const struct batch *batch)
{
	lock_for_scope(&tier->mutex);
	for (uint32_t i = 0; i < batch->n; i++) {
		if (!batch->entries[i].place)
			continue;
		uint32_t number = segment_number(tier, &batch->entries[i]);
		if (!--tier->puts[number])
			lock_byte(tier->fd, F_UNLCK, LOCK_SEGMENT + number, false);
	}
}

/* Gives all blocks of a batch a place, or refuses them.  After 0, call end_writes when they are written. */
static int take_rooms(struct cache_tier *tier, struct batch *batch)
{
	struct records r;
	uint32_t full_len = UINT32_MAX; /* no room was found for so many bytes of blocks without a next use */
	bool any = false;
	for (uint32_t i = 0; i < batch->n; i++)
		any = any || batch->entries[i].len;
	int rc = any ? lock_changes(tier) : 0;
	if (rc < 0 || !any)
		return rc;
	rc = records_read(tier, &r);
	for (uint32_t i = 0; rc == 0 && i < batch->n; i++) {
		uint32_t len = batch->entries[i].len;
		bool known = last_use(tier, &batch->blocks[i]) > 0;
		if (!len)
			continue;
		if (!known && len >= full_len)
			refuse(batch, i);
		else
			take_room(tier, &r, batch, i);
		if (!known && !batch->entries[i].len)
			full_len = len < full_len ? len : full_len;
	}
	if (rc == 0)
		rc = records_write(tier, &r);
	if (rc == 0)
		begin_writes(tier, batch);
	unlock_changes(tier);
	return rc;
}

/* Returns the number of an entry of a bucket that may be replaced, or ENTRIES.  *ret_damaged: it is damaged. */
static uint32_t free_entry(struct cache_tier *tier, const struct entry entries[ENTRIES], bool *ret_damaged)
{
	*ret_damaged = false;
	for (uint32_t i = 0; i < ENTRIES; i++)
		if (!entry_ok(tier, &entries[i])) {
			*ret_damaged = !zeros(&entries[i]);
			return i;
		}
	for (uint32_t i = 0; i < ENTRIES; i++)
		if (entry_stale(tier, &entries[i]))
			return i;
	return ENTRIES;
}

/* Tells whether a block that is in a segment moves to another one: it was stored for an earlier use. */
static bool moves(const struct cache_tier *tier, const struct segment *s, const struct cache_tier_block *block)
{
	uint32_t last = last_use(tier, block);
	return last && block->next - block->now < CACHE_TIER_FAR && (s->order != tier->order || s->last < last);
}

/* Finds where the entry of a block stands, or can stand, in its bucket.  *ret_moves: an entry of it is there, and the
 * block moves.
 * Returns 0, -EEXIST (an entry is there, and the block stays), -ENOBUFS (the bucket is full), or an error of a system
 * call. */
static int find_entry(struct cache_tier *tier, uint64_t hash, const struct cache_tier_block *block, uint32_t *ret_entry,
        bool *ret_damaged, bool *ret_moves)
{
	struct entry entries[ENTRIES];
	*ret_damaged = *ret_moves = false;
	int rc = find(tier, hash, entries, ret_entry);
	if (rc < 0)
		return rc;
	if (*ret_entry < ENTRIES) {
		struct segment s = entry_segment(tier, &entries[*ret_entry]);
		*ret_moves = s.owner && moves(tier, &s, block);
		return s.owner && !*ret_moves ? -EEXIST : 0;
	}
	*ret_entry = free_entry(tier, entries, ret_damaged);
	return *ret_entry < ENTRIES ? 0 : -ENOBUFS;
}

/* Fills the entries.  Blocks that are there, or whose bucket is full, need no place. */
static int look_for_entries(struct cache_tier *tier, struct batch *batch)
{
	for (uint32_t i = 0; i < batch->n; i++) {
		struct entry *e = &batch->entries[i];
		uint32_t entry;
		bool damaged;
		*e = (struct entry){ .hash = hash_of(tier, batch->blocks[i].key), .len = batch->blocks[i].len };
		int rc = find_entry(tier, e->hash, &batch->blocks[i], &entry, &damaged, &batch->moves[i]);
		if (rc == -EEXIST)
			e->len = 0;
		else if (rc == -ENOBUFS)
			refuse_entry(batch, i);
		else if (rc < 0)
			return rc;
	}
	return 0;
}

/* Writes the blocks that have a place: neighbours in both at once. */
static int write_blocks(struct cache_tier *tier, const struct batch *batch, const uint8_t *data)
{
	int rc = 0;
	for (uint32_t i = 0, k; rc == 0 && i < batch->n; i = k) {
		uint64_t place = batch->entries[i].place;
		size_t len = batch->entries[i].len;
		for (k = i + 1; len && k < batch->n && batch->entries[k].len && batch->entries[k].place == place + len;
		        k++)
			len += batch->entries[k].len;
		if (len)
			rc = base_pwrite_full(tier->fd, data, len, place);
		for (uint32_t j = i; j < k; j++)
			data += batch->blocks[j].len;
	}
	return rc;
}

static int write_entries(struct cache_tier *tier, struct batch *batch)
{
	int rc = lock_changes(tier);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; rc == 0 && i < batch->n; i++) {
		struct entry *e = &batch->entries[i];
		uint32_t entry;
		bool damaged, moved;
		if (!e->len)
			continue;
		rc = find_entry(tier, e->hash, &batch->blocks[i], &entry, &damaged, &moved);
		if (rc == -ENOBUFS)
			refuse_entry(batch, i);
		if (rc == -ENOBUFS || rc == -EEXIST) {
			rc = 0;
			continue;
		}
		count(&tier->bad, damaged);
		e->check = check_of(e);
		if (rc == 0)
			rc = base_pwrite_full(tier->fd, e, sizeof(*e), bucket_at(tier, e->hash) + entry * sizeof(*e));
		batch->stored += rc == 0;
		batch->stored_bytes += rc == 0 ? e->len : 0;
		batch->moved += rc == 0 && moved;
		batch->moved_bytes += rc == 0 && moved ? e->len : 0;
	}
	unlock_changes(tier);
	return rc;
}

int cache_tier_put_all(struct cache_tier *tier, const struct cache_tier_block *blocks, uint32_t n, const void *data)
{
	struct batch batch = { .blocks = blocks, .n = n };
	assert(n > 0 && n <= CACHE_TIER_PUT_MAX);
	for (uint32_t i = 0; i < n; i++)
		assert(blocks[i].len > 0 && blocks[i].len <= SHARD_BLOCK);
	if (cache_tier_off(tier))
		return -ENODEV;
	int rc = look_for_entries(tier, &batch);
	if (rc == 0)
		rc = take_rooms(tier, &batch);
	if (rc == 0) {
		rc = write_blocks(tier, &batch, data);
		end_writes(tier, &batch);
	}
	if (rc == 0)
		rc = write_entries(tier, &batch);
	if (rc == -EAGAIN) {
		for (uint32_t i = 0; i < n; i++)
			batch.refused += batch.entries[i].len > 0 && !batch.moves[i];
		rc = 0;
	}
	count(&tier->refused, batch.refused);
	count(&tier->no_entry, batch.no_entry);
	count(&tier->stored, batch.stored);
	count(&tier->stored_bytes, batch.stored_bytes);
	count(&tier->moved, batch.moved);
	count(&tier->moved_bytes, batch.moved_bytes);
	if (rc < 0)
		return switch_off(tier, rc);
	return batch.refused ? -ENOBUFS : 0;
}

/* ---- claims, numbers ---- */

/* Returns the lock's first byte for an offset in a shard. */
static off_t claim_at(const struct cache_tier *tier, uint32_t shard, uint64_t offset)
{
	uint64_t lane = hash_of(tier, shard) % CLAIM_LANES;
	return LOCK_CLAIM + (off_t)(lane * CLAIM_LANE_BYTES + offset % CLAIM_LANE_BYTES);
}

int cache_tier_claim(struct cache_tier *tier, uint32_t shard, uint64_t offset, uint64_t len)
{
	return lock_bytes(tier->fd, F_WRLCK, claim_at(tier, shard, offset), (off_t)len, false);
}

void cache_tier_unclaim(struct cache_tier *tier, uint32_t shard, uint64_t offset, uint64_t len)
{
	lock_bytes(tier->fd, F_UNLCK, claim_at(tier, shard, offset), (off_t)len, false);
}

static off_t work_at(const struct cache_tier *tier, uint32_t second)
{
	return LOCK_WORK + (off_t)tier->number * WORK_SECONDS + second % WORK_SECONDS;
}

/* Holds the byte of a second, and no longer that of an earlier one. */
static void hold_second(struct cache_tier *tier, uint32_t working)
{
	uint32_t before = tier->working;
	if (working == before)
		return;
	if (working && lock_byte(tier->fd, F_RDLCK, work_at(tier, working - 1), false) < 0)
		working = 0;
	if (before)
		lock_byte(tier->fd, F_UNLCK, work_at(tier, before - 1), false);
	tier->working = working;
}

static uint32_t second_now(void)
{
	return (uint32_t)(base_now_ns() / 1000000000 % WORK_SECONDS);
}

void cache_tier_work(struct cache_tier *tier)
{
	hold_second(tier, second_now() + 1);
}

void cache_tier_rest(struct cache_tier *tier)
{
	hold_second(tier, 0);
}

/* Tells whether another process holds one of `n` seconds from `first` on, at most WORK_SECONDS. */
static bool seconds_held(struct cache_tier *tier, uint32_t first, uint32_t n)
{
	uint32_t until_end = WORK_SECONDS - first % WORK_SECONDS, now = n < until_end ? n : until_end;
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = work_at(tier, first), .l_len = now };
	if (fcntl(tier->fd, F_OFD_GETLK, &lock) < 0 || lock.l_type != F_UNLCK)
		return true;
	return n > now && seconds_held(tier, 0, n - now);
}

bool cache_tier_others_work(struct cache_tier *tier)
{
	/* Another process may be in the next second already. */
	uint32_t first_late = second_now() + 2, n_late = WORK_SECONDS - WORK_LATE - 2;
	return !seconds_held(tier, first_late, n_late) && seconds_held(tier, 0, WORK_SECONDS);
}

void cache_tier_stats_get(struct cache_tier *tier, struct cache_tier_stats *ret_stats)
{
	*ret_stats = (struct cache_tier_stats){
		.hits = atomic_load_explicit(&tier->hits, memory_order_relaxed),
		.hit_bytes = atomic_load_explicit(&tier->hit_bytes, memory_order_relaxed),
		.misses = atomic_load_explicit(&tier->misses, memory_order_relaxed),
		.bad = atomic_load_explicit(&tier->bad, memory_order_relaxed),
		.stored = atomic_load_explicit(&tier->stored, memory_order_relaxed),
		.stored_bytes = atomic_load_explicit(&tier->stored_bytes, memory_order_relaxed),
		.moved = atomic_load_explicit(&tier->moved, memory_order_relaxed),
		.moved_bytes = atomic_load_explicit(&tier->moved_bytes, memory_order_relaxed),
		.refused = atomic_load_explicit(&tier->refused, memory_order_relaxed),
		.no_entry = atomic_load_explicit(&tier->no_entry, memory_order_relaxed),
	};
}

int cache_tier_fill_get(struct cache_tier *tier, struct cache_tier_fill *ret_fill)
{
	struct cache_tier_fill fill = { .size_bytes = tier->size_bytes,
		.room_bytes = tier->n_segments * tier->segment_bytes };
	struct segment all[SEGMENTS_MAX];
	int rc = base_pread_full(tier->fd, all, tier->n_segments * sizeof(all[0]), SEGMENTS_AT);
	for (uint32_t i = 0; rc == 0 && i < tier->n_segments; i++) {
		struct segment s = segment_of(tier, &all[i]);
		fill.used_bytes += s.owner ? s.used_bytes : 0;
		fill.dataset_bytes += s.owner == tier->number + 1 ? s.used_bytes : 0;
	}
	if (rc == 0)
		*ret_fill = fill;
	return rc;
}

/* ---- all datasets ---- */

/* Opens a tier that is there, for no dataset. */
static int open_whole(struct cache_tier *tier, const char *dir, struct base_err *err, int *ret_dir_fd)
{
	struct header h = { 0 };
	int rc = open_locked(dir, 0, err, ret_dir_fd, &tier->fd);
	if (rc == -ENOENT)
		return base_err_set(err, rc, "there is no tier in '%s'", base_quoted(dir));
	if (rc < 0)
		return rc;
	rc = base_pread_full(tier->fd, &h, sizeof(h), 0);
	if (rc == -ENODATA ||
	        (rc == 0 && (h.magic != MAGIC || h.check != check_of(&h) || h.size_bytes < CACHE_TIER_SIZE_MIN ||
	                            h.size_bytes > CACHE_TIER_SIZE_MAX)))
		rc = base_err_set(err, -EUCLEAN,
		        "the header of the tier in '%s' is damaged; the next mount makes it anew", base_quoted(dir));
	else if (rc < 0)
		base_err_set(err, rc, "cannot read the tier in '%s': %s", base_quoted(dir), base_err_str(rc));
	if (rc < 0) {
		close(tier->fd);
		return rc;
	}
	set_layout(tier, h.size_bytes);
	return 0;
}

static int list(
        struct cache_tier *tier, struct cache_tier_dataset *all, uint32_t *ret_n, struct cache_tier_fill *ret_fill)
{
	struct dataset datasets[CACHE_TIER_DATASETS_MAX];
	struct segment segments[SEGMENTS_MAX];
	uint64_t bytes[CACHE_TIER_DATASETS_MAX] = { 0 }, hits[CACHE_TIER_DATASETS_MAX];
	struct names names = { 0 };
	uint32_t n = 0;
	tier->number = CACHE_TIER_DATASETS_MAX; /* that of no dataset */
	int rc = cache_tier_fill_get(tier, ret_fill);
	if (rc == 0)
		rc = base_pread_full(tier->fd, datasets, sizeof(datasets), DATASETS_AT);
	if (rc == 0)
		rc = base_pread_full(tier->fd, segments, tier->n_segments * sizeof(segments[0]), SEGMENTS_AT);
	if (rc == 0)
		rc = base_pread_full(tier->fd, hits, sizeof(hits), HITS_AT);
	if (rc == 0)
		rc = names_read(tier->fd, &names);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < tier->n_segments; i++) {
		struct segment s = segment_of(tier, &segments[i]);
		if (s.owner)
			bytes[s.owner - 1] += s.used_bytes;
	}
	for (uint32_t i = 0; i < CACHE_TIER_DATASETS_MAX; i++) {
		if (!dataset_ok(&datasets[i]))
			continue;
		all[n] = (struct cache_tier_dataset){
			.opened_ns = datasets[i].opened_ns,
			.bytes = bytes[i],
			.hits = hits[i],
			.open = dataset_is_open(tier->fd, i),
		};
		name_of(&names, datasets[i].identity, all[n].name);
		memcpy(all[n++].identity, datasets[i].identity, CACHE_TIER_IDENTITY);
	}
	*ret_n = n;
	return 0;
}

int cache_tier_list(const char *dir, struct base_err *err, struct cache_tier_dataset *all, uint32_t *ret_n,
        struct cache_tier_fill *ret_fill)
{
	struct cache_tier tier = { .fd = -1 };
	cleanup_close int dir_fd = -1;
	int rc = open_whole(&tier, dir, err, &dir_fd);
	if (rc < 0)
		return rc;
	rc = list(&tier, all, ret_n, ret_fill);
	close(tier.fd);
	return rc < 0 ? base_err_set(err, rc, "cannot read the tier in '%s': %s", base_quoted(dir), base_err_str(rc))
	              : 0;
}

/* Gives the bytes of a dataset's segments back to the file system, if that can.  The caller holds the lock. */
static int discard_segments(struct cache_tier *tier, uint32_t number)
{
	int rc = 0;
	for (uint32_t i = 0; rc == 0 && i < tier->n_segments; i++) {
		struct segment s;
		rc = segment_read(tier, i, &s);
		if (rc == 0 && s.owner == number + 1 &&
		        fallocate(tier->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
		                (off_t)(tier->data_at + i * tier->segment_bytes), (off_t)tier->segment_bytes) < 0 &&
		        errno != EOPNOTSUPP)
			rc = -errno;
	}
	return rc;
}

/* Removes a dataset; the lock on the directory keeps others from opening it meanwhile. */
static int remove_dataset(struct cache_tier *tier, const uint8_t identity[CACHE_TIER_IDENTITY])
{
	struct dataset all[CACHE_TIER_DATASETS_MAX], none = { 0 };
	uint32_t i = 0;
	int rc = base_pread_full(tier->fd, all, sizeof(all), DATASETS_AT);
	if (rc < 0)
		return rc;
	while (i < CACHE_TIER_DATASETS_MAX &&
	        !(dataset_ok(&all[i]) && memcmp(all[i].identity, identity, CACHE_TIER_IDENTITY) == 0))
		i++;
	if (i == CACHE_TIER_DATASETS_MAX)
		return -ESRCH;
	if (dataset_is_open(tier->fd, i))
		return -EBUSY;
	rc = lock_with_patience(tier);
	if (rc == 0)
		rc = discard_segments(tier, i);
	if (rc == 0)
		rc = free_segments(tier, i);
	if (rc == 0)
		rc = base_pwrite_full(tier->fd, &none, sizeof(none), DATASETS_AT + (uint64_t)i * sizeof(none));
	return rc < 0 ? rc : names_change(tier, (const uint8_t *)"", 0);
}

int cache_tier_remove(const char *dir, const uint8_t identity[CACHE_TIER_IDENTITY], struct base_err *err)
{
	struct cache_tier tier = { .fd = -1 };
	cleanup_close int dir_fd = -1;
	int rc = open_whole(&tier, dir, err, &dir_fd);
	if (rc < 0)
		return rc;
	rc = remove_dataset(&tier, identity);
	close(tier.fd);
	if (rc == -ESRCH)
		return base_err_set(err, rc, "the tier in '%s' does not know this dataset", base_quoted(dir));
	if (rc == -EAGAIN)
		return base_err_set(
		        err, rc, "another process holds the lock of the tier in '%s': try again", base_quoted(dir));
	if (rc == -EBUSY)
		return base_err_set(
		        err, rc, "a mount uses this dataset of the tier in '%s': unmount it first", base_quoted(dir));
	return rc < 0 ? base_err_set(err, rc, "cannot change the tier in '%s': %s", base_quoted(dir), base_err_str(rc))
	              : 0;
}
