/* SPDX-License-Identifier: Apache-2.0 */
/* A view that is served: its epochs, what was opened, what was trained; fs/view.h first. */
#include "fs/view.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/ino.h"
#include "shard/base/bits.h"
#include "shard/base/cleanup.h"

/* ---- what a successor finds ---- */

/* Writes the view's state into the handover memory. Under the lock. */
static void record(struct fs_view *view)
{
	if (!view->handover.records)
		return;
	const struct fs_handover_record now = {
		.epoch = shard_epoch_number(view->epoch),
		.map = view->map,
		.flags = (view->pinned ? FS_HANDOVER_PINNED : 0) | (view->trained_set ? FS_HANDOVER_TRAINED : 0) |
		         (view->has_reader ? FS_HANDOVER_READER : 0),
		.trained_epoch = view->trained_epoch,
		.trained_steps = view->trained_steps,
		.listing_s = view->listing_time.tv_sec,
		.listing_ns = (uint64_t)view->listing_time.tv_nsec,
	};
	fs_handover_store(&view->handover, &now);
}

/* Returns an empty bitmap for `turns`, or NULL without memory. Under the lock. */
static uint64_t *take_map(struct fs_view *view, uint64_t turns)
{
	if (!view->handover.records)
		return bits_new(turns);
	assert(turns <= view->handover.bits);
	view->map ^= 1;
	fs_handover_clear(&view->handover, view->map);
	return view->handover.maps[view->map];
}

static void free_map(struct fs_view *view, uint64_t *map)
{
	if (map != view->handover.maps[0] && map != view->handover.maps[1])
		free(map);
}

/* ---- epochs ---- */

/* Makes epoch `number` the current one. Not under the lock, because order=torch computes a permutation here. */
static int switch_epoch(struct fs_view *view, uint64_t number, bool only_if_next)
{
	struct shard_epoch *epoch;
	int rc = shard_view_epoch(view->order, number, &epoch);
	if (rc < 0)
		return rc;
	uint64_t turns = shard_epoch_turns(epoch, view->options.rank);

	struct shard_epoch *old_epoch;
	uint64_t *old_opened, *old_again;
	{
		lock_for_scope(&view->lock);
		bool late = only_if_next && view->epoch && shard_epoch_number(view->epoch) + 1 != number;
		uint64_t *opened = late ? NULL : take_map(view, turns);
		if (!opened) {
			shard_epoch_put(epoch);
			return late ? -EALREADY : -ENOMEM;
		}
		old_epoch = view->epoch;
		old_opened = view->opened;
		old_again = view->again;
		bool first = !view->epoch;
		view->epoch = epoch;
		view->turns = turns;
		view->opened = opened;
		view->again = NULL;
		view->n_opened = 0;
		view->n_again = 0;
		view->next_turn = 0;
		view->told_again = false;
		view->consumed = false;
		if (!first)
			clock_gettime(CLOCK_REALTIME, &view->listing_time);
		record(view);
	}

	shard_epoch_put(old_epoch);
	free_map(view, old_opened);
	free(old_again);
	return 0;
}

