/* SPDX-License-Identifier: Apache-2.0 */
/* More than a thousand reads of small files in flight: what they need is there, and demands do not wait for them. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cache/tier.h"
#include "prefetch/depth.h"
#include "prefetch/prefetch.h"
#include "prefetch/sink.h"
#include "prefetch/stream.h"
#include "tests/cache/tier_dir.h"
#include "tests/prefetch/asked.h"
#include "tests/prefetch/dataset.h"

/* One rank of eight: few of its files are neighbours in storage, so most are reads of their own. */
enum { WORLD = 8, N_FILES = 1500 * WORLD, MANY = 1000, TRIES = 6 };
static const uint64_t SIZES[] = { 1000 };
static const uint8_t identity[CACHE_TIER_IDENTITY] = { 7 };

static struct dataset data;

struct counting_sink {
	struct prefetch_sink base;
	_Atomic uint32_t stored, wrong;
};

static int store(struct prefetch_sink *base, uint32_t file, uint64_t offset, const uint8_t *bytes, uint32_t len)
{
	struct counting_sink *sink = (struct counting_sink *)base;
	sink->wrong += !dataset_equal(file, offset, bytes, len);
	sink->stored++;
	return 0;
}

static void drop(struct prefetch_sink *base, const struct cache_victim *victims, size_t n)
{
	(void)base;
	(void)victims;
	(void)n;
}

/* An engine that reads the first epoch of rank 0 ahead, all of it at once. */
struct reading {
	struct counting_sink sink;
	struct cache_tier *tier;
	struct shard_view *view;
	struct prefetch *p;
	struct prefetch_stream *stream;
	uint64_t turns, delay_ns;
	uint32_t wanted; /* its read is not late */
};

static uint64_t late(void *arg, uint32_t shard, uint64_t offset, uint32_t len)
{
	const struct reading *r = arg;
	struct shard_place place;
	assert_int_equal(shard_index_place(data.index, r->wanted, &place), 0);
	bool has = place.shard == shard && place.offset >= offset && place.offset < offset + len;
	return has ? 0 : r->delay_ns;
}

static void begin(struct reading *r, struct cache_tier *tier, uint64_t delay_ns)
{
	static const struct prefetch_sink_ops ops = { .store = store, .drop = drop };
	const struct shard_view_options order = { .order = SHARD_ORDER_FULL, .world = WORLD };
	const struct prefetch_hook hook = { .delay_ns = late, .arg = r };
	struct base_err err = { 0 };
	struct shard_epoch *epoch;
	*r = (struct reading){ .sink.base.ops = &ops, .tier = tier, .delay_ns = delay_ns };
	assert_int_equal(shard_view_new(data.index, &order, &err, &r->view), 0);
	assert_int_equal(shard_view_epoch(r->view, 0, &epoch), 0);
	r->turns = shard_epoch_turns(epoch, 0);
	for (uint32_t rank = 0; rank == 0; r->wanted++) {
		struct shard_place place;
		assert_int_equal(shard_index_place(data.index, r->wanted + 1, &place), 0);
		assert_int_equal(shard_epoch_find(epoch, place.sample, NULL, &rank, NULL), 0);
	}
	shard_epoch_put(epoch);
	const struct prefetch_options options = {
		.index = data.index,
		.memory_bytes = 256 << 20,
		.depth = PREFETCH_DEPTH_SMALL_MAX,
		.sink = &r->sink.base,
		.hook = delay_ns ? &hook : NULL,
		.tier = tier,
	};
	if (prefetch_new(&options, &err, &r->p) < 0)
		fail_msg("%s", err.text);
	assert_int_equal(
	        prefetch_stream_new(r->p, &(struct prefetch_stream_options){ .view = r->view }, &r->stream), 0);
}

static void end(struct reading *r)
{
	assert_int_equal(r->sink.wrong, 0);
	prefetch_stream_free(r->stream);
	prefetch_free(r->p);
	shard_view_free(r->view);
}

static uint32_t in_flight(const struct reading *r)
{
	struct prefetch_stats stats;
	prefetch_stats_get(r->p, &stats);
	return stats.inflight;
}

/* A slow machine may need longer than the reads are late: then they are later in the next try. */
static void a_demand_does_not_wait_for_reads_ahead(void **state)
{
	bool many = false, at_once = false;
	(void)state;
	for (unsigned i = 0; i < TRIES && !at_once; i++) {
		static struct asked a;
		struct reading r;
		begin(&r, NULL, UINT64_C(500000000) << i);
		for (unsigned ms = 0; ms < 500U << i && in_flight(&r) < MANY; ms++)
			usleep(1000);
		bool before = in_flight(&r) >= MANY;
		asked_begin(r.p, &a, (struct prefetch_demand){ .file = r.wanted });
		assert_int_equal(asked_wait(&a), 0);
		assert_true(a.right);
		many |= before;
		at_once = before && r.sink.stored == 0;
		end(&r);
	}
	assert_true(many);
	assert_true(at_once);
}

static void a_tier_takes_as_many_reads(void **state)
{
	struct base_err err = { 0 };
	struct cache_tier *tier;
	(void)state;
	for (unsigned has = 0; has < 2; has++) {
		struct reading r;
		if (cache_tier_open(tier_dir, CACHE_TIER_SIZE_MIN, identity, &err, &tier) < 0)
			fail_msg("%s", err.text);
		begin(&r, tier, 0);
		for (unsigned ms = 0; ms < 60000 && r.sink.stored < r.turns; ms++)
			usleep(1000);
		assert_in_range(r.sink.stored, r.turns, N_FILES);
		end(&r);
		cache_tier_close(tier);
	}
}

static int group_set_up(void **state)
{
	(void)state;
	dataset_new(&data, N_FILES, 2, SIZES, 1);
	return 0;
}

static int group_tear_down(void **state)
{
	(void)state;
	dataset_free(&data);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_demand_does_not_wait_for_reads_ahead),
		cmocka_unit_test_setup_teardown(a_tier_takes_as_many_reads, tier_dir_set_up, tier_dir_tear_down),
	};
	return cmocka_run_group_tests_name("prefetch/many_reads", tests, group_set_up, group_tear_down);
}
