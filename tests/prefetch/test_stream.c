/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: the schedule, the window, eviction, following, with a sink and a trainer that are made up. */
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
#include <unistd.h>

#include <cmocka.h>

#include "prefetch/prefetch.h"
#include "prefetch/sink.h"
#include "prefetch/stream.h"
#include "tests/prefetch/asked.h"
#include "tests/prefetch/dataset.h"

static const uint64_t SIZES[] = { 20000, 4096, 100, 70001, 30000, 0, 8192, 1, 120000, (1 << 20) + 77, 512, 40000 };
enum { N_SIZES = sizeof(SIZES) / sizeof(SIZES[0]), N_FILES = 1200, N_SHARDS = 5 };

static struct dataset data;
static uint64_t data_bytes; /* with pages rounded up */

/* A page cache: which blocks are there, and what the rules say about them. */
struct fake_sink {
	struct prefetch_sink base;
	pthread_mutex_t lock;
	uint8_t blocks[N_FILES];   /* bit per block that is there; files have at most 2 */
	uint8_t by_store[N_FILES]; /* those of them that store put there */
	bool announced[N_FILES];
	uint32_t pieces;      /* announcements */
	uint32_t long_pieces; /* of more than 16 turns, and than a quarter of the turns before */
	uint64_t bytes, bytes_max;
	uint32_t stored, stored_twice, unannounced, wrong, dropped, dropped_empty;
	struct prefetch *looks; /* the engine that gets the answers of look */
	uint32_t looked;        /* calls of look */
	bool refuse;
	bool forgets;  /* as the kernel: what is not announced is refused */
	uint64_t room; /* as the kernel under pressure: more bytes push out what came first; 0: no limit */
	uint32_t came[N_FILES], n_came; /* when a file came last */
	uint32_t drop_us;               /* what a drop takes: a lister that gets no processor */
	bool hold_drops;                /* drops do not return while it is set */
	bool hold_store;                /* nor does the first store of a block of a file that has two */
	uint32_t held;                  /* that file + 1, once it is so far */
	pthread_cond_t cv;              /* one of these changed */
};

static uint32_t blocks_of(uint32_t file)
{
	return (uint32_t)((dataset_length(&data, file) + SHARD_BLOCK - 1) / SHARD_BLOCK);
}

static uint64_t pages(uint64_t len)
{
	return (len + 4095) & ~UINT64_C(4095);
}

static uint64_t block_bytes(uint32_t file, uint32_t block)
{
	uint64_t left = dataset_length(&data, file) - (uint64_t)block * SHARD_BLOCK;
	return pages(left < SHARD_BLOCK ? left : SHARD_BLOCK);
}

static void push_out(struct fake_sink *s)
{
	while (s->room && s->bytes > s->room) {
		uint32_t first = N_FILES;
		for (uint32_t file = 0; file < N_FILES; file++) {
			if (s->blocks[file] && (first == N_FILES || s->came[file] < s->came[first]))
				first = file;
		}
		for (uint32_t b = 0; b < blocks_of(first); b++)
			s->bytes -= s->blocks[first] >> b & 1 ? block_bytes(first, b) : 0;
		s->blocks[first] = s->by_store[first] = 0;
	}
}

static void appear(struct fake_sink *s, uint32_t file, uint32_t block)
{
	if (s->blocks[file] >> block & 1)
		return;
	s->blocks[file] |= (uint8_t)(1 << block);
	s->bytes += block_bytes(file, block);
	s->came[file] = ++s->n_came;
	push_out(s);
	if (s->bytes > s->bytes_max)
		s->bytes_max = s->bytes;
}

struct trainer;
static struct shard_view *view_of(void *user);
static uint32_t rank_of(void *user);

static uint32_t fake_announce(struct prefetch_sink *sink, void *user, uint64_t epoch, uint64_t turn, uint32_t n)
{
	struct fake_sink *s = (struct fake_sink *)sink;
	struct shard_epoch *e;
	assert_int_equal(shard_view_epoch(view_of(user), epoch, &e), 0);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t sample;
		assert_int_equal(shard_epoch_turn(e, rank_of(user), turn + i, &sample, NULL), 0);
		pthread_mutex_lock(&s->lock);
		s->announced[sample] = true;
		pthread_mutex_unlock(&s->lock);
	}
	shard_epoch_put(e);
	pthread_mutex_lock(&s->lock);
	s->pieces++;
	s->long_pieces += epoch == 0 && n > 16 && n > turn / 4;
	pthread_mutex_unlock(&s->lock);
	return n;
}

static int fake_store(struct prefetch_sink *sink, uint32_t file, uint64_t offset, const uint8_t *bytes, uint32_t len)
{
	struct fake_sink *s = (struct fake_sink *)sink;
	uint32_t block = (uint32_t)(offset / SHARD_BLOCK);
	bool right = dataset_equal(file, offset, bytes, len);
	pthread_mutex_lock(&s->lock);
	if (s->hold_store && !s->held && blocks_of(file) > 1) {
		s->held = file + 1;
		pthread_cond_broadcast(&s->cv);
		while (s->hold_store)
			pthread_cond_wait(&s->cv, &s->lock);
	}
	s->wrong += !right;
	s->stored++;
	bool refused = s->refuse || (s->forgets && !s->announced[file]);
	s->unannounced += !s->announced[file];
	s->stored_twice += s->by_store[file] >> block & 1;
	s->by_store[file] |= (uint8_t)(1 << block);
	if (!refused)
		appear(s, file, block);
	pthread_mutex_unlock(&s->lock);
	return refused ? -ENOENT : 0;
}

static void fake_drop(struct prefetch_sink *sink, const struct cache_victim *victims, size_t n)
{
	struct fake_sink *s = (struct fake_sink *)sink;
	if (s->drop_us)
		usleep(s->drop_us);
	pthread_mutex_lock(&s->lock);
	while (s->hold_drops)
		pthread_cond_wait(&s->cv, &s->lock);
	for (size_t i = 0; i < n; i++) {
		uint32_t file = victims[i].id; /* a sample is a file here */
		s->dropped_empty += !s->blocks[file] && blocks_of(file);
		for (uint32_t b = 0; b < blocks_of(file); b++) {
			if (victims[i].block != CACHE_WHOLE && victims[i].block != b)
				continue;
			s->bytes -= s->blocks[file] >> b & 1 ? block_bytes(file, b) : 0;
			s->blocks[file] &= (uint8_t) ~(1 << b);
			s->by_store[file] &= (uint8_t) ~(1 << b);
		}
		if (victims[i].block == CACHE_WHOLE && !victims[i].announced)
			s->announced[file] = false; /* the name goes, too */
		s->dropped++;
	}
	pthread_mutex_unlock(&s->lock);
}

static const struct prefetch_sink_ops fake_ops = {
	.announce = fake_announce,
	.store = fake_store,
	.drop = fake_drop,
};

/* Answers at once, as the kernel does when it has the name.  Of a block that was taken back, only the page in its
 * middle is gone. */
static int fake_look(struct prefetch_sink *sink, uint32_t file, uint64_t offset, uint32_t len)
{
	struct fake_sink *s = (struct fake_sink *)sink;
	uint32_t block = (uint32_t)(offset / SHARD_BLOCK);
	uint64_t start = (uint64_t)block * SHARD_BLOCK, left = dataset_length(&data, file) - start;
	uint64_t middle = start + (left < SHARD_BLOCK ? left : SHARD_BLOCK) / 2;
	assert_in_range(len, 1, PREFETCH_LOOK_BYTES);
	pthread_mutex_lock(&s->lock);
	bool named = s->announced[file], has = s->blocks[file] >> block & 1;
	s->looked++;
	pthread_mutex_unlock(&s->lock);
	if (!named)
		return -ENOENT;
	prefetch_looked(s->looks, file, offset, has || middle < offset || middle >= offset + len);
	return 0;
}

static const struct prefetch_sink_ops looking_ops = {
	.announce = fake_announce,
	.store = fake_store,
	.look = fake_look,
	.drop = fake_drop,
};

static void sink_init(struct fake_sink *s)
{
	memset(s, 0, sizeof(*s));
	s->base = (struct prefetch_sink){ .ops = &fake_ops };
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->cv, NULL);
}

/* A trainer: reads a rank's turns, looks into the page cache, asks for what is not there. */
struct trainer {
	struct prefetch *p;
	struct fake_sink *sink;
	struct shard_view *view;
	uint32_t rank;
	struct prefetch_stream *stream;
	uint64_t misses; /* files that had to be asked for */
	uint64_t errors;
	/* computes until the next file is there, or the engine has nothing left to do: then it is a miss */
	bool patient;
	bool paced; /* after each file lets the engine do all that it wants to */
};

static struct shard_view *view_of(void *user)
{
	return ((struct trainer *)user)->view;
}

static uint32_t rank_of(void *user)
{
	return ((struct trainer *)user)->rank;
}

static int await(struct asked *a)
{
	int rc = asked_wait(a);
	if (rc == 0)
		assert_true(a->right);
	return rc;
}

static int ask(struct prefetch *p, uint32_t file, uint32_t block)
{
	return asked_get(p,
	        (struct prefetch_demand){ .file = file, .block = block, .take = (uint32_t)block_bytes(file, block) });
}

/* Until the engine has nothing more to do. */
static void settle(struct trainer *t)
{
	while (!prefetch_idle(t->p))
		usleep(50);
}

static void be_patient(struct trainer *t, uint32_t file)
{
	uint8_t all = (uint8_t)((1U << blocks_of(file)) - 1);
	for (bool idle = false, there = false; !idle && !there;) {
		idle = prefetch_idle(t->p); /* before the look: what was stored until then is seen */
		pthread_mutex_lock(&t->sink->lock);
		there = (t->sink->blocks[file] & all) == all;
		pthread_mutex_unlock(&t->sink->lock);
		if (!idle && !there)
			usleep(50);
	}
}

/* Opens, reads, closes a file as the kernel would see it. */
static void read_file(struct trainer *t, uint32_t file)
{
	bool missed = false;
	if (t->patient)
		be_patient(t, file);
	for (uint32_t b = 0; b < blocks_of(file); b++) {
		pthread_mutex_lock(&t->sink->lock);
		bool there = t->sink->blocks[file] >> b & 1;
		pthread_mutex_unlock(&t->sink->lock);
		if (there)
			continue;
		missed = true;
		if (ask(t->p, file, b) < 0) {
			t->errors++;
			continue;
		}
		pthread_mutex_lock(&t->sink->lock);
		appear(t->sink, file, b);
		pthread_mutex_unlock(&t->sink->lock);
	}
	t->misses += missed;
}

