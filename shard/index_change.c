/* SPDX-License-Identifier: Apache-2.0 */
/* Detects that the file of an open index was written or truncated; shard/index_change.h first. */
#include "shard/index_change.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "shard/base/cleanup.h"
#include "shard/base/clock.h"
#include "shard/base/units.h"
#include "shard/index_private.h"

enum {
	TICK_NS = 20000000, /* two ticks of a kernel with HZ=100 */
	COARSE_TICK_S = 3,  /* for file systems that store seconds (ext3, FAT): their ctime has no nanoseconds */
	ROUNDS_MAX = 16,    /* rounds of one check, if somebody changes the attributes again and again */
	MAPPINGS_MAX = 64,  /* mappings for shard_index_fault; a process has fewer open indexes */
	NS_PER_S = 1000000000,
};

/* What changed. */
enum what { NOTHING, INODE, SIZE, MTIME, BYTES, FAULT };

struct index_change {
	int fd;
	char proc[48]; /* path of fd in /proc */
	dev_t dev;
	ino_t ino;
	int64_t size_bytes; /* these three as at the opening */
	int64_t mtime_ns;
	int64_t opened_ctime_ns;
	_Atomic int64_t ctime_ns; /* if settled: a later write would have another ctime */
	_Atomic bool settled;     /* false: ctime_ns is not usable yet */
	_Atomic int what;         /* enum what; once set it never becomes NOTHING again */
	_Atomic uint64_t rounds;  /* see index_change_rounds */
	_Atomic uint32_t looking; /* threads in shard_index_check */
	pthread_mutex_t lock;     /* guards the fields below, and writes to ctime_ns and settled */
	int64_t seen_ctime_ns;    /* the latest ctime */
	uint64_t seen_ns;         /* monotonic time at which it was first seen */
};

/* ---- faults ---- */

static struct {
	_Atomic uintptr_t begin, end; /* 0, 0: free, or being filled */
	_Atomic bool taken;           /* the entry is in use */
	_Atomic(struct index_change *) change;
} mappings[MAPPINGS_MAX];

void index_change_watch_faults(struct index_change *change, uint8_t *map, size_t len)
{
	for (size_t i = 0; i < MAPPINGS_MAX; i++) {
		bool free = false;
		if (!atomic_compare_exchange_strong(&mappings[i].taken, &free, true))
			continue;
		atomic_store(&mappings[i].change, change);
		atomic_store(&mappings[i].end, (uintptr_t)map + len);
		atomic_store(&mappings[i].begin, (uintptr_t)map);
		return;
	}
}

static void forget_faults(const struct index_change *change)
{
	for (size_t i = 0; i < MAPPINGS_MAX; i++) {
		if (atomic_load(&mappings[i].change) != change)
			continue;
		atomic_store(&mappings[i].begin, 0);
		atomic_store(&mappings[i].end, 0);
		atomic_store(&mappings[i].change, NULL);
		atomic_store(&mappings[i].taken, false);
	}
}

static int64_t ctime_of(const struct stat *st)
{
	return base_time_ns(st->st_ctim.tv_sec, (uint32_t)st->st_ctim.tv_nsec);
}

static int64_t mtime_of(const struct stat *st)
{
	return base_time_ns(st->st_mtim.tv_sec, (uint32_t)st->st_mtim.tv_nsec);
}

/* Reads only the attributes that a check needs: if reads change atime, the kernel would ask a FUSE file system for
 * atime at each check.  Makes system calls only, so a signal handler may call it. */
static int look_at(int dirfd, const char *path, struct stat *st)
{
	struct statx stx;
	if (statx(dirfd, path, AT_EMPTY_PATH, STATX_INO | STATX_SIZE | STATX_MTIME | STATX_CTIME, &stx) < 0)
		return -errno;
	st->st_dev = makedev(stx.stx_dev_major, stx.stx_dev_minor);
	st->st_ino = stx.stx_ino;
	st->st_size = (off_t)stx.stx_size;
	st->st_mtim = (struct timespec){ .tv_sec = stx.stx_mtime.tv_sec, .tv_nsec = stx.stx_mtime.tv_nsec };
	st->st_ctim = (struct timespec){ .tv_sec = stx.stx_ctime.tv_sec, .tv_nsec = stx.stx_ctime.tv_nsec };
	return 0;
}

