/* SPDX-License-Identifier: Apache-2.0 */
/* libddpfs_stage through its public header: order, bytes, ranks, epochs, states, memory, bad bytes, threads. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpu_stage/pages.h"
#include "gpu_stage/clock.h"
#include "gpu_stage/stage.h"
#include "gpu_stage/arena_samples.h"
#include "shard/view.h"
#include "tests/prefetch/dataset.h"

static const uint64_t SIZES[] = { 20000, 4096, 100, 70001, 30000, 0, 8192, 1, 120000, (1 << 20) + 77, 512, 40000 };
enum { N_SIZES = sizeof(SIZES) / sizeof(SIZES[0]), N_FILES = 600, N_SHARDS = 5 };

static struct dataset data;

static struct ddpfs_stage *open_stage(const struct dataset *d, struct ddpfs_stage_options o)
{
	struct ddpfs_stage_error error = { 0 };
	struct ddpfs_stage *stage = NULL;
	o.size = sizeof(o);
	if (!o.memory_bytes)
		o.memory_bytes = 64 << 20;
	if (ddpfs_stage_open(d->dir, &o, &error, &stage) < 0)
		fail_msg("%s", error.text);
	return stage;
}

static struct ddpfs_batch *next(struct ddpfs_stage *stage, uint32_t n)
{
	struct ddpfs_stage_error error = { 0 };
	struct ddpfs_batch *batch = NULL;
	int rc = ddpfs_stage_next(stage, n, 0, &error, &batch);
	if (rc < 0)
		fail_msg("%s", error.text);
	return rc ? batch : NULL;
}

static void assert_bytes(const struct ddpfs_item *item)
{
	assert_int_equal(item->len, dataset_length(&data, item->file));
	assert_non_null(item->data);
	assert_ptr_equal(item->data, item->device);
	assert_true(dataset_equal(item->file, 0, item->data, item->len));
}

/* One pass over an epoch in batches of n against shard_view; returns its samples. */
static uint64_t pass(struct ddpfs_stage *stage, struct shard_view *view, uint32_t rank, uint64_t epoch, uint32_t n)
{
	struct shard_epoch *e;
	struct ddpfs_batch *batch;
	uint64_t turn = 0;
	assert_int_equal(shard_view_epoch(view, epoch, &e), 0);
	while ((batch = next(stage, n))) {
		assert_int_equal(batch->epoch, epoch);
		assert_int_equal(batch->turn, turn);
		assert_int_equal(batch->n_items, batch->n_samples);
		for (uint32_t i = 0; i < batch->n_items; i++) {
			uint32_t sample;
			uint64_t step;
			assert_int_equal(shard_epoch_turn(e, rank, turn + i, &sample, &step), 0);
			assert_int_equal(batch->items[i].sample, sample);
			assert_int_equal(batch->items[i].step, step);
			assert_bytes(&batch->items[i]);
		}
		turn += batch->n_samples;
		ddpfs_batch_release(batch);
	}
	assert_int_equal(turn, shard_epoch_turns(e, rank));
	shard_epoch_put(e);
	return turn;
}

static struct shard_view *view_of(enum shard_order_mode order, uint32_t rank, uint32_t world, uint64_t seed)
{
	struct shard_view_options o = SHARD_VIEW_OPTIONS_DEFAULT;
	struct shard_view *view;
	o.order = order;
	o.rank = rank;
	o.world = world;
	o.seed = seed;
	assert_int_equal(shard_view_new(data.index, &o, NULL, &view), 0);
	return view;
}

static void every_order_gives_the_views_samples_and_the_sources_bytes(void **state)
{
	static const char *const names[] = { "full", "chunk", "torch", "none" };
	(void)state;
	for (unsigned m = 0; m < 4; m++) {
		enum shard_order_mode mode;
		assert_int_equal(shard_order_mode_parse(names[m], &mode), 0);
		struct shard_view *view = view_of(mode, 0, 1, 3);
		struct ddpfs_stage *stage =
		        open_stage(&data, (struct ddpfs_stage_options){ .order = names[m], .seed = 3 });
		for (uint64_t epoch = 0; epoch < 3; epoch++) {
			assert_int_equal(ddpfs_stage_set_epoch(stage, epoch, NULL), 0);
			assert_int_equal(pass(stage, view, 0, epoch, 37), N_FILES);
			assert_null(next(stage, 1));
		}
		assert_int_equal(ddpfs_stage_close(stage), 0);
		shard_view_free(view);
	}
}

static void ranks_share_out_the_epoch(void **state)
{
	(void)state;
	uint32_t times[N_FILES] = { 0 };
	for (uint32_t rank = 0; rank < 4; rank++) {
		struct shard_view *view = view_of(SHARD_ORDER_FULL, rank, 4, 9);
		struct ddpfs_stage *stage = open_stage(
		        &data, (struct ddpfs_stage_options){ .order = "full", .rank = rank, .world = 4, .seed = 9 });
		struct ddpfs_batch *batch;
		pass(stage, view, rank, 0, 16);
		assert_int_equal(ddpfs_stage_set_epoch(stage, 0, NULL), 0);
		while ((batch = next(stage, 64))) {
			for (uint32_t i = 0; i < batch->n_items; i++)
				times[batch->items[i].sample]++;
			ddpfs_batch_release(batch);
		}
		assert_int_equal(ddpfs_stage_close(stage), 0);
		shard_view_free(view);
	}
	for (uint32_t i = 0; i < N_FILES; i++)
		assert_int_equal(times[i], 1);
}