static uint32_t next_random(uint32_t *x)
{
	*x = *x * 1664525 + 1013904223;
	return *x >> 8;
}

static uint32_t sample_at(struct trainer *t, uint64_t epoch, uint64_t turn)
{
	struct shard_epoch *e;
	uint32_t sample;
	assert_int_equal(shard_view_epoch(t->view, epoch, &e), 0);
	assert_int_equal(shard_epoch_turn(e, t->rank, turn, &sample, NULL), 0);
	shard_epoch_put(e);
	return sample;
}

static uint64_t turns_of(struct trainer *t, uint64_t epoch)
{
	struct shard_epoch *e;
	assert_int_equal(shard_view_epoch(t->view, epoch, &e), 0);
	uint64_t n = shard_epoch_turns(e, t->rank);
	shard_epoch_put(e);
	return n;
}

static void read_turn(struct trainer *t, uint64_t epoch, uint64_t turn)
{
	read_file(t, sample_at(t, epoch, turn));
	prefetch_stream_used(t->stream, &(struct prefetch_use){ .epoch = epoch, .turn = turn }, 1);
	if (t->paced)
		settle(t);
}

static void read_epoch(struct trainer *t, uint64_t epoch)
{
	for (uint64_t k = 0, n = turns_of(t, epoch); k < n; k++)
		read_turn(t, epoch, k);
}

/* What the tests choose. */
struct setup {
	uint64_t memory;
	struct shard_view_options view;
	const struct prefetch_hook *hook;
	bool threads;
	bool doubtful;
	uint64_t buffer;
	uint64_t window;
	uint32_t depth;
	bool store; /* the shards lie in a store, as far as the engine can tell */
};

static void start(struct trainer *t, struct fake_sink *sink, const struct setup *setup)
{
	struct prefetch_options options = {
		.index = data.index,
		.memory_bytes = setup->memory,
		.sink = &sink->base,
		.hook = setup->hook,
		.threads = setup->threads,
		.depth = setup->depth,
	};
	struct shard_view_options view = setup->view;
	struct base_err err = { 0 };
	if (!view.world)
		view.world = 1;
	if (setup->store) {
		assert_int_equal(prefetch_source_local(data.index, PREFETCH_IO_BUFFERED, &err, &options.source), 0);
		options.source->store = true;
	}
	if (!t->p && prefetch_new(&options, &err, &t->p) < 0)
		fail_msg("%s", err.text);
	t->sink = sink;
	t->rank = view.rank;
	if (shard_view_new(data.index, &view, &err, &t->view) < 0)
		fail_msg("%s", err.text);
	struct prefetch_stream_options stream = {
		.view = t->view,
		.rank = view.rank,
		.epoch = view.epoch,
		.doubtful = setup->doubtful,
		.buffer_turns = setup->buffer,
		.window_bytes = setup->window,
		.user = t,
	};
	assert_int_equal(prefetch_stream_new(t->p, &stream, &t->stream), 0);
}

static void stop(struct trainer *t)
{
	prefetch_stream_free(t->stream);
	shard_view_free(t->view);
}

static void check_sink(struct fake_sink *s)
{
	pthread_mutex_lock(&s->lock);
	uint32_t wrong = s->wrong, unannounced = s->unannounced, twice = s->stored_twice;
	pthread_mutex_unlock(&s->lock);
	assert_int_equal(wrong, 0);
	assert_int_equal(unannounced, 0);
	assert_int_equal(twice, 0);
}

static uint64_t most_bytes(struct fake_sink *s)
{
	pthread_mutex_lock(&s->lock);
	uint64_t bytes = s->bytes_max;
	pthread_mutex_unlock(&s->lock);
	return bytes;
}

static uint32_t count_of(struct fake_sink *s, const uint32_t *counter)
{
	pthread_mutex_lock(&s->lock);
	uint32_t n = *counter;
	pthread_mutex_unlock(&s->lock);
	return n;
}

static struct prefetch_stats stats(struct prefetch *p)
{
	struct prefetch_stats st;
	prefetch_stats_get(p, &st);
	return st;
}

static const struct shard_view_options orders[] = {
	{ .order = SHARD_ORDER_FULL, .seed = 3 },
	{ .order = SHARD_ORDER_CHUNK, .seed = 4, .chunk_bytes = 1 << 20, .pool_bytes = 8 << 20 },
	{ .order = SHARD_ORDER_NONE },
	{ .order = SHARD_ORDER_TORCH, .seed = 5 },
};
enum { N_ORDERS = sizeof(orders) / sizeof(orders[0]) };

static void what_fits_is_read_once_for_all_epochs(void **state)
{
	(void)state;
	for (unsigned o = 0; o < N_ORDERS * 2; o++) {
		struct fake_sink sink;
		struct trainer t = { .patient = o >= N_ORDERS };
		sink_init(&sink);
		start(&t, &sink, &(struct setup){ .memory = 512 << 20, .view = orders[o % N_ORDERS] });
		for (uint64_t e = 0; e < 3; e++)
			read_epoch(&t, e);
		settle(&t);
		struct prefetch_stats st = stats(t.p);
		struct prefetch_stream_stats ss;
		prefetch_stream_stats_get(t.stream, &ss);
		check_sink(&sink);
		assert_int_equal(t.errors, 0);
		assert_int_equal(ss.used, 3 * N_FILES);
		assert_int_equal(ss.epoch, 3);
		assert_true(ss.following);
		assert_int_equal(ss.jumps, 0);
		assert_int_equal(st.evicted, 0);
		assert_int_equal(count_of(&sink, &sink.dropped), 0);
		/* Every byte once, and what lies between.  A trainer that races the engine may have one read twice. */
		if (t.patient) {
			assert_int_equal(t.misses, 0);
			assert_true(st.read_bytes < data_bytes * 9 / 8);
		}
		stop(&t);
		prefetch_free(t.p);
	}
}

static void a_computing_trainer_never_waits(void **state)
{
	(void)state;
	for (unsigned threads = 0; threads < 2; threads++) {
		struct fake_sink sink;
		struct trainer t = { .patient = true };
		sink_init(&sink);
		start(&t, &sink,
		        &(struct setup){
		                .memory = 32 << 20, .view = orders[0], .threads = threads, .window = 8 << 20 });
		for (uint64_t e = 0; e < 2; e++)
			read_epoch(&t, e);
		check_sink(&sink);
		assert_int_equal(t.misses, 0);
		stop(&t);
		prefetch_free(t.p);
	}
}

/* What is fetched waits for its announcement: a trainer who is near must not have to wait for many names. */
static void names_are_announced_in_pieces_that_leave_the_trainer_a_way(void **state)
{
	struct fake_sink sink;
	struct trainer t = { 0 };
	(void)state;
	sink_init(&sink);
	start(&t, &sink, &(struct setup){ .memory = 512 << 20, .view = orders[0] });
	while (count_of(&sink, &sink.pieces) < 10)
		usleep(1000);
	assert_int_equal(count_of(&sink, &sink.long_pieces), 0);
	read_epoch(&t, 0);
	assert_int_equal(t.errors, 0);
	stop(&t);
	prefetch_free(t.p);
	check_sink(&sink);
}

static void the_budget_holds(void **state)
{
	(void)state;
	for (unsigned o = 0; o < N_ORDERS; o++) {
		struct fake_sink sink;
		struct trainer t = { 0 };
		sink_init(&sink);
		start(&t, &sink, &(struct setup){ .memory = 32 << 20, .view = orders[o] });
		for (uint64_t e = 0; e < 3; e++)
			read_epoch(&t, e);
		settle(&t);
		check_sink(&sink);
		assert_int_equal(t.errors, 0);
		/* The landing memory is a quarter of it. */
		assert_true(most_bytes(&sink) <= 32 << 20);
		assert_true(stats(t.p).resident_bytes <= stats(t.p).budget_bytes);
		assert_true(stats(t.p).buffer_bytes <= 8 << 20);
		stop(&t);
		prefetch_free(t.p);
	}
}

/* What trainers read themselves fills the sink as well as what is stored: their reads, too, wait for drops. */
static void the_budget_holds_when_drops_take_long(void **state)
{
	(void)state;
	for (unsigned following = 0; following < 2; following++) {
		struct fake_sink sink;
		struct trainer t = { 0 };
		uint32_t x = 3;
		sink_init(&sink);
		sink.drop_us = 100000;
		start(&t, &sink, &(struct setup){ .memory = 32 << 20, .view = orders[0], .doubtful = !following });
		for (unsigned i = 0; i < N_FILES; i++)
			read_turn(&t, 0, following ? i : next_random(&x) % N_FILES);
		settle(&t);
		check_sink(&sink);
		assert_int_equal(t.errors, 0);
		assert_true(count_of(&sink, &sink.dropped) > 0);
		assert_true(most_bytes(&sink) <= 32 << 20);
		stop(&t);
		prefetch_free(t.p);
	}
}

/* What was used makes room for what comes, though the trainer says nothing more: the window fills up again. */
static void the_window_fills_again_without_news(void **state)
{
	(void)state;
	enum { TURNS = N_FILES / 2, WINDOW = 8 << 20 };
	struct fake_sink sink;
	struct trainer t = { .patient = true };
	struct prefetch_use uses[N_FILES];
	struct prefetch_stream_stats ss = { 0 };
	size_t n = 0;
	sink_init(&sink);
	start(&t, &sink, &(struct setup){ .memory = 32 << 20, .view = orders[0], .window = WINDOW });
	for (uint64_t turn = 0; turn < TURNS; turn++) /* more than fits */
		read_turn(&t, 0, turn);
	for (uint64_t bytes = 0; bytes < WINDOW / 2; n++) {
		uint32_t file = sample_at(&t, 0, TURNS + n);
		read_file(&t, file);
		bytes += dataset_length(&data, file);
		uses[n] = (struct prefetch_use){ .epoch = 0, .turn = TURNS + n };
	}
	prefetch_stream_used(t.stream, uses, n);
	for (unsigned i = 0; (ss.used < TURNS + n || ss.window_bytes < WINDOW) && i < 60000; i++) {
		usleep(1000);
		prefetch_stream_stats_get(t.stream, &ss);
	}
	assert_true(ss.window_bytes >= WINDOW);
	check_sink(&sink);
	stop(&t);
	prefetch_free(t.p);
}

