/* SPDX-License-Identifier: Apache-2.0 */
/* Code that has AVX2 where the processor has it, against code that does one step at a time.  meson.build makes two
 * programs of this: one with the library, and one with the library's code for processors without AVX2. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "prefetch/sampler/shuffle_trace.h"
#include "prefetch/sampler/torch.h"
#include "shard/base/bits.h"

enum { OPENED = 96, OFFSETS = 8 };

/* As in shuffle_trace.c. */
static const float SMALL_NATS = 1.86F, LONG_NATS = -3.91F, LONG_NATS_EACH = 0.9F, RIGHT_NATS = 20;

static void identity(uint32_t *at, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		at[i] = i;
}

/* prefetch_trace_try() in the simplest way. */
static bool try_slowly(uint32_t n, const uint32_t *cells, enum prefetch_shuffle_kind kind, uint64_t seed,
        enum prefetch_trace_test test, uint32_t *at, bool *opened, uint64_t *ret_steps)
{
	const bool shared = test == PREFETCH_TRACE_SHARED;
	const float wrong_nats = shared ? -5 : test == PREFETCH_TRACE_QUICK ? -2 : -7;
	const float right_nats = shared ? 5 : RIGHT_NATS;
	struct prefetch_rng rng;
	float nats = 0;
	uint32_t done = 0, last = 0;
	identity(at, n);
	for (unsigned i = 0; i < OPENED; i++)
		opened[cells[i]] = true;
	prefetch_rng_seed(&rng, kind, seed);
	for (; done + 1 < n && nats > wrong_nats && nats < right_nats; done++) {
		prefetch_shuffle_steps(&rng, kind, n, done, 1, at, true);
		if (!opened[at[kind == PREFETCH_SHUFFLE_TORCH ? done : n - 1 - done]])
			continue;
		float gap = (float)(done - last) * ((float)OPENED / (float)n);
		last = done;
		if (shared)
			nats += -0.693F + gap * 0.5F;
		else
			nats += gap * 8 <= 1 ? SMALL_NATS : LONG_NATS + gap * LONG_NATS_EACH;
	}
	for (unsigned i = 0; i < OPENED; i++)
		opened[cells[i]] = false;
	*ret_steps = nats > wrong_nats && nats < right_nats ? done : done - 1; /* the deciding step does not count */
	return nats > wrong_nats;
}

/* The same answer after the same steps: a right seed and wrong ones, one rank of two, lists around powers of two. */
static void a_trace_takes_the_same_steps_as_a_slow_one(void **state)
{
	static const uint32_t sizes[] = { 4097, 5000, 8192, 10000, 65535, 65536, 65537, 100000, 131071, 131072 };
	const uint32_t most = 131072;
	uint32_t *order = calloc(most, sizeof(*order)), *at = calloc(most, sizeof(*at)), cells[OPENED];
	bool *opened = calloc(most, sizeof(*opened));
	static struct prefetch_seeded seeded;
	(void)state;
	assert_true(order && at && opened);
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]) * (PREFETCH_SHUFFLE_PYTHON + 1); i++) {
		enum prefetch_shuffle_kind kind = i % (PREFETCH_SHUFFLE_PYTHON + 1);
		uint32_t n = sizes[i / (PREFETCH_SHUFFLE_PYTHON + 1)];
		struct prefetch_trace *trace;
		struct prefetch_rng rng;
		assert_int_equal(prefetch_trace_new(n, &seeded, &trace), 0);
		for (uint64_t seed = 0; seed < 6; seed++) {
			identity(order, n);
			prefetch_rng_seed(&rng, kind, seed);
			prefetch_shuffle_steps(&rng, kind, n, 0, n, order, true);
			for (unsigned k = 0; k < OPENED; k++)
				cells[k] = order[(size_t)k * 2];
			prefetch_trace_set(trace, n, cells, OPENED);
			for (uint64_t offset = 0; offset < OFFSETS; offset++) {
				uint64_t tried = seed + offset * offset * 1000, steps = 0, slow_steps;
				enum prefetch_trace_test test = offset % PREFETCH_TRACE_TESTS;
				bool passes = prefetch_trace_try(trace, kind, tried, test, &steps);
				bool slow = try_slowly(n, cells, kind, tried, test, at, opened, &slow_steps);
				if (passes != slow || steps != slow_steps || (offset == 0 && !passes))
					fail_msg("%u files, kind %u, seed %u: %d after %u steps, not %d after %u", n,
					        kind, (unsigned)tried, passes, (unsigned)steps, slow,
					        (unsigned)slow_steps);
			}
		}
		prefetch_trace_free(trace);
	}
	free(order);
	free(at);
	free(opened);
}

