/* SPDX-License-Identifier: Apache-2.0 */
/* The warm-up: when it begins and ends, what it reads, what it leaves to others. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "shard/base/clock.h"
#include "prefetch/engine.h"
#include "prefetch/prefetch.h"
#include "prefetch/sink.h"
#include "prefetch/stream.h"
#include "tests/prefetch/asked.h"
#include "tests/prefetch/dataset.h"

static const uint64_t SIZES[] = { 20000, 4096, 100, 70001, 30000, 0, 8192, 1, 120000, 512, 40000 };
enum { N_SIZES = sizeof(SIZES) / sizeof(SIZES[0]), N_FILES = 1200, N_SHARDS = 3 };
enum { ENOUGH = PREFETCH_WARM_UP_MISSES };
enum { PAGE = 4096, DROPS_WAIT = 4 << 20 };
enum { OPENS = 60 };        /* told at a time */
enum { LARGE_BLOCKS = 10 }; /* of the large file: more than landing memory holds */
_Static_assert(N_FILES % OPENS == 0, "every file is opened");

static struct dataset data;

static uint64_t pages(uint32_t file)
{
	return (dataset_length(&data, file) + PAGE - 1) / PAGE * PAGE;
}

/* ---- a page cache: every file is one block ---- */

struct fake_sink {
	struct prefetch_sink base;
	pthread_mutex_t lock;
	pthread_cond_t cv;
	bool has[N_FILES];   /* the kernel has the bytes */
	bool named[N_FILES]; /* ... and the name */
	uint32_t stored, unannounced, wrong, twice, refused;
	uint32_t drops[N_FILES];
	uint64_t bytes, bytes_max;
	bool refuse_all;
	bool names_are_slow;                  /* one turn at a time */
	uint32_t warm_up_names, before_known; /* turns of the warm-up that were announced, before any of others */
	bool hold_stores;                     /* no store returns while it is set */
	bool held;                            /* one waits so */
};

static struct shard_view *storage_order;

static void appear(struct fake_sink *s, uint32_t file)
{
	s->bytes += s->has[file] ? 0 : pages(file);
	s->has[file] = true;
	s->bytes_max = s->bytes > s->bytes_max ? s->bytes : s->bytes_max;
}

static uint32_t fake_announce(struct prefetch_sink *sink, void *user, uint64_t epoch, uint64_t turn, uint32_t n)
{
	struct fake_sink *s = (struct fake_sink *)sink;
	struct shard_epoch *e;
	assert_int_equal(shard_view_epoch(user, epoch, &e), 0);
	pthread_mutex_lock(&s->lock);
	n = s->names_are_slow ? 1 : n;
	if (user == storage_order)
		s->warm_up_names += n;
	else if (!s->before_known)
		s->before_known = s->warm_up_names;
	bool slow = s->names_are_slow && user == storage_order;
	pthread_mutex_unlock(&s->lock);
	if (slow)
		usleep(1000);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t sample;
		assert_int_equal(shard_epoch_turn(e, 0, turn + i, &sample, NULL), 0);
		pthread_mutex_lock(&s->lock);
		s->named[sample] = true;
		pthread_mutex_unlock(&s->lock);
	}
	shard_epoch_put(e);
	return n;
}

static int fake_store(struct prefetch_sink *sink, uint32_t file, uint64_t offset, const uint8_t *bytes, uint32_t len)
{
	struct fake_sink *s = (struct fake_sink *)sink;
	bool right = dataset_equal(file, offset, bytes, len);
	pthread_mutex_lock(&s->lock);
	while (s->hold_stores) {
		s->held = true;
		pthread_cond_broadcast(&s->cv);
		pthread_cond_wait(&s->cv, &s->lock);
	}
	s->wrong += !right;
	s->stored++;
	s->twice += s->has[file];
	bool refuse = s->refuse_all || !s->named[file];
	s->refused += refuse;
	if (!refuse)
		appear(s, file);
	pthread_mutex_unlock(&s->lock);
	return refuse ? -ENOENT : 0;
}

static void fake_drop(struct prefetch_sink *sink, const struct cache_victim *victims, size_t n)
{
	struct fake_sink *s = (struct fake_sink *)sink;
	pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < n; i++) {
		uint32_t file = victims[i].id;
		s->bytes -= s->has[file] ? pages(file) : 0;
		s->has[file] = false;
		s->drops[file]++;
	}
	pthread_mutex_unlock(&s->lock);
}

static const struct prefetch_sink_ops fake_ops = { .announce = fake_announce, .store = fake_store, .drop = fake_drop };

/* ---- the storage order ---- */

static int order_get(void *user, uint64_t number, void **ret_epoch, uint64_t *ret_turns)
{
	*ret_epoch = user;
	*ret_turns = N_FILES;
	return number == 0 ? 0 : -ENODATA;
}

static void order_put(void *epoch)
{
	(void)epoch;
}

static int order_turn(void *epoch, uint64_t turn, uint32_t *ret_sample)
{
	(void)epoch;
	return shard_index_slot_sample(data.index, (uint32_t)turn, ret_sample);
}