/* A trainer goes on where another mount or server left it: what it opened there is not taken for what is in memory. */
static void what_was_opened_long_ago_fills_no_memory(void **state)
{
	(void)state;
	struct fake_sink sink;
	struct trainer t = { 0 };
	struct prefetch_use uses[N_FILES];
	struct prefetch_stream_stats ss = { 0 };
	sink_init(&sink);
	start(&t, &sink, &(struct setup){ .memory = 32 << 20, .view = orders[0], .doubtful = true });
	uint64_t turns = turns_of(&t, 0), n = 0;
	for (uint64_t turn = 0; turn < turns; turn += 2) /* every other one: the rest is other workers' */
		uses[n++] = (struct prefetch_use){ .epoch = 0, .turn = turn, .past = true };
	prefetch_stream_used(t.stream, uses, n);
	while (ss.used < n || !prefetch_idle(t.p)) {
		usleep(1000);
		prefetch_stream_stats_get(t.stream, &ss);
	}
	assert_int_equal(count_of(&sink, &sink.dropped_empty), 0);
	stop(&t);
	prefetch_free(t.p);
}

static void let_go(struct fake_sink *s, bool *hold)
{
	pthread_mutex_lock(&s->lock);
	*hold = false;
	pthread_cond_broadcast(&s->cv);
	pthread_mutex_unlock(&s->lock);
}

/* The kernel can hold a drop up until a READ is answered, of any file (fs/README.md, "Who waits for whom"). */
static void a_drop_that_does_not_end_stops_no_reader(void **state)
{
	(void)state;
	for (unsigned following = 0; following < 2; following++) {
		struct fake_sink sink;
		struct trainer t = { 0 };
		sink_init(&sink);
		sink.hold_drops = true;
		start(&t, &sink, &(struct setup){ .memory = 32 << 20, .view = orders[0], .doubtful = !following });
		read_epoch(&t, 0);
		assert_int_equal(t.errors, 0);
		assert_int_equal(count_of(&sink, &sink.dropped), 0);
		assert_true(most_bytes(&sink) > 32 << 20); /* it mattered */
		let_go(&sink, &sink.hold_drops);
		read_epoch(&t, 1);
		settle(&t);
		check_sink(&sink);
		pthread_mutex_lock(&sink.lock);
		assert_true(sink.bytes <= 32 << 20); /* and was made up for */
		pthread_mutex_unlock(&sink.lock);
		stop(&t);
		prefetch_free(t.p);
	}
}

/* Nor can a store end before a READ of the same file is answered, whose other block must not stand behind it. */
static void a_store_that_waits_for_a_reader_does_not_stop_him(void **state)
{
	(void)state;
	struct fake_sink sink;
	struct trainer t = { 0 };
	sink_init(&sink);
	sink.hold_store = true;
	start(&t, &sink, &(struct setup){ .memory = 256 << 20, .view = orders[0] });
	pthread_mutex_lock(&sink.lock);
	while (!sink.held)
		pthread_cond_wait(&sink.cv, &sink.lock);
	uint32_t file = sink.held - 1;
	pthread_mutex_unlock(&sink.lock);
	for (uint32_t b = 0; b < blocks_of(file); b++)
		assert_int_equal(ask(t.p, file, b), 0);
	for (uint32_t f = 0; f < N_FILES / 4; f++)
		for (uint32_t b = 0; b < blocks_of(f); b++)
			assert_int_equal(ask(t.p, f, b), 0);
	let_go(&sink, &sink.hold_store);
	read_epoch(&t, 0);
	assert_int_equal(t.errors, 0);
	assert_int_equal(count_of(&sink, &sink.wrong) + count_of(&sink, &sink.unannounced), 0);
	stop(&t);
	prefetch_free(t.p);
}

static void workers_out_of_step_do_not_matter(void **state)
{
	(void)state;
	struct fake_sink sink;
	struct trainer t = { .patient = true };
	sink_init(&sink);
	start(&t, &sink, &(struct setup){ .memory = 64 << 20, .view = orders[0] });
	/* Two workers with batches of 16, a file each in turn. */
	for (uint64_t b = 0; b + 32 <= N_FILES; b += 32) {
		for (uint64_t i = 0; i < 16; i++) {
			read_turn(&t, 0, b + i);
			read_turn(&t, 0, b + 16 + i);
		}
	}
	struct prefetch_stream_stats ss;
	prefetch_stream_stats_get(t.stream, &ss);
	assert_true(ss.following);
	assert_int_equal(ss.jumps, 0);
	assert_int_equal(t.misses, 0);
	check_sink(&sink);
	stop(&t);
	prefetch_free(t.p);
}

/* Workers whose batches together are larger than the window: it grows, and nobody's batch is given up. */
static void a_window_grows_with_the_workers_batches(void **state)
{
	(void)state;
	enum { BATCH = 100 };
	struct fake_sink sink;
	struct trainer t = { .paced = true };
	sink_init(&sink);
	start(&t, &sink, &(struct setup){ .memory = 64 << 20, .view = orders[0], .window = 3 << 20 });
	settle(&t);
	for (uint64_t b = 0; b + 2 * BATCH <= N_FILES; b += 2 * BATCH) {
		for (uint64_t i = 0; i < BATCH; i++) {
			read_turn(&t, 0, b + i);
			read_turn(&t, 0, b + BATCH + i);
		}
		if (b == 0)
			t.misses = 0; /* what the second worker wants first lies beyond the first window */
	}
	struct prefetch_stream_stats ss;
	prefetch_stream_stats_get(t.stream, &ss);
	assert_true(ss.following);
	assert_true(ss.window_limit > 3 << 20);
	assert_int_equal(t.misses + t.errors, 0);
	/* Budget and batches are of about the same size, so some samples are dropped and fetched again. */
	assert_true(stats(t.p).wasted_bytes < stats(t.p).read_bytes / 8);
	check_sink(&sink);
	stop(&t);
	prefetch_free(t.p);
}

/* A shuffle buffer behind the order: a few turns come late by many times its size, and are kept for so long.  There is
 * memory for three times what the buffer holds on average: a few files are large. */
static void turns_that_a_shuffle_buffer_holds_are_kept(void **state)
{
	(void)state;
	enum { BUFFER = 100 };
	struct fake_sink sink;
	struct trainer t = { .paced = true };
	uint32_t random = 1, held[BUFFER], n_held = 0, next = 0, opens = 0;
	sink_init(&sink);
	start(&t, &sink, &(struct setup){ .memory = 48 << 20, .view = orders[0], .buffer = BUFFER });
	settle(&t);
	for (uint64_t k = 0; k < N_FILES; k++) {
		while (n_held < BUFFER && next < N_FILES)
			held[n_held++] = next++;
		uint32_t i = next_random(&random) % n_held;
		read_turn(&t, 0, held[i]);
		held[i] = held[--n_held];
		if (++opens == BUFFER)
			t.misses = 0;
	}
	struct prefetch_stream_stats ss;
	prefetch_stream_stats_get(t.stream, &ss);
	assert_true(ss.following);
	assert_int_equal(ss.jumps, 0);
	assert_int_equal(t.errors, 0);
	if (t.misses > N_FILES / 100)
		fail_msg("%u misses", (unsigned)t.misses);
	check_sink(&sink);
	stop(&t);
	prefetch_free(t.p);
}

static void check_window(const struct setup *setup, uint64_t window)
{
	struct fake_sink sink;
	struct trainer t = { 0 };
	struct prefetch_stream_stats ss;
	sink_init(&sink);
	start(&t, &sink, setup);
	prefetch_stream_stats_get(t.stream, &ss);
	assert_int_equal(ss.window_limit, window);
	stop(&t);
	prefetch_free(t.p);
}

/* Where neighbours in storage are used soon after each other, and in a store, the window of small samples is wide.  Of
 * larger ones it is so in order=chunk of a store. */
static void the_window_is_wide_where_it_merges_reads(void **state)
{
	static const uint64_t small = 4096;
	static const struct {
		struct setup setup;
		uint64_t window;
	} cases[] = {
		{ { .memory = 256 << 20, .view.order = SHARD_ORDER_FULL }, 32 << 20 },
		{ { .memory = 256 << 20, .view.order = SHARD_ORDER_NONE }, 32 << 20 },
		{ { .memory = 256 << 20, .view.order = SHARD_ORDER_CHUNK }, 96 << 20 },
		{ { .memory = 256 << 20, .view.order = SHARD_ORDER_FULL, .buffer = 100 }, 96 << 20 },
		{ { .memory = 256 << 20, .view.order = SHARD_ORDER_FULL, .store = true }, 96 << 20 },
		{ { .memory = 256 << 20, .view.order = SHARD_ORDER_CHUNK, .window = 5 << 20 }, 5 << 20 },
	};
	struct dataset large = data;
	(void)state;
	assert_true(data_bytes / N_FILES >= PREFETCH_SMALL_BYTES);
	check_window(&(struct setup){ .memory = 256 << 20, .view.order = SHARD_ORDER_CHUNK }, 32 << 20);
	check_window(&(struct setup){ .memory = 256 << 20, .view.order = SHARD_ORDER_CHUNK, .store = true }, 96 << 20);
	check_window(&(struct setup){ .memory = 256 << 20, .view.order = SHARD_ORDER_FULL, .store = true }, 32 << 20);
	dataset_new(&data, 100, 1, &small, 1);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		check_window(&cases[i].setup, cases[i].window);
	dataset_free(&data);
	data = large;
}

/* An epoch of many turns, of which few have samples. */
enum { LONG_TURNS = 200000, LONG_EACH = 1000 };

static int long_get(void *user, uint64_t number, void **ret_epoch, uint64_t *ret_turns)
{
	(void)number;
	*ret_epoch = user;
	*ret_turns = LONG_TURNS;
	return 0;
}

static void long_put(void *epoch)
{
	(void)epoch;
}

static int long_turn(void *epoch, uint64_t turn, uint32_t *ret_sample)
{
	(void)epoch;
	*ret_sample = (uint32_t)(turn / LONG_EACH);
	return turn % LONG_EACH == 0 ? 0 : -ENOENT;
}

static int long_find(void *epoch, uint32_t sample, uint64_t *ret_turn)
{
	(void)epoch;
	*ret_turn = (uint64_t)sample * LONG_EACH;
	return *ret_turn < LONG_TURNS ? 0 : -ENOENT;
}

