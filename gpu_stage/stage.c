/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and closes a stage and keeps its place in the order; stage.h first, then stage_private.h. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu_stage/growth.h"
#include "gpu_stage/mounted.h"
#include "gpu_stage/pages.h"
#include "gpu_stage/stage_private.h"
#include "shard/base/cleanup.h"

enum {
	WINDOW_MIN = 4 << 20,
	WINDOW_MAX = 256 << 20,
	GROWTH_FIRST = 512 << 20, /* the memory that a stage begins with, if it may have more */
};

int stage_error(struct ddpfs_stage_error *error, const struct base_err *err)
{
	if (error) {
		error->code = err->code;
		error->file = error->sample = DDPFS_STAGE_NONE;
		snprintf(error->text, sizeof(error->text), "%s", err->text);
	}
	return err->code;
}

/* ---- the engine's sink ---- */

static void sink_expect(struct prefetch_sink *sink, uint32_t sample, uint32_t file)
{
	struct ddpfs_stage *stage = (struct ddpfs_stage *)sink;
	shard_index_hint_record(stage->index, file);
	stage_samples_hint(stage->samples, stage_sample_key(sample));
}

static int sink_store(struct prefetch_sink *sink, uint32_t file, uint64_t offset, const uint8_t *data, uint32_t len)
{
	struct ddpfs_stage *stage = (struct ddpfs_stage *)sink;
	struct stage_layout layout;
	struct shard_place place;
	int rc = shard_index_place(stage->index, file, &place);
	if (rc == 0)
		rc = stage_layout_around(stage->index, file, &place, &layout);
	if (rc < 0)
		return rc;
	rc = stage_samples_write(stage->samples, &layout, file, (uint32_t)(offset / SHARD_BLOCK), data, len);
	if (rc < 0)
		stage_layout_done(&layout);
	else
		stage_growth_stored(stage->growth, len);
	return rc;
}

static void sink_drop(struct prefetch_sink *sink, const struct cache_victim *victims, size_t n)
{
	struct ddpfs_stage *stage = (struct ddpfs_stage *)sink;
	uint32_t samples[STAGE_DROPS], n_samples = 0;
	for (size_t i = 0; i < n; i++) {
		if (victims[i].block == CACHE_WHOLE) /* arena_samples.c decides about blocks that demands brought in */
			samples[n_samples++] = victims[i].id;
		if (n_samples == STAGE_DROPS || i + 1 == n) {
			stage_samples_drop(stage->samples, samples, n_samples);
			n_samples = 0;
		}
	}
}

static const struct prefetch_sink_ops sink_ops = {
	.expect = sink_expect,
	.store = sink_store,
	.drop = sink_drop,
};

/* ---- opening and closing ---- */

static uint64_t clamp(uint64_t value, uint64_t low, uint64_t high)
{
	return value < low ? low : value > high ? high : value;
}

/* The engine reads small samples together with those neighbours in storage that are wanted within the window.  If the
 * window spans a pool of order=chunk, these are all of its neighbours. */
static uint64_t window_bytes(const struct ddpfs_stage *stage, const struct shard_view *view)
{
	const struct shard_info *info = shard_index_info(stage->index);
	bool chunk = !shard_view_is_given(view) && shard_view_options_get(view)->order == SHARD_ORDER_CHUNK;
	bool store = shard_index_store(stage->index);
	bool small = info->content_bytes < info->n_samples * prefetch_small_bytes(store && chunk);
	return small ? clamp(stage->budget_bytes / 8 * 7, WINDOW_MIN, 2 * (uint64_t)SHARD_POOL_BYTES)
	             : clamp(stage->budget_bytes / 4, WINDOW_MIN, WINDOW_MAX);
}

/* Sets the engine's budget to what `open` bytes of the arena allow. */
static void arena_opened(void *arg, uint64_t open)
{
	struct ddpfs_stage *stage = arg;
	prefetch_set_memory(stage->prefetch, stage->landing + open / 4 * 3);
}

