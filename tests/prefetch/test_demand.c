/* SPDX-License-Identifier: Apache-2.0 */
/* The demand path: blocks on request, verified, joined, remembered; errors and faults. */
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
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "prefetch/prefetch.h"
#include "tests/prefetch/asked.h"
#include "tests/prefetch/dataset.h"

static const uint64_t SIZES[] = { 1, 511, 4096, 4097, 70000, 110001, 1 << 20, (1 << 20) + 1, (3 << 20) + 12345, 33 };
enum { N_SIZES = sizeof(SIZES) / sizeof(SIZES[0]), N_FILES = 100, N_SHARDS = 3 };

static struct dataset data;

/* Tests that are run twice: the second time those who ask may read themselves. */
static bool callers_read;
static _Atomic bool reading;

static int let_callers_read(void **state)
{
	(void)state;
	callers_read = true;
	return 0;
}

static int let_engine_read(void **state)
{
	(void)state;
	callers_read = false;
	return 0;
}

static struct prefetch_demand demand(uint32_t file, uint32_t block)
{
	return (struct prefetch_demand){ .file = file, .block = block, .reading = callers_read ? &reading : NULL };
}

static void ask(struct prefetch *p, struct asked *a, uint32_t file, uint32_t block)
{
	asked_begin(p, a, demand(file, block));
}

static int get(struct prefetch *p, uint32_t file, uint32_t block)
{
	return asked_get(p, demand(file, block));
}

static struct prefetch *open_engine(struct prefetch_options options)
{
	struct prefetch *p;
	struct base_err err = { 0 };
	options.index = data.index;
	if (!options.memory_bytes)
		options.memory_bytes = 64 << 20;
	if (prefetch_new(&options, &err, &p) < 0)
		fail_msg("%s", err.text);
	return p;
}

static uint32_t blocks_of(uint32_t file)
{
	return (uint32_t)((dataset_length(&data, file) + SHARD_BLOCK - 1) / SHARD_BLOCK);
}

/* Every way the engine can be set up.  `state` of the tests below. */
static const struct prefetch_options setups[] = {
	{ .io = PREFETCH_IO_AUTO },
	{ .io = PREFETCH_IO_BUFFERED },
	{ .io = PREFETCH_IO_AUTO, .threads = true },
	{ .io = PREFETCH_IO_BUFFERED, .memory_bytes = PREFETCH_MEMORY_MIN },
};
enum { N_SETUPS = sizeof(setups) / sizeof(setups[0]) };

static void every_block_of_every_file_is_right(void **state)
{
	(void)state;
	for (unsigned s = 0; s < N_SETUPS; s++) {
		struct prefetch *p = open_engine(setups[s]);
		for (uint32_t f = 0; f < N_FILES; f++) {
			for (uint32_t b = 0; b < blocks_of(f); b++)
				assert_int_equal(get(p, f, b), 0);
		}
		struct prefetch_stats st;
		prefetch_stats_get(p, &st);
		assert_int_equal(st.bad_blocks, 0);
		assert_int_equal(st.io_errors, 0);
		assert_int_equal(st.inflight, 0);
		if (setups[s].threads)
			assert_false(st.uring);
		prefetch_free(p);
	}
}

static void a_block_asked_again_is_in_memory(void **state)
{
	(void)state;
	struct prefetch *p = open_engine(setups[0]);
	struct prefetch_stats st;
	assert_int_equal(get(p, 5, 0), 0);
	assert_int_equal(get(p, 5, 0), 0);
	prefetch_stats_get(p, &st);
	assert_int_equal(st.demands, 2);
	assert_int_equal(st.demand_hits, 1);
	assert_int_equal(st.reads, 1);
	prefetch_free(p);
}

static uint64_t reads_when_idle(struct prefetch *p)
{
	struct prefetch_stats st;
	while (!prefetch_idle(p))
		usleep(1000);
	prefetch_stats_get(p, &st);
	return st.reads;
}

static void a_file_asked_for_in_order_is_read_on(void **state)
{
	(void)state;
	for (unsigned s = 0; s < N_SETUPS; s++) {
		struct prefetch *p = open_engine(setups[s]);
		struct prefetch_stats st;
		uint32_t file = 8; /* 4 blocks */
		assert_int_equal(blocks_of(file), 4);
		assert_int_equal(get(p, file, 0), 0);
		assert_int_equal(reads_when_idle(p), 1);
		assert_int_equal(get(p, file, 0), 0);
		assert_int_equal(reads_when_idle(p), 1);
		assert_int_equal(get(p, file, 1), 0);
		assert_int_equal(reads_when_idle(p), 3);
		assert_int_equal(get(p, file, 1), 0);
		assert_int_equal(get(p, file, 2), 0);
		assert_int_equal(reads_when_idle(p), 4);
		assert_int_equal(get(p, file, 3), 0);
		assert_int_equal(reads_when_idle(p), 4);
		prefetch_stats_get(p, &st);
		assert_int_equal(st.demand_hits, 4);
		/* Neither out of order, nor other files of several blocks. */
		for (uint32_t b = 4; b-- > 0;)
			assert_int_equal(get(p, file + N_SIZES, b), 0);
		assert_int_equal(get(p, file + 2 * N_SIZES, 3), 0);
		assert_int_equal(get(p, file + 2 * N_SIZES, 0), 0);
		assert_int_equal(get(p, file + 2 * N_SIZES, 2), 0);
		assert_int_equal(reads_when_idle(p), 11);
		prefetch_free(p);
	}
}

