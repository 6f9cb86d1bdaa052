/* SPDX-License-Identifier: Apache-2.0 */
/* The order of an epoch: a bijection for every n, its inverse, what it depends on, and how even it is. */
#include <errno.h>
#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <xxhash.h>

#include "shard/order.h"
#include "shard/torch_rng.h"

static const enum shard_order_mode modes[] = { SHARD_ORDER_FULL, SHARD_ORDER_CHUNK, SHARD_ORDER_TORCH,
	SHARD_ORDER_NONE };
enum { N_MODES = sizeof(modes) / sizeof(modes[0]) };

static struct shard_order_params params_of(enum shard_order_mode mode, uint64_t n, uint64_t seed, uint64_t epoch)
{
	return (struct shard_order_params){
		.mode = mode,
		.n = n,
		.seed = seed,
		.epoch = epoch,
		.key = { 1, 2, 3 },
		.chunk_items = 7,
		.pool_chunks = 5,
	};
}

static void init(struct shard_order *order, const struct shard_order_params *params)
{
	assert_int_equal(shard_order_init(order, params), 0);
}

/* Every item exactly once, and the inverse leads back. */
static void check_bijection(const struct shard_order_params *params)
{
	struct shard_order order;
	uint8_t *seen = calloc(params->n + 1, 1);

	init(&order, params);
	for (uint64_t i = 0; i < params->n; i++) {
		uint64_t item = shard_order_at(&order, i);

		if (item >= params->n || seen[item] || shard_order_position(&order, item) != i)
			fail_msg("mode %s n %llu chunk %llu pool %llu: position %llu -> item %llu",
			        shard_order_mode_name(params->mode), (unsigned long long)params->n,
			        (unsigned long long)params->chunk_items, (unsigned long long)params->pool_chunks,
			        (unsigned long long)i, (unsigned long long)item);
		seen[item] = 1;
	}
	shard_order_done(&order);
	free(seen);
}

static void bijection_for_every_small_n(void **state)
{
	(void)state;
	for (uint64_t n = 0; n <= 600; n++) {
		for (unsigned m = 0; m < N_MODES; m++) {
			for (uint64_t epoch = 0; epoch < 2; epoch++) {
				struct shard_order_params params = params_of(modes[m], n, n * 31, epoch);

				check_bijection(&params);
			}
		}
	}
}

static void bijection_for_every_chunk_geometry(void **state)
{
	(void)state;
	for (uint64_t n = 1; n <= 90; n++) {
		for (uint64_t chunk = 1; chunk <= n + 1; chunk++) {
			for (uint64_t pool = 1; pool <= n / chunk + 2; pool++) {
				struct shard_order_params params = params_of(SHARD_ORDER_CHUNK, n, chunk, pool);

				params.chunk_items = chunk;
				params.pool_chunks = pool;
				check_bijection(&params);
			}
		}
	}
}

static void bijection_for_primes_powers_and_a_million(void **state)
{
	static const uint64_t sizes[] = { 1, 2, 3, 5, 7, 997, 1021, 7919, 65521, 104729, 999983, 1023, 1024, 1025, 4095,
		4096, 4097, 65535, 65536, 65537, 262143, 262144, 262145, 1000000 };
	(void)state;

	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		for (unsigned m = 0; m < N_MODES; m++) {
			struct shard_order_params params = params_of(modes[m], sizes[i], 7, 3);

			params.chunk_items = 1 + sizes[i] % 64;
			params.pool_chunks = 1 + sizes[i] % 100;
			check_bijection(&params);
		}
	}
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a;
	uint64_t y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* 10^10 items and more: inverse, distinct items, and not a byte allocated. */
