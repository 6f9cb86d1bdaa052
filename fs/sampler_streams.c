/* SPDX-License-Identifier: Apache-2.0 */
/* The recognise thread: takes in opens, searches, and makes streams of what is recognised; fs/sampler_streams.h
 * first. */
#include "fs/sampler_streams.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fs/announced_orders.h"
#include "fs/order_numbers.h"
#include "fs/server.h"
#include "fs/supervise/handover_memory.h"
#include "fs/supervise/priority.h"
#include "fs/rank_files.h"
#include "fs/read_ahead_note.h"
#include "fs/search_rest.h"
#include "fs/sink.h"
#include "fs/trainer_uses.h"
#include "fs/watch.h"
#include "prefetch/sampler/recognise.h"
#include "shard/base/cleanup.h"
#include "shard/base/log.h"

#define NO_READER_NS UINT64_C(3600000000000) /* between two looks of a rank that nobody reads; a reader wakes it */

enum {
	STEP_NS = 2000000,   /* processor time of a search between two looks at the queue */
	USES_NS = 2000000,   /* of what the tier is told, and the pause after it */
	LATER_NS = 20000000, /* pause until the search may go on */
	LIKELY_SEEDS = 10000,
	SILENT_MIN = 1 << 16, /* opens of others after which a sampler counts as ended */
	SETTLED_OPENS = 4096, /* opens explained by one sampler in a flat view, after which the search ends */
	TEXT_MAX = 512,
	OWN_EPOCHS = 32, /* epochs of ddpfs's own order that are compared with the opens */
};

/* The order of a stream: the epochs of a track that are known. */
struct order {
	const struct shard_index *index;
	const struct shard_view *shown;     /* the view whose on_bad says what a file's name shows */
	pthread_mutex_t lock;               /* a leaf */
	struct prefetch_sequence *known[2]; /* this epoch's and the next one's, or NULL */
};

struct follow {
	bool live;
	uint32_t id, generation;
	uint64_t epoch;
	bool next_known;
	struct order order;
	struct shard_view *view;
	struct fs_sink_stream *stream;
};

struct shown {
	struct prefetch_recognised track;
	char text[TEXT_MAX];
};

struct fs_sampler_streams {
	struct fs_server *server;
	struct fs_view *view;
	struct fs_announced_orders *orders;
	struct fs_order_numbers *numbers; /* main's */
	struct fs_trainer_uses *uses;     /* NULL: there is no tier, or it is told otherwise */
	struct prefetch_recognise *r;     /* the recognise thread's own, from here ... */
	struct follow follows[PREFETCH_TRACKS_MAX];
	struct { /* what the log says already, by track */
		uint32_t id;
		bool repeated, twice;
		uint64_t seed;
		enum prefetch_sampler sampler;
		bool known;
	} told[PREFETCH_TRACKS_MAX * 2];
	struct fs_rank_files *part;     /* one rank's view: its files; NULL: every file */
	struct fs_rank_files *coming;   /* tree: those of the epoch that listings show now, or NULL */
	struct prefetch_scanned before; /* what earlier recognitions scanned */
	bool leads;                     /* what is recognised is read ahead; false: it is only told */
	uint64_t manual, word;          /* where a RandomSampler's generator was seen last; word 0: nowhere */
	_Atomic bool part_made;         /* flat: `part` is constant from then on */
	_Atomic bool settled;           /* flat: a sampler reads the whole part, so the search has ended */
	bool own_begun;                 /* several ranks: the view's own stream was begun for its reader */
	struct prefetch_saved_track saved[PREFETCH_TRACKS_MAX]; /* the last that was left to a successor */
	unsigned n_saved;
	bool told_not_followed; /* the last try to follow a track failed, and the log says so */
	bool restored;          /* what a predecessor left was taken over */
	uint64_t opened_ns;     /* time of the last opens */
	struct fs_search_rest rest;
	uint32_t batch[FS_SAMPLER_STREAMS_BATCH], explained[FS_SAMPLER_STREAMS_BATCH]; /* ... to here */
	pthread_t thread;

	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t cond;
	bool stop;
	bool woken;  /* something was announced, or a reader of the rank came or went */
	bool forget; /* the reader of the rank has gone: everything begins anew */
	bool begun;  /* what a predecessor left, and what the first reader of the rank reads, is read ahead */
	uint32_t queue[FS_SAMPLER_STREAMS_QUEUE];
	uint64_t queued, taken, published; /* all since the start; published <= taken <= queued */
	struct shown shown[PREFETCH_TRACKS_MAX];
	unsigned n_shown;
	bool sharded_twice; /* since the start: the list that showed it may be another epoch's */
	struct prefetch_scanned scanned;
	struct prefetch_searched searched;
	enum fs_search search;
	char reason[FS_READ_AHEAD_REASON_MAX];   /* why a trainer announces nothing, or "" */
	char reason_list[FS_HANDOVER_LIST_NAME]; /* the list that it would have announced */
};

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

static void follow_done(struct fs_sampler_streams *fr, struct follow *f)
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

static void explained(void *user, uint32_t id, uint32_t generation, uint64_t epoch, uint64_t turn)
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
		follow_done(fr, f);
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

