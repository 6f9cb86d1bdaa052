/* SPDX-License-Identifier: Apache-2.0 */
/* Views: which samples a rank gets in which epoch, in every order, deal and subtree. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "shard/torch_rng.h"
#include "shard/view.h"
#include "tests/shard/synth.h"

static const enum shard_order_mode orders[] = { SHARD_ORDER_FULL, SHARD_ORDER_CHUNK, SHARD_ORDER_TORCH,
	SHARD_ORDER_NONE };
static struct shard_view *open_view(const struct shard_index *index, const struct shard_view_options *options)
{
	struct shard_view *view = NULL;
	struct base_err err = { 0 };

	if (shard_view_new(index, options, &err, &view) < 0)
		fail_msg("%s", err.text);
	return view;
}

/* Pieces of any length, from any turn on, against turn by turn. */
static void check_samples(const struct shard_epoch *epoch, uint32_t rank)
{
	uint64_t turns = shard_epoch_turns(epoch, rank);
	uint32_t *samples = calloc(turns + 1, sizeof(*samples));
	uint64_t *steps = calloc(turns + 1, sizeof(*steps));

	assert_non_null(samples);
	assert_non_null(steps);
	for (uint32_t piece = 1; piece <= 200; piece += 66) {
		for (uint64_t k = 0; k < turns; k += piece) {
			uint32_t n = turns - k < piece ? (uint32_t)(turns - k) : piece;
			assert_int_equal(shard_epoch_samples(epoch, rank, k, n, samples, steps), 0);
			for (uint32_t i = 0; i < n; i++) {
				uint32_t sample;
				uint64_t step;
				assert_int_equal(shard_epoch_turn(epoch, rank, k + i, &sample, &step), 0);
				assert_int_equal(samples[i], sample);
				assert_int_equal(steps[i], step);
			}
		}
	}
	assert_int_equal(shard_epoch_samples(epoch, rank, turns, 0, samples, steps), 0);
	assert_int_equal(shard_epoch_samples(epoch, rank, turns, 1, samples, steps), -ERANGE);
	assert_int_equal(shard_epoch_samples(epoch, rank, 0, (uint32_t)turns + 1, samples, steps), -ERANGE);
	assert_int_equal(shard_epoch_samples(epoch, rank, UINT64_MAX, 1, samples, steps), -ERANGE);
	free(samples);
	free(steps);
}

/* Counts the samples that all ranks get in an epoch; checks what each turn says against the inverse. */
static uint64_t count_epoch(struct shard_view *view, uint64_t number, uint32_t world, unsigned *counts)
{
	struct shard_epoch *epoch;
	uint64_t total = 0;

	assert_int_equal(shard_view_epoch(view, number, &epoch), 0);
	assert_int_equal(shard_epoch_number(epoch), number);
	for (uint32_t rank = 0; rank < world; rank++) {
		uint64_t turns = shard_epoch_turns(epoch, rank);
		uint32_t sample;

		for (uint64_t k = 0; k < turns; k++) {
			uint32_t again;
			uint32_t found_rank;
			uint64_t found_turn;
			uint64_t found_step;
			uint64_t stored_step;
			uint64_t step;
			uint32_t slot;

			assert_int_equal(shard_epoch_turn(epoch, rank, k, &sample, &step), 0);
			assert_int_equal(shard_epoch_step_sample(epoch, step, &again), 0);
			assert_int_equal(sample, again);
			assert_int_equal(shard_epoch_find(epoch, sample, &found_step, &found_rank, &found_turn), 0);
			assert_int_equal(shard_index_sample_slot(shard_view_index(view), sample, &slot), 0);
			assert_int_equal(shard_epoch_find_stored(epoch, sample, slot, &stored_step, NULL, NULL), 0);
			assert_int_equal(stored_step, found_step);
			if (counts[sample]++ == 0 && found_step == step) {
				assert_int_equal(found_rank, rank);
				assert_int_equal(found_turn, k);
			}
			assert_true(found_step <= step);
		}
		assert_int_equal(shard_epoch_turn(epoch, rank, turns, &sample, NULL), -ERANGE);
		check_samples(epoch, rank);
		total += turns;
	}
	shard_epoch_put(epoch);
	return total;
}