/* Lets a large arena grow.  A pinned one has all its pages already. */
static int start_growth(struct ddpfs_stage *stage, struct base_err *err)
{
	if (stage->backend->device || stage->bytes + stage->landing <= GROWTH_FIRST)
		return 0;
	uint64_t first = GROWTH_FIRST - stage->landing;
	arena_opened(stage, first);
	int rc = stage_growth_new(stage->base, stage->bytes, first, arena_opened, stage, &stage->growth);
	return rc < 0 ? base_err_set(err, rc, "cannot start a thread: %s", base_err_str(rc)) : 0;
}

/* Divides the memory into the engine's landing memory and the arena.  A quarter of the arena is for samples that
 * batches hold, so the engine's budget has the other three quarters. */
static int start_engine(struct ddpfs_stage *stage, const struct ddpfs_stage_options *options, struct base_err *err)
{
	struct prefetch_stats stats;
	uint64_t memory = stage_options_memory(options);
	stage->landing = prefetch_landing_bytes(memory);
	stage->bytes = (memory - stage->landing) & ~(uint64_t)(STAGE_PAGE - 1);
	int rc = stage_space_new(stage->bytes, &stage->space);
	if (rc < 0)
		return base_err_set(err, rc, "cannot map an arena of %llu MiB: give less memory",
		        (unsigned long long)(stage->bytes >> 20));
	stage->base = stage_space_arena(stage->space);
	rc = stage->backend->ops->memory_new(stage->backend, stage->base, stage->bytes, err);
	if (rc < 0)
		return rc;
	stage->ready = true;
	if (stage->backend->device)
		stage_space_set_pinned(stage->space);
	rc = stage_samples_new(stage->index, stage->space, &stage->samples);
	if (rc < 0)
		return base_err_set(err, rc, "cannot set up the arena: %s", base_err_str(rc));
	stage->sink.ops = &sink_ops;
	rc = prefetch_new(&(struct prefetch_options){ .index = stage->index,
	                          .memory_bytes = stage->landing + stage->bytes / 4 * 3,
	                          .sink = &stage->sink,
	                          .threads = options->threads_io != 0 },
	        err, &stage->prefetch);
	if (rc < 0)
		return rc;
	prefetch_stats_get(stage->prefetch, &stats);
	stage->budget_bytes = stats.budget_bytes;
	stage->keep_pages = (uint32_t)clamp(stats.budget_bytes / 4 / STAGE_PAGE, 1, UINT32_MAX);
	return start_growth(stage, err);
}

static void stage_free(struct ddpfs_stage *stage)
{
	stage_growth_end(stage->growth); /* it sets the memory of the engine */
	stage_progress_free(stage->follow);
	if (stage->backend && stage->backend->ops->stop)
		stage->backend->ops->stop(stage->backend);
	if (stage->prefetch) {
		prefetch_stream_free(stage->stream);
		prefetch_free(stage->prefetch);
	}
	stage_growth_free(stage->growth); /* the engine's deliver thread counts there what it stores */
	shard_epoch_put(stage->epoch);
	shard_view_free(stage->view);
	shard_quarantine_free(stage->list);
	free(stage->quarantine);
	free((char *)(uintptr_t)stage->words.order);
	free((char *)(uintptr_t)stage->words.deal);
	free((char *)(uintptr_t)stage->words.tail);
	free((char *)(uintptr_t)stage->words.subdir);
	free(stage->found);
	stage_samples_free(stage->samples);
	if (stage->ready && stage->backend->ops->memory_free)
		stage->backend->ops->memory_free(stage->backend, stage->base);
	stage_space_free(stage->space);
	if (stage->backend)
		stage->backend->ops->free(stage->backend);
	shard_index_close(stage->index);
	pthread_mutex_destroy(&stage->turn);
	pthread_mutex_destroy(&stage->lock);
	free(stage);
}