/* ---- what is said ---- */

static void tell(struct fs_sampler_streams *fr, const struct shown *s)
{
	const struct prefetch_recognised *t = &s->track;
	unsigned i = t->id % (sizeof(fr->told) / sizeof(fr->told[0]));
	if (fr->told[i].id != t->id || !fr->told[i].known || (fr->part && fr->told[i].sampler != t->sampler)) {
		memset(&fr->told[i], 0, sizeof(fr->told[i]));
		fr->told[i].id = t->id;
		fr->told[i].known = true;
		fr->told[i].sampler = t->sampler;
		if (!t->shards_twice)
			log_info("recognised after %" PRIu64 " opens: %s; %s", t->after, s->text, t->list);
	}
	if (t->repeated && !fr->told[i].repeated) {
		fr->told[i].repeated = true;
		log_warning("the trainer reads the same permutation again (%s): every epoch has the same order; call "
		            "sampler.set_epoch(epoch) at the start of each epoch",
		        s->text);
	}
	if (t->shards_twice && !fr->told[i].twice) {
		fr->told[i].twice = true;
		log_warning("the trainer's sampler shards this rank's part once more (rank %u of %u of it): the rest "
		            "of the "
		            "part is never read; mount with layout=tree,view=all, or let the trainer read all that it "
		            "lists",
		        t->first, t->world);
	}
}

/* busy: the thread is still looking at what it took. */
static void publish(struct fs_sampler_streams *fr, bool busy)
{
	struct shown shown[PREFETCH_TRACKS_MAX];
	struct prefetch_scanned scanned;
	struct prefetch_searched searched;
	unsigned n = 0;
	prefetch_recognise_scanned(fr->r, &scanned);
	prefetch_recognise_searched(fr->r, &searched);
	searched.cpu_ns += fs_trainer_uses_search_ns(fr->uses);
	while (n < PREFETCH_TRACKS_MAX && prefetch_recognise_get(fr->r, n, &shown[n].track) == 0) {
		prefetch_recognise_describe(&shown[n].track, shown[n].text, sizeof(shown[n].text));
		if (shown[n].track.ready && !shown[n].track.unverified)
			tell(fr, &shown[n]);
		n++;
	}
	lock_for_scope(&fr->lock);
	memcpy(fr->shown, shown, n * sizeof(shown[0]));
	fr->n_shown = n;
	for (unsigned i = 0; i < n; i++)
		if (shown[i].track.ready &&
		        (shown[i].track.shards_twice || shown[i].track.opens > shown[i].track.turns / 2))
			fr->sharded_twice = shown[i].track.shards_twice;
	fr->scanned = scanned;
	fr->searched = searched;
	fr->search = fr->rest.search;
	if (!busy) {
		fr->published = fr->taken;
		fr->begun |= !fr->woken; /* else somebody came meanwhile */
	}
}

static void set_order(json_t *object, const char *source, const char *note)
{
	json_object_set_new(object, "order_source", json_string(source));
	json_object_set_new(object, "order_note", json_string(note));
}

/* Says whether it is the order of the mount, and if not, what helps. as_listed: a rank's files are read as they are
 * listed. */
static void say_own_or_unknown(const struct fs_server *server, const struct fs_view *view, bool as_listed,
        const struct fs_read_ahead_counts *counts, json_t *object)
{
	char note[FS_READ_AHEAD_NOTE_MAX];
	bool own = as_listed || (fs_view_has_reader(view) && fs_sink_own_followed(server->sink, view));
	if (own)
		snprintf(note, sizeof(note), "own: the order of this mount");
	else
		fs_unknown_order_note(counts, note);
	set_order(object, own ? "own" : "unknown", note);
}

/* Returns whether every recognised sampler reads this rank's part as it is listed. fr->lock is held. */
static bool reads_as_listed(const struct fs_sampler_streams *fr)
{
	bool any = false;
	for (unsigned i = 0; i < fr->n_shown; i++) {
		const struct prefetch_recognised *t = &fr->shown[i].track;
		if (!t->ready || t->unverified)
			continue;
		if (!t->as_given)
			return false;
		any = true;
	}
	return any;
}

/* Says who told the order, and what helps if nobody did. recognised: what was recognised, or "". */
static void say_order(struct fs_sampler_streams *fr, const char *recognised, const struct fs_read_ahead_counts *counts,
        json_t *object)
{
	struct fs_announced_orders_counts announced;
	char note[PREFETCH_TRACKS_MAX * TEXT_MAX + 16], what[256];
	const char *source;
	bool as_listed;
	{
		lock_for_scope(&fr->lock);
		as_listed = reads_as_listed(fr);
	}
	fs_announced_orders_count(fr->orders, &announced);
	if (fs_announced_orders_live(fr->orders) > 0) {
		source = "announced";
		fs_announced_orders_describe(fr->orders, what, sizeof(what));
		snprintf(note, sizeof(note), "announced: %s", what);
	} else if (*recognised && !as_listed) {
		source = "recognised";
		snprintf(note, sizeof(note), "recognised: %s", recognised);
	} else if (announced.ended && !as_listed) {
		source = "announced";
		snprintf(note, sizeof(note), "announced: the last list was read to its end; %s",
		        counts->watched ? "what a DataLoader of PyTorch draws next is announced when it begins"
		                        : "announce the next epoch's list with `ddpfs ctl MNT follow LIST` or "
		                          "ddpfs.Mount(MNT).follow(...)");
	} else {
		say_own_or_unknown(fr->server, fr->view, as_listed, counts, object);
		return;
	}
	set_order(object, source, note);
}

