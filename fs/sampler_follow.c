/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of recognised samplers: the engine reads ahead by them; fs/sampler_streams_private.h first. */
#include "fs/sampler_streams_private.h"

#include <errno.h>
#include <stdlib.h>

#include "shard/base/cleanup.h"
#include "shard/base/log.h"

enum { SILENT_MIN = 1 << 16 }; /* opens of others after which a sampler counts as ended */

/* ---- the order of a stream, as shard/view.h asks for it ---- */

struct epoch {
	const struct shard_index *index;
	const struct shard_view *shown;
	struct prefetch_sequence *sequence;
};

static int order_get(void *user, uint64_t number, void **ret_epoch, uint64_t *ret_turns)
{
	struct order *order = user;
	struct prefetch_sequence *sequence = NULL;
	{
		lock_for_scope(&order->lock);
		for (unsigned i = 0; i < 2; i++) {
			if (order->known[i] && prefetch_sequence_options_get(order->known[i])->number == number)
				sequence = prefetch_sequence_get(order->known[i]);
		}
	}
	if (!sequence)
		return -ENODATA;
	struct epoch *epoch = malloc(sizeof(*epoch));
	if (!epoch) {
		prefetch_sequence_put(sequence);
		return -ENOMEM;
	}
	*epoch = (struct epoch){ .index = order->index, .shown = order->shown, .sequence = sequence };
	*ret_epoch = epoch;
	*ret_turns = prefetch_sequence_turns(sequence);
	return 0;
}

static void order_put(void *user)
{
	struct epoch *epoch = user;
	prefetch_sequence_put(epoch->sequence);
	free(epoch);
}

static int order_turn(void *user, uint64_t turn, uint32_t *ret_sample)
{
	const struct epoch *epoch = user;
	struct shard_place place;
	uint32_t file;
	int rc = prefetch_sequence_file(epoch->sequence, turn, &file);
	if (rc == 0)
		rc = shard_index_place(epoch->index, file, &place);
	if (rc < 0)
		return rc;
	if (place.sample == SHARD_NONE)
		return -ENOENT; /* a common file: not read ahead */
	return shard_view_instead(epoch->shown, place.sample, ret_sample);
}

static int order_find(void *user, uint32_t sample, uint64_t *ret_turn)
{
	const struct epoch *epoch = user;
	uint32_t files[SHARD_SAMPLE_FILES_MAX], n = 0;
	int rc = shard_index_sample_files(epoch->index, sample, files, SHARD_SAMPLE_FILES_MAX, &n);
	for (uint32_t i = 0; rc == 0 && i < n; i++) {
		if (prefetch_sequence_find(epoch->sequence, files[i], ret_turn) == 0)
			return 0;
	}
	return rc < 0 ? rc : -ENOENT;
}

/* ---- streams ---- */

void fs_sampler_unfollow(struct fs_sampler_streams *fr, struct follow *f)
{
	if (!f->live)
		return;
	fs_sink_unfollow(fr->server->sink, f->stream);
	shard_view_free(f->view);
	prefetch_sequence_put(f->order.known[0]);
	prefetch_sequence_put(f->order.known[1]);
	pthread_mutex_destroy(&f->order.lock);
	f->live = false;
}

/* Learns which epochs of the track are known now. Returns true if that changed. */
static bool learn(struct fs_sampler_streams *fr, struct follow *f, const struct prefetch_recognised *track)
{
	struct prefetch_sequence *known[2] = { NULL, NULL };
	if (f->epoch == track->epoch && f->next_known)
		return false;
	if (prefetch_recognise_sequence(fr->r, track->id, 0, &known[0]) < 0)
		return false;
	/* With several ranks the next epoch's permutation is over another part. */
	bool same = !fr->part || fr->view->options.world == 1;
	f->next_known = same && prefetch_recognise_sequence(fr->r, track->id, 1, &known[1]) == 0;
	bool changed = f->next_known || f->epoch != track->epoch;
	f->epoch = track->epoch;
	for (unsigned i = 0; i < 2; i++) {
		struct prefetch_sequence *old;
		{
			lock_for_scope(&f->order.lock);
			old = f->order.known[i];
			f->order.known[i] = known[i];
		}
		prefetch_sequence_put(old);
	}
	return changed;
}

/* A sampler in the middle of an epoch: the engine learns what it has opened already. */
static void catch_up(struct fs_sampler_streams *fr, struct follow *f)
{
	uint64_t turns[256], turn = 0;
	size_t n;
	do {
		n = prefetch_recognise_used(fr->r, f->id, &turn, turns, 256);
		for (size_t i = 0; i < n; i++)
			fs_sink_used(f->stream, f->epoch, turns[i], true);
	} while (n == 256);
	fs_sink_flush(f->stream);
}

