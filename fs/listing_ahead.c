/* SPDX-License-Identifier: Apache-2.0 */
/* One piece of a listing that is made ahead, and its states; fs/listing_ahead.h first. */
#include "fs/listing_ahead.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "shard/base/cleanup.h"
#include "shard/base/clock.h"

enum { WAIT_NS = 10000000 }; /* a piece takes 0.6 ms; its maker may wait for a page of the index */

enum state { EMPTY, MAKING, FORGOTTEN /* forgotten while it was being made */, KEPT };

struct fs_listing_ahead {
	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t ended; /* the state is not MAKING now */
	enum state state;
	struct fs_dir_place place; /* in every state but EMPTY */
	struct fs_dir_piece piece; /* only in state KEPT */
};

int fs_listing_ahead_new(struct fs_listing_ahead **ret_ahead)
{
	struct fs_listing_ahead *ahead = calloc(1, sizeof(*ahead));
	if (!ahead)
		return -ENOMEM;
	pthread_mutex_init(&ahead->lock, NULL);
	base_cond_init(&ahead->ended);
	*ret_ahead = ahead;
	return 0;
}

void fs_listing_ahead_free(struct fs_listing_ahead *ahead)
{
	if (!ahead)
		return;
	free(ahead->piece.buf);
	pthread_cond_destroy(&ahead->ended);
	pthread_mutex_destroy(&ahead->lock);
	free(ahead);
}

static bool same(const struct fs_dir_place *a, const struct fs_dir_place *b)
{
	return a->ino == b->ino && a->handle == b->handle && a->off == b->off && a->size == b->size &&
	       a->plus == b->plus;
}

static void empty(struct fs_listing_ahead *ahead)
{
	free(ahead->piece.buf);
	ahead->piece = (struct fs_dir_piece){ 0 };
	ahead->state = EMPTY;
}

bool fs_listing_ahead_take(
        struct fs_listing_ahead *ahead, const struct fs_dir_place *place, struct fs_dir_piece *ret_piece)
{
	struct timespec until = base_until(WAIT_NS);
	int rc = 0;
	lock_for_scope(&ahead->lock);
	while (rc == 0 && ahead->state == MAKING && same(&ahead->place, place))
		rc = pthread_cond_timedwait(&ahead->ended, &ahead->lock, &until);
	bool taken = ahead->state == KEPT && same(&ahead->place, place);
	if (taken) {
		*ret_piece = ahead->piece;
		ahead->piece.buf = NULL;
		empty(ahead);
	}
	return taken;
}

bool fs_listing_ahead_begin(struct fs_listing_ahead *ahead, const struct fs_dir_place *place)
{
	lock_for_scope(&ahead->lock);
	bool begun = ahead->state == EMPTY;
	if (begun) {
		ahead->state = MAKING;
		ahead->place = *place;
	}
	return begun;
}

void fs_listing_ahead_end(struct fs_listing_ahead *ahead, struct fs_dir_piece piece)
{
	lock_for_scope(&ahead->lock);
	ahead->piece = piece;
	if (ahead->state == MAKING && piece.buf)
		ahead->state = KEPT;
	else
		empty(ahead);
	pthread_cond_broadcast(&ahead->ended);
}

void fs_listing_ahead_forget(struct fs_listing_ahead *ahead)
{
	lock_for_scope(&ahead->lock);
	if (ahead->state == MAKING) {
		ahead->state = FORGOTTEN;
		pthread_cond_broadcast(&ahead->ended);
	} else if (ahead->state == KEPT) {
		empty(ahead);
	}
}
