/* SPDX-License-Identifier: Apache-2.0 */
/* The bits of directories whose names are known; fs/directory_names.h first. */
#include "fs/directory_names.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "fs/counters.h"
#include "shard/base/bits.h"
#include "shard/base/cleanup.h"

struct fs_directory_names {
	const struct shard_index *index;
	uint64_t most_bytes;
	pthread_mutex_t lock; /* guards what follows */
	uint64_t *known;      /* a bit a directory */
	uint64_t bytes;       /* of the names of these directories */
};

int fs_directory_names_new(const struct shard_index *index, uint64_t most_bytes, struct fs_directory_names **ret_names)
{
	struct fs_directory_names *names = calloc(1, sizeof(*names));
	if (!names)
		return -ENOMEM;
	names->index = index;
	names->most_bytes = most_bytes;
	names->known = bits_new(shard_index_info(index)->n_dirs);
	if (!names->known) {
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

bool fs_directory_names_list(struct fs_directory_names *names, uint32_t file, uint32_t *ret_dir)
{
	uint32_t dir;
	uint64_t bytes;
	if (directory_of(names, file, &dir, &bytes) < 0)
		return false;
	lock_for_scope(&names->lock);
	bool list = !bit_get(names->known, dir) && bytes <= names->most_bytes - names->bytes;
	if (list) {
		bit_set(names->known, dir);
		names->bytes += bytes;
	}
	if (list)
		*ret_dir = dir;
	return list;
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
