/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of an order: what they keep and for how long, who reads them, and that nothing else changes. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <xxhash.h>

#include "shard/state.h"
#include "shard/view.h"
#include "tests/shard/synth.h"

static const enum shard_order_mode modes[] = { SHARD_ORDER_FULL, SHARD_ORDER_CHUNK };
static const enum shard_tail tails[] = { SHARD_TAIL_PAD, SHARD_TAIL_DROP, SHARD_TAIL_SHORT };

static struct shard_order_params params_of(
        enum shard_order_mode mode, uint64_t n, uint64_t groups, uint64_t redeal, uint64_t epoch)
{
	return (struct shard_order_params){
		.mode = mode,
		.n = n,
		.seed = 7,
		.epoch = epoch,
		.key = { 1, 2, 3 },
		.chunk_items = 7,
		.pool_chunks = 5,
		.groups = groups,
		.redeal = redeal,
	};
}

/* Checks that position -> item is a bijection with its inverse, and stores the group of each item. */
static void groups_of(const struct shard_order_params *params, uint64_t *ret_groups)
{
	struct shard_order order;

	assert_int_equal(shard_order_init(&order, params), 0);
	for (uint64_t i = 0; i < params->n; i++)
		ret_groups[i] = UINT64_MAX;
	for (uint64_t i = 0; i < params->n; i++) {
		uint64_t item = shard_order_at(&order, i);

		if (item >= params->n || ret_groups[item] != UINT64_MAX || shard_order_position(&order, item) != i)
			fail_msg("%s n %llu groups %llu chunk %llu pool %llu: position %llu -> item %llu",
			        shard_order_mode_name(params->mode), (unsigned long long)params->n,
			        (unsigned long long)params->groups, (unsigned long long)params->chunk_items,
			        (unsigned long long)params->pool_chunks, (unsigned long long)i,
			        (unsigned long long)item);
		ret_groups[item] = i % params->groups;
	}
	shard_order_done(&order);
}

static void every_order_with_groups_is_a_bijection(void **state)
{
	uint64_t groups[200];
	(void)state;

	for (uint64_t n = 2; n < 200; n += n < 60 ? 1 : 17) {
		for (uint64_t g = 2; g <= n; g += g < 9 ? 1 : 11) {
			for (unsigned m = 0; m < 2; m++) {
				for (uint64_t chunk = 1; chunk <= 16; chunk += 5) {
					struct shard_order_params p = params_of(modes[m], n, g, g % 4, n);

					p.chunk_items = chunk;
					p.pool_chunks = 1 + n % 6;
					groups_of(&p, groups);
				}
			}
		}
	}
}

static void large_orders_with_groups_have_an_inverse(void **state)
{
	static const uint64_t sizes[] = { 1000003, 10000000019, (UINT64_C(1) << 48) - 1, SHARD_PERMUTE_MAX };
	(void)state;

	for (unsigned s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		for (unsigned m = 0; m < 2; m++) {
			struct shard_order_params p = params_of(modes[m], sizes[s], 48, 4, 9);
			struct shard_order order;

			p.chunk_items = 256;
			p.pool_chunks = 256;
			assert_int_equal(shard_order_init(&order, &p), 0);
			for (uint64_t i = 0; i < 20000; i++) {
				uint64_t position = i * (sizes[s] / 20000) + i % 3;
				uint64_t item = shard_order_at(&order, position);

				assert_true(item < sizes[s]);
				assert_int_equal(shard_order_position(&order, item), position);
			}
			shard_order_done(&order);
		}
	}
}

/* The same groups for `redeal` epochs, then others; in each epoch another order. */
static void groups_keep_their_items_until_they_are_dealt_anew(void **state)
{
	enum { N = 1009, GROUPS = 4, REDEAL = 3, EPOCHS = 12 };
	uint64_t now[N];
	uint64_t before[N];
	(void)state;

	for (unsigned m = 0; m < 2; m++) {
		uint64_t last_first = UINT64_MAX;

		for (uint64_t epoch = 0; epoch < EPOCHS; epoch++) {
			struct shard_order_params p = params_of(modes[m], N, GROUPS, REDEAL, epoch);
			struct shard_order order;
			uint64_t first = 0;
			unsigned moved = 0;

			groups_of(&p, now);
			for (unsigned i = 0; i < N && epoch > 0; i++)
				moved += now[i] != before[i];
			if (epoch % REDEAL == 0 && epoch > 0)
				assert_in_range(moved, N / 2, N); /* 3 of 4 on the average */
			else
				assert_int_equal(moved, 0);
			memcpy(before, now, sizeof(now));
			assert_int_equal(shard_order_init(&order, &p), 0);
			for (unsigned i = 0; i < 4; i++)
				first = first * N + shard_order_at(&order, i);
			assert_int_not_equal(first, last_first);
			last_first = first;
			shard_order_done(&order);
		}
	}
}

