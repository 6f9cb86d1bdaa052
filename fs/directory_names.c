/* SPDX-License-Identifier: Apache-2.0 */
/* The bits of directories whose names are known; fs/directory_names.h first. */
#include "fs/directory_names.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cache/arena.h"
#include "fs/counters.h"
#include "fs/listing_offset.h"
#include "prefetch/prefetch.h"
#include "shard/base/bits.h"
#include "shard/base/cleanup.h"

struct directory {
	uint32_t number;
	uint32_t first_file; /* its files are [first_file, first_file + n_names) */
	uint32_t n_names;
};

/* Guarded by the lock, but for what is const after fs_directory_names_new. */
struct fs_directory_names {
	const struct shard_index *index;
	pthread_mutex_t lock;
	uint64_t most_bytes; /* of names */
	uint64_t bytes;      /* of the names of directories that are known or being listed */
	uint64_t *known;     /* a bit a directory; in the handover memory, as `old` */
	uint64_t *old;       /* a bit a file: the kernel has its name, but no attributes that are valid */
	uint64_t *many;      /* a bit a directory: an order has a tenth of its files */
	uint32_t *n_old;     /* how many each directory has; NEVER: it cannot be listed */
	uint32_t *looked_up; /* names of each directory that were looked up one by one */
	bool listing;        /* a directory is being listed: */
	struct directory dir;
	uint64_t offset;             /* where its listing goes on */
	uint32_t others;             /* look-ups in other directories since one in this */
	_Atomic uint64_t page_bytes; /* pages of a file, the mean; 0: not looked at yet; no lock */
};

enum {
	WORTH_IT = 10,           /* one name in so many is needed */
	NAMES_MIN = 8,           /* of a directory: with fewer, opening it costs more than the look-ups */
	OTHERS_MAX = 16384,      /* a listing that nobody needs any more ends after so many */
	WINDOW_BYTES = 32 << 20, /* pages of a window: the workers of a loader are 4,096 small files apart */
	LOOKS = 64,              /* files of a directory, or of all, that are looked at: 6 us to 60 us */
};
static const uint32_t NEVER = UINT32_MAX;

static int directory_get(const struct fs_directory_names *names, uint32_t number, struct directory *ret_dir)
{
	struct shard_dir dir;
	int rc = shard_index_dir(names->index, number, &dir);
	if (rc < 0)
		return rc;
	*ret_dir = (struct directory){ .number = number, .first_file = dir.first_file, .n_names = dir.n_files };
	return 0;
}

static int directory_of(const struct fs_directory_names *names, uint32_t file, struct directory *ret_dir)
{
	struct shard_file f;
	int rc = shard_index_file(names->index, file, &f);
	return rc < 0 ? rc : directory_get(names, f.dir, ret_dir);
}

static uint64_t bytes_of(const struct directory *dir)
{
	return (uint64_t)dir->n_names * FS_FILE_OVERHEAD_BYTES;
}

/* Counts what a predecessor has listed. */
static void take_over(struct fs_directory_names *names)
{
	for (uint32_t number = 0; number < shard_index_info(names->index)->n_dirs; number++) {
		struct directory dir;
		if (!bit_get(names->known, number))
			continue;
		if (directory_get(names, number, &dir) < 0) {
			bit_clear(names->known, number);
			continue;
		}
		names->bytes += bytes_of(&dir);
		for (uint32_t file = dir.first_file; file < dir.first_file + dir.n_names; file++)
			names->n_old[number] += bit_get(names->old, file);
	}
}

int fs_directory_names_new(const struct shard_index *index, uint64_t most_bytes, const struct fs_handover_names *kept,
        struct fs_directory_names **ret_names)
{
	const struct shard_info *info = shard_index_info(index);
	struct fs_directory_names *names = calloc(1, sizeof(*names));
	if (!names)
		return -ENOMEM;
	pthread_mutex_init(&names->lock, NULL);
	names->index = index;
	names->most_bytes = most_bytes;
	names->known = kept->known;
	names->old = kept->old;
	names->many = bits_new(info->n_dirs);
	names->n_old = calloc(info->n_dirs, sizeof(*names->n_old));
	names->looked_up = calloc(info->n_dirs, sizeof(*names->looked_up));
	if (!names->many || !names->n_old || !names->looked_up) {
		fs_directory_names_free(names);
		return -ENOMEM;
	}
	take_over(names);
	*ret_names = names;
	return 0;
}

void fs_directory_names_free(struct fs_directory_names *names)
{
	if (!names)
		return;
	pthread_mutex_destroy(&names->lock);
	free(names->looked_up);
	free(names->n_old);
	free(names->many);
	free(names);
}