/* Takes over what the record says, after a check that it can be true. */
static int resume_record(struct fs_view *view, const struct fs_handover_record *old)
{
	struct shard_epoch *epoch;
	if (old->epoch > FS_EPOCH_MAX || old->listing_ns >= 1000000000)
		return -ERANGE;
	int rc = shard_view_epoch(view->order, old->epoch, &epoch);
	if (rc < 0)
		return rc;
	uint64_t turns = shard_epoch_turns(epoch, view->options.rank);
	uint64_t *opened = view->handover.maps[old->map];
	for (uint64_t i = (turns + 63) / 64; i < view->handover.bits / 64 + 1; i++)
		opened[i] = 0;
	if (turns % 64)
		opened[turns / 64] &= (UINT64_C(1) << turns % 64) - 1;

	struct shard_epoch *old_epoch;
	{
		lock_for_scope(&view->lock);
		old_epoch = view->epoch;
		view->epoch = epoch;
		view->turns = turns;
		view->opened = opened;
		view->map = old->map;
		view->n_opened = bits_count(opened, turns);
		for (view->next_turn = turns; view->next_turn > 0; view->next_turn--)
			if (bit_get(opened, view->next_turn - 1))
				break;
		view->pinned = old->flags & FS_HANDOVER_PINNED;
		view->has_reader |= (old->flags & FS_HANDOVER_READER) != 0;
		view->listing_time = (struct timespec){ .tv_sec = old->listing_s, .tv_nsec = (long)old->listing_ns };
	}
	shard_epoch_put(old_epoch);
	if (old->flags & FS_HANDOVER_TRAINED)
		fs_view_set_trained(view, old->trained_epoch, old->trained_steps);
	return 0;
}

int fs_view_keep(struct fs_view *view, const struct fs_handover_view *handover, bool resume)
{
	struct fs_handover_record old;
	uint64_t number = shard_epoch_number(view->epoch);
	uint64_t *own = view->opened;
	view->handover = *handover;
	view->opened = NULL;
	if (resume && fs_handover_load(handover, &old) && resume_record(view, &old) == 0) {
		free(own);
		return 0;
	}
	free(own);
	view->has_reader |= resume; /* what was left is lost, but whoever read goes on */
	int rc = switch_epoch(view, number, false);
	if (rc < 0)
		return rc;
	lock_for_scope(&view->lock);
	view->listing_time = (struct timespec){ 0 }; /* the first epoch is as old as the mount */
	record(view);
	return 0;
}

static void set_place(struct fs_view *view)
{
	snprintf(view->place, sizeof(view->place), FS_RANK_PREFIX "%u/", view->options.rank);
}

/* Opens the first epoch of a view that is complete otherwise. @rc: an error that came before. */
static int begin(struct fs_view *view, int rc, struct base_err *err, struct fs_view **ret_view)
{
	uint64_t epoch = view->options.epoch;
	if (rc == 0)
		rc = switch_epoch(view, epoch, false);
	if (rc < 0) {
		fs_view_free(view);
		return base_err_set(
		        err, rc, "cannot compute epoch %llu: %s", (unsigned long long)epoch, base_err_str(rc));
	}
	*ret_view = view;
	return 0;
}

int fs_view_new(const struct shard_index *index, const struct fs_options *options, uint32_t number,
        struct base_err *err, struct fs_view **ret_view)
{
	struct fs_view *view = calloc(1, sizeof(*view));
	if (!view)
		return base_err_set(err, -ENOMEM, "out of memory");
	pthread_mutex_init(&view->lock, NULL);

	struct shard_view_options asked = options->view;
	if (options->view_all) {
		asked.rank = 0;
		asked.world = 1;
	}
	if (asked.epoch > FS_EPOCH_MAX) {
		fs_view_free(view);
		return base_err_set(err, -EINVAL, "epoch=%llu is over the limit of %llu",
		        (unsigned long long)asked.epoch, (unsigned long long)FS_EPOCH_MAX);
	}
	int rc = shard_view_new(index, &asked, err, &view->order);
	if (rc < 0) {
		fs_view_free(view);
		return rc;
	}
	view->number = number;
	view->index = index;
	view->options = *shard_view_options_get(view->order);
	view->layout = options->layout;
	view->all = options->view_all;
	view->fill_class = options->fill_class && !options->view_all && options->layout == FS_LAYOUT_TREE;
	view->subdir = shard_view_subdir(view->order);
	view->stays = view->pinned = options->advance == FS_ADVANCE_OFF;
	view->has_reader = options->n_ranks == 0;
	if (options->n_ranks > 0)
		set_place(view);
	if (options->n_ranks > 1)
		shard_view_share(view->order);
	rc = shard_index_dir_samples(index, view->subdir, &view->sample0, &view->sample_end);
	return begin(view, rc, err, ret_view);
}