static void without_redeal_groups_keep_their_items_for_ever(void **state)
{
	enum { N = 500 };
	uint64_t first[N];
	uint64_t later[N];
	(void)state;

	for (unsigned m = 0; m < 2; m++) {
		struct shard_order_params p = params_of(modes[m], N, 3, 0, 0);

		groups_of(&p, first);
		p.epoch = UINT64_MAX;
		groups_of(&p, later);
		assert_memory_equal(first, later, sizeof(first));
	}
}

static void one_group_is_the_plain_order(void **state)
{
	enum { N = 777 };
	(void)state;

	for (unsigned m = 0; m < 2; m++) {
		struct shard_order_params plain = params_of(modes[m], N, 0, 0, 5);
		struct shard_order_params one = params_of(modes[m], N, 1, 3, 5);
		struct shard_order a;
		struct shard_order b;

		assert_int_equal(shard_order_init(&a, &plain), 0);
		assert_int_equal(shard_order_init(&b, &one), 0);
		for (uint64_t i = 0; i < N; i++)
			assert_int_equal(shard_order_at(&a, i), shard_order_at(&b, i));
		shard_order_done(&a);
		shard_order_done(&b);
	}
}

static uint64_t fingerprint(const struct shard_order_params *params)
{
	struct shard_order order;
	uint64_t *items = malloc(params->n * sizeof(*items));
	uint64_t hash;

	assert_int_equal(shard_order_init(&order, params), 0);
	for (uint64_t i = 0; i < params->n; i++)
		items[i] = shard_order_at(&order, i);
	hash = XXH3_64bits(items, params->n * sizeof(*items));
	shard_order_done(&order);
	free(items);
	return hash;
}

/* Resume states live longer than builds: these sequences must never change.  (Little-endian fingerprints.) */
static void orders_with_groups_are_frozen(void **state)
{
	static const struct {
		enum shard_order_mode mode;
		uint64_t n, groups, redeal, hash;
	} frozen[] = {
		{ SHARD_ORDER_FULL, 20, 3, 0, UINT64_C(0x8929d8a194952417) },
		{ SHARD_ORDER_FULL, 100003, 4, 4, UINT64_C(0x397938b24a984d87) },
		{ SHARD_ORDER_CHUNK, 20, 3, 0, UINT64_C(0xac6e308863c8faa) },
		{ SHARD_ORDER_CHUNK, 100003, 4, 4, UINT64_C(0x16bcc7373cf67b7b) },
	};
	(void)state;

	for (unsigned i = 0; i < sizeof(frozen) / sizeof(frozen[0]); i++) {
		struct shard_order_params p =
		        params_of(frozen[i].mode, frozen[i].n, frozen[i].groups, frozen[i].redeal, 9);

		assert_int_equal(fingerprint(&p), frozen[i].hash);
	}
}

static void the_order_depends_on_groups_redeal_seed_and_epoch(void **state)
{
	(void)state;
	for (unsigned m = 0; m < 2; m++) {
		struct shard_order_params p[5];

		for (unsigned i = 0; i < 5; i++)
			p[i] = params_of(modes[m], 1000, 4, 4, 9);
		p[1].groups = 5;
		p[2].redeal = 5;
		p[3].seed++;
		p[4].epoch++;
		for (unsigned i = 0; i < 5; i++)
			for (unsigned k = 0; k < i; k++)
				assert_int_not_equal(fingerprint(&p[i]), fingerprint(&p[k]));
	}
}