/* The engine's thread stands in the first read that comes back, until it is let go. */
struct held_engine {
	pthread_mutex_t lock;
	pthread_cond_t cv;
	bool held, go; /* guarded by lock */
};

static int hold_engine(void *arg, uint32_t shard, uint64_t offset, uint8_t *bytes, int res)
{
	struct held_engine *engine = arg;
	(void)shard;
	(void)offset;
	(void)bytes;
	pthread_mutex_lock(&engine->lock);
	engine->held = true;
	pthread_cond_broadcast(&engine->cv);
	while (!engine->go)
		pthread_cond_wait(&engine->cv, &engine->lock);
	pthread_mutex_unlock(&engine->lock);
	return res;
}

static void *free_engine(void *p)
{
	prefetch_free(p);
	return NULL;
}

static bool is_done(struct asked *a)
{
	pthread_mutex_lock(&a->lock);
	bool done = a->done;
	pthread_mutex_unlock(&a->lock);
	return done;
}

/* Demands one file after the other, until the engine takes no more because it ends. */
static uint32_t ask_until_it_ends(struct prefetch *p, struct asked *asked, uint32_t first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		ask(p, &asked[i], first + i, 0);
		if (is_done(&asked[i]) && asked_wait(&asked[i]) == -ECANCELED)
			return i + 1;
		usleep(3000 * i);
	}
	fail_msg("the engine does not end");
	return 0;
}

static void a_demand_that_joins_a_lost_block_is_answered_when_the_engine_ends(void **state)
{
	enum { FIRST = 9, LOST = 19, LAST_LOST = 29, OTHERS = 30 };
	(void)state;
	static struct asked others[N_FILES - OTHERS];
	struct held_engine engine = { .lock = PTHREAD_MUTEX_INITIALIZER, .cv = PTHREAD_COND_INITIALIZER };
	const struct prefetch_hook hook = { .result = hold_engine, .arg = &engine };
	struct prefetch *p = open_engine((struct prefetch_options){ .hook = &hook });
	struct asked first, joined;
	pthread_t thread;
	ask(p, &first, FIRST, 0);
	pthread_mutex_lock(&engine.lock);
	while (!engine.held)
		pthread_cond_wait(&engine.cv, &engine.lock);
	pthread_mutex_unlock(&engine.lock);
	prefetch_looked(p, LOST, 0, false);
	prefetch_looked(p, LAST_LOST, 0, false);
	assert_int_equal(pthread_create(&thread, NULL, free_engine, p), 0);
	uint32_t n = ask_until_it_ends(p, others, OTHERS, N_FILES - OTHERS);
	ask(p, &joined, LAST_LOST, 0);
	pthread_mutex_lock(&engine.lock);
	engine.go = true;
	pthread_cond_broadcast(&engine.cv);
	pthread_mutex_unlock(&engine.lock);
	pthread_join(thread, NULL);
	assert_true(is_done(&first));
	assert_true(is_done(&joined));
	assert_int_equal(asked_wait(&joined), -ECANCELED);
	for (uint32_t i = 0; i < n; i++)
		assert_true(is_done(&others[i]));
}

static void a_hint_is_read_and_waits(void **state)
{
	(void)state;
	for (unsigned s = 0; s < N_SETUPS; s++) {
		struct prefetch *p = open_engine(setups[s]);
		struct prefetch_stats st;
		assert_true(prefetch_hint(p, 5, false, NULL));
		assert_int_equal(reads_when_idle(p), 0);
		assert_true(prefetch_hint(p, 5, true, NULL));
		assert_false(prefetch_hint(p, 5, true, NULL)); /* on its way, or there */
		assert_int_equal(reads_when_idle(p), 1);
		assert_false(prefetch_hint(p, 5, true, NULL));
		assert_int_equal(get(p, 5, 0), 0);
		assert_int_equal(reads_when_idle(p), 1);
		prefetch_stats_get(p, &st);
		assert_int_equal(st.hinted, 1);
		assert_int_equal(st.demand_hits, 1);
		assert_false(prefetch_hint(p, 7, true, NULL)); /* more than a block */
		assert_false(prefetch_hint(p, N_FILES, true, NULL));
		assert_int_equal(reads_when_idle(p), 1);
		/* Asked for while it is on its way. */
		for (uint32_t round = 1; round < 10; round++) {
			assert_true(prefetch_hint(p, 5 + round * N_SIZES, true, NULL));
			assert_int_equal(get(p, 5 + round * N_SIZES, 0), 0);
			assert_int_equal(reads_when_idle(p), 1 + round);
		}
		prefetch_free(p);
	}
}

static void what_cannot_be_is_refused(void **state)
{
	(void)state;
	struct prefetch *p = open_engine(setups[0]);
	assert_int_equal(get(p, N_FILES, 0), -EINVAL);
	assert_int_equal(get(p, 0, 1), -EINVAL);
	assert_int_equal(get(p, 8, 4), -EINVAL);
	prefetch_free(p);
	struct prefetch_options small = { .index = data.index, .memory_bytes = 1 << 20 };
	assert_int_equal(prefetch_new(&small, NULL, &p), -EINVAL);
}