static int order_find(void *epoch, uint32_t sample, uint64_t *ret_turn)
{
	uint32_t slot;
	(void)epoch;
	int rc = shard_index_sample_slot(data.index, sample, &slot);
	*ret_turn = slot;
	return rc;
}

/* ---- an engine with a warm-up, and a reader ---- */

struct bench {
	struct fake_sink sink;
	struct prefetch *p;
	struct prefetch_stream *stream;
	bool asked[N_FILES];
	uint64_t misses;
};

static void bench_start(struct bench *b, uint64_t memory, const struct prefetch_hook *hook)
{
	struct base_err err = { 0 };
	memset(b, 0, sizeof(*b));
	b->sink.base = (struct prefetch_sink){ .ops = &fake_ops };
	pthread_mutex_init(&b->sink.lock, NULL);
	pthread_cond_init(&b->sink.cv, NULL);
	struct prefetch_options options = {
		.index = data.index, .memory_bytes = memory, .sink = &b->sink.base, .hook = hook
	};
	if (prefetch_new(&options, &err, &b->p) < 0)
		fail_msg("%s", err.text);
	struct prefetch_stream_options stream = { .view = storage_order, .warm_up = true, .user = storage_order };
	assert_int_equal(prefetch_stream_new(b->p, &stream, &b->stream), 0);
}

static void bench_stop(struct bench *b)
{
	prefetch_stream_free(b->stream);
	prefetch_free(b->p);
	assert_int_equal(b->sink.wrong, 0);
	pthread_cond_destroy(&b->sink.cv);
	pthread_mutex_destroy(&b->sink.lock);
}

static struct prefetch_stats stats(struct bench *b)
{
	struct prefetch_stats st;
	prefetch_stats_get(b->p, &st);
	return st;
}

static void settle(struct bench *b)
{
	while (!prefetch_idle(b->p))
		usleep(50);
}

static bool has(struct bench *b, uint32_t file)
{
	pthread_mutex_lock(&b->sink.lock);
	bool there = b->sink.has[file];
	pthread_mutex_unlock(&b->sink.lock);
	return there;
}

/* Reads a file as the kernel would: it asks for what it does not have. */
static void read_file(struct bench *b, uint32_t file)
{
	if (!dataset_length(&data, file) || has(b, file))
		return;
	b->misses++;
	b->asked[file] = true;
	assert_int_equal(asked_get(b->p, (struct prefetch_demand){ .file = file, .take = (uint32_t)pages(file) }), 0);
	pthread_mutex_lock(&b->sink.lock);
	b->sink.named[file] = true;
	appear(&b->sink, file);
	pthread_mutex_unlock(&b->sink.lock);
}

/* Reads files in no order until `n` have missed since the beginning. */
static void miss(struct bench *b, uint64_t n)
{
	for (uint32_t i = 0; b->misses < n && i < 100 * N_FILES; i++)
		read_file(b, (uint32_t)(i * UINT64_C(7919) % N_FILES));
	assert_int_equal(b->misses, n);
}

static uint32_t at_slot(uint32_t slot)
{
	uint32_t sample;
	assert_int_equal(shard_index_slot_sample(data.index, slot, &sample), 0);
	return sample;
}

/* ---- tests ---- */

static void begins_after_enough_misses(void **state)
{
	(void)state;
	struct bench b;
	bench_start(&b, 512 << 20, NULL);
	miss(&b, ENOUGH - 1);
	settle(&b);
	assert_int_equal(stats(&b).warm_up, PREFETCH_WARM_UP_WATCHES);
	assert_int_equal(stats(&b).warm_ups, 0);
	miss(&b, ENOUGH);
	settle(&b);
	assert_int_equal(stats(&b).warm_ups, 1);
	assert_int_equal(stats(&b).warm_up, PREFETCH_WARM_UP_DONE);
	for (uint32_t file = 0; file < N_FILES; file++)
		assert_true(!dataset_length(&data, file) || has(&b, file));
	bench_stop(&b);
}

static void what_was_read_already_is_not_stored(void **state)
{
	(void)state;
	struct bench b;
	bench_start(&b, 512 << 20, NULL);
	miss(&b, ENOUGH);
	settle(&b);
	assert_int_equal(b.sink.twice, 0);
	assert_int_equal(b.sink.refused, 0);
	bench_stop(&b);
}

static void reads_are_long(void **state)
{
	(void)state;
	struct bench b;
	bench_start(&b, 512 << 20, NULL);
	for (uint32_t slot = N_FILES; b.misses < ENOUGH;) /* side by side */
		read_file(&b, at_slot(--slot));
	settle(&b);
	struct prefetch_stats st = stats(&b);
	/* Each shard ends with a shorter one. */
	assert_true((st.reads - b.misses) * (SHARD_BLOCK / 4) < st.warm_up_bytes);
	bench_stop(&b);
}

