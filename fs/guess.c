#include "fs/guess.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct looked_up {
	uint32_t file;
	bool read;
};

struct fs_guess {
	pthread_mutex_t lock; /* guards what follows, but for `is_read` */
	uint64_t n;           /* files looked up */
	struct looked_up kept[FS_GUESS_KEPT];
	uint64_t judged; /* bit a file, the latest lowest: it was read */
	_Atomic bool is_read;
};
_Static_assert(FS_GUESS_JUDGED == 64, "judged is a word");

int fs_guess_new(struct fs_guess **ret_guess)
{
	struct fs_guess *guess = calloc(1, sizeof(*guess));
	if (!guess)
		return -ENOMEM;
	pthread_mutex_init(&guess->lock, NULL);
	*ret_guess = guess;
	return 0;
}

void fs_guess_free(struct fs_guess *guess)
{
	if (!guess)
		return;
	pthread_mutex_destroy(&guess->lock);
	free(guess);
}

void fs_guess_looked_up(struct fs_guess *guess, uint32_t file)
{
	pthread_mutex_lock(&guess->lock);
	struct looked_up *slot = &guess->kept[guess->n % FS_GUESS_KEPT];
	if (guess->n >= FS_GUESS_KEPT) {
		guess->judged = guess->judged << 1 | slot->read;
		guess->is_read = __builtin_popcountll(guess->judged) >= FS_GUESS_ENOUGH;
	}
	*slot = (struct looked_up){ .file = file };
	guess->n++;
	pthread_mutex_unlock(&guess->lock);
}

void fs_guess_read(struct fs_guess *guess, uint32_t file)
{
	pthread_mutex_lock(&guess->lock);
	uint64_t n = guess->n < FS_GUESS_KEPT ? guess->n : FS_GUESS_KEPT;
	/* The latest first: he who reads has just looked it up. */
	for (uint64_t i = 1; i <= n; i++) {
		struct looked_up *slot = &guess->kept[(guess->n - i) % FS_GUESS_KEPT];
		if (slot->file == file) {
			slot->read = true;
			break;
		}
	}
	pthread_mutex_unlock(&guess->lock);
}

bool fs_guess_is_read(const struct fs_guess *guess)
{
	return guess->is_read;
}