bool fs_directory_names_known(struct fs_directory_names *names, uint32_t file)
{
	struct directory dir;
	if (directory_of(names, file, &dir) < 0)
		return false;
	lock_for_scope(&names->lock);
	return bit_get(names->known, dir.number) && !bit_get(names->old, file);
}

bool fs_directory_names_dropped(struct fs_directory_names *names, uint32_t file)
{
	struct directory dir;
	if (directory_of(names, file, &dir) < 0)
		return false;
	lock_for_scope(&names->lock);
	if (!bit_get(names->known, dir.number) && !(names->listing && names->dir.number == dir.number))
		return false;
	names->n_old[dir.number] += !bit_get(names->old, file);
	bit_set(names->old, file);
	return true;
}

/* Ends the listing. whole: its names are known now. */
static void end(struct fs_directory_names *names, bool whole)
{
	const struct directory *dir = &names->dir;
	names->listing = false;
	names->looked_up[dir->number] = 0;
	bit_clear(names->many, dir->number);
	if (whole) {
		for (uint32_t file = dir->first_file; file < dir->first_file + dir->n_names; file++)
			bit_clear(names->old, file);
		names->n_old[dir->number] = 0;
		bit_set(names->known, dir->number);
	} else {
		bit_clear(names->known, dir->number);
		names->bytes -= bytes_of(dir);
	}
}

/* Returns a number below n that differs for each i below @looks (LOOKS at most). If not all are looked at, they are
 * spread by the golden ratio: a rank may have each 16th file, and at equal distances they could be all of these or
 * none. */
static uint32_t look(uint32_t i, uint32_t looks, uint32_t n)
{
	return looks < LOOKS ? i : (uint32_t)((i * UINT32_C(0x9e3779b9) * (uint64_t)n) >> 32);
}

/* Whether an order has a tenth of a directory's files or more. Some of them are looked for. */
static bool has_many(const struct directory *dir, bool (*has)(const void *user, uint32_t file), const void *user)
{
	uint32_t looks = dir->n_names < LOOKS ? dir->n_names : LOOKS, found = 0;
	for (uint32_t i = 0; i < looks; i++)
		found += has(user, dir->first_file + look(i, looks, dir->n_names));
	return found * WORTH_IT >= looks;
}

/* Whether a directory is worth a listing. */
static bool is_worth_it(const struct fs_directory_names *names, const struct directory *dir)
{
	uint32_t needed = names->looked_up[dir->number], old = names->n_old[dir->number];
	if (old == NEVER || dir->n_names < NAMES_MIN)
		return false;
	if (bit_get(names->known, dir->number))
		return old >= dir->n_names / WORTH_IT;
	bool many = bit_get(names->many, dir->number);
	return bytes_of(dir) + names->bytes <= names->most_bytes && (many || needed >= dir->n_names / WORTH_IT);
}

/* The kernel has got a file's name with valid attributes. */
static void came(struct fs_directory_names *names, const struct directory *dir, uint32_t file)
{
	if (!bit_get(names->old, file))
		return;
	bit_clear(names->old, file);
	/* A predecessor's bits of a directory that is not listed are not counted. */
	names->n_old[dir->number] -= names->n_old[dir->number] != NEVER && names->n_old[dir->number] > 0;
}

void fs_directory_names_came(struct fs_directory_names *names, uint32_t file)
{
	struct directory dir;
	if (directory_of(names, file, &dir) < 0)
		return;
	lock_for_scope(&names->lock);
	came(names, &dir, file);
}

/* Counts a look-up. Returns whether to look at the order: at the first look-up in a directory, the second, the fourth,
 * because an order may have got longer. */
static bool count_look_up(struct fs_directory_names *names, const struct directory *dir, uint32_t file)
{
	lock_for_scope(&names->lock);
	uint32_t n = ++names->looked_up[dir->number];
	came(names, dir, file);
	return (n & (n - 1)) == 0 && dir->n_names >= NAMES_MIN && !bit_get(names->many, dir->number) &&
	       !bit_get(names->known, dir->number);
}

bool fs_directory_names_looked_up(
        struct fs_directory_names *names, uint32_t file, bool (*has)(const void *user, uint32_t file), const void *user)
{
	struct directory dir;
	if (directory_of(names, file, &dir) < 0)
		return false;
	bool many = count_look_up(names, &dir, file) && has_many(&dir, has, user);
	lock_for_scope(&names->lock);
	if (many)
		bit_set(names->many, dir.number);
	if (names->listing) {
		names->others = names->dir.number == dir.number ? 0 : names->others + 1;
		if (names->others < OTHERS_MAX)
			return false;
		end(names, false);
	}
	if (!is_worth_it(names, &dir))
		return false;
	if (!bit_get(names->known, dir.number))
		names->bytes += bytes_of(&dir);
	names->listing = true;
	names->dir = dir;
	names->offset = 0;
	names->others = 0;
	return true;
}

