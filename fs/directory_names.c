/* SPDX-License-Identifier: Apache-2.0 */
/* The bits of directories whose names are known; fs/directory_names.h first. */
#include "fs/directory_names.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "cache/arena.h"
#include "fs/counters.h"
#include "shard/base/bits.h"
#include "shard/base/cleanup.h"

struct fs_directory_names {
	const struct shard_index *index;
	uint64_t most_bytes;
	pthread_mutex_t lock; /* guards what follows */
	uint64_t *known;      /* a bit a directory */
	uint32_t *looked_up;  /* names of each directory that were looked up one by one */
	uint64_t bytes;       /* of the names of these directories, and of the one being listed */
	bool listing;         /* there is one */
	uint32_t dir;         /* that one */
	uint64_t dir_names;   /* how many names it has */
	uint64_t offset;      /* where its listing goes on */
};

enum { WORTH_IT = 10 }; /* one name in so many is needed */

int fs_directory_names_new(const struct shard_index *index, uint64_t most_bytes, struct fs_directory_names **ret_names)
{
	struct fs_directory_names *names = calloc(1, sizeof(*names));
	if (!names)
		return -ENOMEM;
	names->index = index;
	names->most_bytes = most_bytes;
	names->known = bits_new(shard_index_info(index)->n_dirs);
	names->looked_up = calloc(shard_index_info(index)->n_dirs, sizeof(*names->looked_up));
	if (!names->known || !names->looked_up) {
		free(names->looked_up);
		free(names->known);
		free(names);
		return -ENOMEM;
	}
	pthread_mutex_init(&names->lock, NULL);
	*ret_names = names;
	return 0;
}

void fs_directory_names_free(struct fs_directory_names *names)
{
	if (!names)
		return;
	pthread_mutex_destroy(&names->lock);
	free(names->looked_up);
	free(names->known);
	free(names);
}

/* Gives the directory of a file, and the bytes of its names. */
static int directory_of(const struct fs_directory_names *names, uint32_t file, uint32_t *ret_dir, uint64_t *ret_bytes)
{
	struct shard_file f;
	struct shard_dir dir;
	int rc = shard_index_file(names->index, file, &f);
	if (rc == 0)
		rc = shard_index_dir(names->index, f.dir, &dir);
	if (rc < 0)
		return rc;
	*ret_dir = f.dir;
	*ret_bytes = (uint64_t)dir.n_files * FS_FILE_OVERHEAD_BYTES;
	return 0;
}

bool fs_directory_names_known(struct fs_directory_names *names, uint32_t file)
{
	uint32_t dir;
	uint64_t bytes;
	if (directory_of(names, file, &dir, &bytes) < 0)
		return false;
	lock_for_scope(&names->lock);
	return bit_get(names->known, dir);
}

bool fs_directory_names_kept(struct fs_directory_names *names, uint32_t file)
{
	uint32_t dir;
	uint64_t bytes;
	if (directory_of(names, file, &dir, &bytes) < 0)
		return false;
	lock_for_scope(&names->lock);
	return bit_get(names->known, dir) || (names->listing && names->dir == dir);
}

bool fs_directory_names_need(struct fs_directory_names *names, uint32_t file, bool many)
{
	uint32_t dir;
	uint64_t bytes;
	if (directory_of(names, file, &dir, &bytes) < 0)
		return false;
	lock_for_scope(&names->lock);
	uint64_t looked_up = ++names->looked_up[dir] * (uint64_t)FS_FILE_OVERHEAD_BYTES;
	if (names->listing || bit_get(names->known, dir) || bytes > names->most_bytes - names->bytes ||
	        (!many && looked_up < bytes / WORTH_IT))
		return false;
	names->listing = true;
	names->dir = dir;
	names->dir_names = bytes / FS_FILE_OVERHEAD_BYTES;
	names->offset = 0;
	names->bytes += bytes;
	return true;
}

bool fs_directory_names_next(
        struct fs_directory_names *names, uint32_t *ret_dir, uint64_t *ret_offset, uint64_t *ret_names)
{
	lock_for_scope(&names->lock);
	*ret_dir = names->dir;
	*ret_offset = names->offset;
	*ret_names = names->dir_names;
	return names->listing;
}

void fs_directory_names_listed(struct fs_directory_names *names, uint32_t dir, uint64_t offset)
{
	lock_for_scope(&names->lock);
	if (names->listing && names->dir == dir)
		names->offset = offset;
}

/* Ends the listing of `dir`. */
static void end(struct fs_directory_names *names, uint32_t dir, bool whole)
{
	lock_for_scope(&names->lock);
	if (!names->listing || names->dir != dir)
		return;
	names->listing = false;
	names->looked_up[dir] = 0;
	if (whole)
		bit_set(names->known, dir);
	else
		names->bytes -= names->dir_names * FS_FILE_OVERHEAD_BYTES;
}

void fs_directory_names_whole(struct fs_directory_names *names, uint32_t dir)
{
	end(names, dir, true);
}

void fs_directory_names_failed(struct fs_directory_names *names, uint32_t dir)
{
	end(names, dir, false);
}

/* N files of P bytes of pages and O of names, of which L are listed; R are in memory. R of the listed names count with
 * their files, so O x L x (1 - R / N) is left, and R x (P + O) + O x L x (1 - R / N) = memory. */
uint64_t fs_directory_names_reserve(struct fs_directory_names *names, uint64_t memory_bytes)
{
	const struct shard_info *info = shard_index_info(names->index);
	double n = info->n_files, listed;
	{
		lock_for_scope(&names->lock);
		listed = (double)names->bytes;
	}
	if (listed == 0 || n == 0)
		return 0;
	double page = (double)info->content_bytes / n + CACHE_PAGE / 2.0;
	double part = listed / (n * FS_FILE_OVERHEAD_BYTES);
	double left = (double)memory_bytes > listed ? (double)memory_bytes - listed : 0;
	double resident = left / (page + FS_FILE_OVERHEAD_BYTES * (1 - part));
	return resident < n ? (uint64_t)(listed * (1 - resident / n)) : 0;
}

void fs_directory_names_forget(struct fs_directory_names *names, uint32_t file)
{
	uint32_t dir;
	uint64_t bytes;
	if (directory_of(names, file, &dir, &bytes) < 0)
		return;
	lock_for_scope(&names->lock);
	if (bit_get(names->known, dir)) {
		bit_clear(names->known, dir);
		names->bytes -= bytes;
	}
}