/* A trainer on a long order, behind a shuffle buffer of so many turns. */
static void begin_buffered(struct trainer *t, struct fake_sink *sink, uint64_t buffer_turns)
{
	static const struct shard_view_given given = {
		.user = &data, .get = long_get, .put = long_put, .turn = long_turn, .find = long_find
	};
	static const struct prefetch_sink_ops ops = { .store = fake_store, .drop = fake_drop };
	struct base_err err = { 0 };
	sink_init(sink);
	sink->base.ops = &ops;
	*t = (struct trainer){ .sink = sink };
	struct prefetch_options options = { .index = data.index, .memory_bytes = 256 << 20, .sink = &sink->base };
	assert_int_equal(prefetch_new(&options, &err, &t->p), 0);
	assert_int_equal(shard_view_new_given(data.index, &given, &t->view), 0);
	struct prefetch_stream_options stream = { .view = t->view, .buffer_turns = buffer_turns, .user = t };
	assert_int_equal(prefetch_stream_new(t->p, &stream, &t->stream), 0);
}

/* A buffer of 90,000 files is followed through two epochs.  One file stays in it for a whole epoch, and is kept. */
static void a_large_shuffle_buffer_is_followed(void **state)
{
	enum { BUFFER = 90000, STAYS = LONG_EACH };
	static uint32_t held[BUFFER];
	struct fake_sink sink;
	struct trainer t;
	struct prefetch_stream_stats ss;
	uint32_t random = 1;
	(void)state;
	begin_buffered(&t, &sink, 1);
	prefetch_stream_buffer(t.stream, BUFFER); /* how large it is shows only later */
	for (uint64_t epoch = 0; epoch < 2; epoch++) {
		uint32_t n_held = 0, next = 0;
		for (uint32_t k = 0; k + 1 < LONG_TURNS; k++) {
			while (n_held < BUFFER && next < LONG_TURNS)
				held[n_held++] = next++;
			uint32_t i = next_random(&random) % n_held;
			while (held[i] == STAYS)
				i = (i + 1) % n_held;
			prefetch_stream_used(t.stream, &(struct prefetch_use){ .epoch = epoch, .turn = held[i] }, 1);
			held[i] = held[--n_held];
			if (k % 1024 == 0)
				settle(&t);
		}
		settle(&t);
		prefetch_stream_stats_get(t.stream, &ss);
		if (!ss.following || ss.jumps > 0 || ss.epoch != epoch || ss.turn != STAYS)
			fail_msg("epoch %u: following %u, %u jumps, turn %u of epoch %u", (unsigned)epoch, ss.following,
			        (unsigned)ss.jumps, (unsigned)ss.turn, (unsigned)ss.epoch);
		prefetch_stream_used(t.stream, &(struct prefetch_use){ .epoch = epoch, .turn = STAYS }, 1);
	}
	stop(&t);
	prefetch_free(t.p);
}

/* A turn that a small buffer cannot hold any more was skipped.  It is not kept in memory until the next epoch. */
static void what_a_small_buffer_skips_is_given_up(void **state)
{
	enum { SKIPPED = 2 * LONG_EACH, KEPT = SKIPPED + 60000, GIVEN_UP = SKIPPED + 70000 };
	struct fake_sink sink;
	struct trainer t;
	struct prefetch_stream_stats ss;
	(void)state;
	begin_buffered(&t, &sink, 1000);
	for (uint64_t turn = 0; turn < GIVEN_UP; turn++) {
		if (turn != SKIPPED)
			prefetch_stream_used(t.stream, &(struct prefetch_use){ .epoch = 0, .turn = turn }, 1);
		if (turn % 1024 == 0 || turn == KEPT)
			settle(&t);
		if (turn == KEPT) {
			prefetch_stream_stats_get(t.stream, &ss);
			assert_int_equal(ss.turn, SKIPPED);
		}
	}
	settle(&t);
	prefetch_stream_stats_get(t.stream, &ss);
	assert_true(ss.following && ss.turn > SKIPPED);
	stop(&t);
	prefetch_free(t.p);
}

static uint64_t always_late(void *arg, uint32_t shard, uint64_t offset, uint32_t len)
{
	(void)arg;
	(void)shard;
	(void)offset;
	(void)len;
	return 20000000;
}

/* Two workers with four batches ask for more at once than the window holds, then compute for long.  The engine keeps up
 * with some of them: it fetches on while they read.  A later burst may miss more than a few files only if it makes the
 * window grow.  A few, because a busy processor can keep the engine from running while the reader does. */
static void bursts_larger_than_the_window_make_it_grow(void **state)
{
	enum { BURST = 300, BURSTS = 3 * N_FILES / BURST };
	static const uint64_t shared[] = { 0, 24 << 20 }; /* what a mount that shares begins with */
	static const uint64_t memories[] = { 128 << 20, 512 << 20 };
	static const useconds_t pauses[] = { 0, 50 };
	(void)state;
	for (size_t i = 0; i < 4; i++) {
		struct fake_sink sink;
		struct trainer t = { 0 };
		struct prefetch_hook hook = { .delay_ns = always_late };
		sink_init(&sink);
		start(&t, &sink,
		        &(struct setup){
		                .memory = memories[i % 2], .view = orders[0], .hook = &hook, .window = 16 << 20 });
		settle(&t);
		if (shared[i % 2])
			prefetch_share(t.p, shared[i % 2]);
		for (uint64_t burst = 0; burst < BURSTS; burst++) {
			struct prefetch_stream_stats first, then;
			settle(&t);
			prefetch_stream_stats_get(t.stream, &first);
			uint64_t before = t.misses;
			for (uint64_t k = burst * BURST; k < (burst + 1) * BURST; k++) {
				read_turn(&t, k / N_FILES, k % N_FILES);
				if (pauses[i / 2])
					usleep(pauses[i / 2]);
			}
			settle(&t);
			prefetch_stream_stats_get(t.stream, &then);
			if (burst >= BURSTS / 2 && then.window_limit == first.window_limit)
				assert_in_range(t.misses - before, 0, BURST / 50);
		}
		assert_int_equal(t.errors, 0);
		check_sink(&sink);
		stop(&t);
		prefetch_free(t.p);
	}
}

/* A training loader and a validation loader, one after the other: who does not read leaves the room to who does, and
 * has what
 * comes next for him when it is his turn. */
static void streams_that_take_turns_miss_nothing(void **state)
{
	(void)state;
	struct fake_sink sink;
	struct trainer t[2] = { 0 };
	struct setup setup = { .memory = 16 << 20, .view = orders[0], .window = 8 << 20 };
	sink_init(&sink);
	setup.view.world = 2;
	for (uint32_t r = 0; r < 2; r++) {
		t[r].p = t[0].p;
		t[r].paced = true;
		setup.view.rank = r;
		start(&t[r], &sink, &setup);
	}
	settle(&t[0]);
	for (uint64_t epoch = 0; epoch < 3; epoch++) {
		for (uint32_t r = 0; r < 2; r++) {
			uint64_t before = t[r].misses;
			read_epoch(&t[r], epoch);
			if (epoch > 0)
				assert_in_range(t[r].misses - before, 0, 16); /* until the other one counts as away */
		}
	}
	assert_int_equal(t[0].errors + t[1].errors, 0);
	check_sink(&sink);
	stop(&t[0]);
	stop(&t[1]);
	prefetch_free(t[0].p);
}

static void a_stream_that_comes_second_is_read_ahead_at_once(void **state)
{
	(void)state;
	struct fake_sink sink;
	struct trainer t[2] = { 0 };
	struct setup setup = { .memory = 16 << 20, .view = orders[0], .window = 8 << 20 };
	struct prefetch_stream_stats second;
	sink_init(&sink);
	setup.view.world = 2;
	for (uint32_t r = 0; r < 2; r++) {
		t[r].p = t[0].p;
		t[r].paced = true;
		setup.view.rank = r;
		start(&t[r], &sink, &setup);
		settle(&t[0]);
		for (uint64_t k = 0; r == 0 && k < turns_of(&t[0], 0) / 4; k++)
			read_turn(&t[0], 0, k);
		settle(&t[0]);
	}
	prefetch_stream_stats_get(t[1].stream, &second);
	assert_true(second.fetched > 0);
	stop(&t[0]);
	stop(&t[1]);
	prefetch_free(t[0].p);
}

static void files_that_are_left_out_do_not_stop_the_window(void **state)
{
	(void)state;
	struct fake_sink sink;
	struct trainer t = { .patient = true };
	sink_init(&sink);
	start(&t, &sink, &(struct setup){ .memory = 32 << 20, .view = orders[0] });
	for (uint64_t e = 0; e < 2; e++) {
		for (uint64_t k = 0; k < N_FILES; k++) {
			if (k % 3)
				read_turn(&t, e, k);
		}
	}
	assert_int_equal(t.misses, 0);
	check_sink(&sink);
	stop(&t);
	prefetch_free(t.p);
}

static void a_foreign_order_is_noticed_and_the_way_back_too(void **state)
{
	(void)state;
	struct fake_sink sink;
	struct trainer t = { .paced = true };
	struct prefetch_stream_stats ss;
	uint32_t x = 5;
	sink_init(&sink);
	start(&t, &sink, &(struct setup){ .memory = 16 << 20, .view = orders[0], .window = 2 << 20 });
	for (unsigned i = 0; i < 400; i++)
		read_turn(&t, 0, next_random(&x) % N_FILES);
	settle(&t);
	prefetch_stream_stats_get(t.stream, &ss);
	assert_false(ss.following);
	uint64_t fetched = ss.fetched;
	for (unsigned i = 0; i < 400; i++)
		read_turn(&t, 0, next_random(&x) % N_FILES);
	settle(&t);
	prefetch_stream_stats_get(t.stream, &ss);
	assert_false(ss.following);
	assert_int_equal(ss.fetched, fetched); /* no useless reads */
	for (uint64_t k = 300; k < N_FILES; k++)
		read_turn(&t, 1, k);
	settle(&t);
	prefetch_stream_stats_get(t.stream, &ss);
	assert_true(ss.following);
	assert_true(ss.fetched > fetched + N_FILES / 4);
	assert_int_equal(ss.epoch, 2);
	check_sink(&sink);
	assert_true(stats(t.p).resident_bytes <= stats(t.p).budget_bytes);
	stop(&t);
	prefetch_free(t.p);
}