int fs_view_new_rank(struct fs_view *first, uint32_t number, struct base_err *err, struct fs_view **ret_view)
{
	struct fs_view *view = calloc(1, sizeof(*view));
	if (!view)
		return base_err_set(err, -ENOMEM, "out of memory");
	pthread_mutex_init(&view->lock, NULL);
	view->number = number;
	view->index = first->index;
	view->order = first->order;
	view->options = first->options;
	view->options.rank += number;
	view->layout = first->layout;
	view->fill_class = first->fill_class;
	view->subdir = first->subdir;
	view->sample0 = first->sample0;
	view->sample_end = first->sample_end;
	view->stays = view->pinned = first->stays;
	set_place(view);
	return begin(view, 0, err, ret_view);
}

void fs_view_free(struct fs_view *view)
{
	if (!view)
		return;
	shard_epoch_put(view->epoch);
	if (view->order && view->number == 0)
		shard_view_free(view->order);
	free_map(view, view->opened);
	free(view->again);
	pthread_mutex_destroy(&view->lock);
	free(view);
}

uint64_t fs_view_turns_max(const struct fs_view *view)
{
	uint64_t samples = shard_view_samples(view->order);
	bool one_of_several = view->place[0];
	return one_of_several ? samples / view->options.world + 1 : samples + view->options.world;
}

struct shard_epoch *fs_view_epoch(struct fs_view *view)
{
	lock_for_scope(&view->lock);
	return shard_epoch_get(view->epoch);
}

bool fs_view_listing(struct fs_view *view)
{
	uint64_t now;
	bool due;
	{
		lock_for_scope(&view->lock);
		now = shard_epoch_number(view->epoch);
		uint64_t wanted = view->consumed ? view->turns : (view->turns + 1) / 2;
		due = !view->pinned && view->turns > 0 && view->n_opened >= wanted && now < FS_EPOCH_MAX;
	}
	/* Two listings can come at once (one from each DataLoader worker) and must advance once: the switch checks
	 * that the epoch is still the next one. */
	return due && switch_epoch(view, now + 1, true) == 0;
}

int fs_view_set_epoch(struct fs_view *view, uint64_t epoch)
{
	if (epoch > FS_EPOCH_MAX)
		return -ERANGE;
	int rc = switch_epoch(view, epoch, false);
	if (rc < 0)
		return rc;
	lock_for_scope(&view->lock);
	view->pinned = true;
	view->trained_set = false; /* it was about the run before */
	record(view);
	return 0;
}

void fs_view_set_advance(struct fs_view *view, bool automatic)
{
	lock_for_scope(&view->lock);
	view->pinned = !automatic;
	record(view);
}

bool fs_view_begin(struct fs_view *view)
{
	lock_for_scope(&view->lock);
	if (view->has_reader)
		return false;
	view->has_reader = true;
	record(view);
	return true;
}

int fs_view_reset(struct fs_view *view)
{
	int rc = switch_epoch(view, view->options.epoch, false);
	if (rc < 0)
		return rc;
	lock_for_scope(&view->lock);
	view->pinned = view->stays;
	view->trained_set = false;
	view->has_reader = !view->place[0];
	record(view);
	return 0;
}

/* A loader that opens each file twice must not look like a second pass. So opens count in `again` only after nine
 * tenths of the turns were opened, and half of all turns must come again. */
static bool opened_again(struct fs_view *view, uint64_t turn)
{
	if (view->told_again || view->turns < 2 || view->n_opened < view->turns - view->turns / 10)
		return false;
	if (!view->again) {
		view->again = bits_new(view->turns);
		if (!view->again)
			return false;
	}
	if (bit_set(view->again, turn))
		view->n_again++;
	if (view->n_again < (view->turns + 1) / 2)
		return false;
	view->told_again = true;
	return true;
}