static int open_parts(
        struct ddpfs_stage *stage, const char *dataset, const struct ddpfs_stage_options *options, struct base_err *err)
{
	struct shard_view *view;
	int rc = shard_index_open_with(dataset, options->index, err, &stage->index);
	if (rc == 0)
		rc = shard_index_check_shards(stage->index, err);
	if (rc == 0)
		rc = stage_backend_new(options, err, &stage->backend);
	if (rc == 0)
		rc = start_engine(stage, options, err);
	if (rc == 0)
		rc = stage_options_view(stage->index, options, err, &stage->list, &view);
	if (rc < 0)
		return rc;
	stage->window_bytes = window_bytes(stage, view);
	rc = shard_index_check_err(stage->index, err); /* the view comes from its records */
	if (rc == 0)
		rc = stage_bind(stage, view, shard_view_options_get(view)->epoch, err);
	if (rc < 0)
		shard_view_free(view);
	return rc;
}

/* Starts to tell the mount how far the stage is, if the mount says where its control socket is. */
static int follow_mount(struct ddpfs_stage *stage, const struct stage_mounted *mounted, struct base_err *err)
{
	if (!mounted->control)
		return 0;
	int rc = shard_state_parse(mounted->state, strlen(mounted->state), err, &stage->mount_state);
	if (rc < 0)
		return rc;
	rc = stage_progress_new(mounted->control, mounted->several ? &mounted->rank : NULL, &stage->follow);
	if (rc < 0)
		return base_err_set(err, rc, "cannot start a thread: %s", base_err_str(rc));
	return 0;
}

static int keep_word(const char *given, const char **ret_copy)
{
	char *copy = given ? strdup(given) : NULL;
	if (given && !copy)
		return -ENOMEM;
	*ret_copy = copy;
	return 0;
}

/* Copies the options that every state loaded later must agree with.  stage_free frees the copies. */
static int keep_words(struct ddpfs_stage *stage, const struct ddpfs_stage_options *options)
{
	stage->words.seed = options->seed;
	stage->words.groups = options->groups;
	stage->words.redeal = options->redeal;
	int rc = keep_word(options->order, &stage->words.order);
	if (rc == 0)
		rc = keep_word(options->deal, &stage->words.deal);
	if (rc == 0)
		rc = keep_word(options->tail, &stage->words.tail);
	if (rc == 0)
		rc = keep_word(options->subdir, &stage->words.subdir);
	return rc;
}

/* mounted: NULL, or the mount that follows the stage. */
static int open_dataset(const char *dataset, const struct ddpfs_stage_options *options,
        const struct stage_mounted *mounted, struct base_err *err, struct ddpfs_stage **ret_stage)
{
	struct ddpfs_stage *stage = calloc(1, sizeof(*stage));
	if (!stage)
		return base_err_set(err, -ENOMEM, "out of memory");
	pthread_mutex_init(&stage->turn, NULL);
	pthread_mutex_init(&stage->lock, NULL);
	stage->rank = options->rank;
	stage->world = options->world;
	if (options->on_bad)
		(void)shard_on_bad_parse(options->on_bad, &stage->on_bad); /* valid: stage_options_check parsed it */
	stage->on_bad_given = options->on_bad != NULL;
	stage->bad = options->bad;
	stage->bad_arg = options->bad_arg;
	int rc = keep_words(stage, options);
	if (rc < 0 || (options->quarantine && !(stage->quarantine = strdup(options->quarantine))))
		rc = base_err_set(err, -ENOMEM, "out of memory");
	if (rc == 0 && mounted)
		rc = follow_mount(stage, mounted, err);
	if (rc == 0)
		rc = open_parts(stage, dataset, options, err);
	if (rc < 0)
		stage_free(stage);
	else
		*ret_stage = stage;
	return rc;
}