/* Only the chunks at the borders between groups are in two groups. */
static void chunks_are_dealt_whole(void **state)
{
	enum { CHUNK = 8, GROUPS = 5 };
	uint64_t groups[3000];
	(void)state;

	for (uint64_t n = 100; n < 3000; n += 97) {
		struct shard_order_params p = params_of(SHARD_ORDER_CHUNK, n, GROUPS, 2, n);
		struct shard_order order;
		unsigned cut = 0;

		p.chunk_items = CHUNK;
		groups_of(&p, groups);
		assert_int_equal(shard_order_init(&order, &p), 0);
		for (uint64_t place = 0; place < n; place += CHUNK) {
			uint64_t end = place + CHUNK < n ? place + CHUNK : n;
			uint64_t of = groups[(place + order.rotation) % n];
			bool whole = true;

			for (uint64_t i = place; i < end; i++)
				whole = whole && groups[(i + order.rotation) % n] == of;
			cut += !whole;
		}
		assert_in_range(cut, 0, GROUPS - 1);
		shard_order_done(&order);
	}
}

/* In each pool of a group at most pool_chunks chunks of neighbouring slots, and two more that a border has cut. */
static void pools_of_a_group_keep_their_chunks(void **state)
{
	enum { N = 4001, CHUNK = 8, POOL = 10, GROUPS = 3 };
	struct shard_order_params p = params_of(SHARD_ORDER_CHUNK, N, GROUPS, 2, 3);
	struct shard_order order;
	(void)state;

	p.chunk_items = CHUNK;
	p.pool_chunks = POOL;
	assert_int_equal(shard_order_init(&order, &p), 0);
	for (uint64_t group = 0; group < GROUPS; group++) {
		for (uint64_t pool = 0; pool < N / GROUPS / (CHUNK * POOL); pool++) {
			uint8_t touched[N / CHUNK + 1] = { 0 };
			unsigned chunks = 0;

			for (uint64_t i = 0; i < CHUNK * POOL; i++) {
				uint64_t slot = shard_order_at(&order, (pool * CHUNK * POOL + i) * GROUPS + group);
				uint8_t *seen = &touched[(slot + N - order.rotation) % N / CHUNK];

				chunks += !*seen;
				*seen = 1;
			}
			/* the pool before may have ended in the middle of the last two pools' chunks */
			assert_in_range(chunks, POOL, 2 * POOL + 2);
		}
	}
	shard_order_done(&order);
}

static void refuses_groups_that_cannot_be(void **state)
{
	struct shard_order order;
	struct shard_order_params p = params_of(SHARD_ORDER_FULL, 10, 11, 0, 0);
	(void)state;

	assert_int_equal(shard_order_init(&order, &p), -EINVAL);
	p.groups = 2;
	p.mode = SHARD_ORDER_TORCH;
	assert_int_equal(shard_order_init(&order, &p), -EINVAL);
	p.mode = SHARD_ORDER_NONE;
	assert_int_equal(shard_order_init(&order, &p), -EINVAL);
}

/* ---- the deal ---- */

static uint64_t gcd(uint64_t a, uint64_t b)
{
	return b ? gcd(b, a % b) : a;
}

/* For each world, tail and start: who reads which group, and that ranks share the rest of the epoch out exactly. */
static void check_deal(uint64_t n, uint64_t groups, uint32_t world, enum shard_tail tail, uint64_t start)
{
	unsigned counts[300] = { 0 };
	struct shard_deal deal = {
		.n = n, .start = start, .world = world, .mode = SHARD_DEAL_STRIDE, .tail = tail, .groups = groups
	};
	uint64_t m = n - start;
	uint64_t total = 0;
	uint64_t most = 0;
	uint64_t d = gcd(groups, world);

	assert_int_equal(shard_deal_check(&deal), 0);
	for (uint32_t rank = 0; rank < world; rank++) {
		uint64_t turns = shard_deal_turns(&deal, rank);

		assert_true(shard_deal_lane(&deal, rank) < world);
		most = turns > most ? turns : most;
		total += turns;
		for (uint64_t k = 0; k < turns; k++) {
			uint64_t step;
			uint64_t position = shard_deal_position(&deal, rank, k, &step);

			assert_true(position >= start && position < n);
			assert_int_equal(shard_deal_rank(&deal, step), rank);
			assert_int_equal((step - start) / world, k);
			assert_int_equal(shard_deal_step_position(&deal, step), position);
			if (step < n)
				assert_int_equal(shard_deal_step(&deal, position), step);
			/* What a pad repeats is of the same groups, as soon as each group has something left. */
			if (step < n || m >= groups)
				assert_int_equal(position % groups % d, rank / (world / d));
			counts[position]++;
		}
	}
	assert_int_equal(most, shard_deal_rounds(&deal));
	assert_int_equal(total, shard_deal_end(&deal) - start);
	assert_int_equal(total, tail == SHARD_TAIL_SHORT  ? m
	                        : tail == SHARD_TAIL_DROP ? m / world * world
	                                                  : (m + world - 1) / world * world);
	for (uint64_t p = 0; p < n; p++) {
		unsigned least = p >= start && (tail != SHARD_TAIL_DROP || p < start + m / world * world);

		assert_true(counts[p] >= least);
		if (tail != SHARD_TAIL_PAD)
			assert_int_equal(counts[p], least);
	}
}

