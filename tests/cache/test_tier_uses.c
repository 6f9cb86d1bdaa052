/* SPDX-License-Identifier: Apache-2.0 */
/* Next uses in a tier: what is used later goes first, and what a host of several fetches in an epoch. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cache/cache.h"
#include "cache/tier.h"
#include "cache/tier_uses.h"
#include "shard/base/io.h"
#include "shard/block_sum.h"
#include "shard/format.h"
#include "tests/cache/tier_dir.h"
#include "tests/cache/tier_simulated.h"
#include "tests/shard/synth.h"

enum { EPOCH = CACHE_TIER_EPOCH };
#define SMALL CACHE_TIER_SIZE_MIN

static const uint8_t one[CACHE_TIER_IDENTITY] = { 1 };

static bool has(struct cache_tier *tier, uint32_t number)
{
	static uint8_t want[LEN], bytes[LEN];
	struct cache_tier_block block = tier_simulated_block(number, 0, 0, want);
	return cache_tier_get(tier, &block, bytes) == 0;
}

static int put(struct cache_tier *tier, uint32_t number, uint32_t now, uint32_t next)
{
	static uint8_t bytes[LEN];
	struct cache_tier_block block = tier_simulated_block(number, now, next, bytes);
	return cache_tier_put(tier, &block, bytes);
}

/* Puts blocks from `first` on until one is refused.  Returns their number. */
static uint32_t put_many(struct cache_tier *tier, uint32_t first, uint32_t now, uint32_t next)
{
	uint32_t n = 0;
	while (put(tier, first + n, now, next) == 0)
		n++;
	return n;
}

/* How many of the blocks first .. first + n - 1 are there. */
static uint32_t there(struct cache_tier *tier, uint32_t first, uint32_t n)
{
	uint32_t found = 0;
	for (uint32_t i = first; i < first + n; i++)
		found += has(tier, i);
	return found;
}

static uint32_t at(uint32_t epoch)
{
	return epoch * EPOCH + 1;
}

static struct cache_tier *joined(uint64_t order, uint32_t rank)
{
	struct cache_tier *tier = tier_simulated_opened(one, SMALL);
	assert_int_equal(cache_tier_join(tier, order, rank), 0);
	return tier;
}

static void what_is_used_later_goes_first(void **state)
{
	struct cache_tier *tier = joined(7, 0);
	(void)state;
	uint32_t five = put_many(tier, 0, at(1), at(5));
	assert_true((uint64_t)five * LEN > SMALL / 10 * 9);
	assert_int_equal(put(tier, 20000, at(1), at(5)), -ENOBUFS);
	assert_int_equal(put(tier, 20000, at(1), at(7)), -ENOBUFS);
	assert_int_equal(there(tier, 0, five), five);
	for (uint32_t i = 0; i < five / 2; i++)
		assert_int_equal(put(tier, 10000 + i, at(1), at(3)), 0);
	assert_int_equal(there(tier, 10000, five / 2), five / 2);
	uint32_t left = there(tier, 0, five);
	assert_true(left > five / 3 && left < five / 2 + five / 10);
	cache_tier_close(tier);
}

static void what_was_used_goes_before_all_others(void **state)
{
	struct cache_tier *tier = joined(7, 0);
	(void)state;
	for (uint32_t i = 0; i < 50; i++)
		assert_int_equal(put(tier, i, at(1), at(2)), 0);
	uint32_t nine = put_many(tier, 1000, at(1), at(9));
	assert_true(nine > 100);
	for (uint32_t i = 0; i < 40; i++) /* though they are used later than all others */
		assert_int_equal(put(tier, 20000 + i, at(4), at(20)), 0);
	assert_int_equal(there(tier, 1000, nine), nine);
	assert_int_equal(there(tier, 20000, 40), 40);
	assert_true(there(tier, 0, 50) < 20);
	cache_tier_close(tier);
}

static void who_knows_no_order_replaces_nothing(void **state)
{
	struct cache_tier *tier = joined(7, 0), *other = tier_simulated_opened(one, SMALL);
	(void)state;
	uint32_t n = put_many(tier, 0, at(1), at(30));
	assert_int_equal(put(other, 20000, 0, 0), -ENOBUFS);
	cache_tier_close(tier); /* nor when the job has ended */
	assert_int_equal(put(other, 20001, 0, 0), -ENOBUFS);
	assert_int_equal(there(other, 0, n), n);
	cache_tier_close(other);
}