static void ranks_partition_the_samples(void **state)
{
	const struct shard_index *index = *state;
	uint32_t n = shard_index_info(index)->n_samples;
	unsigned *counts = calloc(n, sizeof(*counts));

	for (unsigned o = 0; o < 4; o++) {
		for (int deal = SHARD_DEAL_STRIDE; deal <= SHARD_DEAL_BLOCK; deal++) {
			for (uint32_t world = 1; world <= 16; world++) {
				struct shard_view_options options = {
					.order = orders[o],
					.deal = (enum shard_deal_mode)deal,
					.tail = SHARD_TAIL_SHORT,
					.seed = 7,
					.world = world,
					.chunk_bytes = 4000,
				};
				struct shard_view *view = open_view(index, &options);

				for (uint64_t number = 0; number < 3; number++) {
					memset(counts, 0, n * sizeof(*counts));
					assert_int_equal(count_epoch(view, number, world, counts), n);
					for (uint32_t i = 0; i < n; i++)
						assert_int_equal(counts[i], 1);
				}
				shard_view_free(view);
			}
		}
	}
	free(counts);
}

/* The sequence of all ranks, in steps, is one whatever the world is. */
static void stride_order_does_not_depend_on_the_world(void **state)
{
	const struct shard_index *index = *state;

	for (unsigned o = 0; o < 4; o++) {
		uint32_t first[200];

		for (uint32_t world = 1; world <= 16; world++) {
			struct shard_view_options options = {
				.order = orders[o], .deal = SHARD_DEAL_STRIDE, .world = world
			};
			struct shard_view *view = open_view(index, &options);
			struct shard_epoch *epoch;

			assert_int_equal(shard_view_epoch(view, 5, &epoch), 0);
			for (uint64_t step = 0; step < shard_view_samples(view); step++) {
				uint32_t sample;

				assert_int_equal(shard_epoch_step_sample(epoch, step, &sample), 0);
				if (world == 1)
					first[step] = sample;
				assert_int_equal(sample, first[step]);
			}
			shard_epoch_put(epoch);
			shard_view_free(view);
		}
	}
}

static void subdir_deals_its_samples_only(void **state)
{
	const struct shard_index *index = *state;
	static const char *const subdirs[] = { "train", "val", "train/class_0003", "/val//class_0001/" };
	static const uint32_t sizes[] = { 91, 39, 13, 13 };
	uint32_t n = shard_index_info(index)->n_samples;
	unsigned *counts = calloc(n, sizeof(*counts));

	for (unsigned s = 0; s < 4; s++) {
		for (unsigned o = 0; o < 4; o++) {
			struct shard_view_options options = {
				.order = orders[o],
				.tail = SHARD_TAIL_SHORT,
				.world = 3,
				.subdir = subdirs[s],
				.chunk_bytes = 4000,
			};
			struct shard_view *view = open_view(index, &options);
			uint32_t first;
			uint32_t end;
			struct shard_epoch *epoch;

			memset(counts, 0, n * sizeof(*counts));
			assert_int_equal(shard_view_samples(view), sizes[s]);
			assert_int_equal(count_epoch(view, 1, 3, counts), sizes[s]);
			assert_int_equal(shard_index_dir_samples(index, shard_view_subdir(view), &first, &end), 0);
			for (uint32_t i = 0; i < n; i++)
				assert_int_equal(counts[i], i >= first && i < end);
			assert_int_equal(shard_view_epoch(view, 0, &epoch), 0);
			assert_int_equal(
			        shard_epoch_find(epoch, first > 0 ? first - 1 : end, NULL, NULL, NULL), -ENOENT);
			assert_int_equal(shard_epoch_find(epoch, n, NULL, NULL, NULL), -EINVAL);
			shard_epoch_put(epoch);
			shard_view_free(view);
		}
	}
	free(counts);
}