/* Adds the sentences on the order, and on why opens are not read ahead. `object` has the counters, if they are
 * shown. */
static void say_why(
        struct fs_sampler_streams *fr, const char *recognised, struct fs_read_ahead_counts *counts, json_t *object)
{
	char note[FS_READ_AHEAD_NOTE_MAX], reason[FS_READ_AHEAD_REASON_MAX];
	struct fs_announced_orders_counts announced;
	fs_announced_orders_count(fr->orders, &announced);
	counts->opens = (uint64_t)json_integer_value(json_object_get(object, "opens"));
	counts->misses = (uint64_t)json_integer_value(json_object_get(object, "misses"));
	{
		lock_for_scope(&fr->lock);
		memcpy(reason, fr->reason, sizeof(reason));
	}
	counts->reason = *reason ? reason : NULL;
	counts->heard = announced.explained > 0 || announced.dropped > 0;
	counts->announced = announced.ended || fs_announced_orders_live(fr->orders) > 0;
	counts->dropped = announced.dropped;
	if (fr->view->all && fr->view->layout == FS_LAYOUT_TREE && fs_read_ahead_note(counts, note))
		json_object_set_new(object, "read_ahead_note", json_string(note));
	say_order(fr, recognised, counts, object);
}

void fs_sampler_streams_announced(struct fs_sampler_streams *fr, struct fs_announced_orders_counts *ret_counts)
{
	fs_announced_orders_count(fr ? fr->orders : NULL, ret_counts);
}

void fs_sampler_streams_queue(struct fs_sampler_streams *fr, uint64_t *ret_queued, uint64_t *ret_behind)
{
	*ret_queued = *ret_behind = 0;
	if (!fr)
		return;
	lock_for_scope(&fr->lock);
	*ret_queued = fr->queued - fr->published;
	*ret_behind = fr->queued - fr->taken;
}

bool fs_sampler_streams_begun(struct fs_sampler_streams *fr)
{
	if (!fr)
		return true;
	lock_for_scope(&fr->lock);
	return fr->begun;
}

bool fs_sampler_streams_progress(
        struct fs_sampler_streams *fr, uint64_t *ret_epoch, uint64_t *ret_turn, uint64_t *ret_turns)
{
	const struct prefetch_recognised *best = NULL;
	if (!fr)
		return false;
	lock_for_scope(&fr->lock);
	for (unsigned i = 0; i < fr->n_shown; i++) {
		const struct prefetch_recognised *t = &fr->shown[i].track;
		if (t->ready && !t->unverified && (!best || t->opens > best->opens))
			best = t;
	}
	if (!best)
		return false;
	*ret_epoch = best->epoch;
	*ret_turn = best->turn;
	*ret_turns = best->turns;
	return true;
}

void fs_sampler_streams_stats(struct fs_server *server, const struct fs_view *view, json_t *object)
{
	struct fs_sampler_streams *fr = server->samplers[view->number];
	char all[PREFETCH_TRACKS_MAX * TEXT_MAX] = "", note[256] = "";
	json_t *samplers = json_array();
	struct prefetch_scanned scanned = { 0 };
	struct prefetch_searched searched = { 0 };
	uint64_t behind = 0;
	bool rests = false;
	if (fr) {
		lock_for_scope(&fr->lock);
		searched = fr->searched;
		rests = fr->search == FS_SEARCH_RESTS;
		behind = fr->queued - fr->taken;
		scanned = fr->scanned;
		for (unsigned i = 0; i < fr->n_shown; i++) {
			const struct prefetch_recognised *t = &fr->shown[i].track;
			size_t at = strlen(all);
			if (!t->ready || t->unverified)
				continue;
			snprintf(all + at, sizeof(all) - at, "%s%s", at ? "; " : "", fr->shown[i].text);
			if (t->repeated)
				snprintf(note, sizeof(note),
				        "the same permutation came %u times again: call sampler.set_epoch(epoch)",
				        t->repeated);
			json_array_append_new(samplers,
			        json_pack("{ss ss sI sI sI sI sI sI sI sI sI sI}", "text", fr->shown[i].text, "list",
			                t->list, "seed", (json_int_t)t->seed, "world", (json_int_t)t->world, "first",
			                (json_int_t)t->first, "ranks", (json_int_t)t->ranks, "epoch",
			                (json_int_t)t->epoch, "turn", (json_int_t)t->turn, "turns",
			                (json_int_t)t->turns, "opens", (json_int_t)t->opens, "repeated",
			                (json_int_t)t->repeated, "after", (json_int_t)t->after));
		}
		if (fr->sharded_twice)
			snprintf(note, sizeof(note),
			        "the sampler shards this rank's part once more: mount with view=all");
	}
	json_object_set_new(object, "recognised", json_string(*all ? all : "nothing"));
	json_object_set_new(object, "recognise_unexplained", json_integer((json_int_t)searched.unexplained));
	json_object_set_new(object, "recognise_looks", json_integer((json_int_t)searched.looks));
	json_object_set_new(object, "recognise_seeds", json_integer((json_int_t)searched.seeds));
	json_object_set_new(object, "recognise_wrong", json_integer((json_int_t)searched.wrong));
	json_object_set_new(object, "recognise_search_ns", json_integer((json_int_t)searched.cpu_ns));
	json_object_set_new(object, "recognise_rests", json_boolean(rests));
	if (*note)
		json_object_set_new(object, "recognised_note", json_string(note));
	json_object_set_new(object, "samplers", samplers);
	fs_announced_orders_stats(fr ? fr->orders : NULL, object);
	struct fs_read_ahead_counts counts = {
		.behind = behind,
		.recognised = *all,
		.rests = rests,
		.unexplained = searched.unexplained,
	};
	counts.watched = server->options.loaders_watched;
	if (fr)
		say_why(fr, all, &counts, object);
	else /* the view had no reader yet, or the server has just begun */
		say_own_or_unknown(server, view, false, &counts, object);
	if (fr && fr->server->options.scan_threads > 0)
		json_object_set_new(object, "seed_search",
		        json_pack("{sb sI sf sI sI}", "running", scanned.running, "tried", (json_int_t)scanned.tried,
		                "cpu_s", (double)scanned.cpu_ns / 1e9, "begun", (json_int_t)scanned.begun, "found",
		                (json_int_t)scanned.found));
}