static void what_has_no_known_use_goes_before_what_has_one(void **state)
{
	struct cache_tier *tier = tier_simulated_opened(one, SMALL), *known = joined(7, 0);
	(void)state;
	for (uint32_t i = 0; i < 100; i++)
		assert_int_equal(put(tier, i, 0, 0), 0);
	uint32_t nine = put_many(known, 1000, at(1), at(9));
	assert_int_equal(there(tier, 1000, nine), nine);
	assert_int_equal(there(tier, 0, 100), 0);
	assert_int_equal(put(tier, 20000, 0, 0), -ENOBUFS);
	cache_tier_close(known);
	cache_tier_close(tier);
}

static void a_used_block_moves_to_those_of_its_next_use(void **state)
{
	struct cache_tier *tier = joined(7, 0);
	struct cache_tier_stats stats;
	(void)state;
	for (uint32_t i = 0; i < 100; i++)
		assert_int_equal(put(tier, i, at(1), at(2)), 0);
	for (uint32_t i = 0; i < 50; i++)
		assert_int_equal(put(tier, i, at(2), at(5)), 0);
	assert_int_equal(put(tier, 0, at(2), at(5)), 0); /* it is there */
	cache_tier_stats_get(tier, &stats);
	assert_int_equal(stats.moved, 50);
	assert_int_equal(stats.moved_bytes, 50 * LEN);
	assert_int_equal(put(tier, 60, at(2), at(2) + CACHE_TIER_FAR), 0); /* not worth it */
	cache_tier_stats_get(tier, &stats);
	assert_int_equal(stats.moved, 50);
	put_many(tier, 1000, at(4), at(9));
	assert_int_equal(there(tier, 0, 50), 50);
	assert_true(there(tier, 50, 50) < 25);
	cache_tier_stats_get(tier, &stats);
	assert_int_equal(stats.bad, 0);
	cache_tier_close(tier);
}

static void another_job_that_runs_keeps_its_blocks(void **state)
{
	struct cache_tier *one_job = joined(7, 3), *other = joined(8, 3);
	(void)state;
	uint32_t n = put_many(one_job, 0, at(1), at(30));
	assert_int_equal(put(other, 20000, at(1), at(2)), -ENOBUFS);
	assert_int_equal(there(one_job, 0, n), n);
	cache_tier_close(one_job);
	assert_true(cache_tier_full(other, &(struct cache_tier_block){ .len = LEN, .now = at(1), .next = at(2) }));
	assert_int_equal(put(other, 20000, at(1), at(2)), 0); /* nobody knows any more when its blocks are used */
	cache_tier_close(other);
}

static void ranks_of_a_host_find_each_other(void **state)
{
	struct cache_tier *a = joined(7, 1), *b = joined(7, 100), *c = joined(7, 2), *d = joined(9, 3);
	uint64_t ranks[3] = { 0 };
	(void)state;
	cache_tier_ranks(a, 128, ranks);
	assert_true(ranks[0] == 1 << 2 && ranks[1] == UINT64_C(1) << 36);
	cache_tier_close(c);
	memset(ranks, 0, sizeof(ranks));
	cache_tier_ranks(a, 64, ranks);
	assert_true(ranks[0] == 0 && ranks[1] == 0);
	cache_tier_close(d);
	cache_tier_close(b);
	cache_tier_close(a);
}

/* Blocks that are put while another put writes its block. */
static struct {
	struct cache_tier *tier;
	uint32_t first, n;
	bool begun;
	struct base_io io;
} meanwhile;

static ssize_t write_later(int fd, const void *buf, size_t len, off_t offset)
{
	if (len == LEN && !meanwhile.begun) {
		meanwhile.begun = true;
		meanwhile.n = put_many(meanwhile.tier, meanwhile.first, at(1), at(3));
	}
	return meanwhile.io.pwrite(fd, buf, len, offset);
}