/* chunk and none follow storage: in order=none the slots of a subtree ascend. */
static void none_is_stored_order(void **state)
{
	const struct shard_index *index = *state;
	struct shard_view_options options = { .order = SHARD_ORDER_NONE, .world = 1, .subdir = "val" };
	struct shard_view *view = open_view(index, &options);
	struct shard_epoch *epoch;
	uint32_t last = 0;

	assert_int_equal(shard_view_epoch(view, 0, &epoch), 0);
	for (uint64_t step = 0; step < shard_view_samples(view); step++) {
		uint32_t sample;
		uint32_t slot;

		assert_int_equal(shard_epoch_step_sample(epoch, step, &sample), 0);
		assert_int_equal(shard_index_sample_slot(index, sample, &slot), 0);
		assert_true(step == 0 || slot > last);
		last = slot;
	}
	shard_epoch_put(epoch);
	shard_view_free(view);
}

/* What ImageFolder(MNT/val) with DistributedSampler(seed=7), set_epoch(2) would take. */
static void torch_numbers_the_subtrees_samples(void **state)
{
	const struct shard_index *index = *state;
	struct shard_view_options options = { .order = SHARD_ORDER_TORCH, .seed = 7, .world = 1, .subdir = "val" };
	struct shard_view *view = open_view(index, &options);
	struct shard_epoch *epoch;
	uint32_t perm[39];

	shard_torch_randperm(39, 9, perm);
	assert_int_equal(shard_view_epoch(view, 2, &epoch), 0);
	for (uint64_t step = 0; step < 39; step++) {
		uint32_t sample;

		assert_int_equal(shard_epoch_step_sample(epoch, step, &sample), 0);
		assert_int_equal(sample, 91 + perm[step]);
	}
	shard_epoch_put(epoch);
	shard_view_free(view);
}

static void start_belongs_to_its_epoch(void **state)
{
	const struct shard_index *index = *state;
	struct shard_view_options options = {
		.order = SHARD_ORDER_FULL, .world = 3, .rank = 1, .epoch = 4, .start = 100, .tail = SHARD_TAIL_SHORT
	};
	struct shard_view *view = open_view(index, &options);
	unsigned counts[130] = { 0 };

	assert_int_equal(count_epoch(view, 4, 3, counts), 30);
	memset(counts, 0, sizeof(counts));
	assert_int_equal(count_epoch(view, 3, 3, counts), 130);
	memset(counts, 0, sizeof(counts));
	assert_int_equal(count_epoch(view, 5, 3, counts), 130);
	shard_view_free(view);
}

static void consumed_and_dropped_samples_are_not_found(void **state)
{
	const struct shard_index *index = *state;
	struct shard_view_options options = {
		.order = SHARD_ORDER_FULL, .world = 7, .start = 100, .tail = SHARD_TAIL_DROP
	};
	struct shard_view *view = open_view(index, &options);
	struct shard_epoch *epoch;
	unsigned missing = 0;

	assert_int_equal(shard_view_epoch(view, 0, &epoch), 0);
	for (uint32_t sample = 0; sample < 130; sample++)
		missing += shard_epoch_find(epoch, sample, NULL, NULL, NULL) == -ENOENT;
	assert_int_equal(missing, 100 + 30 % 7);
	shard_epoch_put(epoch);
	shard_view_free(view);
}