bool fs_view_opened(struct fs_view *view, uint64_t epoch, uint64_t turn)
{
	bool tell = false;
	lock_for_scope(&view->lock);
	if (shard_epoch_number(view->epoch) == epoch && turn < view->turns) {
		view->consumed = false; /* a trainer goes on from where the library was */
		if (bit_set(view->opened, turn)) {
			view->n_opened++;
			if (turn >= view->next_turn)
				view->next_turn = turn + 1;
		} else {
			tell = opened_again(view, turn);
		}
	}
	return tell;
}

void fs_view_opened_range(struct fs_view *view, uint64_t epoch, uint64_t from, uint64_t to)
{
	lock_for_scope(&view->lock);
	if (shard_epoch_number(view->epoch) == epoch) {
		if (to > view->turns)
			to = view->turns;
		for (uint64_t turn = from; turn < to; turn++)
			view->n_opened += bit_set(view->opened, turn);
		if (from < to && to > view->next_turn)
			view->next_turn = to;
	}
}

uint64_t fs_view_first_unopened(struct fs_view *view, uint64_t epoch)
{
	lock_for_scope(&view->lock);
	return shard_epoch_number(view->epoch) == epoch ? bits_first_clear(view->opened, view->turns) : 0;
}

size_t fs_view_opened_turns(struct fs_view *view, uint64_t epoch, uint64_t *from, uint64_t *turns, size_t max)
{
	size_t n = 0;
	lock_for_scope(&view->lock);
	if (shard_epoch_number(view->epoch) == epoch)
		for (; *from < view->next_turn && n < max; ++*from)
			if (bit_get(view->opened, *from))
				turns[n++] = *from;
	return n;
}

int fs_view_turn(const struct fs_view *view, const struct shard_epoch *epoch, uint32_t sample, uint64_t *ret_turn)
{
	if (sample < view->sample0 || sample >= view->sample_end)
		return -ENOENT;
	uint64_t turns = shard_epoch_turns(epoch, view->options.rank);
	uint64_t step;
	uint64_t turn;
	uint32_t rank;
	int rc = shard_epoch_find(epoch, sample, &step, &rank, &turn);
	if (rc == 0 && rank == view->options.rank && turn < turns) {
		*ret_turn = turn;
		return 0;
	}
	if (rc < 0 && rc != -ENOENT)
		return rc;
	/* tail=pad repeats samples from the front, so a rank's last turn can be a sample whose first place belongs to
	 * another rank. */
	if (turns > 0 && view->options.tail == SHARD_TAIL_PAD) {
		uint32_t last;
		rc = shard_epoch_turn(epoch, view->options.rank, turns - 1, &last, NULL);
		if (rc < 0)
			return rc;
		if (last == sample) {
			*ret_turn = turns - 1;
			return 0;
		}
	}
	return -ENOENT;
}

bool fs_view_deals(const struct fs_view *view, const struct shard_file *file)
{
	return file->sample >= view->sample0 && file->sample < view->sample_end;
}

int fs_view_stand_in(const struct fs_view *view, uint32_t dir,
        int (*shows)(const void *user, uint32_t id, const struct shard_file *file), const void *user,
        uint32_t *ret_file)
{
	const struct shard_index *index = shard_view_index(view->order);
	struct shard_dir rec;
	uint32_t first = SHARD_NONE, instead;
	int rc = shard_index_dir(index, dir, &rec);
	for (uint32_t i = 0; rc == 0 && i < rec.n_files; i++) {
		struct shard_file file;
		uint32_t id = rec.first_file + i;
		rc = shard_index_file(index, id, &file);
		if (rc < 0 || !fs_view_deals(view, &file) || shard_view_instead(view->order, file.sample, &instead) < 0)
			continue;
		first = first == SHARD_NONE ? id : first;
		rc = shows(user, id, &file);
	}
	if (rc < 0)
		return rc;
	*ret_file = rc > 0 ? SHARD_NONE : first;
	return 0;
}

