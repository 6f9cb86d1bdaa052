/* SPDX-License-Identifier: Apache-2.0 */
/* The recognise thread: takes in opens, searches, and has what is recognised read ahead;
 * fs/sampler_streams_private.h first. */
#include "fs/sampler_streams_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fs/supervise/priority.h"
#include "fs/watch.h"
#include "shard/base/cleanup.h"
#include "shard/base/log.h"

#define NO_READER_NS UINT64_C(3600000000000) /* between two looks of a rank that nobody reads; a reader wakes it */

enum {
	STEP_NS = 2000000,   /* processor time of a search between two looks at the queue */
	USES_NS = 2000000,   /* of what the tier is told, and the pause after it */
	LATER_NS = 20000000, /* pause until the search may go on */
	LIKELY_SEEDS = 10000,
	SETTLED_OPENS = 4096, /* opens explained by one sampler in a flat view, after which the search ends */
	OWN_EPOCHS = 32,      /* epochs of ddpfs's own order that are compared with the opens */
};

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
		.explained = fs_sampler_explained,
		.user = fr,
		.scanned = fr->before,
		.search_burst_ns = PREFETCH_SEARCH_BURST_NS,
		.search_permille = PREFETCH_SEARCH_PERMILLE,
		.search_thread = true,
	};
	int rc = 0;
	fr->rest = (struct fs_search_rest){ 0 };
	fr->left = (struct fs_order_left){ 0 };
	fr->in_lists = 0;
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
		fs_sampler_unfollow(fr, &fr->follows[i]);
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
	fr->shown_left = false;
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
	if (confirmed)
		fr->left.orders = 0; /* a new list */
	/* What was recognised before would get no more opens, and its stream would keep its room. */
	if (confirmed && fr->r && prefetch_recognise_get(fr->r, 0, &track) == 0)
		begin_again(fr);
	fs_trainer_uses_opened(fr->uses, fr->explained, n - left, left);
	fr->in_lists += n - left;
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

/* Returns what is known now, as one number: it changes with each sampler and each of its epochs. */
static uint64_t known_orders(const struct fs_sampler_streams *fr)
{
	struct prefetch_recognised track;
	uint64_t known = fs_announced_orders_live(fr->orders);
	for (unsigned k = 0; prefetch_recognise_get(fr->r, k, &track) == 0; k++)
		known += track.ready ? (track.id + UINT64_C(1)) * 1000003 + track.seed * 31 + track.epoch : 0;
	return known;
}

static void look_whether_left(struct fs_sampler_streams *fr)
{
	struct prefetch_searched searched;
	prefetch_recognise_searched(fr->r, &searched);
	bool left = fs_order_left_update(
	        &fr->left, searched.opens + fr->in_lists, searched.explained + fr->in_lists, known_orders(fr));
	if (fr->view->all)
		prefetch_set_order_left(fr->server->prefetch, left);
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
	fr->shown_left = false;
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
		if (fr->leads) {
			fs_sampler_follow_all(fr);
			look_whether_left(fr);
		} else if (fr->view->layout == FS_LAYOUT_FLAT)
			settle(fr);
		if (fr->uses)
			wait_ns = step_uses(fr, wait_ns);
		save(fr);
		/* When the budget is spent, the rest of the search goes on slowly, as at idle priority. */
		fs_sampler_publish(fr, rc > 0 && rc != PREFETCH_RECOGNISE_LATER);
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