/* Those are used sooner, so they take the segments of what is used later. */
static void a_put_that_is_slow_overwrites_nothing(void **state)
{
	static uint8_t bytes[LEN];
	(void)state;
	meanwhile.io = *base_io;
	struct base_io io = meanwhile.io;
	io.pwrite = write_later;
	base_io = &io;
	for (uint32_t of_another_process = 0; of_another_process < 2; of_another_process++) {
		struct cache_tier *tier = joined(7 + of_another_process, 0);
		struct cache_tier *other = of_another_process ? joined(8, 1) : tier;
		struct cache_tier_stats stats, of_other;
		meanwhile.tier = other;
		meanwhile.first = 1000 * (1 + of_another_process);
		meanwhile.begun = false;
		struct cache_tier_block slow = tier_simulated_block(of_another_process, at(1), at(9), bytes);
		assert_int_equal(cache_tier_put(tier, &slow, bytes), 0);
		assert_true((uint64_t)meanwhile.n * LEN > SMALL / 10 * 8);
		assert_int_equal(there(other, meanwhile.first, meanwhile.n), meanwhile.n);
		assert_true(has(tier, of_another_process));
		/* Afterwards the segment may be taken. */
		assert_int_equal(put(other, meanwhile.first + meanwhile.n, at(1), at(3)), 0);
		assert_false(has(tier, of_another_process));
		cache_tier_stats_get(tier, &stats);
		cache_tier_stats_get(other, &of_other);
		assert_int_equal(stats.bad + of_other.bad, 0);
		if (of_another_process)
			cache_tier_close(other);
		cache_tier_close(tier);
	}
	base_io = &meanwhile.io;
}

/* Writers that replace each other's blocks are killed at any moment. */
static void what_comes_soon_survives_kills(void **state)
{
	enum { SOON = 40, KILLS = 20 };
	struct cache_tier *tier;
	(void)state;
	base_io = &base_io_libc;
	tier = joined(7, 0);
	for (uint32_t i = 0; i < SOON; i++)
		assert_int_equal(put(tier, i, at(1), at(2)), 0);
	for (uint32_t k = 0; k < KILLS; k++) {
		int ends[2], status;
		char c;
		assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
		pid_t pid = fork();
		assert_true(pid >= 0);
		if (pid == 0) {
			struct cache_tier *mine;
			if (cache_tier_open(tier_dir, SMALL, one, NULL, &mine) < 0 || cache_tier_join(mine, 7, 1) < 0 ||
			        write(ends[1], "", 1) != 1)
				_exit(1);
			for (uint32_t i = 0;; i++) /* each for an earlier use than the one before */
				put(mine, 1000 + i % 2000, at(1), at(30) - i % (20 * EPOCH));
		}
		close(ends[1]);
		assert_int_equal(read(ends[0], &c, 1), 1);
		usleep(1000 * (k + 1));
		kill(pid, SIGKILL);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		close(ends[0]);
		assert_int_equal(there(tier, 0, SOON), SOON);
	}
	assert_int_equal(put(tier, 30000, at(1), at(2)), 0);
	assert_int_equal(there(tier, 30000, 1), 1);
	struct cache_tier_stats stats;
	cache_tier_stats_get(tier, &stats);
	assert_int_equal(stats.bad, 0);
	cache_tier_close(tier);
}

/* ---- simulations: hosts that read a dataset from an origin ---- */

/* One rank of a job, which is alone on its host. */
struct host {
	struct shard_view *view;
	struct cache_tier *tier;
	struct cache_tier_uses *uses; /* NULL: it tells nothing */
	uint32_t rank;
};

static struct host host_of(const struct shard_index *index, struct shard_view_options options, uint64_t size)
{
	struct host host = { .rank = options.rank };
	struct base_err err = { 0 };
	options.order = options.order == SHARD_ORDER_AUTO ? SHARD_ORDER_FULL : options.order;
	options.seed = 3;
	if (shard_view_new(index, &options, &err, &host.view) < 0)
		fail_msg("%s", err.text);
	host.tier = tier_simulated_opened(shard_index_info(index)->identity, size);
	int rc = cache_tier_uses_new(host.tier, host.view, &host.uses);
	assert_true(rc == 0 || (rc == -EOPNOTSUPP && options.world == 1));
	if (rc == 0)
		assert_int_equal(cache_tier_uses_add(host.uses, host.rank), 0);
	return host;
}

