/* SPDX-License-Identifier: Apache-2.0 */
/* Whether files that are looked up are read next; fs/lookup_readahead.h first. */
#include "fs/lookup_readahead.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct looked_up {
	uint32_t file;
	bool read;
};

struct fs_lookup_readahead {
	pthread_mutex_t lock; /* guards what follows, except `is_read` */
	uint64_t n;           /* files looked up since the mount */
	struct looked_up kept[FS_LOOKUP_READAHEAD_KEPT];
	uint64_t judged; /* one bit a file, the latest lowest: it was read */
	_Atomic bool is_read;
};
_Static_assert(FS_LOOKUP_READAHEAD_JUDGED == 64, "judged is a word");

int fs_lookup_readahead_new(struct fs_lookup_readahead **ret_guess)
{
	struct fs_lookup_readahead *guess = calloc(1, sizeof(*guess));
	if (!guess)
		return -ENOMEM;
	pthread_mutex_init(&guess->lock, NULL);
	*ret_guess = guess;
	return 0;
}

void fs_lookup_readahead_free(struct fs_lookup_readahead *guess)
{
	if (!guess)
		return;
	pthread_mutex_destroy(&guess->lock);
	free(guess);
}

void fs_lookup_readahead_looked_up(struct fs_lookup_readahead *guess, uint32_t file)
{
	pthread_mutex_lock(&guess->lock);
	struct looked_up *slot = &guess->kept[guess->n % FS_LOOKUP_READAHEAD_KEPT];
	if (guess->n >= FS_LOOKUP_READAHEAD_KEPT) {
		guess->judged = guess->judged << 1 | slot->read;
		guess->is_read = __builtin_popcountll(guess->judged) >= FS_LOOKUP_READAHEAD_ENOUGH;
	}
	*slot = (struct looked_up){ .file = file };
	guess->n++;
	pthread_mutex_unlock(&guess->lock);
}

void fs_lookup_readahead_read(struct fs_lookup_readahead *guess, uint32_t file)
{
	pthread_mutex_lock(&guess->lock);
	uint64_t n = guess->n < FS_LOOKUP_READAHEAD_KEPT ? guess->n : FS_LOOKUP_READAHEAD_KEPT;
	/* The latest first, because the reader has just looked the file up. */
	for (uint64_t i = 1; i <= n; i++) {
		struct looked_up *slot = &guess->kept[(guess->n - i) % FS_LOOKUP_READAHEAD_KEPT];
		if (slot->file == file) {
			slot->read = true;
			break;
		}
	}
	pthread_mutex_unlock(&guess->lock);
}

bool fs_lookup_readahead_is_read(const struct fs_lookup_readahead *guess)
{
	return guess->is_read;
}