/* Stops with two ranks, goes on with three: every sample once. */
static void a_state_resumes_with_another_world(void **state)
{
	(void)state;
	uint32_t times[N_FILES] = { 0 };
	char text[DDPFS_STAGE_STATE_MAX];
	for (uint32_t rank = 0; rank < 2; rank++) {
		struct ddpfs_stage *stage =
		        open_stage(&data, (struct ddpfs_stage_options){
		                                  .order = "full", .rank = rank, .world = 2, .seed = 5, .epoch = 2 });
		for (unsigned k = 0; k < 3; k++) {
			struct ddpfs_batch *batch = next(stage, 30);
			for (uint32_t i = 0; i < batch->n_items; i++)
				times[batch->items[i].sample]++;
			assert_int_equal(ddpfs_stage_state(stage, batch->epoch, batch->turn + batch->n_samples, text,
			                         sizeof(text)),
			        0);
			ddpfs_batch_release(batch);
		}
		assert_int_equal(ddpfs_stage_close(stage), 0);
	}
	for (uint32_t rank = 0; rank < 3; rank++) {
		/* One rank opens with the state; the others take it later. */
		struct ddpfs_stage *stage = open_stage(
		        &data, (struct ddpfs_stage_options){ .rank = rank, .world = 3, .state = rank ? NULL : text });
		if (rank)
			assert_int_equal(ddpfs_stage_resume(stage, text, NULL), 0);
		struct ddpfs_batch *batch;
		while ((batch = next(stage, 50))) {
			assert_int_equal(batch->epoch, 2);
			for (uint32_t i = 0; i < batch->n_items; i++) {
				times[batch->items[i].sample]++;
				assert_bytes(&batch->items[i]);
			}
			ddpfs_batch_release(batch);
		}
		assert_int_equal(ddpfs_stage_close(stage), 0);
	}
	for (uint32_t i = 0; i < N_FILES; i++)
		assert_int_equal(times[i], 1);
}

static void a_damaged_state_is_refused_and_changes_nothing(void **state)
{
	(void)state;
	struct ddpfs_stage_error error = { 0 };
	struct ddpfs_stage *stage = open_stage(&data, (struct ddpfs_stage_options){ .order = "full" });
	uint64_t epoch, turn;
	ddpfs_batch_release(next(stage, 10));
	assert_true(ddpfs_stage_resume(stage, "{\"version\":1}", &error) < 0);
	assert_true(error.text[0]);
	ddpfs_stage_position(stage, &epoch, &turn, NULL);
	assert_int_equal(epoch, 0);
	assert_int_equal(turn, 10);
	assert_int_equal(ddpfs_stage_close(stage), 0);
}

static void what_fits_is_read_once(void **state)
{
	struct ddpfs_stage_stats first, later;
	struct ddpfs_stage *stage = open_stage(&data, (struct ddpfs_stage_options){ .memory_bytes = 256 << 20 });
	struct ddpfs_batch *batch;
	(void)state;
	for (uint64_t epoch = 0; epoch < 4; epoch++) {
		assert_int_equal(ddpfs_stage_set_epoch(stage, epoch, NULL), 0);
		while ((batch = next(stage, 32)))
			ddpfs_batch_release(batch);
		ddpfs_stage_stats_get(stage, epoch ? &later : &first);
	}
	assert_int_equal(first.reads, later.reads);
	assert_int_equal(later.samples, 4 * N_FILES);
	assert_int_equal(later.asked, first.asked);
	assert_int_equal(ddpfs_stage_close(stage), 0);
}

/* Small samples are read together with their neighbours, also where the arena holds little more than a pool of
 * order=chunk. */
static void small_samples_are_read_together_in_little_memory(void **state)
{
	enum { SAMPLES = 4000 };
	struct dataset small;
	struct ddpfs_stage_stats stats;
	struct ddpfs_batch *batch;
	uint64_t read_bytes = (uint64_t)SAMPLES * 4096;
	(void)state;
	dataset_new(&small, SAMPLES, 2, &(uint64_t){ 4096 }, 1);
	struct ddpfs_stage *stage =
	        open_stage(&small, (struct ddpfs_stage_options){ .memory_bytes = 3 * read_bytes, .order = "chunk" });
	while ((batch = next(stage, 64))) {
		for (uint32_t i = 0; i < batch->n_items; i++)
			assert_true(dataset_equal(batch->items[i].file, 0, batch->items[i].data, batch->items[i].len));
		ddpfs_batch_release(batch);
	}
	ddpfs_stage_stats_get(stage, &stats);
	assert_int_equal(stats.samples, SAMPLES);
	assert_in_range(stats.reads, 1, SAMPLES / 10 + stats.asked);
	assert_int_equal(ddpfs_stage_close(stage), 0);
	dataset_free(&small);
}

static void held_samples_keep_their_bytes(void **state)
{
	enum { HELD = 12 };
	struct ddpfs_batch *held[HELD] = { 0 };
	struct ddpfs_stage *stage = open_stage(&data, (struct ddpfs_stage_options){ .memory_bytes = 32 << 20 });
	(void)state;
	/* Two epochs go through an arena that is smaller than the dataset; a few batches of the first stay. */
	for (uint64_t epoch = 0; epoch < 2; epoch++) {
		struct ddpfs_batch *batch;
		unsigned k = 0;
		assert_int_equal(ddpfs_stage_set_epoch(stage, epoch, NULL), 0);
		while ((batch = next(stage, 8))) {
			if (epoch == 0 && k < HELD)
				held[k++] = batch;
			else
				ddpfs_batch_release(batch);
		}
	}
	for (unsigned k = 0; k < HELD; k++) {
		for (uint32_t i = 0; i < held[k]->n_items; i++)
			assert_bytes(&held[k]->items[i]);
	}
	assert_int_equal(ddpfs_stage_close(stage), -EBUSY);
	for (unsigned k = 0; k < HELD; k++)
		ddpfs_batch_release(held[k]);
	assert_int_equal(ddpfs_stage_close(stage), 0);
}