static int follow_new(struct fs_sampler_streams *fr, const struct prefetch_recognised *track, struct follow *ret_follow)
{
	static const struct shard_view_given given = {
		.get = order_get, .put = order_put, .turn = order_turn, .find = order_find
	};
	struct shard_view_given mine = given;
	struct follow *f = ret_follow;
	*f = (struct follow){ .id = track->id, .generation = track->generation, .epoch = UINT64_MAX };
	f->order.index = fr->server->index;
	f->order.shown = fr->view->order;
	pthread_mutex_init(&f->order.lock, NULL);
	mine.user = &f->order;
	learn(fr, f, track);
	int rc = shard_view_new_given(fr->server->index, &mine, &f->view);
	if (rc == 0) {
		struct prefetch_stream_options options = {
			.view = f->view,
			.epoch = f->epoch,
			.buffer_turns = track->buffer,
			.tells_uses = fr->part != NULL, /* of all files: step_uses() */
			.uses_epoch = fr->part ? fs_rank_files_epoch(fr->part) - f->epoch : 0,
		};
		rc = fs_sink_follow(fr->server->sink, fr->view, &options, &f->stream);
		if (rc < 0)
			shard_view_free(f->view);
	}
	if (rc < 0) {
		prefetch_sequence_put(f->order.known[0]);
		prefetch_sequence_put(f->order.known[1]);
		pthread_mutex_destroy(&f->order.lock);
		return rc;
	}
	f->live = true;
	catch_up(fr, f);
	return 0;
}

static struct follow *follow_of(struct fs_sampler_streams *fr, uint32_t id)
{
	for (unsigned i = 0; i < PREFETCH_TRACKS_MAX; i++) {
		if (fr->follows[i].live && fr->follows[i].id == id)
			return &fr->follows[i];
	}
	return NULL;
}

void fs_sampler_explained(void *user, uint32_t id, uint32_t generation, uint64_t epoch, uint64_t turn)
{
	struct fs_sampler_streams *fr = user;
	struct follow *f = follow_of(fr, id);
	if (f && f->generation == generation)
		fs_sink_used(f->stream, epoch, turn, false);
}

static bool silent(const struct prefetch_recognised *track)
{
	return track->since > SILENT_MIN && track->since > track->turns;
}

/* The order object lies in the follow, which therefore stays where it is while it is live. */
static void follow_track(struct fs_sampler_streams *fr, const struct prefetch_recognised *track)
{
	struct follow *f = follow_of(fr, track->id);
	if (f && f->generation == track->generation && !silent(track)) {
		if (learn(fr, f, track))
			fs_sink_refresh(f->stream);
		if (track->buffer > 0)
			fs_sink_buffer(f->stream, track->buffer);
		fs_sink_flush(f->stream);
		return;
	}
	if (f)
		fs_sampler_unfollow(fr, f);
	if (silent(track))
		return;
	for (unsigned i = 0; i < PREFETCH_TRACKS_MAX; i++) {
		if (fr->follows[i].live)
			continue;
		int rc = follow_new(fr, track, &fr->follows[i]);
		if (rc < 0 && rc != -ENODATA && !fr->told_not_followed)
			log_warning("what was recognised is not read ahead: %s", base_err_str(rc));
		fr->told_not_followed = rc < 0 && rc != -ENODATA;
		return;
	}
}

void fs_sampler_follow_all(struct fs_sampler_streams *fr)
{
	struct prefetch_recognised track;
	unsigned live = 0;
	for (unsigned i = 0; i < PREFETCH_TRACKS_MAX; i++) {
		struct follow *f = &fr->follows[i];
		bool there = false;
		for (unsigned k = 0; f->live && prefetch_recognise_get(fr->r, k, &track) == 0; k++)
			there |= track.id == f->id;
		if (f->live && !there)
			fs_sampler_unfollow(fr, f);
	}
	for (unsigned k = 0; prefetch_recognise_get(fr->r, k, &track) == 0; k++) {
		if (track.ready)
			follow_track(fr, &track);
	}
	for (unsigned i = 0; i < PREFETCH_TRACKS_MAX; i++)
		live += fr->follows[i].live;
	fs_sink_own(fr->server->sink, fr->view, live == 0 && fs_announced_orders_live(fr->orders) == 0);
}