static uint64_t late(void *arg, uint32_t shard, uint64_t offset, uint32_t len)
{
	(void)shard;
	(void)offset;
	(void)len;
	return *(uint64_t *)arg;
}

/* A read is in flight until the test says so. */
struct gate {
	pthread_mutex_t lock;
	pthread_cond_t cv;
	bool open, reached;
};

static int wait_at_gate(void *arg, uint32_t shard, uint64_t offset, uint8_t *bytes, int res)
{
	struct gate *gate = arg;
	(void)shard;
	(void)offset;
	(void)bytes;
	pthread_mutex_lock(&gate->lock);
	gate->reached = true;
	pthread_cond_broadcast(&gate->cv);
	while (!gate->open)
		pthread_cond_wait(&gate->cv, &gate->lock);
	pthread_mutex_unlock(&gate->lock);
	return res;
}

static void open_gate(struct gate *gate)
{
	pthread_mutex_lock(&gate->lock);
	gate->open = true;
	pthread_cond_broadcast(&gate->cv);
	pthread_mutex_unlock(&gate->lock);
}

static void wait_for_reader(struct gate *gate)
{
	pthread_mutex_lock(&gate->lock);
	while (!gate->reached)
		pthread_cond_wait(&gate->cv, &gate->lock);
	pthread_mutex_unlock(&gate->lock);
}

static void demands_for_a_block_in_flight_join_it(void **state)
{
	(void)state;
	for (unsigned s = 0; s < N_SETUPS; s++) {
		static const long held_ns = 10000000;
		struct gate gate = { .lock = PTHREAD_MUTEX_INITIALIZER, .cv = PTHREAD_COND_INITIALIZER };
		struct prefetch_hook hook = { .result = wait_at_gate, .arg = &gate };
		struct prefetch_options options = setups[s];
		options.hook = &hook;
		struct prefetch *p = open_engine(options);
		struct asked a[8];
		struct prefetch_stats st;
		for (unsigned i = 0; i < 8; i++)
			ask(p, &a[i], 6, 0);
		nanosleep(&(struct timespec){ .tv_nsec = held_ns }, NULL);
		open_gate(&gate);
		for (unsigned i = 0; i < 8; i++)
			assert_true(asked_wait(&a[i]) == 0 && a[i].right);
		prefetch_stats_get(p, &st);
		assert_int_equal(st.reads, 1);
		assert_int_equal(st.joined, 7);
		assert_true(st.wait_p50_ns >= (uint64_t)held_ns * 9 / 10 && st.wait_max_ns >= (uint64_t)held_ns);
		prefetch_free(p);
	}
}

static void a_hint_does_not_stand_before_readers(void **state)
{
	(void)state;
	for (unsigned s = 0; s < N_SETUPS; s++) {
		struct gate gate = { .lock = PTHREAD_MUTEX_INITIALIZER, .cv = PTHREAD_COND_INITIALIZER };
		struct prefetch_hook hook = { .result = wait_at_gate, .arg = &gate };
		struct prefetch_options options = setups[s];
		options.hook = &hook;
		struct prefetch *p = open_engine(options);
		struct asked in_flight, queued;
		struct prefetch_stats st;
		ask(p, &in_flight, 6, 0);
		wait_for_reader(&gate);
		ask(p, &queued, 6 + N_SIZES, 0); /* the engine stands at the gate and does not take it */
		assert_true(prefetch_hint(p, 5, true, NULL));
		prefetch_stats_get(p, &st);
		assert_int_equal(st.hinted, 0);
		open_gate(&gate);
		assert_true(asked_wait(&in_flight) == 0 && in_flight.right);
		assert_true(asked_wait(&queued) == 0 && queued.right);
		assert_true(prefetch_hint(p, 5, true, NULL));
		prefetch_stats_get(p, &st);
		assert_int_equal(st.hinted, 1);
		prefetch_free(p);
	}
}

/* Reads that came in and are held back; both hooks are called by the engine thread. */
struct held {
	unsigned n, max;
};

static uint64_t hold(void *arg, uint32_t shard, uint64_t offset, uint32_t len)
{
	struct held *held = arg;
	(void)shard;
	(void)offset;
	(void)len;
	if (++held->n > held->max)
		held->max = held->n;
	return 100000000;
}

static int let_go(void *arg, uint32_t shard, uint64_t offset, uint8_t *bytes, int res)
{
	struct held *held = arg;
	(void)shard;
	(void)offset;
	(void)bytes;
	held->n--;
	return res;
}

static void delayed_reads_run_side_by_side(void **state)
{
	(void)state;
	for (unsigned s = 0; s < 3; s++) {
		struct held held = { 0 };
		struct prefetch_hook hook = { .delay_ns = hold, .result = let_go, .arg = &held };
		struct prefetch_options options = setups[s];
		options.hook = &hook;
		struct prefetch *p = open_engine(options);
		struct asked *a = calloc(50, sizeof(*a));
		for (unsigned i = 0; i < 50; i++)
			ask(p, &a[i], i, 0);
		for (unsigned i = 0; i < 50; i++)
			assert_int_equal(asked_wait(&a[i]), 0);
		free(a);
		prefetch_free(p);
		assert_int_equal(held.n, 0);
		assert_true(held.max > 1); /* one after the other there would never be two */
	}
}