static void identity_covers_every_option_but_the_rank(void **state)
{
	const struct shard_index *index = *state;
	const struct shard_view_options base = {
		.order = SHARD_ORDER_CHUNK, .deal = SHARD_DEAL_BLOCK, .world = 4, .chunk_bytes = 4000
	};
	struct shard_view_options variants[16];
	char seen[16][SHARD_VIEW_ID_SIZE];

	for (unsigned i = 0; i < 16; i++)
		variants[i] = base;
	variants[1].rank = 3; /* the same as 0 */
	variants[2].order = SHARD_ORDER_FULL;
	variants[3].deal = SHARD_DEAL_STRIDE;
	variants[4].tail = SHARD_TAIL_SHORT;
	variants[5].seed = 1;
	variants[6].epoch = 1;
	variants[7].start = 4;
	variants[7].n_past = 1;
	variants[7].past[0] = (struct shard_deal_segment){ 2, 4 };
	variants[8] = variants[7];
	variants[8].past[0].world = 4;
	variants[9].world = 5;
	variants[10].subdir = "train";
	variants[11].chunk_bytes = 8000;
	variants[12].pool_bytes = 16000;
	variants[13] = variants[12];
	variants[13].rank = 1; /* the same as 12 */
	variants[14] = variants[3];
	variants[14].start = 4;
	variants[15] = variants[7];
	variants[15].tail = SHARD_TAIL_DROP;
	for (unsigned i = 0; i < 16; i++) {
		struct shard_view *view = open_view(index, &variants[i]);

		shard_view_identity(view, seen[i]);
		shard_view_free(view);
		assert_int_equal(strlen(seen[i]), 32);
		for (unsigned j = 0; j < i; j++) {
			bool equal = (i == 1 && j == 0) || (i == 13 && j == 12);

			assert_int_equal(strcmp(seen[i], seen[j]) == 0, equal);
		}
	}
}

static void refused(
        const struct shard_index *index, const struct shard_view_options *options, int code, const char *word)
{
	struct shard_view *view = NULL;
	struct base_err err = { 0 };

	assert_int_equal(shard_view_new(index, options, &err, &view), code);
	assert_null(view);
	assert_int_equal(err.code, code);
	if (!strstr(err.text, word))
		fail_msg("'%s' does not say '%s'", err.text, word);
	assert_null(strchr(err.text, '\n'));
}

static void bad_options_get_one_sentence(void **state)
{
	const struct shard_index *index = *state;
	const struct shard_view_options good = { .order = SHARD_ORDER_CHUNK, .deal = SHARD_DEAL_BLOCK, .world = 4 };
	struct shard_view_options o = good;

	o.rank = 4;
	refused(index, &o, -EINVAL, "rank=4");
	o = good;
	o.world = 0;
	refused(index, &o, -EINVAL, "world=0");
	o = good;
	o.start = 131;
	refused(index, &o, -EINVAL, "start=131");
	o.start = 100;
	refused(index, &o, -EINVAL, "give state=");
	o.n_past = 1;
	o.past[0] = (struct shard_deal_segment){ 4, 99 };
	refused(index, &o, -EINVAL, "add up");
	o.deal = SHARD_DEAL_STRIDE;
	refused(index, &o, -EINVAL, "deal=stride");
	o = good;
	o.n_past = SHARD_DEAL_SEGMENTS_MAX + 1;
	refused(index, &o, -E2BIG, "at most 16");
	o.n_past = 1;
	o.past[0].world = 0;
	refused(index, &o, -EINVAL, "world=0");
	o = good;
	o.subdir = "nowhere";
	refused(index, &o, -ENOENT, "'nowhere'");
	o.subdir = "train/class_0000/item_000000.bin";
	refused(index, &o, -ENOTDIR, "not a directory");
}

static void an_empty_subtree_is_refused(void **state)
{
	const struct synth synth = { .classes = 2, .per_class = 3, .bytes = 10, .empty_dir = "val" };
	struct shard_index *index = synth_open(&synth);
	struct shard_view_options o = { .world = 1, .subdir = "val" };
	(void)state;

	refused(index, &o, -EINVAL, "no samples");
	synth_close(index);
}