/* Both ways of seeding, all seeds of a range in turn, and the seeds in which a carry or the end of the numbers may
 * lie. */
static void seeds_side_by_side_are_seeded_as_one_by_one(void **state)
{
	static const enum prefetch_shuffle_kind kinds[] = { PREFETCH_SHUFFLE_TORCH, PREFETCH_SHUFFLE_NUMPY,
		PREFETCH_SHUFFLE_PYTHON, PREFETCH_SHUFFLE_SAMPLE, PREFETCH_SHUFFLE_STD };
	static const uint32_t ranges[] = { 0, 9990, 19650218 - 40, (1U << 16) - 40, (1U << 31) - 40, UINT32_MAX - 79 };
	static struct prefetch_seeded seeded;
	(void)state;
	for (unsigned i = 0; i < 5 * 6; i++) {
		for (uint32_t k = 0; k < 80; k++) {
			uint32_t seed = ranges[i / 5] + k;
			struct prefetch_rng rng;
			prefetch_rng_seed(&rng, kinds[i % 5], seed);
			assert_memory_equal(
			        prefetch_seeded_state(&seeded, kinds[i % 5], seed), rng.mt.state, sizeof(rng.mt.state));
		}
	}
	/* Back and forth, of two kinds in turn. */
	for (uint32_t k = 0; k < 200; k++) {
		uint32_t seed = k * k * UINT32_C(2654435761) % (k % 3 ? 50 : UINT32_MAX);
		struct prefetch_rng rng;
		prefetch_rng_seed(&rng, kinds[k % 5], seed);
		assert_memory_equal(
		        prefetch_seeded_state(&seeded, kinds[k % 5], seed), rng.mt.state, sizeof(rng.mt.state));
	}
}

/* Lists of all sizes: the divisor goes down to 2, and does not fit into 31 bits. */
static void the_filter_counts_what_it_says(void **state)
{
	static const uint32_t sizes[] = { 48, 900, 65536, 100000, 1U << 31, UINT32_MAX };
	static const uint32_t needs[] = { 16, 130, 400, SHARD_MT19937_WORDS };
	static struct prefetch_torch_words words;
	static struct prefetch_torch_filter filter;
	(void)state;
	for (unsigned i = 0; i < 6 * 4; i++) {
		uint32_t n = sizes[i / 4], need = needs[i % 4], seeds[PREFETCH_LANES], indices[32],
		         hits[PREFETCH_LANES];
		for (uint32_t k = 0; k < 32; k++)
			indices[k] = k * (n / 32);
		prefetch_torch_filter_init(&filter, n, indices, 32);
		for (uint32_t lane = 0; lane < PREFETCH_LANES; lane++)
			seeds[lane] = i * 1000 + lane * lane;
		uint32_t skip = i % 3, outputs = need - skip - (need == SHARD_MT19937_WORDS);
		outputs = outputs < filter.outputs ? outputs : filter.outputs;
		prefetch_torch_words(seeds, need, &words);
		prefetch_torch_count(&filter, &words, skip, outputs, hits);
		for (uint32_t lane = 0; lane < PREFETCH_LANES; lane++) {
			struct shard_mt19937 mt;
			uint32_t slow = 0;
			prefetch_torch_seek(&mt, seeds[lane], skip);
			for (uint32_t k = 0; k < outputs; k++) {
				uint32_t word = shard_mt19937_next32(&mt);
				uint32_t bit = (k + word % (n - k)) % PREFETCH_SEEN_BITS;
				assert_int_equal(words.words[k + skip][lane], word);
				slow += bit_get(filter.bits, bit);
			}
			assert_int_equal(hits[lane], slow);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_trace_takes_the_same_steps_as_a_slow_one),
		cmocka_unit_test(seeds_side_by_side_are_seeded_as_one_by_one),
		cmocka_unit_test(the_filter_counts_what_it_says),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