static void freeing_answers_every_demand(void **state)
{
	(void)state;
	for (unsigned s = 0; s < N_SETUPS; s++) {
		uint64_t delay_ns = 20000000;
		struct prefetch_hook hook = { .delay_ns = late, .arg = &delay_ns };
		struct prefetch_options options = setups[s];
		options.hook = &hook;
		struct prefetch *p = open_engine(options);
		struct asked *a = calloc(N_FILES, sizeof(*a));
		for (unsigned i = 0; i < N_FILES; i++)
			ask(p, &a[i], i, 0);
		prefetch_free(p);
		for (unsigned i = 0; i < N_FILES; i++) {
			assert_true(a[i].done);
			assert_true(a[i].rc == -ECANCELED || (a[i].rc == 0 && a[i].right));
		}
		free(a);
	}
}

/* Faults: one kind per call, by a counter, so that runs repeat. */
struct faults {
	uint32_t n;
	uint32_t every; /* each every-th read suffers */
	enum { FAULT_EIO, FAULT_AGAIN, FAULT_INTR, FAULT_SHORT, FAULT_FLIP, FAULT_KINDS, FAULT_PAGE } kind;
	bool always;
};

static int suffer(void *arg, uint32_t shard, uint64_t offset, uint8_t *bytes, int res)
{
	struct faults *f = arg;
	(void)shard;
	(void)offset;
	if (res <= 0 || (!f->always && f->n++ % f->every))
		return res;
	switch (f->kind) {
	case FAULT_EIO:
		return -EIO;
	case FAULT_AGAIN:
		return -EAGAIN;
	case FAULT_INTR:
		return -EINTR;
	case FAULT_SHORT:
		return res > 4096 ? res / 2 : res;
	case FAULT_FLIP:
		/* The middle of what was read: with 4 KiB alignment around a small file the flip may miss it. */
		bytes[res / 2] ^= 4;
		return res;
	case FAULT_PAGE:
		return res > 4096 ? 4096 : res;
	case FAULT_KINDS:
		break;
	}
	return res;
}

static void passing_faults_are_mended(void **state)
{
	(void)state;
	for (unsigned s = 0; s < N_SETUPS; s++) {
		for (int kind = 0; kind < FAULT_KINDS; kind++) {
			struct faults f = { .every = 2, .kind = kind };
			struct prefetch_hook hook = { .result = suffer, .arg = &f };
			struct prefetch_options options = setups[s];
			options.hook = &hook;
			struct prefetch *p = open_engine(options);
			for (uint32_t file = 0; file < N_FILES; file++)
				assert_int_equal(get(p, file, 0), 0);
			struct prefetch_stats st;
			prefetch_stats_get(p, &st);
			assert_int_equal(st.bad_blocks, 0);
			assert_true((st.mended_blocks > 0) == (kind == FAULT_FLIP));
			prefetch_free(p);
		}
	}
}

static void lasting_faults_are_reported(void **state)
{
	(void)state;
	static const int expected[FAULT_KINDS] = {
		[FAULT_EIO] = -EIO,
		[FAULT_AGAIN] = -EIO,
		[FAULT_INTR] = -EIO,
		[FAULT_SHORT] = 0,
		[FAULT_FLIP] = -EBADMSG,
	};
	for (unsigned s = 0; s < N_SETUPS; s++) {
		for (int kind = 0; kind < FAULT_KINDS; kind++) {
			struct faults f = { .always = true, .kind = kind };
			struct prefetch_hook hook = { .result = suffer, .arg = &f };
			struct prefetch_options options = setups[s];
			options.hook = &hook;
			struct prefetch *p = open_engine(options);
			struct prefetch_stats st;
			assert_int_equal(get(p, 6, 0), expected[kind]);
			assert_int_equal(get(p, 8, 1), expected[kind]);
			assert_int_equal(get(p, 6, 0), expected[kind]);
			prefetch_stats_get(p, &st);
			assert_int_equal(st.bad_blocks, kind == FAULT_FLIP ? 2 : 0);
			assert_int_equal(st.mended_blocks, 0);
			prefetch_free(p);
		}
	}
}

/* The first demand of each shard is the engine's, which opens it. */
static void callers_read_what_is_open(void **state)
{
	(void)state;
	for (unsigned s = 0; s < N_SETUPS; s++) {
		struct prefetch *p = open_engine(setups[s]);
		struct prefetch_stats st;
		for (uint32_t f = 0; f < N_FILES; f++)
			assert_int_equal(get(p, f, 0), 0);
		while (!prefetch_idle(p))
			usleep(1000);
		prefetch_stats_get(p, &st);
		assert_int_equal(st.caller_reads, N_FILES - N_SHARDS);
		assert_int_equal(st.reads, N_FILES);
		assert_int_equal(st.misses, N_FILES);
		assert_int_equal(st.inflight, 0);
		assert_false(reading);
		prefetch_free(p);
	}
}