/* Reads every other file of middle size, in storage order, until enough have missed. */
static void miss_every_other(struct bench *b)
{
	uint32_t n = 0;
	for (uint32_t slot = 0; slot < N_FILES && b->misses < ENOUGH; slot++) {
		uint64_t len = dataset_length(&data, at_slot(slot));
		if (len >= PAGE && len < SHARD_BLOCK / 16 && n++ % 2)
			read_file(b, at_slot(slot));
	}
	assert_int_equal(b->misses, ENOUGH);
}

static void what_readers_brought_in_is_hardly_read_again(void **state)
{
	(void)state;
	struct bench b;
	bench_start(&b, 512 << 20, NULL);
	miss_every_other(&b);
	settle(&b);
	struct prefetch_stats st = stats(&b);
	assert_int_equal(st.warm_up, PREFETCH_WARM_UP_DONE);
	assert_true(st.wasted_bytes <= st.stored_bytes / 20);
	bench_stop(&b);
}

/* The first ENOUGH misses are of the last files of the last shard.  Counts the reads between these, and delays them. */
static uint64_t delay_and_count(void *arg, uint32_t shard, uint64_t offset, uint32_t len)
{
	_Atomic uint32_t *reads = arg;
	(void)len;
	return shard == N_SHARDS - 1 && offset > 100 * PAGE && ++*reads > ENOUGH ? 200000000 : 0;
}

/* Of small files.  Else demands would wait behind a hundred short reads. */
static void few_of_its_reads_are_in_flight(void **state)
{
	(void)state;
	struct bench b;
	_Atomic uint32_t reads = 0;
	struct prefetch_hook hook = { .delay_ns = delay_and_count, .arg = &reads };
	bench_start(&b, 512 << 20, &hook);
	for (uint32_t i = 0; i < ENOUGH; i++) /* it reads what is before these in long reads */
		read_file(&b, at_slot(N_FILES - 1 - 2 * i));
	while (reads == ENOUGH)
		usleep(100);
	usleep(50000);
	assert_in_range(reads - ENOUGH, 2, 12);
	bench_stop(&b);
}

/* An order that is known, and its stream. */
struct known {
	struct shard_view *view;
	struct prefetch_stream *stream;
};

static void known_begin(struct known *known, struct bench *b, enum shard_order_mode order, uint64_t window_bytes)
{
	struct base_err err = { 0 };
	struct shard_view_options options = SHARD_VIEW_OPTIONS_DEFAULT;
	options.order = order;
	assert_int_equal(shard_view_new(data.index, &options, &err, &known->view), 0);
	struct prefetch_stream_options stream = {
		.view = known->view, .user = known->view, .window_bytes = window_bytes
	};
	assert_int_equal(prefetch_stream_new(b->p, &stream, &known->stream), 0);
	settle(b);
}

static void known_end(struct known *known)
{
	prefetch_stream_free(known->stream);
	shard_view_free(known->view);
}

/* Some MiB more than the dataset has suffice, although landing memory may take more when an order is known. */
static void what_fits_beside_little_landing_memory_is_read(void **state)
{
	(void)state;
	struct bench b;
	struct known known;
	const uint64_t memory = 44 << 20, segment = 8 << 20; /* of landing memory: two, and now one */
	uint64_t whole = 0;
	for (uint32_t file = 0; file < N_FILES; file++)
		whole += pages(file);
	assert_true(whole + 2 * segment > memory);
	bench_start(&b, memory, NULL);
	miss(&b, ENOUGH);
	settle(&b);
	assert_int_equal(stats(&b).warm_up, PREFETCH_WARM_UP_DONE);
	for (uint32_t file = 0; file < N_FILES; file++)
		assert_true(!dataset_length(&data, file) || has(&b, file));
	assert_true(stats(&b).budget_bytes + segment <= memory);
	known_begin(&known, &b, SHARD_ORDER_FULL, 1 << 20);
	assert_true(stats(&b).budget_bytes + 2 * segment <= memory);
	known_end(&known);
	bench_stop(&b);
}

static void never_begins_while_an_order_is_followed(void **state)
{
	(void)state;
	struct bench b;
	struct known known;
	bench_start(&b, 8 << 20, NULL);
	known_begin(&known, &b, SHARD_ORDER_NONE, 0);
	for (uint32_t i = 0; i < N_FILES; i++)
		read_file(&b, at_slot(N_FILES - 1 - i)); /* somebody else */
	assert_true(b.misses > 2 * ENOUGH);
	settle(&b);
	assert_int_equal(stats(&b).warm_ups, 0);
	known_end(&known);
	bench_stop(&b);
}

static void begins_beside_an_order_that_readers_have_left(void **state)
{
	(void)state;
	struct bench b;
	struct known known;
	bench_start(&b, 8 << 20, NULL);
	known_begin(&known, &b, SHARD_ORDER_NONE, 0);
	prefetch_set_order_left(b.p, true);
	for (uint32_t i = 0; i < N_FILES; i++)
		read_file(&b, at_slot(N_FILES - 1 - i));
	settle(&b);
	assert_int_equal(stats(&b).warm_ups, 1);
	prefetch_set_order_left(b.p, false);
	settle(&b);
	assert_int_equal(stats(&b).warm_up, PREFETCH_WARM_UP_WATCHES);
	known_end(&known);
	bench_stop(&b);
}