/* Tells the mount where the next batch begins. */
static void tell_place(struct ddpfs_stage *stage)
{
	if (stage->following)
		stage_progress_move(
		        stage->follow, shard_epoch_number(stage->epoch), stage_steps(stage->epoch, stage->cursor));
}

/* Refuses a list that is not the mount's.  At the beginning of an epoch a state accepts any list, but the mount's
 * view has one list. */
static int check_list(struct ddpfs_stage *stage, const struct stage_mounted *mounted, struct base_err *err)
{
	struct shard_state state;
	const struct shard_quarantine *list = shard_view_options_get(stage->view)->quarantine;
	int rc = shard_state_parse(mounted->state, strlen(mounted->state), err, &state);
	if (rc == 0 && state.options.on_bad != SHARD_ON_BAD_EIO && (!list || list->hash != state.quarantine))
		rc = base_err_set(err, -ESTALE,
		        "the mount has another quarantine list: name it by the option quarantine, or mount again");
	if (rc < 0)
		stage_free(stage);
	return rc;
}

/* Opens the dataset of a mount.  Options that the caller leaves out come from the mount; a state of the caller counts
 * more than the mount's. */
static int open_mount(const char *mount, bool world_given, struct ddpfs_stage_options *options, struct base_err *err,
        struct ddpfs_stage **ret_stage)
{
	struct stage_mounted mounted;
	if (options->index)
		return base_err_set(
		        err, -EINVAL, "option index: '%s' is a mount, which has its index", base_quoted(mount));
	int rc = stage_mounted_read(mount, err, &mounted);
	if (rc < 0)
		return rc;
	bool own_state = options->state;
	options->index = mounted.index;
	if (!own_state)
		options->state = mounted.state;
	if (!world_given) {
		options->rank = mounted.rank;
		options->world = mounted.world;
	}
	rc = open_dataset(mounted.dataset, options, world_given ? NULL : &mounted, err, ret_stage);
	if (rc == 0 && !own_state && !options->on_bad)
		rc = check_list(*ret_stage, &mounted, err);
	if (rc == 0 && own_state && (*ret_stage)->following)
		tell_place(*ret_stage);
	stage_mounted_done(&mounted);
	return rc;
}

int ddpfs_stage_open(const char *dataset, const struct ddpfs_stage_options *given, struct ddpfs_stage_error *error,
        struct ddpfs_stage **ret_stage)
{
	struct base_err err = { 0 };
	struct ddpfs_stage_options options;
	struct ddpfs_stage *stage;
	char rank[PATH_MAX];
	int rc = stage_options_check(given, &err, &options);
	if (rc == 0 && stage_mounted_is(dataset))
		rc = open_mount(dataset, given && given->world, &options, &err, &stage);
	else if (rc == 0) {
		rc = open_dataset(dataset, &options, NULL, &err, &stage);
		if (rc < 0 && stage_mounted_ranks(dataset, rank))
			base_err_set(&err, rc,
			        "'%s' is a mount of several ranks: give the directory of one, such as '%s'", dataset,
			        rank);
	}
	if (rc < 0)
		return stage_error(error, &err);
	*ret_stage = stage;
	return 0;
}

int ddpfs_stage_close(struct ddpfs_stage *stage)
{
	if (!stage)
		return 0;
	if (atomic_load(&stage->batches_out))
		return -EBUSY;
	stage_free(stage);
	return 0;
}

/* ---- the place in the order ---- */

uint64_t stage_steps(const struct shard_epoch *epoch, uint64_t turns)
{
	const struct shard_deal *deal = shard_epoch_deal(epoch);
	uint64_t steps = deal->start + turns * deal->world, end = shard_deal_end(deal);
	return steps < end ? steps : end;
}

/* Tells whether two views had equal changes of the world in the middle of an epoch.  Only deal=block makes a
 * difference. */
