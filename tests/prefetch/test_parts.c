/* SPDX-License-Identifier: Apache-2.0 */
/* Lists in contiguous parts: positions, and the permutation that is made in steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "prefetch/sampler/recognise_private.h"

/* Makes the permutation in steps of `max` files.  None of them may make more. */
static struct prefetch_perm *make(const struct parts *parts, uint32_t max)
{
	struct prefetch_perm *perm;
	uint32_t steps = 1;
	assert_int_equal(prefetch_parts_perm(parts, &perm), 0);
	while (prefetch_parts_step(parts, perm, max)) {
		assert_int_equal(perm->done, steps * max);
		steps++;
	}
	assert_int_equal(steps, (parts->n + max - 1) / max);
	assert_false(prefetch_perm_step(perm, max)); /* it is complete */
	return perm;
}

static void the_permutation_is_made_in_steps_and_says_what_positions_say(void **state)
{
	static const uint32_t sizes[] = { 1, 2, 7, 64, 1000, 1023 }, steps[] = { 1, 7, 64, 5000 };
	(void)state;
	for (unsigned s = 0; s < sizeof(sizes) / sizeof(sizes[0]) * (sizeof(steps) / sizeof(steps[0])); s++) {
		uint32_t n = sizes[s / 4], max = steps[s % 4];
		for (uint32_t world = 1; world <= n && world <= 40; world++) {
			for (unsigned kind = PARTS_UP; kind <= PARTS_EVEN; kind++) {
				struct parts parts = { .n = n, .world = world, .kind = kind };
				struct prefetch_perm *perm = make(&parts, max);
				uint64_t position, rest = (uint64_t)prefetch_parts_shortest(&parts) * world;
				for (uint32_t index = 0; index < n; index++) {
					if (!prefetch_parts_position(&parts, index, &position))
						position = rest++;
					assert_int_equal(perm->inverse[index], position);
					assert_int_equal(perm->at[position], index);
				}
				prefetch_perm_put(perm);
			}
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_permutation_is_made_in_steps_and_says_what_positions_say),
	};
	return cmocka_run_group_tests_name("prefetch/parts", tests, NULL, NULL);
}
