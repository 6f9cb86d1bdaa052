/* SPDX-License-Identifier: Apache-2.0 */
/* What host and cgroup leave free, from made-up files of /proc and /sys, and how mounts share it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/host_memory.h"
#include "shard/base/units.h"

static char root[] = "/tmp/ddpfs-test-memory.XXXXXX";

static void put(const char *path, const char *text)
{
	char full[512];
	snprintf(full, sizeof(full), "%s%s", root, path);
	for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = '\0';
		mkdir(full, 0755);
		*slash = '/';
	}
	FILE *f = fopen(full, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static int fresh(void **state)
{
	(void)state;
	strcpy(root, "/tmp/ddpfs-test-memory.XXXXXX");
	if (!mkdtemp(root))
		return -1;
	put("/proc/meminfo",
	        "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:    8388608 kB\nBuffers: 1 kB\n");
	return 0;
}

static int clean(void **state)
{
	char command[128];
	(void)state;
	snprintf(command, sizeof(command), "rm -rf '%s'", root);
	return system(command);
}

static void host_alone(void **state)
{
	(void)state;
	assert_int_equal(fs_memory_free(root, 0), 8 * BASE_GIB);
	put("/proc/self/cgroup", "0::/\n");
	assert_int_equal(fs_memory_free(root, 0), 8 * BASE_GIB);
}

static void cgroup_v2_and_its_parents(void **state)
{
	(void)state;
	put("/proc/self/cgroup", "0::/job/rank0\n");
	put("/sys/fs/cgroup/job/rank0/memory.max", "max\n");
	put("/sys/fs/cgroup/job/rank0/memory.current", "4096\n");
	assert_int_equal(fs_memory_free(root, 0), 8 * BASE_GIB);
	put("/sys/fs/cgroup/job/memory.max", "4294967296\n");
	put("/sys/fs/cgroup/job/memory.current", "3221225472\n");
	assert_int_equal(fs_memory_free(root, 0), 1 * BASE_GIB);
	put("/sys/fs/cgroup/job/memory.stat", "anon 1\nfile 2147483648\ninactive_file 1073741824\nactive_file 1\n");
	assert_int_equal(fs_memory_free(root, 0), 2 * BASE_GIB);
	put("/sys/fs/cgroup/job/rank0/memory.max", "1073741824\n");
	put("/sys/fs/cgroup/job/rank0/memory.current", "1073745920\n");
	assert_int_equal(fs_memory_free(root, 0), 0);
}

static void the_most(void **state)
{
	(void)state;
	assert_int_equal(fs_memory_most(root), 16 * BASE_GIB - FS_MEMORY_BESIDES);
	put("/proc/self/cgroup", "0::/job/rank0\n");
	put("/sys/fs/cgroup/job/memory.max", "4294967296\n"); /* whatever is in use */
	assert_int_equal(fs_memory_most(root), 4 * BASE_GIB - FS_MEMORY_BESIDES);
	put("/sys/fs/cgroup/job/rank0/memory.max", "1073741824\n");
	put("/sys/fs/cgroup/job/rank0/memory.current", "1073741824\n");
	assert_int_equal(fs_memory_most(root), BASE_GIB - FS_MEMORY_BESIDES);
	put("/sys/fs/cgroup/job/rank0/memory.max", "1048576\n");
	assert_int_equal(fs_memory_most(root), FS_MEMORY_LEAST);
}