static void huge_orders_take_no_memory(void **state)
{
	static const uint64_t sizes[] = { 10000000000, (UINT64_C(1) << 40) + 7, (UINT64_C(1) << 48) - 1,
		SHARD_PERMUTE_MAX };
	enum { PROBES = 20000 };
	uint64_t *items = malloc(PROBES * sizeof(*items));
	(void)state;

	for (unsigned s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		for (unsigned m = 0; m < 2; m++) {
			struct shard_order_params params = params_of(modes[m], sizes[s], 1, 2);
			size_t before = mallinfo2().uordblks;
			struct shard_order order;

			params.chunk_items = 256;
			params.pool_chunks = 256;
			init(&order, &params);
			for (uint64_t i = 0; i < PROBES; i++) {
				uint64_t position = i * (sizes[s] / PROBES) + i % 3;

				items[i] = shard_order_at(&order, position);
				assert_true(items[i] < sizes[s]);
				assert_int_equal(shard_order_position(&order, items[i]), position);
			}
			assert_int_equal(mallinfo2().uordblks, before);
			assert_null(order.perm);
			shard_order_done(&order);
			qsort(items, PROBES, sizeof(*items), compare);
			for (unsigned i = 1; i < PROBES; i++)
				assert_true(items[i - 1] < items[i]);
		}
	}
	free(items);
}

static uint64_t fingerprint(const struct shard_order_params *params)
{
	struct shard_order order;
	uint64_t *items = malloc(params->n * sizeof(*items));
	uint64_t hash;

	init(&order, params);
	for (uint64_t i = 0; i < params->n; i++)
		items[i] = shard_order_at(&order, i);
	hash = XXH3_64bits(items, params->n * sizeof(*items));
	shard_order_done(&order);
	free(items);
	return hash;
}

static void depends_on_seed_epoch_and_key(void **state)
{
	(void)state;
	for (unsigned m = 0; m < 2; m++) {
		struct shard_order_params a = params_of(modes[m], 1000, 1, 1);
		struct shard_order_params b = a;
		struct shard_order_params c = a;
		struct shard_order_params d = a;

		b.seed++;
		c.epoch++;
		d.key[15] ^= 1;
		assert_int_equal(fingerprint(&a), fingerprint(&a));
		assert_int_not_equal(fingerprint(&a), fingerprint(&b));
		assert_int_not_equal(fingerprint(&a), fingerprint(&c));
		assert_int_not_equal(fingerprint(&a), fingerprint(&d));
		assert_int_not_equal(fingerprint(&b), fingerprint(&c)); /* seed + epoch is not all there is */
	}
}

/* Resume states live longer than builds: these sequences must never change.  (Little-endian fingerprints.) */
static void orders_are_frozen(void **state)
{
	static const struct {
		enum shard_order_mode mode;
		uint64_t n;
		uint64_t hash;
	} frozen[] = {
		{ SHARD_ORDER_FULL, 20, UINT64_C(0x19cc6aac52323274) },
		{ SHARD_ORDER_FULL, 100003, UINT64_C(0x6f25a1e03f660179) },
		{ SHARD_ORDER_CHUNK, 20, UINT64_C(0x3809e90aa48dc71e) },
		{ SHARD_ORDER_CHUNK, 100003, UINT64_C(0xfafe61c1d06fdaa7) },
	};
	(void)state;

	for (unsigned i = 0; i < sizeof(frozen) / sizeof(frozen[0]); i++) {
		struct shard_order_params params = params_of(frozen[i].mode, frozen[i].n, 7, 3);

		assert_int_equal(fingerprint(&params), frozen[i].hash);
	}
}

static void torch_ignores_the_key_and_adds_seed_and_epoch(void **state)
{
	struct shard_order_params a = params_of(SHARD_ORDER_TORCH, 1000, 5, 2);
	struct shard_order_params b = params_of(SHARD_ORDER_TORCH, 1000, 7, 0);
	struct shard_order_params c = params_of(SHARD_ORDER_TORCH, 1000, 7 + (UINT64_C(5) << 32), 0);
	(void)state;

	b.key[0] ^= 255;
	assert_int_equal(fingerprint(&a), fingerprint(&b));
	assert_int_equal(fingerprint(&a), fingerprint(&c)); /* mt19937 takes 32 bits */
}

/* torch.randperm(10, generator=torch.Generator().manual_seed(7)) of torch 2.13; the rest is in test_torch_parity.py. */
static void torch_matches_a_known_permutation(void **state)
{
	static const uint32_t known[] = { 5, 0, 3, 4, 1, 7, 9, 6, 8, 2 };
	uint32_t perm[10];
	(void)state;

	shard_torch_randperm(10, 7, perm);
	assert_memory_equal(perm, known, sizeof(known));
}