bool fs_directory_names_next(
        struct fs_directory_names *names, uint32_t *ret_dir, uint64_t *ret_offset, uint32_t *ret_names)
{
	lock_for_scope(&names->lock);
	*ret_dir = names->dir.number;
	*ret_offset = names->offset;
	*ret_names = names->dir.n_names;
	return names->listing;
}

void fs_directory_names_listed(struct fs_directory_names *names, uint32_t dir, uint64_t offset)
{
	lock_for_scope(&names->lock);
	if (!names->listing || names->dir.number != dir)
		return;
	names->offset = offset;
	if (offset >= FS_OFFSET_FIRST + names->dir.n_names)
		end(names, true);
}

void fs_directory_names_failed(struct fs_directory_names *names, uint32_t dir)
{
	lock_for_scope(&names->lock);
	if (!names->listing || names->dir.number != dir)
		return;
	end(names, false);
	names->n_old[dir] = NEVER;
}

uint64_t fs_directory_names_bytes(struct fs_directory_names *names)
{
	lock_for_scope(&names->lock);
	return names->bytes;
}

/* Each use of a file needs its name; pages are read again. */
static uint64_t greater_part(uint64_t memory_bytes)
{
	return memory_bytes / 8 * 5;
}

uint64_t fs_directory_names_most(uint64_t memory_bytes)
{
	uint64_t landing = prefetch_landing_bytes(memory_bytes), most = greater_part(memory_bytes);
	uint64_t rest = memory_bytes > landing ? memory_bytes - landing : 0;
	uint64_t pages = rest / 2 < WINDOW_BYTES ? rest / 2 : WINDOW_BYTES;
	pages = pages > PREFETCH_MEMORY_MIN ? pages : PREFETCH_MEMORY_MIN; /* the engine takes these in any case */
	uint64_t left = rest > pages ? rest - pages : 0;
	return left < most ? left : most;
}

/* Returns the mean bytes of a file's pages. What the last page of each has beyond its end is looked up for some. */
static uint64_t mean_pages(struct fs_directory_names *names)
{
	const struct shard_info *info = shard_index_info(names->index);
	uint32_t looks = info->n_files < LOOKS ? info->n_files : LOOKS;
	uint64_t mean = atomic_load_explicit(&names->page_bytes, memory_order_relaxed), more = 0;
	if (mean || !looks)
		return mean;
	for (uint32_t i = 0; i < looks; i++) {
		struct shard_place f;
		if (shard_index_place(names->index, look(i, looks, info->n_files), &f) == 0)
			more += -f.length & (CACHE_PAGE - 1);
	}
	mean = info->content_bytes / info->n_files + more / looks;
	mean = mean < CACHE_PAGE ? CACHE_PAGE : mean;
	atomic_store_explicit(&names->page_bytes, mean, memory_order_relaxed);
	return mean;
}

/* N files of P bytes of pages and O of names; L is O times the listed names; R files are in memory.  These count their
 * own names, so L x (1 - R / N) is left, and R x (P + O) + L x (1 - R / N) = memory. */
uint64_t fs_directory_names_reserve(struct fs_directory_names *names, uint64_t memory_bytes)
{
	const struct shard_info *info = shard_index_info(names->index);
	double n = info->n_files, listed = (double)fs_directory_names_bytes(names);
	if (listed == 0 || n == 0)
		return 0;
	double page = (double)mean_pages(names), part = listed / (n * FS_FILE_OVERHEAD_BYTES);
	double left = (double)memory_bytes > listed ? (double)memory_bytes - listed : 0;
	double resident = left / (page + FS_FILE_OVERHEAD_BYTES * (1 - part));
	uint64_t reserve = resident < n ? (uint64_t)(listed * (1 - resident / n)) : 0;
	uint64_t most = greater_part(memory_bytes);
	return reserve < most ? reserve : most;
}

void fs_directory_names_forget(struct fs_directory_names *names, uint32_t file)
{
	struct directory dir;
	if (directory_of(names, file, &dir) < 0)
		return;
	lock_for_scope(&names->lock);
	if (names->listing && names->dir.number == dir.number) {
		names->offset = 0;
	} else if (bit_get(names->known, dir.number)) {
		bit_clear(names->known, dir.number);
		names->bytes -= bytes_of(&dir);
	}
}

void fs_directory_names_end(struct fs_directory_names *names)
{
	lock_for_scope(&names->lock);
	if (names->listing)
		end(names, false);
	memset(names->known, 0, (shard_index_info(names->index)->n_dirs / 64 + 1) * sizeof(*names->known));
	names->bytes = names->most_bytes = 0;
}