static void host_done(struct host *host)
{
	cache_tier_uses_free(host->uses);
	cache_tier_close(host->tier);
	shard_view_free(host->view);
}

/* Reads one epoch as the engine does.  Returns the blocks that come from the origin, as a share of what is read. */
static double epoch_of(struct host *host, uint64_t number)
{
	static uint8_t want[LEN], bytes[LEN];
	struct shard_epoch *epoch;
	uint64_t missed = 0, turns;
	assert_int_equal(shard_view_epoch(host->view, number, &epoch), 0);
	while (host->uses && cache_tier_uses_lacks(host->uses))
		assert_int_equal(cache_tier_uses_work(host->uses, 0), 0);
	turns = shard_epoch_turns(epoch, host->rank);
	for (uint64_t turn = 0; turn < turns; turn++) {
		uint32_t sample, number_of_file;
		assert_int_equal(shard_epoch_turn(epoch, host->rank, turn, &sample, NULL), 0);
		assert_int_equal(shard_index_sample_first(shard_view_index(host->view), sample, &number_of_file), 0);
		struct cache_tier_block block = tier_simulated_block(number_of_file, 0, 0, want);
		if (host->uses)
			cache_tier_uses_of(host->uses, number, &block);
		bool hit = cache_tier_get(host->tier, &block, bytes) == 0;
		missed += !hit;
		if ((!hit || block.next) && !cache_tier_full(host->tier, &block))
			cache_tier_put(host->tier, &block, want);
	}
	shard_epoch_put(epoch);
	return (double)missed / (double)turns;
}

static void one_host_keeps_what_it_has(void **state)
{
	struct shard_index *index = tier_simulated_dataset(N / 4);
	struct host host = host_of(index, (struct shard_view_options){ .world = 1 }, LARGE / 4);
	(void)state;
	assert_true(epoch_of(&host, 0) == 1);
	for (uint64_t e = 1; e < 3; e++) {
		double origin = epoch_of(&host, e);
		print_message("a tier of 25%%, one host, epoch %d: %.3f of the dataset from the origin\n", (int)e + 1,
		        origin);
		assert_true(origin <= 0.77);
	}
	host_done(&host);
	synth_close(index);
}

/* All hosts are alike, so one is simulated.  It has read for long enough that the tier is full of what it keeps. */
static void one_of_eight_hosts(enum shard_order_mode order)
{
	struct shard_index *index = tier_simulated_dataset(N);
	struct host host = host_of(index, (struct shard_view_options){ .rank = 2, .world = 8, .order = order }, LARGE);
	struct cache_tier_stats stats;
	double origin = 0;
	enum { BEFORE = 9, MEASURED = 8 };
	for (uint64_t e = 0; e < BEFORE + MEASURED; e++) {
		double part = epoch_of(&host, e);
		print_message("a tier of 25%%, one of 8 hosts, epoch %d: %.3f\n", (int)e + 1, part);
		origin += e >= BEFORE ? part / MEASURED : 0;
	}
	cache_tier_stats_get(host.tier, &stats);
	print_message("mean of the last %d: %.3f; %.2f of the bytes read were written\n", MEASURED, origin,
	        (double)stats.stored / ((double)(BEFORE + MEASURED) * N / 8));
	assert_true(origin <= 0.45);
	assert_int_equal(stats.bad, 0);
	host_done(&host);
	synth_close(index);
}

static void one_of_eight_hosts_keeps_what_comes_next(void **state)
{
	(void)state;
	one_of_eight_hosts(SHARD_ORDER_FULL);
}

static void one_of_eight_hosts_keeps_what_comes_next_in_the_order_of_torch(void **state)
{
	(void)state;
	one_of_eight_hosts(SHARD_ORDER_TORCH);
}