/* ---- ddpfs's own orders, as `.ddpfs/epoch/N.list` gives them ---- */

static int own_at(void *user, uint64_t number, uint64_t position, uint32_t *ret_file)
{
	struct shard_view *view = user;
	struct shard_epoch *epoch;
	uint32_t sample;
	int rc = shard_view_epoch(view, number, &epoch);
	if (rc < 0)
		return rc;
	rc = shard_epoch_step_sample(epoch, position, &sample);
	shard_epoch_put(epoch);
	return rc < 0 ? rc : shard_index_sample_first(shard_view_index(view), sample, ret_file);
}

static int own_find(void *user, uint64_t number, uint32_t file, uint64_t *ret_position)
{
	struct shard_view *view = user;
	struct shard_epoch *epoch;
	struct shard_place place;
	int rc = shard_index_place(shard_view_index(view), file, &place);
	if (rc < 0)
		return rc;
	if (place.sample == SHARD_NONE)
		return -ENOENT;
	rc = shard_view_epoch(view, number, &epoch);
	if (rc < 0)
		return rc;
	rc = shard_epoch_find(epoch, place.sample, ret_position, NULL, NULL);
	shard_epoch_put(epoch);
	return rc;
}

/* ---- the thread ---- */

static void sync_streams(struct fs_sampler_streams *fr)
{
	struct prefetch_recognised track;
	unsigned live = 0;
	for (unsigned i = 0; i < PREFETCH_TRACKS_MAX; i++) {
		struct follow *f = &fr->follows[i];
		bool there = false;
		for (unsigned k = 0; f->live && prefetch_recognise_get(fr->r, k, &track) == 0; k++)
			there |= track.id == f->id;
		if (f->live && !there)
			follow_done(fr, f);
	}
	for (unsigned k = 0; prefetch_recognise_get(fr->r, k, &track) == 0; k++) {
		if (track.ready)
			follow_track(fr, &track);
	}
	for (unsigned i = 0; i < PREFETCH_TRACKS_MAX; i++)
		live += fr->follows[i].live;
	fs_sink_own(fr->server->sink, fr->view, live == 0 && fs_announced_orders_live(fr->orders) == 0);
}

/* A flat view: when one sampler reads the whole part, it is not sharded twice, and the search can end. */
static void settle(struct fs_sampler_streams *fr)
{
	struct prefetch_recognised track;
	for (unsigned k = 0; prefetch_recognise_get(fr->r, k, &track) == 0; k++) {
		if (track.ready && !track.shards_twice && track.opens >= SETTLED_OPENS)
			atomic_store(&fr->settled, true);
	}
}

/* Takes what is queued, or waits up to `wait_ns` for it. *ret_forget: what was taken before is forgotten. Returns how
 * many opens, or SIZE_MAX if the thread must end. */
static size_t take(struct fs_sampler_streams *fr, uint64_t wait_ns, bool *ret_forget)
{
	size_t n = 0;
	int rc = 0;
	struct timespec until = base_until(wait_ns);
	lock_for_scope(&fr->lock);
	while (!fr->stop && !fr->woken && wait_ns > 0 && fr->queued == fr->taken && rc == 0)
		rc = pthread_cond_timedwait(&fr->cond, &fr->lock, &until);
	if (fr->queued - fr->taken > FS_SAMPLER_STREAMS_QUEUE)
		fr->taken = fr->queued - FS_SAMPLER_STREAMS_QUEUE;
	while (n < FS_SAMPLER_STREAMS_BATCH && fr->taken < fr->queued)
		fr->batch[n++] = fr->queue[fr->taken++ % FS_SAMPLER_STREAMS_QUEUE];
	bool stop = fr->stop;
	*ret_forget = fr->forget;
	fr->woken = fr->forget = false;
	return stop ? SIZE_MAX : n;
}

