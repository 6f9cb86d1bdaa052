#include "fs/recognise.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fs/sink.h"
#include "prefetch/recognise.h"
#include "shard/base/log.h"

enum {
	STEP_NS = 2000000, /* of CPU between two looks at the queue */
	LIKELY_SEEDS = 10000,
	SILENT_MIN = 1 << 16, /* opens of others after which a sampler is taken to have ended */
	SETTLED_OPENS = 4096, /* that one sampler explains in a flat view, after which nothing else is looked for */
	TEXT_MAX = 512,
	OWN_EPOCHS = 32, /* of ddpfs's own order, that a trainer may go by */
};

/* The order of a stream: the epochs of a track that are known. */
struct order {
	const struct shard_index *index;
	const struct shard_view *shown;     /* whose on_bad says what a file's name shows */
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

struct fs_recognise {
	struct fs_server *server;
	struct fs_view *view;
	struct prefetch_recognise *r; /* thread's, from here ... */
	struct follow follows[PREFETCH_TRACKS_MAX];
	struct { /* told so far, by track */
		uint32_t id;
		bool repeated, twice;
		uint64_t seed;
		enum prefetch_sampler sampler;
		bool known;
	} told[PREFETCH_TRACKS_MAX * 2];
	uint32_t *part; /* one rank's view: its files, ascending in a tree, by turn in a flat view */
	uint32_t n_part;
	uint32_t *part_index; /* flat: numbers of `part`, by file */
	struct shard_epoch *part_epoch;
	_Atomic bool part_made;             /* the four are constant from then on */
	_Atomic bool settled;               /* flat: the part is read whole; nothing more is looked at */
	uint32_t batch[FS_RECOGNISE_BATCH]; /* ... to here */
	pthread_t thread;

	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t cond;
	bool stop;
	uint32_t queue[FS_RECOGNISE_QUEUE];
	uint64_t queued, taken, published; /* ever; published <= taken <= queued */
	struct shown shown[PREFETCH_TRACKS_MAX];
	unsigned n_shown;
	struct prefetch_scanned scanned;
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
	pthread_mutex_lock(&order->lock);
	for (unsigned i = 0; i < 2; i++) {
		if (order->known[i] && prefetch_sequence_options_get(order->known[i])->number == number)
			sequence = prefetch_sequence_get(order->known[i]);
	}
	pthread_mutex_unlock(&order->lock);
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
	uint32_t files[SHARD_SAMPLE_FILES_MAX], n = 1;
	int rc = shard_index_info(epoch->index)->grouped
	                 ? shard_index_sample_files(epoch->index, sample, files, SHARD_SAMPLE_FILES_MAX, &n)
	                 : shard_index_sample_first(epoch->index, sample, files);
	for (uint32_t i = 0; rc == 0 && i < n; i++) {
		if (prefetch_sequence_find(epoch->sequence, files[i], ret_turn) == 0)
			return 0;
	}
	return rc < 0 ? rc : -ENOENT;
}

/* ---- streams ---- */

static void follow_done(struct fs_recognise *fr, struct follow *f)
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

/* What is known of the track's epochs by now.  True when that changed. */
static bool learn(struct fs_recognise *fr, struct follow *f, const struct prefetch_recognised *track)
{
	struct prefetch_sequence *known[2] = { NULL, NULL };
	if (f->epoch == track->epoch && f->next_known)
		return false;
	if (prefetch_recognise_sequence(fr->r, track->id, 0, &known[0]) < 0)
		return false;
	f->next_known = prefetch_recognise_sequence(fr->r, track->id, 1, &known[1]) == 0;
	bool changed = f->next_known || f->epoch != track->epoch;
	f->epoch = track->epoch;
	for (unsigned i = 0; i < 2; i++) {
		pthread_mutex_lock(&f->order.lock);
		struct prefetch_sequence *old = f->order.known[i];
		f->order.known[i] = known[i];
		pthread_mutex_unlock(&f->order.lock);
		prefetch_sequence_put(old);
	}
	return changed;
}

/* A sampler in the middle of an epoch: what it has opened already is used. */
static void catch_up(struct fs_recognise *fr, struct follow *f)
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

static int follow_new(struct fs_recognise *fr, const struct prefetch_recognised *track, struct follow *ret_follow)
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
		rc = fs_sink_follow(fr->server->sink, fr->view, f->view, f->epoch, &f->stream);
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

static struct follow *follow_of(struct fs_recognise *fr, uint32_t id)
{
	for (unsigned i = 0; i < PREFETCH_TRACKS_MAX; i++) {
		if (fr->follows[i].live && fr->follows[i].id == id)
			return &fr->follows[i];
	}
	return NULL;
}

static void explained(void *user, uint32_t id, uint32_t generation, uint64_t epoch, uint64_t turn)
{
	struct fs_recognise *fr = user;
	struct follow *f = follow_of(fr, id);
	if (f && f->generation == generation)
		fs_sink_used(f->stream, epoch, turn, false);
}

static bool silent(const struct prefetch_recognised *track)
{
	return track->since > SILENT_MIN && track->since > track->turns;
}

/* The order object lies in the follow: it stays where it is as long as it is live. */
static void follow_track(struct fs_recognise *fr, const struct prefetch_recognised *track)
{
	struct follow *f = follow_of(fr, track->id);
	if (f && f->generation == track->generation && !silent(track)) {
		if (learn(fr, f, track))
			fs_sink_refresh(f->stream);
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
		if (rc < 0 && rc != -ENODATA)
			log_warning("what was recognised is not read ahead: %s", base_err_str(rc));
		return;
	}
}

/* ---- what is said ---- */

static void tell(struct fs_recognise *fr, const struct shown *s)
{
	const struct prefetch_recognised *t = &s->track;
	unsigned i = t->id % (sizeof(fr->told) / sizeof(fr->told[0]));
	if (fr->told[i].id != t->id || !fr->told[i].known) {
		memset(&fr->told[i], 0, sizeof(fr->told[i]));
		fr->told[i].id = t->id;
		fr->told[i].known = true;
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

/* busy: what was taken is still being looked at. */
static void publish(struct fs_recognise *fr, bool busy)
{
	struct shown shown[PREFETCH_TRACKS_MAX];
	struct prefetch_scanned scanned;
	unsigned n = 0;
	prefetch_recognise_scanned(fr->r, &scanned);
	while (n < PREFETCH_TRACKS_MAX && prefetch_recognise_get(fr->r, n, &shown[n].track) == 0) {
		prefetch_recognise_describe(&shown[n].track, shown[n].text, sizeof(shown[n].text));
		if (shown[n].track.ready)
			tell(fr, &shown[n]);
		n++;
	}
	pthread_mutex_lock(&fr->lock);
	memcpy(fr->shown, shown, n * sizeof(shown[0]));
	fr->n_shown = n;
	fr->scanned = scanned;
	if (!busy)
		fr->published = fr->taken;
	pthread_mutex_unlock(&fr->lock);
}

void fs_recognise_stats(struct fs_recognise *fr, json_t *object)
{
	char all[PREFETCH_TRACKS_MAX * TEXT_MAX] = "", note[256] = "";
	json_t *samplers = json_array();
	struct prefetch_scanned scanned = { 0 };
	uint64_t queued = 0;
	if (fr) {
		pthread_mutex_lock(&fr->lock);
		queued = fr->queued - fr->published;
		scanned = fr->scanned;
	}
	for (unsigned i = 0; fr && i < fr->n_shown; i++) {
		const struct prefetch_recognised *t = &fr->shown[i].track;
		size_t at = strlen(all);
		if (!t->ready)
			continue;
		snprintf(all + at, sizeof(all) - at, "%s%s", at ? "; " : "", fr->shown[i].text);
		if (t->repeated)
			snprintf(note, sizeof(note),
			        "the same permutation came %u times again: call sampler.set_epoch(epoch)", t->repeated);
		if (t->shards_twice)
			snprintf(note, sizeof(note),
			        "the sampler shards this rank's part once more: mount with view=all");
		json_array_append_new(
		        samplers, json_pack("{ss ss sI sI sI sI sI sI sI sI sI sI}", "text", fr->shown[i].text, "list",
		                          t->list, "seed", (json_int_t)t->seed, "world", (json_int_t)t->world, "first",
		                          (json_int_t)t->first, "ranks", (json_int_t)t->ranks, "epoch",
		                          (json_int_t)t->epoch, "turn", (json_int_t)t->turn, "turns",
		                          (json_int_t)t->turns, "opens", (json_int_t)t->opens, "repeated",
		                          (json_int_t)t->repeated, "after", (json_int_t)t->after));
	}
	if (fr)
		pthread_mutex_unlock(&fr->lock);
	json_object_set_new(object, "recognised", json_string(*all ? all : "nothing"));
	json_object_set_new(object, "recognise_queue", json_integer((json_int_t)queued));
	if (*note)
		json_object_set_new(object, "recognised_note", json_string(note));
	json_object_set_new(object, "samplers", samplers);
	if (fr && fr->server->options.scan_threads > 0)
		json_object_set_new(object, "seed_search",
		        json_pack("{sb sI sf sI sI}", "running", scanned.running, "tried", (json_int_t)scanned.tried,
		                "cpu_s", (double)scanned.cpu_ns / 1e9, "begun", (json_int_t)scanned.begun, "found",
		                (json_int_t)scanned.found));
}

/* ---- one rank's part ---- */

static int part_at(void *user, uint32_t i, uint32_t *ret_file)
{
	const struct fs_recognise *fr = user;
	*ret_file = fr->part[i];
	return 0;
}

static int compare_files(const void *a, const void *b, void *files)
{
	uint32_t x = ((uint32_t *)files)[*(const uint32_t *)a], y = ((uint32_t *)files)[*(const uint32_t *)b];
	return (x > y) - (x < y);
}

static int part_find(void *user, uint32_t file, uint32_t *ret_index)
{
	const struct fs_recognise *fr = user;
	uint32_t low = 0, high = fr->n_part;
	while (low < high) {
		uint32_t mid = low + (high - low) / 2;
		if (fr->part[fr->part_index[mid]] < file)
			low = mid + 1;
		else
			high = mid;
	}
	if (low == fr->n_part || fr->part[fr->part_index[low]] != file)
		return -ENOENT;
	*ret_index = fr->part_index[low];
	return 0;
}

/* The files that this rank lists: as in a flat root, or (ids are in ImageFolder's order) as in a tree. */
static int make_part(struct fs_recognise *fr)
{
	uint32_t rank = fr->view->options.rank, sample;
	fr->part_epoch = fs_view_epoch(fr->view);
	uint64_t turns = shard_epoch_turns(fr->part_epoch, rank);
	if (turns == 0 || turns > UINT32_MAX)
		return -ENODATA;
	fr->part = calloc(turns, sizeof(*fr->part));
	fr->part_index = calloc(turns, sizeof(*fr->part_index));
	if (!fr->part || !fr->part_index)
		return -ENOMEM;
	for (uint64_t t = 0; t < turns; t++) {
		int rc = shard_epoch_turn(fr->part_epoch, rank, t, &sample, NULL);
		if (rc == 0)
			rc = shard_index_sample_first(fr->server->index, sample, &fr->part[t]);
		if (rc < 0)
			return rc;
		fr->part_index[t] = (uint32_t)t;
	}
	fr->n_part = (uint32_t)turns;
	qsort_r(fr->part_index, fr->n_part, sizeof(*fr->part_index), compare_files, fr->part);
	if (fr->view->layout == FS_LAYOUT_FLAT) {
		atomic_store(&fr->part_made, true);
	} else {
		uint32_t *sorted = calloc(turns, sizeof(*sorted));
		if (!sorted)
			return -ENOMEM;
		for (uint32_t i = 0; i < fr->n_part; i++)
			sorted[i] = fr->part[fr->part_index[i]];
		free(fr->part);
		fr->part = sorted;
		for (uint32_t i = 0; i < fr->n_part; i++)
			fr->part_index[i] = i;
	}
	return 0;
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

/* Whether opens are read ahead; else it is only watched for what a rank's view must not be read with.  A RandomSampler over one
 * rank's tree is not: its numbers are those of one epoch's listing, and the next listing shows other files.  What it would
 * draw of them is not known before they are listed, and by then they are being opened. */
static bool leads(const struct fs_recognise *fr)
{
	return fr->view->all && fr->view->layout == FS_LAYOUT_TREE;
}

static void sync_streams(struct fs_recognise *fr)
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
	fs_sink_own(fr->server->sink, fr->view, live == 0);
}

/* A flat view of which a sampler reads all: the only thing looked for there did not happen. */
static void settle(struct fs_recognise *fr)
{
	struct prefetch_recognised track;
	for (unsigned k = 0; prefetch_recognise_get(fr->r, k, &track) == 0; k++) {
		if (track.ready && !track.shards_twice && track.opens >= SETTLED_OPENS)
			atomic_store(&fr->settled, true);
	}
}

/* Takes what is queued.  busy: there is other work.  Returns SIZE_MAX when the thread is to end. */
static size_t take(struct fs_recognise *fr, bool busy, bool *ret_paused)
{
	size_t n = 0;
	int rc = 0;
	struct timespec until;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += FS_RECOGNISE_PAUSE_S;
	*ret_paused = false;
	pthread_mutex_lock(&fr->lock);
	while (!fr->stop && !busy && fr->queued == fr->taken && rc == 0)
		rc = pthread_cond_timedwait(&fr->cond, &fr->lock, &until);
	*ret_paused = rc == ETIMEDOUT;
	if (fr->queued - fr->taken > FS_RECOGNISE_QUEUE)
		fr->taken = fr->queued - FS_RECOGNISE_QUEUE;
	while (n < FS_RECOGNISE_BATCH && fr->taken < fr->queued)
		fr->batch[n++] = fr->queue[fr->taken++ % FS_RECOGNISE_QUEUE];
	bool stop = fr->stop;
	pthread_mutex_unlock(&fr->lock);
	return stop ? SIZE_MAX : n;
}

static int begin(struct fs_recognise *fr)
{
	struct prefetch_list_given given = { .name = "this rank's part", .user = fr, .at = part_at, .find = part_find };
	struct prefetch_recognise_options options = {
		.index = fr->server->index, .shown = fr->view->order, .explained = explained, .user = fr
	};
	struct prefetch_own_order own = {
		.user = fr->view->order,
		.at = own_at,
		.find = own_find,
		.size = shard_view_samples(fr->view->order),
		.several = shard_index_info(fr->server->index)->grouped,
	};
	int rc = leads(fr) ? 0 : make_part(fr);
	/* order=torch is torch's, whose seeds are looked through anyway, and costs O(n) an epoch. */
	enum shard_order_mode order = shard_view_options_get(fr->view->order)->order;
	if (leads(fr) && order != SHARD_ORDER_TORCH && own.size > 0) {
		options.own = &own;
		options.own_epochs = order == SHARD_ORDER_NONE ? 1 : OWN_EPOCHS;
		options.own_last = order == SHARD_ORDER_NONE;
		options.own_first = shard_view_options_get(fr->view->order)->epoch;
	}
	options.scan_threads = leads(fr) ? fr->server->options.scan_threads : 0;
	if (!leads(fr)) {
		given.n = fr->n_part;
		options.given = &given;
		options.n_given = 1;
		options.seed_max = LIKELY_SEEDS;
		options.popular_words = 1;
	}
	return rc < 0 ? rc : prefetch_recognise_new(&options, &fr->r);
}

static void *recognise_run(void *arg)
{
	struct fs_recognise *fr = arg;
	bool busy = false, failed = false, paused, idle = true;
	size_t n;
	pthread_setname_np(pthread_self(), "recognise");
	if (begin(fr) < 0)
		return NULL; /* without memory, or nothing is dealt to this rank */
	while ((n = take(fr, busy, &paused)) != SIZE_MAX) {
		if (paused && !idle)
			prefetch_recognise_pause(fr->r);
		if (paused || n > 0)
			idle = paused;
		prefetch_recognise_opened(fr->r, fr->batch, n);
		int rc = prefetch_recognise_step(fr->r, STEP_NS);
		if (rc < 0 && !failed)
			log_warning("the trainer's sampler cannot be looked for: %s", base_err_str(rc));
		failed |= rc < 0;
		busy = rc > 0;
		if (leads(fr))
			sync_streams(fr);
		else if (fr->view->layout == FS_LAYOUT_FLAT)
			settle(fr);
		publish(fr, busy);
	}
	for (unsigned i = 0; i < PREFETCH_TRACKS_MAX; i++)
		follow_done(fr, &fr->follows[i]);
	return NULL;
}

void fs_recognise_opened(struct fs_recognise *fr, uint32_t file, uint64_t epoch, uint64_t turn)
{
	if (file == SHARD_NONE) {
		if (!atomic_load(&fr->part_made) || atomic_load(&fr->settled) ||
		        epoch != shard_epoch_number(fr->part_epoch) || turn >= fr->n_part)
			return;
		file = fr->part[turn];
	}
	pthread_mutex_lock(&fr->lock);
	fr->queue[fr->queued++ % FS_RECOGNISE_QUEUE] = file;
	pthread_mutex_unlock(&fr->lock);
}

void fs_recognise_drained(struct fs_recognise *fr)
{
	pthread_mutex_lock(&fr->lock);
	if (fr->queued != fr->taken)
		pthread_cond_signal(&fr->cond);
	pthread_mutex_unlock(&fr->lock);
}

/* ---- life ---- */

static void dispose(struct fs_recognise *fr)
{
	prefetch_recognise_free(fr->r);
	shard_epoch_put(fr->part_epoch);
	free(fr->part);
	free(fr->part_index);
	pthread_cond_destroy(&fr->cond);
	pthread_mutex_destroy(&fr->lock);
	free(fr);
}

int fs_recognise_new(struct fs_server *server, struct fs_view *view, struct fs_recognise **ret_recognise)
{
	struct fs_recognise *fr = calloc(1, sizeof(*fr));
	if (!fr)
		return -ENOMEM;
	pthread_condattr_t clock;
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_mutex_init(&fr->lock, NULL);
	pthread_cond_init(&fr->cond, &clock);
	pthread_condattr_destroy(&clock);
	fr->server = server;
	fr->view = view;
	int rc = -pthread_create(&fr->thread, NULL, recognise_run, fr);
	if (rc < 0) {
		dispose(fr);
		return rc;
	}
	*ret_recognise = fr;
	return 0;
}

void fs_recognise_end(struct fs_recognise *fr)
{
	if (!fr)
		return;
	pthread_mutex_lock(&fr->lock);
	fr->stop = true;
	pthread_cond_signal(&fr->cond);
	pthread_mutex_unlock(&fr->lock);
	pthread_join(fr->thread, NULL);
}

void fs_recognise_free(struct fs_recognise *fr)
{
	if (fr)
		dispose(fr);
}