static bool same_past(const struct shard_view_options *a, const struct shard_view_options *b)
{
	bool plain = a->deal != SHARD_DEAL_BLOCK;
	bool equal = a->epoch == b->epoch && a->n_past == b->n_past;
	bool own = true;
	for (uint32_t i = 0; i < a->n_past; i++) {
		equal = equal && a->past[i].world == b->past[i].world && a->past[i].steps == b->past[i].steps;
		own = own && a->past[i].world == a->world;
	}
	for (uint32_t i = 0; i < b->n_past; i++)
		own = own && b->past[i].world == a->world;
	return plain || equal || own;
}

/* Tells whether global steps of the view mean what the mount's mean. */
static bool like_the_mount(const struct ddpfs_stage *stage, const struct shard_view *view)
{
	const struct shard_view_options *a = shard_view_options_get(view), *b = &stage->mount_state.options;
	const char *subdir = a->subdir ? a->subdir : "";
	return stage->follow && a->order == b->order && a->deal == b->deal && a->tail == b->tail &&
	       a->seed == b->seed && a->groups == b->groups && a->redeal == b->redeal && a->on_bad == b->on_bad &&
	       (!a->quarantine || a->quarantine->hash == stage->mount_state.quarantine) &&
	       (!b->chunk_items || a->chunk_items == b->chunk_items) &&
	       (!b->pool_chunks || a->pool_chunks == b->pool_chunks) &&
	       strcmp(subdir, stage->mount_state.subdir) == 0 && same_past(a, b);
}

static int make_epoch(struct shard_view *view, uint64_t epoch, struct base_err *err, struct shard_epoch **ret_epoch)
{
	int rc = shard_view_epoch(view, epoch, ret_epoch);
	return rc < 0 ? base_err_set(
	                        err, rc, "cannot set up epoch %llu: %s", (unsigned long long)epoch, base_err_str(rc))
	              : 0;
}

/* Makes the new stream before the old one goes, so that resident samples find their next use in the new one. */
int stage_bind(struct ddpfs_stage *stage, struct shard_view *view, uint64_t epoch, struct base_err *err)
{
	struct shard_epoch *e;
	struct prefetch_stream *stream;
	int rc = make_epoch(view, epoch, err, &e);
	if (rc < 0)
		return rc;
	rc = prefetch_stream_new(stage->prefetch,
	        &(struct prefetch_stream_options){ .view = view,
	                .rank = stage->rank,
	                .epoch = epoch,
	                .window_bytes = stage->window_bytes,
	                .user = stage },
	        &stream);
	if (rc < 0) {
		shard_epoch_put(e);
		return rc == -ENODATA
		               ? base_err_set(err, rc, "rank %u has no samples: there are more ranks than samples",
		                         stage->rank)
		               : base_err_set(err, rc, "cannot start reading ahead: %s", base_err_str(rc));
	}
	struct prefetch_stream *old_stream;
	struct shard_epoch *old_epoch;
	struct shard_view *old_view;
	{
		lock_for_scope(&stage->lock);
		old_stream = stage->stream;
		old_epoch = stage->epoch;
		old_view = stage->view;
		stage->stream = stream;
		stage->epoch = e;
		stage->view = view;
		stage->cursor = 0;
		stage->turns = shard_epoch_turns(e, stage->rank);
		stage->following = like_the_mount(stage, view);
	}
	prefetch_stream_free(old_stream);
	shard_epoch_put(old_epoch);
	if (old_view != view)
		shard_view_free(old_view);
	return 0;
}

/* Goes to a later epoch of the same view.  The stream stays, because read-ahead may be there already. */
static int go_on(struct ddpfs_stage *stage, uint64_t epoch, struct base_err *err)
{
	struct shard_epoch *e;
	int rc = make_epoch(stage->view, epoch, err, &e);
	if (rc < 0)
		return rc;
	struct shard_epoch *old;
	{
		lock_for_scope(&stage->lock);
		old = stage->epoch;
		stage->epoch = e;
		stage->cursor = 0;
		stage->turns = shard_epoch_turns(e, stage->rank);
	}
	shard_epoch_put(old);
	prefetch_stream_epoch(stage->stream, epoch);
	return 0;
}