static void a_hint_may_be_read_by_its_caller(void **state)
{
	(void)state;
	for (unsigned s = 0; s < N_SETUPS; s++) {
		struct prefetch *p = open_engine(setups[s]);
		struct prefetch_stats st;
		for (uint32_t f = 0; f < N_FILES; f += N_SIZES)
			assert_int_equal(get(p, f, 0), 0); /* opens the shards */
		uint64_t before = reads_when_idle(p);
		for (uint32_t f = 5; f < N_FILES; f += N_SIZES)
			assert_true(prefetch_hint(p, f, true, &reading));
		assert_int_equal(reads_when_idle(p), before + N_FILES / N_SIZES);
		for (uint32_t f = 5; f < N_FILES; f += N_SIZES)
			assert_int_equal(get(p, f, 0), 0);
		prefetch_stats_get(p, &st);
		assert_true(st.caller_reads >= N_FILES / N_SIZES);
		assert_int_equal(st.hinted, N_FILES / N_SIZES);
		assert_int_equal(st.demand_hits, N_FILES / N_SIZES);
		prefetch_free(p);
	}
}

struct reader {
	pthread_t thread;
	struct prefetch *p;
	struct asked asked;
	uint32_t file;
};

static void *ask_for_one(void *arg)
{
	struct reader *reader = arg;
	ask(reader->p, &reader->asked, reader->file, 0);
	return NULL;
}

static void others_join_the_read_of_a_caller(void **state)
{
	enum { FILE_1M = 6, JOIN = 7 };
	(void)state;
	for (unsigned s = 0; s < N_SETUPS; s++) {
		struct gate gate = { .lock = PTHREAD_MUTEX_INITIALIZER, .cv = PTHREAD_COND_INITIALIZER, .open = true };
		struct prefetch_hook hook = { .result = wait_at_gate, .arg = &gate };
		struct prefetch_options options = setups[s];
		options.hook = &hook;
		struct prefetch *p = open_engine(options);
		struct prefetch_stats st;
		struct reader reader = { .p = p, .file = FILE_1M };
		struct asked joined[JOIN];
		for (uint32_t f = 0; f < N_FILES; f += N_SIZES)
			assert_int_equal(get(p, f, 0), 0); /* opens the shards */
		uint64_t before = reads_when_idle(p);
		pthread_mutex_lock(&gate.lock);
		gate.open = gate.reached = false;
		pthread_mutex_unlock(&gate.lock);
		assert_int_equal(pthread_create(&reader.thread, NULL, ask_for_one, &reader), 0);
		wait_for_reader(&gate);
		for (unsigned i = 0; i < JOIN; i++)
			ask(p, &joined[i], FILE_1M, 0);
		assert_false(prefetch_hint(p, FILE_1M, true, &reading));
		prefetch_stats_get(p, &st);
		assert_int_equal(st.inflight, 1);
		assert_false(prefetch_idle(p));
		open_gate(&gate);
		assert_int_equal(pthread_join(reader.thread, NULL), 0);
		assert_true(asked_wait(&reader.asked) == 0 && reader.asked.right);
		for (unsigned i = 0; i < JOIN; i++)
			assert_true(asked_wait(&joined[i]) == 0 && joined[i].right);
		assert_int_equal(reads_when_idle(p), before + 1);
		prefetch_stats_get(p, &st);
		assert_int_equal(st.joined, JOIN);
		prefetch_free(p);
	}
}

static void what_goes_wrong_in_a_caller_is_read_by_the_engine(void **state)
{
	(void)state;
	for (unsigned s = 0; s < N_SETUPS; s++) {
		for (int kind = 0; kind < FAULT_KINDS; kind++) {
			struct faults f = { .every = 1U << 31, .n = 1, .kind = kind };
			struct prefetch_hook hook = { .result = suffer, .arg = &f };
			struct prefetch_options options = setups[s];
			options.hook = &hook;
			struct prefetch *p = open_engine(options);
			struct prefetch_stats before, st;
			for (uint32_t file = 0; file < N_FILES; file += N_SIZES)
				assert_int_equal(get(p, file, 0), 0);
			reads_when_idle(p);
			prefetch_stats_get(p, &before);
			f.n = 0; /* the next read, and no other */
			assert_int_equal(get(p, 6, 0), 0);
			reads_when_idle(p);
			prefetch_stats_get(p, &st);
			assert_int_equal(st.caller_reads - before.caller_reads, 1);
			assert_int_equal(st.reads - before.reads, 2);
			assert_int_equal(st.io_errors - before.io_errors, kind == FAULT_EIO);
			assert_int_equal(st.mended_blocks, kind == FAULT_FLIP);
			assert_int_equal(st.misses - before.misses, 1);
			prefetch_free(p);
		}
	}
}

/* Changes the ctime of the shard that the test files are in, and waits until it is later than every source's start. */
static void touch_ctime(const char *path)
{
	struct stat st;
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	do {
		assert_int_equal(chmod(path, 0600), 0);
		assert_int_equal(chmod(path, 0644), 0);
		assert_int_equal(stat(path, &st), 0);
	} while (st.st_ctim.tv_sec < now.tv_sec ||
	         (st.st_ctim.tv_sec == now.tv_sec && st.st_ctim.tv_nsec <= now.tv_nsec));
}

/* chmod and hard links change the ctime of a shard, not its bytes. */
static void a_short_read_after_chmod_goes_on(void **state)
{
	(void)state;
	for (unsigned s = 0; s < N_SETUPS; s++) {
		struct faults f = { .always = true, .kind = FAULT_SHORT };
		struct prefetch_hook hook = { .result = suffer, .arg = &f };
		struct prefetch_options options = setups[s];
		options.hook = &hook;
		struct prefetch *p = open_engine(options);
		for (uint32_t shard = 0; shard < shard_index_info(data.index)->n_shards; shard++) {
			struct shard_shard info;
			char path[4096];
			assert_int_equal(shard_index_shard(data.index, shard, &info), 0);
			snprintf(path, sizeof(path), "%s/%.*s", shard_index_dataset(data.index), (int)info.path_len,
			        info.path);
			touch_ctime(path);
		}
		for (uint32_t file = 0; file < N_FILES; file++)
			assert_int_equal(get(p, file, 0), 0);
		prefetch_free(p);
	}
}

