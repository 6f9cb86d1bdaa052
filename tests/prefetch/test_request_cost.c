/* SPDX-License-Identifier: Apache-2.0 */
/* What a request costs, with made-up stores. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "prefetch/request_cost.h"

enum { MS = 1000000 };

/* Reads of `bytes` bytes come back every `every_ns`, for a second. */
static void run_store(struct prefetch_request_cost *cost, uint64_t *now_ns, uint64_t every_ns, uint64_t bytes)
{
	for (uint64_t end = *now_ns + 1000 * MS; *now_ns < end; *now_ns += every_ns)
		prefetch_request_cost_feed(cost, *now_ns, bytes);
}

static void latency_costs_what_could_have_come_in_it(void **state)
{
	struct prefetch_request_cost cost = { 0 };
	uint64_t now = 1;
	(void)state;
	run_store(&cost, &now, MS, 40000); /* 40 MB/s */
	assert_in_range(prefetch_request_cost_bytes(&cost, 20 * MS, 16), 49000, 51000);
	assert_in_range(prefetch_request_cost_bytes(&cost, 10 * MS, 16), 24500, 25500);
	assert_in_range(prefetch_request_cost_bytes(&cost, 20 * MS, 160), 4900, 5100);
}

static void the_cost_is_bounded(void **state)
{
	struct prefetch_request_cost cost = { 0 };
	uint64_t now = 1;
	(void)state;
	assert_int_equal(prefetch_request_cost_bytes(&cost, 20 * MS, 16), PREFETCH_COST_FIRST);
	run_store(&cost, &now, MS, 1000000); /* 1 GB/s */
	assert_int_equal(prefetch_request_cost_bytes(&cost, 0, 16), PREFETCH_COST_FIRST);
	assert_int_equal(prefetch_request_cost_bytes(&cost, UINT64_C(1000) * MS, 1), PREFETCH_COST_MAX);
	assert_int_equal(prefetch_request_cost_bytes(&cost, 1, 320), PREFETCH_COST_MIN);
}

static void a_slow_reader_hides_the_rate_for_a_while_only(void **state)
{
	struct prefetch_request_cost cost = { 0 };
	uint64_t now = 1;
	(void)state;
	run_store(&cost, &now, MS, 40000);
	run_store(&cost, &now, MS, 400);
	assert_in_range(prefetch_request_cost_bytes(&cost, 20 * MS, 16), 40000, 50000);
	for (unsigned seconds = 0; seconds < 60; seconds++)
		run_store(&cost, &now, MS, 400);
	assert_int_equal(prefetch_request_cost_bytes(&cost, 20 * MS, 16), PREFETCH_COST_MIN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(latency_costs_what_could_have_come_in_it),
		cmocka_unit_test(the_cost_is_bounded),
		cmocka_unit_test(a_slow_reader_hides_the_rate_for_a_while_only),
	};
	return cmocka_run_group_tests_name("prefetch/request_cost", tests, NULL, NULL);
}