static void a_list_read_again_is_followed(void **state)
{
	(void)state;
	struct fake_sink sink;
	struct trainer t = { .paced = true };
	struct prefetch_stream_stats ss;
	sink_init(&sink);
	start(&t, &sink, &(struct setup){ .memory = 16 << 20, .view = orders[0] });
	for (unsigned i = 0; i < 2; i++)
		read_epoch(&t, 0);
	t.misses = 0;
	t.patient = true;
	read_epoch(&t, 0);
	settle(&t);
	prefetch_stream_stats_get(t.stream, &ss);
	assert_true(ss.following);
	assert_int_equal(ss.jumps, 1); /* once it is known that the list repeats, the next time is no surprise */
	assert_int_equal(ss.epoch, 0);
	assert_int_equal(t.misses, 0);
	check_sink(&sink);
	stop(&t);
	prefetch_free(t.p);
}

static void a_new_epoch_can_be_declared(void **state)
{
	(void)state;
	struct fake_sink sink;
	struct trainer t = { .paced = true };
	struct prefetch_stream_stats ss;
	sink_init(&sink);
	start(&t, &sink, &(struct setup){ .memory = 32 << 20, .view = orders[0] });
	for (uint64_t k = 0; k < N_FILES / 2; k++)
		read_turn(&t, 0, k);
	static const uint64_t epochs[] = { 1, 7, 3 };
	for (unsigned i = 0; i < 3; i++) {
		prefetch_stream_epoch(t.stream, epochs[i]);
		settle(&t);
		prefetch_stream_stats_get(t.stream, &ss);
		assert_int_equal(ss.epoch, epochs[i]);
		assert_true(ss.window_bytes > 0);
		t.misses = 0;
		for (uint64_t k = 0; k < 50; k++)
			read_turn(&t, epochs[i], k);
		assert_int_equal(t.misses, 0); /* they had settled */
	}
	check_sink(&sink);
	stop(&t);
	prefetch_free(t.p);
}

static void a_doubtful_stream_waits_for_the_order(void **state)
{
	(void)state;
	struct fake_sink sink;
	struct trainer t = { .paced = true };
	sink_init(&sink);
	start(&t, &sink, &(struct setup){ .memory = 32 << 20, .view = orders[0], .doubtful = true });
	settle(&t);
	assert_int_equal(stats(t.p).reads, 0);
	read_epoch(&t, 0);
	assert_true(count_of(&sink, &sink.stored) > N_FILES / 2);
	check_sink(&sink);
	stop(&t);
	prefetch_free(t.p);
}

static void *run_trainer(void *arg)
{
	struct trainer *t = arg;
	for (uint64_t e = 0; e < 3; e++)
		read_epoch(t, e);
	return NULL;
}

static void ranks_share_what_is_resident(void **state)
{
	(void)state;
	for (unsigned big = 0; big < 2; big++) {
		struct fake_sink sink;
		struct trainer t[3] = { 0 };
		pthread_t threads[3];
		struct setup setup = { .memory = big ? 512 << 20 : 32 << 20, .view = orders[0] };
		sink_init(&sink);
		setup.view.world = 3;
		for (uint32_t r = 0; r < 3; r++) {
			t[r].p = t[0].p;
			t[r].patient = big;
			setup.view.rank = r;
			start(&t[r], &sink, &setup);
		}
		for (unsigned r = 0; r < 3; r++)
			assert_int_equal(pthread_create(&threads[r], NULL, run_trainer, &t[r]), 0);
		for (unsigned r = 0; r < 3; r++)
			pthread_join(threads[r], NULL);
		settle(&t[0]);
		struct prefetch_stats st = stats(t[0].p);
		assert_int_equal(count_of(&sink, &sink.wrong) + count_of(&sink, &sink.unannounced), 0);
		assert_int_equal(t[0].errors + t[1].errors + t[2].errors, 0);
		assert_int_equal(st.used, 3 * N_FILES);
		if (big)
			assert_true(st.read_bytes < data_bytes * 9 / 8); /* not once a rank */
		else
			assert_true(most_bytes(&sink) <= 32 << 20);
		for (unsigned r = 0; r < 3; r++)
			stop(&t[r]);
		prefetch_free(t[0].p);
	}
}

/* Somebody looks up files that the stream may be reading, have or have dropped. */
static void hints_beside_a_trainer(void **state)
{
	(void)state;
	for (unsigned big = 0; big < 2; big++) {
		struct fake_sink sink;
		struct trainer t = { 0 };
		pthread_t thread;
		uint32_t x = 7 + big;
		struct setup setup = { .memory = big ? 512 << 20 : 32 << 20, .view = orders[0] };
		sink_init(&sink);
		start(&t, &sink, &setup);
		assert_int_equal(pthread_create(&thread, NULL, run_trainer, &t), 0);
		struct prefetch_stats st = { 0 };
		while (st.used < 3 * N_FILES) {
			prefetch_hint(t.p, next_random(&x) % N_FILES, true, NULL);
			usleep(20);
			st = stats(t.p);
		}
		pthread_join(thread, NULL);
		settle(&t);
		assert_int_equal(count_of(&sink, &sink.wrong) + count_of(&sink, &sink.unannounced), 0);
		assert_int_equal(t.errors, 0);
		assert_true(most_bytes(&sink) <= setup.memory);
		check_sink(&sink);
		stop(&t);
		prefetch_free(t.p);
	}
}

/* Others read the same shards: what was read directly goes, the rest comes through the page cache. */
static void sharing_starts_in_the_middle(void **state)
{
	(void)state;
	for (unsigned threads = 0; threads < 2; threads++) {
		struct fake_sink sink;
		struct trainer t = { .patient = true, .paced = true }; /* one that is not makes the window grow */
		struct prefetch_stream_stats ss;
		sink_init(&sink);
		start(&t, &sink, &(struct setup){ .memory = 256 << 20, .view = orders[0], .threads = threads });
		for (uint64_t k = 0; k < N_FILES / 2; k++)
			read_turn(&t, 0, k);
		settle(&t);
		assert_false(stats(t.p).shared);
		prefetch_share(t.p, 16 << 20);
		prefetch_share(t.p, 200 << 20);
		while (!stats(t.p).shared)
			usleep(1000);
		t.misses = 0;
		for (uint64_t k = N_FILES / 2; k < N_FILES; k++)
			read_turn(&t, 0, k);
		read_epoch(&t, 1);
		settle(&t);
		prefetch_stream_stats_get(t.stream, &ss);
		assert_int_equal(t.errors, 0);
		assert_true(t.misses <= N_FILES / 50); /* the trainer stood at the window's end for a moment */
		assert_true(ss.following);
		assert_int_equal(ss.jumps, 0);
		assert_int_equal(ss.epoch, 2);
		assert_false(stats(t.p).direct);
		assert_true(stats(t.p).resident_bytes <= 16 << 20);
		pthread_mutex_lock(&sink.lock);
		assert_true(sink.bytes <= 24 << 20); /* with what waits to be dropped */
		pthread_mutex_unlock(&sink.lock);
		assert_int_equal(count_of(&sink, &sink.wrong) + count_of(&sink, &sink.unannounced), 0);
		stop(&t);
		prefetch_free(t.p);
	}
}

/* All fits at first, a small part later, all again. */
static void the_budget_shrinks_and_grows_in_the_middle(void **state)
{
	(void)state;
	struct fake_sink sink;
	struct trainer t = { .patient = true };
	sink_init(&sink);
	start(&t, &sink, &(struct setup){ .memory = 256 << 20, .view = orders[0] });
	read_epoch(&t, 0);
	settle(&t);
	uint64_t whole = stats(t.p).resident_bytes;
	assert_int_equal(stats(t.p).evicted, 0);
	prefetch_set_memory(t.p, (64 << 20) + whole / 4);
	while (stats(t.p).budget_bytes > whole / 4)
		usleep(1000);
	read_epoch(&t, 1);
	settle(&t);
	assert_true(stats(t.p).resident_bytes <= whole / 4);
	assert_true(stats(t.p).evicted > 0);
	prefetch_set_memory(t.p, 256 << 20);
	read_epoch(&t, 2);
	read_epoch(&t, 3);
	settle(&t);
	assert_int_equal(stats(t.p).resident_bytes, whole);
	uint64_t read_bytes = stats(t.p).read_bytes;
	t.misses = 0;
	read_epoch(&t, 4);
	settle(&t);
	assert_int_equal(stats(t.p).read_bytes, read_bytes); /* all of it was there */
	assert_int_equal(t.misses, 0);
	assert_int_equal(t.errors + count_of(&sink, &sink.wrong) + count_of(&sink, &sink.unannounced), 0);
	stop(&t);
	prefetch_free(t.p);
}

/* A budget that shrinks drops what was read ahead and not used. */
static void what_is_dropped_before_its_use_is_wasted(void **state)
{
	(void)state;
	struct fake_sink sink;
	struct trainer t = { 0 };
	sink_init(&sink);
	start(&t, &sink, &(struct setup){ .memory = 256 << 20, .view = orders[0], .window = 16 << 20 });
	settle(&t);
	uint64_t resident = stats(t.p).resident_bytes, wasted = stats(t.p).wasted_bytes;
	assert_true(resident > 8 << 20);
	prefetch_set_memory(t.p, PREFETCH_MEMORY_MIN);
	while (stats(t.p).budget_bytes >= PREFETCH_MEMORY_MIN)
		usleep(1000);
	settle(&t);
	uint64_t left = stats(t.p).resident_bytes;
	assert_true(left < PREFETCH_MEMORY_MIN);
	/* What is dropped after the engine went back counts when it is fetched again. */
	assert_true(stats(t.p).wasted_bytes - wasted >= (resident - left) / 4 * 3);
	stop(&t);
	prefetch_free(t.p);
}

/* A read of one in `every` fails, is late or short. */
struct faults {
	_Atomic uint32_t n;
	uint32_t every;
};

static int suffer(void *arg, uint32_t shard, uint64_t offset, uint8_t *bytes, int res)
{
	struct faults *f = arg;
	uint32_t n = f->n++;
	(void)shard;
	(void)offset;
	if (res <= 0 || n % f->every)
		return res;
	switch (n / f->every % 5) {
	case 0:
		return -EIO;
	case 1:
		return -EAGAIN;
	case 2:
		return res > 8192 ? res / 2 : res;
	case 3:
		return -EINTR;
	default:
		bytes[res / 2] ^= 16;
		return res;
	}
}

static uint64_t late(void *arg, uint32_t shard, uint64_t offset, uint32_t len)
{
	(void)arg;
	(void)shard;
	(void)len;
	return offset % 7 == 0 ? 3000000 : 0;
}