static void ranks_read_their_groups_only(void **state)
{
	static const uint64_t starts[] = { 0, 1, 5, 32, 101 };
	(void)state;

	for (uint64_t n = 120; n < 300; n += 59) {
		for (uint64_t groups = 1; groups <= 12; groups++) {
			for (uint32_t world = 1; world <= 24; world++) {
				for (unsigned t = 0; t < 3; t++) {
					for (unsigned s = 0; s < 5; s++)
						check_deal(n, groups, world, tails[t], starts[s]);
				}
			}
		}
	}
}

static void few_samples_and_many_ranks(void **state)
{
	(void)state;
	for (uint64_t n = 1; n < 12; n++) {
		for (uint64_t groups = 1; groups <= n; groups++) {
			for (uint32_t world = 1; world <= 24; world++) {
				for (unsigned t = 0; t < 3; t++) {
					for (uint64_t start = 0; start <= n; start++)
						check_deal(n, groups, world, tails[t], start);
				}
			}
		}
	}
}

static void neighbouring_ranks_are_of_one_host(void **state)
{
	struct shard_deal deal = { .n = 1000, .world = 8, .mode = SHARD_DEAL_STRIDE, .groups = 4 };
	(void)state;

	for (uint32_t rank = 0; rank < 8; rank++)
		for (uint64_t k = 0; k < shard_deal_turns(&deal, rank); k++)
			assert_int_equal(shard_deal_position(&deal, rank, k, NULL) % 4, rank / 2);
}

static void groups_and_blocks_exclude_each_other(void **state)
{
	struct shard_deal deal = { .n = 100, .world = 2, .mode = SHARD_DEAL_BLOCK, .block_items = 4, .groups = 2 };
	(void)state;

	assert_int_equal(shard_deal_check(&deal), -EINVAL);
	deal.groups = 1;
	assert_int_equal(shard_deal_check(&deal), 0);
}

/* ---- views and states ---- */

static struct shard_view *open_view(const struct shard_index *index, const struct shard_view_options *options)
{
	struct shard_view *view = NULL;
	struct base_err err = { 0 };

	if (shard_view_new(index, options, &err, &view) < 0)
		fail_msg("%s", err.text);
	return view;
}

static void refused(const struct shard_index *index, const struct shard_view_options *options, const char *says)
{
	struct shard_view *view;
	struct base_err err = { 0 };

	assert_int_equal(shard_view_new(index, options, &err, &view), -EINVAL);
	if (!strstr(err.text, says))
		fail_msg("'%s' does not say '%s'", err.text, says);
}

static void bad_groups_get_one_sentence(void **state)
{
	const struct shard_index *index = *state;
	struct shard_view_options o = { .order = SHARD_ORDER_FULL, .world = 1, .groups = 131 };

	refused(index, &o, "groups=131: the epoch has 130 samples");
	o.groups = 130;
	shard_view_free(open_view(index, &o));
	o.groups = 2;
	o.deal = SHARD_DEAL_BLOCK;
	refused(index, &o, "groups=2 with deal=block");
	o.deal = SHARD_DEAL_AUTO;
	o.order = SHARD_ORDER_TORCH;
	refused(index, &o, "only order=full and order=chunk have groups");
	o.order = SHARD_ORDER_NONE;
	refused(index, &o, "only order=full and order=chunk have groups");
	o.order = SHARD_ORDER_FULL;
	o.groups = 0;
	o.redeal = 4;
	refused(index, &o, "redeal=4 needs groups=G");
	o.groups = 1; /* the plain order */
	struct shard_view *view = open_view(index, &o);
	assert_int_equal(shard_view_options_get(view)->groups, 0);
	assert_int_equal(shard_view_options_get(view)->redeal, 0);
	shard_view_free(view);
}