/* A pool draws on its own chunks only; every pool but the last two has the full number, none less than half. */
static void chunk_pools_keep_their_chunks(void **state)
{
	enum { CHUNK = 8, POOL = 10 };
	(void)state;

	for (uint64_t n = 8; n < 3000; n += 61) {
		struct shard_order_params params = params_of(SHARD_ORDER_CHUNK, n, n, 1);
		struct shard_order order;
		uint64_t chunks = (n + CHUNK - 1) / CHUNK;
		uint64_t pools = (chunks + POOL - 1) / POOL;
		uint64_t last = chunks - (pools > 2 ? (pools - 2) * POOL : 0);
		uint64_t position = 0;
		uint8_t *owner = calloc(chunks, 1);

		params.chunk_items = CHUNK;
		params.pool_chunks = POOL;
		init(&order, &params);
		for (uint64_t pool = 0; pool < pools; pool++) {
			uint64_t size = pool + 2 < pools    ? POOL
			                : pools == 1        ? last
			                : pool + 2 == pools ? last - last / 2
			                                    : last / 2;
			uint64_t end = position + size * CHUNK < n ? position + size * CHUNK : n;

			assert_true(pools == 1 || size * 2 >= POOL);
			assert_true(size <= POOL);
			for (; position < end; position++) {
				uint64_t slot = shard_order_at(&order, position);
				uint64_t chunk = (slot + n - order.rotation) % n / CHUNK;

				assert_true(owner[chunk] == 0 || owner[chunk] == pool % 250 + 1);
				owner[chunk] = (uint8_t)(pool % 250 + 1);
			}
		}
		assert_int_equal(position, n);
		shard_order_done(&order);
		free(owner);
	}
}

/* Over many epochs every permutation of a few items is equally likely: chi-square within 5 standard deviations. */
static void small_permutations_are_equally_likely(void **state)
{
	(void)state;
	for (unsigned n = 2; n <= 6; n++) {
		unsigned cells = 1;
		unsigned counts[720] = { 0 };
		double chi = 0;
		enum { EACH = 100 };

		for (unsigned i = 2; i <= n; i++)
			cells *= i;
		for (unsigned t = 0; t < cells * EACH; t++) {
			struct shard_order_params params = params_of(SHARD_ORDER_FULL, n, t / 64, t % 64);
			struct shard_order order;
			uint64_t items[6];
			unsigned rank = 0;

			init(&order, &params);
			for (unsigned i = 0; i < n; i++)
				items[i] = shard_order_at(&order, i);
			for (unsigned i = 0; i < n; i++) {
				unsigned smaller = 0;

				for (unsigned j = i + 1; j < n; j++)
					smaller += items[j] < items[i];
				rank = rank * (n - i) + smaller;
			}
			counts[rank]++;
			shard_order_done(&order);
		}
		for (unsigned i = 0; i < cells; i++)
			chi += ((double)counts[i] - EACH) * ((double)counts[i] - EACH) / EACH;
		assert_true(fabs(chi - (cells - 1)) < 5 * sqrt(2.0 * (cells - 1)));
	}
}

/* The same for who follows whom, just above the size that is shuffled outright. */
static void neighbours_are_equally_likely(void **state)
{
	enum { N = SHARD_PERMUTE_SHUFFLED + 1, TRIALS = 30000 };
	unsigned *follows = calloc((size_t)N * N, sizeof(*follows));
	double expected = (double)TRIALS * (N - 1) / (N * (N - 1));
	double chi = 0;
	double cells = N * (N - 1);
	(void)state;

	for (unsigned t = 0; t < TRIALS; t++) {
		struct shard_order_params params = params_of(SHARD_ORDER_FULL, N, 11, t);
		struct shard_order order;

		init(&order, &params);
		for (unsigned i = 0; i + 1 < N; i++)
			follows[shard_order_at(&order, i) * N + shard_order_at(&order, i + 1)]++;
		shard_order_done(&order);
	}
	for (unsigned a = 0; a < N; a++) {
		for (unsigned b = 0; b < N; b++) {
			double off = follows[a * N + b] - expected;

			if (a != b)
				chi += off * off / expected;
		}
	}
	assert_true(fabs(chi - cells) < 6 * sqrt(2.0 * cells));
	free(follows);
}

