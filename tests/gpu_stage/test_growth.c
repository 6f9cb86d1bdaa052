/* SPDX-License-Identifier: Apache-2.0 */
/* How much of the arena a stage uses: no more than what was stored needs, and its pages are ready first. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "gpu_stage/growth.h"

#define MIB (UINT64_C(1) << 20)

struct arena {
	uint8_t *base;
	_Atomic uint64_t open;
	_Atomic unsigned unready; /* openings of pages that were not in memory */
	bool can;                 /* the kernel can make pages ready (Linux 5.14) */
};

static void opened(void *arg, uint64_t n)
{
	struct arena *a = arg;
	unsigned char in_memory = 0;
	if (a->can && mincore(a->base + n - 4096, 4096, &in_memory) != 0)
		in_memory = 0;
	if (a->can && !(in_memory & 1))
		atomic_fetch_add(&a->unready, 1);
	atomic_store(&a->open, n);
}

static void wait_open(struct arena *a, uint64_t least)
{
	while (atomic_load(&a->open) < least)
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

static void an_arena_grows_as_far_as_what_is_stored_needs(void **state)
{
	enum { BYTES = 320 << 20, FIRST = 128 << 20 };
	struct arena a = { .open = FIRST };
	struct stage_growth *growth;
	(void)state;
	a.base = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	assert_ptr_not_equal(a.base, MAP_FAILED);
	a.can = madvise(a.base, 4096, MADV_POPULATE_WRITE) == 0;
	assert_int_equal(stage_growth_new(a.base, BYTES, FIRST, opened, &a, &growth), 0);
	stage_growth_stored(growth, 16 * MIB);
	nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
	assert_int_equal(atomic_load(&a.open), FIRST); /* room enough: the thread rests */
	stage_growth_stored(growth, 32 * MIB);
	wait_open(&a, FIRST + 16 * MIB);
	stage_growth_stored(growth, 16 * MIB);
	wait_open(&a, FIRST + 32 * MIB);
	nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
	assert_true(atomic_load(&a.open) < BYTES);
	stage_growth_stored(growth, 1000 * MIB);
	wait_open(&a, BYTES);
	stage_growth_stored(growth, 1000 * MIB);
	stage_growth_end(growth);
	stage_growth_stored(growth, MIB); /* the engine stores until it has ended */
	stage_growth_free(growth);
	assert_int_equal(atomic_load(&a.open), BYTES);
	assert_int_equal(atomic_load(&a.unready), 0);
	munmap(a.base, BYTES);
}

static void a_stage_is_closed_while_its_arena_grows(void **state)
{
	struct arena a = { .open = 128 * MIB };
	struct stage_growth *growth;
	(void)state;
	a.base = mmap(NULL, 320 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	assert_ptr_not_equal(a.base, MAP_FAILED);
	assert_int_equal(stage_growth_new(a.base, 320 * MIB, 128 * MIB, opened, &a, &growth), 0);
	stage_growth_stored(growth, 1000 * MIB);
	stage_growth_end(growth);
	stage_growth_stored(growth, MIB); /* the engine stores until it has ended */
	stage_growth_free(growth);
	uint64_t open = atomic_load(&a.open);
	assert_true(open <= 320 * MIB);
	munmap(a.base, 320 * MIB);
	stage_growth_stored(NULL, 1);
	stage_growth_end(NULL);
	stage_growth_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_arena_grows_as_far_as_what_is_stored_needs),
		cmocka_unit_test(a_stage_is_closed_while_its_arena_grows),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