/* What each rank of a world reads in an epoch, one bit for each rank and sample. */
static void readers_of(
        const struct shard_index *index, const struct shard_view_options *options, uint64_t number, uint64_t *ret_ranks)
{
	struct shard_view *view = open_view(index, options);
	struct shard_epoch *epoch;

	memset(ret_ranks, 0, shard_index_info(index)->n_samples * sizeof(*ret_ranks));
	assert_int_equal(shard_view_epoch(view, number, &epoch), 0);
	for (uint32_t rank = 0; rank < options->world; rank++) {
		for (uint64_t k = 0; k < shard_epoch_turns(epoch, rank); k++) {
			uint32_t sample, found_rank;
			uint64_t step, found_step, found_turn, turn;

			assert_int_equal(shard_epoch_turn(epoch, rank, k, &sample, &step), 0);
			assert_int_equal(shard_epoch_find(epoch, sample, &found_step, &found_rank, &found_turn), 0);
			if (found_step == step) {
				assert_int_equal(found_rank, rank);
				assert_int_equal(found_turn, k);
			}
			assert_int_equal(shard_view_step_turn(view, number, step, &found_rank, &turn), 0);
			assert_int_equal(found_rank, rank);
			assert_int_equal(turn, k);
			ret_ranks[sample] |= UINT64_C(1) << rank;
		}
	}
	shard_epoch_put(epoch);
	shard_view_free(view);
}

/* 130 samples (a subtree, samples that divide by 4 and that do not): a rank keeps its samples for `redeal` epochs. */
static void a_rank_keeps_its_samples(void **state)
{
	const struct shard_index *index = *state;
	static const char *const subdirs[] = { "", "train", "val" };
	uint64_t now[130];
	uint64_t before[130];

	for (unsigned m = 0; m < 2; m++) {
		for (unsigned s = 0; s < 3; s++) {
			for (unsigned t = 0; t < 3; t++) {
				struct shard_view_options o = { .order = modes[m],
					.world = 4,
					.tail = tails[t],
					.subdir = subdirs[s],
					.chunk_items = 3,
					.pool_chunks = 2,
					.groups = 4,
					.redeal = 2 };

				for (uint64_t e = 0; e < 6; e++) {
					unsigned moved = 0, read = 0;

					readers_of(index, &o, e, now);
					for (unsigned i = 0; i < 130; i++) {
						assert_true((now[i] & (now[i] - 1)) == 0); /* one rank */
						read += now[i] != 0;
						/* drop: a sample may have no reader in one of the epochs */
						moved += e > 0 && now[i] && before[i] && now[i] != before[i];
					}
					if (t != 1)
						assert_int_equal(read, s == 0 ? 130 : s == 1 ? 91 : 39);
					assert_true(e > 0 && e % 2 == 0 ? moved > 10 : moved == 0);
					memcpy(before, now, sizeof(now));
				}
			}
		}
	}
}

/* The sample of a step does not depend on the number of ranks; a job that stops after any number of steps and goes on
 * with any world reads each sample once. */
static void resumes_exactly_at_another_world(void **state)
{
	const struct shard_index *index = *state;
	struct shard_view_options o = {
		.order = SHARD_ORDER_FULL, .world = 8, .tail = SHARD_TAIL_SHORT, .groups = 4, .redeal = 3, .epoch = 4
	};

	for (unsigned m = 0; m < 2; m++) {
		o.order = modes[m];
		for (uint64_t stop = 0; stop <= 130; stop += 13) {
			for (uint32_t world = 1; world <= 16; world++) {
				struct shard_view *first = open_view(index, &o);
				struct base_err err = { 0 };
				struct shard_state saved;
				struct shard_view_options rest = SHARD_VIEW_OPTIONS_DEFAULT;
				char text[SHARD_STATE_MAX];
				uint64_t later[130];
				struct shard_epoch *epoch;
				uint32_t sample;

				assert_int_equal(shard_state_format(first, 4, stop, text, sizeof(text)), 0);
				assert_int_equal(shard_state_parse(text, strlen(text), &err, &saved), 0);
				assert_int_equal(shard_state_apply(&saved, index, 0, &rest, &err), 0);
				assert_int_equal(rest.groups, 4);
				assert_int_equal(rest.redeal, 3);
				rest.world = world;
				readers_of(index, &rest, rest.epoch, later);
				assert_int_equal(shard_view_epoch(first, 4, &epoch), 0);
				for (uint64_t step = 0; step < 130 && stop < 130; step++) {
					assert_int_equal(shard_epoch_step_sample(epoch, step, &sample), 0);
					assert_int_equal(later[sample] != 0, step >= stop);
				}
				if (stop == 130) { /* the next epoch */
					assert_int_equal(rest.epoch, 5);
					for (unsigned i = 0; i < 130; i++)
						assert_int_not_equal(later[i], 0);
				}
				shard_epoch_put(epoch);
				shard_view_free(first);
			}
		}
	}
}

