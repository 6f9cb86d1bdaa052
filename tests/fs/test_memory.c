/* The default of memory=, from made-up files of /proc and /sys. */
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

#include "fs/memory.h"
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
	assert_int_equal(fs_memory_free(root), 8 * BASE_GIB);
	put("/proc/self/cgroup", "0::/\n");
	assert_int_equal(fs_memory_free(root), 8 * BASE_GIB);
}

static void cgroup_v2_and_its_parents(void **state)
{
	(void)state;
	put("/proc/self/cgroup", "0::/job/rank0\n");
	put("/sys/fs/cgroup/job/rank0/memory.max", "max\n");
	put("/sys/fs/cgroup/job/rank0/memory.current", "4096\n");
	assert_int_equal(fs_memory_free(root), 8 * BASE_GIB);
	put("/sys/fs/cgroup/job/memory.max", "4294967296\n");
	put("/sys/fs/cgroup/job/memory.current", "3221225472\n");
	assert_int_equal(fs_memory_free(root), 1 * BASE_GIB);
	put("/sys/fs/cgroup/job/memory.stat", "anon 1\nfile 2147483648\ninactive_file 1073741824\nactive_file 1\n");
	assert_int_equal(fs_memory_free(root), 2 * BASE_GIB);
	put("/sys/fs/cgroup/job/rank0/memory.max", "1073741824\n");
	put("/sys/fs/cgroup/job/rank0/memory.current", "1073745920\n");
	assert_int_equal(fs_memory_free(root), 0);
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
	assert_int_equal(fs_memory_free(root), 1 * BASE_GIB);
	put("/sys/fs/cgroup/memory/docker/abc/memory.stat", "cache 5\ntotal_inactive_file 536870912\n");
	assert_int_equal(fs_memory_free(root), 1536 * BASE_MIB);
}

static void nothing_to_read_is_nothing_known(void **state)
{
	(void)state;
	put("/proc/meminfo", "");
	assert_int_equal(fs_memory_free(root), 0);
	assert_true(fs_memory_most(root) == UINT64_MAX);
}

static void shared_among_mounts(void **state)
{
	(void)state;
	unsetenv("LOCAL_WORLD_SIZE");
	uint64_t one = fs_memory_default(0);
	uint64_t eight = fs_memory_default(7);
	assert_true(one >= FS_MEMORY_MIN && eight >= FS_MEMORY_MIN && eight <= one);
	setenv("LOCAL_WORLD_SIZE", "100000000", 1);
	assert_int_equal(fs_memory_default(0), FS_MEMORY_MIN);
	setenv("LOCAL_WORLD_SIZE", "nonsense", 1);
	assert_true(fs_memory_default(0) >= FS_MEMORY_MIN);
	unsetenv("LOCAL_WORLD_SIZE");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(host_alone, fresh, clean),
		cmocka_unit_test_setup_teardown(cgroup_v2_and_its_parents, fresh, clean),
		cmocka_unit_test_setup_teardown(cgroup_v1, fresh, clean),
		cmocka_unit_test_setup_teardown(the_most, fresh, clean),
		cmocka_unit_test_setup_teardown(nothing_to_read_is_nothing_known, fresh, clean),
		cmocka_unit_test(shared_among_mounts),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