static void a_dataset_of_common_files_deals_nothing(void **state)
{
	const struct synth synth = { .classes = 1, .per_class = 3, .bytes = 10, .common = true };
	struct shard_index *index = synth_open(&synth);
	(void)state;

	for (int order = SHARD_ORDER_AUTO; order <= SHARD_ORDER_NONE; order++) {
		for (int deal = SHARD_DEAL_AUTO; deal <= SHARD_DEAL_BLOCK; deal++) {
			struct shard_view_options o = {
				.order = (enum shard_order_mode)order, .deal = (enum shard_deal_mode)deal, .world = 2
			};
			struct shard_view *view = open_view(index, &o);
			struct shard_epoch *epoch;
			uint32_t sample;

			assert_int_equal(shard_view_samples(view), 0);
			assert_int_equal(shard_view_epoch(view, 0, &epoch), 0);
			assert_int_equal(shard_epoch_turns(epoch, 1), 0);
			assert_int_equal(shard_epoch_turn(epoch, 0, 0, &sample, NULL), -ERANGE);
			check_samples(epoch, 0);
			assert_int_equal(shard_epoch_samples(epoch, 2, 0, 0, NULL, NULL), 0);
			assert_int_equal(
			        shard_epoch_samples(epoch, 2, 0, 1, &sample, NULL), -ERANGE); /* no such rank */
			assert_int_equal(shard_epoch_step_sample(epoch, 0, &sample), -ERANGE);
			assert_int_equal(shard_epoch_find(epoch, 0, NULL, NULL, NULL), -EINVAL);
			shard_epoch_put(epoch);
			shard_view_free(view);
		}
	}
	synth_close(index);
}

static void auto_resolves_by_size(void **state)
{
	const struct synth big = { .classes = 1, .per_class = 10, .bytes = 65536 };
	const struct synth small = { .classes = 10, .per_class = 10, .bytes = 65535 };
	struct shard_view_options o = { .world = 2 };
	struct shard_index *index = synth_open(&big);
	struct shard_view *view = open_view(index, &o);
	(void)state;

	assert_int_equal(shard_view_options_get(view)->order, SHARD_ORDER_FULL);
	assert_int_equal(shard_view_options_get(view)->deal, SHARD_DEAL_STRIDE);
	shard_view_free(view);
	synth_close(index);
	index = synth_open(&small);
	view = open_view(index, &o);
	assert_int_equal(shard_view_options_get(view)->order, SHARD_ORDER_CHUNK);
	assert_int_equal(shard_view_options_get(view)->deal, SHARD_DEAL_STRIDE);
	assert_int_equal(shard_view_options_get(view)->chunk_items, 2);
	shard_view_free(view);
	synth_close(index);
}

/* 130 pools of one sample: block for worlds with 16 pools a rank, and a start that could be either is refused. */
static void auto_deals_blocks_where_each_rank_gets_many(void **state)
{
	const struct shard_index *index = *state;
	struct shard_view_options o = { .order = SHARD_ORDER_CHUNK, .world = 1, .chunk_items = 1, .pool_chunks = 1 };

	for (o.world = 1; o.world <= 12; o.world++) {
		struct shard_view *view = open_view(index, &o);

		assert_int_equal(shard_view_options_get(view)->deal,
		        o.world > 1 && 130 / o.world >= SHARD_VIEW_BLOCKS_MIN ? SHARD_DEAL_BLOCK : SHARD_DEAL_STRIDE);
		shard_view_free(view);
	}
	o.world = 12;
	o.start = 10;
	refused(index, &o, -EINVAL, "give state= of the job that stopped");
	refused(index, &o, -EINVAL, "or deal=stride");
	o.deal = SHARD_DEAL_STRIDE;
	shard_view_free(open_view(index, &o));
}

/* deal=block on a small dataset: pools shrink so that a rank's chunks are its own. */
static void explicit_blocks_shrink_pools(void **state)
{
	const struct synth synth = { .classes = 100, .per_class = 100, .bytes = 4096, .shuffled = true };
	struct shard_index *index = synth_open(&synth);
	struct shard_view_options o = {
		.order = SHARD_ORDER_CHUNK, .deal = SHARD_DEAL_BLOCK, .world = 4, .chunk_bytes = 16 << 10
	};
	struct shard_view *view = open_view(index, &o);
	const struct shard_view_options *resolved = shard_view_options_get(view);
	(void)state;

	assert_int_equal(resolved->chunk_items, 4);
	assert_int_equal(resolved->pool_chunks, 10000 / 4 / 16 / 4);
	o.chunk_items = resolved->chunk_items;
	o.pool_chunks = resolved->pool_chunks;
	shard_view_free(view);
	o.world = 8; /* a state's geometry stays */
	view = open_view(index, &o);
	assert_int_equal(shard_view_options_get(view)->pool_chunks, o.pool_chunks);
	shard_view_free(view);
	synth_close(index);
}