/* Goes somewhere else in the order: batches that are not released do not count for the mount from now on. */
static int bind_again(struct ddpfs_stage *stage, struct shard_view *view, uint64_t epoch, struct base_err *err)
{
	int rc = stage_bind(stage, view, epoch, err);
	if (rc == 0)
		stage_progress_forget(stage->follow);
	return rc;
}

int ddpfs_stage_set_epoch(struct ddpfs_stage *stage, uint64_t epoch, struct ddpfs_stage_error *error)
{
	struct base_err err = { 0 };
	int rc = 0;
	lock_for_scope(&stage->turn);
	uint64_t now = shard_epoch_number(stage->epoch);
	if (epoch > now)
		rc = go_on(stage, epoch, &err);
	else if (epoch < now || stage->cursor)
		rc = bind_again(stage, stage->view, epoch, &err);
	if (rc == 0)
		tell_place(stage);
	return rc < 0 ? stage_error(error, &err) : 0;
}

int ddpfs_stage_resume(struct ddpfs_stage *stage, const char *state, struct ddpfs_stage_error *error)
{
	struct base_err err = { 0 };
	struct shard_view *view;
	struct ddpfs_stage_options options = stage->words;
	options.rank = stage->rank;
	options.world = stage->world;
	options.state = state;
	lock_for_scope(&stage->turn);
	if (stage->on_bad_given)
		options.on_bad = shard_on_bad_name(stage->on_bad);
	options.quarantine = stage->quarantine;
	if (!stage->list && stage->on_bad != SHARD_ON_BAD_EIO)
		options.quarantine = ""; /* a list that came later is not this stage's */
	int rc = stage_options_view(stage->index, &options, &err, &stage->list, &view);
	if (rc == 0 && shard_index_check_err(stage->index, &err) < 0) {
		shard_view_free(view);
		rc = err.code;
	}
	if (rc == 0) {
		rc = bind_again(stage, view, shard_view_options_get(view)->epoch, &err);
		if (rc < 0)
			shard_view_free(view);
		else
			tell_place(stage);
	}
	return rc < 0 ? stage_error(error, &err) : 0;
}

int ddpfs_stage_skip(struct ddpfs_stage *stage, uint64_t n)
{
	lock_for_scope(&stage->turn);
	{
		lock_for_scope(&stage->lock);
		stage->cursor += n < stage->turns - stage->cursor ? n : stage->turns - stage->cursor;
	}
	tell_place(stage);
	return 0;
}

int ddpfs_stage_position(struct ddpfs_stage *stage, uint64_t *ret_epoch, uint64_t *ret_turn, uint64_t *ret_turns)
{
	lock_for_scope(&stage->lock);
	if (ret_epoch)
		*ret_epoch = shard_epoch_number(stage->epoch);
	if (ret_turn)
		*ret_turn = stage->cursor;
	if (ret_turns)
		*ret_turns = stage->turns;
	return 0;
}

static int epoch_of_view(struct ddpfs_stage *stage, uint64_t epoch, struct shard_epoch **ret_epoch)
{
	lock_for_scope(&stage->lock);
	return shard_view_epoch(stage->view, epoch, ret_epoch);
}

int ddpfs_stage_turns(struct ddpfs_stage *stage, uint64_t epoch, uint64_t *ret_turns)
{
	struct shard_epoch *e;
	int rc = epoch_of_view(stage, epoch, &e);
	if (rc < 0)
		return rc;
	*ret_turns = shard_epoch_turns(e, stage->rank);
	shard_epoch_put(e);
	return 0;
}