/* Tables say what the inverse of the order says; and a rank that comes gets into them. */
static void tables_have_the_uses_of_all_ranks_of_the_host(void **state)
{
	struct shard_index *index = tier_simulated_dataset(N / 4);
	const struct shard_view_options options = { .rank = 1, .world = 5, .order = SHARD_ORDER_TORCH, .epoch = 7 };
	struct host host = host_of(index, options, LARGE / 4);
	static uint8_t want[LEN];
	(void)state;
	for (uint32_t ranks = 1; ranks <= 2; ranks++) {
		if (ranks == 2)
			assert_int_equal(cache_tier_uses_add(host.uses, 4), 0);
		assert_true(cache_tier_uses_lacks(host.uses));
		while (cache_tier_uses_lacks(host.uses))
			assert_int_equal(cache_tier_uses_work(host.uses, 0), 0);
		assert_int_equal(cache_tier_uses_epochs(host.uses), cache_tier_uses_ahead(host.uses) + 1);
		for (uint32_t file = 0; file < 300; file++) {
			struct cache_tier_block block = tier_simulated_block(file, 0, 0, want);
			struct shard_epoch *epoch;
			uint32_t sample = file, rank; /* each file is a sample */
			uint64_t number = 7, step = 0;
			cache_tier_uses_of(host.uses, number, &block);
			do {
				assert_int_equal(shard_view_epoch(host.view, ++number, &epoch), 0);
				assert_int_equal(shard_epoch_find(epoch, sample, &step, &rank, NULL), 0);
				shard_epoch_put(epoch);
			} while (number < 38 && rank != 1 && (ranks == 1 || rank != 4));
			if (number < 38)
				assert_int_equal(block.next, number * EPOCH + step * EPOCH / (N / 4) + 1);
		}
	}
	host_done(&host);
	synth_close(index);
}

static void large_datasets_have_tables_in_the_order_of_torch(void **state)
{
	const struct synth synth = { .classes = 1000, .per_class = 1500, .bytes = LEN };
	const struct shard_view_options options = { .rank = 1, .world = 8, .order = SHARD_ORDER_TORCH };
	(void)state;
	base_io = &base_io_libc;
	struct shard_index *index = synth_open(&synth);
	struct host host = host_of(index, options, CACHE_TIER_SIZE_MIN);
	assert_int_equal(cache_tier_uses_ahead(host.uses), 32);
	assert_int_equal(cache_tier_uses_epochs(host.uses), 0);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(cache_tier_uses_work(host.uses, 0), 0);
		assert_int_equal(cache_tier_uses_epochs(host.uses), i + 1);
	}
	host_done(&host);
	synth_close(index);
}

/* The epoch in which a block is used next, by what the tier is told; 0: nothing is told. */
static uint64_t next_epoch(struct host *host, uint32_t file)
{
	static uint8_t want[LEN];
	struct cache_tier_block block = tier_simulated_block(file, 0, 0, want);
	cache_tier_uses_of(host->uses, 0, &block);
	return block.next ? (block.next - 1) / CACHE_TIER_EPOCH : 0;
}

static void ranks_of_one_process_are_ranks_of_the_host(void **state)
{
	struct shard_index *index = tier_simulated_dataset(N / 4);
	const struct shard_view_options options = { .rank = 0, .world = 3 };
	struct host other = host_of(index, options, LARGE / 4), own = host_of(index, options, LARGE / 4);
	struct shard_epoch *first, *second;
	uint64_t ranks = 0, moved = 0;
	(void)state;
	assert_int_equal(cache_tier_uses_add(own.uses, 1), 0);
	cache_tier_ranks(other.tier, 3, &ranks); /* as another process sees them */
	assert_int_equal(ranks, 3);
	assert_int_equal(shard_view_epoch(own.view, 0, &first), 0);
	assert_int_equal(shard_view_epoch(own.view, 1, &second), 0);
	for (uint64_t turn = 0; turn < 50; turn++) {
		uint32_t sample, file, rank;
		assert_int_equal(shard_epoch_turn(first, 0, turn, &sample, NULL), 0);
		assert_int_equal(shard_index_sample_first(index, sample, &file), 0);
		assert_int_equal(shard_epoch_find(second, sample, NULL, &rank, NULL), 0);
		if (rank == 2)
			assert_true(next_epoch(&own, file) > 1);
		else
			assert_int_equal(next_epoch(&own, file), 1);
		moved += rank == 1;
	}
	assert_true(moved > 0);
	shard_epoch_put(second);
	shard_epoch_put(first);
	assert_int_equal(cache_tier_uses_add(own.uses, 1), 0); /* again: nothing changes */
	assert_int_not_equal(next_epoch(&own, 0), 0);
	assert_int_equal(cache_tier_uses_add(own.uses, 2), 0);
	assert_int_equal(next_epoch(&own, 0), 0); /* all ranks are here now, so all is used in each epoch */
	host_done(&own);
	host_done(&other);
	synth_close(index);
}

