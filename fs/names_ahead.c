/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the next turns, listed by directory; fs/names_ahead.h first. */
#include "fs/names_ahead.h"

#include <stdlib.h>

#include "shard/format.h"

/* Forgets what was taken if the engine does not go on where it was: the stream has moved, or names were lost. */
static void follow(struct fs_names_ahead *ahead, uint64_t epoch, uint64_t turn, uint32_t n)
{
	/* The engine leaves out turns that the reader has used already. */
	bool on = ahead->at_once && ahead->epoch == epoch && ahead->next <= turn && turn <= ahead->until;
	bool next_epoch = ahead->at_once && ahead->epoch + 1 == epoch && turn == 0;
	if (!on) {
		ahead->until = turn;
		ahead->n = 0;
	}
	if (!on && !next_epoch)
		ahead->at_once = FS_NAMES_AHEAD_FIRST;
	ahead->epoch = epoch;
	ahead->next = turn + n;
}

static int by_file(const void *a, const void *b)
{
	const struct fs_names_ahead_pick *x = a, *y = b;
	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	return x->turn < y->turn ? -1 : x->turn > y->turn;
}

/* Makes the names of files[n] of a directory known. */
static void make(const struct fs_names_ahead_ops *ops, void *user, uint32_t dir, const uint32_t *files, uint32_t n)
{
	uint32_t first = 0;
	while (first < n && !ops->look_up(user, files[first]))
		first++;
	if (first < n)
		first++;
	if (n - first >= FS_NAMES_AHEAD_RUN - 1 && ops->list(user, dir, files + first, n - first))
		return;
	while (first < n)
		ops->look_up(user, files[first++]);
}

/* Makes the names of the picks [from, to), which share a directory, if they are many. A file may come twice. */
static void list_run(struct fs_names_ahead *ahead, const struct fs_names_ahead_ops *ops, void *user, uint32_t dir,
        uint32_t from, uint32_t to)
{
	uint32_t files[FS_NAMES_AHEAD_MAX], n = 0;
	for (uint32_t i = from; i < to; i++) {
		if (n == 0 || files[n - 1] != ahead->picks[i].file)
			files[n++] = ahead->picks[i].file;
	}
	if (n < FS_NAMES_AHEAD_RUN)
		return;
	make(ops, user, dir, files, n);
	for (uint32_t i = from; i < to; i++)
		ahead->picks[i].file = SHARD_NONE;
}

static void list_runs(struct fs_names_ahead *ahead, const struct fs_names_ahead_ops *ops, void *user)
{
	uint32_t from = 0, dir = SHARD_NONE;
	qsort(ahead->picks, ahead->n, sizeof(ahead->picks[0]), by_file);
	for (uint32_t i = 0; i < ahead->n; i++) {
		uint32_t its = ops->dir(user, ahead->picks[i].file);
		if (its == dir)
			continue;
		list_run(ahead, ops, user, dir, from, i);
		from = i;
		dir = its;
	}
	list_run(ahead, ops, user, dir, from, ahead->n);
}

/* Takes the next turns. `picks` is empty. Returns false if there are none. */
static bool take(struct fs_names_ahead *ahead, const struct fs_names_ahead_ops *ops, void *user, uint64_t turns)
{
	uint32_t n = ahead->at_once < ahead->most ? ahead->at_once : ahead->most;
	if (ahead->until >= turns)
		return false;
	n = turns - ahead->until < n ? (uint32_t)(turns - ahead->until) : n;
	ahead->took_most = n == ahead->most;
	for (uint32_t i = 0; i < n; i++, ahead->until++) {
		uint32_t files[SHARD_SAMPLE_FILES_MAX], n_files = ops->files(user, ahead->until, files);
		if (n_files > FS_NAMES_AHEAD_MAX - ahead->n) {
			ahead->took_most = true;
			break;
		}
		for (uint32_t k = 0; k < n_files; k++)
			ahead->picks[ahead->n++] =
			        (struct fs_names_ahead_pick){ .turn = ahead->until, .file = files[k] };
	}
	return true;
}

/* Looks up what is left of the turns [begin, end), and forgets those before. */
static void look_up(
        struct fs_names_ahead *ahead, const struct fs_names_ahead_ops *ops, void *user, uint64_t begin, uint64_t end)
{
	uint32_t left = 0;
	for (uint32_t i = 0; i < ahead->n; i++) {
		const struct fs_names_ahead_pick *pick = &ahead->picks[i];
		if (pick->file == SHARD_NONE || pick->turn < begin)
			continue;
		if (pick->turn >= end)
			ahead->picks[left++] = *pick;
		else if (ahead->took_most)
			ops->look_up_lone(user, pick->file);
		else
			ops->look_up(user, pick->file);
	}
	ahead->n = left;
}

void fs_names_ahead_asked(struct fs_names_ahead *ahead, const struct fs_names_ahead_ops *ops, void *user,
        uint64_t epoch, uint64_t turns, uint64_t turn, uint32_t n)
{
	follow(ahead, epoch, turn, n);
	while (ahead->until < ahead->next) {
		look_up(ahead, ops, user, turn, ahead->until);
		if (!take(ahead, ops, user, turns))
			break;
		list_runs(ahead, ops, user);
		ahead->at_once = ahead->at_once * 4 < ahead->most ? ahead->at_once * 4 : ahead->most;
	}
	look_up(ahead, ops, user, turn, ahead->next);
}