struct slow_reads {
	_Atomic uint64_t ns;
	_Atomic uint64_t since_ns; /* CLOCK_MONOTONIC; when the first of them began; 0: none has */
};

/* Only the stream's reads are so long. */
static uint64_t slow(void *arg, uint32_t shard, uint64_t offset, uint32_t len)
{
	struct slow_reads *s = arg;
	(void)shard;
	(void)offset;
	if (len <= 200000)
		return 0;
	uint64_t none = 0;
	atomic_compare_exchange_strong(&s->since_ns, &none, base_now_ns());
	return atomic_load(&s->ns);
}

static void slow_hook(struct prefetch_hook *hook, struct slow_reads *reads)
{
	*hook = (struct prefetch_hook){ .delay_ns = slow, .arg = reads };
}

static void ends_when_an_order_is_known(void **state)
{
	(void)state;
	struct bench b;
	struct known known;
	struct slow_reads reads = { .ns = 20000000 };
	struct prefetch_hook hook;
	slow_hook(&hook, &reads);
	bench_start(&b, 16 << 20, &hook);
	miss(&b, ENOUGH);
	while (!stats(&b).warm_up_bytes)
		usleep(50);
	known_begin(&known, &b, SHARD_ORDER_FULL, 0);
	assert_int_equal(stats(&b).warm_up, PREFETCH_WARM_UP_WATCHES);
	uint64_t bytes = stats(&b).warm_up_bytes;
	struct shard_epoch *epoch;
	assert_int_equal(shard_view_epoch(known.view, 0, &epoch), 0);
	uint64_t before = b.misses;
	for (uint64_t turn = 0; turn < N_FILES; turn++) {
		uint32_t sample;
		assert_int_equal(shard_epoch_turn(epoch, 0, turn, &sample, NULL), 0);
		read_file(&b, sample);
		prefetch_stream_used(known.stream, &(struct prefetch_use){ .turn = turn }, 1);
		settle(&b);
	}
	shard_epoch_put(epoch);
	/* What the warm-up holds gives its room to the known order. */
	assert_int_equal(b.misses, before);
	assert_int_equal(stats(&b).warm_up_bytes, bytes);
	known_end(&known);
	bench_stop(&b);
}

static void known_order_comes(bool done)
{
	struct bench b;
	struct known known;
	bench_start(&b, 512 << 20, NULL);
	b.sink.names_are_slow = !done;
	miss(&b, ENOUGH);
	while (!stats(&b).warm_up_bytes)
		usleep(50);
	if (done)
		settle(&b);
	known_begin(&known, &b, SHARD_ORDER_FULL, 0);
	assert_true(b.sink.before_known > 0 && (done || b.sink.before_known < N_FILES / 2));
	assert_int_equal(b.sink.warm_up_names, b.sink.before_known);
	assert_int_equal(b.sink.unannounced, 0);
	/* When nothing is known any more, and the kernel has forgotten all of it, all of it is announced again. */
	known_end(&known);
	uint64_t before = b.sink.warm_up_names;
	memset(b.sink.has, 0, sizeof(b.sink.has));
	memset(b.sink.named, 0, sizeof(b.sink.named));
	b.sink.names_are_slow = false;
	miss(&b, b.misses + ENOUGH);
	settle(&b);
	assert_int_equal(stats(&b).warm_ups, 2);
	assert_true(b.sink.warm_up_names - before >= N_FILES);
	assert_int_equal(b.sink.refused, 0);
	bench_stop(&b);
}

static void names_of_a_known_order_do_not_wait_for_its_own(void **state)
{
	(void)state;
	known_order_comes(false);
	known_order_comes(true);
}

static void begins_again_when_the_order_is_lost(void **state)
{
	(void)state;
	struct bench b;
	struct known known;
	bench_start(&b, 512 << 20, NULL);
	known_begin(&known, &b, SHARD_ORDER_FULL, 1 << 20);
	known_end(&known);
	miss(&b, ENOUGH);
	settle(&b);
	assert_int_equal(stats(&b).warm_ups, 1);
	assert_int_equal(stats(&b).warm_up, PREFETCH_WARM_UP_DONE);
	bench_stop(&b);
}

static void a_demand_is_answered_while_a_store_waits(void **state)
{
	(void)state;
	struct bench b;
	bench_start(&b, 512 << 20, NULL);
	pthread_mutex_lock(&b.sink.lock);
	b.sink.hold_stores = true;
	pthread_mutex_unlock(&b.sink.lock);
	miss(&b, ENOUGH);
	pthread_mutex_lock(&b.sink.lock);
	while (!b.sink.held)
		pthread_cond_wait(&b.sink.cv, &b.sink.lock);
	pthread_mutex_unlock(&b.sink.lock);
	miss(&b, 2 * ENOUGH);
	pthread_mutex_lock(&b.sink.lock);
	b.sink.hold_stores = false;
	pthread_cond_broadcast(&b.sink.cv);
	pthread_mutex_unlock(&b.sink.lock);
	settle(&b);
	assert_int_equal(stats(&b).warm_up, PREFETCH_WARM_UP_DONE);
	bench_stop(&b);
}