/* A server may show ranks that nobody of this host reads. */
static void before_the_first_rank_nothing_is_told(void **state)
{
	struct shard_index *index = tier_simulated_dataset(N / 4);
	const struct shard_view_options options = { .rank = 0, .world = 3 };
	struct host other = host_of(index, options, LARGE / 4);
	struct host own = { .tier = tier_simulated_opened(shard_index_info(index)->identity, LARGE / 4),
		.view = other.view };
	uint64_t ranks = 0;
	(void)state;
	assert_int_equal(cache_tier_uses_new(own.tier, own.view, &own.uses), 0);
	assert_int_equal(next_epoch(&own, 0), 0);
	cache_tier_ranks(other.tier, 3, &ranks);
	assert_int_equal(ranks, 0);
	assert_int_equal(cache_tier_uses_add(own.uses, 2), 0);
	assert_int_not_equal(next_epoch(&own, 0), 0);
	cache_tier_ranks(other.tier, 3, &ranks);
	assert_int_equal(ranks, 1 << 2);
	cache_tier_uses_free(own.uses);
	cache_tier_close(own.tier);
	host_done(&other);
	synth_close(index);
}

static void a_group_that_is_kept_for_ever_tells_nothing(void **state)
{
	struct shard_index *index = tier_simulated_dataset(N / 4);
	struct host host =
	        host_of(index, (struct shard_view_options){ .rank = 1, .world = 4, .groups = 4 }, LARGE / 40 * 12);
	(void)state;
	epoch_of(&host, 0);
	assert_int_equal(cache_tier_uses_epochs(host.uses), 0);
	host_done(&host);
	synth_close(index);
}

static void a_told_order_has_the_ranks_that_it_says(void **state)
{
	static const struct cache_tier_told wrong[] = {
		{ .order = 7, .world = CACHE_TIER_RANKS_MAX + 1, .n = 1 },
		{ .order = 7, .world = 4, .first = 5, .n = 1 },
		{ .order = 7, .world = 4, .first = 2, .n = 3 },
	};
	struct shard_index *index = tier_simulated_dataset(N / 4);
	struct cache_tier *tier = tier_simulated_opened(shard_index_info(index)->identity, LARGE / 40 * 12);
	struct cache_tier_uses *uses;
	(void)state;
	assert_int_equal(cache_tier_uses_new_told(tier, index, &uses), 0);
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert_int_equal(cache_tier_uses_follow(uses, &wrong[i]), -ERANGE);
		assert_int_equal(cache_tier_uses_epochs(uses), 0);
	}
	cache_tier_uses_free(uses);
	cache_tier_close(tier);
	synth_close(index);
}

/* Returns a table in which the only uses are those of `sample` and `other`, in these parts of the epoch. */
static struct cache_use_table *table_of(uint32_t sample, uint32_t part, uint32_t other, uint32_t other_part)
{
	struct cache_use_table *table = cache_use_table_new(N / 16);
	assert_non_null(table);
	cache_use_table_set(table, sample, part, CACHE_USE_PARTS);
	cache_use_table_set(table, other, other_part, CACHE_USE_PARTS);
	return table;
}

/* Expects what is told of a file that is fetched for the latest epoch. */
static void expect_latest(struct cache_tier_uses *uses, uint32_t file, uint32_t now, uint32_t next)
{
	static uint8_t want[LEN];
	struct cache_tier_block block = tier_simulated_block(file, 0, 0, want);
	assert_true(cache_tier_uses_of(uses, CACHE_TIER_USES_LATEST, &block));
	assert_int_equal(block.now, now);
	assert_int_equal(block.next, next);
}