void fs_view_progress(struct fs_view *view, struct fs_view_progress *ret_progress)
{
	lock_for_scope(&view->lock);
	*ret_progress = (struct fs_view_progress){
		.epoch = shard_epoch_number(view->epoch),
		.turns = view->turns,
		.n_opened = view->n_opened,
		.next_turn = view->next_turn,
		.automatic = !view->pinned,
		.listing_time = view->listing_time,
	};
}

static uint64_t epoch_start(const struct fs_view *view, uint64_t epoch)
{
	return epoch == view->options.epoch ? view->options.start : 0;
}

int fs_view_steps(struct fs_view *view, uint64_t epoch, uint64_t turns, uint64_t *ret_steps)
{
	struct shard_epoch *e;
	/* No rank of any world has more turns than there are samples.  Trainers count whole batches, so the last one
	 * may go beyond that, but no batch is larger than all samples. */
	bool beyond = epoch > FS_EPOCH_MAX || turns > 2 * shard_view_samples(view->order);
	int rc = beyond ? -ERANGE : shard_view_epoch(view->order, epoch, &e);
	if (rc < 0)
		return rc;
	const struct shard_deal *deal = shard_epoch_deal(e);
	uint64_t end = shard_deal_end(deal);
	uint64_t most = shard_deal_rounds(deal); /* with tail=short, not every rank has the last one */
	uint64_t steps = deal->start + (turns < most ? turns : most) * deal->world;
	*ret_steps = steps < end ? steps : end;
	shard_epoch_put(e);
	return 0;
}

int fs_view_set_trained(struct fs_view *view, uint64_t epoch, uint64_t steps)
{
	if (epoch > FS_EPOCH_MAX || steps > shard_view_samples(view->order) + view->options.world)
		return -ERANGE;
	lock_for_scope(&view->lock);
	view->trained_set = true;
	view->trained_epoch = epoch;
	view->trained_steps = steps;
	record(view);
	return 0;
}

int fs_view_consumed(struct fs_view *view, uint64_t epoch, uint64_t steps, bool *ret_changed)
{
	struct shard_epoch *e;
	int rc = epoch > FS_EPOCH_MAX ? -ERANGE : shard_view_epoch(view->order, epoch, &e);
	if (rc < 0)
		return rc;
	const struct shard_deal *deal = shard_epoch_deal(e);
	uint64_t start = deal->start;
	uint64_t turns = steps < start ? 0 : (steps - start) / deal->world;
	if (steps >= shard_deal_end(deal)) /* tail=short: not every rank has the last turn */
		turns = shard_epoch_turns(e, view->options.rank);
	shard_epoch_put(e);
	if (steps < start)
		return -EINVAL;
	bool changed;
	{
		lock_for_scope(&view->lock);
		changed = shard_epoch_number(view->epoch) != epoch;
	}
	rc = fs_view_set_trained(view, epoch, steps);
	if (rc == 0 && changed)
		rc = switch_epoch(view, epoch, false);
	if (rc < 0)
		return rc;
	fs_view_opened_range(view, epoch, 0, turns);
	lock_for_scope(&view->lock);
	view->consumed = shard_epoch_number(view->epoch) == epoch;
	*ret_changed = changed;
	return 0;
}

void fs_view_trained(struct fs_view *view, uint64_t *ret_epoch, uint64_t *ret_steps)
{
	lock_for_scope(&view->lock);
	uint64_t epoch = shard_epoch_number(view->epoch);
	if (view->trained_set && view->trained_epoch >= epoch) {
		*ret_epoch = view->trained_epoch;
		*ret_steps = view->trained_steps;
	} else {
		*ret_epoch = epoch;
		*ret_steps = epoch_start(view, epoch);
	}
}