/* A host that reads group g before a stop reads it afterwards, however many steps were trained. */
static void a_host_keeps_its_group_over_a_resume(void **state)
{
	const struct shard_index *index = *state;
	struct shard_view_options o = { .order = SHARD_ORDER_FULL, .world = 4, .tail = SHARD_TAIL_SHORT, .groups = 4 };
	uint64_t before[130];
	uint64_t after[130];

	readers_of(index, &o, 0, before);
	for (o.start = 0; o.start < 130; o.start += 7) {
		readers_of(index, &o, 0, after);
		for (unsigned i = 0; i < 130; i++)
			assert_true(after[i] == 0 || after[i] == before[i]);
		readers_of(index, &o, 1, after);
		assert_memory_equal(before, after, sizeof(before));
	}
}

static void identity_tells_groups_apart(void **state)
{
	const struct shard_index *index = *state;
	static const uint64_t kinds[][2] = { { 0, 0 }, { 2, 0 }, { 4, 0 }, { 4, 1 }, { 4, 2 } };
	char ids[5][SHARD_VIEW_ID_SIZE];
	char one[SHARD_VIEW_ID_SIZE];
	struct shard_view_options o = { .order = SHARD_ORDER_FULL, .deal = SHARD_DEAL_STRIDE, .world = 4 };
	struct shard_view *view;

	for (unsigned i = 0; i < 5; i++) {
		o.groups = kinds[i][0];
		o.redeal = kinds[i][1];
		view = open_view(index, &o);
		shard_view_identity(view, ids[i]);
		shard_view_free(view);
		for (unsigned k = 0; k < i; k++)
			assert_string_not_equal(ids[i], ids[k]);
	}
	o.groups = 1;
	view = open_view(index, &o);
	shard_view_identity(view, one);
	shard_view_free(view);
	assert_string_equal(one, ids[0]);
}

static void apply(const struct shard_index *index, const char *text, unsigned set, uint64_t groups, uint64_t redeal,
        const char *says)
{
	struct shard_view_options o = { .world = 4, .groups = groups, .redeal = redeal };
	struct base_err err = { 0 };
	struct shard_state saved;
	int rc;

	assert_int_equal(shard_state_parse(text, strlen(text), &err, &saved), 0);
	rc = shard_state_apply(&saved, index, set, &o, &err);
	assert_int_equal(rc, says ? -EINVAL : 0);
	if (says && !strstr(err.text, says))
		fail_msg("'%s' does not say '%s'", err.text, says);
}