static void what_is_fetched_over_the_end_of_an_epoch_is_for_the_next_one(void **state)
{
	static const struct cache_tier_told told = { .order = 7, .world = 4, .n = 1 };
	enum { E = 5, BOTH = 1, FIRST, SECOND };
	struct shard_index *index = tier_simulated_dataset(N / 16);
	struct cache_tier *tier = tier_simulated_opened(shard_index_info(index)->identity, CACHE_TIER_SIZE_MIN);
	struct cache_tier_uses *uses;
	(void)state;
	assert_int_equal(cache_tier_uses_new_told(tier, index, &uses), 0);
	assert_int_equal(cache_tier_uses_follow(uses, &told), 0);
	cache_tier_uses_tell(uses, E, table_of(BOTH, 3, FIRST, 2));
	cache_tier_uses_tell(uses, E + 1, table_of(BOTH, 1, SECOND, 0));
	const uint32_t none = (E + 1 + 32) * EPOCH, none_then = none + EPOCH, both = E * EPOCH + 4,
	               both_then = (E + 1) * EPOCH + 2, second = (E + 1) * EPOCH + 1;
	for (uint64_t turn = 0; turn <= 80; turn++) { /* 10 turns are a part */
		cache_tier_uses_reach(uses, E, turn, 80);
		if (turn <= 40)
			expect_latest(uses, BOTH, both, both_then);
		else
			expect_latest(uses, BOTH, both_then, none_then);
		expect_latest(uses, FIRST, E * EPOCH + 3, none);
		expect_latest(uses, SECOND, second, none_then);
	}
	cache_tier_uses_reach(uses, E + 1, 0, 80);
	expect_latest(uses, BOTH, both_then, none_then);
	cache_tier_uses_free(uses);
	cache_tier_close(tier);
	synth_close(index);
}

static void a_group_keeps_its_samples_until_the_next_deal(void **state)
{
	struct shard_index *index = tier_simulated_dataset(N / 4);
	struct host host = host_of(
	        index, (struct shard_view_options){ .rank = 1, .world = 4, .groups = 4, .redeal = 4 }, LARGE / 40 * 12);
	struct cache_tier_stats stats;
	(void)state;
	assert_true(epoch_of(&host, 0) == 1);
	for (uint64_t e = 1; e < 4; e++) {
		/* What is read last before the next deal may be used after it. */
		cache_tier_stats_get(host.tier, &stats);
		assert_int_equal(stats.moved, 0);
		assert_true(epoch_of(&host, e) <= 0.01);
	}
	double dealt = epoch_of(&host, 4); /* a quarter of the samples stay, by chance */
	assert_true(dealt > 0.7 && dealt < 0.8);
	for (uint64_t e = 5; e < 8; e++) {
		double origin = epoch_of(&host, e);
		print_message("groups=4,redeal=4, a tier of 30%%, epoch %d: %.4f\n", (int)e + 1, origin);
		assert_true(origin <= 0.01);
	}
	host_done(&host);
	synth_close(index);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, tier_simulated_set_up, tier_simulated_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(what_is_used_later_goes_first),
		TEST(what_was_used_goes_before_all_others),
		TEST(who_knows_no_order_replaces_nothing),
		TEST(what_has_no_known_use_goes_before_what_has_one),
		TEST(a_used_block_moves_to_those_of_its_next_use),
		TEST(another_job_that_runs_keeps_its_blocks),
		TEST(ranks_of_a_host_find_each_other),
		TEST(a_put_that_is_slow_overwrites_nothing),
		TEST(what_comes_soon_survives_kills),
		TEST(one_host_keeps_what_it_has),
		TEST(one_of_eight_hosts_keeps_what_comes_next),
		TEST(one_of_eight_hosts_keeps_what_comes_next_in_the_order_of_torch),
		TEST(tables_have_the_uses_of_all_ranks_of_the_host),
		TEST(large_datasets_have_tables_in_the_order_of_torch),
		TEST(ranks_of_one_process_are_ranks_of_the_host),
		TEST(before_the_first_rank_nothing_is_told),
		TEST(a_group_keeps_its_samples_until_the_next_deal),
		TEST(a_group_that_is_kept_for_ever_tells_nothing),
		TEST(a_told_order_has_the_ranks_that_it_says),
		TEST(what_is_fetched_over_the_end_of_an_epoch_is_for_the_next_one),
	};
	return cmocka_run_group_tests_name("cache/tier_uses", tests, NULL, NULL);
}