static void faults_are_mended_on_the_way(void **state)
{
	(void)state;
	for (unsigned threads = 0; threads < 2; threads++) {
		struct fake_sink sink;
		struct trainer t = { 0 };
		struct faults f = { .every = 7 };
		struct prefetch_hook hook = { .result = suffer, .delay_ns = late, .arg = &f };
		sink_init(&sink);
		start(&t, &sink,
		        &(struct setup){ .memory = 32 << 20, .view = orders[0], .hook = &hook, .threads = threads });
		for (uint64_t e = 0; e < 2; e++)
			read_epoch(&t, e);
		/* A sample of which one block failed is stored again as a whole: twice is no fault here. */
		assert_int_equal(count_of(&sink, &sink.wrong) + count_of(&sink, &sink.unannounced), 0);
		/* The fault may hit the second try, too; then the reader is told. */
		assert_true(t.errors <= 2 * N_FILES / 50);
		assert_true(stats(t.p).io_errors > 0 && stats(t.p).mended_blocks > 0);
		stop(&t);
		prefetch_free(t.p);
	}
}

static void a_bad_sample_does_not_stop_the_others(void **state)
{
	(void)state;
	struct fake_sink sink;
	struct trainer t = { .paced = true };
	struct shard_file file;
	char path[128];
	uint8_t byte = 0;
	assert_int_equal(shard_index_file(data.index, 3, &file), 0);
	dataset_shard_path(&data, file.shard, path);
	int fd = open(path, O_RDWR);
	assert_true(fd >= 0 && pread(fd, &byte, 1, (off_t)file.offset) == 1);
	byte ^= 1;
	assert_int_equal(pwrite(fd, &byte, 1, (off_t)file.offset), 1);
	sink_init(&sink);
	start(&t, &sink, &(struct setup){ .memory = 64 << 20, .view = orders[0] });
	for (uint64_t e = 0; e < 2; e++)
		read_epoch(&t, e);
	assert_int_equal(t.errors, 2); /* once an epoch */
	assert_int_equal(stats(t.p).bad_blocks, 1);
	assert_int_equal(stats(t.p).mended_blocks, 0);
	check_sink(&sink);
	stop(&t);
	prefetch_free(t.p);
	byte ^= 1;
	assert_int_equal(pwrite(fd, &byte, 1, (off_t)file.offset), 1);
	close(fd);
}

static void a_sink_that_refuses_leaves_demands_working(void **state)
{
	(void)state;
	struct fake_sink sink;
	struct trainer t = { 0 };
	sink_init(&sink);
	sink.refuse = true;
	start(&t, &sink, &(struct setup){ .memory = 32 << 20, .view = orders[0] });
	read_epoch(&t, 0);
	assert_int_equal(t.errors, 0);
	assert_int_equal(count_of(&sink, &sink.wrong), 0);
	/* What was refused is known not to be there: a demand for it is none for what the kernel took back. */
	assert_true(stats(t.p).lost < N_FILES / 2);
	stop(&t);
	prefetch_free(t.p);
}

static void memory_taken_away_shrinks_the_budget(void **state)
{
	(void)state;
	struct fake_sink sink;
	struct trainer t = { .patient = true };
	struct asked *lost = calloc(N_FILES, sizeof(*lost));
	sink_init(&sink);
	start(&t, &sink, &(struct setup){ .memory = 256 << 20, .view = orders[0] });
	read_epoch(&t, 0);
	settle(&t);
	uint64_t before = stats(t.p).budget_bytes;
	/* The kernel reclaims everything. */
	pthread_mutex_lock(&sink.lock);
	memset(sink.blocks, 0, sizeof(sink.blocks));
	sink.bytes = 0;
	pthread_mutex_unlock(&sink.lock);
	/* Many at once: what is lost now and then is chance, as seconds go. */
	for (uint32_t file = 0; file < N_FILES; file++) {
		if (blocks_of(file) == 1)
			asked_begin(t.p, &lost[file],
			        (struct prefetch_demand){ .file = file, .take = (uint32_t)block_bytes(file, 0) });
	}
	for (uint32_t file = 0; file < N_FILES; file++)
		if (blocks_of(file) == 1)
			assert_int_equal(await(&lost[file]), 0);
	settle(&t);
	assert_int_equal(t.errors, 0);
	assert_true(stats(t.p).lost > 0);
	assert_true(stats(t.p).budget_bytes < before);
	assert_int_equal(count_of(&sink, &sink.wrong), 0);
	free(lost);
	stop(&t);
	prefetch_free(t.p);
}

static void reclaim_every_other(struct fake_sink *sink)
{
	pthread_mutex_lock(&sink->lock);
	for (uint32_t file = 0; file < N_FILES; file++) {
		for (uint32_t b = 0; file % 2 && b < blocks_of(file); b++) {
			sink->bytes -= sink->blocks[file] >> b & 1 ? block_bytes(file, b) : 0;
			sink->blocks[file] &= (uint8_t) ~(1 << b);
		}
	}
	pthread_mutex_unlock(&sink->lock);
}

/* Takes a file's pages back.  Returns their bytes. */
static uint64_t reclaim(struct fake_sink *sink, uint32_t file)
{
	uint64_t bytes = 0;
	pthread_mutex_lock(&sink->lock);
	for (uint32_t b = 0; b < blocks_of(file); b++)
		bytes += sink->blocks[file] >> b & 1 ? block_bytes(file, b) : 0;
	sink->bytes -= bytes;
	sink->blocks[file] = sink->by_store[file] = 0;
	pthread_mutex_unlock(&sink->lock);
	return bytes;
}

/* Of turns 0 to 99 of an epoch, every thirtieth is lost: too few to fetch others again.  before: the READ comes before
 * its use is known.  Returns the lost bytes. */
static uint64_t read_with_losses(struct trainer *t, uint64_t epoch, bool before)
{
	uint64_t bytes = 0;
	for (uint64_t k = 0; k < 100; k++) {
		uint32_t file = sample_at(t, epoch, k);
		bytes += k % 30 == 10 ? reclaim(t->sink, file) : 0;
		if (before)
			read_file(t, file);
		prefetch_stream_used(t->stream, &(struct prefetch_use){ .epoch = epoch, .turn = k }, 1);
		if (!before)
			read_file(t, file);
		settle(t);
	}
	return bytes;
}

/* What the kernel takes back is wasted if it was read ahead and nobody used it.  If somebody did, it is not. */
static void what_is_lost_before_its_use_is_wasted(void **state)
{
	(void)state;
	for (unsigned before = 0; before < 2; before++) {
		struct fake_sink sink;
		struct trainer t = { .paced = true };
		sink_init(&sink);
		start(&t, &sink, &(struct setup){ .memory = 256 << 20, .view = orders[0] });
		settle(&t);
		uint64_t wasted = stats(t.p).wasted_bytes, lost = read_with_losses(&t, 0, before);
		assert_true(lost > 0);
		assert_int_equal(stats(t.p).wasted_bytes - wasted, lost);
		for (uint64_t k = 100; k < N_FILES; k++)
			read_turn(&t, 0, k);
		wasted = stats(t.p).wasted_bytes;
		assert_true(read_with_losses(&t, 1, before) > 0);
		assert_int_equal(stats(t.p).wasted_bytes, wasted); /* epoch 0 has used them */
		reclaim_every_other(&sink);
		for (uint64_t k = 100; k < N_FILES && !stats(t.p).refetches; k++)
			read_turn(&t, 1, k);
		settle(&t);
		assert_int_equal(stats(t.p).refetches, 1);
		/* What was fetched again has gaps. */
		assert_in_range(stats(t.p).wasted_bytes - wasted, 0, data_bytes / 8);
		stop(&t);
		prefetch_free(t.p);
	}
}

/* Much of what waits was reclaimed: that is noticed by the first who miss it, the others have it again. */
static void what_the_kernel_took_back_is_fetched_again(void **state)
{
	(void)state;
	struct fake_sink sink;
	struct trainer t = { .patient = true };
	sink_init(&sink);
	start(&t, &sink, &(struct setup){ .memory = 256 << 20, .view = orders[0] });
	read_epoch(&t, 0);
	settle(&t);
	for (uint64_t k = 0; k < N_FILES / 4; k++)
		read_turn(&t, 1, k);
	settle(&t);
	assert_int_equal(stats(t.p).refetches, 0);
	reclaim_every_other(&sink);
	t.misses = 0;
	for (uint64_t k = N_FILES / 4; k < N_FILES; k++)
		read_turn(&t, 1, k);
	read_epoch(&t, 2);
	settle(&t);
	assert_int_equal(t.errors, 0);
	assert_in_range(stats(t.p).refetches, 1, 4);
	assert_in_range(t.misses, 1, N_FILES / 4);
	assert_int_equal(stats(t.p).used, 3 * N_FILES);
	assert_int_equal(count_of(&sink, &sink.wrong) + count_of(&sink, &sink.unannounced), 0);
	stop(&t);
	prefetch_free(t.p);
}

/* Pages, names and inodes go, those of the window and those that are announced before it, as by drop_caches. */
static void forget_all(struct fake_sink *sink)
{
	pthread_mutex_lock(&sink->lock);
	memset(sink->blocks, 0, sizeof(sink->blocks));
	memset(sink->by_store, 0, sizeof(sink->by_store));
	memset(sink->announced, 0, sizeof(sink->announced));
	sink->bytes = 0;
	pthread_mutex_unlock(&sink->lock);
}

static void what_the_kernel_forgot_is_announced_again(void **state)
{
	(void)state;
	static const uint64_t memories[] = { 20 << 20, 256 << 20 }; /* less than there is; all of it and more */
	for (size_t i = 0; i < 2; i++) {
		struct fake_sink sink;
		struct trainer t = { .paced = true };
		sink_init(&sink);
		sink.forgets = true;
		start(&t, &sink, &(struct setup){ .memory = memories[i], .view = orders[0] });
		settle(&t);
		for (uint64_t epoch = 0; epoch < 3; epoch++) {
			for (uint64_t k = 0; k < N_FILES; k++) {
				if (epoch == 1 && k == N_FILES / 3)
					forget_all(&sink);
				if (epoch == 1 && k == N_FILES / 3 + 100)
					t.misses = 0;
				read_turn(&t, epoch, k);
			}
		}
		assert_int_equal(t.errors, 0);
		assert_in_range(stats(t.p).lost, 1, N_FILES / 4);
		assert_in_range(t.misses, 0, N_FILES / 10);
		assert_in_range(stats(t.p).refetches, 1, 4);
		assert_int_equal(count_of(&sink, &sink.wrong), 0);
		stop(&t);
		prefetch_free(t.p);
	}
}