static void a_demand_is_answered_while_its_reads_are_slow(void **state)
{
	(void)state;
	struct bench b;
	const uint64_t SLOW_NS = 3000000000;
	struct slow_reads reads = { .ns = SLOW_NS };
	struct prefetch_hook hook;
	slow_hook(&hook, &reads);
	bench_start(&b, 512 << 20, &hook);
	miss(&b, ENOUGH);
	while (!atomic_load(&reads.since_ns))
		usleep(50);
	atomic_store(&reads.ns, 0);
	uint64_t before = b.misses, passed = 0;
	for (uint32_t slot = N_FILES; slot-- > N_FILES - 100;) { /* far from what it reads now */
		read_file(&b, at_slot(slot));
		if (base_now_ns() < atomic_load(&reads.since_ns) + SLOW_NS)
			passed++;
	}
	assert_true(b.misses > before && passed > 0);
	settle(&b);
	bench_stop(&b);
}

static void stays_within_the_budget(void **state)
{
	(void)state;
	struct bench b;
	bench_start(&b, 16 << 20, NULL);
	miss(&b, ENOUGH);
	settle(&b);
	assert_int_equal(stats(&b).warm_up, PREFETCH_WARM_UP_FULL);
	assert_true(b.sink.bytes_max <= stats(&b).budget_bytes + DROPS_WAIT);
	/* It used what there is. */
	assert_true(stats(&b).resident_bytes > stats(&b).budget_bytes / 4 * 3);
	bench_stop(&b);
}

static void what_it_holds_is_not_driven_out_by_readers(void **state)
{
	(void)state;
	struct bench b;
	bench_start(&b, 16 << 20, NULL);
	miss(&b, ENOUGH);
	settle(&b);
	for (int round = 0; round < 3; round++) {
		for (uint32_t i = 0; i < N_FILES; i++)
			read_file(&b, (uint32_t)(i * UINT64_C(7919) % N_FILES));
		settle(&b);
	}
	/* The first files in storage stay.  A file is in memory before its drop is done, so some are left out. */
	uint64_t bytes = 0;
	uint32_t slot = 0;
	for (; bytes < stats(&b).budget_bytes / 4 * 3; slot++) {
		if (dataset_length(&data, at_slot(slot)) && !b.asked[at_slot(slot)])
			assert_int_equal(b.sink.drops[at_slot(slot)], 0);
		bytes += pages(at_slot(slot));
	}
	uint64_t before = b.misses;
	for (uint32_t i = 0; i < slot; i++)
		read_file(&b, at_slot(i));
	assert_int_equal(b.misses, before);
	bench_stop(&b);
}

/* Names and bytes go, as by drop_caches. */
static void forget_everything(struct bench *b)
{
	pthread_mutex_lock(&b->sink.lock);
	memset(b->sink.has, 0, sizeof(b->sink.has));
	memset(b->sink.named, 0, sizeof(b->sink.named));
	b->sink.bytes = 0;
	pthread_mutex_unlock(&b->sink.lock);
}

static void drop_caches_does_not_make_it_loop(void **state)
{
	(void)state;
	struct bench b;
	bench_start(&b, 512 << 20, NULL);
	miss(&b, ENOUGH);
	for (int i = 0; i < 10; i++) {
		for (int k = 0; k < 3; k++)
			read_file(&b, (uint32_t)((i * 3 + k) * UINT64_C(104729) % N_FILES));
		forget_everything(&b);
	}
	settle(&b);
	for (uint32_t i = 0; i < N_FILES; i++)
		read_file(&b, (uint32_t)(i * UINT64_C(7919) % N_FILES));
	settle(&b);
	assert_true(stats(&b).warm_up_bytes <= 6 * shard_index_info(data.index)->content_bytes);
	bench_stop(&b);
}

/* Reads all files in no order, and tells it, some at a time as the watcher does, to a stream of the view's own order,
 * which is not followed. */
static void open_all(struct bench *b)
{
	struct shard_view *view;
	struct base_err err = { 0 };
	struct prefetch_stream *own;
	struct shard_view_options options = SHARD_VIEW_OPTIONS_DEFAULT;
	options.order = SHARD_ORDER_FULL;
	assert_int_equal(shard_view_new(data.index, &options, &err, &view), 0);
	struct prefetch_stream_options stream = { .view = view, .user = view, .doubtful = true };
	assert_int_equal(prefetch_stream_new(b->p, &stream, &own), 0);
	for (uint32_t i = 0; i < N_FILES; i += OPENS) {
		uint32_t files[OPENS];
		for (uint32_t k = 0; k < OPENS; k++) {
			files[k] = (uint32_t)((i + k) * UINT64_C(7919) % N_FILES);
			read_file(b, files[k]);
		}
		settle(b); /* the engine knows what was lost */
		prefetch_stream_used_samples(own, files, OPENS);
	}
	settle(b);
	prefetch_stream_free(own);
	shard_view_free(view);
}