static enum what written(const struct index_change *change, const struct stat *st)
{
	if (st->st_dev != change->dev || st->st_ino != change->ino)
		return INODE; /* overlayfs has copied the file: the descriptor shows the copy, the mapping does not */
	return st->st_size != change->size_bytes ? SIZE : mtime_of(st) != change->mtime_ns ? MTIME : NOTHING;
}

/* Records what changed, if nothing was recorded before. */
static void latch(struct index_change *change, enum what what)
{
	int nothing = NOTHING;
	atomic_compare_exchange_strong(&change->what, &nothing, what);
}

/* Runs in a signal handler: uses system calls and atomics only. */
bool shard_index_fault(const void *address)
{
	uintptr_t at = (uintptr_t)address;
	for (size_t i = 0; i < MAPPINGS_MAX; i++) {
		uintptr_t begin = atomic_load(&mappings[i].begin), end = atomic_load(&mappings[i].end);
		struct stat st;
		if (!begin || at < begin || at >= end)
			continue;
		struct index_change *change = atomic_load(&mappings[i].change);
		/* By the path in /proc, because in a thread with its own descriptor table (fs/detached_thread.h) the
		 * number is another file, or none. */
		/* Compare with the ctime at the opening.  Whoever truncated the file may have filled it again and set
		 * its mtime back, and shard_index_check may have seen that ctime. */
		bool same = atomic_load(&change->what) == NOTHING && look_at(AT_FDCWD, change->proc, &st) == 0 &&
		            written(change, &st) == NOTHING && ctime_of(&st) == change->opened_ctime_ns;
		if (same)
			return false; /* the file is unchanged: the disk fails */
		latch(change, FAULT);
		/* Replace the whole mapping, because other pages may be gone too.  Use syscall(2), because a library
		 * may have replaced mmap. */
		long map = syscall(SYS_mmap, begin, end - begin, PROT_READ,
		        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
		return map == (long)begin;
	}
	return false;
}

/* ---- the file's attributes ---- */

int index_change_new(int fd, const struct stat *st, struct index_change **ret_change)
{
	struct index_change *change = calloc(1, sizeof *change);
	if (!change)
		return -ENOMEM;
	change->fd = fd;
	snprintf(change->proc, sizeof change->proc, "/proc/self/fd/%d", fd);
	change->dev = st->st_dev;
	change->ino = st->st_ino;
	change->size_bytes = st->st_size;
	change->mtime_ns = mtime_of(st);
	change->opened_ctime_ns = ctime_of(st);
	change->seen_ctime_ns = ctime_of(st);
	change->seen_ns = base_now_ns();
	pthread_mutex_init(&change->lock, NULL);
	*ret_change = change;
	return 0;
}

void index_change_free(struct index_change *change)
{
	if (!change)
		return;
	forget_faults(change);
	pthread_mutex_destroy(&change->lock);
	close(change->fd);
	free(change);
}

bool index_change_is_stale(const struct index_change *change)
{
	return change && atomic_load_explicit(&change->what, memory_order_relaxed) != NOTHING;
}

uint64_t index_change_rounds(const struct index_change *change)
{
	return change ? atomic_load(&change->rounds) : 0;
}

bool index_change_mark(struct index_change *change, uint64_t rounds, _Atomic uint64_t *bits, uint64_t i)
{
	lock_for_scope(change ? &change->lock : NULL); /* no round runs now */
	bool same = index_change_rounds(change) == rounds;
	if (same)
		atomic_fetch_or(&bits[i / 64], UINT64_C(1) << (i % 64));
	return same;
}

static uint64_t tick_ns(const struct stat *st)
{
	return st->st_ctim.tv_nsec == 0 ? (uint64_t)COARSE_TICK_S * NS_PER_S : TICK_NS;
}

/* Reads the attributes.  -ESTALE: a network file system does not know the file any more. */
static int look(struct index_change *change, struct stat *ret_st)
{
	int r = look_at(change->fd, "", ret_st);
	if (r == -ESTALE)
		latch(change, INODE);
	return r;
}

/* Checks a file whose ctime is new, or was first seen less than a tick ago.  Called under the lock.
 * Returns 0, -ESTALE or an error of statx(2); 1: the ctime changed meanwhile, so check again. */
static int look_again(const struct shard_index *index, struct index_change *change)
{
	struct stat before, after;
	int r = look(change, &before);
	if (r < 0)
		return r;
	latch(change, written(change, &before));
	if (index_change_is_stale(change))
		return -ESTALE;
	int64_t ctime_ns = ctime_of(&before);
	if (atomic_load(&change->settled) && ctime_ns == atomic_load(&change->ctime_ns))
		return 0; /* another thread has checked it */
	uint64_t now = base_now_ns();
	if (ctime_ns != change->seen_ctime_ns) {
		change->seen_ctime_ns = ctime_ns;
		change->seen_ns = now;
	}
	bool old = now - change->seen_ns >= tick_ns(&before);
	atomic_fetch_add(&change->rounds, 1);
	if (index_check_marked(index) < 0)
		latch(change, BYTES);
	r = look(change, &after);
	if (r < 0)
		return r;
	latch(change, written(change, &after));
	if (index_change_is_stale(change))
		return -ESTALE;
	if (ctime_of(&after) != ctime_ns)
		return 1;
	atomic_store(&change->ctime_ns, ctime_ns);
	atomic_store(&change->settled, old);
	return 0;
}

static int check(const struct shard_index *index, struct index_change *change)
{
	struct stat st;
	__sync_synchronize(); /* the caller's reads of the mapping come before statx(2) */
	int r = look(change, &st);
	if (r < 0)
		return r;
	if (written(change, &st) == NOTHING && atomic_load(&change->settled) &&
	        ctime_of(&st) == atomic_load(&change->ctime_ns))
		return index_change_is_stale(change) ? -ESTALE : 0; /* a fault sets its mark before its zeros appear */
	r = 1;
	lock_for_scope(&change->lock);
	for (int i = 0; i < ROUNDS_MAX && r == 1; i++)
		r = look_again(index, change);
	return r == 1 ? -ESTALE : r;
}

int shard_index_check(const struct shard_index *index)
{
	struct index_change *change = index->change;
	if (!change)
		return 0;
	if (index_change_is_stale(change))
		return -ESTALE;
	atomic_fetch_add_explicit(&change->looking, 1, memory_order_relaxed);
	int r = check(index, change);
	atomic_fetch_sub_explicit(&change->looking, 1, memory_order_relaxed);
	return r;
}

bool shard_index_is_looked_at(const struct shard_index *index)
{
	return index->change && atomic_load_explicit(&index->change->looking, memory_order_relaxed) > 0;
}

int shard_index_explain(const struct shard_index *index, struct base_err *err)
{
	static const char *const whats[] = {
		[INODE] = "is another file",
		[SIZE] = "has another size",
		[MTIME] = "has another modification time",
		[BYTES] = "has other bytes",
		[FAULT] = "was cut",
	};
	int what = index->change ? atomic_load(&index->change->what) : NOTHING;
	if (what == NOTHING)
		return 0;
	return base_err_set(err, -ESTALE,
	        "'%s' %s: somebody wrote into it while it was in use. Readers get only what is in memory. Unmount, "
	        "restore the dataset ('mkshard verify' checks it), and mount again. Next time replace a dataset with "
	        "'mkshard pack --force' or rename(2)",
	        index->path, whats[what]);
}

int shard_index_check_err(const struct shard_index *index, struct base_err *err)
{
	int stale = shard_index_check(index), r = shard_index_explain(index, err);
	if (r < 0 || stale == 0)
		return r;
	return base_err_set(err, stale, "'%s': %s", index->path, base_err_str(stale));
}
