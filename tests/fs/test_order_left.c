/* SPDX-License-Identifier: Apache-2.0 */
/* When readers count as having left the orders that are known. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fs/order_left.h"

enum { LOOK = FS_ORDER_LEFT_OPENS };

static struct fs_order_left left;
static uint64_t opens, explained;

static bool after(uint64_t more, uint64_t fit, uint64_t orders)
{
	opens += more;
	explained += fit;
	return fs_order_left_update(&left, opens, explained, orders);
}

static int begin(void **state)
{
	(void)state;
	left = (struct fs_order_left){ 0 };
	opens = explained = 0;
	assert_false(after(0, 0, 7));
	return 0;
}

static void hardly_any_open_fits(void **state)
{
	(void)state;
	assert_false(after(LOOK, LOOK, 7));
	assert_false(after(LOOK - 1, 0, 7));
	assert_true(after(1, LOOK / FS_ORDER_LEFT_SHARE - 1, 7));
	assert_true(after(LOOK, LOOK / FS_ORDER_LEFT_BACK - 1, 7));
	assert_false(after(LOOK, LOOK / FS_ORDER_LEFT_BACK, 7));
}

static void a_slow_reader_beside_a_fast_one_is_no_sign(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 10; i++)
		assert_false(after(LOOK, LOOK / FS_ORDER_LEFT_SHARE, 7));
}

static void what_becomes_known_begins_anew(void **state)
{
	(void)state;
	assert_true(after(LOOK, 0, 7));
	assert_false(after(10, 0, 8));
	assert_false(after(LOOK - 1, 0, 8));
	assert_true(after(1, 0, 8));
}

static void opens_that_are_taken_back_do_not_fit(void **state)
{
	(void)state;
	assert_false(after(LOOK, LOOK, 7));
	explained -= 10;
	assert_true(after(LOOK, 0, 7));
}

static void nothing_known_is_not_left(void **state)
{
	(void)state;
	assert_false(after(10, 0, 0));
	assert_false(after(10 * LOOK, 0, 0));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(hardly_any_open_fits, begin),
		cmocka_unit_test_setup(a_slow_reader_beside_a_fast_one_is_no_sign, begin),
		cmocka_unit_test_setup(what_becomes_known_begins_anew, begin),
		cmocka_unit_test_setup(opens_that_are_taken_back_do_not_fit, begin),
		cmocka_unit_test_setup(nothing_known_is_not_left, begin),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