static void a_few_lost_files_are_read_again_alone(void **state)
{
	(void)state;
	struct bench b;
	bench_start(&b, 512 << 20, NULL);
	miss(&b, ENOUGH);
	settle(&b);
	struct prefetch_stats before = stats(&b);
	for (uint32_t file = 0; file < N_FILES; file += 8) {
		pthread_mutex_lock(&b.sink.lock);
		b.sink.has[file] = false;
		pthread_mutex_unlock(&b.sink.lock);
	}
	open_all(&b);
	struct prefetch_stats after = stats(&b);
	assert_true(after.lost >= N_FILES / 8 / 2);
	assert_int_equal(after.warm_up_bytes, before.warm_up_bytes);
	assert_int_equal(after.budget_bytes, before.budget_bytes);
	for (uint32_t file = 0; file < N_FILES; file++)
		assert_int_equal(b.sink.drops[file], 0);
	bench_stop(&b);
}

static void everything_is_read_again_when_most_is_lost(void **state)
{
	(void)state;
	struct bench b;
	bench_start(&b, 512 << 20, NULL);
	miss(&b, ENOUGH);
	settle(&b);
	uint64_t bytes = stats(&b).warm_up_bytes, misses = b.misses;
	forget_everything(&b);
	open_all(&b);
	assert_true(stats(&b).warm_up_bytes > bytes);
	assert_true(b.misses - misses < N_FILES / 2);
	bench_stop(&b);
}

static void a_kernel_that_takes_no_names_does_not_make_it_loop(void **state)
{
	(void)state;
	struct bench b;
	bench_start(&b, 512 << 20, NULL);
	b.sink.refuse_all = true;
	miss(&b, ENOUGH);
	settle(&b);
	for (uint32_t i = 0; i < N_FILES; i++)
		read_file(&b, (uint32_t)(i * UINT64_C(7919) % N_FILES));
	settle(&b);
	assert_true(stats(&b).warm_up_bytes <= 2 * shard_index_info(data.index)->content_bytes);
	bench_stop(&b);
}

static uint64_t slow_device(void *arg, uint32_t shard, uint64_t offset, uint32_t len)
{
	(void)arg;
	(void)shard;
	(void)offset;
	(void)len;
	return 9000000;
}

static void short_reads_tell_together_that_the_device_is_slow(void **state)
{
	(void)state;
	struct bench b;
	const struct prefetch_hook hook = { .delay_ns = slow_device };
	struct prefetch_stats st;
	bench_start(&b, 512 << 20, &hook);
	miss_every_other(&b);
	do /* where every other file was missed */
		st = stats(&b);
	while (st.warm_up_bytes < SHARD_BLOCK * 4 &&
	        (st.warm_up == PREFETCH_WARM_UP_WATCHES || st.warm_up == PREFETCH_WARM_UP_READS_ON));
	assert_int_equal(st.warm_up, PREFETCH_WARM_UP_RESTS);
	settle(&b);
	bench_stop(&b);
}

/* The last rest ends when nothing is left to read, and the engine must sleep then. */
static void slow_reads_end_in_an_idle_engine(void **state)
{
	(void)state;
	for (int refuse = 0; refuse < 2; refuse++) {
		struct bench b;
		struct slow_reads reads = { .ns = 12000000 };
		struct prefetch_hook hook;
		slow_hook(&hook, &reads);
		bench_start(&b, 512 << 20, &hook);
		b.sink.refuse_all = refuse;
		miss(&b, ENOUGH);
		for (uint32_t i = 0; i < N_FILES; i++)
			read_file(&b, (uint32_t)(i * UINT64_C(7919) % N_FILES));
		settle(&b);
		assert_true(stats(&b).warm_up_bytes > 0);
		bench_stop(&b);
	}
}

/* A read of the warm-up, submitted so long ago, comes back with so many bytes, or with an error. */
static void come_back(struct prefetch *p, uint64_t ago_ns, int res)
{
	struct prefetch_read read = { .submitted_ns = base_now_ns() - ago_ns, .op.res = res };
	prefetch_warm_up_came_back(p, &read);
}

static void what_follows_a_failed_read_is_timed_alone(void **state)
{
	const uint64_t SECOND_NS = 1000000000;
	(void)state;
	for (int fails = 0; fails < 2; fails++) {
		struct prefetch *p = calloc(1, sizeof(*p));
		assert_non_null(p);
		prefetch_warm_up_submitted(p);
		prefetch_warm_up_submitted(p);
		come_back(p, 10 * SECOND_NS, SHARD_BLOCK / 4);
		if (fails)
			come_back(p, 10 * SECOND_NS, -EIO);
		prefetch_warm_up_submitted(p);
		come_back(p, 0, SHARD_BLOCK / 2);
		/* Together with the first read this one took 10 s.  The longest rest is a second. */
		bool rests = p->warm_up.rest_ns > base_now_ns() + SECOND_NS / 2;
		assert_int_equal(rests, !fails);
		free(p);
	}
}