/* All files: compare every order, torch's in any list. */
static void plan_all(
        struct fs_sampler_streams *fr, struct prefetch_own_order *own, struct prefetch_recognise_options *options)
{
	*own = (struct prefetch_own_order){
		.user = fr->view->order,
		.at = own_at,
		.find = own_find,
		.size = shard_view_samples(fr->view->order),
		.several = shard_index_info(fr->server->index)->grouped,
	};
	/* order=torch is torch's order, whose seeds are tried anyway, and it costs O(n) an epoch. */
	enum shard_order_mode order = shard_view_options_get(fr->view->order)->order;
	if (order == SHARD_ORDER_TORCH || own->size == 0)
		return;
	options->own = own;
	options->own_epochs = order == SHARD_ORDER_NONE ? 1 : OWN_EPOCHS;
	options->own_last = order == SHARD_ORDER_NONE;
	options->own_first = shard_view_options_get(fr->view->order)->epoch;
}

/* One rank's part, in the epoch that the trainer is in: `coming`, if that is made. */
static int plan_part(struct fs_sampler_streams *fr, struct prefetch_list_given lists[FS_RANK_FILES_LISTS],
        struct prefetch_recognise_options *options)
{
	bool tree = fr->view->layout == FS_LAYOUT_TREE;
	int rc = 0;
	if (fr->coming)
		fr->part = fr->coming;
	else
		rc = fs_rank_files_new(fr->server->index, fr->view, &fr->part);
	fr->coming = NULL;
	if (rc < 0)
		return rc;
	fr->leads = tree;
	options->given = lists;
	options->n_given = fs_rank_files_lists(fr->part, lists);
	options->seed_max = LIKELY_SEEDS;
	options->popular_words = tree ? 0 : 1;
	options->seen_manual = fr->manual;
	options->seen_word = fr->word;
	return 0;
}

/* Leaves what is recognised to the successor. */
static void save(struct fs_sampler_streams *fr)
{
	struct prefetch_saved_track saved[PREFETCH_TRACKS_MAX];
	if (!fr->leads || fr->part)
		return;
	unsigned n = prefetch_recognise_save(fr->r, saved);
	if (n == fr->n_saved && memcmp(saved, fr->saved, n * sizeof(saved[0])) == 0)
		return;
	_Static_assert(sizeof(saved) <= FS_HANDOVER_ORDERS_BYTES, "all tracks fit");
	struct fs_handover_view place = fs_handover_view(fr->server->handover, fr->view->number);
	fs_handover_store_orders(&place, saved, (uint32_t)(n * sizeof(saved[0])));
	memcpy(fr->saved, saved, n * sizeof(saved[0]));
	fr->n_saved = n;
}

/* Takes over what a predecessor left, which may be anything. */
static void restore(struct fs_sampler_streams *fr)
{
	struct prefetch_saved_track saved[PREFETCH_TRACKS_MAX];
	struct fs_handover_orders orders;
	struct fs_handover_view place = fs_handover_view(fr->server->handover, fr->view->number);
	if (fr->restored || !fr->leads || fr->part || !fr->server->successor ||
	        !fs_handover_load_orders(&place, &orders))
		return;
	fr->restored = true;
	unsigned n = orders.len / sizeof(saved[0]);
	if (n > PREFETCH_TRACKS_MAX)
		n = PREFETCH_TRACKS_MAX;
	memcpy(saved, orders.bytes, n * sizeof(saved[0]));
	int rc = prefetch_recognise_restore(fr->r, saved, n);
	if (rc < 0)
		log_warning("what was recognised before is looked for anew: %s", base_err_str(rc));
}

static int begin(struct fs_sampler_streams *fr)
{
	struct prefetch_list_given lists[FS_RANK_FILES_LISTS];
	struct prefetch_own_order own;
	struct prefetch_recognise_options options = {
		.index = fr->server->index,
		.shown = fr->view->order,
		.explained = explained,
		.user = fr,
		.scanned = fr->before,
		.search_burst_ns = PREFETCH_SEARCH_BURST_NS,
		.search_permille = PREFETCH_SEARCH_PERMILLE,
		.search_thread = true,
	};
	int rc = 0;
	fr->rest = (struct fs_search_rest){ 0 };
	fr->leads = fr->view->all && fr->view->layout == FS_LAYOUT_TREE;
	if (fr->leads)
		plan_all(fr, &own, &options);
	else
		rc = plan_part(fr, lists, &options);
	options.scan_threads = fr->leads ? fr->server->options.scan_threads : 0;
	if (rc == 0)
		rc = prefetch_recognise_new(&options, &fr->r);
	if (rc < 0) {
		fs_rank_files_free(fr->part);
		fr->part = NULL;
	} else if (fr->view->layout == FS_LAYOUT_FLAT) {
		atomic_store(&fr->part_made, true);
	}
	if (rc == 0)
		restore(fr);
	return rc;
}