/* Stores a sample as the read-ahead does. */
static int bring(struct stage_samples *samples, uint32_t sample)
{
	struct stage_layout layout;
	struct stage_entry *entry;
	assert_int_equal(stage_layout_sample(data.index, sample, &layout), 0);
	int rc = stage_samples_open(samples, &layout, STAGE_ROOM_AHEAD, true, &entry);
	if (rc < 0)
		return rc;
	assert_non_null(stage_samples_claim(samples, entry, 0));
	stage_samples_wrote(samples, entry, entry->one.len);
	stage_samples_unpin(samples, &entry, 1);
	return 0;
}

/* Hands a sample out, and takes it back unless `held` wants it.  False: it is not there. */
static bool hand_out(struct stage_samples *samples, uint32_t sample, struct stage_entry **held)
{
	uint64_t key = stage_sample_key(sample);
	struct stage_entry *entry;
	bool doubtful, discarded = false;
	struct stage_take take = { .keys = &key, .n = 1, .keep_pages = 1, .entries = &entry, .doubtful = &doubtful };
	if (!stage_samples_take(samples, &take, &discarded))
		return false;
	if (held)
		*held = entry;
	else
		stage_samples_give_back(samples, &entry, 1);
	return true;
}

static void room_is_taken_from_what_nobody_holds_and_was_used_longest_ago(void **state)
{
	enum { ROOM = 8, SAMPLES = 16 };
	uint32_t ids[SAMPLES], n = 0;
	struct stage_samples *samples;
	struct stage_entry *held;
	struct stage_samples_stats stats;
	struct stage_space *space;
	(void)state;
	assert_int_equal(stage_space_new(ROOM * STAGE_PAGE, &space), 0);
	assert_int_equal(stage_samples_new(data.index, space, &samples), 0);
	for (uint32_t sample = 0; n < SAMPLES; sample++) {
		struct stage_layout layout;
		assert_int_equal(stage_layout_sample(data.index, sample, &layout), 0);
		if (layout.pages == 1)
			ids[n++] = sample;
		stage_layout_done(&layout);
	}
	for (unsigned i = 0; i < ROOM; i++)
		assert_int_equal(bring(samples, ids[i]), 0);
	assert_int_equal(bring(samples, ids[ROOM]), -ENOBUFS); /* nothing was used yet */
	for (unsigned i = 0; i < ROOM; i++)
		assert_true(hand_out(samples, ids[i], NULL));
	/* A later epoch: the first is held, the second was had again. */
	assert_true(hand_out(samples, ids[0], &held));
	assert_true(hand_out(samples, ids[1], NULL));
	for (unsigned i = ROOM; i < 2 * ROOM - 2; i++)
		assert_int_equal(bring(samples, ids[i]), 0);
	for (unsigned i = 2; i < ROOM; i++)
		assert_false(hand_out(samples, ids[i], NULL));
	assert_int_equal(bring(samples, ids[14]), 0); /* the second had its chance */
	assert_false(hand_out(samples, ids[1], NULL));
	assert_int_equal(bring(samples, ids[15]), -ENOBUFS);
	assert_true(hand_out(samples, ids[0], NULL)); /* still, and held */
	assert_int_equal(bring(samples, ids[15]), -ENOBUFS);
	stage_samples_give_back(samples, &held, 1);
	assert_int_equal(bring(samples, ids[15]), 0);
	assert_false(hand_out(samples, ids[0], NULL));
	stage_samples_stats_get(samples, &stats);
	assert_int_equal(stats.evicted, ROOM);
	assert_int_equal(stats.held_bytes, 0);
	assert_int_equal(stats.used_bytes, ROOM * STAGE_PAGE);
	stage_samples_free(samples);
	stage_space_free(space);
}

/* ---- any sizes mixed ---- */

static uint32_t next_random(uint32_t *x, uint32_t below)
{
	*x = *x * 1664525 + 1013904223;
	return (uint32_t)((uint64_t)(*x >> 4) * below >> 28);
}

static uint64_t resident(const void *base, size_t pages)
{
	unsigned char *there = calloc(pages, 1);
	uint64_t n = 0;
	assert_non_null(there);
	assert_int_equal(mincore((void *)(uintptr_t)base, pages * STAGE_PAGE, there), 0);
	for (size_t i = 0; i < pages; i++)
		n += there[i] & 1;
	free(there);
	return n;
}

static uint32_t any_size(uint32_t *x, uint32_t max)
{
	switch (next_random(x, 16)) {
	case 0:
		return 1 + next_random(x, max);
	case 1:
	case 2:
		return 1 + next_random(x, max / 8);
	default:
		return 1 + next_random(x, 6);
	}
}

/* Entries of the arena that a consumer holds, each filled with its key. */
enum { HOLDS_MAX = 160 };
struct holds {
	uint32_t n;
	struct stage_entry *entries[HOLDS_MAX];
	uint64_t pages;
};

static void let_go(struct stage_samples *samples, struct holds *h, uint32_t i)
{
	struct stage_entry *e = h->entries[i];
	for (uint32_t page = 0; page < e->pages; page++)
		assert_int_equal(*(const uint64_t *)(e->data + (size_t)page * STAGE_PAGE), e->key << 20 | page);
	h->pages -= e->pages;
	h->entries[i] = h->entries[--h->n];
	stage_samples_unpin(samples, &e, 1);
}

/* A sample has room whenever its pages and those held are not more than the arena, wherever these lie and whatever
 * came before; and
 * memory stays within the arena. */