/* Local files whose reads want another alignment. */
struct aligned_source {
	struct prefetch_source base;
	struct prefetch_source *local;
	uint32_t align;
};

static int aligned_open(struct prefetch_source *source, uint32_t shard, struct prefetch_object *ret_object)
{
	struct aligned_source *a = (struct aligned_source *)source;
	int rc = a->local->ops->open(a->local, shard, ret_object);
	if (rc == 0)
		ret_object->align = a->align;
	return rc;
}

static void aligned_close(struct prefetch_source *source, struct prefetch_object *object)
{
	struct aligned_source *a = (struct aligned_source *)source;
	a->local->ops->close(a->local, object);
}

static int aligned_check(
        struct prefetch_source *source, uint32_t shard, const struct prefetch_object *object, bool wrong)
{
	struct aligned_source *a = (struct aligned_source *)source;
	return a->local->ops->check(a->local, shard, object, wrong);
}

static void aligned_free(struct prefetch_source *source)
{
	struct aligned_source *a = (struct aligned_source *)source;
	a->local->ops->free(a->local);
	free(a);
}

static const struct prefetch_source_ops aligned_ops = {
	.open = aligned_open,
	.close = aligned_close,
	.check = aligned_check,
	.free = aligned_free,
};

static struct prefetch_source *aligned_new(uint32_t align)
{
	struct aligned_source *a = calloc(1, sizeof(*a));
	assert_non_null(a);
	a->base = (struct prefetch_source){ .ops = &aligned_ops };
	a->align = align;
	assert_int_equal(prefetch_source_local(data.index, PREFETCH_IO_BUFFERED, NULL, &a->local), 0);
	return &a->base;
}

static void short_reads_below_the_alignment_end(void **state)
{
	enum { TRIES = 64 }; /* PREFETCH_TRIES_MAX */
	(void)state;
	for (uint32_t align = 8192; align <= PREFETCH_ALIGN_MAX; align *= 2) {
		for (unsigned lasting = 0; lasting < 2; lasting++) {
			struct faults f = { .every = 2, .kind = FAULT_PAGE, .always = lasting };
			struct prefetch_hook hook = { .result = suffer, .arg = &f };
			struct prefetch_stats st;
			struct prefetch *p =
			        open_engine((struct prefetch_options){ .source = aligned_new(align), .hook = &hook });
			assert_int_equal(get(p, 6, 0), lasting ? -EIO : 0);
			prefetch_stats_get(p, &st);
			assert_true(st.reads <= TRIES);
			prefetch_free(p);
		}
	}
}

static void a_read_that_fails_is_counted_once(void **state)
{
	static const int kinds[] = { FAULT_EIO, FAULT_AGAIN, FAULT_INTR };
	(void)state;
	for (unsigned s = 0; s < N_SETUPS; s++) {
		for (unsigned k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
			for (unsigned lasting = 0; lasting < 2; lasting++) {
				/* One that passes is the first of the first read. */
				struct faults f = { .every = 1000, .always = lasting, .kind = kinds[k] };
				struct prefetch_hook hook = { .result = suffer, .arg = &f };
				struct prefetch_options options = setups[s];
				options.hook = &hook;
				struct prefetch *p = open_engine(options);
				struct prefetch_stats st;
				for (uint32_t i = 0; i < 3; i++)
					assert_int_equal(get(p, 6 + i * N_SIZES, 0), lasting ? -EIO : 0);
				prefetch_stats_get(p, &st);
				assert_int_equal(st.io_errors, lasting ? 3 : kinds[k] == FAULT_EIO);
				prefetch_free(p);
			}
		}
	}
}

static void copy_file(const char *from, const char *to)
{
	char command[400];
	snprintf(command, sizeof(command), "cp --preserve %s %s", from, to);
	assert_int_equal(system(command), 0);
}

static void flip_byte(const char *path, uint64_t offset)
{
	int fd = open(path, O_RDWR);
	uint8_t byte = 0;
	assert_true(fd >= 0 && pread(fd, &byte, 1, (off_t)offset) == 1);
	byte ^= 1;
	assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
	close(fd);
}

