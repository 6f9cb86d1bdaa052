/* SPDX-License-Identifier: Apache-2.0 */
/* When mounts of one dataset share what they read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fs/host_sharing.h"

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

static void a_mount_alone_shares_with_nobody(void **state)
{
	(void)state;
	assert_int_equal(fs_host_sharing_bytes(GIB, 100 * GIB, 100 * GIB, 1), 0);
}

static void the_dataset_must_fit_what_the_mounts_were_given(void **state)
{
	(void)state;
	assert_true(fs_host_sharing_bytes(80 * GIB, 50 * GIB, 1000 * GIB, 2) > 0);
	assert_int_equal(fs_host_sharing_bytes(81 * GIB, 50 * GIB, 1000 * GIB, 2), 0);
	assert_true(fs_host_sharing_bytes(81 * GIB, 50 * GIB, 1000 * GIB, 3) > 0);
	assert_true(fs_host_sharing_bytes(81 * GIB, UINT64_MAX / 2, 1000 * GIB, 3) > 0);
}

static void the_dataset_must_fit_the_host(void **state)
{
	(void)state;
	assert_true(fs_host_sharing_bytes(80 * GIB, 1000 * GIB, 100 * GIB, 2) > 0);
	assert_int_equal(fs_host_sharing_bytes(81 * GIB, 1000 * GIB, 100 * GIB, 2), 0);
}

static void all_mounts_together_keep_a_sixteenth_within_bounds(void **state)
{
	(void)state;
	assert_int_equal(fs_host_sharing_bytes(GIB, 100 * GIB, 100 * GIB, 2), 32 * MIB);
	assert_int_equal(fs_host_sharing_bytes(GIB, 100 * GIB, 100 * GIB, 8), 16 * MIB);
	assert_int_equal(fs_host_sharing_bytes(1, 100 * GIB, 100 * GIB, 2), 16 * MIB);
	assert_int_equal(fs_host_sharing_bytes(50 * GIB, 100 * GIB, 100 * GIB, 2), 64 * MIB);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_mount_alone_shares_with_nobody),
		cmocka_unit_test(the_dataset_must_fit_what_the_mounts_were_given),
		cmocka_unit_test(the_dataset_must_fit_the_host),
		cmocka_unit_test(all_mounts_together_keep_a_sixteenth_within_bounds),
	};
	return cmocka_run_group_tests_name("fs/share", tests, NULL, NULL);
}