static void cgroup_v1(void **state)
{
	(void)state;
	put("/proc/self/cgroup", "12:cpu,cpuacct:/x\n7:memory:/docker/abc\n1:name=systemd:/\n");
	put("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "2147483648\n");
	put("/sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "1073741824\n");
	put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
	put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n");
	assert_int_equal(fs_memory_free(root, 0), 1 * BASE_GIB);
	put("/sys/fs/cgroup/memory/docker/abc/memory.stat", "cache 5\ntotal_inactive_file 536870912\n");
	assert_int_equal(fs_memory_free(root, 0), 1536 * BASE_MIB);
}

static void nothing_to_read_is_nothing_known(void **state)
{
	(void)state;
	put("/proc/meminfo", "");
	assert_int_equal(fs_memory_free(root, 0), 0);
	assert_true(fs_memory_most(root) == UINT64_MAX);
}

static void pages_of_ours_count_as_free_where_they_are_active(void **state)
{
	(void)state;
	put("/proc/self/cgroup", "0::/job\n");
	put("/sys/fs/cgroup/job/memory.max", "4294967296\n");
	put("/sys/fs/cgroup/job/memory.current", "3221225472\n");
	put("/sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file 0\nactive_file 1073741824\n");
	assert_int_equal(fs_memory_free(root, 0), 1 * BASE_GIB);
	assert_int_equal(fs_memory_free(root, 512 * BASE_MIB), 1536 * BASE_MIB);
	assert_int_equal(fs_memory_free(root, 5 * BASE_GIB), 2 * BASE_GIB);
}

/* The budget has room for them: as pages, they must not count once more. */
static void names_of_ours_count_as_free(void **state)
{
	(void)state;
	put("/proc/self/cgroup", "0::/job\n");
	put("/sys/fs/cgroup/job/memory.max", "4294967296\n");
	put("/sys/fs/cgroup/job/memory.current", "3221225472\n");
	put("/sys/fs/cgroup/job/memory.stat",
	        "anon 1\ninactive_file 0\nactive_file 268435456\nslab_reclaimable 536870912\nslab 1\n");
	assert_int_equal(fs_memory_free(root, 0), 1 * BASE_GIB);
	assert_int_equal(fs_memory_free(root, 512 * BASE_MIB), 1536 * BASE_MIB);
	assert_int_equal(fs_memory_free(root, 5 * BASE_GIB), 1792 * BASE_MIB);
	put("/proc/self/cgroup", "7:memory:/job\n");
	put("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "4294967296\n");
	put("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "3221225472\n");
	put("/sys/fs/cgroup/memory/job/memory.stat", "total_inactive_file 0\ntotal_active_file 268435456\n");
	assert_int_equal(fs_memory_free(root, 5 * BASE_GIB), 1280 * BASE_MIB);
	put("/sys/fs/cgroup/memory/job/memory.kmem.usage_in_bytes", "536870912\n");
	assert_int_equal(fs_memory_free(root, 5 * BASE_GIB), 1792 * BASE_MIB);
}

#define WANT(mib)                                                                                                      \
	{                                                                                                              \
		.want_bytes = (mib)*BASE_MIB                                                                           \
	}
#define GIVEN(mib)                                                                                                     \
	{                                                                                                              \
		.want_bytes = (mib)*BASE_MIB, .fixed = true                                                            \
	}

static uint64_t share(uint64_t room_mib, const struct fs_memory_claim *claims, size_t n)
{
	return fs_memory_share(room_mib * BASE_MIB, claims, n) / BASE_MIB;
}

static void a_mount_alone_has_what_it_wants_or_all_there_is(void **state)
{
	(void)state;
	assert_int_equal(share(1000, (struct fs_memory_claim[]){ WANT(400) }, 1), 400);
	assert_int_equal(share(300, (struct fs_memory_claim[]){ WANT(400) }, 1), 300);
}

static void small_wants_leave_the_rest_to_large_ones(void **state)
{
	(void)state;
	assert_int_equal(share(1000, (struct fs_memory_claim[]){ WANT(5000), WANT(10), WANT(20) }, 3), 970);
	assert_int_equal(share(1000, (struct fs_memory_claim[]){ WANT(10), WANT(5000), WANT(20) }, 3), 10);
	assert_int_equal(share(1000, (struct fs_memory_claim[]){ WANT(5000), WANT(5000), WANT(100) }, 3), 450);
	assert_int_equal(
	        share(1000, (struct fs_memory_claim[]){ WANT(5000), WANT(5000), WANT(5000), WANT(5000) }, 4), 250);
}

static void a_given_budget_comes_first(void **state)
{
	(void)state;
	assert_int_equal(share(1000, (struct fs_memory_claim[]){ WANT(5000), GIVEN(600) }, 2), 400);
	assert_int_equal(share(1000, (struct fs_memory_claim[]){ WANT(5000), GIVEN(2000) }, 2), 0);
	assert_int_equal(share(1000, (struct fs_memory_claim[]){ GIVEN(2000), WANT(5000) }, 2), 2000);
}

/* All parts together are the room, or all that is wanted. */
static void no_room_is_left_that_somebody_wants(void **state)
{
	(void)state;
	uint64_t seed = 1;
	for (int round = 0; round < 2000; round++) {
		struct fs_memory_claim claims[8], turned[8];
		uint64_t wanted = 0, given = 0, room;
		size_t n = 1 + round % 8;
		for (size_t i = 0; i < n; i++) {
			seed = seed * 6364136223846793005U + 1442695040888963407U;
			claims[i] = (struct fs_memory_claim){ .want_bytes = seed >> 34 };
			wanted += claims[i].want_bytes;
		}
		room = (seed >> 30) % (2 * wanted + 1);
		for (size_t i = 0; i < n; i++) {
			for (size_t k = 0; k < n; k++)
				turned[k] = claims[(i + k) % n];
			uint64_t part = fs_memory_share(room, turned, n);
			assert_true(part <= claims[i].want_bytes);
			given += part;
		}
		uint64_t all = room < wanted ? room : wanted;
		assert_true(given <= all && given + n >= all);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(host_alone, fresh, clean),
		cmocka_unit_test_setup_teardown(cgroup_v2_and_its_parents, fresh, clean),
		cmocka_unit_test_setup_teardown(cgroup_v1, fresh, clean),
		cmocka_unit_test_setup_teardown(the_most, fresh, clean),
		cmocka_unit_test_setup_teardown(nothing_to_read_is_nothing_known, fresh, clean),
		cmocka_unit_test_setup_teardown(pages_of_ours_count_as_free_where_they_are_active, fresh, clean),
		cmocka_unit_test_setup_teardown(names_of_ours_count_as_free, fresh, clean),
		cmocka_unit_test(a_mount_alone_has_what_it_wants_or_all_there_is),
		cmocka_unit_test(small_wants_leave_the_rest_to_large_ones),
		cmocka_unit_test(a_given_budget_comes_first),
		cmocka_unit_test(no_room_is_left_that_somebody_wants),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