int ddpfs_stage_state(struct ddpfs_stage *stage, uint64_t epoch, uint64_t turns, char *buf, size_t buf_size)
{
	struct shard_epoch *e;
	lock_for_scope(&stage->lock);
	int rc = shard_view_epoch(stage->view, epoch, &e);
	if (rc < 0)
		return rc;
	rc = turns > shard_epoch_turns(e, stage->rank)
	             ? -ERANGE
	             : shard_state_format(stage->view, epoch, stage_steps(e, turns), buf, buf_size);
	shard_epoch_put(e);
	return rc;
}

/* ---- information about a stage ---- */

int ddpfs_stage_path(struct ddpfs_stage *stage, uint32_t file, char *buf, size_t buf_size)
{
	int len = shard_index_file_path(stage->index, file, buf, buf_size);
	int rc = shard_index_check(stage->index);
	return rc < 0 ? rc : len;
}

void ddpfs_stage_arena(struct ddpfs_stage *stage, const uint8_t **ret_base, uint64_t *ret_bytes)
{
	*ret_base = stage->base;
	*ret_bytes = stage->bytes;
}

void ddpfs_stage_stats_get(struct ddpfs_stage *stage, struct ddpfs_stage_stats *ret_stats)
{
	struct prefetch_stats engine;
	struct stage_samples_stats samples;
	struct stage_upload_stats upload = { 0 };
	prefetch_stats_get(stage->prefetch, &engine);
	stage_samples_stats_get(stage->samples, &samples);
	if (stage->backend->ops->stats)
		stage->backend->ops->stats(stage->backend, &upload);
	*ret_stats = (struct ddpfs_stage_stats){
		.batches = atomic_load(&stage->n_batches),
		.samples = atomic_load(&stage->n_samples),
		.bytes = atomic_load(&stage->n_bytes),
		.ready = atomic_load(&stage->n_ready),
		.waited = atomic_load(&stage->n_waited),
		.asked = atomic_load(&stage->n_asked),
		.wait_ns = atomic_load(&stage->wait_ns),
		.wait_memory_ns = atomic_load(&stage->wait_memory_ns) + upload.wait_ns,
		.arena_bytes = stage->bytes,
		.used_bytes = samples.used_bytes,
		.held_bytes = samples.held_bytes,
		.landing_bytes = engine.buffer_bytes,
		.refused = samples.refused,
		.evicted = samples.evicted,
		.reads = engine.reads,
		.read_bytes = engine.read_bytes,
		.bad_blocks = engine.bad_blocks,
		.io_errors = engine.io_errors,
		.left_out = atomic_load(&stage->n_left_out),
		.replaced = atomic_load(&stage->n_replaced),
		.changed = atomic_load(&stage->n_changed),
		.copied_bytes = samples.came_bytes + upload.gathered_bytes,
		.uploads = upload.uploads,
		.upload_copies = upload.copies,
		.upload_bytes = upload.bytes,
		.device_bytes = upload.device_bytes,
		.device_used_bytes = upload.device_used_bytes,
		.depth = engine.depth,
		.uring = engine.uring,
		.direct = engine.direct,
		.backend_device = stage->backend->device,
		.numa_node = stage->backend->numa_node,
	};
	stage_progress_stats(stage->follow, &ret_stats->told, &ret_stats->untold);
}

int ddpfs_stage_route(struct ddpfs_stage *stage, char *buf, size_t buf_size)
{
	char then[DDPFS_STAGE_TEXT_MAX / 2];
	struct prefetch_stats engine;
	prefetch_stats_get(stage->prefetch, &engine);
	stage->backend->ops->route(stage->backend, then, sizeof(then));
	int len = snprintf(buf, buf_size, "read by %s into %s", engine.uring ? "io_uring" : "pread threads", then);
	return (size_t)len < buf_size ? len : -ERANGE;
}

const char *ddpfs_stage_version(void)
{
	return DDPFS_VERSION;
}