static void a_state_keeps_groups(void **state)
{
	const struct shard_index *index = *state;
	const unsigned g = SHARD_STATE_SET_GROUPS, r = SHARD_STATE_SET_REDEAL;
	struct shard_view_options o = { .order = SHARD_ORDER_FULL, .world = 4, .groups = 4, .redeal = 2 };
	char with[SHARD_STATE_MAX], never[SHARD_STATE_MAX], without[SHARD_STATE_MAX];
	struct shard_view *view = open_view(index, &o);

	assert_int_equal(shard_state_format(view, 3, 40, with, sizeof(with)), 0);
	assert_non_null(strstr(with, "\"groups\":[4,2]"));
	assert_true(strlen(with) < 256);
	shard_view_free(view);
	o.redeal = 0;
	view = open_view(index, &o);
	assert_int_equal(shard_state_format(view, 3, 40, never, sizeof(never)), 0);
	assert_non_null(strstr(never, "\"groups\":[4,0]"));
	shard_view_free(view);
	o.groups = 0;
	view = open_view(index, &o);
	assert_int_equal(shard_state_format(view, 3, 40, without, sizeof(without)), 0);
	assert_null(strstr(without, "groups"));
	shard_view_free(view);

	apply(index, with, 0, 0, 0, NULL);
	apply(index, with, g | r, 4, 2, NULL);
	apply(index, with, g, 2, 0, "groups=2 was given, but the resume state has groups=4");
	apply(index, with, g, 1, 0, "groups=1 was given, but the resume state has groups=4");
	apply(index, with, r, 0, 3, "redeal=3 was given, but the resume state has redeal=2");
	apply(index, never, r, 0, 3, "redeal=3 was given, but the resume state has redeal=never");
	apply(index, without, g, 4, 0, "groups=4 was given, but the resume state has groups=1");
	apply(index, without, r, 0, 4, "redeal=4 was given");
	apply(index, without, g | r, 1, 4, NULL);
}

static void a_state_with_bad_groups_is_refused(void **state)
{
	static const char *const bad[] = { "[1,0]", "[0,0]", "[4]", "[4,1,1]", "[4,-1]", "4", "\"4\"", "[4,\"x\"]" };
	struct shard_state saved;
	struct base_err err = { 0 };
	char text[512];
	(void)state;

	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		snprintf(text, sizeof(text),
		        "{\"version\":1,\"dataset\":\"%032d\",\"order\":\"full\",\"deal\":\"stride\",\"seed\":0,"
		        "\"epoch\":0,\"start\":0,\"tail\":\"pad\",\"groups\":%s}",
		        0, bad[i]);
		assert_int_equal(shard_state_parse(text, strlen(text), &err, &saved), -EUCLEAN);
		assert_non_null(strstr(err.text, "groups"));
	}
	snprintf(text, sizeof(text),
	        "{\"version\":1,\"dataset\":\"%032d\",\"order\":\"torch\",\"deal\":\"stride\",\"seed\":0,"
	        "\"epoch\":0,\"start\":0,\"tail\":\"pad\",\"groups\":[4,2]}",
	        0);
	assert_int_equal(shard_state_parse(text, strlen(text), &err, &saved), -EUCLEAN);
	assert_non_null(strstr(err.text, "groups"));
}

int main(void)
{
	const struct CMUnitTest orders[] = {
		cmocka_unit_test(every_order_with_groups_is_a_bijection),
		cmocka_unit_test(large_orders_with_groups_have_an_inverse),
		cmocka_unit_test(groups_keep_their_items_until_they_are_dealt_anew),
		cmocka_unit_test(without_redeal_groups_keep_their_items_for_ever),
		cmocka_unit_test(one_group_is_the_plain_order),
		cmocka_unit_test(orders_with_groups_are_frozen),
		cmocka_unit_test(the_order_depends_on_groups_redeal_seed_and_epoch),
		cmocka_unit_test(chunks_are_dealt_whole),
		cmocka_unit_test(pools_of_a_group_keep_their_chunks),
		cmocka_unit_test(refuses_groups_that_cannot_be),
		cmocka_unit_test(ranks_read_their_groups_only),
		cmocka_unit_test(few_samples_and_many_ranks),
		cmocka_unit_test(neighbouring_ranks_are_of_one_host),
		cmocka_unit_test(groups_and_blocks_exclude_each_other),
	};
	const struct CMUnitTest views[] = {
		cmocka_unit_test(bad_groups_get_one_sentence),
		cmocka_unit_test(a_rank_keeps_its_samples),
		cmocka_unit_test(resumes_exactly_at_another_world),
		cmocka_unit_test(a_host_keeps_its_group_over_a_resume),
		cmocka_unit_test(identity_tells_groups_apart),
		cmocka_unit_test(a_state_keeps_groups),
		cmocka_unit_test(a_state_with_bad_groups_is_refused),
	};
	int failed = cmocka_run_group_tests_name("groups", orders, NULL, NULL);

	failed += cmocka_run_group_tests_name("groups, packed in order", views, synth_setup_sorted, synth_teardown);
	return failed +
	       cmocka_run_group_tests_name("groups, packed shuffled", views, synth_setup_shuffled, synth_teardown);
}