static void a_changed_shard_is_noticed(void **state)
{
	(void)state;
	struct shard_file file;
	char shard[128], saved[144], gone[144];
	assert_int_equal(shard_index_file(data.index, 5, &file), 0);
	dataset_shard_path(&data, file.shard, shard);
	snprintf(saved, sizeof(saved), "%s.saved", shard);
	snprintf(gone, sizeof(gone), "%s.gone", shard);
	for (unsigned s = 0; s < N_SETUPS; s++) {
		copy_file(shard, saved);
		struct prefetch *p = open_engine(setups[s]);
		nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL); /* files get another time */
		flip_byte(shard, file.offset + 100);
		assert_int_equal(get(p, 5, 0), -ESTALE); /* somebody wrote into it while we were here */
		flip_byte(shard, file.offset + 100);
		assert_int_equal(get(p, 5, 0), 0);       /* an error is not remembered */
		assert_int_equal(chmod(shard, 0600), 0); /* right bytes are right */
		assert_int_equal(get(p, 5, 0), 0);
		prefetch_free(p);

		flip_byte(shard, file.offset + 100);
		nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
		p = open_engine(setups[s]);
		assert_int_equal(get(p, 5, 0), -EBADMSG);
		prefetch_free(p);
		flip_byte(shard, file.offset + 100);

		p = open_engine(setups[s]);
		assert_int_equal(truncate(shard, (off_t)file.offset + 10), 0);
		assert_int_equal(get(p, 5, 0), -ESTALE);
		assert_int_equal(rename(saved, shard), 0);
		assert_int_equal(get(p, 5, 0), 0);
		/* Open and known to be right; then cut. */
		copy_file(shard, saved);
		assert_int_equal(truncate(shard, (off_t)file.offset + 10), 0);
		prefetch_free(p);
		p = open_engine(setups[s]);
		assert_int_equal(get(p, 5, 0), -ESTALE);
		assert_int_equal(rename(saved, shard), 0);
		prefetch_free(p);

		p = open_engine(setups[s]);
		assert_int_equal(rename(shard, gone), 0);
		assert_int_equal(get(p, 5, 0), -ENOENT);
		assert_int_equal(rename(gone, shard), 0);
		assert_int_equal(get(p, 5, 0), 0);
		prefetch_free(p);
	}
}

static void truncation_of_an_open_shard_is_noticed(void **state)
{
	(void)state;
	struct shard_file a, b;
	uint32_t first = 5, second = 5;
	char shard[128], saved[144];
	assert_int_equal(shard_index_file(data.index, first, &a), 0);
	/* Another file of the same shard, behind it. */
	for (uint32_t f = 0; f < N_FILES; f++) {
		assert_int_equal(shard_index_file(data.index, f, &b), 0);
		if (b.shard == a.shard && b.offset >= a.offset + a.length)
			second = f;
	}
	assert_int_not_equal(first, second);
	assert_int_equal(shard_index_file(data.index, second, &b), 0);
	dataset_shard_path(&data, a.shard, shard);
	snprintf(saved, sizeof(saved), "%s.saved", shard);
	for (unsigned s = 0; s < N_SETUPS; s++) {
		copy_file(shard, saved);
		struct prefetch *p = open_engine(setups[s]);
		assert_int_equal(get(p, first, 0), 0);
		assert_int_equal(truncate(shard, (off_t)b.offset), 0);
		assert_int_equal(get(p, second, 0), -ESTALE);
		assert_int_equal(rename(saved, shard), 0);
		assert_int_equal(get(p, second, 0), 0);
		prefetch_free(p);
	}
}

static void a_fifo_in_a_shards_place_is_refused_at_once(void **state)
{
	(void)state;
	struct shard_file file;
	char shard[128], saved[144];
	assert_int_equal(shard_index_file(data.index, 5, &file), 0);
	dataset_shard_path(&data, file.shard, shard);
	snprintf(saved, sizeof(saved), "%s.saved", shard);
	for (unsigned s = 0; s < N_SETUPS; s++) {
		assert_int_equal(rename(shard, saved), 0);
		assert_int_equal(mkfifo(shard, 0600), 0);
		struct prefetch *p = open_engine(setups[s]);
		assert_int_equal(get(p, 5, 0), -ESTALE);
		assert_int_equal(rename(saved, shard), 0);
		assert_int_equal(get(p, 5, 0), 0);
		prefetch_free(p);
	}
}

struct hammer {
	struct prefetch *p;
	uint32_t seed;
	_Atomic uint32_t wrong;
};

static void *hammer(void *arg)
{
	struct hammer *h = arg;
	uint32_t x = h->seed;
	enum { BATCH = 16 };
	struct asked a[BATCH];
	for (unsigned round = 0; round < 60; round++) {
		for (unsigned i = 0; i < BATCH; i++) {
			x = x * 1664525 + 1013904223;
			uint32_t file = (x >> 8) % N_FILES;
			ask(h->p, &a[i], file, (x >> 24) % blocks_of(file));
		}
		for (unsigned i = 0; i < BATCH; i++) {
			if (asked_wait(&a[i]) != 0 || !a[i].right)
				h->wrong++;
		}
	}
	return NULL;
}

static void many_threads_get_right_bytes_in_little_memory(void **state)
{
	(void)state;
	for (unsigned s = 0; s < N_SETUPS; s++) {
		struct prefetch_options options = setups[s];
		options.memory_bytes = PREFETCH_MEMORY_MIN;
		struct prefetch *p = open_engine(options);
		pthread_t threads[4];
		struct hammer h[4];
		struct prefetch_stats st;
		for (unsigned i = 0; i < 4; i++) {
			h[i] = (struct hammer){ .p = p, .seed = i * 77 + s };
			assert_int_equal(pthread_create(&threads[i], NULL, hammer, &h[i]), 0);
		}
		for (unsigned i = 0; i < 4; i++) {
			pthread_join(threads[i], NULL);
			assert_int_equal(h[i].wrong, 0);
		}
		prefetch_stats_get(p, &st);
		assert_true(st.buffer_bytes <= PREFETCH_MEMORY_MIN);
		assert_int_equal(st.demands, 4 * 60 * 16);
		prefetch_free(p);
	}
}

