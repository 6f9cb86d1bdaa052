/* SPDX-License-Identifier: Apache-2.0 */
/* Whether files that are looked up are read next; fs/lookup_readahead.h first. */
#include "fs/lookup_readahead.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "shard/base/cleanup.h"

struct looked_up {
	uint32_t file;
	bool read;
};

struct fs_lookup_readahead {
	pthread_mutex_t lock; /* guards what follows, except `is_read` */
	uint64_t n;           /* files looked up since the mount */
	struct looked_up kept[FS_LOOKUP_READAHEAD_KEPT];
	uint64_t judged; /* one bit for each file, the latest lowest: it was read */
	_Atomic bool is_read;
};
_Static_assert(FS_LOOKUP_READAHEAD_JUDGED == 64, "judged is a word");

int fs_lookup_readahead_new(struct fs_lookup_readahead **ret_lookups)
{
	struct fs_lookup_readahead *lookups = calloc(1, sizeof(*lookups));
	if (!lookups)
		return -ENOMEM;
	pthread_mutex_init(&lookups->lock, NULL);
	*ret_lookups = lookups;
	return 0;
}

void fs_lookup_readahead_free(struct fs_lookup_readahead *lookups)
{
	if (!lookups)
		return;
	pthread_mutex_destroy(&lookups->lock);
	free(lookups);
}

void fs_lookup_readahead_looked_up(struct fs_lookup_readahead *lookups, uint32_t file)
{
	lock_for_scope(&lookups->lock);
	struct looked_up *oldest = &lookups->kept[lookups->n % FS_LOOKUP_READAHEAD_KEPT];
	if (lookups->n >= FS_LOOKUP_READAHEAD_KEPT) {
		lookups->judged = lookups->judged << 1 | oldest->read;
		lookups->is_read = __builtin_popcountll(lookups->judged) >= FS_LOOKUP_READAHEAD_ENOUGH;
	}
	*oldest = (struct looked_up){ .file = file };
	lookups->n++;
}

void fs_lookup_readahead_read(struct fs_lookup_readahead *lookups, uint32_t file)
{
	lock_for_scope(&lookups->lock);
	uint64_t n = lookups->n < FS_LOOKUP_READAHEAD_KEPT ? lookups->n : FS_LOOKUP_READAHEAD_KEPT;
	/* The latest first, because the reader has just looked the file up. */
	for (uint64_t i = 1; i <= n; i++) {
		struct looked_up *oldest = &lookups->kept[(lookups->n - i) % FS_LOOKUP_READAHEAD_KEPT];
		if (oldest->file == file) {
			oldest->read = true;
			break;
		}
	}
}

bool fs_lookup_readahead_is_read(const struct fs_lookup_readahead *lookups)
{
	return lookups->is_read;
}