/* Returns whether a warm-up rests after a read of SHARD_BLOCK bytes that took `ns`, or longer on a busy machine. */
static bool rests_after(struct prefetch *p, uint64_t ns)
{
	uint64_t before = p->warm_up.rest_ns;
	prefetch_warm_up_submitted(p);
	come_back(p, ns, SHARD_BLOCK);
	return p->warm_up.rest_ns != before;
}

/* The device is fast, but slower than before by more than SHARED (prefetch/warm_up.c): others read from it. */
static void reads_that_take_long_beside_the_shortest_make_it_rest(void **state)
{
	enum { SHORT_NS = 1000000, LONG_NS = 6000000, TRIES = 100 };
	static struct prefetch fast, shared;
	unsigned rests = 0;
	(void)state;
	for (unsigned i = 0; i < TRIES; i++)
		rests += rests_after(&fast, LONG_NS);
	assert_true(rests < TRIES / 2); /* not slow */
	for (unsigned i = 0; i < TRIES; i++)
		(void)rests_after(&shared, SHORT_NS);
	for (unsigned i = 0; i < TRIES; i++)
		assert_true(rests_after(&shared, LONG_NS));
}

/* Reads of the stream that are on their way, and one read of a reader. */
struct counted_reads {
	/* The engine thread's. */
	uint32_t stream, together; /* the stream's on their way; those that were submitted beside another one */
	uint32_t shard;            /* where the reader's read is */
	uint64_t offset;
	/* Any thread's. */
	_Atomic bool hold;    /* the next short read is the reader's, and takes long */
	_Atomic bool waits;   /* it was submitted */
	_Atomic bool counted; /* the stream's reads are counted */
};

enum { LONG_READ = 200000, READER_NS = 1000000000, STREAM_NS = 5000000 };

static uint64_t count_begun(void *arg, uint32_t shard, uint64_t offset, uint32_t len)
{
	struct counted_reads *c = arg;
	if (len > LONG_READ && atomic_load(&c->counted)) {
		c->together += c->stream++ > 0;
		return STREAM_NS;
	}
	if (len > LONG_READ || !atomic_exchange(&c->hold, false))
		return 0;
	c->shard = shard;
	c->offset = offset;
	atomic_store(&c->waits, true);
	return READER_NS;
}

static int count_ended(void *arg, uint32_t shard, uint64_t offset, uint8_t *bytes, int res)
{
	struct counted_reads *c = arg;
	(void)bytes;
	if (res > LONG_READ)
		c->stream -= c->stream > 0;
	else if (atomic_load(&c->waits) && shard == c->shard && offset == c->offset)
		atomic_store(&c->counted, false); /* from now on the stream may read more at once */
	return res;
}

enum waiting { NOBODY, READER_OF_THE_ENGINE, READER_BY_ITSELF };

/* Returns how many of the stream's reads were submitted beside another one, while a reader waits. */
static uint32_t reads_together(enum waiting waiting)
{
	struct bench b;
	struct counted_reads reads = { .counted = true };
	const struct prefetch_hook hook = { .delay_ns = count_begun, .result = count_ended, .arg = &reads };
	struct asked reader;
	uint32_t slot = N_FILES - 1;
	bench_start(&b, 512 << 20, &hook);
	if (waiting == READER_BY_ITSELF)
		atomic_fetch_add(&b.p->figures.callers, 1);
	if (waiting == READER_OF_THE_ENGINE) {
		while (!dataset_length(&data, at_slot(slot)))
			slot--;
		atomic_store(&reads.hold, true);
		uint32_t file = at_slot(slot);
		asked_begin(b.p, &reader, (struct prefetch_demand){ .file = file, .take = (uint32_t)pages(file) });
		while (!atomic_load(&reads.waits))
			usleep(50);
	}
	while (b.misses < ENOUGH) /* side by side, so that each fetch of the stream is one read */
		read_file(&b, at_slot(--slot));
	while (stats(&b).warm_up_bytes < 8 * SHARD_BLOCK)
		usleep(50);
	if (waiting != NOBODY)
		atomic_store(&reads.counted, false);
	if (waiting == READER_BY_ITSELF)
		atomic_fetch_sub(&b.p->figures.callers, 1);
	if (waiting == READER_OF_THE_ENGINE)
		assert_int_equal(asked_wait(&reader), 0);
	settle(&b);
	bench_stop(&b);
	return reads.together;
}

static void while_a_reader_waits_one_of_its_reads_is_on_its_way(void **state)
{
	(void)state;
	assert_true(reads_together(NOBODY) > 0);
	assert_int_equal(reads_together(READER_OF_THE_ENGINE), 0);
	assert_int_equal(reads_together(READER_BY_ITSELF), 0);
}

static void there_is_one_at_most(void **state)
{
	(void)state;
	struct bench b;
	struct prefetch_stream *more;
	bench_start(&b, 64 << 20, NULL);
	struct prefetch_stream_options stream = { .view = storage_order, .warm_up = true, .user = storage_order };
	assert_int_equal(prefetch_stream_new(b.p, &stream, &more), -EEXIST);
	bench_stop(&b);
}

