/* fuse-over-io_uring: what needs no kernel that has it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <linux/fuse.h>
#include <string.h>

#include "fs/rings.h"

enum { MIB = 1 << 20 };

static void test_a_request_has_memory_for_the_longest_read_of_a_small_host(void **state)
{
	(void)state;
	for (unsigned processors = 1; processors <= 8; processors++)
		assert_int_equal(fs_rings_request_bytes(processors), FS_READ_MAX);
}

static void test_rings_of_a_large_host_take_no_more_than_is_said(void **state)
{
	(void)state;
	for (unsigned processors = 1; processors <= 4096; processors++) {
		uint32_t bytes = fs_rings_request_bytes(processors);
		uint64_t all = (uint64_t)processors * FS_RINGS_DEPTH * bytes;
		assert_in_range(bytes, FS_RINGS_BYTES_MIN, FS_READ_MAX);
		assert_int_equal(bytes & (bytes - 1), 0);
		assert_true(all <= 64 * (uint64_t)MIB || all == processors * (uint64_t)MIB);
		assert_true(bytes == FS_READ_MAX || 2 * all > 64 * (uint64_t)MIB); /* and not less than there is */
	}
	assert_int_equal(fs_rings_request_bytes(0), FS_READ_MAX);
}

struct init {
	struct fuse_in_header head;
	struct fuse_init_in in;
};

static bool offered(uint32_t flags, uint32_t flags2, uint32_t len)
{
	struct init init = { .in = { .flags = flags, .flags2 = flags2 } };
	uint8_t bytes[sizeof(init)];
	memcpy(bytes, &init, sizeof(init));
	return fs_rings_offered(bytes, len);
}

static void test_the_kernels_init_says_whether_it_has_rings(void **state)
{
	const uint32_t bit = 1 << 9; /* FUSE_OVER_IO_URING is 1ULL << 41 */
	(void)state;
	assert_true(offered(FUSE_INIT_EXT, bit, sizeof(struct init)));
	assert_true(offered(FUSE_INIT_EXT, UINT32_MAX, sizeof(struct init)));
	assert_false(offered(FUSE_INIT_EXT, UINT32_MAX & ~bit, sizeof(struct init)));
	assert_false(offered(
	        UINT32_MAX & ~(uint32_t)FUSE_INIT_EXT, bit, sizeof(struct init))); /* flags2 means nothing then */
	for (uint32_t len = 0; len < offsetof(struct init, in.flags2) + 4; len++)
		assert_false(offered(FUSE_INIT_EXT, bit, len));
}

static void test_a_mount_that_did_not_ask_has_none(void **state)
{
	struct fs_server server = { 0 };
	struct fs_rings *rings = (struct fs_rings *)&server;
	(void)state;
	assert_int_equal(fs_rings_new(&server, &rings), 0);
	assert_null(rings);
	fs_rings_free(rings);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_request_has_memory_for_the_longest_read_of_a_small_host),
		cmocka_unit_test(test_rings_of_a_large_host_take_no_more_than_is_said),
		cmocka_unit_test(test_the_kernels_init_says_whether_it_has_rings),
		cmocka_unit_test(test_a_mount_that_did_not_ask_has_none),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