static void whatever_is_not_held_is_room(void **state)
{
	enum { ROOM = 700, STEPS = 6000, SEEDS = 6 };
	(void)state;
	for (uint32_t seed = 1; seed <= SEEDS; seed++) {
		struct stage_space *space;
		struct stage_samples *samples;
		struct stage_samples_stats stats;
		struct holds h = { 0 };
		uint32_t x = seed;
		assert_int_equal(stage_space_new(ROOM * STAGE_PAGE, &space), 0);
		/* A huge page would be there as a whole.  A kernel that has none refuses this. */
		madvise(stage_space_arena(space), ROOM * STAGE_PAGE, MADV_NOHUGEPAGE);
		assert_int_equal(stage_samples_new(data.index, space, &samples), 0);
		for (uint64_t key = 1; key <= STEPS; key++) {
			uint32_t pages = any_size(&x, ROOM), kept = next_random(&x, 2);
			struct stage_layout l = { .key = key,
				.sample = (uint32_t)key,
				.n_parts = 1,
				.n_blocks = 1,
				.pages = pages,
				.one = { .len = (uint64_t)pages * STAGE_PAGE } };
			struct stage_entry *e = NULL;
			while (h.n == HOLDS_MAX || h.pages + pages > ROOM)
				let_go(samples, &h, next_random(&x, h.n));
			assert_int_equal(stage_samples_open(samples, &l, STAGE_ROOM_NOW, kept, &e), 0);
			assert_non_null(stage_samples_claim(samples, e, 0));
			for (uint32_t page = 0; page < pages; page++)
				*(uint64_t *)(e->data + (size_t)page * STAGE_PAGE) = key << 20 | page;
			stage_samples_wrote(samples, e, e->one.len);
			h.entries[h.n++] = e;
			h.pages += pages;
			for (uint32_t i = next_random(&x, 3); i && h.n; i--)
				let_go(samples, &h, next_random(&x, h.n));
			if (key % 500 == 0) {
				stage_samples_stats_get(samples, &stats);
				uint64_t there = resident(stage_space_arena(space), ROOM);
				assert_true(there + stats.apart_bytes / STAGE_PAGE <= ROOM);
			}
		}
		stage_samples_stats_get(samples, &stats);
		assert_true(stats.apart > 10);
		assert_int_equal(stats.held_bytes, h.pages * STAGE_PAGE);
		while (h.n)
			let_go(samples, &h, 0);
		stage_samples_free(samples);
		stage_space_free(space);
	}
}

static uint64_t pages_of(const struct ddpfs_batch *batch)
{
	uint64_t pages = 0;
	for (uint32_t i = 0; i < batch->n_items; i++)
		pages += (batch->items[i].len + STAGE_PAGE - 1) / STAGE_PAGE;
	return pages;
}

/* Pages of the next n samples. */
static uint64_t pages_ahead(struct shard_epoch *e, uint64_t turn, uint64_t turns, uint32_t n)
{
	uint64_t pages = 0;
	for (uint64_t t = turn; t < turn + n && t < turns; t++) {
		uint32_t sample;
		uint64_t step;
		assert_int_equal(shard_epoch_turn(e, 0, t, &sample, &step), 0);
		pages += (dataset_length(&data, sample) + STAGE_PAGE - 1) / STAGE_PAGE;
	}
	return pages;
}

enum { HELD_MAX = 24 };
struct held {
	uint32_t n;
	struct ddpfs_batch *batches[HELD_MAX];
	uint64_t pages;
};

static void release_one(struct held *h, uint32_t i)
{
	struct ddpfs_batch *batch = h->batches[i];
	for (uint32_t k = 0; k < batch->n_items; k++)
		assert_bytes(&batch->items[k]);
	h->pages -= pages_of(batch);
	h->batches[i] = h->batches[--h->n];
	ddpfs_batch_release(batch);
}

/* What a consumer holds and the next batch are not more than the arena: then the batch comes, with any sizes,
 * whatever is held. */
static void a_batch_comes_when_it_and_what_is_held_fit_the_arena(void **state)
{
	enum { SEEDS = 4, FILES = 300, N = 48 };
	struct dataset d, saved = data;
	(void)state;
	for (uint32_t seed = 1; seed <= SEEDS; seed++) {
		uint64_t sizes[N], turns, room;
		const uint8_t *base;
		struct held h = { 0 };
		uint32_t x = seed;
		for (uint32_t i = 0; i < N; i++)
			sizes[i] = next_random(&x, 40000);
		sizes[7] = (11 << 20) + next_random(&x, 12 << 20);
		sizes[23] = (2 << 20) + next_random(&x, 6 << 20);
		sizes[40] = next_random(&x, 900000);
		dataset_new(&d, FILES, 3, sizes, N);
		data = d;
		struct shard_view *view = view_of(SHARD_ORDER_FULL, 0, 1, seed);
		struct ddpfs_stage *stage = open_stage(
		        &d, (struct ddpfs_stage_options){ .memory_bytes = 32 << 20, .order = "full", .seed = seed });
		ddpfs_stage_arena(stage, &base, &room);
		room /= STAGE_PAGE;
		for (uint64_t epoch = 0; epoch < 2; epoch++) {
			struct shard_epoch *e;
			assert_int_equal(shard_view_epoch(view, epoch, &e), 0);
			assert_int_equal(ddpfs_stage_set_epoch(stage, epoch, NULL), 0);
			turns = shard_epoch_turns(e, 0);
			for (uint64_t turn = 0; turn < turns;) {
				uint32_t n = 1 + next_random(&x, 16);
				uint64_t need;
				while ((need = pages_ahead(e, turn, turns, n)) > room)
					n--;
				while (h.n == HELD_MAX || h.pages + need > room)
					release_one(&h, next_random(&x, h.n));
				struct ddpfs_batch *batch = next(stage, n);
				assert_int_equal(pages_of(batch), need);
				turn += batch->n_samples;
				h.batches[h.n++] = batch;
				h.pages += need;
				if (next_random(&x, 3) == 0)
					release_one(&h, next_random(&x, h.n));
			}
			shard_epoch_put(e);
		}
		while (h.n)
			release_one(&h, 0);
		assert_int_equal(ddpfs_stage_close(stage), 0);
		shard_view_free(view);
		dataset_free(&d);
	}
	data = saved;
}