static void it_can_be_freed_in_the_middle(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 20; i++) {
		struct bench b;
		bench_start(&b, 64 << 20, NULL);
		miss(&b, ENOUGH + i % 3);
		usleep(i * 100);
		bench_stop(&b);
	}
}

static int make(const uint64_t *sizes, uint32_t n_sizes)
{
	static const struct shard_view_given given = {
		.user = &data, .get = order_get, .put = order_put, .turn = order_turn, .find = order_find
	};
	dataset_new(&data, N_FILES, N_SHARDS, sizes, n_sizes);
	return shard_view_new_given(data.index, &given, &storage_order);
}

static int set_up(void **state)
{
	(void)state;
	return make(SIZES, N_SIZES);
}

/* Its reads fill landing memory and wait to be stored, and the others wait for them.  A reader does not. */
static void a_demand_for_a_read_that_waits_for_memory_is_answered(void **state)
{
	(void)state;
	struct bench b;
	bench_start(&b, 70 << 20, NULL);
	pthread_mutex_lock(&b.sink.lock);
	b.sink.hold_stores = true;
	pthread_mutex_unlock(&b.sink.lock);
	for (uint32_t file = 1; file <= ENOUGH; file++)
		read_file(&b, file);
	pthread_mutex_lock(&b.sink.lock);
	while (!b.sink.held)
		pthread_cond_wait(&b.sink.cv, &b.sink.lock);
	pthread_mutex_unlock(&b.sink.lock);
	usleep(100000); /* the other reads of file 0 have begun, or wait */
	alarm(30);
	for (uint32_t block = LARGE_BLOCKS; block-- > 0;)
		assert_int_equal(
		        asked_get(b.p, (struct prefetch_demand){ .file = 0, .block = block, .take = SHARD_BLOCK }), 0);
	alarm(0);
	pthread_mutex_lock(&b.sink.lock);
	b.sink.hold_stores = false;
	pthread_cond_broadcast(&b.sink.cv);
	pthread_mutex_unlock(&b.sink.lock);
	settle(&b);
	bench_stop(&b);
}

static int set_up_small(void **state)
{
	static const uint64_t PAGES[] = { PAGE };
	(void)state;
	return make(PAGES, 1);
}

static int set_up_large(void **state)
{
	static uint64_t sizes[N_FILES] = { (uint64_t)LARGE_BLOCKS * SHARD_BLOCK };
	(void)state;
	for (uint32_t file = 1; file < N_FILES; file++)
		sizes[file] = PAGE;
	return make(sizes, N_FILES);
}

static int tear_down(void **state)
{
	(void)state;
	shard_view_free(storage_order);
	dataset_free(&data);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(begins_after_enough_misses),
		cmocka_unit_test(what_was_read_already_is_not_stored),
		cmocka_unit_test(reads_are_long),
		cmocka_unit_test(what_readers_brought_in_is_hardly_read_again),
		cmocka_unit_test(what_fits_beside_little_landing_memory_is_read),
		cmocka_unit_test(never_begins_while_an_order_is_followed),
		cmocka_unit_test(begins_beside_an_order_that_readers_have_left),
		cmocka_unit_test(ends_when_an_order_is_known),
		cmocka_unit_test(names_of_a_known_order_do_not_wait_for_its_own),
		cmocka_unit_test(begins_again_when_the_order_is_lost),
		cmocka_unit_test(a_demand_is_answered_while_a_store_waits),
		cmocka_unit_test(a_demand_is_answered_while_its_reads_are_slow),
		cmocka_unit_test(stays_within_the_budget),
		cmocka_unit_test(what_it_holds_is_not_driven_out_by_readers),
		cmocka_unit_test(drop_caches_does_not_make_it_loop),
		cmocka_unit_test(a_few_lost_files_are_read_again_alone),
		cmocka_unit_test(everything_is_read_again_when_most_is_lost),
		cmocka_unit_test(a_kernel_that_takes_no_names_does_not_make_it_loop),
		cmocka_unit_test(short_reads_tell_together_that_the_device_is_slow),
		cmocka_unit_test(slow_reads_end_in_an_idle_engine),
		cmocka_unit_test(what_follows_a_failed_read_is_timed_alone),
		cmocka_unit_test(reads_that_take_long_beside_the_shortest_make_it_rest),
		cmocka_unit_test(while_a_reader_waits_one_of_its_reads_is_on_its_way),
		cmocka_unit_test(there_is_one_at_most),
		cmocka_unit_test(it_can_be_freed_in_the_middle),
	};
	const struct CMUnitTest small[] = { cmocka_unit_test(few_of_its_reads_are_in_flight) };
	int failed = cmocka_run_group_tests(tests, set_up, tear_down);
	const struct CMUnitTest large[] = { cmocka_unit_test(a_demand_for_a_read_that_waits_for_memory_is_answered) };
	failed += cmocka_run_group_tests(large, set_up_large, tear_down);
	return failed + cmocka_run_group_tests(small, set_up_small, tear_down);
}
