/* SPDX-License-Identifier: Apache-2.0 */
/* What the log and the statistics say of the order: what is recognised, who told it, and what helps if nobody did;
 * fs/sampler_streams_private.h first. */
#include "fs/sampler_streams_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "shard/base/cleanup.h"
#include "shard/base/log.h"

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
		            "of the part is never read; mount with layout=tree,view=all, or let the trainer read all "
		            "that it "
		            "lists",
		        t->first, t->world);
	}
}

void fs_sampler_publish(struct fs_sampler_streams *fr, bool busy)
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
	fr->shown_left = fr->left.left;
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
	char note[PREFETCH_TRACKS_MAX * FS_SAMPLER_TEXT_MAX + 16], what[256];
	const char *source;
	bool as_listed;
	{
		lock_for_scope(&fr->lock);
		as_listed = reads_as_listed(fr);
	}
	fs_announced_orders_count(fr->orders, &announced);
	if (counts->order_left) {
		source = "unknown";
		fs_unknown_order_note(counts, note);
	} else if (fs_announced_orders_live(fr->orders) > 0) {
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
		counts->order_left = fr->shown_left;
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
	char all[PREFETCH_TRACKS_MAX * FS_SAMPLER_TEXT_MAX] = "", note[256] = "";
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