/* Half of the arena is one sample, a sliver of it is held in many places: the sample comes, and what is said when it
 * does not is
 * true. */
static void small_held_samples_leave_room_for_a_large_one(void **state)
{
	static const uint64_t sizes[] = { 20000, 20000, 20000, 20000, 20000, 20000, 20000, 20000, 20000, 20000, 20000,
		20000, 20000, 20000, 20000, 20000, 20000, 20000, 20000, 20000, 20000, 20000, 20000, 20000, 20000, 20000,
		20000, 20000, 20000, 20000, 20000, 20000, 20000, 20000, 20000, 20000, 20000, 20000, 20000, 12 << 20 };
	enum { SMALL = 40, FILES = 1200 };
	struct dataset d, saved = data;
	struct ddpfs_batch *held[FILES], *large[2];
	struct ddpfs_stage_error error = { 0 };
	struct ddpfs_stage_stats stats;
	char path[DDPFS_STAGE_PATH_MAX];
	uint32_t n = 0;
	(void)state;
	dataset_new(&d, FILES, 2, sizes, SMALL);
	data = d;
	struct ddpfs_stage *stage = open_stage(&d, (struct ddpfs_stage_options){ .memory_bytes = 32 << 20 });
	for (uint32_t file = 0; file < FILES; file++) {
		if (file % SMALL == SMALL - 1)
			continue;
		assert_true(ddpfs_stage_path(stage, file, path, sizeof(path)) > 0);
		struct ddpfs_batch *batch;
		assert_int_equal(ddpfs_stage_get(stage, path, 0, &error, &batch), 1);
		if (file % 6 == 0)
			held[n++] = batch;
		else
			ddpfs_batch_release(batch);
	}
	ddpfs_stage_stats_get(stage, &stats);
	assert_true(stats.held_bytes < stats.arena_bytes / 5);
	for (unsigned i = 0; i < 2; i++) {
		assert_true(ddpfs_stage_path(stage, SMALL - 1 + i * SMALL, path, sizeof(path)) > 0);
		int rc = ddpfs_stage_get(stage, path, DDPFS_STAGE_NOWAIT, &error, &large[i]);
		if (i == 0) {
			assert_int_equal(rc, 1);
			assert_bytes(&large[0]->items[0]);
		} else {
			assert_int_equal(rc, -EAGAIN);
		}
	}
	char hold[128];
	ddpfs_stage_stats_get(stage, &stats);
	snprintf(hold, sizeof(hold), "batches hold %llu of the arena's %llu", (unsigned long long)stats.held_bytes,
	        (unsigned long long)stats.arena_bytes);
	assert_non_null(strstr(error.text, hold));
	ddpfs_batch_release(large[0]);
	assert_int_equal(ddpfs_stage_get(stage, path, 0, &error, &large[1]), 1);
	assert_bytes(&large[1]->items[0]);
	ddpfs_batch_release(large[1]);
	for (uint32_t i = 0; i < n; i++) {
		assert_bytes(&held[i]->items[0]);
		ddpfs_batch_release(held[i]);
	}
	assert_int_equal(ddpfs_stage_close(stage), 0);
	dataset_free(&d);
	data = saved;
}

struct later {
	struct ddpfs_batch *batch;
	pid_t waiter; /* thread */
};

static void wait_asleep(pid_t waiter)
{
	char path[64], text[512] = "";
	const char *name_end = NULL;
	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)waiter);
	do {
		nanosleep(&(struct timespec){ .tv_nsec = 30000000 }, NULL);
		FILE *f = fopen(path, "re");
		assert_non_null(f);
		if (fgets(text, sizeof(text), f))
			name_end = strrchr(text, ')');
		fclose(f);
	} while (!name_end || strncmp(name_end, ") S", 3) != 0);
}

/* Releases the batch once the waiter sleeps. */
static void *release_later(void *arg)
{
	const struct later *later = arg;
	wait_asleep(later->waiter);
	ddpfs_batch_release(later->batch);
	return NULL;
}

/* Files of 1 MiB in an arena of 24: held batches stop `next` until one is released. */
static void a_full_arena_waits_for_a_release(void **state)
{
	static const uint64_t big[] = { 1 << 20 };
	struct dataset d, saved = data;
	struct ddpfs_batch *held[8] = { 0 }, *batch = NULL;
	struct ddpfs_stage_stats stats;
	struct ddpfs_stage_error error = { 0 };
	pthread_t thread;
	int rc = 0;
	unsigned n = 0;
	(void)state;
	dataset_new(&d, 60, 2, big, 1);
	data = d;
	struct ddpfs_stage *stage = open_stage(&d, (struct ddpfs_stage_options){ .memory_bytes = 32 << 20 });
	while (n < 8 && (rc = ddpfs_stage_next(stage, 6, DDPFS_STAGE_NOWAIT, &error, &batch)) == 1)
		held[n++] = batch;
	assert_int_equal(rc, -EAGAIN);
	assert_int_equal(n, 4);
	uint64_t began = base_now_ns();
	assert_int_equal(ddpfs_stage_next(stage, 6, DDPFS_STAGE_BRIEFLY, &error, &batch), -EAGAIN);
	assert_true(base_now_ns() - began >= DDPFS_STAGE_BRIEF_MS * UINT64_C(1000000));
	ddpfs_stage_stats_get(stage, &stats);
	assert_true(stats.used_bytes <= stats.arena_bytes);
	struct later later = { .batch = held[0], .waiter = gettid() };
	assert_int_equal(pthread_create(&thread, NULL, release_later, &later), 0);
	batch = next(stage, 6);
	assert_int_equal(batch->turn, 24);
	pthread_join(thread, NULL);
	for (uint32_t i = 0; i < batch->n_items; i++)
		assert_bytes(&batch->items[i]);
	ddpfs_stage_stats_get(stage, &stats);
	assert_true(stats.wait_memory_ns > 0);
	ddpfs_batch_release(batch);
	for (unsigned i = 1; i < n; i++)
		ddpfs_batch_release(held[i]);
	/* 25 files never fit. */
	assert_int_equal(ddpfs_stage_next(stage, 25, 0, &error, &batch), -ENOBUFS);
	assert_non_null(strstr(error.text, "smaller batches"));
	batch = next(stage, 20);
	assert_int_equal(batch->turn, 30);
	ddpfs_batch_release(batch);
	assert_int_equal(ddpfs_stage_close(stage), 0);
	dataset_free(&d);
	data = saved;
}