/* What all ranks together fetch of a store, in units of 16 neighbouring samples (64 KiB), beside what there is:
 * separate
 * hosts share no cache. */
static double amplification(const struct shard_index *index, const struct shard_view_options *options)
{
	struct shard_view *view = open_view(index, options);
	const uint64_t unit = 16;
	uint64_t units = shard_view_samples(view) / unit + 1;
	uint8_t *touched = malloc(units);
	struct shard_epoch *epoch;
	uint64_t fetched = 0;

	assert_int_equal(shard_view_epoch(view, options->epoch, &epoch), 0);
	for (uint32_t rank = 0; rank < options->world; rank++) {
		memset(touched, 0, units);
		for (uint64_t k = 0; k < shard_epoch_turns(epoch, rank); k++) {
			uint32_t sample;
			uint32_t slot;

			assert_int_equal(shard_epoch_turn(epoch, rank, k, &sample, NULL), 0);
			assert_int_equal(shard_index_sample_slot(index, sample, &slot), 0);
			fetched += !touched[slot / unit];
			touched[slot / unit] = 1;
		}
	}
	shard_epoch_put(epoch);
	free(touched);
	shard_view_free(view);
	return (double)(fetched * unit) / (double)(shard_index_info(index)->n_samples - options->start);
}

/* 200,000 samples of 4 KiB on 8 hosts: blocks fetch little twice, also after a resume; strides fetch nearly all 8
 * times. */
static void blocks_keep_hosts_apart(void **state)
{
	const struct synth synth = { .classes = 100, .per_class = 2000, .bytes = 4096, .shuffled = true };
	struct shard_index *index = synth_open(&synth);
	struct shard_view_options o = { .order = SHARD_ORDER_CHUNK, .deal = SHARD_DEAL_STRIDE, .world = 8 };
	(void)state;

	assert_true(amplification(index, &o) > 7);
	o.deal = SHARD_DEAL_BLOCK;
	assert_true(amplification(index, &o) < 1.3);
	o.n_past = 1;
	o.past[0] = (struct shard_deal_segment){ 8, 50000 };
	o.start = 50000;
	o.world = 6;
	assert_true(amplification(index, &o) < 1.3);
	synth_close(index);
}

static void epochs_are_cached_and_outlive_the_cache(void **state)
{
	const struct shard_index *index = *state;
	struct shard_view_options o = { .order = SHARD_ORDER_TORCH, .world = 1 };
	struct shard_view *view = open_view(index, &o);
	struct shard_epoch *held;
	struct shard_epoch *again;
	uint32_t before;
	uint32_t after;

	assert_int_equal(shard_view_epoch(view, 0, &held), 0);
	assert_int_equal(shard_view_epoch(view, 0, &again), 0);
	assert_ptr_equal(held, again);
	shard_epoch_put(again);
	assert_int_equal(shard_epoch_step_sample(held, 3, &before), 0);
	for (uint64_t number = 1; number < 10; number++) { /* pushes epoch 0 out */
		assert_int_equal(shard_view_epoch(view, number, &again), 0);
		shard_epoch_put(again);
	}
	assert_int_equal(shard_epoch_step_sample(held, 3, &after), 0);
	assert_int_equal(before, after);
	assert_int_equal(shard_view_epoch(view, 0, &again), 0);
	assert_ptr_not_equal(held, again);
	assert_int_equal(shard_epoch_step_sample(again, 3, &after), 0);
	assert_int_equal(before, after);
	shard_epoch_put(again);
	shard_epoch_put(shard_epoch_get(held));
	shard_epoch_put(held);
	shard_epoch_put(NULL);
	shard_view_free(view);
	shard_view_free(NULL);
}