/* Only names went, of turns that were not fetched yet: nobody has missed anything when it is noticed. */
static void a_refused_store_is_made_good_before_it_is_missed(void **state)
{
	(void)state;
	struct fake_sink sink;
	struct trainer t = { .paced = true };
	sink_init(&sink);
	sink.forgets = true;
	start(&t, &sink, &(struct setup){ .memory = 20 << 20, .view = orders[0] });
	settle(&t);
	for (uint64_t k = 0; k < N_FILES; k++) {
		if (k % 200 == 100) {
			pthread_mutex_lock(&sink.lock);
			for (uint32_t file = 0; file < N_FILES; file++)
				sink.announced[file] = sink.announced[file] && sink.blocks[file];
			pthread_mutex_unlock(&sink.lock);
		}
		read_turn(&t, 0, k);
	}
	assert_int_equal(t.misses + t.errors, 0);
	assert_true(stats(t.p).lost > 0);
	assert_int_equal(stats(t.p).refetches, 0);
	assert_int_equal(count_of(&sink, &sink.wrong), 0);
	stop(&t);
	prefetch_free(t.p);
}

/* A reader that waits uses nothing, so uses alone do not say when names are announced again. */
static void names_come_back_while_a_reader_waits(void **state)
{
	(void)state;
	struct fake_sink sink;
	struct trainer t = { 0 };
	sink_init(&sink);
	sink.refuse = true;
	start(&t, &sink, &(struct setup){ .memory = 32 << 20, .view = orders[0] });
	settle(&t);
	pthread_mutex_lock(&sink.lock);
	sink.refuse = false;
	assert_int_equal(sink.bytes, 0);
	pthread_mutex_unlock(&sink.lock);
	uint32_t waits_for = sample_at(&t, 0, N_FILES - 1);
	uint64_t came = 0;
	for (unsigned tries = 0; tries < 2000 && !came; tries++) {
		usleep(5000);
		assert_int_equal(ask(t.p, waits_for, 0), 0);
		settle(&t);
		pthread_mutex_lock(&sink.lock);
		came = sink.bytes;
		pthread_mutex_unlock(&sink.lock);
	}
	assert_true(came > 0);
	stop(&t);
	prefetch_free(t.p);
}

/* The kernel holds less than the window, and what comes pushes out what came before, the next files first. */
static void under_pressure_a_small_window_is_ahead_of_the_reader(void **state)
{
	(void)state;
	struct fake_sink sink;
	struct trainer t = { .paced = true };
	uint64_t misses[3] = { 0 };
	sink_init(&sink);
	start(&t, &sink, &(struct setup){ .memory = 256 << 20, .view = orders[0] });
	settle(&t);
	for (uint64_t epoch = 0; epoch < 3; epoch++) {
		for (uint64_t k = 0; k < N_FILES; k++) {
			if (epoch == 1 && k == N_FILES / 3) {
				pthread_mutex_lock(&sink.lock);
				sink.room = 8 << 20;
				push_out(&sink);
				pthread_mutex_unlock(&sink.lock);
			}
			read_turn(&t, epoch, k);
		}
		misses[epoch] = t.misses;
	}
	assert_int_equal(t.errors, 0);
	assert_in_range(misses[1], 1, N_FILES / 4);
	assert_in_range(misses[2] - misses[1], 0, N_FILES / 4);
	assert_int_equal(count_of(&sink, &sink.wrong) + count_of(&sink, &sink.unannounced), 0);
	stop(&t);
	prefetch_free(t.p);
}

/* Workers' batches are used side by side: what they had of the turns that are fetched again is not wanted twice. */
static void late_workers_do_not_read_again(void **state)
{
	(void)state;
	static const unsigned batches[] = { 3, 1, 0, 2 };
	enum { BATCH = 10, GROUP = 4 * BATCH }; /* less than half of the window: laggards are not given up */
	_Static_assert(N_FILES % GROUP == 0, "whole groups");
	struct fake_sink sink;
	struct trainer t = { .patient = true };
	struct prefetch_stream_stats ss;
	sink_init(&sink);
	start(&t, &sink, &(struct setup){ .memory = 256 << 20, .view = orders[0] });
	for (uint64_t epoch = 0; epoch < 3; epoch++) {
		for (uint64_t k = 0; k < N_FILES; k++) {
			uint64_t batch = k % GROUP / BATCH;
			if (epoch == 1 && k == N_FILES / 3 + BATCH / 2) /* in the middle of a group */
				reclaim_every_other(&sink);
			read_turn(&t, epoch, k / GROUP * GROUP + batches[batch] * BATCH + k % BATCH);
		}
	}
	settle(&t);
	prefetch_stream_stats_get(t.stream, &ss);
	assert_int_equal(t.errors, 0);
	assert_in_range(stats(t.p).refetches, 1, 4);
	assert_in_range(t.misses, 1, N_FILES / 4);
	assert_int_equal(stats(t.p).used, 3 * N_FILES);
	assert_int_equal(ss.epoch, 3);
	assert_true(ss.following);
	assert_int_equal(ss.jumps, 0);
	assert_int_equal(count_of(&sink, &sink.wrong) + count_of(&sink, &sink.unannounced), 0);
	stop(&t);
	prefetch_free(t.p);
}

/* A reader with O_DIRECT asks for what is resident: nothing was lost. */
static void reads_past_the_page_cache_say_nothing(void **state)
{
	(void)state;
	struct fake_sink sink;
	struct trainer t = { .patient = true };
	sink_init(&sink);
	start(&t, &sink, &(struct setup){ .memory = 256 << 20, .view = orders[0] });
	for (unsigned pass = 0; pass < 2; pass++) { /* beside the first window; of what is resident */
		for (uint32_t file = 0; file < N_FILES; file++) {
			struct prefetch_demand demand = { .file = file, .direct = true };
			if (blocks_of(file))
				assert_int_equal(asked_get(t.p, demand), 0);
		}
		settle(&t);
		read_epoch(&t, pass);
		settle(&t);
	}
	assert_int_equal(t.misses + t.errors, 0);
	assert_int_equal(stats(t.p).lost, 0);
	assert_int_equal(stats(t.p).refetches, 0);
	stop(&t);
	prefetch_free(t.p);
}

static void a_stream_can_be_freed_at_any_time(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 12; i++) {
		struct fake_sink sink;
		struct trainer t = { 0 };
		struct prefetch_hook hook = { .delay_ns = late };
		sink_init(&sink);
		start(&t, &sink,
		        &(struct setup){ .memory = 64 << 20, .view = orders[0], .hook = &hook, .threads = i & 1 });
		for (uint64_t k = 0; k < i * 20; k++)
			read_turn(&t, 0, k);
		stop(&t);
		prefetch_free(t.p);
		check_sink(&sink);
	}
}

static void names_without_an_epoch_follow_too(void **state)
{
	(void)state;
	struct fake_sink sink;
	struct trainer t = { .paced = true };
	struct prefetch_stream_stats ss;
	sink_init(&sink);
	start(&t, &sink, &(struct setup){ .memory = 32 << 20, .view = orders[0] });
	for (uint64_t e = 0; e < 3; e++) {
		for (uint64_t k = 0; k < N_FILES; k++) {
			uint32_t sample = sample_at(&t, e, k);
			read_file(&t, sample);
			prefetch_stream_used_samples(t.stream, &sample, 1);
			settle(&t);
		}
	}
	settle(&t);
	prefetch_stream_stats_get(t.stream, &ss);
	assert_true(ss.following);
	assert_int_equal(ss.epoch, 3);
	assert_int_equal(ss.jumps, 0);
	check_sink(&sink);
	stop(&t);
	prefetch_free(t.p);
}

static int setup(void **state)
{
	(void)state;
	dataset_new(&data, N_FILES, N_SHARDS, SIZES, N_SIZES);
	for (uint32_t f = 0; f < N_FILES; f++)
		data_bytes += pages(dataset_length(&data, f));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	dataset_free(&data);
	return 0;
}

static uint64_t late_reads(void *arg, uint32_t shard, uint64_t offset, uint32_t len)
{
	(void)shard;
	(void)offset;
	(void)len;
	return *(uint64_t *)arg;
}

/* The read that they join wakes it when it comes back. */
static void demands_that_join_a_read_do_not_wake_the_engine(void **state)
{
	(void)state;
	enum { JOIN = 20 };
	struct fake_sink sink;
	struct trainer t = { 0 };
	struct asked asked[1 + JOIN];
	uint64_t late_ns = 100000000;
	const struct prefetch_hook hook = { .delay_ns = late_reads, .arg = &late_ns };
	sink_init(&sink);
	start(&t, &sink, &(struct setup){ .memory = 64 << 20, .view = orders[0], .hook = &hook, .doubtful = true });
	settle(&t);
	uint64_t before = stats(t.p).wake_ups;
	for (unsigned i = 0; i <= JOIN; i++)
		asked_begin(t.p, &asked[i], (struct prefetch_demand){ .file = 0, .take = 4096 });
	for (unsigned i = 0; i <= JOIN; i++)
		assert_int_equal(await(&asked[i]), 0);
	settle(&t);
	/* Those that came when the read had landed wake it. */
	assert_true(stats(t.p).wake_ups - before <= 1 + JOIN - stats(t.p).joined);
	assert_true(stats(t.p).joined > 0);
	stop(&t);
	prefetch_free(t.p);
}

static uint64_t late_by_10_ms(void *arg, uint32_t shard, uint64_t offset, uint32_t len)
{
	(void)arg;
	(void)shard;
	(void)offset;
	(void)len;
	return 10000000;
}

/* A reader brings a sample in by several READs: the later ones do not tell that the kernel took it back.  One of the
 * same block does. */
static void other_blocks_of_a_sample_that_comes_are_not_lost(void **state)
{
	struct fake_sink sink;
	struct trainer t = { 0 };
	uint32_t file = 0;
	enum { OTHERS = 12 }; /* more than 8 MiB */
	(void)state;
	sink_init(&sink);
	start(&t, &sink, &(struct setup){ .memory = 32 << 20, .view = orders[0], .doubtful = true });
	while (blocks_of(file) != 2)
		file++;
	for (uint32_t block = 0; block < 2; block++) {
		assert_int_equal(ask(t.p, file, block), 0);
		settle(&t);
		assert_int_equal(stats(t.p).lost, 0);
	}
	for (uint32_t other = file + 1, n = 0; n < OTHERS; other++) { /* landing memory forgets the file */
		bool two = blocks_of(other) == 2;
		n += two;
		for (uint32_t block = 0; two && block < 2; block++)
			assert_int_equal(ask(t.p, other, block), 0);
	}
	settle(&t);
	assert_int_equal(stats(t.p).lost, 0);
	assert_int_equal(ask(t.p, file, 0), 0);
	settle(&t);
	assert_int_equal(stats(t.p).lost, 1);
	stop(&t);
	prefetch_free(t.p);
}