/* A demand whose answer the asker keeps for a while. */
struct holder {
	struct prefetch_demand demand;
	struct prefetch *p;
	struct gate *gate;
	_Atomic uint32_t *n_holding;
	int rc;
};

static void hold_answer(struct prefetch_demand *demand, int rc, const uint8_t *bytes, uint32_t len)
{
	struct holder *h = (struct holder *)demand;
	h->rc = rc;
	atomic_fetch_add(h->n_holding, 1);
	wait_at_gate(h->gate, 0, 0, NULL, 0);
	if (rc == 0 && !dataset_equal(demand->file, 0, bytes, len))
		h->rc = -EBADMSG;
}

static void *ask_and_hold(void *arg)
{
	struct holder *h = arg;
	prefetch_demand(h->p, &h->demand);
	return NULL;
}

static void memory_that_a_reader_gives_back_is_used(void **state)
{
	enum { FILE_1M = 6, BLOCKS = PREFETCH_MEMORY_MIN / SHARD_BLOCK };
	(void)state;
	for (unsigned threads = 0; threads < 2; threads++) {
		struct prefetch *p = open_engine((struct prefetch_options){
		        .io = PREFETCH_IO_BUFFERED, .memory_bytes = PREFETCH_MEMORY_MIN, .threads = threads });
		struct gate gate = { .lock = PTHREAD_MUTEX_INITIALIZER, .cv = PTHREAD_COND_INITIALIZER };
		_Atomic uint32_t n_holding = 0;
		struct holder holders[BLOCKS];
		pthread_t readers[BLOCKS];
		struct prefetch_stats st;
		struct asked ninth;
		for (uint32_t i = 0; i < BLOCKS; i++)
			assert_int_equal(get(p, FILE_1M + i * N_SIZES, 0), 0);
		reads_when_idle(p);
		for (uint32_t i = 0; i < BLOCKS; i++) {
			holders[i] = (struct holder){
				.demand = { .file = FILE_1M + i * N_SIZES, .done = hold_answer },
				.p = p,
				.gate = &gate,
				.n_holding = &n_holding,
			};
			assert_int_equal(pthread_create(&readers[i], NULL, ask_and_hold, &holders[i]), 0);
		}
		while (atomic_load(&n_holding) < BLOCKS)
			usleep(1000);
		ask(p, &ninth, FILE_1M + BLOCKS * N_SIZES, 0);
		/* Nothing tells when the engine has found no memory; it is at rest then. */
		for (unsigned rests = 0; rests < 50; rests += st.busy_ns == 0) {
			usleep(1000);
			prefetch_stats_get(p, &st);
		}
		assert_int_equal(st.demand_hits, BLOCKS);
		assert_int_equal(st.buffer_bytes, PREFETCH_MEMORY_MIN);
		open_gate(&gate);
		assert_int_equal(asked_wait(&ninth), 0);
		assert_true(ninth.right);
		for (uint32_t i = 0; i < BLOCKS; i++) {
			pthread_join(readers[i], NULL);
			assert_int_equal(holders[i].rc, 0);
		}
		prefetch_free(p);
	}
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

#define BY_CALLERS(test) cmocka_unit_test_setup_teardown(test, let_callers_read, let_engine_read)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_block_of_every_file_is_right),
		cmocka_unit_test(a_block_asked_again_is_in_memory),
		cmocka_unit_test(a_file_asked_for_in_order_is_read_on),
		cmocka_unit_test(what_cannot_be_is_refused),
		cmocka_unit_test(a_hint_is_read_and_waits),
		cmocka_unit_test(demands_for_a_block_in_flight_join_it),
		cmocka_unit_test(a_hint_does_not_stand_before_readers),
		cmocka_unit_test(delayed_reads_run_side_by_side),
		cmocka_unit_test(freeing_answers_every_demand),
		cmocka_unit_test(a_demand_that_joins_a_lost_block_is_answered_when_the_engine_ends),
		cmocka_unit_test(passing_faults_are_mended),
		cmocka_unit_test(lasting_faults_are_reported),
		cmocka_unit_test(a_read_that_fails_is_counted_once),
		cmocka_unit_test(a_short_read_after_chmod_goes_on),
		cmocka_unit_test(short_reads_below_the_alignment_end),
		cmocka_unit_test(a_changed_shard_is_noticed),
		cmocka_unit_test(truncation_of_an_open_shard_is_noticed),
		cmocka_unit_test(a_fifo_in_a_shards_place_is_refused_at_once),
		cmocka_unit_test(many_threads_get_right_bytes_in_little_memory),
		cmocka_unit_test(memory_that_a_reader_gives_back_is_used),
		BY_CALLERS(callers_read_what_is_open),
		BY_CALLERS(a_hint_may_be_read_by_its_caller),
		BY_CALLERS(others_join_the_read_of_a_caller),
		BY_CALLERS(what_goes_wrong_in_a_caller_is_read_by_the_engine),
		BY_CALLERS(lasting_faults_are_reported),
		BY_CALLERS(a_changed_shard_is_noticed),
		BY_CALLERS(truncation_of_an_open_shard_is_noticed),
		BY_CALLERS(many_threads_get_right_bytes_in_little_memory),
	};
	return cmocka_run_group_tests_name("prefetch/demand", tests, setup, teardown);
}