/* Ranks that are two epochs apart do not push each other's epochs out. */
static void a_shared_view_caches_more_epochs(void **state)
{
	const struct shard_index *index = *state;
	struct shard_view_options o = { .order = SHARD_ORDER_TORCH, .world = 4 };
	struct shard_view *view = open_view(index, &o);
	struct shard_epoch *held, *again;

	shard_view_share(view);
	assert_int_equal(shard_view_epoch(view, 0, &held), 0);
	for (uint64_t number = 1; number < SHARD_VIEW_EPOCHS_SHARED; number++) {
		assert_int_equal(shard_view_epoch(view, number, &again), 0);
		shard_epoch_put(again);
	}
	assert_int_equal(shard_view_epoch(view, 0, &again), 0);
	assert_ptr_equal(held, again);
	shard_epoch_put(again);
	shard_epoch_put(held);
	shard_view_free(view);
}

struct reader {
	struct shard_view *view;
	unsigned number;
	unsigned wrong;
};

static void *read_epochs(void *arg)
{
	struct reader *reader = arg;

	for (unsigned i = 0; i < 400; i++) {
		struct shard_epoch *epoch;
		uint64_t number = shard_mix64(i * 8 + reader->number) % 7;
		uint32_t sample;
		uint64_t step;

		if (shard_view_epoch(reader->view, number, &epoch) < 0) {
			reader->wrong++;
			continue;
		}
		reader->wrong += shard_epoch_number(epoch) != number;
		reader->wrong += shard_epoch_step_sample(epoch, i % 130, &sample) < 0;
		reader->wrong += shard_epoch_find(epoch, sample, &step, NULL, NULL) < 0 || step != i % 130;
		shard_epoch_put(epoch);
	}
	return NULL;
}

static void many_threads_share_a_view(void **state)
{
	const struct shard_index *index = *state;
	struct shard_view_options o = { .order = SHARD_ORDER_TORCH, .world = 1 };
	struct shard_view *view = open_view(index, &o);
	pthread_t threads[8];
	struct reader readers[8];

	for (unsigned i = 0; i < 8; i++) {
		readers[i] = (struct reader){ .view = view, .number = i };
		assert_int_equal(pthread_create(&threads[i], NULL, read_epochs, &readers[i]), 0);
	}
	for (unsigned i = 0; i < 8; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(readers[i].wrong, 0);
	}
	shard_view_free(view);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ranks_partition_the_samples),
		cmocka_unit_test(stride_order_does_not_depend_on_the_world),
		cmocka_unit_test(subdir_deals_its_samples_only),
		cmocka_unit_test(none_is_stored_order),
		cmocka_unit_test(torch_numbers_the_subtrees_samples),
		cmocka_unit_test(start_belongs_to_its_epoch),
		cmocka_unit_test(consumed_and_dropped_samples_are_not_found),
		cmocka_unit_test(identity_covers_every_option_but_the_rank),
		cmocka_unit_test(bad_options_get_one_sentence),
		cmocka_unit_test(an_empty_subtree_is_refused),
		cmocka_unit_test(auto_resolves_by_size),
		cmocka_unit_test(auto_deals_blocks_where_each_rank_gets_many),
		cmocka_unit_test(explicit_blocks_shrink_pools),
		cmocka_unit_test(blocks_keep_hosts_apart),
		cmocka_unit_test(a_dataset_of_common_files_deals_nothing),
		cmocka_unit_test(epochs_are_cached_and_outlive_the_cache),
		cmocka_unit_test(a_shared_view_caches_more_epochs),
		cmocka_unit_test(many_threads_share_a_view),
	};
	int failed = cmocka_run_group_tests_name("view, packed in order", tests, synth_setup_sorted, synth_teardown);

	return failed +
	       cmocka_run_group_tests_name("view, packed shuffled", tests, synth_setup_shuffled, synth_teardown);
}