struct waiting {
	struct ddpfs_stage *stage;
	struct ddpfs_batch *batch;
	_Atomic pid_t thread;
};

static void *next_of_the_order(void *arg)
{
	struct waiting *w = arg;
	w->thread = gettid();
	w->batch = next(w->stage, 6);
	return NULL;
}

/* A thread waits in `next` for room: calls of other threads that must not wait return meanwhile. */
static void nobody_who_must_not_wait_waits_for_another_next(void **state)
{
	static const uint64_t big[] = { 1 << 20 };
	struct dataset d, saved = data;
	struct ddpfs_batch *held[8] = { 0 }, *batch = NULL;
	struct ddpfs_stage_error error = { 0 };
	struct ddpfs_stage_stats stats;
	pthread_t thread;
	unsigned n = 0;
	(void)state;
	dataset_new(&d, 60, 2, big, 1);
	data = d;
	struct ddpfs_stage *stage = open_stage(&d, (struct ddpfs_stage_options){ .memory_bytes = 32 << 20 });
	while (n < 8 && ddpfs_stage_next(stage, 6, DDPFS_STAGE_NOWAIT, &error, &batch) == 1)
		held[n++] = batch;
	struct waiting waiting = { .stage = stage };
	assert_int_equal(pthread_create(&thread, NULL, next_of_the_order, &waiting), 0);
	while (!waiting.thread)
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	wait_asleep(waiting.thread);
	assert_int_equal(ddpfs_stage_next(stage, 1, DDPFS_STAGE_NOWAIT, &error, &batch), -EAGAIN);
	assert_non_null(strstr(error.text, "another thread"));
	assert_int_equal(ddpfs_stage_next(stage, 1, DDPFS_STAGE_BRIEFLY, &error, &batch), -EAGAIN);
	ddpfs_stage_stats_get(stage, &stats);
	assert_int_equal(stats.batches, n); /* the other thread waits still */
	ddpfs_batch_release(held[0]);
	pthread_join(thread, NULL);
	assert_int_equal(waiting.batch->turn, 24);
	ddpfs_batch_release(waiting.batch);
	for (unsigned i = 1; i < n; i++)
		ddpfs_batch_release(held[i]);
	assert_int_equal(ddpfs_stage_close(stage), 0);
	dataset_free(&d);
	data = saved;
}

static void a_file_larger_than_the_arena_is_refused_and_a_large_one_is_contiguous(void **state)
{
	static const uint64_t sizes[] = { 5000, (17 << 20) + 3, 3000, 26 << 20 };
	struct dataset d, saved = data;
	struct ddpfs_stage_error error = { 0 };
	struct ddpfs_batch *batch;
	(void)state;
	dataset_new(&d, 4, 2, sizes, 4);
	data = d;
	struct ddpfs_stage *stage =
	        open_stage(&d, (struct ddpfs_stage_options){ .memory_bytes = 32 << 20, .order = "full" });
	unsigned good = 0, bad = 0;
	for (uint64_t turn = 0; turn < 4; turn++) {
		int rc = ddpfs_stage_next(stage, 1, 0, &error, &batch);
		if (rc == 1) {
			assert_bytes(&batch->items[0]);
			ddpfs_batch_release(batch);
			good++;
			continue;
		}
		assert_int_equal(rc, -ENOBUFS);
		assert_int_equal(error.sample, 3);
		assert_non_null(strstr(error.text, "d000/f0000003"));
		assert_non_null(strstr(error.text, "more memory"));
		assert_int_equal(ddpfs_stage_skip(stage, 1), 0);
		bad++;
	}
	assert_int_equal(good, 3);
	assert_int_equal(bad, 1);
	assert_int_equal(ddpfs_stage_close(stage), 0);
	dataset_free(&d);
	data = saved;
}

static void a_damaged_sample_fails_its_batch_by_name(void **state)
{
	struct dataset d, saved = data;
	struct ddpfs_stage_error error = { 0 };
	struct ddpfs_batch *batch;
	struct shard_file f;
	char path[128];
	const uint32_t victim = 9; /* of two blocks: damaged in the second */
	(void)state;
	dataset_new(&d, 120, 3, SIZES, N_SIZES);
	data = d;
	assert_int_equal(shard_index_file(d.index, victim, &f), 0);
	dataset_shard_path(&d, f.shard, path);
	int fd = open(path, O_WRONLY);
	assert_int_equal(pwrite(fd, "damage", 6, (off_t)(f.offset + SHARD_BLOCK + 10)), 6);
	close(fd);
	struct ddpfs_stage *stage = open_stage(&d, (struct ddpfs_stage_options){ .order = "full", .seed = 2 });
	unsigned failures = 0;
	for (uint64_t turn = 0; turn < 120;) {
		int rc = ddpfs_stage_next(stage, 10, 0, &error, &batch);
		if (rc == 1) {
			for (uint32_t i = 0; i < batch->n_items; i++) {
				assert_int_not_equal(batch->items[i].sample, victim);
				assert_bytes(&batch->items[i]);
			}
			assert_int_equal(batch->turn, turn);
			ddpfs_batch_release(batch);
		} else {
			assert_int_equal(rc, -EBADMSG);
			assert_int_equal(error.file, victim);
			assert_int_equal(error.sample, victim);
			assert_non_null(strstr(error.text, "d000/f0000009"));
			/* The same samples again, the same answer. */
			assert_int_equal(ddpfs_stage_next(stage, 10, 0, NULL, &batch), -EBADMSG);
			assert_int_equal(ddpfs_stage_skip(stage, 10), 0);
			failures++;
		}
		turn += 10;
	}
	assert_int_equal(failures, 1);
	assert_int_equal(ddpfs_stage_get(stage, "d000/f0000009", 0, &error, &batch), -EBADMSG);
	assert_int_equal(ddpfs_stage_close(stage), 0);
	dataset_free(&d);
	data = saved;
}