/* Begins a trainer whose dataset lies in a store far away, and whose window of the first turns is there. */
static void start_looking(struct trainer *t, struct fake_sink *sink, const struct prefetch_hook *hook)
{
	sink_init(sink);
	sink->base.ops = &looking_ops;
	start(t, sink, &(struct setup){ .memory = 256 << 20, .view = orders[0], .hook = hook, .store = true });
	sink->looks = t->p;
	t->paced = true;
	settle(t);
	for (uint64_t k = 0; k < 10; k++)
		read_turn(t, 0, k);
	assert_int_equal(stats(t->p).lost, 0);
}

/* The kernel takes a file back, with its name. */
static void forget(struct fake_sink *sink, uint32_t file)
{
	reclaim(sink, file);
	pthread_mutex_lock(&sink->lock);
	sink->announced[file] = false;
	pthread_mutex_unlock(&sink->lock);
}

/* A few files ahead of the reader are gone, with or without their names.  He finds the first, the engine the others. */
static void lost_files_of_a_store_are_there_again_before_their_reader(void **state)
{
	(void)state;
	enum { STEP = 8, LOST = 4 };
	const struct prefetch_hook hook = { .delay_ns = late_by_10_ms };
	for (unsigned names = 0; names < 2; names++) {
		struct fake_sink sink;
		struct trainer t = { 0 };
		uint64_t first = 10, blocks = 0;
		start_looking(&t, &sink, &hook);
		while (blocks_of(sample_at(&t, 0, first)) != 1)
			read_turn(&t, 0, first++);
		assert_int_equal(count_of(&sink, &sink.looked), 0); /* nothing was lost yet */
		reclaim(&sink, sample_at(&t, 0, first));
		for (uint64_t k = first + STEP; k <= first + LOST * STEP; k += STEP) {
			uint32_t file = sample_at(&t, 0, k);
			blocks += blocks_of(file);
			if (names)
				forget(&sink, file);
			else
				reclaim(&sink, file);
		}
		uint64_t misses = stats(t.p).misses;
		for (uint64_t k = first; k <= first + LOST * STEP; k++)
			read_turn(&t, 0, k);
		assert_int_equal(stats(t.p).lost, 1);
		assert_int_equal(stats(t.p).misses - misses, 1);
		assert_int_equal(stats(t.p).regained, blocks);
		assert_int_equal(stats(t.p).refetches, 0);
		assert_int_equal(t.errors, 0);
		assert_int_equal(count_of(&sink, &sink.wrong), 0);
		stop(&t);
		prefetch_free(t.p);
	}
}

/* When looking shows that much is gone, the next turns are announced and fetched again. */
static void much_that_is_gone_is_fetched_again_at_once(void **state)
{
	(void)state;
	enum { FIRST = 10 };
	const struct prefetch_hook hook = { .delay_ns = late_by_10_ms };
	struct fake_sink sink;
	struct trainer t = { 0 };
	start_looking(&t, &sink, &hook);
	forget_all(&sink);
	uint64_t misses = stats(t.p).misses;
	for (uint64_t k = FIRST; k < FIRST + 200; k++)
		read_turn(&t, 0, k);
	assert_int_equal(stats(t.p).refetches, 1);
	assert_in_range(stats(t.p).misses - misses, 0, 3); /* without looking, six of eight files must be missed */
	assert_in_range(stats(t.p).regained, 0, 64);       /* a quarter of what is asked for at a time */
	assert_int_equal(t.errors, 0);
	assert_int_equal(count_of(&sink, &sink.wrong), 0);
	stop(&t);
	prefetch_free(t.p);
}

/* In which sequence reads come back.  The engine thread counts. */
struct sequence {
	_Atomic uint32_t n;    /* reads that came back */
	_Atomic uint32_t file; /* the file that is looked for */
	_Atomic uint32_t at;   /* how many reads came back before that of its first block; UINT32_MAX: it has not yet */
};

static int count_read(void *arg, uint32_t shard, uint64_t offset, uint8_t *bytes, int res)
{
	struct sequence *sequence = arg;
	struct shard_place place;
	(void)bytes;
	assert_int_equal(shard_index_place(data.index, sequence->file, &place), 0);
	if (place.shard == shard && place.offset >= offset && place.offset < offset + (uint64_t)res)
		sequence->at = sequence->n;
	sequence->n++;
	return res;
}

/* Demands a file.  Returns how many reads came back meanwhile, before its own. */
static uint32_t reads_before(struct prefetch *p, struct sequence *sequence, uint32_t file)
{
	sequence->file = file;
	sequence->at = UINT32_MAX;
	uint32_t n = sequence->n;
	assert_int_equal(ask(p, file, 0), 0);
	assert_int_not_equal(sequence->at, UINT32_MAX);
	return sequence->at - n;
}

/* Hundreds of files were taken back at once: more than landing memory has room for. */
static void what_is_regained_stands_before_no_reader(void **state)
{
	(void)state;
	enum { DEPTH = 4, LOST = N_FILES / N_SIZES * 3 };
	static const uint32_t kinds[] = { 3, 8, 11 };
	struct fake_sink sink;
	struct trainer t = { 0 };
	struct sequence sequence = { .at = UINT32_MAX };
	const struct prefetch_hook hook = { .delay_ns = late_by_10_ms, .result = count_read, .arg = &sequence };
	sink_init(&sink);
	start(&t, &sink,
	        &(struct setup){
	                .memory = 32 << 20, .view = orders[0], .hook = &hook, .doubtful = true, .depth = DEPTH });
	settle(&t);
	for (uint32_t i = 0; i < LOST; i++)
		prefetch_looked(t.p, i / 3 * N_SIZES + kinds[i % 3], 0, false);
	assert_int_equal(stats(t.p).regained, LOST);
	/* One that nobody knows of yet, and the last one that waits. */
	assert_in_range(reads_before(t.p, &sequence, 0), 0, 3 * DEPTH);
	assert_in_range(reads_before(t.p, &sequence, N_FILES - 1), 0, 3 * DEPTH);
	settle(&t);
	assert_int_equal(stats(t.p).reads, LOST + 1);
	for (uint32_t i = 0; i < LOST; i++)
		prefetch_looked(t.p, i / 3 * N_SIZES + kinds[i % 3], 0, false);
	stop(&t);
	prefetch_free(t.p); /* while they wait */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_fits_is_read_once_for_all_epochs),
		cmocka_unit_test(a_computing_trainer_never_waits),
		cmocka_unit_test(names_are_announced_in_pieces_that_leave_the_trainer_a_way),
		cmocka_unit_test(the_budget_holds),
		cmocka_unit_test(the_budget_holds_when_drops_take_long),
		cmocka_unit_test(the_window_fills_again_without_news),
		cmocka_unit_test(what_was_opened_long_ago_fills_no_memory),
		cmocka_unit_test(a_drop_that_does_not_end_stops_no_reader),
		cmocka_unit_test(a_store_that_waits_for_a_reader_does_not_stop_him),
		cmocka_unit_test(workers_out_of_step_do_not_matter),
		cmocka_unit_test(a_window_grows_with_the_workers_batches),
		cmocka_unit_test(turns_that_a_shuffle_buffer_holds_are_kept),
		cmocka_unit_test(a_large_shuffle_buffer_is_followed),
		cmocka_unit_test(what_a_small_buffer_skips_is_given_up),
		cmocka_unit_test(bursts_larger_than_the_window_make_it_grow),
		cmocka_unit_test(streams_that_take_turns_miss_nothing),
		cmocka_unit_test(files_that_are_left_out_do_not_stop_the_window),
		cmocka_unit_test(a_foreign_order_is_noticed_and_the_way_back_too),
		cmocka_unit_test(a_list_read_again_is_followed),
		cmocka_unit_test(a_new_epoch_can_be_declared),
		cmocka_unit_test(a_doubtful_stream_waits_for_the_order),
		cmocka_unit_test(ranks_share_what_is_resident),
		cmocka_unit_test(hints_beside_a_trainer),
		cmocka_unit_test(sharing_starts_in_the_middle),
		cmocka_unit_test(the_budget_shrinks_and_grows_in_the_middle),
		cmocka_unit_test(what_is_dropped_before_its_use_is_wasted),
		cmocka_unit_test(what_is_lost_before_its_use_is_wasted),
		cmocka_unit_test(faults_are_mended_on_the_way),
		cmocka_unit_test(a_bad_sample_does_not_stop_the_others),
		cmocka_unit_test(a_sink_that_refuses_leaves_demands_working),
		cmocka_unit_test(a_stream_that_comes_second_is_read_ahead_at_once),
		cmocka_unit_test(memory_taken_away_shrinks_the_budget),
		cmocka_unit_test(what_the_kernel_took_back_is_fetched_again),
		cmocka_unit_test(what_the_kernel_forgot_is_announced_again),
		cmocka_unit_test(a_refused_store_is_made_good_before_it_is_missed),
		cmocka_unit_test(names_come_back_while_a_reader_waits),
		cmocka_unit_test(under_pressure_a_small_window_is_ahead_of_the_reader),
		cmocka_unit_test(late_workers_do_not_read_again),
		cmocka_unit_test(reads_past_the_page_cache_say_nothing),
		cmocka_unit_test(a_stream_can_be_freed_at_any_time),
		cmocka_unit_test(names_without_an_epoch_follow_too),
		cmocka_unit_test(demands_that_join_a_read_do_not_wake_the_engine),
		cmocka_unit_test(what_is_regained_stands_before_no_reader),
		cmocka_unit_test(other_blocks_of_a_sample_that_comes_are_not_lost),
		cmocka_unit_test(lost_files_of_a_store_are_there_again_before_their_reader),
		cmocka_unit_test(the_window_is_wide_where_it_merges_reads),
		cmocka_unit_test(much_that_is_gone_is_fetched_again_at_once),
	};
	cmocka_set_test_filter(getenv("DDPFS_TEST")); /* a pattern, or NULL */
	return cmocka_run_group_tests_name("prefetch/stream", tests, setup, teardown);
}