static void refuses_bad_parameters(void **state)
{
	struct shard_order order;
	struct shard_order_params params = params_of(SHARD_ORDER_AUTO, 10, 0, 0);
	(void)state;

	assert_int_equal(shard_order_init(&order, &params), -EINVAL);
	params.mode = SHARD_ORDER_CHUNK;
	params.chunk_items = 0;
	assert_int_equal(shard_order_init(&order, &params), -EINVAL);
	params.chunk_items = 1;
	params.pool_chunks = 0;
	assert_int_equal(shard_order_init(&order, &params), -EINVAL);
	params = params_of(SHARD_ORDER_TORCH, UINT64_C(1) << 32, 0, 0);
	assert_int_equal(shard_order_init(&order, &params), -E2BIG);
	params = params_of(SHARD_ORDER_FULL, SHARD_PERMUTE_MAX + 1, 0, 0);
	assert_int_equal(shard_order_init(&order, &params), -E2BIG);
}

static void names_round_trip(void **state)
{
	enum shard_order_mode mode;
	(void)state;

	for (int m = SHARD_ORDER_AUTO; m <= SHARD_ORDER_NONE; m++) {
		assert_int_equal(shard_order_mode_parse(shard_order_mode_name((enum shard_order_mode)m), &mode), 0);
		assert_int_equal(mode, m);
	}
	assert_int_equal(shard_order_mode_parse("Full", &mode), -EINVAL);
	assert_int_equal(shard_order_mode_parse("", &mode), -EINVAL);
}

static void auto_goes_by_the_mean_sample(void **state)
{
	(void)state;
	assert_int_equal(shard_order_resolve(SHARD_ORDER_AUTO, 10, 10 * 65536), SHARD_ORDER_FULL);
	assert_int_equal(shard_order_resolve(SHARD_ORDER_AUTO, 10, 10 * 65536 - 1), SHARD_ORDER_CHUNK);
	assert_int_equal(shard_order_resolve(SHARD_ORDER_AUTO, 0, 0), SHARD_ORDER_FULL);
	assert_int_equal(shard_order_resolve(SHARD_ORDER_NONE, 10, 10), SHARD_ORDER_NONE);
}

static void chunk_defaults_follow_sizes(void **state)
{
	uint64_t items;
	uint64_t chunks;
	(void)state;

	shard_order_chunk_defaults(1000000, 4096000000, true, 0, 0, &items, &chunks);
	assert_int_equal(items, 256);
	assert_int_equal(chunks, 256);
	shard_order_chunk_defaults(1000000, 4096000000, false, 0, 0, &items, &chunks);
	assert_int_equal(items, 32);
	assert_int_equal(chunks, 2048);
	shard_order_chunk_defaults(10, UINT64_C(10) << 40, false, 0, 0, &items, &chunks); /* huge samples */
	assert_int_equal(items, 1);
	assert_int_equal(chunks, 1);
	shard_order_chunk_defaults(10, 0, false, 0, 0, &items, &chunks); /* empty files */
	assert_int_equal(items, 10);
	shard_order_chunk_defaults(0, 0, true, 0, 0, &items, &chunks);
	assert_int_equal(items, 1);
	shard_order_chunk_defaults(100, 100, true, UINT64_MAX, UINT64_MAX, &items, &chunks);
	assert_int_equal(items, 100);
	assert_true(chunks >= 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bijection_for_every_small_n),
		cmocka_unit_test(bijection_for_every_chunk_geometry),
		cmocka_unit_test(bijection_for_primes_powers_and_a_million),
		cmocka_unit_test(huge_orders_take_no_memory),
		cmocka_unit_test(depends_on_seed_epoch_and_key),
		cmocka_unit_test(orders_are_frozen),
		cmocka_unit_test(torch_ignores_the_key_and_adds_seed_and_epoch),
		cmocka_unit_test(torch_matches_a_known_permutation),
		cmocka_unit_test(chunk_pools_keep_their_chunks),
		cmocka_unit_test(small_permutations_are_equally_likely),
		cmocka_unit_test(neighbours_are_equally_likely),
		cmocka_unit_test(refuses_bad_parameters),
		cmocka_unit_test(names_round_trip),
		cmocka_unit_test(auto_goes_by_the_mean_sample),
		cmocka_unit_test(chunk_defaults_follow_sizes),
	};

	return cmocka_run_group_tests_name("order", tests, NULL, NULL);
}