static void count_bad(void *arg, const struct ddpfs_stage_error *error)
{
	assert_int_equal(error->code, -EBADMSG);
	assert_int_equal(error->sample % 36, 9);
	assert_non_null(strstr(error->text, "d000/f0000"));
	(*(unsigned *)arg)++;
}

/* Four damaged samples, a batch of everything: the others come, in order. */
static void damaged_samples_are_left_out_where_that_is_wanted(void **state)
{
	struct dataset d, saved = data;
	struct ddpfs_stage_error error = { 0 };
	struct ddpfs_batch *batch;
	struct shard_file f;
	char path[128];
	unsigned told = 0;
	(void)state;
	dataset_new(&d, 120, 3, SIZES, N_SIZES);
	data = d;
	for (uint32_t victim = 9; victim < 120; victim += 36) {
		assert_int_equal(shard_index_file(d.index, victim, &f), 0);
		dataset_shard_path(&d, f.shard, path);
		int fd = open(path, O_WRONLY);
		assert_int_equal(pwrite(fd, "damage", 6, (off_t)f.offset), 6);
		close(fd);
	}
	struct ddpfs_stage_options o = {
		.order = "full", .seed = 2, .on_bad = "skip", .bad = count_bad, .bad_arg = &told
	};
	struct ddpfs_stage *stage = open_stage(&d, o), *all;
	o.on_bad = "eio";
	all = open_stage(&d, o);
	for (uint32_t n = 120; n > 4; n /= 3) {
		uint64_t samples = 0, turns = 0;
		told = 0;
		assert_int_equal(ddpfs_stage_set_epoch(stage, n, NULL), 0);
		while (ddpfs_stage_next(stage, n, 0, &error, &batch) == 1) {
			assert_int_equal(batch->turn, turns);
			for (uint32_t i = 0; i < batch->n_items; i++) {
				assert_true(i == 0 || batch->items[i].step > batch->items[i - 1].step);
				assert_bytes(&batch->items[i]);
			}
			samples += batch->n_samples;
			turns += batch->n_turns;
			ddpfs_batch_release(batch);
		}
		assert_int_equal(samples, 116);
		assert_int_equal(turns, 120);
		assert_int_equal(told, 4);
	}
	told = 0;
	assert_int_equal(ddpfs_stage_next(all, 120, 0, NULL, &batch), -EBADMSG);
	assert_int_equal(told, 0);
	assert_int_equal(ddpfs_stage_close(all), 0);
	assert_int_equal(ddpfs_stage_close(stage), 0);
	dataset_free(&d);
	data = saved;
}

static void files_are_had_by_path(void **state)
{
	struct ddpfs_stage *stage = open_stage(&data, (struct ddpfs_stage_options){ 0 });
	struct ddpfs_stage_error error = { 0 };
	struct ddpfs_batch *batch, *again;
	char path[DDPFS_STAGE_PATH_MAX];
	(void)state;
	for (uint32_t file = 0; file < 40; file++) {
		assert_true(ddpfs_stage_path(stage, file, path, sizeof(path)) > 0);
		assert_int_equal(ddpfs_stage_get(stage, path, 0, &error, &batch), 1);
		assert_int_equal(batch->n_items, 1);
		assert_int_equal(batch->items[0].file, file);
		assert_bytes(&batch->items[0]);
		assert_int_equal(ddpfs_stage_get(stage, path, 0, &error, &again), 1);
		assert_ptr_equal(again->items[0].data, batch->items[0].data);
		ddpfs_batch_release(again);
		ddpfs_batch_release(batch);
	}
	assert_int_equal(ddpfs_stage_get(stage, "no/such", 0, &error, &batch), -ENOENT);
	assert_non_null(strstr(error.text, "no/such"));
	assert_int_equal(ddpfs_stage_get(stage, "d000", 0, &error, &batch), -EISDIR);
	assert_int_equal(ddpfs_stage_close(stage), 0);
}

struct consumer {
	struct ddpfs_stage *stage;
	_Atomic uint32_t *times;
	_Atomic bool *wrong;
	uint32_t seed;
};

static void *consume(void *arg)
{
	struct consumer *c = arg;
	struct ddpfs_batch *batch, *hot;
	char path[DDPFS_STAGE_PATH_MAX];
	uint64_t last = 0;
	bool first = true;
	while (ddpfs_stage_next(c->stage, 1 + c->seed % 17, 0, NULL, &batch) == 1) {
		if (!first && batch->turn <= last)
			atomic_store(c->wrong, true);
		first = false;
		last = batch->turn;
		for (uint32_t i = 0; i < batch->n_items; i++) {
			const struct ddpfs_item *item = &batch->items[i];
			atomic_fetch_add(&c->times[item->sample], 1);
			if (!dataset_equal(item->file, 0, item->data, item->len))
				atomic_store(c->wrong, true);
		}
		c->seed = c->seed * 1103515245 + 12345;
		if (ddpfs_stage_path(c->stage, c->seed % N_FILES, path, sizeof(path)) > 0 &&
		        ddpfs_stage_get(c->stage, path, 0, NULL, &hot) == 1) {
			if (!dataset_equal(hot->items[0].file, 0, hot->items[0].data, hot->items[0].len))
				atomic_store(c->wrong, true);
			ddpfs_batch_release(hot);
		}
		ddpfs_batch_release(batch);
	}
	return NULL;
}