static void end(struct fs_sampler_streams *fr)
{
	struct prefetch_recognised track;
	for (unsigned k = 0; fr->r && prefetch_recognise_get(fr->r, k, &track) == 0; k++) {
		if (track.sampler == PREFETCH_SAMPLER_RANDOM) {
			fr->manual = track.seed;
			fr->word = track.word;
		}
	}
	if (fr->r)
		prefetch_recognise_scanned(fr->r, &fr->before);
	for (unsigned i = 0; i < PREFETCH_TRACKS_MAX; i++)
		follow_done(fr, &fr->follows[i]);
	prefetch_recognise_free(fr->r);
	fr->r = NULL;
}

/* Makes the files of the next epoch in a tree of one rank. The trainer decides when it goes there: somebody's listing
 * may have moved the view while the trainer still opens files of the epoch before. */
static void look_ahead(struct fs_sampler_streams *fr)
{
	struct fs_view_progress progress;
	if (!fr->part || fr->view->layout != FS_LAYOUT_TREE)
		return;
	fs_view_progress(fr->view, &progress);
	if (progress.epoch == fs_rank_files_epoch(fr->coming ? fr->coming : fr->part))
		return;
	fs_rank_files_free(fr->coming);
	fr->coming = NULL;
	if (fs_rank_files_new(fr->server->index, fr->view, &fr->coming) < 0)
		fr->coming = NULL; /* nothing is dealt, or no memory: keep the part that there is */
}

/* Counts the opens that came before the trainer went to the coming part. */
static size_t still_here(const struct fs_sampler_streams *fr, size_t n)
{
	for (size_t i = 0; fr->coming && i < n; i++) {
		if (fs_rank_files_has(fr->coming, fr->batch[i]) && !fs_rank_files_has(fr->part, fr->batch[i]))
			return i;
	}
	return n;
}

static void free_part(struct fs_sampler_streams *fr)
{
	atomic_store(&fr->part_made, false);
	fs_watch_drain(fr->server->watch); /* who looks at `part` has the watcher's lock */
	fs_rank_files_free(fr->part);
	fr->part = NULL;
}

static int begin_again(struct fs_sampler_streams *fr)
{
	end(fr);
	free_part(fr);
	fs_sink_own(fr->server->sink, fr->view, true);
	return begin(fr);
}

/* Returns false while the search cannot run: nothing is dealt to this rank, nobody reads it, or there is no memory. */
static bool can_look(struct fs_sampler_streams *fr, bool *ret_failed)
{
	int rc = fr->r ? 0 : fs_view_has_reader(fr->view) ? begin(fr) : -ENODATA;
	if (rc == 0)
		return true;
	if (rc != -ENODATA && !*ret_failed)
		log_warning("the trainer's sampler cannot be looked for: %s", base_err_str(rc));
	*ret_failed |= rc != -ENODATA;
	lock_for_scope(&fr->lock);
	fr->published = fr->taken;
	fr->begun |= !fr->woken;
	fr->n_shown = 0;
	return false;
}

/* Tells the recogniser, once, that opens have paused. */
static void pause_if_silent(struct fs_sampler_streams *fr, bool *paused)
{
	if (*paused || base_now_ns() - fr->opened_ns < FS_SAMPLER_STREAMS_PAUSE_S * UINT64_C(1000000000))
		return;
	prefetch_recognise_pause(fr->r);
	fs_trainer_uses_pause(fr->uses);
	*paused = true;
}

/* Returns false if the search could not begin anew; the next opens try again. */
static bool take_in(struct fs_sampler_streams *fr, size_t n)
{
	look_ahead(fr);
	size_t old = still_here(fr, n);
	prefetch_recognise_opened(fr->r, fr->batch, old);
	if (old < n && begin_again(fr) < 0)
		return false;
	prefetch_recognise_opened(fr->r, fr->batch + old, n - old);
	return true;
}

/* Takes in opens for the announced orders. Returns how many of the batch no order explains; they are its first ones. */
static size_t announced(struct fs_sampler_streams *fr, size_t n)
{
	struct prefetch_recognised track;
	size_t left = fs_announced_orders_opened(fr->orders, fr->batch, n, fr->explained);
	bool confirmed = fs_announced_orders_sync(fr->orders, base_now_ns());
	/* What was recognised before would get no more opens, and its stream would keep its room. */
	if (confirmed && fr->r && prefetch_recognise_get(fr->r, 0, &track) == 0)
		begin_again(fr);
	fs_trainer_uses_opened(fr->uses, fr->explained, n - left, left);
	return left;
}

/* Without memory, the next batch of opens tries again. */
static void begin_own(struct fs_sampler_streams *fr)
{
	if (fr->server->options.n_ranks > 0 && fs_view_has_reader(fr->view) && !fr->own_begun)
		fr->own_begun = fs_sink_own(fr->server->sink, fr->view, true) == 0;
}

/* Takes in that so many files were opened, of which so many no announced order has. Returns whether the search rests.
 * In the view of one rank it does not rest, because it also finds who shards twice. An order that is known already is
 * followed on. */