static void consumers_share_the_epoch(void **state)
{
	enum { THREADS = 4 };
	static _Atomic uint32_t times[N_FILES];
	_Atomic bool wrong = false;
	pthread_t threads[THREADS];
	struct consumer consumers[THREADS];
	(void)state;
	for (unsigned io = 0; io < 2; io++) {
		struct ddpfs_stage *stage =
		        open_stage(&data, (struct ddpfs_stage_options){ .memory_bytes = 40 << 20, .threads_io = io });
		for (uint64_t epoch = 0; epoch < 2; epoch++) {
			memset(times, 0, sizeof(times));
			assert_int_equal(ddpfs_stage_set_epoch(stage, epoch, NULL), 0);
			for (unsigned i = 0; i < THREADS; i++) {
				consumers[i] = (struct consumer){ stage, times, &wrong, i + 1 };
				assert_int_equal(pthread_create(&threads[i], NULL, consume, &consumers[i]), 0);
			}
			for (unsigned i = 0; i < THREADS; i++)
				pthread_join(threads[i], NULL);
			assert_false(wrong);
			for (uint32_t i = 0; i < N_FILES; i++)
				assert_int_equal(times[i], 1);
		}
		assert_int_equal(ddpfs_stage_close(stage), 0);
	}
}

static void the_way_of_the_bytes_is_said(void **state)
{
	char buf[DDPFS_STAGE_TEXT_MAX];
	struct ddpfs_stage *stage = open_stage(&data, (struct ddpfs_stage_options){ .memory_bytes = 32 << 20 });
	(void)state;
	int len = ddpfs_stage_route(stage, buf, sizeof(buf));
	assert_int_equal(len, strlen(buf));
	assert_non_null(strstr(buf, "host memory, where batches stay"));
	assert_int_equal(ddpfs_stage_route(stage, buf, (size_t)len + 1), len);
	assert_int_equal(ddpfs_stage_route(stage, buf, (size_t)len), -ERANGE);
	assert_int_equal(ddpfs_stage_close(stage), 0);
}

static void wrong_options_are_refused(void **state)
{
	const size_t size = sizeof(struct ddpfs_stage_options);
	const struct {
		struct ddpfs_stage_options options;
		const char *says;
	} cases[] = {
		{ { .rank = 2, .world = 2 }, "rank 2 of world 2" },
		{ { .order = "random" }, "order=random" },
		{ { .deal = "cards" }, "deal=cards" },
		{ { .tail = "cut" }, "tail=cut" },
		{ { .memory_bytes = 1 << 20 }, "at least 32 MiB" },
		{ { .on_bad = "ignore" }, "on_bad=ignore" },
		{ { .backend = "abacus" }, "'abacus'" },
		{ { .subdir = "nowhere" }, "nowhere" },
		{ { .state = "{" }, "" },
	};
	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct ddpfs_stage_options o = cases[i].options;
		struct ddpfs_stage_error error = { 0 };
		struct ddpfs_stage *stage = NULL;
		o.size = (uint32_t)size;
		assert_true(ddpfs_stage_open(data.dir, &o, &error, &stage) < 0);
		assert_null(stage);
		assert_true(error.code < 0 && error.text[0]);
		if (!strstr(error.text, cases[i].says))
			fail_msg("'%s' does not say '%s'", error.text, cases[i].says);
	}
	struct ddpfs_stage_error error = { 0 };
	struct ddpfs_stage *stage = NULL;
	assert_int_equal(ddpfs_stage_open("/nonexistent", NULL, &error, &stage), -ENOENT);
	assert_non_null(strstr(error.text, "/nonexistent"));
}

static int setup(void **state)
{
	(void)state;
	dataset_new(&data, N_FILES, N_SHARDS, SIZES, N_SIZES);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	dataset_free(&data);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_order_gives_the_views_samples_and_the_sources_bytes),
		cmocka_unit_test(ranks_share_out_the_epoch),
		cmocka_unit_test(a_state_resumes_with_another_world),
		cmocka_unit_test(a_damaged_state_is_refused_and_changes_nothing),
		cmocka_unit_test(what_fits_is_read_once),
		cmocka_unit_test(small_samples_are_read_together_in_little_memory),
		cmocka_unit_test(held_samples_keep_their_bytes),
		cmocka_unit_test(room_is_taken_from_what_nobody_holds_and_was_used_longest_ago),
		cmocka_unit_test(whatever_is_not_held_is_room),
		cmocka_unit_test(a_batch_comes_when_it_and_what_is_held_fit_the_arena),
		cmocka_unit_test(small_held_samples_leave_room_for_a_large_one),
		cmocka_unit_test(a_full_arena_waits_for_a_release),
		cmocka_unit_test(nobody_who_must_not_wait_waits_for_another_next),
		cmocka_unit_test(a_file_larger_than_the_arena_is_refused_and_a_large_one_is_contiguous),
		cmocka_unit_test(a_damaged_sample_fails_its_batch_by_name),
		cmocka_unit_test(damaged_samples_are_left_out_where_that_is_wanted),
		cmocka_unit_test(files_are_had_by_path),
		cmocka_unit_test(consumers_share_the_epoch),
		cmocka_unit_test(the_way_of_the_bytes_is_said),
		cmocka_unit_test(wrong_options_are_refused),
	};
	return cmocka_run_group_tests_name("stage", tests, setup, teardown);
}