static bool rest(struct fs_sampler_streams *fr, size_t opens, size_t unexplained)
{
	struct prefetch_recognised track;
	const struct fs_search_news news = {
		.opens = opens,
		.unexplained = unexplained,
		.reads = prefetch_reads(fr->server->prefetch),
		.in_store = shard_index_store(fr->server->index) != NULL,
	};
	bool rested = fr->rest.search == FS_SEARCH_RESTS;
	bool may = !fr->part && prefetch_recognise_get(fr->r, 0, &track) < 0;
	bool rests = fs_search_rest_opened(&fr->rest, &news, may) == FS_SEARCH_RESTS;
	if (rests && !rested)
		prefetch_recognise_rest(fr->r);
	else if (rested && !rests)
		prefetch_recognise_go_on(fr->r);
	return rests;
}

/* Searches for a while. Returns as prefetch_recognise_step. */
static int search(struct fs_sampler_streams *fr, size_t opens, size_t unexplained)
{
	if (rest(fr, opens, unexplained))
		return 0;
	return opens == FS_SAMPLER_STREAMS_BATCH ? 1 : prefetch_recognise_step(fr->r, STEP_NS);
}

/* Works for what the tier is told: of one of the orders. Returns in how many ns it goes on, at most wait_ns. */
static uint64_t step_uses(struct fs_sampler_streams *fr, uint64_t wait_ns)
{
	int rc = fs_trainer_uses_step(fr->uses, fr->r, USES_NS);
	uint64_t next_ns = rc == PREFETCH_RECOGNISE_LATER ? LATER_NS : rc > 0 ? USES_NS : wait_ns;
	for (unsigned i = 0; i < PREFETCH_TRACKS_MAX; i++) {
		const struct follow *f = &fr->follows[i];
		if (f->live)
			fs_sink_tell_uses(f->stream, fs_trainer_uses_tells(fr->uses, fr->r, f->id, f->generation));
	}
	return next_ns < wait_ns ? next_ns : wait_ns;
}

/* Makes everything as it was before the first reader of the rank. */
static void forget(struct fs_sampler_streams *fr)
{
	end(fr);
	free_part(fr);
	fs_rank_files_free(fr->coming);
	fr->coming = NULL;
	fr->manual = fr->word = 0;
	memset(fr->told, 0, sizeof(fr->told));
	atomic_store(&fr->settled, false);
	fs_sink_own(fr->server->sink, fr->view, false);
	fr->own_begun = false;
	lock_for_scope(&fr->lock);
	fr->n_shown = 0;
	fr->sharded_twice = false;
}

/* The thread's loop: it takes in everything that is queued before it searches, and updates the streams after each
 * batch. */
static void *recognise_run(void *arg)
{
	struct fs_sampler_streams *fr = arg;
	bool failed = false, paused = true, anew = false;
	const uint64_t pause_ns = FS_SAMPLER_STREAMS_PAUSE_S * UINT64_C(1000000000);
	uint64_t wait_ns = 0; /* 0 at first, so that what was restored is ready before the first opens */
	size_t n;
	pthread_setname_np(pthread_self(), "recognise");
	fs_priority_usual();   /* to look for an order takes much time */
	can_look(fr, &failed); /* before the first opens, because opens of a flat view are not even queued until then */
	while ((n = take(fr, wait_ns, &anew)) != SIZE_MAX) {
		if (anew)
			forget(fr);
		wait_ns = fs_view_has_reader(fr->view) ? pause_ns : NO_READER_NS;
		begin_own(fr);
		size_t left = announced(fr, n);
		if (!can_look(fr, &failed))
			continue;
		if (n > 0) {
			fr->opened_ns = base_now_ns();
			paused = false;
		} else {
			pause_if_silent(fr, &paused);
		}
		if (!take_in(fr, left))
			continue;
		int rc = search(fr, n, left);
		if (rc < 0 && !failed)
			log_warning("the trainer's sampler cannot be looked for: %s", base_err_str(rc));
		failed |= rc < 0;
		if (rc > 0)
			wait_ns = rc == PREFETCH_RECOGNISE_LATER ? LATER_NS : 0;
		if (fr->leads)
			sync_streams(fr);
		else if (fr->view->layout == FS_LAYOUT_FLAT)
			settle(fr);
		if (fr->uses)
			wait_ns = step_uses(fr, wait_ns);
		save(fr);
		/* When the budget is spent, the rest of the search goes on slowly, as at idle priority. */
		publish(fr, rc > 0 && rc != PREFETCH_RECOGNISE_LATER);
	}
	fs_trainer_uses_free(fr->uses); /* the tier ends before this object */
	fr->uses = NULL;
	end(fr);
	fs_announced_orders_end(fr->orders);
	return NULL;
}

/* Main: something was announced. */
static void wake(void *arg)
{
	struct fs_sampler_streams *fr = arg;
	lock_for_scope(&fr->lock);
	fr->woken = true;
	pthread_cond_signal(&fr->cond);
}

/* Finds the file of a turn of a flat view: of the part that is compared, or (if there are announced orders) of any
 * epoch. */
static int file_of_turn(struct fs_sampler_streams *fr, uint64_t number, uint64_t turn, uint32_t *ret_file)
{
	struct shard_epoch *epoch;
	uint32_t sample;
	if (atomic_load(&fr->part_made) && !atomic_load(&fr->settled) && number == fs_rank_files_epoch(fr->part) &&
	        fs_rank_files_file(fr->part, turn, ret_file) == 0)
		return 0;
	if (fs_announced_orders_live(fr->orders) == 0)
		return -ENOENT;
	int rc = shard_view_epoch(fr->view->order, number, &epoch);
	if (rc < 0)
		return rc;
	rc = shard_epoch_turn(epoch, fr->view->options.rank, turn, &sample, NULL);
	shard_epoch_put(epoch);
	return rc < 0 ? rc : shard_index_sample_first(fr->server->index, sample, ret_file);
}

void fs_sampler_streams_opened(struct fs_sampler_streams *fr, uint32_t file, uint64_t epoch, uint64_t turn)
{
	if (file == SHARD_NONE && file_of_turn(fr, epoch, turn, &file) < 0)
		return;
	lock_for_scope(&fr->lock);
	fr->queue[fr->queued++ % FS_SAMPLER_STREAMS_QUEUE] = file;
}

size_t fs_sampler_streams_latest(struct fs_sampler_streams *fr, uint32_t *files, size_t max)
{
	lock_for_scope(&fr->lock);
	size_t kept = fr->queued < FS_SAMPLER_STREAMS_QUEUE ? (size_t)fr->queued : FS_SAMPLER_STREAMS_QUEUE;
	size_t n = kept < max ? kept : max;
	for (size_t i = 0; i < n; i++)
		files[i] = fr->queue[(fr->queued - n + i) % FS_SAMPLER_STREAMS_QUEUE];
	return n;
}

void fs_sampler_streams_wake(struct fs_sampler_streams *fr)
{
	lock_for_scope(&fr->lock);
	fr->begun = false; /* the engine is not idle before it knows the stream */
	fr->woken = true;
	pthread_cond_signal(&fr->cond);
}

void fs_sampler_streams_forget(struct fs_sampler_streams *fr)
{
	if (!fr)
		return;
	lock_for_scope(&fr->lock);
	fr->taken = fr->queued;
	fr->forget = fr->woken = true;
	fr->begun = false;
	pthread_cond_signal(&fr->cond);
}

void fs_sampler_streams_drained(struct fs_sampler_streams *fr)
{
	if (!fr)
		return;
	lock_for_scope(&fr->lock);
	if (fr->queued != fr->taken)
		pthread_cond_signal(&fr->cond);
}

/* ---- life ---- */

static void dispose(struct fs_sampler_streams *fr)
{
	fs_trainer_uses_free(fr->uses);
	prefetch_recognise_free(fr->r);
	fs_order_numbers_free(fr->numbers);
	fs_announced_orders_free(fr->orders);
	fs_rank_files_free(fr->coming);
	fs_rank_files_free(fr->part);
	pthread_cond_destroy(&fr->cond);
	pthread_mutex_destroy(&fr->lock);
	free(fr);
}

int fs_sampler_streams_new(struct fs_server *server, struct fs_view *view, struct fs_sampler_streams **ret_recognise)
{
	struct fs_sampler_streams *fr = calloc(1, sizeof(*fr));
	if (!fr)
		return -ENOMEM;
	pthread_mutex_init(&fr->lock, NULL);
	base_cond_init(&fr->cond);
	fr->server = server;
	fr->view = view;
	int rc = fs_announced_orders_new(server, view, wake, fr, &fr->orders);
	if (rc == 0)
		rc = fs_order_numbers_new(server->index, view, fs_announced_orders_memory(fr->orders), &fr->numbers);
	/* Before main serves requests, which may append to the lists. */
	if (rc == 0 && server->successor && server->options.n_ranks == 0)
		fs_announced_orders_restore(fr->orders);
	if (rc == 0 && view->all && view->layout == FS_LAYOUT_TREE && server->tier_uses)
		rc = fs_trainer_uses_new(server->index, view->order, server->tier_uses, &fr->uses);
	if (rc == 0)
		rc = -pthread_create(&fr->thread, NULL, recognise_run, fr);
	if (rc < 0) {
		dispose(fr);
		return rc;
	}
	*ret_recognise = fr;
	return 0;
}

struct fs_announced_orders *fs_sampler_streams_orders(struct fs_sampler_streams *fr)
{
	return fr->orders;
}

struct fs_order_numbers *fs_sampler_streams_numbers(struct fs_sampler_streams *fr)
{
	return fr->numbers;
}

void fs_sampler_streams_reason(struct fs_sampler_streams *fr, const char *list, const char *reason)
{
	lock_for_scope(&fr->lock);
	if (!reason && strcmp(fr->reason_list, list) != 0)
		return;
	snprintf(fr->reason, sizeof(fr->reason), "%s", reason ? reason : "");
	snprintf(fr->reason_list, sizeof(fr->reason_list), "%s", list);
}

void fs_sampler_streams_stop(struct fs_sampler_streams *fr)
{
	if (!fr)
		return;
	lock_for_scope(&fr->lock);
	fr->stop = true;
	pthread_cond_signal(&fr->cond);
}

void fs_sampler_streams_end(struct fs_sampler_streams *fr)
{
	if (fr)
		pthread_join(fr->thread, NULL);
}

void fs_sampler_streams_free(struct fs_sampler_streams *fr)
{
	if (fr)
		dispose(fr);
}
